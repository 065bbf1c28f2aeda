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
use crate::Packet;
use crate::args::{Amount, Args, Failed, HandlerCall};
use crate::element::{Element, Run};
use crate::handler::Handlers;
use crate::router::Cx;

#[derive(Clone)]
struct Settings {
    payload: Payload,
    limit: Amount,
    burst: i32,
    is_active: bool,
    has_timestamp: bool,
    end: Option<HandlerCall>,
}

impl Default for Settings {
    fn default() -> Self {
        let payload = Payload::default();
        Self { payload, limit: Amount(None), burst: 1, is_active: true, has_timestamp: true, end: None }
    }
}

/// The element.
#[derive(Default)]
pub(super) struct InfiniteSource {
    settings: Settings,
    count: u64,
    has_ended: bool,
}

impl InfiniteSource {
    fn left(&self) -> u64 {
        self.settings.limit.0.map_or(u64::MAX, |limit| limit.saturating_sub(self.count))
    }

    fn next(&mut self, cx: &Cx<'_>) -> Packet {
        self.count += 1;
        let mut packet = self.settings.payload.packet();
        if self.settings.has_timestamp {
            packet.set_timestamp(cx.now());
        }
        packet
    }

    fn end(&mut self, cx: &mut Cx<'_>) {
        if !std::mem::replace(&mut self.has_ended, true)
            && let Some(end) = &self.settings.end
            && let Err(error) = cx.call(end)
        {
            cx.say(error);
        }
    }

    /// Goes on after a change, if there is something to do.
    fn go_on(&mut self, cx: &mut Cx<'_>) {
        let has_packets = self.settings.is_active && self.left() > 0;
        if self.left() > 0 {
            self.has_ended = false;
        }
        if cx.output_is_push(0) {
            if has_packets {
                cx.schedule();
            }
        } else if has_packets {
            cx.note(true);
        }
    }
}

/// Whether a handler can be written.
pub(super) fn check(cx: &Cx<'_>, call: &HandlerCall) -> Result<(), String> {
    let Some(element) = call.element else { return Ok(()) };
    let handler = cx.router().handlers(element).and_then(|handlers| handlers.get(&call.handler));
    if handler.is_some_and(|handler| handler.write.is_some()) {
        return Ok(());
    }
    Err(format!("no '{}.{}' write handler", cx.router().name(element), call.handler))
}

impl Element for InfiniteSource {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut new = Settings::default();
        let mut stops = false;
        new.payload.data_arg(args);
        args.may("LIMIT", &mut new.limit).may("BURST", &mut new.burst).may("ACTIVE", &mut new.is_active);
        args.key("TIMESTAMP", &mut new.has_timestamp).key("STOP", &mut stops).key("END_CALL", &mut new.end);
        new.payload.length_args(args);
        args.finish()?;
        if new.burst < 1 {
            return Err(args.error("burst size must be >= 1"));
        }
        if stops && new.end.is_some() {
            return Err(args.error("END_CALL and STOP are mutually exclusive"));
        }
        if stops {
            new.end = Some(HandlerCall { element: None, handler: "stop".to_owned(), value: String::new() });
        }
        *self = Self { settings: new, count: 0, has_ended: false };
        Ok(())
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if let Some(end) = &self.settings.end {
            check(cx, end)?;
        }
        // With a limit of 0, it ends at once.
        if cx.output_is_push(0) {
            cx.schedule();
        } else {
            cx.note(self.settings.is_active);
        }
        Ok(())
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        if !self.settings.is_active {
            return Run::Stop;
        }
        if !cx.may_push(0) {
            return Run::Idle;
        }
        let burst = self.left().min(self.settings.burst as u64);
        if burst == 0 {
            self.end(cx);
            return Run::Stop;
        }
        for _ in 0..burst {
            let packet = self.next(cx);
            cx.emit(0, packet);
        }
        if self.left() == 0 {
            // The end comes when the last packets have gone their way.
            cx.schedule();
            return Run::Stop;
        }
        Run::Worked
    }

    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        if self.settings.is_active && self.left() > 0 {
            return Some(self.next(cx));
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
            source.go_on(cx);
        });
        handlers.read("data", |source: &mut Self, _| source.settings.payload.data());
        handlers.write("data", |source: &mut Self, cx, text| {
            source.settings.payload.set_data(text);
            source.go_on(cx);
            Ok(())
        });
        handlers.raw("data");
        handlers.read("limit", |source: &mut Self, _| source.settings.limit);
        handlers.write("limit", |source: &mut Self, cx, text| {
            source.settings.limit = cx.parse(text).map_err(|_| "limit parameter must be integer".to_owned())?;
            source.go_on(cx);
            Ok(())
        });
        for name in ["burst", "burstsize"] {
            handlers.read(name, |source: &mut Self, _| source.settings.burst);
            handlers.write(name, |source: &mut Self, cx, text| {
                let burst = cx.parse::<i32>(text).ok().filter(|burst| *burst >= 1);
                source.settings.burst = burst.ok_or("burstsize parameter must be integer >= 1")?;
                source.go_on(cx);
                Ok(())
            });
        }
        handlers.read("active", |source: &mut Self, _| source.settings.is_active);
        handlers.write("active", |source: &mut Self, cx, text| {
            source.settings.is_active = cx.parse(text).map_err(|_| "active parameter must be boolean".to_owned())?;
            source.go_on(cx);
            Ok(())
        });
        for name in ["length", "datasize"] {
            handlers.read(name, |source: &mut Self, _| source.settings.payload.length());
            handlers.write(name, |source: &mut Self, cx, text| {
                let len = cx.parse(text).map_err(|_| "length must be integer".to_owned())?;
                source.settings.payload.set_length(len)?;
                source.go_on(cx);
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
