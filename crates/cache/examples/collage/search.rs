//! Looking for the tile that is most like a block: the oracle, and the kernels of the `host` device.

use crate::data::{HISTOGRAM_BYTES, Index, PIXEL_BYTES, PIXELS_AT, RECORD_BYTES, histogram};
use bifolio_device::{DevicePtr, HostLaunch, KernelArg, ModuleSource};
use bifolio_kernels::demand::{HEADER, Table};
use std::ops::Range;
use std::slice;

/// A distance beyond which a second bucket is searched.
pub(crate) const LIMIT: u32 = 1150;

/// No tile: the buckets are empty.
pub(crate) const NOBODY: u64 = u64::MAX;

pub(crate) const MODULE: ModuleSource = ModuleSource {
    name: "collage",
    source: include_str!("collage.cu"),
    headers: &[HEADER],
    kernels: &[("collage_demand", demand_on_host), ("collage_whole", whole_on_host)],
};

/// The most similar tile for a block, as distance and number in one word; none if something is missing. `records`
/// gives the records of a range that are there, with their numbers, and says whether that is all of them.
pub(crate) fn nearest(
    block: &[u8],
    index: &Index,
    mut records: impl FnMut(Range<u64>, &mut dyn FnMut(u64, &[u8])) -> bool,
) -> Option<u64> {
    let own = histogram(block);
    let (mut bucket, mut best) = (index.bucket_of(block), NOBODY);
    for _ in 0..2 {
        let mut compare = |tile: u64, record: &[u8]| {
            let (bins, _) = record[..HISTOGRAM_BYTES].as_chunks::<2>();
            let distance = |(bin, own): (&[u8; 2], &u16)| u64::from(u16::from_le_bytes(*bin).abs_diff(*own));
            let distance: u64 = bins.iter().zip(&own).map(distance).sum();
            best = best.min(distance << 32 | tile);
        };
        if !records(index.records_of(bucket), &mut compare) {
            return None;
        }
        if best >> 32 <= u64::from(LIMIT) {
            break;
        }
        bucket ^= 1;
    }
    Some(best)
}

/// What both kernels are launched with, behind the table.
struct Arguments<'a> {
    file: DevicePtr,
    index: Index,
    blocks: *const u8,
    best: *mut u64,
    output: *mut u8,
    rest: std::marker::PhantomData<&'a ()>,
}

impl<'a> Arguments<'a> {
    /// # Safety
    /// The arguments are those of `collage.cu`, and host addresses.
    unsafe fn of(args: &'a [KernelArg<'a>]) -> Self {
        let [
            KernelArg::Buffer(file),
            KernelArg::Buffer(first),
            KernelArg::Buffer(blocks),
            KernelArg::Buffer(best),
            KernelArg::Buffer(output),
            KernelArg::Bytes(params),
        ] = args
        else {
            unreachable!("the kernels have five buffers and one parameter struct");
        };
        let bits = params.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
        // SAFETY: the index has a word for each bucket, and one more.
        let first = unsafe { slice::from_raw_parts(first.0 as *const u32, (1 << (3 * bits)) + 1) }.to_vec();
        Self {
            file: *file,
            index: Index { bits, first },
            blocks: blocks.0 as *const u8,
            best: best.0 as *mut u64,
            output: output.0 as *mut u8,
            rest: std::marker::PhantomData,
        }
    }

    /// # Safety
    /// There is a block with this number.
    unsafe fn block(&self, item: usize) -> &[u8] {
        // SAFETY: the caller's promise.
        unsafe { slice::from_raw_parts(self.blocks.add(item * PIXEL_BYTES), PIXEL_BYTES) }
    }

    /// # Safety
    /// The same, and the record of the winner is there.
    unsafe fn store(&self, item: usize, best: u64) {
        let at = self.file.offset_by((best & 0xffff_ffff) * RECORD_BYTES + PIXELS_AT as u64).0;
        // SAFETY: the caller's promise; results have room for every block.
        unsafe {
            let output = self.output.add(item * PIXEL_BYTES);
            match best {
                NOBODY => output.write_bytes(0, PIXEL_BYTES),
                _ => output.copy_from_nonoverlapping(at as *const u8, PIXEL_BYTES),
            }
            self.best.add(item).write(best);
        }
    }
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn demand_on_host(launch: &HostLaunch<'_>) {
    let [KernelArg::Buffer(table), rest @ ..] = launch.args else { unreachable!("the table comes first") };
    // SAFETY: the launch is right, here and below.
    let arguments = unsafe { Arguments::of(rest) };
    // SAFETY: as above.
    let table = unsafe { Table::at(*table, arguments.file) };
    for (slot, &item) in table.items().iter().enumerate() {
        // SAFETY: as above.
        let block = unsafe { arguments.block(item as usize) };
        let best = nearest(block, &arguments.index, |tiles, compare| {
            let mut all = true;
            for tile in tiles {
                match table.get(tile * RECORD_BYTES, RECORD_BYTES) {
                    Some(record) => compare(tile, record),
                    // And go on: what else is missing comes by the same filling.
                    None => all = false,
                }
            }
            all
        });
        if let Some(best) = best {
            // SAFETY: the winner's record was just read.
            unsafe { arguments.store(item as usize, best) };
            table.finish(slot);
        }
    }
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn whole_on_host(launch: &HostLaunch<'_>) {
    // SAFETY: the launch is right, here and below.
    let arguments = unsafe { Arguments::of(launch.args) };
    for item in 0..launch.groups as usize {
        // SAFETY: there is a block for each group.
        let block = unsafe { arguments.block(item) };
        let best = nearest(block, &arguments.index, |tiles, compare| {
            for tile in tiles {
                let at = arguments.file.offset_by(tile * RECORD_BYTES).0 as *const u8;
                // SAFETY: all of the file is there.
                compare(tile, unsafe { slice::from_raw_parts(at, RECORD_BYTES as usize) });
            }
            true
        });
        // SAFETY: as above.
        unsafe { arguments.store(item, best.unwrap_or(NOBODY)) };
    }
}
