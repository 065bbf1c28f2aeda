//! An open device: what it is, what it can do, and what stands behind it.
//!
//! What is made on a device has files of its own ([`crate::memory`], [`crate::streams`], [`crate::module`]), each with
//! the methods of [`Device`] that make it; all of it holds its device alive.

use crate::backend::Backend;
use crate::backend::host::{HostBackend, HostOptions};
use crate::{Capabilities, DeviceId, DeviceInfo, Error, MemoryInfo, Result};
use std::sync::Arc;

/// An open device. Clones share it.
#[derive(Debug, Clone)]
pub struct Device {
    backend: Arc<dyn Backend>,
}

impl Device {
    /// Wraps a backend, also a decorated one (fault injection).
    pub fn from_backend(backend: Arc<dyn Backend>) -> Self {
        Self { backend }
    }

    /// An embedded device with chosen memory and shaping.
    pub fn host(options: &HostOptions) -> Self {
        Self::from_backend(Arc::new(HostBackend::new(options)))
    }

    /// The backend, for decorators.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The device's name.
    pub fn id(&self) -> DeviceId {
        self.info().id
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        self.backend.info()
    }

    /// What the device can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.info().capabilities
    }

    /// Whether what was made on the device is still there: not after the program has reset it
    /// (`cudaDeviceReset`). Then nothing of it may be used or freed, and the device be opened anew.
    pub fn is_alive(&self) -> bool {
        self.backend.is_alive()
    }

    /// Why the device is lost, with all that was in its memory; none while it works.
    pub fn loss(&self) -> Option<Error> {
        self.backend.loss().map(|error| self.name(error))
    }

    /// Free and total memory now.
    pub fn memory(&self) -> Result<MemoryInfo> {
        self.backend.memory().map_err(|error| self.name(error))
    }

    /// Names the device in an error of its backend's.
    pub(crate) fn name(&self, error: Error) -> Error {
        error.on(self.id())
    }
}
