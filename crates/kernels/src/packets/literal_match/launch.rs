//! The launch: `literal_begin_packets`, then `literal_match`.

use super::list::LIST_BYTES;
use super::params::{Listed, LiteralSearch};
use super::{BEGIN, MATCH};
use crate::addressing::Addressing;
use crate::launch::{WORD_BYTES, bad, grid};
use crate::packets::Memory;
use bifolio_device::{DeviceSlice, KernelArg, Module, Result, Stream};

const GROUP_SIZE: u32 = 256;
/// Bytes that a group searches at a time.
pub(super) const TILE_BYTES: u64 = 32 * GROUP_SIZE as u64;
/// More groups than any device runs at once. Each brings the tables of the filter into its memory.
const GROUPS_MAX: u64 = 1056;
/// Packets whose headers a thread looks at where there is little text.
const PACKETS_A_THREAD: u64 = 8;

/// The memory of a search, at boundaries that the device's kernels want, as allocations begin.
#[derive(Debug, Clone, Copy)]
pub struct Operands<'a> {
    /// The batch.
    pub memory: Memory<'a>,
    /// The image of the literals.
    pub image: DeviceSlice<'a>,
    /// The list of hits, see [`list_bytes`](super::list_bytes). With [`Listed::Nothing`] it is not used, and may
    /// be empty.
    pub hits: DeviceSlice<'a>,
}

/// Enqueues a search over a batch. What the list had before is gone; the output words of all packets are set.
///
/// # Safety
/// `module` is the kernel's on the stream's device; the memory is of that device, stays valid, and is not written by others
/// (output rows and list: nor read) until the work completes. No output row overlaps an input row or the variable
/// part, the list overlaps nothing, and the image is one.
pub unsafe fn launch(stream: &Stream, module: &Module, search: &LiteralSearch, operands: Operands<'_>) -> Result<()> {
    let Operands { memory: Memory { input, output }, image, hits } = operands;
    search.rows.check(input.len(), output.len())?;
    search.check()?;
    let device = stream.device();
    let boundary = device.info().kernel_buffer_alignment.max(WORD_BYTES);
    let is_at_boundary = |range: DeviceSlice<'_>| range.ptr().0.is_multiple_of(boundary);
    if image.is_empty() || !is_at_boundary(image) {
        return Err(bad(format!(
            "an image of {} bytes at {} is none at a {boundary}-byte boundary",
            image.len(),
            image.ptr()
        )));
    }
    let room = room(search, hits)?;
    let has_list = search.list != Listed::Nothing;
    if has_list && !is_at_boundary(hits) {
        return Err(bad(format!("a list at {} is not at a {boundary}-byte boundary", hits.ptr())));
    }
    let mut search = *search;
    let (input, input_at) = Addressing::Relative(input).argument(device)?;
    let (output, output_at) = Addressing::Relative(output).argument(device)?;
    search.rows.input_at += input_at;
    search.rows.span_at += input_at;
    search.rows.output_at += output_at;
    let count = u64::from(search.rows.count);
    if count == 0 {
        // Nobody clears the list.
        return if has_list { stream.upload(hits.part(0, LIST_BYTES)?, &[0; LIST_BYTES as usize]) } else { Ok(()) };
    }
    let tiles = search.rows.span_bytes.div_ceil(TILE_BYTES);
    let params = search.to_bytes(room, tiles as u32);
    let [input, output, image] = [input, output, image.ptr()].map(KernelArg::Buffer);
    // One that nobody looks at.
    let hits = if has_list { KernelArg::Buffer(hits.ptr()) } else { output };
    let params = KernelArg::Bytes(&params);
    let packet_groups = count.div_ceil(GROUP_SIZE.into());
    // SAFETY: the arguments are those of the kernel, what the parameters name lies inside of rows and buffers, and the caller
    // vouches for the module and the memory.
    unsafe { stream.launch(module, BEGIN, grid(packet_groups)?, GROUP_SIZE, &[output, hits, params]) }?;
    let groups = grid(tiles.max(packet_groups.div_ceil(PACKETS_A_THREAD)).min(GROUPS_MAX))?;
    // SAFETY: as above.
    unsafe { stream.launch(module, MATCH, groups, GROUP_SIZE, &[input, output, image, hits, params]) }
}

/// For how many hits the list has room.
fn room(search: &LiteralSearch, hits: DeviceSlice<'_>) -> Result<u32> {
    match hits.len().checked_sub(LIST_BYTES) {
        _ if search.list == Listed::Nothing => Ok(0),
        Some(bytes) => Ok(u32::try_from(bytes / 8).unwrap_or(u32::MAX)),
        None => Err(bad(format!("a list of hits has at least {LIST_BYTES} bytes, got {}", hits.len()))),
    }
}
