//! Where the data of a request lives: memory that belongs to the request until it is over.

use bifolio_device::{Buffer, PinnedBuffer};

/// The memory at one end of a request.
#[derive(Debug)]
pub enum Memory {
    /// Host memory.
    Host(HostMemory),
    /// Memory of the executor's device, at a 16-byte boundary.
    Device(Buffer),
}

/// Host memory that a request owns.
#[derive(Debug)]
pub enum HostMemory {
    /// Ordinary memory: copied through pinned slots on its way to a device.
    Heap(Vec<u8>),
    /// Pinned memory: the device copies from and to it without a detour.
    Pinned(PinnedBuffer),
    /// The first bytes of pinned memory: a buffer that is not full, or never was.
    PinnedPart(PinnedBuffer, usize),
    /// Ordinary memory that the caller vouches for.
    Foreign(Foreign),
}

/// A range of memory that somebody else owns.
#[derive(Debug, Clone, Copy)]
pub struct Foreign {
    at: *mut u8,
    len: usize,
}

// SAFETY: a range is an address and a length; whoever made it vouches for the memory.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl HostMemory {
    /// Memory of the caller's.
    ///
    /// # Safety
    /// `at..at + len` is valid and used by nobody else until every request with it is over; as a source that
    /// is no destination as well it need not be writable.
    pub unsafe fn foreign(at: *mut u8, len: usize) -> Self {
        Self::Foreign(Foreign { at, len })
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Heap(bytes) => bytes.len() as u64,
            Self::Pinned(buffer) => buffer.bytes().len() as u64,
            Self::PinnedPart(buffer, len) => buffer.bytes().len().min(*len) as u64,
            Self::Foreign(range) => range.len as u64,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of memory that is this request's own; none for the caller's.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Heap(bytes) => Some(bytes),
            Self::Pinned(buffer) => Some(buffer.bytes()),
            Self::PinnedPart(buffer, len) => Some(&buffer.bytes()[..buffer.bytes().len().min(*len)]),
            Self::Foreign(_) => None,
        }
    }
}

impl Memory {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Host(memory) => memory.len(),
            Self::Device(buffer) => buffer.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, where they are in host memory that was the request's own.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Host(memory) => memory.bytes(),
            Self::Device(_) => None,
        }
    }

    /// The vector that the request was made with, if it was one.
    pub fn into_vec(self) -> Option<Vec<u8>> {
        match self {
            Self::Host(HostMemory::Heap(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// The pinned memory that the request was made with, whole, if it was that.
    pub fn into_pinned(self) -> Option<PinnedBuffer> {
        match self {
            Self::Host(HostMemory::Pinned(buffer) | HostMemory::PinnedPart(buffer, _)) => Some(buffer),
            _ => None,
        }
    }

    pub(crate) fn view(&mut self) -> View {
        match self {
            Self::Host(HostMemory::Heap(bytes)) => View::Host { at: Address(bytes.as_mut_ptr()), pinned: false },
            Self::Host(HostMemory::Pinned(buffer) | HostMemory::PinnedPart(buffer, _)) => {
                View::Host { at: Address(buffer.as_mut_ptr()), pinned: true }
            }
            Self::Host(HostMemory::Foreign(range)) => View::Host { at: Address(range.at), pinned: false },
            Self::Device(buffer) => View::Device { at: buffer.slice().ptr().0 },
        }
    }
}

impl From<Vec<u8>> for Memory {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Host(HostMemory::Heap(bytes))
    }
}

impl From<PinnedBuffer> for Memory {
    fn from(buffer: PinnedBuffer) -> Self {
        Self::Host(HostMemory::Pinned(buffer))
    }
}

impl From<Buffer> for Memory {
    fn from(buffer: Buffer) -> Self {
        Self::Device(buffer)
    }
}

/// A host address that travels between threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) *mut u8);

// SAFETY: an address; whoever follows it says why it may.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// Where memory begins, without owning it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    Host { at: Address, pinned: bool },
    Device { at: u64 },
}

impl View {
    pub(crate) fn is_device(self) -> bool {
        matches!(self, Self::Device { .. })
    }
}
