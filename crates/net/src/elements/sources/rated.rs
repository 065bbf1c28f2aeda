//! RatedSource: makes packets at a rate.
//!
//! `RatedSource([DATA, RATE, LIMIT, ACTIVE, LENGTH, STOP, BANDWIDTH])`: an output, pushed or pulled.
//!
//! - DATA: what is in a packet; 69 bytes of text.
//! - RATE: packets a second; 10, and 0: as fast as they are taken.
//! - LIMIT: how many packets it makes; -1: no bound.
//! - ACTIVE: whether it makes packets; true.
//! - LENGTH (keyword; also DATASIZE): bytes of a packet, to which DATA is cut or repeated; -1: as many as DATA has.
//! - STOP (keyword): whether it stops the driver after LIMIT packets; false.
//! - BANDWIDTH (keyword): bytes a second, instead of RATE.
//!
//! It has a token bucket for a hundredth of a second's packets, at least two, with one in it at the beginning: a source that
//! was not asked in time makes up for that much.
//!
//! Handlers: `count`, `reset`, `data`, `rate`, `limit`, `active`, `length` (`datasize`), all r/w but the first two.
//!
//! Unlike Click's, times are exact, a source that is pulled tells when it has packets, STOP counts once, and LENGTH is at
//! most a mebibyte.

use super::payload::Payload;
use crate::Packet;
use crate::args::{Amount, Args, Bandwidth, Failed};
use crate::element::{Element, Run};
use crate::elements::queues::bucket::Bucket;
use crate::handler::Handlers;
use crate::router::Cx;

#[derive(Clone)]
struct Settings {
    payload: Payload,
    rate: u32,
    burst: u32,
    limit: Amount,
    is_active: bool,
    stops: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let payload = Payload::default();
        Self { payload, rate: 10, burst: 2, limit: Amount(None), is_active: true, stops: false }
    }
}

/// The element.
#[derive(Default)]
pub(super) struct RatedSource {
    settings: Settings,
    bucket: Bucket,
    count: u64,
    has_ended: bool,
}

fn burst(rate: u32) -> u32 {
    (rate / 100).max(2)
}

impl RatedSource {
    /// The next packet, if it is time for it; otherwise says when it is.
    fn next(&mut self, cx: &mut Cx<'_>) -> Option<Packet> {
        self.bucket.refill(cx.now());
        if !self.bucket.contains(1) {
            cx.timer_at(0, self.bucket.ready_at(1));
            return None;
        }
        self.bucket.take(1);
        self.count += 1;
        let mut packet = self.settings.payload.packet();
        packet.set_timestamp(cx.now());
        Some(packet)
    }

    fn is_over(&self) -> bool {
        self.settings.limit.0.is_some_and(|limit| self.count >= limit)
    }

    fn end(&mut self, cx: &mut Cx<'_>) {
        if !std::mem::replace(&mut self.has_ended, true) && self.settings.stops {
            cx.stop_driver();
        }
    }

    fn go_on(&mut self, cx: &mut Cx<'_>) {
        if !self.is_over() {
            self.has_ended = false;
        }
        if !self.settings.is_active || self.is_over() {
            return;
        }
        if cx.output_is_push(0) {
            cx.schedule();
        } else {
            cx.note(true);
        }
    }

    fn begin(&mut self, cx: &mut Cx<'_>) {
        self.bucket.set(1, cx.now());
        self.go_on(cx);
    }
}

impl Element for RatedSource {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut new = Settings::default();
        let mut bandwidth = Bandwidth(0);
        new.payload.data_arg(args);
        args.may("RATE", &mut new.rate).may("LIMIT", &mut new.limit).may("ACTIVE", &mut new.is_active);
        args.key("STOP", &mut new.stops).key("BANDWIDTH", &mut bandwidth);
        new.payload.length_args(args);
        args.finish()?;
        new.burst = burst(new.rate);
        if bandwidth.0 > 0 {
            let rate = bandwidth.0 / new.payload.len().max(1) as u64;
            // Zero would be without a bound.
            new.rate = rate.clamp(1, u64::from(u32::MAX)) as u32;
            new.burst = burst(new.rate).max(new.payload.length().0.map_or(0, |len| 2 * len as u32));
        }
        self.bucket.change(new.rate, new.burst);
        (self.settings, self.count, self.has_ended) = (new, 0, false);
        Ok(())
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        self.begin(cx);
        if cx.output_is_push(0) {
            cx.schedule();
        }
        Ok(())
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        if !self.settings.is_active {
            return Run::Stop;
        }
        if self.is_over() {
            self.end(cx);
            return Run::Stop;
        }
        let Some(packet) = self.next(cx) else { return Run::Stop };
        cx.emit(0, packet);
        if self.is_over() {
            // The end comes when the last packet has gone its way.
            cx.schedule();
            return Run::Stop;
        }
        Run::Worked
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        self.go_on(cx);
    }

    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        if self.settings.is_active && !self.is_over() {
            let packet = self.next(cx);
            if packet.is_none() {
                cx.note(false);
            }
            return packet;
        }
        cx.note(false);
        if self.settings.is_active {
            self.end(cx);
        }
        None
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn reconfigured(&mut self, cx: &mut Cx<'_>) {
        self.go_on(cx);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("count", |source: &mut Self, _| source.count);
        handlers.button("reset", |source: &mut Self, cx| {
            source.count = 0;
            source.begin(cx);
        });
        handlers.read("data", |source: &mut Self, _| source.settings.payload.data());
        handlers.write("data", |source: &mut Self, _, text| {
            source.settings.payload.set_data(text);
            Ok(())
        });
        handlers.raw("data");
        handlers.read("rate", |source: &mut Self, _| source.settings.rate);
        handlers.write("rate", |source: &mut Self, cx, text| {
            let rate = cx.parse::<u32>(text)?;
            source.bucket.refill(cx.now());
            source.bucket.change(rate, burst(rate));
            source.settings.rate = rate;
            source.go_on(cx);
            Ok(())
        });
        handlers.read("limit", |source: &mut Self, _| source.settings.limit);
        handlers.write("limit", |source: &mut Self, cx, text| {
            source.settings.limit = cx.parse(text)?;
            source.go_on(cx);
            Ok(())
        });
        handlers.read("active", |source: &mut Self, _| source.settings.is_active);
        handlers.write("active", |source: &mut Self, cx, text| {
            let was_active = std::mem::replace(&mut source.settings.is_active, cx.parse(text)?);
            if !was_active {
                source.begin(cx);
            }
            Ok(())
        });
        for name in ["length", "datasize"] {
            handlers.read(name, |source: &mut Self, _| source.settings.payload.length());
            handlers.write(name, |source: &mut Self, cx, text| source.settings.payload.set_length(cx.parse(text)?));
        }
        handlers.hide("datasize");
    }
}

#[cfg(test)]
mod tests {
    use crate::Timestamp;
    use crate::elements::testing::Harness;

    #[test]
    fn packets_come_in_time() {
        for way in ["", "-> PullNull"] {
            let mut harness = Harness::new(&format!("r :: RatedSource(\\<11>, 4) {way} -> take :: Take"));
            let begin = harness.now();
            harness.pass(2.0);
            let times: Vec<_> =
                harness.take("take").iter().map(|packet| (packet.timestamp() - begin).nanos()).collect();
            assert_eq!(times, (0..9).map(|n| n * 250_000_000).collect::<Vec<_>>());
            harness.write("r.rate", "3").unwrap();
            harness.pass(1.0);
            let times: Vec<_> = harness.take("take").iter().map(|packet| packet.timestamp() - begin).collect();
            assert_eq!(times, [2_333_333_334, 2_666_666_667, 3_000_000_000].map(Timestamp::from_nanos));
            assert_eq!((harness.read("r.count"), harness.read("r.rate")), ("12".to_owned(), "3".to_owned()));
        }
    }

    #[test]
    fn it_ends_with_its_limit_and_begins_again() {
        for way in ["", "-> PullNull"] {
            let config = format!("r :: RatedSource(RATE 100, LIMIT 5, STOP true, LENGTH 3) {way} -> take :: Take");
            let mut harness = Harness::new(&config);
            harness.pass(0.039);
            assert_eq!((harness.take("take").len(), harness.runcount()), (4, 1));
            harness.pass(5.0);
            assert_eq!((harness.take_bytes("take"), harness.runcount()), (vec![b"The".to_vec()], 0));
            let mut harness = Harness::new(&config.replace(", STOP true", ""));
            harness.pass(5.0);
            assert_eq!(harness.take("take").len(), 5);
            harness.write("r.reset", "").unwrap();
            assert_eq!(harness.take("take").len(), 1);
            harness.write("r.active", "false").unwrap();
            harness.pass(5.0);
            assert_eq!(harness.take("take").len(), 0);
            harness.write("r.active", "true").unwrap();
            harness.write("r.limit", "3").unwrap();
            harness.pass(5.0);
            assert_eq!((harness.take("take").len(), harness.read("r.limit")), (2, "3".to_owned()));
        }
    }

    #[test]
    fn a_bandwidth_is_a_rate_of_packets_of_this_length() {
        let mut harness = Harness::new("r :: RatedSource(LENGTH 125, BANDWIDTH 10kbps) -> take :: Take");
        harness.pass(0.95);
        assert_eq!((harness.read("r.rate"), harness.take("take").len()), ("10".to_owned(), 10));
        let mut harness = Harness::new("r :: RatedSource(RATE 0, LIMIT 300) -> take :: Take");
        harness.run();
        assert_eq!(harness.take("take").len(), 300);
        for (config, told) in [
            ("x, y", "RATE: invalid number"),
            ("RATE -1", "RATE: must be >= 0"),
            ("BANDWIDTH x", "BANDWIDTH: type mismatch"),
        ] {
            let errors = Harness::errors(&format!("RatedSource({config}) -> Take"));
            assert!(errors.contains(told), "{config}: {errors}");
        }
    }
}
