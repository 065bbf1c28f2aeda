//! Whose memory an address is: what faces ask about a pointer that a program hands them.

pub use crate::located::Located;

use crate::backend::{cuda, host};
use crate::{BackendKind, Device, Result, discover};

/// The device memory at an address; none where the CPU can use the address itself, or nobody. Loads no
/// driver: a process that has not loaded one has no device memory. About a microsecond.
pub fn locate(address: u64) -> Option<Located> {
    host::locate(address).or_else(|| cuda::locate(address))
}

/// The device and context of a stream of the program's, as a driver's handle: those of a range without bytes.
/// None where no driver was loaded, or where it does not know the stream.
pub fn locate_stream(raw: u64) -> Option<Located> {
    cuda::locate_stream(raw)
}

impl Device {
    /// The device that has some memory, in the context of that memory.
    pub fn of(located: &Located) -> Result<Self> {
        let Located { device, context, .. } = *located;
        let opened = match device.backend {
            BackendKind::Cuda => cuda::open_in(device.index, context),
            _ => discover::open_backend(device),
        };
        opened.map(Self::from_backend).map_err(|error| error.on(device))
    }
}
