//! Rules whose fast pattern is so short that it is in most packets: they are looked for one by one, in packets that are for them by
//! their ports.
//!
//! Of Snort's rules 3 in 100 have a fast pattern of one or two bytes. Among the literals that all packets are searched for
//! they would be found a hundred times in one of 1,500 bytes, and nearly always for nothing: they are of rules for a
//! port that packet does not go to. Snort parts all rules by ports for the same reason.
//!
//! How much a packet may cost is bounded, whatever the rules are: there are few rules for a port, and fewer for all of
//! them. Those beyond the bounds are searched for as all others.

use super::ends::{Ends, Facts, Ports};
use super::needle::Needle;
use super::rule::Content;
use std::collections::HashMap;

/// The longest fast pattern of such a rule, in bytes.
const SHORT: usize = 3;
/// A rule may be for so many ports at most.
const PORTS_MAX: usize = 512;
/// So many rules for one port.
const OF_PORT_MAX: usize = 64;
/// So many for any port. Their fast patterns have one byte: others are seldom found for nothing.
const ANYWHERE_MAX: usize = 8;
/// So many in all: those that are looked for in packets whose ports are not known.
const ALL_MAX: usize = 512;

/// One of these rules.
#[derive(Debug)]
pub(super) struct Apart {
    /// Its number.
    pub(super) rule: u32,
    /// The number of its fast pattern among those of all rules.
    pub(super) literal: u32,
    /// Its fast pattern.
    pub(super) needle: Needle,
}

/// All of them, by ports.
#[derive(Debug, Default)]
pub(super) struct Aparts {
    all: Vec<Apart>,
    /// Where they are in `all`, by the port that a packet comes from, and by that which it goes to.
    by_port: [ByPort; 2],
    /// Those for any port.
    anywhere: Vec<u32>,
}

/// Rules by a port.
#[derive(Debug, Default)]
struct ByPort {
    rules: HashMap<u16, Vec<u32>>,
    /// A bit for each port that has some: most packets meet none, and see that here.
    bits: Vec<u64>,
}

impl ByPort {
    fn of(&self, port: u16) -> &[u32] {
        let is_there = self.bits.get(usize::from(port / 64)).is_some_and(|bits| bits >> (port % 64) & 1 == 1);
        let rules = if is_there { self.rules.get(&port) } else { None };
        rules.map_or(&[], Vec::as_slice)
    }

    fn has_room(&self, port: u16) -> bool {
        self.of(port).len() < OF_PORT_MAX
    }

    fn add(&mut self, port: u16, at: u32) {
        self.bits.resize(1 << 10, 0);
        self.bits[usize::from(port / 64)] |= 1 << (port % 64);
        self.rules.entry(port).or_default().push(at);
    }
}

impl Aparts {
    /// Takes a rule, if it is one of these. Rules come in the order of their numbers.
    pub(super) fn take(&mut self, rule: u32, literal: u32, content: &Content, ends: &Ends) -> bool {
        let len = content.bytes.len();
        if len > SHORT || self.all.len() == ALL_MAX {
            return false;
        }
        let at = self.all.len() as u32;
        match ends.ports(PORTS_MAX) {
            Some(Ports { numbers, sides }) => {
                let sides = || (0..2).filter(|side| sides[*side]);
                let has_room = |side: usize| numbers.iter().all(|port| self.by_port[side].has_room(*port));
                if !sides().all(has_room) {
                    return false;
                }
                for side in sides() {
                    for port in &numbers {
                        self.by_port[side].add(*port, at);
                    }
                }
            }
            None if len == 1 && self.anywhere.len() < ANYWHERE_MAX => self.anywhere.push(at),
            None => return false,
        }
        self.all.push(Apart { rule, literal, needle: Needle::new(&content.bytes, content.is_nocase) });
        true
    }

    /// Whether there are any that may be for a packet.
    #[inline]
    pub(super) fn are_there(&self, facts: Option<&Facts>) -> bool {
        match facts.and_then(Facts::ports) {
            None => !self.all.is_empty(),
            Some([from, to]) => {
                !self.anywhere.is_empty() || !self.by_port[0].of(from).is_empty() || !self.by_port[1].of(to).is_empty()
            }
        }
    }

    /// Those that may be for a packet; some of them may come twice.
    pub(super) fn of(&self, facts: Option<&Facts>) -> impl Iterator<Item = &Apart> {
        let (some, rest): ([&[u32]; 3], &[Apart]) = match facts.and_then(Facts::ports) {
            None => ([&[]; 3], &self.all),
            Some([from, to]) => ([&self.anywhere, self.by_port[0].of(from), self.by_port[1].of(to)], &[]),
        };
        some.into_iter().flatten().map(|at| &self.all[*at as usize]).chain(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RuleSet, parse};
    use super::*;

    fn set(text: &str) -> RuleSet {
        RuleSet::new(parse(text.as_bytes())).unwrap()
    }

    fn facts(protocol: u8, ports: [u16; 2]) -> Facts {
        let segment = crate::streams::segment(ports, 0, 0, b"");
        let mut packet = segment.clone();
        packet[9] = protocol;
        Facts::of(&packet).unwrap()
    }

    fn of(set: &RuleSet, ports: [u16; 2]) -> Vec<u32> {
        let facts = facts(6, ports);
        let mut rules: Vec<u32> = set.apart().of(Some(&facts)).map(|apart| apart.rule).collect();
        assert_eq!(set.apart().are_there(Some(&facts)), !rules.is_empty());
        rules.sort_unstable();
        rules.dedup();
        rules
    }

    #[test]
    fn short_ones_wait_at_their_ports_and_few_at_all() {
        let set = set("alert tcp any any -> any 79 ( content:\"/\"; )
             alert tcp any [21,25] -> any any ( content:\"x\"; )
             alert tcp any any <> any 80:82 ( content:\"yy\"; )
             alert tcp any any -> any 79 ( content:\"long\"; )
             alert tcp any 1: -> any $WEB ( content:\"z\"; )
             alert tcp any 1: -> any 0:1024 ( content:\"zz\"; )");
        assert_eq!(of(&set, [5, 5]), [4]);
        assert_eq!(of(&set, [79, 79]), [0, 4]);
        assert_eq!(of(&set, [21, 79]), [0, 1, 4]);
        assert_eq!(of(&set, [5, 25]), [4]);
        assert_eq!((of(&set, [81, 5]), of(&set, [5, 82])), (vec![2, 4], vec![2, 4]));
        assert_eq!(set.apart().of(None).count(), 4);
        assert_eq!(set.automaton().patterns(), 2);
    }

    #[test]
    fn those_beyond_the_bounds_are_searched_for_as_all_others() {
        let rule =
            |port: &str, at: usize| format!("alert tcp any any -> any {port} ( content:\"|{:02x}|\"; )\n", at % 256);
        let many = |port: &str| set(&(0..200).map(|at| rule(port, at)).collect::<String>());
        for (port, bound) in [("7", OF_PORT_MAX), ("any", ANYWHERE_MAX), ("[7,8]", OF_PORT_MAX)] {
            let set = many(port);
            assert_eq!((of(&set, [0, 7]).len(), set.automaton().patterns()), (bound, 200 - bound), "{port}");
        }
        let all = set(&(0..1000).map(|at| rule(&at.to_string(), at)).collect::<String>());
        assert_eq!(all.apart().of(None).count(), ALL_MAX);
    }
}
