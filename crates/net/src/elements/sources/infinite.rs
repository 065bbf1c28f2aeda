//! InfiniteSource: makes packets as fast as they are taken.
//!
//! `InfiniteSource([DATA, LIMIT, BURST, ACTIVE, TIMESTAMP, LENGTH, STOP, END_CALL])`: an output, pushed or pulled. Where it
//! pushes, it rests while all queues behind it are full; where it is pulled, it tells when it has no more packets.
//!
//! - DATA: what is in a packet; 69 bytes of text.
//! - LIMIT: how many packets it makes; -1: no bound.
//! - BURST: how many it pushes each time its task runs, at least 1; 1.
//! - ACTIVE: whether it makes packets; true.
//! - TIMESTAMP (keyword): whether packets get the time; true.
//! - LENGTH (keyword; also DATASIZE): bytes of a packet, to which DATA is cut or repeated; -1: as many as DATA has.
//! - STOP (keyword): whether it stops the driver after LIMIT packets; false.
//! - END_CALL (keyword): a handler that is written after LIMIT packets; not together with STOP.
//!
//! Handlers: `count`, `reset`, `data`, `limit`, `burst` (`burstsize`), `active`, `length` (`datasize`), all r/w but the first two.
//!
//! Unlike Click's, STOP and END_CALL count once, and not at every pull after the last packet, and LENGTH is at most a
//! mebibyte.

use super::payload::Payload;
use super::quota::Quota;
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::{Element, Run};
use crate::handler::Handlers;
use crate::router::Cx;

/// The element.
#[derive(Clone)]
pub(super) struct InfiniteSource {
    payload: Payload,
    quota: Quota,
    burst: u32,
    has_timestamp: bool,
}

impl Default for InfiniteSource {
    fn default() -> Self {
        Self { payload: Payload::default(), quota: Quota::default(), burst: 1, has_timestamp: true }
    }
}

fn packet(payload: &Payload, has_timestamp: bool, cx: &Cx<'_>) -> Packet {
    let mut packet = payload.packet();
    if has_timestamp {
        packet.set_timestamp(cx.now());
    }
    packet
}

impl Element for InfiniteSource {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut new, mut burst) = (Self::default(), 1i32);
        new.payload.data_arg(args);
        args.may("LIMIT", &mut new.quota.limit).may("BURST", &mut burst).may("ACTIVE", &mut new.quota.is_active);
        args.key("TIMESTAMP", &mut new.has_timestamp);
        new.quota.end_args(args);
        new.payload.length_args(args);
        if burst < 1 {
            args.error("burst size must be >= 1");
        }
        new.burst = burst.unsigned_abs();
        args.finish()?;
        *self = new;
        Ok(())
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        self.quota.begin(cx)
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        let Self { payload, quota, burst, has_timestamp } = self;
        quota.push(cx, u64::from(*burst), |cx| packet(payload, *has_timestamp, cx))
    }

    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        let Self { payload, quota, has_timestamp, .. } = self;
        quota.pull(cx, |cx| packet(payload, *has_timestamp, cx))
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn reconfigured(&mut self, cx: &mut Cx<'_>) {
        self.quota.go_on(cx);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        let errors = ["limit parameter must be integer", "active parameter must be boolean"];
        Quota::handlers(handlers, |source: &mut Self| &mut source.quota, Some(errors));
        Quota::reset_handler(handlers, |source: &mut Self| &mut source.quota);
        handlers.read("data", |source: &mut Self, _| source.payload.data());
        handlers.write("data", |source: &mut Self, cx, text| {
            source.payload.set_data(text);
            source.quota.go_on(cx);
            Ok(())
        });
        handlers.raw("data");
        for name in ["burst", "burstsize"] {
            handlers.read(name, |source: &mut Self, _| source.burst);
            handlers.write(name, |source: &mut Self, cx, text| {
                let burst = cx.parse::<i32>(text).ok().filter(|burst| *burst >= 1).map(i32::unsigned_abs);
                source.burst = burst.ok_or("burstsize parameter must be integer >= 1")?;
                source.quota.go_on(cx);
                Ok(())
            });
        }
        for name in ["length", "datasize"] {
            handlers.read(name, |source: &mut Self, _| source.payload.length());
            handlers.write(name, |source: &mut Self, cx, text| {
                let len = cx.parse(text).map_err(|_| "length must be integer".to_owned())?;
                source.payload.set_length(len)?;
                source.quota.go_on(cx);
                Ok(())
            });
        }
        handlers.hide("burstsize");
        handlers.hide("datasize");
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;

    #[test]
    fn packets_are_made_up_to_the_limit_and_while_it_is_active() {
        for way in ["", "-> PullNull"] {
            let mut harness =
                Harness::new(&format!("i :: InfiniteSource(\\<11 22>, 5, 2, ACTIVE false) {way} -> take :: Take"));
            harness.run();
            assert!(harness.take("take").is_empty());
            harness.write("i.active", "true").unwrap();
            let now = harness.now();
            let packets = harness.take("take");
            assert_eq!(packets.iter().map(|packet| packet.bytes().to_vec()).collect::<Vec<_>>(), [[0x11, 0x22]; 5]);
            assert!(packets.iter().all(|packet| packet.timestamp() == now));
            assert_eq!(harness.read("i.count"), "5");
            harness.write("i.data", "hello, \"you\"").unwrap();
            harness.write("i.limit", "7").unwrap();
            harness.write("i.length", "14").unwrap();
            assert_eq!(harness.take_bytes("take"), [b"hello, \"you\"", b"hello, \"you\""]);
            harness.write("i.reset", "").unwrap();
            assert_eq!(harness.take_bytes("take"), [b"hello, \"you\"he"; 7]);
            assert_eq!((harness.read("i.data"), harness.read("i.length")), ("hello, \"you\"".into(), "14".to_owned()));
            harness.write("i.active", "false").unwrap();
            harness.write("i.limit", "-1").unwrap();
            assert_eq!((harness.read("i.limit"), harness.take("take").len()), ("-1".to_owned(), 0));
            harness.write("i.config", "x, LIMIT 1, TIMESTAMP false").unwrap();
            let packets = harness.take("take");
            assert!(packets.len() == 1 && packets[0].bytes() == b"x" && packets[0].timestamp().is_zero());
            assert!(harness.write("i.burst", "0").unwrap_err().contains("burstsize parameter must be integer >= 1"));
        }
    }

    #[test]
    fn the_end_comes_after_the_last_packet() {
        for way in ["", "-> PullNull"] {
            let mut harness =
                Harness::new(&format!("InfiniteSource(LIMIT 40, BURST 3, STOP true) {way} -> take :: Take"));
            assert_eq!(harness.runcount(), 1);
            harness.run();
            assert_eq!((harness.take("take").len(), harness.runcount()), (40, 0));
            let mut harness = Harness::new(&format!(
                "i :: InfiniteSource(LIMIT 4, LENGTH 100, END_CALL j.active true) {way} -> take :: Take;
                 j :: InfiniteSource(LIMIT 3, ACTIVE false, LENGTH 1) {way} -> take2 :: Take"
            ));
            harness.run();
            assert_eq!((harness.take("take").len(), harness.take("take2").len()), (4, 3));
        }
    }

    #[test]
    fn it_says_what_is_wrong() {
        for (config, told) in [
            ("x, y", "LIMIT: invalid number"),
            ("BURST 0", "burst size must be >= 1"),
            ("STOP true, END_CALL stop", "END_CALL and STOP are mutually exclusive"),
            ("END_CALL z.stop", "END_CALL: no element named 'z'"),
            ("END_CALL i.count", "no 'i.count' write handler"),
            ("LENGTH 10000000", "LENGTH: out of range, bound 1048576"),
            ("x, 1, 2, true, 5", "too many arguments"),
            ("OTHER 5", "OTHER: unknown argument"),
        ] {
            let errors = Harness::errors(&format!("i :: InfiniteSource({config}) -> Take"));
            assert!(errors.contains(told), "{config}: {errors}");
        }
    }
}
