//! Rules as packets are compared with them: a cache line each, in lists by rank.

use super::key::{Key, PORTS, WORDS};
use super::rule::Rule;
use super::slots::NONE;

/// Words that most rules test, and that stand in their lines.
const NEAR: usize = 5;
const FAR: usize = WORDS - NEAR;

/// In a line's `place`: the rule tests words that stand elsewhere.
const IS_WIDE: u32 = 1 << 15;
/// The line has no rule.
const FREE: u32 = u32::MAX;

/// What decides between rules: the lower, the better.
pub(super) type Rank = u64;

/// A rank that no rule has.
pub(super) const WORST: Rank = Rank::MAX;

/// The rank of a rule: its priority, and how many came before it.
pub(super) fn rank(priority: u32, number: u32) -> Rank {
    u64::from(!priority) << 32 | u64::from(number)
}

/// A rule, in 16 words.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    value: [u32; NEAR],
    mask: [u32; NEAR],
    /// The last and the first one, 16 bits each.
    source_ports: u32,
    destination_ports: u32,
    /// Lower half, upper half.
    rank: [u32; 2],
    /// The output, 16 bits; `IS_WIDE`; the table's number.
    place: u32,
    next: u32,
}

const _: () = assert!(size_of::<Line>() == 64);

fn pack((first, last): (u16, u16)) -> u32 {
    u32::from(last) << 16 | u32::from(first)
}

fn unpack(ports: u32) -> (u16, u16) {
    (ports as u16, (ports >> 16) as u16)
}

/// Whether a port is one of a range.
#[inline]
fn is_in(port: u32, range: u32) -> bool {
    port.wrapping_sub(range & 0xffff) <= (range >> 16) - (range & 0xffff)
}

impl Line {
    #[inline]
    fn rank(&self) -> Rank {
        u64::from(self.rank[1]) << 32 | u64::from(self.rank[0])
    }

    #[inline]
    fn matches(&self, key: &Key) -> bool {
        let words = self.value.iter().zip(&self.mask).zip(&key.0);
        let differ = words.fold(0, |differ, ((value, mask), word)| differ | (word ^ value) & mask);
        differ == 0
            && is_in(key.0[PORTS] >> 16, self.source_ports)
            && is_in(key.0[PORTS] & 0xffff, self.destination_ports)
    }
}

/// The best rule that was found for a packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) rank: Rank,
    pub(super) output: Option<u16>,
}

impl Found {
    pub(super) const NOTHING: Self = Self { rank: WORST, output: None };
}

/// All lines, and which are free.
#[derive(Debug, Default)]
pub(super) struct Lists {
    lines: Vec<Line>,
    /// Values and masks of words that lines have no room for.
    far: Vec<[u32; FAR * 2]>,
    free: Vec<u32>,
}

impl Lists {
    /// How many rules there are.
    pub(super) fn len(&self) -> usize {
        self.lines.len() - self.free.len()
    }

    /// Stores a rule of a table; it is in no list yet.
    pub(super) fn store(&mut self, rule: &Rule, rank: Rank, table: usize) -> u32 {
        let near = |words: &[u32; WORDS]| std::array::from_fn(|word| words[word]);
        let half = |at: usize| if at < FAR { rule.value[NEAR + at] } else { rule.mask[WORDS - 2 * FAR + at] };
        let is_wide = if rule.mask[NEAR..].iter().any(|&mask| mask != 0) { IS_WIDE } else { 0 };
        let line = Line {
            value: near(&rule.value),
            mask: near(&rule.mask),
            source_ports: pack(rule.source_ports),
            destination_ports: pack(rule.destination_ports),
            rank: [rank as u32, (rank >> 32) as u32],
            place: u32::from(rule.output) << 16 | is_wide | table as u32,
            next: NONE,
        };
        let far = std::array::from_fn(half);
        if let Some(number) = self.free.pop() {
            (self.lines[number as usize], self.far[number as usize]) = (line, far);
            return number;
        }
        self.lines.push(line);
        self.far.push(far);
        self.lines.len() as u32 - 1
    }

    /// A rule that is stored.
    pub(super) fn rule(&self, number: u32) -> Rule {
        let (line, far) = (&self.lines[number as usize], &self.far[number as usize]);
        let words = |near: &[u32; NEAR], far: &[u32]| {
            std::array::from_fn(|word| if word < NEAR { near[word] } else { far[word - NEAR] })
        };
        Rule {
            value: words(&line.value, &far[..FAR]),
            mask: words(&line.mask, &far[FAR..]),
            source_ports: unpack(line.source_ports),
            destination_ports: unpack(line.destination_ports),
            priority: !line.rank[1],
            output: (line.place >> 16) as u16,
        }
    }

    /// All rules with their ranks, the best first.
    pub(super) fn sorted(&self) -> Vec<Rule> {
        let used = (0..self.lines.len() as u32).filter(|&number| self.lines[number as usize].place != FREE);
        let mut numbers: Vec<u32> = used.collect();
        numbers.sort_unstable_by_key(|&number| self.rank(number));
        numbers.into_iter().map(|number| self.rule(number)).collect()
    }

    /// The rank of a rule.
    pub(super) fn rank(&self, number: u32) -> Rank {
        self.lines[number as usize].rank()
    }

    /// The rules of a list.
    pub(super) fn list(&self, head: u32) -> impl Iterator<Item = u32> {
        let some = |number: u32| (number != NONE).then_some(number);
        std::iter::successors(some(head), move |&number| some(self.lines[number as usize].next))
    }

    /// Puts a rule into a list, by its rank. Returns the list's first rule.
    pub(super) fn insert(&mut self, head: u32, number: u32) -> u32 {
        let rank = self.rank(number);
        let before = self.list(head).take_while(|&other| self.rank(other) < rank).last();
        let next = before.map_or(head, |before| self.lines[before as usize].next);
        self.lines[number as usize].next = next;
        before.map_or(number, |before| {
            self.lines[before as usize].next = number;
            head
        })
    }

    /// Takes a rule out of its list, and forgets it. Returns the list's first rule.
    pub(super) fn remove(&mut self, head: u32, number: u32) -> u32 {
        let next = self.lines[number as usize].next;
        let before = self.list(head).find(|&other| self.lines[other as usize].next == number);
        if let Some(before) = before {
            self.lines[before as usize].next = next;
        }
        self.lines[number as usize].place = FREE;
        self.free.push(number);
        before.map_or(next, |_| head)
    }

    /// Looks a packet up in a list.
    #[inline]
    pub(super) fn look(&self, head: u32, key: &Key, found: &mut Found) {
        let mut at = head;
        while let Some(line) = self.lines.get(at as usize) {
            let rank = line.rank();
            if rank >= found.rank {
                return;
            }
            if line.matches(key) && (line.place & IS_WIDE == 0 || self.matches_far(at, key)) {
                *found = Found { rank, output: Some((line.place >> 16) as u16) };
                return;
            }
            at = line.next;
        }
    }

    #[inline]
    fn matches_far(&self, number: u32, key: &Key) -> bool {
        let (value, mask) = self.far[number as usize].split_at(FAR);
        (0..FAR).all(|word| (key.0[NEAR + word] ^ value[word]) & mask[word] == 0)
    }

    /// How many lines there are, those without a rule among them.
    pub(super) fn places(&self) -> u32 {
        self.lines.len() as u32
    }

    /// The outputs of all rules.
    pub(super) fn outputs(&self) -> impl Iterator<Item = u16> {
        self.lines.iter().filter(|line| line.place != FREE).map(|line| (line.place >> 16) as u16)
    }

    /// All lines, as words.
    pub(super) fn lines(&self) -> impl Iterator<Item = [u32; 16]> {
        self.lines.iter().map(|line| {
            let (value, mask, rank) = (&line.value, &line.mask, &line.rank);
            let last = [line.source_ports, line.destination_ports, rank[0], rank[1], line.place, line.next];
            std::array::from_fn(|at| match at {
                0..5 => value[at],
                5..10 => mask[at - 5],
                _ => last[at - 10],
            })
        })
    }

    /// For each line, values and masks of words that it has no room for.
    pub(super) fn far(&self) -> impl Iterator<Item = [u32; FAR * 2]> {
        self.far.iter().copied()
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.lines.len() * 64 + self.far.len() * FAR * 8
    }
}
