//! What the disk and the link can do by themselves, in the same run: the limits that engines are
//! held against.

use super::session::Session;
use super::usage::gb_per_s;
use crate::error::{Error, Result};
use bifolio_device::{Device, PinnedBuffer};
use bifolio_io::OpenFile;
use bifolio_io::cache_state::evict;
use bifolio_io::storage::{Direction, IoQueue, OsStorage, QueuedIo, Storage};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

/// One copy over the link.
const COPY_BYTES: u64 = 64 << 20;

/// More runs than these find no better one.
const LINK_RUNS_MAX: u32 = 20;

/// Copies of one measurement of the link.
const COPIES: u64 = 16;

/// One read of the disk.
const READ_BYTES: u64 = 1 << 20;

/// Transfers in flight: as many as the direct engine has, so that the limit is one.
pub const DEPTH: usize = 32;

/// Unbuffered reads are aligned to this.
const ALIGNMENT: u64 = 4096;

/// Pinned copies to the device, GB/s, the best of several. Falls back to smaller copies on a
/// device with little memory.
pub fn link(device: &Device, repetitions: u32, session: &Session) -> Result<f64> {
    let bytes = COPY_BYTES.min(device.memory()?.free / 2).max(4096);
    let memory = device.alloc(bytes)?;
    let buffer = device.alloc_pinned(bytes as usize)?;
    let stream = device.create_stream()?;
    let mut best = 0.0_f64;
    // The first one pays for what is set up once.
    for _ in 0..=repetitions.min(LINK_RUNS_MAX) {
        session.check()?;
        let started = Instant::now();
        for _ in 0..COPIES {
            // SAFETY: buffer and memory outlive the synchronisation below.
            unsafe { stream.copy_to_device(memory.slice(), buffer.as_ptr()) }?;
        }
        stream.synchronize()?;
        best = best.max(gb_per_s(bytes * COPIES, started.elapsed().as_secs_f64()));
    }
    Ok(best)
}

/// Unbuffered reads into host memory, GB/s, of the first `bytes` of a file that is cold. None where
/// the file system offers no such reads.
pub fn disk(file: &OpenFile, bytes: u64) -> Result<Option<f64>> {
    let size = file.size()?;
    let bytes = bytes.min(size) / ALIGNMENT * ALIGNMENT;
    let Some(direct) = open_direct(file.path()).filter(|_| bytes > 0) else { return Ok(None) };
    evict(file, 0..size)?;
    let fail = |error| Error::system(file.path().display(), "reading the disk without the page cache", error);
    let started = Instant::now();
    read_all(&direct, bytes).map_err(fail)?;
    Ok(Some(gb_per_s(bytes, started.elapsed().as_secs_f64())))
}

fn open_direct(path: &Path) -> Option<File> {
    File::options().read(true).custom_flags(libc::O_DIRECT).open(path).ok()
}

/// Host memory that is written, in transfers: more than a processor's cache holds, as what an engine
/// writes comes from a device and not from there.
const WRITTEN: usize = 8 * DEPTH;

/// A queue with [`DEPTH`] transfers in flight, and memory for some number of them in turns.
pub struct Transfers {
    // Dropped before the memory: no read outlives it.
    queue: Box<dyn IoQueue>,
    memory: Aligned,
    places: usize,
}

impl Transfers {
    fn new(places: usize) -> std::io::Result<Self> {
        let mut transfers = Self {
            queue: OsStorage.open_queue(DEPTH as u32)?,
            memory: Aligned::new(READ_BYTES as usize * places),
            places,
        };
        for slot in 0..places {
            let start = transfers.place(slot);
            // SAFETY: the slot lies inside the memory, which outlives the queue.
            unsafe { transfers.queue.register_slot(slot, start, READ_BYTES as usize) };
        }
        Ok(transfers)
    }

    /// For writes of `content`, again and again.
    pub fn of_content(content: &PinnedBuffer) -> std::io::Result<Self> {
        let mut transfers = Self::new(WRITTEN)?;
        for part in transfers.memory.bytes_mut().chunks_mut(content.bytes().len()) {
            part.copy_from_slice(&content.bytes()[..part.len()]);
        }
        Ok(transfers)
    }

    fn place(&mut self, slot: usize) -> *mut u8 {
        // SAFETY: the slot lies inside the memory.
        unsafe { self.memory.start.add(slot * READ_BYTES as usize) }
    }

    /// Reads or writes the first `bytes` of a file.
    fn move_all(&mut self, file: &File, direction: Direction, bytes: u64) -> std::io::Result<()> {
        let (mut next, mut in_flight, mut done) = (0, 0, Vec::new());
        // The one that was used longest ago comes next.
        let mut idle: VecDeque<usize> = (0..self.places).collect();
        while next < bytes || in_flight > 0 {
            while next < bytes
                && in_flight < DEPTH
                && let Some(slot) = idle.pop_front()
            {
                let len = READ_BYTES.min(bytes - next);
                let transfer = QueuedIo {
                    direction,
                    fd: file.as_raw_fd(),
                    memory: self.place(slot),
                    len: len as usize,
                    offset: next,
                    slot,
                    token: slot as u64,
                };
                // SAFETY: the file is open and the slot used by nobody else until it is reported.
                unsafe { self.queue.submit(transfer) }?;
                next += len;
                in_flight += 1;
            }
            self.queue.wait(&mut done)?;
            for (slot, outcome) in done.drain(..) {
                outcome?;
                idle.push_back(slot as usize);
                in_flight -= 1;
            }
        }
        Ok(())
    }

    /// Unbuffered writes over the first `bytes` of a file, a multiple of 4096.
    pub fn write_all(&mut self, path: &Path, bytes: u64) -> std::io::Result<()> {
        let file = File::options().write(true).custom_flags(libc::O_DIRECT).open(path)?;
        self.move_all(&file, Direction::Write, bytes)
    }
}

fn read_all(file: &File, bytes: u64) -> std::io::Result<()> {
    Transfers::new(DEPTH)?.move_all(file, Direction::Read, bytes)
}

/// Memory at an address that unbuffered reads accept.
#[derive(Debug)]
pub struct Aligned {
    start: *mut u8,
    layout: Layout,
}

impl Aligned {
    /// Zeroes, so many.
    pub fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, ALIGNMENT as usize).expect("a buffer of some MiB has a layout");
        // SAFETY: the layout has a size.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        Self { start, layout }
    }

    /// All of it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is ours, initialised with zeroes, and borrowed for as long as the slice.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.layout.size()) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and reads into it are over (the queue is dropped first).
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// The higher of two rates, either of which may be missing.
pub fn quicker(one: Option<f64>, two: Option<f64>) -> Option<f64> {
    one.into_iter().chain(two).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_count_ends() {
        let program = std::env::current_exe().unwrap();
        let temporary = tempfile::NamedTempFile::new_in(program.parent().unwrap()).unwrap();
        std::fs::write(temporary.path(), vec![1; 40 << 20]).unwrap();
        let Some(direct) = open_direct(temporary.path()) else {
            return bifolio_testing::skip("the build folder offers no unbuffered reads");
        };
        for bytes in [0, 4096, 1 << 20, (17 << 20) + 8192, 40 << 20] {
            read_all(&direct, bytes).unwrap();
        }
    }
}
