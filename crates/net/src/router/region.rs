//! Elements that share state, such as flows of rewriters: packets pass them in the order of their places.
//!
//! A region is a group of elements that share, with all that lies on ways between them. Whoever leads into it is ranked
//! before it, so that all packets of a wave that come to a region wait there together. Then the packet with the first place
//! goes on until it leaves the region, before the next one enters, as single packets do. Packets for an element from which no
//! way leads back into the region disturb nobody: those that follow each other go together.

use super::core::Router;
use super::thread::Thread;
use crate::Packet;
use std::ops::Range;

/// Elements whose ranks are in a row.
#[derive(Debug)]
pub(super) struct Region {
    ranks: Range<usize>,
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
}

/// A packet that waits in a region, at an input of the element with this rank.
pub(super) type Visitor = (usize, usize, Packet);

impl Thread {
    /// Packets that wait in a region go through it; `rank` is the first one that has some.
    pub(super) fn pass_region(&mut self, router: &Router, region: &Region, rank: usize) {
        let id = router.wiring.by_rank[rank] as usize;
        let mut inputs = router.wiring.inputs[id].clone().filter(|input| self.wave.has(*input));
        if let (Some(input), None) = (inputs.next(), inputs.next())
            && !region.leads_on[rank - region.ranks.start]
            && !self.wave.has_below(region.ranks.end)
        {
            // They all go together, as through any element.
            let batch = self.wave.take(input);
            return self.deliver(router, id, input, batch);
        }
        self.wave.mark(rank as u32);
        self.pass_visitors(router, region);
    }

    fn pass_visitors(&mut self, router: &Router, region: &Region) {
        let mut visitors = std::mem::take(&mut self.visitors);
        self.find_visitors(router, region, &mut visitors);
        while let Some((rank, input, packet)) = visitors.pop() {
            let id = router.wiring.by_rank[rank] as usize;
            let leads_on = region.leads_on[rank - region.ranks.start];
            let mut batch = self.wave.spare();
            batch.push(packet);
            while !leads_on && let Some((.., packet)) = visitors.pop_if(|(_, other, _)| *other == input) {
                batch.push(packet);
            }
            self.deliver(router, id, input, batch);
            if leads_on {
                self.find_visitors(router, region, &mut visitors);
            }
        }
        self.visitors = visitors;
    }

    /// Adds those that wait in a region to its visitors: the first place is last.
    fn find_visitors(&mut self, router: &Router, region: &Region, visitors: &mut Vec<Visitor>) {
        let before = visitors.len();
        while let Some(rank) = self.wave.first_below(region.ranks.end) {
            for input in router.wiring.inputs[router.wiring.by_rank[rank] as usize].clone() {
                if self.wave.has(input) {
                    let mut batch = self.wave.take(input);
                    visitors.extend(batch.drain(..).map(|packet| (rank, input, packet)));
                    self.wave.give_back(batch);
                }
            }
        }
        // Those who are there come of packets that stand before those who still wait.
        let new = &mut visitors[before..];
        if !new.is_sorted_by_key(|(.., packet)| packet.place().at) {
            new.sort_by_key(|(.., packet)| packet.place().at);
        }
        new.reverse();
    }
}
