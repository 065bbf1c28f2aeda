//! Which ports or addresses of a range are taken, among replies that are the same otherwise.
//!
//! Values are kept as runs, so the next one that is free is found in logarithmic time, however full a range is.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::net::Ipv4Addr;

use crate::headers::FlowId;

/// What a range varies in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Variable {
    /// The port that the reply goes to.
    Port,
    /// The address that it goes to.
    Address,
    /// The port that it goes to; the one that it comes from is the next number. These are the identifiers of pings.
    Pair,
}

/// A range of ports or addresses, both ends in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The lowest.
    pub low: u32,
    /// The highest.
    pub high: u32,
}

impl Variable {
    /// The reply with this value.
    pub fn set(self, mut reply: FlowId, value: u32) -> FlowId {
        match self {
            Self::Port => reply.destination_port = value as u16,
            Self::Address => reply.destination = Ipv4Addr::from_bits(value),
            Self::Pair => {
                reply.destination_port = value as u16;
                reply.source_port = (value as u16).wrapping_add(1);
            }
        }
        reply
    }

    /// The reply's value.
    pub fn get(self, reply: FlowId) -> u32 {
        match self {
            Self::Port | Self::Pair => u32::from(reply.destination_port),
            Self::Address => reply.destination.to_bits(),
        }
    }

    /// What replies have in common that differ in the value only.
    fn group(self, reply: FlowId) -> Group {
        let mut reply = self.set(reply, 0);
        if self == Self::Pair {
            reply.source_port = 0;
        }
        (self, reply)
    }
}

type Group = (Variable, FlowId);

/// Most groups have one value: a destination that one flow goes to.
#[derive(Debug)]
enum Values {
    One(u32),
    /// Runs of values: the first and the last of each. They neither touch nor overlap.
    Many(BTreeMap<u32, u32>),
}

/// The values that are taken, by group.
#[derive(Debug, Default)]
pub(super) struct Taken {
    groups: HashMap<Group, Values, RandomState>,
}

impl Taken {
    /// Takes the value that `reply` has.
    pub(super) fn insert(&mut self, variable: Variable, reply: FlowId) {
        let value = variable.get(reply);
        match self.groups.entry(variable.group(reply)) {
            Entry::Vacant(entry) => {
                entry.insert(Values::One(value));
            }
            Entry::Occupied(mut entry) => match entry.get_mut() {
                Values::One(one) => {
                    let mut runs = BTreeMap::from([(*one, *one)]);
                    insert(&mut runs, value);
                    entry.insert(Values::Many(runs));
                }
                Values::Many(runs) => insert(runs, value),
            },
        }
    }

    /// Frees the value that `reply` has, whichever way it is taken.
    pub(super) fn remove(&mut self, reply: FlowId) {
        if self.groups.is_empty() {
            return;
        }
        for variable in [Variable::Port, Variable::Address, Variable::Pair] {
            let value = variable.get(reply);
            if variable.set(reply, value) != reply {
                continue;
            }
            let Entry::Occupied(mut entry) = self.groups.entry(variable.group(reply)) else { continue };
            let empty = match entry.get_mut() {
                Values::One(one) => *one == value,
                Values::Many(runs) => {
                    remove(runs, value);
                    runs.is_empty()
                }
            };
            if empty {
                entry.remove();
            }
        }
    }

    /// The first value of a range that is free, from `start` on, and then from the range's beginning.
    pub(super) fn free(&self, variable: Variable, reply: FlowId, range: Range, start: u32) -> Option<u32> {
        match self.groups.get(&variable.group(reply)) {
            None => Some(start),
            Some(Values::One(one)) if *one != start => Some(start),
            Some(Values::One(_)) if range.low == range.high => None,
            Some(Values::One(_)) => Some(if start == range.high { range.low } else { start + 1 }),
            Some(Values::Many(runs)) => {
                let after = next(runs, start).filter(|&value| value <= range.high);
                after.or_else(|| next(runs, range.low).filter(|&value| value < start))
            }
        }
    }
}

/// The first value from `start` on that no run has.
fn next(runs: &BTreeMap<u32, u32>, start: u32) -> Option<u32> {
    match runs.range(..=start).next_back() {
        Some((_, &last)) if last >= start => last.checked_add(1),
        _ => Some(start),
    }
}

fn insert(runs: &mut BTreeMap<u32, u32>, value: u32) {
    let (mut first, mut last) = (value, value);
    if let Some((&before, &end)) = runs.range(..=value).next_back() {
        if end >= value {
            return;
        }
        if end + 1 == value {
            first = before;
        }
    }
    if let Some(end) = value.checked_add(1).and_then(|after| runs.remove(&after)) {
        last = end;
    }
    runs.insert(first, last);
}

fn remove(runs: &mut BTreeMap<u32, u32>, value: u32) {
    let Some((&first, &last)) = runs.range(..=value).next_back().filter(|(_, last)| **last >= value) else { return };
    if first == value {
        runs.remove(&first);
    } else {
        runs.insert(first, value - 1);
    }
    if value < last {
        runs.insert(value + 1, last);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use bifolio_testing::seed;

    use super::*;

    #[test]
    fn the_next_free_value_is_that_of_a_search_one_by_one() {
        let mut rng = fastrand::Rng::with_seed(seed());
        for variable in [Variable::Port, Variable::Address, Variable::Pair] {
            let bits = if variable == Variable::Address { u32::MAX } else { 0xffff };
            for low in [0, 1000, bits - 40] {
                let range = Range { low, high: low + rng.u32(0..=40) };
                let base = FlowId::new(Ipv4Addr::new(1, 2, 3, 4), 80, Ipv4Addr::new(5, 6, 7, 8), 0);
                let (mut taken, mut oracle) = (Taken::default(), HashSet::new());
                for _ in 0..3000 {
                    let value = rng.u32(range.low..=range.high);
                    let reply = variable.set(base, value);
                    if rng.u8(..3) > 0 {
                        taken.insert(variable, reply);
                        oracle.insert(value);
                    } else if oracle.remove(&value) {
                        taken.remove(reply);
                    }
                    let start = rng.u32(range.low..=range.high);
                    let mut search = (start..=range.high).chain(range.low..start);
                    let expected = search.find(|value| !oracle.contains(value));
                    assert_eq!(taken.free(variable, base, range, start), expected);
                }
                for &value in &oracle {
                    taken.remove(variable.set(base, value));
                }
                assert!(taken.groups.is_empty());
            }
        }
    }

    #[test]
    fn replies_that_differ_elsewhere_do_not_count() {
        let base = FlowId::new(Ipv4Addr::new(1, 2, 3, 4), 80, Ipv4Addr::new(5, 6, 7, 8), 0);
        let other = FlowId { source_port: 81, ..base };
        let range = Range { low: 1, high: 1 };
        let mut taken = Taken::default();
        taken.insert(Variable::Port, Variable::Port.set(base, 1));
        assert_eq!(taken.free(Variable::Port, base, range, 1), None);
        assert_eq!(taken.free(Variable::Port, other, range, 1), Some(1));
        assert_eq!(taken.free(Variable::Pair, base, range, 1), Some(1));
    }
}
