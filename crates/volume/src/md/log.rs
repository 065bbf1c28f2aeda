//! What closes the write hole: a log in the space that md leaves free before the data of every member.
//!
//! ```text
//!   superblock | md's own | free ... [intents A | intents B | record | record | ...] | data
//! ```
//!
//! *Intents* are a bitmap of the regions whose P and Q may not fit the data at the moment. They are used while
//! no member is missing: after a loss of power the P and Q of these regions are computed again from the data.
//! *Records* hold what is about to be written, to every member, and are used while a member is missing: then P and Q
//! cannot be computed again, and a stripe that was written in part would take the missing member's chunk with it.
//! After a loss of power they are carried out again, in their order.
//!
//! Both belong to a *session*: the events and the time in the superblocks that they were written under. Whoever else
//! writes the superblocks (Linux does when it assembles the array) thereby makes them void. A record is
//! stored on as many members as more could be lost, and one more.
//!
//! The log's mutex is the last that is taken.

use super::layout::Layout;
use super::parts::flush_all;
use crate::{BlockDevice, Error};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A block of intents; there are two, which take turns, so that one of them is whole after a loss of power.
const INTENTS_BYTES: u64 = 4096;
const INTENTS_HEAD: usize = 64;
const REGIONS_MAX: u64 = (INTENTS_BYTES - INTENTS_HEAD as u64) * 8;
/// Regions are not smaller, as each costs a flush when it is first written.
const REGION_BYTES_MIN: u64 = 64 << 20;
/// Once so many regions have been written, they are forgotten at the next flush.
const REGIONS_KEPT: usize = 64;
const RECORD_HEAD: usize = 80;
const ENTRY_BYTES: usize = 24;
/// Records begin at multiples of this.
const RECORD_ALIGN: u64 = 512;
/// A larger log gains nothing.
const LOG_BYTES_MAX: u64 = 64 << 20;
/// Smaller pieces of a chunk are not logged by themselves.
const COLUMN_BYTES_MIN: u64 = 4096;

const INTENTS_MAGIC: [u8; 8] = *b"bifoInts";
const RECORD_MAGIC: [u8; 8] = *b"bifoRec1";

/// What a log's content belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) array: [u8; 16],
    pub(super) events: u64,
    pub(super) updated: u64,
}

/// Bytes for a member's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    pub(super) role: usize,
    /// In the member's data.
    pub(super) offset: u64,
    pub(super) bytes: Cow<'a, [u8]>,
}

/// A member as the log sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) role: usize,
    pub(super) device: &'a dyn BlockDevice,
    /// The free space before the data.
    pub(super) reserved: (u64, u64),
}

/// A member that did not do what the log asked for.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) role: usize,
    pub(super) error: Error,
}

/// The log of an open array.
#[derive(Debug)]
pub(super) struct Log {
    shape: Shape,
    state: Mutex<State>,
    is_quiet: Condvar,
}

/// Sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes of every member's log.
    bytes: u64,
    region_stripes: u64,
    regions: u64,
}

#[derive(Debug)]
struct State {
    session: Session,
    /// Of the next block of intents.
    sequence: u64,
    /// The superblocks name the session: what the one before has left is no longer needed.
    is_durable: bool,
    /// P and Q from this stripe on are in doubt, whatever the intents say.
    unsynced: Option<u64>,
    bits: Vec<u8>,
    epoch: u64,
    /// Of the next record, and where it goes.
    index: u32,
    at: u64,
    /// Records whose writes to the members are under way.
    in_flight: usize,
}

/// What a log had to say after a loss of power.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// To be carried out in this order.
    pub(super) records: Vec<Vec<Entry<'static>>>,
    /// Ranges of stripes whose P and Q may not fit.
    pub(super) stripes: Vec<std::ops::Range<u64>>,
    /// P and Q from here on may not fit.
    pub(super) unsynced: Option<u64>,
    /// Of the newest block of intents.
    sequence: u64,
}

impl Shape {
    /// The log that fits into the smallest of the members' free spaces; None if records of useful size do not.
    pub(super) fn of(free_bytes: u64, layout: Layout, stripes: u64) -> Option<Self> {
        let bytes = free_bytes.min(LOG_BYTES_MAX) / 4096 * 4096;
        let least = REGION_BYTES_MIN.div_ceil(layout.stripe_bytes());
        let region_stripes = stripes.div_ceil(REGIONS_MAX).max(least);
        let shape = Self { bytes, region_stripes, regions: stripes.div_ceil(region_stripes) };
        (shape.column_bytes(layout) >= COLUMN_BYTES_MIN.min(layout.chunk_bytes())).then_some(shape)
    }

    /// Bytes of every chunk of a stripe that one record has room for.
    pub(super) fn column_bytes(self, layout: Layout) -> u64 {
        let head = (RECORD_HEAD + layout.members() * ENTRY_BYTES) as u64;
        let room = self.bytes.saturating_sub(2 * INTENTS_BYTES).saturating_sub(head + 2 * RECORD_ALIGN);
        (room / layout.members() as u64 / 512 * 512).min(layout.chunk_bytes())
    }

    /// Whether a record of so many bytes of every chunk of a stripe, for several stripes, has room.
    pub(super) fn fits(self, layout: Layout, stripes: u64, width: u64) -> bool {
        let members = layout.members() as u64 * stripes;
        let bytes = RECORD_HEAD as u64 + members * (ENTRY_BYTES as u64 + width) + RECORD_ALIGN;
        bytes <= self.bytes - 2 * INTENTS_BYTES
    }

    /// Whole stripes that one record may have, so that the log has room for two.
    pub(super) fn stripes_of_record(self, layout: Layout) -> u64 {
        let stripe = layout.members() as u64 * (ENTRY_BYTES as u64 + layout.chunk_bytes());
        (self.bytes - 2 * INTENTS_BYTES).saturating_sub(4096) / 2 / stripe
    }

    fn start(self, target: Target<'_>) -> u64 {
        let (offset, len) = target.reserved;
        offset + len - self.bytes
    }
}

impl Log {
    /// The log of a session. What was found of it is kept until the superblocks name the next one.
    pub(super) fn new(shape: Shape, session: Session, found: Option<&Found>) -> Self {
        let state = State {
            session,
            sequence: found.map_or(0, |found| found.sequence + 1),
            is_durable: true,
            unsynced: None,
            bits: vec![0; INTENTS_BYTES as usize - INTENTS_HEAD],
            epoch: 1,
            index: 0,
            at: 2 * INTENTS_BYTES,
            in_flight: 0,
        };
        Self { shape, state: Mutex::new(state), is_quiet: Condvar::new() }
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session with nothing in doubt but what is said. Everything written before is flushed or
    /// about to be, by the flush that the caller does next; only then may superblocks name the session.
    pub(super) fn begin(&self, session: Session, unsynced: Option<u64>, targets: &[Target<'_>]) -> Result<(), Failed> {
        let mut state = self.lock();
        if !state.is_durable {
            // The session that was begun last is not needed, and the one before it may be: over the first.
            state.sequence += 1;
        }
        state.is_durable = false;
        state.session = session;
        state.unsynced = unsynced;
        state.bits.fill(0);
        (state.epoch, state.index, state.at) = (1, 0, 2 * INTENTS_BYTES);
        self.store_intents(&mut state, targets)
    }

    /// The superblocks name the session that was begun last, for certain.
    pub(super) fn is_named(&self) {
        self.lock().is_durable = true;
    }

    /// Returns when a loss of power would be followed by computing P and Q of these stripes again.
    pub(super) fn intend(&self, stripes: std::ops::Range<u64>, targets: &[Target<'_>]) -> Result<(), Failed> {
        let mut state = self.lock();
        let regions = stripes.start / self.shape.region_stripes..(stripes.end).div_ceil(self.shape.region_stripes);
        let is_set = |state: &State, region: u64| state.bits[(region / 8) as usize] >> (region % 8) & 1 == 1;
        if regions.clone().all(|region| is_set(&state, region)) {
            return Ok(());
        }
        let before = state.bits.clone();
        for region in regions {
            state.bits[(region / 8) as usize] |= 1 << (region % 8);
        }
        let stored = self.store_intents(&mut state, targets).and_then(|()| flush(targets));
        if stored.is_err() {
            state.bits = before;
        }
        stored
    }

    /// Whether so many regions are marked that it pays to forget them.
    pub(super) fn is_worth_forgetting(&self) -> bool {
        self.lock().bits.iter().map(|byte| byte.count_ones() as usize).sum::<usize>() > REGIONS_KEPT
    }

    /// Forgets the intents: everything is flushed, and no write is under way. On the members they stay until the
    /// next one is stored, which does no harm.
    pub(super) fn forget(&self) {
        self.lock().bits.fill(0);
    }

    fn store_intents(&self, state: &mut State, targets: &[Target<'_>]) -> Result<(), Failed> {
        let block = encode_intents(state, self.shape);
        let at = state.sequence % 2 * INTENTS_BYTES;
        state.sequence += 1;
        write(targets, |target| self.shape.start(target) + at, &block)
    }

    /// Stores a record on `copies` and returns when it is safe; `all` are flushed where the log begins again.
    /// Then the caller writes the entries, and says so by [`Log::written`].
    pub(super) fn append(
        &self,
        entries: &[Entry<'_>],
        copies: &[Target<'_>],
        all: &[Target<'_>],
    ) -> Result<(), Failed> {
        let mut state = self.lock();
        let len = record_bytes(entries);
        assert!(2 * INTENTS_BYTES + len <= self.shape.bytes, "a record fits into the log");
        if state.at + len > self.shape.bytes {
            while state.in_flight > 0 {
                state = self.is_quiet.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        // Another thread may have begun again while this one waited.
        if state.at + len > self.shape.bytes {
            flush(all)?;
            state.epoch += 1;
            (state.index, state.at) = (0, 2 * INTENTS_BYTES);
        }
        let record = encode_record(&state, entries);
        write(copies, |target| self.shape.start(target) + state.at, &record)?;
        flush(copies)?;
        state.index += 1;
        state.at += len;
        state.in_flight += 1;
        Ok(())
    }

    /// The entries of a record have reached the members, or those have failed.
    pub(super) fn written(&self) {
        let mut state = self.lock();
        state.in_flight -= 1;
        self.is_quiet.notify_all();
    }
}

fn write(targets: &[Target<'_>], at: impl Fn(Target<'_>) -> u64, bytes: &[u8]) -> Result<(), Failed> {
    targets.iter().try_for_each(|target| {
        target.device.write(at(*target), bytes).map_err(|error| Failed { role: target.role, error: error.into() })
    })
}

fn flush(targets: &[Target<'_>]) -> Result<(), Failed> {
    let devices: Vec<_> = targets.iter().map(|target| (target.role, target.device)).collect();
    flush_all(&devices).map_err(|(role, error)| Failed { role, error })
}

fn encode_intents(state: &State, shape: Shape) -> Vec<u8> {
    let mut block = vec![0; INTENTS_BYTES as usize];
    block[..8].copy_from_slice(&INTENTS_MAGIC);
    block[8..24].copy_from_slice(&state.session.array);
    let words = [state.session.events, state.session.updated, state.sequence, state.unsynced.unwrap_or(u64::MAX)];
    block[24..56].copy_from_slice(&words.map(u64::to_le_bytes).concat());
    block[60..64].copy_from_slice(&(shape.region_stripes.min(u64::from(u32::MAX)) as u32).to_le_bytes());
    block[INTENTS_HEAD..].copy_from_slice(&state.bits);
    let sum = crc32c::crc32c(&block);
    block[56..60].copy_from_slice(&sum.to_le_bytes());
    block
}

/// Sequence, unsynced stripe and bits of a block of intents of a session.
fn decode_intents(block: &[u8], session: Session, shape: Shape) -> Option<(u64, Option<u64>, Vec<u8>)> {
    let mut zeroed = block.to_vec();
    zeroed[56..60].fill(0);
    let is_whole = crc32c::crc32c(&zeroed).to_le_bytes() == block[56..60];
    let is_ours = block[..8] == INTENTS_MAGIC && session_of(block) == session;
    let has_shape = u64::from(u32_at(block, 60)) == shape.region_stripes;
    let unsynced = u64_at(block, 48);
    (is_whole && is_ours && has_shape)
        .then(|| (u64_at(block, 40), (unsynced != u64::MAX).then_some(unsynced), block[INTENTS_HEAD..].to_vec()))
}

fn session_of(block: &[u8]) -> Session {
    let mut array = [0; 16];
    array.copy_from_slice(&block[8..24]);
    Session { array, events: u64_at(block, 24), updated: u64_at(block, 32) }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default())
}

fn record_bytes(entries: &[Entry<'_>]) -> u64 {
    let payload: usize = entries.iter().map(|entry| entry.bytes.len()).sum();
    ((RECORD_HEAD + entries.len() * ENTRY_BYTES + payload) as u64).next_multiple_of(RECORD_ALIGN)
}

fn encode_record(state: &State, entries: &[Entry<'_>]) -> Vec<u8> {
    let mut record = Vec::with_capacity(record_bytes(entries) as usize);
    record.extend_from_slice(&RECORD_MAGIC);
    record.extend_from_slice(&state.session.array);
    for word in [state.session.events, state.session.updated, state.epoch] {
        record.extend_from_slice(&word.to_le_bytes());
    }
    let payload: usize = entries.iter().map(|entry| entry.bytes.len()).sum();
    record.extend_from_slice(&(payload as u64).to_le_bytes());
    for word in [state.index, entries.len() as u32, 0, 0] {
        record.extend_from_slice(&word.to_le_bytes());
    }
    record.resize(RECORD_HEAD, 0);
    for entry in entries {
        for word in [entry.role as u64, entry.offset, entry.bytes.len() as u64] {
            record.extend_from_slice(&word.to_le_bytes());
        }
    }
    for entry in entries {
        record.extend_from_slice(&entry.bytes);
    }
    let sum = crc32c::crc32c(&record);
    record[64..68].copy_from_slice(&sum.to_le_bytes());
    record.resize(record_bytes(entries) as usize, 0);
    record
}

/// A record at the start of these bytes: epoch, index, its length, and what is to be written.
fn decode_record(bytes: &[u8], session: Session) -> Option<(u64, u32, u64, Vec<Entry<'static>>)> {
    if bytes.len() < RECORD_HEAD || bytes[..8] != RECORD_MAGIC || session_of(bytes) != session {
        return None;
    }
    let (payload, count) = (u64_at(bytes, 48) as usize, u32_at(bytes, 60) as usize);
    let head = RECORD_HEAD.checked_add(count.checked_mul(ENTRY_BYTES)?)?;
    let end = head.checked_add(payload)?;
    let mut whole = bytes.get(..end)?.to_vec();
    whole[64..68].fill(0);
    if crc32c::crc32c(&whole) != u32_at(bytes, 64) {
        return None;
    }
    let mut at = head;
    let mut entries = vec![];
    for i in 0..count {
        let word = |n: usize| u64_at(bytes, RECORD_HEAD + i * ENTRY_BYTES + 8 * n);
        let next = at.checked_add(word(2) as usize).filter(|next| *next <= end)?;
        entries.push(Entry { role: word(0) as usize, offset: word(1), bytes: Cow::Owned(whole[at..next].to_vec()) });
        at = next;
    }
    Some((u64_at(bytes, 40), u32_at(bytes, 56), (end as u64).next_multiple_of(RECORD_ALIGN), entries))
}

/// Looks through the members' logs for what a session left; None if they do not know it.
pub(super) fn find(shape: Shape, session: Session, targets: &[Target<'_>]) -> Option<Found> {
    let mut newest: Option<(u64, Option<u64>, Vec<u8>)> = None;
    let mut chains: BTreeMap<(u64, usize), Vec<Vec<Entry<'static>>>> = BTreeMap::new();
    for target in targets {
        let mut bytes = vec![0; shape.bytes as usize];
        if target.device.read(shape.start(*target), &mut bytes).is_err() {
            continue;
        }
        for block in bytes[..2 * INTENTS_BYTES as usize].chunks(INTENTS_BYTES as usize) {
            if let Some(found) = decode_intents(block, session, shape)
                && newest.as_ref().is_none_or(|(sequence, ..)| found.0 > *sequence)
            {
                newest = Some(found);
            }
        }
        let (epoch, chain) = read_chain(&bytes, session);
        chains.insert((epoch, chain.len()), chain);
    }
    let (sequence, unsynced, bits) = newest?;
    let records = chains.pop_last().map(|(_, chain)| chain).unwrap_or_default();
    let is_set = |region: &u64| bits[(region / 8) as usize] >> (region % 8) & 1 == 1;
    let regions = (0..shape.regions.min(REGIONS_MAX)).filter(is_set);
    let stripes = regions.map(|region| region * shape.region_stripes..(region + 1) * shape.region_stripes).collect();
    Some(Found { records, stripes, unsynced, sequence })
}

/// The records of the epoch of the first one, as far as they are whole.
fn read_chain(bytes: &[u8], session: Session) -> (u64, Vec<Vec<Entry<'static>>>) {
    let mut at = 2 * INTENTS_BYTES;
    let mut chain = vec![];
    let mut of_chain = 0;
    while let Some((epoch, index, len, entries)) =
        bytes.get(at as usize..).and_then(|rest| decode_record(rest, session))
    {
        if (index as usize) != chain.len() || (index > 0 && epoch != of_chain) {
            break;
        }
        of_chain = epoch;
        chain.push(entries);
        at += len;
    }
    (of_chain, chain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::md::layout::Rotation;
    use bifolio_block::faults::FaultyDevice;

    const SESSION: Session = Session { array: [3; 16], events: 8, updated: 9 };

    fn shape() -> Shape {
        let layout = Layout::new(Rotation::LeftSymmetric, 5, 4096).unwrap();
        Shape::of(64 << 10, layout, 1000).unwrap()
    }

    fn entry(role: usize, offset: u64, byte: u8, len: usize) -> Entry<'static> {
        Entry { role, offset, bytes: Cow::Owned(vec![byte; len]) }
    }

    #[test]
    fn records_of_the_last_epoch_are_found_in_order() {
        let device = FaultyDevice::new("member", vec![0xee; 128 << 10]);
        let target = Target { role: 0, device: &device, reserved: (4096, 96 << 10) };
        let log = Log::new(shape(), SESSION, None);
        log.begin(SESSION, None, &[target]).unwrap();
        let mut written = vec![];
        for i in 0..40_u8 {
            let entries = vec![entry(1, u64::from(i), i, 3000), entry(4, 0, !i, 10)];
            let before = log.lock().epoch;
            log.append(&entries, &[target], &[target]).unwrap();
            log.written();
            if log.lock().epoch != before {
                written.clear();
            }
            written.push(entries);
            let found = find(shape(), SESSION, &[target]).unwrap();
            assert_eq!(found.records, written);
        }
        assert!(log.lock().epoch > 1, "the log went round");
        // Another session knows none of them.
        assert!(find(shape(), Session { updated: 10, ..SESSION }, &[target]).is_none());
        log.begin(Session { events: 9, ..SESSION }, Some(7), &[target]).unwrap();
        let found = find(shape(), Session { events: 9, ..SESSION }, &[target]).unwrap();
        assert!(found.records.is_empty() && found.unsynced == Some(7));
    }

    #[test]
    fn damaged_records_and_hostile_lengths_end_the_chain() {
        let state = Log::new(shape(), SESSION, None).state.into_inner().unwrap();
        let good = encode_record(&state, &[entry(0, 0, 1, 100)]);
        assert!(decode_record(&good, SESSION).is_some());
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] = !bad[at];
            let is_padding = at >= RECORD_HEAD + ENTRY_BYTES + 100;
            assert_eq!(decode_record(&bad, SESSION).is_some(), is_padding, "byte {at}");
            assert!(decode_record(&good[..at], SESSION).is_none() || is_padding);
        }
    }

    #[test]
    fn intents_are_stored_once_and_name_their_regions() {
        let device = FaultyDevice::new("member", vec![0; 128 << 10]);
        let target = Target { role: 0, device: &device, reserved: (0, 64 << 10) };
        let layout = Layout::new(Rotation::LeftSymmetric, 4, 1 << 20).unwrap();
        let shape = Shape::of(64 << 10, layout, 1000).unwrap();
        assert_eq!((shape.region_stripes, shape.regions), (32, 32));
        let log = Log::new(shape, SESSION, None);
        log.begin(SESSION, None, &[target]).unwrap();
        log.intend(30..34, &[target]).unwrap();
        let requests = device.requests();
        log.intend(0..64, &[target]).unwrap();
        assert_eq!(device.requests(), requests);
        let found = find(shape, SESSION, &[target]).unwrap();
        assert_eq!(found.stripes, [0..32, 32..64]);
    }
}
