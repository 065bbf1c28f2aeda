//! Frames of a device with the numbers that regions have for them, and the one that scratch memory is.

use crate::budget::Long;
use crate::state::keeper::Keeping;
use crate::state::replicas::FrameNumber;
use bifolio_device::{Access, AddressRange, Device, DevicePtr, DeviceSlice, FRAME_BYTES, Frame, Result};
use std::sync::Arc;

/// Scratch memory for what comes in, in a frame: where that is kept, what was begun with it can be ended by another
/// process.
#[derive(Debug)]
pub(crate) struct Incoming {
    range: AddressRange,
    pub(crate) frame: FrameNumber,
    keeping: Arc<Keeping>,
    /// Somebody needs it until what was begun with it has ended.
    is_found: bool,
}

impl Incoming {
    /// Of `bytes` bytes at least.
    pub(crate) fn new(device: &Device, keeping: &Arc<Keeping>, bytes: u64) -> Result<Self> {
        Self::of(device, NumberedFrame::new(device, keeping, bytes.next_multiple_of(FRAME_BYTES))?)
    }

    /// One that another process has left. It stays until what was begun with it has ended.
    pub(crate) fn find(device: &Device, keeping: &Arc<Keeping>, number: FrameNumber) -> Result<Option<Self>> {
        let found = NumberedFrame::find(device, keeping, number)?;
        let incoming = found.map(|frame| Self::of(device, frame)).transpose()?;
        Ok(incoming.map(|mut incoming| {
            incoming.is_found = true;
            incoming
        }))
    }

    fn of(device: &Device, frame: NumberedFrame) -> Result<Self> {
        let range = device.reserve(frame.frame.len())?;
        range.map(0, &frame.frame, Access::ReadWrite)?;
        let keeping = Arc::clone(&frame.keeping);
        Ok(Self { range, frame: frame.into_number(), keeping, is_found: false })
    }

    /// All of it.
    pub(crate) fn slice(&self) -> DeviceSlice<'_> {
        // SAFETY: a frame is mapped there as long as this is there.
        unsafe { self.range.slice() }
    }

    /// The first address.
    pub(crate) fn ptr(&self) -> DevicePtr {
        self.slice().ptr()
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.range.len()
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.is_found {
            self.keeping.forget(self.frame);
        }
    }
}

/// A frame and its number, which is given back with it.
#[derive(Debug)]
pub(crate) struct NumberedFrame {
    pub(crate) frame: Frame,
    number: FrameNumber,
    keeping: Arc<Keeping>,
    /// Whoever has mapped the frame has the number.
    is_elsewhere: bool,
}

impl NumberedFrame {
    /// A new one.
    pub(crate) fn new(device: &Device, keeping: &Arc<Keeping>, len: u64) -> Result<Self> {
        let frame = device.create_frame_of(len)?;
        let number = keeping.keep(len, || frame.export())?;
        Ok(Self::of(frame, number, keeping))
    }

    /// One that another process has left, if somebody has kept it: it is not given back with this.
    pub(crate) fn find(device: &Device, keeping: &Arc<Keeping>, number: FrameNumber) -> Result<Option<Self>> {
        let Some((len, descriptor)) = keeping.find(number) else { return Ok(None) };
        let frame = device.import_frame_of(descriptor, len)?;
        let mut found = Self::of(frame, number, keeping);
        found.is_elsewhere = true;
        Ok(Some(found))
    }

    /// One that is there.
    pub(crate) fn of(frame: Frame, number: FrameNumber, keeping: &Arc<Keeping>) -> Self {
        Self { frame, number, keeping: Arc::clone(keeping), is_elsewhere: false }
    }

    /// Its number.
    pub(crate) fn number(&self) -> FrameNumber {
        self.number
    }

    /// Its number, for whoever has mapped it: it is not given back with this.
    pub(crate) fn into_number(mut self) -> FrameNumber {
        self.is_elsewhere = true;
        self.number
    }
}

impl Drop for NumberedFrame {
    fn drop(&mut self) {
        if !self.is_elsewhere {
            self.keeping.forget(self.number);
        }
    }
}

impl Long for NumberedFrame {
    fn bytes(&self) -> u64 {
        self.frame.len()
    }
}
