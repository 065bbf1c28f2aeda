//! Offsets and lengths: whole numbers that are not negative.

use crate::error::bad;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// A number of bytes from Python.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Count(pub(crate) u64);

impl<'py> FromPyObject<'_, 'py> for Count {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        object.extract::<u64>().map(Self).map_err(|error| {
            if error.is_instance_of::<PyTypeError>(object.py()) {
                return error;
            }
            let shown = object.str().map_or_else(|_| "a number".to_owned(), |text| text.to_string());
            bad(format!("an offset or length must be from 0 to 2**64 - 1 bytes, got {shown}"))
        })
    }
}
