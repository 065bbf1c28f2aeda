//! The engines: each moves the segments of one job that were planned for it, as they are planned.
//!
//! ```text
//!   flight                      the engines of one request, started, fed and waited for together
//!     cached direct mapped p2p write_cached write_direct
//!       enqueue                 from slots to the device and back
//!         copies                places become commands
//!           job                 what the engines of one request share
//!       feed                    segments on their way from the planner
//!         batch                 cut into reads that fit a slot
//!       streams  queues         kept between requests
//!   fill                        one piece on the calling thread, without any of this
//! ```
//!
//! When [`Engine::finish`] returns, its copies have landed, or the job failed and nothing of it is
//! in flight any more: no read into a slot, no copy out of one. Failures go to [`Job::fail`],
//! which stops the other engines; the job is the only place where an error is kept.

pub(crate) mod batch;
pub(crate) mod cached;
mod copies;
pub(crate) mod direct;
mod enqueue;
pub(crate) mod feed;
pub(crate) mod fill;
pub(crate) mod flight;
pub(crate) mod job;
pub(crate) mod mapped;
pub(crate) mod p2p;
mod queues;
pub(crate) mod streams;
pub(crate) mod write_cached;
pub(crate) mod write_direct;

pub(crate) use queues::Queues;

use feed::Feed;
use std::fmt::Debug;

/// An engine at work on one job.
pub(crate) trait Engine: Send + Sync + Debug {
    /// Where its segments come from.
    fn feed(&self) -> &Feed;

    /// How many threads should work on `bytes`, the calling one included.
    fn threads(&self, bytes: u64) -> usize;

    /// One thread's share of the work, until the feed is closed and empty or the job stops.
    fn work(&self);

    /// Waits until everything has landed. Called once, after all calls of `work` have returned.
    fn finish(&self);
}
