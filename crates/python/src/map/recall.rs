//! What a daemon wants a program to release.

use pyo3::prelude::*;

/// Bytes that a program is asked to release, as others need memory of the device: who has something of them acquired, or in an
/// array, at the end of the time is disconnected from the daemon.
#[pyclass(frozen, get_all, module = "bifolio")]
#[derive(Debug, Clone)]
pub(crate) struct Recall {
    /// Where they begin in the mapping.
    pub(super) offset: u64,
    /// How many they are.
    pub(super) nbytes: u64,
    /// How long there is time, from when this was asked for on.
    pub(super) seconds: f64,
}

#[pymethods]
impl Recall {
    fn __repr__(&self) -> String {
        let Self { offset, nbytes, seconds } = self;
        format!("<bifolio.Recall: {nbytes} bytes from {offset} on, within {seconds:.1} s>")
    }
}
