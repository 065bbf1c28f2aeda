//! The end of the interpreter, above everything that has to be over before: requests ([`life`]), then mappings.

use crate::{life, map};
use pyo3::prelude::*;

/// Has the interpreter call `end` before it ends.
pub(crate) fn watch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let end = wrap_pyfunction!(end, module)?;
    module.py().import("atexit")?.call_method1("register", (end,))?;
    Ok(())
}

#[pyfunction]
fn end(py: Python<'_>) -> PyResult<()> {
    life::end(py, map::end)
}
