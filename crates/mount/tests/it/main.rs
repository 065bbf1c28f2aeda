//! The mount, by what programs see of it.

mod daemon;
mod kills;
mod mirror;
mod shared;
mod support;
mod whole;
