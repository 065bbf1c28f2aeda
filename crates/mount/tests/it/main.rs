//! The mount, by what programs see of it.

mod daemon;
mod mirror;
mod shared;
mod support;
mod whole;
