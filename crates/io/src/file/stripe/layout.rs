//! RAID-0 arithmetic: where the bytes of a striped file lie. Pure.
//!
//! Chunk `n` of the file is chunk `n / members` of member `n % members`. So a contiguous range of
//! the file is a contiguous range of each member, and only its place in the file is interleaved.

use std::ops::Range;

/// The layout of a striped file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    chunk_bytes: u64,
    members: u64,
}

impl Layout {
    /// Chunks of `chunk_bytes` over `members` files.
    ///
    /// # Panics
    /// If either is 0.
    pub fn new(chunk_bytes: u64, members: usize) -> Self {
        assert!(chunk_bytes > 0 && members > 0, "a stripe has chunks and members");
        Self { chunk_bytes, members: members as u64 }
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// How many files there are.
    pub fn members(&self) -> usize {
        self.members as usize
    }

    /// The member that holds a byte of the file, and where.
    pub fn locate(&self, offset: u64) -> (usize, u64) {
        let (chunk, inside) = (offset / self.chunk_bytes, offset % self.chunk_bytes);
        ((chunk % self.members) as usize, chunk / self.members * self.chunk_bytes + inside)
    }

    /// The byte of the file at an offset of a member; saturates beyond the largest file.
    pub fn offset_of(&self, member: usize, offset: u64) -> u64 {
        let (row, inside) = (offset / self.chunk_bytes, offset % self.chunk_bytes);
        let chunk = row.saturating_mul(self.members).saturating_add(member as u64);
        chunk.saturating_mul(self.chunk_bytes).saturating_add(inside)
    }

    /// Bytes from an offset of a member to the end of its chunk: as many are neighbours in the file.
    pub fn run_at(&self, offset: u64) -> u64 {
        self.chunk_bytes - offset % self.chunk_bytes
    }

    /// The bytes of a member that a range of the file has; empty if it has none.
    pub fn part_of(&self, range: &Range<u64>, member: usize) -> Range<u64> {
        let start = self.first_at_or_after(range.start, member);
        let end = self.first_at_or_after(range.end, member);
        start..end.max(start)
    }

    /// The pieces of a member's range that are neighbours in the file: each an offset in the file,
    /// and bytes.
    pub fn chunks_of(&self, member: usize, range: &Range<u64>) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (layout, mut at, end) = (*self, range.start, range.end);
        std::iter::from_fn(move || {
            let length = layout.run_at(at).min(end.checked_sub(at).filter(|left| *left > 0)?);
            let piece = (layout.offset_of(member, at), length);
            at += length;
            Some(piece)
        })
    }

    /// The size of a member of a file of `size` bytes.
    pub fn member_bytes(&self, size: u64, member: usize) -> u64 {
        self.first_at_or_after(size, member)
    }

    /// The first offset of a member whose byte in the file is at or after `offset`.
    fn first_at_or_after(&self, offset: u64, member: usize) -> u64 {
        let (chunk, inside) = (offset / self.chunk_bytes, offset % self.chunk_bytes);
        let (row, at) = (chunk / self.members, chunk % self.members);
        match at.cmp(&(member as u64)) {
            std::cmp::Ordering::Less => row * self.chunk_bytes,
            std::cmp::Ordering::Equal => row * self.chunk_bytes + inside,
            std::cmp::Ordering::Greater => (row + 1) * self.chunk_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_are_divided_as_if_byte_by_byte(
            chunk in 1_u64..9, members in 1_usize..6, start in 0_u64..100, len in 0_u64..100
        ) {
            let layout = Layout::new(chunk, members);
            let range = start..start + len;
            for member in 0..members {
                let slow: Vec<u64> =
                    range.clone().map(|byte| layout.locate(byte)).filter(|(m, _)| *m == member).map(|(_, at)| at).collect();
                let part = layout.part_of(&range, member);
                prop_assert_eq!(part.clone().collect::<Vec<_>>(), slow);
                for at in part {
                    let byte = layout.offset_of(member, at);
                    prop_assert!(range.contains(&byte));
                    prop_assert_eq!(layout.locate(byte), (member, at));
                    let run = layout.run_at(at);
                    prop_assert_eq!(layout.offset_of(member, at + run - 1), byte + run - 1);
                }
            }
            let sizes: u64 = (0..members).map(|member| layout.member_bytes(start, member)).sum();
            prop_assert_eq!(sizes, start);
        }

        #[test]
        fn nothing_overflows(chunk in 1_u64..1 << 40, members in 1_usize..100, offset in 0_u64..1 << 62, member in 0_usize..100) {
            let layout = Layout::new(chunk, members);
            let member = member % members;
            let _ = (layout.locate(offset), layout.offset_of(member, offset), layout.run_at(offset));
            prop_assert!(layout.member_bytes(offset, member) <= offset.saturating_add(chunk));
        }
    }
}
