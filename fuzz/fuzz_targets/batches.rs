//! Any segments, slot size, alignment and limits: every byte is wanted exactly once, reads stay
//! aligned, behind one another and inside the slot, and handing out comes to an end.

#![no_main]

use bifolio_io::fuzzing::{Batches, Piece};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
struct Work {
    start: u64,
    /// Distance to the segment before, and length less one.
    segments: Vec<(u16, u32)>,
    alignment_shift: u8,
    /// By how much the slot is larger than the alignment.
    capacity_shift: u8,
    pieces_max: u8,
    /// For each batch in turn: segments that arrive before it, and the blocks that it may read.
    batches: Vec<(u8, u16)>,
}

/// Lengths are cut so that one input takes at most this number of full slots.
const SLOTS_MAX: u64 = 1 << 8;

fuzz_target!(|work: Work| {
    let alignment = 1_u64 << (work.alignment_shift % 14);
    let capacity = alignment << (work.capacity_shift % 12);
    let mut at = work.start >> 1;
    let mut left = capacity.saturating_mul(SLOTS_MAX);
    let mut segments = vec![];
    for (distance, length) in &work.segments {
        let length = u64::from(*length).min(left) + 1;
        left = left.saturating_sub(length);
        at += u64::from(*distance);
        segments.push((at, length));
        at += length;
    }
    let pieces_max = usize::from(work.pieces_max) + 1;
    let mut batches = Batches::new(capacity, pieces_max, alignment);
    let mut waiting = segments.iter().enumerate();
    // Of each segment, the bytes that were handed out so far.
    let mut handed_out = vec![0; segments.len()];
    for (arriving, blocks) in work.batches.iter().copied().chain(std::iter::repeat((u8::MAX, u16::MAX))) {
        for (number, (offset, length)) in waiting.by_ref().take(arriving.into()) {
            batches.push(number, *offset, *length);
        }
        let limit = (u64::from(blocks) + 1) * alignment;
        let pieces = batches.next(limit);
        assert!(!pieces.is_empty() || batches.is_empty(), "work is left and none is handed out");
        assert!(pieces.len() <= pieces_max);
        check(&pieces, &segments, &mut handed_out, limit.min(capacity), alignment);
        if pieces.is_empty() && waiting.len() == 0 {
            break;
        }
    }
    for ((_, length), bytes) in segments.iter().zip(handed_out) {
        assert_eq!(*length, bytes, "bytes were left out");
    }
});

fn check(pieces: &[Piece], segments: &[(u64, u64)], handed_out: &mut [u64], limit: u64, alignment: u64) {
    let mut used = 0;
    for piece in pieces {
        assert!(
            [piece.read_offset, piece.read_len, piece.slot_offset].iter().all(|number| number % alignment == 0),
            "{piece:?}"
        );
        assert_eq!(piece.slot_offset, used, "{piece:?}");
        used += piece.read_len;
        assert!(piece.len > 0 && piece.read_offset <= piece.offset, "{piece:?}");
        assert!(piece.offset + piece.len <= piece.read_offset + piece.read_len, "{piece:?}");
        assert_eq!(piece.wanted_at, piece.slot_offset + (piece.offset - piece.read_offset), "{piece:?}");
        let done = &mut handed_out[piece.segment];
        assert_eq!(piece.offset, segments[piece.segment].0 + *done, "{piece:?}");
        *done += piece.len;
    }
    assert!(used <= limit, "{pieces:?} in {limit} bytes");
}
