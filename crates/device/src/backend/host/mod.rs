//! The embedded device: "device memory" is host memory, and everything else behaves as on a GPU.
//!
//! - Frames are sealed memfds mapped into a reserved range, so address ranges, export by
//!   descriptor and sharing between processes work as on `cuda`.
//! - A stream is a worker thread with a queue, so copies really are asynchronous and a missing
//!   wait shows up in tests. A failed job leaves its reason on the stream.
//! - Kernels run as their Rust oracles.
//! - Copies out of a registered file mapping go through `process_vm_readv`: where the file was
//!   truncated the kernel reports a fault instead of killing the process with SIGBUS.
//! - Optional shaping (bandwidth, latency) simulates a link; all streams share it.
//!
//! ```text
//!   mod          memory and address ranges     stream   queues and their workers   event   points, gates
//!   memory       how much, and mapping it      module   the oracles by name        link    the simulated one
//!   frame        memfds                        registered   file mappings
//!   fenced       memory that the CPU cannot touch, for tests of what stands above
//! ```

mod event;
mod fenced;
mod frame;
mod link;
mod lock;
mod memory;
mod module;
mod registered;
mod stream;

pub use fenced::FencedMemory;
pub(crate) use fenced::locate;

use crate::backend::{Backend, RawEvent, RawFrame, RawModule, RawStream};
use crate::{
    Access, BackendKind, BackendReport, Capabilities, Capability, DeviceId, DeviceInfo, DevicePtr, Error, ErrorKind,
    FRAME_BYTES, MemoryInfo, ModuleSource, Result,
};
use frame::HostFrame;
use link::Link;
use lock::lock;
use memory::{MemoryAccount, map_anonymous, map_fixed, memory_by_default, populate, unmap};
use module::HostModule;
use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use stream::{HostPeer, HostStream};

/// How many `host:N` devices there are; each is a memory of its own.
const HOST_DEVICES: u32 = 16;

/// Choices for an embedded device.
#[derive(Debug, Clone, Default)]
pub struct HostOptions {
    /// The N of `host:N`.
    pub index: u32,
    /// Memory of the device; by default `$BIFOLIO_HOST_MEMORY`, else what the machine has available.
    pub memory_bytes: Option<u64>,
    /// Bytes a second over the simulated link, all streams together.
    pub bandwidth: Option<f64>,
    /// Added to every copy over the simulated link.
    pub latency: Option<Duration>,
}

/// The report of the embedded backend: always there.
pub(crate) fn report() -> BackendReport {
    let devices = vec![describe(0, memory_by_default())];
    BackendReport { backend: BackendKind::Host.name(), libraries: vec![], devices, problems: vec![] }
}

/// Opens `host:index`.
pub(crate) fn open(index: u32) -> Result<Arc<dyn Backend>> {
    if index >= HOST_DEVICES {
        let detail = format!("no such device: host:0 to host:{} exist", HOST_DEVICES - 1);
        return Err(Error::new(ErrorKind::Missing, detail));
    }
    Ok(Arc::new(HostBackend::new(&HostOptions { index, ..HostOptions::default() })))
}

/// The default streams, made when first asked for: a program of the CPU has none.
static DEFAULT_STREAMS: Mutex<[Option<HostStream>; HOST_DEVICES as usize]> =
    Mutex::new([const { None }; HOST_DEVICES as usize]);

/// Host memory as a device.
#[derive(Debug)]
pub(crate) struct HostBackend {
    info: DeviceInfo,
    memory: Arc<MemoryAccount>,
    /// Allocations by address, for `free`.
    allocations: Mutex<BTreeMap<u64, u64>>,
    link: Option<Arc<Link>>,
}

impl HostBackend {
    pub(crate) fn new(options: &HostOptions) -> Self {
        let total = options.memory_bytes.unwrap_or_else(memory_by_default);
        Self {
            info: describe(options.index, total),
            memory: Arc::new(MemoryAccount::new(total)),
            allocations: Mutex::default(),
            link: Link::new(options.bandwidth, options.latency).map(Arc::new),
        }
    }
}

fn describe(index: u32, memory_bytes: u64) -> DeviceInfo {
    let processor = processor_name();
    DeviceInfo {
        id: DeviceId::new(BackendKind::Host, index),
        identity: format!("host:{index} on {processor}"),
        name: format!("host memory ({processor})"),
        driver: format!("embedded, {}", env!("CARGO_PKG_VERSION")),
        architecture: String::new(),
        memory_bytes,
        kernel_buffer_alignment: 1,
        is_accelerator: false,
        capabilities: Capabilities {
            virtual_memory: Capability::YES,
            export_fd: Capability::YES,
            host_register_read_only: registered::copies_work(),
            host_pointers: Capability::YES,
            peer_access: Capability::YES,
            direct_storage: Capability::no("its memory is host memory"),
            kernels: Capability::no("kernels run on the CPU, as Rust code"),
            concurrent_streams: Capability::YES,
            host_addressable: Capability::YES,
            native_streams: Capability::no("programs have no streams of their own without a driver"),
            energy: Capability::no("host memory has no energy counter of its own"),
        },
    }
}

impl Backend for HostBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        Ok(MemoryInfo { free: self.memory.free(), total: self.memory.total() })
    }

    fn alloc(&self, len: u64) -> Result<DevicePtr> {
        self.memory.take(len)?;
        let mapped =
            map_anonymous(len as usize, libc::PROT_READ | libc::PROT_WRITE).inspect_err(|_| self.memory.give(len))?;
        populate(mapped, len as usize);
        let address = mapped.as_ptr() as u64;
        lock(&self.allocations).insert(address, len);
        Ok(DevicePtr(address))
    }

    unsafe fn free(&self, ptr: DevicePtr) -> Result<()> {
        let Some(len) = lock(&self.allocations).remove(&ptr.0) else {
            return Err(Error::new(ErrorKind::BadArgument, format!("{ptr} is not an allocation of this device")));
        };
        self.memory.give(len);
        // SAFETY: the table held the mapping that `alloc` made, and the caller gives it up.
        unsafe { unmap(ptr.0, len) }
    }

    fn alloc_pinned(&self, len: usize) -> Result<NonNull<u8>> {
        map_anonymous(len, libc::PROT_READ | libc::PROT_WRITE)
    }

    unsafe fn free_pinned(&self, ptr: NonNull<u8>, len: usize) -> Result<()> {
        // SAFETY: the caller passes one `alloc_pinned`, which mapped exactly this.
        unsafe { unmap(ptr.as_ptr() as u64, len as u64) }
    }

    unsafe fn register_host(&self, ptr: *const u8, len: usize) -> Result<()> {
        if let Some(reason) = self.info.capabilities.host_register_read_only.reason() {
            return Err(Error::new(ErrorKind::Unsupported, format!("file mappings cannot be registered: {reason}")));
        }
        registered::register(ptr as u64, len as u64)
    }

    fn registers_for(&self, other: DeviceId) -> bool {
        other.backend == BackendKind::Host
    }

    unsafe fn unregister_host(&self, ptr: *const u8, _len: usize) -> Result<()> {
        registered::unregister(ptr as u64);
        Ok(())
    }

    fn reserve(&self, len: u64) -> Result<DevicePtr> {
        // Reserved with room to align to a frame, as the GPU's ranges are; the ends are given back.
        let too_long = || Error::new(ErrorKind::BadArgument, format!("an address range of {len} bytes is too long"));
        let padded = len.checked_add(FRAME_BYTES).ok_or_else(too_long)?;
        let start = map_anonymous(padded as usize, libc::PROT_NONE)?.as_ptr() as u64;
        let aligned = start.next_multiple_of(FRAME_BYTES);
        // SAFETY: both ends lie inside the mapping just made, outside the part that is kept.
        unsafe {
            unmap(start, aligned - start)?;
            unmap(aligned + len, padded - len - (aligned - start))?;
        }
        Ok(DevicePtr(aligned))
    }

    unsafe fn unreserve(&self, ptr: DevicePtr, len: u64) -> Result<()> {
        // SAFETY: the caller passes one reservation with nothing mapped in it.
        unsafe { unmap(ptr.0, len) }
    }

    fn create_frame(&self, len: u64) -> Result<Box<dyn RawFrame>> {
        Ok(Box::new(HostFrame::create(len, &self.memory)?))
    }

    fn import_frame(&self, fd: OwnedFd, len: u64) -> Result<Box<dyn RawFrame>> {
        Ok(Box::new(HostFrame::import(fd, len)?))
    }

    /// The kernel hands out no page of a memfd that is not.
    fn zeroes_frames(&self) -> bool {
        true
    }

    unsafe fn map_frame(&self, ptr: DevicePtr, frame: &dyn RawFrame, len: u64, access: Access) -> Result<()> {
        let Some(frame) = (frame as &dyn Any).downcast_ref::<HostFrame>() else {
            return Err(Error::new(ErrorKind::BadArgument, "the frame belongs to another backend"));
        };
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: the caller says that the place is a free part of a reserved range.
        unsafe { map_fixed(ptr, len, protection, libc::MAP_SHARED, frame.fd().as_raw_fd()) }
    }

    unsafe fn let_read(&self, _ptr: DevicePtr, _len: u64, peer: &dyn Backend) -> Result<bool> {
        Ok(peer.as_peer().is_some_and(<dyn Any>::is::<HostPeer>))
    }

    unsafe fn unmap_frame(&self, ptr: DevicePtr, len: u64) -> Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: replaces the frame's mapping, which nobody uses, by reserved emptiness.
        unsafe { map_fixed(ptr, len, libc::PROT_NONE, flags, -1) }
    }

    fn create_stream(&self) -> Result<Box<dyn RawStream>> {
        Ok(Box::new(HostStream::start(self.link.as_ref())?))
    }

    /// One for each number of a device in the process, as a GPU has one whoever opens it.
    fn default_stream(&self) -> Result<Box<dyn RawStream>> {
        let mut streams = lock(&DEFAULT_STREAMS);
        let place = &mut streams[self.info.id.index as usize % HOST_DEVICES as usize];
        if let Some(stream) = place.as_ref().filter(|stream| !stream.was_elsewhere()) {
            return Ok(Box::new(stream.clone()));
        }
        let stream = HostStream::start(self.link.as_ref())?;
        // That of a parent is not dropped: its worker did not come along.
        std::mem::forget(place.replace(stream.clone()));
        Ok(Box::new(stream))
    }

    fn default_work(&self) -> Result<Option<Box<dyn RawEvent>>> {
        let streams = lock(&DEFAULT_STREAMS);
        let stream = streams[self.info.id.index as usize % HOST_DEVICES as usize].as_ref();
        let stream = stream.filter(|stream| !stream.was_elsewhere());
        stream.filter(|stream| stream.is_busy()).map(HostStream::record).transpose()
    }

    unsafe fn adopt_stream(&self, _raw: u64) -> Result<Box<dyn RawStream>> {
        Err(Error::new(ErrorKind::Unsupported, "the host device has no streams to adopt"))
    }

    fn as_peer(&self) -> Option<&dyn Any> {
        // Its memory is memory of this process, so that the backend is all that there is to know.
        Some(&HostPeer)
    }

    fn load_module(&self, source: &ModuleSource) -> Result<Arc<dyn RawModule>> {
        Ok(Arc::new(HostModule { kernels: source.kernels }))
    }
}

impl Drop for HostBackend {
    fn drop(&mut self) {
        for (address, len) in std::mem::take(self.allocations.get_mut().unwrap_or_else(PoisonError::into_inner)) {
            // SAFETY: owners hold the device, so no owner is left.
            let _ = unsafe { unmap(address, len) };
        }
    }
}

fn processor_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests;
