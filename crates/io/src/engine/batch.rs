//! Cutting segments into slot-sized batches of reads: extent arithmetic, pure.
//!
//! A batch fills one pinned slot. A long segment gives batches of one read each; short segments
//! share a slot, so that a fragmented request does not need a slot (and a queue entry's worth of
//! latency) for every few pages. Unbuffered reads are widened to the alignment; the copy to the
//! device then takes the wanted bytes out of the middle.

use crate::plan::Segment;
use std::collections::VecDeque;

/// One read into a slot, and the bytes of it that are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The segment's number in its plan.
    pub(crate) segment: usize,
    /// First wanted byte, in the file.
    pub(crate) offset: u64,
    /// Wanted bytes.
    pub(crate) len: u64,
    /// First byte to read, in the file; a multiple of the alignment.
    pub(crate) read_offset: u64,
    /// Bytes to read; a multiple of the alignment.
    pub(crate) read_len: u64,
    /// Where the read goes in the slot; a multiple of the alignment.
    pub(crate) slot_offset: u64,
}

impl Piece {
    /// Where the first wanted byte lies in the slot.
    pub(crate) fn wanted_at(&self) -> u64 {
        self.slot_offset + (self.offset - self.read_offset)
    }
}

/// Hands out batches of the segments of one engine.
#[derive(Debug)]
pub(crate) struct Batches {
    segments: VecDeque<Numbered>,
    /// The first byte of the first segment that is not handed out yet.
    at: u64,
    /// The most bytes and pieces of a batch.
    capacity: u64,
    pieces_max: usize,
    alignment: u64,
}

/// A segment with its number in the job.
pub(crate) type Numbered = (usize, Segment);

impl Batches {
    /// Batches of at most `capacity` bytes, a multiple of the alignment, and `pieces_max` pieces.
    pub(crate) fn new((capacity, pieces_max): (u64, usize), alignment: u64) -> Self {
        assert!(capacity.is_multiple_of(alignment), "a slot holds whole aligned blocks");
        Self { segments: VecDeque::new(), at: 0, capacity, pieces_max, alignment }
    }

    /// Adds a segment behind the others, in file order.
    pub(crate) fn push(&mut self, segment: Numbered) {
        if self.segments.is_empty() {
            self.at = segment.1.offset;
        }
        self.segments.push_back(segment);
    }

    /// Whether everything was handed out.
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// The first segment, or what is left of it.
    pub(crate) fn pop_segment(&mut self) -> Option<Numbered> {
        let first = self.segments.pop_front()?;
        self.at = self.segments.front().map_or(0, |(_, segment)| segment.offset);
        Some(first)
    }

    /// Writes the pieces of the next batch to `pieces` (emptied first), reading at most `limit`
    /// bytes, a multiple of the alignment; false if there is nothing to hand out.
    pub(crate) fn next(&mut self, limit: u64, pieces: &mut Vec<Piece>) -> bool {
        pieces.clear();
        let mut used = 0;
        while let Some((segment, wanted)) = self.segments.front() {
            let end = wanted.offset + wanted.length;
            let read_offset = self.at - self.at % self.alignment;
            let room = limit.min(self.capacity) - used;
            let read_end = end.next_multiple_of(self.alignment).min(read_offset + room);
            // A segment that does not fit starts the next slot, rather than being cut in two.
            if read_end < end && used > 0 || room == 0 || pieces.len() >= self.pieces_max {
                break;
            }
            let piece_end = end.min(read_end);
            let (offset, len, read_len) = (self.at, piece_end - self.at, read_end - read_offset);
            pieces.push(Piece { segment: *segment, offset, len, read_offset, read_len, slot_offset: used });
            used += read_len;
            self.at = piece_end;
            if piece_end == end {
                self.pop_segment();
            }
        }
        !pieces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::EngineKind;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_is_wanted_once_and_reads_stay_aligned_inside_the_slot(
            lengths in proptest::collection::vec((1_u64..200_000, 0_u64..50_000), 1..40),
            capacity_shift in 13_u32..18, alignment_shift in 0_u32..13, pieces_max in 1_usize..20
        ) {
            let (capacity, alignment) = (1 << capacity_shift, 1 << alignment_shift);
            let mut at = 0;
            let segments: Vec<_> = lengths.iter().enumerate().map(|(number, (length, gap))| {
                let offset = at + gap;
                at = offset + length;
                (number, Segment { engine: EngineKind::Direct, offset, length: *length, predicted_s: 0.0 })
            }).collect();
            let mut batches = Batches::new((capacity, pieces_max), alignment);
            let mut waiting = segments.clone().into_iter();
            let (mut pieces, mut seen) = (Vec::new(), Vec::new());
            // Segments arrive while batches are handed out.
            loop {
                waiting.by_ref().take(3).for_each(|segment| batches.push(segment));
                if !batches.next(capacity, &mut pieces) {
                    break;
                }
                prop_assert!(pieces.len() <= pieces_max);
                let mut used = 0;
                for piece in &pieces {
                    prop_assert!([piece.read_offset, piece.read_len, piece.slot_offset].iter().all(|n| n % alignment == 0));
                    prop_assert_eq!(piece.slot_offset, used);
                    used += piece.read_len;
                    prop_assert!(piece.read_offset <= piece.offset && piece.offset + piece.len <= piece.read_offset + piece.read_len);
                    prop_assert!(piece.wanted_at() + piece.len <= used && used <= capacity);
                }
                seen.extend(pieces.iter().copied());
            }
            for (number, segment) in segments {
                let mut at = segment.offset;
                for piece in seen.iter().filter(|piece| piece.segment == number) {
                    prop_assert_eq!(piece.offset, at);
                    at += piece.len;
                }
                prop_assert_eq!(at, segment.offset + segment.length);
            }
        }
    }
}
