//! Counter: counts packets and bytes, and their recent rates.
//!
//! `Counter([COUNT_CALL, BYTE_COUNT_CALL])`, one input, one output, push or pull. Packets pass as they are.
//!
//! COUNT_CALL is `N HANDLER [VALUE]`: with the packet that makes the count N, the handler is written, before the packet leaves.
//! BYTE_COUNT_CALL likewise, with the packet that makes the bytes N or more. Each is called once, until the counts are reset.
//!
//! Handlers: `count`, `byte_count` (r); `rate`, `byte_rate`, `bit_rate` (r), in a second, exponentially weighted over the last
//! milliseconds; `reset`, `reset_counts` (w); `count_call`, `byte_count_call` (r/w), as the arguments; the handler may be
//! left out.
//!
//! An element that is itself busy, as the one that just pulls the packet, gets the call as soon as it is not.

use super::rate::Rate;
use crate::args::{Arg, Args, Failed, HandlerCall, Raw};
use crate::element::{Batch, Element};
use crate::handler::Handlers;
use crate::router::Cx;
use crate::{Packet, Timestamp};

/// A handler that is called when a count is reached.
#[derive(Debug, Clone)]
struct Trigger {
    at: u64,
    call: Option<Call>,
    is_done: bool,
}

/// A handler that is written.
#[derive(Debug, Clone)]
struct Call {
    /// As it was written, to be found from here again.
    name: String,
    found: HandlerCall,
}

impl Trigger {
    fn parse(text: &str, cx: &crate::args::ArgCx<'_>) -> Result<Self, Option<String>> {
        let (count, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let at = u64::parse(count, cx).map_err(|_| None)?;
        let rest = rest.trim();
        let call = match rest {
            "" => None,
            rest => {
                let found = HandlerCall::parse(rest, cx).map_err(Some)?;
                let name = rest.split_whitespace().next().unwrap_or_default().to_owned();
                Some(Call { name, found })
            }
        };
        Ok(Self { at, call, is_done: false })
    }

    fn text(trigger: Option<&Self>) -> String {
        let Some(trigger) = trigger else { return String::new() };
        let call = trigger.call.as_ref().map(|call| format!(" {} {}", call.name, call.found.value));
        format!("{}{}", trigger.at, call.unwrap_or_default()).trim_end().to_owned()
    }
}

/// The element.
#[derive(Default)]
pub(super) struct Counter {
    count: u64,
    bytes: u64,
    rate: Rate<10>,
    byte_rate: Rate<4>,
    count_call: Option<Trigger>,
    byte_call: Option<Trigger>,
}

impl Counter {
    fn reset(&mut self, now: Timestamp) {
        (self.count, self.bytes) = (0, 0);
        (self.rate, self.byte_rate) = (Rate::new(now), Rate::new(now));
        self.count_call.iter_mut().chain(&mut self.byte_call).for_each(|trigger| trigger.is_done = false);
    }

    fn has_calls(&self) -> bool {
        self.count_call.is_some() || self.byte_call.is_some()
    }

    #[inline]
    fn count(&mut self, now: Timestamp, packets: u64, bytes: u64) {
        self.count += packets;
        self.bytes += bytes;
        self.rate.update(now, packets);
        self.byte_rate.update(now, bytes);
    }

    /// Calls what is due.
    fn call_due(&mut self, cx: &mut Cx<'_>) {
        let count = self.count;
        if let Some(call) = due(&mut self.count_call, |at| count == at) {
            self.call(cx, &call);
        }
        let bytes = self.bytes;
        if let Some(call) = due(&mut self.byte_call, |at| bytes >= at) {
            self.call(cx, &call);
        }
    }

    fn call(&mut self, cx: &mut Cx<'_>, call: &Call) {
        if call.found.element == Some(cx.id()) {
            // This very element is busy with its packet. What is wrong with the call is nobody's business, as in Click.
            let _ = self.write(cx, &call.found.handler, &call.found.value);
        } else if cx.write_handler(&call.name, &call.found.value).is_err_and(|error| error.ends_with(" is busy")) {
            cx.call_later(&call.found);
        }
    }

    /// Writes one of its own handlers.
    fn write(&mut self, cx: &Cx<'_>, handler: &str, text: &str) -> Result<(), String> {
        let trigger = |name: &str| {
            Trigger::parse(text.trim(), &cx.arg_cx())
                .map(Some)
                .map_err(|error| error.unwrap_or_else(|| first_word(name)))
        };
        match handler {
            "count_call" => self.count_call = trigger("count_call")?,
            "byte_count_call" => self.byte_call = trigger("byte_count_call")?,
            "reset" | "reset_counts" => self.reset(cx.now()),
            _ => {}
        }
        Ok(())
    }
}

fn first_word(name: &str) -> String {
    format!("'{name}' first word should be unsigned (count)")
}

/// The call that is due, once.
fn due(trigger: &mut Option<Trigger>, is_reached: impl Fn(u64) -> bool) -> Option<Call> {
    let trigger = trigger.as_mut().filter(|trigger| !trigger.is_done && is_reached(trigger.at))?;
    trigger.is_done = true;
    trigger.call.clone()
}

fn configure_trigger(args: &mut Args<'_>, keyword: &str) -> Option<Trigger> {
    let mut text = Raw::default();
    if !args.has_key(keyword, &mut text) {
        return None;
    }
    match Trigger::parse(&text.0, args.cx()) {
        Ok(trigger) => return Some(trigger),
        Err(None) => args.error(first_word(keyword)),
        Err(Some(error)) => args.error_of(keyword, error),
    };
    None
}

impl Element for Counter {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        self.count_call = configure_trigger(args, "COUNT_CALL");
        self.byte_call = configure_trigger(args, "BYTE_COUNT_CALL");
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        self.reset(cx.now());
        for call in
            [&self.count_call, &self.byte_call].into_iter().flatten().filter_map(|trigger| trigger.call.as_ref())
        {
            let Some(element) = call.found.element else { continue };
            let handler = cx.router().handlers(element).and_then(|handlers| handlers.get(&call.found.handler));
            if handler.is_none_or(|handler| handler.write.is_none()) {
                return Err(format!("no '{}' write handler", call.name));
            }
        }
        Ok(())
    }

    fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        self.count(cx.now(), 1, packet.len() as u64);
        if self.has_calls() {
            self.call_due(cx);
        }
        Some(packet)
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        if !self.has_calls() {
            let bytes = batch.iter().map(|packet| packet.len() as u64).sum();
            self.count(cx.now(), batch.len() as u64, bytes);
            cx.emit_batch(0, batch);
            return;
        }
        for packet in batch.drain(..) {
            cx.begin(&packet);
            self.push(cx, 0, packet);
        }
    }

    fn observes(&self) -> bool {
        self.has_calls()
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("count", |counter: &mut Self, _| counter.count);
        handlers.read("byte_count", |counter: &mut Self, _| counter.bytes);
        handlers.read("rate", |counter: &mut Self, cx| counter.rate.text(cx.now(), 0));
        handlers.read("byte_rate", |counter: &mut Self, cx| counter.byte_rate.text(cx.now(), 0));
        handlers.read("bit_rate", |counter: &mut Self, cx| counter.byte_rate.text(cx.now(), 3));
        handlers.read("count_call", |counter: &mut Self, _| Trigger::text(counter.count_call.as_ref()));
        handlers.read("byte_count_call", |counter: &mut Self, _| Trigger::text(counter.byte_call.as_ref()));
        handlers.button("reset", |counter: &mut Self, cx| counter.reset(cx.now()));
        handlers.button("reset_counts", |counter: &mut Self, cx| counter.reset(cx.now()));
        for name in ["count_call", "byte_count_call"] {
            handlers.write(name, move |counter: &mut Self, cx, text| counter.write(cx, name, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::{Harness, noise};

    #[test]
    fn packets_and_bytes_are_counted() {
        for join in [" -> ", " -> Queue(5000) -> "] {
            let mut harness = Harness::new(&format!("give :: Give{join}c :: Counter -> take :: Take"));
            let packets = noise(500);
            let bytes: usize = packets.iter().map(Packet::len).sum();
            harness.give("give", packets.clone());
            assert_eq!((harness.read("c.count"), harness.read("c.byte_count")), ("500".to_owned(), bytes.to_string()));
            let expected: Vec<_> = packets.iter().map(|packet| packet.bytes().to_vec()).collect();
            assert_eq!(harness.take_bytes("take"), expected);
            harness.write("c.reset", "").unwrap();
            assert_eq!((harness.read("c.count"), harness.read("c.byte_count")), ("0".to_owned(), "0".to_owned()));
            harness.give("give", packets);
            harness.write("c.reset_counts", "").unwrap();
            assert_eq!(harness.read("c.count"), "0");
        }
    }

    #[test]
    fn rates_are_those_of_the_last_milliseconds() {
        let mut harness = Harness::new("give :: Give -> c :: Counter -> Take");
        for _ in 0..200 {
            harness.give("give", (0..10).map(|n| Packet::from_slice(&[n; 100])));
            harness.pass(0.001);
        }
        let mut number = |handler: &str| harness.read(handler).parse::<f64>().unwrap();
        let (rate, bytes, bits) = (number("c.rate"), number("c.byte_rate"), number("c.bit_rate"));
        assert!((9_900.0..=10_100.0).contains(&rate), "{rate}");
        assert!((990_000.0..=1_010_000.0).contains(&bytes), "{bytes}");
        assert!((bits - 8.0 * bytes).abs() < 8.0, "{bits}");
        harness.pass(1.0);
        assert_eq!(
            ["c.rate", "c.byte_rate", "c.bit_rate"].map(|handler| harness.read(handler)),
            ["0".to_owned(), "0".to_owned(), "0".to_owned()]
        );
    }

    #[test]
    fn a_handler_is_called_with_the_packet_that_makes_the_count() {
        let mut harness =
            Harness::new("give :: Give -> c :: Counter(COUNT_CALL 3 p.color 7) -> p :: Paint(1) -> take :: Take");
        harness.give("give", (0..5).map(|n| Packet::from_slice(&[n])));
        let colours = |harness: &mut Harness| -> Vec<u8> {
            harness.take("take").iter().map(|packet| packet.anno_u8(crate::packet::anno::PAINT)).collect()
        };
        assert_eq!(colours(&mut harness), [1, 1, 7, 7, 7]);
        // Once only, until it is reset.
        harness.write("p.color", "1").unwrap();
        harness.give("give", (0..5).map(|n| Packet::from_slice(&[n])));
        assert_eq!(colours(&mut harness), [1; 5]);
        harness.write("c.reset", "").unwrap();
        harness.give("give", (0..5).map(|n| Packet::from_slice(&[n])));
        assert_eq!(colours(&mut harness), [1, 1, 7, 7, 7]);
        assert_eq!(harness.read("c.count_call"), "3 p.color 7");
    }

    #[test]
    fn bytes_call_a_handler_when_they_are_reached_or_exceeded() {
        let mut harness = Harness::new(
            "give :: Give -> c :: Counter(BYTE_COUNT_CALL 25 other.reset) -> Take;
             tick :: Give -> other :: Counter -> Take",
        );
        harness.give("tick", (0..9).map(|n| Packet::from_slice(&[n])));
        harness.give("give", (0..2).map(|n| Packet::from_slice(&[n; 10])));
        assert_eq!(harness.read("other.count"), "9");
        harness.give("give", (0..1).map(|n| Packet::from_slice(&[n; 10])));
        assert_eq!(harness.read("other.count"), "0");
    }

    #[test]
    fn a_counter_calls_itself() {
        let mut harness = Harness::new("give :: Give -> c :: Counter(COUNT_CALL 4 c.reset) -> Take");
        harness.give("give", (0..11).map(|n| Packet::from_slice(&[n])));
        assert_eq!(harness.read("c.count"), "3");
        harness.write("c.byte_count_call", "2 c.count_call 1000").unwrap();
        harness.give("give", (0..11).map(|n| Packet::from_slice(&[n])));
        assert_eq!((harness.read("c.count_call"), harness.read("c.count")), ("1000".to_owned(), "10".to_owned()));
    }

    #[test]
    fn an_element_that_pulls_the_packet_is_called_too() {
        let mut harness = Harness::new(
            "give :: Give -> Queue -> Counter(COUNT_CALL 2 u.active false) -> u :: Unqueue -> take :: Take",
        );
        harness.give("give", (0..50).map(|n| Packet::from_slice(&[n])));
        assert_eq!(harness.read("u.active"), "false");
        let taken = harness.take_bytes("take");
        assert!((2..50).contains(&taken.len()), "{}", taken.len());
    }

    #[test]
    fn a_router_is_stopped_by_a_count() {
        let mut harness = Harness::new("give :: Give -> c :: Counter(COUNT_CALL 3 stop) -> take :: Take");
        harness.give("give", (0..2).map(|n| Packet::from_slice(&[n])));
        assert_eq!(harness.runcount(), 1);
        harness.give("give", [Packet::from_slice(&[3])]);
        assert!(harness.runcount() <= 0);
    }

    #[test]
    fn calls_are_written_later_too() {
        let mut harness = Harness::new("give :: Give -> c :: Counter -> p :: Paint(1) -> take :: Take");
        assert_eq!(harness.read("c.count_call"), "");
        harness.write("c.count_call", "2 p.color 5").unwrap();
        harness.give("give", (0..3).map(|n| Packet::from_slice(&[n])));
        assert_eq!(harness.read("p.color"), "5");
        harness.write("c.byte_count_call", "7").unwrap();
        assert_eq!(harness.read("c.byte_count_call"), "7");
        assert_eq!(
            harness.write("c.count_call", "x p.color 5").unwrap_err(),
            "'count_call' first word should be unsigned (count)"
        );
        assert_eq!(harness.write("c.count_call", "1 q.color 5").unwrap_err(), "no element named 'q'");
    }

    #[test]
    fn a_call_has_a_count_and_a_handler_that_is_written() {
        for (config, expected) in [
            ("COUNT_CALL stop", "'COUNT_CALL' first word should be unsigned (count)"),
            ("BYTE_COUNT_CALL -1 stop", "'BYTE_COUNT_CALL' first word should be unsigned (count)"),
            ("COUNT_CALL 1 q.reset", "no element named 'q'"),
            ("COUNT_CALL 1 c.count", "no 'c.count' write handler"),
            ("COUNT_CALL 1 c.unknown", "no 'c.unknown' write handler"),
            ("3", "too many arguments"),
        ] {
            let told = Harness::errors(&format!("Give -> c :: Counter({config}) -> Take"));
            assert!(told.contains(expected), "{config}: {told}");
        }
    }
}
