//! Blocks of addresses that the CPU can use, so that most calls are told from those with device memory by one
//! look into a table.
//!
//! The kernel is asked about a block when it is first seen, by a read of one byte of it, which needs no lock, no
//! driver and no signal-safety of anybody's: what it can read is host memory. What turns out to be a device's
//! is noted, and looked up each time. A block that is taken for host
//! memory although the program has since unmapped it, and a driver put device memory there, does little harm:
//! the call itself then fails with `EFAULT`, and is looked at again.

use libc::{c_void, iovec};
use std::sync::atomic::{AtomicU64, Ordering};

/// Drivers hand device memory out of blocks of this size at the least.
const BLOCK_BYTES_LOG2: u32 = 21;

const SLOTS: usize = 1 << 14;

/// Numbers of blocks, plus one, and whether they are a device's in the lowest bit; 0 where none is known.
static KNOWN: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

/// Whether the CPU can use an address; an address that nobody can use is not.
#[inline]
pub(crate) fn hold(address: u64) -> bool {
    let block = address >> BLOCK_BYTES_LOG2;
    let slot = slot_of(block);
    match slot.load(Ordering::Relaxed) {
        known if known == (block + 1) << 1 => true,
        known if known == (block + 1) << 1 | 1 => false,
        _ => ask(address, block, slot),
    }
}

/// Notes whose memory a block is that the CPU cannot use, so that it is not tried again.
pub(crate) fn note(address: u64, is_device: bool) {
    let block = address >> BLOCK_BYTES_LOG2;
    slot_of(block).store(if is_device { (block + 1) << 1 | 1 } else { 0 }, Ordering::Relaxed);
}

/// Neighbours go to neighbouring slots, and what is far apart rarely meets.
#[inline]
fn slot_of(block: u64) -> &'static AtomicU64 {
    &KNOWN[(block ^ block >> 14 ^ block >> 28) as usize % SLOTS]
}

#[cold]
fn ask(address: u64, block: u64, slot: &AtomicU64) -> bool {
    let mut byte = 0_u8;
    let local = iovec { iov_base: (&raw mut byte).cast::<c_void>(), iov_len: 1 };
    let remote = iovec { iov_base: std::ptr::with_exposed_provenance_mut(address as usize), iov_len: 1 };
    let code = crate::real::errno();
    // SAFETY: `local` is a byte of ours; a bad `remote` is reported, not touched.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    // Where a sandbox forbids the question, the call's own EFAULT has to answer it.
    let is_host = copied == 1 || crate::real::errno() != libc::EFAULT;
    crate::real::set_errno(code);
    if is_host {
        slot.store((block + 1) << 1, Ordering::Relaxed);
    }
    is_host
}
