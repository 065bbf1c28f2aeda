//! FromIPSummaryDump: makes packets of an IP summary dump.
//!
//! `FromIPSummaryDump(FILENAME [, STOP, ACTIVE, ZERO, TIMING, CHECKSUM, SAMPLE, PROTO, MULTIPACKET, FIELDS, FLOWID,
//! ALLOW_NONEXISTENT, DATA])`: one output, push or pull. FILENAME `-` is standard input; what is compressed with gzip is read
//! as its contents.
//!
//! - STOP (false): stops the driver at the end. ACTIVE (true): emits packets. SAMPLE (1): with this probability.
//! - TIMING (false): packets keep the delays between them.
//! - ZERO: accepted; what a dump does not tell of a packet is zero.
//! - CHECKSUM (false): packets get checksums, and all the bytes that their lengths tell; otherwise what a line does not have
//!   is extra length.
//! - PROTO (6): the IP protocol of packets of which nothing tells it.
//! - MULTIPACKET (false): a line with a count stands for so many packets.
//! - FIELDS, also CONTENTS, DEFAULT_FIELDS, DEFAULT_CONTENTS: the fields of lines before the first `!data`.
//! - FLOWID, also DEFAULT_FLOWID: source, port, destination, port and perhaps protocol where lines do not tell them.
//! - ALLOW_NONEXISTENT (false): a file that is not there, or is empty, has no packets.
//! - DATA: the dump itself, in place of FILENAME.
//!
//! Packets have an IP header with version 4, a time to live of 100, and right lengths, unless the dump says otherwise.
//!
//! Handlers: `sampling_prob`, `active` (r/w), `encap`, `filename`, `filesize`, `filepos`, `stop`.
//!
//! Different from Click: `!flowid`, `!aggregate` and the binary form work as its manual says; ZERO has no meaning.

use super::feed::Feed;
use crate::Packet;
use crate::args::{Args, Failed, Raw};
use crate::capture::Source;
use crate::capture::summary::{SummaryOptions, SummaryReader};
use crate::element::{Element, Run};
use crate::handler::Handlers;
use crate::lang::config::unquote;
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct FromIpSummaryDump {
    feed: Feed,
    filename: String,
    data: Option<String>,
    reader: Option<SummaryReader>,
    may_be_missing: bool,
}

impl FromIpSummaryDump {
    /// A reader that knows the defaults; it gets its source when everything is initialised.
    fn prepare(&mut self, args: &mut Args<'_>, options: SummaryOptions, fields: &Raw, flow: &Raw) {
        let mut reader = SummaryReader::new(Source::bytes(&self.filename, Vec::new()), options);
        if !fields.0.is_empty() {
            reader.set_contents(&fields.0);
        }
        if !flow.0.is_empty() {
            reader.set_flow(&unquote(&flow.0));
        }
        for notice in reader.take_notices() {
            if notice.is_warning {
                args.warning(notice.text);
            } else {
                args.error(notice.text);
            }
        }
        self.reader = Some(reader);
    }
}

impl Element for FromIpSummaryDump {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut options = SummaryOptions { protocol: 6, checksums: false };
        let (mut fields, mut flow, mut zero, mut filename) = (Raw::default(), Raw::default(), true, None);
        args.may("FILENAME", &mut filename).key("ZERO", &mut zero).key("TIMING", &mut self.feed.is_timed);
        self.feed.read_arguments(args);
        args.key("CHECKSUM", &mut options.checksums).key("PROTO", &mut options.protocol);
        args.key("MULTIPACKET", &mut self.feed.splits).key("ALLOW_NONEXISTENT", &mut self.may_be_missing);
        for name in ["DEFAULT_CONTENTS", "DEFAULT_FIELDS", "CONTENTS", "FIELDS"] {
            args.key(name, &mut fields);
        }
        args.key("DEFAULT_FLOWID", &mut flow).key("FLOWID", &mut flow).key("DATA", &mut self.data);
        match (&filename, &self.data) {
            (Some(_), Some(_)) => _ = args.error("FILENAME and DATA conflict"),
            (None, None) => _ = args.error_of("FILENAME", "required argument missing"),
            _ => {}
        }
        self.filename = filename.unwrap_or_else(|| "<data>".to_owned());
        self.prepare(args, options, &fields, &flow);
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        let source = match self.data.take() {
            Some(data) => Ok(Source::bytes("<data>", data.into_bytes())),
            None => Source::open(&self.filename),
        };
        let missing = |error: &crate::capture::Error| self.may_be_missing && error.is_missing();
        let mut source = match source {
            Err(error) if missing(&error) => Source::bytes(&self.filename, Vec::new()),
            source => source.map_err(|error| error.to_string())?,
        };
        let mut reader = self.reader.take().filter(|_| !(self.may_be_missing && source.at_end()));
        if let Some(reader) = &mut reader {
            reader.attach(source);
            reader.start().map_err(|error| error.to_string())?;
        }
        self.feed.start(cx, reader.map(|reader| Box::new(reader) as _));
        Ok(())
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        self.feed.run_task(cx)
    }

    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        self.feed.pull(cx)
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        self.feed.run_timer(cx);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        Feed::handlers(handlers, |dump: &mut Self| &mut dump.feed);
    }
}
