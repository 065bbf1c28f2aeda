//! Whose memory an address is: what faces ask about a pointer that a program hands them.

use crate::backend;
use crate::{Device, DeviceId, DevicePtr, Result};

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

/// The device memory at an address; none where the CPU can use the address itself, or nobody. Loads no
/// driver: a process that has not loaded one has no device memory. About a microsecond.
pub fn locate(address: u64) -> Option<Located> {
    backend::locate(address)
}

impl Device {
    /// The device that has some memory, in the context of that memory.
    pub fn of(located: &Located) -> Result<Self> {
        backend::open_of(located).map(Self::from_backend).map_err(|error| error.on(located.device))
    }
}

/// The device and context of a stream of the program's, as a driver's handle: those of a range without bytes.
/// None where no driver was loaded, or where it does not know the stream.
pub fn locate_stream(raw: u64) -> Option<Located> {
    backend::locate_stream(raw)
}
