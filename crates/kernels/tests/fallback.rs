//! What happens when a device computes wrongly: a backend that damages what a kernel wrote, or
//! that refuses to compile, gets the host path, with the reason, and right results.

use bifolio_device::backend::{Backend, Launch, RawEvent, RawFrame, RawModule, RawStream};
use bifolio_device::{
    Access, Capability, Device, DeviceInfo, DevicePtr, Error, ErrorKind, HostOptions, KernelArg, MemoryInfo,
    ModuleSource, Result,
};
use bifolio_kernels::known_answer::Draw;
use bifolio_kernels::scatter::Extent;
use bifolio_kernels::{KernelPath, Kernels, page_diff, scatter};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

#[test]
fn a_kernel_that_answers_wrongly_is_replaced_by_its_host_path_and_the_report_says_why() {
    let device = faulty(Fault::DamagesOutput);
    let kernels = Kernels::load(&device).unwrap();
    for status in kernels.report() {
        assert_eq!(status.path, KernelPath::Host, "{status}");
        let sentence = status.to_string();
        for part in ["host path: it failed its known-answer test", "instead of", "(seed "] {
            assert!(sentence.contains(part), "{sentence}");
        }
    }
    results_are_right(&device, &kernels);
}

#[test]
fn a_kernel_that_does_not_compile_is_replaced_by_its_host_path_and_the_report_carries_the_log() {
    let device = faulty(Fault::RefusesToCompile);
    let kernels = Kernels::load(&device).unwrap();
    for status in kernels.report() {
        assert_eq!(status.path, KernelPath::Host, "{status}");
        assert!(status.reason.as_ref().is_some_and(|reason| reason.contains("unexpected token")), "{status}");
    }
    results_are_right(&device, &kernels);
}

#[test]
fn kernels_that_answer_rightly_run_on_the_device() {
    let device = faulty(Fault::None);
    let kernels = Kernels::load(&device).unwrap();
    for status in kernels.report() {
        assert_eq!((status.path, &status.reason), (KernelPath::Device, &None), "{status}");
    }
    results_are_right(&device, &kernels);
}

#[test]
fn a_device_without_kernels_says_so_and_computes_all_the_same() {
    let device = Device::host(&HostOptions::default());
    let kernels = Kernels::load(&device).unwrap();
    for status in kernels.report() {
        assert_eq!(status.path, KernelPath::Host);
        assert_eq!(status.reason.as_deref(), device.capabilities().kernels.reason());
    }
    results_are_right(&device, &kernels);
}

/// Through the public face, on inputs of its own.
fn results_are_right(device: &Device, kernels: &Kernels) {
    let (stream, mut draw) = (device.create_stream().unwrap(), Draw::afresh());
    let (a, mut b) = (draw.bytes(300_000), vec![0; 300_000]);
    b.copy_from_slice(&a);
    b[70_000] ^= 1;
    b[299_999] ^= 1;
    let bitmap = on_device(device, &[0xa5; 12]);
    let (left, right) = (on_device(device, &a), on_device(device, &b));
    // SAFETY: the allocations live until `content` has waited for the work.
    unsafe { kernels.page_diff(&stream, left.slice(), right.slice(), bitmap.slice()) }.unwrap();
    let expected: Vec<u8> = page_diff::oracle(&a, &b).into_iter().flat_map(u32::to_ne_bytes).collect();
    assert_eq!(content(&stream, &bitmap), expected);

    let extents = [Extent { src: 5, dst: 70_001, len: 4097 }, Extent { src: 9, dst: 3, len: 11 }];
    let (array, place) = (on_device(device, &scatter::encode(&extents)), on_device(device, &b));
    // SAFETY: as above; the extents lie inside the buffers and do not overlap.
    unsafe { kernels.scatter(&stream, left.slice(), array.slice(), place.slice()) }.unwrap();
    scatter::oracle(&a, &extents, &mut b);
    assert_eq!(content(&stream, &place), b);
}

fn on_device(device: &Device, bytes: &[u8]) -> bifolio_device::Allocation {
    let memory = device.alloc(bytes.len() as u64).unwrap();
    device.create_stream().unwrap().upload(memory.slice(), bytes).unwrap();
    memory
}

fn content(stream: &bifolio_device::Stream, memory: &bifolio_device::Allocation) -> Vec<u8> {
    let mut bytes = vec![0; memory.len() as usize];
    stream.download(&mut bytes, memory.slice()).unwrap();
    bytes
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    DamagesOutput,
    RefusesToCompile,
}

/// The embedded device, presented as one that compiles kernels, with a fault.
fn faulty(fault: Fault) -> Device {
    let inner = Arc::clone(Device::host(&HostOptions::default()).backend());
    let mut info = inner.info().clone();
    info.capabilities.kernels = Capability::YES;
    Device::from_backend(Arc::new(Faulty { inner, info, fault }))
}

#[derive(Debug)]
struct Faulty {
    inner: Arc<dyn Backend>,
    info: DeviceInfo,
    fault: Fault,
}

impl Backend for Faulty {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        self.inner.memory()
    }

    fn alloc(&self, len: u64) -> Result<DevicePtr> {
        self.inner.alloc(len)
    }

    unsafe fn free(&self, ptr: DevicePtr) -> Result<()> {
        // SAFETY: the caller's promise, which is the inner backend's requirement.
        unsafe { self.inner.free(ptr) }
    }

    fn alloc_pinned(&self, len: usize) -> Result<NonNull<u8>> {
        self.inner.alloc_pinned(len)
    }

    unsafe fn free_pinned(&self, ptr: NonNull<u8>, len: usize) -> Result<()> {
        // SAFETY: as in `free`.
        unsafe { self.inner.free_pinned(ptr, len) }
    }

    unsafe fn register_host(&self, ptr: *const u8, len: usize) -> Result<()> {
        // SAFETY: as in `free`.
        unsafe { self.inner.register_host(ptr, len) }
    }

    unsafe fn unregister_host(&self, ptr: *const u8, len: usize) -> Result<()> {
        // SAFETY: as in `free`.
        unsafe { self.inner.unregister_host(ptr, len) }
    }

    fn reserve(&self, len: u64) -> Result<DevicePtr> {
        self.inner.reserve(len)
    }

    unsafe fn unreserve(&self, ptr: DevicePtr, len: u64) -> Result<()> {
        // SAFETY: as in `free`.
        unsafe { self.inner.unreserve(ptr, len) }
    }

    fn create_frame(&self) -> Result<Box<dyn RawFrame>> {
        self.inner.create_frame()
    }

    fn import_frame(&self, fd: OwnedFd) -> Result<Box<dyn RawFrame>> {
        self.inner.import_frame(fd)
    }

    unsafe fn map_frame(&self, ptr: DevicePtr, frame: &dyn RawFrame, access: Access) -> Result<()> {
        // SAFETY: as in `free`.
        unsafe { self.inner.map_frame(ptr, frame, access) }
    }

    unsafe fn unmap_frame(&self, ptr: DevicePtr) -> Result<()> {
        // SAFETY: as in `free`.
        unsafe { self.inner.unmap_frame(ptr) }
    }

    fn create_stream(&self) -> Result<Box<dyn RawStream>> {
        Ok(Box::new(FaultyStream { inner: self.inner.create_stream()?, fault: self.fault }))
    }

    unsafe fn adopt_stream(&self, raw: u64) -> Result<Box<dyn RawStream>> {
        // SAFETY: as in `free`.
        let inner = unsafe { self.inner.adopt_stream(raw) }?;
        Ok(Box::new(FaultyStream { inner, fault: self.fault }))
    }

    fn load_module(&self, source: &ModuleSource) -> Result<Arc<dyn RawModule>> {
        match self.fault {
            Fault::RefusesToCompile => Err(Error::new(ErrorKind::Kernel, "line 3: unexpected token")),
            _ => self.inner.load_module(source),
        }
    }
}

#[derive(Debug)]
struct FaultyStream {
    inner: Box<dyn RawStream>,
    fault: Fault,
}

impl RawStream for FaultyStream {
    unsafe fn copy_to_device(&self, dst: DevicePtr, src: *const u8, len: u64) -> Result<()> {
        // SAFETY: the caller's promise, which is the inner stream's requirement.
        unsafe { self.inner.copy_to_device(dst, src, len) }
    }

    unsafe fn copy_to_host(&self, dst: *mut u8, src: DevicePtr, len: u64) -> Result<()> {
        // SAFETY: as in `copy_to_device`.
        unsafe { self.inner.copy_to_host(dst, src, len) }
    }

    unsafe fn copy_on_device(&self, dst: DevicePtr, src: DevicePtr, len: u64) -> Result<()> {
        // SAFETY: as in `copy_to_device`.
        unsafe { self.inner.copy_on_device(dst, src, len) }
    }

    unsafe fn fill(&self, dst: DevicePtr, value: u8, len: u64) -> Result<()> {
        // SAFETY: as in `copy_to_device`.
        unsafe { self.inner.fill(dst, value, len) }
    }

    unsafe fn launch(&self, kernel: &Launch<'_>) -> Result<()> {
        // SAFETY: as in `copy_to_device`.
        unsafe { self.inner.launch(kernel) }?;
        let output = kernel.args.iter().rev().find_map(|arg| match arg {
            KernelArg::Buffer(ptr) => Some(*ptr),
            KernelArg::Bytes(_) => None,
        });
        match output {
            // Both kernels write their last buffer. 64 bytes of one value are no answer of either;
            // of the bitmap, which is shorter, four are enough.
            Some(ptr) if self.fault == Fault::DamagesOutput => {
                let len = if kernel.kernel == page_diff::KERNEL { 4 } else { 64 };
                // SAFETY: the output has at least `len` bytes and outlives the launch, and so the
                // work that is enqueued directly after it.
                unsafe { self.inner.fill(ptr, 0x5a, len) }
            }
            _ => Ok(()),
        }
    }

    fn record(&self) -> Result<Box<dyn RawEvent>> {
        self.inner.record()
    }

    fn wait(&self, event: &dyn RawEvent) -> Result<()> {
        self.inner.wait(event)
    }

    fn synchronize(&self) -> Result<()> {
        self.inner.synchronize()
    }
}
