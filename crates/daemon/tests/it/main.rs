//! Several processes: a daemon, and clients that share a cache.

mod crashes;
mod shared;
mod support;
