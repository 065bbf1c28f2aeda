//! Decision programs: tests of masked words, each with the step to go to if it holds and if it does not.
//!
//! A program is a directed graph without cycles: every jump goes forward. It is what the handler `program` shows, and what
//! classifies packets when there are few rules; many rules have tables (see `vector`).

use std::fmt::Write;

use super::expr::{Area, Expr, Id, Node, Test};
use super::headers::Headers;

/// The verdict of a packet that no pattern matches.
pub(super) const NONE: u32 = u32::MAX;

/// Where a step leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Jump {
    /// To another step, a later one.
    Step(u32),
    /// To an output, or `NONE`.
    Out(u32),
}

/// To the next rule, which is not known yet.
const PENDING: Jump = Jump::Out(NONE - 1);

/// The test of a step. Equal tests are the same question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Question {
    pub(super) area: Area,
    /// The first byte of the word, a multiple of 4. In Ethernet headers, two bytes before the header count as well, which
    /// keeps addresses aligned as Click has them.
    pub(super) word: u32,
    /// How many bytes must be there, at most `word + 4`.
    pub(super) need: u32,
    /// The bits that count; zero: always true.
    pub(super) mask: u32,
    pub(super) value: u32,
    /// The result if the bytes are not there.
    pub(super) short: bool,
}

/// A step: `jumps[1]` if the test holds, `jumps[0]` if not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) ask: Question,
    pub(super) jumps: [Jump; 2],
}

/// How many bytes precede an area's first one.
const fn padding(area: Area) -> u32 {
    match area {
        Area::Mac => 2,
        Area::Network | Area::Transport => 0,
    }
}

impl Question {
    /// What is always true.
    pub(super) const ALWAYS: Self = Self { area: Area::Network, word: 0, need: 0, mask: 0, value: 0, short: false };

    fn new(test: &Test, mask: u32, value: u32, short: bool) -> Self {
        let first = test.offset + padding(test.area);
        let word = first & !3;
        let shift = 8 * (word + 4 - first - test.len);
        let need = if mask == 0 { 0 } else { test.need + padding(test.area) };
        Self { area: test.area, word, need, mask: mask << shift, value: (value & mask) << shift, short }
    }

    /// The word, if all bytes that it needs are there; those behind them are zero.
    #[cold]
    fn load_partly(&self, bytes: &[u8]) -> Option<u32> {
        let padding = padding(self.area);
        if bytes.len() + (padding as usize) < self.need as usize {
            return None;
        }
        let byte = |at: u32| match at.checked_sub(padding) {
            Some(at) => bytes.get(at as usize).copied().unwrap_or(0),
            None => 0,
        };
        Some(u32::from_be_bytes([0, 1, 2, 3].map(|at| byte(self.word + at))))
    }

    #[inline]
    fn holds(&self, bytes: &[u8]) -> bool {
        let first = self.word.wrapping_sub(padding(self.area)) as usize;
        match bytes.get(first..).and_then(|rest| rest.first_chunk()) {
            Some(word) => u32::from_be_bytes(*word) & self.mask == self.value,
            None if self.mask == 0 => true,
            None => self.load_partly(bytes).map_or(self.short, |word| word & self.mask == self.value),
        }
    }
}

/// A program.
#[derive(Debug, Clone, Default)]
pub(super) struct Program {
    /// Steps; the first one begins.
    pub(super) steps: Vec<Step>,
    /// The verdict of all packets, where there are no steps.
    pub(super) all: u32,
    /// Offsets are printed as they are: a packet's own, not a header's.
    raw: bool,
    /// The same steps for packets that are long enough for all of them.
    long: Long,
}

/// Steps that look at one area, for packets of at least `need` bytes there. Without steps, there is no such program.
#[derive(Debug, Clone, Default)]
struct Long {
    need: usize,
    steps: Vec<LongStep>,
}

/// A step whose mask and value are in the order of a packet's bytes.
#[derive(Debug, Clone, Copy)]
struct LongStep {
    at: u32,
    mask: u32,
    value: u32,
    /// To a later step; or a verdict, with `VERDICT` set.
    jumps: [u32; 2],
}

/// Of verdicts, which are less but for `NONE`: that is `VERDICT | LAST`.
const VERDICT: u32 = 1 << 31;
const LAST: u32 = VERDICT - 1;

impl Long {
    /// Of steps that look at the network area alone.
    fn new(steps: &[Step]) -> Self {
        if !steps.iter().all(|step| step.ask.area == Area::Network) {
            return Self::default();
        }
        let jump = |jump| match jump {
            Jump::Step(step) => step,
            Jump::Out(verdict) => VERDICT | verdict.min(LAST),
        };
        let long = |Step { ask, jumps }: &Step| LongStep {
            at: ask.word,
            mask: ask.mask.to_be(),
            value: ask.value.to_be(),
            jumps: jumps.map(jump),
        };
        let need = steps.iter().map(|step| step.ask.word as usize + 4).max().unwrap_or(0);
        Self { need, steps: steps.iter().map(long).collect() }
    }

    /// The verdict on a packet that is long enough.
    #[inline]
    fn run(&self, bytes: &[u8]) -> Option<u32> {
        let mut at = 0;
        while let Some(step) = self.steps.get(at as usize) {
            let word = bytes.get(step.at as usize..)?.first_chunk()?;
            at = step.jumps[usize::from(u32::from_ne_bytes(*word) & step.mask == step.value)];
        }
        let verdict = at & LAST;
        (at & VERDICT != 0).then_some(if verdict == LAST { NONE } else { verdict })
    }
}

impl Program {
    /// Tries `rules` in order: the first one that holds decides.
    pub(super) fn new<'a>(rules: impl IntoIterator<Item = (&'a Expr, u32)>, raw: bool) -> Self {
        let mut program = Self { steps: Vec::new(), all: NONE, raw, long: Long::default() };
        let mut before = 0;
        for (expr, verdict) in rules {
            let here = program.steps.len();
            program.link(before, Jump::Step(here as u32));
            program.append(expr, verdict);
            before = here;
        }
        program.link(before, Jump::Out(NONE));
        program
    }

    /// Makes what is pending from the step `from` on lead to `to`.
    fn link(&mut self, from: usize, to: Jump) {
        for jump in self.steps[from..].iter_mut().flat_map(|step| &mut step.jumps) {
            if *jump == PENDING {
                *jump = to;
            }
        }
    }

    /// Appends the steps of an expression, which lead to a verdict, or are pending.
    fn append(&mut self, expr: &Expr, verdict: u32) {
        let nodes = expr.nodes();
        let mut entries = Vec::with_capacity(nodes.len());
        let mut next = self.steps.len() as u32;
        for node in nodes {
            entries.push(match node {
                Node::Const(_) | Node::Test(_) => next,
                Node::Not(part) | Node::Choose(part, ..) => entries[*part as usize],
                Node::And(parts) | Node::Or(parts) => entries[parts[0] as usize],
            });
            match node {
                Node::Const(_) => next += 1,
                Node::Test(test) => next += pieces(test).len() as u32,
                _ => {}
            }
        }
        let mut targets = vec![[PENDING, Jump::Out(verdict)]; nodes.len()];
        for at in (0..nodes.len()).rev() {
            let enter = |id: Id| Jump::Step(entries[id as usize]);
            let [no, yes] = targets[at];
            match &nodes[at] {
                Node::Const(_) | Node::Test(_) => {}
                Node::Not(part) => targets[*part as usize] = [yes, no],
                Node::And(parts) => chain(parts, |id, next| targets[id as usize] = [no, next.map_or(yes, enter)]),
                Node::Or(parts) => chain(parts, |id, next| targets[id as usize] = [next.map_or(no, enter), yes]),
                Node::Choose(condition, then, other) => {
                    targets[*condition as usize] = [enter(*other), enter(*then)];
                    targets[*then as usize] = [no, yes];
                    targets[*other as usize] = [no, yes];
                }
            }
        }
        for (node, jumps) in nodes.iter().zip(targets) {
            match node {
                Node::Const(value) => {
                    let jump = jumps[usize::from(*value)];
                    self.steps.push(Step { ask: Question::ALWAYS, jumps: [jump; 2] });
                }
                Node::Test(test) => self.append_test(test, jumps),
                _ => {}
            }
        }
    }

    /// The steps of a test: one for an equality, else several that narrow it down from the highest bits.
    fn append_test(&mut self, test: &Test, [no, yes]: [Jump; 2]) {
        let pieces = pieces(test);
        let count = pieces.len();
        for (at, piece) in pieces.into_iter().enumerate() {
            let next = Jump::Step(self.steps.len() as u32 + 1);
            let last = at + 1 == count;
            let jumps = match piece.kind {
                PieceKind::Equal => [no, yes],
                PieceKind::AllSet => [no, if last { yes } else { next }],
                PieceKind::NoneSet => [yes, if last { no } else { next }],
            };
            let short = test.short != (piece.kind == PieceKind::NoneSet);
            self.steps.push(Step { ask: Question::new(test, piece.mask, piece.value, short), jumps });
        }
    }

    /// The steps are all there, and in their final order.
    pub(super) fn finish(&mut self) {
        self.long = Long::new(&self.steps);
    }

    /// The verdict on a packet.
    #[inline]
    pub(super) fn run(&self, packet: &Headers<'_>) -> u32 {
        if packet.network.len() >= self.long.need
            && let Some(verdict) = self.long.run(packet.network)
        {
            return verdict;
        }
        let transport = Area::Transport.of(packet);
        let mut at = 0;
        while let Some(step) = self.steps.get(at) {
            let bytes = match step.ask.area {
                Area::Network => packet.network,
                Area::Transport => transport,
                Area::Mac => packet.mac,
            };
            match step.jumps[usize::from(step.ask.holds(bytes))] {
                Jump::Step(next) => at = next as usize,
                Jump::Out(verdict) => return verdict,
            }
        }
        self.all
    }

    /// Each verdict that the program can come to; some of them perhaps for no packet.
    pub(super) fn verdicts(&self) -> impl Iterator<Item = u32> {
        let of_steps = self.steps.iter().flat_map(|step| step.jumps).filter_map(|jump| match jump {
            Jump::Out(verdict) => Some(verdict),
            Jump::Step(_) => None,
        });
        of_steps.chain(self.steps.is_empty().then_some(self.all))
    }

    /// The program as Click prints it.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let base = |area| match area {
            Area::Network if !self.raw => 256,
            Area::Transport => 512,
            Area::Network | Area::Mac => 0,
        };
        let jump = |jump| match jump {
            Jump::Step(step) => format!("step {step}"),
            Jump::Out(NONE) => "[X]".into(),
            Jump::Out(output) => format!("[{output}]"),
        };
        let mut safe = 0;
        for (at, Step { ask, jumps }) in self.steps.iter().enumerate() {
            let offset = ask.word + base(ask.area);
            safe = safe.max(ask.need + base(ask.area));
            let (yes, no) = (jump(jumps[1]), jump(jumps[0]));
            let short = if ask.short { "  short->yes" } else { "" };
            let _ = writeln!(text, "{at:2} {offset:3}/{:08x}%{:08x}  yes->{yes}  no->{no}{short}", ask.value, ask.mask);
        }
        if self.steps.is_empty() {
            let _ = writeln!(text, "all->{}", jump(Jump::Out(self.all)).trim_start_matches("step "));
        }
        let _ = writeln!(text, "safe length {safe}\nalignment offset 0");
        text
    }
}

/// Calls with each part and the one after it.
fn chain(parts: &[Id], mut each: impl FnMut(Id, Option<Id>)) {
    for (at, &part) in parts.iter().enumerate() {
        each(part, parts.get(at + 1).copied());
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PieceKind {
    Equal,
    /// If so, the lower bits decide, else no.
    AllSet,
    /// If so, the lower bits decide, else yes.
    NoneSet,
}

struct Piece {
    kind: PieceKind,
    mask: u32,
    value: u32,
}

/// A test as equalities: "greater" from the highest bits down. While the value's highest bits are zeros, a packet with one of
/// them set is greater; while they are ones, a packet without one of them is not.
fn pieces(test: &Test) -> Vec<Piece> {
    if !test.greater {
        return vec![Piece { kind: PieceKind::Equal, mask: test.mask, value: test.value }];
    }
    let mut pieces = Vec::new();
    let mut mask = test.mask;
    let mut value = reduce(test.value, mask);
    while value < mask {
        let ones = value > mask >> 1;
        // The bits from the highest one down that are alike in the value.
        let other = if ones { !value.wrapping_add(1) & mask } else { value };
        let lower = if other == 0 { 0 } else { u32::MAX >> other.leading_zeros() };
        let upper = mask & !lower;
        let kind = if ones { PieceKind::AllSet } else { PieceKind::NoneSet };
        pieces.push(Piece { kind, mask: upper, value: if ones { upper } else { 0 } });
        mask &= !upper;
        value &= mask;
    }
    if pieces.is_empty() {
        // Nothing is greater; a test of no bits that never holds.
        pieces.push(Piece { kind: PieceKind::NoneSet, mask: 0, value: 0 });
    }
    pieces
}

/// The largest number of the mask's bits that is not above `value`: a masked field is greater than the one if, and only if, it
/// is greater than the other.
fn reduce(value: u32, mask: u32) -> u32 {
    match value & !mask {
        0 => value,
        outside => (value | u32::MAX >> outside.leading_zeros()) & mask,
    }
}
