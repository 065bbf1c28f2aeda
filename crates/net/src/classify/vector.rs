//! Many rules at once: bit vectors over the values of fields.
//!
//! ```text
//!   field:  number ── table ──> class ──> a bit for each rule that lets numbers of this class through
//!   packet: the classes of all fields, their bits ANDed; the first bit that is left is the first rule that matches
//! ```
//!
//! Rules that differ in nothing for two numbers put them into one class, so there are at most twice as many classes as
//! intervals in rules. Fields with few classes are merged: a table of pairs gives the class of both. Bits stand in lines of
//! [`LINE`]; a word beside each class tells which of its lines have any, so most lines are never touched.
//!
//! Bounds: time for a packet is a table access for each field (three for addresses) and, at worst, one line for each [`LINE`] rules and field; memory is bounded by [`BYTES_MAX`], whatever the rules are. A rule
//! that is no list of alternatives has one bit that lets too much through, and its own program decides.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::cover::{Cover, Field, Term};
use super::expr::Expr;
use super::headers::Headers;
use super::program::{NONE, Program};

/// Bits in a line, which is a cache line.
const LINE: usize = 512;
/// How many bits there are at most: as many lines as a word has bits.
pub(super) const BITS_MAX: usize = 64 * LINE;
/// How many fields have tables at most; tests of others are left to programs.
const FIELDS_MAX: usize = 16;
/// Fields and their mergers.
const SLOTS_MAX: usize = 2 * FIELDS_MAX;
/// How many pairs of classes a table of two fields has at most: what stays in a second-level cache.
const PAIRS_MAX: usize = 1 << 16;
/// How many bytes all bits may take.
const BYTES_MAX: usize = 256 << 20;
/// How many alternatives a rule is made into at most; the next smaller number is tried if there are too many in all.
const ALTERNATIVES: [usize; 3] = [32, 4, 1];

/// Why rules have no vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLarge;

/// Bits of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(align(64))]
struct Line([u64; LINE / 64]);

impl Line {
    const EMPTY: Self = Self([0; LINE / 64]);

    fn flip(&mut self, bit: usize) {
        self.0[bit / 64] ^= 1 << (bit % 64);
    }

    fn and(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            *word &= other;
        }
    }
}

/// Sets of rules, each once: a class is the number of one.
#[derive(Debug, Default)]
struct Classes {
    /// The lines of all classes, one after the other.
    lines: Vec<Line>,
    by_hash: HashMap<u64, Vec<u16>>,
    hasher: RandomState,
    count: usize,
}

impl Classes {
    /// The class of a set.
    fn class(&mut self, set: &[Line]) -> Result<u16, TooLarge> {
        let same = self.by_hash.entry(self.hasher.hash_one(set)).or_default();
        let of = |class: u16| &self.lines[usize::from(class) * set.len()..][..set.len()];
        if let Some(&class) = same.iter().find(|&&class| of(class) == set) {
            return Ok(class);
        }
        let class = u16::try_from(self.count).map_err(|_| TooLarge)?;
        if (self.lines.len() + set.len()) * size_of::<Line>() > BYTES_MAX / 4 {
            return Err(TooLarge);
        }
        same.push(class);
        self.lines.extend_from_slice(set);
        self.count += 1;
        Ok(class)
    }
}

/// From the number in a field to its class.
#[derive(Debug)]
enum Table {
    /// A class for each number.
    Direct(Vec<u16>),
    /// By the upper half of a number, then a byte, then the last byte. Nodes that are alike exist once, so that there is one
    /// way for all numbers, without branches.
    Steps { upper: Vec<u32>, middle: Vec<u32>, last: Vec<u16> },
}

#[derive(Debug)]
struct Lookup {
    field: Field,
    table: Table,
    /// The class of packets without the field.
    short: u16,
}

impl Lookup {
    #[inline]
    fn class(&self, packet: &Headers<'_>) -> u16 {
        let bytes = self.field.area.of(packet);
        if bytes.len() < self.field.need as usize {
            return self.short;
        }
        let field = &bytes[self.field.offset as usize..];
        match (&self.table, self.field.len) {
            (Table::Direct(classes), 1) => classes[usize::from(field[0])],
            (Table::Direct(classes), _) => classes[usize::from(u16::from_be_bytes([field[0], field[1]]))],
            (Table::Steps { upper, middle, last }, len) => {
                let [high, low, middle_byte, last_byte] =
                    if len == 4 { [field[0], field[1], field[2], field[3]] } else { [0, field[0], field[1], field[2]] };
                let node = upper[usize::from(u16::from_be_bytes([high, low]))];
                let node = middle[node as usize + usize::from(middle_byte)];
                last[node as usize + usize::from(last_byte)]
            }
        }
    }
}

/// The class of two slots' classes.
#[derive(Debug)]
struct Merger {
    slots: [usize; 2],
    to: usize,
    /// How many classes the second slot has.
    width: usize,
    classes: Vec<u16>,
}

/// The bits of one slot's classes.
#[derive(Debug)]
struct Group {
    slot: usize,
    lines: Vec<Line>,
    /// For each class, a bit for each line with any.
    used: Vec<u64>,
}

/// The rule that a bit belongs to.
#[derive(Debug, Clone, Copy)]
struct Bit {
    verdict: u32,
    /// Which program decides; `NONE`: none, the bit is exact.
    program: u32,
}

/// Rules as bit vectors.
#[derive(Debug)]
pub(super) struct Vectors {
    lookups: Vec<Lookup>,
    mergers: Vec<Merger>,
    groups: Vec<Group>,
    bits: Vec<Bit>,
    programs: Vec<Program>,
    lines: usize,
}

impl Vectors {
    /// Tables for rules and their verdicts.
    pub(super) fn new(rules: &[(Expr, u32)]) -> Result<Self, TooLarge> {
        let mut result = Err(TooLarge);
        for limit in ALTERNATIVES {
            result = Self::with_alternatives(rules, limit);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn with_alternatives(rules: &[(Expr, u32)], limit: usize) -> Result<Self, TooLarge> {
        let mut covers = Vec::with_capacity(rules.len());
        let mut count = 0;
        for (expr, _) in rules {
            let cover = Cover::of(expr, limit);
            count += cover.terms.len();
            if count > BITS_MAX {
                return Err(TooLarge);
            }
            let last = cover.exact && cover.terms.iter().any(Vec::is_empty);
            covers.push(cover);
            if last {
                break;
            }
        }
        let fields = choose_fields(&mut covers);
        let mut terms: Vec<Term> = Vec::with_capacity(count);
        let (mut bits, mut programs) = (Vec::with_capacity(count), Vec::new());
        for (cover, (expr, verdict)) in covers.into_iter().zip(rules) {
            let program = if cover.exact { NONE } else { programs.len() as u32 };
            if !cover.exact {
                let mut own = Program::new([(expr, 0)], false);
                own.optimise(false);
                programs.push(own);
            }
            bits.resize(bits.len() + cover.terms.len(), Bit { verdict: *verdict, program });
            terms.extend(cover.terms);
        }
        let lines = bits.len().div_ceil(LINE).max(1);
        let mut result = Self { lookups: Vec::new(), mergers: Vec::new(), groups: Vec::new(), bits, programs, lines };
        let mut slots = Vec::new();
        for field in fields {
            let (lookup, classes) = look_up(field, &terms, lines)?;
            slots.push((result.lookups.len(), classes));
            result.lookups.push(lookup);
        }
        if slots.is_empty() {
            // Nothing depends on the packet. The first slot's class is 0 then.
            let mut classes = Classes::default();
            classes.class(&any_value(&terms, None, lines))?;
            slots.push((0, classes));
        }
        result.merge(&mut slots)?;
        let bytes: usize = slots.iter().map(|(_, classes)| classes.lines.len() * size_of::<Line>()).sum();
        if bytes > BYTES_MAX {
            return Err(TooLarge);
        }
        result.groups = slots.into_iter().map(|(slot, classes)| Group::new(slot, classes.lines, lines)).collect();
        // The most selective first: the others' lines are touched only where it leaves any.
        result.groups.sort_by_cached_key(Group::density);
        Ok(result)
    }

    /// Merges the two slots with the fewest classes while the table of their pairs is small.
    fn merge(&mut self, slots: &mut Vec<(usize, Classes)>) -> Result<(), TooLarge> {
        let mut next = self.lookups.len();
        while slots.len() > 1 {
            slots.sort_by_key(|(_, classes)| std::cmp::Reverse(classes.count));
            let pair = [&slots[slots.len() - 2], &slots[slots.len() - 1]];
            let [(one, ones), (two, twos)] = pair;
            if ones.count * twos.count > PAIRS_MAX {
                break;
            }
            let mut classes = Classes::default();
            let mut table = Vec::with_capacity(ones.count * twos.count);
            for first in ones.lines.chunks_exact(self.lines) {
                for second in twos.lines.chunks_exact(self.lines) {
                    let mut both = first.to_vec();
                    both.iter_mut().zip(second).for_each(|(line, other)| line.and(other));
                    table.push(classes.class(&both)?);
                }
            }
            self.mergers.push(Merger { slots: [*one, *two], to: next, width: twos.count, classes: table });
            slots.truncate(slots.len() - 2);
            slots.push((next, classes));
            next += 1;
        }
        Ok(())
    }

    /// The verdict on a packet.
    #[inline]
    pub(super) fn run(&self, packet: &Headers<'_>) -> u32 {
        let mut classes = [0_u16; SLOTS_MAX];
        for (class, lookup) in classes.iter_mut().zip(&self.lookups) {
            *class = lookup.class(packet);
        }
        for merger in &self.mergers {
            let [one, two] = merger.slots.map(|slot| usize::from(classes[slot]));
            classes[merger.to] = merger.classes[one * merger.width + two];
        }
        let mut left = u64::MAX;
        for group in &self.groups {
            left &= group.used[usize::from(classes[group.slot])];
        }
        while left != 0 {
            let line = left.trailing_zeros() as usize;
            left &= left - 1;
            let mut bits = Line([u64::MAX; LINE / 64]);
            for group in &self.groups {
                bits.and(&group.lines[usize::from(classes[group.slot]) * self.lines + line]);
            }
            if let Some(verdict) = self.first(line, &bits, packet) {
                return verdict;
            }
        }
        NONE
    }

    /// The verdict of the first rule among a line's bits that matches.
    #[inline]
    fn first(&self, line: usize, bits: &Line, packet: &Headers<'_>) -> Option<u32> {
        // Which words have any, without a branch for each.
        let words = bits.0.iter().enumerate();
        let mut used = words.fold(0_u32, |used, (at, &word)| used | u32::from(word != 0) << at);
        while used != 0 {
            let at = used.trailing_zeros() as usize;
            used &= used - 1;
            let mut word = bits.0[at];
            while word != 0 {
                let bit = self.bits[line * LINE + at * 64 + word.trailing_zeros() as usize];
                if bit.program == NONE || self.programs[bit.program as usize].run(packet) != NONE {
                    return Some(bit.verdict);
                }
                word &= word - 1;
            }
        }
        None
    }

    /// How many bytes the tables take.
    pub(super) fn bytes(&self) -> usize {
        let tables = self.lookups.iter().map(|lookup| match &lookup.table {
            Table::Direct(classes) => 2 * classes.len(),
            Table::Steps { upper, middle, last } => 4 * (upper.len() + middle.len()) + 2 * last.len(),
        });
        let mergers = self.mergers.iter().map(|merger| 2 * merger.classes.len());
        let groups = self.groups.iter().map(|group| size_of_val(&group.lines[..]) + 8 * group.used.len());
        tables.chain(mergers).chain(groups).sum()
    }
}

impl Group {
    fn new(slot: usize, lines: Vec<Line>, width: usize) -> Self {
        let used = lines.chunks_exact(width).map(|class| {
            let bits = class.iter().enumerate().map(|(at, line)| u64::from(*line != Line::EMPTY) << at);
            bits.fold(0, |all, bit| all | bit)
        });
        Self { slot, used: used.collect(), lines }
    }

    /// How many bits a class has, in the mean.
    fn density(&self) -> u64 {
        let ones: u64 = self.lines.iter().flat_map(|line| line.0).map(|word| u64::from(word.count_ones())).sum();
        ones / self.used.len().max(1) as u64
    }
}

/// The fields that most terms need; terms forget the others.
fn choose_fields(covers: &mut [Cover]) -> Vec<Field> {
    let mut counts: HashMap<Field, usize> = HashMap::new();
    for (field, _) in covers.iter().flat_map(|cover| &cover.terms).flatten() {
        *counts.entry(*field).or_default() += 1;
    }
    let mut fields: Vec<Field> = counts.keys().copied().collect();
    fields.sort_by_key(|field| (std::cmp::Reverse(counts[field]), *field));
    fields.truncate(FIELDS_MAX);
    for cover in covers {
        for term in &mut cover.terms {
            let before = term.len();
            term.retain(|(field, _)| fields.contains(field));
            cover.exact &= term.len() == before;
        }
    }
    fields
}

/// The rules that let any value of `field` through; of all fields, if there is none.
fn any_value(terms: &[Term], field: Option<Field>, lines: usize) -> Vec<Line> {
    let mut set = vec![Line::EMPTY; lines];
    for (bit, term) in terms.iter().enumerate() {
        if !term.iter().any(|(other, _)| Some(*other) == field) {
            set[bit / LINE].flip(bit % LINE);
        }
    }
    set
}

/// The table of a field, and its classes.
fn look_up(field: Field, terms: &[Term], lines: usize) -> Result<(Lookup, Classes), TooLarge> {
    let mut classes = Classes::default();
    let mut set = any_value(terms, Some(field), lines);
    let mut short = set.clone();
    // Where bits begin and end to be set: ends are one past, so beyond 32 bits.
    let mut events: Vec<(u64, u32)> = Vec::new();
    for (bit, term) in terms.iter().enumerate() {
        for (_, values) in term.iter().filter(|(other, _)| *other == field) {
            if values.short {
                short[bit / LINE].flip(bit % LINE);
            }
            for &(low, high) in &values.intervals {
                events.extend([(u64::from(low), bit as u32), (u64::from(high) + 1, bit as u32)]);
            }
        }
        if events.len() > 1 << 23 {
            return Err(TooLarge);
        }
    }
    events.sort_unstable();
    let short = classes.class(&short)?;
    // The first numbers of intervals without a change, and their classes.
    let mut starts: Vec<(u32, u16)> = Vec::new();
    let mut at = 0;
    let mut begin = 0;
    loop {
        while let Some((_, bit)) = events.get(at).filter(|event| event.0 == begin) {
            set[*bit as usize / LINE].flip(*bit as usize % LINE);
            at += 1;
        }
        let class = classes.class(&set)?;
        if starts.last().is_none_or(|last| last.1 != class) {
            starts.push((begin as u32, class));
        }
        match events.get(at) {
            Some(event) if event.0 <= u64::from(field.max()) => begin = event.0,
            _ => break,
        }
    }
    let table = if field.len <= 2 { direct(field, &starts) } else { steps(field, &starts)? };
    Ok((Lookup { field, table, short }, classes))
}

fn direct(field: Field, starts: &[(u32, u16)]) -> Table {
    let mut table = Vec::with_capacity(field.max() as usize + 1);
    for (at, &(_, class)) in starts.iter().enumerate() {
        let end = starts.get(at + 1).map_or(field.max() as usize + 1, |next| next.0 as usize);
        table.resize(end, class);
    }
    Table::Direct(table)
}

/// Nodes of 256 entries each, every one once.
struct Nodes<T> {
    entries: Vec<T>,
    known: HashMap<Vec<T>, u32>,
}

impl<T: Copy + Eq + std::hash::Hash> Nodes<T> {
    fn new() -> Self {
        Self { entries: Vec::new(), known: HashMap::new() }
    }

    /// Where the node with these entries begins.
    fn place(&mut self, node: &[T]) -> u32 {
        if let Some(&place) = self.known.get(node) {
            return place;
        }
        let place = self.entries.len() as u32;
        self.entries.extend_from_slice(node);
        self.known.insert(node.to_vec(), place);
        place
    }
}

fn steps(field: Field, starts: &[(u32, u16)]) -> Result<Table, TooLarge> {
    let (mut middle, mut last) = (Nodes::new(), Nodes::new());
    let mut upper = Vec::with_capacity(1 << 16);
    let mut rest = starts;
    // Nodes of numbers that are all of one class.
    let mut class = starts[0].1;
    let mut even: HashMap<u16, (u32, u32)> = HashMap::new();
    for high in 0..=field.max() >> 16 {
        let in_block = rest.iter().take_while(|start| start.0 >> 16 == high).count();
        let (block, after) = rest.split_at(in_block);
        rest = after;
        if block.is_empty() || block.len() == 1 && block[0].0 == high << 16 {
            class = block.first().map_or(class, |start| start.1);
            let (_, node) = *even.entry(class).or_insert_with(|| {
                let leaf = last.place(&[class; 256]);
                (leaf, middle.place(&[leaf; 256]))
            });
            upper.push(node);
            continue;
        }
        let mut node = [0; 256];
        let mut starts = block.iter().peekable();
        for (byte, entry) in node.iter_mut().enumerate() {
            let mut leaf = [0; 256];
            for (number, slot) in leaf.iter_mut().enumerate() {
                let number = high << 16 | (byte as u32) << 8 | number as u32;
                class = starts.next_if(|start| start.0 == number).map_or(class, |start| start.1);
                *slot = class;
            }
            *entry = last.place(&leaf);
        }
        upper.push(middle.place(&node));
        if 4 * middle.entries.len() + 2 * last.entries.len() > BYTES_MAX / 4 {
            return Err(TooLarge);
        }
    }
    Ok(Table::Steps { upper, middle: middle.entries, last: last.entries })
}
