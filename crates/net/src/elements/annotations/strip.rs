//! Strip, Unstrip, StripToNetworkHeader: bytes off the beginning of packets, and back.
//!
//! `Strip(LENGTH)`, one input, one output, push or pull: takes LENGTH bytes off the beginning, or all where there are fewer.
//!
//! `Unstrip(LENGTH)`: puts LENGTH bytes (at most 262,144) before the beginning. Bytes that were stripped are there again; where
//! none were, the new ones are zero.
//!
//! `StripToNetworkHeader()`: the packet begins at its network layer's header, which may lie before its data. A packet without
//! such a header passes as it is.
//!
//! Headers keep their places. Handlers of Strip and Unstrip: `length` (r/w).
//!
//! In Click, Unstrip has no bound and shows what lay in the packet's memory, and a packet that is stripped by more than it has is
//! told on standard error.

use super::ADDED_MAX;
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::{Batch, Element};
use crate::handler::Handlers;
use crate::router::Cx;

/// Strip.
#[derive(Default)]
pub(super) struct Strip {
    length: u32,
}

impl Element for Strip {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.must("LENGTH", &mut self.length).finish()
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        packet.pull(self.length as usize);
        Some(packet)
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        for packet in batch.iter_mut() {
            packet.pull(self.length as usize);
        }
        cx.emit_batch(0, batch);
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("length", |strip: &mut Self| &mut strip.length);
    }
}

/// Unstrip.
#[derive(Default)]
pub(super) struct Unstrip {
    length: usize,
}

impl Element for Unstrip {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut length = 0;
        args.must("LENGTH", &mut length);
        if length > ADDED_MAX {
            args.error_of("LENGTH", format_args!("out of range, bound {ADDED_MAX}"));
        }
        args.finish()?;
        self.length = length;
        Ok(())
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        packet.push_back_pulled(self.length);
        Some(packet)
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        for packet in batch.iter_mut() {
            packet.push_back_pulled(self.length);
        }
        cx.emit_batch(0, batch);
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("length", |strip: &mut Self, _| strip.length);
        handlers.write("length", |strip: &mut Self, cx, text| match cx.parse(text)? {
            length if length > ADDED_MAX => Err(format!("out of range, bound {ADDED_MAX}")),
            length => {
                strip.length = length;
                Ok(())
            }
        });
    }
}

/// StripToNetworkHeader.
#[derive(Default)]
pub(super) struct StripToNetworkHeader;

fn strip_to_network_header(packet: &mut Packet) {
    match packet.network_offset() {
        Some(offset) if offset >= 0 => packet.pull(offset as usize),
        Some(offset) => packet.push_back_pulled(offset.unsigned_abs()),
        None => {}
    }
}

impl Element for StripToNetworkHeader {
    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        strip_to_network_header(&mut packet);
        Some(packet)
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        batch.iter_mut().for_each(strip_to_network_header);
        cx.emit_batch(0, batch);
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::{Harness, fuzz, noise};

    #[test]
    fn bytes_are_taken_off_and_put_back() {
        let mut harness = Harness::new(
            "give :: Give -> s :: Strip(3) -> t :: PaintTee(0) -> Queue -> u :: Unstrip(2) -> take :: Take;
             t[1] -> stripped :: Take",
        );
        harness.give_bytes("give", b"abcdefg");
        harness.give_bytes("give", b"ab");
        harness.give_bytes("give", b"");
        assert_eq!(harness.take_bytes("stripped"), [&b"defg"[..], b"", b""]);
        let put_back = harness.take_bytes("take");
        assert_eq!(put_back[0], b"bcdefg");
        assert_eq!(put_back[1], b"ab", "no more was taken than there was");
        assert_eq!(put_back[2].len(), 2);
        harness.write("s.length", "1").unwrap();
        harness.write("u.length", "1").unwrap();
        harness.give_bytes("give", b"xyz");
        assert_eq!(harness.take_bytes("stripped"), [b"yz"]);
        assert_eq!(harness.take_bytes("take"), [b"xyz"]);
        assert_eq!((harness.read("s.length"), harness.read("u.length")), ("1".to_owned(), "1".to_owned()));
        assert!(harness.write("u.length", "262145").is_err());
        harness.write("s.config", "2").unwrap();
        harness.give_bytes("give", b"xyz");
        assert_eq!(harness.take_bytes("stripped"), [b"z"]);
    }

    #[test]
    fn what_is_stripped_and_put_back_is_the_same_packet() {
        let packets: Vec<_> = noise(300).into_iter().filter(|packet| packet.len() >= 20).collect();
        let expected: Vec<_> = packets.iter().map(|packet| packet.bytes().to_vec()).collect();
        let mut harness =
            Harness::new("give :: Give -> Strip(14) -> Unstrip(14) -> Strip(20) -> Unstrip(20) -> take :: Take");
        harness.give("give", packets);
        assert_eq!(harness.take_bytes("take"), expected);
    }

    /// Symptom: bytes of another packet. Cause: memory of packets is used again, and shows what lay there.
    #[test]
    fn nothing_of_another_packet_is_put_before() {
        let mut harness = Harness::new(
            "give :: Give -> Strip(2) -> t :: Tee -> Unstrip(40) -> take :: Take; t[1] -> Strip(1) -> Unstrip(100) -> more :: Take",
        );
        let own = [7; 30];
        for headroom in [0, 39, 120].repeat(4) {
            harness.give("give", [Packet::new(headroom, &own, 7)]);
        }
        for (sink, new) in [("take", 38), ("more", 97)] {
            let expected = [vec![0; new], own.to_vec()].concat();
            assert_eq!(harness.take_bytes(sink), vec![expected; 12], "{sink}");
        }
    }

    #[test]
    fn there_may_be_no_room_for_what_is_put_back() {
        let mut harness = Harness::new("give :: Give -> Unstrip(1000) -> take :: Take");
        harness.give("give", [Packet::new(0, b"end", 0)]);
        let taken = harness.take_bytes("take");
        assert_eq!((taken[0].len(), &taken[0][1000..]), (1003, &b"end"[..]));
        assert!(taken[0][..1000].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_packet_begins_at_its_network_header_wherever_that_lies() {
        let mut harness = Harness::new("give :: Give -> StripToNetworkHeader -> take :: Take");
        let mut packet = Packet::from_slice(b"0123456789abcdefghijklmnopqrstuvwxyz");
        harness.give("give", [packet.clone()]);
        packet.set_network_header(14, 20);
        harness.give("give", [packet.clone()]);
        packet.pull(20);
        harness.give("give", [packet]);
        let taken = harness.take_bytes("take");
        assert_eq!(taken[0], b"0123456789abcdefghijklmnopqrstuvwxyz", "there is no such header");
        assert_eq!((taken[1].as_slice(), taken[2].as_slice()), (&b"efghijklmnopqrstuvwxyz"[..], &taken[1][..]));
    }

    #[test]
    fn lengths_are_numbers() {
        for (config, expected) in [
            ("Strip(x)", "LENGTH: invalid number"),
            ("Strip()", "LENGTH: required argument missing"),
            ("Strip(-1)", "LENGTH: must be >= 0"),
            ("Unstrip(262145)", "LENGTH: out of range, bound 262144"),
            ("StripToNetworkHeader(1)", "too many arguments"),
        ] {
            let told = Harness::errors(&format!("Give -> {config} -> Take"));
            assert!(told.contains(expected), "{config}: {told}");
        }
    }

    #[test]
    fn any_packet_passes() {
        let taken =
            fuzz("give :: Give -> StripToNetworkHeader -> Strip(9) -> Strip(4000000000) -> take :: Take", &["take"]);
        assert!(taken[0].iter().all(Packet::is_empty) && taken[0].len() == 2000);
    }
}
