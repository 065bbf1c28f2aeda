//! A part of a mapping, acquired for the time of a `with`.

use super::Report;
use super::lend::Lender;
use crate::buffer;
use crate::life::{begin, detached};
use crate::stream::RawStream;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// A part of a mapping: acquired where the `with` begins, and released where it ends, also by an exception. It
/// lends the memory of that part. Arrays may outlive it, as those of the mapping may.
#[pyclass(frozen, module = "bifolio")]
#[derive(Debug)]
pub(crate) struct Acquired {
    lender: Lender,
    stream: Option<RawStream>,
    state: Mutex<State>,
}

#[derive(Debug, Clone)]
enum State {
    Before,
    Within(Report),
    After(Report, Report),
}

impl Acquired {
    pub(super) fn new(lender: Lender, stream: Option<RawStream>) -> Self {
        Self { lender, stream, state: Mutex::new(State::Before) }
    }

    fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

#[pymethods]
impl Acquired {
    /// What the acquire has done; None before.
    #[getter]
    fn report(&self) -> Option<Report> {
        match self.state() {
            State::Before => None,
            State::Within(report) | State::After(report, _) => Some(report),
        }
    }

    /// What the release has done; None before.
    #[getter]
    fn released(&self) -> Option<Report> {
        match self.state() {
            State::After(_, report) => Some(report),
            _ => None,
        }
    }

    /// Length in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.lender.bytes()
    }

    /// The device's name, such as "cuda:0".
    #[getter]
    fn device(&self) -> String {
        self.lender.held.device.to_string()
    }

    /// The first address, as the device knows it.
    #[getter]
    fn ptr(&self) -> u64 {
        self.lender.address()
    }

    fn __len__(&self) -> usize {
        self.lender.bytes() as usize
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        begin()?;
        let acquired = slf.get();
        if !matches!(acquired.state(), State::Before) {
            return Err(PyValueError::new_err("this range was already acquired: call mapping.acquired() again"));
        }
        let (held, part, stream) = (&*acquired.lender.held, acquired.lender.part.clone(), acquired.stream);
        let report = detached(slf.py(), || held.acquire(part, stream))?;
        acquired.set(State::Within(report));
        Ok(slf)
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        begin()?;
        let _ = exception;
        let State::Within(acquired) = self.state() else { return Ok(()) };
        let (held, part, stream) = (&*self.lender.held, self.lender.part.clone(), self.stream);
        // Whoever has closed the mapping meanwhile has ended this, too.
        if !detached(py, || held.is_closed()) {
            let released = detached(py, || held.release(part, stream))?;
            self.set(State::After(acquired, released));
        }
        Ok(())
    }

    /// The CUDA array interface: an array of bytes.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.lender.cuda_array(py)
    }

    /// The device as DLPack numbers it.
    fn __dlpack_device__(&self) -> (i32, i32) {
        buffer::dlpack_device(self.lender.held.device)
    }

    /// A DLPack capsule: an array of bytes.
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
