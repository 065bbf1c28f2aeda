//! A mapping with its file, shared by the Python objects that lend its memory.

use super::recall::Recall;
use super::report::Report;
use crate::buffer::{DEFAULT_STREAM, Lent};
use crate::daemon;
use crate::error::{bad, of_cache, of_device, of_request, unsupported};
use crate::stream::RawStream;
use bifolio_cache::process::cache;
use bifolio_cache::{Advice, CachedFile, Counts, Mapping, Pin, Result};
use bifolio_daemon::{Client, SharedFile};
use bifolio_device::fork::Birth;
use bifolio_device::{BackendKind, DeviceChoice, DeviceId};
use bifolio_io::{OpenFile, process};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

/// Whether something was mapped, so that there is something to write when the interpreter ends.
static USED: AtomicBool = AtomicBool::new(false);

#[derive(Debug)]
pub(super) struct Held {
    /// None once it was closed.
    open: Mutex<Option<Open>>,
    pub(super) path: PathBuf,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) address: u64,
    pub(super) writable: bool,
    pub(super) device: DeviceId,
    /// Parts that arrays keep in place.
    pins: Mutex<Vec<Weak<Pinned>>>,
    birth: Birth,
}

/// A part that an array keeps in place; none of it while the mapping sleeps.
#[derive(Debug)]
struct Pinned {
    part: Range<u64>,
    pin: Mutex<Option<Pin>>,
}

impl Pinned {
    /// What an array has in use.
    fn used(&self) -> Option<&Range<u64>> {
        self.lock().is_some().then_some(&self.part)
    }

    fn sleep(&self) {
        self.lock().take();
    }

    /// An array may have outlived the release of its part, and only what is acquired is pinned.
    fn wake(&self, mapping: &mut Mapping) -> Result<()> {
        mapping.acquire(self.part.clone())?;
        let pin = mapping.pin(self.part.clone());
        mapping.release(self.part.clone())?;
        *self.lock() = Some(pin?);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Pin>> {
        self.pin.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Open {
    mapping: Mapping,
    file: Source,
    /// Parts that are acquired, in the order in which they were; what is to be acquired again is kept while it sleeps.
    acquired: Vec<Range<u64>>,
    sleeps: bool,
}

/// Whose cache it is mapped through.
#[derive(Debug)]
enum Source {
    Own(CachedFile),
    /// The daemon's, and the number of the device there.
    Shared(SharedFile, usize),
}

/// What is to be mapped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) offset: u64,
    pub(super) length: Option<u64>,
    pub(super) writable: bool,
    pub(super) device: DeviceId,
}

impl Open {
    fn of(mapping: Mapping, file: Source) -> Self {
        Self { mapping, file, acquired: vec![], sleeps: false }
    }
}

impl Wanted {
    fn range(&self) -> Range<u64> {
        self.offset..self.length.map_or(u64::MAX, |length| self.offset.saturating_add(length))
    }
}

/// A pin that a child of the process leaves alone.
#[derive(Debug)]
pub(super) struct Kept(Arc<Pinned>, Birth);

impl Drop for Kept {
    fn drop(&mut self) {
        if self.1.was_elsewhere() {
            // It is never the last.
            std::mem::forget(Arc::clone(&self.0));
        }
    }
}

impl Held {
    pub(super) fn new(path: PathBuf, wanted: &Wanted) -> PyResult<Self> {
        if wanted.writable {
            // Told here and not when something is written home.
            OpenFile::open_for_writing(&path, false).map_err(|error| of_request(&error))?;
        }
        let file = cache().and_then(|cache| cache.open(&path)).map_err(|error| of_cache(&error))?;
        USED.store(true, Ordering::Release);
        let mapping = file.map(wanted.device, wanted.range(), wanted.writable).map_err(|error| of_cache(&error))?;
        Self::of(path, wanted, Open::of(mapping, Source::Own(file)))
    }

    /// Through the cache of the daemon; on another device of its if the one that is wanted was not named.
    pub(super) fn shared(path: PathBuf, wanted: &Wanted, is_named: bool) -> PyResult<Self> {
        let map = |client: &Client| {
            let known = client.devices();
            let other = known.first().filter(|_| !is_named && !known.contains(&wanted.device));
            let device = other.copied().unwrap_or(wanted.device);
            let number = known.iter().position(|known| *known == device);
            let file = client.open_path(&path)?;
            let mapping = file.map(device, wanted.range(), wanted.writable)?;
            // It has just been mapped there.
            Ok((device, Open::of(mapping, Source::Shared(file, number.unwrap_or(0)))))
        };
        let (device, open) = daemon::ask(map).map_err(|error| of_cache(&error))?;
        Self::of(path, &Wanted { device, ..*wanted }, open)
    }

    fn of(path: PathBuf, wanted: &Wanted, open: Open) -> PyResult<Self> {
        let Wanted { offset, length, writable, device } = *wanted;
        let (bytes, address) = (open.mapping.len(), open.mapping.ptr().0);
        if let Some(length) = length.filter(|length| *length > bytes) {
            let (name, end) = (path.display(), offset.saturating_add(length));
            return Err(bad(format!("{name}: cannot map bytes {offset} to {end}: the file has {}", offset + bytes)));
        }
        let open = Mutex::new(Some(open));
        let pins = Mutex::default();
        Ok(Self { open, path, offset, bytes, address, writable, device, pins, birth: Birth::here() })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, work: impl FnOnce(&mut Open) -> Result<T>) -> PyResult<T> {
        let mut open = self.lock();
        let open = open.as_mut().ok_or_else(|| self.closed())?;
        work(open).map_err(|error| of_cache(&error))
    }

    /// Work of a CPU, which needs the cache itself.
    fn with_file<T>(&self, work: impl FnOnce(&CachedFile) -> Result<T>) -> PyResult<T> {
        match &self.lock().as_ref().ok_or_else(|| self.closed())?.file {
            Source::Own(file) => work(file).map_err(|error| of_cache(&error)),
            Source::Shared(..) => {
                let path = self.path.display();
                Err(unsupported(format!(
                    "{path}: what is mapped through a daemon is read and written as it is acquired"
                )))
            }
        }
    }

    fn closed(&self) -> PyErr {
        PyValueError::new_err(format!("{}: the mapping is closed", self.path.display()))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_none()
    }

    pub(super) fn check_open(&self) -> PyResult<()> {
        if self.is_closed() { Err(self.closed()) } else { Ok(()) }
    }

    /// Waits for work of the program's that may use the memory.
    fn settle(&self, stream: Option<RawStream>) -> PyResult<()> {
        if self.device.backend != BackendKind::Cuda {
            let refusal = || bad(format!("memory of {} has no streams: omit stream", self.device));
            return stream.map_or(Ok(()), |_| Err(refusal()));
        }
        let router = process::router(DeviceChoice::Exactly(self.device)).map_err(|error| of_request(&error))?;
        for raw in [Some(DEFAULT_STREAM), stream.map(|stream| stream.0)] {
            Lent::settle(&router, raw).map_err(|error| of_device(&error))?;
        }
        Ok(())
    }

    pub(super) fn acquire(&self, part: Range<u64>, stream: Option<RawStream>) -> PyResult<Report> {
        self.settle(stream)?;
        self.awake(|open| {
            let report = open.mapping.acquire(part.clone())?;
            open.acquired.push(part);
            Ok(Report::of(&report))
        })
    }

    pub(super) fn release(&self, part: Range<u64>, stream: Option<RawStream>) -> PyResult<Report> {
        self.settle(stream)?;
        self.awake(|open| {
            let report = open.mapping.release(part.clone())?;
            if let Some(at) = open.acquired.iter().rposition(|acquired| *acquired == part) {
                open.acquired.remove(at);
            }
            Ok(Report::of(&report))
        })
    }

    pub(super) fn pin(&self, part: Range<u64>) -> PyResult<Kept> {
        let pin = self.awake(|open| open.mapping.pin(part.clone()))?;
        let pinned = Arc::new(Pinned { part, pin: Mutex::new(Some(pin)) });
        let mut pins = self.pins();
        pins.retain(|pinned| pinned.strong_count() > 0);
        pins.push(Arc::downgrade(&pinned));
        Ok(Kept(pinned, Birth::here()))
    }

    fn pins(&self) -> MutexGuard<'_, Vec<Weak<Pinned>>> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same as `with`, of a mapping that does not sleep.
    fn awake<T>(&self, work: impl FnOnce(&mut Open) -> Result<T>) -> PyResult<T> {
        self.check_awake()?;
        self.with(work)
    }

    fn check_awake(&self) -> PyResult<()> {
        if self.sleeps()? {
            let detail = "the mapping sleeps, and has no memory on its device: call wake() first";
            return Err(PyValueError::new_err(format!("{}: {detail}", self.path.display())));
        }
        Ok(())
    }

    pub(super) fn sleeps(&self) -> PyResult<bool> {
        Ok(self.lock().as_ref().ok_or_else(|| self.closed())?.sleeps)
    }

    /// Publishes what was changed, and gives the device's memory back, also under arrays: nobody may use them until it wakes.
    pub(super) fn sleep(&self) -> PyResult<()> {
        self.settle(None)?;
        let pins: Vec<_> = self.pins().iter().filter_map(Weak::upgrade).collect();
        self.with(|open| {
            if open.sleeps {
                return Ok(());
            }
            // What cannot be released stays as it is, with what was not.
            let acquired = std::mem::take(&mut open.acquired);
            for (at, part) in acquired.iter().enumerate() {
                if let Err(error) = open.mapping.release(part.clone()) {
                    let again = acquired[..at].iter().try_for_each(|part| open.mapping.acquire(part.clone()).map(drop));
                    open.acquired = acquired;
                    return Err(again.err().unwrap_or(error));
                }
            }
            open.acquired = acquired;
            open.sleeps = true;
            for pinned in &*pins {
                pinned.sleep();
            }
            let all = 0..open.mapping.len();
            open.mapping.advise(all, Advice::DontNeed)
        })
    }

    /// Brings back what was acquired, and what arrays have, where it was.
    pub(super) fn wake(&self) -> PyResult<Report> {
        let pins: Vec<_> = self.pins().iter().filter_map(Weak::upgrade).collect();
        self.with(|open| {
            let mut all = bifolio_cache::Report { counts: Counts::default(), seconds: 0.0, always_compared: false };
            if !open.sleeps {
                return Ok(Report::of(&all));
            }
            let mut brought = 0;
            let parts = open.acquired.clone();
            let mut bring_all = || -> Result<()> {
                for part in &parts {
                    all = all.and(&open.mapping.acquire(part.clone())?);
                    brought += 1;
                }
                pins.iter().try_for_each(|pinned| pinned.wake(&mut open.mapping))
            };
            if let Err(error) = bring_all() {
                // It sleeps on.
                for pinned in &*pins {
                    pinned.sleep();
                }
                let _ = parts[..brought].iter().try_for_each(|part| open.mapping.release(part.clone()).map(drop));
                return Err(error);
            }
            open.sleeps = false;
            Ok(Report::of(&all))
        })
    }

    /// What is to be released, and has something in it that is acquired or in an array: nothing outside of a daemon.
    pub(super) fn recalls(&self) -> PyResult<Vec<Recall>> {
        let pins: Vec<_> = self.pins().iter().filter_map(Weak::upgrade).collect();
        self.with(|open| {
            let Source::Shared(file, device) = &open.file else { return Ok(vec![]) };
            let acquired = if open.sleeps { &[] } else { &open.acquired[..] };
            let used: Vec<&Range<u64>> = acquired.iter().chain(pins.iter().filter_map(|pin| pin.used())).collect();
            let recalled = file.recalls().into_iter().filter(|recall| recall.device == *device);
            let within = recalled.filter_map(|recall| {
                let start = recall.range.start.saturating_sub(self.offset);
                let end = recall.range.end.saturating_sub(self.offset).min(self.bytes);
                let is_used = used.iter().any(|used| used.start < end && start < used.end);
                let seconds = recall.until.saturating_duration_since(Instant::now()).as_secs_f64();
                is_used.then(|| Recall { offset: start, nbytes: end - start, seconds })
            });
            Ok(within.collect())
        })
    }

    pub(super) fn advise(&self, part: Range<u64>, advice: Advice) -> PyResult<()> {
        self.with(|open| open.mapping.advise(part, advice))
    }

    pub(super) fn sync(&self) -> PyResult<()> {
        self.settle(None)?;
        self.with(|open| open.mapping.sync())
    }

    pub(super) fn read(&self, at: u64, memory: &mut [u8]) -> PyResult<u64> {
        self.with_file(|file| file.read(self.offset + at, memory)).map(|read| read as u64)
    }

    pub(super) fn check_write(&self, at: u64, bytes: u64) -> PyResult<()> {
        let path = self.path.display();
        if !self.writable {
            return Err(unsupported(format!("{path}: the mapping is read-only: pass writable=True to bifolio.map()")));
        }
        if at.saturating_add(bytes) > self.bytes {
            return Err(bad(format!("{path}: {bytes} bytes at {at} do not fit into the {} mapped bytes", self.bytes)));
        }
        Ok(())
    }

    pub(super) fn write(&self, at: u64, memory: &[u8]) -> PyResult<u64> {
        self.with_file(|file| file.write(self.offset + at, memory)).map(|()| memory.len() as u64)
    }

    /// How many pages had changes that were not released.
    pub(super) fn close(&self) -> PyResult<u64> {
        if !self.is_closed() {
            self.settle(None)?;
        }
        // Closed outside of the lock: the last one writes what is pending to the file.
        let Some(Open { mut mapping, file, .. }) = self.lock().take() else { return Ok(0) };
        let report = mapping.close().map_err(|error| of_cache(&error))?;
        drop(mapping);
        if let Source::Own(file) = file {
            file.close().map_err(|error| of_cache(&error))?;
        }
        Ok(report.discarded)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.birth.was_elsewhere() {
            std::mem::forget(self.lock().take());
        }
    }
}

/// At the end of the interpreter: what was released and lies on devices only is written to the files.
pub(crate) fn end() {
    if USED.load(Ordering::Acquire)
        && let Err(error) = cache().and_then(|cache| cache.sync())
    {
        eprintln!("bifolio: released pages could not all be written to their files: {error}");
    }
}
