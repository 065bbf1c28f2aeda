//! Cutting segments into slot-sized batches of reads: extent arithmetic, pure.
//!
//! A batch fills one pinned slot. A long segment gives batches of one read each; short segments
//! share a slot, so that a fragmented request does not need a slot (and a queue entry's worth of
//! latency) for every few pages. Unbuffered reads are widened to the alignment; the copy to the
//! device then takes the wanted bytes out of the middle.

use crate::plan::Segment;

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
    segments: Vec<(usize, Segment)>,
    /// The segment being cut, and the first byte of it not handed out yet.
    next: usize,
    at: u64,
    /// The most bytes a batch reads.
    capacity: u64,
    alignment: u64,
}

impl Batches {
    /// Batches of at most `capacity` bytes, both numbers powers of two, `capacity >= alignment`.
    pub(crate) fn new(segments: Vec<(usize, Segment)>, capacity: u64, alignment: u64) -> Self {
        assert!(capacity.is_multiple_of(alignment), "a slot holds whole aligned blocks");
        let at = segments.first().map_or(0, |(_, segment)| segment.offset);
        Self { segments, next: 0, at, capacity, alignment }
    }

    /// Whether everything was handed out.
    pub(crate) fn is_done(&self) -> bool {
        self.next >= self.segments.len()
    }

    /// Writes the pieces of the next batch to `pieces` (emptied first); false at the end.
    pub(crate) fn next(&mut self, pieces: &mut Vec<Piece>) -> bool {
        self.next_within(self.capacity, pieces)
    }

    /// The same with a smaller capacity for this batch, a multiple of the alignment.
    pub(crate) fn next_within(&mut self, capacity: u64, pieces: &mut Vec<Piece>) -> bool {
        pieces.clear();
        let mut used = 0;
        while let Some((segment, wanted)) = self.segments.get(self.next) {
            let end = wanted.offset + wanted.length;
            let read_offset = self.at - self.at % self.alignment;
            let room = capacity.min(self.capacity) - used;
            let read_end = end.next_multiple_of(self.alignment).min(read_offset + room);
            // A segment that does not fit starts the next slot, rather than being cut in two.
            if read_end < end && used > 0 || room == 0 {
                break;
            }
            let piece_end = end.min(read_end);
            let (offset, len, read_len) = (self.at, piece_end - self.at, read_end - read_offset);
            pieces.push(Piece { segment: *segment, offset, len, read_offset, read_len, slot_offset: used });
            used += read_len;
            self.at = piece_end;
            if piece_end == end {
                self.next += 1;
                self.at = self.segments.get(self.next).map_or(0, |(_, segment)| segment.offset);
            }
        }
        !pieces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EngineKind;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_is_wanted_once_and_reads_stay_aligned_inside_the_slot(
            lengths in proptest::collection::vec((1_u64..200_000, 0_u64..50_000), 1..40),
            capacity_shift in 13_u32..18, alignment_shift in 0_u32..13
        ) {
            let (capacity, alignment) = (1 << capacity_shift, 1 << alignment_shift);
            let mut at = 0;
            let segments: Vec<_> = lengths.iter().enumerate().map(|(number, (length, gap))| {
                let offset = at + gap;
                at = offset + length;
                (number, Segment { engine: EngineKind::Direct, offset, length: *length, predicted_s: 0.0 })
            }).collect();
            let mut batches = Batches::new(segments.clone(), capacity, alignment);
            let (mut pieces, mut seen) = (Vec::new(), Vec::new());
            while batches.next(&mut pieces) {
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
