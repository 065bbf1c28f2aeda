//! The backend on whatever device is here; on a machine without OpenCL each test is skipped.
//!
//! Oclgrind 21.10 passes these one test a process. With several it crashes in its own memory pool
//! (which belongs to a thread that is gone), it crashes on a binary that is none, and its check
//! for uninitialised reads can report bytes that were uploaded to an offset of a buffer.

use super::*;
use crate::{Device, HostLaunch, KernelArg, Stream};

const SCALE: ModuleSource = ModuleSource {
    name: "scale",
    source: "#include \"params.h\"\n__kernel void scale(__global uint *data, struct params p) {\n\
             size_t i = get_global_id(0); if (i < p.count) data[i] = data[i] * p.factor + p.addend; }",
    headers: &[(
        "params.h",
        "#pragma once\nstruct params { ulong count; uint factor; uint addend; uint unused[6]; };\n",
    )],
    kernels: &[("scale", oracle)],
};

#[repr(C)]
struct Params {
    count: u64,
    factor: u32,
    addend: u32,
    unused: [u32; 6],
}

/// Never called: the test compares with plain arithmetic.
unsafe fn oracle(_launch: &HostLaunch<'_>) {}

impl Params {
    fn bytes(&self) -> &[u8] {
        // SAFETY: a plain struct without padding.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

#[track_caller]
fn device() -> Option<(Device, tempfile::TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    let opened = probe::loader().and_then(|cl| {
        let found = probe::devices(cl)?.swap_remove(0);
        let info = probe::describe(cl, &found, 0)?;
        let context = Context::of(cl, &found, info.memory_bytes)?;
        let control = Queue::create(&context)?;
        Ok(OpenClBackend { info, context, control, cache: KernelCache::at(folder.path()) })
    });
    match opened {
        Ok(backend) => Some((Device::from_backend(Arc::new(backend)), folder)),
        Err(error) => {
            bifolio_testing::require(format_args!("there is no OpenCL device: {error}"));
            None
        }
    }
}

fn scaled(device: &Device, stream: &Stream, offset: u64, threads: u32, params: &Params) -> Vec<u32> {
    let count = 1000_u32;
    let memory = device.alloc(offset + u64::from(count) * 4).unwrap();
    let data = memory.slice().part(offset, u64::from(count) * 4).unwrap();
    stream.upload(data, &(0..count).flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    let module = device.load_module(&SCALE).unwrap();
    let args = [KernelArg::Buffer(data.ptr()), KernelArg::Bytes(params.bytes())];
    // SAFETY: the arguments are the kernel's, and the buffer lives until the download is done.
    unsafe { stream.launch(&module, "scale", count.div_ceil(threads), threads, &args) }.unwrap();
    let mut out = vec![0; count as usize * 4];
    stream.download(&mut out, data).unwrap();
    out.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn kernels_take_structs_by_value_and_parts_of_buffers_compiled_or_cached() {
    let Some((device, folder)) = device() else { return };
    let stream = device.create_stream().unwrap();
    let params = Params { count: 999, factor: 3, addend: 7, unused: [0; 6] };
    let expected: Vec<u32> = (0..1000).map(|i| if i < 999 { i * 3 + 7 } else { i }).collect();
    let alignment = device.info().kernel_buffer_alignment;
    for (offset, threads) in [(0, 1), (0, 64), (alignment, 64), (3 * alignment, 128)] {
        assert_eq!(
            scaled(&device, &stream, offset, threads, &params),
            expected,
            "offset {offset}, groups of {threads}"
        );
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "the binary was not cached");
}

#[test]
fn a_cached_binary_that_the_driver_refuses_is_compiled_anew() {
    let Some((device, folder)) = device() else { return };
    let cl = probe::loader().unwrap();
    let found = probe::devices(cl).unwrap().swap_remove(0);
    let context = Context::of(cl, &found, device.info().memory_bytes).unwrap();
    let cache = KernelCache::at(folder.path());
    let key = ["opencl", "-cl-std=CL1.2", &context.description];
    cache.get(&SCALE, &key, || Ok::<_, ()>(b"not a binary of this driver".to_vec())).unwrap();
    assert!(device.load_module(&SCALE).unwrap().has_kernel("scale"));
}

#[test]
fn a_compile_error_carries_the_log_with_the_original_line() {
    let Some((device, _folder)) = device() else { return };
    let broken = ModuleSource { source: "#include \"params.h\"\n\n__kernel void f() { undeclared = 1; }", ..SCALE };
    let error = device.load_module(&broken).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Kernel);
    assert!(error.to_string().contains("undeclared"), "{error}");
}

#[test]
fn a_kernel_that_the_source_lacks_is_an_error_at_load() {
    let Some((device, _folder)) = device() else { return };
    let lacking = ModuleSource { kernels: &[("scale", oracle), ("shrink", oracle)], ..SCALE };
    let error = device.load_module(&lacking).unwrap_err();
    assert!(error.to_string().contains("no kernel shrink"), "{error}");
}

#[test]
fn more_memory_than_the_device_has_is_refused_and_counted_right() {
    let Some((device, _folder)) = device() else { return };
    let total = device.memory().unwrap().total;
    for len in [total + 1, u64::MAX] {
        assert_eq!(device.alloc(len).unwrap_err().kind(), ErrorKind::OutOfMemory, "{len}");
    }
    let held = device.alloc(1 << 20).unwrap();
    assert!(device.memory().unwrap().free <= total - (1 << 20));
    drop(held);
}

#[test]
fn what_opencl_cannot_do_says_why() {
    let Some((device, _folder)) = device() else { return };
    let error = device.reserve(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("address ranges"), "{error}");
    assert_eq!(device.create_frame().unwrap_err().kind(), ErrorKind::Unsupported);
    // SAFETY: refused, so nothing is adopted.
    assert_eq!(unsafe { device.adopt_stream(0) }.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn copies_and_fills_run_in_order_and_across_streams() {
    let Some((device, _folder)) = device() else { return };
    let (first, second) = (device.create_stream().unwrap(), device.create_stream().unwrap());
    let (a, b) = (device.alloc(3 << 20).unwrap(), device.alloc(3 << 20).unwrap());
    let mut pinned = device.alloc_pinned((3 << 20) + 5).unwrap();
    assert_eq!(pinned.as_ptr().addr() % 4096, 0);
    pinned.bytes_mut()[..3 << 20].iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 251) as u8);
    // SAFETY: all memory lives until both streams are done, and the host touches none of it.
    unsafe {
        first.copy_to_device(a.slice(), pinned.as_ptr()).unwrap();
        first.fill(part(&a, 7, 1001), 0xEE).unwrap();
        let filled = first.record().unwrap();
        second.wait(&filled).unwrap();
        second.copy_on_device(part(&b, 1, (3 << 20) - 1), part(&a, 0, (3 << 20) - 1)).unwrap();
    }
    let mut out = vec![0; (3 << 20) - 1];
    second.download(&mut out, part(&b, 1, (3 << 20) - 1)).unwrap();
    let expected = |i: usize| if (7..1008).contains(&i) { 0xEE } else { (i % 251) as u8 };
    assert!(out.iter().enumerate().all(|(i, &byte)| byte == expected(i)));
    assert!(first.record().unwrap().query().unwrap());
}

fn part(memory: &crate::Allocation, offset: u64, len: u64) -> crate::DeviceSlice<'_> {
    memory.slice().part(offset, len).unwrap()
}

#[test]
fn devices_of_other_contexts_are_told_to_go_through_the_host() {
    let Some((device, folder)) = device() else { return };
    let cl = probe::loader().unwrap();
    let found = probe::devices(cl).unwrap().swap_remove(0);
    // As another device would have: contexts of one device are shared otherwise.
    let context = Arc::new(Context::create(cl, &found, device.info().memory_bytes).unwrap());
    let control = Queue::create(&context).unwrap();
    let cache = KernelCache::at(folder.path());
    let peer = Device::from_backend(Arc::new(OpenClBackend { info: device.info().clone(), context, control, cache }));
    let (stream, there) = (device.create_stream().unwrap(), peer.create_stream().unwrap());
    let (to, from) = (device.alloc(64).unwrap(), peer.alloc(64).unwrap());
    // SAFETY: refused, so nothing is copied.
    let error = unsafe { stream.copy_from_peer(to.slice(), &peer, from.slice()) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("through host memory"), "{error}");
    let error = stream.wait(&there.record().unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("on the host"), "{error}");
}
