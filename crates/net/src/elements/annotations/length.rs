//! Pad, Truncate, Resize, CheckLength: how long packets are.
//!
//! `Pad([LENGTH, ZERO])`, one input, one output, push or pull: makes packets at least LENGTH bytes long. Without LENGTH (or
//! with 0), by as many bytes as their extra length annotations say, which are 0 afterwards. ZERO says whether the new bytes are
//! to be zero; they always are.
//!
//! `Truncate(LENGTH, [EXTRA_LENGTH])`: makes packets at most LENGTH bytes long. Unless EXTRA_LENGTH is false, their extra length
//! annotations count what was cut off. Handler `nbytes` (r/w): LENGTH.
//!
//! `Resize([HEAD, TAIL])`: adds HEAD bytes before the packet and TAIL bytes behind it; a negative number takes bytes away. Both
//! are 0 by default. Bytes that were taken off the beginning come back; others are zero. Handlers `head`, `tail` (r/w).
//!
//! `CheckLength(LENGTH)`, one input, one or two outputs: a packet of at most LENGTH bytes goes to output 0, a longer one to
//! output 1 (push), or is dropped where there is no such output. Handler `length` (r/w).
//!
//! Packets grow by at most 262,144 bytes here; in Click, there is no bound but memory.

use super::ADDED_MAX;
use crate::Packet;
use crate::args::{Arg, ArgCx, Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::packet::anno;
use crate::router::Cx;

/// Makes a packet longer by zeroes.
fn put_behind(packet: &mut Packet, n: usize) {
    let len = packet.len();
    packet.put(n)[len..].fill(0);
}

/// Pad.
#[derive(Default)]
pub(super) struct Pad {
    length: usize,
}

impl Element for Pad {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut length, mut zero) = (0, true);
        args.may("LENGTH", &mut length).key("ZERO", &mut zero);
        if length > ADDED_MAX {
            args.error_of("LENGTH", format_args!("out of range, bound {ADDED_MAX}"));
        }
        args.finish()?;
        self.length = length;
        Ok(())
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let missing = match self.length {
            0 => (packet.anno_u32(anno::EXTRA_LENGTH) as usize).min(ADDED_MAX),
            length => length.saturating_sub(packet.len()),
        };
        if missing > 0 {
            put_behind(&mut packet, missing);
        }
        packet.set_anno_u32(anno::EXTRA_LENGTH, 0);
        Some(packet)
    }

    fn reconfigures(&self) -> bool {
        true
    }
}

/// Truncate.
#[derive(Default)]
pub(super) struct Truncate {
    length: u32,
    is_uncounted: bool,
}

impl Element for Truncate {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut length, mut counts) = (0, true);
        args.must("LENGTH", &mut length).key("EXTRA_LENGTH", &mut counts).finish()?;
        (self.length, self.is_uncounted) = (length, !counts);
        Ok(())
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let cut = packet.len().saturating_sub(self.length as usize);
        if cut > 0 {
            if !self.is_uncounted {
                let extra = packet.anno_u32(anno::EXTRA_LENGTH).wrapping_add(cut as u32);
                packet.set_anno_u32(anno::EXTRA_LENGTH, extra);
            }
            packet.take(cut);
        }
        Some(packet)
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("nbytes", |truncate: &mut Self| &mut truncate.length);
    }
}

/// By how many bytes an end of a packet grows, or shrinks.
#[derive(Clone, Copy, Default)]
struct Growth(i32);

impl Arg for Growth {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        match i32::parse(text, cx)? {
            growth if growth > ADDED_MAX as i32 => Err(format!("out of range, bound {ADDED_MAX}")),
            growth => Ok(Self(growth)),
        }
    }
}

impl std::fmt::Display for Growth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Resize.
#[derive(Default)]
pub(super) struct Resize {
    head: Growth,
    tail: Growth,
}

impl Element for Resize {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut new = Self::default();
        args.may("HEAD", &mut new.head).may("TAIL", &mut new.tail).finish()?;
        *self = new;
        Ok(())
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        match self.head.0 {
            n @ 1.. => packet.push_back_pulled(n as usize),
            n => packet.pull(n.unsigned_abs() as usize),
        }
        match self.tail.0 {
            n @ 1.. => put_behind(&mut packet, n as usize),
            n => packet.take(n.unsigned_abs() as usize),
        }
        Some(packet)
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("head", |resize: &mut Self| &mut resize.head);
        handlers.data("tail", |resize: &mut Self| &mut resize.tail);
    }
}

/// CheckLength.
#[derive(Default)]
pub(super) struct CheckLength {
    length: u32,
}

impl Element for CheckLength {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.must("LENGTH", &mut self.length).finish()
    }

    fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        if packet.len() <= self.length as usize {
            return Some(packet);
        }
        cx.emit_checked(1, packet);
        None
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("length", |check: &mut Self| &mut check.length);
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, fuzz, noise};
    use crate::{Packet, packet::anno};

    fn with_extra(bytes: &[u8], extra: u32) -> Packet {
        let mut packet = Packet::from_slice(bytes);
        packet.set_anno_u32(anno::EXTRA_LENGTH, extra);
        packet
    }

    /// What comes out: bytes, and extra length annotations.
    fn through(config: &str, packet: &Packet) -> (Vec<u8>, u32) {
        let mut harness = Harness::new(&format!("give :: Give -> {config} -> take :: Take"));
        // The bytes are others', too.
        let other = packet.clone();
        harness.give("give", [packet.clone()]);
        assert_eq!(other.bytes(), packet.bytes());
        let taken = harness.take("take");
        (taken[0].bytes().to_vec(), taken[0].anno_u32(anno::EXTRA_LENGTH))
    }

    #[test]
    fn packets_are_padded_to_a_length_or_by_their_extra_length() {
        let packet = with_extra(b"abcd", 3);
        assert_eq!(through("Pad", &packet), (b"abcd\0\0\0".to_vec(), 0));
        assert_eq!(through("Pad(0)", &packet), (b"abcd\0\0\0".to_vec(), 0));
        assert_eq!(through("Pad(6)", &packet), (b"abcd\0\0".to_vec(), 0));
        assert_eq!(through("Pad(2, ZERO false)", &packet), (b"abcd".to_vec(), 0));
        assert_eq!(through("Truncate(2) -> Pad", &packet), (b"ab\0\0\0\0\0".to_vec(), 0));
        assert_eq!(through("Truncate(2) -> Pad(3)", &packet), (b"ab\0".to_vec(), 0));
    }

    #[test]
    fn an_extra_length_may_be_a_lie() {
        let (bytes, extra) = through("Pad", &with_extra(b"a", u32::MAX));
        assert_eq!((bytes.len(), extra), (1 + (1 << 18), 0));
    }

    #[test]
    fn what_is_cut_off_is_counted_unless_nobody_wants_it() {
        assert_eq!(through("Truncate(2)", &with_extra(b"abcd", 3)), (b"ab".to_vec(), 5));
        assert_eq!(through("Truncate(9)", &with_extra(b"abcd", 3)), (b"abcd".to_vec(), 3));
        assert_eq!(through("Truncate(2, EXTRA_LENGTH false)", &with_extra(b"abcd", 3)), (b"ab".to_vec(), 3));
        assert_eq!(through("Truncate(0)", &with_extra(b"abcd", u32::MAX)), (vec![], 3));
        let mut harness = Harness::new("give :: Give -> Queue -> t :: Truncate(3) -> take :: Take");
        harness.write("t.nbytes", "1").unwrap();
        harness.give_bytes("give", b"abc");
        assert_eq!((harness.take_bytes("take"), harness.read("t.nbytes")), (vec![b"a".to_vec()], "1".to_owned()));
    }

    #[test]
    fn packets_grow_and_shrink_at_both_ends() {
        let packet = Packet::new(0, b"ABCD", 0);
        assert_eq!(through("Resize(HEAD -2)", &packet).0, b"CD");
        assert_eq!(through("Resize(HEAD -2) -> Resize(+4, -2)", &packet).0, b"\0\0AB");
        assert_eq!(through("Resize", &packet).0, b"ABCD");
        assert_eq!(through("Resize(-8)", &packet).0, b"");
        assert_eq!(through("Resize(TAIL 3) -> Resize(0, -1)", &packet).0, b"ABCD\0\0");
        assert_eq!(through("Resize(-2147483648, -2147483648)", &packet).0, b"");
        let mut harness = Harness::new("give :: Give -> Queue -> r :: Resize(1, 2) -> take :: Take");
        harness.write("r.head", "-1").unwrap();
        harness.write("r.tail", "1").unwrap();
        assert!(harness.write("r.tail", "262145").is_err());
        harness.give_bytes("give", b"abc");
        assert_eq!(harness.take_bytes("take"), [b"bc\0"]);
        assert_eq!((harness.read("r.head"), harness.read("r.tail")), ("-1".to_owned(), "1".to_owned()));
        harness.write("r.config", "").unwrap();
        assert_eq!((harness.read("r.head"), harness.read("r.tail")), ("0".to_owned(), "0".to_owned()));
    }

    #[test]
    fn packets_that_are_too_long_go_elsewhere() {
        let mut harness = Harness::new(
            "give :: Give -> c :: CheckLength(30) -> short :: Take; c[1] -> long :: Take;
             pulled :: Give -> Queue -> CheckLength(LENGTH 30) -> alone :: Take",
        );
        let packets = noise(200);
        let of = |keep: fn(&Packet) -> bool| {
            packets.iter().filter(|packet| keep(packet)).map(|packet| packet.bytes().to_vec()).collect::<Vec<_>>()
        };
        let (short, long) = (of(|packet| packet.len() <= 30), of(|packet| packet.len() > 30));
        harness.give("give", packets.clone());
        harness.give("pulled", packets.clone());
        assert_eq!((harness.take_bytes("short"), harness.take_bytes("long")), (short.clone(), long));
        assert_eq!(harness.take_bytes("alone"), short);
        harness.write("c.length", "0").unwrap();
        harness.give("give", packets.clone());
        assert_eq!(harness.take_bytes("short"), of(Packet::is_empty));
    }

    #[test]
    fn lengths_are_numbers() {
        for (config, expected) in [
            ("Pad(262145)", "LENGTH: out of range, bound 262144"),
            ("Pad(1, 2)", "too many arguments"),
            ("Pad(ZERO maybe)", "ZERO: type mismatch"),
            ("Truncate", "LENGTH: required argument missing"),
            ("Truncate(-1)", "LENGTH: must be >= 0"),
            ("Truncate(1, EXTRA_LENGTH 7)", "EXTRA_LENGTH: type mismatch"),
            ("Resize(a)", "HEAD: invalid number"),
            ("Resize(0, 262145)", "TAIL: out of range, bound 262144"),
            ("Resize(1, 2, 3)", "too many arguments"),
            ("CheckLength", "LENGTH: required argument missing"),
        ] {
            let told = Harness::errors(&format!("Give -> {config} -> Take"));
            assert!(told.contains(expected), "{config}: {told}");
        }
    }

    #[test]
    fn any_packet_gets_the_length_that_was_asked_for() {
        let config = "give :: Give -> Truncate(70) -> Pad(50) -> Resize(-10, +3) -> Pad -> take :: Take";
        let taken = fuzz(config, &["take"]);
        assert!(taken[0].iter().all(|packet| (43..=63).contains(&packet.len())));
        assert!(taken[0].iter().all(|packet| packet.anno_u32(anno::EXTRA_LENGTH) == 0));
    }
}
