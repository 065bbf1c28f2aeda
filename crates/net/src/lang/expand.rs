//! Variables in configuration strings, and the scopes that give them values.
//!
//! ```text
//!   $name ${name} ${name-default} ${name[1]}    a variable, with a default, or the second word of its value
//!   $(handler arguments)                        a handler's value, for those who can call handlers
//!   $? $# $$                                    for scripts
//! ```
//!
//! Within `"..."` a value is quoted as it needs to be there; within `'...'` and comments nothing is expanded. A variable
//! that has no value stays as it is.

use std::cell::Cell;
use std::rc::Rc;

use super::config;

/// Values that contain variables are expanded to this depth.
const MAX_DEPTH: usize = 10;
/// As many bytes may the values in a configuration have together. A few lines can ask for any number by values that
/// contain variables.
const MAX_BYTES: usize = 64 << 20;

/// How a variable is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `$name`.
    Plain,
    /// `${...}`.
    Braces,
    /// `$(...)`.
    Parentheses,
}

/// Who knows the values of variables.
pub trait Variables {
    /// The value of what is written as `text`, in the given form; nothing where there is none.
    ///
    /// `depth` is how many values this one is within; a value that contains variables is expanded by [`expand_at`] at
    /// `depth + 1`.
    fn value(&self, text: &str, form: Form, depth: usize) -> Option<String>;
}

/// Expands the variables in a configuration string.
pub fn expand(text: &str, variables: &dyn Variables) -> String {
    expand_at(text, variables, false, 0)
}

/// Expands the variables in a configuration string, and quotes all values that stand outside of quotes.
pub fn expand_quoting(text: &str, variables: &dyn Variables) -> String {
    expand_at(text, variables, true, 0)
}

/// Expands the variables in a text that is itself within `depth` values.
pub fn expand_at(text: &str, variables: &dyn Variables, quote_bare: bool, depth: usize) -> String {
    if depth > MAX_DEPTH || !text.contains('$') {
        return text.to_string();
    }
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let (mut kept, mut at, mut quote) = (0, 0, None);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if quote == Some(b'"') => at += 1,
            byte @ (b'"' | b'\'') if quote.is_none() => quote = Some(byte),
            byte if quote == Some(byte) => quote = None,
            b'/' if quote.is_none() && config::is_comment(bytes, at) => {
                at = config::skip_blank(bytes, at);
                continue;
            }
            b'$' if quote != Some(b'\'') => {
                let Some(found) = find_variable(text, at) else {
                    at += 1;
                    continue;
                };
                out.push_str(&text[kept..at]);
                push_value(&mut out, &text[at..found.end], &found, variables, quote, quote_bare, depth);
                (kept, at) = (found.end, found.end);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    out.push_str(&text[kept..]);
    out
}

/// A variable in a text.
struct Found<'a> {
    name: &'a str,
    form: Form,
    end: usize,
    /// Whether there are variables within it.
    nested: bool,
}

/// The variable whose `$` is at `at`.
fn find_variable(text: &str, at: usize) -> Option<Found<'_>> {
    let bytes = text.as_bytes();
    let start = at + 2;
    let (form, name_start, name_end, end) = match bytes.get(at + 1)? {
        b'{' => {
            let close = start + text[start..].find('}')?;
            (Form::Braces, start, close, close + 1)
        }
        b'(' => {
            let close = closing_parenthesis(bytes, start)?;
            (Form::Parentheses, start, close, close + 1)
        }
        b'?' | b'#' | b'$' => (Form::Plain, at + 1, start, start),
        byte if is_variable_byte(*byte) => {
            let len = bytes[at + 1..].iter().take_while(|&&byte| is_variable_byte(byte)).count();
            (Form::Plain, at + 1, at + 1 + len, at + 1 + len)
        }
        _ => return None,
    };
    let name = &text[name_start..name_end];
    Some(Found { name, form, end, nested: form != Form::Plain && name.contains('$') })
}

fn closing_parenthesis(bytes: &[u8], start: usize) -> Option<usize> {
    let (mut at, mut level, mut quote) = (start, 1usize, None);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if quote != Some(b'\'') => at += 1,
            byte if quote == Some(byte) => quote = None,
            _ if quote.is_some() => {}
            byte @ (b'"' | b'\'') => quote = Some(byte),
            b'(' => level += 1,
            b')' if level == 1 => return Some(at),
            b')' => level -= 1,
            _ => {}
        }
        at += 1;
    }
    None
}

/// What variables' names are made of.
pub(super) fn is_variable_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn push_value(
    out: &mut String,
    written: &str,
    found: &Found<'_>,
    variables: &dyn Variables,
    quote: Option<u8>,
    quote_bare: bool,
    depth: usize,
) {
    let inner = if found.nested { Some(expand_at(found.name, variables, false, depth + 1)) } else { None };
    let name = inner.as_deref().unwrap_or(found.name);
    let Some(value) = variables.value(name, found.form, depth) else {
        match inner {
            Some(inner) => out.extend([&written[..2], &inner, &written[written.len() - 1..]]),
            None => out.push_str(written),
        }
        return;
    };
    if quote == Some(b'"') {
        let quoted = config::quote(&value);
        out.push_str(&quoted[1..quoted.len() - 1]);
    } else if quote_bare && quote.is_none() {
        out.push_str(&config::quote(&value));
    } else {
        out.push_str(&value);
    }
}

/// Variables with values, within an outer scope.
///
/// A value is a configuration string, whose own variables are expanded when it is used.
#[derive(Debug)]
pub struct Scope {
    depth: usize,
    outer: Option<Rc<Scope>>,
    variables: Vec<(String, String)>,
    /// How many bytes the values may still have, for all scopes within the outermost one.
    left: Rc<Cell<usize>>,
}

impl Default for Scope {
    fn default() -> Self {
        Self { depth: 0, outer: None, variables: Vec::new(), left: Rc::new(Cell::new(MAX_BYTES)) }
    }
}

impl Scope {
    /// The outermost one.
    pub fn new() -> Self {
        Self::default()
    }

    /// A scope within another one.
    pub fn within(outer: Rc<Scope>) -> Self {
        let left = Rc::clone(&outer.left);
        Self { depth: outer.depth + 1, outer: Some(outer), variables: Vec::new(), left }
    }

    /// Takes note of `bytes` more of text. False, and from then on variables have no values, where that is too much.
    pub(super) fn spend(&self, bytes: usize) -> bool {
        let left = self.left.get().saturating_sub(bytes);
        self.left.set(left);
        left > 0
    }

    /// The innermost of this scope and those around it that is less than `depth` deep.
    pub(super) fn shallower(self: &Rc<Self>, depth: usize) -> Option<Rc<Self>> {
        let mut scope = Some(self);
        while let Some(found) = scope
            && found.depth >= depth
        {
            scope = found.outer.as_ref();
        }
        scope.cloned()
    }

    /// Gives a variable a value, here.
    pub fn define(&mut self, name: &str, value: &str) {
        match self.variables.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value.to_string(),
            None => self.variables.push((name.to_string(), value.to_string())),
        }
    }

    /// The value of a variable, here or further out, before its own variables are expanded.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut scope = Some(self);
        while let Some(found) = scope {
            if let Some((_, value)) = found.variables.iter().find(|(known, _)| known == name) {
                return Some(value);
            }
            scope = found.outer.as_deref();
        }
        None
    }
}

impl Variables for Scope {
    fn value(&self, text: &str, form: Form, depth: usize) -> Option<String> {
        let braced =
            if form == Form::Braces { Braced::parse(text) } else { Braced { name: text, word: None, default: None } };
        match (self.get(braced.name), braced.default) {
            (Some(value), _) => {
                if !self.spend(value.len() + 1) {
                    return None;
                }
                let value = expand_at(value, self, false, depth + 1);
                Some(match braced.word {
                    Some(word) => config::split_words(&value).into_iter().nth(word).unwrap_or_default(),
                    None => value,
                })
            }
            (None, Some(default)) => Some(expand_at(default, self, false, depth + 1)),
            (None, None) => None,
        }
    }
}

/// What stands in `${...}`: `name`, `name[word]`, `name-default`.
struct Braced<'a> {
    name: &'a str,
    word: Option<usize>,
    default: Option<&'a str>,
}

impl<'a> Braced<'a> {
    fn parse(text: &'a str) -> Self {
        let text = text.trim_start();
        let len = text.bytes().take_while(|&byte| is_variable_byte(byte)).count();
        let (name, rest) = text.split_at(len);
        let rest = rest.trim_start();
        let (word, rest) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((word, after)) => match word.trim().parse() {
                Ok(word) => (Some(word), after.trim_start()),
                Err(_) => (None, rest),
            },
            None => (None, rest),
        };
        Self { name, word, default: rest.strip_prefix('-') }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scope(variables: &[(&str, &str)]) -> Scope {
        let mut scope = Scope::new();
        for (name, value) in variables {
            scope.define(name, value);
        }
        scope
    }

    #[test]
    fn variables_become_their_values() {
        let scope = scope(&[("a", "A B"), ("n", "1"), ("b", "<$a>"), ("e", "")]);
        let cases = [
            ("$a, ${a}x, $ab", "A B, A Bx, $ab"),
            ("${a[0]} ${a[ 1 ]}${a[2]} ${a[$n]}", "A B B"),
            ("${x-none} ${x-$a} ${n-none}", "none A B 1"),
            ("$b", "<A B>"),
            ("$e", ""),
            ("$x ${x} ${x$n} $( x $n )", "$x ${x} ${x1} $( x 1 )"),
            ("'$a' \"$a\" \"\\$a\" \\$a", "'$a' \"A B\" \"\\$a\" \\A B"),
            ("$a // $a\n$a /* $a */", "A B // $a\nA B /* $a */"),
            ("$ $; ${a $(", "$ $; ${a $("),
            ("$? $# $$", "$? $# $$"),
        ];
        for (text, expanded) in cases {
            assert_eq!(expand(text, &scope), expanded, "{text}");
        }
    }

    #[test]
    fn values_are_quoted_where_quotes_are() {
        let scope = scope(&[("a", "\"x\\y\" $b")]);
        assert_eq!(expand("\"<$a>\"", &scope), "\"<\\\"x\\\\y\\\" \\$b>\"");
        assert_eq!(expand_quoting("$a", &scope), "\"\\\"x\\\\y\\\" \\$b\"");
        assert_eq!(config::unquote(&expand_quoting("$a", &scope)), "\"x\\y\" $b");
    }

    #[test]
    fn inner_scopes_shadow_outer_ones() {
        let outer = Rc::new(scope(&[("a", "1"), ("b", "2")]));
        let mut inner = Scope::within(Rc::clone(&outer));
        inner.define("a", "3");
        inner.define("c", "$a$b");
        assert_eq!(expand("$a $b $c", &inner), "3 2 32");
        let inner = Rc::new(inner);
        assert!(Rc::ptr_eq(&inner.shallower(1).unwrap(), &outer));
        assert!(inner.shallower(0).is_none());
    }

    #[test]
    fn values_that_multiply_end() {
        let doubled: Vec<_> = ('a'..'l').zip('b'..).map(|(a, b)| (a.to_string(), format!("${b}").repeat(50))).collect();
        let mut scope = Scope::new();
        for (name, value) in &doubled {
            scope.define(name, value);
        }
        scope.define("l", "");
        scope.left.set(1 << 20);
        assert!(expand("$a", &scope).len() < 8 << 20);
        assert!(!scope.spend(0));
    }

    #[test]
    fn a_variable_within_itself_ends() {
        let scope = scope(&[("a", "$a.")]);
        assert_eq!(expand("$a", &scope), "$a...........");
    }

    proptest! {
        #[test]
        fn any_text_expands(text in r#"[ab\[\]1$(){}/*"'\\<>\n\-?é]{0,40}"#, value in r#"[b$"'{}()é]{0,4}"#) {
            let scope = scope(&[("a", &value)]);
            expand(&text, &scope);
            expand_quoting(&text, &scope);
            prop_assert_eq!(expand(&text, &Scope::new()).is_empty(), text.is_empty());
        }
    }
}
