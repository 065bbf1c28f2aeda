//! The optimum of the paper's objective, exactly, in time proportional to the number of cached runs.
//!
//! `best[j]` is the least time for everything up to the end of cached run `j`, given that `j` is
//! read from the page cache: over every run `i` before it that may be the last one read from there,
//! `best[i]` plus one storage transfer of all that lies between. Equation 1 has two pieces, so the
//! runs `i` are in two groups: those that are near, where the transfer takes `C` whatever its size,
//! and those that are far, where the time is `C + (size - cutoff) / BW`. The best of the near ones
//! is a sliding minimum, the best of the far ones a running minimum of `best[i] - end[i] / BW`.

use super::strategy::{Strategy, storage_cost};
use bifolio_io::cost::EngineCost;
use bifolio_io::plan::{Offer, Plan, assemble};
use bifolio_io::{Costs, Residency};
use std::collections::VecDeque;

/// The optimum of the paper's objective.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Exact;

impl Strategy for Exact {
    fn name(&self) -> &'static str {
        "exact"
    }

    fn plan(&self, residency: &Residency, costs: &Costs, offer: &Offer<'_>) -> Plan {
        let segments = match storage_cost(offer, costs) {
            None => assemble(residency, costs, offer, |_, _| true),
            Some(storage) => {
                let kept = choose(residency, storage, costs.cached.bytes_per_s);
                assemble(residency, costs, offer, |number, _| kept[number])
            }
        };
        Plan::of(segments, "the optimum of the paper's objective", costs)
    }
}

/// A place where a storage transfer may begin: the start of the request, or the end of a cached run
/// that is read from the page cache.
#[derive(Clone, Copy)]
struct Node {
    /// Offset in the request.
    end: u64,
    /// The least time up to here.
    best_s: f64,
    /// The place before it.
    from: usize,
}

/// Whether each cached run is read from the page cache.
fn choose(residency: &Residency, storage: &EngineCost, cache_bytes_per_s: f64) -> Vec<bool> {
    let range = residency.range();
    let mut search = Search::new(storage, residency.cached().len());
    for run in residency.cached() {
        let (start, length) = (run.start - range.start, run.end - run.start);
        let (from, seconds) = search.reach(start);
        let best_s = seconds + length as f64 / cache_bytes_per_s;
        search.nodes.push(Node { end: start + length, best_s, from });
    }
    let (mut at, _) = search.reach(range.end - range.start);
    let mut kept = vec![false; residency.cached().len()];
    while at > 0 {
        kept[at - 1] = true;
        at = search.nodes[at].from;
    }
    kept
}

struct Search<'a> {
    storage: &'a EngineCost,
    /// The start of the request, then every cached run so far.
    nodes: Vec<Node>,
    /// Near places that may still be the best, their times rising.
    near: VecDeque<usize>,
    /// The first place that is near.
    near_first: usize,
    /// Places that are in `near`, or were and are beaten.
    seen: usize,
    /// The best of the far places, and its time less what a transfer from offset 0 would gain.
    far: Option<(usize, f64)>,
}

impl<'a> Search<'a> {
    fn new(storage: &'a EngineCost, runs: usize) -> Self {
        let mut nodes = Vec::with_capacity(runs + 1);
        nodes.push(Node { end: 0, best_s: 0.0, from: 0 });
        Self { storage, nodes, near: VecDeque::new(), near_first: 0, seen: 0, far: None }
    }

    /// The best place from which one storage transfer reaches offset `to`, and the time then.
    fn reach(&mut self, to: u64) -> (usize, f64) {
        self.move_on(to);
        let EngineCost { overhead_s, cutoff_bytes, bytes_per_s } = *self.storage;
        let last = self.nodes.len() - 1;
        // At either end of the request nothing may lie between.
        let touching = (self.nodes[last].end == to).then(|| (last, self.nodes[last].best_s));
        let near = self.near.front().map(|&node| (node, self.nodes[node].best_s + overhead_s));
        let far = self
            .far
            .map(|(node, base_s)| (node, base_s + overhead_s + (to as f64 - cutoff_bytes as f64) / bytes_per_s));
        let best = [touching, near, far].into_iter().flatten().min_by(|one, two| one.1.total_cmp(&two.1));
        best.unwrap_or((last, f64::INFINITY))
    }

    /// Takes in the places that were added, and lets go of those that are now far from `to`.
    fn move_on(&mut self, to: u64) {
        while self.seen < self.nodes.len() {
            let best_s = self.nodes[self.seen].best_s;
            while self.near.back().is_some_and(|&node| self.nodes[node].best_s >= best_s) {
                self.near.pop_back();
            }
            self.near.push_back(self.seen);
            self.seen += 1;
        }
        while self.near_first < self.nodes.len() && to - self.nodes[self.near_first].end >= self.storage.cutoff_bytes {
            let node = &self.nodes[self.near_first];
            let base_s = node.best_s - node.end as f64 / self.storage.bytes_per_s;
            if self.far.is_none_or(|(_, best_s)| base_s < best_s) {
                self.far = Some((self.near_first, base_s));
            }
            if self.near.front() == Some(&self.near_first) {
                self.near.pop_front();
            }
            self.near_first += 1;
        }
    }
}
