//! A mapping with its file, shared by the Python objects that lend its memory.

use super::report::Report;
use crate::buffer::{DEFAULT_STREAM, Lent};
use crate::daemon;
use crate::error::{bad, of_cache, of_device, of_request, unsupported};
use crate::stream::RawStream;
use bifolio_cache::process::cache;
use bifolio_cache::{Advice, CachedFile, Mapping, Pin, Result};
use bifolio_daemon::Client;
use bifolio_device::fork::Birth;
use bifolio_device::{BackendKind, DeviceChoice, DeviceId};
use bifolio_io::{OpenFile, process};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    birth: Birth,
}

#[derive(Debug)]
struct Open {
    mapping: Mapping,
    file: Source,
}

/// Whose cache it is mapped through.
#[derive(Debug)]
enum Source {
    Own(CachedFile),
    /// The daemon's. The mapping keeps the file.
    Shared,
}

/// What is to be mapped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) offset: u64,
    pub(super) length: Option<u64>,
    pub(super) writable: bool,
    pub(super) device: DeviceId,
}

impl Wanted {
    fn range(&self) -> Range<u64> {
        self.offset..self.length.map_or(u64::MAX, |length| self.offset.saturating_add(length))
    }
}

/// A pin that a child of the process leaves alone.
#[derive(Debug)]
pub(super) struct Kept(Option<Pin>, Birth);

impl Drop for Kept {
    fn drop(&mut self) {
        if self.1.was_elsewhere() {
            std::mem::forget(self.0.take());
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
        Self::of(path, wanted, Open { mapping, file: Source::Own(file) })
    }

    /// Through the cache of the daemon; on another device of its if the one that is wanted was not named.
    pub(super) fn shared(path: PathBuf, wanted: &Wanted, is_named: bool) -> PyResult<Self> {
        let map = |client: &Client| {
            let known = client.devices();
            let other = known.first().filter(|_| !is_named && !known.contains(&wanted.device));
            let device = other.copied().unwrap_or(wanted.device);
            client.open_path(&path)?.map(device, wanted.range(), wanted.writable).map(|mapping| (device, mapping))
        };
        let (device, mapping) = daemon::ask(map).map_err(|error| of_cache(&error))?;
        Self::of(path, &Wanted { device, ..*wanted }, Open { mapping, file: Source::Shared })
    }

    fn of(path: PathBuf, wanted: &Wanted, open: Open) -> PyResult<Self> {
        let Wanted { offset, length, writable, device } = *wanted;
        let (bytes, address) = (open.mapping.len(), open.mapping.ptr().0);
        if let Some(length) = length.filter(|length| *length > bytes) {
            let (name, end) = (path.display(), offset.saturating_add(length));
            return Err(bad(format!("{name}: cannot map bytes {offset} to {end}: the file has {}", offset + bytes)));
        }
        let open = Mutex::new(Some(open));
        Ok(Self { open, path, offset, bytes, address, writable, device, birth: Birth::here() })
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
            Source::Shared => {
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
        self.with(|open| open.mapping.acquire(part)).map(|report| Report::of(&report))
    }

    pub(super) fn release(&self, part: Range<u64>, stream: Option<RawStream>) -> PyResult<Report> {
        self.settle(stream)?;
        self.with(|open| open.mapping.release(part)).map(|report| Report::of(&report))
    }

    pub(super) fn pin(&self, part: Range<u64>) -> PyResult<Kept> {
        self.with(|open| open.mapping.pin(part)).map(|pin| Kept(Some(pin), Birth::here()))
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
        let Some(Open { mut mapping, file }) = self.lock().take() else { return Ok(0) };
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
