//! Streams of a caller's: numbers, and objects that have one.

use crate::error::bad;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBool;

/// A `CUstream` as a number; 0 is the device's default stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawStream(pub(crate) u64);

impl<'py> FromPyObject<'_, 'py> for RawStream {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        if object.is_instance_of::<PyBool>() {
            return Err(not_a_stream(object));
        }
        // PyTorch's, CuPy's, and the protocol that NVIDIA's packages share: (version, number).
        if let Some(number) = object.getattr_opt(intern!(py, "cuda_stream"))? {
            return Self::number(&number);
        }
        if let Some(protocol) = object.getattr_opt(intern!(py, "__cuda_stream__"))? {
            let pair = if protocol.is_callable() { protocol.call0()? } else { protocol };
            let (version, number): (u64, Bound<'_, PyAny>) = pair.extract()?;
            if version > 0 {
                return Err(bad(format!(
                    "version {version} of the __cuda_stream__ protocol is not supported; version 0 is"
                )));
            }
            return Self::number(&number);
        }
        if let Some(number) = object.getattr_opt(intern!(py, "ptr"))? {
            return Self::number(&number);
        }
        object.extract::<u64>().map(Self).map_err(|_| not_a_stream(object))
    }
}

impl RawStream {
    fn number(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        object.extract::<u64>().map(Self).map_err(|_| not_a_stream(object.as_borrowed()))
    }
}

fn not_a_stream(object: Borrowed<'_, '_, PyAny>) -> PyErr {
    let shown = object.repr().map_or_else(|_| "this".to_owned(), |text| text.to_string());
    PyTypeError::new_err(format!(
        "expected a stream of PyTorch or CuPy, an object with __cuda_stream__, or the address of a CUstream, got {shown}"
    ))
}
