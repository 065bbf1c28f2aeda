//! Reads: zeroes, device memory, backing.

use super::PagingCache;
use crate::directory::Slot;
use crate::header::HEADER_BYTES;
use crate::pages::{BLOCK_BYTES, PAGE_BYTES, Pages, Part, parts};
use crate::stats::Counter;
use crate::store::{Piece, Store, TOGETHER_BYTES};
use crate::table::{Found, Pinned};
use bifolio_block::{ErrorKind, Result};

/// Blocks that the longest request touches.
const TOGETHER_MAX: usize = TOGETHER_BYTES / BLOCK_BYTES as usize + 1;

/// Where each page of a read comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sources {
    zero: Pages,
    device: Pages,
    backing: Pages,
}

/// Decides where the wanted pages come from. What the backing does not have comes from the device even if that is left
/// alone at present: there is no other copy.
fn sources(wanted: Pages, zero: Pages, slot: Slot, serves: bool) -> Sources {
    let zero = wanted.and(zero);
    let there = wanted.and(slot.valid).without(zero);
    let device = if serves { there } else { there.and(slot.dirty) };
    Sources { zero, device, backing: wanted.without(zero).without(device) }
}

impl PagingCache {
    /// Whether a read would be done by a copy within memory, as far as can be told before: not if the device is one that has
    /// to be waited for, or the backing.
    pub(crate) fn is_quick(&self, offset: u64, len: u64) -> bool {
        let within_memory = self.is_serving() && self.store().as_ref().is_some_and(Store::is_host_memory);
        within_memory
            && len > 0
            && offset.checked_add(len).is_some_and(|end| end <= self.size)
            && parts(offset, len).all(|part| {
                let block = self.directory.block(part.block);
                let there = block.slot.map_or(Pages::NONE, |slot| self.directory.slot(slot).valid);
                Pages::of(&part.pages()).without(block.zero).without(there).is_empty()
            })
    }

    /// Reads, and tells whether the backing was needed.
    pub(super) fn read_bytes(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        let len = buffer.len() as u64;
        let _held = self.ranges.read(Self::blocks(offset, len));
        if len > BLOCK_BYTES && self.read_together(offset, buffer) {
            return Ok(false);
        }
        parts(offset, len).try_fold(false, |missed, part| Ok(self.read_part(&part, buffer)? | missed))
    }

    /// Reads what lies in several blocks, and waits for the device once. False if it is to be read block by block: what is not
    /// on the device as a whole, or needs no waiting, and after a failure.
    fn read_together(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let len = buffer.len() as u64;
        let waits = self.is_serving() && self.store().as_ref().is_some_and(|store| !store.is_host_memory());
        if !waits || buffer.len() > TOGETHER_BYTES {
            return false;
        }
        let (mut pieces, mut pinned) = ([Piece::default(); TOGETHER_MAX], 0);
        let are_there = {
            let mut table = self.table();
            parts(offset, len).all(|part| {
                let wanted = Pages::of(&part.pages());
                let found = table.look(&self.directory, part.block, wanted);
                let Some((slot, there)) = found.slot else { return false };
                let length = (part.bytes.end - part.bytes.start) as usize;
                pieces[pinned] = Piece { slot, at: part.bytes.start, len: length };
                pinned += 1;
                sources(wanted, found.block.zero, there, true).device.without(found.block.lost) == wanted
            })
        };
        let pieces = &pieces[..pinned];
        let done = are_there && self.copy_out_all(pieces, buffer).is_ok();
        let mut table = self.table();
        for piece in pieces {
            table.unpin(&self.directory, piece.slot);
        }
        if done {
            let pages = (offset + len).div_ceil(PAGE_BYTES) - offset / PAGE_BYTES;
            self.directory.stats().add(Counter::HitPages, pages);
        }
        done
    }

    /// Reads what lies in one block, whose range the caller holds, and tells whether the backing was needed.
    pub(super) fn read_part(&self, part: &Part, buffer: &mut [u8]) -> Result<bool> {
        let wanted = Pages::of(&part.pages());
        let found = self.table().look(&self.directory, part.block, wanted);
        let done = self.read_found(part, wanted, &found, buffer);
        if let Some((slot, _)) = found.slot {
            self.table().unpin(&self.directory, slot);
        }
        done
    }

    fn read_found(&self, part: &Part, wanted: Pages, found: &Found, buffer: &mut [u8]) -> Result<bool> {
        if !wanted.and(found.block.lost).is_empty() {
            let at = u64::from(part.block) * BLOCK_BYTES + part.bytes.start;
            let detail = format!("what was written at offset {at} and not written back was lost with the device");
            return Err(self.failed(ErrorKind::Damaged, detail));
        }
        let slot = found.slot.map_or(Slot::EMPTY, |(_, slot)| slot);
        let sources = sources(wanted, found.block.zero, slot, self.is_serving());
        for run in sources.zero.runs() {
            buffer[part.cut(&run).1].fill(0);
        }
        let failed = self.read_slot(part, found.slot, sources.device, buffer)?;
        let missed = sources.backing.or(failed);
        for run in missed.runs() {
            let (bytes, own) = part.cut(&run);
            let place = HEADER_BYTES + u64::from(part.block) * BLOCK_BYTES + bytes.start;
            self.backing.read(place, &mut buffer[own])?;
        }
        let stats = self.directory.stats();
        stats.add(Counter::ZeroPages, sources.zero.count());
        stats.add(Counter::HitPages, sources.device.without(failed).count());
        stats.add(Counter::MissPages, missed.count());
        if failed.is_empty() && !missed.is_empty() && self.is_serving() {
            self.fill(part, found, missed, buffer);
        }
        Ok(!missed.is_empty())
    }

    /// Reads pages from device memory, and returns those that the backing has to give after all.
    fn read_slot(&self, part: &Part, found: Option<(Pinned, Slot)>, pages: Pages, buffer: &mut [u8]) -> Result<Pages> {
        let Some((pinned, slot)) = found.filter(|_| !pages.is_empty()) else { return Ok(Pages::NONE) };
        let mut failed = Pages::NONE;
        for run in pages.runs() {
            let (bytes, own) = part.cut(&run);
            let done = self.copy_out(pinned, bytes.start, &mut buffer[own]);
            if done.is_ok() {
                continue;
            }
            let run = Pages::of(&run);
            if !run.and(slot.dirty).is_empty() {
                let at = u64::from(part.block) * BLOCK_BYTES + bytes.start;
                let detail = format!("reading offset {at} failed, and only the device has what was written there");
                return Err(self.failed(ErrorKind::Read, detail));
            }
            failed = failed.or(run);
        }
        Ok(failed)
    }

    /// Puts what came from the backing into device memory where there is room: what it drives out might be wanted sooner.
    fn fill(&self, part: &Part, found: &Found, missed: Pages, buffer: &[u8]) {
        let whole = Pages::of(&whole_pages(part)).and(missed);
        if whole.is_empty() {
            return;
        }
        let admitted = match found.slot {
            Some((at, _)) => Some((at, false)),
            None => self.table().admit(&self.directory, part.block, false).map(|at| (at, true)),
        };
        let Some((at, is_pinned_here)) = admitted else { return };
        let filled = whole.runs().try_for_each(|run| {
            let (bytes, own) = part.cut(&run);
            self.copy_in(at, bytes.start, &buffer[own])
        });
        let mut table = self.table();
        if filled.is_ok() {
            table.set_valid(&self.directory, at, whole, false);
        }
        if is_pinned_here {
            table.unpin(&self.directory, at);
        }
    }
}

/// The pages of a part that it has all bytes of.
fn whole_pages(part: &Part) -> std::ops::Range<u32> {
    let start = part.bytes.start.div_ceil(PAGE_BYTES) as u32;
    start..((part.bytes.end / PAGE_BYTES) as u32).max(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_one_source_and_what_only_the_device_has_comes_from_it() {
        let draw = &mut fastrand::Rng::with_seed(bifolio_testing::seed());
        for _ in 0..5000 {
            let [wanted, zero, valid, dirty] = [(); 4].map(|()| Pages(draw.u16(..)));
            let slot = Slot { block: Some(0), valid, dirty: dirty.and(valid) };
            let serves = draw.bool();
            let sources = sources(wanted, zero, slot, serves);
            for page in 0..16 {
                let from = [sources.zero, sources.device, sources.backing].map(|source| source.has(page));
                let is_only_there = slot.dirty.has(page);
                let expected = if !wanted.has(page) {
                    [false; 3]
                } else if zero.has(page) {
                    [true, false, false]
                } else if valid.has(page) && (serves || is_only_there) {
                    [false, true, false]
                } else {
                    [false, false, true]
                };
                assert_eq!(from, expected, "page {page} of {wanted:?}");
            }
        }
    }
}
