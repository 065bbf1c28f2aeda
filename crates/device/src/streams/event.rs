//! Points in a stream.

use crate::backend::RawEvent;
use crate::{Device, Result};

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    pub(super) device: Device,
    pub(super) raw: Box<dyn RawEvent>,
}

impl Event {
    /// Whether the work before it is done; an error if it failed.
    pub fn query(&self) -> Result<bool> {
        self.raw.query().map_err(|error| self.device.name(error))
    }

    /// Blocks until the work before it is done.
    pub fn wait(&self) -> Result<()> {
        self.raw.wait().map_err(|error| self.device.name(error))
    }
}
