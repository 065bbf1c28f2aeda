//! The trie as words: their order is described at the head of `matcher`.

use super::filter;
use super::patterns::Patterns;
use super::trie::{self, NONE, Node, Trie};

/// Where the number of literals stands.
pub(super) const PATTERN_COUNT: usize = 1;
/// Where the position of the table of literals stands.
pub(super) const PATTERNS: usize = 2;
/// Where the length of the longest literal stands, in bytes.
pub(super) const LONGEST: usize = 3;
/// Where the position of the table of literals of one byte stands.
pub(super) const SINGLES: usize = 4;
/// Where the position of the bitmap of two bytes stands.
const PAIRS: usize = 5;
/// Where the position of the bitmap of four bytes stands.
const QUADS: usize = 6;
/// Where the number of words stands.
const WORDS: usize = 7;
/// Where the classes of bytes begin, four a word.
pub(super) const CLASSES: usize = 8;
/// The state in which nothing was found.
pub(super) const ROOT: u32 = CLASSES as u32 + 64;

/// Header: how many transitions there are.
pub(super) const COUNT: u32 = 0xff;
/// So many: a dense row.
pub(super) const DENSE: u32 = 0xff;
/// Header: a record follows.
pub(super) const RECORD_BIT: u32 = 8;
/// Header: a state to fail to follows.
pub(super) const FAIL_BIT: u32 = 9;
/// Header: the class of the only transition.
pub(super) const CLASS_SHIFT: u32 = 16;
/// Header: how many bytes of literals the state stands for, at most 255.
pub(super) const DEPTH_SHIFT: u32 = 24;
/// Table of literals: the case of letters counts.
pub(super) const CASED: u32 = 1 << 31;

/// A dense row for every eighth class: rows have at most eight words for each child, and sparse ones few to look through.
const DENSE_SHARE: usize = 8;

/// Where everything stands.
struct Plan<'a> {
    trie: &'a Trie,
    /// Children of each node.
    counts: Vec<u16>,
    /// The state of each node.
    states: Vec<u32>,
    /// The record of each node that is a literal; 0: it is none.
    records: Vec<u32>,
    /// Words in all, before the table of literals.
    len: usize,
}

impl<'a> Plan<'a> {
    fn new(trie: &'a Trie) -> Self {
        let nodes = 0..trie.nodes.len() as u32;
        let counts: Vec<u16> = nodes.map(|node| trie.children(node).count() as u16).collect();
        let mut plan = Self { trie, counts, states: Vec::new(), records: Vec::new(), len: ROOT as usize };
        for at in 0..trie.nodes.len() {
            plan.states.push(plan.len as u32);
            plan.len += plan.words_of(at);
        }
        for node in &trie.nodes {
            let words = if node.own.is_empty() { 0 } else { 2 + node.own.len() };
            plan.records.push(if words == 0 { 0 } else { plan.len as u32 });
            plan.len += words;
        }
        plan
    }

    fn is_dense(&self, at: usize) -> bool {
        self.trie.nodes[at].depth <= 1 || usize::from(self.counts[at]) * DENSE_SHARE >= self.trie.class_count
    }

    fn has_fail(&self, at: usize) -> bool {
        self.trie.nodes[at].fail != trie::ROOT && !self.is_dense(at)
    }

    fn words_of(&self, at: usize) -> usize {
        let links = usize::from(self.has_fail(at)) + usize::from(self.trie.nodes[at].record != NONE);
        let row = match usize::from(self.counts[at]) {
            _ if self.is_dense(at) => self.trie.class_count,
            0 | 1 => 0,
            count => count.div_ceil(4) + count,
        };
        1 + links + row
    }

    fn header(&self, at: usize, node: &Node) -> u32 {
        let record = u32::from(node.record != NONE) << RECORD_BIT;
        let fail = u32::from(self.has_fail(at)) << FAIL_BIT;
        let count = u32::from(self.counts[at]);
        let depth = node.depth.min(255) << DEPTH_SHIFT;
        depth
            | record
            | fail
            | match count {
                _ if self.is_dense(at) => DENSE,
                1 => 1 | u32::from(self.trie.nodes[at + 1].class) << CLASS_SHIFT,
                count => count,
            }
    }

    /// Appends a state.
    fn state(&self, at: usize, words: &mut Vec<u32>) {
        let node = &self.trie.nodes[at];
        words.push(self.header(at, node));
        if self.has_fail(at) {
            words.push(self.states[node.fail as usize]);
        }
        if node.record != NONE {
            words.push(self.records[node.record as usize]);
        }
        if self.is_dense(at) {
            // Written when all states stand: it is looked up in those that this one fails to.
            words.resize(words.len() + self.trie.class_count, ROOT);
        } else if self.counts[at] > 1 {
            let children: Vec<u32> = self.trie.children(at as u32).collect();
            let classes: Vec<u8> = children.iter().map(|child| self.trie.nodes[*child as usize].class).collect();
            pack(&classes, words);
            words.extend(children.iter().map(|child| self.states[*child as usize]));
        }
    }

    /// Fills dense rows, less deep ones first: the rows that one fails to are whole then.
    fn fill(&self, words: &mut [u32]) {
        let mut dense: Vec<usize> = (0..self.trie.nodes.len()).filter(|at| self.is_dense(*at)).collect();
        dense.sort_by_key(|at| self.trie.nodes[*at].depth);
        for at in dense {
            let row = row(words, self.states[at]);
            if at != trie::ROOT as usize {
                let fail = self.states[self.trie.nodes[at].fail as usize];
                for class in 0..self.trie.class_count {
                    words[row + class] = step(words, fail, class as u32);
                }
            }
            for child in self.trie.children(at as u32) {
                words[row + usize::from(self.trie.nodes[child as usize].class)] = self.states[child as usize];
            }
        }
    }
}

/// Appends bytes, four a word.
fn pack(bytes: &[u8], words: &mut Vec<u32>) {
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
    words.extend(bytes.chunks(4).map(word));
}

/// Where what follows a state's header and links stands.
#[inline]
fn row(words: &[u32], state: u32) -> usize {
    let header = words[state as usize];
    state as usize + 1 + (header >> RECORD_BIT & 1) as usize + (header >> FAIL_BIT & 1) as usize
}

/// The state that follows another one by a class.
#[inline]
pub(super) fn step(words: &[u32], mut state: u32, class: u32) -> u32 {
    loop {
        let header = words[state as usize];
        let row = row(words, state);
        match header & COUNT {
            DENSE => return words[row + class as usize],
            1 if header >> CLASS_SHIFT & 0xff == class => return row as u32,
            0 | 1 => {}
            count => {
                let is_it = |at: &u32| words[row + (at / 4) as usize] >> (8 * (at % 4)) & 0xff == class;
                if let Some(at) = (0..count).find(is_it) {
                    return words[row + (count.div_ceil(4) + at) as usize];
                }
            }
        }
        state = if header >> FAIL_BIT & 1 == 1 { words[state as usize + 1] } else { ROOT };
    }
}

/// The table of literals by their ranks, and their bytes.
fn add_patterns(patterns: &Patterns, by_rank: &[u32], words: &mut Vec<u32>) {
    let mut at = words.len() + 2 * patterns.len();
    let mut bytes = Vec::new();
    for &number in by_rank {
        let (literal, is_cased) = (patterns.get(number), patterns.is_cased(number));
        words.extend([literal.len() as u32 | if is_cased { CASED } else { 0 }, at as u32]);
        pack(literal, &mut bytes);
        at += literal.len().div_ceil(4);
    }
    words.extend(bytes);
}

/// All words of the automaton of these literals, and their numbers in the order of their ranks.
pub(super) fn words(patterns: &Patterns) -> (Vec<u32>, Vec<u32>) {
    let mut by_rank: Vec<u32> = (0..patterns.len() as u32).collect();
    by_rank.sort_by_key(|number| std::cmp::Reverse(patterns.get(*number).len()));
    let mut ranks = vec![0; patterns.len()];
    (0..).zip(&by_rank).for_each(|(rank, number)| ranks[*number as usize] = rank);
    let trie = Trie::new(patterns);
    let plan = Plan::new(&trie);
    let longest = by_rank.first().map_or(0, |number| patterns.get(*number).len());
    let mut words = vec![0; CLASSES];
    (words[0], words[PATTERN_COUNT], words[LONGEST]) = (trie.class_count as u32, patterns.len() as u32, longest as u32);
    pack(&trie.classes, &mut words);
    (0..trie.nodes.len()).for_each(|at| plan.state(at, &mut words));
    for (at, node) in (0..).zip(&trie.nodes).filter(|(_, node)| !node.own.is_empty()) {
        let next = trie.next_record(at);
        words.extend([node.own.len() as u32, if next == NONE { 0 } else { plan.records[next as usize] }]);
        let own = &trie.order[node.own.start as usize..node.own.end as usize];
        words.extend(own.iter().map(|number| ranks[*number as usize]));
    }
    debug_assert_eq!(words.len(), plan.len, "what was planned is what was written");
    plan.fill(&mut words);
    words[SINGLES] = filter::add_singles(patterns, &by_rank, &mut words);
    [words[PAIRS], words[QUADS]] = filter::add_bitmaps(patterns, &mut words);
    words[PATTERNS] = words.len() as u32;
    add_patterns(patterns, &by_rank, &mut words);
    words[WORDS] = words.len() as u32;
    (words, by_rank)
}
