//! What the mount asks of whoever has files on devices, and what is asked of the mount.
//!
//! ```text
//!        programs of the CPU          kernels of devices
//!               |                            |
//!             mount  <--- Recall --->  Replicas: the daemon, or a cache of this process
//! ```
//!
//! Whoever brings a file to a device, or lets others see what a device has changed, has the mount recall the range of the
//! file first ([`Recall::recall`]): before an acquire, so that stores of the CPU into mappings are seen by the device, and
//! after a release, so that mappings of the CPU see what the device has done. The mount never calls [`Replicas`] while
//! it recalls, but the kernel returns dirty pages meanwhile, which are written by [`SharedFile::write`]: whoever recalls
//! holds nothing that such a write waits for.

pub use bifolio_daemon::client::Once;

use crate::state::{State, Word};
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Arc, Weak};

/// A file of the source: its device and inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileKey {
    /// The number of its file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

impl FileKey {
    pub(crate) fn of(state: &libc::stat) -> Self {
        Self { device: state.st_dev, inode: state.st_ino }
    }
}

/// Whoever has files on devices.
pub trait Replicas: Send + Sync + 'static {
    /// Called before anything else, with what a server leaves to its successor; and what it has left is there.
    fn succeed(&self, _: Ledger) {}

    /// The file system is mounted: from now on ranges may be recalled.
    fn mounted(&self, mount: Weak<dyn Recall>);

    /// Whether a device has a file, or may have it while it is open: asked whenever one is opened.
    fn is_wanted(&self, file: FileKey) -> bool;

    /// Opens a file, of which a descriptor is lent that can be read.
    ///
    /// # Errors
    /// The error number is what the program is told.
    fn open(&self, file: BorrowedFd<'_>) -> io::Result<Box<dyn SharedFile>>;
}

/// A file whose content devices share.
pub trait SharedFile: Send + Sync + 'static {
    /// Reads from the nearest copy; less than was asked for at the end of the file.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes: devices see it from their next acquire on.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// The same for a server that may be killed, and whose successor writes the same again: whoever can tell which parts of it
    /// were done leaves those out, as a device may have released something on top of them meanwhile.
    fn write_once(&self, offset: u64, bytes: &[u8], _: &dyn Once) -> io::Result<()> {
        self.write(offset, bytes)
    }

    /// Everything that devices have released is in the file, and durable.
    fn sync(&self) -> io::Result<()>;

    /// The file was changed by itself: cut, made longer, or holes were made.
    fn changed(&self) -> io::Result<()>;
}

/// What a server leaves to its successor of a connection by which it writes, in memory that outlives it.
#[derive(Debug, Clone)]
pub struct Ledger(Arc<State>);

impl Ledger {
    pub(crate) fn new(state: &Arc<State>) -> Self {
        Self(Arc::clone(state))
    }

    /// Notes the connection, after it was opened; or that there is none, before it is closed.
    pub(crate) fn note_connection(&self, descriptor: Option<RawFd>) {
        self.0.set(Word::Connection, descriptor.map_or(0, |descriptor| descriptor as u64 + 1));
    }

    /// The connection of a predecessor, if anything was asked by it of which it is not known whether it was done.
    pub(crate) fn connection(&self) -> Option<RawFd> {
        let noted = self.0.get(Word::Connection).checked_sub(1)?;
        self.0.turns.has_unsettled().then_some(noted as RawFd)
    }

    /// What was asked by it under a number was done.
    pub(crate) fn done(&self, number: u64) {
        self.0.turns.settle(number);
    }

    /// Nothing else was.
    pub(crate) fn settled(&self) {
        self.0.turns.settled();
        self.note_connection(None);
    }
}

/// The mount, for whoever has files on devices.
pub trait Recall: Send + Sync {
    /// Has the kernel return what programs have stored into their mappings of a range of a file, and forget what it was
    /// given of the range. Called with no locks that a write to the file waits for, and never by a thread that serves a
    /// request of the mount.
    ///
    /// # Errors
    /// The file cannot be shared, or the kernel does not answer any more.
    fn recall(&self, file: FileKey, range: Range<u64>) -> io::Result<()>;

    /// Whether programs read and write a file by itself, as they opened it before a device wanted it: they see what is in
    /// the file, and what they do there is found by looking.
    fn is_open_past(&self, file: FileKey) -> bool;
}

/// No device has any file.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoReplicas;

impl Replicas for NoReplicas {
    fn mounted(&self, _: Weak<dyn Recall>) {}

    fn is_wanted(&self, _: FileKey) -> bool {
        false
    }

    fn open(&self, _: BorrowedFd<'_>) -> io::Result<Box<dyn SharedFile>> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }
}
