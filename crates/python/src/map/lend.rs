//! Lending acquired memory: the buffer protocol, the CUDA array interface, DLPack.

use super::held::{Held, Kept};
use crate::buffer;
use crate::life::{Shared, begin, detached};
use bifolio_device::{BackendKind, DeviceId};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// A part of a mapping whose memory can be lent.
#[derive(Debug)]
pub(super) struct Lender {
    pub(super) held: Shared<Held>,
    pub(super) part: Range<u64>,
    /// For borrowers that do not say when they are done: kept for as long as this.
    kept: Mutex<Option<Shared<Kept>>>,
}

impl Lender {
    pub(super) fn new(held: Shared<Held>, part: Range<u64>) -> Self {
        Self { held, part, kept: Mutex::default() }
    }

    pub(super) fn address(&self) -> u64 {
        self.held.address + self.part.start
    }

    pub(super) fn bytes(&self) -> u64 {
        self.part.end.saturating_sub(self.part.start)
    }

    /// Keeps the memory; a `BufferError` where it is not all acquired.
    fn keep(&self, py: Python<'_>) -> PyResult<Kept> {
        begin()?;
        let (held, part) = (&*self.held, self.part.clone());
        detached(py, || held.pin(part)).map_err(|error| {
            if error.is_instance_of::<PyValueError>(py) {
                return PyBufferError::new_err(error.value(py).to_string());
            }
            error
        })
    }

    pub(super) fn cuda_array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let id: DeviceId = self.held.device;
        if id.backend != BackendKind::Cuda {
            return Err(PyAttributeError::new_err(format!("memory of {id} has no CUDA array interface")));
        }
        // Also where it is kept already: what was released since is not lent again.
        let fresh = Shared::new(self.keep(py)?);
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fresh);
        let interface = PyDict::new(py);
        interface.set_item("shape", (self.bytes(),))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (self.address(), !self.held.writable))?;
        interface.set_item("strides", py.None())?;
        interface.set_item("version", 3)?;
        // An acquire returns when the bytes are in place: there is nothing to wait for.
        interface.set_item("stream", py.None())?;
        Ok(interface)
    }

    pub(super) fn dlpack<'py>(&self, py: Python<'py>, wanted: buffer::Wanted) -> PyResult<Bound<'py, PyAny>> {
        let Held { device, writable, .. } = *self.held;
        let memory = buffer::ExportedMemory { device, address: self.address(), bytes: self.bytes(), writable };
        buffer::export(py, memory, wanted, || Ok(Arc::new(self.keep(py)?) as buffer::Kept))
    }

    /// What NumPy asks where the buffer protocol has refused, whose sentence it does not pass on.
    pub(super) fn array<'py>(
        lender: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let numpy = lender.py().import("numpy")?;
        let bytes = numpy.call_method1("frombuffer", (lender, "uint8"))?;
        let options = PyDict::new(lender.py());
        options.set_item("copy", copy)?;
        numpy.call_method("array", (bytes, dtype), Some(&options))
    }

    /// Fills a view of the buffer protocol.
    ///
    /// # Safety
    /// `view` is a structure to fill, and `lender` the object that has this.
    pub(super) unsafe fn fill(
        &self,
        lender: &Bound<'_, PyAny>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: the caller's promise; the object is NULL where nothing is lent.
        unsafe { (*view).obj = std::ptr::null_mut() };
        let id = self.held.device;
        if id.backend != BackendKind::Host {
            let sentence = format!("memory of {id} is not host memory: use the CUDA array interface or read_into()");
            return Err(PyBufferError::new_err(sentence));
        }
        let kept = Shared::new(self.keep(lender.py())?);
        let (start, bytes) = (self.address() as *mut c_void, self.bytes().cast_signed() as isize);
        let is_read_only = c_int::from(!self.held.writable);
        // SAFETY: the memory is there, and stays until the view is released.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, lender.as_ptr(), start, bytes, is_read_only, flags) };
        if filled != 0 {
            return Err(PyErr::fetch(lender.py()));
        }
        // SAFETY: the field is the exporter's.
        unsafe { (*view).internal = Box::into_raw(Box::new(kept)).cast() };
        Ok(())
    }

    /// Takes back what `fill` has put into a view.
    ///
    /// # Safety
    /// `view` was filled by `fill`, and is released once.
    pub(super) unsafe fn empty(&self, view: *mut ffi::Py_buffer) {
        debug_assert_eq!(self.held.device.backend, BackendKind::Host, "nothing else is lent this way");
        // SAFETY: the caller's promise.
        let kept = unsafe { std::mem::replace(&mut (*view).internal, std::ptr::null_mut()) };
        if !kept.is_null() {
            // SAFETY: made by `fill`.
            drop(unsafe { Box::from_raw(kept.cast::<Shared<Kept>>()) });
        }
    }
}
