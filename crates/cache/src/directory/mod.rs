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
//!                  / |        /
//!              aside |       /                   versions that readers keep
//!                    |      /
//!                 compare  look                  what others have changed; how long the file is
//!                    |      |
//!                  flush    |                    devices -> file, and only what differs
//!                    |      |
//!                   wait ---+                    locked pages, and waiting for a disk
//!                    |
//!                  record                        what is being done, for whoever finds it after the end of the process
//!                    |
//!                   Directory                    versions: decisions, without a byte
//!                                                copies:   bytes, without a decision (`copies/`)
//! ```
//!
//! Before all of that comes `recover`, where another process has ended that had the file open: it does with the same means
//! what was begun and not ended.
//!
//! Each module is a layer: it calls those below it, which its imports name, and none beside it. The operations are
//! functions over one [`Directory`], under the file's lock, which they give up while they wait for a disk: what they work
//! on they have locked by its range before ([`Locked`], `wait`). A device's scratch memory is never taken while another
//! device's is held. Whoever locks a file runs them by `loss`, which gives up a device that turns out to be lost, by
//! `flush`, and runs the operation again; what everybody is to be told of that is in `failures`.
//!
//! Two things are kept apart. [`Versions`] is all that must be known to decide, in numbers alone, which lie in a region that
//! may outlive the process. [`Copies`] is all that touches memory and files, and says nothing of when; of its state only
//! which frame has which content is kept, and where in the file that is.

pub(crate) mod acquire;
mod aside;
mod asides;
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
mod record;
pub(crate) mod recover;
pub(crate) mod release;
pub(crate) mod room;
pub(crate) mod versions;
mod wait;

use crate::copies::Copies;
use crate::copies::home::Home;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Memory;
use crate::monitor::{self, Guarded};
use crate::options::CacheOptions;
use crate::page::Device;
use crate::state::keeper::{FileId, Keeper};
use crate::state::region::{Identity, Region};
use asides::Asides;
use failures::Failures;
use read_ahead::ReadAhead;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use versions::{Operation, Versions};

#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) versions: Versions,
    copies: Copies,
    /// What readers see in the place of its frames.
    pub(crate) asides: Asides,
    options: CacheOptions,
    /// What is gone for good.
    pub(crate) failures: Failures,
    read_ahead: ReadAhead,
    /// Who keeps what is known of the file, and as which.
    keeper: Option<(Arc<dyn Keeper>, FileId)>,
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
        let region = Region::private(options.page_bytes, devices);
        let region = region.map_err(|error| no_memory(home.path(), &error))?;
        let mut directory = Self::over(home, region, options)?;
        directory.versions.resize(directory.copies.size()?, 0);
        Ok(directory)
    }

    /// The same, for somebody to keep.
    pub(crate) fn kept(
        home: Home,
        devices: usize,
        options: CacheOptions,
        keeper: &Arc<dyn Keeper>,
        id: FileId,
    ) -> Result<Self> {
        let failed = |path: &Path, error: &io::Error| {
            let detail = format!("what is known of the file cannot be kept for another process: {error}");
            Error::new(ErrorKind::OutOfMemory, path, detail)
        };
        let path = home.path().to_owned();
        let region =
            Region::shared(options.page_bytes, devices, identity(&home, id)).map_err(|error| failed(&path, &error))?;
        let descriptor = region.descriptor().transpose().map_err(|error| failed(&path, &error))?;
        let mut directory = Self::over(home, region, options)?;
        directory.versions.resize(directory.copies.size()?, 0);
        if let Some(descriptor) = descriptor {
            keeper.keep_region(id, descriptor).map_err(|error| failed(&path, &error))?;
        }
        directory.keeper = Some((Arc::clone(keeper), id));
        Ok(directory)
    }

    /// Of what a region says.
    fn over(home: Home, region: Region, options: CacheOptions) -> Result<Self> {
        let copies = Copies::new(home, region.devices(), options.page_bytes);
        let versions = Versions::new(region).map_err(|error| no_memory(copies.path(), &error))?;
        let (failures, read_ahead) = (Failures::default(), ReadAhead::default());
        let asides = Asides::default();
        Ok(Self { versions, copies, asides, options, failures, read_ahead, keeper: None })
    }

    /// Leaves everything as it is, for whoever finds it.
    pub(crate) fn abandon(&mut self) {
        self.copies.abandon();
        self.asides.abandon();
        self.keeper = None;
    }

    pub(crate) fn path(&self) -> &Path {
        self.copies.path()
    }

    /// Tells a holder of the file what is gone for good.
    pub(crate) fn tell(&self, told: &AtomicU64) -> Result<()> {
        self.failures.tell(self.path(), told)
    }

    /// Another number whenever frames of a device are others; 0 where there are none.
    pub(crate) fn edition(&self, device: Device) -> u64 {
        self.copies.get(device).map_or(0, crate::copies::replica::Replica::edition)
    }

    /// The memory of a device on which something is mapped.
    pub(crate) fn memory_of(&self, device: Device) -> Result<Arc<Memory>> {
        self.copies.memory(device)
    }

    /// The pages that a frame of a device holds, as far as there are any.
    fn pages_of_frame(&self, device: Device, frame: usize) -> Result<std::ops::Range<u64>> {
        let pages = self.copies.replica(device)?.pages_of(frame);
        let end = pages.end.min(self.versions.len());
        Ok(pages.start.min(end)..end)
    }
}

/// Which file it is, also if it is there no more and another one has its number.
fn identity(home: &Home, id: FileId) -> Identity {
    let born = home.file.buffered().metadata().and_then(|metadata| metadata.created()).ok();
    let born = born.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    (id.0, id.1, born.map_or(0, |since| since.as_nanos() as u64))
}

fn no_memory(path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::OutOfMemory, path, format!("no memory to keep account of the file: {error}"))
}
