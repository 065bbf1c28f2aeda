//! Open files: what users hold, and the plain files behind them.

mod plain;

pub use plain::PlainFile;
pub(crate) use plain::{Access, Stamp};

use crate::ranges::{Mode, Ranges, Ticket};
use crate::{Advice, Result};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// A file opened for reading: a regular file, or a block device. Clones share it.
#[derive(Debug, Clone)]
pub struct OpenFile {
    plain: Arc<PlainFile>,
    /// The order of reads and writes; none where nobody writes through this handle.
    order: Option<Arc<Ranges>>,
}

impl OpenFile {
    /// Opens a regular file or a block device.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self { plain: Arc::new(PlainFile::open(path)?), order: None })
    }

    /// Opens a regular file or a block device for reading and writing; creates a regular file if
    /// that is asked for.
    pub fn open_for_writing(path: impl AsRef<Path>, create: bool) -> Result<Self> {
        let access = if create { Access::Create } else { Access::Write };
        Ok(Self { plain: Arc::new(PlainFile::open_with(path.as_ref(), access)?), order: Some(Arc::default()) })
    }

    /// A place in the order of reads and writes of these bytes, to the end without a length; none
    /// where nobody writes through this handle.
    pub(crate) fn ticket(&self, mode: Mode, offset: u64, length: Option<u64>) -> Option<Ticket> {
        let range = offset..length.map_or(u64::MAX, |length| offset.saturating_add(length));
        self.order.as_ref().map(|order| order.ticket(range, mode))
    }

    /// The plain file.
    pub(crate) fn plain(&self) -> &Arc<PlainFile> {
        &self.plain
    }

    /// The plain files that hold its bytes.
    pub fn members(&self) -> &[Arc<PlainFile>] {
        std::slice::from_ref(&self.plain)
    }

    /// Says how it will be read, as `posix_fadvise(2)` does, to the kernel too.
    pub fn advise(&self, advice: Advice) {
        for member in self.members() {
            member.advise(advice);
        }
    }

    /// The path under which it was opened.
    pub fn path(&self) -> &Path {
        self.plain.path()
    }

    /// The descriptor for reads of its first member through the page cache.
    pub fn buffered(&self) -> &File {
        self.plain.buffered()
    }

    /// Size in bytes at this moment.
    pub fn size(&self) -> Result<u64> {
        self.plain.size()
    }

    /// Whether it lives in the page cache only (tmpfs, ramfs).
    pub fn is_in_memory(&self) -> bool {
        self.members().iter().all(|member| member.is_in_memory())
    }
}
