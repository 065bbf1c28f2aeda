//! Kernels that are loaded on a device.

use crate::backend::RawModule;
use crate::{Device, ModuleSource, Result};
use std::sync::Arc;

impl Device {
    /// Compiles, or finds in the cache, and loads a module.
    pub fn load_module(&self, source: &ModuleSource) -> Result<Module> {
        let raw = self.backend().load_module(source).map_err(|error| self.name(error))?;
        Ok(Module { device: self.clone(), raw })
    }
}

/// A loaded module.
#[derive(Debug, Clone)]
pub struct Module {
    device: Device,
    raw: Arc<dyn RawModule>,
}

impl Module {
    /// The device it was loaded on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn raw(&self) -> &Arc<dyn RawModule> {
        &self.raw
    }

    /// Whether the module has a kernel of this name.
    pub fn has_kernel(&self, name: &str) -> bool {
        self.raw.has_kernel(name)
    }
}
