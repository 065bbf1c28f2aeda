//! The statistics as numbers of 64 bits: the operations so far, and behind them, under a checksum, what there was
//! after some of them.

use super::identity::Identity;
use crate::page::DEVICES_MAX;
use crate::stats::{Counts, ProcessStats, Snapshot, Stats};
use bifolio_device::{BackendKind, DeviceId};
use std::time::{Duration, SystemTime};

/// Where the operations are counted.
pub(super) const OPERATIONS: usize = 0;
/// Where what [`encode`] says begins.
pub(super) const BODY: usize = 1;

/// Tells the file from others, and from those of other versions.
const MAGIC: u64 = u64::from_le_bytes(*b"bfcache5");
const COUNTS: usize = 13;
const HEAD: usize = 2 + 5 + COUNTS + 1;
const DEVICE: usize = 2 + 5 + COUNTS;

/// Numbers of what a cache holds, on as many devices as it may have.
pub(crate) const SNAPSHOT: usize = COUNTS + 1 + DEVICES_MAX * DEVICE;

/// Numbers of a file.
pub(super) const WORDS: usize = BODY + HEAD + DEVICES_MAX * DEVICE;

/// Magic, checksum, and what that is of.
pub(super) fn encode(identity: Identity, taken: SystemTime, operations: u64, snapshot: &Snapshot) -> Vec<u64> {
    let taken_ns = taken.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |passed| passed.as_nanos() as u64);
    let mut words = vec![MAGIC, 0];
    words.extend([u64::from(identity.pid), identity.started, identity.namespace, taken_ns, operations]);
    words.extend(of_snapshot(snapshot));
    words[1] = checksum(&words[2..]);
    words
}

/// What a cache holds: at most [`SNAPSHOT`] numbers.
pub(crate) fn of_snapshot(snapshot: &Snapshot) -> Vec<u64> {
    let mut words = of_counts(&snapshot.counts).to_vec();
    words.push(snapshot.devices.len() as u64);
    for stats in &snapshot.devices {
        let backend = BackendKind::ALL.iter().position(|kind| *kind == stats.device.backend);
        words.extend([backend.unwrap_or_default() as u64, u64::from(stats.device.index)]);
        words.extend([stats.used_bytes, stats.budget_bytes, stats.pages, stats.behind, stats.pending]);
        words.extend(of_counts(&stats.counts));
    }
    words
}

/// Whether it is a file of this version at all.
pub(super) fn is_ours(file: &[u64]) -> bool {
    file.get(BODY) == Some(&MAGIC)
}

/// What a file says; none if it is none, or is being written.
pub(super) fn decode(file: &[u64]) -> Option<(Identity, ProcessStats)> {
    let (&now, body) = file.split_first()?;
    let devices = usize::try_from(*body.get(HEAD - 1)?).ok()?;
    let len = HEAD + devices.checked_mul(DEVICE)?;
    if !is_ours(file) || devices > DEVICES_MAX || checksum(body.get(2..len)?) != body[1] {
        return None;
    }
    let mut words = body[2..len].iter().copied();
    let pid = u32::try_from(words.next()?).ok()?;
    let identity = Identity { pid, started: words.next()?, namespace: words.next()? };
    let taken = SystemTime::UNIX_EPOCH + Duration::from_nanos(words.next()?);
    let operations_since = now.saturating_sub(words.next()?);
    let Snapshot { counts, devices } = snapshot_in(&mut words)?;
    Some((identity, ProcessStats { pid, name: String::new(), taken, operations_since, counts, devices }))
}

/// What a cache held, from its numbers; none if that is what they cannot be.
pub(crate) fn snapshot_in(words: &mut impl Iterator<Item = u64>) -> Option<Snapshot> {
    let counts = counts_of(words)?;
    let devices = words.next().filter(|devices| *devices <= DEVICES_MAX as u64)?;
    let device = |_| {
        let backend = *BackendKind::ALL.get(usize::try_from(words.next()?).ok()?)?;
        Some(Stats {
            device: DeviceId::new(backend, u32::try_from(words.next()?).ok()?),
            used_bytes: words.next()?,
            budget_bytes: words.next()?,
            pages: words.next()?,
            behind: words.next()?,
            pending: words.next()?,
            counts: counts_of(words)?,
        })
    };
    let devices = (0..devices).map(device).collect::<Option<_>>()?;
    Some(Snapshot { counts, devices })
}

fn of_counts(counts: &Counts) -> [u64; COUNTS] {
    let Counts { hits, fetched, from_peers, merged, races, released, flushed, compared, evicted, served, .. } = *counts;
    let Counts { copied, discarded, lost, .. } = *counts;
    [hits, fetched, from_peers, merged, races, released, flushed, compared, evicted, copied, served, discarded, lost]
}

fn counts_of(words: &mut impl Iterator<Item = u64>) -> Option<Counts> {
    let mut next = || words.next();
    Some(Counts {
        hits: next()?,
        fetched: next()?,
        from_peers: next()?,
        merged: next()?,
        races: next()?,
        released: next()?,
        flushed: next()?,
        compared: next()?,
        evicted: next()?,
        copied: next()?,
        served: next()?,
        discarded: next()?,
        lost: next()?,
    })
}

/// FNV-1a over whole numbers, and a turn, as its lowest bits would not see the highest.
fn checksum(words: &[u64]) -> u64 {
    words
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum: u64, word| ((sum ^ word).wrapping_mul(0x0100_0000_01b3)).rotate_left(29))
}
