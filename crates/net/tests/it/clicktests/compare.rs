//! Whether an output file is what a test expects.
//!
//! Lines are compared one by one: those which are blank or do not count, and spaces at their ends, make no difference.

use super::file::{Kind, Section};
use regex::bytes::{Regex, RegexBuilder};
use std::fmt::Write as _;

/// A line of an output file, as it is expected.
pub(super) struct Pattern {
    text: String,
    regex: Regex,
    /// What the numbers have to be that were asked for by `{{~ }}`.
    ranges: Vec<(u64, u64)>,
}

impl Pattern {
    fn matches(&self, line: &[u8]) -> bool {
        let Some(captures) = self.regex.captures(line) else { return false };
        self.ranges.iter().enumerate().all(|(n, (low, high))| {
            let number =
                captures.name(&format!("range{n}")).and_then(|found| std::str::from_utf8(found.as_bytes()).ok());
            number.and_then(|number| number.parse().ok()).is_none_or(|number: u64| (*low..=*high).contains(&number))
        })
    }

    /// Makes one of a line.
    fn new(line: &str, kind: Kind, ignores_case: bool) -> Result<Self, String> {
        let mut ranges = Vec::new();
        let body = match kind {
            Kind::Verbatim => regex::escape(line),
            Kind::Braces => expand(line, true, ignores_case, &mut ranges),
            Kind::Regex => {
                let body = expand(line, false, false, &mut ranges);
                if ignores_case { format!("(?i:{body})") } else { body }
            }
        };
        let regex = RegexBuilder::new(&format!(r"\A(?:{body})\z")).unicode(false).dot_matches_new_line(true).build();
        let regex = regex.map_err(|error| format!("'{line}' is a regular expression of Perl's alone: {error}"))?;
        Ok(Self { text: line.to_owned(), regex, ranges })
    }
}

/// The text before the first double braces, what they have (with pairs in it), and what follows.
fn braces(text: &str) -> Option<(&str, &str, &str)> {
    let open = text.find("{{")?;
    let (mut at, mut depth) = (open + 2, 1);
    loop {
        let (next_open, next_close) = (text[at..].find("{{"), text[at..].find("}}")?);
        match next_open {
            Some(next) if next < next_close => {
                depth += 1;
                at += next + 2;
            }
            _ => {
                depth -= 1;
                at += next_close + 2;
            }
        }
        if depth == 0 {
            return Some((&text[..open], &text[open + 2..at - 2], &text[at..]));
        }
    }
}

/// A range of numbers: `~ 5 - 15`, `~ 100 +- 5`, `~ 100 +- 5%`.
fn range(text: &str) -> Option<(u64, u64)> {
    let text = text.strip_prefix('~')?;
    let number = |text: &str| text.trim().parse::<u64>().ok();
    if let Some((middle, by)) = text.split_once("+-") {
        let middle = number(middle)?;
        let by = match by.trim().strip_suffix('%') {
            Some(percent) => middle * number(percent)? / 100,
            None => number(by)?,
        };
        return Some((middle.saturating_sub(by), middle + by));
    }
    let (low, high) = text.split_once('-')?;
    let (low, high) = (number(low)?, number(high)?);
    Some((low.min(high), low.max(high)))
}

/// Makes a regular expression of a line with double braces. `quotes`: what is outside of them stands for itself.
fn expand(line: &str, quotes: bool, ignores_case: bool, ranges: &mut Vec<(u64, u64)>) -> String {
    let quote = |text: &str| if quotes { regex::escape(text) } else { text.to_owned() };
    let (mut made, mut rest) = (String::new(), line.to_owned());
    while let Some((before, inner, after)) = braces(&rest) {
        if inner.starts_with('?') {
            // A comment, with the spaces around it.
            rest = format!("{}{}", before.trim_end(), after.trim_start());
            continue;
        }
        made += &quote(before);
        if let Some(bounds) = range(inner) {
            let _ = write!(made, "(?<range{}>[0-9]+)", ranges.len());
            ranges.push(bounds);
        } else if quotes {
            let flag = if ignores_case { "i" } else { "" };
            let inner = expand(inner, false, false, ranges);
            let _ = write!(made, "(?{flag}:{})", perl(&inner));
        } else {
            let _ = write!(made, "{{{{{inner}}}}}");
        }
        rest = after.to_owned();
    }
    made += &if quotes { quote(&rest) } else { perl(&rest) };
    made
}

/// Perl takes a brace that begins no count, and a slash behind a backslash, for itself.
fn perl(text: &str) -> String {
    text.replace("\\/", "/").replace("\\<", "<").replace("\\>", ">").replace("\\\"", "\"").replace("\\'", "'")
}

fn without_space(line: &[u8]) -> Vec<u8> {
    line.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect()
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end).filter(|line| !line.is_empty())
}

/// The lines that a section has.
pub(super) fn patterns(section: &Section) -> Result<Vec<Pattern>, String> {
    let line = |line: &[u8]| {
        let line = if section.ignores_space { without_space(line) } else { line.to_vec() };
        // Bytes that are no UTF-8 stand for themselves alone, and are written as an escape in a regular expression.
        let line: String = match String::from_utf8(line) {
            Ok(line) => line,
            Err(error) => return Err(format!("a line that is no UTF-8: {error}")),
        };
        Pattern::new(&line, section.kind, section.ignores_case)
    };
    lines(&section.text).map(line).collect()
}

/// Compares a file with what is expected; lines that match one of `ignored` do not count. Says what is different.
pub(super) fn compare(expected: &Section, actual: &[u8], ignored: &[Pattern]) -> Result<(), String> {
    if expected.kind == Kind::Verbatim {
        let same = expected.text == actual;
        return if same { Ok(()) } else { Err(format!("{}: other bytes\n{}", expected.file, show(actual))) };
    }
    let mut patterns = patterns(expected)?.into_iter();
    let mut number = 0;
    for line in lines(actual) {
        if ignored.iter().any(|pattern| pattern.matches(line)) {
            continue;
        }
        number += 1;
        let spaceless = if expected.ignores_space { without_space(line) } else { line.to_vec() };
        let told = String::from_utf8_lossy(line);
        match patterns.next() {
            Some(pattern) if pattern.matches(&spaceless) => {}
            Some(pattern) => {
                let text = &pattern.text;
                return Err(format!(
                    "{}: line {number}\n  has      {told}\n  and not  {text}\n{}",
                    expected.file,
                    show(actual)
                ));
            }
            None => return Err(format!("{}: a line too many\n  has      {told}\n{}", expected.file, show(actual))),
        }
    }
    match patterns.next() {
        Some(pattern) => {
            Err(format!("{}: a line is missing\n  and not  {}\n{}", expected.file, pattern.text, show(actual)))
        }
        None => Ok(()),
    }
}

/// What a file has, up to a length.
fn show(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4000)]).into_owned();
    text.lines().fold(String::new(), |shown, line| shown + "  | " + line + "\n")
}

#[cfg(test)]
fn section(text: &str, kind: Kind) -> Section {
    Section {
        file: "stdout".to_owned(),
        text: text.as_bytes().to_vec(),
        kind,
        ignores_space: false,
        ignores_case: false,
    }
}

#[test]
fn blank_lines_and_spaces_at_ends_make_no_difference() {
    let expected = section("a\n\nb  \n", Kind::Braces);
    for same in ["a\nb\n", "a  \n\n\nb", "\na\r\nb\n"] {
        compare(&expected, same.as_bytes(), &[]).unwrap();
    }
    for other in ["a\n", "a\nb\nc\n", "b\na\n", " a\nb\n", "ab\n", "a\na\nb\n"] {
        assert!(compare(&expected, other.as_bytes(), &[]).is_err(), "{other}");
    }
    let verbatim = section("a\n\nb  \n", Kind::Verbatim);
    compare(&verbatim, b"a\n\nb  \n", &[]).unwrap();
    assert!(compare(&verbatim, b"a\nb\n", &[]).is_err());
}

#[test]
fn regular_expressions_stand_in_braces() {
    let matches =
        |pattern: &str, line: &str| Pattern::new(pattern, Kind::Braces, false).unwrap().matches(line.as_bytes());
    assert!(
        matches("foo{{(bar)?}}", "foo") && matches("foo{{(bar)?}}", "foobar") && !matches("foo{{(bar)?}}", "fooba")
    );
    assert!(matches("a.b*", "a.b*") && !matches("a.b*", "acb"));
    assert!(matches("x   {{? why it is so}}", "x") && matches("x {{?y}} z", "xz"));
    assert!(matches(r"{{.*}}: {{\d+\/\d+}}", "p: 10/2") && matches("{{a{2} }}", "aa "));
    assert!(matches("}}{{b}}", "}}b") && matches("{{ ", "{{ "));
    let any_case = Pattern::new("A{{b}}", Kind::Braces, true).unwrap();
    assert!(any_case.matches(b"AB") && !any_case.matches(b"aB"));
}

#[test]
fn numbers_lie_in_ranges() {
    let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
    for _ in 0..200 {
        let (a, b, n) = (random.u64(..50), random.u64(..50), random.u64(..60));
        for (pattern, low, high) in [
            (format!("n {{{{~ {a} - {b}}}}}."), a.min(b), a.max(b)),
            (format!("n {{{{~{a}+-{b}}}}}."), a.saturating_sub(b), a + b),
            (format!("n {{{{(?:{{{{~ {a} +- {b}%}}}})}}}}."), a - a * b / 100, a + a * b / 100),
        ] {
            let found = Pattern::new(&pattern, Kind::Braces, false).unwrap().matches(format!("n {n}.").as_bytes());
            assert_eq!(found, (low..=high).contains(&n), "{pattern} {n}");
        }
    }
}

#[test]
fn lines_of_regular_expressions_and_of_any_spaces() {
    let expected = section("a+ (b|c){{? either}}\n[0-9]{1,3}\n", Kind::Regex);
    compare(&expected, b"aa c\n77\n", &[]).unwrap();
    assert!(compare(&expected, b"aa d\n77\n", &[]).is_err());
    let expected = Section { ignores_space: true, ..section("a  b {{c d}}\n", Kind::Braces) };
    compare(&expected, b"a b c\td\n", &[]).unwrap();
    assert!(compare(&expected, b"a b c\te\n", &[]).is_err());
}

#[test]
fn lines_that_do_not_count_are_left_out() {
    let ignored = patterns(&section("!{{.*}}\nx\n", Kind::Braces)).unwrap();
    compare(&section("a\nb\n", Kind::Braces), b"!1\na\nx\n!\nb\n", &ignored).unwrap();
    assert!(compare(&section("a\nb\n", Kind::Braces), b"!1\na\nxx\nb\n", &ignored).is_err());
}
