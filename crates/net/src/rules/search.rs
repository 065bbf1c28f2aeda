//! All rules at once: payloads are searched for a fast pattern of each rule; where it is, the rule's header is compared with the
//! packet's, and its contents and expressions are looked for with their places. Rules whose fast pattern is in most packets go the
//! other way round: first the header, then the pattern.

use super::apart::Aparts;
use super::checks::{Check, Text, checks, second_pass};
use super::ends::{Ends, Facts, ITEMS_TOTAL, Variables};
use super::parse::Rules;
use super::pcre::Expressions;
use super::rule::{Content, Problem, Rule, What};
use super::summary::Summary;
use crate::matcher::{Automaton, Hit, Matcher, Patterns};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::OnceLock;

/// What a search needs beside the rules, to be used again for the next packet.
#[derive(Debug, Default)]
pub struct Scratch {
    /// When each rule was last looked at.
    seen: Vec<u64>,
    search: u64,
    cursors: Vec<usize>,
    places: Vec<usize>,
    /// Rules apart whose fast pattern is there, the last one first.
    waiting: Vec<Found>,
}

/// Where a rule's fast pattern ends first, in the order in which rules are looked at: by where that is, the longest pattern first,
/// then by its number, then by the rule's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    end: usize,
    len: Reverse<usize>,
    literal: u32,
    rule: u32,
}

impl Found {
    /// Behind all others.
    const LAST: Self = Self { end: usize::MAX, len: Reverse(0), literal: u32::MAX, rule: u32::MAX };
}

/// Rules, ready to search for.
#[derive(Debug)]
pub struct RuleSet {
    rules: Vec<Rule>,
    problems: Vec<Problem>,
    /// What headers say, each once, and that of each rule.
    ends: Vec<Ends>,
    of_rule: Vec<u32>,
    /// Of each rule, what is left to be looked for where its fast pattern is; nothing: it matches.
    checks: Vec<Vec<Check>>,
    matcher: Matcher,
    /// Of each literal, its number among those of all rules, and the rules whose fast pattern it is.
    of_pattern: Vec<(u32, Vec<u32>)>,
    /// All other rules.
    apart: Aparts,
    longest: usize,
    are_literals: bool,
    automaton: OnceLock<Automaton>,
}

impl RuleSet {
    /// Of these rules, whose variables have no values. Errors: there are none, or too many.
    pub fn new(read: Rules) -> Result<Self, String> {
        Self::with(read, &Variables::default())
    }

    /// Of these rules. Errors: there are none, or too many.
    pub fn with(read: Rules, variables: &Variables) -> Result<Self, String> {
        let Rules { rules, mut problems } = read;
        if rules.is_empty() {
            return Err("there are no rules".to_owned());
        }
        let (mut headers, mut expressions) = (Headers::new(), Expressions::default());
        let (mut all, mut of_rule) = (Vec::with_capacity(rules.len()), Vec::with_capacity(rules.len()));
        let (mut apart, mut longest, mut numbers) = (Aparts::default(), 0, HashMap::new());
        // Fast patterns, each once, and the rules whose fast pattern it is, but for those apart.
        let mut literals: Vec<(&Content, Vec<u32>)> = Vec::new();
        for (rule, at) in rules.iter().zip(0..) {
            let mut notes = Vec::new();
            let header = headers.number(rule, variables, &mut notes);
            of_rule.push(header);
            let checks = checks(rule, &mut expressions, &mut notes);
            if !notes.is_empty() {
                problems.push(Problem { line: rule.line, what: What::NotEvaluated(rule.sid, notes) });
            }
            let content = rule.fast_pattern().ok_or("a rule has no content to search for")?;
            longest = longest.max(content.bytes.len());
            let literal = *numbers.entry((&content.bytes, content.is_nocase)).or_insert(literals.len());
            if literal == literals.len() {
                literals.push((content, Vec::new()));
            }
            if apart.take(at, literal as u32, content, &headers.ends[header as usize]) {
                all.push(checks);
            } else {
                all.push(second_pass(checks));
                literals[literal].1.push(at);
            }
        }
        drop(numbers);
        let (mut patterns, mut of_pattern) = (Patterns::new(), Vec::new());
        for (literal, (content, rules)) in (0..).zip(literals).filter(|(_, (_, rules))| !rules.is_empty()) {
            patterns.add(&content.bytes, content.is_nocase)?;
            of_pattern.push((literal, rules));
        }
        let matcher = Matcher::new(patterns)?;
        problems.sort_by_key(|problem| problem.line);
        let (ends, checks, automaton) = (headers.ends, all, OnceLock::new());
        let are_literals = !apart.are_there(None) && ends.iter().all(Ends::is_any) && checks.iter().all(Vec::is_empty);
        Ok(Self {
            rules,
            problems,
            ends,
            of_rule,
            checks,
            matcher,
            of_pattern,
            apart,
            longest,
            are_literals,
            automaton,
        })
    }

    /// The rules, in their order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The length of the longest fast pattern, in bytes.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// What is not understood of them.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Whether all of them are literals of which any packet that has one matches: the first literal says the first rule.
    pub fn are_literals(&self) -> bool {
        self.are_literals
    }

    /// How many of them are searched for as they are written.
    pub fn summary(&self) -> Summary {
        Summary::new(self.rules.len(), &self.problems)
    }

    /// Calls `each` with the number of every rule that matches a payload, from 0, once for each, in the order in which their fast patterns end, until it
    /// breaks. A fast pattern counts that ends in the payload.
    pub fn search(&self, text: Text<'_>, scratch: &mut Scratch, mut each: impl FnMut(u32) -> ControlFlow<()>) {
        self.begin(text, scratch);
        let found = self.matcher.scan(text.bytes, |hit| self.look(hit, text, scratch, &mut each));
        if found.is_continue() {
            let _ = self.look_apart(Found::LAST, text, scratch, &mut each);
        }
    }

    /// The same where it is known which literals of the automaton are in a payload, in the order in which they end: others
    /// than these are not looked for.
    pub fn search_found(
        &self,
        text: Text<'_>,
        found: &[Hit],
        scratch: &mut Scratch,
        mut each: impl FnMut(u32) -> ControlFlow<()>,
    ) {
        self.begin(text, scratch);
        let found = found.iter().try_for_each(|hit| self.look(*hit, text, scratch, &mut each));
        if found.is_continue() {
            let _ = self.look_apart(Found::LAST, text, scratch, &mut each);
        }
    }

    /// Whether a packet in which no literal of the automaton is may match a rule nevertheless.
    #[inline]
    pub fn may_match_without(&self, facts: Option<&Facts>) -> bool {
        self.apart.are_there(facts)
    }

    /// Finds the rules apart that may match.
    fn begin(&self, text: Text<'_>, scratch: &mut Scratch) {
        scratch.search += 1;
        scratch.seen.resize(self.rules.len(), 0);
        scratch.waiting.clear();
        for apart in self.apart.of(text.facts.as_ref()).filter(|apart| self.is_for(apart.rule, text)) {
            let len = apart.needle.len();
            // It ends in the payload.
            let from = text.begin as i64 + 1 - len as i64;
            let first = apart.needle.places(text.bytes, from, i64::MAX).next();
            let found =
                |at: usize| Found { end: at + len, len: Reverse(len), literal: apart.literal, rule: apart.rule };
            scratch.waiting.extend(first.map(found));
        }
        scratch.waiting.sort_unstable_by_key(|found| Reverse(*found));
    }

    /// Looks at the rules whose fast pattern was found, and those apart that come before them.
    fn look(
        &self,
        hit: Hit,
        text: Text<'_>,
        scratch: &mut Scratch,
        each: &mut impl FnMut(u32) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if hit.end <= text.begin {
            return ControlFlow::Continue(());
        }
        let (literal, rules) = &self.of_pattern[hit.pattern as usize];
        for &rule in rules {
            if !scratch.waiting.is_empty() {
                let len = Reverse(self.matcher.patterns().get(hit.pattern).len());
                self.look_apart(Found { end: hit.end, len, literal: *literal, rule }, text, scratch, each)?;
            }
            self.try_out(rule, text, scratch, each)?;
        }
        ControlFlow::Continue(())
    }

    /// Looks at the rules apart that come before a place.
    fn look_apart(
        &self,
        before: Found,
        text: Text<'_>,
        scratch: &mut Scratch,
        each: &mut impl FnMut(u32) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        while let Some(found) = scratch.waiting.pop_if(|found| *found < before) {
            self.try_out(found.rule, text, scratch, each)?;
        }
        ControlFlow::Continue(())
    }

    /// Says that a rule matches, if it does and was not looked at before.
    fn try_out(
        &self,
        rule: u32,
        text: Text<'_>,
        scratch: &mut Scratch,
        each: &mut impl FnMut(u32) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let seen = std::mem::replace(&mut scratch.seen[rule as usize], scratch.search);
        let is_new = seen != scratch.search;
        if is_new && self.is_for(rule, text) && self.is_there(rule, text, scratch) {
            return each(rule);
        }
        ControlFlow::Continue(())
    }

    /// The automaton of the fast patterns, for devices. It is made when it is asked for first.
    pub fn automaton(&self) -> &Automaton {
        self.automaton.get_or_init(|| Automaton::new(self.matcher.patterns()))
    }

    /// Whether a rule is for the packet.
    fn is_for(&self, rule: u32, text: Text<'_>) -> bool {
        let ends = &self.ends[self.of_rule[rule as usize] as usize];
        text.facts.is_none_or(|facts| ends.is_met(&facts))
    }

    /// Whether all of a rule's contents are where it says.
    fn is_there(&self, rule: u32, text: Text<'_>, scratch: &mut Scratch) -> bool {
        scratch.cursors.clear();
        scratch.cursors.push(text.begin);
        let mut checks = self.checks[rule as usize].iter();
        checks.all(|check| check.apply(text, &mut scratch.cursors, &mut scratch.places))
    }

    #[cfg(test)]
    pub(super) fn apart(&self) -> &Aparts {
        &self.apart
    }
}

/// What headers say, each of which is read once.
struct Headers {
    ends: Vec<Ends>,
    numbers: HashMap<String, (u32, Vec<String>)>,
    /// How many addresses and ports there may still be.
    left: usize,
}

impl Headers {
    fn new() -> Self {
        Self { ends: Vec::new(), numbers: HashMap::new(), left: ITEMS_TOTAL }
    }

    /// The number of a rule's header. What of it is not evaluated goes to `notes`.
    fn number(&mut self, rule: &Rule, variables: &Variables, notes: &mut Vec<String>) -> u32 {
        let (ends, left) = (&mut self.ends, &mut self.left);
        let text = rule.header.to_string();
        let (number, told) = self.numbers.entry(text).or_insert_with(|| {
            let mut told = Vec::new();
            ends.push(Ends::new(&rule.header, variables, left, &mut told));
            (ends.len() as u32 - 1, told)
        });
        notes.extend(told.iter().cloned());
        *number
    }
}
