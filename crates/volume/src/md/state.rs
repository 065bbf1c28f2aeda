//! The state of an open array: which members are there, what their superblocks say, and how that changes.
//!
//! A change is a *commit*: members are flushed, the log begins a new session, and superblocks with one event
//! more are written and flushed, in this order. So superblocks never promise what is not there yet, and a crash
//! between any two of these steps finds either the old state, with its log, or the new one.

use super::layout::Layout;
use super::log::{Log, Session, Target};
use super::parts::flush_all;
use super::superblock::{Role, Superblock};
use crate::{Error, ErrorKind, Load, Result};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A member that is there.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) device: Arc<dyn Load>,
    /// Its own, as it is on the device or will be by the next commit.
    pub(super) superblock: Superblock,
    /// It is being rebuilt: it gets every write, and is not read.
    pub(super) is_partial: bool,
    /// Its device may have an earlier superblock than this one.
    pub(super) is_unstored: bool,
}

/// What changes while the array is open.
#[derive(Debug)]
pub(super) struct Assembly {
    /// By role.
    pub(super) members: Vec<Option<Member>>,
    pub(super) events: u64,
    /// Of the superblocks; with the events it names a session.
    pub(super) updated: u64,
    /// The superblocks say that P and Q may be behind.
    pub(super) is_dirty: bool,
    /// P and Q of the stripes from here on are in doubt.
    pub(super) unsynced: Option<u64>,
    /// Why nothing is written any more.
    pub(super) broken: Option<String>,
    /// Members that failed while the array was open, and why.
    pub(super) failed: Vec<super::LeftOut>,
}

impl Assembly {
    /// The member of a role, if it can be read.
    pub(super) fn readable(&self, role: usize) -> Option<&Member> {
        self.members[role].as_ref().filter(|member| !member.is_partial)
    }

    /// Roles that cannot be read.
    pub(super) fn missing(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|role| self.readable(*role).is_none()).collect()
    }

    pub(super) fn is_degraded(&self) -> bool {
        (0..self.members.len()).any(|role| self.readable(role).is_none())
    }

    /// Members with their roles, those being rebuilt too.
    pub(super) fn present(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.members.iter().enumerate().filter_map(|(role, member)| Some((role, member.as_ref()?)))
    }

    pub(super) fn session(&self, array: [u8; 16]) -> Session {
        Session { array, events: self.events, updated: self.updated }
    }

    /// The logs of all members that have room for one.
    pub(super) fn targets(&self) -> Vec<Target<'_>> {
        self.present().filter_map(|(role, member)| target(role, member)).collect()
    }

    /// The logs that a record is stored in: with one more than can still be lost.
    pub(super) fn copies(&self) -> Vec<Target<'_>> {
        let missing = self.missing().len();
        let whole = self.present().filter(|(_, member)| !member.is_partial);
        whole.filter_map(|(role, member)| target(role, member)).take(3_usize.saturating_sub(missing)).collect()
    }

    /// Takes a failed member out. An error if too few are left, or if it has no room; then it stays, as its content can
    /// still be read, and nothing is written any more.
    pub(super) fn remove(&mut self, role: usize, error: &Error, layout: Layout) -> Result<()> {
        let Some(member) = &self.members[role] else { return Ok(()) };
        if error.kind() == ErrorKind::NoSpace {
            // It has lost nothing: without it the array would only have less to spare. What was being written is put right
            // when it is opened again, as after a loss of power.
            let name = member.device.name();
            self.broken.get_or_insert_with(|| format!("{name} has no space left for what was written to it"));
            return Err(Error::new(ErrorKind::NoSpace, "RAID-6", format!("a member has no space left: {error}")));
        }
        if !member.is_partial && self.missing().len() >= 2 {
            let gone = self.missing().len() + 1;
            let detail = format!(
                "{gone} of {} members have failed, and RAID-6 tolerates two; the last error is {error}",
                layout.members()
            );
            self.broken.get_or_insert_with(|| detail.clone());
            return Err(Error::new(ErrorKind::TooFewMembers, "RAID-6", detail));
        }
        self.failed.push(super::LeftOut { member: member.device.name(), reason: format!("it failed: {error}") });
        self.members[role] = None;
        Ok(())
    }

    /// Makes the state durable, as often as members fail while that happens.
    pub(super) fn commit(&mut self, layout: Layout, log: Option<&Log>) -> Result<()> {
        loop {
            match self.try_commit(log) {
                Ok(()) => return Ok(()),
                Err((role, error)) => self.remove(role, &error, layout)?,
            }
        }
    }

    fn try_commit(&mut self, log: Option<&Log>) -> Result<(), (usize, Error)> {
        // What was not finished is finished first, so that no member falls behind by more than one step, however often
        // that is interrupted.
        self.bring_up(log)?;
        let updated = now();
        let events = self.events + 1;
        if let Some(log) = log {
            let array = self.present().next().map(|(_, member)| member.superblock.array).unwrap_or_default();
            let session = Session { array, events, updated };
            log.begin(session, self.unsynced, &self.targets()).map_err(|failed| (failed.role, failed.error))?;
        }
        self.flush()?;
        (self.events, self.updated) = (events, updated);
        self.describe();
        self.members.iter_mut().flatten().for_each(|member| member.is_unstored = true);
        self.bring_up(log)
    }

    /// Stores the superblocks of members that may have earlier ones.
    fn bring_up(&mut self, log: Option<&Log>) -> Result<(), (usize, Error)> {
        if self.present().all(|(_, member)| !member.is_unstored) {
            return Ok(());
        }
        for (role, member) in self.present().filter(|(_, member)| member.is_unstored) {
            store(member).map_err(|error| (role, error))?;
        }
        self.flush()?;
        self.members.iter_mut().flatten().for_each(|member| member.is_unstored = false);
        if let Some(log) = log {
            log.is_named();
        }
        Ok(())
    }

    /// Flushes every member.
    pub(super) fn flush(&self) -> Result<(), (usize, Error)> {
        let members: Vec<_> = self.present().map(|(role, member)| (role, &*member.device as _)).collect();
        flush_all(&members)
    }

    /// Brings the superblocks in memory up to this state.
    fn describe(&mut self) {
        let count = self.present().map(|(_, member)| member.superblock.roles.len()).max().unwrap_or(0);
        let mut roles = vec![Role::Faulty; count];
        for (role, member) in self.present() {
            roles[member.superblock.number as usize] = Role::Active(role as u16);
        }
        // From the beginning on: how far a resync has come is in the log, if anywhere.
        let in_sync = self.is_dirty.then_some(0);
        for member in self.members.iter_mut().flatten() {
            let superblock = &mut member.superblock;
            let own = superblock.roles.len();
            superblock.roles = roles[..own.min(count)].to_vec();
            (superblock.events, superblock.updated) = (self.events, self.updated);
            superblock.in_sync_bytes = in_sync;
        }
    }
}

fn target(role: usize, member: &Member) -> Option<Target<'_>> {
    Some(Target { role, device: &*member.device, reserved: member.superblock.reserved()? })
}

/// Writes a member's superblock to its device.
pub(super) fn store(member: &Member) -> Result<()> {
    let size = member.device.geometry().size;
    let offset = member.superblock.version.offset(size).unwrap_or(0);
    Ok(member.device.write(offset, &member.superblock.encode(size))?)
}

/// Seconds in the low 40 bits, microseconds above, never 0: Linux writes whole seconds only, so that its
/// sessions differ from ours.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs() & 0xff_ffff_ffff) | (u64::from(since.subsec_micros().max(1)) << 40)
}
