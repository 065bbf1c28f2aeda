//! Files mapped on devices, in the manner of `mmap(2)`: the face of the cache of the process.

use crate::bf_ptr;
use crate::file::{BF_DONTNEED, BF_NORMAL, BF_RANDOM, BF_WILLNEED};
use crate::status::{Failure, bf_status, owned_text, status, store, text};
use bifolio_cache::Advice;
use bifolio_cache::process::{address, shared};
use bifolio_device::{DeviceChoice, DevicePtr};
use std::ffi::{c_char, c_int};

/// Beside `MAP_SHARED`, for `bf_mmap`, and for mmap itself in programs under `libbifolio_preload.so`: the mapping
/// is on a device. It is 0x2000000: Linux uses neither this bit nor its neighbours, and ignores it beside `MAP_SHARED`, so that such a
/// program has a mapping of the CPU's where the library is not loaded; beside `MAP_SHARED_VALIDATE` it refuses it.
pub const BF_MAP_ONGPU: c_int = 0x0200_0000;
const _: () = assert!(BF_MAP_ONGPU == address::MAP_ONGPU, "C and the shim have one flag");

/// Maps `length` bytes of a file from `offset` on, at most to its end, into the memory of a device, as mmap does
/// into the CPU's. `device` is "host:N" or "cuda:N"; NULL or "auto" take the first GPU, else "host:0". `prot` is
/// `PROT_READ`, or `PROT_READ` | `PROT_WRITE` for what kernels may change. `flags` is `MAP_SHARED` |
/// `BF_MAP_ONGPU`. `fd` is open for reading, and for writing if `prot` has it; it may be closed afterwards, and is
/// best closed: as long as somebody has the file open for writing, what is acquired has to be compared with it.
/// `offset` is a multiple of 4096.
///
/// The bytes have plain addresses of the device, which closed kernels and libraries can use, from `bf_macquire` to
/// `bf_mrelease`; at other times nothing may touch them. All devices of a process, and all CPU processes, see one
/// file, as docs/coherence.md says. A range of a file that is mapped twice on a device has one address, and is
/// unmapped twice. Any number of threads may map, and use different mappings or one. End it with `bf_munmap`; the
/// end of the process does it, too. A child of fork has none of its parent's mappings: `BF_ERROR_FORKED`.
///
/// # Safety
/// `device` is NULL or ends with a zero byte; `mapping` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_mmap(
    device: *const c_char,
    length: u64,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: u64,
    mapping: *mut bf_ptr,
) -> bf_status {
    status(|| {
        if mapping.is_null() {
            return Err(Failure::argument("the pointer for the mapping is NULL"));
        }
        // SAFETY: the caller's promise.
        let name = unsafe { text(device, "device name") }?.unwrap_or("auto");
        let choice: DeviceChoice = name.parse().map_err(|error| Failure::argument(format!("{error}")))?;
        let ptr = shared::mmap(length, prot, flags, fd, offset, choice)?;
        // SAFETY: as above.
        unsafe { store(mapping, ptr.0) }
    })
}

/// Brings `length` bytes of a mapping up to date for kernels that are launched afterwards: what other devices have
/// released and what CPU processes have written is seen, and what this device has changed and not released stays.
/// `ptr` is any address inside the mapping. The bytes are there until they are released, which is to be done for
/// each acquire with the same address and length. `BF_ERROR_MEMORY` if more is acquired at a time than the cache
/// may have of the device's memory (`BIFOLIO_CACHE_BYTES`). What lies beyond the end of the file is left out.
///
/// # Safety
/// No kernel uses the bytes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_macquire(ptr: bf_ptr, length: u64) -> bf_status {
    status(|| Ok(shared::acquire(DevicePtr(ptr), length)?))
}

/// Publishes what kernels have changed in bytes that were acquired, to whoever acquires them next and to the
/// CPU: at once with `BIFOLIO_CACHE_MODE=eager`, else when somebody needs them, at the latest at `bf_msync` and
/// `bf_munmap`. `ptr` and `length` are those of the acquire; other bytes are refused with `BF_ERROR_ARGUMENT`.
///
/// # Safety
/// Kernels that use the bytes have come to their end: no stream is waited for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_mrelease(ptr: bf_ptr, length: u64) -> bf_status {
    status(|| Ok(shared::release(DevicePtr(ptr), length)?))
}

/// Publishes what kernels have changed in all that is acquired of a mapping, which stays so, writes everything
/// that was released of its file, by whatever device, and makes it durable, as msync with `MS_SYNC` does.
/// `ptr` and `length` are any bytes inside the mapping.
///
/// # Safety
/// No kernel changes the mapping meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_msync(ptr: bf_ptr, length: u64) -> bf_status {
    status(|| Ok(shared::sync(DevicePtr(ptr), length)?))
}

/// Says what will be done with bytes of a mapping, as madvise does: with `BF_WILLNEED` they are brought in the
/// background as far as there is room, with `BF_DONTNEED` the memory of what is not acquired is given back, after
/// what was released of it has been written to the file. `BF_RANDOM` ends bringing ahead what follows a sequence of
/// acquires, `BF_NORMAL` begins it again. `ptr` and `length` are any bytes inside the mapping.
#[unsafe(no_mangle)]
pub extern "C" fn bf_madvise(ptr: bf_ptr, length: u64, advice: u32) -> bf_status {
    status(|| {
        let advice = match advice {
            BF_NORMAL => Advice::Normal,
            BF_RANDOM => Advice::Random,
            BF_WILLNEED => Advice::WillNeed,
            BF_DONTNEED => Advice::DontNeed,
            _ => return Err(Failure::argument(format!("the advice {advice} is not defined for mappings"))),
        };
        Ok(shared::advise(DevicePtr(ptr), length, advice)?)
    })
}

/// Ends a mapping, all of it: `mapping` and `length` are those of `bf_mmap`. What was changed and not released is
/// discarded; `discarded` of `bf_cache_stats` counts the pages. What was released reaches the file, at the latest
/// when nothing of the file is mapped any more: if that fails, the last `bf_munmap` says so (`BF_ERROR_WRITE`). The
/// mapping has ended then as well, and what cannot be written is tried again until the process ends.
///
/// # Safety
/// No kernel uses the mapping any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_munmap(mapping: bf_ptr, length: u64) -> bf_status {
    status(|| Ok(shared::unmap(DevicePtr(mapping), length)?))
}

/// What the cache of this process holds on each device that something was mapped on, and what has happened to
/// pages since it was made, as JSON; the words are those of `bifolio cache stat --json`. Free it with
/// [`bf_string_free`](crate::bf_string_free).
///
/// # Safety
/// `json` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_cache_stats(json: *mut *mut c_char) -> bf_status {
    status(|| {
        let text = serde_json::json!(shared::statistics()?).to_string();
        // SAFETY: the caller's promise.
        unsafe { store(json, owned_text(&text)) }
    })
}
