//! The mounted file system.
//!
//! ```text
//!   mount     a session by `bifolio-block`'s mount helper, and what this file system wants of it
//!   options   how it is mounted
//!   serve     the kernel's requests, taken apart and answered
//!   tree      what they do, by nodes and names
//!   nodes     the inodes that the kernel knows
//!   folders   directories that are kept open
//!   outcome   how requests end
//! ```
//!
//! Requests come on several threads. Locks are taken in this order, and none is held for a request's whole time: the
//! table of nodes, a node, the cache of directories, a file.

mod attr;
mod folders;
mod mount;
mod nodes;
mod options;
mod outcome;
mod serve;
mod tree;

pub use mount::mount;
pub use options::{MountOptions, Warn};
