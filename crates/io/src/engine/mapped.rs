//! DMA straight out of the page cache: windows of the file are mapped read-only and shared,
//! registered with the device once, and kept for later reads.
//!
//! Why windows are kept: registering costs 24 ms/GiB on the H200 machine, more than a read
//! through slots gains, but a kept window is read at the link's full rate for almost no CPU.
//! Registration pins page-cache pages, so kept windows are bounded by a budget.
//!
//! Traps: registrations fail when several run at once and slow copies beside them, so they are
//! serialised; a copy must not span two registrations; after a truncation a small copy, which the
//! driver does with the CPU, can raise SIGBUS, so short pieces go through a slot instead.
//!
//! Pages that a truncation cuts off stay registered with their old content, and a file that is cut
//! and written anew gets new pages: a window is used only while the file's size and times of
//! change are those it was made with. They are looked at again after the copies; if they changed
//! meanwhile, the segments are read once more through the page cache.

use super::Engine;
use super::batch::{Numbered, Piece};
use super::cached::{self, Cached};
use super::copies::{Copies, Copy};
use super::enqueue::{drain, enqueue_copies, tell_copied};
use super::feed::{Feed, Pace};
use super::job::Job;
use super::streams::{LentStream, Streams};
use crate::file::{Attachment, Keeper, Kept, PlainFile, Stamp};
use crate::kind::{EngineKind, MAPPED_BYTES_MIN};
use crate::{Error, ErrorKind};
use bifolio_device::{Device, DeviceId, HostRegistration};
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a window. Registering needs memory that may be locked for long: on a machine whose
/// memory was plugged in while it ran, a window of 1 GiB was refused among others that were not,
/// and the smaller it is, the less of a file is then left to the slots.
pub(crate) const WINDOW_BYTES: u64 = 256 << 20;

/// One copy: large enough for full rate, small enough for progress and cancellation.
const COPY_BYTES: u64 = 64 << 20;

/// Reads of a window, in multiples of its size, after which it is registered: by then the CPU
/// time spent on slots exceeds what the registration costs.
const HEAT_TO_REGISTER: u64 = 2;

/// Page-cache bytes that may be pinned by kept windows, all files of a router together.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    used: AtomicU64,
    /// Held while registering.
    registering: Mutex<()>,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0), registering: Mutex::default() })
    }

    fn take(self: &Arc<Self>, bytes: u64) -> Option<Share> {
        let fits = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Share { budget: Arc::clone(self), bytes })
    }

    /// Whether anything may be kept at all.
    pub(crate) fn is_open(&self) -> bool {
        self.limit > 0
    }
}

/// A part of the budget, returned by drop.
#[derive(Debug)]
struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The windows of one open file.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    state: Mutex<Registrations>,
}

#[derive(Debug, Default)]
struct Registrations {
    /// In file order, disjoint, registered by one device each, all made of the same state of the file.
    kept: Vec<Arc<Window>>,
    /// That state.
    stamp: Option<Stamp>,
    /// Bytes read warm through slots, by window number; few of the many that a sparse file has.
    heat: BTreeMap<u64, u64>,
    /// Windows that could not be registered.
    refused: Vec<u64>,
    /// Windows being registered right now.
    in_progress: Vec<u64>,
}

/// A registered part of a file. Fields drop in order: the registration before the mapping.
#[derive(Debug)]
struct Window {
    range: Range<u64>,
    registration: HostRegistration,
    _mapping: Mapping,
    share: Option<Share>,
}

#[derive(Debug)]
struct Mapping {
    start: *mut libc::c_void,
    len: usize,
}

// SAFETY: the mapping is an address and a length; nothing here touches its memory.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping; the registration that used it is gone (field order).
        unsafe { libc::munmap(self.start, self.len) };
    }
}

impl Attachment for Windows {
    fn release_pages(&self) {
        self.clear();
    }
}

impl Kept for Windows {
    const KEEPER: Keeper = Keeper::Mapped;
}

impl Windows {
    /// Those of a file.
    pub(crate) fn of(file: &PlainFile) -> &Self {
        file.kept()
    }

    fn lock(&self) -> MutexGuard<'_, Registrations> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ranges that can be read through kept windows on `device`, if the file is still as `now`
    /// says; otherwise all windows are dropped.
    pub(crate) fn ready(&self, device: DeviceId, now: &Stamp) -> Vec<Range<u64>> {
        let mut state = self.lock();
        state.drop_stale(now);
        state
            .kept
            .iter()
            .filter(|window| window.registration.serves(device))
            .map(|window| window.range.clone())
            .collect()
    }

    /// Whether all of `range` can be read so.
    pub(crate) fn cover(&self, device: DeviceId, now: &Stamp, range: &Range<u64>) -> bool {
        let mut state = self.lock();
        state.drop_stale(now);
        let windows = state.kept.iter().filter(|window| window.registration.serves(device));
        let reached =
            windows.fold(range.start, |at, window| if window.range.contains(&at) { window.range.end } else { at });
        reached >= range.end
    }

    /// Drops all windows.
    fn clear(&self) {
        *self.lock() = Registrations::default();
    }

    fn covering(&self, device: DeviceId, offset: u64) -> Option<Arc<Window>> {
        let found = |window: &&Arc<Window>| window.registration.serves(device) && window.range.contains(&offset);
        self.lock().kept.iter().find(found).cloned()
    }

    /// Notes a warm read through slots; returns windows that have become worth registering.
    pub(crate) fn heat(&self, read: Range<u64>, size: u64) -> Vec<u64> {
        let mut state = self.lock();
        let mut hot = Vec::new();
        for number in read.start / WINDOW_BYTES..read.end.div_ceil(WINDOW_BYTES) {
            let range = window_range(number, size);
            let bytes = read.end.min(range.end).saturating_sub(read.start.max(range.start));
            let heat = state.heat.entry(number).or_default();
            *heat += bytes;
            let is_hot = *heat >= HEAT_TO_REGISTER * (range.end - range.start);
            let kept = state.kept.iter().any(|window| window.range.start == range.start);
            let busy = state.in_progress.contains(&number) || state.refused.contains(&number);
            if is_hot && !kept && !busy {
                state.in_progress.push(number);
                hot.push(number);
            }
        }
        hot
    }

    /// Registers window `number` and keeps it, if the budget allows. For a background thread.
    pub(crate) fn keep(&self, file: &PlainFile, device: &Device, budget: &Arc<Budget>, number: u64) {
        let young = file.stamp().is_ok_and(|stamp| !file.may_keep_registrations(&stamp));
        let made = file.stamp().and_then(|stamp| {
            let window = register(file, device, budget, &stamp, window_range(number, stamp.size), true)?;
            Ok((window, stamp))
        });
        let mut state = self.lock();
        state.in_progress.retain(|other| *other != number);
        match made {
            Ok((window, stamp)) => state.insert(window, stamp),
            // Too young to be kept; later it may be.
            Err(_) if young => _ = state.heat.remove(&number),
            // Not again while the file is as it is: the budget is used up or the driver refuses.
            Err(_) => state.refused.push(number),
        }
    }
}

impl Registrations {
    fn drop_stale(&mut self, now: &Stamp) {
        if self.stamp.as_ref().is_some_and(|stamp| stamp != now) {
            self.kept.clear();
            self.heat.clear();
            self.refused.clear();
            self.stamp = None;
        }
    }

    fn insert(&mut self, window: Window, made_of: Stamp) {
        self.drop_stale(&made_of);
        self.stamp = Some(made_of);
        let at = self.kept.partition_point(|kept| kept.range.start < window.range.start);
        self.kept.insert(at, Arc::new(window));
    }
}

fn window_range(number: u64, size: u64) -> Range<u64> {
    number * WINDOW_BYTES..((number + 1) * WINDOW_BYTES).min(size)
}

/// Maps and registers a window; `kept` ones need a share of the budget.
fn register(
    file: &PlainFile,
    device: &Device,
    budget: &Arc<Budget>,
    stamp: &Stamp,
    range: Range<u64>,
    kept: bool,
) -> crate::Result<Window> {
    let no_engine =
        |detail: String| Error::new(ErrorKind::NoEngine, file.path(), detail).at(range.start).into_device(device.id());
    let len = range.end.saturating_sub(range.start);
    if len == 0 {
        return Err(no_engine("there is nothing to map".to_owned()));
    }
    let may_keep = file.may_keep_registrations(stamp);
    let share = if may_keep { budget.take(len) } else { None };
    if kept && !may_keep {
        return Err(no_engine("it changed too recently to be registered".to_owned()));
    }
    if kept && share.is_none() {
        return Err(no_engine(format!(
            "the budget for registered page-cache pages ({} bytes) is used up",
            budget.limit
        )));
    }
    let _one_at_a_time = budget.registering.lock().unwrap_or_else(PoisonError::into_inner);
    let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
    let fd = file.buffered().as_raw_fd();
    // SAFETY: a new mapping; only MAP_SHARED with PROT_READ alone is registered without a copy.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), len as usize, libc::PROT_READ, flags, fd, range.start as i64) };
    if start == libc::MAP_FAILED {
        return Err(Error::system(file.path(), "mmap", std::io::Error::last_os_error()).at(range.start));
    }
    let mapping = Mapping { start, len: len as usize };
    // SAFETY: the mapping outlives the registration (field order of `Window`).
    let registration = unsafe { device.register_host(start.cast(), len as usize) };
    let registration = registration.map_err(|error| Error::device(file.path(), error).at(range.start))?;
    Ok(Window { range, registration, _mapping: mapping, share })
}

/// The engine on one job: moves mapped segments, registering what is not yet.
#[derive(Debug)]
pub(crate) struct Mapped {
    job: Arc<Job>,
    feed: Feed,
    stream: LentStream,
    streams: Arc<Streams>,
    budget: Arc<Budget>,
    /// What was enqueued, and the windows that it comes from, held until it has landed.
    done: Mutex<(Vec<Numbered>, Vec<Arc<Window>>)>,
}

impl Mapped {
    pub(crate) fn new(job: &Arc<Job>, streams: &Arc<Streams>, budget: &Arc<Budget>) -> crate::Result<Self> {
        // Drops windows that were made of another state of the file.
        Windows::of(&job.file).ready(job.device.id(), &job.stamp);
        Ok(Self {
            job: Arc::clone(job),
            feed: Feed::new(job.slot_limits(), 1, Pace::Whole),
            stream: streams.take().map_err(|error| job.device_error(error))?,
            streams: Arc::clone(streams),
            budget: Arc::clone(budget),
            done: Mutex::default(),
        })
    }

    /// Reads everything once more through the page cache: the file was changed meanwhile.
    fn read_again(&self, segments: Vec<Numbered>) {
        match Cached::new(&self.job, EngineKind::Mapped, &self.streams, 1) {
            Ok(cached) => {
                for segment in segments {
                    cached.feed().push(segment);
                }
                cached.feed().close();
                cached.work();
                cached.finish();
            }
            Err(error) => self.job.fail(error),
        }
    }
}

impl Engine for Mapped {
    fn feed(&self) -> &Feed {
        &self.feed
    }

    fn threads(&self, _bytes: u64) -> usize {
        1
    }

    fn work(&self) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let (segments, windows) = &mut *done;
        while let Some((number, segment)) = self.feed.wait_segment() {
            if self.job.is_stopped() {
                return;
            }
            self.job.begin_segment(number);
            let range = segment.offset..segment.offset + segment.length;
            segments.push((number, segment));
            if let Err(error) = enqueue_segment(&self.job, &self.stream, &self.budget, number, range, windows) {
                self.job.fail(error);
            }
        }
    }

    fn finish(&self) {
        drain(&self.job, &self.stream);
        self.job.end_engine(EngineKind::Mapped);
        let (segments, windows) = std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner));
        drop(windows);
        if self.job.file.stamp().is_ok_and(|now| now == self.job.stamp) {
            return;
        }
        Windows::of(&self.job.file).clear();
        if self.job.is_stopped() {
            return;
        }
        if self.job.on_arrival.is_some() {
            // What was done on their arrival cannot be undone for some of the bytes.
            return self.job.fail(self.job.error(ErrorKind::Changed, "the file was changed during the read"));
        }
        self.read_again(segments);
    }
}

fn enqueue_segment(
    job: &Job,
    stream: &LentStream,
    budget: &Arc<Budget>,
    number: usize,
    range: Range<u64>,
    used: &mut Vec<Arc<Window>>,
) -> crate::Result<()> {
    let mut at = range.start;
    while at < range.end && !job.is_stopped() {
        let left = range.end - at;
        if left < MAPPED_BYTES_MIN {
            return copy_through_slot(job, stream, number, at, left);
        }
        let in_use = used.last().filter(|window| window.range.contains(&at)).cloned();
        let window = in_use.map_or_else(|| window_at(job, budget, at), Ok)?;
        let mut len = left.min(COPY_BYTES).min(window.range.end - at);
        if window.range.end - at < MAPPED_BYTES_MIN {
            copy_through_slot(job, stream, number, at, len)?;
            at += len;
            continue;
        }
        // No crumbs: what would be left over for a short copy is copied along.
        if left - len < MAPPED_BYTES_MIN && left <= window.range.end - at {
            len = left;
        }
        // Before anything is enqueued: what is enqueued may be in flight however this ends.
        if used.last().is_none_or(|last: &Arc<Window>| !Arc::ptr_eq(last, &window)) {
            used.push(Arc::clone(&window));
        }
        let mut copies = Copies::of(job, 1);
        copies.push_range(job, number, (at, at + len), at - window.range.start)?;
        for copy in copies.list {
            let (offset, bytes) = (window.range.start + copy.from, copy.bytes());
            if bytes < MAPPED_BYTES_MIN {
                copy_through_slot(job, stream, number, offset, bytes)?;
                continue;
            }
            // SAFETY: `used` keeps the window until the stream was drained.
            unsafe { copy.to_device(stream, window.registration.as_ptr()) }
                .and_then(|()| tell_landed(job, &copy, stream))
                .map_err(|error| job.device_error(error).at(offset))?;
            job.end_piece(number, bytes);
        }
        at += len;
    }
    Ok(())
}

/// Tells whoever wants to know of a copy that was enqueued last.
fn tell_landed(job: &Job, copy: &Copy<'_>, stream: &LentStream) -> bifolio_device::Result<()> {
    if job.on_arrival.is_none() {
        return Ok(());
    }
    tell_copied(job, std::slice::from_ref(copy), &stream.record()?)
}

/// The kept window at an offset, or a new one; kept if the budget allows, else for this request.
fn window_at(job: &Job, budget: &Arc<Budget>, offset: u64) -> crate::Result<Arc<Window>> {
    let windows = Windows::of(&job.file);
    if let Some(window) = windows.covering(job.device.id(), offset) {
        return Ok(window);
    }
    let stamp = job.file.stamp()?;
    let range = window_range(offset / WINDOW_BYTES, stamp.size);
    if offset >= range.end {
        return Err(truncated(job, range.end).at(offset));
    }
    let window = register(&job.file, &job.device, budget, &stamp, range, false)?;
    if window.share.is_none() {
        return Ok(Arc::new(window));
    }
    windows.lock().insert(window, stamp);
    windows.covering(job.device.id(), offset).ok_or_else(|| truncated(job, offset).at(offset))
}

fn copy_through_slot(job: &Job, stream: &LentStream, segment: usize, offset: u64, len: u64) -> crate::Result<()> {
    let mut at = offset;
    while at < offset + len {
        let part = (offset + len - at).min(job.slot_limits().0);
        let piece = Piece { segment, offset: at, len: part, read_offset: at, read_len: part, slot_offset: 0 };
        let mut slot = job.pool.acquire().map_err(|error| job.device_error(error).at(at))?;
        cached::read_piece(job, &mut slot, &piece)?;
        // SAFETY: the slot is retired with the event, or dropped after the stream ran dry.
        match unsafe { enqueue_copies(job, stream, &mut slot, &[piece]) } {
            Ok(event) => slot.retire(event),
            Err(error) => {
                let _ = stream.synchronize();
                return Err(error);
            }
        }
        job.end_piece(segment, part);
        at += part;
    }
    Ok(())
}

fn truncated(job: &Job, size: u64) -> Error {
    job.error(ErrorKind::Truncated, format!("the file was truncated during the read: it ends at {size}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_testing::until;

    #[test]
    fn a_window_becomes_hot_by_being_read_twice_and_is_offered_once() {
        let windows = Windows::default();
        let size = WINDOW_BYTES + (64 << 20);
        assert!(windows.heat(0..size, size).is_empty());
        assert_eq!(windows.heat(0..size, size), [0, 1]);
        assert!(windows.heat(0..size, size).is_empty(), "registration is under way");
    }

    /// Symptom: reading the end of a sparse file of many TiB ended the process for want of memory.
    /// Cause: the table of read windows had an entry for each window before the one read.
    #[test]
    fn a_read_far_out_in_a_sparse_file_needs_no_table_of_all_windows_before_it() {
        let (windows, size) = (Windows::default(), i64::MAX as u64);
        assert!(windows.heat(size - 4096..size, size).is_empty());
        assert_eq!(windows.lock().heat.len(), 1);
    }

    /// Registered pages outlive their place in the file: nothing but the stamp tells that a window
    /// no longer shows it. On `host` mappings follow the file, so only this shows the rule.
    #[test]
    fn windows_of_another_state_of_the_file_are_never_offered() {
        // Nobody may have it open for writing while a window is made.
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let set_len = |len| std::fs::File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
        set_len(4 << 20);
        let device = Device::host(&bifolio_device::HostOptions::default());
        let (file, budget) = (PlainFile::open(&path).unwrap(), Budget::new(1 << 30));
        until("a clock tick has passed", || file.stamp().unwrap().is_settled());
        let made_of = file.stamp().unwrap();
        Windows::of(&file).keep(&file, &device, &budget, 0);
        assert!(Windows::of(&file).cover(device.id(), &made_of, &(0..4 << 20)));
        set_len(0);
        set_len(4 << 20);
        let now = file.stamp().unwrap();
        assert_eq!(now.size, made_of.size);
        assert!(!Windows::of(&file).cover(device.id(), &now, &(0..4 << 20)));
        assert!(Windows::of(&file).ready(device.id(), &now).is_empty());
        // So young a state may be two: nothing of it is kept, and everything is returned.
        Windows::of(&file).keep(&file, &device, &budget, 0);
        assert!(Windows::of(&file).ready(device.id(), &now).is_empty());
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }

    /// Symptom: none seen. A write past the page cache moves the times of change when
    /// it begins and the pages when it ends, so a window made in between would show the old pages for
    /// as long as it is kept.
    #[test]
    fn nothing_is_kept_of_a_file_that_somebody_has_open_for_writing() {
        let temporary = tempfile::NamedTempFile::new().unwrap();
        temporary.as_file().set_len(4 << 20).unwrap();
        let device = Device::host(&bifolio_device::HostOptions::default());
        let (file, budget) = (PlainFile::open(temporary.path()).unwrap(), Budget::new(1 << 30));
        until("a clock tick has passed", || file.stamp().unwrap().is_settled());
        Windows::of(&file).keep(&file, &device, &budget, 0);
        assert!(Windows::of(&file).ready(device.id(), &file.stamp().unwrap()).is_empty());
    }

    #[test]
    fn the_budget_is_returned_by_drop() {
        let budget = Budget::new(100);
        let share = budget.take(70).unwrap();
        assert!(budget.take(40).is_none());
        drop(share);
        assert!(budget.take(100).is_some());
        assert!(!Budget::new(0).is_open());
    }
}
