//! One executor for each device of the process, which all of its paths share: their batches take turns there.

use bifolio_compute::{Executor, Options};
use bifolio_device::{Device, DeviceChoice, DeviceId};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Bytes of the largest batch.
pub(super) const BATCH_BYTES: usize = 16 << 20;
/// Batches on a device at a time.
const LANES: usize = 4;

static EXECUTORS: Mutex<Vec<(DeviceId, Weak<Executor>)>> = Mutex::new(Vec::new());

/// The executor of a device.
///
/// # Errors
/// A sentence where the device is not there or fails.
pub(super) fn executor(choice: DeviceChoice) -> Result<Arc<Executor>, String> {
    if let DeviceChoice::Exactly(id) = choice
        && let Some(executor) = known(id)
    {
        return Ok(executor);
    }
    let device = bifolio_device::open(choice).map_err(|error| error.to_string())?;
    of(&device, LANES, BATCH_BYTES as u64)
}

/// The executor that a device has.
fn known(id: DeviceId) -> Option<Arc<Executor>> {
    let executors = EXECUTORS.lock().unwrap_or_else(PoisonError::into_inner);
    executors.iter().find(|(known, _)| *known == id).and_then(|(_, executor)| executor.upgrade())
}

/// The executor of a device that is open: the one that it has, or one with so many lanes for batches of so many bytes.
pub(crate) fn of(device: &Device, pipelines: usize, slot_bytes: u64) -> Result<Arc<Executor>, String> {
    let mut executors = EXECUTORS.lock().unwrap_or_else(PoisonError::into_inner);
    executors.retain(|(_, executor)| executor.strong_count() > 0);
    let known = executors.iter().find(|(id, _)| *id == device.id());
    if let Some(executor) = known.and_then(|(_, executor)| executor.upgrade()) {
        return Ok(executor);
    }
    let options = Options {
        pipelines,
        slot_bytes,
        // A batch is what is merged; nothing else is waited for.
        merge_wait: Duration::ZERO,
        // Packets do not wait for memory.
        prepares: device.info().is_accelerator,
        ..Options::default()
    };
    let executor = Arc::new(Executor::new(device, options).map_err(|error| error.to_string())?);
    executors.push((device.id(), Arc::downgrade(&executor)));
    Ok(executor)
}
