//! Expressions as lists of alternatives, each a set of allowed values for each of some fields.
//!
//! What tables need. A list that would be too long, or a set with too many holes, becomes a wider one that also lets other
//! packets through; it is then not exact, and the expression itself decides about packets that are in it.

use std::collections::HashMap;
use std::rc::Rc;

use super::expr::{Area, Expr, Node, Test};

/// How many intervals a set of values has at most.
const INTERVALS_MAX: usize = 1 << 10;
/// The same for fields of more than two bytes.
const WIDE_INTERVALS_MAX: usize = 16;

/// A field: number in a header, most significant byte first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Field {
    pub(super) area: Area,
    pub(super) offset: u32,
    /// Bytes, 1 to 4.
    pub(super) len: u32,
    /// How many bytes the header must have.
    pub(super) need: u32,
}

impl Field {
    /// The largest number that it holds.
    pub(super) fn max(self) -> u32 {
        u32::MAX >> (32 - 8 * self.len)
    }
}

/// Values of a field: intervals, both ends included, in order and apart, and whether packets without the field count.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Set {
    pub(super) intervals: Vec<(u32, u32)>,
    pub(super) short: bool,
}

impl Set {
    fn is_empty(&self) -> bool {
        self.intervals.is_empty() && !self.short
    }

    fn is_full(&self, max: u32) -> bool {
        self.short && self.intervals == [(0, max)]
    }

    /// The values that pass a test; `None` if there would be too many intervals.
    fn of(test: &Test) -> Option<Self> {
        let field = field_of(test);
        let max = field.max();
        let limit = if field.len > 2 { WIDE_INTERVALS_MAX } else { INTERVALS_MAX };
        let intervals = if !test.greater {
            masked(test.mask & max, test.value, max, limit)?
        } else if test.mask | test.mask.wrapping_sub(1) == u32::MAX >> (32 - 8 * field.len) {
            // The mask's bits are the highest ones.
            let above = (test.value | !test.mask & max).checked_add(1).filter(|&above| above <= max);
            above.map(|above| (above, max)).into_iter().collect()
        } else if field.len == 1 {
            let passing = (0..=max).filter(|&number| test.passes(number)).map(|number| (number, number));
            united(passing.collect())
        } else {
            return None;
        };
        Some(Self { intervals, short: test.short })
    }

    fn complement(&self, max: u32) -> Self {
        let mut intervals = Vec::with_capacity(self.intervals.len() + 1);
        let mut next = Some(0);
        for &(low, high) in &self.intervals {
            if let Some(next) = next.filter(|&next| next < low) {
                intervals.push((next, low - 1));
            }
            next = high.checked_add(1);
        }
        if let Some(next) = next.filter(|&next| next <= max) {
            intervals.push((next, max));
        }
        Self { intervals, short: !self.short }
    }

    fn intersection(&self, other: &Self) -> Self {
        let (mut one, mut two) = (self.intervals.iter().peekable(), other.intervals.iter().peekable());
        let mut intervals = Vec::new();
        while let (Some(&&(low, high)), Some(&&(other_low, other_high))) = (one.peek(), two.peek()) {
            if low.max(other_low) <= high.min(other_high) {
                intervals.push((low.max(other_low), high.min(other_high)));
            }
            if high <= other_high {
                one.next()
            } else {
                two.next()
            };
        }
        Self { intervals, short: self.short && other.short }
    }
}

/// The field that a test is about.
fn field_of(test: &Test) -> Field {
    Field { area: test.area, offset: test.offset, len: test.len, need: test.need }
}

/// The numbers up to `max` whose bits under `mask` are those of `value`.
fn masked(mask: u32, value: u32, max: u32, limit: usize) -> Option<Vec<(u32, u32)>> {
    let free = !mask & max;
    let run = if free.trailing_ones() == 32 { u32::MAX } else { (1 << free.trailing_ones()) - 1 };
    let holes = free & !run;
    if holes.count_ones() > 16 || 1_usize << holes.count_ones() > limit {
        return None;
    }
    let mut intervals = Vec::with_capacity(1 << holes.count_ones());
    let mut bits = 0_u32;
    loop {
        let low = value & mask | bits;
        intervals.push((low, low | run));
        // The next subset of `holes`, in order.
        bits = bits.wrapping_sub(holes) & holes;
        if bits == 0 {
            return Some(intervals);
        }
    }
}

/// Intervals in order, with no two that touch.
fn united(mut intervals: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    intervals.sort_unstable();
    let mut result: Vec<(u32, u32)> = Vec::with_capacity(intervals.len());
    for (low, high) in intervals {
        match result.last_mut() {
            Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
            _ => result.push((low, high)),
        }
    }
    result
}

/// One alternative: the values that fields must have, in the order of fields; other fields may have any.
pub(super) type Term = Vec<(Field, Rc<Set>)>;

/// Alternatives.
#[derive(Debug, Clone)]
pub(super) struct Cover {
    pub(super) terms: Vec<Term>,
    /// Whether packets in it are those of the expression, not just some more.
    pub(super) exact: bool,
}

impl Cover {
    fn constant(value: bool) -> Self {
        Self { terms: if value { vec![Vec::new()] } else { Vec::new() }, exact: true }
    }

    fn unknown() -> Self {
        Self { exact: false, ..Self::constant(true) }
    }

    /// The alternatives of an expression, at most `limit` of them.
    pub(super) fn of(expr: &Expr, limit: usize) -> Self {
        // For each node itself and its opposite: pushing negations down instead could double what a condition covers at each
        // level.
        let mut covers: Vec<Option<[Self; 2]>> = Vec::with_capacity(expr.nodes().len());
        for node in expr.nodes() {
            // Each node has one parent, so its covers are used once.
            let mut take = |id: u32| covers[id as usize].take().expect("a node has one parent");
            let cover = match node {
                Node::Const(value) => [Self::constant(!*value), Self::constant(*value)],
                Node::Test(test) => Self::of_test(test),
                Node::Not(part) => {
                    let [not, itself] = take(*part);
                    [itself, not]
                }
                Node::And(parts) => {
                    let (not, all): (Vec<_>, Vec<_>) = parts.iter().map(|&part| <(_, _)>::from(take(part))).unzip();
                    [Self::any(not, limit), Self::all(all, limit)]
                }
                Node::Or(parts) => {
                    let (not, any): (Vec<_>, Vec<_>) = parts.iter().map(|&part| <(_, _)>::from(take(part))).unzip();
                    [Self::all(not, limit), Self::any(any, limit)]
                }
                Node::Choose(condition, yes, no) => {
                    let [[otherwise, condition], [not_yes, yes], [not_no, no]] = [*condition, *yes, *no].map(take);
                    let choose = |yes: Self, no: Self| {
                        let parts = [vec![condition.clone(), yes], vec![otherwise.clone(), no]];
                        Self::any(parts.map(|parts| Self::all(parts, limit)).into(), limit)
                    };
                    [choose(not_yes, not_no), choose(yes, no)]
                }
            };
            covers.push(Some(cover));
        }
        match covers.pop().flatten() {
            Some([_, cover]) => cover,
            None => Self::constant(true),
        }
    }

    fn of_test(test: &Test) -> [Self; 2] {
        if test.mask == 0 {
            return [!test.passes(0), test.passes(0)].map(Self::constant);
        }
        let Some(set) = Set::of(test) else { return [Self::unknown(), Self::unknown()] };
        let field = field_of(test);
        [set.complement(field.max()), set].map(|set| {
            let terms = match set {
                set if set.is_empty() => Vec::new(),
                set if set.is_full(field.max()) => vec![Vec::new()],
                set => vec![vec![(field, Rc::new(set))]],
            };
            Self { terms, exact: true }
        })
    }

    fn all(parts: Vec<Self>, limit: usize) -> Self {
        let mut result = Self::constant(true);
        for part in parts {
            result.exact &= part.exact;
            if result.terms.len() * part.terms.len() > limit {
                result.exact = false;
                if part.terms.len() < result.terms.len() {
                    result.terms = part.terms;
                }
                continue;
            }
            let pairs = result.terms.iter().flat_map(|one| part.terms.iter().map(move |two| both(one, two)));
            result.terms = pairs.flatten().collect();
        }
        // No packet is exactly none, however it came about.
        result.exact |= result.terms.is_empty();
        result
    }

    fn any(parts: Vec<Self>, limit: usize) -> Self {
        let exact = parts.iter().all(|part| part.exact);
        let mut terms: Vec<Term> = parts.into_iter().flat_map(|part| part.terms).collect();
        if terms.iter().any(Vec::is_empty) {
            return Self { exact, ..Self::constant(true) };
        }
        join(&mut terms);
        if terms.len() > limit {
            return Self::unknown();
        }
        Self { terms, exact }
    }
}

/// What is in both; `None` if that is nothing.
fn both(one: &Term, two: &Term) -> Option<Term> {
    let mut result = one.clone();
    for (field, set) in two {
        match result.binary_search_by_key(field, |entry| entry.0) {
            Err(at) => result.insert(at, (*field, Rc::clone(set))),
            Ok(at) if result[at].1 == *set => {}
            Ok(at) => {
                let common = result[at].1.intersection(set);
                if common.is_empty() {
                    return None;
                }
                result[at].1 = Rc::new(common);
            }
        }
    }
    Some(result)
}

/// Joins terms that differ in one field.
fn join(terms: &mut Vec<Term>) {
    let mut fields: Vec<Field> = terms.iter().flatten().map(|(field, _)| *field).collect();
    fields.sort_unstable();
    fields.dedup();
    for field in fields.into_iter().take(16) {
        if terms.len() < 2 {
            return;
        }
        let mut order: Vec<Term> = Vec::new();
        let mut groups: HashMap<Term, (usize, Vec<Rc<Set>>)> = HashMap::new();
        let mut others = Vec::new();
        for mut term in terms.drain(..) {
            let Ok(at) = term.binary_search_by_key(&field, |entry| entry.0) else {
                others.push(term);
                continue;
            };
            let (_, set) = term.remove(at);
            let group = groups.entry(term).or_insert_with_key(|rest| {
                order.push(rest.clone());
                (at, Vec::new())
            });
            group.1.push(set);
        }
        for mut rest in order {
            let Some((at, sets)) = groups.remove(&rest) else { continue };
            let set = match &sets[..] {
                [one] => Rc::clone(one),
                _ => Rc::new(Set {
                    intervals: united(sets.iter().flat_map(|set| set.intervals.iter().copied()).collect()),
                    short: sets.iter().any(|set| set.short),
                }),
            };
            if !set.is_full(field.max()) {
                rest.insert(at, (field, set));
            }
            terms.push(rest);
        }
        terms.append(&mut others);
    }
}
