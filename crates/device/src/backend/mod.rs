//! The seam between the safe device layer and the drivers: object-safe traits, one
//! implementation a file.
//!
//! Contract that all implementations keep, and that the conformance suite checks:
//! - Addresses ([`DevicePtr`]) are plain numbers, unique within a device; arithmetic inside one
//!   allocation or range is valid. OpenCL, which has no device addresses, hands out numbers of
//!   its own and finds the buffer behind them.
//! - All work goes through a stream, runs in stream order and is asynchronous; an event that was
//!   recorded after it completes after it. A failure of asynchronous work is reported by the
//!   event or the synchronisation that first follows it on the stream, and stays on the stream.
//! - Every method may be called from any thread. None panics because a driver misbehaves.
//! - A closed gate holds back the work behind it on its stream until the host opens it; work on
//!   other streams goes on as far as the driver has queues of its own for them.
//! - Dropping a stream, event, frame or module while its work runs is allowed: the drop waits or
//!   defers, whichever the driver needs.

pub(crate) mod cuda;
#[cfg(feature = "conformance")]
pub mod fault;
pub(crate) mod host;
pub(crate) mod opencl;

use crate::{
    Access, DeviceId, DeviceInfo, DevicePtr, Error, ErrorKind, KernelArg, MemoryInfo, ModuleSource, Result, Rows,
};
use std::time::Duration;
use std::{any::Any, fmt::Debug, os::fd::OwnedFd, ptr::NonNull, sync::Arc};

/// A driver for one open device.
pub trait Backend: Send + Sync + Debug {
    /// What the device is; constant while it is open.
    fn info(&self) -> &DeviceInfo;

    /// Free and total memory now.
    fn memory(&self) -> Result<MemoryInfo>;

    /// Allocates `len > 0` bytes of device memory, aligned to at least 256 bytes. Contents are
    /// undefined. May synchronise the device: never on a hot path.
    fn alloc(&self, len: u64) -> Result<DevicePtr>;

    /// Frees an allocation; waits for work that uses it where the driver does not.
    ///
    /// # Safety
    /// `ptr` came from `alloc` on this device and is not used again.
    unsafe fn free(&self, ptr: DevicePtr) -> Result<()>;

    /// Allocates `len > 0` bytes of page-locked host memory, aligned to a page.
    fn alloc_pinned(&self, len: usize) -> Result<NonNull<u8>>;

    /// Frees pinned memory.
    ///
    /// # Safety
    /// `ptr` and `len` are those of one `alloc_pinned`, and no copy uses the memory.
    unsafe fn free_pinned(&self, ptr: NonNull<u8>, len: usize) -> Result<()>;

    /// Page-locks `len` bytes of a read-only shared file mapping for copies to the device
    /// ([`crate::Capabilities::host_register_read_only`]). Bytes that are registered already, by whichever device,
    /// are refused (`BadArgument`): what ends first would end both.
    ///
    /// # Safety
    /// The mapping stays in place until `unregister_host`; `ptr` is page-aligned.
    unsafe fn register_host(&self, ptr: *const u8, len: usize) -> Result<()>;

    /// Ends a registration.
    ///
    /// # Safety
    /// `ptr` was registered and no copy from it is in flight.
    unsafe fn unregister_host(&self, ptr: *const u8, len: usize) -> Result<()>;

    /// Whether what this device registers is page-locked for another device as well.
    fn registers_for(&self, _other: DeviceId) -> bool {
        false
    }

    /// Reserves an address range, `len` a multiple of [`crate::FRAME_BYTES`], with nothing mapped.
    fn reserve(&self, len: u64) -> Result<DevicePtr>;

    /// Gives a range back.
    ///
    /// # Safety
    /// `ptr` and `len` are those of one `reserve`; all frames in it are unmapped.
    unsafe fn unreserve(&self, ptr: DevicePtr, len: u64) -> Result<()>;

    /// Creates one physical frame of `len` bytes, a multiple of [`crate::FRAME_BYTES`].
    fn create_frame(&self, len: u64) -> Result<Box<dyn RawFrame>>;

    /// Takes over a frame that another process exported as one of `len` bytes, a multiple of [`crate::FRAME_BYTES`].
    /// Neither the descriptor nor the length is believed: one that is no frame, has another length or could still get
    /// one is refused (`BadArgument`), or by the driver in its own words.
    fn import_frame(&self, fd: OwnedFd, len: u64) -> Result<Box<dyn RawFrame>>;

    /// Whether new frames are zeroes. Where a driver does not promise that, they may have what this process freed.
    fn zeroes_frames(&self) -> bool {
        false
    }

    /// Maps a frame of `len` bytes at `ptr` inside a reserved range.
    ///
    /// # Safety
    /// `ptr` is aligned to [`crate::FRAME_BYTES`], `len` bytes from there on lie inside a reserved range of this
    /// device, nothing is mapped there, and the frame has this length and is unmapped before it is dropped.
    unsafe fn map_frame(&self, ptr: DevicePtr, frame: &dyn RawFrame, len: u64, access: Access) -> Result<()>;

    /// Lets kernels of another device of this backend read a frame of `len` bytes that is mapped at `ptr`; false where
    /// they cannot.
    ///
    /// # Safety
    /// A frame of `len` bytes is mapped at `ptr`.
    unsafe fn let_read(&self, _ptr: DevicePtr, _len: u64, _peer: &dyn Backend) -> Result<bool> {
        Ok(false)
    }

    /// Removes the mapping at `ptr`; work elsewhere in the range goes on.
    ///
    /// # Safety
    /// A frame of `len` bytes is mapped at `ptr` and no work in flight uses it.
    unsafe fn unmap_frame(&self, ptr: DevicePtr, len: u64) -> Result<()>;

    /// Creates a stream that does not order itself against any other.
    fn create_stream(&self) -> Result<Box<dyn RawStream>>;

    /// Wraps a stream of the caller's (a `CUstream`), which stays the caller's.
    ///
    /// # Safety
    /// `raw` is a live stream of this device's context until the wrapper is dropped.
    unsafe fn adopt_stream(&self, raw: u64) -> Result<Box<dyn RawStream>>;

    /// The stream of programs that name none.
    fn default_stream(&self) -> Result<Box<dyn RawStream>> {
        Err(Error::new(ErrorKind::Unsupported, "this backend has no default stream"))
    }

    /// What the default streams hold at present: an event behind it, or none where they are idle.
    fn default_work(&self) -> Result<Option<Box<dyn RawEvent>>> {
        Ok(None)
    }

    /// The driver for storage transfers straight into device memory
    /// ([`crate::Capabilities::direct_storage`]).
    fn direct_storage(&self) -> Result<Box<dyn RawDirectStorage>> {
        let reason = self.info().capabilities.direct_storage.reason().unwrap_or("this backend has no driver for it");
        Err(Error::new(ErrorKind::Unsupported, format!("storage has no direct path to this device: {reason}")))
    }

    /// Whether what was made on the device is still there; not after the program has reset it.
    fn is_alive(&self) -> bool {
        true
    }

    /// What the device answers with if it is lost ([`ErrorKind::Lost`]). Who is told so by an operation asks here which
    /// device it is, as a copy between two of them may fail for either. Neither waits for work nor does any.
    fn loss(&self) -> Option<Error> {
        if !self.is_alive() {
            let detail = "the program has reset the device: what was made on it is gone";
            return Some(Error::new(ErrorKind::Lost, detail));
        }
        self.memory().err().filter(|error| error.kind() == ErrorKind::Lost)
    }

    /// What streams of the same backend need to copy from this device; only they look inside.
    /// None where devices do not know of each other. A decorator passes on what it decorates.
    fn as_peer(&self) -> Option<&dyn Any> {
        None
    }

    /// The device's energy counter ([`crate::Capabilities::energy`]).
    fn energy_meter(&self) -> Result<Box<dyn RawEnergyMeter>> {
        let reason = self.info().capabilities.energy.reason().unwrap_or("this backend does not read it");
        Err(Error::new(ErrorKind::Unsupported, format!("the device's energy cannot be read: {reason}")))
    }

    /// Compiles (or finds in the on-disk cache) and loads a module.
    fn load_module(&self, source: &ModuleSource) -> Result<Arc<dyn RawModule>>;
}

/// A counter of energy.
pub trait RawEnergyMeter: Any + Send + Sync + Debug {
    /// Energy that the device used since its driver was loaded, in joules; `Unsupported` where it
    /// is not counted.
    fn joules(&self) -> Result<f64>;

    /// The device's power at present, in watts; `Unsupported` where it is not measured.
    fn watts(&self) -> Result<f64>;
}

/// A driver for storage transfers straight into device memory.
pub trait RawDirectStorage: Any + Send + Sync + Debug {
    /// Prepares a file for such transfers; an error where this file has no direct path.
    fn attach(&self, file: OwnedFd) -> Result<Box<dyn RawDirectFile>>;
}

/// A file that can be read straight into device memory. It owns its descriptor.
pub trait RawDirectFile: Any + Send + Sync + Debug {
    /// Offsets and lengths are multiples of this many bytes.
    fn alignment(&self) -> u64;

    /// Reads into device memory and returns when the bytes are in place: how many there were.
    ///
    /// # Safety
    /// The range is valid memory of the device until the call returns.
    unsafe fn read(&self, offset: u64, dst: DevicePtr, len: u64) -> std::io::Result<u64>;
}

/// One physical frame; dropping it frees the memory once nobody maps or imports it.
pub trait RawFrame: Any + Send + Sync + Debug {
    /// A descriptor that another process of the same device can import.
    fn export(&self) -> Result<OwnedFd>;
}

/// An in-order queue of work.
pub trait RawStream: Any + Send + Sync + Debug {
    /// Has waits of this stream poll for so long before they sleep, where the backend does either.
    fn poll_for(&mut self, _time: Duration) {}

    /// Enqueues a copy from host memory. It may return before `src` was read.
    ///
    /// # Safety
    /// Both ranges are valid, and `src` is neither freed nor written, until the work completes.
    unsafe fn copy_to_device(&self, dst: DevicePtr, src: *const u8, len: u64) -> Result<()>;

    /// The same, and blocks until all work enqueued before is done, whether that or the copy fails.
    ///
    /// # Safety
    /// Both ranges are valid, and `src` is not written, until the call returns.
    unsafe fn copy_to_device_and_wait(&self, dst: DevicePtr, src: *const u8, len: u64) -> Result<()> {
        // SAFETY: the caller's promise; the work is waited for.
        let copied = unsafe { self.copy_to_device(dst, src, len) };
        let landed = self.synchronize();
        copied.and(landed)
    }

    /// Enqueues a copy to host memory.
    ///
    /// # Safety
    /// Both ranges are valid, and `dst` is not touched, until the work completes.
    unsafe fn copy_to_host(&self, dst: *mut u8, src: DevicePtr, len: u64) -> Result<()>;

    /// The same, and blocks until all work enqueued before is done, whether that or the copy fails.
    ///
    /// # Safety
    /// Both ranges are valid, and `dst` is not touched, until the call returns.
    unsafe fn copy_to_host_and_wait(&self, dst: *mut u8, src: DevicePtr, len: u64) -> Result<()> {
        // SAFETY: the caller's promise; the work is waited for.
        let copied = unsafe { self.copy_to_host(dst, src, len) };
        let landed = self.synchronize();
        copied.and(landed)
    }

    /// Enqueues a copy of rows from host memory, by default as a copy for each.
    ///
    /// # Safety
    /// As for `copy_to_device`, for every row; `rows.pitch` is at least `rows.bytes`.
    unsafe fn copy_rows_to_device(&self, dst: DevicePtr, src: *const u8, rows: Rows) -> Result<()> {
        // SAFETY: the caller's promise, for every row.
        rows.one_by_one(|packed, apart| unsafe {
            self.copy_to_device(dst.offset_by(apart), src.wrapping_add(packed), rows.bytes)
        })
    }

    /// Enqueues a copy of rows to host memory, by default as a copy for each.
    ///
    /// # Safety
    /// As for `copy_to_host`, for every row; `rows.pitch` is at least `rows.bytes`.
    unsafe fn copy_rows_to_host(&self, dst: *mut u8, src: DevicePtr, rows: Rows) -> Result<()> {
        // SAFETY: the caller's promise, for every row.
        rows.one_by_one(|packed, apart| unsafe {
            self.copy_to_host(dst.wrapping_add(packed), src.offset_by(apart), rows.bytes)
        })
    }

    /// Enqueues a copy between two ranges of this device that do not overlap.
    ///
    /// # Safety
    /// Both ranges are valid until the work completes.
    unsafe fn copy_on_device(&self, dst: DevicePtr, src: DevicePtr, len: u64) -> Result<()>;

    /// Enqueues a copy from `peer`, a device of the same backend, into this stream's device.
    ///
    /// # Safety
    /// Both ranges are valid until the work completes.
    unsafe fn copy_from_peer(&self, dst: DevicePtr, peer: &dyn Backend, src: DevicePtr, len: u64) -> Result<()>;

    /// Enqueues filling a range with one byte value.
    ///
    /// # Safety
    /// The range is valid until the work completes.
    unsafe fn fill(&self, dst: DevicePtr, value: u8, len: u64) -> Result<()>;

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// The arguments are what the kernel expects, and the memory they name is valid until the
    /// work completes.
    unsafe fn launch(&self, kernel: &Launch<'_>) -> Result<()>;

    /// Records an event after all work enqueued so far.
    fn record(&self) -> Result<Box<dyn RawEvent>>;

    /// Makes later work on this stream wait for an event, also of another device of the backend;
    /// a backend that cannot wait for those refuses them.
    fn wait(&self, event: &dyn RawEvent) -> Result<()>;

    /// Whether work is recorded into a graph at present instead of being done.
    fn is_capturing(&self) -> Result<bool> {
        Ok(false)
    }

    /// Makes later work on this stream wait until the gate is dropped.
    fn gate(&self) -> Result<Box<dyn RawGate>>;

    /// Blocks until all work enqueued before is done.
    fn synchronize(&self) -> Result<()>;
}

/// A closed gate in a stream. Dropping it opens it; the drop neither waits for the device nor
/// can it fail in a way that a caller could act on.
pub trait RawGate: Send + Sync + Debug {}

/// A point in a stream.
pub trait RawEvent: Any + Send + Sync + Debug {
    /// Whether the work before it is done; an error if it failed.
    fn query(&self) -> Result<bool>;

    /// Blocks, without spinning, until the work before it is done.
    fn wait(&self) -> Result<()>;
}

/// A loaded module.
pub trait RawModule: Any + Send + Sync + Debug {
    /// Whether a kernel of this name is in it.
    fn has_kernel(&self, name: &str) -> bool;
}

/// One kernel launch: a one-dimensional grid.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// The module.
    pub module: &'a Arc<dyn RawModule>,
    /// The kernel's name in the module.
    pub kernel: &'a str,
    /// Number of groups (thread blocks, work-groups), at least 1.
    pub groups: u32,
    /// Threads a group, at least 1.
    pub group_size: u32,
    /// Arguments in the order of the kernel's parameters.
    pub args: &'a [KernelArg<'a>],
}
