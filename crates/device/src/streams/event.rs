//! Points in a stream.

use crate::backend::RawEvent;
use crate::fork::Native;
use crate::{Device, Result};

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    device: Device,
    raw: Native<Box<dyn RawEvent>>,
}

impl Event {
    pub(super) fn new(device: &Device, raw: Box<dyn RawEvent>) -> Self {
        Self { device: device.clone(), raw: Native::new(raw) }
    }

    pub(super) fn raw(&self) -> Result<&dyn RawEvent> {
        self.raw.get().map(|raw| &**raw).map_err(|error| self.device.name(error))
    }

    /// Whether the work before it is done; an error if it failed.
    pub fn query(&self) -> Result<bool> {
        self.raw()?.query().map_err(|error| self.device.name(error))
    }

    /// Blocks until the work before it is done.
    pub fn wait(&self) -> Result<()> {
        self.raw()?.wait().map_err(|error| self.device.name(error))
    }
}
