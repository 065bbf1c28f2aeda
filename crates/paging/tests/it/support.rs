//! A cache on a backing and a device that fail on demand.

use bifolio_block::faults::FaultyDevice;
use bifolio_device::backend::fault::{FaultBackend, Faults as DeviceFaults};
use bifolio_device::{Capability, Device, HostOptions};
use bifolio_paging::header::HEADER_BYTES;
use bifolio_paging::{Mode, OpenDevice, Options, PagingCache, format_backing};
use std::sync::Arc;

/// The smallest chunk.
pub(crate) const CHUNK: u64 = 2 << 20;

/// A backing with a header.
pub(crate) fn backing(content: u64) -> Arc<FaultyDevice> {
    let backing = FaultyDevice::new("swap.img", vec![0; (content + HEADER_BYTES) as usize]);
    format_backing(&backing, content).unwrap();
    Arc::new(backing)
}

/// A device that copies through streams, as a GPU does, and fails as told.
pub(crate) fn faulty_device(faults: &Arc<DeviceFaults>, memory: u64) -> Device {
    let host = Device::host(&HostOptions { memory_bytes: Some(memory), ..HostOptions::default() });
    let mut info = host.info().clone();
    info.capabilities.host_addressable = Capability::no("a test wants copies to go through streams");
    Device::from_backend(FaultBackend::presented_as(info, host.backend(), faults))
}

/// Opens the same device each time.
pub(crate) fn opens(device: Device) -> OpenDevice {
    Box::new(move || Ok(device.clone()))
}

/// A device in host memory.
pub(crate) fn host() -> OpenDevice {
    opens(Device::host(&HostOptions::default()))
}

/// A cache with `chunks` chunks of device memory, of at most four.
pub(crate) fn cache(backing: &Arc<FaultyDevice>, open_device: OpenDevice, mode: Mode, chunks: u64) -> PagingCache {
    let options = Options::new(Arc::<FaultyDevice>::clone(backing), open_device, chunks * CHUNK);
    PagingCache::open(Options { mode, memory_bytes_max: 4 * CHUNK, ..options }).unwrap()
}
