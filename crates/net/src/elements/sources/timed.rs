//! TimedSource and TimedSink: a packet now and then.
//!
//! `TimedSource([INTERVAL, DATA, LIMIT, ACTIVE, STOP, HEADROOM])`: a push output. Sends a packet of DATA (a sentence of at least
//! 64 bytes) every INTERVAL (0.5 s), the first one after that time, up to LIMIT of them (-1: without end), with the time as
//! timestamp. STOP (false): stops the driver after them. HEADROOM (64): bytes of room before the data.
//! Handlers: `data`, `limit`, `interval`, `active`, `headroom` (r/w), `count`, `reset`.
//!
//! `TimedSink([INTERVAL])`: a pull input. Pulls a packet every INTERVAL (0.5 s), and drops it. Handlers: `interval` (r/w).

use crate::args::{Amount, Args, Failed, Interval};
use crate::element::Element;
use crate::handler::Handlers;
use crate::packet::DEFAULT_HEADROOM;
use crate::router::Cx;
use crate::{Packet, Timestamp};

const HALF: Interval = Interval(Timestamp::new(0, 500_000_000));
const DATA: &[u8] = b"This packet has been made by TimedSource, and it has more than 64 bytes.";

/// Sends packets.
pub(super) struct TimedSource {
    interval: Interval,
    data: Vec<u8>,
    limit: Amount,
    is_active: bool,
    stops: bool,
    headroom: usize,
    count: u64,
    /// When the next packet is due, while the timer is set.
    due: Option<Timestamp>,
}

impl Default for TimedSource {
    fn default() -> Self {
        Self {
            interval: HALF,
            data: DATA.to_vec(),
            limit: Amount(None),
            is_active: true,
            stops: false,
            headroom: DEFAULT_HEADROOM,
            count: 0,
            due: None,
        }
    }
}

impl TimedSource {
    fn set_timer(&mut self, cx: &mut Cx<'_>, due: Timestamp) {
        self.due = Some(due);
        cx.timer_at(0, due);
    }

    fn go_on(&mut self, cx: &mut Cx<'_>) {
        if self.is_active && self.due.is_none() {
            self.set_timer(cx, cx.now());
        }
    }
}

/// The most room before a packet.
const HEADROOM_MAX: usize = 1 << 16;

impl Element for TimedSource {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.may("INTERVAL", &mut self.interval).may("DATA", &mut self.data).key("LIMIT", &mut self.limit);
        args.key("ACTIVE", &mut self.is_active).key("STOP", &mut self.stops).key("HEADROOM", &mut self.headroom);
        if self.headroom > HEADROOM_MAX {
            args.error_of("HEADROOM", format_args!("out of range, bound {HEADROOM_MAX}"));
        }
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if self.is_active {
            self.set_timer(cx, cx.now() + self.interval.0);
        }
        Ok(())
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        let due = self.due.take().unwrap_or_else(|| cx.now());
        if !self.is_active {
            return;
        }
        if self.limit.0.is_some_and(|limit| self.count >= limit) {
            if self.stops {
                cx.stop_driver();
            }
            return;
        }
        let mut packet = Packet::new(self.headroom, &self.data, 0);
        packet.set_timestamp(cx.now());
        cx.emit(0, packet);
        self.count += 1;
        self.set_timer(cx, due + self.interval.0);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("data", |source: &mut Self, _| String::from_utf8_lossy(&source.data).into_owned());
        handlers.write("data", |source: &mut Self, _, text| {
            source.data = text.as_bytes().to_vec();
            Ok(())
        });
        handlers.raw("data");
        handlers.data("limit", |source: &mut Self| &mut source.limit);
        handlers.read("interval", |source: &mut Self, _| source.interval);
        handlers.write("interval", |source: &mut Self, cx, text| {
            let interval: Interval = cx.parse(text).map_err(|_| "bad interval")?;
            if interval.0.is_zero() {
                return Err("bad interval".to_owned());
            }
            source.interval = interval;
            Ok(())
        });
        handlers.read("active", |source: &mut Self, _| source.is_active);
        handlers.write("active", |source: &mut Self, cx, text| {
            source.is_active = cx.parse(text).map_err(|_| "bad active")?;
            source.go_on(cx);
            Ok(())
        });
        handlers.read("headroom", |source: &mut Self, _| source.headroom);
        handlers.write("headroom", |source: &mut Self, cx, text| {
            let headroom = cx.parse::<usize>(text).ok().filter(|headroom| *headroom <= HEADROOM_MAX);
            source.headroom = headroom.ok_or("bad headroom")?;
            Ok(())
        });
        handlers.read("count", |source: &mut Self, _| source.count);
        handlers.button("reset", |source: &mut Self, cx| {
            source.count = 0;
            source.go_on(cx);
        });
    }
}

/// Drops packets.
pub(super) struct TimedSink {
    interval: Interval,
}

impl Default for TimedSink {
    fn default() -> Self {
        Self { interval: HALF }
    }
}

impl Element for TimedSink {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.may("INTERVAL", &mut self.interval).finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        cx.timer_after(0, self.interval.0);
        Ok(())
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        drop(cx.pull(0));
        cx.timer_after(0, self.interval.0);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("interval", |sink: &mut Self| &mut sink.interval);
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::Harness;

    #[test]
    fn packets_come_at_their_times() {
        let mut harness =
            Harness::new("s :: TimedSource(0.2, \"hi\", LIMIT 3, STOP true, HEADROOM 20) -> take :: Take");
        harness.pass(0.1);
        assert_eq!(harness.take("take").len(), 0);
        harness.pass(0.35);
        let taken = harness.take("take");
        let times: Vec<i64> = taken.iter().map(|packet| packet.timestamp().nanos() % 1_000_000_000).collect();
        assert_eq!((times, taken[0].bytes()), (vec![200_000_000, 400_000_000], &b"hi"[..]));
        harness.pass(0.2);
        assert_eq!((harness.take("take").len(), harness.runcount()), (1, 1));
        harness.pass(0.2);
        assert_eq!((harness.take("take").len(), harness.runcount()), (0, 0));
        assert_eq!(harness.read("s.count"), "3");
    }

    #[test]
    fn a_source_can_be_changed_while_it_runs() {
        let mut harness = Harness::new("s :: TimedSource(ACTIVE false) -> take :: Take");
        assert!(harness.read("s.data").len() >= 64);
        harness.pass(1.0);
        assert_eq!(harness.take("take").len(), 0);
        for (name, value) in
            [("data", "\"x\""), ("interval", "1"), ("headroom", "5"), ("limit", "4"), ("active", "true")]
        {
            harness.write(&format!("s.{name}"), value).unwrap();
        }
        assert_eq!(harness.take_bytes("take"), [b"\"x\""], "raw, quotes included");
        harness.pass(2.0);
        assert_eq!(harness.take("take").len(), 2);
        assert_eq!(
            ["interval", "headroom", "limit"].map(|name| harness.read(&format!("s.{name}"))),
            ["1.000000", "5", "4"]
        );
        harness.pass(2.0);
        assert_eq!(harness.take("take").len(), 1);
        harness.write("s.reset", "").unwrap();
        harness.pass(0.0);
        assert_eq!(harness.take("take").len(), 1);
        assert_eq!(harness.write("s.interval", "0").unwrap_err(), "bad interval");
        assert_eq!(harness.write("s.active", "x").unwrap_err(), "bad active");
        assert_eq!(harness.write("s.headroom", "99999999").unwrap_err(), "bad headroom");
    }

    #[test]
    fn a_sink_takes_a_packet_now_and_then() {
        let mut harness = Harness::new("give :: Give -> q :: Queue -> s :: TimedSink(0.1)");
        harness.give("give", [[1], [2], [3], [4]].map(|bytes| Packet::from_slice(&bytes)));
        harness.pass(0.25);
        assert_eq!(harness.read("q.length"), "2");
        harness.write("s.interval", "10").unwrap();
        harness.pass(5.0);
        assert_eq!((harness.read("q.length"), harness.read("s.interval")), ("1".into(), "10.000000".into()));
    }

    #[test]
    fn wrong_arguments_are_told() {
        assert!(Harness::errors("TimedSource(x) -> Take").contains("INTERVAL: type mismatch"));
        assert!(
            Harness::errors("TimedSource(HEADROOM 99999999) -> Take").contains("HEADROOM: out of range, bound 65536")
        );
        assert!(Harness::errors("GivePull -> TimedSink(x)").contains("INTERVAL: type mismatch"));
    }
}
