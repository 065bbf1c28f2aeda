//! Statistics of running processes, for `bifolio cache stat`.
//!
//! Each process that has a cache keeps a small file in a folder of its user's (`folder.rs`), mapped, so that whoever
//! works with the cache writes what it holds by plain stores: there is no thread for it, and no descriptor that a
//! program could close. Gathering the numbers looks at every page, so it may take two per cent of the time; a reader
//! learns how many operations there were since. The file is removed when the process ends by itself, and by the
//! next reader where it did not.
//!
//! A reader may come at any moment: what it reads has a checksum (`format.rs`) and is read again until that is right.

mod folder;
pub(crate) mod format;
mod identity;
mod reader;
mod writer;

pub use crate::stats::ProcessStats;
pub use reader::list;
pub(crate) use writer::Published;

#[cfg(test)]
mod tests;
