//! How a request is cut: chunks that fit into a slot, and the table of extents that lies before the data of each.

use bifolio_kernels::scatter::{EXTENT_BYTES, Extent};

/// Data of a slot.
pub(super) const CHUNK_BYTES: usize = 4 << 20;
/// One extent of the table: short enough that a long chunk keeps the whole device busy, and longer than the pieces of
/// [`scatter::shared_out`](bifolio_kernels::scatter::shared_out), as the table has a fixed place before the data.
const PIECE_BYTES: usize = 32 << 10;
/// The table lies before the data, which so begin at a page.
pub(super) const TABLE_BYTES: usize = 4096;
const _: () = assert!(CHUNK_BYTES.div_ceil(PIECE_BYTES) * EXTENT_BYTES as usize <= TABLE_BYTES);

/// A part of a request that fits into a slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    pub(super) number: usize,
    pub(super) start: usize,
    pub(super) len: usize,
}

/// The chunks of a request of at most so many bytes.
pub(super) fn chunks(most: usize) -> impl DoubleEndedIterator<Item = Chunk> + ExactSizeIterator {
    let chunk = move |number| {
        let start = number * CHUNK_BYTES;
        Chunk { number, start, len: CHUNK_BYTES.min(most - start) }
    };
    (0..most.div_ceil(CHUNK_BYTES)).map(chunk)
}

/// Bytes of the table for a chunk of `len` bytes.
pub(super) fn table_bytes(len: usize) -> u64 {
    len.div_ceil(PIECE_BYTES) as u64 * EXTENT_BYTES
}

/// Writes `bytes` in pieces to a table; `extent` makes one, but for its length.
pub(super) fn write_table(table: &mut [u8], bytes: usize, extent: impl Fn(u64) -> Extent) {
    for (number, start) in (0..bytes).step_by(PIECE_BYTES).enumerate() {
        let extent = Extent { len: PIECE_BYTES.min(bytes - start) as u64, ..extent(start as u64) };
        let at = number * EXTENT_BYTES as usize;
        table[at..at + EXTENT_BYTES as usize].copy_from_slice(&extent.to_bytes());
    }
}
