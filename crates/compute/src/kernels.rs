//! The kernels of one device, compiled and tried once for all services that use them.

use crate::Result;
use crate::keyed::SecretMemory;
use bifolio_device::{Device, Module};
use bifolio_kernels::{Kernel, KernelStatus, LoadedKernel};
use std::sync::{Arc, Mutex, PoisonError};

/// Kernels of a device. Clones share them.
#[derive(Debug, Clone)]
pub struct Kernels {
    device: Device,
    tried: Arc<Mutex<Vec<Tried>>>,
}

type Tried = (Option<Module>, KernelStatus);

/// A module that passed its known-answer test.
#[derive(Debug, Clone)]
pub struct Loaded(Module);

impl Loaded {
    /// The module.
    pub fn module(&self) -> &Module {
        &self.0
    }
}

impl Kernels {
    pub(crate) fn new(device: &Device) -> Self {
        Self { device: device.clone(), tried: Arc::default() }
    }

    /// Compiles (or finds in the cache) and tries a kernel, once. The inner error is a sentence that
    /// says why the device does not do this work.
    ///
    /// # Errors
    /// The device's, where it fails at more than this kernel.
    pub fn load(&self, kernel: &dyn Kernel) -> Result<Result<Loaded, String>> {
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        if !tried.iter().any(|(_, status)| status.name == kernel.name()) {
            tried.push(LoadedKernel::load(kernel, &self.device)?.into_parts());
        }
        let found = tried.iter().find(|(_, status)| status.name == kernel.name());
        Ok(found.ok_or_else(String::new).and_then(|(module, status)| {
            let reason = || status.reason.clone().unwrap_or_else(|| "its kernels do not work".to_owned());
            module.clone().map(Loaded).ok_or_else(reason)
        }))
    }

    /// The same with a key's schedules in device memory, which is cleared when it is dropped.
    pub(crate) fn keyed(
        &self,
        kernel: &dyn Kernel,
        schedules: &[u8],
    ) -> Result<Result<(Loaded, SecretMemory), String>> {
        let loaded = match self.load(kernel)? {
            Ok(loaded) => loaded,
            Err(reason) => return Ok(Err(reason)),
        };
        let stream = self.device.create_stream()?;
        Ok(SecretMemory::of(&stream, schedules).map(|memory| (loaded, memory)).map_err(|error| error.to_string()))
    }

    /// How the kernels fared that were loaded so far.
    pub fn report(&self) -> Vec<KernelStatus> {
        let tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        tried.iter().map(|(_, status)| status.clone()).collect()
    }
}
