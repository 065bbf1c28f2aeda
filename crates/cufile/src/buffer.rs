//! Registered memory. Registering pins nothing, as every path of the router has its own pinned memory; what
//! it gives is that the driver is not asked again whose the memory is.

use crate::abi::CUfileOpError::{
    CU_FILE_CUDA_POINTER_RANGE_ERROR, CU_FILE_INVALID_MAPPING_RANGE, CU_FILE_MEMORY_ALREADY_REGISTERED,
};
use crate::abi::{CUfileError_t, REGISTER_FLAGS};
use crate::range::MemoryRange;
use crate::session;
use crate::stats::{self, Call, Watch};
use crate::status::{Failure, Outcome, status};
use bifolio_device::pointer::{Located, locate};
use bifolio_device::{DevicePtr, DeviceSlice};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Registered memory: its length, and whose it is if a device's.
#[derive(Debug, Clone, Copy)]
struct Registered {
    len: u64,
    located: Option<Located>,
}

static BUFFERS: LazyLock<RwLock<HashMap<usize, Registered>>> = LazyLock::new(RwLock::default);

fn reading() -> RwLockReadGuard<'static, HashMap<usize, Registered>> {
    BUFFERS.read().unwrap_or_else(PoisonError::into_inner)
}

fn writing() -> RwLockWriteGuard<'static, HashMap<usize, Registered>> {
    BUFFERS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets all memory.
pub(crate) fn forget_all() {
    writing().clear();
}

/// Memory from a base address to its end, as far as it is known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    base: u64,
    pub(crate) located: Option<Located>,
    /// Bytes from the base, and the error beyond them. Of unregistered memory of the CPU we do not know.
    len: u64,
    beyond: crate::abi::CUfileOpError,
}

impl Memory {
    pub(crate) fn at(base: *const c_void) -> Outcome<Self> {
        let address = base.addr() as u64;
        if address == 0 {
            return Err(Failure::argument("the base address of the memory is NULL"));
        }
        if let Some(Registered { len, located }) = reading().get(&base.addr()).copied() {
            return Ok(Self { base: address, located, len, beyond: CU_FILE_INVALID_MAPPING_RANGE });
        }
        let located = locate(address);
        let len = located.map_or(u64::MAX, |located| located.bytes_left(address));
        Ok(Self { base: address, located, len, beyond: CU_FILE_CUDA_POINTER_RANGE_ERROR })
    }

    /// A range of it.
    pub(crate) fn range(&self, offset: i64, size: usize) -> Outcome<MemoryRange> {
        let Ok(offset) = u64::try_from(offset) else {
            return Err(Failure::argument(format!("the offset in memory is negative ({offset})")));
        };
        let end = offset.checked_add(size as u64).filter(|end| self.base.checked_add(*end).is_some());
        let Some(end) = end.filter(|_| isize::try_from(size).is_ok()) else {
            return Err(Failure::argument(format!(
                "{size} bytes at offset {offset} of the memory end beyond the address space"
            )));
        };
        if end > self.len {
            let text = format!(
                "{size} bytes at offset {offset} do not fit into the {} bytes of memory at {:#x}",
                self.len, self.base
            );
            return Err(Failure::new(self.beyond, text));
        }
        let Some(located) = self.located else { return Ok(MemoryRange::Host((self.base + offset) as *mut u8, size)) };
        // SAFETY: the range lies inside the allocation, which the caller of the library keeps.
        let memory = unsafe { DeviceSlice::from_raw_ordered(located.address.offset_by(offset), size as u64) };
        Ok(MemoryRange::Device(located, memory))
    }

    /// All of a device's memory from the base on.
    pub(crate) fn rest(&self) -> Option<(DevicePtr, u64)> {
        self.located.map(|located| (located.address, self.len))
    }
}

/// Whether the first and the last page of a range are mapped. No byte is touched.
fn is_mapped(address: usize, len: usize) -> bool {
    const PAGE: usize = 4096;
    let (first, last) = (address & !(PAGE - 1), (address + (len - 1)) & !(PAGE - 1));
    [first, last].into_iter().all(|page| {
        let mut resident = 0_u8;
        // SAFETY: the kernel looks at its own map and writes one byte.
        unsafe { libc::mincore(page as *mut c_void, PAGE, &raw mut resident) == 0 }
    })
}

/// Registers memory of a device or of the CPU; the session is opened where it is not.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileBufRegister(buf_ptr_base: *const c_void, length: usize, flags: c_int) -> CUfileError_t {
    status("cuFileBufRegister", || stats::counted(Call::BufRegister, || register(buf_ptr_base, length, flags)))
}

fn register(buf_ptr_base: *const c_void, length: usize, flags: c_int) -> Outcome<()> {
    let start = buf_ptr_base.addr();
    if start == 0 || length == 0 || start.checked_add(length).is_none() {
        return Err(Failure::argument(format!("{length} bytes at {start:#x} are not a range of memory")));
    }
    if flags & !REGISTER_FLAGS != 0 {
        return Err(Failure::argument(format!("the flags {flags:#x} for registering memory are not defined")));
    }
    let (located, watch) = (locate(start as u64), Watch::by_gpu());
    let done = keep(start, length, located);
    stats::registered(watch, located.as_ref(), length as u64, done.is_ok());
    done
}

/// Keeps memory that is somebody's.
fn keep(start: usize, length: usize, located: Option<Located>) -> Outcome<()> {
    let left = located.map(|located| located.bytes_left(start as u64));
    if left.is_some_and(|left| left < length as u64) {
        let text = format!("{length} bytes at {start:#x} reach beyond the end of their allocation");
        return Err(Failure::new(CU_FILE_CUDA_POINTER_RANGE_ERROR, text));
    }
    if located.is_none() && !is_mapped(start, length) {
        return Err(Failure::argument(format!("{length} bytes at {start:#x} are not mapped")));
    }
    session::open_if_closed();
    let mut buffers = writing();
    if buffers.contains_key(&start) {
        let text = format!("the memory at {start:#x} is already registered");
        return Err(Failure::new(CU_FILE_MEMORY_ALREADY_REGISTERED, text));
    }
    buffers.insert(start, Registered { len: length as u64, located });
    Ok(())
}

/// Gives registered memory up.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileBufDeregister(buf_ptr_base: *const c_void) -> CUfileError_t {
    let deregister = || {
        let removed = writing().remove(&buf_ptr_base.addr());
        let unknown = || Failure::argument(format!("the memory at {buf_ptr_base:?} is not registered"));
        removed.map(|memory| stats::deregistered(memory.located.as_ref())).ok_or_else(unknown)
    };
    status("cuFileBufDeregister", || stats::counted(Call::BufDeregister, deregister))
}
