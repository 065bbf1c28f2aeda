//! The paging cache as swap space of the system: on, off, and what it does meanwhile.
//!
//! ```text
//!   on       backing, keeper, disk, mkswap, swapon; and everything undone where a step fails
//!   off      swapoff, and everything undone; the same for what a crash has left
//!   rescue   the disk of one whose processes were killed, served while it is switched off
//!   status   what a running one does
//!   record   what is known of one, in a folder of its own while it runs
//!   system   the system's side: /proc/swaps, memory, mkswap, swapon, swapoff
//! ```
//!
//! Everything that is on has a folder below one place, with the served file, the record, and what its processes had to say.
//! The record is written before each step that it tells of, so that whatever ends in between, `off` finds what to undo.

mod off;
mod on;
mod record;
mod rescue;
mod status;
pub mod system;

pub use off::{OffOptions, off};
pub use on::{OnOptions, on, serve, work_options};
pub use record::{Instance, Place, Record};
pub use status::{Latency, Status, status};
