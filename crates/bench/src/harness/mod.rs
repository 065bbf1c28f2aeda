//! What all benchmarks are made of.
//!
//! ```text
//!   compare     ways to do the same work, beside each other: one table of rates and ratios
//!   rounds      the same for work of microseconds
//!   turns       the order in which ways run
//!   session     interruption and progress
//!   baseline    what link and disk can do by themselves
//!   cache_state what of a file is cached before a run
//!   router      how the router that is measured is set up
//!   verify      device memory beside the file
//!   report      what was measured, all of it or a part: text, JSON, page
//!   table plots panels page how it is shown
//!   machine usage           where it was measured, and what that took
//! ```

pub mod baseline;
pub mod cache_state;
pub mod compare;
pub mod machine;
pub mod page;
pub mod panels;
pub mod plots;
pub mod report;
pub mod rounds;
pub mod router;
pub mod scratch;
pub mod session;
pub mod table;
pub mod turns;
pub mod usage;
pub mod verify;
