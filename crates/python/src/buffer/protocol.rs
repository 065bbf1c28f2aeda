//! Host memory by the buffer protocol: NumPy, bytearray, memoryview, mmap, `array.array`.

use super::array::{not_contiguous, read_only};
use super::lent::{Lent, Role};
use crate::life::{Keeper, View};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_char;

/// A view of an object with the protocol, which neither moves nor resizes until it is released; the
/// exporter's exception where it gives none.
pub(super) fn view(object: &Bound<'_, PyAny>) -> PyResult<View> {
    // Not PyBUF_FORMAT: NumPy has types that it cannot describe, whose bytes are as good as any. Not
    // PyBUF_WRITABLE either, so that a refusal is told in our words.
    // SAFETY: the structure is filled by the call, for which zeroes are a valid start.
    let mut view = Box::new(unsafe { std::mem::zeroed::<ffi::Py_buffer>() });
    // SAFETY: the object has the protocol, and the structure may be written.
    if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, ffi::PyBUF_STRIDES) } != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    Ok(View(view))
}

/// What an object with the protocol lends by a view.
pub(super) fn lend(object: &Bound<'_, PyAny>, view: View, role: Role) -> PyResult<Lent> {
    if role == Role::Destination && view.0.readonly != 0 {
        return Err(read_only(object));
    }
    // SAFETY: the view was filled.
    if unsafe { ffi::PyBuffer_IsContiguous(&raw const *view.0, b'C' as c_char) } == 0 {
        return Err(not_contiguous(object));
    }
    let (address, bytes) = (view.0.buf as u64, view.0.len as u64);
    Lent::of_host(object.py(), address, bytes, Keeper::View(view))
}
