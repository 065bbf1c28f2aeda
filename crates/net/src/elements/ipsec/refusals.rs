//! Packets that are refused, counted by reason.

use crate::handler::Handlers;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a packet is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No IP header is known, or it contradicts the packet.
    Header,
    /// A fragment: only whole packets are encrypted in transport mode, or decrypted.
    Fragment,
    /// It would be longer than an IP packet can be.
    TooLong,
    /// All sequence numbers are used.
    Exhausted,
    /// No ESP of this SPI.
    NotOurs,
    /// The sequence number was seen, or is too old.
    Replayed,
    /// The tag is wrong.
    Forged,
    /// What was encrypted is no packet.
    Malformed,
    /// Meant to be thrown away (RFC 4303, 2.6).
    Dummy,
}

const REASONS: [(Refusal, &str); 9] = [
    (Refusal::Header, "no right IP header"),
    (Refusal::Fragment, "fragment"),
    (Refusal::TooLong, "too long"),
    (Refusal::Exhausted, "no sequence number is left"),
    (Refusal::NotOurs, "no ESP of this SPI"),
    (Refusal::Replayed, "replayed or too old"),
    (Refusal::Forged, "wrong tag"),
    (Refusal::Malformed, "no packet inside"),
    (Refusal::Dummy, "dummy"),
];

/// How many packets went through, and how many did not.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    done: AtomicU64,
    refused: [AtomicU64; REASONS.len()],
}

impl Counts {
    /// Counts what became of a packet.
    pub(crate) fn count(&self, outcome: Result<(), Refusal>) {
        match outcome {
            Ok(()) => self.done.fetch_add(1, Ordering::Relaxed),
            Err(refusal) => self.refused[refusal as usize].fetch_add(1, Ordering::Relaxed),
        };
    }

    fn drops(&self) -> u64 {
        self.refused.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn details(&self) -> String {
        let mut text = String::new();
        for ((_, reason), count) in REASONS.iter().zip(&self.refused) {
            let _ = writeln!(text, "{}\t{reason}", count.load(Ordering::Relaxed));
        }
        text
    }

    /// `count`, `drops` and `drop_details`, of the counts that there are when they are read.
    pub(crate) fn handlers(handlers: &mut Handlers, counts: impl Fn() -> Arc<Self> + Clone + Send + Sync + 'static) {
        let [done, refused, told] = [counts.clone(), counts.clone(), counts];
        handlers.free_read("count", move |_, _| Ok(done().done.load(Ordering::Relaxed).to_string()));
        handlers.free_read("drops", move |_, _| Ok(refused().drops().to_string()));
        handlers.free_read("drop_details", move |_, _| Ok(told().details()));
    }
}

#[cfg(test)]
#[test]
fn each_reason_is_counted_in_its_own_place() {
    assert!(REASONS.iter().enumerate().all(|(at, (refusal, _))| *refusal as usize == at));
}
