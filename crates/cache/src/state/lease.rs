//! Who uses which part of a file on which device.

use super::layout::{LEASE_ROW, LEASES_MAX, Part};
use super::region::Region;
use super::table::{Row, Table};
use crate::page::Device;
use std::io;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

/// Who asks: a number that whoever serves several processes gives to each of them. Within a process it is 0.
pub type Client = u64;

/// A client's number for something that it uses, of which it has no other. Whoever asks again with the same number, as it
/// cannot know whether it was heard, has asked once.
pub type LeaseNumber = u64;

/// What for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Use {
    /// Mapped: it has addresses.
    Mapped,
    /// Acquired, to be read.
    Read,
    /// Acquired, to be written.
    Write,
    /// Its memory stays where it is.
    Pinned,
}

const USES: [Use; 4] = [Use::Mapped, Use::Read, Use::Write, Use::Pinned];

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Lease {
    client: u64,
    number: u64,
    start: u64,
    end: u64,
    device: u32,
    /// The use plus one; 0 for none, and for one that was not written as a whole.
    state: u32,
}

// SAFETY: numbers, without padding.
unsafe impl Row for Lease {}
const _: () = assert!(size_of::<Lease>() == LEASE_ROW);

/// What a lease says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) client: Client,
    /// Which one of the client's, who has chosen it: it names the lease.
    pub(crate) number: LeaseNumber,
    pub(crate) device: Device,
    pub(crate) what: Use,
    pub(crate) bytes: Range<u64>,
}

impl Lease {
    fn of(grant: &Grant) -> Self {
        let state = USES.iter().position(|what| *what == grant.what).unwrap_or(0) as u32 + 1;
        let (device, bytes) = (grant.device as u32, &grant.bytes);
        Self { client: grant.client, number: grant.number, start: bytes.start, end: bytes.end, device, state }
    }

    /// None of what is none.
    fn grant(&self) -> Option<Grant> {
        let what = *USES.get((self.state as usize).checked_sub(1)?)?;
        let (client, number, device) = (self.client, self.number, self.device as Device);
        Some(Grant { client, number, device, what, bytes: self.start..self.end })
    }
}

#[derive(Debug)]
pub(crate) struct Leases {
    table: Table<Lease>,
    /// Rows that have memory; those behind `used` are free.
    rows: u64,
    used: u64,
}

impl Leases {
    /// Of a region that is new.
    pub(crate) fn of(region: &Region) -> Self {
        Self { table: region.table(Part::Leases), rows: 0, used: 0 }
    }

    /// Of one that another process has left: as many as were noted.
    pub(crate) fn recover(&mut self, devices: usize) -> Result<(), String> {
        loop {
            self.grow().map_err(|error| format!("no memory for the account of leases: {error}"))?;
            let is_used = |row: &u64| self.table.get(*row).is_some_and(|lease| lease.state != 0);
            let used = (self.used..self.rows).rev().find(is_used).map_or(self.used, |row| row + 1);
            let is_last = self.rows - used >= GROWTH || self.rows == LEASES_MAX;
            self.used = used;
            if is_last {
                break;
            }
        }
        for row in 0..self.used {
            let Some(lease) = self.table.get(row).filter(|lease| lease.state != 0) else { continue };
            let is_sound = lease.grant().is_some() && lease.start <= lease.end && (lease.device as usize) < devices;
            if !is_sound {
                return Err(format!("lease {row} cannot be what it is"));
            }
        }
        Ok(())
    }

    /// Notes that somebody uses something, once that is so.
    pub(crate) fn begin(&mut self, grant: &Grant) -> io::Result<()> {
        let is_free = |row: &u64| self.table.get(*row).is_some_and(|lease| lease.state == 0);
        // The latest ends first, as a rule.
        let near = (self.used.saturating_sub(8)..self.used).find(is_free);
        let row = near.or((self.used < self.rows).then_some(self.used)).or_else(|| (0..self.used).find(is_free));
        let row = if let Some(row) = row {
            row
        } else {
            self.grow()?;
            self.used
        };
        let lease = Lease::of(grant);
        self.table.set(row, Lease { state: 0, ..lease });
        compiler_fence(Ordering::SeqCst);
        self.table.set(row, lease);
        self.used = self.used.max(row + 1);
        Ok(())
    }

    /// What a client uses under a number.
    pub(crate) fn find(&self, client: Client, number: LeaseNumber) -> Option<Grant> {
        self.table.get(self.row(client, number)?)?.grant()
    }

    /// Notes that it does not any more: what it was, if it was noted.
    pub(crate) fn end(&mut self, client: Client, number: LeaseNumber) -> Option<Grant> {
        let row = self.row(client, number)?;
        let lease = *self.table.get(row)?;
        self.table.set(row, Lease { state: 0, ..lease });
        while self.used > 0 && self.table.get(self.used - 1).is_none_or(|last| last.state == 0) {
            self.used -= 1;
        }
        lease.grant()
    }

    fn row(&self, client: Client, number: LeaseNumber) -> Option<u64> {
        let is_it = |lease: &Lease| lease.state != 0 && (lease.client, lease.number) == (client, number);
        // The latest ends first, as a rule.
        (0..self.used).rev().find(|row| self.table.get(*row).is_some_and(is_it))
    }

    /// All of them.
    pub(crate) fn grants(&self) -> impl Iterator<Item = Grant> {
        (0..self.used).filter_map(|row| self.table.get(row)?.grant())
    }

    fn grow(&mut self) -> io::Result<()> {
        let rows = (self.rows + GROWTH).min(LEASES_MAX).max(self.rows * 2).min(LEASES_MAX);
        if rows == self.rows {
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, format!("{LEASES_MAX} leases at most")));
        }
        self.table.reserve(&(0..rows))?;
        self.rows = rows;
        Ok(())
    }
}

/// Rows that get memory at a time, at least.
const GROWTH: u64 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_those_that_were_begun_and_have_not_ended() {
        let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
        let region = Region::shared(4096, 3, (0, 0, 0)).unwrap();
        let (mut leases, mut oracle) = (Leases::of(&region), Vec::new());
        for number in 0..5000 {
            if random.bool() || oracle.is_empty() {
                let start = random.u64(0..100);
                let grant = Grant {
                    client: random.u64(0..3),
                    number,
                    device: random.usize(0..3),
                    what: *random.choice(&USES).unwrap(),
                    bytes: start..start + 1,
                };
                leases.begin(&grant).unwrap();
                oracle.push(grant);
            } else {
                let grant = oracle.swap_remove(random.usize(..oracle.len()));
                assert_eq!(leases.find(grant.client, grant.number).as_ref(), Some(&grant));
                assert_eq!(leases.end(grant.client + 1, grant.number), None, "somebody else's");
                assert_eq!(leases.end(grant.client, grant.number), Some(grant));
            }
        }
        let sorted = |grants: Vec<Grant>| {
            let mut texts: Vec<_> = grants.iter().map(|grant| format!("{grant:?}")).collect();
            texts.sort();
            texts
        };
        let mut found = Leases::of(&region);
        found.recover(3).unwrap();
        assert_eq!(sorted(found.grants().collect()), sorted(oracle.clone()));
        assert_eq!(sorted(leases.grants().collect()), sorted(oracle));
        assert!(Leases::of(&region).recover(2).unwrap_err().contains("cannot be"));
    }
}
