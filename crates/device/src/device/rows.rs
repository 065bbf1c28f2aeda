//! Copies of rows: consecutive in host memory, apart on the device.

use super::{DeviceSlice, Stream};
use crate::{Error, ErrorKind, Result};

/// Rows of equal length: one behind the other in host memory, `pitch` bytes from one start to the
/// next on the device. What chunks of one member of a striped set are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Bytes of a row.
    pub bytes: u64,
    /// From the start of one row to the start of the next on the device, at least `bytes`.
    pub pitch: u64,
    /// How many there are.
    pub count: u64,
}

impl Rows {
    /// Bytes on the device from the start of the first row to the end of the last.
    pub fn span(self) -> u64 {
        match self.count {
            0 => 0,
            more => (more - 1) * self.pitch + self.bytes,
        }
    }

    /// Calls `copy` for each row, with its place in host memory and on the device; the first error.
    pub(crate) fn one_by_one(self, mut copy: impl FnMut(usize, u64) -> Result<()>) -> Result<()> {
        (0..self.count).try_for_each(|row| copy((row * self.bytes) as usize, row * self.pitch))
    }

    fn check(self, device: DeviceSlice<'_>) -> Result<()> {
        if self.pitch < self.bytes || self.span() != device.len {
            let Self { bytes, pitch, count } = self;
            let detail = format!(
                "{count} rows of {bytes} bytes, {pitch} bytes apart, are not {} bytes of device memory",
                device.len
            );
            return Err(Error::new(ErrorKind::BadArgument, detail));
        }
        Ok(())
    }
}

impl Stream {
    /// Enqueues a copy of rows from host memory; what lies between them on the device stays as it is.
    /// On CUDA all rows are one command of the copy engine.
    ///
    /// # Safety
    /// `src` has `rows.bytes * rows.count` bytes; it stays valid and unwritten, and `dst` valid, until
    /// the work completes.
    pub unsafe fn copy_rows_to_device(&self, dst: DeviceSlice<'_>, src: *const u8, rows: Rows) -> Result<()> {
        self.name(rows.check(dst))?;
        if dst.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise; the rows are those of the slice.
        self.name(unsafe { self.raw.copy_rows_to_device(dst.ptr, src, rows) })
    }

    /// Enqueues a copy of rows to host memory.
    ///
    /// # Safety
    /// `dst` has `rows.bytes * rows.count` bytes; it stays valid and untouched, and `src` valid, until
    /// the work completes.
    pub unsafe fn copy_rows_to_host(&self, dst: *mut u8, src: DeviceSlice<'_>, rows: Rows) -> Result<()> {
        self.name(rows.check(src))?;
        if src.is_empty() {
            return Ok(());
        }
        // SAFETY: as above.
        self.name(unsafe { self.raw.copy_rows_to_host(dst, src.ptr, rows) })
    }
}
