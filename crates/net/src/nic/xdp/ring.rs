//! Rings between the kernel and a process: one side produces, the other consumes.
//!
//! Both sides count on without end; the difference is what is in the ring. Entries between the consumer's and the
//! producer's count belong to the consumer, all others to the producer.

use super::super::sys::{Mapping, Plain};
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

/// Memory of one ring.
#[derive(Debug)]
struct Shared<T> {
    memory: Mapping,
    at: libc::xdp_ring_offset,
    size: u32,
    entries: PhantomData<T>,
}

impl<T: Plain> Shared<T> {
    fn map(socket: BorrowedFd<'_>, page: u64, at: libc::xdp_ring_offset, size: u32) -> io::Result<Self> {
        assert!(size.is_power_of_two(), "a ring of {size} entries");
        let len = at.desc as usize + size as usize * size_of::<T>();
        Ok(Self { memory: Mapping::of(socket, page, len)?, at, size, entries: PhantomData })
    }

    fn place(&self, count: u32) -> usize {
        self.at.desc as usize + (count & (self.size - 1)) as usize * size_of::<T>()
    }

    fn load(&self, offset: u64) -> u32 {
        self.memory.word(offset as usize).load(Ordering::Acquire)
    }

    fn store(&self, offset: u64, count: u32) {
        self.memory.word(offset as usize).store(count, Ordering::Release);
    }

    /// Whether the kernel waits for a call before it looks at the ring.
    fn needs_call(&self) -> bool {
        self.memory.word(self.at.flags as usize).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// The end of a ring that we fill.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Shared<T>,
    /// Entries that we have written, published or not.
    written: u32,
    /// What the kernel had consumed when we looked last.
    consumed: u32,
}

impl<T: Plain> Producer<T> {
    pub(super) fn map(socket: BorrowedFd<'_>, page: u64, at: libc::xdp_ring_offset, size: u32) -> io::Result<Self> {
        Ok(Self { ring: Shared::map(socket, page, at, size)?, written: 0, consumed: 0 })
    }

    /// Whether there is room for one more entry.
    pub(super) fn has_room(&mut self) -> bool {
        if self.written.wrapping_sub(self.consumed) < self.ring.size {
            return true;
        }
        self.consumed = self.ring.load(self.ring.at.consumer);
        self.written.wrapping_sub(self.consumed) < self.ring.size
    }

    /// Writes an entry; there is room for it. The kernel sees it when it is published.
    pub(super) fn put(&mut self, entry: T) {
        debug_assert!(self.has_room(), "an entry for a full ring");
        // SAFETY: entries behind what is published belong to us, and there is room.
        unsafe { self.ring.memory.put(self.ring.place(self.written), entry) };
        self.written = self.written.wrapping_add(1);
    }

    pub(super) fn publish(&self) {
        self.ring.store(self.ring.at.producer, self.written);
    }

    /// Whether the kernel has consumed everything.
    pub(super) fn is_drained(&mut self) -> bool {
        self.consumed = self.ring.load(self.ring.at.consumer);
        self.consumed == self.written
    }

    pub(super) fn needs_call(&self) -> bool {
        self.ring.needs_call()
    }
}

/// The end of a ring that the kernel fills.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: Shared<T>,
    /// Entries that we have read, released or not.
    read: u32,
    /// What the kernel had produced when we looked last.
    produced: u32,
}

impl<T: Plain> Consumer<T> {
    pub(super) fn map(socket: BorrowedFd<'_>, page: u64, at: libc::xdp_ring_offset, size: u32) -> io::Result<Self> {
        Ok(Self { ring: Shared::map(socket, page, at, size)?, read: 0, produced: 0 })
    }

    /// The next entry. What it is about is ours from now on; the entry itself until it is released.
    pub(super) fn take(&mut self) -> Option<T> {
        if self.read == self.produced {
            self.produced = self.ring.load(self.ring.at.producer);
            if self.read == self.produced {
                return None;
            }
        }
        // SAFETY: entries before the producer's count that are not released belong to us.
        let entry = unsafe { self.ring.memory.get(self.ring.place(self.read)) };
        self.read = self.read.wrapping_add(1);
        Some(entry)
    }

    /// Gives the entries that were taken back to the kernel.
    pub(super) fn release(&self) {
        self.ring.store(self.ring.at.consumer, self.read);
    }
}
