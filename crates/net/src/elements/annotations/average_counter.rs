//! AverageCounter: counts packets and bytes, and their rates over all the time in which there were some.
//!
//! `AverageCounter([IGNORE])`, one input, one output, push or pull. Packets pass as they are. Those of the first IGNORE seconds
//! (0 by default) after the first packet are not counted.
//!
//! Handlers: `count`, `byte_count` (r); `rate`, `byte_rate` (r), in a second, from the first packet (or the end of the seconds
//! that are ignored) to the last one, to the millisecond; `reset` (w).

use crate::args::{Args, Failed};
use crate::element::{Batch, Element};
use crate::handler::Handlers;
use crate::router::Cx;
use crate::{Packet, Timestamp};

/// Digits of a rate.
const DIGITS: i32 = 12;

/// The element.
#[derive(Default)]
pub(super) struct AverageCounter {
    count: u64,
    bytes: u64,
    /// When the first packet and the last came, in milliseconds.
    times: Option<(i64, i64)>,
    ignored: i64,
}

impl AverageCounter {
    #[inline]
    fn count(&mut self, now: Timestamp, packets: u64, bytes: u64) {
        let now = now.nanos().div_euclid(1_000_000);
        let first = self.times.map_or(now, |(first, _)| first);
        if now - first >= self.ignored {
            self.count += packets;
            self.bytes += bytes;
        }
        self.times = Some((first, now));
    }

    fn rate(&self, amount: u64) -> String {
        let passed = self.times.map_or(0, |(first, last)| last - first) - self.ignored;
        general(amount as f64 * 1000.0 / passed.max(1) as f64)
    }
}

/// A number with 12 digits at most, as C's `%.12g` writes it.
fn general(value: f64) -> String {
    let scientific = format!("{:.*e}", DIGITS as usize - 1, value);
    let (mantissa, exponent) = scientific.split_once('e').expect("there is an exponent");
    let exponent: i32 = exponent.parse().expect("it is a number");
    let shorter = |text: &str| match text.split_once('.') {
        Some((whole, part)) => format!("{whole}.{}", part.trim_end_matches('0')).trim_end_matches('.').to_owned(),
        None => text.to_owned(),
    };
    if (-4..DIGITS).contains(&exponent) {
        return shorter(&format!("{value:.*}", (DIGITS - 1 - exponent) as usize));
    }
    format!("{}e{}{:02}", shorter(mantissa), if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

impl Element for AverageCounter {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut seconds = 0u32;
        args.may("IGNORE", &mut seconds).finish()?;
        self.ignored = i64::from(seconds) * 1000;
        Ok(())
    }

    fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        self.count(cx.now(), 1, packet.len() as u64);
        Some(packet)
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        let bytes = batch.iter().map(|packet| packet.len() as u64).sum();
        self.count(cx.now(), batch.len() as u64, bytes);
        cx.emit_batch(0, batch);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("count", |counter: &mut Self, _| counter.count);
        handlers.read("byte_count", |counter: &mut Self, _| counter.bytes);
        handlers.read("rate", |counter: &mut Self, _| counter.rate(counter.count));
        handlers.read("byte_rate", |counter: &mut Self, _| counter.rate(counter.bytes));
        handlers.button("reset", |counter: &mut Self, _| {
            *counter = Self { ignored: counter.ignored, ..Self::default() };
        });
    }
}

#[cfg(test)]
mod tests {
    use super::general;
    use crate::Packet;
    use crate::elements::testing::Harness;

    #[test]
    fn numbers_are_written_as_in_c() {
        let expected = [
            (0.0, "0"),
            (0.1, "0.1"),
            (1.0 / 3.0, "0.333333333333"),
            (1500.0, "1500"),
            (123_456_789_012.0, "123456789012"),
            (1_234_567_890_123.0, "1.23456789012e+12"),
            (1e15, "1e+15"),
            (0.000_012_5, "1.25e-05"),
        ];
        for (value, text) in expected {
            assert_eq!(general(value), text);
        }
    }

    #[test]
    fn rates_are_over_the_time_from_the_first_packet_to_the_last() {
        for join in [" -> ", " -> Queue -> "] {
            let mut harness = Harness::new(&format!("give :: Give{join}c :: AverageCounter -> Take"));
            assert_eq!((harness.read("c.rate"), harness.read("c.byte_rate")), ("0".to_owned(), "0".to_owned()));
            harness.give("give", (0..4).map(|n| Packet::from_slice(&[n; 10])));
            harness.pass(2.0);
            harness.give("give", (0..3).map(|n| Packet::from_slice(&[n; 10])));
            harness.pass(9.0);
            let told = ["c.count", "c.byte_count", "c.rate", "c.byte_rate"].map(|handler| harness.read(handler));
            assert_eq!(told, ["7", "70", "3.5", "35"]);
            harness.write("c.reset", "").unwrap();
            assert_eq!((harness.read("c.count"), harness.read("c.rate")), ("0".to_owned(), "0".to_owned()));
            // All at once: as if it took a millisecond.
            harness.give("give", (0..4).map(|n| Packet::from_slice(&[n; 10])));
            assert_eq!(harness.read("c.rate"), "4000");
        }
    }

    #[test]
    fn the_first_seconds_may_not_count() {
        let mut harness = Harness::new("give :: Give -> c :: AverageCounter(IGNORE 2) -> Take");
        for expected in ["0", "0", "1", "2"] {
            harness.give_bytes("give", b"a");
            assert_eq!(harness.read("c.count"), expected);
            harness.pass(1.0);
        }
        assert_eq!(harness.read("c.rate"), "2");
        harness.write("c.reset", "").unwrap();
        harness.give_bytes("give", b"a");
        assert_eq!(harness.read("c.count"), "0");
        assert!(Harness::errors("Give -> AverageCounter(-1) -> Take").contains("IGNORE: must be >= 0"));
    }
}
