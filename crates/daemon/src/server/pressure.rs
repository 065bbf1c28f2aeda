//! How much of a device others need, what was done for that, and what is done next: decisions alone.

use bifolio_cache::{Client, FileId};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How often is looked after each step before the next one: memory that was given back is free a moment later.
const PATIENCE: u32 = 2;

/// What there is of a device, and what was done.
#[derive(Debug, Default)]
pub(super) struct Reclaim {
    pub(super) devices: Vec<OnDevice>,
}

#[derive(Debug, Default)]
pub(super) struct OnDevice {
    pub(super) free_bytes: AtomicU64,
    pub(super) reclaimed_bytes: AtomicU64,
    pressure: Mutex<Pressure>,
}

/// As long as others need memory.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    /// How often it was looked since something was given back.
    pub(super) looks: u32,
    pub(super) is_hidden: bool,
    pub(super) recalls: BTreeMap<(Client, u64), Recall>,
}

#[derive(Debug)]
pub(super) struct Recall {
    pub(super) range: Range<u64>,
    pub(super) until: Instant,
}

/// What somebody has acquired or pinned on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) client: Client,
    /// Its number of the file.
    pub(super) number: u64,
    pub(super) file: FileId,
    pub(super) device: usize,
    pub(super) range: Range<u64>,
    pub(super) bytes: u64,
}

/// What is done next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Memory is wanted by nobody.
    Nothing,
    /// So many bytes are given back, if there are any.
    Give(u64),
    /// Clients unmap what they do not use.
    Hide,
    /// So many bytes are asked for.
    Recall(u64),
}

/// What to do if so much is missing and nothing could be given back at the last looks.
pub(super) fn next(missing: u64, looks: u32, is_hidden: bool, asked: u64) -> Step {
    match missing {
        0 => Step::Nothing,
        _ if looks < PATIENCE => Step::Give(missing),
        _ if !is_hidden => Step::Hide,
        _ if asked < missing => Step::Recall(missing - asked),
        _ => Step::Give(missing),
    }
}

/// Those who are asked for some bytes: the largest first, and no more than are needed.
pub(super) fn asked(mut holders: Vec<Holder>, bytes: u64) -> Vec<Holder> {
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    let mut sum = 0_u64;
    holders.retain(|holder| {
        let is_needed = sum < bytes;
        sum = sum.saturating_add(holder.bytes);
        is_needed
    });
    holders
}

impl Reclaim {
    pub(super) fn new(devices: usize) -> Self {
        Self { devices: (0..devices).map(|_| OnDevice::default()).collect() }
    }

    /// Bytes that were free at the last look, and that were given back.
    pub(super) fn bytes(&self, device: usize) -> (u64, u64) {
        let OnDevice { free_bytes, reclaimed_bytes, .. } = &self.devices[device];
        (free_bytes.load(Ordering::Relaxed), reclaimed_bytes.load(Ordering::Relaxed))
    }
}

impl OnDevice {
    /// What is asked for, and how far that has come.
    pub(super) fn pressure(&self) -> MutexGuard<'_, Pressure> {
        self.pressure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holder {
    /// By what it is asked.
    pub(super) fn key(&self) -> (Client, u64) {
        (self.client, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_uses_is_given_before_anybody_is_asked_and_nobody_is_asked_twice() {
        assert_eq!(next(0, 9, true, 5), Step::Nothing);
        assert_eq!(next(7, 0, true, 0), Step::Give(7));
        assert_eq!(next(7, PATIENCE, false, 0), Step::Hide);
        assert_eq!(next(7, PATIENCE, true, 0), Step::Recall(7));
        assert_eq!(next(7, PATIENCE, true, 4), Step::Recall(3));
        assert_eq!(next(7, PATIENCE, true, 7), Step::Give(7));
    }

    #[test]
    fn as_few_are_asked_as_is_enough() {
        let holder = |client, bytes| Holder { client, number: 1, file: (1, 1), device: 0, range: 0..bytes, bytes };
        let all = vec![holder(1, 10), holder(2, 30), holder(3, 20)];
        let clients = |bytes| asked(all.clone(), bytes).iter().map(|holder| holder.client).collect::<Vec<_>>();
        assert!(clients(0).is_empty());
        assert_eq!(clients(30), [2]);
        assert_eq!(clients(31), [2, 3]);
        assert_eq!(clients(1000), [2, 3, 1]);
    }
}
