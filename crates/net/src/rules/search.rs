//! All rules at once: payloads are searched for a fast pattern of each rule; where it is, the rule's header is compared with the
//! packet's, and its contents and expressions are looked for with their places.

use super::checks::{Check, Text, checks, second_pass};
use super::ends::{Ends, ITEMS_TOTAL, Variables};
use super::parse::Rules;
use super::pcre::Expressions;
use super::rule::{Problem, Rule};
use crate::matcher::{Automaton, Hit, Matcher, Patterns};
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
    /// Of each literal, the rules whose fast pattern it is.
    of_pattern: Vec<Vec<u32>>,
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
        let (mut patterns, mut numbers) = (Patterns::new(), HashMap::new());
        let mut of_pattern: Vec<Vec<u32>> = Vec::new();
        for (rule, at) in rules.iter().zip(0..) {
            let content = rule.fast_pattern().ok_or("a rule has no content to search for")?;
            let number = match numbers.get(&(&content.bytes, content.is_nocase)) {
                Some(number) => *number,
                None => patterns.add(&content.bytes, content.is_nocase)?,
            };
            numbers.insert((&content.bytes, content.is_nocase), number);
            of_pattern.resize_with(patterns.len(), Vec::new);
            of_pattern[number as usize].push(at);
        }
        drop(numbers);
        let matcher = Matcher::new(patterns)?;
        let (mut headers, mut expressions) = (Headers::new(), Expressions::default());
        let (mut all, mut of_rule) = (Vec::with_capacity(rules.len()), Vec::with_capacity(rules.len()));
        for rule in &rules {
            let mut notes = Vec::new();
            of_rule.push(headers.number(rule, variables, &mut notes));
            all.push(second_pass(checks(rule, &mut expressions, &mut notes)));
            if !notes.is_empty() {
                let text = format!("rule {}: not evaluated: {}", rule.sid, notes.join(", "));
                problems.push(Problem { line: rule.line, text });
            }
        }
        problems.sort_by_key(|problem| problem.line);
        let (ends, checks, automaton) = (headers.ends, all, OnceLock::new());
        Ok(Self { rules, problems, ends, of_rule, checks, matcher, of_pattern, automaton })
    }

    /// The rules, in their order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The length of the longest fast pattern, in bytes.
    pub fn longest(&self) -> usize {
        self.matcher.patterns().iter().map(<[u8]>::len).max().unwrap_or(0)
    }

    /// What is not understood of them.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Calls `each` with the number of every rule that matches a payload, from 0, once for each, in the order in which their fast patterns end, until it
    /// breaks. A fast pattern counts that ends in the payload.
    pub fn search(&self, text: Text<'_>, scratch: &mut Scratch, mut each: impl FnMut(u32) -> ControlFlow<()>) {
        scratch.search += 1;
        scratch.seen.resize(self.rules.len(), 0);
        let _ = self.matcher.scan(text.bytes, |Hit { pattern, end }| {
            if end <= text.begin { ControlFlow::Continue(()) } else { self.look(pattern, text, scratch, &mut each) }
        });
    }

    /// The same where it is known which literals are in a payload, by their numbers in the order in which they end: others
    /// than these are not looked for.
    pub fn search_found(
        &self,
        text: Text<'_>,
        found: &[u32],
        scratch: &mut Scratch,
        mut each: impl FnMut(u32) -> ControlFlow<()>,
    ) {
        scratch.search += 1;
        scratch.seen.resize(self.rules.len(), 0);
        let _ = found.iter().try_for_each(|&pattern| self.look(pattern, text, scratch, &mut each));
    }

    /// Looks at the rules whose fast pattern was found.
    fn look(
        &self,
        pattern: u32,
        text: Text<'_>,
        scratch: &mut Scratch,
        each: &mut impl FnMut(u32) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for &rule in &self.of_pattern[pattern as usize] {
            let seen = std::mem::replace(&mut scratch.seen[rule as usize], scratch.search);
            if seen != scratch.search && self.matches(rule, text, scratch) {
                each(rule)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// The automaton of the fast patterns, for devices. It is made when it is asked for first.
    pub fn automaton(&self) -> &Automaton {
        self.automaton.get_or_init(|| Automaton::new(self.matcher.patterns()))
    }

    /// Whether a rule is for the packet, and all of its contents are where it says.
    fn matches(&self, rule: u32, text: Text<'_>, scratch: &mut Scratch) -> bool {
        let ends = &self.ends[self.of_rule[rule as usize] as usize];
        if text.facts.is_some_and(|facts| !ends.is_met(&facts)) {
            return false;
        }
        scratch.cursors.clear();
        scratch.cursors.push(text.begin);
        let mut checks = self.checks[rule as usize].iter();
        checks.all(|check| check.apply(text, &mut scratch.cursors, &mut scratch.places))
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
