//! A new member in the place of a missing one.
//!
//! It is a member from the beginning, marked as partial by md's own means (`recovery_offset`): it gets every
//! write at once, and below the mark it is whole. So a rebuild that was interrupted goes on where it was, here or by
//! Linux.

use super::array::{Raid6, random_uuid};
use super::create::check_writable;
use super::parts::each_stripe;
use super::read::Failure;
use super::state::{self, Member};
use super::superblock::{self, Role, SECTOR, Superblock, Version};
use crate::signatures::{self, DATA, Found};
use crate::{Error, ErrorKind, Load, Overwrite, Result};
use bifolio_block::BlockDevice;
use bifolio_io::Cancel;
use std::ops::Range;
use std::sync::Arc;

/// The mark is moved after so many bytes of the member.
const CHECKPOINT_BYTES: u64 = 64 << 20;
/// Whether to stop is asked after so many stripes.
const BATCH_STRIPES: u64 = 16;

impl Raid6 {
    /// Rebuilds a missing member onto a device that holds nothing else, or goes on where a rebuild onto this device was
    /// interrupted. `progress` gets stripes done and in all. The array can be used meanwhile.
    ///
    /// # Errors
    /// `BadState` if no member is missing; `NoSpace` if the device is too small; `Exists` if it holds something that is
    /// not this array's; `Cancelled`, after which it can go on; `Write` if the device fails.
    pub fn rebuild(&self, device: Arc<dyn Load>, progress: &mut dyn FnMut(u64, u64), cancel: &Cancel) -> Result<()> {
        self.rebuild_over(device, &Overwrite::Nothing, progress, cancel)
    }

    /// The same onto a device that may lose what it holds.
    ///
    /// # Errors
    /// As for [`Raid6::rebuild`]; `Exists` for what may not be lost.
    pub fn rebuild_over(
        &self,
        device: Arc<dyn Load>,
        overwrite: &Overwrite,
        progress: &mut dyn FnMut(u64, u64),
        cancel: &Cancel,
    ) -> Result<()> {
        if self.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, &self.name, "it was opened for reading only"));
        }
        let (role, from) = self.join(device, overwrite)?;
        let checkpoint = (CHECKPOINT_BYTES / self.layout.chunk_bytes()).max(1);
        let mut done = from;
        while done < self.stripes {
            progress(done, self.stripes);
            let end = self.stripes.min(done + checkpoint);
            let mut batch = done;
            while batch < end {
                if cancel.is_cancelled() {
                    self.checkpoint(role, batch)?;
                    let detail = format!("the rebuild was interrupted at stripe {batch} of {}", self.stripes);
                    return Err(Error::new(ErrorKind::Cancelled, &self.name, detail));
                }
                let next = end.min(batch + BATCH_STRIPES);
                each_stripe(batch..next, &|stripe| self.rebuild_stripe(role, stripe))?;
                batch = next;
            }
            done = end;
            self.checkpoint(role, done)?;
        }
        progress(done, self.stripes);
        let mut state = self.state_mut();
        if let Some(member) = &mut state.members[role] {
            member.is_partial = false;
            member.superblock.recovered_bytes = None;
        }
        state.commit(self.layout, self.log.as_ref())?;
        if state.members[role].is_some() { Ok(()) } else { Err(self.lost(role)) }
    }

    /// Makes the device a partial member; the place, and the stripe to go on from.
    fn join(&self, device: Arc<dyn Load>, overwrite: &Overwrite) -> Result<(usize, u64)> {
        let mut state = self.state_mut();
        self.check_broken(&state)?;
        let found = superblock::find(&*device)?;
        // One that is in the array already, as a partial member: opened from the same superblock.
        if let Ok(superblock) = &found {
            let same = |member: &Member| member.superblock.device == superblock.device;
            if let Some((role, member)) = state.present().find(|(_, member)| same(member)) {
                let Some(recovered) = member.superblock.recovered_bytes else {
                    let detail = "it is a member of this array, and in use";
                    return Err(Error::new(ErrorKind::InUse, device.name(), detail));
                };
                return Ok((role, recovered / self.layout.chunk_bytes()));
            }
        }
        check_writable(&*device)?;
        let Some(role) = (0..state.members.len()).find(|role| state.members[*role].is_none()) else {
            let detail = "no member is missing, so there is nothing to rebuild";
            return Err(Error::new(ErrorKind::BadState, &self.name, detail));
        };
        let superblock = self.superblock_for(&state, &*device)?;
        let own = found.as_ref().ok().filter(|superblock| superblock.array == self.array);
        let size = device.geometry().size;
        let lost = foreign(signatures::look(&*device)?, own, size);
        signatures::refuse(&[(device.name(), lost)], overwrite)?;
        signatures::erase(&*device, |mark| !own.is_some_and(|own| is_own(own, size, mark)))?;
        state.members[role] = Some(Member { device, superblock, is_partial: true, is_unstored: false });
        state.commit(self.layout, self.log.as_ref())?;
        if state.members[role].is_none() {
            return Err(self.lost(role));
        }
        Ok((role, 0))
    }

    /// The superblock of a new member, with room for the log that the others have.
    fn superblock_for(&self, state: &state::Assembly, device: &dyn BlockDevice) -> Result<Superblock> {
        let Some((_, model)) = state.present().next() else { unreachable!("an open array has members") };
        if model.superblock.bitmap_sectors != 0 {
            let detail = "it has a write-intent bitmap, of which a new member would need a copy; remove it first \
                          (mdadm --grow --bitmap=none), or let Linux rebuild the member";
            return Err(Error::new(ErrorKind::Unsupported, &self.name, detail));
        }
        let taken: Vec<u32> = state.present().map(|(_, member)| member.superblock.number).collect();
        let devices = state.present().map(|(_, member)| member.superblock.roles.len()).min().unwrap_or(0) as u32;
        let Some(number) = (0..devices).find(|number| !taken.contains(number)) else {
            let detail = format!("the superblocks have no room for another device beside these {}", taken.len());
            return Err(Error::new(ErrorKind::Unsupported, &self.name, detail));
        };
        let offset = state.present().map(|(_, member)| member.superblock.data_offset).max().unwrap_or(0);
        // The version of all members is the same in md.
        let version = model.superblock.version;
        let end = match version {
            Version::V1_0 => version.offset(device.geometry().size).unwrap_or(0),
            _ => device.geometry().size,
        };
        let needed = offset + model.superblock.used_bytes;
        if end < needed {
            let detail = format!("it has {end} bytes for a member, which needs {needed}");
            return Err(Error::new(ErrorKind::NoSpace, device.name(), detail));
        }
        let mut roles = model.superblock.roles.clone();
        roles[number as usize] = Role::Faulty;
        Ok(Superblock {
            data_offset: offset,
            data_bytes: (end - offset) / SECTOR * SECTOR,
            recovered_bytes: Some(0),
            number,
            device: random_uuid(),
            corrected: 0,
            flags: 0,
            bad_blocks: (0, 0, 0),
            roles,
            ..model.superblock.clone()
        })
    }

    fn rebuild_stripe(&self, role: usize, stripe: u64) -> Result<()> {
        let _lock = self.lock(stripe..stripe + 1);
        loop {
            let failed = {
                let state = self.state();
                self.check_broken(&state)?;
                let Some(member) = &state.members[role] else { return Err(self.lost(role)) };
                let slot = self.layout.slot(stripe, role);
                match self.gather(&state, stripe, 0..self.layout.chunk_bytes(), &[slot]) {
                    Err(Failure::Final(error)) => return Err(error),
                    Err(Failure::Member(failed, error)) => (failed, error),
                    Ok(by_slot) => {
                        let at = member.superblock.data_offset + self.layout.member_offset(stripe);
                        let written = member.device.write(at, &by_slot[slot]);
                        self.columns.give_back(by_slot);
                        match written {
                            Ok(()) => return Ok(()),
                            Err(error) => (role, error.into()),
                        }
                    }
                }
            };
            self.fail(vec![failed])?;
        }
    }

    /// Moves the mark: below this stripe the member is whole, and flushed.
    fn checkpoint(&self, role: usize, stripe: u64) -> Result<()> {
        let failed = {
            let mut state = self.state_mut();
            let chunk = self.layout.chunk_bytes();
            let Some(member) = &mut state.members[role] else { return Err(self.lost(role)) };
            member.superblock.recovered_bytes = Some(stripe * chunk);
            let stored = || -> Result<()> {
                member.device.flush()?;
                state::store(member)?;
                Ok(member.device.flush()?)
            };
            stored().err()
        };
        failed.map_or(Ok(()), |error| self.fail(vec![(role, error)]))
    }

    fn lost(&self, role: usize) -> Error {
        let state = self.state.try_read().ok();
        let why = state.and_then(|state| state.failed.last().map(|left| format!("{}: {}", left.member, left.reason)));
        let detail = format!("the new member {role} failed: {}", why.as_deref().unwrap_or("it failed"));
        Error::new(ErrorKind::Write, &self.name, detail)
    }
}

/// What a device holds that is not this array's. A former member has the array's superblock, and in its data what lies in
/// the array; whatever else it holds was put there by somebody.
fn foreign(found: Vec<Found>, own: Option<&Superblock>, size: u64) -> Vec<Found> {
    let Some(own) = own else { return found };
    let mut found = found;
    for found in &mut found {
        found.marks.retain(|mark| !is_own(own, size, mark));
    }
    found.retain(|found| found.name != DATA && !found.marks.is_empty());
    found
}

/// Whether a signature is the superblock itself, or lies in the array's data.
fn is_own(own: &Superblock, size: u64, mark: &Range<u64>) -> bool {
    let data = own.data_offset..own.data_offset + own.used_bytes;
    own.version.offset(size) == Some(mark.start) || (data.start <= mark.start && mark.end <= data.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::md::{Layout, Rotation};

    #[test]
    fn what_a_former_member_holds_of_its_array_is_not_lost_and_anything_else_is() {
        let own = Superblock {
            version: Version::V1_2,
            array: [7; 16],
            name: [0; 32],
            created: 1,
            updated: 2,
            layout: Layout::new(Rotation::LeftSymmetric, 5, 4096).unwrap(),
            stripes: 4,
            used_bytes: 4 * 4096,
            data_offset: 1 << 20,
            data_bytes: 4 * 4096,
            bitmap_sectors: 0,
            recovered_bytes: None,
            is_behind: false,
            number: 0,
            device: [9; 16],
            corrected: 0,
            flags: 0,
            bad_blocks: (0, 0, 0),
            events: 3,
            in_sync_bytes: None,
            roles: vec![Role::Active(0)],
        };
        let found = |name, at: u64| Found { name, what: "something", label: None, marks: vec![at..at + 4] };
        let names = |found: Vec<Found>| found.iter().map(|found| found.name).collect::<Vec<_>>();
        let all = || vec![found("md", 4096), found("gpt", (1 << 20) + 512), found("swap", 4086), found(DATA, 9)];
        let size = 2 << 20;
        assert_eq!(names(foreign(all(), Some(&own), size)), ["swap"]);
        assert_eq!(names(foreign(all(), None, size)), ["md", "gpt", "swap", DATA]);
        // A copy in the data, and one outside.
        let mut gpt = found("gpt", 512);
        gpt.marks.push((1 << 20) + 512..(1 << 20) + 520);
        assert_eq!(foreign(vec![gpt], Some(&own), size)[0].marks, [512..516]);
    }
}
