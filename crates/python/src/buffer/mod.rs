//! What a Python object lends: an address, a length, the device that has it, and what keeps it there.
//!
//! Asked in this order: memory of ours; the buffer protocol (host memory: NumPy, bytearray, mmap, ...);
//! PyTorch tensors, by their table of C functions or their own methods, since building the dictionary of the
//! CUDA array interface takes them longer than a read of 4 KiB; the CUDA array interface (CuPy, Numba, ...);
//! DLPack. Whatever says no to the buffer protocol is asked on: CuPy's arrays have it for the sake of memory
//! that the CPU can reach, and raise an exception for all other.
//!
//! Memory of a GPU may still be in use by work that was enqueued before. What the exporter says about it is
//! respected: the stream of the CUDA array interface, PyTorch's current stream, and the default stream for
//! objects that name none. A read or write begins when that work is done; one that is ordered on a stream
//! of the caller's is enqueued behind it.

mod cuda_array;
mod dlpack;
mod exchange;
mod protocol;
mod torch;

use crate::error::{bad, of_request};
use crate::life::{Keeper, detached};
use crate::memory::Memory;
use bifolio_device::pointer::{Located, locate};
use bifolio_device::{BackendKind, DeviceChoice, DeviceId, DevicePtr, DeviceSlice, Stream};
use bifolio_io::{Router, process};
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use dlpack::{Kept, Place, Wanted, device_of as dlpack_device, export};

/// The default stream of a device, which waits for all streams that do not opt out.
pub(crate) const DEFAULT_STREAM: u64 = 1;

/// Routers that are remembered to be there, at most: a program may make and destroy contexts for ever.
const FOUND_MAX: usize = 64;

/// What the memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Bytes of a file land in it.
    Destination,
    /// Bytes of it go to a file.
    Source,
}

/// The type, by its address, that last said no to the buffer protocol and had the CUDA array interface. It
/// is asked for that first, since making an exception takes a third of a microsecond or more. Where the
/// address has become another type's, that one is asked in another order, and answers the same.
static ON_DEVICES: AtomicUsize = AtomicUsize::new(0);

/// Memory of a Python object, for as long as `keeper` is kept.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) router: Arc<Router>,
    pub(crate) address: DevicePtr,
    pub(crate) bytes: u64,
    pub(crate) keeper: Keeper,
    /// The stream whose work on it comes first; none where there is no such work.
    pub(crate) producer: Option<u64>,
}

impl Lent {
    /// The memory of any object.
    pub(crate) fn by(object: &Bound<'_, PyAny>, role: Role) -> PyResult<Self> {
        if let Ok(memory) = object.cast_exact::<Memory>() {
            return Ok(memory.get().lend());
        }
        let class = object.get_type_ptr() as usize;
        if class == ON_DEVICES.load(Ordering::Relaxed) {
            match cuda_array::lend(object, role) {
                Ok(Some(lent)) => return Ok(lent),
                Err(error) if !is_answer(object, &error) => return Err(error),
                // The array may be one that the CPU can reach.
                _ => {}
            }
        }
        // SAFETY: a question about the object's type.
        let has_protocol = unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 1;
        let refusal = match has_protocol.then(|| protocol::view(object)) {
            Some(Ok(view)) => return protocol::lend(object, view, role),
            Some(Err(error)) if !is_answer(object, &error) => return Err(error),
            refusal => refusal.and_then(Result::err),
        };
        if let Some(lent) = torch::lend(object, role)? {
            return Ok(lent);
        }
        if let Some(lent) = cuda_array::lend(object, role)? {
            if refusal.is_some() {
                ON_DEVICES.store(class, Ordering::Relaxed);
            }
            return Ok(lent);
        }
        if let Some(lent) = dlpack::lend(object, role)? {
            return Ok(lent);
        }
        Err(refusal.unwrap_or_else(|| {
            PyTypeError::new_err(format!(
            "a {} is no memory: pass an array or tensor with the CUDA array interface, DLPack or the buffer protocol",
            type_name(object)
        ))
        }))
    }

    /// Memory of the host.
    fn of_host(py: Python<'_>, address: u64, bytes: u64, keeper: Keeper) -> PyResult<Self> {
        if address == 0 && bytes > 0 {
            return Err(null(bytes));
        }
        let router = router_at(py, DeviceId::HOST)?;
        Ok(Self { router, address: DevicePtr(address), bytes, keeper, producer: None })
    }

    /// Memory that is said to be a GPU's.
    fn of_gpu(py: Python<'_>, address: u64, bytes: u64, keeper: Keeper, producer: Option<u64>) -> PyResult<Self> {
        if bytes == 0 {
            return Self::of_host(py, 0, 0, keeper);
        }
        if address == 0 {
            return Err(null(bytes));
        }
        let located = locate(address).ok_or_else(|| {
            bad(format!(
                "{address:#x} is no GPU memory of this process: it was freed, or is managed or page-locked memory, \
                 which is passed as a host array"
            ))
        })?;
        check_length(address, bytes, &located)?;
        let place = (located.device, located.context, located.incarnation);
        let router = router_by(py, place, || process::router_of(&located))?;
        // Only CUDA's streams can be waited for from outside.
        let producer = producer.filter(|_| located.device.backend == BackendKind::Cuda);
        Ok(Self { router, address: located.address, bytes, keeper, producer })
    }

    /// Leaves out its first bytes.
    pub(crate) fn skip(&mut self, bytes: u64) -> PyResult<()> {
        if bytes > self.bytes {
            return Err(bad(format!("byte {bytes} lies beyond the buffer, which has {} bytes", self.bytes)));
        }
        self.address = self.address.offset_by(bytes);
        self.bytes -= bytes;
        Ok(())
    }

    /// Its first bytes.
    pub(crate) fn first(&self, bytes: u64) -> DeviceSlice<'static> {
        // SAFETY: `bytes` is at most `self.bytes`, and `keeper` keeps the memory; whoever uses the slice
        // keeps that.
        unsafe { DeviceSlice::from_raw_ordered(self.address, bytes) }
    }

    /// Waits for work of the program's on the memory.
    pub(crate) fn settle(router: &Router, producer: Option<u64>) -> bifolio_device::Result<()> {
        match producer {
            None => Ok(()),
            Some(raw) => adopt(router, raw)?.synchronize(),
        }
    }
}

/// A device, a context of the program's (0 for the primary one), and which device of that number it is (0 where
/// nobody asks).
type Found = (DeviceId, u64, u64);

/// Where routers were found before: the next look is short.
static FOUND: Mutex<Vec<Found>> = Mutex::new(Vec::new());

/// The router of a device, in its primary context.
fn router_at(py: Python<'_>, id: DeviceId) -> PyResult<Arc<Router>> {
    router_by(py, (id, 0, 0), || process::router(DeviceChoice::Exactly(id)))
}

/// A router, which is made without the interpreter's lock: opening a device takes long, and runs a driver.
fn router_by(
    py: Python<'_>,
    place: Found,
    find: impl Send + FnOnce() -> bifolio_io::Result<Arc<Router>>,
) -> PyResult<Arc<Router>> {
    let found = || FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let is_short = found().contains(&place);
    if is_short {
        return find().map_err(|error| of_request(&error));
    }
    let router = detached(py, find).map_err(|error| of_request(&error))?;
    let mut found = found();
    if found.len() == FOUND_MAX {
        found.remove(0);
    }
    if !found.contains(&place) {
        found.push(place);
    }
    Ok(router)
}

/// A stream of the program's.
pub(crate) fn adopt(router: &Router, raw: u64) -> bifolio_device::Result<Stream> {
    // SAFETY: whoever names a stream vouches for it, as with every function that takes one.
    unsafe { router.device().adopt_stream(raw) }
}

/// Refuses a length that the memory behind an address does not have. Allocators that map memory piece by
/// piece make several allocations of one, side by side.
fn check_length(address: u64, bytes: u64, located: &Located) -> PyResult<()> {
    let device = located.device;
    let mut covered = located.bytes_left(address);
    while covered < bytes {
        let at = address.saturating_add(covered);
        match locate(at).filter(|located| located.device == device) {
            Some(located) => covered += located.bytes_left(at).max(1),
            None => {
                return Err(bad(format!(
                    "{bytes} bytes at {address:#x} reach beyond the memory of {device}, which ends after {covered}"
                )));
            }
        }
    }
    Ok(())
}

/// Whether an exception is an object's answer, and not Ctrl-C or the end of the program.
fn is_answer(object: &Bound<'_, PyAny>, error: &PyErr) -> bool {
    error.is_instance_of::<PyException>(object.py())
}

fn null(bytes: u64) -> PyErr {
    bad(format!("the address of {bytes} bytes is 0: the memory was freed, or never allocated"))
}

fn read_only(object: &Bound<'_, PyAny>) -> PyErr {
    bad(format!("the {} may not be written: it is read-only, and no destination for a read", type_name(object)))
}

fn not_contiguous(object: &Bound<'_, PyAny>) -> PyErr {
    bad(format!(
        "the {} is not contiguous in memory (C order): pass a contiguous copy, or read into one and assign",
        type_name(object)
    ))
}

fn type_name(object: &Bound<'_, PyAny>) -> String {
    let name = object.get_type().fully_qualified_name();
    name.map_or_else(|_| "object".to_owned(), |name| name.to_string())
}

/// Bytes of an array; an error where they overflow.
fn bytes_of(shape: &[i64], bits: u64) -> PyResult<u64> {
    let elements = shape.iter().try_fold(1_u64, |product, &side| product.checked_mul(u64::try_from(side).ok()?));
    let bits = elements.and_then(|elements| elements.checked_mul(bits));
    bits.map(|bits| bits.div_ceil(8)).ok_or_else(|| bad(format!("the shape {shape:?} is no array's")))
}

/// Whether strides, in units of `unit`, are those of an array in C order.
fn is_c_order(shape: &[i64], strides: &[i64], unit: i64) -> bool {
    if shape.len() != strides.len() {
        return false;
    }
    if shape.contains(&0) {
        return true;
    }
    let mut expected = unit;
    for (&side, &stride) in shape.iter().zip(strides).rev() {
        // The stride of a side of one element is never used.
        if side != 1 && stride != expected {
            return false;
        }
        expected = expected.saturating_mul(side);
    }
    true
}
