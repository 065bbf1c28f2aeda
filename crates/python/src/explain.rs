//! Plans and reports as dictionaries.

use crate::count::Count;
use crate::error::{bad, of_request};
use crate::life::{Shared, begin, detached};
use bifolio_device::{DeviceChoice, DeviceId, choose, discover};
use bifolio_io::{EngineChoice, OpenFile, Router, process};
use pyo3::prelude::*;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::OnceLock;

/// What `serde` can write, as Python has it.
pub(crate) fn to_python<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(value).map_err(|error| bad(format!("cannot serialize the report: {error}")))?;
    py.import("json")?.call_method1("loads", (text,))
}

/// A device by its name; none stands for that of the variable, else for the best one, which is looked for once:
/// that loads drivers.
pub(crate) fn choice_of(py: Python<'_>, device: Option<&str>) -> PyResult<DeviceChoice> {
    static BEST: OnceLock<DeviceId> = OnceLock::new();
    let named = device.map(str::to_owned).or_else(|| std::env::var("BIFOLIO_DEVICE").ok());
    let choice = match named {
        Some(name) => name.parse().map_err(|error| bad(format!("{error}")))?,
        None => DeviceChoice::Auto,
    };
    Ok(match choice {
        DeviceChoice::Auto => {
            let best = BEST.get().copied();
            DeviceChoice::Exactly(best.unwrap_or_else(|| detached(py, || *BEST.get_or_init(|| choose(&discover())))))
        }
        choice @ DeviceChoice::Exactly(_) => choice,
    })
}

/// The plan of a read that is not done.
pub(crate) fn plan<'py>(
    py: Python<'py>,
    file: &OpenFile,
    (offset, length): (u64, Option<u64>),
    device: Option<&str>,
    engine: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    let choice = choice_of(py, device)?;
    let engine: EngineChoice = engine.map_or(Ok(EngineChoice::Auto), |name| name.parse().map_err(bad))?;
    let planned = detached(py, || {
        let router = process::router(choice)?;
        let (plan, residency) = router.explain(file, offset, length, engine)?;
        Ok((router.device().id().to_string(), plan, residency))
    });
    let (device, plan, residency) = planned.map_err(|error| of_request(&error))?;
    let described = serde_json::json!({
        "device": device,
        "file": file.path().display().to_string(),
        "reason": plan.reason,
        "predicted_s": plan.predicted_s,
        "segments": plan.segments,
        "residency": {
            "source": residency.source.name(),
            "cached_bytes": residency.cached_bytes(),
            "total_bytes": residency.range().end - residency.range().start,
        },
    });
    to_python(py, &described)
}

/// Plans a read without doing it: which engine would move which bytes, what of them is cached, and why.
#[pyfunction]
#[pyo3(signature = (path, offset = Count(0), length = None, device = None, engine = None),
       text_signature = "(path, offset=0, length=None, device=None, engine=None)")]
pub(crate) fn explain<'py>(
    py: Python<'py>,
    path: PathBuf,
    offset: Count,
    length: Option<Count>,
    device: Option<&str>,
    engine: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    begin()?;
    let file = Shared::new(detached(py, || OpenFile::open(&path)).map_err(|error| of_request(&error))?);
    plan(py, &file, (offset.0, length.map(|length| length.0)), device, engine)
}

/// The name of a router's device.
pub(crate) fn device_of(router: &Router) -> String {
    router.device().id().to_string()
}
