//! A header's copy in memory, which the library takes for a file.

use crate::{BlockDevice, Error, Result};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// A file without a name, as long as the volume and empty but for what was copied.
pub(super) struct Memory(File);

impl Memory {
    /// An empty one.
    pub(super) fn new(bytes: u64) -> Result<Self> {
        let about = |error| Error::system("LUKS header", "keeping it in memory", error);
        let file = super::ffi::file_in_memory().map_err(about)?;
        file.set_len(bytes).map_err(about)?;
        Ok(Self(file))
    }

    /// Copies a range of the volume to the same place, and gives it back.
    pub(super) fn copy_from(&self, inner: &dyn BlockDevice, offset: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        inner.read(offset, &mut bytes)?;
        self.0
            .write_all_at(&bytes, offset)
            .map_err(|error| Error::system("LUKS header", "keeping it in memory", error))?;
        Ok(bytes)
    }

    /// The first bytes as they are now.
    pub(super) fn content(&self, len: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        self.0
            .read_exact_at(&mut bytes, 0)
            .map_err(|error| Error::system("LUKS header", "reading it from memory", error))?;
        Ok(bytes)
    }

    /// What the library opens.
    pub(super) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }
}
