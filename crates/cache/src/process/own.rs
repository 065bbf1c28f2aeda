//! The one cache of this process, made on first use as the environment says.

use crate::cache::Cache;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::DeviceMemory;
use crate::options::{CacheOptions, Mode};
use crate::published::Published;
use bifolio_device::fork::Birth;
use bifolio_device::{BackendKind, DeviceChoice, DeviceId, discover};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Bytes of each device's memory for the cache, in bytes, or with the suffix `K`, `M`, `G` or `T`. Else it is
/// 1 GiB on hosts and half of what is free on GPUs, when the cache is made.
pub const BUDGET_VARIABLE: &str = "BIFOLIO_CACHE_BYTES";

/// `lazy` or `eager`: see [`crate::Mode`].
pub const MODE_VARIABLE: &str = "BIFOLIO_CACHE_MODE";

/// Hosts that play devices, `host:0` and on.
const HOSTS: u32 = 4;

static CACHE: Mutex<Option<Cache>> = Mutex::new(None);
static BIRTH: OnceLock<Birth> = OnceLock::new();
/// Whether another library has the cache of the process.
static IS_PRIVATE: AtomicBool = AtomicBool::new(false);

/// The cache, made on first use and kept until the process ends, over the GPUs and a few hosts. A device is
/// opened when something is first mapped there. Of devices that race, a GPU beats a host, and the higher
/// number the lower one.
///
/// # Errors
/// `BadUse` for variables with impossible values, `Forked` in a child of the process that made it.
pub(super) fn cache() -> Result<Cache> {
    refuse_children()?;
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cache) = &*cache {
        return Ok(cache.clone());
    }
    let options = options(|name| std::env::var(name).ok())?;
    let reports = discover();
    let gpus = reports.iter().flat_map(|report| &report.devices);
    let gpus = gpus.filter(|info| info.is_accelerator && info.capabilities.virtual_memory.is_yes()).map(|info| info.id);
    let hosts = (0..HOSTS).map(|index| DeviceId::new(BackendKind::Host, index));
    let device = |id| DeviceMemory::lazy(id, Box::new(move || router(id)));
    let made = Cache::over(hosts.chain(gpus).map(device).collect(), options)?;
    let published = (!IS_PRIVATE.load(Ordering::Relaxed)).then(Published::new).flatten();
    if let Some(published) = published {
        made.publish(published);
    }
    Ok(cache.insert(made).clone())
}

/// Another library has the cache of the process, and its statistics are what others see.
pub(super) fn keep_private() {
    IS_PRIVATE.store(true, Ordering::Relaxed);
}

/// Before any lock, which a thread of the parent's may have held.
pub(super) fn refuse_children() -> Result<()> {
    if BIRTH.get_or_init(Birth::here).was_elsewhere() {
        let detail = "this process was forked from the one that made it: fork first, or start children by exec";
        return Err(Error::new(ErrorKind::Forked, "the cache", detail));
    }
    Ok(())
}

fn router(id: DeviceId) -> Result<std::sync::Arc<bifolio_io::Router>> {
    let router = bifolio_io::process::router(DeviceChoice::Exactly(id));
    router.map_err(Error::reading)
}

/// The options that variables ask for.
fn options(variable: impl Fn(&str) -> Option<String>) -> Result<CacheOptions> {
    let bad = |name: &str, detail: &str| Error::new(ErrorKind::BadUse, "the cache", format!("{name}: {detail}"));
    let budget_bytes = match variable(BUDGET_VARIABLE) {
        None => CacheOptions::BY_DEVICE,
        Some(text) => bifolio_io::size::parse(&text).map_err(|detail| bad(BUDGET_VARIABLE, &detail))?,
    };
    let mode = match variable(MODE_VARIABLE).as_deref() {
        None | Some("lazy") => Mode::Lazy,
        Some("eager") => Mode::Eager,
        Some(other) => return Err(bad(MODE_VARIABLE, &format!("{other:?} is not a mode: set it to lazy or eager"))),
    };
    Ok(CacheOptions { budget_bytes, mode, ..CacheOptions::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_choose_budget_and_mode() {
        let with =
            |name: &'static str, value: &'static str| options(move |asked| (asked == name).then(|| value.into()));
        assert_eq!(options(|_| None).unwrap().budget_bytes, CacheOptions::BY_DEVICE);
        assert_eq!(with(BUDGET_VARIABLE, "64M").unwrap().budget_bytes, 64 << 20);
        assert_eq!(with(MODE_VARIABLE, "eager").unwrap().mode, Mode::Eager);
        for (name, value) in [(BUDGET_VARIABLE, "much"), (MODE_VARIABLE, "hasty")] {
            let error = with(name, value).unwrap_err();
            assert!(error.kind() == ErrorKind::BadUse && error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn everybody_has_the_same_cache() {
        let [one, two] = [cache().unwrap(), cache().unwrap()];
        assert_eq!(one.devices(), two.devices());
        assert_eq!(one.devices()[1], DeviceId::new(BackendKind::Host, 1));
        // Other tests use the first two.
        assert!(one.stats().iter().all(|stats| stats.device.index < 2), "nothing is opened before it is used");
    }
}
