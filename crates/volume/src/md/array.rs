//! An open array.

use super::choose::{self, Choice, LeftOut};
use super::layout::Layout;
use super::log::{self, Entry, Log, Shape};
use super::parts::{Columns, Shared, divide, each_stripe};
use super::replayed::{self, Replay};
use super::state::{self, Member};
use super::superblock::{self, Refusal, Superblock};
use crate::{Error, ErrorKind, Load, Loader, Result};
use bifolio_block::ranges::{Held, Ranges};
use bifolio_block::{BlockDevice, Geometry, Result as BlockResult};
use bifolio_compute::keyed::{DeviceRaid6, PerDevice};
use bifolio_device::DeviceSlice;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How to open an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// For writing.
    pub writable: bool,
    /// Also where parity is in doubt and members are missing, so that parts of it may be wrong.
    pub force: bool,
}

/// How many members are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrayState {
    /// None.
    Healthy,
    /// One or two.
    Degraded,
    /// Three: some of it cannot be read, and nothing can be written.
    Failed,
}

/// A member of an open array.
#[derive(Debug, Clone)]
pub struct MemberInfo {
    /// Its place.
    pub role: usize,
    /// The device.
    pub device: Arc<dyn Load>,
    /// Where the array's bytes begin on it.
    pub data_offset: u64,
    /// It is being rebuilt, and cannot be read yet.
    pub is_partial: bool,
}

/// An array.
#[derive(Debug)]
pub struct Raid6 {
    pub(super) name: String,
    pub(super) array: [u8; 16],
    pub(super) layout: Layout,
    pub(super) stripes: u64,
    pub(super) state: RwLock<state::Assembly>,
    pub(super) log: Option<Log>,
    /// Of stripes.
    locks: Ranges,
    /// Of scrubs and rebuilds.
    pub(super) columns: Columns,
    /// For loading into device memory.
    pub(super) service: PerDevice<DeviceRaid6>,
    is_writable: bool,
    left_out: Vec<LeftOut>,
    /// What opening has made good.
    replay: Replay,
    /// Opened for reading only: stripes whose P and Q may not fit, because they were being written.
    pub(super) in_doubt: Vec<Range<u64>>,
    /// Failed members that somebody was told of.
    told: AtomicUsize,
}

impl Raid6 {
    /// Whether a device has the superblock of a RAID-6, maybe a damaged one.
    ///
    /// # Errors
    /// Those of reading.
    pub fn is_member(device: &dyn BlockDevice) -> Result<bool> {
        Ok(!matches!(superblock::find(device)?, Err(Refusal::NotThere)))
    }

    /// Opens an array with what there is of its members, in any order. See [`Raid6::open`] for one that was not closed
    /// cleanly.
    ///
    /// # Errors
    /// `BadMembers` for members that do not belong together, `TooFewMembers`, and those of [`Raid6::open`].
    pub fn assemble(members: Vec<Arc<dyn Load>>, writable: bool) -> Result<Self> {
        Self::open(members, Options { writable, force: false })
    }

    /// The same with options. If the array was not closed cleanly, opening it for writing puts it right, and opening it
    /// for reading reads what that would give; see the module's documentation, and [`Raid6::replay`].
    ///
    /// # Errors
    /// As for [`Raid6::assemble`]; `BadState` where it would need to be forced.
    pub fn open(members: Vec<Arc<dyn Load>>, options: Options) -> Result<Self> {
        let mut given = vec![];
        for device in &members {
            let found = superblock::find(&**device).unwrap_or_else(|error| Err(Refusal::Damaged(error.to_string())));
            given.push((device.name(), found));
        }
        let Choice { by_role, freshest, left_out } = choose::choose(&given)?;
        let superblocks: Vec<Option<Superblock>> = given.into_iter().map(|(_, found)| found.ok()).collect();
        let Some(newest) = superblocks[freshest].clone() else {
            unreachable!("the freshest was chosen among the valid")
        };
        let stripes = newest.stripes;
        let mut devices: Vec<Option<Arc<dyn Load>>> = members.into_iter().map(Some).collect();
        let mut member = |given: usize| -> Option<Member> {
            let mut superblock = superblocks[given].clone()?;
            let is_partial = superblock.recovered_bytes.is_some();
            let is_unstored = superblock.events < newest.events;
            if is_unstored {
                // What the others say; it is stored before anything newer is.
                let known = superblock.roles.len().min(newest.roles.len());
                superblock.roles = newest.roles[..known].to_vec();
                (superblock.events, superblock.updated) = (newest.events, newest.updated);
                superblock.in_sync_bytes = newest.in_sync_bytes;
            }
            Some(Member { device: devices[given].take()?, superblock, is_partial, is_unstored })
        };
        let by_role: Vec<Option<Member>> = by_role.into_iter().map(|given| member(given?)).collect();
        let name = name_of(&newest, by_role.iter().flatten().next());
        check_enough(&name, &by_role, &left_out)?;
        if let Some(member) = by_role.iter().flatten().find(|member| options.writable && member.device.is_read_only()) {
            return Err(Error::new(ErrorKind::ReadOnly, member.device.name(), "it was opened for reading only"));
        }
        let mut state = state::Assembly {
            members: by_role,
            events: newest.events,
            updated: newest.updated,
            is_dirty: newest.in_sync_bytes.is_some(),
            unsynced: None,
            broken: None,
            failed: vec![],
        };
        let shape = log_shape(&state, newest.layout, stripes);
        let left = match shape {
            Some(shape) if state.is_dirty => log::find(shape, state.session(newest.array), &state.targets()),
            _ => None,
        };
        let log = shape.map(|shape| Log::new(shape, state.session(newest.array), left.as_ref()));
        if let Some(in_sync) = newest.in_sync_bytes {
            state.unsynced = match &left {
                Some(found) => found.unsynced,
                None => Some(in_sync / newest.layout.chunk_bytes()),
            };
        }
        let (mut replay, mut in_doubt) = (Replay::default(), vec![]);
        if let Some(left) = left.as_ref().filter(|_| !options.writable) {
            let bytes = replayed::replay(&mut state, newest.layout, stripes, &left.records);
            replay = Replay { writes: left.records.len() as u64, bytes, stripes: 0, in_memory: true };
            in_doubt = left.stripes.iter().map(|part| part.start..part.end.min(stripes)).collect();
        }
        let mut array = Self {
            name,
            array: newest.array,
            layout: newest.layout,
            stripes,
            state: RwLock::new(state),
            log,
            locks: Ranges::default(),
            columns: Columns::default(),
            service: PerDevice::default(),
            is_writable: options.writable,
            left_out,
            replay,
            in_doubt,
            told: AtomicUsize::new(0),
        };
        if !options.writable {
            return Ok(array);
        }
        match array.put_right(left, options.force) {
            Ok(replay) => array.replay = replay,
            Err(error) => {
                // It was not taken: nothing is marked, least of all by dropping it.
                array.is_writable = false;
                return Err(error);
            }
        }
        Ok(array)
    }

    /// After a loss of power: finishes what the log knows of.
    fn put_right(&self, left: Option<log::Found>, force: bool) -> Result<Replay> {
        let (is_dirty, is_degraded, is_unsynced) = {
            let state = self.state();
            (state.is_dirty, state.is_degraded(), state.unsynced.is_some())
        };
        if !is_dirty {
            return Ok(Replay::default());
        }
        let left = left.unwrap_or_default();
        let is_doubtful = is_degraded && (is_unsynced || !left.stripes.is_empty());
        if is_doubtful && !force {
            let detail = "it was not closed cleanly and members are missing, so their data in stripes that were being written may be wrong; give all members, or open it for reading only (a program may force it)";
            return Err(Error::new(ErrorKind::BadState, &self.name, detail));
        }
        let mut replay = Replay { writes: left.records.len() as u64, ..Replay::default() };
        let inside = left.records.iter().flatten().filter(|entry| self.takes(entry));
        replay.bytes = inside.map(|entry| entry.bytes.len() as u64).sum();
        // All of them before a member's failure begins a new session, of which the rest would be no part.
        let failures = left.records.iter().flatten().filter_map(|entry| self.carry_out(entry)).collect();
        self.fail(failures)?;
        if !is_degraded && let Some(first) = left.stripes.first() {
            // Until it is done, whatever happens.
            self.state_mut().unsynced = Some(left.unsynced.map_or(first.start, |from| from.min(first.start)));
            for stripes in &left.stripes {
                let stripes = stripes.start..stripes.end.min(self.stripes);
                replay.stripes += stripes.end - stripes.start;
                each_stripe(stripes, &|stripe| self.resync_stripe(stripe))?;
            }
        }
        let mut state = self.state_mut();
        // Forced, or nothing was in doubt.
        state.unsynced = if is_degraded { None } else { left.unsynced.or(state.unsynced.filter(|_| is_unsynced)) };
        state.is_dirty = state.unsynced.is_some();
        state.commit(self.layout, self.log.as_ref())?;
        Ok(replay)
    }

    /// Whether an entry of the log is for a member that is there.
    fn takes(&self, entry: &Entry<'_>) -> bool {
        let state = self.state();
        state.members.get(entry.role).is_some_and(Option::is_some) && replayed::fits(entry, self.layout, self.stripes)
    }

    /// Writes an entry of the log to its member; the failure of that member, if it fails. One that is not there any
    /// more does without.
    fn carry_out(&self, entry: &Entry<'_>) -> Option<(usize, Error)> {
        let state = self.state();
        let fits = replayed::fits(entry, self.layout, self.stripes);
        let member = state.members.get(entry.role)?.as_ref().filter(|_| fits)?;
        let at = member.superblock.data_offset + entry.offset;
        member.device.write(at, &entry.bytes).err().map(|error| (entry.role, error.into()))
    }

    /// Marks the array clean. Dropping it does the same, and cannot report an error.
    ///
    /// # Errors
    /// Those of flushing and of writing superblocks.
    pub fn close(self) -> Result<()> {
        self.mark_clean()
    }

    fn mark_clean(&self) -> Result<()> {
        let mut state = self.state_mut();
        if !self.is_writable || !state.is_dirty || state.broken.is_some() || state.unsynced.is_some() {
            return Ok(());
        }
        state.is_dirty = false;
        state.commit(self.layout, self.log.as_ref())
    }

    /// The layout of data, P and Q.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Stripes of the array.
    pub fn stripes(&self) -> u64 {
        self.stripes
    }

    /// The array's identity, as mdadm writes it.
    pub fn uuid(&self) -> String {
        choose::uuid(self.array)
    }

    /// How many members are missing.
    pub fn health(&self) -> ArrayState {
        let state = self.state();
        match (&state.broken, state.is_degraded()) {
            (Some(_), _) => ArrayState::Failed,
            (None, true) => ArrayState::Degraded,
            (None, false) => ArrayState::Healthy,
        }
    }

    /// The places whose members are missing, or are being rebuilt.
    pub fn missing(&self) -> Vec<usize> {
        self.state().missing()
    }

    /// The member of a place.
    pub fn member(&self, role: usize) -> Option<MemberInfo> {
        let state = self.state();
        let member = state.members.get(role)?.as_ref()?;
        Some(MemberInfo {
            role,
            device: Arc::clone(&member.device),
            data_offset: member.superblock.data_offset,
            is_partial: member.is_partial,
        })
    }

    /// Members that were given and are not used, or that have failed since.
    pub fn left_out(&self) -> Vec<LeftOut> {
        self.left_out.iter().chain(&self.state().failed).cloned().collect()
    }

    /// The first stripe from which on P and Q may not fit the data; see [`Raid6::resync`].
    pub fn unsynced(&self) -> Option<u64> {
        self.state().unsynced
    }

    /// Whether P and Q of some stripes may not fit the data: these cannot be recovered for certain if a member is missing.
    pub fn is_in_doubt(&self) -> bool {
        !self.in_doubt.is_empty() || self.unsynced().is_some()
    }

    /// What opening the array has made good, as it was not closed cleanly; None if there was nothing.
    pub fn replay(&self) -> Option<Replay> {
        (self.replay.writes > 0 || self.replay.stripes > 0).then_some(self.replay)
    }

    /// Whether there is a log, which closes the write hole.
    pub fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Events of the superblocks.
    pub fn events(&self) -> u64 {
        self.state().events
    }

    /// Keeps everybody else from stripes. A thread holds one range of them at a time.
    pub(super) fn lock(&self, stripes: Range<u64>) -> Held<'_> {
        self.locks.write(stripes)
    }

    /// Keeps writers from stripes, as is needed to read several of their members: others may read them, too.
    pub(super) fn lock_to_read(&self, stripes: Range<u64>) -> Held<'_> {
        self.locks.read(stripes)
    }

    pub(super) fn state(&self) -> RwLockReadGuard<'_, state::Assembly> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state_mut(&self) -> RwLockWriteGuard<'_, state::Assembly> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on without members that have failed, once the others' superblocks say so.
    pub(super) fn fail(&self, failures: Vec<(usize, Error)>) -> Result<()> {
        let mut state = self.state_mut();
        let before = state.failed.len();
        for (role, error) in failures {
            state.remove(role, &error, self.layout).map_err(|error| error.about(&self.name))?;
        }
        if self.is_writable && state.failed.len() > before {
            state.commit(self.layout, self.log.as_ref()).map_err(|error| error.about(&self.name))?;
        }
        Ok(())
    }
}

impl BlockDevice for Raid6 {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn geometry(&self) -> Geometry {
        let stripe = self.layout.stripe_bytes();
        Geometry { size: self.stripes * stripe, block_bytes: stripe, optimal_bytes: stripe }
    }

    fn is_read_only(&self) -> bool {
        !self.is_writable
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> BlockResult<()> {
        self.check_range(offset, buffer.len() as u64)?;
        let len = buffer.len() as u64;
        let shared = Shared::new(buffer, offset);
        Ok(divide(self.layout.stripe_bytes(), offset, len, &|at, len| {
            // SAFETY: parts of a range do not overlap, each is inside the buffer, and all threads end before it
            // is used again.
            self.read_part(at, unsafe { shared.part(at, len) })
        })?)
    }

    fn write(&self, offset: u64, data: &[u8]) -> BlockResult<()> {
        self.check_range(offset, data.len() as u64)?;
        if !self.is_writable {
            return Err(self.read_only().into());
        }
        if data.is_empty() {
            return Ok(());
        }
        Ok(divide(self.layout.stripe_bytes(), offset, data.len() as u64, &|at, len| {
            let from = (at - offset) as usize;
            self.write_part(at, &data[from..from + len as usize])
        })?)
    }

    fn flush(&self) -> BlockResult<()> {
        if !self.is_writable {
            return Ok(());
        }
        loop {
            let flushed = {
                let state = self.state();
                self.check_broken(&state)?;
                state.flush()
            };
            match flushed {
                Ok(()) => break,
                Err(failed) => self.fail(vec![failed])?,
            }
        }
        if self.log.as_ref().is_some_and(Log::is_worth_forgetting) {
            self.forget_intents();
        }
        Ok(())
    }

    fn complaints(&self) -> Vec<String> {
        let state = self.state();
        let told = self.told.swap(state.failed.len(), Ordering::Relaxed);
        let new = state.failed.iter().skip(told);
        new.map(|left| format!("{}: continuing without {}: {}", self.name, left.member, left.reason)).collect()
    }

    fn settle(&self) -> BlockResult<()> {
        self.flush()?;
        Ok(self.mark_clean()?)
    }

    fn discard(&self, offset: u64, len: u64) -> BlockResult<()> {
        // What members read afterwards is not known, so that P and Q would not fit. Nothing is promised.
        self.check_range(offset, len)
    }
}

impl Load for Raid6 {
    fn load(&self, loader: &Loader, offset: u64, destination: DeviceSlice<'_>) -> Result<()> {
        self.load_range(loader, offset, loader.settled(destination)?)
    }
}

impl Raid6 {
    fn forget_intents(&self) {
        // Nobody writes while the state is held.
        let state = self.state_mut();
        if state.flush().is_ok()
            && let Some(log) = &self.log
        {
            log.forget();
        }
    }

    /// Why nothing is written to an array that was opened for reading.
    pub(super) fn read_only(&self) -> Error {
        Error::new(ErrorKind::ReadOnly, &self.name, "it was opened for reading only")
    }

    pub(super) fn check_broken(&self, state: &state::Assembly) -> Result<()> {
        match &state.broken {
            None => Ok(()),
            Some(why) => {
                let detail = format!("{why}; it is read-only until it is opened again");
                Err(Error::new(ErrorKind::TooFewMembers, &self.name, detail))
            }
        }
    }
}

impl Drop for Raid6 {
    fn drop(&mut self) {
        // What could not be marked clean is put right when it is opened again.
        let _ = self.mark_clean();
    }
}

/// The log that fits into the free space of all members.
pub(super) fn log_shape(state: &state::Assembly, layout: Layout, stripes: u64) -> Option<Shape> {
    let free = state.present().map(|(_, member)| member.superblock.reserved().map_or(0, |(_, len)| len)).min()?;
    Shape::of(free, layout, stripes)
}

fn name_of(superblock: &Superblock, first: Option<&Member>) -> String {
    let name: Vec<u8> = superblock.name.iter().copied().take_while(|byte| *byte != 0).collect();
    match (String::from_utf8(name), first) {
        (Ok(name), _) if !name.is_empty() && !name.chars().any(char::is_control) => format!("RAID-6 {name}"),
        (_, Some(member)) => format!("RAID-6 of {}", member.device.name()),
        _ => "RAID-6".to_owned(),
    }
}

fn check_enough(name: &str, by_role: &[Option<Member>], left_out: &[LeftOut]) -> Result<()> {
    let there = by_role.iter().flatten().filter(|member| !member.is_partial).count();
    let needed = by_role.len() - 2;
    if there >= needed {
        return Ok(());
    }
    let why: Vec<String> = left_out.iter().map(|left| format!("{} ({})", left.member, left.reason)).collect();
    let why = if why.is_empty() { String::new() } else { format!("; left out: {}", why.join(", ")) };
    let detail = format!("{there} of its {} members are present, and it needs at least {needed}{why}", by_role.len());
    Err(Error::new(ErrorKind::TooFewMembers, name, detail))
}

/// Sixteen random bytes, as nobody else has.
pub(super) fn random_uuid() -> [u8; 16] {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the kernel has random bytes");
    // As of version 4.
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

impl Raid6 {
    /// An array whose superblocks are in memory only.
    pub(super) fn fresh(
        newest: &Superblock,
        members: Vec<Option<Member>>,
        is_dirty: bool,
        unsynced: Option<u64>,
    ) -> Self {
        let state = state::Assembly {
            members,
            events: newest.events,
            updated: newest.updated,
            is_dirty,
            unsynced,
            broken: None,
            failed: vec![],
        };
        let shape = log_shape(&state, newest.layout, newest.stripes);
        let log = shape.map(|shape| Log::new(shape, state.session(newest.array), None));
        let name = name_of(newest, state.present().next().map(|(_, member)| member));
        Self {
            name,
            array: newest.array,
            layout: newest.layout,
            stripes: newest.stripes,
            state: RwLock::new(state),
            log,
            locks: Ranges::default(),
            columns: Columns::default(),
            service: PerDevice::default(),
            is_writable: true,
            told: AtomicUsize::new(0),
            left_out: vec![],
            replay: Replay::default(),
            in_doubt: vec![],
        }
    }
}
