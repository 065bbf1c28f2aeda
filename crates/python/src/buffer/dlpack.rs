//! DLPack, both ways: capsules of other packages, with and without a version, and our own memory as one.
//!
//! A capsule that we read is kept as it is and not renamed: its destructor then calls the exporter's deleter,
//! when the request is over. A capsule of ours owns a share of the memory; consumers call the deleter on
//! any thread, with or without the interpreter's lock, and it touches nothing of Python's.

use super::array::{bytes_of, is_c_order, not_contiguous, read_only};
use super::lent::{DEFAULT_STREAM, Lent, Role};
use crate::error::bad;
use crate::life::Keeper;
use bifolio_device::{BackendKind, DeviceId};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

pub(super) const CPU: i32 = 1;
pub(super) const CUDA: i32 = 2;
pub(super) const CUDA_HOST: i32 = 3;
const OPENCL: i32 = 4;

const READ_ONLY: u64 = 1;

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// The latest version of the format that is understood, as major and minor.
const VERSION: (u32, u32) = (1, 1);

#[repr(C)]
#[derive(Default)]
pub(super) struct Tensor {
    data: *mut c_void,
    pub(super) device_type: i32,
    pub(super) device_id: i32,
    sides: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

impl Tensor {
    /// Where its bytes are counted from.
    pub(super) fn data(&self) -> *mut c_void {
        self.data
    }

    /// Its first address and its length in bytes; a refusal where it is cut or turned.
    ///
    /// # Safety
    /// It was filled by an exporter, and the numbers that it points to are still there.
    pub(super) unsafe fn bytes(&self, object: &Bound<'_, PyAny>) -> PyResult<(u64, u64)> {
        let sides =
            usize::try_from(self.sides).map_err(|_| bad("the DLPack tensor has a negative number of dimensions"))?;
        // SAFETY: the exporter describes `sides` sides.
        let shape = unsafe { numbers(self.shape, sides) };
        if !self.strides.is_null() {
            // SAFETY: as above.
            let strides = unsafe { numbers(self.strides, sides) };
            if !is_c_order(shape, strides, 1) {
                return Err(not_contiguous(object));
            }
        }
        let bytes = bytes_of(shape, u64::from(self.bits) * u64::from(self.lanes))?;
        Ok(((self.data as u64).wrapping_add(self.byte_offset), bytes))
    }
}

/// What an object with DLPack lends; none for other objects.
pub(super) fn lend(object: &Bound<'_, PyAny>, role: Role) -> PyResult<Option<Lent>> {
    let py = object.py();
    let Some(device) = object.getattr_opt(intern!(py, "__dlpack_device__"))? else { return Ok(None) };
    let (kind, index): (i32, i32) = device.call0()?.extract()?;
    if !matches!(kind, CPU | CUDA | CUDA_HOST) {
        return Err(bad(format!(
            "the array is on DLPack device ({kind}, {index}): bifolio supports NVIDIA GPUs (type 2) and host memory \
             (types 1 and 3)"
        )));
    }
    let capsule = capsule_of(object, kind)?;
    let (tensor, flags) = open(&capsule)?;
    if role == Role::Destination && flags & READ_ONLY != 0 {
        return Err(read_only(object));
    }
    // SAFETY: the capsule keeps what it describes.
    let (address, bytes) = unsafe { tensor.bytes(object) }?;
    let keeper = Keeper::Object(capsule.unbind());
    let lent = match kind {
        CUDA => Lent::of_gpu(py, address, bytes, keeper, Some(DEFAULT_STREAM)),
        _ => Lent::of_host(py, address, bytes, keeper),
    };
    lent.map(Some)
}

/// Asks for a capsule whose data are ready in the order of the default stream.
fn capsule_of<'py>(object: &Bound<'py, PyAny>, kind: i32) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let options = PyDict::new(py);
    if kind == CUDA {
        options.set_item("stream", DEFAULT_STREAM)?;
    }
    options.set_item("max_version", VERSION)?;
    let method = object.getattr(intern!(py, "__dlpack__"))?;
    match method.call((), Some(&options)) {
        // Exporters from before version 1 do not know the argument.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            options.del_item("max_version")?;
            method.call((), Some(&options))
        }
        outcome => outcome,
    }
}

/// What a capsule holds, and its flags.
fn open<'a>(capsule: &'a Bound<'_, PyAny>) -> PyResult<(&'a Tensor, u64)> {
    let object = capsule.as_ptr();
    // SAFETY: questions about an object that may be anything; the pointer is asked for under the name that the
    // capsule has, and the format says what is behind it while it has that name.
    unsafe {
        if ffi::PyCapsule_IsValid(object, PLAIN.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(object, PLAIN.as_ptr()).cast::<Managed>();
            return Ok((&(*managed).tensor, 0));
        }
        if ffi::PyCapsule_IsValid(object, VERSIONED.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(object, VERSIONED.as_ptr()).cast::<ManagedVersioned>();
            if (*managed).major != VERSION.0 {
                return Err(bad(format!(
                    "DLPack version {} is not supported; version {} is",
                    (*managed).major,
                    VERSION.0
                )));
            }
            return Ok((&(*managed).tensor, (*managed).flags));
        }
    }
    Err(bad("__dlpack__ returned no DLPack capsule, or one that was already consumed"))
}

/// # Safety
/// The exporter has that many numbers there.
unsafe fn numbers<'a>(first: *const i64, count: usize) -> &'a [i64] {
    if count == 0 || first.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(first, count) }
}

/// What keeps exported memory; dropped on any thread, with or without the interpreter's lock.
pub(crate) type Kept = Arc<dyn Send + Sync>;

/// Memory to export.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExportedMemory {
    pub(crate) device: DeviceId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) writable: bool,
}

/// What a capsule of ours owns: the memory, and the numbers that its description points to.
struct Exported {
    #[allow(dead_code, reason = "kept for its destructor")]
    keeper: Kept,
    shape: [i64; 1],
    strides: [i64; 1],
}

/// The device of DLPack's that a device is.
pub(crate) fn device_of(id: DeviceId) -> (i32, i32) {
    match id.backend {
        BackendKind::Host => (CPU, 0),
        BackendKind::Cuda => (CUDA, id.index.cast_signed()),
        BackendKind::OpenCl => (OPENCL, id.index.cast_signed()),
    }
}

/// What a consumer asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) max_version: Option<(u32, u32)>,
    pub(crate) device: Option<(i32, i32)>,
    pub(crate) copy: Option<bool>,
}

/// A capsule with bytes of a device, for consumers that know version 1 or not.
pub(crate) fn export(
    py: Python<'_>,
    memory: ExportedMemory,
    wanted: Wanted,
    keeper: impl FnOnce() -> PyResult<Kept>,
) -> PyResult<Bound<'_, PyAny>> {
    let ExportedMemory { device: id, address, bytes, writable } = memory;
    let (device_type, device_id) = device_of(id);
    if device_type == OPENCL {
        return Err(PyBufferError::new_err(format!(
            "memory of {id} cannot be exported: its addresses mean nothing outside of bifolio"
        )));
    }
    if wanted.device.is_some_and(|wanted| wanted != (device_type, device_id)) {
        return Err(PyBufferError::new_err(format!("memory of {id} cannot be exported to another device")));
    }
    if wanted.copy == Some(true) {
        return Err(PyBufferError::new_err("bifolio exports its memory without a copy: copy=True is not supported"));
    }
    let versioned = wanted.max_version.is_some_and(|(major, _)| major >= 1);
    if !writable && !versioned {
        let sentence = "the memory is read-only, which needs DLPack version 1: pass max_version=(1, 0)";
        return Err(PyBufferError::new_err(sentence));
    }
    let side = bytes.cast_signed();
    let exported = Box::into_raw(Box::new(Exported { keeper: keeper()?, shape: [side], strides: [1] }));
    // SAFETY: the box was just leaked, and stays in place until the deleter takes it back.
    let (shape, strides) = unsafe { (&raw mut (*exported).shape, &raw mut (*exported).strides) };
    let tensor = Tensor {
        data: address as *mut c_void,
        device_type,
        device_id,
        sides: 1,
        code: 1,
        bits: 8,
        lanes: 1,
        shape: shape.cast(),
        strides: strides.cast(),
        byte_offset: 0,
    };
    let context = exported.cast::<c_void>();
    // SAFETY: the structure lives until its deleter is called, once: by the consumer, or by the capsule's
    // destructor where nobody consumed it.
    let capsule = unsafe {
        if versioned {
            let (major, minor) = VERSION;
            let flags = if writable { 0 } else { READ_ONLY };
            let deleter = Some(delete_versioned as unsafe extern "C" fn(_));
            let managed = Box::new(ManagedVersioned { major, minor, context, deleter, flags, tensor });
            ffi::PyCapsule_New(Box::into_raw(managed).cast(), VERSIONED.as_ptr(), Some(drop_capsule))
        } else {
            let managed = Box::new(Managed { tensor, context, deleter: Some(delete) });
            ffi::PyCapsule_New(Box::into_raw(managed).cast(), PLAIN.as_ptr(), Some(drop_capsule))
        }
    };
    // SAFETY: a new reference, or NULL with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: made by `export`, and called once.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Exported>()));
    }
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as above.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Exported>()));
    }
}

/// Consumers rename a capsule, so one with its first name was never consumed.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter with a capsule of `export`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

// The layouts that every consumer was compiled with.
const _: () = assert!(size_of::<Tensor>() == 48);
const _: () = assert!(size_of::<Managed>() == 64);
const _: () = assert!(size_of::<ManagedVersioned>() == 80);
