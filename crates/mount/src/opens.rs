//! How a file is open: fixed by the kernel for as long as anybody has it open.
//!
//! ```text
//!   past      reads, writes and mappings are the source's own, without this process (`FOPEN_PASSTHROUGH`)
//!   served    by this process, with the kernel's page cache between
//!   shared    by this process, past the kernel's page cache but for mappings: a device has, or may get, parts of it
//! ```
//!
//! The kernel refuses any other way for a file that is open past this process, and mixes the other two. A file that is open
//! past this process when a device first wants it is read and written there by CPU programs until the last of them closes
//! it; the cache finds out by looking at it what they did, as it does without a mount, which is right and only slower. A
//! file that is served becomes shared at once.

use crate::given::Shared;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// How one opening reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Past,
    Served,
    Shared,
}

/// What the kernel knows a file of the source by that it passes.
pub(crate) struct Backing {
    pub(crate) number: u32,
    /// Has the kernel forget it when it is dropped.
    _held: Box<dyn Any + Send + Sync>,
}

impl Backing {
    pub(crate) fn new(number: u32, held: impl Any + Send + Sync) -> Self {
        Self { number, _held: Box::new(held) }
    }
}

impl fmt::Debug for Backing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Backing").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Who has a file open, and how.
#[derive(Debug, Default)]
pub(crate) struct Opens {
    pub(crate) past: usize,
    /// Served, or shared.
    pub(crate) served: usize,
    /// What the kernel knows the source's file by, the same for all.
    pub(crate) backing: Option<Arc<Backing>>,
    /// The file as devices share it, from the first opening that is to be on.
    pub(crate) shared: Option<Arc<Shared>>,
}

impl Opens {
    pub(crate) fn is_open(&self) -> bool {
        self.past + self.served > 0
    }

    /// Which way a further opening takes.
    pub(crate) fn way(&self, is_wanted: bool, can_pass: bool) -> Way {
        if self.past > 0 {
            Way::Past
        } else if is_wanted || self.shared.is_some() {
            Way::Shared
        } else if can_pass && self.served == 0 {
            Way::Past
        } else {
            Way::Served
        }
    }

    /// One is closed: what goes with the last.
    pub(crate) fn closed(&mut self, was_past: bool) -> (Option<Arc<Backing>>, Option<Arc<Shared>>) {
        if was_past {
            self.past -= 1;
        } else {
            self.served -= 1;
        }
        let backing = if self.past == 0 { self.backing.take() } else { None };
        let shared = if self.served == 0 { self.shared.take() } else { None };
        (backing, shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_open_past_the_server_stays_so_and_no_other_becomes_so() {
        let mut opens = Opens::default();
        assert_eq!(opens.way(false, true), Way::Past);
        assert_eq!(opens.way(false, false), Way::Served);
        assert_eq!(opens.way(true, true), Way::Shared);
        opens.past = 1;
        assert_eq!(opens.way(true, true), Way::Past);
        opens.closed(true);
        assert_eq!(opens.way(true, true), Way::Shared);
        opens.served = 1;
        assert_eq!(opens.way(false, true), Way::Served);
        assert_eq!(opens.way(true, true), Way::Shared);
    }
}
