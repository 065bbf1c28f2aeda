//! In-order queues of work on a device.
//!
//! Asynchronous copies are `unsafe` where the host side must outlive the work; the blocking ones are safe. Two
//! streams are ordered only by [`Stream::wait`].

use super::event::Event;
use crate::backend::{Launch, RawStream};
use crate::fork::Native;
use crate::module::Module;
use crate::{Device, DeviceSlice, KernelArg, Result, Rows};
use std::time::Duration;

impl Device {
    /// Creates a stream.
    pub fn create_stream(&self) -> Result<Stream> {
        let raw = self.backend().create_stream().map_err(|error| self.name(error))?;
        Ok(Stream::new(self, raw))
    }

    /// Creates one for work that is mostly done within `time`: waits poll so long before they sleep. Waking up from
    /// sleep takes some ten microseconds, several times what short work takes.
    pub fn create_polling_stream(&self, time: Duration) -> Result<Stream> {
        let mut raw = self.backend().create_stream().map_err(|error| self.name(error))?;
        raw.poll_for(time);
        Ok(Stream::new(self, raw))
    }

    /// Wraps a stream of the caller's, so that work is ordered on it.
    ///
    /// # Safety
    /// `raw` is a live stream of this device until the wrapper is dropped.
    pub unsafe fn adopt_stream(&self, raw: u64) -> Result<Stream> {
        // SAFETY: the caller's promise is the backend's requirement.
        let raw = unsafe { self.backend().adopt_stream(raw) }.map_err(|error| self.name(error))?;
        Ok(Stream::new(self, raw))
    }
}

/// An in-order queue of work on a device.
#[derive(Debug)]
pub struct Stream {
    pub(super) device: Device,
    raw: Native<Box<dyn RawStream>>,
}

impl Stream {
    pub(super) fn new(device: &Device, raw: Box<dyn RawStream>) -> Self {
        Self { device: device.clone(), raw: Native::new(raw) }
    }

    pub(super) fn raw(&self) -> Result<&dyn RawStream> {
        self.name(self.raw.get()).map(|raw| &**raw)
    }

    /// The device it runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Enqueues a copy of `dst.len()` bytes from host memory.
    ///
    /// # Safety
    /// `src` has `dst.len()` bytes; both ranges stay valid and `src` unwritten until the work
    /// completes.
    pub unsafe fn copy_to_device(&self, dst: DeviceSlice<'_>, src: *const u8) -> Result<()> {
        if dst.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.name(unsafe { self.raw()?.copy_to_device(dst.ptr(), src, dst.len()) })
    }

    /// The same, and blocks until everything enqueued is done, whether that or the copy fails.
    ///
    /// # Safety
    /// `src` has `dst.len()` bytes, which nobody writes until the call returns.
    pub unsafe fn copy_to_device_and_wait(&self, dst: DeviceSlice<'_>, src: *const u8) -> Result<()> {
        if dst.is_empty() {
            return self.synchronize();
        }
        // SAFETY: the caller's promise.
        self.name(unsafe { self.raw()?.copy_to_device_and_wait(dst.ptr(), src, dst.len()) })
    }

    /// Enqueues a copy of `src.len()` bytes to host memory.
    ///
    /// # Safety
    /// `dst` has `src.len()` bytes; both ranges stay valid and `dst` untouched until the work
    /// completes.
    pub unsafe fn copy_to_host(&self, dst: *mut u8, src: DeviceSlice<'_>) -> Result<()> {
        if src.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.name(unsafe { self.raw()?.copy_to_host(dst, src.ptr(), src.len()) })
    }

    /// Enqueues a copy between ranges of equal length that do not overlap.
    ///
    /// # Safety
    /// Both ranges stay valid until the work completes.
    pub unsafe fn copy_on_device(&self, dst: DeviceSlice<'_>, src: DeviceSlice<'_>) -> Result<()> {
        assert_eq!(dst.len(), src.len(), "source and destination have one length");
        if dst.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.name(unsafe { self.raw()?.copy_on_device(dst.ptr(), src.ptr(), dst.len()) })
    }

    /// Enqueues a copy from a range of another device of the same backend into a range of this
    /// stream's device; the ranges have equal length. Ordered by this stream alone: work on the
    /// peer that writes `src` is waited for with [`Stream::wait`], and work on the peer that
    /// reuses `src` waits for an event that is recorded here.
    ///
    /// Where two GPUs reach each other ([`crate::Capabilities::peer_access`]) the bytes go
    /// directly; the first copy of a pair asks the driver for that access, which from then on
    /// maps new allocations of each into the other. (Frames are mapped for their own device only;
    /// which way the driver copies those is its own choice.) Where they do not, CUDA's driver copies
    /// through host memory. OpenCL refuses with [`crate::ErrorKind::Unsupported`]: the caller
    /// copies through host memory itself.
    ///
    /// # Safety
    /// `src` is memory of `peer`; both ranges stay valid until the work completes.
    pub unsafe fn copy_from_peer(&self, dst: DeviceSlice<'_>, peer: &Device, src: DeviceSlice<'_>) -> Result<()> {
        assert_eq!(dst.len(), src.len(), "source and destination have one length");
        if dst.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.name(unsafe { self.raw()?.copy_from_peer(dst.ptr(), &**peer.backend(), src.ptr(), dst.len()) })
    }

    /// Enqueues a copy of rows from host memory; what lies between them on the device stays as it is.
    /// On CUDA all rows are one command of the copy engine.
    ///
    /// # Safety
    /// `src` has `rows.bytes * rows.count` bytes; it stays valid and unwritten, and `dst` valid, until
    /// the work completes.
    pub unsafe fn copy_rows_to_device(&self, dst: DeviceSlice<'_>, src: *const u8, rows: Rows) -> Result<()> {
        self.name(rows.check(dst))?;
        if dst.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise; the rows are those of the slice.
        self.name(unsafe { self.raw()?.copy_rows_to_device(dst.ptr(), src, rows) })
    }

    /// Enqueues a copy of rows to host memory.
    ///
    /// # Safety
    /// `dst` has `rows.bytes * rows.count` bytes; it stays valid and untouched, and `src` valid, until
    /// the work completes.
    pub unsafe fn copy_rows_to_host(&self, dst: *mut u8, src: DeviceSlice<'_>, rows: Rows) -> Result<()> {
        self.name(rows.check(src))?;
        if src.is_empty() {
            return Ok(());
        }
        // SAFETY: as above.
        self.name(unsafe { self.raw()?.copy_rows_to_host(dst, src.ptr(), rows) })
    }

    /// Enqueues filling a range with one byte value.
    ///
    /// # Safety
    /// The range stays valid until the work completes.
    pub unsafe fn fill(&self, dst: DeviceSlice<'_>, value: u8) -> Result<()> {
        if dst.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.name(unsafe { self.raw()?.fill(dst.ptr(), value, dst.len()) })
    }

    /// Enqueues `kernel` of `module` on `groups` groups of `group_size` threads.
    ///
    /// # Safety
    /// The arguments are what the kernel expects; memory that they name stays valid until the
    /// work completes.
    pub unsafe fn launch(
        &self,
        module: &Module,
        kernel: &str,
        groups: u32,
        group_size: u32,
        args: &[KernelArg<'_>],
    ) -> Result<()> {
        let launch = Launch { module: module.raw(), kernel, groups, group_size, args };
        // SAFETY: the caller's promise.
        self.name(unsafe { self.raw()?.launch(&launch) })
    }

    /// Records an event after everything enqueued so far.
    pub fn record(&self) -> Result<Event> {
        self.name(self.raw()?.record()).map(|raw| Event::new(&self.device, raw))
    }

    /// Makes later work of this stream wait for `event`, which may be of another device of the
    /// same backend on `cuda` and `host`. OpenCL gives each device a context of its own and
    /// refuses such an event: wait for it on the host there.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.name(self.raw()?.wait(event.raw()?))
    }

    /// Whether the stream's work is recorded into a graph at present (CUDA) instead of being done. Such a
    /// stream cannot wait for the host.
    pub fn is_capturing(&self) -> Result<bool> {
        self.name(self.raw()?.is_capturing())
    }

    /// Blocks until everything enqueued is done; reports a failure of any of it.
    pub fn synchronize(&self) -> Result<()> {
        self.name(self.raw()?.synchronize())
    }

    /// Copies `bytes` to `dst` and waits; lengths are equal.
    pub fn upload(&self, dst: DeviceSlice<'_>, bytes: &[u8]) -> Result<()> {
        assert_eq!(dst.len(), bytes.len() as u64, "source and destination have one length");
        // SAFETY: `bytes` is borrowed until the call returns.
        unsafe { self.copy_to_device_and_wait(dst, bytes.as_ptr()) }
    }

    /// Copies `src` to `bytes` and waits; lengths are equal.
    pub fn download(&self, bytes: &mut [u8], src: DeviceSlice<'_>) -> Result<()> {
        assert_eq!(src.len(), bytes.len() as u64, "source and destination have one length");
        if src.is_empty() {
            return self.synchronize();
        }
        // SAFETY: `bytes` is borrowed until the call returns.
        self.name(unsafe { self.raw()?.copy_to_host_and_wait(bytes.as_mut_ptr(), src.ptr(), src.len()) })
    }

    pub(super) fn name<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.device.name(error))
    }
}
