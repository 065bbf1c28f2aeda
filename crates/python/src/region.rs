//! Host memory that may be larger than what of it is in memory: the rest is on a device.
//!
//! Views are counted, as those of a `bytearray` are: while there are any the memory stays. The thread that answers page
//! faults never touches the interpreter, so a fault may be met with or without its lock.

use crate::count::Count;
use crate::error::{bad, of_region};
use crate::explain::{choice_of, to_python};
use crate::life::{Shared, begin, detached};
use bifolio_device::open;
use bifolio_paging::region::{BUDGET_MIN, Region as Paged, RegionOptions};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Host memory of which no more than a budget is in memory at a time; what has not been used for longest is on a device.
/// It lends itself by the buffer protocol, writable: `numpy.frombuffer(region, "float64")`.
///
/// Who touches what is on the device waits for some microseconds. The device has the only copy: if it does not give
/// one back, the process gets SIGBUS, as nothing else can be shown. A child of fork has none of the memory (SIGSEGV): start
/// children by "spawn".
#[pyclass(frozen, module = "bifolio", weakref)]
#[derive(Debug)]
pub(crate) struct Region {
    state: Mutex<State>,
    bytes: u64,
    device: String,
}

#[derive(Debug)]
struct State {
    /// None once it was closed.
    memory: Option<Shared<Paged>>,
    budget: u64,
    /// Views of the buffer protocol that were not released.
    views: usize,
}

/// Allocates host memory of which at most `budget` bytes, at least 512 KiB, are in memory at a time. The rest is in the
/// memory of a device, at most `device_bytes` of it: without a number, all. It begins as zeroes. Without a device: the
/// one that BIFOLIO_DEVICE names, else the first GPU, else "host:0". PermissionError where the kernel does not let the
/// process handle page faults (userfaultfd), as in containers that forbid it.
#[pyfunction]
#[pyo3(signature = (nbytes, budget, device = None, *, device_bytes = None),
       text_signature = "(nbytes, budget, device=None, *, device_bytes=None)")]
pub(crate) fn paged(
    py: Python<'_>,
    nbytes: Count,
    budget: Count,
    device: Option<&str>,
    device_bytes: Option<Count>,
) -> PyResult<Region> {
    begin()?;
    let choice = choice_of(py, device)?;
    let device_bytes = device_bytes.map_or(nbytes.0, |count| count.0);
    let options = RegionOptions { bytes: nbytes.0, budget: budget.0, device_bytes };
    let made = detached(py, || {
        let device = open(choice)?;
        Ok((device.id().to_string(), Paged::new(&device, options)?))
    });
    let (device, memory) = made.map_err(|error| of_region(&error))?;
    let state = State { memory: Some(Shared::new(memory)), budget: budget.0, views: 0 };
    Ok(Region { state: Mutex::new(state), bytes: nbytes.0, device })
}

impl Region {
    /// Held for moments only, with the interpreter's lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory(&self) -> PyResult<Shared<Paged>> {
        begin()?;
        self.lock().memory.clone().ok_or_else(closed)
    }
}

fn closed() -> PyErr {
    PyValueError::new_err("the region is closed")
}

#[pymethods]
impl Region {
    /// Length in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.bytes
    }

    /// The device's name, such as "cuda:0".
    #[getter]
    fn device(&self) -> &str {
        &self.device
    }

    /// How many bytes may be in memory.
    #[getter]
    fn budget(&self) -> u64 {
        self.lock().budget
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.lock().memory.is_none()
    }

    /// The first address.
    #[getter]
    fn ptr(&self) -> PyResult<u64> {
        Ok(self.memory()?.as_ptr() as u64)
    }

    /// Whether system calls may be given its memory, as by `file.readinto(region)`. Else one that meets bytes that are
    /// on the device fails with EFAULT; the sysctl vm.unprivileged_userfaultfd, or a right to /dev/userfaultfd, lets them.
    #[getter]
    fn serves_system_calls(&self) -> PyResult<bool> {
        Ok(self.memory()?.serves_system_calls())
    }

    /// From now on at most so many bytes may be in memory, at least 512 KiB; others leave within moments.
    fn set_budget(&self, nbytes: Count) -> PyResult<()> {
        let memory = self.memory()?;
        if nbytes.0 < BUDGET_MIN {
            return Err(bad(format!(
                "a budget of {} bytes is too small: at least {BUDGET_MIN} have to be in memory",
                nbytes.0
            )));
        }
        self.lock().budget = nbytes.0;
        memory.set_budget(nbytes.0);
        Ok(())
    }

    /// What has happened to it since it was made, in blocks of 64 KiB: "new_blocks" were touched for the first time,
    /// "fetched" came from the device, "stored" left with a copy, "dropped" without one as the device had it, "zeroes"
    /// as there was nothing in them, "refused" stayed as the device did not take them, "pinned" as direct I/O or a driver
    /// had them, and "lost" cannot be had any more; "resident_bytes" are in memory now, and "device_bytes" on the
    /// device. Numbers are of a moment ago.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let found = self.memory()?.statistics();
        let named = serde_json::json!({
            "new_blocks": found.new_blocks,
            "fetched": found.fetched,
            "stored": found.stored,
            "dropped": found.dropped,
            "zeroes": found.zeroes,
            "refused": found.refused,
            "pinned": found.pinned,
            "lost": found.lost,
            "resident_bytes": found.resident_bytes,
            "device_bytes": found.device_bytes,
        });
        to_python(py, &named)
    }

    /// What went wrong first since this was asked last, as a sentence; None where nothing did.
    fn take_trouble(&self) -> PyResult<Option<String>> {
        Ok(self.memory()?.take_trouble())
    }

    /// Frees the memory, and what of it is on the device. BufferError while there are arrays or views of it. Closing it
    /// again does nothing.
    fn close(&self) -> PyResult<()> {
        begin()?;
        let mut state = self.lock();
        if state.views > 0 {
            let sentence =
                format!("cannot close a region while {} views of it exist: delete its arrays first", state.views);
            return Err(PyBufferError::new_err(sentence));
        }
        let memory = state.memory.take();
        // Its end waits for a thread.
        drop(state);
        drop(memory);
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.bytes as usize
    }

    fn __repr__(&self) -> String {
        let state = self.lock();
        let closed = if state.memory.is_none() { ", closed" } else { "" };
        format!(
            "<bifolio.Region: {} bytes, {} of them in memory, on {}{closed}>",
            self.bytes, state.budget, self.device
        )
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().memory()?;
        Ok(slf)
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let _ = exception;
        self.close()
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: the interpreter passes a structure to fill, whose object is NULL where nothing is lent.
        unsafe { (*view).obj = std::ptr::null_mut() };
        begin()?;
        let region = slf.get();
        let mut state = region.lock();
        let start = state.memory.as_ref().map(|memory| memory.as_ptr()).ok_or_else(closed)?;
        let bytes = region.bytes.cast_signed() as isize;
        // SAFETY: the memory stays until the view is released, as views are counted.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast::<c_void>(), bytes, 0, flags) };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        state.views += 1;
        Ok(())
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        let _ = view;
        self.lock().views -= 1;
    }
}
