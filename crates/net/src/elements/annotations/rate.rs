//! Recent rates: exponentially weighted moving averages over milliseconds, as Click computes them.

use crate::Timestamp;

/// Averages move by 1/16 of the difference in each millisecond.
const STABILITY: u32 = 4;
/// After so many milliseconds without anything, nothing is left.
const FORGOTTEN: i64 = 100;
/// Milliseconds in a second.
const FREQUENCY: u64 = 1000;

/// How much there was of something in the last milliseconds, with `SCALE` bits of fraction.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rate<const SCALE: u32> {
    millisecond: i64,
    total: u64,
    average: i64,
}

fn millisecond(now: Timestamp) -> i64 {
    now.nanos().div_euclid(1_000_000)
}

impl<const SCALE: u32> Rate<SCALE> {
    /// None yet.
    pub(super) fn new(now: Timestamp) -> Self {
        Self { millisecond: millisecond(now), total: 0, average: 0 }
    }

    fn step(&mut self, amount: u64) {
        let scaled = (amount << SCALE) as i64;
        self.average += (scaled - self.average + (1 << (STABILITY - 1))) >> STABILITY;
    }

    /// There is more of it.
    #[inline]
    pub(super) fn update(&mut self, now: Timestamp, amount: u64) {
        let now = millisecond(now);
        if now != self.millisecond {
            self.pass(now);
        }
        self.total += amount;
    }

    fn pass(&mut self, now: i64) {
        let total = std::mem::take(&mut self.total);
        self.step(total);
        let idle = now - self.millisecond - 1;
        if idle >= FORGOTTEN {
            self.average = 0;
        } else {
            (0..idle).for_each(|_| self.step(0));
        }
        self.millisecond = now;
    }

    /// How much there is in a second, as text, times 2 to the power of `shift`, which is at most `SCALE`.
    pub(super) fn text(&mut self, now: Timestamp, shift: u32) -> String {
        self.update(now, 0);
        fraction(self.average as u64 * FREQUENCY, SCALE - shift)
    }
}

/// A number with `bits` bits of fraction, with as many decimal digits as it takes to tell it from its neighbours.
fn fraction(value: u64, bits: u32) -> String {
    let one = 1u64 << bits;
    let mut text = (value >> bits).to_string();
    let mut rest = value & (one - 1);
    if rest == 0 {
        return text;
    }
    text.push('.');
    rest = 10 * rest + 5;
    let mut doubt = 10;
    loop {
        if doubt > one {
            rest = rest + (one >> 1) - (doubt >> 1);
        }
        text.push(char::from(b'0' + (rest >> bits) as u8));
        rest = 10 * (rest & (one - 1));
        doubt *= 10;
        if rest <= doubt {
            return text;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_told_from_their_neighbours() {
        for bits in [1u32, 4, 10] {
            for value in 0..3000u64 {
                let text = fraction(value, bits);
                let read: f64 = text.parse().unwrap();
                let exact = value as f64 / f64::from(1 << bits);
                assert!((read - exact).abs() <= 0.5 / f64::from(1 << bits), "{value}/{bits}: {text}");
                assert!(text.len() <= 10, "{text}");
            }
        }
        assert_eq!((fraction(3, 1), fraction(1, 4), fraction(5 << 10, 10)), ("1.5".into(), "0.06".into(), "5".into()));
    }

    /// The same in floating point, without the rounding of each step.
    fn slowly(events: &[u64]) -> f64 {
        events.iter().fold(0.0, |average, amount| average + (*amount as f64 - average) / 16.0)
    }

    #[test]
    fn an_average_moves_as_one_in_floating_point_does() {
        let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
        let events: Vec<u64> = (0..500).map(|_| if random.u8(..4) == 0 { random.u64(..50) } else { 0 }).collect();
        let mut rate = Rate::<10>::new(Timestamp::ZERO);
        for (at, amount) in events.iter().enumerate().filter(|(_, amount)| **amount > 0) {
            rate.update(Timestamp::from_nanos(at as i64 * 1_000_000), *amount);
        }
        let text = rate.text(Timestamp::from_nanos(events.len() as i64 * 1_000_000), 0);
        let (told, expected): (f64, _) = (text.parse().unwrap(), slowly(&events) * 1000.0);
        // Each step rounds by up to half of 1/1024, of which 16 add up, and there are 1,000 steps in a second.
        assert!((told - expected).abs() < 10.0, "{told}, and not {expected}");
    }

    #[test]
    fn a_steady_rate_is_found_and_forgotten() {
        let mut rate = Rate::<4>::new(Timestamp::ZERO);
        for at in 0..1000 {
            rate.update(Timestamp::from_nanos(at * 1_000_000), 100);
        }
        let now = Timestamp::new(1, 0);
        let (bytes, bits): (f64, f64) = (rate.text(now, 0).parse().unwrap(), rate.text(now, 3).parse().unwrap());
        assert!((99_000.0..=100_000.0).contains(&bytes) && (bits - 8.0 * bytes).abs() < 8.0, "{bytes} {bits}");
        assert_eq!(rate.text(Timestamp::new(1, 101_000_000), 0), "0");
    }
}
