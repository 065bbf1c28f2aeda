//! ToIPSummaryDump: writes a line, or a record, for each packet.
//!
//! `ToIPSummaryDump(FILENAME [, FIELDS, HEADER, VERBOSE, BANNER, BINARY, MULTIPACKET, BAD_PACKETS, CAREFUL_TRUNC,
//! EXTRA_LENGTH])`: one input, push or pull, and perhaps an output, push, to which packets pass. FILENAME `-` is standard
//! output; a name that ends in `.gz` makes a compressed file.
//!
//! - FIELDS, also CONTENTS (`timestamp ip_src`): names of fields, as in [`crate::capture::summary`]; a name with spaces in quotes.
//! - HEADER (true): the lines with `!` at the beginning. VERBOSE (false): among them, host and time. BANNER: who made the dump.
//! - BINARY (false): records of bytes.
//! - MULTIPACKET (false): a packet that stands for several makes so many lines, unless there is a field for the count.
//! - BAD_PACKETS (false): a line `!bad` before that of a packet whose headers are bad.
//! - CAREFUL_TRUNC (true): one that has fewer bytes than its IP length is bad.
//! - EXTRA_LENGTH (true): lengths count bytes that were not captured.
//!
//! Handlers: `flush` (w).
//!
//! Different from Click: packets pass as they came, with their annotations; the time of VERBOSE is in UTC.

use crate::args::{Args, Failed, Raw};
use crate::capture::Output;
use crate::capture::summary::{Field, Summarizer, SummaryWriterOptions, header};
use crate::element::{Element, Run};
use crate::handler::Handlers;
use crate::lang::config::{split_words, unquote};
use crate::packet::anno;
use crate::router::Cx;
use crate::{Packet, Timestamp};
use std::io::Write;

/// The element.
#[derive(Default)]
pub(super) struct ToIpSummaryDump {
    filename: String,
    summarizer: Option<Summarizer>,
    splits: bool,
    has_extra_len: bool,
    /// What stands at the beginning; nothing without HEADER.
    banner: Option<String>,
    is_verbose: bool,
    output: Option<Output>,
    line: Vec<u8>,
}

impl ToIpSummaryDump {
    fn write(&mut self, cx: &Cx<'_>, packet: &Packet) {
        let extra = packet.anno_u32(anno::EXTRA_PACKETS);
        if !self.splits || extra == 0 {
            return self.write_one(cx, packet);
        }
        let count = u64::from(extra) + 1;
        let own = packet.len() as u64;
        let extra_len = if self.has_extra_len { packet.anno_u32(anno::EXTRA_LENGTH) } else { 0 };
        let mut whole = (own + u64::from(extra_len)).max(count * own);
        let (mut part, end) = (packet.clone(), packet.timestamp());
        let first = Timestamp::from_nanos(packet.anno_u64(anno::FIRST_TIMESTAMP) as i64);
        let mut step = Timestamp::ZERO;
        if !first.is_zero() {
            step = Timestamp::from_nanos((end - first).nanos() / i64::from(extra));
            part.set_timestamp(first);
        }
        part.set_anno_u32(anno::EXTRA_PACKETS, 0);
        for left in (1..=count).rev() {
            let len = whole / left;
            whole -= len;
            part.set_anno_u32(anno::EXTRA_LENGTH, (len - own) as u32);
            self.write_one(cx, &part);
            let time = part.timestamp() + step;
            part.set_timestamp(if left == 2 { end } else { time });
        }
    }

    fn write_one(&mut self, cx: &Cx<'_>, packet: &Packet) {
        let (Some(summarizer), Some(output)) = (&mut self.summarizer, &mut self.output) else { return };
        self.line.clear();
        summarizer.describe(packet, &mut self.line);
        if let Err(error) = output.write_all(&self.line) {
            cx.say(format_args!("{}: {error}", self.filename));
            self.output = None;
        }
    }

    fn read_fields(args: &mut Args<'_>, text: &str, is_binary: bool) -> Vec<&'static Field> {
        let mut fields = Vec::new();
        for word in split_words(text).iter().map(|word| unquote(word)) {
            match Field::find(&word) {
                None => _ = args.error(format_args!("unknown content type '{word}'")),
                Some(field) if is_binary && !field.fits_binary() => {
                    args.error(format_args!("cannot use field {word} with BINARY"));
                }
                Some(field) => fields.push(field),
            }
        }
        if fields.is_empty() {
            args.error("no contents specified");
        }
        fields
    }
}

/// The name of the machine.
fn host() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// A moment as `Tue Jul 24 17:53:30 2001`.
fn calendar(time: Timestamp) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, seconds) = (time.secs().div_euclid(86_400), time.secs().rem_euclid(86_400));
    let (mut year, mut left) = (1970, days);
    let leap = |year: i64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    while left >= 365 + i64::from(leap(year)) {
        left -= 365 + i64::from(leap(year));
        year += 1;
    }
    let lens = [31, 28 + i64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= lens[month] {
        left -= lens[month];
        month += 1;
    }
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let day = DAYS[days.rem_euclid(7) as usize];
    format!("{day} {} {:2} {hour:02}:{minute:02}:{second:02} {year}", MONTHS[month], left + 1)
}

impl Element for ToIpSummaryDump {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut fields = Raw("timestamp ip_src".into());
        let mut options =
            SummaryWriterOptions { binary: false, bad_packets: false, careful_trunc: true, extra_length: true };
        let (mut has_header, mut banner) = (true, String::new());
        args.must("FILENAME", &mut self.filename).key("DATA", &mut fields).key("CONTENTS", &mut fields);
        args.key("FIELDS", &mut fields).key("VERBOSE", &mut self.is_verbose).key("HEADER", &mut has_header);
        args.key("BANNER", &mut banner).key("MULTIPACKET", &mut self.splits).key("BINARY", &mut options.binary);
        args.key("BAD_PACKETS", &mut options.bad_packets).key("CAREFUL_TRUNC", &mut options.careful_trunc);
        args.key("EXTRA_LENGTH", &mut options.extra_length);
        let fields = Self::read_fields(args, &fields.0, options.binary);
        self.splits &= fields.iter().all(|field| field.name() != "count");
        self.has_extra_len = options.extra_length;
        self.summarizer = Some(Summarizer::new(fields, options));
        self.banner = has_header.then_some(banner);
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        let mut output = Output::create(&self.filename, true).map_err(|error| error.to_string())?;
        output.name().clone_into(&mut self.filename);
        if let (Some(banner), Some(summarizer)) = (&self.banner, &self.summarizer) {
            let time = format!("{} ({})", cx.now(), calendar(cx.now()));
            let (host, time) = if self.is_verbose { (host(), Some(time)) } else { (None, None) };
            let text = header(summarizer, banner, host.as_deref(), time.as_deref());
            output.write_all(text.as_bytes()).map_err(|error| format!("{}: {error}", self.filename))?;
        }
        self.output = Some(output);
        if cx.input_is_pull(0) {
            cx.schedule();
        }
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        self.write(cx, &packet);
        cx.emit_checked(0, packet);
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        let Some(packet) = cx.pull(0) else { return Run::Idle };
        self.push(cx, 0, packet);
        Run::Worked
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.write("flush", |dump: &mut Self, _, _| {
            let Some(output) = &mut dump.output else { return Ok(()) };
            output.flush().map_err(|error| format!("{}: {error}", dump.filename))
        });
    }

    fn cleanup(&mut self, cx: &mut Cx<'_>) {
        if let Some(output) = self.output.take()
            && let Err(error) = output.finish()
        {
            cx.say(format_args!("ToIPSummaryDump: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_their_dates() {
        let date = |seconds| calendar(Timestamp::new(seconds, 0));
        assert_eq!(date(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(date(951_782_399), "Mon Feb 28 23:59:59 2000");
        assert_eq!(date(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(date(1_000_000_000), "Sun Sep  9 01:46:40 2001");
        assert_eq!(date(1_735_689_599), "Tue Dec 31 23:59:59 2024");
    }
}
