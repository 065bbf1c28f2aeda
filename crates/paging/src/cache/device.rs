//! The device's memory over time: taking it, growing, giving back, failures, and trying again.
//!
//! All of it happens in [`PagingCache::tick`], one thread at a time; requests only note that something failed. The wanted
//! size is a word of the directory, so that whoever has the directory can change it, and a successor follows it, too.
//!
//! Any call of the device may never end. So whoever makes one here holds nothing that requests wait for: the store is locked
//! shared, or not at all. Writing back has a thread of its own.

use super::{Mode, PagingCache};
use crate::directory::Head;
use crate::giving::{Giving, Look};
use crate::pages::BLOCK_BYTES;
use crate::stats::Counter;
use crate::store::Store;
use bifolio_block::{ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long after memory was refused it is asked for again.
const GROW_AGAIN_MS: u64 = 1000;
/// How often free memory is looked at.
const LOOK_MS: u64 = 30;
/// Pauses while somebody is in the device.
pub(super) const DEVICE_PAUSE: Duration = Duration::from_millis(1);
/// Pauses while a slot that is to leave is in use.
const LEAVING_PAUSE: Duration = Duration::from_micros(50);
/// How long that may take for one chunk; the next tick tries again.
const LEAVING_MAX: Duration = Duration::from_millis(500);

/// What [`PagingCache::tick`] remembers.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    grow_not_before_ms: u64,
    /// A refusal of memory was told.
    has_told_refusal: bool,
    giving: Giving,
    looked_ms: u64,
}

impl PagingCache {
    /// Takes the device and adopts what a predecessor left on it. What cannot be had is retried later.
    pub(super) fn start(&self) {
        let mut upkeep = self.upkeep();
        if self.open_store().is_ok() {
            self.follow_target(&mut upkeep);
        }
    }

    /// Leaves the device, and what a predecessor left on it, to the first [`PagingCache::tick`].
    pub(super) fn start_later(&self) {
        self.health().failed(self.now_ms());
        self.retry_now();
    }

    /// Waits until the device was opened and memory taken, or could not be; false if neither has come about when `most` is
    /// over, which is told.
    pub fn await_device(&self, most: Duration) -> bool {
        let begun = Instant::now();
        let word = self.directory.head(Head::Device);
        while word.load(Ordering::Acquire) == 0 || matches!(self.upkeep.try_lock(), Err(TryLockError::WouldBlock)) {
            if begun.elapsed() >= most {
                self.complain(format!(
                    "the device has not been opened for {} s; {} serves from the backing until it is",
                    most.as_secs(),
                    self.name
                ));
                return false;
            }
            std::thread::sleep(DEVICE_PAUSE);
        }
        true
    }

    /// How many bytes of device memory are wanted, rounded down to chunks. [`PagingCache::tick`] follows.
    pub fn set_target(&self, bytes: u64) {
        let chunks = (bytes / self.directory.chunk_bytes()).min(self.directory.shape().chunks.into());
        self.directory.head(Head::TargetChunks).store(chunks, Ordering::Release);
    }

    /// Bytes of device memory at present.
    pub fn memory_bytes(&self) -> u64 {
        u64::from(self.table().present()) * BLOCK_BYTES
    }

    /// Changes the size at once, and returns when it is so.
    ///
    /// # Errors
    /// The backing's, where dirty pages cannot be written back. Less memory than was asked for is no error.
    pub fn resize(&self, bytes: u64) -> Result<()> {
        self.set_target(bytes);
        let mut upkeep = self.upkeep();
        upkeep.grow_not_before_ms = 0;
        self.shrink(true)?;
        self.grow(&mut upkeep);
        Ok(())
    }

    /// Has the next [`PagingCache::tick`] try a device that is left alone, as after a change that may have mended it.
    pub fn retry_now(&self) {
        self.health().due_now();
    }

    /// Does what is due: drops what is lost, tries the device again, follows the wanted size, writes back.
    pub fn tick(&self) {
        self.look_after_device();
        self.write_back_when_due();
    }

    pub(super) fn look_after_device(&self) {
        let mut upkeep = self.upkeep();
        let now = self.now_ms();
        // Whoever is in a copy that does not end has the store, and a lane.
        if self.leave_hanging(now) {
            return;
        }
        if self.is_lost.swap(false, Ordering::AcqRel) {
            self.drop_store();
        }
        if self.health().is_due(now) {
            self.try_again();
        }
        self.look_at_others(&mut upkeep, now);
        self.follow_target(&mut upkeep);
    }

    /// Notes a failure of the device, which is told once; the backing serves until it is tried again.
    pub(super) fn device_failed(&self, error: &bifolio_device::Error) {
        self.note_failure(error, error.kind() == bifolio_device::ErrorKind::Lost);
    }

    fn note_failure(&self, error: &bifolio_device::Error, is_lost: bool) {
        let is_news = self.health().failed(self.now_ms());
        self.leave_alone();
        self.directory.stats().add(Counter::DeviceErrors, 1);
        if is_lost {
            self.is_lost.store(true, Ordering::Release);
        }
        if is_news {
            let after = if is_lost { ", and what it held is dropped" } else { "" };
            self.complain(format!(
                "{error}; {} serves from the backing{after}, and the device is tried again later",
                self.name
            ));
        }
    }

    pub(super) fn leave_alone(&self) {
        self.serves.store(false, Ordering::Release);
        self.directory.head(Head::Device).store(2, Ordering::Relaxed);
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn upkeep(&self) -> MutexGuard<'_, Upkeep> {
        self.upkeep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn health(&self) -> MutexGuard<'_, crate::health::Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the device, maps the chunks of a predecessor, and forgets what is not among them.
    fn open_store(&self) -> Result<(), ()> {
        let chunks = std::mem::take(&mut *self.waiting());
        let shape = self.directory.shape();
        let opened =
            (self.open_device)().and_then(|device| Store::new(&device, self.directory.chunk_bytes(), shape.chunks));
        let store = match opened {
            Ok(store) => store,
            Err(error) => {
                // The memory is kept by somebody, and what only it has is there when the device can be opened.
                self.note_failure(&error, false);
                *self.waiting() = chunks;
                return Err(());
            }
        };
        let mut is_mapped = vec![false; shape.chunks as usize];
        for (chunk, memory) in &chunks {
            if !self.directory.is_present(*chunk) {
                // It was killed before this was used, or after this was given back.
                self.release_kept(*chunk);
                continue;
            }
            let own = memory.try_clone().map_err(|error| {
                bifolio_device::Error::new(
                    bifolio_device::ErrorKind::System,
                    format!("keeping its descriptor: {error}"),
                )
            });
            match own.and_then(|own| store.adopt(*chunk, own)) {
                Ok(()) => is_mapped[*chunk as usize] = true,
                Err(error) => {
                    self.device_failed(&error);
                    // What only this memory has is not given up for a failure that may pass.
                    if self.has_dirty(*chunk) && may_pass(&error) {
                        *self.waiting() = chunks;
                        return Err(());
                    }
                }
            }
        }
        for chunk in 0..shape.chunks {
            if self.directory.is_present(chunk) && !is_mapped[chunk as usize] {
                self.forget_chunk(chunk);
                self.release_kept(chunk);
            }
        }
        *self.store.write().unwrap_or_else(PoisonError::into_inner) = Some(store);
        if self.health().is_serving() {
            self.use_it();
        }
        Ok(())
    }

    /// Whether a chunk has pages that the backing lacks.
    fn has_dirty(&self, chunk: u32) -> bool {
        let length = self.directory.shape().chunk_slots;
        let mut slots = chunk * length..(chunk + 1) * length;
        slots.any(|at| !self.directory.slot(at).dirty.is_empty())
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<(u32, OwnedFd)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A chunk that nobody has any more.
    fn forget_chunk(&self, chunk: u32) {
        let slots = self.directory.shape().chunk_slots;
        let lost = self.directory.stats().get(Counter::LostPages);
        self.table().forget(&self.directory, chunk * slots..(chunk + 1) * slots);
        self.directory.set_present(chunk, false);
        self.owe(lost);
    }

    /// After a loss: nobody uses the store when this has its lock, so what it held can be forgotten.
    fn drop_store(&self) {
        // A copy that has begun to hang is not waited for: whoever comes after this would wait, too.
        let mut store = match self.store.try_write() {
            Ok(store) => store,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return self.is_lost.store(true, Ordering::Release),
        };
        // Giving memory back may take for ever on a device that is lost.
        let dropped = store.take();
        let lost = self.directory.stats().get(Counter::LostPages);
        self.opening.store(self.table().forget_all(&self.directory), Ordering::Release);
        self.waiting().clear();
        for chunk in 0..self.directory.shape().chunks {
            if self.directory.is_present(chunk) {
                self.directory.set_present(chunk, false);
                self.release_kept(chunk);
            }
        }
        drop(store);
        self.owe(lost);
        drop(dropped);
    }

    /// The next flush fails if pages were lost since `before` were.
    fn owe(&self, before: u64) {
        let lost = self.directory.stats().get(Counter::LostPages) - before;
        if lost > 0 {
            self.owes_error.store(true, Ordering::Release);
            self.complain(format!("{}: {lost} pages that were not written back went with the device", self.name));
        }
    }

    fn release_kept(&self, chunk: u32) {
        if let Some(keeper) = &self.keeper {
            keeper.release(chunk);
        }
    }

    fn try_again(&self) {
        let renewed = self.store().as_ref().map(Store::renew);
        match renewed {
            Some(Ok(())) => {
                self.health().recovered(self.now_ms());
                self.use_it();
            }
            Some(Err(error)) => self.device_failed(&error),
            None => {
                self.health().recovered(self.now_ms());
                // It goes on being left alone where it still cannot be opened.
                let _ = self.open_store();
            }
        }
    }

    fn use_it(&self) {
        self.serves.store(true, Ordering::Release);
        self.directory.head(Head::Device).store(1, Ordering::Release);
    }

    /// A device that is left alone gives no new memory, but what others want of it is given back: what is clean, and before
    /// a sleep all.
    fn follow_target(&self, upkeep: &mut Upkeep) {
        let is_suspended = self.directory.head(Head::Suspended).load(Ordering::Acquire) != 0;
        if let Err(error) = self.shrink(self.is_serving() || is_suspended) {
            self.tell_write_back(&error);
        }
        if self.is_serving() {
            self.grow(upkeep);
        }
    }

    /// The wanted size, less what others want at present; nothing while the system is about to sleep.
    fn target(&self) -> u32 {
        let word = |word| self.directory.head(word).load(Ordering::Acquire);
        if word(Head::Suspended) != 0 {
            return 0;
        }
        word(Head::TargetChunks).saturating_sub(word(Head::WithheldChunks)) as u32
    }

    /// Looks how much memory others have left, and withholds what they want.
    fn look_at_others(&self, upkeep: &mut Upkeep, now: u64) {
        let left_bytes = self.directory.head(Head::FreeBytes).load(Ordering::Acquire);
        let withheld = self.directory.head(Head::WithheldChunks);
        if left_bytes == 0 {
            return withheld.store(0, Ordering::Release);
        }
        if now < upkeep.looked_ms + LOOK_MS {
            return;
        }
        upkeep.looked_ms = now;
        let free = self.watched(|| self.store().as_ref().map(Store::free_bytes));
        match free {
            Some(Err(error)) if self.is_serving() => self.device_failed(&error),
            // One that fails is left alone as it is.
            None | Some(Err(_)) => {}
            Some(Ok(free_bytes)) => {
                let (chunk_bytes, present) = (self.directory.chunk_bytes(), self.present());
                let allowed = upkeep.giving.allowed(now, Look { free_bytes, left_bytes, chunk_bytes, present });
                let target = self.directory.head(Head::TargetChunks).load(Ordering::Acquire);
                withheld.store(target.saturating_sub(allowed.into()), Ordering::Release);
            }
        }
    }

    fn present(&self) -> u32 {
        (0..self.directory.shape().chunks).filter(|chunk| self.directory.is_present(*chunk)).count() as u32
    }

    fn grow(&self, upkeep: &mut Upkeep) {
        if self.present() >= self.target() || self.now_ms() < upkeep.grow_not_before_ms {
            return;
        }
        if self.present() == 0 {
            self.believe();
        }
        let missing = (0..self.directory.shape().chunks).filter(|chunk| !self.directory.is_present(*chunk));
        for chunk in missing.take((self.target() - self.present()) as usize) {
            if let Err(sentence) = self.add_chunk(chunk) {
                upkeep.grow_not_before_ms = self.now_ms() + GROW_AGAIN_MS;
                if !std::mem::replace(&mut upkeep.has_told_refusal, true) {
                    self.complain(format!("{sentence}; {} goes on with the memory that it has", self.name));
                }
                return;
            }
        }
        upkeep.has_told_refusal = false;
    }

    fn add_chunk(&self, chunk: u32) -> Result<(), String> {
        let store = self.store();
        let Some(store) = &*store else { return Ok(()) };
        let memory = self.watched(|| store.add(chunk)).map_err(|error| error.to_string())?;
        // It is used only when a successor could find it.
        if let (Some(keeper), Some(memory)) = (&self.keeper, memory) {
            keeper.keep(chunk, memory).map_err(|error| {
                let _ = self.watched(|| store.remove(chunk));
                error.to_string()
            })?;
        }
        self.directory.set_present(chunk, true);
        let slots = self.directory.shape().chunk_slots;
        self.table().add_slots(&self.directory, chunk * slots..(chunk + 1) * slots);
        Ok(())
    }

    /// Gives back the chunks beyond the wanted size: clean ones at once, dirty ones when they are written back. One that
    /// cannot be written back stays, and another one goes; so does one that would have to be, unless `writes_back`.
    fn shrink(&self, writes_back: bool) -> Result<()> {
        let mut done = Ok(());
        for chunk in (0..self.directory.shape().chunks).rev() {
            if self.present() <= self.target() {
                return Ok(());
            }
            if self.directory.is_present(chunk) && (writes_back || !self.has_dirty(chunk)) {
                done = done.and(self.remove_chunk(chunk));
            }
        }
        done
    }

    fn remove_chunk(&self, chunk: u32) -> Result<()> {
        let length = self.directory.shape().chunk_slots;
        let slots = chunk * length..(chunk + 1) * length;
        let begun = Instant::now();
        self.table().begin_leaving(&slots);
        while !self.table().empty_leaving(&self.directory) {
            for at in slots.clone() {
                let slot = self.directory.slot(at);
                if let (false, Some(block)) = (slot.dirty.is_empty(), slot.block)
                    && let Err(error) = self.write_back(block)
                {
                    self.table().stay(&self.directory);
                    return Err(error);
                }
            }
            if begun.elapsed() > LEAVING_MAX {
                self.table().stay(&self.directory);
                let detail = "some of the memory that is to be given back is in use by requests that do not end";
                return Err(self.failed(ErrorKind::BadState, detail));
            }
            // A request uses one of them, and ends.
            std::thread::sleep(LEAVING_PAUSE);
        }
        self.directory.set_present(chunk, false);
        if let Some(store) = &*self.store() {
            self.watched(|| store.remove(chunk)).map_err(|error| self.device_failed(&error)).unwrap_or_default();
        }
        self.waiting().retain(|(waiting, _)| *waiting != chunk);
        self.release_kept(chunk);
        Ok(())
    }

    pub(super) fn write_back_when_due(&self) {
        if self.mode != Mode::WriteBack {
            return;
        }
        let (dirty, present) = {
            let table = self.table();
            (table.dirty_pages(), u64::from(table.present()) * 16)
        };
        let now = self.now_ms();
        let is_old =
            now.saturating_sub(self.written_back_ms.load(Ordering::Relaxed)) >= self.flush_interval.as_millis() as u64;
        let is_much = dirty * 200 > present * u64::from(self.dirty_percent_max);
        if dirty == 0 || !(is_old || is_much) {
            return;
        }
        self.written_back_ms.store(now, Ordering::Relaxed);
        match self.write_back_all() {
            Ok(()) => self.has_told_write_back.store(false, Ordering::Relaxed),
            Err(error) => self.tell_write_back(&error),
        }
    }

    fn tell_write_back(&self, error: &bifolio_block::Error) {
        if error.kind() != ErrorKind::BadState && !self.has_told_write_back.swap(true, Ordering::Relaxed) {
            self.complain(format!("{error}; it is tried again"));
        }
    }
}

/// Whether memory that could not be mapped now may be mapped later.
fn may_pass(error: &bifolio_device::Error) -> bool {
    !matches!(error.kind(), bifolio_device::ErrorKind::Lost | bifolio_device::ErrorKind::Unsupported)
}
