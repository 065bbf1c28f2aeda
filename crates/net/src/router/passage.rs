//! How packets pass a region: in the order of their places.
//!
//! Whoever leads into a region is ranked before it, so that all packets of a wave that come to it wait there together. Then
//! the packet with the first place goes on until it leaves the region, before the next one enters, as single packets do.
//! Packets for an element from which no way leads back into the region disturb nobody: those that follow each other go
//! together.

use super::core::Router;
use super::region::{Region, Visitor};
use super::thread::Thread;

impl Thread {
    /// Packets that wait in a region go through it; `rank` is the first one that has some.
    pub(super) fn pass_region(&mut self, router: &Router, region: &Region, rank: usize) {
        let id = router.wiring.by_rank[rank] as usize;
        let mut inputs = router.wiring.inputs[id].clone().filter(|input| self.wave.has(*input));
        if let (Some(input), None) = (inputs.next(), inputs.next())
            && !region.leads_on(rank)
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
            let leads_on = region.leads_on(rank);
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
