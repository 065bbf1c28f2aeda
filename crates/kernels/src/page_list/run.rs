//! The launch of a kernel over a list of pages, the kernel as the `host` device runs it, and its path over host memory.

use super::row::{PageKernel, ROW_BYTES, Row, check, count, decode};
use crate::addressing::{self, Addressing};
use crate::launch::download;
use bifolio_device::{Device, DevicePtr, DeviceSlice, HostLaunch, KernelArg, Module, Result, Stream};
use std::slice;

const GROUP_SIZE: u32 = 256;

/// Enqueues the kernel for the pages of `table`, at an 8-byte boundary; `words` gets a u32 for each, at a 4-byte
/// boundary. Without a module the stream is waited for, and the oracle runs page by page in host memory.
///
/// # Safety
/// `module` is the kernel's on the stream's device; the ranges and the pages are memory of that device, stay valid and
/// are not used by others until the work completes; every page in the table passes [`check`], and what is written
/// overlaps nothing else that is read or written.
pub(crate) unsafe fn run<K: PageKernel>(
    stream: &Stream,
    module: Option<&Module>,
    operands: [Addressing<'_>; 3],
    table: DeviceSlice<'_>,
    words: DeviceSlice<'_>,
) -> Result<()> {
    let groups = count(table, ROW_BYTES, words)?;
    let arguments = arguments(operands, stream.device())?;
    if groups == 0 {
        return Ok(());
    }
    let Some(module) = module else {
        // SAFETY: the caller's promise.
        return unsafe { through_host::<K>(stream, operands, table, words) };
    };
    let [first, second, third] = arguments.map(|(buffer, _)| KernelArg::Buffer(buffer));
    let params = addressing::to_bytes(&arguments.map(|(_, start)| start));
    let (table, words) = (KernelArg::Buffer(table.ptr()), KernelArg::Buffer(words.ptr()));
    let args = [first, second, third, table, words, KernelArg::Bytes(&params)];
    // SAFETY: the arguments are those of the kernel, the table and the words have room for every group, and the caller
    // vouches for the module, the memory and the pages.
    unsafe { stream.launch(module, K::KERNEL, groups, GROUP_SIZE, &args) }
}

fn arguments(operands: [Addressing<'_>; 3], device: &Device) -> Result<[(DevicePtr, u64); 3]> {
    let [first, second, third] = operands;
    Ok([first.argument(device)?, second.argument(device)?, third.argument(device)?])
}

/// # Safety
/// As for [`run`].
unsafe fn through_host<K: PageKernel>(
    stream: &Stream,
    operands: [Addressing<'_>; 3],
    table: DeviceSlice<'_>,
    words: DeviceSlice<'_>,
) -> Result<()> {
    let rows = decode(&download(stream, table)?);
    check::<K>(rows.iter().copied(), operands)?;
    let mut found = Vec::with_capacity(rows.len() * 4);
    for Row { at, len } in rows {
        let lens = K::lens(len);
        let mut parts = Vec::with_capacity(3);
        for (operand, (at, len)) in operands.into_iter().zip(at.into_iter().zip(lens)) {
            // SAFETY: the caller's promise.
            parts.push(unsafe { operand.part(at, len) }?);
        }
        let mut page = lens.map(|len| vec![0; len as usize]);
        for ((bytes, part), reads) in page.iter_mut().zip(&parts).zip(K::READS) {
            if reads {
                stream.download(bytes, *part)?;
            }
        }
        let word = K::oracle(page.each_mut().map(Vec::as_mut_slice));
        for ((bytes, part), written) in page.iter().zip(parts).zip(K::writes(word)) {
            if written {
                stream.upload(part, bytes)?;
            }
        }
        found.extend(word.to_ne_bytes());
    }
    stream.upload(words.part(0, found.len() as u64)?, &found)
}

/// The kernel as the `host` device runs it.
///
/// # Safety
/// As for every [`bifolio_device::HostKernel`].
pub(crate) unsafe fn run_on_host<K: PageKernel>(launch: &HostLaunch<'_>) {
    let [
        KernelArg::Buffer(first),
        KernelArg::Buffer(second),
        KernelArg::Buffer(third),
        KernelArg::Buffer(rows),
        KernelArg::Buffer(words),
        KernelArg::Bytes(params),
    ] = launch.args
    else {
        unreachable!("{} has five buffers and one parameter struct", K::KERNEL);
    };
    let Some(starts) = addressing::words_of::<3>(params) else {
        unreachable!("{} has 24 bytes of parameters", K::KERNEL)
    };
    let pages = launch.groups as usize;
    // SAFETY: the caller passes the host address of a row for each group, at an 8-byte boundary.
    let rows = unsafe { slice::from_raw_parts(rows.0 as *const Row, pages) };
    // SAFETY: as above, of a word for each group, at a 4-byte boundary, that nobody else uses.
    let words = unsafe { slice::from_raw_parts_mut(words.0 as *mut u32, pages) };
    // Single pages: others may be using what lies between them.
    for (row, word) in rows.iter().zip(words) {
        *word = 0;
        if row.len == 0 {
            continue; // It may have no memory at all.
        }
        let place = |(operand, i): (&DevicePtr, usize)| operand.offset_by(starts[i] + row.at[i]).0 as *mut u8;
        let page = [(first, 0), (second, 1), (third, 2)].map(place);
        // SAFETY: the caller vouches that the page lies inside its operands, at 16-byte boundaries, and for who else
        // uses it.
        *word = unsafe { K::on_host(page, row.len as usize) };
    }
}
