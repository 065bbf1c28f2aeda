//! Memory on any end of a request.

use bifolio_compute::{Buffer, Memory};
use bifolio_device::Device;
use std::sync::Arc;

/// Where host memory of a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    Heap,
    Pinned,
}

/// Memory with these bytes.
pub(crate) fn memory(device: &Device, bytes: &[u8], on_device: bool, host: Host) -> Memory {
    if on_device {
        let allocation = Arc::new(device.alloc(bytes.len() as u64).unwrap());
        device.create_stream().unwrap().upload(allocation.slice(), bytes).unwrap();
        return Buffer::new(&allocation).into();
    }
    match host {
        Host::Heap => bytes.to_vec().into(),
        Host::Pinned if bytes.is_empty() => vec![].into(),
        Host::Pinned => {
            let mut pinned = device.alloc_pinned(bytes.len()).unwrap();
            pinned.bytes_mut().copy_from_slice(bytes);
            pinned.into()
        }
    }
}

/// The bytes of memory, wherever it is.
pub(crate) fn content(device: &Device, memory: &Memory) -> Vec<u8> {
    match memory {
        Memory::Host(host) => host.bytes().unwrap().to_vec(),
        Memory::Device(buffer) => {
            let mut bytes = vec![0xee; buffer.len() as usize];
            device.create_stream().unwrap().download(&mut bytes, buffer.slice()).unwrap();
            bytes
        }
    }
}
