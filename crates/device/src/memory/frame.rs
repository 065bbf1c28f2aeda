//! Physical memory of a device in frames, which are mapped into address ranges and travel between processes.

use crate::backend::RawFrame;
use crate::{Device, Error, ErrorKind, FRAME_BYTES, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl Device {
    /// Creates a frame of physical memory, of [`FRAME_BYTES`].
    pub fn create_frame(&self) -> Result<Frame> {
        self.create_frame_of(FRAME_BYTES)
    }

    /// Creates a frame of `len` bytes, a multiple of [`FRAME_BYTES`]. Creating, mapping and unmapping cost as
    /// much for a long frame as for a short one (H200: 22 ms for a GiB of 2 MiB frames, 1.2 ms of 32 MiB).
    pub fn create_frame_of(&self, len: u64) -> Result<Frame> {
        self.check_length(len)?;
        let raw = self.backend().create_frame(len).map_err(|error| self.name(error))?;
        Ok(Frame { raw: Arc::from(raw), len, device: self.clone() })
    }

    /// Takes over a frame of [`FRAME_BYTES`] that another process exported; `fd` came from [`Frame::export`] on the
    /// same physical device.
    pub fn import_frame(&self, fd: OwnedFd) -> Result<Frame> {
        self.import_frame_of(fd, FRAME_BYTES)
    }

    /// The same for one of `len` bytes, as its exporter says. What has another length is refused, and so is what is no
    /// frame: the exporter need not be trusted.
    pub fn import_frame_of(&self, fd: OwnedFd, len: u64) -> Result<Frame> {
        self.check_length(len)?;
        let raw = self.backend().import_frame(fd, len).map_err(|error| self.name(error))?;
        Ok(Frame { raw: Arc::from(raw), len, device: self.clone() })
    }

    /// Whether new frames are zeroes; else they may have what this process freed before.
    pub fn zeroes_frames(&self) -> bool {
        self.backend().zeroes_frames()
    }

    fn check_length(&self, len: u64) -> Result<()> {
        if len == 0 || !len.is_multiple_of(FRAME_BYTES) {
            let detail = format!("a frame cannot have {len} bytes: its length must be a multiple of {FRAME_BYTES}");
            return Err(Error::new(ErrorKind::BadArgument, detail).on(self.id()));
        }
        Ok(())
    }
}

/// A frame of physical memory.
#[derive(Debug, Clone)]
pub struct Frame {
    raw: Arc<dyn RawFrame>,
    len: u64,
    device: Device,
}

impl Frame {
    /// Length in bytes, a multiple of [`FRAME_BYTES`].
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes; never true.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn raw(&self) -> &dyn RawFrame {
        &*self.raw
    }

    /// A descriptor for another process; it keeps the memory alive by itself.
    pub fn export(&self) -> Result<OwnedFd> {
        self.raw.export().map_err(|error| self.device.name(error))
    }
}
