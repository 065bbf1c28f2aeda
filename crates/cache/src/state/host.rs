//! What CPUs do through the cache: read, write and sync.

use super::State;
use crate::fault::{Point, at};
use crate::home::write_all;
use crate::memory::{LANES, PINNED_BYTES, Scratch};
use crate::page::Device;
use crate::replica::{Part, runs};
use crate::{Error, ErrorKind, Result};
use bifolio_device::{DeviceSlice, Event, Stream};
use bifolio_io::storage::{OsStorage, Storage};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// From here on several threads copy from a device, which is quicker than one from the page cache.
const LONG_BYTES: u64 = 16 << 20;

/// How long a copy is waited for awake.
const AWAKE: Duration = Duration::from_micros(100);

/// Less than this is not worth several threads.
const LANE_BYTES_MIN: usize = 4 << 20;

impl State {
    /// Everything that was released of a range reaches the file.
    pub(crate) fn flush_range(&mut self, range: &Range<u64>) -> Result<()> {
        let pages = self.pages_of(range);
        let pending = pages.filter(|page| self.pages[*page as usize].pending().next().is_some()).collect();
        self.flush(&pending)
    }

    /// Makes the file durable. The operating system tells of bytes that it could not write once, and takes them for
    /// written from then on: so each holder is told, who notes in `told` up to which failure he was.
    pub(crate) fn sync(&mut self, told: &AtomicU64) -> Result<()> {
        self.follow_cut()?;
        self.flush_range(&(0..self.size))?;
        let path = self.path().to_owned();
        let synced = at(Point::SyncFlushed).and_then(|()| self.home.file.buffered().sync_data());
        if let Err(error) = synced {
            self.failed = (self.failed.0 + 1, Some(error));
        }
        let (failures, error) = &self.failed;
        let was_told = told.swap(*failures, Ordering::Relaxed);
        match error {
            Some(error) if was_told < *failures => Err(Error::undurable(&path, error)),
            _ => Ok(()),
        }
    }

    /// How often making the file durable has failed.
    pub(crate) fn failures(&self) -> u64 {
        self.failed.0
    }

    /// A CPU's read: what was released is home by then.
    pub(crate) fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.look()?;
        let end = offset.saturating_add(buffer.len() as u64).min(self.size);
        if offset >= end {
            return Ok(0);
        }
        // Also what a device could show without: whoever is told of what is read here may look at the file himself.
        self.flush_range(&(offset..end))?;
        let is_long = end - offset >= LONG_BYTES;
        let mut at = offset;
        while at < end {
            let rest = &mut buffer[(at - offset) as usize..(end - offset) as usize];
            // What is in the page cache comes from there, what it lacks from a device that has it. Long reads are
            // quicker from the device, by several threads.
            let is_quicker = is_long && self.holder(at / self.page_bytes).is_some();
            let mut cached = || OsStorage.read_cached_at(self.home.file.buffered(), rest, at).unwrap_or(0);
            let read = if is_quicker { 0 } else { cached() };
            at = if read > 0 { at + read as u64 } else { self.read_uncached(at, rest)? };
        }
        Ok((end - offset) as usize)
    }

    /// A device whose replica is up to date.
    fn holder(&self, page: u64) -> Option<Device> {
        (0..self.replicas.len()).find(|device| self.is_up_to_date(*device, page))
    }

    /// Bytes that are not in the page cache, as many as come from one place; where they end.
    fn read_uncached(&mut self, at: u64, buffer: &mut [u8]) -> Result<u64> {
        let range = at..at + buffer.len() as u64;
        let holder = self.holder(at / self.page_bytes);
        let mut pages = at / self.page_bytes..range.end.div_ceil(self.page_bytes);
        let other = pages.find(|page| self.holder(*page) != holder);
        let run = at..other.map_or(range.end, |page| page * self.page_bytes);
        let buffer = &mut buffer[..(run.end - at) as usize];
        match holder {
            Some(device) => {
                self.read_from_device(device, at, buffer)?;
                self.counts.served += self.pages_of(&run).count() as u64;
            }
            None => self.read_file(&run, buffer)?,
        }
        Ok(run.end)
    }

    fn read_file(&self, range: &Range<u64>, buffer: &mut [u8]) -> Result<()> {
        let read = self.home.file.buffered().read_exact_at(buffer, range.start);
        read.map_err(|error| {
            let detail = format!("reading {} bytes at {} failed: {error}", buffer.len(), range.start);
            Error::new(ErrorKind::Read, self.path(), detail)
        })
    }

    fn read_from_device(&self, device: Device, at: u64, buffer: &mut [u8]) -> Result<()> {
        let replica = self.existing(device)?;
        let bytes = at..at + buffer.len() as u64;
        // The twin is what was released or fetched; without one nobody writes there.
        for part in [Part::Base, Part::Now] {
            let with_part = |frame: &usize| replica.has(Part::Base, *frame) == (part == Part::Base);
            for run in runs(replica.frames_of(&bytes).filter(with_part).map(|frame| frame as u64)) {
                let run = replica.bytes_of(&run);
                let here = run.start.max(at)..run.end.min(bytes.end);
                let place = (here.start - at) as usize..(here.end - at) as usize;
                let from = replica.slice(part, &here);
                replica.memory.with_scratch(|scratch| {
                    download(scratch, from, &mut buffer[place]).map_err(|error| self.device(error))
                })?;
            }
        }
        Ok(())
    }

    /// A CPU's write, page by page known.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        self.look()?;
        // What devices have released came before this, and must not come home after it.
        self.flush_range(&(offset..end.min(self.size)))?;
        let path = self.path().to_owned();
        let written = self.home.write(|file| write_all(file, offset, bytes));
        written.map_err(|error| {
            Error::new(ErrorKind::Write, &path, format!("writing {} bytes at {offset} failed: {error}", bytes.len()))
        })?;
        if end > self.size {
            self.resize(end)?;
        }
        self.unsettle(None);
        for page in self.pages_of(&(offset..end)) {
            self.pages[page as usize].changed_at_home();
        }
        Ok(())
    }
}

/// Copies from a device to any memory of the host, by several threads where there is much to copy.
fn download(scratch: &Scratch, from: DeviceSlice<'_>, to: &mut [u8]) -> bifolio_device::Result<()> {
    let host = scratch.host()?;
    let mut pinned = host.pinned.lock().unwrap_or_else(PoisonError::into_inner);
    let lanes = (to.len() / LANE_BYTES_MIN).clamp(1, LANES);
    let (strip, slot) = (to.len().div_ceil(lanes), PINNED_BYTES / lanes);
    let slots = pinned.bytes_mut().chunks_mut(slot).zip(&host.streams);
    thread::scope(|scope| {
        let mut running = Vec::with_capacity(lanes);
        for (number, (to, (slot, stream))) in to.chunks_mut(strip).zip(slots).enumerate() {
            let from = from.part((number * strip) as u64, to.len() as u64)?;
            let mut copy = move || download_strip(stream, from, to, slot);
            // The last is this thread's.
            if number + 1 == lanes {
                copy()?;
            } else {
                running.push(scope.spawn(copy));
            }
        }
        let join = |thread: thread::ScopedJoinHandle<'_, bifolio_device::Result<()>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().try_for_each(join)
    })
}

/// One thread's share: one half of its pinned memory is filled while the other is emptied.
fn download_strip(
    stream: &Stream,
    from: DeviceSlice<'_>,
    to: &mut [u8],
    slot: &mut [u8],
) -> bifolio_device::Result<()> {
    let half = slot.len() / 2;
    let (one, two) = slot.split_at_mut(half);
    let (mut filling, mut emptying) = (one, &mut two[..half]);
    let mut copy = || -> bifolio_device::Result<()> {
        let mut filled: Option<(usize, Event)> = None;
        for start in (0..to.len()).step_by(half).map(Some).chain([None]) {
            let next = start.map(|start| -> bifolio_device::Result<(usize, Event)> {
                let part = from.part(start as u64, half.min(to.len() - start) as u64)?;
                // SAFETY: the half has room, and is read only when the event has been waited for.
                unsafe { stream.copy_to_host(filling.as_mut_ptr(), part) }?;
                Ok((start, stream.record()?))
            });
            if let Some((start, event)) = filled.take() {
                arrived(&event)?;
                let end = to.len().min(start + half);
                to[start..end].copy_from_slice(&emptying[..end - start]);
            }
            filled = next.transpose()?;
            std::mem::swap(&mut filling, &mut emptying);
        }
        Ok(())
    };
    let outcome = copy();
    // Whatever failed, nothing writes to the slot when it is used again.
    outcome.and(stream.synchronize())
}

/// Waits for a copy: awake for a moment, as being woken takes longer than a short copy.
fn arrived(event: &Event) -> bifolio_device::Result<()> {
    let started = Instant::now();
    while started.elapsed() < AWAKE {
        if event.query()? {
            return Ok(());
        }
        std::hint::spin_loop();
    }
    event.wait()
}
