//! All rules at once: payloads are searched for a fast pattern of each rule; where it is, the rule's contents are looked for
//! with their places.
//!
//! Contents whose places count from something that is not known here match wherever they are: those in a buffer, since
//! nobody takes messages apart, and those behind an option that moves the cursor and is not evaluated. Negated ones of
//! that kind count as absent. So a rule never refuses a packet because of what is not understood of it.

use super::parse::Rules;
use super::rule::{Content, Opt, Problem, Rule};
use crate::matcher::{Hit, Matcher, Patterns};
use std::collections::HashMap;
use std::ops::ControlFlow;

/// Options that move the cursor from which `distance` and `within` count.
const MOVES: &[&str] = &["asn1", "base64_decode", "ber_skip", "byte_extract", "byte_jump", "byte_math"];

/// Where a content is looked for: it begins at `from` at the earliest, and ends `len` bytes behind that at the latest.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    is_relative: bool,
    from: i64,
    len: Option<i64>,
}

/// A content of a rule.
#[derive(Debug, Clone)]
struct Check {
    bytes: Vec<u8>,
    is_nocase: bool,
    is_negated: bool,
    window: Window,
}

/// What is known of the cursor while a rule is read.
#[derive(Default)]
struct Cursor<'a> {
    is_lost: bool,
    buffer: Option<&'a str>,
}

impl Check {
    /// Of a content; nothing where it counts as met.
    fn new(content: &Content, cursor: &Cursor<'_>) -> Option<Self> {
        let buffer = content.buffer.as_deref();
        let is_relative = content.is_relative();
        let is_known = if is_relative { !cursor.is_lost && cursor.buffer == buffer } else { buffer.is_none() };
        let (from, len) =
            if is_relative { (content.distance, content.within) } else { (content.offset, content.depth) };
        let window = Window { is_relative, from: from.unwrap_or(0).into(), len: len.map(i64::from) };
        if content.is_negated && (!is_known || buffer.is_some()) {
            return None;
        }
        Some(Self {
            bytes: content.bytes.clone(),
            is_nocase: content.is_nocase,
            is_negated: content.is_negated,
            window: if is_known { window } else { Window::default() },
        })
    }

    fn is_at(&self, payload: &[u8], at: usize) -> bool {
        let found = &payload[at..at + self.bytes.len()];
        if self.is_nocase { found.eq_ignore_ascii_case(&self.bytes) } else { found == self.bytes }
    }

    /// Where it begins in a part of the payload.
    fn places<'a>(&'a self, payload: &'a [u8], from: i64, end: i64) -> impl Iterator<Item = usize> + 'a {
        let last = end.min(payload.len() as i64) - self.bytes.len() as i64;
        let first = self.bytes.first().copied().unwrap_or_default();
        // Most places fail at the first byte, whatever its case.
        let may_be = move |at: &usize| payload.get(*at).is_some_and(|byte| byte.eq_ignore_ascii_case(&first));
        (from.max(0)..=last).map(|at| at as usize).filter(move |at| may_be(at) && self.is_at(payload, *at))
    }

    /// Where it may end, given where the content before it may end, in rising order: `cursors` becomes that. A negated one
    /// leaves those cursors that it is not behind. Says whether any way is left.
    fn apply(&self, payload: &[u8], cursors: &mut Vec<usize>, scratch: &mut Vec<usize>) -> bool {
        let Window { is_relative, from, len } = self.window;
        let base = if is_relative { cursors.first().map_or(0, |first| *first as i64) } else { 0 };
        let end = if is_relative { None } else { len.map(|len| from + len) }.unwrap_or(i64::MAX);
        scratch.clear();
        scratch.extend(self.places(payload, base + from, end));
        match (self.is_negated, is_relative) {
            (true, false) => return scratch.is_empty(),
            (true, true) => cursors.retain(|cursor| !self.is_behind(*cursor, scratch)),
            (false, is_relative) => {
                scratch.retain(|at| !is_relative || self.is_reached(*at, cursors));
                for at in scratch.iter_mut() {
                    *at += self.bytes.len();
                }
                std::mem::swap(cursors, scratch);
            }
        }
        !cursors.is_empty()
    }

    /// Whether one of these places is in the window behind a cursor.
    fn is_behind(&self, cursor: usize, places: &[usize]) -> bool {
        let start = cursor as i64 + self.window.from;
        let first = places.get(places.partition_point(|at| (*at as i64) < start));
        let end = |at: usize| (at + self.bytes.len()) as i64;
        first.is_some_and(|at| self.window.len.is_none_or(|len| end(*at) <= start + len))
    }

    /// Whether a place is in the window behind one of these cursors: the nearest one before it tells.
    fn is_reached(&self, at: usize, cursors: &[usize]) -> bool {
        let latest = at as i64 - self.window.from;
        let before = cursors.partition_point(|cursor| *cursor as i64 <= latest);
        let Some(cursor) = before.checked_sub(1).map(|nearest| cursors[nearest] as i64) else { return false };
        let end = (at + self.bytes.len()) as i64;
        self.window.len.is_none_or(|len| end <= cursor + self.window.from + len)
    }
}

/// The contents of a rule.
fn checks(rule: &Rule) -> Vec<Check> {
    let (mut checks, mut cursor) = (Vec::new(), Cursor::default());
    for option in &rule.options {
        match option {
            Opt::Content(content) => {
                checks.extend(Check::new(content, &cursor));
                if !content.is_negated {
                    cursor = Cursor { is_lost: false, buffer: content.buffer.as_deref() };
                }
            }
            Opt::Pcre { .. } => cursor.is_lost = true,
            Opt::Other(name, _) => cursor.is_lost |= MOVES.contains(&&name[..]),
        }
    }
    checks
}

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
    /// Of each rule, what is left to be looked for where its fast pattern is; nothing: it matches.
    checks: Vec<Vec<Check>>,
    matcher: Matcher,
    /// Of each literal, the rules whose fast pattern it is.
    of_pattern: Vec<Vec<u32>>,
}

impl RuleSet {
    /// Of these rules. Errors: there are none, or too many.
    pub fn new(read: Rules) -> Result<Self, String> {
        let Rules { rules, problems } = read;
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
        let checks = rules.iter().map(|rule| second_pass(checks(rule))).collect();
        Ok(Self { matcher: Matcher::new(patterns)?, rules, problems, checks, of_pattern })
    }

    /// The rules, in their order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// What is not understood of them.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Calls `each` with the number of every rule that matches a payload, from 0, once for each, in the order in which their fast patterns end, until it
    /// breaks.
    pub fn search(&self, payload: &[u8], scratch: &mut Scratch, mut each: impl FnMut(u32) -> ControlFlow<()>) {
        scratch.search += 1;
        scratch.seen.resize(self.rules.len(), 0);
        let _ = self.matcher.scan(payload, |Hit { pattern, .. }| {
            for &rule in &self.of_pattern[pattern as usize] {
                let seen = std::mem::replace(&mut scratch.seen[rule as usize], scratch.search);
                if seen != scratch.search && self.matches(rule, payload, scratch) {
                    each(rule)?;
                }
            }
            ControlFlow::Continue(())
        });
    }

    /// Whether all contents of a rule are where it says.
    fn matches(&self, rule: u32, payload: &[u8], scratch: &mut Scratch) -> bool {
        scratch.cursors.clear();
        scratch.cursors.push(0);
        let mut checks = self.checks[rule as usize].iter();
        checks.all(|check| check.apply(payload, &mut scratch.cursors, &mut scratch.places))
    }
}

/// A single content that may be anywhere is there where its literal was found.
fn second_pass(checks: Vec<Check>) -> Vec<Check> {
    match &checks[..] {
        [Check { is_negated: false, window: Window { from: ..=0, len: None, .. }, .. }] => Vec::new(),
        _ => checks,
    }
}
