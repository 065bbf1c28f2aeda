//! Rates of several ways to do the same, in turns.

use super::session::Session;
use super::usage::{gb_per_s, median};
use crate::error::Result;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Rounds in which every way has its turn.
const ROUNDS: usize = 5;

/// A way whose single run takes longer is left out: it would be measured for minutes.
const RUN_MAX: Duration = Duration::from_millis(250);

/// Runs before the measurement, in which curves, caches and clocks settle; for at most this long.
const WARM_RUNS: usize = 12;
const WARM_MAX: Duration = Duration::from_millis(40);

/// What was measured of one way.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rate {
    /// Median of the rounds, in GB/s (1e9).
    pub gb_per_s: f64,
    /// Slowest and quickest round.
    pub range_gb_per_s: [f64; 2],
    /// Microseconds a run, by the median.
    pub us: f64,
}

/// A way to do something once.
pub type Way<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

/// How long, and until when at most.
#[derive(Debug, Clone, Copy)]
pub struct Time {
    /// For one way at one size.
    pub point: Duration,
    /// For everything.
    pub deadline: Instant,
}

impl Time {
    /// Whether nothing more is to be measured.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

/// The rates of ways that each move so many bytes a run; none for a way that is too slow.
pub fn rates(bytes: u64, ways: &mut [Way<'_>], time: Time, session: &Session) -> Result<Vec<Option<Rate>>> {
    let mut is_left_out = vec![false; ways.len()];
    for (way, is_left_out) in ways.iter_mut().zip(&mut is_left_out) {
        let (begin, mut best) = (Instant::now(), Duration::MAX);
        for run in 0..WARM_RUNS {
            session.check()?;
            let one = Instant::now();
            way()?;
            best = best.min(one.elapsed());
            // The first one may have allocated.
            if run > 0 && begin.elapsed() > WARM_MAX {
                break;
            }
        }
        *is_left_out = best > RUN_MAX;
    }
    let round = time.point / ROUNDS as u32;
    let mut seconds = vec![vec![]; ways.len()];
    for turn in 0..ROUNDS {
        for i in 0..ways.len() {
            let at = (i + turn) % ways.len();
            if is_left_out[at] {
                continue;
            }
            session.check()?;
            let (begin, mut runs) = (Instant::now(), 0_u32);
            let mut step = 1;
            // The clock is looked at less and less often, because the smallest work takes as long as a look.
            while runs == 0 || begin.elapsed() < round {
                for _ in 0..step {
                    ways[at]()?;
                }
                runs += step;
                step = if begin.elapsed() < round / 16 { step * 2 } else { step };
            }
            seconds[at].push(begin.elapsed().as_secs_f64() / f64::from(runs));
        }
    }
    Ok(seconds.into_iter().map(|seconds| rate(bytes, &seconds)).collect())
}

fn rate(bytes: u64, seconds: &[f64]) -> Option<Rate> {
    let median = median(seconds)?;
    let of = |seconds: f64| gb_per_s(bytes, seconds);
    let ends = (seconds.iter().copied().reduce(f64::max)?, seconds.iter().copied().reduce(f64::min)?);
    Some(Rate { gb_per_s: of(median), range_gb_per_s: [of(ends.0), of(ends.1)], us: median * 1e6 })
}

/// What to call the number of rounds in a report.
pub fn rounds() -> usize {
    ROUNDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_medians_and_slow_ways_are_left_out() {
        let found = rate(1_000_000, &[0.5, 0.001, 0.002]).unwrap();
        assert!((found.gb_per_s - 0.5).abs() < 1e-9 && (found.us - 2000.0).abs() < 1e-6);
        assert!((found.range_gb_per_s[0] - 0.002).abs() < 1e-9 && (found.range_gb_per_s[1] - 1.0).abs() < 1e-9);
        assert_eq!(rate(1, &[]), None);
        let time = Time { point: Duration::from_millis(5), deadline: Instant::now() };
        let slow = || {
            std::thread::sleep(RUN_MAX + Duration::from_millis(5));
            Ok(())
        };
        let found = rates(10, &mut [Box::new(|| Ok(())), Box::new(slow)], time, &Session::default()).unwrap();
        assert!(found[0].is_some() && found[1].is_none());
    }
}
