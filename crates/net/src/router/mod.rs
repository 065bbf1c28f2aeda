//! Routers: a graph of elements that run.
//!
//! ```text
//!   build      from a graph to a router
//!   run        a router that runs
//!   swap       another one in its place
//!   drive      what a thread does
//!   defaults   handlers that every element has
//!   outside    what other threads ask of a router that runs
//!   cx         what an element reaches
//!   core       what all threads share
//!   thread     what each one has: tasks, timers, file descriptors
//!   wave       packets on their way
//!   wiring     connections, checked and resolved, by `codes` of classes; in the order of `rank`
//!   region     elements that share state: packets pass them by `passage`, one after the other
//!   sharing    who shares state with whom
//!   slot       one call at a time enters an element
//!   task       whether a task is scheduled
//!   detour     elements that show the way to others
//! ```
//!
//! Locks. A thread is in one element while packets are pushed, and in a chain of elements, each upstream of the one before,
//! while packets are pulled; [`Cx::with`] and handlers enter one more. What it emits waits in the thread's own wave. So
//! threads wait for each other at an element for the length of a batch, and never in a circle.

mod build;
mod codes;
mod core;
mod cx;
mod defaults;
mod detour;
mod drive;
mod outside;
mod passage;
mod rank;
mod region;
mod run;
mod sharing;
mod slot;
mod swap;
mod task;
#[cfg(test)]
mod tests;
mod thread;
mod wave;
mod wiring;

pub(crate) use build::pulls;
pub use build::{Options, build};
pub use core::Router;
pub use cx::Cx;
pub use run::{Current, Running};
pub use swap::Rebuild;
