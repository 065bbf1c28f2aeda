//! Files mapped into the memory of a device, through the page cache of the process.
//!
//! ```text
//!   Mapping  --acquired()-->  Acquired         both lend memory (`lend`): the buffer protocol on hosts, the CUDA
//!      |                         |             array interface on GPUs, DLPack on both
//!    Held: the file and what is mapped of it
//! ```
//!
//! Only what was acquired has memory behind it, so nothing else is lent. Whoever borrows keeps the memory in
//! place (`bifolio_cache::Pin`), also beyond a release, a close and the end of these objects: an array never
//! points to memory that is gone. The lock of a mapping is waited for without the interpreter's.

mod acquired;
mod held;
mod lend;
mod recall;
mod report;

use crate::buffer::{self, Lent, Role};
use crate::count::Count;
use crate::error::{bad, of_cache};
use crate::explain::{choice_of, to_python};
use crate::life::{Shared, begin, detached};
use crate::stream::RawStream;
use bifolio_cache::Advice;
use bifolio_cache::process::cache;
use bifolio_device::DeviceChoice;
use held::{Held, Wanted};
use lend::Lender;
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ffi::c_int;
use std::path::PathBuf;

pub(crate) use acquired::Acquired;
pub(crate) use held::end;
pub(crate) use recall::Recall;
pub(crate) use report::Report;

/// A range of a file at addresses of a device. Bytes are there between an acquire and the release that belongs
/// to it; the address of a byte stays the same until the mapping is closed.
///
/// Arrays that are made of it need all of it acquired. They keep its memory in place for as long as they live,
/// beyond a release and a close: what is read there then may be old, and what is written there may be lost, until
/// the range is acquired again. The CUDA array interface cannot say when an array has gone: there the memory
/// stays until the mapping object itself goes.
#[pyclass(frozen, module = "bifolio", weakref)]
#[derive(Debug)]
pub(crate) struct Mapping {
    lender: Lender,
}

/// Maps a range of a file into the memory of a device, without a length to the end of the file. Nothing is read
/// before it is acquired. Mappings of a file share its pages, which stay cached while anybody in the process has
/// the file mapped. Without a device: the one that BIFOLIO_DEVICE names, else the first GPU, else "host:0";
/// "host:0" to "host:3" are devices with memory of their own.
///
/// With `shared` it is mapped through the cache of the daemon (`python -m bifolio.daemon`, or `bifolio daemon`), on a device of
/// its: what any process has brought there is there for all. Without a device it is the same one as above if the daemon has it,
/// else its first. `ConnectionError` where no daemon runs.
#[pyfunction]
#[pyo3(signature = (path, offset = Count(0), length = None, writable = false, device = None, *, shared = false),
       text_signature = "(path, offset=0, length=None, writable=False, device=None, *, shared=False)")]
pub(crate) fn map(
    py: Python<'_>,
    path: PathBuf,
    offset: Count,
    length: Option<Count>,
    writable: bool,
    device: Option<&str>,
    shared: bool,
) -> PyResult<Mapping> {
    begin()?;
    let is_named = device.is_some();
    let DeviceChoice::Exactly(device) = choice_of(py, device)? else { return Err(bad("no device was found")) };
    let wanted = Wanted { offset: offset.0, length: length.map(|length| length.0), writable, device };
    let held = detached(py, || if shared { Held::shared(path, &wanted, is_named) } else { Held::new(path, &wanted) })?;
    let whole = 0..held.bytes;
    Ok(Mapping { lender: Lender::new(Shared::new(held), whole) })
}

/// What the page cache of the process holds on each device that something was mapped on ("devices"), and what has
/// happened to pages since it was made ("hits", "fetched", ...; see `Report`).
#[pyfunction]
pub(crate) fn cache_stats(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    begin()?;
    let (stats, counts) =
        detached(py, || cache().map(|cache| (cache.stats(), cache.counts()))).map_err(|error| of_cache(&error))?;
    let device = |stats: &bifolio_cache::Stats| {
        serde_json::json!({
            "device": stats.device.to_string(),
            "used_bytes": stats.used_bytes,
            "budget_bytes": stats.budget_bytes,
            "pages": stats.pages,
            "behind": stats.behind,
            "pending": stats.pending,
        })
    };
    let devices: Vec<_> = stats.iter().map(device).collect();
    let mut numbers: serde_json::Map<String, serde_json::Value> =
        report::named(&counts).map(|(name, number)| (name.to_owned(), number.into())).collect();
    numbers.insert("devices".to_owned(), devices.into());
    to_python(py, &numbers)
}

impl Mapping {
    fn held(&self) -> PyResult<&Held> {
        begin()?;
        Ok(&self.lender.held)
    }

    /// The part that an offset and a length name.
    fn part(&self, offset: Count, length: Option<Count>) -> std::ops::Range<u64> {
        let end = length.map_or(self.lender.held.bytes, |length| offset.0.saturating_add(length.0));
        offset.0..end
    }
}

#[pymethods]
impl Mapping {
    /// Brings a part up to date and keeps it where it is until it is released: what other devices have released,
    /// and CPU processes have written, is seen; what was changed here and not released stays. Waits for earlier
    /// work on the device's default stream, and on `stream` if there is one.
    #[pyo3(signature = (offset = Count(0), length = None, stream = None),
           text_signature = "($self, offset=0, length=None, stream=None)")]
    fn acquire(
        &self,
        py: Python<'_>,
        offset: Count,
        length: Option<Count>,
        stream: Option<RawStream>,
    ) -> PyResult<Report> {
        let (held, part) = (self.held()?, self.part(offset, length));
        detached(py, || held.acquire(part, stream))
    }

    /// Publishes what was changed in a part that was acquired as such, and lets go of its memory. Waits for
    /// earlier work on the device's default stream, and on `stream` if there is one.
    #[pyo3(signature = (offset = Count(0), length = None, stream = None),
           text_signature = "($self, offset=0, length=None, stream=None)")]
    fn release(
        &self,
        py: Python<'_>,
        offset: Count,
        length: Option<Count>,
        stream: Option<RawStream>,
    ) -> PyResult<Report> {
        let (held, part) = (self.held()?, self.part(offset, length));
        detached(py, || held.release(part, stream))
    }

    /// A context manager that acquires a part, and releases it at its end. What it returns lends that part's
    /// memory: `with mapping.acquired(0, 4096) as part: numpy.asarray(part)`.
    #[pyo3(signature = (offset = Count(0), length = None, stream = None),
           text_signature = "($self, offset=0, length=None, stream=None)")]
    fn acquired(&self, offset: Count, length: Option<Count>, stream: Option<RawStream>) -> PyResult<Acquired> {
        self.held()?;
        Ok(Acquired::new(Lender::new(self.lender.held.clone(), self.part(offset, length)), stream))
    }

    /// Says what will be done with a part: `"will_need"` brings it in the background as far as there is room,
    /// `"dont_need"` gives back the memory of what is not acquired; `"random"` ends bringing ahead what follows a
    /// sequence of acquires, in all of the mapping, and `"normal"` begins it again.
    #[pyo3(signature = (advice, offset = Count(0), length = None), text_signature = "($self, advice, offset=0, length=None)")]
    fn advise(&self, py: Python<'_>, advice: &str, offset: Count, length: Option<Count>) -> PyResult<()> {
        let advice = match advice {
            "normal" => Advice::Normal,
            "random" => Advice::Random,
            "will_need" => Advice::WillNeed,
            "dont_need" => Advice::DontNeed,
            other => {
                let choices = "use \"will_need\", \"dont_need\", \"random\" or \"normal\"";
                return Err(bad(format!("unknown advice {other:?}: {choices}")));
            }
        };
        let (held, part) = (self.held()?, self.part(offset, length));
        detached(py, || held.advise(part, advice))
    }

    /// Publishes what was changed in all that is acquired, which stays so, writes everything released to the
    /// file, by whatever device, and makes it durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let held = self.held()?;
        detached(py, || held.sync())
    }

    /// Gives the memory of the device back, and stays where it is: what was acquired is released, what was changed is
    /// published, and arrays that were made of it are not to be used until `wake()` has brought everything back to the same
    /// addresses. What the file has comes from the page cache then.
    fn sleep(&self, py: Python<'_>) -> PyResult<()> {
        let held = self.held()?;
        detached(py, || held.sleep())
    }

    /// Brings back what was acquired when it went to sleep; nothing if it is awake.
    fn wake(&self, py: Python<'_>) -> PyResult<Report> {
        let held = self.held()?;
        detached(py, || held.wake())
    }

    /// Whether it sleeps.
    #[getter]
    fn sleeps(&self, py: Python<'_>) -> PyResult<bool> {
        let held = self.held()?;
        detached(py, || held.sleeps())
    }

    /// What the daemon wants to have released of it, as other programs need memory of the device, and is in use: release it, let
    /// arrays go, or call `sleep()`. Who keeps it longer is disconnected. Nothing of a mapping that is not shared.
    fn recalls(&self, py: Python<'_>) -> PyResult<Vec<Recall>> {
        let held = self.held()?;
        detached(py, || held.recalls())
    }

    /// Reads bytes of the range as a CPU, into host memory: what devices have released is seen. Needs no acquire.
    /// Returns how many bytes were read, which are fewer only at the end of the range.
    #[pyo3(signature = (buffer, offset = Count(0)), text_signature = "($self, buffer, offset=0)")]
    fn read_into(&self, buffer: &Bound<'_, PyAny>, offset: Count) -> PyResult<u64> {
        let (held, lent) = (self.held()?, host_memory(buffer, Role::Destination)?);
        let bytes = lent.bytes.min(held.bytes.saturating_sub(offset.0)) as usize;
        if bytes == 0 {
            return Ok(0);
        }
        // SAFETY: the exporter keeps the memory; who else uses it meanwhile gets what races give.
        let memory = unsafe { std::slice::from_raw_parts_mut(lent.address.0 as *mut u8, bytes) };
        detached(buffer.py(), || held.read(offset.0, memory))
    }

    /// Writes host memory to the range as a CPU: devices see it from their next acquire on, and only pages that
    /// it touched move again. Needs no acquire. Returns how many bytes were written: all of them.
    #[pyo3(signature = (buffer, offset = Count(0)), text_signature = "($self, buffer, offset=0)")]
    fn write_from(&self, buffer: &Bound<'_, PyAny>, offset: Count) -> PyResult<u64> {
        let (held, lent) = (self.held()?, host_memory(buffer, Role::Source)?);
        held.check_write(offset.0, lent.bytes)?;
        if lent.bytes == 0 {
            return Ok(0);
        }
        // SAFETY: as above.
        let memory = unsafe { std::slice::from_raw_parts(lent.address.0 as *const u8, lent.bytes as usize) };
        detached(buffer.py(), || held.write(offset.0, memory))
    }

    /// Ends the mapping. What was changed and not released is discarded, with a warning. Arrays that were made of
    /// it stay readable. Closing it again does nothing. If nobody else has the file mapped, what was released is written
    /// to it: OSError if that fails. The mapping is closed then as well, and what cannot be written is tried again until
    /// the process ends.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let held = self.held()?;
        let discarded = detached(py, || held.close())?;
        if discarded == 0 {
            return Ok(());
        }
        let text = format!(
            "{}: the mapping was closed with {discarded} pages that were changed and not released; their changes are lost: call release() or sync() first",
            held.path.display()
        );
        let text = std::ffi::CString::new(text.replace('\0', " "))?;
        PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1)
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        let held = self.held()?;
        Ok(detached(py, || held.is_closed()))
    }

    /// The file's name, as it was given.
    #[getter]
    fn path(&self) -> String {
        self.lender.held.path.display().to_string()
    }

    /// Where it begins in the file.
    #[getter]
    fn offset(&self) -> u64 {
        self.lender.held.offset
    }

    /// Length in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.lender.held.bytes
    }

    /// The device's name, such as "cuda:0".
    #[getter]
    fn device(&self) -> String {
        self.lender.held.device.to_string()
    }

    /// Whether what is written to it is published.
    #[getter]
    fn writable(&self) -> bool {
        self.lender.held.writable
    }

    /// The first address, as the device knows it. Only what is acquired has memory there: anything else faults.
    #[getter]
    fn ptr(&self) -> u64 {
        self.lender.address()
    }

    fn __len__(&self) -> usize {
        self.lender.bytes() as usize
    }

    fn __repr__(&self) -> String {
        let Held { path, bytes, device, writable, .. } = &*self.lender.held;
        let access = if *writable { "writable" } else { "read-only" };
        format!("<bifolio.Mapping {:?}: {bytes} bytes on {device}, {access}>", path.display().to_string())
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let held = slf.get().held()?;
        detached(slf.py(), || held.check_open())?;
        Ok(slf)
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let _ = exception;
        self.close(py)
    }

    /// The CUDA array interface: an array of bytes. All of it has to be acquired.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.lender.cuda_array(py)
    }

    /// The device as DLPack numbers it.
    fn __dlpack_device__(&self) -> (i32, i32) {
        buffer::dlpack_device(self.lender.held.device)
    }

    /// A DLPack capsule: an array of bytes. All of it has to be acquired.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // Whatever the consumer's stream: an acquire returns when the bytes are in place.
        let _ = stream;
        self.lender.dlpack(py, buffer::Wanted { max_version, device: dl_device, copy })
    }

    /// As a NumPy array, on "host:N" only. All of it has to be acquired.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Lender::array(slf.as_any(), dtype, copy)
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: what the interpreter passes is passed on.
        unsafe { slf.get().lender.fill(slf.as_any(), view, flags) }
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: a view of `__getbuffer__`, released once.
        unsafe { self.lender.empty(view) };
    }
}

fn host_memory(object: &Bound<'_, PyAny>, role: Role) -> PyResult<Lent> {
    let lent = Lent::by(object, role)?;
    if !lent.router.device().capabilities().host_addressable.is_yes() {
        return Err(bad(
            "read_into() and write_from() of a mapping take host memory, such as a bytearray or a NumPy array",
        ));
    }
    Ok(lent)
}
