//! PaintSwitch, HashSwitch, RandomSwitch and RoundRobinSwitch: each packet goes a way of its own.
//!
//! Push input, push outputs. No handlers.
//!
//! - `PaintSwitch([ANNO])`: by the annotation ANNO of one byte (PAINT); 255: a copy to each output. Packets of other outputs
//!   than there are, are dropped.
//! - `HashSwitch(OFFSET, LENGTH)`: by a sum over LENGTH bytes, at least 1, from OFFSET on. Packets that are shorter go to
//!   output 0.
//! - `RandomSwitch`: by lot.
//! - `RoundRobinSwitch`: one after the other.
//!
//! Unlike Click's, they are not configured while they run. RandomSwitch draws from numbers of its own, which begin with the
//! router's.

use crate::Packet;
use crate::args::{AnnoArg, Args, Failed};
use crate::element::{Batch, Element};
use crate::packet::anno;
use crate::router::Cx;

/// Copies to all outputs, in their order.
pub(super) fn copy_to_all(cx: &mut Cx<'_>, packet: Packet) {
    let Some(last) = cx.outputs().checked_sub(1) else { return };
    for output in 0..last {
        cx.emit(output, packet.clone());
    }
    cx.emit(last, packet);
}

/// The element.
pub(super) struct PaintSwitch(AnnoArg<1>);

impl Default for PaintSwitch {
    fn default() -> Self {
        Self(AnnoArg(anno::PAINT))
    }
}

impl Element for PaintSwitch {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.may("ANNO", &mut self.0).finish()
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        match packet.anno_u8(self.0.0) {
            0xFF => copy_to_all(cx, packet),
            paint => drop(cx.emit_checked(usize::from(paint), packet)),
        }
    }
}

/// The element.
#[derive(Default)]
pub(super) struct HashSwitch {
    offset: u32,
    len: u32,
}

impl Element for HashSwitch {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.must("OFFSET", &mut self.offset).must("LENGTH", &mut self.len).finish()?;
        if self.len == 0 {
            return Err(args.error("length must be > 0"));
        }
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        let (offset, n) = (self.offset as usize, cx.outputs());
        if n == 0 {
            return;
        }
        let output = match packet.bytes().get(offset..offset + self.len as usize) {
            None => 0,
            Some(bytes) => {
                let sum = bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>();
                if matches!(n, 2 | 4 | 8) { (sum ^ (sum >> 4)) & (n - 1) } else { sum % n }
            }
        };
        cx.emit(output, packet);
    }
}

/// The element.
pub(super) struct RandomSwitch(fastrand::Rng);

impl Default for RandomSwitch {
    fn default() -> Self {
        Self(fastrand::Rng::with_seed(0))
    }
}

impl Element for RandomSwitch {
    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        // Others draw between its packets or not, whether these come together or not.
        self.0 = cx.rng().fork();
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        if cx.outputs() > 0 {
            cx.emit(self.0.usize(..cx.outputs()), packet);
        }
    }
}

/// The element.
#[derive(Default)]
pub(super) struct RoundRobinSwitch(usize);

impl Element for RoundRobinSwitch {
    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        if cx.outputs() > 0 {
            cx.emit(self.0, packet);
            self.0 = (self.0 + 1) % cx.outputs();
        }
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, port: usize, batch: &mut Batch) {
        if cx.outputs() == 1 {
            cx.emit_batch(0, batch);
            return;
        }
        for packet in batch.drain(..) {
            cx.begin(&packet);
            self.push(cx, port, packet);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::Harness;
    use crate::packet::anno;

    fn three(class: &str) -> String {
        format!("give :: Give -> s :: {class} -> a :: Take; s[1] -> b :: Take; s[2] -> c :: Take")
    }

    fn counts(harness: &mut Harness) -> [usize; 3] {
        ["a", "b", "c"].map(|sink| harness.take(sink).len())
    }

    #[test]
    fn packets_go_by_their_paint() {
        for (config, at) in [("PaintSwitch", anno::PAINT), ("PaintSwitch(ANNO 20)", 20)] {
            let mut harness = Harness::new(&three(config));
            for (paint, expected) in
                [(0, [1, 0, 0]), (1, [0, 1, 0]), (2, [0, 0, 1]), (3, [0, 0, 0]), (255, [1, 1, 1]), (254, [0, 0, 0])]
            {
                let mut packet = Packet::from_slice(b"x");
                packet.set_anno_u8(at, paint);
                harness.give("give", [packet]);
                assert_eq!(counts(&mut harness), expected, "{paint}");
            }
        }
        let told = Harness::errors(&three("PaintSwitch(48)"));
        assert!(told.contains("ANNO: annotation out of range, bound 48"), "{told}");
    }

    #[test]
    fn packets_go_by_their_bytes() {
        let mut harness = Harness::new(&three("HashSwitch(1, 2)"));
        for (bytes, expected) in [
            (&b"\x00\x01\x01"[..], [0, 0, 1]),
            (b"\x07\x02\x02\x09", [0, 1, 0]),
            (b"\xFF\xFF\xFF", [1, 0, 0]),
            (b"\x00\x01", [1, 0, 0]),
            (b"", [1, 0, 0]),
        ] {
            harness.give_bytes("give", bytes);
            assert_eq!(counts(&mut harness), expected, "{bytes:?}");
        }
        let mut harness = Harness::new("give :: Give -> s :: HashSwitch(0, 1) -> a :: Take; s[1] -> b :: Take");
        harness.give_bytes("give", b"\x10");
        assert_eq!((harness.take("a").len(), harness.take("b").len()), (0, 1));
        for (config, told) in [
            ("HashSwitch(1, 0)", "length must be > 0"),
            ("HashSwitch(1)", "LENGTH: required argument missing"),
            ("HashSwitch(-1, 4)", "OFFSET: must be >= 0"),
        ] {
            let errors = Harness::errors(&three(config));
            assert!(errors.contains(told), "{config}: {errors}");
        }
        crate::elements::testing::fuzz(&three("HashSwitch(4294967295, 4294967295)"), &["a", "b", "c"]);
        crate::elements::testing::fuzz(&three("HashSwitch(20, 30)"), &["a", "b", "c"]);
    }

    #[test]
    fn packets_go_by_lot_or_by_turns() {
        let packets: Vec<_> = (0..300).map(|_| Packet::from_slice(b"x")).collect();
        let mut harness = Harness::new(&format!(
            "{}; r1 :: RandomSwitch -> d :: Take; r1[1] -> d; a2 :: Give -> r1",
            three("RandomSwitch")
        ));
        harness.give("give", packets.clone());
        let counts_by_lot = counts(&mut harness);
        assert!(counts_by_lot.iter().all(|count| (50..150).contains(count)), "{counts_by_lot:?}");
        let mut harness = Harness::new(&three("RoundRobinSwitch"));
        harness.give("give", packets[..7].to_vec());
        assert_eq!(counts(&mut harness), [3, 2, 2]);
        harness.give("give", packets[..2].to_vec());
        assert_eq!(counts(&mut harness), [0, 1, 1]);
        let mut harness = Harness::new("give :: Give -> RoundRobinSwitch -> a :: Take");
        harness.give("give", packets);
        assert_eq!(harness.take("a").len(), 300);
    }
}
