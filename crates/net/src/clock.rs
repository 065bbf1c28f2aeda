//! Time: of the system, or simulated.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment, in nanoseconds since 1970, or a time between moments. Simulated time begins at a thousand million seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The beginning of 1970, or no time at all.
    pub const ZERO: Self = Self(0);

    /// From nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// From seconds and a part of one in nanoseconds, which saturate.
    pub const fn new(seconds: i64, nanos: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    /// From seconds.
    pub fn from_secs_f64(seconds: f64) -> Self {
        Self((seconds * 1e9).round() as i64)
    }

    /// In nanoseconds.
    pub const fn nanos(self) -> i64 {
        self.0
    }

    /// In seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Whole seconds, towards the past.
    pub const fn secs(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// What is left of the second, in nanoseconds.
    pub const fn subsec_nanos(self) -> u32 {
        self.0.rem_euclid(1_000_000_000) as u32
    }

    /// Whether it is zero, as the timestamp of a packet that has none.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// As a duration; nothing where it is negative.
    pub fn to_duration(self) -> Duration {
        Duration::from_nanos(self.0.max(0) as u64)
    }
}

impl Add for Timestamp {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Timestamp {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Timestamp {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl From<Duration> for Timestamp {
    fn from(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for Timestamp {
    /// Seconds with six digits, or nine where they are needed, as Click prints them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, nanos) = (if self.0 < 0 { "-" } else { "" }, self.0.unsigned_abs());
        let (seconds, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
        if rest % 1000 == 0 {
            write!(f, "{sign}{seconds}.{:06}", rest / 1000)
        } else {
            write!(f, "{sign}{seconds}.{rest:09}")
        }
    }
}

/// What time it is, for a router. It never goes back.
#[derive(Debug)]
pub struct Clock {
    /// In nanoseconds; where time is simulated, the time itself.
    begin: AtomicI64,
    started: Instant,
    simulated: bool,
    /// Simulated time does not go on beyond it, in nanoseconds.
    limit: AtomicI64,
}

impl Clock {
    /// The system's time.
    pub fn system() -> Self {
        let begin = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            begin: AtomicI64::new(Timestamp::from(begin).0),
            started: Instant::now(),
            simulated: false,
            limit: AtomicI64::new(i64::MAX),
        }
    }

    /// Time that stands still until somebody [advances](Self::advance) it.
    pub fn simulated() -> Self {
        let begin = AtomicI64::new(Timestamp::new(1_000_000_000, 0).0);
        Self { begin, started: Instant::now(), simulated: true, limit: AtomicI64::new(i64::MAX) }
    }

    /// Another clock that shows the same time.
    #[must_use]
    pub fn fork(&self) -> Self {
        let copy = |value: &AtomicI64| AtomicI64::new(value.load(Ordering::Relaxed));
        Self { begin: copy(&self.begin), started: self.started, simulated: self.simulated, limit: copy(&self.limit) }
    }

    /// Whether it is simulated.
    pub fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        let begin = Timestamp(self.begin.load(Ordering::Relaxed));
        if self.simulated { begin } else { begin + self.started.elapsed().into() }
    }

    /// Simulated time goes on to `to`, unless it is later already, and not beyond where it is held.
    pub fn advance(&self, to: Timestamp) {
        if self.simulated {
            self.begin.fetch_max(to.0.min(self.limit.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    /// Simulated time does not go on beyond this.
    pub fn hold_at(&self, limit: Timestamp) {
        self.limit.store(limit.0, Ordering::Relaxed);
    }

    /// Whether simulated time is held before this.
    pub fn is_held_before(&self, at: Timestamp) -> bool {
        self.simulated && at.0 > self.limit.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_printed_with_six_or_nine_digits() {
        assert_eq!(Timestamp::new(5, 1_000).to_string(), "5.000001");
        assert_eq!(Timestamp::new(5, 1).to_string(), "5.000000001");
        assert_eq!(Timestamp::from_nanos(-1_500_000_000).to_string(), "-1.500000");
        assert_eq!(Timestamp::from_nanos(-1).secs(), -1);
    }

    #[test]
    fn simulated_time_stands_still() {
        let clock = Clock::simulated();
        assert_eq!(clock.now(), Timestamp::new(1_000_000_000, 0));
        clock.advance(clock.now() + Timestamp::new(1, 0));
        clock.advance(Timestamp::ZERO);
        assert_eq!(clock.now(), Timestamp::new(1_000_000_001, 0));
    }
}
