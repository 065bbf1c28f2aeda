//! Several processes: a daemon, and clients that share a cache.

mod attacks;
mod crashes;
mod day;
mod kept;
mod points;
mod reclaim;
mod shared;
mod support;
mod versions;
