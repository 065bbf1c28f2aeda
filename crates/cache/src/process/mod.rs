//! The cache of a process: one for everybody in it, so that C, Python and unmodified programs share pages. Its mappings
//! are also known by address.

pub mod address;
mod own;

pub use own::{BUDGET_VARIABLE, MODE_VARIABLE, cache};
