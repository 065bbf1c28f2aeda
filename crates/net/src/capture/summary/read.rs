//! Packets from dumps.

use std::fmt;

use crate::Packet;
use crate::headers::FlowId;
use crate::lang::config::{split_words, unquote};
use crate::packet::anno;

use super::super::{Error, Source};
use super::build::{Builder, Defaults};
use super::cursor::integer;
use super::field::{Field, UNKNOWN};
use super::value::{Context, Value};
use super::{VERSION, names};

/// The longest line or record that is read.
const LINE_LEN_MAX: usize = 1 << 20;

/// How a dump is read.
#[derive(Debug, Clone, Copy)]
pub struct SummaryOptions {
    /// The IP protocol of packets of which the dump does not tell it.
    pub protocol: u8,
    /// Packets get checksums, and all the bytes that their lengths tell.
    pub checksums: bool,
}

/// Something that is wrong with a dump, but ends nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The file and the line that it is about.
    pub landmark: String,
    /// Whether it is a warning; an error otherwise.
    pub is_warning: bool,
    /// What is wrong.
    pub text: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}{}", self.landmark, if self.is_warning { "warning: " } else { "" }, self.text)
    }
}

/// Reads the packets of a dump.
#[derive(Debug)]
pub struct SummaryReader {
    source: Source,
    options: SummaryOptions,
    /// Fields in the order of a line, and their indices in the order in which they make a packet.
    fields: Vec<&'static Field>,
    order: Vec<usize>,
    defaults: Defaults,
    aggregate: Option<u32>,
    minor_version: u32,
    binary: bool,
    line: u64,
    complained: bool,
    notices: Vec<Notice>,
}

/// What comes next in a dump.
enum Next {
    Line(Vec<u8>),
    Record(Vec<u8>),
    End,
}

impl SummaryReader {
    /// Reads what `source` has; [`SummaryReader::start`] comes first.
    pub fn new(source: Source, options: SummaryOptions) -> Self {
        let defaults = Defaults { protocol: options.protocol, flow: None };
        Self {
            source,
            options,
            fields: Vec::new(),
            order: Vec::new(),
            defaults,
            aggregate: None,
            minor_version: VERSION.1,
            binary: false,
            line: 0,
            complained: false,
            notices: Vec::new(),
        }
    }

    /// Reads another source from now on; fields and flow stay.
    pub fn attach(&mut self, source: Source) {
        self.source = source;
    }

    /// Sets the fields of lines before the first `!data`.
    pub fn set_contents(&mut self, contents: &str) {
        self.data(contents);
    }

    /// Sets the flow of packets of which the dump does not tell it: source, port, destination, port, perhaps protocol.
    pub fn set_flow(&mut self, flow: &str) {
        self.flow(&split_words(flow));
    }

    /// Reads the first line.
    ///
    /// # Errors
    /// A source that cannot be read, or is empty.
    pub fn start(&mut self) -> Result<(), Error> {
        let head = self.source.peek(64);
        let line = head.split(|byte| matches!(byte, b'\n' | b'\r')).next().unwrap_or_default();
        let line = String::from_utf8_lossy(line).into_owned();
        if self.source.at_end() {
            self.source.check()?;
            return Err(Error::new(self.source.name(), "empty file"));
        }
        if let Some(version) = line.strip_prefix("!IPSummaryDump") {
            let numbers: Vec<Option<u32>> = version.trim().splitn(2, '.').map(|text| text.parse().ok()).collect();
            if let [Some(major), Some(minor)] = numbers[..] {
                self.minor_version = minor;
                if major != VERSION.0 || minor > VERSION.1 {
                    self.minor_version = VERSION.1;
                    self.warn(&format!("unexpected IPSummaryDump version {major}.{minor}"));
                }
            }
        } else if self.fields.is_empty() && !KNOWN.iter().any(|known| line.starts_with(known)) {
            self.warn("missing banner line; is this an IP summary dump?");
        }
        Ok(())
    }

    /// The next packet; none at the end.
    ///
    /// # Errors
    /// A source that cannot be read further; a line or a record longer than a mebibyte, or shorter than its length.
    pub fn read(&mut self) -> Result<Option<Packet>, Error> {
        loop {
            let packet = match self.next()? {
                Next::End => return Ok(None),
                Next::Record(record) => self.record(&record),
                Next::Line(line) if line.is_empty() => None,
                Next::Line(line) if line[0] == b'!' || line[0] == b'#' => {
                    self.bang(&String::from_utf8_lossy(&line));
                    None
                }
                Next::Line(line) => self.packet_line(&line),
            };
            if let Some(packet) = packet {
                return Ok(Some(packet));
            }
        }
    }

    /// Takes what was wrong since the last time.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// How many bytes of the contents are consumed.
    pub fn position(&self) -> u64 {
        self.source.position()
    }

    /// The file's length in bytes; none for streams and compressed files.
    pub fn file_len(&self) -> Option<u64> {
        self.source.file_len()
    }

    /// The name that stands in messages.
    pub fn name(&self) -> &str {
        self.source.name()
    }

    fn warn(&mut self, text: &str) {
        self.notice(true, text);
    }

    fn complain(&mut self, text: &str) {
        self.notice(false, text);
    }

    fn notice(&mut self, is_warning: bool, text: &str) {
        let record = if self.binary { "record " } else { "" };
        let landmark = format!("{}:{record}{}", self.source.name(), self.line);
        self.notices.push(Notice { landmark, is_warning, text: text.to_owned() });
    }

    fn next(&mut self) -> Result<Next, Error> {
        if self.binary { self.next_record() } else { self.next_line() }
    }

    /// The next line, without its end.
    fn next_line(&mut self) -> Result<Next, Error> {
        let mut want = 1;
        loop {
            let bytes = self.source.peek(want);
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            if let Some(end) = end.filter(|end| bytes[*end] == b'\n' || *end + 1 < bytes.len()) {
                let len = end + if bytes[end..].starts_with(b"\r\n") { 2 } else { 1 };
                self.line += 1;
                return Ok(Next::Line(self.source.take(len).unwrap_or_default()[..end].to_vec()));
            }
            let have = bytes.len();
            if have < want {
                return self.last_line(have, end.unwrap_or(have));
            }
            if have > LINE_LEN_MAX {
                return Err(self.error("line too long"));
            }
            want = have + 1;
        }
    }

    /// What is left, which no newline ends.
    fn last_line(&mut self, have: usize, end: usize) -> Result<Next, Error> {
        self.source.check()?;
        if have == 0 {
            return Ok(Next::End);
        }
        self.line += 1;
        Ok(Next::Line(self.source.take(have).unwrap_or_default()[..end].to_vec()))
    }

    fn next_record(&mut self) -> Result<Next, Error> {
        let offset = self.source.position();
        let Some(&[a, b, c, d]) = self.source.peek(4).first_chunk::<4>() else {
            if !self.source.at_end() {
                return Err(self.cut(offset));
            }
            return self.source.check().map(|()| Next::End);
        };
        let word = u32::from_be_bytes([a, b, c, d]);
        let len = (word & 0x7FFF_FFFF) as usize;
        self.line += 1;
        if len < 4 {
            return Err(self.error("binary record too short"));
        }
        if len > LINE_LEN_MAX {
            return Err(self.error("binary record too long"));
        }
        let Some(record) = self.source.take(len) else { return Err(self.cut(offset)) };
        let record = &record[4..];
        if word >> 31 == 0 {
            return Ok(Next::Record(record.to_vec()));
        }
        let end = record.iter().rposition(|byte| !matches!(byte, 0 | b'\n' | b'\r')).map_or(0, |last| last + 1);
        Ok(Next::Line(record[..end].to_vec()))
    }

    fn cut(&mut self, offset: u64) -> Error {
        let text = format!("the file ends inside the record at offset {offset}");
        self.source.check().err().unwrap_or_else(|| Error::new(self.source.name(), text))
    }

    fn error(&self, text: &str) -> Error {
        let record = if self.binary { "record " } else { "" };
        Error::new(&format!("{}:{record}{}", self.source.name(), self.line), text)
    }

    /// A line that tells how to read those behind it.
    fn bang(&mut self, line: &str) {
        let words = split_words(line);
        match words.first().map(String::as_str) {
            Some("!data" | "!contents") => self.data(line),
            Some("!flowid") => self.flow(&words[1..]),
            Some("!proto") => self.protocol(&words[1..], "!proto"),
            Some("!aggregate") => self.aggregate(&words[1..]),
            Some("!binary") => {
                if words.len() != 1 {
                    self.complain("bad !binary specification");
                }
                (self.binary, self.line) = (true, 0);
            }
            _ => {}
        }
    }

    fn aggregate(&mut self, words: &[String]) {
        self.aggregate = match words {
            [word] => integer(word.as_bytes()).and_then(|number| u32::try_from(number).ok()),
            _ => None,
        };
        if self.aggregate.is_none() {
            self.complain("bad !aggregate specification");
        }
    }

    fn data(&mut self, line: &str) {
        self.fields.clear();
        for word in split_words(line).iter().map(|word| unquote(word)) {
            if self.fields.is_empty() && (word == "!data" || word == "!contents") {
                continue;
            }
            let field = Field::find(&word);
            match field {
                None => self.warn(&format!("unknown content type '{word}'")),
                Some(field) if field.order == 0 && field.name != "none" => {
                    self.warn(&format!("content type '{word}' ignored on input"));
                }
                Some(_) => {}
            }
            self.fields.push(field.unwrap_or(&UNKNOWN));
        }
        if self.fields.is_empty() {
            self.complain("no contents specified");
        }
        self.order = (0..self.fields.len()).collect();
        self.order.sort_by_key(|&index| self.fields[index].order);
    }

    fn protocol(&mut self, words: &[String], place: &str) {
        match words {
            [word] => match names::protocol(word) {
                Some(protocol) => self.defaults.protocol = protocol,
                None => self.complain(&format!("bad protocol in {place}")),
            },
            _ => self.complain(&format!("bad {place}")),
        }
    }

    fn flow(&mut self, words: &[String]) {
        let address = |at: usize| match words.get(at)?.as_str() {
            "-" => Some([0, 0, 0, 0].into()),
            text => text.parse().ok(),
        };
        let port = |at: usize| match words.get(at)?.as_str() {
            "-" => Some(0),
            text => u16::try_from(integer(text.as_bytes())?).ok(),
        };
        let (Some(source), Some(from), Some(destination), Some(to)) = (address(0), port(1), address(2), port(3)) else {
            self.defaults.flow = None;
            return self.complain("bad !flowid specification");
        };
        if words.len() > 4 {
            self.protocol(&words[4..5], "!flowid");
        }
        self.defaults.flow = Some(FlowId::new(source, from, destination, to));
    }

    fn builder(&self) -> Builder {
        Builder::new(self.defaults)
    }

    fn packet_line(&mut self, line: &[u8]) -> Option<Packet> {
        let words = words(line, self.fields.len());
        let mut builder = self.builder();
        let mut known = 0;
        for &index in &self.order {
            let (field, Some(&word)) = (self.fields[index], words.get(index)) else { continue };
            if word == b"-" || word.is_empty() || field.order == 0 {
                continue;
            }
            let context = Context { minor_version: self.minor_version, icmp_type: builder.icmp_type() };
            if let Some(value) = Value::from_text(field, word, context) {
                builder.inject(field, &value);
                known += 1;
            }
        }
        let blank = line.iter().all(u8::is_ascii_whitespace);
        self.finish(builder, known, blank)
    }

    fn record(&mut self, mut record: &[u8]) -> Option<Packet> {
        let values: Vec<Option<Value>> =
            self.fields.iter().map(|field| Value::from_record(field, &mut record)).collect();
        let mut builder = self.builder();
        let mut known = 0;
        for &index in &self.order {
            let field = self.fields[index];
            if let (Some(value), true) = (&values[index], field.order > 0) {
                builder.inject(field, value);
                known += 1;
            }
        }
        self.finish(builder, known, false)
    }

    /// The packet, if anything was known of it; a dump without is complained about once.
    fn finish(&mut self, builder: Builder, known: usize, blank: bool) -> Option<Packet> {
        if known == 0 {
            if !blank && !self.complained {
                self.complained = true;
                let text = if self.fields.is_empty() { "no '!data' provided" } else { "packet parse error" };
                self.complain(text);
            }
            return None;
        }
        let mut packet = builder.finish(self.options.checksums);
        if let Some(aggregate) = self.aggregate
            && !self.fields.iter().any(|field| field.name == "aggregate")
        {
            packet.set_anno_u32(anno::AGGREGATE, aggregate);
        }
        Some(packet)
    }
}

/// Lines that dumps begin with.
const KNOWN: &[&str] = &["!creator", "!data", "!contents", "!proto", "!flowid"];

/// The words of a line, at most `count`; spaces within double quotes do not separate.
fn words(line: &[u8], count: usize) -> Vec<&[u8]> {
    let mut words = Vec::with_capacity(count);
    let mut rest = line;
    while words.len() < count && !rest.is_empty() {
        let end = word_end(rest);
        words.push(&rest[..end]);
        rest = rest[end..].trim_ascii_start();
    }
    words
}

fn word_end(line: &[u8]) -> usize {
    let (mut quoted, mut at) = (false, 0);
    while at < line.len() {
        match line[at] {
            b'"' => quoted = !quoted,
            b'\\' if quoted => at += 1,
            byte if !quoted && byte.is_ascii_whitespace() => break,
            _ => {}
        }
        at += 1;
    }
    at.min(line.len())
}
