//! The memory of one device that a cache may use: frames under a budget, and scratch memory of its own.

use crate::budget::Budget;
use bifolio_device::{Allocation, Device, DeviceSlice, FRAME_BYTES, Frame, Result, Stream};
use bifolio_io::Router;
use bifolio_kernels::Kernels;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of incoming content that are merged at a time.
pub(crate) const INCOMING_BYTES: u64 = 64 << 20;
/// Bytes of tables and results.
const TABLE_BYTES: u64 = 4 << 20;

/// One device of a cache.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) device: Device,
    pub(crate) router: Arc<Router>,
    pub(crate) kernels: Kernels,
    budget_bytes: u64,
    frames: Budget<Frame>,
    scratch: Mutex<Option<Scratch>>,
}

/// Memory for the time of one operation, and a stream for its work.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) stream: Stream,
    pub(crate) incoming: Allocation,
    pub(crate) table: Allocation,
    pub(crate) results: Allocation,
}

impl Memory {
    pub(crate) fn new(device: &Device, router: Arc<Router>, budget_bytes: u64) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            router,
            kernels: Kernels::load(device)?,
            budget_bytes,
            frames: Budget::new(budget_bytes / FRAME_BYTES),
            scratch: Mutex::default(),
        })
    }

    /// A frame, or none if the budget is used up.
    pub(crate) fn take_frame(&self) -> Result<Option<Frame>> {
        self.frames.take(|| self.device.create_frame())
    }

    /// Takes a frame back.
    pub(crate) fn give_frame(&self, frame: Frame) {
        self.frames.give(frame);
    }

    /// Bytes of frames that hold something.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.frames.used() * FRAME_BYTES
    }

    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Runs `work` with scratch memory, which is made when first needed and kept.
    pub(crate) fn with_scratch<T>(&self, work: impl FnOnce(&Scratch) -> crate::Result<T>) -> crate::Result<T> {
        let mut kept = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let scratch = match kept.take() {
            Some(scratch) => scratch,
            None => Scratch::new(&self.device).map_err(|error| crate::Error::device("the cache".as_ref(), error))?,
        };
        let outcome = work(&scratch);
        // Whatever failed, nothing of it is under way when the memory is used again.
        let _ = scratch.stream.synchronize();
        *kept = Some(scratch);
        outcome
    }
}

impl Scratch {
    fn new(device: &Device) -> Result<Self> {
        Ok(Self {
            stream: device.create_stream()?,
            incoming: device.alloc(INCOMING_BYTES)?,
            table: device.alloc(TABLE_BYTES)?,
            results: device.alloc(TABLE_BYTES)?,
        })
    }

    /// The first bytes of some scratch memory.
    pub(crate) fn first(memory: &Allocation, bytes: u64) -> Result<DeviceSlice<'_>> {
        memory.slice().part(0, bytes)
    }
}
