//! What devices there are, and measuring the paths to them.

use crate::error::{of_device, of_request};
use crate::explain::{choice_of, to_python};
use crate::life::{begin, detached, is_ending};
use bifolio_device::{BackendReport, DeviceChoice, DeviceId, DeviceInfo, discover, open};
use bifolio_io::calibrate::{Options, calibrate as measure};
use bifolio_io::{Cancel, Router, RouterOptions};
use pyo3::prelude::*;
use std::path::PathBuf;

/// The devices that were found: a dictionary each, with "id", "name", "memory_bytes", "capabilities" and more.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    begin()?;
    let reports = detached(py, discover);
    let devices: Vec<DeviceInfo> = reports.into_iter().flat_map(|report| report.devices).collect();
    to_python(py, &devices)
}

/// The device that stands for none: that of the variable BIFOLIO_DEVICE, else the first GPU, else "host:0".
#[pyfunction]
pub(crate) fn default_device(py: Python<'_>) -> PyResult<String> {
    begin()?;
    match choice_of(py, None)? {
        DeviceChoice::Exactly(id) => Ok(id.to_string()),
        DeviceChoice::Auto => Ok(DeviceId::HOST.to_string()),
    }
}

/// What every backend found, with its libraries and what is missing and why.
#[pyfunction]
pub(crate) fn backends(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    begin()?;
    let reports: Vec<BackendReport> = detached(py, discover);
    to_python(py, &reports)
}

/// Measures every path between the file system of a folder and a device, and keeps the profile: processes
/// that start afterwards plan with it. Takes seconds to minutes, and needs room for a scratch file of `size`
/// bytes in the folder. Ctrl-C ends it.
#[pyfunction]
#[pyo3(signature = (folder, device = None, *, size = 1 << 30, repetitions = 9),
       text_signature = "(folder, device=None, *, size=1073741824, repetitions=9)")]
pub(crate) fn calibrate<'py>(
    py: Python<'py>,
    folder: PathBuf,
    device: Option<&str>,
    size: u64,
    repetitions: u32,
) -> PyResult<Bound<'py, PyAny>> {
    begin()?;
    let choice = choice_of(py, device)?;
    let device = detached(py, || open(choice)).map_err(|error| of_device(&error))?;
    let mut interrupted = None;
    let measured = detached(py, || {
        let cancel = Cancel::default();
        let router = Router::new(&device, RouterOptions { cancel: cancel.clone(), ..RouterOptions::default() });
        let options = Options { bytes: size, repetitions, ..Options::default() };
        let mut look_for_signals = |_: &str, _: f64| {
            let pressed = Python::try_attach(|py| py.check_signals().err()).flatten();
            if pressed.is_some() || is_ending() {
                cancel.cancel();
                interrupted = interrupted.take().or(pressed);
            }
        };
        let profile = measure(&router, &folder, &options, &mut look_for_signals)?;
        if let Some(path) = profile.default_path() {
            profile.store(&path)?;
        }
        Ok(profile)
    });
    match (interrupted, measured) {
        (Some(error), _) => Err(error),
        (None, Ok(profile)) => to_python(py, &profile),
        (None, Err(error)) => Err(of_request(&error)),
    }
}
