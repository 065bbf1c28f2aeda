//! RandomSource: sends packets of random bytes.
//!
//! `RandomSource(LENGTH [, LIMIT, BURST, ACTIVE, TIMESTAMP, STOP, END_CALL])`: an output, push or pull. Packets have LENGTH bytes
//! (below 65,536). Pushed, BURST (1) of them each time its task is run, while there is room downstream.
//!
//! - LIMIT (-1: none): how many packets. STOP (false): stops the driver after them; END_CALL: a handler that is called then.
//! - ACTIVE (true). TIMESTAMP (true): packets have the time.
//!
//! Handlers: `count`, `reset`, `length`, `limit`, `burst`, `active` (r/w).

use super::quota::Quota;
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::{Element, Run};
use crate::handler::Handlers;
use crate::packet::DEFAULT_HEADROOM;
use crate::router::Cx;

/// The element.
pub(super) struct RandomSource {
    len: usize,
    quota: Quota,
    burst: u64,
    has_timestamp: bool,
}

impl Default for RandomSource {
    fn default() -> Self {
        Self { len: 0, quota: Quota::default(), burst: 1, has_timestamp: true }
    }
}

const LEN_END: i64 = 1 << 16;

fn packet(len: usize, has_timestamp: bool, cx: &mut Cx<'_>) -> Packet {
    let mut packet = Packet::with_room(DEFAULT_HEADROOM, len, 0);
    cx.rng().fill(packet.bytes_mut());
    if has_timestamp {
        packet.set_timestamp(cx.now());
    }
    packet
}

impl Element for RandomSource {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut len, mut burst) = (0i64, 1i64);
        args.must("LENGTH", &mut len).may("LIMIT", &mut self.quota.limit).may("BURST", &mut burst);
        args.may("ACTIVE", &mut self.quota.is_active).key("TIMESTAMP", &mut self.has_timestamp);
        self.quota.end_args(args);
        if !(0..LEN_END).contains(&len) {
            args.error(format_args!("bad length {len}"));
        }
        if burst < 1 {
            args.error("burst size must be >= 1");
        }
        (self.len, self.burst) = (len as usize, burst as u64);
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        self.quota.begin(cx)
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        let Self { len, quota, burst, has_timestamp } = self;
        quota.push(cx, *burst, |cx| packet(*len, *has_timestamp, cx))
    }

    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        let Self { len, quota, has_timestamp, .. } = self;
        quota.pull(cx, |cx| packet(*len, *has_timestamp, cx))
    }

    fn handlers(&self, handlers: &mut Handlers) {
        Quota::handlers(handlers, |source: &mut Self| &mut source.quota, None);
        Quota::reset_handler(handlers, |source: &mut Self| &mut source.quota);
        handlers.read("length", |source: &mut Self, _| source.len);
        handlers.write("length", |source: &mut Self, cx, text| {
            let len = cx.parse::<i64>(text).ok().filter(|len| (0..LEN_END).contains(len));
            source.len = len.ok_or("bad length")? as usize;
            Ok(())
        });
        handlers.read("burst", |source: &mut Self, _| source.burst);
        handlers.write("burst", |source: &mut Self, cx, text| {
            source.burst = cx.parse::<u64>(text).ok().filter(|burst| *burst > 0).ok_or("burst size must be >= 1")?;
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;

    #[test]
    fn so_many_packets_of_random_bytes_come() {
        let mut harness = Harness::new("s :: RandomSource(1000, LIMIT 7, BURST 3, STOP true) -> take :: Take");
        harness.run();
        let taken = harness.take("take");
        assert!(taken.len() == 7 && taken.iter().all(|packet| packet.len() == 1000 && !packet.timestamp().is_zero()));
        let mut counts = [0; 256];
        taken.iter().flat_map(crate::Packet::bytes).for_each(|byte| counts[usize::from(*byte)] += 1);
        let most = counts.iter().max().unwrap();
        assert!(*most < 100, "about 27 of each value: {most}");
        assert_eq!((harness.read("s.count"), harness.runcount()), ("7".into(), 0));
    }

    #[test]
    fn it_can_be_pulled_and_changed() {
        let mut harness = Harness::new("s :: RandomSource(5, 2, ACTIVE false, TIMESTAMP false) -> take :: TakePull");
        harness.run();
        assert_eq!(harness.take("take").len(), 0);
        harness.write("s.active", "true").unwrap();
        assert_eq!(harness.take("take").len(), 2);
        harness.write("s.length", "9").unwrap();
        harness.write("s.limit", "3").unwrap();
        let taken = harness.take("take");
        assert!(taken.len() == 1 && taken[0].len() == 9 && taken[0].timestamp().is_zero());
        harness.write("s.reset", "").unwrap();
        assert_eq!(harness.take("take").len(), 3);
        harness.write("s.burst", "4").unwrap();
        assert_eq!(
            ["burst", "length", "limit", "active"].map(|name| harness.read(&format!("s.{name}"))),
            ["4", "9", "3", "true"]
        );
        assert_eq!(harness.write("s.length", "65536").unwrap_err(), "bad length");
        assert_eq!(harness.write("s.burst", "0").unwrap_err(), "burst size must be >= 1");
    }

    /// The end is for who has room, as in Click. RandomSource ended sooner than InfiniteSource.
    #[test]
    fn the_end_waits_for_room_behind_the_last_packet() {
        for source in ["RandomSource(5, LIMIT 3, STOP true)", "InfiniteSource(LIMIT 3, STOP true)"] {
            let mut harness = Harness::new(&format!("{source} -> Queue(3) -> take :: TakePull(MANUAL true)"));
            harness.run();
            assert_eq!(harness.runcount(), 1, "{source}");
            assert!(harness.pull("take").is_some());
            harness.run();
            assert_eq!(harness.runcount(), 0, "{source}");
        }
    }

    #[test]
    fn a_handler_is_called_at_the_end() {
        let mut harness = Harness::new("s :: RandomSource(5, 2, END_CALL s.length 8) -> take :: Take");
        harness.run();
        assert_eq!(harness.read("s.length"), "8");
    }

    #[test]
    fn wrong_arguments_are_told() {
        let errors = |arguments: &str| Harness::errors(&format!("RandomSource({arguments}) -> Take"));
        assert!(errors("65536").contains("bad length 65536"));
        assert!(errors("5, BURST 0").contains("burst size must be >= 1"));
        assert!(errors("5, STOP true, END_CALL stop").contains("END_CALL and STOP are mutually exclusive"));
        assert!(errors("").contains("LENGTH: required argument missing"));
    }
}
