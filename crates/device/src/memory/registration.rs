//! File mappings that are page-locked for copies to a device.

use crate::fork::Birth;
use crate::{Device, DeviceId, Result};

impl Device {
    /// Page-locks a read-only shared file mapping.
    ///
    /// # Safety
    /// `ptr..ptr + len` is a mapping that outlives the registration; `ptr` is page-aligned.
    pub unsafe fn register_host(&self, ptr: *const u8, len: usize) -> Result<HostRegistration> {
        // SAFETY: the caller's promise is the backend's requirement.
        unsafe { self.backend().register_host(ptr, len) }.map_err(|error| self.name(error))?;
        Ok(HostRegistration { device: self.clone(), ptr, len, birth: Birth::here() })
    }
}

/// A page-locked file mapping; dropping it ends the registration, not the mapping.
#[derive(Debug)]
pub struct HostRegistration {
    device: Device,
    ptr: *const u8,
    len: usize,
    birth: Birth,
}

// SAFETY: the registration is an address and a length; no method touches the memory.
unsafe impl Send for HostRegistration {}
// SAFETY: as above.
unsafe impl Sync for HostRegistration {}

impl HostRegistration {
    /// The registered bytes' address.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether copies to `device` may come from it: always to the device that registered it, and on
    /// CUDA and `host` to all devices of the backend.
    pub fn serves(&self, device: DeviceId) -> bool {
        self.device.id() == device || self.device.backend().registers_for(device)
    }
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        if self.birth.was_elsewhere() {
            return;
        }
        // SAFETY: registered in `register_host`; users of the registration wait for their copies
        // before they drop it. A failure means that the context is gone.
        let _ = unsafe { self.device.backend().unregister_host(self.ptr, self.len) };
    }
}
