//! Parameters that are known late: what a request's pointers point to when its stream is there.

use crate::abi::{CU_FILE_STREAM_FIXED_BUF_OFFSET, CU_FILE_STREAM_FIXED_FILE_OFFSET, CU_FILE_STREAM_FIXED_FILE_SIZE};
use crate::buffer::Memory;
use crate::handle::{Opened, Registered};
use crate::range::{Direction, MemoryRange, in_offsets, offset_of};
use crate::status::{Failure, Outcome};
use std::ffi::c_uint;
use std::sync::Arc;

/// Where the parameters of a request are, and where its result goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pointers {
    pub(super) size: *const usize,
    pub(super) offset: *const i64,
    pub(super) buffer_offset: *const i64,
    pub(super) done: *mut isize,
}

// SAFETY: the program keeps what they point to until the stream is past the request.
unsafe impl Send for Pointers {}
// SAFETY: as above.
unsafe impl Sync for Pointers {}

impl Pointers {
    pub(super) fn are_there(&self) -> bool {
        !(self.size.is_null() || self.offset.is_null() || self.buffer_offset.is_null() || self.done.is_null())
    }
}

/// Parameters that were final when the request was submitted.
#[derive(Debug, Clone, Copy, Default)]
struct Fixed {
    size: Option<usize>,
    offset: Option<i64>,
    buffer_offset: Option<i64>,
}

/// A request whose parameters are known when its stream is there.
#[derive(Debug)]
pub(super) struct Late {
    pub(super) file: Arc<Registered>,
    /// What the file was opened as when the request was submitted.
    pub(super) opened: Arc<Opened>,
    pub(super) direction: Direction,
    pub(super) memory: Memory,
    pub(super) pointers: Pointers,
    fixed: Fixed,
    /// Bytes at most.
    pub(super) most: usize,
}

impl Late {
    /// # Safety
    /// The pointers may be read.
    pub(super) unsafe fn new(
        file: Arc<Registered>,
        direction: Direction,
        memory: Memory,
        pointers: Pointers,
        flags: c_uint,
    ) -> Outcome<Self> {
        // SAFETY: the caller's promise.
        let (size, offset, buffer_offset) = unsafe { (*pointers.size, *pointers.offset, *pointers.buffer_offset) };
        let is_fixed = |flag| flags & flag != 0;
        let fixed = Fixed {
            size: is_fixed(CU_FILE_STREAM_FIXED_FILE_SIZE).then_some(size),
            offset: is_fixed(CU_FILE_STREAM_FIXED_FILE_OFFSET).then_some(offset),
            buffer_offset: is_fixed(CU_FILE_STREAM_FIXED_BUF_OFFSET).then_some(buffer_offset),
        };
        // What is final can be refused at once; the rest has its turn when the stream is there.
        fixed.offset.map(offset_of).transpose()?;
        memory.range(fixed.buffer_offset.unwrap_or(0), size)?;
        let opened = file.opened();
        Ok(Self { file, opened, direction, memory, pointers, fixed, most: size })
    }

    /// The parameters, now.
    pub(super) fn resolve(&self) -> Outcome<Resolved> {
        // SAFETY: the program keeps them until the stream is past the request, which waits for this.
        let (size, offset, buffer_offset) = unsafe {
            (
                self.fixed.size.unwrap_or_else(|| self.pointers.size.read_volatile()),
                self.fixed.offset.unwrap_or_else(|| self.pointers.offset.read_volatile()),
                self.fixed.buffer_offset.unwrap_or_else(|| self.pointers.buffer_offset.read_volatile()),
            )
        };
        if size > self.most {
            let text = format!("{size} bytes are more than the {} with which the request was submitted", self.most);
            return Err(Failure::argument(text));
        }
        let (offset, at) = (offset_of(offset)?, buffer_offset as u64);
        let memory = self.memory.range(buffer_offset, size)?;
        let bytes = match memory {
            MemoryRange::Device(..) => in_offsets(self.direction, offset, size as u64)? as usize,
            // System calls answer for it.
            MemoryRange::Host(..) => size,
        };
        Ok(Resolved { offset, at, memory, bytes })
    }
}

/// Known parameters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resolved {
    pub(super) offset: u64,
    /// Offset in memory.
    pub(super) at: u64,
    pub(super) memory: MemoryRange,
    pub(super) bytes: usize,
}
