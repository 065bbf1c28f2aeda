//! Several processes: a daemon, and clients that share a cache.

mod attacks;
mod crashes;
mod shared;
mod support;
