//! The routers of a process: one for each device, for those who are handed memory and descriptors by a
//! program that knows nothing of routers.

use crate::{Error, Profile, Result, Router, RouterOptions};
use bifolio_device::fork::Birth;
use bifolio_device::pointer::Located;
use bifolio_device::{Device, DeviceChoice, DeviceId, open};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

/// Routers by device and context, made on first use and kept until the process ends: pinned memory and
/// threads are worth keeping, and a driver may be gone before the last destructor runs.
type Routers = Mutex<HashMap<(DeviceId, u64), Arc<Router>>>;

static ROUTERS: LazyLock<Routers> = LazyLock::new(Mutex::default);
static BIRTH: OnceLock<Birth> = OnceLock::new();

/// The router for some device memory.
///
/// # Errors
/// `Device` if the device cannot be opened, `Forked` in a child of the process that first asked.
pub fn router_of(memory: &Located) -> Result<Arc<Router>> {
    router_at((memory.device, memory.context), || Device::of(memory))
}

/// The router for a device, in its primary context.
///
/// # Errors
/// As [`router_of`].
pub fn router(choice: DeviceChoice) -> Result<Arc<Router>> {
    match choice {
        DeviceChoice::Exactly(id) => router_at((id, 0), || open(choice)),
        DeviceChoice::Auto => {
            let id = bifolio_device::choose(&bifolio_device::discover());
            router_at((id, 0), || open(DeviceChoice::Exactly(id)))
        }
    }
}

fn router_at(key: (DeviceId, u64), open: impl FnOnce() -> bifolio_device::Result<Device>) -> Result<Arc<Router>> {
    let place = || Path::new("the device").to_owned();
    // Before the lock, which a thread of the parent's may have held.
    if BIRTH.get_or_init(Birth::here).was_elsewhere() {
        return Err(Error::forked(&place()).into_device(key.0));
    }
    let mut routers = ROUTERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(router) = routers.get(&key) {
        return Ok(Arc::clone(router));
    }
    let device = open().map_err(|error| Error::device(&place(), error))?;
    let costs = Profile::newest_of(&device).map(|profile| profile.costs);
    let router = Arc::new(Router::new(&device, RouterOptions { costs, ..RouterOptions::default() }));
    routers.insert(key, Arc::clone(&router));
    Ok(router)
}
