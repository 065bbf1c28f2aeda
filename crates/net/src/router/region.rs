//! Elements that share state, such as flows of rewriters, with all that lies on ways between them.

use crate::Packet;
use std::ops::Range;

/// Elements whose ranks are in a row.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) ranks: Range<usize>,
    /// For each of them, whether a way leads from it to another one, or itself.
    leads_on: Vec<bool>,
}

impl Region {
    /// That of some ranks, given who leads to whom.
    pub(super) fn new(region: Range<usize>, by_rank: &[u32], ranks: &[usize], next: &[Vec<usize>]) -> Self {
        let leads_on = |rank: usize| next[by_rank[rank] as usize].iter().any(|to| region.contains(&ranks[*to]));
        let leads_on = region.clone().map(leads_on).collect();
        Self { ranks: region, leads_on }
    }

    /// Whether a way leads from the element with this rank to one of the region.
    pub(super) fn leads_on(&self, rank: usize) -> bool {
        self.leads_on[rank - self.ranks.start]
    }
}

/// A packet that waits in a region, at an input of the element with this rank.
pub(super) type Visitor = (usize, usize, Packet);
