//! What requests end with: their memory, and what was found or why they failed.

use crate::cost::Path;
use crate::memory::Memory;
use crate::{Error, ErrorKind, Result};
use bifolio_device::Cancel;
use bifolio_device::pending::{self, Lost, Promise};

/// A request that is over: its memory comes back in any case.
#[derive(Debug)]
pub struct Outcome {
    /// The memory that was read, and written by a request in place. None where the request never reached
    /// the executor's threads, as in a forked child.
    pub source: Option<Memory>,
    /// The memory that was written, if that was another.
    pub destination: Option<Memory>,
    /// What the steps found, in their order: digests, tags, flags, verdicts; or why the request failed.
    /// The destination of a failed request holds anything but the plaintext of a wrong message.
    pub result: Result<Answers>,
}

/// What a request found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answers {
    /// The results of each step, as its service lays them out.
    pub results: Vec<Vec<u8>>,
    /// Who computed most of it.
    pub path: Path,
    /// It was the device's, which failed or could not take it, and the CPU computed it in its place.
    pub is_taken_over: bool,
}

/// A request under way. It goes on when this is dropped. When it is cancelled, parts of it that have not begun are left
/// out, and it ends with [`ErrorKind::Cancelled`] unless all had.
pub type Pending = bifolio_device::Pending<Outcome>;

/// A promise and its handle.
pub(crate) fn promise(cancel: &Cancel) -> (Promise<Outcome>, Pending) {
    pending::promise(cancel, Outcome::lost)
}

impl Outcome {
    /// That of a request which nobody carries out.
    pub(crate) fn lost(why: Lost) -> Self {
        let error = match why {
            Lost::Forked => {
                let detail = "this process was forked from the one that made the request";
                Error::new(ErrorKind::Forked, detail)
            }
            Lost::Broken => {
                let detail = "the request ended without a result, which is a bug; please report it";
                Error::new(ErrorKind::Panicked, detail)
            }
        };
        Self { source: None, destination: None, result: Err(error) }
    }
}
