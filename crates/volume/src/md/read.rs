//! Reading: chunks by themselves where their members are there, and by recovery from the rest of their stripe
//! where not.

use super::array::Raid6;
use super::layout::Layout;
use super::state::Assembly;
use crate::{Error, ErrorKind, Result};
use bifolio_compute::cpu::pq;
use bifolio_kernels::raid6::Loss;
use std::ops::Range;

/// Why a stripe could not be read.
#[derive(Debug)]
pub(super) enum Failure {
    /// A member failed; without it the stripe may be recovered.
    Member(usize, Error),
    /// There is nothing to be done.
    Final(Error),
}

/// Which slots of a stripe are read, and what is recovered from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gathering {
    pub(super) read: Vec<usize>,
    pub(super) loss: Loss,
}

/// Chooses what to read for the wanted slots; None if too much is missing. Pure.
pub(super) fn gathering(layout: Layout, missing: &[usize], wanted: &[usize]) -> Option<Gathering> {
    if !wanted.iter().any(|slot| missing.contains(slot)) {
        return Some(Gathering { read: wanted.to_vec(), loss: Loss::NOTHING });
    }
    let (p, q) = (layout.data(), layout.data() + 1);
    let all = 0..layout.members();
    let lost_data: Vec<usize> = missing.iter().copied().filter(|slot| *slot < p).collect();
    let wants_q = wanted.contains(&q) && missing.contains(&q);
    if let [lost] = lost_data[..]
        && !missing.contains(&p)
        && !wants_q
    {
        // A sum is cheaper than a product, and Q need not be read.
        let read = all.filter(|slot| *slot != lost && (*slot != q || wanted.contains(&q))).collect();
        return Some(Gathering { read, loss: Loss::one(lost as u32) });
    }
    let loss = match missing {
        [one] => Loss::one(*one as u32),
        [one, other] => Loss::two(*one as u32, *other as u32),
        _ => return None,
    };
    Some(Gathering { read: all.filter(|slot| !missing.contains(slot)).collect(), loss })
}

impl Raid6 {
    /// Fills a buffer, stripe by stripe.
    pub(super) fn read_part(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let stripe_bytes = self.layout.stripe_bytes();
        let (mut at, mut rest) = (offset, buffer);
        while !rest.is_empty() {
            let len = (stripe_bytes - at % stripe_bytes).min(rest.len() as u64);
            let (part, behind) = rest.split_at_mut(len as usize);
            self.read_stripe(at, part)?;
            (at, rest) = (at + len, behind);
        }
        Ok(())
    }

    /// Reads a range inside one stripe.
    fn read_stripe(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let stripe = offset / self.layout.stripe_bytes();
        loop {
            let failure = {
                let state = self.state();
                if self.is_direct(&state, offset, buffer.len() as u64) {
                    self.read_chunks(&state, offset, buffer)
                } else {
                    drop(state);
                    // A writer in the middle of the stripe would make the recovery wrong.
                    let _lock = self.lock_to_read(stripe..stripe + 1);
                    let state = self.state();
                    self.read_recovering(&state, offset, buffer)
                }
            };
            match failure {
                Ok(()) => return Ok(()),
                Err(Failure::Member(role, error)) => self.fail(vec![(role, error)])?,
                Err(Failure::Final(error)) => return Err(error),
            }
        }
    }

    /// Whether all members of a range are there.
    fn is_direct(&self, state: &Assembly, offset: u64, len: u64) -> bool {
        self.chunks(offset, len).all(|(at, _)| state.readable(self.layout.locate(at).member).is_some())
    }

    /// The chunks of a range inside one stripe: offset and length.
    fn chunks(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let chunk = self.layout.chunk_bytes();
        let mut at = offset;
        std::iter::from_fn(move || {
            let next = (at / chunk + 1) * chunk;
            let piece = (at, next.min(offset + len).checked_sub(at).filter(|len| *len > 0)?);
            at += piece.1;
            Some(piece)
        })
    }

    fn read_chunks(&self, state: &Assembly, offset: u64, buffer: &mut [u8]) -> Result<(), Failure> {
        for (at, len) in self.chunks(offset, buffer.len() as u64) {
            let place = self.layout.locate(at);
            let inside = place.inside..place.inside + len;
            let part = &mut buffer[(at - offset) as usize..][..len as usize];
            self.read_member(state, place.stripe, place.member, inside, part)?;
        }
        Ok(())
    }

    /// Reads a part of a member's chunk.
    fn read_member(
        &self,
        state: &Assembly,
        stripe: u64,
        role: usize,
        inside: Range<u64>,
        buffer: &mut [u8],
    ) -> Result<(), Failure> {
        let Some(member) = state.readable(role) else { unreachable!("member {role} was there a moment before") };
        let at = member.superblock.data_offset + self.layout.member_offset(stripe) + inside.start;
        member.device.read(at, buffer).map_err(|error| Failure::Member(role, error.into()))
    }

    /// The same range with chunks recovered. A whole stripe is read to where it belongs; of others the columns of the
    /// range are gathered.
    fn read_recovering(&self, state: &Assembly, offset: u64, buffer: &mut [u8]) -> Result<(), Failure> {
        let layout = self.layout;
        let stripe = offset / layout.stripe_bytes();
        if buffer.len() as u64 == layout.stripe_bytes() {
            return self.read_whole(state, stripe, buffer);
        }
        for (at, len) in self.chunks(offset, buffer.len() as u64) {
            let place = layout.locate(at);
            let inside = place.inside..place.inside + len;
            let part = &mut buffer[(at - offset) as usize..][..len as usize];
            if state.readable(place.member).is_some() {
                self.read_member(state, stripe, place.member, inside, part)?;
            } else {
                let slot = layout.slot(stripe, place.member);
                part.copy_from_slice(&self.gather(state, stripe, inside, &[slot])?[slot]);
            }
        }
        Ok(())
    }

    /// All data chunks of a stripe, in place.
    fn read_whole(&self, state: &Assembly, stripe: u64, buffer: &mut [u8]) -> Result<(), Failure> {
        let layout = self.layout;
        let wanted: Vec<usize> = (0..layout.data()).collect();
        let gathering = self.choose(state, stripe, &wanted)?;
        let chunk = layout.chunk_bytes();
        let mut parity = [vec![0; chunk as usize], vec![0; chunk as usize]];
        let roles = layout.by_slot(stripe);
        let mut by_slot: Vec<&mut [u8]> = roles.iter().map(|_| &mut [][..]).collect();
        for (index, part) in buffer.chunks_exact_mut(chunk as usize).enumerate() {
            by_slot[layout.slot(stripe, layout.member(stripe, index))] = part;
        }
        let [p, q] = &mut parity;
        by_slot[layout.data()] = p;
        by_slot[layout.data() + 1] = q;
        for slot in &gathering.read {
            self.read_member(state, stripe, roles[*slot], 0..chunk, by_slot[*slot])?;
        }
        pq::recover(&mut by_slot, gathering.loss);
        Ok(())
    }

    fn choose(&self, state: &Assembly, stripe: u64, wanted: &[usize]) -> Result<Gathering, Failure> {
        let mut missing: Vec<usize> = state.missing().into_iter().map(|role| self.layout.slot(stripe, role)).collect();
        missing.sort_unstable();
        gathering(self.layout, &missing, wanted).ok_or_else(|| {
            let detail = format!("stripe {stripe} cannot be read: {} members are missing", missing.len());
            Failure::Final(Error::new(ErrorKind::TooFewMembers, &self.name, detail))
        })
    }

    /// The columns of the wanted slots, by slot; those of others are empty or of no use. The stripe is locked.
    pub(super) fn gather(
        &self,
        state: &Assembly,
        stripe: u64,
        columns: Range<u64>,
        wanted: &[usize],
    ) -> Result<Vec<Vec<u8>>, Failure> {
        let gathering = self.choose(state, stripe, wanted)?;
        let roles = self.layout.by_slot(stripe);
        let len = (columns.end - columns.start) as usize;
        let recovers = gathering.loss != Loss::NOTHING;
        let is_used = |slot: usize| recovers || gathering.read.contains(&slot);
        let mut by_slot: Vec<Vec<u8>> =
            (0..roles.len()).map(|slot| self.columns.take(if is_used(slot) { len } else { 0 })).collect();
        for slot in &gathering.read {
            self.read_member(state, stripe, roles[*slot], columns.clone(), &mut by_slot[*slot])?;
        }
        if recovers {
            let mut slices: Vec<&mut [u8]> = by_slot.iter_mut().map(Vec::as_mut_slice).collect();
            pq::recover(&mut slices, gathering.loss);
        }
        Ok(by_slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::md::Rotation;

    #[test]
    fn nothing_is_read_that_is_not_needed() {
        let layout = Layout::new(Rotation::LeftSymmetric, 6, 4096).unwrap();
        let of = |missing: &[usize], wanted: &[usize]| gathering(layout, missing, wanted).map(|found| found.read);
        assert_eq!(of(&[], &[1]), Some(vec![1]));
        assert_eq!(of(&[0, 5], &[1]), Some(vec![1]));
        assert_eq!(of(&[1], &[1]), Some(vec![0, 2, 3, 4]), "P, and not Q");
        assert_eq!(of(&[1, 5], &[1]), Some(vec![0, 2, 3, 4]));
        assert_eq!(of(&[1, 4], &[1]), Some(vec![0, 2, 3, 5]), "Q, as P is missing");
        assert_eq!(of(&[1, 3], &[1]), Some(vec![0, 2, 4, 5]));
        assert_eq!(of(&[5], &[5]), Some(vec![0, 1, 2, 3, 4]));
        assert_eq!(of(&[1, 2, 3], &[1]), None);
    }
}
