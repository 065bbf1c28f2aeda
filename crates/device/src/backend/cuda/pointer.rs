//! Whose memory an address is, as the driver knows it.

use super::abi::{ContextHandle, Ordinal, SUCCESS, Status, StreamHandle};
use super::context::{self, Context};
use super::sys::{self, Cuda};
use crate::located::Located;
use crate::{BackendKind, DeviceId, DevicePtr};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

// `CUpointer_attribute`.
const CONTEXT: c_int = 1;
const MEMORY_TYPE: c_int = 2;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;
const RANGE_START: c_int = 11;
const RANGE_SIZE: c_int = 12;

/// `CU_MEMORYTYPE_DEVICE`.
const MEMORY_OF_DEVICE: c_uint = 2;

/// The device memory at an address, but not managed memory, which the CPU uses by itself.
pub(crate) fn locate(address: u64) -> Option<Located> {
    if !is_loaded() {
        return None;
    }
    let cuda = &sys::driver().ok()?.0;
    let mut context = ContextHandle::default();
    let (mut kind, mut managed, mut ordinal): (c_uint, c_uint, Ordinal) = (0, 0, -1);
    let (mut start, mut len) = (0_u64, 0_usize);
    let attributes = [CONTEXT, MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL, RANGE_START, RANGE_SIZE];
    let values: [*mut c_void; 6] = [
        (&raw mut context).cast(),
        (&raw mut kind).cast(),
        (&raw mut managed).cast(),
        (&raw mut ordinal).cast(),
        (&raw mut start).cast(),
        (&raw mut len).cast(),
    ];
    // SAFETY: there is a place of its attribute's type for each value; the address is only looked up. Before
    // `cuInit` the driver refuses, and then nobody has device memory.
    let status = unsafe {
        (cuda.cuPointerGetAttributes)(attributes.len() as c_uint, attributes.as_ptr(), values.as_ptr(), address)
    };
    // The flag of managed memory is a byte in some versions.
    if status != SUCCESS || kind != MEMORY_OF_DEVICE || managed & 0xff != 0 || ordinal < 0 || len == 0 {
        return None;
    }
    // One address space spans host and devices, so the device calls it what the program does.
    Some(Located { address: DevicePtr(address), start, len: len as u64, ..in_context(cuda, ordinal, context) })
}

/// The device and context of a stream of the program's. The default streams are those of the thread's
/// current context.
pub(crate) fn locate_stream(raw: u64) -> Option<Located> {
    if !is_loaded() {
        return None;
    }
    let cuda = &sys::driver().ok()?.0;
    let (mut context, mut current) = (ContextHandle::default(), ContextHandle::default());
    let mut ordinal: Ordinal = -1;
    // SAFETY: the driver looks the handle up and stores one handle each; the thread's current context is put
    // back. Before `cuInit` the driver refuses, and then nobody has a stream.
    let known = unsafe {
        (cuda.cuStreamGetCtx)(StreamHandle(raw as usize), &raw mut context) == SUCCESS
            && (cuda.cuCtxGetCurrent)(&raw mut current) == SUCCESS
            && (cuda.cuCtxSetCurrent)(context) == SUCCESS
    };
    if !known {
        return None;
    }
    // SAFETY: as above.
    let found = unsafe {
        let found = (cuda.cuCtxGetDevice)(&raw mut ordinal) == SUCCESS;
        (cuda.cuCtxSetCurrent)(current);
        found
    };
    (found && ordinal >= 0).then(|| in_context(cuda, ordinal, context))
}

/// No memory, in a context of a device.
fn in_context(cuda: &Cuda, ordinal: Ordinal, context: ContextHandle) -> Located {
    let primary = primary_of(cuda, ordinal, context);
    Located {
        device: DeviceId::new(BackendKind::Cuda, ordinal as u32),
        context: if primary.is_some() { 0 } else { context.0 as u64 },
        incarnation: context::incarnation(cuda, primary.unwrap_or(context)),
        address: DevicePtr(0),
        start: 0,
        len: 0,
    }
}

/// Whether this process has loaded the driver, by itself or through here.
fn is_loaded() -> bool {
    static LOADED: AtomicBool = AtomicBool::new(false);
    if LOADED.load(Ordering::Relaxed) {
        return true;
    }
    // A driver that the user named is loaded by nobody else.
    let named = || std::env::var_os("BIFOLIO_CUDA_LIBRARY").is_some_and(|name| !name.is_empty());
    // SAFETY: looks the name up among the libraries of the process and loads nothing; the reference that it
    // takes keeps a library that is never unloaded anyway.
    let found = || unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    let loaded = !found().is_null() || named();
    LOADED.store(loaded, Ordering::Relaxed);
    loaded
}

/// A device's primary context, if that is the one that some memory is in. Memory of pools and of mapped
/// frames is in none, and used in the primary one.
fn primary_of(cuda: &Cuda, device: Ordinal, context: ContextHandle) -> Option<ContextHandle> {
    if Context::is_retained(device, context) {
        return Some(context);
    }
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the driver stores two integers.
    let known = unsafe { (cuda.cuDevicePrimaryCtxGetState)(device, &raw mut flags, &raw mut active) };
    // Asking for it would make it; without being active it has no memory.
    let primary = (known == SUCCESS && active != 0).then(|| primary(cuda, device).ok()).flatten();
    if context == ContextHandle::default() {
        return Some(primary.unwrap_or_default());
    }
    primary.filter(|primary| *primary == context)
}

fn primary(cuda: &Cuda, device: Ordinal) -> Result<ContextHandle, Status> {
    let mut handle = ContextHandle::default();
    // SAFETY: the driver stores one handle; the reference is given back at once, and others keep it alive.
    let status = unsafe {
        let status = (cuda.cuDevicePrimaryCtxRetain)(&raw mut handle, device);
        if status == SUCCESS {
            (cuda.cuDevicePrimaryCtxRelease_v2)(device);
        }
        status
    };
    if status == SUCCESS { Ok(handle) } else { Err(status) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceChoice, discover, open};

    #[test]
    fn an_address_of_the_host_is_nobody_elses() {
        let bytes = [0_u8; 64];
        assert_eq!(locate(bytes.as_ptr() as u64), None);
        assert_eq!(locate(0), None);
        assert_eq!(locate(u64::MAX), None);
    }

    #[test]
    fn a_stream_is_of_the_context_that_it_was_made_in() {
        let devices = discover().into_iter().flat_map(|report| report.devices);
        let Some(device) = devices.map(|info| info.id).find(|id| id.backend == BackendKind::Cuda) else {
            assert_eq!(locate_stream(0), None, "without a driver nobody has a stream");
            bifolio_testing::skip("there is no CUDA device here");
            return;
        };
        let context = Context::retain(&sys::driver().unwrap().0, device.index as Ordinal).unwrap();
        let entered = context.enter().unwrap();
        let mut stream = StreamHandle::default();
        // SAFETY: the driver stores one handle; the context is entered.
        assert_eq!(unsafe { (context.cuda.cuStreamCreate)(&raw mut stream, 0) }, SUCCESS);
        drop(entered);
        let found = locate_stream(stream.0 as u64).unwrap();
        assert_eq!((found.device, found.context, found.len), (device, 0, 0));
        let _entered = context.enter().unwrap();
        // SAFETY: the stream is ours and idle.
        unsafe { (context.cuda.cuStreamDestroy_v2)(stream) };
    }

    /// Allocations are found from the first to the last byte, in the primary context and in a program's own.
    #[test]
    fn device_memory_is_found_with_its_device_context_and_range() {
        let devices = discover().into_iter().flat_map(|report| report.devices);
        let Some(device) = devices.map(|info| info.id).find(|id| id.backend == BackendKind::Cuda) else {
            bifolio_testing::skip("there is no CUDA device here");
            return;
        };
        let opened = open(DeviceChoice::Exactly(device)).unwrap();
        let memory = opened.alloc(3 << 20).unwrap();
        for at in [0, 1, (3 << 20) - 1] {
            let found = locate(memory.ptr().0 + at).unwrap();
            assert_eq!((found.device, found.context, found.start), (device, 0, memory.ptr().0));
            assert_eq!(found.address, memory.ptr().offset_by(at));
            assert_eq!(found.bytes_left(memory.ptr().0 + at), found.len - at);
            assert!(found.len >= 3 << 20);
        }
        let pinned = opened.alloc_pinned(4096).unwrap();
        assert_eq!(locate(pinned.as_ptr() as u64), None, "the CPU uses pinned memory itself");
        drop(memory);
    }
}
