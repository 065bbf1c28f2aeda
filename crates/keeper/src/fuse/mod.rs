//! One file, served through FUSE by whoever holds its descriptors at the moment.
//!
//! ```text
//!   mount    a mount whose root is a file, made and greeted by the keeper
//!   channel  a descriptor of it: requests in, answers out, and the call to send unanswered requests again
//!   wire     requests as the kernel writes them (pure)
//! ```
//!
//! The library that the other mounts of this project use greets the kernel when a session begins, and a session cannot be
//! handed on: here the greeting happened once, long before the worker was started that serves now. And a file for swap has
//! no folders, no names and no attributes that change, so few requests are left. Nothing allocates on their way.

mod channel;
mod mount;
mod wire;

pub use channel::{Channel, RequestBuffer};
pub use mount::{FileMount, abort, unmount};
pub use wire::{Operation, REQUEST_BYTES_MAX, Request};
