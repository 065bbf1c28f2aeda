//! What the fuzz targets need of this crate's inside. Built for them only (`--cfg fuzzing`).

use crate::engine::batch;
use crate::kind::EngineKind;
use crate::plan::Segment;

/// The cutting of segments into batches of reads.
#[derive(Debug)]
pub struct Batches(batch::Batches);

/// One read into a slot, and the bytes of it that are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the piece inside, where they are described")]
pub struct Piece {
    pub segment: usize,
    pub offset: u64,
    pub len: u64,
    pub read_offset: u64,
    pub read_len: u64,
    pub slot_offset: u64,
    pub wanted_at: u64,
}

impl Batches {
    /// Batches of at most `capacity` bytes and `pieces_max > 0` pieces; the capacity and the alignment
    /// are powers of two, `capacity >= alignment`.
    pub fn new(capacity: u64, pieces_max: usize, alignment: u64) -> Self {
        Self(batch::Batches::new((capacity, pieces_max), alignment))
    }

    /// Adds a segment behind the others, in file order.
    pub fn push(&mut self, number: usize, offset: u64, length: u64) {
        self.0.push((number, Segment { engine: EngineKind::Direct, offset, length, predicted_s: 0.0 }));
    }

    /// Whether everything was handed out.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The pieces of the next batch, which reads at most `limit` bytes, a multiple of the alignment.
    pub fn next(&mut self, limit: u64) -> Vec<Piece> {
        let mut pieces = vec![];
        self.0.next(limit, &mut pieces);
        let seen = |piece: &batch::Piece| Piece {
            segment: piece.segment,
            offset: piece.offset,
            len: piece.len,
            read_offset: piece.read_offset,
            read_len: piece.read_len,
            slot_offset: piece.slot_offset,
            wanted_at: piece.wanted_at(),
        };
        pieces.iter().map(seen).collect()
    }
}
