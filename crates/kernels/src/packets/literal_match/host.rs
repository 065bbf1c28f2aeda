//! The kernels as the `host` device runs them: the first does nothing, the second all.

use super::list::LIST_BYTES;
use super::oracle::oracle;
use super::params::{Listed, LiteralSearch};
use crate::packets::PacketRows;
use bifolio_device::{DevicePtr, HostLaunch, KernelArg};
use std::slice;

/// Where the image says how many words it has.
const IMAGE_WORDS: usize = 7;

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
pub(super) unsafe fn begin_on_host(_: &HostLaunch<'_>) {}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
pub(super) unsafe fn match_on_host(launch: &HostLaunch<'_>) {
    let [
        KernelArg::Buffer(input),
        KernelArg::Buffer(output),
        KernelArg::Buffer(image),
        KernelArg::Buffer(hits),
        KernelArg::Bytes(params),
    ] = launch.args
    else {
        unreachable!("literal_match has four buffers and one parameter struct");
    };
    let Some((search, room)) = LiteralSearch::from_bytes(params) else { unreachable!("the parameters are its own") };
    let image = image.0 as *const u32;
    // SAFETY: the caller passes the address of an image, which has so many words as it says and more than eight.
    let image = unsafe { slice::from_raw_parts(image, *image.add(IMAGE_WORDS) as usize) };
    // SAFETY: the caller's promise.
    unsafe { run(&search, room, [*input, *output, *hits], image) };
}

/// # Safety
/// The buffers are addresses of a batch's input, output and list.
unsafe fn run(search: &LiteralSearch, room: u32, [input, output, list]: [DevicePtr; 3], image: &[u32]) {
    // Rows, variable part and output may lie in one allocation: each is copied, so that there are no slices of it but these.
    let copy = |at: DevicePtr, len: u64| {
        // SAFETY: the caller passes host addresses of buffers that have these bytes, which nobody writes meanwhile.
        if len == 0 { Vec::new() } else { unsafe { slice::from_raw_parts(at.0 as *const u8, len as usize) }.to_vec() }
    };
    let rows = &search.rows;
    let mut bytes = copy(input.offset_by(rows.input_at), rows.input_bytes());
    let span_at = bytes.len() as u64;
    bytes.extend(copy(input.offset_by(rows.span_at), rows.span_bytes));
    let mut after = copy(output.offset_by(rows.output_at), rows.output_bytes());
    let copied = LiteralSearch { rows: PacketRows { input_at: 0, span_at, output_at: 0, ..*rows }, ..*search };
    let found = oracle(&copied, image, &bytes, &mut after);
    let place = output.offset_by(rows.output_at).0 as *mut u8;
    // SAFETY: as above, and nobody else uses the output rows.
    unsafe { slice::from_raw_parts_mut(place, after.len()) }.copy_from_slice(&after);
    if search.list != Listed::Nothing {
        // SAFETY: the list begins with four words, and nobody else uses it.
        let head = unsafe { slice::from_raw_parts_mut(list.0 as *mut u32, 4) };
        (head[0], head[1]) = (found.len() as u32, u32::from(found.len() > room as usize));
        let fits = found.len().min(room as usize);
        // SAFETY: as above; the list has room for so many.
        let hits = unsafe { slice::from_raw_parts_mut(list.offset_by(LIST_BYTES).0 as *mut u64, fits) };
        hits.copy_from_slice(&found[..fits]);
    }
}
