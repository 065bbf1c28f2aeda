//! The cache of a process: one for everybody in it, so that C, Python and unmodified programs share pages. Its mappings
//! are also known by address.
//!
//! ```text
//!   shared       what faces call: the cache of the process, whichever library has it
//!     calls      the table of C functions by which one library calls another
//!       address  mappings by address, of this copy of the crate
//!         own    the cache of this copy
//! ```

pub mod address;
mod calls;
mod own;
pub mod shared;

pub use own::{BUDGET_VARIABLE, MODE_VARIABLE};
pub use shared::cache;
