//! SetTimestamp, SetTimestampDelta, AdjustTimestamp: change packets' timestamps.
//!
//! `SetTimestamp([TIMESTAMP, FIRST])`: sets the timestamp to TIMESTAMP, or to the time at which the packet comes; with FIRST
//! (false) the first timestamp.
//!
//! `SetTimestampDelta([TYPE])`: makes a timestamp that is not zero a difference: `RANGE` (the default), to the first one that
//! came; `NOW`, from the time now; `FIRST`, to the packet's first timestamp. Handlers: `first`, `reset`.
//!
//! `AdjustTimestamp([TIME, FIRST, ALL])`: adds TIME, which may be negative, to the timestamp, or to the first timestamp
//! (FIRST, false); to one that is zero, only with ALL (false). Handlers: `time` (r/w).
//!
//! Packets pass, pushed or pulled. Times are the task's, not each packet's own: they are as fine as a burst.

use crate::args::{Arg, ArgCx, Args, Failed, Interval, Word};
use crate::element::Element;
use crate::handler::Handlers;
use crate::packet::anno;
use crate::router::Cx;
use crate::{Packet, Timestamp};

fn first(packet: &Packet) -> Timestamp {
    Timestamp::from_nanos(packet.anno_u64(anno::FIRST_TIMESTAMP) as i64)
}

fn set_first(packet: &mut Packet, time: Timestamp) {
    packet.set_anno_u64(anno::FIRST_TIMESTAMP, time.nanos() as u64);
}

/// Sets timestamps.
#[derive(Default)]
pub(super) struct SetTimestamp {
    time: Option<Timestamp>,
    is_first: bool,
}

impl Element for SetTimestamp {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut is_delta = false;
        args.may("TIMESTAMP", &mut self.time).key("FIRST", &mut self.is_first).key("DELTA", &mut is_delta);
        if is_delta {
            args.error("SetTimestamp(DELTA) is deprecated, use SetTimestampDelta(TYPE FIRST)");
        }
        self.time = self.time.filter(|time| *time >= Timestamp::ZERO);
        args.finish()
    }

    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let time = self.time.unwrap_or_else(|| cx.now());
        if self.is_first {
            set_first(&mut packet, time);
        } else {
            packet.set_timestamp(time);
        }
        Some(packet)
    }
}

/// What a difference is taken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Origin {
    #[default]
    Range,
    Now,
    First,
}

/// Makes timestamps differences.
#[derive(Default)]
pub(super) struct SetTimestampDelta {
    origin: Origin,
    first: Timestamp,
}

impl Element for SetTimestampDelta {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut kind = Word("RANGE".into());
        args.key("TYPE", &mut kind);
        self.origin = match kind.0.as_str() {
            "RANGE" => Origin::Range,
            "NOW" => Origin::Now,
            "FIRST" => Origin::First,
            _ => return Err(args.error("bad TYPE")),
        };
        args.finish()
    }

    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let time = packet.timestamp();
        if !time.is_zero() {
            if self.first.is_zero() && self.origin == Origin::Range {
                self.first = time;
            }
            packet.set_timestamp(match self.origin {
                Origin::Range => time - self.first,
                Origin::Now => cx.now() - time,
                Origin::First => time - first(&packet),
            });
        }
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("first", |delta: &mut Self, _| delta.first);
        handlers.button("reset", |delta: &mut Self, _| delta.first = Timestamp::ZERO);
    }
}

/// A time that may be negative, with a unit or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Shift(Timestamp);

impl Arg for Shift {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        let text = crate::lang::config::unquote(text);
        let (sign, rest) =
            text.strip_prefix('-').map_or((1, text.strip_prefix('+').unwrap_or(&text)), |rest| (-1, rest));
        let size = Interval::parse(rest, cx)?.0;
        Ok(Self(Timestamp::from_nanos(sign * size.nanos())))
    }
}

impl std::fmt::Display for Shift {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Adds to timestamps.
#[derive(Default)]
pub(super) struct AdjustTimestamp {
    by: Shift,
    is_first: bool,
    has_all: bool,
}

impl Element for AdjustTimestamp {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.may("TIME", &mut self.by).key("FIRST", &mut self.is_first).key("ALL", &mut self.has_all).finish()
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let time = if self.is_first { first(&packet) } else { packet.timestamp() };
        if self.has_all || !time.is_zero() {
            if self.is_first {
                set_first(&mut packet, time + self.by.0);
            } else {
                packet.set_timestamp(time + self.by.0);
            }
        }
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("time", |adjust: &mut Self| &mut adjust.by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::testing::{Harness, fuzz};

    fn at(nanos: i64, first: i64) -> Packet {
        let mut packet = Packet::from_slice(&[1]);
        packet.set_timestamp(Timestamp::from_nanos(nanos));
        set_first(&mut packet, Timestamp::from_nanos(first));
        packet
    }

    /// Times of packets, and their first times, behind an element that all of them go through.
    #[track_caller]
    fn times(element: &str, packets: &[Packet]) -> Vec<(i64, i64)> {
        let mut harness = Harness::new(&format!("give :: Give -> e :: {element} -> take :: Take"));
        harness.give("give", packets.iter().cloned());
        let taken = harness.take("take");
        taken.iter().map(|packet| (packet.timestamp().nanos(), first(packet).nanos())).collect()
    }

    const NOW: i64 = 1_000_000_000_000_000_000;

    #[test]
    fn timestamps_are_set() {
        let packets = [at(5, 6)];
        assert_eq!(times("SetTimestamp", &packets), [(NOW, 6)]);
        assert_eq!(times("SetTimestamp(1.5)", &packets), [(1_500_000_000, 6)]);
        assert_eq!(times("SetTimestamp(FIRST true)", &packets), [(5, NOW)]);
        assert_eq!(times("SetTimestamp(2, FIRST true)", &packets), [(5, 2_000_000_000)]);
        assert!(Harness::errors("Give -> SetTimestamp(x) -> Take").contains("TIMESTAMP: type mismatch"));
        assert!(
            Harness::errors("Give -> SetTimestamp(DELTA true) -> Take").contains("use SetTimestampDelta(TYPE FIRST)")
        );
    }

    #[test]
    fn timestamps_become_differences() {
        let packets = [at(0, 1), at(50, 20), at(70, 20), at(40, 0)];
        assert_eq!(times("SetTimestampDelta", &packets), [(0, 1), (0, 20), (20, 20), (-10, 0)]);
        assert_eq!(times("SetTimestampDelta(TYPE FIRST)", &packets), [(0, 1), (30, 20), (50, 20), (40, 0)]);
        assert_eq!(times("SetTimestampDelta(TYPE NOW)", &packets[1..2]), [(NOW - 50, 20)]);
        assert!(Harness::errors("Give -> SetTimestampDelta(TYPE X) -> Take").contains("bad TYPE"));
        let mut harness = Harness::new("give :: Give -> e :: SetTimestampDelta -> take :: Take");
        harness.give("give", packets);
        assert_eq!(harness.read("e.first"), "0.000000050");
        harness.write("e.reset", "").unwrap();
        assert_eq!(harness.read("e.first"), "0.000000");
    }

    #[test]
    fn timestamps_are_shifted() {
        let packets = [at(0, 0), at(2_500_000_000, 1)];
        assert_eq!(times("AdjustTimestamp(-1)", &packets), [(0, 0), (1_500_000_000, 1)]);
        assert_eq!(times("AdjustTimestamp(+1.5, ALL true)", &packets), [(1_500_000_000, 0), (4_000_000_000, 1)]);
        assert_eq!(times("AdjustTimestamp(3ns, FIRST true)", &packets), [(0, 0), (2_500_000_000, 4)]);
        let mut harness = Harness::new("give :: Give -> e :: AdjustTimestamp -> take :: Take");
        harness.write("e.time", "-2").unwrap();
        harness.give("give", packets);
        assert_eq!(
            (harness.take("take")[1].timestamp().nanos(), harness.read("e.time")),
            (500_000_000, "-2.000000".into())
        );
        assert!(Harness::errors("Give -> AdjustTimestamp(1mile) -> Take").contains("TIME: type mismatch"));
    }

    #[test]
    fn any_packet_passes() {
        let config =
            "give :: Give -> SetTimestamp -> SetTimestampDelta -> AdjustTimestamp(-1, ALL true) -> take :: Take";
        assert_eq!(fuzz(config, &["take"])[0].len(), 2000);
    }
}
