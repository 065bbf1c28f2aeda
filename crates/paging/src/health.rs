//! Whether the device is to be used: after an error it is left alone for a while, and longer each time.
//!
//! This type decides only; times are milliseconds since any fixed moment.

/// The first pause.
const PAUSE_MS_MIN: u64 = 1000;
/// The longest.
const PAUSE_MS_MAX: u64 = 60_000;

/// What is known of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Health {
    /// When it may be tried again, while it is left alone.
    retry_at_ms: Option<u64>,
    /// Pauses since it last worked for longer than the longest pause.
    failures: u32,
    /// When it was used again.
    since_ms: u64,
}

impl Health {
    /// Whether it is used.
    pub(crate) fn is_serving(self) -> bool {
        self.retry_at_ms.is_none()
    }

    /// Whether it is left alone and the time has come to try again.
    pub(crate) fn is_due(self, now_ms: u64) -> bool {
        self.retry_at_ms.is_some_and(|at| now_ms >= at)
    }

    /// An operation failed. True if that is news: the first failure since it last served.
    pub(crate) fn failed(&mut self, now_ms: u64) -> bool {
        let is_news = self.is_serving();
        if is_news && now_ms.saturating_sub(self.since_ms) > PAUSE_MS_MAX {
            self.failures = 0;
        }
        let pause = (PAUSE_MS_MIN << self.failures.min(16)).min(PAUSE_MS_MAX);
        if is_news || self.is_due(now_ms) {
            self.failures += 1;
            self.retry_at_ms = Some(now_ms + pause);
        }
        is_news
    }

    /// The time to try again has come, if it is left alone.
    pub(crate) fn due_now(&mut self) {
        self.retry_at_ms = self.retry_at_ms.map(|_| 0);
    }

    /// It is used again.
    pub(crate) fn recovered(&mut self, now_ms: u64) {
        self.retry_at_ms = None;
        self.since_ms = now_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_once_and_pauses_grow_to_a_minute() {
        let (mut health, mut now) = (Health::default(), 500_000);
        for pause in [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000] {
            assert!(health.failed(now), "it is news");
            assert!(!health.failed(now + 1) && !health.is_serving(), "others that were under way are not");
            assert!(!health.is_due(now + pause - 1) && health.is_due(now + pause));
            now += pause;
            health.recovered(now);
            assert!(health.is_serving());
        }
        now += 60_001;
        health.failed(now);
        assert!(health.is_due(now + 1000), "what worked for long begins anew");
    }

    #[test]
    fn an_attempt_that_fails_is_no_news_and_pauses_again() {
        let mut health = Health::default();
        assert!(health.failed(10));
        assert!(!health.failed(1010));
        assert!(!health.is_due(3009) && health.is_due(3010));
    }
}
