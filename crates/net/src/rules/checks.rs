//! What a rule looks for in a packet that its fast pattern is in: contents and expressions with their places.
//!
//! Contents whose places count from something that is not known here match wherever they are: those in a buffer, since
//! nobody takes messages apart, and those behind an option that moves the cursor and is not evaluated. Negated ones of
//! that kind count as absent. So a rule never refuses a packet because of what is not understood of it.

use super::ends::Facts;
use super::needle::Needle;
use super::pcre::{Expressions, Pcre, Written};
use super::rule::{Content, Opt, Rule};
use std::sync::Arc;

/// Behind so many places an expression is looked for at most, so that a packet cannot have it searched for at each of its bytes.
const TRIES_MAX: usize = 64;

/// Options that move the cursor from which `distance` and `within` count.
const MOVES: &[&str] = &["asn1", "base64_decode", "ber_skip", "byte_extract", "byte_jump", "byte_math"];

/// What is searched: a payload, and before it what the packet before ended with, where flows are followed.
#[derive(Debug, Clone, Copy)]
pub struct Text<'a> {
    /// All of it.
    pub bytes: &'a [u8],
    /// Where the payload begins.
    pub begin: usize,
    /// What headers of rules look at; nothing: they are not looked at.
    pub facts: Option<Facts>,
}

impl<'a> From<&'a [u8]> for Text<'a> {
    /// A payload alone.
    fn from(bytes: &'a [u8]) -> Self {
        Self { bytes, begin: 0, facts: None }
    }
}

/// From where a content's place counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Base {
    /// From nowhere: it may be anywhere, before the payload too.
    #[default]
    Anywhere,
    /// From where the payload begins.
    Payload,
    /// From the end of the content before it.
    Last,
}

/// Where a content is looked for: it begins at `from` at the earliest, and ends `len` bytes behind that at the latest.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    base: Base,
    from: i64,
    len: Option<i64>,
}

/// A content or an expression of a rule.
#[derive(Debug, Clone)]
pub(super) enum Check {
    Literal(Literal),
    Expression(Expression),
}

impl Check {
    /// Where it may end, given where what is before it may end, in rising order: `cursors` becomes that. What is negated leaves
    /// those cursors that it is not behind. Says whether any way is left.
    pub(super) fn apply(&self, text: Text<'_>, cursors: &mut Vec<usize>, scratch: &mut Vec<usize>) -> bool {
        match self {
            Self::Literal(literal) => literal.apply(text, cursors, scratch),
            Self::Expression(expression) => expression.apply(text, cursors, scratch),
        }
    }
}

/// A content.
#[derive(Debug, Clone)]
pub(super) struct Literal {
    needle: Needle,
    is_negated: bool,
    window: Window,
}

/// What is known of the cursor while a rule is read.
#[derive(Default)]
struct Cursor<'a> {
    is_lost: bool,
    buffer: Option<&'a str>,
}

impl Literal {
    /// Of a content; nothing where it counts as met.
    fn new(content: &Content, cursor: &Cursor<'_>) -> Option<Self> {
        let buffer = content.buffer.as_deref();
        let is_relative = content.is_relative();
        let is_known = if is_relative { !cursor.is_lost && cursor.buffer == buffer } else { buffer.is_none() };
        let (from, len) =
            if is_relative { (content.distance, content.within) } else { (content.offset, content.depth) };
        let base = match (is_relative, from, len) {
            (true, ..) => Base::Last,
            (false, None, None) => Base::Anywhere,
            (false, ..) => Base::Payload,
        };
        let window = Window { base, from: from.unwrap_or(0).into(), len: len.map(i64::from) };
        if content.is_negated && (!is_known || buffer.is_some()) {
            return None;
        }
        Some(Self {
            needle: Needle::new(&content.bytes, content.is_nocase),
            is_negated: content.is_negated,
            window: if is_known { window } else { Window::default() },
        })
    }

    fn apply(&self, text: Text<'_>, cursors: &mut Vec<usize>, scratch: &mut Vec<usize>) -> bool {
        let Window { base, from, len } = self.window;
        let is_relative = base == Base::Last;
        let first = match base {
            Base::Anywhere => from,
            Base::Payload => text.begin as i64 + from,
            Base::Last => cursors.first().map_or(0, |first| *first as i64) + from,
        };
        let end = len.filter(|_| !is_relative).map_or(i64::MAX, |len| first + len);
        scratch.clear();
        scratch.extend(self.needle.places(text.bytes, first, end));
        match (self.is_negated, is_relative) {
            (true, false) => return scratch.is_empty(),
            (true, true) => cursors.retain(|cursor| !self.is_behind(*cursor, scratch)),
            (false, is_relative) => {
                scratch.retain(|at| !is_relative || self.is_reached(*at, cursors));
                for at in scratch.iter_mut() {
                    *at += self.needle.len();
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
        let end = |at: usize| (at + self.needle.len()) as i64;
        first.is_some_and(|at| self.window.len.is_none_or(|len| end(*at) <= start + len))
    }

    /// Whether a place is in the window behind one of these cursors: the nearest one before it tells.
    fn is_reached(&self, at: usize, cursors: &[usize]) -> bool {
        let latest = at as i64 - self.window.from;
        let before = cursors.partition_point(|cursor| *cursor as i64 <= latest);
        let Some(cursor) = before.checked_sub(1).map(|nearest| cursors[nearest] as i64) else { return false };
        let end = (at + self.needle.len()) as i64;
        self.window.len.is_none_or(|len| end <= cursor + self.window.from + len)
    }
}

/// A regular expression.
#[derive(Debug, Clone)]
pub(super) struct Expression {
    pcre: Arc<Pcre>,
    is_negated: bool,
    base: Base,
    looks_at_begin: bool,
}

impl Expression {
    /// As it is written, where it is looked for in a buffer, if it is. An error: why it counts as met.
    fn new(
        (written, pcre): (Written, Arc<Pcre>),
        buffer: Option<&str>,
        cursor: &Cursor<'_>,
    ) -> Result<Option<Self>, String> {
        let Written { is_negated, is_relative, looks_at_begin, looks_at_end, .. } = written;
        // Where a buffer begins is not known, but where a content in it ends, which this one counts from, is; its end is not.
        let is_known = if is_relative { !cursor.is_lost && cursor.buffer == buffer } else { buffer.is_none() };
        if is_negated && (!is_known || buffer.is_some()) {
            return Ok(None);
        }
        if looks_at_begin && !is_known || looks_at_end && buffer.is_some() {
            return Err("pcre with an anchor in a part of the message".to_owned());
        }
        let base = match (is_known, is_relative) {
            (true, true) => Base::Last,
            (true, false) if looks_at_begin => Base::Payload,
            _ => Base::Anywhere,
        };
        Ok(Some(Self { pcre, is_negated, base, looks_at_begin }))
    }

    fn apply(&self, text: Text<'_>, cursors: &mut Vec<usize>, scratch: &mut Vec<usize>) -> bool {
        let end = |at: usize| self.pcre.end(&text.bytes[at..]).map(|end| at + end);
        let first = match self.base {
            Base::Anywhere => Some(0),
            Base::Payload => Some(text.begin),
            Base::Last => None,
        };
        let tried = cursors.len().min(TRIES_MAX);
        scratch.clear();
        match first {
            Some(first) if self.is_negated => return end(first).is_none(),
            Some(first) => scratch.extend(end(first)),
            None if self.is_negated => {
                let mut at = 0;
                cursors.retain(|cursor| {
                    at += 1;
                    at > tried || end(*cursor).is_none()
                });
                return !cursors.is_empty();
            }
            None => scratch.extend(cursors[..tried].iter().filter_map(|cursor| end(*cursor))),
        }
        // What is not found behind the first cursor is behind none, unless it has to begin there.
        if scratch.is_empty() && tried < cursors.len() && self.looks_at_begin {
            return true;
        }
        scratch.sort_unstable();
        scratch.dedup();
        std::mem::swap(cursors, scratch);
        !cursors.is_empty()
    }
}

/// The contents and expressions of a rule. What of them counts as met although it should not goes to `notes`.
pub(super) fn checks(rule: &Rule, expressions: &mut Expressions, notes: &mut Vec<String>) -> Vec<Check> {
    let (mut checks, mut cursor) = (Vec::new(), Cursor::default());
    for option in &rule.options {
        match option {
            Opt::Content(content) => {
                checks.extend(Literal::new(content, &cursor).map(Check::Literal));
                if !content.is_negated {
                    cursor = Cursor { is_lost: false, buffer: content.buffer.as_deref() };
                }
            }
            Opt::Pcre { text, buffer } => {
                let read = expressions.get(text).and_then(|read| {
                    let (is_negated, buffer) = (read.0.is_negated, read.0.buffer.or(buffer.as_deref()));
                    Ok((is_negated, buffer, Expression::new(read, buffer, &cursor)?))
                });
                match read {
                    Ok((is_negated, buffer, expression)) => {
                        checks.extend(expression.map(Check::Expression));
                        // In a buffer it may match first at another place than in the payload.
                        cursor.is_lost = if is_negated { cursor.is_lost } else { buffer.is_some() };
                        cursor.buffer = if is_negated { cursor.buffer } else { None };
                    }
                    Err(note) => {
                        notes.push(note);
                        cursor.is_lost = true;
                    }
                }
            }
            Opt::Other(name, _) => cursor.is_lost |= MOVES.contains(&&name[..]),
        }
    }
    checks
}

/// A single content that may be anywhere is there where its literal was found.
pub(super) fn second_pass(checks: Vec<Check>) -> Vec<Check> {
    match &checks[..] {
        [Check::Literal(Literal { is_negated: false, window: Window { base: Base::Anywhere, .. }, .. })] => Vec::new(),
        _ => checks,
    }
}
