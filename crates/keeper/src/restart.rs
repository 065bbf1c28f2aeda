//! Whether a worker that died is started again, and when (pure).
//!
//! Being killed is no reason to give up, however often. Dying by itself before any worker has served is one: what cannot
//! begin will not begin the next time either. Once one has served, somebody depends on it, and what keeps the next one from
//! beginning (no memory for a process, a device that is being reset) may pass: it is tried for about a minute.

use std::time::Duration;

/// The longest wait.
const DELAY_MAX: Duration = Duration::from_secs(1);
/// A worker that served for so long is not one that dies at once.
const LASTING: Duration = Duration::from_secs(2);

/// What is known of the workers so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restarts {
    /// Workers that died before they served, one after the other, when it ends; none has ever served.
    pub unready_max: u32,
    /// The same after one has served.
    pub unready_later_max: u32,
    has_served: bool,
    unready: u32,
    /// Workers that did not last, one after the other.
    short: u32,
}

impl Default for Restarts {
    fn default() -> Self {
        // The later ones are a second apart from about the fifteenth on.
        Self { unready_max: 8, unready_later_max: 72, has_served: false, unready: 0, short: 0 }
    }
}

impl Restarts {
    /// A worker died, or could not be started at all: how long to wait before the next one; none to give up.
    pub fn died(&mut self, was_ready: bool, was_killed: bool, lived: Duration) -> Option<Duration> {
        self.short = if lived >= LASTING { 0 } else { self.short + 1 };
        self.unready = match (was_ready, was_killed) {
            (true, _) => 0,
            // Somebody's doing, which says nothing about it.
            (false, true) => self.unready,
            (false, false) => self.unready + 1,
        };
        self.has_served |= was_ready;
        if self.unready >= if self.has_served { self.unready_later_max } else { self.unready_max } {
            return None;
        }
        // The first few at once: requests wait.
        let doublings = self.short.saturating_sub(4).min(10);
        let delay = if self.short <= 4 { Duration::ZERO } else { Duration::from_millis(1 << doublings) };
        Some(delay.min(DELAY_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_killed_is_started_for_ever() {
        let mut restarts = Restarts::default();
        for round in 0..1000 {
            let delay = restarts.died(round % 2 == 0, true, Duration::from_millis(5)).unwrap();
            assert!(delay <= DELAY_MAX && (round >= 4 || delay.is_zero()));
        }
        assert_eq!(restarts.died(true, true, LASTING), Some(Duration::ZERO), "one that lasted begins anew");
    }

    /// A keeper gave up what served swap because eight workers in a row found no memory for their start, which took less
    /// than a second.
    #[test]
    fn one_that_has_served_is_tried_again_for_a_minute() {
        let mut restarts = Restarts::default();
        restarts.died(true, false, LASTING).unwrap();
        let mut waited = Duration::ZERO;
        while let Some(delay) = restarts.died(false, false, Duration::ZERO) {
            waited += delay;
        }
        assert!(waited > Duration::from_secs(50) && waited < Duration::from_secs(90), "{waited:?}");
        let mut restarts = Restarts::default();
        restarts.died(true, false, LASTING).unwrap();
        (0..70).for_each(|_| _ = restarts.died(false, false, Duration::ZERO).unwrap());
        restarts.died(true, false, Duration::ZERO).unwrap();
        assert!(restarts.died(false, false, Duration::ZERO).is_some(), "one that serves begins anew");
    }

    #[test]
    fn one_that_never_serves_is_given_up() {
        let mut restarts = Restarts::default();
        for _ in 0..7 {
            assert!(restarts.died(false, false, Duration::ZERO).is_some());
        }
        assert_eq!(restarts.died(false, false, Duration::ZERO), None);
    }
}
