//! RED: drops packets early, by how long queues are on average (Floyd and Jacobson, 1993).
//!
//! `RED(MIN_THRESH, MAX_THRESH, MAX_P [, QUEUES, STABILITY, GENTLE])`: an input and an output, pushed or pulled; a push output 1
//! for what is dropped, if it is connected.
//!
//! - MIN_THRESH, MAX_THRESH: lengths of queues, MIN_THRESH at most MAX_THRESH, and that at most 65,535. Up to the first one
//!   no packets are dropped; from there on more and more.
//! - MAX_P: how probable a drop is at MAX_THRESH, from 0 to 1.
//! - QUEUES (keyword): the names of the storages that count together. Unless said otherwise, those which are reached first:
//!   downstream where RED pushes, upstream where it is pulled.
//! - STABILITY (keyword): how slowly the average follows, from 0 (not at all: it is the length) to 16; 4.
//! - GENTLE (keyword): whether the probability grows from MAX_P to 1 between MAX_THRESH and twice that, instead of being 1
//!   beyond MAX_THRESH; true.
//!
//! The average is that of the lengths at each packet; while queues are empty, each 20 ms count as a packet.
//!
//! Handlers: `min_thresh`, `max_thresh`, `max_p` (r/w: a new configuration), `drops`, `avg_queue_size`, `stats`, `queues`.
//! QUEUES stay as they were at the beginning.
//!
//! Unlike Click's, probabilities are not rounded to parts of 1/65,536 for each packet of length, STABILITY 0 uses the length
//! itself for the probability, too, and it draws from numbers of its own, which begin with the router's.

use super::fraction::Fraction;
use crate::args::{Args, ElementRef, Failed, Raw};
use crate::element::{Element, downcast};
use crate::handler::Handlers;
use crate::lang::config::split_words;
use crate::router::Cx;
use crate::{Log, Packet};

/// Bits behind the point of the average.
const SCALE: u32 = 10;

/// An average in which what is new counts for one part of `1 << stability`.
#[derive(Debug, Clone, Copy, Default)]
struct Average {
    scaled: u32,
    stability: u32,
}

impl Average {
    fn update(&mut self, length: u32) {
        if self.stability == 0 {
            self.scaled = length << SCALE;
            return;
        }
        let off = (i64::from(length) << SCALE) - i64::from(self.scaled) + (1 << (self.stability - 1));
        self.scaled = (i64::from(self.scaled) + (off >> self.stability)) as u32;
    }

    /// The same for `times` times zero.
    fn fade(&mut self, times: u64) {
        for _ in 0..times {
            let before = self.scaled;
            self.update(0);
            if self.scaled == before {
                return;
            }
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Settings {
    min: u32,
    max: u32,
    max_p: Fraction<16>,
    is_gentle: bool,
}

impl Settings {
    /// Beyond this average, everything is dropped.
    fn limit(&self) -> u32 {
        if self.is_gentle && self.max_p.0 != Fraction::<16>::ONE { 2 * self.max } else { self.max }
    }

    /// The probability of a drop at an average, in parts of 65,536.
    fn probability(&self, scaled: u32) -> u32 {
        let [min, max, max_p, scaled] = [self.min << SCALE, self.max << SCALE, self.max_p.0, scaled].map(u64::from);
        let one = u64::from(Fraction::<16>::ONE);
        let part = if scaled <= max {
            (max_p * (scaled - min)).checked_div(max - min).unwrap_or(0)
        } else {
            max_p + (one - max_p) * (scaled - max) / max.max(1)
        };
        part.min(one) as u32
    }
}

/// The element.
pub(super) struct Red {
    settings: Settings,
    average: Average,
    /// The storages that count.
    queues: Vec<usize>,
    /// How many packets passed since the last drop; nothing below the threshold.
    passed: Option<u32>,
    /// At which sum of probabilities the next drop is.
    lot: u32,
    /// When the queues were found empty, in 20 ms.
    empty_at: Option<i64>,
    drops: u64,
    rng: fastrand::Rng,
}

impl Default for Red {
    fn default() -> Self {
        Self {
            settings: Settings::default(),
            average: Average::default(),
            queues: Vec::new(),
            passed: None,
            lot: 0,
            empty_at: None,
            drops: 0,
            rng: fastrand::Rng::with_seed(0),
        }
    }
}

fn check(new: &Settings, stability: u32) -> Result<(), &'static str> {
    match () {
        () if new.max > 0xFFFF => Err("MAX_THRESH must be <= 65535"),
        () if new.min > new.max => Err("MIN_THRESH must be <= MAX_THRESH"),
        () if new.max_p.0 > Fraction::<16>::ONE => Err("MAX_P must be between 0 and 1"),
        () if stability > 16 => Err("STABILITY must be between 0 and 16"),
        () => Ok(()),
    }
}

impl Red {
    fn length(&self, cx: &mut Cx<'_>) -> u32 {
        let stored = self.queues.iter().filter_map(|queue| cx.stored_of(*queue)).sum::<usize>();
        stored.min(1 << 20) as u32
    }

    fn measure(&mut self, cx: &mut Cx<'_>) {
        let length = self.length(cx);
        if length > 0 || self.average.stability == 0 {
            self.average.update(length);
            self.empty_at = None;
            return;
        }
        let now = cx.now().nanos() / 20_000_000;
        let times = self.empty_at.replace(now).map_or(1, |last| now - last);
        self.average.fade(times.max(0) as u64);
    }

    fn drops_next(&mut self, cx: &mut Cx<'_>) -> bool {
        self.measure(cx);
        let average = self.average.scaled >> SCALE;
        if average <= self.settings.min || average > self.settings.limit() {
            self.passed = None;
            return average > self.settings.min;
        }
        let probability = self.settings.probability(self.average.scaled);
        let passed = self.passed.map_or(0, |passed| passed.saturating_add(1));
        let is_dropped = passed > 0 && probability > 0 && passed > self.lot / probability;
        self.passed = Some(if is_dropped { 0 } else { passed });
        if self.passed == Some(0) {
            self.lot = self.rng.u32(..1 << 16);
        }
        is_dropped
    }

    fn handle(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        if !self.drops_next(cx) {
            return Some(packet);
        }
        self.drops += 1;
        cx.emit_checked(1, packet);
        None
    }

    fn queue_names(&self, cx: &Cx<'_>) -> Vec<String> {
        self.queues.iter().map(|queue| cx.router().name(*queue).to_owned()).collect()
    }
}

impl Element for Red {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut new = Settings { is_gentle: true, ..Settings::default() };
        let (mut queues, mut stability) = (Raw::default(), 4u32);
        args.must("MIN_THRESH", &mut new.min).must("MAX_THRESH", &mut new.max).must("MAX_P", &mut new.max_p);
        args.key("QUEUES", &mut queues).key("STABILITY", &mut stability).key("GENTLE", &mut new.is_gentle).finish()?;
        check(&new, stability).map_err(|error| args.error(error))?;
        if self.queues.is_empty() {
            for name in split_words(&queues.0) {
                match <ElementRef as crate::args::Arg>::parse(&name, args.cx()) {
                    Ok(queue) => self.queues.push(queue.0),
                    Err(error) => drop(args.error(error)),
                }
            }
            args.result()?;
        }
        self.settings = new;
        self.average.stability = stability;
        Ok(())
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        self.rng = cx.rng().fork();
        let stores: Vec<bool> = (0..cx.router().len()).map(|element| cx.stored_of(element).is_some()).collect();
        if self.queues.is_empty() {
            let stop = |element: usize| stores[element];
            let found = if cx.output_is_push(0) { cx.downstream(Some(0), stop) } else { cx.upstream(Some(0), stop) };
            self.queues = found.into_iter().filter(|element| stores[*element]).collect();
        }
        if self.queues.is_empty() {
            return Err("no nearby Queues".to_owned());
        }
        let others = self.queues.iter().filter(|queue| !stores[**queue]);
        let told: Vec<_> =
            others.map(|other| format!("'{}' is not a Storage element", cx.router().name(*other))).collect();
        if told.is_empty() { Ok(()) } else { Err(told.join("\n")) }
    }

    fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        self.handle(cx, packet)
    }

    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        loop {
            let packet = cx.pull(0)?;
            if let Some(packet) = self.handle(cx, packet) {
                return Some(packet);
            }
        }
    }

    fn observes(&self) -> bool {
        true
    }

    fn take_state(&mut self, _: &mut Cx<'_>, old: &mut dyn Element, _: &mut Log) {
        if let Some(old) = downcast::<Self>(old) {
            (self.average.scaled, self.empty_at) = (old.average.scaled, old.empty_at);
        }
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.keyword("min_thresh", 0, "MIN_THRESH");
        handlers.keyword("max_thresh", 1, "MAX_THRESH");
        handlers.keyword("max_p", 2, "MAX_P");
        handlers.read("drops", |red: &mut Self, _| red.drops);
        handlers.read("avg_queue_size", |red: &mut Self, _| Fraction::<SCALE>(red.average.scaled));
        handlers.read("stats", |red: &mut Self, cx| {
            let (length, average) = (red.length(cx), Fraction::<SCALE>(red.average.scaled));
            format!("{length} current queue\n{average} avg queue\n{} drops\n", red.drops)
        });
        handlers.read("queues", |red: &mut Self, cx| red.queue_names(cx).join("\n") + "\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::testing::Harness;
    use proptest::prelude::*;

    fn packets(count: usize) -> impl Iterator<Item = Packet> {
        (0..count).map(|_| Packet::from_slice(b"x"))
    }

    #[test]
    fn nothing_is_dropped_below_and_everything_beyond() {
        let mut harness = Harness::new(
            "give :: Give -> r :: RED(5, 10, 0.5, STABILITY 0, GENTLE false) -> q :: Queue -> Idle; r[1] -> over :: Take",
        );
        harness.give("give", packets(6));
        assert_eq!((harness.read("q.length"), harness.read("r.drops")), ("6".to_owned(), "0".to_owned()));
        harness.give("give", packets(1000));
        let length: usize = harness.read("q.length").parse().unwrap();
        assert_eq!(length, 11);
        assert_eq!(harness.read("r.drops"), (1006 - length).to_string());
        assert_eq!(harness.take("over").len(), 1006 - length);
        assert_eq!(
            harness.read("r.stats"),
            format!("{length} current queue\n{length} avg queue\n{} drops\n", 1006 - length)
        );
        harness.write("q.reset", "").unwrap();
        harness.give("give", packets(6));
        assert_eq!(harness.read("r.avg_queue_size"), "5");
    }

    #[test]
    fn queues_are_those_next_to_it_or_those_that_are_named() {
        let mut harness = Harness::new(
            "give :: Give -> r :: RED(1, 2, 1) -> t :: Tee -> q1 :: Queue -> Idle; t[1] -> q2 :: Queue -> Unqueue
             -> q3 :: Queue -> r2 :: RED(1, 2, 1) -> take :: TakePull; r3 :: RED(1, 2, 1, QUEUES q3 q1); Idle -> r3 -> Discard",
        );
        assert_eq!(harness.read("r.queues"), "q1\nq2\n");
        assert_eq!(harness.read("r2.queues"), "q3\n");
        assert_eq!(harness.read("r3.queues"), "q3\nq1\n");
        harness.give("give", packets(1));
        assert_eq!(harness.take("take").len(), 1);
    }

    #[test]
    fn settings_change_and_are_checked() {
        let mut harness = Harness::new("give :: Give -> r :: RED(5, 50, 0.02) -> q :: Queue(200) -> Idle");
        harness.write("r.max_thresh", "60").unwrap();
        harness.write("r.max_p", "0.5").unwrap();
        assert_eq!((harness.read("r.config"), harness.read("r.min_thresh")), ("5, 60, 0.5".to_owned(), "5".to_owned()));
        assert!(harness.write("r.min_thresh", "61").unwrap_err().contains("MIN_THRESH must be <= MAX_THRESH"));
        assert_eq!(harness.read("r.min_thresh"), "5");
        for (config, told) in [
            ("5", "MAX_THRESH: required argument missing"),
            ("5, 70000, 0.1", "MAX_THRESH must be <= 65535"),
            ("5, 4, 0.1", "MIN_THRESH must be <= MAX_THRESH"),
            ("5, 50, 1.5", "MAX_P must be between 0 and 1"),
            ("5, 50, 1, STABILITY 17", "STABILITY must be between 0 and 16"),
            ("5, 50, 1, QUEUES a", "no element named 'a'"),
            ("5, 50, 1, QUEUES d", "'d' is not a Storage element"),
            ("5, 50, 1", "no nearby Queues"),
        ] {
            let errors = Harness::errors(&format!("Give -> RED({config}) -> d :: Discard"));
            assert!(errors.contains(told), "{config}: {errors}");
        }
    }

    #[test]
    fn averages_fade_while_queues_are_empty() {
        let mut harness = Harness::new(
            "give :: Give -> r :: RED(50, 60, 0.1) -> q :: Queue -> u :: Unqueue(ACTIVE false) -> Discard",
        );
        harness.give("give", packets(200));
        let average: f64 = harness.read("r.avg_queue_size").parse().unwrap();
        assert!(average > 10.0, "{average}");
        harness.write("u.active", "true").unwrap();
        harness.give("give", packets(1));
        harness.pass(10.0);
        harness.give("give", packets(1));
        // Rounding leaves eight parts of 1,024.
        assert_eq!(harness.read("r.avg_queue_size"), "0.008");
    }

    proptest! {
        /// Against real numbers.
        #[test]
        fn probabilities_are_those_of_the_paper(
            min in 0..100u32, more in 0..100u32, max_p in 0..=65536u32, scaled in 0..400_000u32, is_gentle in any::<bool>(),
        ) {
            let settings = Settings { min, max: min + more, max_p: Fraction(max_p), is_gentle };
            let average = f64::from(scaled) / 1024.0;
            prop_assume!(average >= f64::from(min) && average <= f64::from(settings.limit()));
            let (max, p) = (f64::from(settings.max), f64::from(max_p) / 65536.0);
            let expected = if average <= max {
                if more == 0 { 0.0 } else { p * (average - f64::from(min)) / f64::from(more) }
            } else {
                p + (1.0 - p) * (average - max) / max.max(1.0 / 1024.0)
            };
            let got = f64::from(settings.probability(scaled)) / 65536.0;
            prop_assert!((got - expected.min(1.0)).abs() < 1e-4, "{} {}", got, expected);
        }

        #[test]
        fn averages_follow_what_they_are_given(lengths in prop::collection::vec(0..2000u32, 1..50), stability in 0..=16u32) {
            let mut average = Average { scaled: 0, stability };
            let mut exact = 0.0;
            for length in lengths {
                average.update(length);
                exact += (f64::from(length) - exact) / f64::from(1 << stability);
                // Half a unit is lost or gained each time at most, and what was lost fades.
                let off = f64::from(average.scaled) / 1024.0 - exact;
                prop_assert!(off.abs() < 0.06, "{}", off);
            }
        }
    }
}
