//! Chunks over several devices with nothing to spare: RAID-0, in the layout of `bifolio_io`'s striped sets.

use crate::{BlockDevice, Error, ErrorKind, Geometry, Result};
use bifolio_io::stripe::Layout;
use std::sync::Arc;

/// Shorter requests are served by the caller's thread, one member after the other.
const THREADS_FROM_BYTES: usize = 1 << 20;

/// Devices as one. Every member fails with it.
#[derive(Debug)]
pub struct Stripe {
    members: Vec<Arc<dyn BlockDevice>>,
    layout: Layout,
    size: u64,
}

impl Stripe {
    /// Chunks of `chunk_bytes` over the members in turn, as many whole rows as the smallest has.
    ///
    /// # Errors
    /// `BadUse` for no members, a chunk that is no multiple of 512 bytes, and members smaller than a chunk.
    pub fn new(members: Vec<Arc<dyn BlockDevice>>, chunk_bytes: u64) -> Result<Self> {
        let bad = |detail: String| Err(Error::new(ErrorKind::BadUse, "stripe", detail));
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(512) {
            return bad(format!("a chunk has a multiple of 512 bytes, not {chunk_bytes}"));
        }
        let Some(smallest) = members.iter().map(|member| member.geometry().size).min() else {
            return bad("a stripe has members".to_owned());
        };
        let rows = smallest / chunk_bytes;
        let Some(size) = (rows * chunk_bytes).checked_mul(members.len() as u64).filter(|size| *size > 0) else {
            return bad(format!("the smallest member has {smallest} bytes, less than a chunk of {chunk_bytes}"));
        };
        let layout = Layout::new(chunk_bytes, members.len());
        Ok(Self { members, layout, size })
    }

    /// Where the bytes lie.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The members, in the layout's order.
    pub fn members(&self) -> &[Arc<dyn BlockDevice>] {
        &self.members
    }

    /// Does work for each member, at the same time if there is much of it.
    fn each(&self, len: usize, work: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()> {
        if len < THREADS_FROM_BYTES {
            return (0..self.members.len()).try_for_each(work);
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.members.len()).map(|member| scope.spawn(move || work(member))).collect();
            let ended: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            ended.into_iter().try_for_each(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    /// The chunks that a member has of a range: its offset, the range's, and bytes.
    fn pieces(&self, member: usize, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64, u64)> + use<> {
        let layout = self.layout;
        let part = layout.part_of(&(offset..offset + len), member);
        layout.chunks_of(member, &part).map(move |(at, len)| (layout.locate(at).1, at, len))
    }
}

impl BlockDevice for Stripe {
    fn name(&self) -> String {
        let names: Vec<String> = self.members.iter().map(|member| member.name()).collect();
        format!("stripe of {}", names.join(", "))
    }

    fn geometry(&self) -> Geometry {
        let geometries = self.members.iter().map(|member| member.geometry());
        let block_bytes = geometries.map(|geometry| geometry.block_bytes).max().unwrap_or(512);
        let optimal_bytes = self.layout.chunk_bytes() * self.members.len() as u64;
        Geometry { size: self.size, block_bytes, optimal_bytes }
    }

    fn is_read_only(&self) -> bool {
        self.members.iter().any(|member| member.is_read_only())
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.check_range(offset, buffer.len() as u64)?;
        let len = buffer.len();
        // Each member's pieces of the buffer, as no two members share a chunk.
        let mut parts: Vec<Vec<(u64, &mut [u8])>> = self.members.iter().map(|_| vec![]).collect();
        let (mut at, mut rest) = (offset, buffer);
        while !rest.is_empty() {
            let (member, inside) = self.layout.locate(at);
            let len = self.layout.run_at(inside).min(rest.len() as u64);
            let (part, behind) = rest.split_at_mut(len as usize);
            parts[member].push((inside, part));
            (at, rest) = (at + len, behind);
        }
        let parts: Vec<_> = parts.into_iter().map(std::sync::Mutex::new).collect();
        self.each(len, &|member| {
            let mut parts = parts[member].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            parts.iter_mut().try_for_each(|(inside, part)| self.members[member].read(*inside, part))
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_range(offset, data.len() as u64)?;
        if self.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, self.name(), "a member was opened for reading only"));
        }
        self.each(data.len(), &|member| {
            self.pieces(member, offset, data.len() as u64).try_for_each(|(inside, at, len)| {
                let from = (at - offset) as usize;
                self.members[member].write(inside, &data[from..from + len as usize])
            })
        })
    }

    fn flush(&self) -> Result<()> {
        // Each flush of a disk takes its time, so all are under way together.
        self.each(usize::MAX, &|member| self.members[member].flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check_range(offset, len)?;
        (0..self.members.len()).try_for_each(|member| {
            // A member's part of a range is one range.
            let part = self.layout.part_of(&(offset..offset + len), member);
            if part.is_empty() { Ok(()) } else { self.members[member].discard(part.start, part.end - part.start) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{Faults, FaultyDevice};
    use proptest::prelude::*;

    fn members(count: usize, len: usize) -> Vec<Arc<FaultyDevice>> {
        (0..count).map(|i| Arc::new(FaultyDevice::new(format!("m{i}"), vec![i as u8; len + i * 512]))).collect()
    }

    fn stripe(members: &[Arc<FaultyDevice>], chunk: u64) -> Stripe {
        Stripe::new(members.iter().map(|member| Arc::clone(member) as _).collect(), chunk).unwrap()
    }

    proptest! {
        #[test]
        fn it_is_a_row_of_chunks(
            count in 1_usize..5, chunk in 1_u64..4,
            writes in prop::collection::vec((0_u64..20_000, 1_usize..6000, any::<u8>()), 1..8)
        ) {
            let members = members(count, 8192);
            let chunk = chunk * 512;
            let stripe = stripe(&members, chunk);
            let size = stripe.geometry().size;
            prop_assert_eq!(size, 8192 / chunk * chunk * count as u64);
            let mut expected: Vec<u8> = (0..size).map(|at| (at / chunk % count as u64) as u8).collect();
            for (offset, len, byte) in writes {
                let refused = offset + len as u64 > size;
                prop_assert_eq!(stripe.write(offset, &vec![byte; len]).is_err(), refused);
                if !refused {
                    expected[offset as usize..][..len].fill(byte);
                }
            }
            let mut found = vec![0xa5; size as usize];
            stripe.read(0, &mut found).unwrap();
            prop_assert!(found == expected);
            let mut part = vec![0xa5; (size / 2) as usize];
            stripe.read(size / 3, &mut part).unwrap();
            prop_assert!(part == expected[(size / 3) as usize..][..part.len()]);
            for (i, member) in members.iter().enumerate() {
                let rows = expected.chunks(chunk as usize).skip(i).step_by(count).flatten();
                prop_assert!(rows.eq(&member.content()[..(size as usize) / count]));
            }
        }
    }

    #[test]
    fn long_requests_reach_all_members_and_failures_are_the_members_own() {
        let members = members(3, 1 << 20);
        let stripe = stripe(&members, 4096);
        let data: Vec<u8> = (0..3_u32 << 20).map(|i| (i / 5 % 253) as u8).collect();
        stripe.write(0, &data).unwrap();
        let mut found = vec![0; data.len()];
        stripe.read(0, &mut found).unwrap();
        assert!(found == data);
        stripe.flush().unwrap();
        members[1].set_faults(Faults { reads_fail: true, flushes_fail: true, ..Faults::default() });
        assert_eq!(stripe.read(0, &mut found).unwrap_err().subject(), "m1");
        assert_eq!(stripe.flush().unwrap_err().subject(), "m1");
        stripe.read(0, &mut found[..4096]).unwrap();
    }

    #[test]
    fn shapes_that_hold_nothing_are_refused() {
        let with = |count, chunk| {
            let members = members(count, 1024);
            Stripe::new(members.into_iter().map(|member| member as _).collect(), chunk).map(|_| ()).unwrap_err()
        };
        for (count, chunk, word) in [(0, 512, "members"), (2, 0, "512"), (2, 700, "512"), (2, 2048, "smallest")] {
            assert!(with(count, chunk).to_string().contains(word));
        }
    }
}
