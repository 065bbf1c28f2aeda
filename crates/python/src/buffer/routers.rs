//! The routers of devices that memory was found on.

use crate::error::of_request;
use crate::life::detached;
use bifolio_device::{DeviceChoice, DeviceId, Stream};
use bifolio_io::{Router, process};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// Routers that are remembered to be there, at most: a program may make and destroy contexts for ever.
const FOUND_MAX: usize = 64;

/// A device, a context of the program's (0 for the primary one), and which device of that number it is (0 where
/// nobody asks).
type Found = (DeviceId, u64, u64);

/// Where routers were found before: the next look is short.
static FOUND: Mutex<Vec<Found>> = Mutex::new(Vec::new());

/// The router of a device, in its primary context.
pub(super) fn router_at(py: Python<'_>, id: DeviceId) -> PyResult<Arc<Router>> {
    router_by(py, (id, 0, 0), || process::router(DeviceChoice::Exactly(id)))
}

/// A router, which is made without the interpreter's lock: opening a device takes long, and runs a driver.
pub(super) fn router_by(
    py: Python<'_>,
    context: Found,
    find: impl Send + FnOnce() -> bifolio_io::Result<Arc<Router>>,
) -> PyResult<Arc<Router>> {
    let found = || FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let is_short = found().contains(&context);
    if is_short {
        return find().map_err(|error| of_request(&error));
    }
    let router = detached(py, find).map_err(|error| of_request(&error))?;
    let mut found = found();
    if found.len() == FOUND_MAX {
        found.remove(0);
    }
    if !found.contains(&context) {
        found.push(context);
    }
    Ok(router)
}

/// A stream of the program's.
pub(crate) fn adopt(router: &Router, raw: u64) -> bifolio_device::Result<Stream> {
    // SAFETY: whoever names a stream vouches for it, as with every function that takes one.
    unsafe { router.device().adopt_stream(raw) }
}
