//! Asks an object for its memory, in one way after the other.

use super::lent::{Lent, Role};
use super::{array, cuda_array, dlpack, protocol, torch};
use crate::memory::Memory;
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The type, by its address, that last said no to the buffer protocol and had the CUDA array interface. It
/// is asked for that first, since making an exception takes a third of a microsecond or more. Where the
/// address has become another type's, that one is asked in another order, and answers the same.
static ON_DEVICES: AtomicUsize = AtomicUsize::new(0);

impl Lent {
    /// The memory of any object.
    pub(crate) fn by(object: &Bound<'_, PyAny>, role: Role) -> PyResult<Self> {
        if let Ok(memory) = object.cast_exact::<Memory>() {
            return Ok(memory.get().lend());
        }
        let class = object.get_type_ptr() as usize;
        if class == ON_DEVICES.load(Ordering::Relaxed) {
            match cuda_array::lend(object, role) {
                Ok(Some(lent)) => return Ok(lent),
                Err(error) if !is_answer(object, &error) => return Err(error),
                // The array may be one that the CPU can reach.
                _ => {}
            }
        }
        // SAFETY: a question about the object's type.
        let has_protocol = unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 1;
        let refusal = match has_protocol.then(|| protocol::view(object)) {
            Some(Ok(view)) => return protocol::lend(object, view, role),
            Some(Err(error)) if !is_answer(object, &error) => return Err(error),
            refusal => refusal.and_then(Result::err),
        };
        if let Some(lent) = torch::lend(object, role)? {
            return Ok(lent);
        }
        if let Some(lent) = cuda_array::lend(object, role)? {
            if refusal.is_some() {
                ON_DEVICES.store(class, Ordering::Relaxed);
            }
            return Ok(lent);
        }
        if let Some(lent) = dlpack::lend(object, role)? {
            return Ok(lent);
        }
        Err(refusal.unwrap_or_else(|| {
            PyTypeError::new_err(format!(
                "expected an array or tensor with the buffer protocol, the CUDA array interface or DLPack, got {}",
                array::type_name(object)
            ))
        }))
    }
}

/// Whether an exception is an object's answer, and not Ctrl-C or the end of the program.
fn is_answer(object: &Bound<'_, PyAny>, error: &PyErr) -> bool {
    error.is_instance_of::<PyException>(object.py())
}
