//! Classifier: sends packets to outputs by bytes at offsets.
//!
//! `Classifier(PATTERN, ..., PATTERN)`: push input, a push output for each pattern. A packet goes to the output of the first
//! pattern that matches; if none does, it is dropped. A pattern is a list of clauses `OFFSET/VALUE[%MASK]`, all of which have to
//! match, `!` before one that must not; `-` matches everything. OFFSET is decimal, VALUE and MASK are pairs of hexadecimal
//! digits, `?` for any digit. A packet that is too short does not match a clause.
//!
//! Handlers: `program`.
//!
//! Differs from Click: nothing has to be known of how packets are aligned; offsets beyond 65535 are refused.

use super::lanes::Lanes;
use crate::args::{Args, Failed};
use crate::classify::{Filter, Headers};
use crate::element::{Batch, Element};
use crate::handler::Handlers;
use crate::router::Cx;
use crate::{Level, Log, Packet};

/// The element.
#[derive(Default)]
pub(super) struct Classifier {
    filter: Option<Filter>,
    lanes: Lanes,
}

/// How many outputs the element has whose arguments these are.
pub(super) fn outputs(args: &Args<'_>) -> usize {
    let cx = args.cx();
    cx.elements.number(cx.element).map_or(0, |number| cx.elements.ports(number).1)
}

/// Reports what was said of a filter, and returns it unless something was wrong.
pub(super) fn finish(args: &mut Args<'_>, filter: Option<Filter>, mut log: Log) -> Result<Filter, Failed> {
    for entry in log.take() {
        if entry.level == Level::Error {
            args.error(entry.text);
        } else {
            args.warning(entry.text);
        }
    }
    args.finish()?;
    filter.ok_or(Failed)
}

impl Classifier {
    fn choose(filter: Option<&Filter>, packet: &Packet) -> Option<usize> {
        filter.and_then(|filter| filter.classify(&Headers::raw(packet.bytes())))
    }
}

impl Element for Classifier {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (outputs, patterns) = (outputs(args), args.rest());
        let mut log = Log::new();
        let filter = Filter::classifier(&patterns, outputs, &mut log);
        self.filter = Some(finish(args, filter, log)?);
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        if let Some(port) = Self::choose(self.filter.as_ref(), &packet) {
            cx.emit_checked(port, packet);
        }
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        let filter = self.filter.as_ref();
        self.lanes.send(cx, batch, |packet| Self::choose(filter, packet));
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("program", |classifier: &mut Self, _| {
            classifier.filter.as_ref().map(Filter::program).unwrap_or_default()
        });
    }

    fn reconfigures(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::{Harness, fuzz, noise};

    #[test]
    fn packets_go_to_the_output_of_the_first_pattern_that_matches() {
        let mut harness = Harness::new(
            "give :: Give -> c :: Classifier(1/0806 3/01, 1/0806, 1/08, -);\n\
             c[0] -> a :: Take; c[1] -> b :: Take; c[2] -> c2 :: Take; c[3] -> d :: Take",
        );
        let packets: [&[u8]; 6] = [&[0, 8, 6, 1], &[0, 8, 6, 2], &[0, 8, 0], &[], &[0, 8, 6, 1, 5], &[0, 8, 6]];
        harness.give("give", packets.map(Packet::from_slice));
        assert_eq!(harness.take_bytes("a"), [vec![0, 8, 6, 1], vec![0, 8, 6, 1, 5]]);
        assert_eq!(harness.take_bytes("b"), [vec![0, 8, 6, 2], vec![0, 8, 6]]);
        assert_eq!(harness.take_bytes("c2"), [[0, 8, 0]]);
        assert_eq!(harness.take_bytes("d"), [[0; 0]]);
    }

    #[test]
    fn packets_that_match_nothing_are_dropped() {
        let mut harness = Harness::new("give :: Give -> Classifier(0/aa) -> take :: Take");
        harness.give("give", [[1], [0xaa], [2]].map(|bytes| Packet::from_slice(&bytes)));
        assert_eq!(harness.take_bytes("take"), [[0xaa]]);
    }

    #[test]
    fn the_program_is_shown_and_exchanged_while_packets_pass() {
        let mut harness =
            Harness::new("give :: Give -> c :: Classifier(1/01, -); c[0] -> a :: Take; c[1] -> b :: Take");
        let program = " 0   0/00010000%00ff0000  yes->[0]  no->[1]\nsafe length 2\nalignment offset 0\n";
        assert_eq!(harness.read("c.program"), program);
        harness.write("c.config", "1/02, -").unwrap();
        harness.give("give", [[0, 1], [0, 2]].map(|bytes| Packet::from_slice(&bytes)));
        assert_eq!(harness.take_bytes("a"), [[0, 2]]);
        assert!(harness.write("c.config", "1/zz, -").is_err());
        harness.give("give", [Packet::from_slice(&[0, 2])]);
        assert_eq!((harness.take_bytes("a"), harness.take_bytes("b")), (vec![vec![0, 2]], vec![vec![0, 1]]));
    }

    #[test]
    fn patterns_that_are_wrong_are_all_reported() {
        let told = Harness::errors("Give -> c :: Classifier(x, 12/1); c[0] -> Take; c[1] -> Take");
        assert!(told.contains("  pattern 0: expected a digit\n"), "{told}");
        assert!(told.contains("  pattern 1: value has less than 2 hex digits\n"), "{told}");
        let told = Harness::errors("Give -> Classifier(-, -) -> Take");
        assert!(told.contains("  need 1 arguments, one per output port\n"), "{told}");
    }

    #[test]
    fn every_packet_goes_to_one_output() {
        let config = "give :: Give -> c :: Classifier(12/0800, 12/0806 20/0001, !12/81??, -);\n\
                      c[0] -> a :: Take; c[1] -> b :: Take; c[2] -> d :: Take; c[3] -> e :: Take";
        let mut harness = Harness::new(config);
        let packets = noise(300);
        harness.give("give", packets.iter().cloned());
        let got: usize = ["a", "b", "d", "e"].iter().map(|sink| harness.take(sink).len()).sum();
        assert_eq!(got, packets.len());
        fuzz(config, &["a", "b", "d", "e"]);
    }
}
