//! Files: reads and writes on the caller's thread, and the requests that run by themselves.

use crate::buffer::{Lent, Role, adopt};
use crate::count::Count;
use crate::error::{bad, is_beyond_the_end, of_device, of_request, unsupported};
use crate::explain::plan;
use crate::extents::extents_of;
use crate::future::{Future, Running};
use crate::life::{Owner, READ, Shared, begin, detached, write_options};
use crate::stream::RawStream;
use crate::volume::{Secret, open_encrypted};
use bifolio_io::{Advice, Buffer, Cancel, OpenFile, PendingOnStream, ReadOptions, process};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

/// An open file or striped set. Any number of threads may use one. Closing it lets requests under way go on.
#[pyclass(frozen, module = "bifolio", weakref)]
#[derive(Debug)]
pub(crate) struct File {
    /// None once it was closed.
    open: RwLock<Option<Shared<OpenFile>>>,
    name: PathBuf,
    writable: bool,
}

/// Opens a file: "r" for reading, "r+" for reading and writing, "w" for both with an empty file, which is
/// created where there is none. "stripe:SET.toml" and "stripe:512K:A,B,..." name striped sets, which "w"
/// neither creates nor empties.
///
/// With a key, the passphrase of an encrypted directory (gocryptfs's format), the path leads through that directory: its
/// part behind the directory is plain. The file is opened for reading, as a `Volume`; its blocks are verified and
/// decrypted where they land.
#[pyfunction]
#[pyo3(signature = (path, mode = "r", *, key = None))]
pub(crate) fn open<'py>(
    py: Python<'py>,
    path: PathBuf,
    mode: &str,
    key: Option<Secret<'_>>,
) -> PyResult<Bound<'py, PyAny>> {
    begin()?;
    let Some(key) = key else { return Ok(Bound::new(py, open_plain(py, path, mode)?)?.into_any()) };
    if !matches!(mode, "r" | "rb") {
        return Err(unsupported(format!(
            "{}: encrypted files are opened for reading only: use mode \"r\"",
            path.display()
        )));
    }
    Ok(Bound::new(py, open_encrypted(py, &path, &key)?)?.into_any())
}

fn open_plain(py: Python<'_>, path: PathBuf, mode: &str) -> PyResult<File> {
    let (writable, anew) = match mode {
        "r" | "rb" => (false, false),
        "r+" | "rb+" | "r+b" => (true, false),
        "w" | "w+" | "wb" | "wb+" | "w+b" => (true, true),
        _ => return Err(bad(format!("invalid mode {mode:?}: use \"r\", \"r+\" or \"w\""))),
    };
    let opened = detached(py, || {
        let file = if writable { OpenFile::open_for_writing(&path, anew)? } else { OpenFile::open(&path)? };
        let is_plain = file.layout().is_none() && file.buffered().metadata().is_ok_and(|metadata| metadata.is_file());
        if anew && is_plain {
            file.buffered().set_len(0).map_err(|error| bifolio_io::Error::system(&path, "emptying it", error))?;
        }
        Ok(file)
    });
    let open = RwLock::new(Some(Shared::new(opened.map_err(|error| of_request(&error))?)));
    Ok(File { open, name: path, writable })
}

impl File {
    /// The file, or a refusal where it was closed. Every call of an open file begins here.
    fn file(&self) -> PyResult<Shared<OpenFile>> {
        begin()?;
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.clone().ok_or_else(|| PyValueError::new_err(format!("{}: the file is closed", self.name.display())))
    }

    fn writable_file(&self) -> PyResult<Shared<OpenFile>> {
        let file = self.file()?;
        if self.writable {
            return Ok(file);
        }
        let name = self.name.display();
        Err(unsupported(format!("{name}: the file is open for reading only: open it with mode \"r+\" or \"w\"")))
    }

    /// How many bytes of a buffer, from `place` on, a request is about.
    fn length(&self, lent: &mut Lent, offset: u64, length: Option<Count>, place: Count) -> PyResult<u64> {
        lent.skip(place.0)?;
        let bytes = length.map_or(lent.bytes, |length| length.0);
        if bytes > lent.bytes {
            let name = self.name.display();
            return Err(bad(format!(
                "{name}, offset {offset}: cannot transfer {bytes} bytes with a buffer of {}",
                lent.bytes
            )));
        }
        Ok(bytes)
    }
}

/// A read that begins beyond the end of the file has no bytes, as with `pread`; other failures stay.
fn beyond_the_end<T>(error: bifolio_io::Error, nothing: T) -> PyResult<T> {
    if is_beyond_the_end(&error) { Ok(nothing) } else { Err(of_request(&error)) }
}

/// What of a range a file can have at all: offsets of the system are numbers with a sign.
fn readable(offset: u64, bytes: u64) -> u64 {
    bytes.min(i64::MAX.cast_unsigned().saturating_sub(offset))
}

/// The share of a request that runs by itself.
fn share(lent: Lent, bytes: u64, read: Option<&Cancel>, on_stream: bool) -> Buffer {
    let slice = lent.first(bytes);
    // SAFETY: the memory stays for as long as its keeper, which the owner has.
    unsafe { Buffer::kept(slice, Owner::new(lent.keeper, read, on_stream)) }
}

/// Submits a read in the order of a stream.
fn submit_on(
    py: Python<'_>,
    file: &OpenFile,
    mut lent: Lent,
    (offset, bytes): (u64, u64),
    stream: RawStream,
) -> PyResult<Option<(PendingOnStream, Cancel)>> {
    let router = Arc::clone(&lent.router);
    if !router.device().capabilities().native_streams.is_yes() {
        let id = router.device().id();
        return Err(bad(format!("memory of {id} has no streams: omit stream")));
    }
    let producer = lent.producer.take().filter(|producer| *producer != stream.0);
    let options = ReadOptions::default();
    let buffer = share(lent, bytes, Some(&options.cancel), true);
    let submitted = detached(py, || {
        let stream = adopt(&router, stream.0).map_err(|error| bifolio_io::Error::device(file.path(), error))?;
        if let Some(producer) = producer {
            let ready = adopt(&router, producer).and_then(|producer| stream.wait(&producer.record()?));
            ready.map_err(|error| bifolio_io::Error::device(file.path(), error))?;
        }
        router.submit_read_on(&stream, file, offset, Some(bytes), &buffer, &options)
    });
    submitted.map(|pending| Some((pending, options.cancel))).or_else(|error| beyond_the_end(error, None))
}

#[pymethods]
impl File {
    /// Reads bytes of the file, from `offset` on, to the start of a buffer, and waits. Without a length the
    /// buffer is filled. Returns how many bytes were read, which are fewer only at the end of the file.
    /// `buffer_offset` is where the bytes go, from the start of the buffer.
    ///
    /// With a stream of the buffer's device it returns when the file was read and the copies are enqueued:
    /// work that is enqueued on the stream afterwards sees the bytes, other work does not yet.
    #[pyo3(signature = (buffer, offset = Count(0), length = None, stream = None, *, buffer_offset = Count(0)),
           text_signature = "($self, buffer, offset=0, length=None, stream=None, *, buffer_offset=0)")]
    fn read_into(
        &self,
        buffer: &Bound<'_, PyAny>,
        offset: Count,
        length: Option<Count>,
        stream: Option<RawStream>,
        buffer_offset: Count,
    ) -> PyResult<u64> {
        let (py, file, offset) = (buffer.py(), self.file()?, offset.0);
        let mut lent = Lent::by(buffer, Role::Destination)?;
        let bytes = readable(offset, self.length(&mut lent, offset, length, buffer_offset)?);
        if bytes == 0 {
            return Ok(0);
        }
        if let Some(stream) = stream {
            let Some((pending, _)) = submit_on(py, &file, lent, (offset, bytes), stream)? else { return Ok(0) };
            // The rest is the stream's; the request keeps the memory until it has landed.
            return detached(py, || pending.into_host().wait()).map_err(|error| of_request(&error));
        }
        let (router, slice, producer) = (&lent.router, lent.first(bytes), lent.producer);
        let outcome = detached(py, || {
            Lent::settle(router, producer).map_err(|error| bifolio_io::Error::device(file.path(), error))?;
            router.read(&file, offset, Some(bytes), slice, &READ)
        });
        outcome.map(|report| report.bytes).or_else(|error| beyond_the_end(error, 0))
    }

    /// Writes a buffer, or its first `length` bytes, to the file at `offset`, growing it where it ends
    /// before, and waits. A durable write returns when the bytes would survive a loss of power. Returns how
    /// many bytes were written: all of them.
    #[pyo3(signature = (buffer, offset = Count(0), length = None, durable = false, stream = None, *, buffer_offset = Count(0)),
           text_signature = "($self, buffer, offset=0, length=None, durable=False, stream=None, *, buffer_offset=0)")]
    fn write_from(
        &self,
        buffer: &Bound<'_, PyAny>,
        offset: Count,
        length: Option<Count>,
        durable: bool,
        stream: Option<RawStream>,
        buffer_offset: Count,
    ) -> PyResult<u64> {
        let (file, offset) = (self.writable_file()?, offset.0);
        let mut lent = Lent::by(buffer, Role::Source)?;
        let bytes = self.length(&mut lent, offset, length, buffer_offset)?;
        let producers = producers(&lent, bytes, stream)?;
        let (router, slice) = (&lent.router, lent.first(bytes));
        let outcome = detached(buffer.py(), || {
            for producer in producers {
                Lent::settle(router, producer).map_err(|error| bifolio_io::Error::device(file.path(), error))?;
            }
            router.write(&file, offset, slice, &write_options(durable))
        });
        outcome.map(|report| report.bytes).map_err(|error| of_request(&error))
    }

    /// Reads many extents of the file by one request, and waits: each is (offset, length, place), where the
    /// place counts from the start of the buffer. They may overlap in the file, not in the buffer. Extents
    /// beyond the end of the file are cut short. Returns how many bytes were read.
    fn read_batch(&self, buffer: &Bound<'_, PyAny>, extents: &Bound<'_, PyAny>) -> PyResult<u64> {
        let file = self.file()?;
        let extents = extents_of(extents)?;
        let lent = Lent::by(buffer, Role::Destination)?;
        let (router, slice, producer) = (&lent.router, lent.first(lent.bytes), lent.producer);
        let outcome = detached(buffer.py(), || {
            Lent::settle(router, producer).map_err(|error| bifolio_io::Error::device(file.path(), error))?;
            router.read_batch(&file, &extents, slice, &READ)
        });
        outcome.map(|report| report.bytes).map_err(|error| of_request(&error))
    }

    /// `read_into` that runs by itself. With a stream the bytes land in its order: after what is enqueued on
    /// it already, before what is enqueued later.
    #[pyo3(signature = (buffer, offset = Count(0), length = None, stream = None, *, buffer_offset = Count(0)),
           text_signature = "($self, buffer, offset=0, length=None, stream=None, *, buffer_offset=0)")]
    fn pread(
        &self,
        buffer: &Bound<'_, PyAny>,
        offset: Count,
        length: Option<Count>,
        stream: Option<RawStream>,
        buffer_offset: Count,
    ) -> PyResult<Future> {
        let (py, file, offset) = (buffer.py(), self.file()?, offset.0);
        let mut lent = Lent::by(buffer, Role::Destination)?;
        // Not cut to the size of the file: writes whose turn comes before may let it grow.
        let bytes = readable(offset, self.length(&mut lent, offset, length, buffer_offset)?);
        if bytes == 0 {
            return Ok(Future::new(Running::Nothing));
        }
        if let Some(stream) = stream {
            let pending = submit_on(py, &file, lent, (offset, bytes), stream)?;
            return Ok(Future::new(
                pending.map_or(Running::Nothing, |(pending, cancel)| Running::OnStream(pending, cancel)),
            ));
        }
        let (router, producer) = (Arc::clone(&lent.router), lent.producer);
        let options = ReadOptions::default();
        let buffer = share(lent, bytes, Some(&options.cancel), false);
        let pending = detached(py, || {
            Lent::settle(&router, producer)?;
            Ok(router.submit_read(&file, offset, Some(bytes), &buffer, &options))
        });
        Ok(Future::new(Running::Read(pending.map_err(|error| of_device(&error))?)))
    }

    /// `write_from` that runs by itself. Requests for the same bytes of this file that are made later come
    /// after it. The end of the interpreter waits for it.
    #[pyo3(signature = (buffer, offset = Count(0), length = None, durable = false, stream = None, *, buffer_offset = Count(0)),
           text_signature = "($self, buffer, offset=0, length=None, durable=False, stream=None, *, buffer_offset=0)")]
    fn pwrite(
        &self,
        buffer: &Bound<'_, PyAny>,
        offset: Count,
        length: Option<Count>,
        durable: bool,
        stream: Option<RawStream>,
        buffer_offset: Count,
    ) -> PyResult<Future> {
        let (file, offset) = (self.writable_file()?, offset.0);
        let mut lent = Lent::by(buffer, Role::Source)?;
        let bytes = self.length(&mut lent, offset, length, buffer_offset)?;
        let producers = producers(&lent, bytes, stream)?;
        let router = Arc::clone(&lent.router);
        let source = share(lent, bytes, None, false);
        let pending = detached(buffer.py(), || {
            for producer in producers {
                Lent::settle(&router, producer)?;
            }
            Ok(router.submit_write(&file, offset, &source, &write_options(durable)))
        });
        Ok(Future::new(Running::Write(pending.map_err(|error| of_device(&error))?)))
    }

    /// `read_batch` that runs by itself.
    fn pread_batch(&self, buffer: &Bound<'_, PyAny>, extents: &Bound<'_, PyAny>) -> PyResult<Future> {
        let file = self.file()?;
        let extents = extents_of(extents)?;
        let lent = Lent::by(buffer, Role::Destination)?;
        let (router, producer, bytes) = (Arc::clone(&lent.router), lent.producer, lent.bytes);
        let options = ReadOptions::default();
        let destination = share(lent, bytes, Some(&options.cancel), false);
        let pending = detached(buffer.py(), || {
            Lent::settle(&router, producer)?;
            Ok(router.submit_batch(&file, extents, &destination, &options))
        });
        Ok(Future::new(Running::Batch(pending.map_err(|error| of_device(&error))?)))
    }

    /// Makes everything written so far durable (`fdatasync`).
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.writable_file()?;
        let device = bifolio_device::DeviceChoice::Exactly(bifolio_device::DeviceId::HOST);
        detached(py, || process::router(device)?.sync(&file)).map_err(|error| of_request(&error))
    }

    /// Says how the file will be read, as `posix_fadvise` does: "normal", "sequential" or "random".
    fn advise(&self, advice: &str) -> PyResult<()> {
        let advice = match advice {
            "normal" => Advice::Normal,
            "sequential" => Advice::Sequential,
            "random" => Advice::Random,
            _ => return Err(bad(format!("unknown advice {advice:?}: use \"normal\", \"sequential\" or \"random\""))),
        };
        self.file()?.advise(advice);
        Ok(())
    }

    /// Plans a read without doing it: which engine would move which bytes into the device (without one, the
    /// first GPU, else the host), what of them is cached, and why.
    #[pyo3(signature = (offset = Count(0), length = None, device = None, engine = None),
           text_signature = "($self, offset=0, length=None, device=None, engine=None)")]
    fn explain<'py>(
        &self,
        py: Python<'py>,
        offset: Count,
        length: Option<Count>,
        device: Option<&str>,
        engine: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let file = self.file()?;
        plan(py, &file, (offset.0, length.map(|length| length.0)), device, engine)
    }

    /// Closes the file. Requests under way go on; further calls are refused.
    fn close(&self) {
        let file = self.open.write().unwrap_or_else(PoisonError::into_inner).take();
        // Outside of the lock: ending registrations with a device may wait for it.
        drop(file);
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Size in bytes, at this moment.
    #[getter]
    fn size(&self) -> PyResult<u64> {
        self.file()?.size().map_err(|error| of_request(&error))
    }

    /// The name under which it was opened.
    #[getter]
    fn name(&self) -> String {
        self.name.display().to_string()
    }

    /// "r" or "r+".
    #[getter]
    fn mode(&self) -> &'static str {
        if self.writable { "r+" } else { "r" }
    }

    /// The file descriptor for reads through the page cache; of a striped set, its first member's.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.file()?.buffered().as_raw_fd())
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().file()?;
        Ok(slf)
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, exception: &Bound<'_, PyTuple>) {
        let _ = exception;
        self.close();
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { ", closed" } else { "" };
        format!("<bifolio.File {:?}, {:?}{closed}>", self.name.display().to_string(), self.mode())
    }
}

/// The streams whose work comes before a write of so many bytes: the memory's own, and the caller's. Arrays
/// without elements have no device that could say whether the stream is one of its own.
fn producers(lent: &Lent, bytes: u64, stream: Option<RawStream>) -> PyResult<[Option<u64>; 2]> {
    if bytes == 0 {
        return Ok([None, None]);
    }
    let Some(RawStream(stream)) = stream else { return Ok([lent.producer, None]) };
    let id = lent.router.device().id();
    if !lent.router.device().capabilities().native_streams.is_yes() {
        return Err(bad(format!("memory of {id} has no streams: omit stream")));
    }
    Ok([lent.producer.filter(|producer| *producer != stream), Some(stream)])
}
