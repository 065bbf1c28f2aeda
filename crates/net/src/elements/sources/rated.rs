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
use super::quota::Quota;
use crate::Packet;
use crate::args::{Args, Bandwidth, Failed};
use crate::element::{Element, Run};
use crate::elements::queues::bucket::Bucket;
use crate::handler::Handlers;
use crate::router::Cx;

/// The element.
pub(super) struct RatedSource {
    payload: Payload,
    quota: Quota,
    rate: u32,
    bucket: Bucket,
}

impl Default for RatedSource {
    fn default() -> Self {
        Self { payload: Payload::default(), quota: Quota::default(), rate: 10, bucket: Bucket::default() }
    }
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
        self.quota.count += 1;
        let mut packet = self.payload.packet();
        packet.set_timestamp(cx.now());
        Some(packet)
    }

    fn begin(&mut self, cx: &mut Cx<'_>) {
        self.bucket.set(1, cx.now());
        self.quota.go_on(cx);
    }
}

impl Element for RatedSource {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut new = Self::default();
        let mut bandwidth = Bandwidth(0);
        new.payload.data_arg(args);
        args.may("RATE", &mut new.rate).may("LIMIT", &mut new.quota.limit).may("ACTIVE", &mut new.quota.is_active);
        args.key("BANDWIDTH", &mut bandwidth);
        new.quota.stop_arg(args);
        new.payload.length_args(args);
        args.finish()?;
        let mut burst = burst(new.rate);
        if bandwidth.0 > 0 {
            let rate = bandwidth.0 / new.payload.len().max(1) as u64;
            // Zero would be without a bound.
            new.rate = rate.clamp(1, u64::from(u32::MAX)) as u32;
            burst = self::burst(new.rate).max(new.payload.length().0.map_or(0, |len| 2 * len as u32));
        }
        new.bucket = std::mem::take(&mut self.bucket);
        new.bucket.change(new.rate, burst);
        *self = new;
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
        if !self.quota.is_active {
            return Run::Stop;
        }
        if self.quota.left() == 0 {
            self.quota.end(cx);
            return Run::Stop;
        }
        let Some(packet) = self.next(cx) else { return Run::Stop };
        cx.emit(0, packet);
        if self.quota.left() == 0 {
            // The end comes when the last packet has gone its way.
            cx.schedule();
            return Run::Stop;
        }
        Run::Worked
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        self.quota.go_on(cx);
    }

    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        if self.quota.has_more() {
            let packet = self.next(cx);
            if packet.is_none() {
                cx.note(false);
            }
            return packet;
        }
        cx.note(false);
        if self.quota.is_active {
            self.quota.end(cx);
        }
        None
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn reconfigured(&mut self, cx: &mut Cx<'_>) {
        self.quota.go_on(cx);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        Quota::handlers(handlers, |source: &mut Self| &mut source.quota, None);
        handlers.button("reset", |source: &mut Self, cx| {
            source.quota.count = 0;
            source.begin(cx);
        });
        handlers.read("data", |source: &mut Self, _| source.payload.data());
        handlers.write("data", |source: &mut Self, _, text| {
            source.payload.set_data(text);
            Ok(())
        });
        handlers.raw("data");
        handlers.read("rate", |source: &mut Self, _| source.rate);
        handlers.write("rate", |source: &mut Self, cx, text| {
            let rate = cx.parse::<u32>(text)?;
            source.bucket.refill(cx.now());
            source.bucket.change(rate, burst(rate));
            source.rate = rate;
            source.quota.go_on(cx);
            Ok(())
        });
        // It begins anew, with a packet in its bucket.
        handlers.write("active", |source: &mut Self, cx, text| {
            let was_active = std::mem::replace(&mut source.quota.is_active, cx.parse(text)?);
            if !was_active {
                source.begin(cx);
            }
            Ok(())
        });
        for name in ["length", "datasize"] {
            handlers.read(name, |source: &mut Self, _| source.payload.length());
            handlers.write(name, |source: &mut Self, cx, text| source.payload.set_length(cx.parse(text)?));
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
