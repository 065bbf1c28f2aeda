//! How what is served becomes a disk of the system's: swap cannot be on a file that FUSE serves.
//!
//! ```text
//!   choose      which way: what is asked for, or the best that works here, and why
//!   loop_disk   a loop device on the served file (FUSE): on every kernel
//!   ublk/       a disk whose requests the kernel gives to the worker through io_uring
//!   nbd/        a network disk whose other end is the worker
//! ```
//!
//! One trait, and a file or folder for each way. A way says itself what it lacks here. The loop device stands on a file
//! that a keeper mounts; the others are a [`DiskServer`], which a worker runs in place of that file's requests.

pub mod choose;
mod loop_disk;
mod nbd;
mod ublk;

pub use choose::{Choice, choose};

use crate::cache::PagingCache;
use bifolio_block::Result;
use std::fmt;
use std::path::{Path, PathBuf};

/// A way.
pub trait Attachment: fmt::Debug + Sync {
    /// Its name, as users say it.
    fn name(&self) -> &'static str;

    /// What this machine lacks for it.
    fn why_not(&self) -> Option<String>;

    /// What serves the disk in a worker; none where a served file is needed.
    fn server(&self) -> Option<&'static dyn DiskServer>;

    /// Makes a disk of a served file, with direct I/O and sectors of 4 KiB. Unless it `stays`, the disk goes by itself when
    /// its last user closes it, the [`Disk`] included, so that whatever ends in between, none stays behind. A disk that a
    /// worker serves is there already, stays until it is taken apart, and is only opened.
    ///
    /// # Errors
    /// The system's.
    fn attach(&self, served: &Served, stays: bool) -> Result<Disk>;

    /// Takes the disk apart that stands on this file, or is this owner's; nothing to do is no error. While somebody uses it,
    /// a loop device stays until they end, and another disk is left as it is.
    ///
    /// # Errors
    /// The system's; `InUse` for a disk that stays, as somebody uses it.
    fn detach(&self, disk: &Path, served: &Served) -> Result<()>;
}

/// What a disk is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// The mounted file; by its name, a disk without one is told from another owner's.
    pub file: PathBuf,
    /// The disk that was chosen before it was there, for ways with a server.
    pub disk: Option<PathBuf>,
}

/// A disk whose requests the kernel gives to a worker, with no file in between.
///
/// The kernel keeps the disk while no worker is there, and gives what nobody answered to the next one. So it needs no
/// descriptor that outlives workers, only its name.
pub trait DiskServer: fmt::Debug + Sync {
    /// The device node of a disk that nobody has, to be written down before it is made.
    ///
    /// # Errors
    /// `NoSpace` if there is none, and the system's.
    fn free_disk(&self) -> Result<PathBuf>;

    /// Whether this owner's disk is there and nobody serves it, so that its requests wait for as long as that is so. Somebody
    /// may be about to.
    fn is_orphan(&self, disk: &Path, owner: &Path) -> bool;

    /// Makes the disk, or goes on where a predecessor was killed, calls `ready` when it can be used, and serves until it is
    /// taken apart. That it was taken apart before is an end like that.
    ///
    /// # Errors
    /// The system's, and those of `ready`. Failures of the cache are answers.
    fn serve(&self, seat: &Seat<'_>, ready: &(dyn Fn() -> Result<()> + Sync)) -> Result<()>;
}

/// What a server serves, and as what.
#[derive(Debug)]
pub struct Seat<'a> {
    /// The disk's device node.
    pub disk: &'a Path,
    /// What tells it from another owner's.
    pub owner: &'a Path,
    /// What answers.
    pub cache: &'a PagingCache,
    /// Threads that answer.
    pub threads: usize,
    /// Nobody has served it before, so that it is to be made.
    pub is_first: bool,
}

/// A disk, held.
#[derive(Debug)]
pub struct Disk {
    /// Its device node.
    pub path: PathBuf,
    /// Keeps it from going by itself.
    _open: std::fs::File,
}
