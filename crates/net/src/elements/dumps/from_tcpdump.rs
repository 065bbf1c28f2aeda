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

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;

    #[test]
    fn lines_become_packets_until_the_end_stops_the_driver() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, "1.5 1.2.3.4.5 > 5.6.7.8.9: udp 5\n2.5 1.2.3.4.5 > 5.6.7.8.9: udp 6\n").unwrap();
        let path = path.display();
        let mut harness = Harness::new(&format!("f :: FromTcpdump({path}, STOP true, ACTIVE false) -> take :: Take"));
        assert_eq!((harness.take("take").len(), harness.runcount()), (0, 1));
        harness.write("f.active", "true").unwrap();
        harness.pass(0.1);
        let packets = harness.take("take");
        let lengths: Vec<_> = packets.iter().map(|packet| (packet.timestamp().secs(), packet.len())).collect();
        // The payload was not printed: there are headers.
        assert_eq!((lengths, harness.runcount()), (vec![(1, 28), (2, 28)], 0));
        assert_eq!(harness.read("f.filename"), path.to_string());
    }

    #[test]
    fn a_file_that_is_not_there_is_told() {
        let told = Harness::errors("FromTcpdump(/nowhere/at/all) -> Take");
        assert!(told.contains("/nowhere/at/all"), "{told}");
        assert!(Harness::errors("FromTcpdump -> Take").contains("FILENAME: required argument missing"));
    }
}
