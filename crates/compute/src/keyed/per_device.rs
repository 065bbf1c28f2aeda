//! One of something for each device that was used.

use bifolio_device::{Device, Result};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Things that are made when a device is first used, and kept.
pub struct PerDevice<T>(Mutex<Vec<(Device, Arc<T>)>>);

impl<T> Default for PerDevice<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> fmt::Debug for PerDevice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerDevice").finish_non_exhaustive()
    }
}

impl<T> PerDevice<T> {
    /// The one of a device, which `make` makes if there is none.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get(&self, device: &Device, make: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A backend that was opened anew has other memory.
        let is_this = |known: &Device| known.id() == device.id() && Arc::ptr_eq(known.backend(), device.backend());
        if let Some((_, one)) = known.iter().find(|(known, _)| is_this(known)) {
            return Ok(Arc::clone(one));
        }
        // What belongs to a context that is gone is gone with it: its addresses and handles may be others' by now.
        let dead: Vec<_> = known.extract_if(.., |(known, _)| !known.is_alive()).collect();
        std::mem::forget(dead);
        let one = Arc::new(make()?);
        known.push((device.clone(), Arc::clone(&one)));
        Ok(one)
    }
}
