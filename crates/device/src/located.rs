//! Device memory as it was found behind an address of a program's.

use crate::{DeviceId, DevicePtr};

/// Device memory behind an address of a program's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// The device that has it.
    pub device: DeviceId,
    /// The context that it was allocated in where that is not the device's primary one, as the driver's
    /// handle; else 0.
    pub context: u64,
    /// Tells a context from one that had the same handle before, or from the primary one before it was
    /// reset; 0 where the driver does not say.
    pub incarnation: u64,
    /// What the device calls the address.
    pub address: DevicePtr,
    /// The first address of its allocation, as the program sees it.
    pub start: u64,
    /// Bytes of its allocation.
    pub len: u64,
}

impl Located {
    /// Bytes from the address to the end of its allocation.
    pub fn bytes_left(&self, address: u64) -> u64 {
        self.len.saturating_sub(address.saturating_sub(self.start))
    }
}
