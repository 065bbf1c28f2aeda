//! The tests of this crate from outside.

mod cpu;
mod executor;
mod pq;
mod services;
mod support;
mod wycheproof;
