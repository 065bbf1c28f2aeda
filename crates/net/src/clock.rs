//! Time: of the system, or simulated.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard};
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

/// How time passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// It stands still until somebody [advances](Clock::advance) it.
    Simulated,
    /// As the system's, but whoever has nothing to do does not wait.
    NoWait,
    /// So many seconds in one of the system's.
    Times(f64),
}

impl fmt::Display for Pace {
    /// As Click's handler `timewarp` says it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simulated => f.write_str("simulation"),
            Self::NoWait => f.write_str("nowait"),
            Self::Times(speed) => write!(f, "{speed}"),
        }
    }
}

/// A line: what is shown at some moment, and how fast it goes on.
#[derive(Debug, Clone, Copy)]
struct Line {
    /// In nanoseconds since the clock was made.
    from: i64,
    /// In nanoseconds.
    shown: i64,
    pace: Pace,
}

impl Line {
    fn speed(self) -> f64 {
        if let Pace::Times(speed) = self.pace { speed } else { 1.0 }
    }

    /// What is shown so many nanoseconds after the clock was made.
    fn at(self, elapsed: i64) -> i64 {
        let passed = elapsed.saturating_sub(self.from).max(0);
        self.shown.saturating_add((passed as f64 * self.speed()) as i64)
    }
}

/// Time that has its beginning and its speed from the system.
const SYSTEM: u8 = 0;
/// Time that is simulated.
const SIMULATED: u8 = 1;
/// Time that goes on along a line.
const BENT: u8 = 2;

/// What time it is, for a router. It never goes back.
#[derive(Debug)]
pub struct Clock {
    /// In nanoseconds; where time is simulated, the time itself.
    begin: AtomicI64,
    started: Instant,
    /// One of the three above. What is bent stays so.
    kind: AtomicU8,
    line: Mutex<Line>,
    /// Time that jumps does not go on beyond it, in nanoseconds.
    limit: AtomicI64,
}

impl Clock {
    /// The system's time.
    pub fn system() -> Self {
        let begin = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::new(Timestamp::from(begin), SYSTEM)
    }

    /// Time that stands still until somebody [advances](Self::advance) it.
    pub fn simulated() -> Self {
        Self::new(Timestamp::new(1_000_000_000, 0), SIMULATED)
    }

    fn new(begin: Timestamp, kind: u8) -> Self {
        Self {
            begin: AtomicI64::new(begin.0),
            started: Instant::now(),
            kind: AtomicU8::new(kind),
            line: Mutex::new(Line { from: 0, shown: begin.0, pace: Pace::Times(1.0) }),
            limit: AtomicI64::new(i64::MAX),
        }
    }

    /// Another clock that shows the same time.
    #[must_use]
    pub fn fork(&self) -> Self {
        let copy = |value: &AtomicI64| AtomicI64::new(value.load(Ordering::Relaxed));
        Self {
            begin: copy(&self.begin),
            started: self.started,
            kind: AtomicU8::new(self.kind()),
            line: Mutex::new(*self.line()),
            limit: copy(&self.limit),
        }
    }

    fn kind(&self) -> u8 {
        self.kind.load(Ordering::Acquire)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().expect("no panic in it")
    }

    fn elapsed(&self) -> i64 {
        Timestamp::from(self.started.elapsed()).0
    }

    /// How time passes.
    pub fn pace(&self) -> Pace {
        match self.kind() {
            SYSTEM => Pace::Times(1.0),
            SIMULATED => Pace::Simulated,
            _ => self.line().pace,
        }
    }

    /// From now on time passes in another way; simulated time is none again after that.
    pub fn set_pace(&self, pace: Pace) {
        let mut line = self.line();
        let from = self.elapsed();
        let begin = self.begin.load(Ordering::Relaxed);
        let shown = match self.kind() {
            SYSTEM => begin.saturating_add(from),
            SIMULATED => begin,
            _ => line.at(from),
        };
        *line = Line { from, shown, pace };
        self.kind.store(if pace == Pace::Simulated { SIMULATED } else { BENT }, Ordering::Release);
    }

    /// Whether time goes on to the next moment at which there is something to do, without a wait.
    pub fn jumps(&self) -> bool {
        match self.kind() {
            SYSTEM => false,
            SIMULATED => true,
            _ => self.line().pace == Pace::NoWait,
        }
    }

    /// How much of the system's time passes until `to`.
    pub fn until(&self, to: Timestamp) -> Duration {
        let left = (to - self.now()).to_duration();
        if self.kind() != BENT {
            return left;
        }
        let speed = self.line().speed();
        Duration::try_from_secs_f64(left.as_secs_f64() / speed).unwrap_or(Duration::MAX)
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        let begin = self.begin.load(Ordering::Relaxed);
        Timestamp(match self.kind() {
            SYSTEM => begin.saturating_add(self.elapsed()),
            SIMULATED => begin,
            _ => {
                let line = self.line();
                line.at(self.elapsed())
            }
        })
    }

    /// Time that [jumps](Self::jumps) goes on to `to`, unless it is later already, and not beyond where it is held.
    pub fn advance(&self, to: Timestamp) {
        let to = to.0.min(self.limit.load(Ordering::Relaxed));
        if self.kind() == SIMULATED {
            self.begin.fetch_max(to, Ordering::Relaxed);
        } else if self.jumps() {
            let (mut line, from) = (self.line(), self.elapsed());
            *line = Line { from, shown: line.at(from).max(to), ..*line };
        }
    }

    /// Time that jumps does not go on beyond this.
    pub fn hold_at(&self, limit: Timestamp) {
        self.limit.store(limit.0, Ordering::Relaxed);
    }

    /// Whether simulated time is held before this.
    pub fn is_held_before(&self, at: Timestamp) -> bool {
        self.kind() == SIMULATED && at.0 > self.limit.load(Ordering::Relaxed)
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

    #[test]
    fn a_line_goes_on_at_its_speed_from_where_it_begins() {
        let line = |speed| Line { from: 500, shown: 1000, pace: Pace::Times(speed) };
        assert_eq!([400, 500, 700].map(|elapsed| line(1.0).at(elapsed)), [1000, 1000, 1200]);
        assert_eq!([500, 700].map(|elapsed| line(2.5).at(elapsed)), [1000, 1500]);
        assert_eq!(Line { pace: Pace::NoWait, ..line(1.0) }.at(700), 1200);
        assert_eq!(line(1e300).at(i64::MAX), i64::MAX);
    }

    #[test]
    fn another_pace_begins_where_time_is() {
        for clock in [Clock::system(), Clock::simulated()] {
            let mut last = clock.now();
            for pace in [Pace::Times(1e6), Pace::Times(0.5), Pace::NoWait, Pace::Times(1.0)] {
                clock.set_pace(pace);
                assert_eq!((clock.pace(), clock.fork().pace()), (pace, pace));
                let now = clock.now();
                // A million seconds would pass in one.
                assert!(now >= last && now - last < Timestamp::new(1_000_000_000, 0), "{last} {now} {pace:?}");
                last = now;
            }
        }
    }

    #[test]
    fn time_that_does_not_wait_jumps() {
        let clock = Clock::system();
        let to = clock.now() + Timestamp::new(1_000_000, 0);
        clock.advance(to);
        assert!(clock.now() < to);
        clock.set_pace(Pace::NoWait);
        clock.advance(to);
        let now = clock.now();
        assert!(now >= to);
        clock.advance(Timestamp::ZERO);
        assert!(clock.now() >= now);
    }

    #[test]
    fn what_is_left_is_counted_in_the_systems_time() {
        let clock = Clock::simulated();
        let to = clock.now() + Timestamp::new(1_000_000, 0);
        assert_eq!(clock.until(to), Duration::from_secs(1_000_000));
        assert_eq!(clock.until(Timestamp::ZERO), Duration::ZERO);
        clock.set_pace(Pace::Times(100_000.0));
        assert!(clock.until(to) <= Duration::from_secs(10));
        clock.set_pace(Pace::Times(f64::MIN_POSITIVE));
        assert_eq!(clock.until(to + Timestamp::new(1_000_000, 0)), Duration::MAX);
    }
}
