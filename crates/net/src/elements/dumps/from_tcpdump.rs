//! FromTcpdump: makes packets of what tcpdump printed.
//!
//! `FromTcpdump(FILENAME [, STOP, ACTIVE, ZERO, CHECKSUM, SAMPLE])`: one output, push or pull. FILENAME `-` is standard input.
//! Lines of TCP are read whole, with options and relative sequence numbers; of UDP the length; of others addresses, lengths and
//! what tcpdump tells of the IP header.
//!
//! - STOP (false): stops the driver at the end. ACTIVE (true): emits packets. SAMPLE (1): with this probability.
//! - CHECKSUM (false): packets get checksums. ZERO: accepted; what a line does not tell is zero.
//!
//! Handlers: `sampling_prob`, `active` (r/w), `encap`, `filename`, `filesize`, `filepos`, `stop`.

use super::feed::Feed;
use crate::Packet;
use crate::args::{Args, Failed};
use crate::capture::{Source, TcpdumpReader};
use crate::element::{Element, Run};
use crate::handler::Handlers;
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct FromTcpdump {
    feed: Feed,
    filename: String,
    has_checksums: bool,
}

impl Element for FromTcpdump {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut zero = true;
        args.must("FILENAME", &mut self.filename).key("ZERO", &mut zero).key("CHECKSUM", &mut self.has_checksums);
        self.feed.read_arguments(args);
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        let source = Source::open(&self.filename).map_err(|error| error.to_string())?;
        let reader = TcpdumpReader::new(source, self.has_checksums).map_err(|error| error.to_string())?;
        self.feed.start(cx, Some(Box::new(reader)));
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
