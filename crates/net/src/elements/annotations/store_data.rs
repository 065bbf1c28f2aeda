//! StoreData: overwrites bytes of packets.
//!
//! `StoreData(OFFSET, DATA)`, one input, one output, push or pull: DATA takes the place of the packet's bytes from OFFSET on,
//! as far as the packet goes. Bytes are written as `"text"` or `\<0A 0B>`.

use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct StoreData {
    offset: u32,
    data: Vec<u8>,
}

impl Element for StoreData {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.must("OFFSET", &mut self.offset).must("DATA", &mut self.data).finish()
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let offset = self.offset as usize;
        if offset < packet.len() {
            let into = &mut packet.bytes_mut()[offset..];
            let len = into.len().min(self.data.len());
            into[..len].copy_from_slice(&self.data[..len]);
        }
        Some(packet)
    }

    fn reconfigures(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, noise};

    #[test]
    fn bytes_are_overwritten_as_far_as_the_packet_goes() {
        let mut harness = Harness::new(r"give :: Give -> Queue -> StoreData(2, \<0001 02>) -> take :: Take");
        for bytes in [&b"abcdefg"[..], b"abcd", b"abc", b"ab", b""] {
            harness.give_bytes("give", bytes);
        }
        assert_eq!(harness.take_bytes("take"), [&b"ab\x00\x01\x02fg"[..], b"ab\x00\x01", b"ab\x00", b"ab", b""]);
    }

    #[test]
    fn others_that_have_the_same_bytes_keep_them() {
        let packets = noise(200);
        let (mut expected, before): (Vec<_>, Vec<_>) =
            packets.iter().map(|packet| (packet.bytes().to_vec(), packet.bytes().to_vec())).unzip();
        let mut harness = Harness::new(
            "give :: Give -> tee :: PaintTee(0) -> StoreData(OFFSET 7, DATA \"some text\") -> take :: Take;
             tee[1] -> copies :: Take",
        );
        harness.give("give", packets);
        for packet in &mut expected {
            packet.iter_mut().skip(7).zip(b"some text").for_each(|(byte, new)| *byte = *new);
        }
        assert_eq!(harness.take_bytes("take"), expected);
        assert_eq!(harness.take_bytes("copies"), before);
    }

    #[test]
    fn both_arguments_are_needed() {
        for (config, expected) in [
            ("", "OFFSET: required argument missing"),
            ("1", "DATA: required argument missing"),
            ("-1, a", "OFFSET: must be >= 0"),
            ("1, a, b", "too many arguments"),
        ] {
            let told = Harness::errors(&format!("Give -> StoreData({config}) -> Take"));
            assert!(told.contains(expected), "{config}: {told}");
        }
    }
}
