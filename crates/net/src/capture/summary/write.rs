//! Dumps from packets.

use std::fmt::Write as _;

use crate::Packet;
use crate::lang::config::quote;

use super::VERSION;
use super::describe::Seen;
use super::field::Field;

/// How a dump is written.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is an argument of its own")]
pub struct SummaryWriterOptions {
    /// Records, not lines.
    pub binary: bool,
    /// Says of packets that their headers are bad, in a line before theirs.
    pub bad_packets: bool,
    /// Packets with fewer bytes than their IP length are bad, too.
    pub careful_trunc: bool,
    /// Lengths count bytes that were not captured.
    pub extra_length: bool,
}

/// Describes packets in the fields of a dump.
#[derive(Debug)]
pub struct Summarizer {
    fields: Vec<&'static Field>,
    options: SummaryWriterOptions,
    headers: bool,
    bad: String,
}

impl Summarizer {
    /// One for these fields.
    pub fn new(fields: Vec<&'static Field>, options: SummaryWriterOptions) -> Self {
        let headers = fields.iter().any(|field| field.is_of_ip());
        Self { fields, options, headers, bad: String::new() }
    }

    /// The fields.
    pub fn fields(&self) -> &[&'static Field] {
        &self.fields
    }

    /// Appends a packet's line or record to `out`; before it what is bad about the packet, where that is asked for.
    pub fn describe(&mut self, packet: &Packet, out: &mut Vec<u8>) {
        let Self { fields, options, headers, bad } = self;
        bad.clear();
        let begin = out.len();
        let mut noted = options.bad_packets.then_some(&mut *bad);
        let seen = Seen::new(packet, *headers, options.careful_trunc, options.extra_length, &mut noted);
        if options.binary {
            out.extend([0; 4]);
            for field in fields.iter() {
                let seeing = seen.see(field, &mut noted);
                Seen::record(field, seeing.as_ref(), out);
            }
            let len = (out.len() - begin) as u32;
            out[begin..begin + 4].copy_from_slice(&len.to_be_bytes());
        } else {
            for (index, field) in fields.iter().enumerate() {
                if index > 0 {
                    out.push(b' ');
                }
                match seen.see(field, &mut noted) {
                    Some(seeing) => seen.text(field, &seeing, out),
                    None => out.push(b'-'),
                }
            }
            out.push(b'\n');
        }
        if !bad.is_empty() {
            let mut line = Vec::new();
            append_line(&mut line, bad, options.binary);
            out.splice(begin..begin, line);
        }
    }

    /// Appends a line of another kind, such as a comment, which has to end with a newline.
    pub fn note(&self, line: &str, out: &mut Vec<u8>) {
        append_line(out, line, self.options.binary);
    }
}

/// In a binary dump a line has its length before it, with the top bit set.
fn append_line(out: &mut Vec<u8>, line: &str, binary: bool) {
    if binary {
        out.extend(((line.len() as u32 + 4) | 1 << 31).to_be_bytes());
    }
    out.extend(line.bytes());
}

/// The lines at the beginning of a dump; `host` and `time` stand there where they are given.
pub fn header(summarizer: &Summarizer, banner: &str, host: Option<&str>, time: Option<&str>) -> String {
    let mut text = format!("!IPSummaryDump {}.{}\n", VERSION.0, VERSION.1);
    if !banner.is_empty() {
        let _ = writeln!(text, "!creator {}", quote(banner));
    }
    for (name, value) in [("host", host), ("runtime", time)] {
        if let Some(value) = value {
            let _ = writeln!(text, "!{name} {value}");
        }
    }
    let name = |field: &&'static Field| match field.name() {
        // Lines have the digits that the time needs.
        "ntimestamp" if !summarizer.options.binary => "timestamp",
        name => name,
    };
    let names: Vec<&str> = summarizer.fields.iter().map(name).collect();
    let _ = writeln!(text, "!data {}", names.join(" "));
    if summarizer.options.binary {
        text.push_str("!binary\n");
    }
    text
}
