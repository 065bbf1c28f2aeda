//! One file's coherence: its directory, and what happens to its pages in which order. The words are those of
//! `docs/coherence.md`.
//!
//! ```text
//!   cpu  acquire  release  demand  mappings     what programs ask for
//!     \     |       |        |      /
//!      \  bring     |        |     /             up to date, wherever home is
//!       \   |   \   |        |    /
//!        fold   fetch        |   /               devices -> device | file or peer -> device, own changes on top
//!            \    \          |  /
//!             +---- room ----+ /                 frames under the budget: eviction
//!                    |        /
//!                 compare  look                  what others have changed; how long the file is
//!                    |      |
//!                  flush    |                    devices -> file, and only what differs
//!                    |      |
//!                   wait ---+                    locked pages, and waiting for a disk
//!                    |
//!                   Directory                    versions: decisions, without a byte
//!                                                copies:   bytes, without a decision (`copies/`)
//! ```
//!
//! Each module is a layer: it calls those below it, which its imports name, and none beside it. The operations are
//! functions over one [`Directory`], under the file's lock, which they give up while they wait for a disk: what they work
//! on they have locked by its range before ([`Locked`], `wait`). A device's scratch memory is never taken while another
//! device's is held. Whoever locks a file runs them by `loss`, which gives up a device that turns out to be lost, by
//! `flush`, and runs the operation again; what everybody is to be told of that is in `failures`.
//!
//! Two things are kept apart for what is to come. [`Versions`] is all that must be known to decide, in numbers alone:
//! a directory that several processes share keeps that and nothing else. [`Copies`] is all that touches memory and
//! files, and says nothing of when: where a client of another process moves the bytes, another one stands in its place.

pub(crate) mod acquire;
mod bring;
mod compare;
pub(crate) mod cpu;
pub(crate) mod demand;
pub(crate) mod failures;
mod fetch;
pub(crate) mod flush;
mod fold;
pub(crate) mod look;
pub(crate) mod loss;
pub(crate) mod mappings;
mod read_ahead;
pub(crate) mod release;
pub(crate) mod room;
pub(crate) mod versions;
mod wait;

use crate::copies::Copies;
use crate::copies::home::Home;
use crate::error::{Error, ErrorKind, Result};
use crate::monitor::{self, Guarded};
use crate::options::CacheOptions;
use crate::page::Device;
use crate::state::region::Region;
use failures::Failures;
use read_ahead::ReadAhead;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use versions::{Operation, Versions};

#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) versions: Versions,
    copies: Copies,
    options: CacheOptions,
    /// What is gone for good.
    pub(crate) failures: Failures,
    read_ahead: ReadAhead,
}

/// A directory in the hands of one operation.
pub(crate) type Locked<'a> = monitor::Locked<'a, Directory>;

impl Guarded for Directory {
    type Operation = Operation;

    fn exchange(&mut self, operation: &mut Operation) {
        self.versions.exchange(operation);
    }

    fn end(&mut self, operation: Operation) {
        self.versions.end_operation(&operation);
    }
}

impl Directory {
    /// Of a file that nobody has mapped.
    pub(crate) fn new(home: Home, devices: usize, options: CacheOptions) -> Result<Self> {
        let copies = Copies::new(home, devices, options.page_bytes);
        let region = Region::private(options.page_bytes, devices);
        let versions = region.and_then(Versions::new);
        let mut versions = versions.map_err(|error| no_memory(copies.path(), &error))?;
        versions.resize(copies.size()?, 0);
        Ok(Self { versions, copies, options, failures: Failures::default(), read_ahead: ReadAhead::default() })
    }

    pub(crate) fn path(&self) -> &Path {
        self.copies.path()
    }

    /// Tells a holder of the file what is gone for good.
    pub(crate) fn tell(&self, told: &AtomicU64) -> Result<()> {
        self.failures.tell(self.path(), told)
    }

    /// The pages that a frame of a device holds, as far as there are any.
    fn pages_of_frame(&self, device: Device, frame: usize) -> Result<std::ops::Range<u64>> {
        let pages = self.copies.replica(device)?.pages_of(frame);
        let end = pages.end.min(self.versions.len());
        Ok(pages.start.min(end)..end)
    }
}

fn no_memory(path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::OutOfMemory, path, format!("no memory to keep account of the file: {error}"))
}
