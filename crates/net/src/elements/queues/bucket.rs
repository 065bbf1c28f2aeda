//! How much may pass: token buckets and gaps. Whole numbers of nanoseconds and of billionths of tokens: nothing is rounded.

use crate::Timestamp;

const SECOND: i64 = 1_000_000_000;

/// Tokens that come at a rate, up to a capacity. It begins full, and may be in debt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bucket {
    /// Tokens a second; 0: there are always enough.
    rate: u32,
    capacity: i64,
    /// Billionths of tokens; negative: a debt.
    level: i64,
    at: Option<Timestamp>,
}

impl Default for Bucket {
    fn default() -> Self {
        Self::new(0, 1)
    }
}

impl Bucket {
    pub(crate) fn new(rate: u32, capacity: u32) -> Self {
        let capacity = i64::from(capacity) * SECOND;
        Self { rate, capacity, level: capacity, at: None }
    }

    pub(crate) fn rate(&self) -> u32 {
        self.rate
    }

    /// Another rate and capacity. Tokens stay, as far as they have room; a full bucket that nobody used is full again.
    pub(crate) fn change(&mut self, rate: u32, capacity: u32) {
        let fresh = Self::new(rate, capacity);
        let level = if self.at.is_none() { fresh.level } else { self.level.min(fresh.capacity) };
        *self = Self { level, at: self.at, ..fresh };
    }

    /// So many tokens, now.
    pub(crate) fn set(&mut self, tokens: u32, now: Timestamp) {
        (self.level, self.at) = ((i64::from(tokens) * SECOND).min(self.capacity), Some(now));
    }

    /// Adds what has come since it was last filled. Time that goes back adds nothing.
    pub(crate) fn refill(&mut self, now: Timestamp) {
        let passed = self.at.map_or(0, |at| (now - at).nanos().max(0));
        let came = i128::from(passed) * i128::from(self.rate);
        let level = (i128::from(self.level) + came).min(i128::from(self.capacity));
        (self.level, self.at) = (level as i64, Some(now));
    }

    /// Whether there are so many; 0: whether there is no debt.
    pub(crate) fn contains(&self, tokens: u32) -> bool {
        self.rate == 0 || self.level >= i64::from(tokens) * SECOND
    }

    /// Takes so many, which may be more than there are.
    pub(crate) fn take(&mut self, tokens: u32) {
        if self.rate > 0 {
            self.level = self.level.saturating_sub(i64::from(tokens) * SECOND);
        }
    }

    /// When there will be so many: the first nanosecond at which there are. More than it has room for never come.
    pub(crate) fn ready_at(&self, tokens: u32) -> Timestamp {
        let missing = (i64::from(tokens) * SECOND).min(self.capacity).saturating_sub(self.level).max(0) as u64;
        let wait = if self.rate == 0 { 0 } else { missing.div_ceil(u64::from(self.rate)) };
        self.at.unwrap_or_default() + Timestamp::from_nanos(wait as i64)
    }
}

/// Evenly spaced turns: so many in each second of the clock, the n-th at its n-th part. Turns that nobody used in time may be
/// used later, at once.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gap {
    rate: u32,
    /// How much was used, counted from the beginning of this second.
    used: i64,
    second: Option<i64>,
}

impl Gap {
    pub(super) fn new(rate: u32) -> Self {
        Self { rate, used: 0, second: None }
    }

    pub(super) fn rate(&self) -> u32 {
        self.rate
    }

    /// Begins again: the next turn is the one that is nearest.
    pub(super) fn reset(&mut self) {
        self.second = None;
    }

    /// Whether it is somebody's turn.
    pub(super) fn is_due(&mut self, now: Timestamp) -> bool {
        let (second, part) = (now.secs(), u64::from(now.subsec_nanos()) * u64::from(self.rate));
        let (due, rest) = ((part / SECOND as u64) as i64, part % SECOND as u64);
        match self.second {
            None => {
                self.second = Some(second);
                self.used = due + i64::from(rest > SECOND as u64 / 2);
            }
            Some(last) if second > last => {
                self.second = Some(second);
                self.pass(second - last);
            }
            Some(_) => {}
        }
        self.rate > 0 && due >= self.used
    }

    /// Seconds end: what was used too much in them counts against the next ones, what was not used enough is forgotten.
    fn pass(&mut self, seconds: i64) {
        let rate = i64::from(self.rate);
        if self.used > 0 && rate > 0 {
            self.used -= rate * seconds.min((self.used + rate - 1) / rate);
        }
    }

    /// Uses so many turns.
    pub(super) fn take(&mut self, turns: i64) {
        self.used = self.used.saturating_add(turns);
    }

    /// When it is somebody's turn, where it is nobody's now; nothing: never.
    pub(super) fn ready_at(&self) -> Option<Timestamp> {
        let rate = i64::from(self.rate);
        if rate == 0 {
            return None;
        }
        let (seconds, turn) = (self.used.max(0) / rate, self.used.max(0) % rate);
        let part = (turn as u64 * SECOND as u64).div_ceil(rate as u64) as i64;
        Some(Timestamp::new(self.second? + seconds, part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A bucket that is filled nanosecond by nanosecond.
    struct Slow {
        rate: i128,
        capacity: i128,
        level: i128,
    }

    impl Slow {
        fn tick(&mut self) {
            self.level = (self.level + self.rate).min(self.capacity);
        }
    }

    proptest! {
        #[test]
        fn buckets_are_exact(
            rate in prop_oneof![1..100u32, 900_000_000..1_100_000_000u32, any::<u32>().prop_map(|rate| rate.max(1))],
            capacity in prop_oneof![0..4u32, 0..2000u32],
            begin in 0..3_000_000_000i64,
            events in prop::collection::vec((0..700i64, 0..1500u32), 1..30),
        ) {
            let mut bucket = Bucket::new(rate, capacity);
            let full = i128::from(capacity) * 1_000_000_000;
            let mut slow = Slow { rate: i128::from(rate), capacity: full, level: full };
            let mut now = begin;
            bucket.refill(Timestamp::from_nanos(now));
            for (pause, tokens) in events {
                (0..pause).for_each(|_| slow.tick());
                now += pause;
                bucket.refill(Timestamp::from_nanos(now));
                let has = slow.level >= i128::from(tokens) * 1_000_000_000;
                prop_assert_eq!(bucket.contains(tokens), has);
                let enough = bucket.ready_at(tokens);
                if has {
                    prop_assert_eq!(enough.nanos(), now);
                } else if tokens <= capacity {
                    // Not a nanosecond before.
                    let at = |nanos| {
                        let mut later = bucket;
                        later.refill(Timestamp::from_nanos(nanos));
                        later.contains(tokens)
                    };
                    prop_assert!(at(enough.nanos()) && !at(enough.nanos() - 1));
                }
                if has || slow.level >= 0 {
                    bucket.take(tokens);
                    slow.level -= i128::from(tokens) * 1_000_000_000;
                }
            }
        }

        #[test]
        fn gaps_end_when_they_say(
            rate in prop_oneof![1..10u32, 1..2000u32, any::<u32>().prop_map(|rate| rate.max(1))],
            begin in 0..5_000_000_000i64,
            events in prop::collection::vec((0..2_500_000_000i64, 1..3000i64), 1..20),
        ) {
            let mut gap = Gap::new(rate);
            let mut now = begin;
            for (pause, turns) in events {
                now += pause;
                if gap.is_due(Timestamp::from_nanos(now)) {
                    gap.take(turns);
                    continue;
                }
                let ready = gap.ready_at().unwrap().nanos();
                prop_assert!(ready > now);
                let at = |nanos| Gap::is_due(&mut gap.clone(), Timestamp::from_nanos(nanos));
                prop_assert!(at(ready) && !at(ready - 1), "{} {:?}", ready, gap);
                now = ready;
            }
        }

        /// Whoever asks in every millisecond gets as many turns in a second as there are.
        #[test]
        fn each_second_has_its_turns(rate in 1..900u32, begin in 0..1_000_000i64) {
            let mut gap = Gap::new(rate);
            let mut turns = vec![0; 4];
            for milli in 0..4000 {
                let now = Timestamp::from_nanos(begin + milli * 1_000_000);
                if gap.is_due(now) {
                    gap.take(1);
                    turns[now.secs() as usize] += 1;
                }
            }
            prop_assert!(turns.iter().all(|count| (i64::from(rate) - i64::from(*count)).abs() <= 1), "{:?}", turns);
            prop_assert!((turns.iter().sum::<i32>() - 4 * rate as i32).abs() <= 1);
        }
    }

    #[test]
    fn without_a_rate_there_is_everything_or_nothing() {
        let mut bucket = Bucket::new(0, 1);
        bucket.refill(Timestamp::from_nanos(5));
        (0..10).for_each(|_| bucket.take(1));
        assert!(bucket.contains(1000));
        assert!(!Gap::new(0).is_due(Timestamp::ZERO));
    }

    #[test]
    fn a_bucket_that_is_changed_keeps_what_it_has() {
        let mut bucket = Bucket::new(10, 5);
        bucket.refill(Timestamp::ZERO);
        bucket.take(3);
        bucket.change(10, 50);
        assert!(bucket.contains(2) && !bucket.contains(3));
        bucket.change(10, 1);
        assert!(bucket.contains(1) && !bucket.contains(2));
        bucket.change(1000, 0);
        assert!(bucket.contains(0) && !bucket.contains(1));
    }
}
