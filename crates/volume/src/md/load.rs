//! An array into device memory. A member that fails on the way is taken out, and the rest goes on without it.

use super::array::Raid6;
use super::layout::Layout;
use crate::load::{ArraySnapshot, Failed, Load, Loader, load_stripes};
use crate::{ErrorKind, Result};
use bifolio_block::BlockDevice;
use bifolio_compute::keyed::DeviceRaid6;
use bifolio_device::DeviceSlice;
use bifolio_kernels::raid6::Geometry;
use std::ops::Range;
use std::sync::Arc;

/// The members as they are when a request begins.
struct Snapshot {
    name: String,
    layout: Layout,
    members: Vec<Option<(Arc<dyn Load>, u64)>>,
}

impl ArraySnapshot for Snapshot {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn geometry(&self) -> Geometry {
        Geometry { data: self.layout.data() as u32, chunk_bytes: self.layout.chunk_bytes() }
    }

    fn slots(&self, stripe: u64) -> Vec<usize> {
        self.layout.by_slot(stripe)
    }

    fn slot_of(&self, stripe: u64, number: u32) -> u32 {
        self.layout.slot(stripe, self.layout.member(stripe, number as usize)) as u32
    }

    fn member(&self, number: usize) -> Option<(&dyn Load, u64)> {
        self.members[number].as_ref().map(|(device, first)| (&**device, *first))
    }
}

impl Raid6 {
    fn snapshot(&self) -> Snapshot {
        let there = |role| self.member(role).filter(|member| !member.is_partial);
        let members =
            (0..self.layout.members()).map(|role| there(role).map(|member| (member.device, member.data_offset)));
        Snapshot { name: self.name.clone(), layout: self.layout, members: members.collect() }
    }

    /// The stripes that have bytes of a range.
    fn stripes_of(&self, offset: u64, len: u64) -> Range<u64> {
        let stripe = self.layout.stripe_bytes();
        offset / stripe..(offset + len).div_ceil(stripe)
    }

    fn has_lost_some_of(&self, snapshot: &Snapshot) -> bool {
        let now = self.snapshot();
        snapshot.members.iter().zip(&now.members).any(|(then, now)| then.is_some() && now.is_none())
    }

    pub(super) fn load_range(&self, loader: &Loader, offset: u64, destination: DeviceSlice<'_>) -> Result<()> {
        self.check_range(offset, destination.len())?;
        if destination.is_empty() {
            return Ok(());
        }
        let service = self.service.get(loader.device(), || DeviceRaid6::new(loader.device()));
        let service = service.map_err(|error| loader.failed(error))?;
        loop {
            // A writer in the middle of a stripe would make a recovery wrong.
            let is_settled = self.is_read_only() || self.missing().is_empty();
            let held =
                if is_settled { None } else { Some(self.lock_to_read(self.stripes_of(offset, destination.len()))) };
            let snapshot = self.snapshot();
            if held.is_none() && !self.is_read_only() && snapshot.members.iter().any(Option::is_none) {
                // One went in between.
                continue;
            }
            let failed = match load_stripes(&snapshot, &service, loader, offset, destination) {
                // What was read of a member that failed meanwhile, by a write of somebody else's, may be older than that.
                Ok(()) if !self.has_lost_some_of(&snapshot) => return Ok(()),
                Ok(()) => continue,
                Err(failed) => failed,
            };
            drop(held);
            match failed {
                Failed { member: Some(role), error } if error.kind() == ErrorKind::Read => {
                    self.fail(vec![(role, error)])?;
                }
                Failed { error, .. } => return Err(error),
            }
        }
    }
}
