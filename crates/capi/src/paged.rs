//! Memory that may be larger than what of it is in memory: `paging::Region`, in the manner of `malloc(3)`.

use crate::status::{
    BF_ERROR_ARGUMENT, BF_ERROR_DEVICE, BF_ERROR_FORKED, BF_ERROR_MEMORY, BF_ERROR_PERMISSION, Failure, Outcome,
    bf_status, owned_text, status, store, text,
};
use bifolio_device::fork::Birth;
use bifolio_device::{DeviceChoice, Error, ErrorKind, open};
use bifolio_paging::region::{BUDGET_MIN, Region, RegionOptions};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What has happened to memory of [`bf_paged_alloc`] since it was allocated, in blocks of 65536 bytes where it does not
/// say bytes.
#[allow(non_camel_case_types, reason = "C names")]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct bf_paged_statistics {
    /// `sizeof(bf_paged_statistics)`, set by the caller, so that later versions may add fields.
    pub size: usize,
    /// Blocks that were touched for the first time, or had only zeroes.
    pub new_blocks: u64,
    /// Blocks that came from the device.
    pub fetched: u64,
    /// Blocks that left with a copy to the device.
    pub stored: u64,
    /// Blocks that left without one, as the device has what is in them (before Linux 6.8).
    pub dropped: u64,
    /// Blocks that left without one, as there were only zeroes in them.
    pub zeroes: u64,
    /// Blocks that stayed although there were too many, as the device did not take them.
    pub refused: u64,
    /// Blocks that stayed although there were too many, as direct I/O or a driver had them pinned.
    pub pinned: u64,
    /// Blocks whose content is lost, as the device did not give it back.
    pub lost: u64,
    /// Bytes that are in memory now.
    pub resident_bytes: u64,
    /// Bytes that are on the device now.
    pub device_bytes: u64,
}

/// The regions of the process, by where they begin.
#[derive(Debug)]
struct Regions {
    birth: Birth,
    all: Mutex<BTreeMap<usize, Arc<Region>>>,
}

impl Regions {
    /// # Errors
    /// In a child of the process that made some: another thread may have had the lock when it was forked.
    fn of_process() -> Outcome<&'static Mutex<BTreeMap<usize, Arc<Region>>>> {
        static REGIONS: OnceLock<Regions> = OnceLock::new();
        let regions = REGIONS.get_or_init(|| Self { birth: Birth::here(), all: Mutex::default() });
        if regions.birth.was_elsewhere() {
            let text = "this process was forked from one that had used bf_paged_alloc, whose memory did not come along: fork \
                        before the first use, or start the child by exec";
            return Err(Failure { status: BF_ERROR_FORKED, text: text.to_owned() });
        }
        Ok(&regions.all)
    }

    /// The region that begins there.
    fn find(memory: *const c_void) -> Outcome<Arc<Region>> {
        let all = Self::of_process()?.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(memory as usize)).cloned().ok_or_else(|| unknown(memory))
    }
}

fn unknown(memory: *const c_void) -> Failure {
    Failure::argument(format!("{memory:p} was not allocated by bf_paged_alloc, or is already freed"))
}

fn failure(error: &Error) -> Failure {
    let status = match error.kind() {
        ErrorKind::BadArgument => BF_ERROR_ARGUMENT,
        ErrorKind::OutOfMemory | ErrorKind::OutOfPinnedMemory => BF_ERROR_MEMORY,
        ErrorKind::Forked => BF_ERROR_FORKED,
        ErrorKind::System if is_permission(error) => BF_ERROR_PERMISSION,
        _ => BF_ERROR_DEVICE,
    };
    Failure { status, text: error.to_string() }
}

fn is_permission(error: &Error) -> bool {
    let code = error.os_code().map(std::io::Error::from_raw_os_error);
    code.is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Allocates `length` bytes of host memory, of which at most `budget` are in memory at a time, at least 524288. What has
/// not been used for longest is in the memory of a device, at most `device_bytes` of it, where 0 stands for all of
/// `length`. For programs that need more memory than there is, and are not to use the system's swap. `device` is
/// "host:N" or "cuda:N"; NULL or "auto" take the first GPU, else "host:0". The memory begins as zeroes, at a multiple of
/// 65536. Any number of threads may use it. Free it with [`bf_paged_free`]; the end of the process does it, too.
///
/// A thread that touches bytes that are elsewhere waits for some microseconds. The device has their only copy: if it
/// does not give one back, the thread gets SIGBUS, and [`bf_paged_trouble`] says why. A child of fork has none of the
/// memory: SIGSEGV there, and `BF_ERROR_FORKED`. Before Linux 6.8 nothing may write to it past the page table: read
/// files into it without `O_DIRECT` there, and do not register it with a device or an adapter.
///
/// `BF_ERROR_PERMISSION` if the kernel does not let this process handle page faults (userfaultfd), as in containers
/// whose seccomp profile forbids it; `BF_ERROR_MEMORY` if there are not so many addresses.
///
/// # Safety
/// `device` is NULL or ends with a zero byte; `memory` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_paged_alloc(
    device: *const c_char,
    length: u64,
    budget: u64,
    device_bytes: u64,
    memory: *mut *mut c_void,
) -> bf_status {
    status(|| {
        if memory.is_null() {
            return Err(Failure::argument("the pointer for the memory is NULL"));
        }
        let regions = Regions::of_process()?;
        // SAFETY: the caller's promise.
        let name = unsafe { text(device, "device name") }?.unwrap_or("auto");
        let choice: DeviceChoice = name.parse().map_err(|error| Failure::argument(format!("{error}")))?;
        let device = open(choice).map_err(|error| failure(&error))?;
        let device_bytes = if device_bytes == 0 { length } else { device_bytes };
        let region = Region::new(&device, RegionOptions { bytes: length, budget, device_bytes });
        let region = Arc::new(region.map_err(|error| failure(&error))?);
        let start = region.as_ptr();
        regions.lock().unwrap_or_else(PoisonError::into_inner).insert(start as usize, region);
        // SAFETY: as above.
        unsafe { store(memory, start.cast()) }
    })
}

/// Frees memory of [`bf_paged_alloc`], and what of it is on the device; NULL is allowed.
///
/// # Safety
/// Nobody uses the memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_paged_free(memory: *mut c_void) -> bf_status {
    status(|| {
        if memory.is_null() {
            return Ok(());
        }
        let regions = Regions::of_process()?;
        let freed = regions.lock().unwrap_or_else(PoisonError::into_inner).remove(&(memory as usize));
        // Dropped outside of the lock: it waits for a thread.
        freed.map(drop).ok_or_else(|| unknown(memory))
    })
}

/// From now on at most `budget` bytes may be in memory, at least 524288; others leave within moments. `memory` is what
/// [`bf_paged_alloc`] has returned.
#[unsafe(no_mangle)]
pub extern "C" fn bf_paged_set_budget(memory: *mut c_void, budget: u64) -> bf_status {
    status(|| {
        let region = Regions::find(memory)?;
        if budget < BUDGET_MIN {
            let text = format!("a budget of {budget} bytes is too small: at least {BUDGET_MIN} have to be in memory");
            return Err(Failure::argument(text));
        }
        region.set_budget(budget);
        Ok(())
    })
}

/// What has happened to memory of [`bf_paged_alloc`]. `statistics->size` has to be set. Numbers are of a moment ago.
///
/// # Safety
/// `statistics` is NULL, or has as many bytes as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_paged_stats(memory: *mut c_void, statistics: *mut bf_paged_statistics) -> bf_status {
    status(|| {
        let region = Regions::find(memory)?;
        if statistics.is_null() {
            return Err(Failure::argument("the pointer for the statistics is NULL"));
        }
        // SAFETY: the caller's promise; only the field that is set by the caller is read.
        let (size, expected) = (unsafe { (&raw const (*statistics).size).read() }, size_of::<bf_paged_statistics>());
        if size != expected {
            let text = format!("bf_paged_statistics.size is {size}, and this library expects {expected}");
            return Err(Failure::argument(text));
        }
        let found = region.statistics();
        let found = bf_paged_statistics {
            size,
            new_blocks: found.new_blocks,
            fetched: found.fetched,
            stored: found.stored,
            dropped: found.dropped,
            zeroes: found.zeroes,
            refused: found.refused,
            pinned: found.pinned,
            lost: found.lost,
            resident_bytes: found.resident_bytes,
            device_bytes: found.device_bytes,
        };
        // SAFETY: as above.
        unsafe { store(statistics, found) }
    })
}

/// What went wrong first with memory of [`bf_paged_alloc`] since this was asked last: a sentence that is freed with
/// [`bf_string_free`](crate::bf_string_free), or NULL where nothing did.
///
/// # Safety
/// `sentence` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_paged_trouble(memory: *mut c_void, sentence: *mut *mut c_char) -> bf_status {
    status(|| {
        let region = Regions::find(memory)?;
        if sentence.is_null() {
            return Err(Failure::argument("the pointer for the sentence is NULL"));
        }
        let found = region.take_trouble().map_or(std::ptr::null_mut(), |trouble| owned_text(&trouble));
        // SAFETY: the caller's promise.
        unsafe { store(sentence, found) }
    })
}
