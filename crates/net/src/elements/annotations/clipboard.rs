//! Clipboard: copies bytes of one packet to others.
//!
//! `Clipboard(RANGE, ...)`, two inputs, two outputs, each pair push or pull. A RANGE is `OFFSET/LENGTH`, in bytes. The ranges of
//! a packet that goes from input 0 to output 0 are kept; they take the place of those of each packet that goes from input 1 to
//! output 1. A packet there that is too short for one of the ranges passes as it is.
//!
//! Bytes that the packet on input 0 did not have, and all of them while there was none, are zero; in Click, they are not
//! defined.

use crate::Packet;
use crate::args::{Arg, Args, Failed};
use crate::element::Element;
use crate::router::Cx;
use std::ops::Range;

/// The element.
#[derive(Default)]
pub(super) struct Clipboard {
    ranges: Vec<Range<usize>>,
    /// For each range, the bytes that there were.
    bytes: Vec<Vec<u8>>,
}

impl Clipboard {
    fn copy(&mut self, packet: &Packet) {
        let all = packet.bytes();
        for (range, bytes) in self.ranges.iter().zip(&mut self.bytes) {
            bytes.clear();
            bytes.extend(all.get(range.start..range.end.min(all.len())).unwrap_or_default());
        }
    }

    fn paste(&self, packet: &mut Packet) {
        if self.ranges.iter().any(|range| range.end > packet.len()) {
            return;
        }
        let all = packet.bytes_mut();
        for (range, bytes) in self.ranges.iter().zip(&self.bytes) {
            let (had, missing) = all[range.clone()].split_at_mut(bytes.len());
            had.copy_from_slice(bytes);
            missing.fill(0);
        }
    }

    fn pass(&mut self, port: usize, mut packet: Packet) -> Packet {
        if port == 0 {
            self.copy(&packet);
        } else {
            self.paste(&mut packet);
        }
        packet
    }
}

fn range(args: &mut Args<'_>, number: usize, text: &str) -> Result<Range<usize>, Failed> {
    let Some((offset, length)) = text.split_once('/').filter(|(offset, len)| !offset.is_empty() && !len.is_empty())
    else {
        return Err(args.error(format_args!("range {number}: expected '/' between offset and length")));
    };
    match (u32::parse(offset.trim(), args.cx()), u32::parse(length.trim(), args.cx())) {
        (Ok(offset), Ok(length)) => Ok(offset as usize..offset as usize + length as usize),
        _ => Err(args.error(format_args!("range {number}: invalid offset or length"))),
    }
}

impl Element for Clipboard {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let given = args.rest();
        let ranges: Vec<_> = given.iter().enumerate().map(|(number, text)| range(args, number, text)).collect();
        let ranges = ranges.into_iter().collect::<Result<Vec<_>, _>>()?;
        args.finish()?;
        *self = Self { bytes: vec![Vec::new(); ranges.len()], ranges };
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, port: usize, packet: Packet) {
        let packet = self.pass(port, packet);
        cx.emit(port, packet);
    }

    fn pull(&mut self, cx: &mut Cx<'_>, port: usize) -> Option<Packet> {
        let packet = cx.pull(port)?;
        Some(self.pass(port, packet))
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
    fn bytes_of_the_last_packet_are_copied_to_others() {
        let mut harness = Harness::new(
            "from :: Give -> [0]c :: Clipboard(0/1, 2/1, 9/1)[0] -> passed :: Take;
             to :: Give -> Queue -> [1]c[1] -> take :: Take",
        );
        harness.give_bytes("to", b"-a- is a -at");
        for words in [&b"Simplistic"[..], b"Dance tour", b"Ionize tub"] {
            harness.give_bytes("from", words);
            harness.give_bytes("to", b"-a- is a -at");
        }
        harness.give_bytes("to", b"short");
        harness.give_bytes("from", b"Hi");
        harness.give_bytes("to", b"-a- is a -at");
        let expected = [&b"\0a\0 is a \0at"[..], b"Sam is a cat", b"Dan is a rat", b"Ian is a bat", b"short"];
        let taken = harness.take_bytes("take");
        assert_eq!(taken[..5], expected);
        assert_eq!(taken[5], b"Ha\0 is a \0at", "the last packet had one of the three bytes");
        assert_eq!(harness.take_bytes("passed").len(), 4);
    }

    #[test]
    fn ranges_are_copied_as_an_oracle_copies_them() {
        let (from, to) = (noise(100), noise(100));
        let mut harness = Harness::new(
            "from :: Give -> [0]c :: Clipboard(3/9, 20/4, 0/2)[0] -> Take; to :: Give -> [1]c[1] -> take :: Take",
        );
        for (from, to) in from.iter().zip(&to) {
            let mut expected = to.bytes().to_vec();
            if expected.len() >= 24 {
                for at in (3..12).chain(20..24).chain(0..2) {
                    expected[at] = from.bytes().get(at).copied().unwrap_or(0);
                }
            }
            harness.give("from", [from.clone()]);
            harness.give("to", [to.clone()]);
            assert_eq!(harness.take_bytes("take"), [expected]);
        }
    }

    #[test]
    fn ranges_are_an_offset_and_a_length() {
        for (config, expected) in [
            ("0/1, 5", "range 1: expected '/' between offset and length"),
            ("/1", "range 0: expected '/' between offset and length"),
            ("1/", "range 0: expected '/' between offset and length"),
            ("1/x", "range 0: invalid offset or length"),
            ("-1/1", "range 0: invalid offset or length"),
        ] {
            let told = Harness::errors(&format!("Give -> c :: Clipboard({config}) -> Take; Give -> [1]c[1] -> Take"));
            assert!(told.contains(expected), "{config}: {told}");
        }
    }

    #[test]
    fn any_packet_passes() {
        let config =
            "give :: Give -> tee :: PaintTee(0) -> [1]c :: Clipboard(10/10, 0/4000000000, 4000000000/4000000000);
            tee[1] -> [0]c; c[0] -> copied :: Take; c[1] -> take :: Take";
        let taken = fuzz(config, &["take"]);
        assert!(taken[0].len() == 2000 && !taken[0].iter().all(Packet::is_empty));
    }
}
