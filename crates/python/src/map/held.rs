//! A mapping with its file, shared by the Python objects that lend its memory.

use super::report::Report;
use crate::buffer::{DEFAULT_STREAM, Lent};
use crate::error::{bad, of_cache, of_device, of_request, unsupported};
use crate::stream::RawStream;
use bifolio_cache::process::cache;
use bifolio_cache::{Advice, CachedFile, Mapping, Pin, Result};
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
    file: CachedFile,
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
    pub(super) fn new(
        path: PathBuf,
        offset: u64,
        length: Option<u64>,
        writable: bool,
        device: DeviceId,
    ) -> PyResult<Self> {
        if writable {
            // Told here and not when something is written home.
            OpenFile::open_for_writing(&path, false).map_err(|error| of_request(&error))?;
        }
        let file = cache().and_then(|cache| cache.open(&path)).map_err(|error| of_cache(&error))?;
        let end = length.map_or(u64::MAX, |length| offset.saturating_add(length));
        USED.store(true, Ordering::Release);
        let mapping = file.map(device, offset..end, writable).map_err(|error| of_cache(&error))?;
        if length.is_some_and(|length| length > mapping.len()) {
            return Err(bad(format!(
                "{}: cannot map bytes {offset} to {end}: the file has {}",
                path.display(),
                offset + mapping.len()
            )));
        }
        let (bytes, address) = (mapping.len(), mapping.ptr().0);
        let open = Mutex::new(Some(Open { mapping, file }));
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
        self.with(|open| open.file.read(self.offset + at, memory)).map(|read| read as u64)
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
        self.with(|open| open.file.write(self.offset + at, memory)).map(|()| memory.len() as u64)
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
        file.close().map_err(|error| of_cache(&error))?;
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
