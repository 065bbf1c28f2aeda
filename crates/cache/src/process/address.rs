//! Mappings by address, for faces whose programs hold nothing but pointers: C, and programs under the shim.
//!
//! Every address inside a mapping selects a part of it. Mappings of one file on one device share their addresses:
//! who maps a range twice has the same pointer twice, and unmaps it twice. Where mappings overlap otherwise, bytes
//! are acquired through a writable one if there is one.
//!
//! Locks: the table's, which is held for no longer than a look, then a mapping's, then the cache's own. So threads
//! wait for each other only on the same mapping, or the same file. Whether an address may be a mapping's at all is
//! known without a lock ([`holds`]). When the process ends, mappings end as if they were unmapped. A child of
//! `fork` has none of them: everything here is refused in it.

use super::own::{cache, refuse_children};
use crate::advice::Advice;
use crate::cached_file::CachedFile;
use crate::error::{Error, ErrorKind, Result};
use crate::mapping::Mapping;
use crate::stats::Report;
use bifolio_device::{BackendKind, DeviceChoice, DeviceId, DevicePtr};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::{Range, RangeInclusive};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

/// The flag of `mmap` for a mapping on a device. Linux uses neither this bit nor its neighbours.
pub const MAP_ONGPU: i32 = 0x0200_0000;

/// Pages as `mmap` and `munmap` count them.
const PAGE_BYTES: u64 = 4096;
/// Mappings of a process at most.
const MAPPINGS_MAX: usize = 4096;
/// How long the end of the process waits for a thread that is at work on a mapping.
const END_WAIT: Duration = Duration::from_secs(5);

/// By first address, and the number of their span.
static TABLE: Mutex<BTreeMap<(u64, usize), Arc<Entry>>> = Mutex::new(BTreeMap::new());
/// What the table has, to be looked at without its lock. Their order is that of nothing.
static SPANS: [Span; MAPPINGS_MAX] =
    [const { Span { start: AtomicU64::new(0), end: AtomicU64::new(0) } }; MAPPINGS_MAX];
/// Spans that have ever been used.
static SPANS_USED: AtomicUsize = AtomicUsize::new(0);
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

#[derive(Debug)]
struct Entry {
    start: u64,
    /// Bytes that were asked for, which may reach beyond the end of the file, in whole pages of the CPU's.
    asked: u64,
    /// Bytes that there are, and whether they may be written: as the largest and boldest of those asked who share it.
    len: AtomicU64,
    writable: AtomicBool,
    /// Times that it was mapped and not unmapped; changed under the table's lock.
    uses: AtomicUsize,
    mapping: Mutex<Mapping>,
}

#[derive(Debug)]
struct Span {
    start: AtomicU64,
    end: AtomicU64,
}

/// Maps `len` bytes of a file from `offset` on, rounded up to whole pages, at most to its end.
///
/// # Errors
/// As [`CachedFile::map`]; `OutOfMemory` beyond 4096 mappings; `Forked`.
pub fn map(file: &CachedFile, offset: u64, len: u64, writable: bool, device: DeviceId) -> Result<DevicePtr> {
    refuse_children()?;
    let too_many = || bad(format!("{len} bytes at {offset}: beyond the end of any file"));
    // Whole pages, as `mmap` has it.
    let asked = pages(len).ok_or_else(too_many)?;
    let range = offset..offset.checked_add(asked).ok_or_else(too_many)?;
    let mapping = file.map(device, range, writable)?;
    let (start, len) = (mapping.ptr().0, mapping.len());
    let mut table = table();
    // One address means one file and device, as long as something is mapped there, and `munmap` tells mappings apart
    // by nothing else than their length.
    if let Some((_, known)) = table.range(keys_at(start)).find(|(_, known)| known.asked == asked) {
        known.uses.fetch_add(1, Ordering::Relaxed);
        let known = Arc::clone(known);
        drop(table);
        known.lock().widen(&mapping);
        known.len.fetch_max(len, Ordering::Relaxed);
        known.writable.fetch_or(writable, Ordering::Relaxed);
        return Ok(DevicePtr(start));
    }
    let Some(number) = SPANS.iter().position(|span| span.start.load(Ordering::Relaxed) == 0) else {
        drop(table);
        let detail = format!("a process can have {MAPPINGS_MAX} mappings at most: unmap some");
        return Err(Error::new(ErrorKind::OutOfMemory, "mapping", detail));
    };
    SPANS[number].end.store(start + asked, Ordering::Relaxed);
    SPANS[number].start.store(start, Ordering::Release);
    SPANS_USED.fetch_max(number + 1, Ordering::Release);
    let (uses, mapping) = (AtomicUsize::new(1), Mutex::new(mapping));
    let (len, writable) = (AtomicU64::new(len), AtomicBool::new(writable));
    table.insert((start, number), Arc::new(Entry { start, asked, len, writable, uses, mapping }));
    drop(table);
    end_with_the_process();
    Ok(DevicePtr(start))
}

/// Maps as `mmap(2)` is asked to, with its numbers. Flags that would be about the CPU's memory are refused, and
/// advice has no effect.
///
/// # Errors
/// As [`map_descriptor`]; `BadUse` for flags and protections that no such mapping has.
pub fn mmap(len: u64, protection: i32, flags: i32, fd: RawFd, offset: u64, device: DeviceChoice) -> Result<DevicePtr> {
    refuse_children()?;
    let refuse = |detail: String| Err(Error::new(ErrorKind::BadUse, "mapping", detail));
    let advice = libc::MAP_NORESERVE | libc::MAP_POPULATE | libc::MAP_NONBLOCK;
    let kind = flags & !(MAP_ONGPU | advice);
    if kind != libc::MAP_SHARED && kind != libc::MAP_SHARED_VALIDATE {
        return refuse(format!("flags {flags:#x} cannot be used on a device: use MAP_SHARED alone"));
    }
    if protection & !(libc::PROT_READ | libc::PROT_WRITE) != 0 || protection == libc::PROT_NONE {
        return refuse(format!(
            "protection {protection:#x} cannot be used on a device: use PROT_READ or PROT_READ | PROT_WRITE"
        ));
    }
    if len == 0 || !offset.is_multiple_of(PAGE_BYTES) {
        return refuse(format!(
            "cannot map {len} bytes at {offset}: map at least one byte, at a multiple of {PAGE_BYTES}"
        ));
    }
    if fd < 0 {
        let closed = std::io::Error::from_raw_os_error(libc::EBADF);
        let name = format!("descriptor {fd}");
        return Err(Error::reading(bifolio_io::Error::system(name.as_ref(), "mapping it", closed)));
    }
    // SAFETY: the caller's descriptor; what is none is refused by everything that is done with it.
    let descriptor = unsafe { BorrowedFd::borrow_raw(fd) };
    map_descriptor(descriptor, offset, len, protection & libc::PROT_WRITE != 0, device)
}

/// The same for a descriptor, which may be closed afterwards. Where the program lets Bifolio choose, the device is
/// the first GPU, else `host:0`.
///
/// # Errors
/// As [`map`]; `Permission` for a descriptor that is not open for reading, or for writing where that is asked for;
/// `Read` for something else than a regular file; `BadUse` for a device that the cache does not have.
pub fn map_descriptor(
    descriptor: BorrowedFd<'_>,
    offset: u64,
    len: u64,
    writable: bool,
    device: DeviceChoice,
) -> Result<DevicePtr> {
    let cache = cache()?;
    let name = format!("descriptor {}", descriptor.as_raw_fd());
    let name = Path::new(&name);
    // SAFETY: asks for the flags of a number.
    let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFL) };
    let missing = match flags & libc::O_ACCMODE {
        _ if flags < 0 => {
            let error = std::io::Error::last_os_error();
            return Err(Error::reading(bifolio_io::Error::system(name, "asking for its flags", error)));
        }
        _ if flags & libc::O_PATH != 0 => Some("reading"),
        libc::O_WRONLY => Some("reading"),
        libc::O_RDONLY if writable => Some("writing"),
        _ => None,
    };
    if let Some(missing) = missing {
        return Err(Error::new(ErrorKind::Permission, name, format!("the descriptor is not open for {missing}")));
    }
    // One that is open for reading only is no writer that the cache would have to look out for.
    let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let own = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(link).ok();
    let file = cache.open_descriptor(own.as_ref().map_or(descriptor, AsFd::as_fd))?;
    let device = match device {
        DeviceChoice::Exactly(id) => id,
        DeviceChoice::Auto => {
            let devices = cache.devices();
            let gpu = devices.iter().find(|id| id.backend != BackendKind::Host);
            gpu.copied().unwrap_or(DeviceId::HOST)
        }
    };
    map(&file, offset, len, writable, device)
}

/// Brings bytes of a mapping up to date: see [`Mapping::acquire`].
///
/// # Errors
/// As there; `BadRange` where there is no mapping, or less of one; `Forked`.
pub fn acquire(ptr: DevicePtr, len: u64) -> Result<Report> {
    let candidates = mappings_of(ptr, len)?;
    let chosen = candidates.iter().find(|(entry, _)| entry.writable.load(Ordering::Relaxed)).unwrap_or(&candidates[0]);
    chosen.0.lock().acquire(chosen.1.clone())
}

/// Publishes what the device has changed in bytes that were acquired: see [`Mapping::release`].
///
/// # Errors
/// As [`acquire`]; `BadUse` for bytes that were not acquired as a whole.
pub fn release(ptr: DevicePtr, len: u64) -> Result<Report> {
    let candidates = mappings_of(ptr, len)?;
    let acquired = candidates.iter().find(|(entry, part)| entry.lock().has_acquired(part)).unwrap_or(&candidates[0]);
    acquired.0.lock().release(acquired.1.clone())
}

/// Writes everything that was released, and what is acquired of the mapping, to the file, and makes it durable: see
/// [`Mapping::sync`].
///
/// # Errors
/// As [`acquire`].
pub fn sync(ptr: DevicePtr, len: u64) -> Result<()> {
    mappings_of(ptr, len)?.iter().try_for_each(|(entry, _)| entry.lock().sync())
}

/// Says what will be done with bytes of a mapping: see [`Mapping::advise`].
///
/// # Errors
/// As [`acquire`].
pub fn advise(ptr: DevicePtr, len: u64, advice: Advice) -> Result<()> {
    mappings_of(ptr, len)?.into_iter().try_for_each(|(entry, part)| entry.lock().advise(part, advice))
}

/// Ends a mapping: all of it, once for each time that it was mapped. What was changed and not released is
/// discarded. What was released reaches the file, at the latest when nothing of it is mapped any more; the last one is told
/// if that fails, and is unmapped as well.
///
/// # Errors
/// `BadRange` for what is no whole mapping; `Forked`.
pub fn unmap(ptr: DevicePtr, len: u64) -> Result<()> {
    refuse_children()?;
    let mut table = table();
    let mut here = table.range(keys_at(ptr.0));
    let Some((key, entry)) = here.find(|(_, entry)| Some(entry.asked) == pages(len)) else {
        let asked = table.range(keys_at(ptr.0)).next().map(|(_, entry)| entry.asked);
        drop(table);
        return Err(bad(asked.map_or_else(
            || format!("no mapping begins at {:#x}", ptr.0),
            |asked| format!("the mapping at {:#x} has {asked} bytes: unmap all of it", ptr.0),
        )));
    };
    if entry.uses.fetch_sub(1, Ordering::Relaxed) > 1 {
        return Ok(());
    }
    let key = *key;
    SPANS[key.1].start.store(0, Ordering::Release);
    let entry = table.remove(&key);
    drop(table);
    if let Some(entry) = entry {
        // Another thread that is at work on it finds it closed afterwards.
        entry.lock().close()?;
    }
    Ok(())
}

/// Whether an address lies in a mapping. Takes no lock, and some nanoseconds where nothing is mapped near it.
#[inline]
pub fn holds(address: u64) -> bool {
    let used = SPANS_USED.load(Ordering::Relaxed);
    used > 0 && SPANS[..used].iter().any(|span| span.has(address))
}

impl Span {
    fn has(&self, address: u64) -> bool {
        let start = self.start.load(Ordering::Acquire);
        start != 0 && start <= address && address < self.end.load(Ordering::Relaxed)
    }
}

impl Entry {
    fn lock(&self) -> MutexGuard<'_, Mapping> {
        self.mapping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The part of it that some addresses are; what lies beyond the end of the file is left out.
    fn part(&self, ptr: DevicePtr, len: u64) -> Option<Range<u64>> {
        let start = ptr.0.checked_sub(self.start)?;
        let (end, there) = (start.checked_add(len)?, self.len.load(Ordering::Relaxed));
        (start < end && start < there && end <= self.asked).then(|| start..end.min(there))
    }
}

/// Mappings that have all of some bytes, and the parts that they are, at least one.
fn mappings_of(ptr: DevicePtr, len: u64) -> Result<Vec<(Arc<Entry>, Range<u64>)>> {
    refuse_children()?;
    let table = table();
    let before = table.range(..=(ptr.0, usize::MAX)).rev();
    let found: Vec<_> =
        before.filter_map(|(_, entry)| entry.part(ptr, len).map(|part| (Arc::clone(entry), part))).collect();
    drop(table);
    if found.is_empty() {
        return Err(bad(format!("{len} bytes at {:#x} do not lie in one mapping", ptr.0)));
    }
    Ok(found)
}

fn table() -> MutexGuard<'static, BTreeMap<(u64, usize), Arc<Entry>>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keys_at(start: u64) -> RangeInclusive<(u64, usize)> {
    (start, 0)..=(start, usize::MAX)
}

fn bad(detail: String) -> Error {
    Error::new(ErrorKind::BadRange, "mapping", detail)
}

/// Bytes in whole pages of the CPU's, as `munmap` takes them.
fn pages(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(PAGE_BYTES)
}

/// What was released must not be lost because a program ends without unmapping.
fn end_with_the_process() {
    static AT_END: Once = Once::new();
    // After the driver's own, as the device has been opened by now; so before it, when the process ends.
    // SAFETY: registers a function that takes nothing.
    AT_END.call_once(|| _ = unsafe { libc::atexit(end_all) });
}

extern "C" fn end_all() {
    if refuse_children().is_err() || HAS_ENDED.swap(true, Ordering::Relaxed) {
        return;
    }
    // A thread that is interrupted by this very end would be waited for in vain.
    let started = Instant::now();
    let entries = loop {
        match TABLE.try_lock() {
            Ok(mut table) => break std::mem::take(&mut *table),
            Err(_) if started.elapsed() > END_WAIT => return,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    for span in &SPANS {
        span.start.store(0, Ordering::Release);
    }
    let _ = std::panic::catch_unwind(|| {
        for entry in entries.into_values() {
            loop {
                if let Ok(mut mapping) = entry.mapping.try_lock() {
                    let _ = mapping.close();
                    break;
                }
                if started.elapsed() > END_WAIT {
                    // Dropping it would wait for that thread.
                    std::mem::forget(entry);
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
}

#[cfg(test)]
mod tests;
