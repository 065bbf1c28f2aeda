//! The launch, and the path over host memory.

use super::copies::fold_copies;
use super::entry::{ENTRY_BYTES, check, decode};
use crate::addressing::{self, Addressing};
use crate::launch::download;
use crate::page_list;
use bifolio_device::{DeviceSlice, KernelArg, Module, Result, Stream};

/// The kernel's name in the module.
pub(super) const KERNEL: &str = "fold";

const GROUP_SIZE: u32 = 256;

/// Enqueues the kernel. Without a module the stream is waited for, and the oracle runs page by page in host memory.
///
/// # Safety
/// As for [`crate::Kernels::fold`]; `module` is the kernel's on the stream's device.
pub(super) unsafe fn run(
    stream: &Stream,
    module: Option<&Module>,
    memory: Addressing<'_>,
    table: DeviceSlice<'_>,
    flags: DeviceSlice<'_>,
) -> Result<()> {
    let groups = page_list::count(table, ENTRY_BYTES, flags)?;
    let (buffer, memory_at) = memory.argument(stream.device())?;
    if groups == 0 {
        return Ok(());
    }
    let Some(module) = module else {
        // SAFETY: the caller's promise.
        return unsafe { through_host(stream, memory, table, flags) };
    };
    let params = memory_at.to_ne_bytes();
    let [buffer, table, flags] = [buffer, table.ptr(), flags.ptr()].map(KernelArg::Buffer);
    let args = [buffer, table, flags, KernelArg::Bytes(&params)];
    // SAFETY: the arguments are those of the kernel, the table and the flags have room for every group, and the caller
    // vouches for the module, the memory and the pages.
    unsafe { stream.launch(module, KERNEL, groups, GROUP_SIZE, &args) }
}

/// # Safety
/// As for [`run`].
unsafe fn through_host(
    stream: &Stream,
    memory: Addressing<'_>,
    table: DeviceSlice<'_>,
    flags: DeviceSlice<'_>,
) -> Result<()> {
    let entries = decode(&download(stream, table)?);
    check(&entries, memory)?;
    let mut found = Vec::with_capacity(entries.len() * 4);
    for entry in entries {
        // SAFETY: the caller's promise.
        let part = |place| unsafe { memory.part(place, entry.len) };
        let read = |place| download(stream, part(place)?);
        found.extend(fold_copies(&entry, read, |place, bytes| stream.upload(part(place)?, bytes))?.to_ne_bytes());
    }
    stream.upload(flags.part(0, found.len() as u64)?, &found)
}

/// The kernel's parameter struct, `FoldParams` of `fold.h`.
pub(super) fn memory_at(params: &[u8]) -> Option<u64> {
    addressing::words_of(params).map(|[memory_at]| memory_at)
}
