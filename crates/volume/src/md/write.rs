//! Writing: a stripe at a time, under its lock; or a few, where they share a record of the log.
//!
//! A stripe that is written as a whole needs nothing of what was there. For a part of it there are two ways to
//! new P and Q: from the difference to the old data and the old P and Q, or from all data of the columns. The
//! one that reads fewer bytes is taken.
//!
//! Once the first member of a stripe has been written, all others are, whatever fails: then those that are left fit
//! together, and the ones that failed are marked before the write returns.

use super::array::Raid6;
use super::layout::Layout;
use super::log::{Entry, Failed, Log};
use super::read::{Failure, gathering};
use super::state::Assembly;
use crate::{Error, Result};
use bifolio_compute::cpu::pq;
use std::borrow::Cow;
use std::ops::Range;

/// More stripes at a time gain little.
const GROUP_STRIPES_MAX: u64 = 64;

/// New bytes for a part of a chunk.
#[derive(Debug, Clone, Copy)]
struct Part<'a> {
    slot: usize,
    inside: u64,
    data: &'a [u8],
}

impl Part<'_> {
    fn end(&self) -> u64 {
        self.inside + self.data.len() as u64
    }

    fn covers(&self, columns: &Range<u64>) -> bool {
        self.inside <= columns.start && self.end() >= columns.end
    }
}

/// How P and Q are made.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Strategy {
    /// From the change of the data, and the old P and Q.
    Modify,
    /// From all data of the columns; these slots are read for it.
    Rebuild(Vec<usize>),
}

/// What of a stripe can be read, and whether it can be believed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Condition {
    /// Slots that cannot be read, ascending.
    missing: Vec<usize>,
    /// Of these, those that must be written all the same, as their members are being rebuilt.
    partial: Vec<usize>,
    /// P and Q may not fit the data.
    is_unsynced: bool,
}

/// Chooses the way that reads fewer bytes; None if too much is missing. Pure.
fn choose(
    layout: Layout,
    parts: &[(usize, Range<u64>)],
    columns: &Range<u64>,
    condition: &Condition,
) -> Option<Strategy> {
    let width = columns.end - columns.start;
    let is_missing = |slot: usize| condition.missing.contains(&slot);
    let is_covered = |slot: usize| parts.iter().any(|(of, part)| *of == slot && part == columns);
    let parity = [layout.data(), layout.data() + 1];
    let needed: Vec<usize> = (0..layout.data()).filter(|slot| !is_covered(*slot)).collect();
    let of_all = gathering(layout, &condition.missing, &needed).map(|found| found.read.len() as u64 * width);
    // A member that is being rebuilt gets its new P or Q whole, for which the old one is not there.
    let can_modify = !condition.is_unsynced
        && parts.iter().all(|(slot, _)| !is_missing(*slot))
        && parity.iter().all(|slot| !condition.partial.contains(slot));
    let old_data: u64 = parts.iter().map(|(_, part)| part.end - part.start).sum();
    let old_parity = parity.iter().filter(|slot| !is_missing(**slot)).count() as u64 * width;
    match (can_modify.then_some(old_data + old_parity), of_all) {
        (Some(by_change), Some(by_all)) if by_change < by_all => Some(Strategy::Modify),
        (Some(_), None) => Some(Strategy::Modify),
        (_, Some(_)) => Some(Strategy::Rebuild(needed)),
        (None, None) => None,
    }
}

impl Raid6 {
    /// Stores bytes, stripe by stripe.
    pub(super) fn write_part(&self, offset: u64, data: &[u8]) -> Result<()> {
        let stripe_bytes = self.layout.stripe_bytes();
        let last = (offset + data.len() as u64 - 1) / stripe_bytes;
        let all = offset / stripe_bytes..last + 1;
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let group = self.group(&self.state()) * stripe_bytes;
            let len = (group - at % stripe_bytes).min(rest.len() as u64);
            let (part, behind) = rest.split_at(len as usize);
            self.write_group(at, part, &all)?;
            (at, rest) = (at + len, behind);
        }
        Ok(())
    }

    /// Stripes that are written together: one, but where they share a record of the log and its flush.
    fn group(&self, state: &Assembly) -> u64 {
        match &self.log {
            Some(log) if state.is_degraded() => log.shape().stripes_of_record(self.layout).clamp(1, GROUP_STRIPES_MAX),
            _ => 1,
        }
    }

    /// Stores a range of a few stripes. `all` are the stripes that are going to be written.
    fn write_group(&self, offset: u64, data: &[u8], all: &Range<u64>) -> Result<()> {
        let stripe_bytes = self.layout.stripe_bytes();
        let last = (offset + data.len() as u64 - 1) / stripe_bytes;
        let mut stripes = vec![];
        let (mut at, mut rest) = (offset, data);
        for stripe in offset / stripe_bytes..=last {
            let len = (stripe_bytes - at % stripe_bytes).min(rest.len() as u64);
            let (part, behind) = rest.split_at(len as usize);
            stripes.push((stripe, self.parts(at, part)));
            (at, rest) = (at + len, behind);
        }
        let _lock = self.lock(offset / stripe_bytes..last + 1);
        let chunk = self.layout.chunk_bytes();
        if self.write_columns(&stripes, all, chunk)? {
            return Ok(());
        }
        // A record of the log has no room for them together, or not for a whole one.
        for (stripe, parts) in &stripes {
            let mut start = 0;
            while start < chunk {
                let end = chunk.min(start + self.width(&self.state()));
                let clipped: Vec<Part<'_>> = parts.iter().filter_map(|part| clip(*part, start..end)).collect();
                if clipped.is_empty() || self.write_columns(&[(*stripe, clipped)], all, end - start)? {
                    start = end;
                }
            }
        }
        Ok(())
    }

    /// Columns that are written at once: all, but where a record of the log has no room for them.
    fn width(&self, state: &Assembly) -> u64 {
        match &self.log {
            Some(log) if state.is_degraded() => log.shape().column_bytes(self.layout),
            _ => self.layout.chunk_bytes(),
        }
    }

    fn parts<'a>(&self, offset: u64, data: &'a [u8]) -> Vec<Part<'a>> {
        let mut parts = vec![];
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let place = self.layout.locate(at);
            let len = (self.layout.chunk_bytes() - place.inside).min(rest.len() as u64);
            let (data, behind) = rest.split_at(len as usize);
            parts.push(Part { slot: self.layout.slot(place.stripe, place.member), inside: place.inside, data });
            (at, rest) = (at + len, behind);
        }
        parts
    }

    /// Stores parts of stripes, in columns of one width. False, and nothing is done, if that is too much for a
    /// record of the log, and one is needed.
    fn write_columns(&self, stripes: &[(u64, Vec<Part<'_>>)], all: &Range<u64>, width: u64) -> Result<bool> {
        loop {
            self.make_dirty()?;
            let state = self.state();
            self.check_broken(&state)?;
            if !state.is_dirty {
                continue;
            }
            let count = stripes.len() as u64;
            let is_logged = self.log.as_ref().filter(|_| state.is_degraded());
            if is_logged.is_some_and(|log| !log.shape().fits(self.layout, count, width)) {
                return Ok(false);
            }
            let failures = match self.update(&state, stripes, all) {
                Ok(failures) if failures.is_empty() => return Ok(true),
                Ok(failures) => failures,
                Err(failure) => {
                    drop(state);
                    match failure {
                        // Nothing was written yet: once more, without the member.
                        Failure::Member(role, error) => self.fail(vec![(role, error)])?,
                        Failure::Final(error) => return Err(error),
                    }
                    continue;
                }
            };
            drop(state);
            return self.fail(failures).map(|()| true);
        }
    }

    /// Before the first write the superblocks say that P and Q may be behind.
    fn make_dirty(&self) -> Result<()> {
        if self.state().is_dirty {
            return Ok(());
        }
        let mut state = self.state_mut();
        if !state.is_dirty && state.broken.is_none() {
            state.is_dirty = true;
            let committed = state.commit(self.layout, self.log.as_ref());
            if committed.is_err() {
                state.is_dirty = false;
            }
            committed?;
        }
        Ok(())
    }

    /// Reads what is needed, sees to it that a crash does no harm, and writes. Members that failed while they were
    /// written are returned.
    fn update(
        &self,
        state: &Assembly,
        stripes: &[(u64, Vec<Part<'_>>)],
        all: &Range<u64>,
    ) -> Result<Vec<(usize, Error)>, Failure> {
        let mut entries = vec![];
        for (stripe, parts) in stripes {
            entries.extend(self.prepare(state, *stripe, parts)?);
        }
        let logged = self.secure(state, &entries, all).map_err(|failed| Failure::Member(failed.role, failed.error))?;
        let mut failures: Vec<(usize, Error)> = vec![];
        for entry in &entries {
            let Some(member) = &state.members[entry.role] else { continue };
            if let Err(error) = member.device.write(member.superblock.data_offset + entry.offset, &entry.bytes) {
                failures.push((entry.role, error.into()));
            }
        }
        if let Some(log) = logged {
            log.written();
        }
        Ok(failures)
    }

    /// The log that has a record of the entries now, if one is needed.
    fn secure(&self, state: &Assembly, entries: &[Entry<'_>], all: &Range<u64>) -> Result<Option<&Log>, Failed> {
        let Some(log) = &self.log else { return Ok(None) };
        if state.is_degraded() {
            log.append(entries, &state.copies(), &state.targets())?;
            return Ok(Some(log));
        }
        log.intend(all.clone(), &state.targets())?;
        Ok(None)
    }

    /// What is written to each member.
    fn prepare<'a>(&self, state: &Assembly, stripe: u64, parts: &[Part<'a>]) -> Result<Vec<Entry<'a>>, Failure> {
        let start = parts.iter().map(|part| part.inside).min().unwrap_or(0);
        let columns = start..parts.iter().map(Part::end).max().unwrap_or(start);
        let condition = self.condition(state, stripe);
        let ranges: Vec<(usize, Range<u64>)> = parts.iter().map(|part| (part.slot, part.inside..part.end())).collect();
        let parity = match choose(self.layout, &ranges, &columns, &condition) {
            Some(Strategy::Modify) => self.modify(state, stripe, parts, &columns)?,
            Some(Strategy::Rebuild(needed)) => self.rebuild_parity(state, stripe, parts, &columns, &needed)?,
            // The same sentence as where it is read.
            None => {
                return Err(match self.gather(state, stripe, columns, &(0..self.layout.data()).collect::<Vec<_>>()) {
                    Err(failure) => failure,
                    Ok(_) => unreachable!("what can be read can be written"),
                });
            }
        };
        let roles = self.layout.by_slot(stripe);
        let base = self.layout.member_offset(stripe);
        let data = parts.iter().map(|part| (part.slot, part.inside, Cow::Borrowed(part.data)));
        let p_and_q = parity.into_iter().enumerate();
        let p_and_q = p_and_q.map(|(i, bytes)| (self.layout.data() + i, columns.start, Cow::Owned(bytes)));
        let entry = |(slot, inside, bytes): (usize, u64, Cow<'a, [u8]>)| Entry {
            role: roles[slot],
            offset: base + inside,
            bytes,
        };
        let is_there = |entry: &Entry<'_>| state.members[entry.role].is_some();
        Ok(data.chain(p_and_q).map(entry).filter(is_there).collect())
    }

    fn condition(&self, state: &Assembly, stripe: u64) -> Condition {
        let slot = |role: usize| self.layout.slot(stripe, role);
        let mut missing: Vec<usize> = state.missing().into_iter().map(slot).collect();
        missing.sort_unstable();
        let partial = state.present().filter(|(_, member)| member.is_partial).map(|(role, _)| slot(role)).collect();
        Condition { missing, partial, is_unsynced: state.unsynced.is_some_and(|from| stripe >= from) }
    }

    /// P and Q of the columns from the old ones.
    fn modify(
        &self,
        state: &Assembly,
        stripe: u64,
        parts: &[Part<'_>],
        columns: &Range<u64>,
    ) -> Result<[Vec<u8>; 2], Failure> {
        let width = (columns.end - columns.start) as usize;
        let old_of = |slot: usize, range: Range<u64>| -> Result<Vec<u8>, Failure> {
            if state.readable(self.layout.by_slot(stripe)[slot]).is_none() {
                // Nobody writes it; the sums need a buffer.
                return Ok(vec![0; (range.end - range.start) as usize]);
            }
            Ok(std::mem::take(&mut self.gather(state, stripe, range, &[slot])?[slot]))
        };
        let mut p = old_of(self.layout.data(), columns.clone())?;
        let mut q = old_of(self.layout.data() + 1, columns.clone())?;
        assert!(p.len() == width && q.len() == width, "P and Q are of the columns' width");
        for part in parts {
            let old = old_of(part.slot, part.inside..part.end())?;
            let at = (part.inside - columns.start) as usize;
            let range = at..at + part.data.len();
            pq::update(&mut p[range.clone()], &mut q[range], part.slot as u32, &old, part.data);
        }
        Ok([p, q])
    }

    /// P and Q of the columns from all data.
    fn rebuild_parity(
        &self,
        state: &Assembly,
        stripe: u64,
        parts: &[Part<'_>],
        columns: &Range<u64>,
        needed: &[usize],
    ) -> Result<[Vec<u8>; 2], Failure> {
        let width = (columns.end - columns.start) as usize;
        let mut old = if needed.is_empty() {
            vec![vec![]; self.layout.members()]
        } else {
            self.gather(state, stripe, columns.clone(), needed)?
        };
        for part in parts.iter().filter(|part| needed.contains(&part.slot)) {
            let at = (part.inside - columns.start) as usize;
            old[part.slot][at..at + part.data.len()].copy_from_slice(part.data);
        }
        let mut data: Vec<&[u8]> = old[..self.layout.data()].iter().map(Vec::as_slice).collect();
        for part in parts.iter().filter(|part| part.covers(columns)) {
            data[part.slot] = part.data;
        }
        let (mut p, mut q) = (vec![0; width], vec![0; width]);
        pq::generate(&data, &mut p, &mut q);
        Ok([p, q])
    }
}

/// The part of a part that lies in columns.
fn clip(part: Part<'_>, columns: Range<u64>) -> Option<Part<'_>> {
    let (start, end) = (part.inside.max(columns.start), part.end().min(columns.end));
    let from = start.checked_sub(part.inside)? as usize;
    (start < end).then(|| Part { inside: start, data: &part.data[from..from + (end - start) as usize], ..part })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::md::Rotation;

    fn strategy(
        members: usize,
        parts: &[(usize, Range<u64>)],
        missing: &[usize],
        is_unsynced: bool,
    ) -> Option<Strategy> {
        let layout = Layout::new(Rotation::LeftSymmetric, members, 4096).unwrap();
        let start = parts.iter().map(|(_, part)| part.start).min().unwrap();
        let end = parts.iter().map(|(_, part)| part.end).max().unwrap();
        let condition = Condition { missing: missing.to_vec(), partial: vec![], is_unsynced };
        choose(layout, parts, &(start..end), &condition)
    }

    #[test]
    fn the_way_that_reads_less_is_taken() {
        // Old data, P and Q: three reads. All other data: one, or nine.
        assert_eq!(strategy(4, &[(0, 0..512)], &[], false), Some(Strategy::Rebuild(vec![1])));
        assert_eq!(strategy(12, &[(0, 0..512)], &[], false), Some(Strategy::Modify));
        assert_eq!(strategy(12, &[(0, 0..512)], &[], true), Some(Strategy::Rebuild((1..10).collect())));
        let all: Vec<_> = (0..10).map(|slot| (slot, 0..4096)).collect();
        assert_eq!(strategy(12, &all, &[], false), Some(Strategy::Rebuild(vec![])));
        // What is missing and not written does not matter to the change; what is written does.
        assert_eq!(strategy(6, &[(0, 0..512)], &[1, 2], false), Some(Strategy::Modify));
        assert_eq!(strategy(6, &[(1, 0..512)], &[1], false), Some(Strategy::Rebuild(vec![0, 2, 3])));
        assert_eq!(strategy(6, &[(0, 0..512)], &[4, 5], false), Some(Strategy::Modify), "there is no parity to read");
        assert_eq!(strategy(6, &[(0, 0..512)], &[0, 1, 2], false), None);
    }
}
