//! Makes programs shorter: tests whose result is known from the tests before them are left out, and tests of one word that
//! lead the same way become one.
//!
//! Known is what holds on every path to a step. All paths would be too many, so a step keeps at most [`PATHS`] sets of facts,
//! such that each path has all facts of one of the sets; beyond that, what the sets share remains. Results stay the same for
//! every packet, the short ones included.

use std::collections::HashMap;

use super::expr::Area;
use super::program::{Jump, NONE, Program, Question, Step};

/// How many sets of facts a step keeps.
const PATHS: usize = 4;
/// The longest program whose paths are followed: time and memory grow with the square.
const STEPS_MAX: usize = 1024;

/// A question and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Fact {
    ask: Question,
    answer: bool,
}

impl Fact {
    /// Whether it says that the question's bytes are there.
    fn present(self) -> bool {
        self.answer != self.ask.short && self.ask.mask != 0
    }

    /// Whether the fact makes the answer to `ask` certain; `known` bytes of its header are there.
    fn decides(self, ask: &Question, known: u32) -> Option<bool> {
        if self.ask.area != ask.area || self.ask.word != ask.word {
            return None;
        }
        [false, true].into_iter().find(|&answer| {
            // The packets of the fact are some that have its bytes, and perhaps some that are too short for them.
            let none_short = self.present() || known >= self.ask.need;
            let short_ones = none_short || self.ask.need <= ask.need && ask.short == answer;
            let others_there = known.max(self.ask.need) >= ask.need || ask.short == answer;
            short_ones && others_there && self.implies(ask, answer)
        })
    }

    /// Whether words that answer the fact's question so answer `ask` with `answer`.
    fn implies(self, ask: &Question, answer: bool) -> bool {
        let common = self.ask.mask & ask.mask;
        let alike = (self.ask.value ^ ask.value) & common == 0;
        match (self.answer, answer) {
            (true, true) => common == ask.mask && alike,
            (true, false) => !alike,
            (false, false) => common == self.ask.mask && alike,
            (false, true) => self.ask.mask == ask.mask && ask.mask.is_power_of_two() && !alike,
        }
    }
}

/// Facts that hold together.
#[derive(Debug, Clone, Default)]
struct Path {
    facts: Vec<Fact>,
    /// How many bytes of each header are there.
    known: [u32; 3],
}

impl Path {
    fn decides(&self, ask: &Question) -> Option<bool> {
        if ask.mask == 0 {
            return Some(true);
        }
        let known = self.known[ask.area as usize];
        self.facts.iter().rev().find_map(|fact| fact.decides(ask, known))
    }

    fn learn(&mut self, fact: Fact) {
        if fact.present() {
            let known = &mut self.known[fact.ask.area as usize];
            *known = fact.ask.need.max(*known);
        }
        // Each fact once: `common` counts them.
        if !self.facts.contains(&fact) {
            self.facts.push(fact);
        }
    }

    /// What all of `paths` share.
    fn common(paths: &[Self]) -> Self {
        let (first, rest) = paths.split_first().expect("there are paths");
        let mut counts: HashMap<Fact, usize> = HashMap::new();
        for path in rest {
            for &fact in &path.facts {
                *counts.entry(fact).or_default() += 1;
            }
        }
        let facts = first.facts.iter().copied().filter(|fact| counts.get(fact) == Some(&rest.len())).collect();
        let known = [0, 1, 2].map(|area| paths.iter().map(|path| path.known[area]).min().unwrap_or(0));
        Self { facts, known }
    }
}

impl Program {
    /// Optimises; `sorted` orders the tests of a conjunction or disjunction first, which brings equal ones together.
    pub(super) fn optimise(&mut self, sorted: bool) {
        if self.steps.len() <= STEPS_MAX {
            if sorted {
                self.sort();
            }
            self.follow_paths();
            self.combine();
        }
        self.remove_unused();
        if sorted && self.steps.len() <= STEPS_MAX {
            self.sort();
        }
    }

    /// How many steps lead to each step.
    fn count_origins(&self) -> Vec<u32> {
        let mut counts = vec![0; self.steps.len()];
        for jump in self.steps.iter().flat_map(|step| step.jumps) {
            if let Jump::Step(to) = jump {
                counts[to as usize] += 1;
            }
        }
        counts
    }

    /// Orders neighbours in conjunctions and disjunctions by what they test.
    fn sort(&mut self) {
        // Protocols come before fragments, although their word comes after.
        let key = |ask: &Question| {
            let word = if ask.area == Area::Network && ask.word == 8 { 3 } else { ask.word };
            (ask.area, word, ask.mask, ask.value)
        };
        let origins = self.count_origins();
        let mut changed = true;
        while changed {
            changed = false;
            for at in 0..self.steps.len() {
                for side in [0, 1] {
                    let Jump::Step(next) = self.steps[at].jumps[side] else { continue };
                    let (one, two) = (self.steps[at], self.steps[next as usize]);
                    let alike = one.jumps[1 - side] == two.jumps[1 - side] && origins[next as usize] == 1;
                    if alike && key(&one.ask) > key(&two.ask) {
                        self.steps[at].ask = two.ask;
                        self.steps[next as usize].ask = one.ask;
                        changed = true;
                    }
                }
            }
        }
    }

    /// Moves each jump past the steps that are decided on all paths that take it.
    fn follow_paths(&mut self) {
        let mut paths: Vec<Vec<Path>> = vec![Vec::new(); self.steps.len()];
        if let Some(first) = paths.first_mut() {
            first.push(Path::default());
        }
        for at in 0..self.steps.len() {
            let mut here = std::mem::take(&mut paths[at]);
            if here.is_empty() {
                self.steps[at].jumps = [Jump::Out(NONE); 2];
                self.steps[at].ask = Question::ALWAYS;
                continue;
            }
            if here.len() > PATHS {
                here = vec![Path::common(&here)];
            }
            let taken = [false, true].map(|answer| self.follow(at, answer, &here, &mut paths));
            // Where nothing goes, the other way does as well, and the step decides nothing.
            let jumps = &mut self.steps[at].jumps;
            match taken {
                [false, _] => jumps[0] = jumps[1],
                [_, false] => jumps[1] = jumps[0],
                _ => {}
            }
        }
    }

    /// Moves one jump; whether any path takes it.
    fn follow(&mut self, at: usize, answer: bool, here: &[Path], paths: &mut [Vec<Path>]) -> bool {
        let ask = self.steps[at].ask;
        let taking = here.iter().filter(|path| path.decides(&ask).is_none_or(|decided| decided == answer));
        let taking: Vec<Path> = taking
            .map(|path| {
                let mut path = path.clone();
                if ask.mask != 0 {
                    path.learn(Fact { ask, answer });
                }
                path
            })
            .collect();
        if taking.is_empty() {
            return false;
        }
        let to = self.steps[at].jumps[usize::from(answer)];
        let to = self.last_common(to, &taking);
        self.steps[at].jumps[usize::from(answer)] = to;
        if let Jump::Step(next) = to {
            paths[next as usize].extend(taking);
        }
        true
    }

    /// The last jump that is on the ways of all `paths` from `to` on, each as far as its facts decide.
    fn last_common(&self, to: Jump, paths: &[Path]) -> Jump {
        let way = |path: &Path| {
            let mut way = vec![to];
            let mut jump = to;
            while let Jump::Step(at) = jump
                && let Some(answer) = path.decides(&self.steps[at as usize].ask)
            {
                jump = self.steps[at as usize].jumps[usize::from(answer)];
                way.push(jump);
            }
            way
        };
        let mut common = way(&paths[0]);
        for path in &paths[1..] {
            let other = way(path);
            common.retain(|jump| other.contains(jump));
        }
        *common.last().expect("`to` is on all of them")
    }

    /// Joins tests of one word that lead the same way.
    fn combine(&mut self) {
        for at in (0..self.steps.len()).rev() {
            while self.combine_no(at) || self.combine_yes(at) {}
        }
    }

    /// Two values that differ in one bit and lead to the same step need no test of that bit.
    fn combine_no(&mut self, at: usize) -> bool {
        let Jump::Step(next) = self.steps[at].jumps[0] else { return false };
        let other = self.steps[next as usize];
        let step = &mut self.steps[at];
        let (one, two) = (step.ask, other.ask);
        if one.area != two.area || one.word != two.word {
            return false;
        }
        if one.mask.is_power_of_two() && (one.value ^ two.value) & one.mask & two.mask == 0 {
            step.flip();
            return false;
        }
        let differ = one.value ^ two.value;
        let pair = one.mask == two.mask && one.need == two.need && step.jumps[1] == other.jumps[1];
        if !pair || !differ.is_power_of_two() || two.short && !one.short {
            return false;
        }
        step.ask.mask &= !differ;
        step.ask.value &= !differ;
        if step.ask.mask == 0 && step.ask.need > 0 {
            // Without a bit to test there is nothing to be too short for.
            (step.ask.mask, step.ask.value) = (one.mask, one.value);
            return false;
        }
        step.jumps[0] = other.jumps[0];
        true
    }

    /// A test and the one that follows if it holds are one, if both lead to the same step otherwise.
    fn combine_yes(&mut self, at: usize) -> bool {
        let Jump::Step(next) = self.steps[at].jumps[1] else { return false };
        let no = self.steps[at].jumps[0];
        let other = &mut self.steps[next as usize];
        if no == other.jumps[1] && other.ask.mask.is_power_of_two() {
            other.flip();
        }
        let other = *other;
        let step = &mut self.steps[at];
        let (one, two) = (step.ask, other.ask);
        let alike = one.area == two.area && one.word == two.word && (one.value ^ two.value) & one.mask & two.mask == 0;
        let short = match (one.short, two.short) {
            (false, false) => Some(false),
            (true, true) => (one.need == two.need).then_some(true),
            (false, true) => (two.need <= one.need).then_some(false),
            (true, false) => (one.need <= two.need).then_some(false),
        };
        let Some(short) = short.filter(|_| alike && no == other.jumps[0] && one.mask != 0 && two.mask != 0) else {
            return false;
        };
        let (mask, value) = (one.mask | two.mask, one.value | two.value);
        step.ask = Question { mask, value, short, need: one.need.max(two.need), ..one };
        step.jumps[1] = other.jumps[1];
        true
    }

    /// Leaves out steps that decide nothing, and those that nothing leads to.
    fn remove_unused(&mut self) {
        let mut means: Vec<Jump> = (0..self.steps.len() as u32).map(Jump::Step).collect();
        for at in (0..self.steps.len()).rev() {
            for jump in &mut self.steps[at].jumps {
                if let Jump::Step(to) = *jump {
                    *jump = means[to as usize];
                }
            }
            let Step { ask, jumps } = self.steps[at];
            if ask.mask == 0 || jumps[0] == jumps[1] {
                means[at] = jumps[1];
            }
        }
        let Some(&start) = means.first() else { return };
        let mut kept = vec![false; self.steps.len()];
        match start {
            Jump::Out(verdict) => self.all = verdict,
            Jump::Step(first) => kept[first as usize] = true,
        }
        let mut places = vec![0; self.steps.len()];
        let mut steps: Vec<Step> = Vec::new();
        for at in 0..self.steps.len() {
            if kept[at] {
                places[at] = steps.len() as u32;
                steps.push(self.steps[at]);
                for jump in self.steps[at].jumps {
                    if let Jump::Step(to) = jump {
                        kept[to as usize] = true;
                    }
                }
            }
        }
        for jump in steps.iter_mut().flat_map(|step| &mut step.jumps) {
            if let Jump::Step(to) = jump {
                *to = places[*to as usize];
            }
        }
        self.steps = steps;
    }
}

impl Step {
    /// Asks for the opposite of a single bit.
    fn flip(&mut self) {
        self.ask.value ^= self.ask.mask;
        self.ask.short = !self.ask.short;
        self.jumps.swap(0, 1);
    }
}
