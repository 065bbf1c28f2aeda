//! The routers of a process: one for each device, for those who are handed memory and descriptors by a
//! program that knows nothing of routers.

use crate::profile::Profile;
use crate::router::{Router, RouterOptions};
use crate::{Error, Result};
use bifolio_device::fork::Birth;
use bifolio_device::pointer::Located;
use bifolio_device::{Device, DeviceChoice, DeviceId, open};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Routers of contexts of the program's own that are kept at most: a context that is destroyed tells nobody, and
/// what is abandoned for room may belong to one that lives, so that its pinned memory is lost. Few programs have
/// more contexts than this at a time.
const FOREIGN_MAX: usize = 16;

/// A router, made on first use and kept until the process ends: pinned memory and threads are worth keeping,
/// and a driver may be gone before the last destructor runs.
struct Entry {
    device: DeviceId,
    /// Of the program's own; 0 for the primary one.
    context: u64,
    incarnation: Option<u64>,
    router: Arc<Router>,
}

/// The oldest first.
static ROUTERS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
static BIRTH: OnceLock<Birth> = OnceLock::new();

/// The router for some device memory.
///
/// # Errors
/// `Device` if the device cannot be opened, `Forked` in a child of the process that first asked.
pub fn router_of(memory: &Located) -> Result<Arc<Router>> {
    router_at(memory.device, memory.context, Some(memory.incarnation), || Device::of(memory))
}

/// The router for a device, in its primary context.
///
/// # Errors
/// As [`router_of`].
pub fn router(choice: DeviceChoice) -> Result<Arc<Router>> {
    let device = match choice {
        DeviceChoice::Exactly(id) => id,
        DeviceChoice::Auto => bifolio_device::choose(&bifolio_device::discover()),
    };
    router_at(device, 0, None, || open(DeviceChoice::Exactly(device)))
}

fn router_at(
    device: DeviceId,
    context: u64,
    incarnation: Option<u64>,
    open: impl FnOnce() -> bifolio_device::Result<Device>,
) -> Result<Arc<Router>> {
    let place = Path::new("the device");
    // Before the lock, which a thread of the parent's may have held.
    if BIRTH.get_or_init(Birth::here).was_elsewhere() {
        return Err(Error::forked(place).into_device(device));
    }
    let mut routers = ROUTERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = routers.iter().position(|entry| entry.device == device && entry.context == context) {
        let entry = &mut routers[at];
        let is_same = match (incarnation, entry.incarnation) {
            (Some(asked), Some(known)) => asked == known,
            _ => entry.router.device().is_alive(),
        };
        if is_same {
            entry.incarnation = entry.incarnation.or(incarnation);
            return Ok(Arc::clone(&entry.router));
        }
        routers.remove(at).router.abandon();
    }
    let opened = open().map_err(|error| Error::device(place, error))?;
    let mut options =
        RouterOptions { costs: Profile::newest_of(&opened).map(|profile| profile.costs), ..RouterOptions::default() };
    if context != 0 {
        // What outlives a request would outlive the context.
        (options.mapped_bytes, options.readahead_bytes) = (0, 0);
        let foreign = |entry: &Entry| entry.context != 0;
        if routers.iter().filter(|entry| foreign(entry)).count() >= FOREIGN_MAX
            && let Some(oldest) = routers.iter().position(foreign)
        {
            routers.remove(oldest).router.abandon();
        }
    }
    let router = Arc::new(Router::new(&opened, options));
    routers.push(Entry { device, context, incarnation, router: Arc::clone(&router) });
    Ok(router)
}
