//! Copies of rows: consecutive in host memory, apart on the device.

use crate::{DeviceSlice, Error, ErrorKind, Result};

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

    /// Whether they are all of a range, from its first to its last byte.
    pub(crate) fn check(self, device: DeviceSlice<'_>) -> Result<()> {
        if self.pitch < self.bytes || self.span() != device.len() {
            let Self { bytes, pitch, count } = self;
            let detail = format!(
                "{count} rows of {bytes} bytes with a pitch of {pitch} bytes do not span {} bytes of device memory",
                device.len()
            );
            return Err(Error::new(ErrorKind::BadArgument, detail));
        }
        Ok(())
    }
}
