//! What users have at the moment, and whether they may have more.

use crate::Limits;
use bifolio_cache::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(super) struct Users {
    limits: Limits,
    by_uid: Mutex<BTreeMap<u32, Usage>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Usage {
    connections: usize,
    /// That stay where they are.
    bytes: u64,
    copied_bytes: u64,
}

/// What bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Acquired or pinned.
    Used,
    /// Private copies.
    Copied,
}

impl Users {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, by_uid: Mutex::default() }
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// One connection more, or why not.
    pub(super) fn connect(&self, uid: u32) -> Result<(), String> {
        let mut users = self.lock();
        let all: usize = users.values().map(|usage| usage.connections).sum();
        let usage = users.entry(uid).or_default();
        if all >= self.limits.connections || usage.connections >= self.limits.connections_of_user {
            return Err(format!("there are {all} connections, {} of user {uid}: close some", usage.connections));
        }
        usage.connections += 1;
        Ok(())
    }

    /// One that is there, however many there are.
    pub(super) fn reconnect(&self, uid: u32) {
        self.lock().entry(uid).or_default().connections += 1;
    }

    pub(super) fn disconnect(&self, uid: u32) {
        let mut users = self.lock();
        if let Some(usage) = users.get_mut(&uid) {
            usage.connections = usage.connections.saturating_sub(1);
            if *usage == Usage::default() {
                users.remove(&uid);
            }
        }
    }

    /// Takes bytes.
    ///
    /// # Errors
    /// `OutOfMemory` if the user would have more than is permitted.
    pub(super) fn take(&self, uid: u32, kind: Kind, bytes: u64) -> Result<()> {
        let mut users = self.lock();
        let usage = users.entry(uid).or_default();
        let (place, most, what) = match kind {
            Kind::Used => (&mut usage.bytes, self.limits.bytes_of_user, "acquired"),
            Kind::Copied => (&mut usage.copied_bytes, self.limits.copied_bytes_of_user, "copied"),
        };
        if let Some(sum) = place.checked_add(bytes).filter(|sum| *sum <= most) {
            *place = sum;
            return Ok(());
        }
        let detail = format!(
            "user {uid} has {} bytes {what}, and {bytes} more would be over the limit of {most}: release some",
            *place
        );
        Err(Error::told(ErrorKind::OutOfMemory, "the daemon", detail, None))
    }

    pub(super) fn give(&self, uid: u32, kind: Kind, bytes: u64) {
        let mut users = self.lock();
        let Some(usage) = users.get_mut(&uid) else { return };
        let place = match kind {
            Kind::Used => &mut usage.bytes,
            Kind::Copied => &mut usage.copied_bytes,
        };
        *place = place.saturating_sub(bytes);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Usage>> {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_more_than_is_permitted_and_nobody_pays_for_others() {
        let limits = Limits { connections: 3, connections_of_user: 2, bytes_of_user: 100, ..Limits::default() };
        let users = Users::new(limits);
        assert!(users.connect(1).is_ok() && users.connect(1).is_ok() && users.connect(1).is_err());
        assert!(users.connect(2).is_ok() && users.connect(3).is_err());
        users.disconnect(1);
        assert!(users.connect(3).is_ok());
        users.take(1, Kind::Used, 90).unwrap();
        let error = users.take(1, Kind::Used, 11).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(users.take(1, Kind::Used, u64::MAX).is_err());
        users.take(2, Kind::Used, 100).unwrap();
        users.give(1, Kind::Used, 50);
        users.take(1, Kind::Used, 60).unwrap();
    }
}
