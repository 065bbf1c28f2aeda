//! Paint, PaintTee, CheckPaint: a colour that packets carry.
//!
//! `Paint(COLOR [, ANNO])`, one input, one output, push or pull: sets the paint annotation of each packet.
//!
//! `PaintTee(COLOR [, ANNO])`, one input, two outputs: passes each packet to output 0; of one that has this colour, a copy goes
//! to output 1 (push) before.
//!
//! `CheckPaint(COLOR [, ANNO])`, one input, one or two outputs: a packet of this colour goes to output 0; another one to output
//! 1 (push), or is dropped where there is no such output.
//!
//! COLOR is 0 to 255. ANNO is an annotation of one byte, by name or offset; `PAINT` (16) by default.
//!
//! Handlers of all three: `color` (r/w), `anno` (r, its offset).

use crate::Packet;
use crate::args::{AnnoArg, Args, Failed};
use crate::element::{Batch, Element};
use crate::handler::Handlers;
use crate::packet::anno;
use crate::router::Cx;

/// A colour, and where packets carry it.
#[derive(Clone, Copy)]
struct Colour {
    value: u8,
    anno: usize,
}

impl Default for Colour {
    fn default() -> Self {
        Self { value: 0, anno: anno::PAINT }
    }
}

impl Colour {
    fn read(args: &mut Args<'_>) -> Result<Self, Failed> {
        let (mut value, mut anno) = (0, AnnoArg::<1>(anno::PAINT));
        args.must("COLOR", &mut value).may("ANNO", &mut anno).finish()?;
        Ok(Self { value, anno: anno.0 })
    }

    fn is_of(self, packet: &Packet) -> bool {
        packet.anno_u8(self.anno) == self.value
    }

    fn handlers<E: Element>(handlers: &mut Handlers, of: fn(&mut E) -> &mut Self) {
        handlers.data("color", move |element: &mut E| &mut of(element).value);
        handlers.read("anno", move |element: &mut E, _| of(element).anno);
    }
}

/// Paint.
#[derive(Default)]
pub(super) struct Paint(Colour);

impl Element for Paint {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        self.0 = Colour::read(args)?;
        Ok(())
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        packet.set_anno_u8(self.0.anno, self.0.value);
        Some(packet)
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        for packet in batch.iter_mut() {
            packet.set_anno_u8(self.0.anno, self.0.value);
        }
        cx.emit_batch(0, batch);
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn handlers(&self, handlers: &mut Handlers) {
        Colour::handlers(handlers, |paint: &mut Self| &mut paint.0);
    }
}

/// PaintTee.
#[derive(Default)]
pub(super) struct PaintTee(Colour);

impl Element for PaintTee {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        self.0 = Colour::read(args)?;
        Ok(())
    }

    fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        if self.0.is_of(&packet) {
            cx.emit(1, packet.clone());
        }
        Some(packet)
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, port: usize, batch: &mut Batch) {
        if !batch.iter().any(|packet| self.0.is_of(packet)) {
            return cx.emit_batch(0, batch);
        }
        cx.push_each(self, port, batch);
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn handlers(&self, handlers: &mut Handlers) {
        Colour::handlers(handlers, |paint: &mut Self| &mut paint.0);
    }
}

/// CheckPaint.
#[derive(Default)]
pub(super) struct CheckPaint(Colour);

impl Element for CheckPaint {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        self.0 = Colour::read(args)?;
        Ok(())
    }

    fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        if self.0.is_of(&packet) {
            return Some(packet);
        }
        cx.emit_checked(1, packet);
        None
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn handlers(&self, handlers: &mut Handlers) {
        Colour::handlers(handlers, |paint: &mut Self| &mut paint.0);
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, noise};
    use crate::{Packet, packet::anno};

    fn numbered(count: u8) -> Vec<Packet> {
        (0..count).map(|n| Packet::from_slice(&[n])).collect()
    }

    #[test]
    fn packets_are_painted_by_name_and_by_offset() {
        for (config, at) in [
            ("Paint(5)", anno::PAINT),
            ("Paint(COLOR 5, ANNO PAINT)", anno::PAINT),
            ("Paint(5, ANNO 17)", 17),
            ("Paint(5, 47)", 47),
        ] {
            for join in [" -> ", " -> Queue -> "] {
                let mut harness = Harness::new(&format!("give :: Give{join}p :: {config} -> take :: Take"));
                harness.give("give", numbered(3));
                let taken = harness.take("take");
                assert_eq!(taken.len(), 3);
                assert!(taken.iter().all(|packet| packet.anno_u8(at) == 5), "{config}");
                assert_eq!(harness.read("p.anno"), at.to_string());
            }
        }
    }

    #[test]
    fn a_colour_is_changed_while_packets_pass() {
        let mut harness = Harness::new("give :: Give -> p :: Paint(1) -> take :: Take");
        harness.write("p.color", "200").unwrap();
        assert_eq!(harness.read("p.color"), "200");
        assert!(harness.write("p.color", "256").is_err());
        harness.write("p.config", "9, 20").unwrap();
        harness.give("give", numbered(1));
        assert_eq!(harness.take("take")[0].anno_u8(20), 9);
    }

    #[test]
    fn colours_are_single_bytes() {
        for class in ["Paint", "PaintTee", "CheckPaint"] {
            let outputs = if class == "PaintTee" { " -> Take; p[1] -> Take" } else { " -> Take" };
            let of = |config: &str| Harness::errors(&format!("Give -> p :: {class}({config}){outputs}"));
            assert!(of("256").contains("COLOR: out of range, bound 255"), "{}", of("256"));
            assert!(of("").contains("COLOR: required argument missing"));
            assert!(of("1, 48").contains("ANNO: "));
            assert!(of("1, DST_IP").contains("ANNO: "));
            assert!(of("1, 2, 3").contains("too many arguments"));
        }
    }

    #[test]
    fn what_has_the_colour_is_copied() {
        let mut harness = Harness::new(
            "give :: Give -> tee :: PaintTee(3, ANNO 0) -> take :: Take; tee[1] -> copies :: Take;
             pulled :: Give -> Queue -> pt :: PaintTee(0) -> rest :: Take; pt[1] -> same :: Take",
        );
        let packets = noise(200);
        let expected: Vec<_> = packets.iter().filter(|p| p.anno_u8(0) == 3).map(|p| p.bytes().to_vec()).collect();
        let all: Vec<_> = packets.iter().map(|packet| packet.bytes().to_vec()).collect();
        harness.give("give", packets.clone());
        assert_eq!(harness.take_bytes("take"), all);
        assert_eq!(harness.take_bytes("copies"), expected);
        harness.give("pulled", packets);
        assert_eq!(harness.take_bytes("rest"), all);
        assert_eq!(harness.take_bytes("same"), all, "nobody has painted them");
    }

    #[test]
    fn a_copy_goes_before_its_packet() {
        let mut harness =
            Harness::new("give :: Give -> tee :: PaintTee(0) -> Paint(1) -> take :: Take; tee[1] -> Paint(2) -> take");
        harness.give("give", numbered(3));
        let colours = |packet: &Packet| (packet.bytes()[0], packet.anno_u8(anno::PAINT));
        let taken: Vec<_> = harness.take("take").iter().map(colours).collect();
        assert_eq!(taken, [(0, 2), (0, 1), (1, 2), (1, 1), (2, 2), (2, 1)]);
    }

    #[test]
    fn other_colours_are_dropped_or_go_to_the_second_output() {
        let mut harness = Harness::new(
            "give :: Give -> check :: CheckPaint(0, ANNO 3) -> take :: Take; check[1] -> others :: Take;
             alone :: Give -> Queue -> one :: CheckPaint(1, ANNO 3) -> first :: Take;
             pulled :: Give -> Queue -> two :: CheckPaint(2, 3) -> fit :: Take; two[1] -> rest :: Take",
        );
        let packets: Vec<_> = (0..90u8)
            .map(|n| {
                let mut packet = Packet::from_slice(&[n]);
                packet.set_anno_u8(3, n % 3);
                packet
            })
            .collect();
        let of = |keep: &dyn Fn(u8) -> bool| (0..90).filter(|n| keep(*n)).map(|n| vec![n]).collect::<Vec<_>>();
        for source in ["give", "alone", "pulled"] {
            harness.give(source, packets.clone());
        }
        assert_eq!(harness.take_bytes("take"), of(&|n| n % 3 == 0));
        assert_eq!(harness.take_bytes("others"), of(&|n| n % 3 != 0));
        assert_eq!(harness.take_bytes("first"), of(&|n| n % 3 == 1));
        assert_eq!(harness.take_bytes("fit"), of(&|n| n % 3 == 2));
        assert_eq!(harness.take_bytes("rest"), of(&|n| n % 3 != 2));
        harness.write("check.color", "1").unwrap();
        harness.give("give", packets);
        assert_eq!(harness.take_bytes("take"), of(&|n| n % 3 == 1));
    }
}
