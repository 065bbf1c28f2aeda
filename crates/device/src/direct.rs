//! Storage transfers straight into device memory.

use crate::backend::{RawDirectFile, RawDirectStorage};
use crate::{Device, DeviceSlice, Result};
use std::os::fd::OwnedFd;

impl Device {
    /// The driver for storage transfers straight into this device's memory.
    pub fn direct_storage(&self) -> Result<DirectStorage> {
        let raw = self.backend().direct_storage().map_err(|error| self.name(error))?;
        Ok(DirectStorage { device: self.clone(), raw })
    }
}

/// A driver for storage transfers straight into device memory.
#[derive(Debug)]
pub struct DirectStorage {
    device: Device,
    raw: Box<dyn RawDirectStorage>,
}

impl DirectStorage {
    /// Prepares a file, opened with `O_DIRECT`; an error where it has no direct path.
    pub fn attach(&self, file: OwnedFd) -> Result<DirectFile> {
        self.raw
            .attach(file)
            .map(|raw| DirectFile { raw, _device: self.device.clone() })
            .map_err(|error| self.device.name(error))
    }
}

/// A file that can be read straight into device memory.
#[derive(Debug)]
pub struct DirectFile {
    raw: Box<dyn RawDirectFile>,
    _device: Device,
}

impl DirectFile {
    /// Offsets and lengths are multiples of this many bytes.
    pub fn alignment(&self) -> u64 {
        self.raw.alignment()
    }

    /// Reads `place.len()` bytes at `offset`; may be short, 0 at the end of the file. Returns when
    /// the bytes are in place.
    ///
    /// # Safety
    /// `place` is valid memory of this device until the call returns.
    pub unsafe fn read(&self, offset: u64, place: DeviceSlice<'_>) -> std::io::Result<u64> {
        // SAFETY: the caller's promise.
        unsafe { self.raw.read(offset, place.ptr(), place.len()) }
    }
}
