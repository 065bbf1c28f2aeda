//! TimeFilter: lets packets of a time pass.
//!
//! `TimeFilter([START, END, START_AFTER, START_DELAY, END_AFTER, END_DELAY, INTERVAL, STOP, END_CALL])`: packets pass, pushed
//! or pulled; others go to output 1 (push), if it is there. A packet passes whose timestamp is from START to before END.
//!
//! - START, END: seconds since 1970. START_AFTER, END_AFTER: after the first packet's timestamp. START_DELAY, END_DELAY: after
//!   the router began. INTERVAL: END so long after START. At most one START and one END. Without a START it is the first packet.
//! - STOP (false): stops the driver when a packet at END or later comes.
//! - END_CALL: a handler that is called then; `$t` in its value is that packet's timestamp. It may move END, and the packet
//!   passes if it is before that. Not with STOP.
//!
//! Handlers: `start`, `end`, `interval` (r/w), `extend_interval` (w).
//!
//! Different from Click: `interval` can be written, as its manual says.

use crate::args::{Args, Failed, HandlerCall, Interval};
use crate::element::Element;
use crate::handler::Handlers;
use crate::router::Cx;
use crate::{Packet, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// The element.
#[derive(Default)]
pub(super) struct TimeFilter {
    shared: Arc<Shared>,
    first: Bound,
    last: Bound,
    stops: bool,
    end_call: Option<HandlerCall>,
}

/// What handlers change, perhaps from within END_CALL.
#[derive(Default)]
struct Shared {
    first: AtomicI64,
    last: AtomicI64,
    /// Whether the first packet has come.
    is_ready: AtomicBool,
    /// Whether END has not been met since it was set.
    is_armed: AtomicBool,
}

impl Shared {
    fn first(&self) -> Timestamp {
        Timestamp::from_nanos(self.first.load(Ordering::Relaxed))
    }

    fn last(&self) -> Timestamp {
        Timestamp::from_nanos(self.last.load(Ordering::Relaxed))
    }

    fn set_first(&self, time: Timestamp) {
        self.first.store(time.nanos(), Ordering::Relaxed);
    }

    fn set_last(&self, time: Timestamp) {
        self.last.store(time.nanos(), Ordering::Relaxed);
        self.is_armed.store(true, Ordering::Relaxed);
    }
}

/// What START and END are counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Bound {
    #[default]
    None,
    At(Timestamp),
    /// After the first packet.
    After(Timestamp),
    /// After the router began.
    Delay(Timestamp),
    /// After START.
    Interval(Timestamp),
}

impl Bound {
    /// The one of these that was given; more than one is an error.
    fn one(args: &mut Args<'_>, bounds: &[Self], error: &str) -> Self {
        let is_given = |bound: &&Self| match bound {
            Self::None => false,
            Self::At(t) | Self::After(t) | Self::Delay(t) | Self::Interval(t) => !t.is_zero(),
        };
        let mut given = bounds.iter().filter(is_given);
        let first = given.next().copied().unwrap_or_default();
        if given.next().is_some() {
            args.error(error);
        }
        first
    }
}

impl TimeFilter {
    fn first_packet(&self, time: Timestamp) {
        match self.first {
            Bound::None => self.shared.set_first(time),
            Bound::After(delay) => self.shared.set_first(time + delay),
            _ => {}
        }
        match self.last {
            Bound::After(delay) => self.shared.set_last(time + delay),
            Bound::Interval(len) => self.shared.set_last(self.shared.first() + len),
            _ => {}
        }
        self.shared.is_ready.store(true, Ordering::Relaxed);
    }

    /// END is met: whoever wants to know may move it.
    fn end(&self, cx: &mut Cx<'_>, time: Timestamp) {
        loop {
            let before = self.shared.last();
            if !self.shared.is_armed.swap(false, Ordering::Relaxed) {
                return;
            }
            if self.stops {
                cx.stop_driver();
            }
            let Some(call) = &self.end_call else { return };
            let value = call.value.replace("${t}", "$t").replace("$t", &time.to_string());
            if let Err(error) = cx.call(&HandlerCall { value, ..call.clone() }) {
                cx.say(error);
            }
            if time < self.shared.last() || self.shared.last() <= before {
                return;
            }
        }
    }
}

impl Element for TimeFilter {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut at = [Timestamp::ZERO; 2];
        let mut spans = [Interval::default(); 5];
        args.may("START", &mut at[0]).may("END", &mut at[1]);
        args.key("START_DELAY", &mut spans[0]).key("END_DELAY", &mut spans[1]).key("START_AFTER", &mut spans[2]);
        args.key("END_AFTER", &mut spans[3]).key("INTERVAL", &mut spans[4]);
        args.key("STOP", &mut self.stops).key("END_CALL", &mut self.end_call);
        let first = [Bound::At(at[0]), Bound::After(spans[2].0), Bound::Delay(spans[0].0)];
        self.first = Bound::one(args, &first, "START, START_AFTER, and START_DELAY are mutually exclusive");
        let last = [Bound::At(at[1]), Bound::After(spans[3].0), Bound::Delay(spans[1].0), Bound::Interval(spans[4].0)];
        self.last = Bound::one(args, &last, "END, END_AFTER, END_DELAY, and INTERVAL are mutually exclusive");
        if self.stops && self.end_call.is_some() {
            args.error("END_CALL and STOP are mutually exclusive");
        }
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        match self.first {
            Bound::At(time) => self.shared.set_first(time),
            Bound::Delay(delay) => self.shared.set_first(cx.now() + delay),
            _ => {}
        }
        self.shared.set_last(match self.last {
            Bound::At(time) => time,
            Bound::Delay(delay) => cx.now() + delay,
            _ => Timestamp::from_nanos(i64::MAX),
        });
        Ok(())
    }

    fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        let time = packet.timestamp();
        if !self.shared.is_ready.load(Ordering::Relaxed) {
            self.first_packet(time);
        }
        let is_early = time < self.shared.first();
        if !is_early && time >= self.shared.last() {
            self.end(cx, time);
        }
        if is_early || time >= self.shared.last() {
            cx.emit_checked(1, packet);
            return None;
        }
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        let shared = || Arc::clone(&self.shared);
        let (s, wrong) = (shared(), "expected time");
        handlers.free_read("start", move |_, _| Ok(s.first().to_string()));
        let s = shared();
        handlers.free_read("end", move |_, _| Ok(s.last().to_string()));
        let s = shared();
        handlers.free_read("interval", move |_, _| Ok((s.last() - s.first()).to_string()));
        handlers.write("start", move |filter: &mut Self, cx, text| {
            let time = cx.parse::<Timestamp>(text).map_err(|_| wrong)?;
            if !filter.shared.is_ready.load(Ordering::Relaxed) {
                filter.first_packet(time);
            }
            filter.shared.set_first(time);
            Ok(())
        });
        let s = shared();
        handlers.free_write("end", move |cx, text| {
            s.set_last(cx.parse::<Timestamp>(text).map_err(|_| wrong)?);
            Ok(())
        });
        let s = shared();
        handlers.free_write("interval", move |cx, text| {
            s.set_last(s.first() + cx.parse::<Interval>(text).map_err(|_| wrong)?.0);
            Ok(())
        });
        let s = shared();
        handlers.free_write("extend_interval", move |cx, text| {
            s.set_last(s.last() + cx.parse::<Interval>(text).map_err(|_| wrong)?.0);
            Ok(())
        });
    }

    /// Its END_CALL looks at others.
    fn observes(&self) -> bool {
        self.end_call.is_some()
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, fuzz};
    use crate::{Packet, Timestamp};

    fn at(tenths: i64) -> Packet {
        let mut packet = Packet::from_slice(&[tenths as u8]);
        packet.set_timestamp(Timestamp::from_nanos(tenths * 100_000_000));
        packet
    }

    #[track_caller]
    fn filter(arguments: &str, tenths: &[i64]) -> (Vec<u8>, Harness) {
        let mut harness = Harness::new(&format!("give :: Give -> t :: TimeFilter({arguments}) -> take :: Take"));
        harness.give("give", tenths.iter().map(|tenths| at(*tenths)));
        (harness.take("take").iter().map(|packet| packet.bytes()[0]).collect(), harness)
    }

    const TIMES: [i64; 6] = [20, 10, 21, 25, 30, 31];

    #[test]
    fn packets_of_a_time_pass() {
        let pass = |arguments: &str| filter(arguments, &TIMES).0;
        assert_eq!(pass(""), [20, 21, 25, 30, 31], "those before the first one do not");
        assert_eq!(pass("1, 2.5"), [20, 10, 21]);
        assert_eq!(pass("START 2.1, INTERVAL 0.9"), [21, 25]);
        assert_eq!(pass("START_AFTER 0.5, END_AFTER 1s"), [25]);
        assert_eq!(pass("END 0.1"), [0; 0]);
        assert_eq!(pass("START_DELAY 1"), [0; 0], "the router began later");
    }

    #[test]
    fn others_leave_elsewhere() {
        let mut harness =
            Harness::new("give :: Give -> t :: TimeFilter(2.1, 3) -> take :: Take; t[1] -> other :: Take");
        harness.give("give", TIMES.map(at));
        assert_eq!(harness.take_bytes("other"), [[20], [10], [30], [31]]);
    }

    #[test]
    fn the_end_stops_the_driver_or_calls_a_handler_that_may_move_it() {
        let (_, mut harness) = filter("END 2.5, STOP true", &[20]);
        assert_eq!(harness.runcount(), 1);
        let (passed, mut harness) = filter("END 2.5, STOP true", &[20, 25, 26]);
        assert_eq!((passed, harness.runcount()), (vec![20], 0));
        let (passed, mut harness) = filter("0, 1, END_CALL t.extend_interval 1", &[1, 2, 10, 12, 55]);
        assert_eq!((passed, harness.read("t.end")), (vec![1, 2, 10, 12, 55], "6.000000".into()));
        let (passed, mut harness) = filter("0, 1, END_CALL t.end $t", &[1, 2, 10, 12]);
        assert_eq!((passed, harness.read("t.end")), (vec![1, 2], "1.200000".into()));
    }

    #[test]
    fn bounds_are_read_and_written() {
        let (_, mut harness) = filter("1, 2", &[]);
        let read = |harness: &mut Harness| ["start", "end", "interval"].map(|name| harness.read(&format!("t.{name}")));
        assert_eq!(read(&mut harness), ["1.000000", "2.000000", "1.000000"]);
        harness.write("t.interval", "5").unwrap();
        harness.write("t.start", "3").unwrap();
        harness.write("t.extend_interval", "1").unwrap();
        assert_eq!(read(&mut harness), ["3.000000", "7.000000", "4.000000"]);
        harness.write("t.end", "4").unwrap();
        assert_eq!(harness.read("t.interval"), "1.000000");
        assert_eq!(harness.write("t.end", "x").unwrap_err(), "expected time");
    }

    #[test]
    fn wrong_arguments_are_told() {
        let errors = |arguments: &str| Harness::errors(&format!("Give -> TimeFilter({arguments}) -> Take"));
        assert!(errors("1, START_AFTER 1").contains("START, START_AFTER, and START_DELAY are mutually exclusive"));
        assert!(errors("END 1, INTERVAL 1").contains("END, END_AFTER, END_DELAY, and INTERVAL are mutually exclusive"));
        assert!(errors("STOP true, END_CALL stop").contains("END_CALL and STOP are mutually exclusive"));
        assert!(errors("x").contains("START: type mismatch"));
    }

    #[test]
    fn any_packet_passes_or_leaves() {
        let config =
            "give :: Give -> SetTimestamp -> t :: TimeFilter(END_AFTER 2) -> take :: Take; t[1] -> other :: Take";
        assert_eq!(fuzz(config, &["take", "other"]).iter().map(Vec::len).sum::<usize>(), 2000);
    }
}
