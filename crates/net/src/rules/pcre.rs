//! Regular expressions of rules: a second pass over packets in which a rule's fast pattern is.
//!
//! They are searched by the crate regex-automata, whose time grows with the length of expression and text and never faster, so that
//! no packet and no expression makes a search explode. It has no backreferences and no looking around; rules with these
//! are loaded without them, and that is told. Possessive and atomic groups count as plain ones, which match at least as much.
//!
//! What an expression may need is bounded: that of one by [`SIZE_MAX`], that of all together by [`TOTAL_MAX`].

use super::content::closing_quote;
use regex_automata::nfa::thompson::WhichCaptures;
use regex_automata::util::syntax;
use regex_automata::{Input, meta};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

/// Bytes of the automaton of one expression.
pub(super) const SIZE_MAX: usize = 1 << 18;
/// Bytes of those of all expressions of a file.
pub(super) const TOTAL_MAX: usize = 128 << 20;
/// How many expressions a rule may have.
pub const MAX_PCRES: usize = 16;
/// How deep parentheses may be.
const NEST_MAX: u32 = 64;
/// What a search remembers between packets, in bytes.
const CACHE: usize = 1 << 18;

/// Options that say which buffer is meant: Snort's and Suricata's.
const BUFFERS: &[(char, &str)] = &[
    ('C', "http_cookie"),
    ('D', "http_raw_header"),
    ('H', "http_header"),
    ('I', "http_raw_uri"),
    ('K', "http_raw_cookie"),
    ('M', "http_method"),
    ('P', "http_client_body"),
    ('Q', "http_server_body"),
    ('S', "http_stat_code"),
    ('U', "http_uri"),
    ('V', "http_user_agent"),
    ('W', "http_host"),
    ('Y', "http_stat_msg"),
    ('Z', "http_raw_host"),
];

/// What stands between quotes: the expression, and what its options say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Written {
    pub(super) is_negated: bool,
    /// In the syntax of the crate.
    pattern: String,
    ignores_case: bool,
    is_multi_line: bool,
    dot_is_all: bool,
    ignores_space: bool,
    swaps_greed: bool,
    /// It counts from the end of what was found before it.
    pub(super) is_relative: bool,
    /// It looks at where the text begins.
    pub(super) looks_at_begin: bool,
    /// It looks at where the text ends.
    pub(super) looks_at_end: bool,
    /// The buffer that an option names.
    pub(super) buffer: Option<&'static str>,
}

/// An expression, ready to search for.
#[derive(Debug)]
pub(super) struct Pcre(meta::Regex);

impl Written {
    /// Of an option's value.
    pub(super) fn parse(value: &str) -> Result<Self, String> {
        let rest = value.strip_prefix('!');
        let is_negated = rest.is_some();
        let quoted = rest.unwrap_or(value).trim_start().strip_prefix('"').ok_or("pcre has no quotes")?;
        let end = closing_quote(quoted.as_bytes()).ok_or("pcre has no closing quote")?;
        let text = &quoted[..end];
        let text = text.strip_prefix('m').unwrap_or(text);
        let mark = text.chars().next().filter(char::is_ascii_punctuation).ok_or("pcre has no delimiters")?;
        let (pattern, options) = text[1..].rsplit_once(mark).ok_or("pcre has no closing delimiter")?;
        let mut written = Self { is_negated, ..Self::default() };
        let mut is_dollar_end = false;
        let mut is_anchored = false;
        for option in options.chars() {
            match option {
                'i' => written.ignores_case = true,
                'm' => written.is_multi_line = true,
                's' => written.dot_is_all = true,
                'x' => written.ignores_space = true,
                'G' => written.swaps_greed = true,
                'E' => is_dollar_end = true,
                'A' => is_anchored = true,
                'R' => written.is_relative = true,
                // The payload as it is, which is what is searched, and a bound that is not needed.
                'B' | 'O' => {}
                option => match BUFFERS.iter().find(|(name, _)| *name == option) {
                    Some((_, buffer)) => written.buffer = Some(buffer),
                    None => return Err(format!("pcre has the option '{option}'")),
                },
            }
        }
        let mut translation = Translation {
            left: pattern.chars().peekable(),
            pattern: String::with_capacity(pattern.len()),
            is_dollar_end: is_dollar_end || written.is_multi_line,
            looks_at_begin: is_anchored,
            looks_at_end: false,
        };
        translation.run()?;
        (written.looks_at_begin, written.looks_at_end) = (translation.looks_at_begin, translation.looks_at_end);
        written.pattern = if is_anchored { format!("\\A(?:{})", translation.pattern) } else { translation.pattern };
        Ok(written)
    }

    /// Makes the automaton; says how many bytes it has.
    pub(super) fn compile(&self) -> Result<(Pcre, usize), String> {
        let syntax = syntax::Config::new()
            .unicode(false)
            .utf8(false)
            .case_insensitive(self.ignores_case)
            .multi_line(self.is_multi_line)
            .dot_matches_new_line(self.dot_is_all)
            .ignore_whitespace(self.ignores_space)
            .swap_greed(self.swaps_greed)
            .nest_limit(NEST_MAX);
        let config = meta::Config::new()
            .utf8_empty(false)
            .which_captures(WhichCaptures::Implicit)
            .nfa_size_limit(Some(SIZE_MAX))
            .hybrid_cache_capacity(CACHE);
        let built = meta::Builder::new().syntax(syntax).configure(config).build(&self.pattern);
        let regex = built.map_err(|error| match error.size_limit() {
            Some(_) => format!("pcre needs more than {SIZE_MAX} bytes"),
            None => format!("pcre is not understood: {}", reason(&error)),
        })?;
        let bytes = regex.memory_usage();
        Ok((Pcre(regex), bytes))
    }
}

/// Expressions of a file, each of which is made once.
#[derive(Debug, Default)]
pub(super) struct Expressions {
    made: HashMap<String, Result<(Written, Arc<Pcre>), String>>,
    bytes: usize,
}

impl Expressions {
    /// Of an option's value.
    pub(super) fn get(&mut self, value: &str) -> Result<(Written, Arc<Pcre>), String> {
        if let Some(made) = self.made.get(value) {
            return made.clone();
        }
        let made = self.make(value);
        self.made.insert(value.to_owned(), made.clone());
        made
    }

    fn make(&mut self, value: &str) -> Result<(Written, Arc<Pcre>), String> {
        let written = Written::parse(value)?;
        if self.bytes >= TOTAL_MAX {
            return Err(format!("pcre, as all before it need {TOTAL_MAX} bytes"));
        }
        let compiled = written.compile();
        // One that is refused has cost as much as one that is as large as it may be.
        self.bytes += compiled.as_ref().map_or(SIZE_MAX, |(_, bytes)| *bytes);
        let (pcre, _) = compiled?;
        Ok((written, Arc::new(pcre)))
    }
}

/// Why an expression is not understood, in a few words.
fn reason(error: &meta::BuildError) -> String {
    let told = match error.syntax_error() {
        Some(error) => error.to_string(),
        None => error.to_string(),
    };
    // The parser draws the expression first, and says last what is wrong.
    told.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

impl Pcre {
    /// Where the first match in a text ends.
    pub(super) fn end(&self, text: &[u8]) -> Option<usize> {
        self.0.search_half(&Input::new(text)).map(|found| found.offset())
    }
}

/// From the syntax of PCRE to that of the crate, where the same characters mean something else.
struct Translation<'a> {
    left: std::iter::Peekable<std::str::Chars<'a>>,
    pattern: String,
    /// `$` is the very end, or that of a line, and not before the last line's end, too.
    is_dollar_end: bool,
    looks_at_begin: bool,
    looks_at_end: bool,
}

/// The end, before the last line's end or behind it.
const END: &str = "(?:\\n?\\z)";

impl Translation<'_> {
    fn run(&mut self) -> Result<(), String> {
        while let Some(c) = self.left.next() {
            match c {
                '\\' => self.escape()?,
                '[' => self.class()?,
                '^' => {
                    self.looks_at_begin = true;
                    self.pattern.push(c);
                }
                '$' => {
                    self.looks_at_end = true;
                    self.pattern.push_str(if self.is_dollar_end { "$" } else { END });
                }
                '(' => self.group(),
                '{' => self.brace(),
                c => self.pattern.push(c),
            }
        }
        Ok(())
    }

    /// An atomic group is a plain one.
    fn group(&mut self) {
        let mut ahead = self.left.clone();
        if (ahead.next(), ahead.next()) == (Some('?'), Some('>')) {
            self.left = ahead;
            self.pattern.push_str("(?:");
        } else {
            self.pattern.push('(');
        }
    }

    /// A brace that begins no number of repetitions stands for itself.
    fn brace(&mut self) {
        let inside: String = self.left.clone().take_while(|c| *c != '}').take(16).collect();
        let (low, high) = inside.split_once(',').unwrap_or((&inside, "1"));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let is_closed = self.left.clone().nth(inside.chars().count()) == Some('}');
        let repeats = is_closed && !low.is_empty() && is_number(low) && is_number(high);
        self.pattern.push_str(if repeats { "{" } else { "\\{" });
    }

    /// What stands behind a backslash, outside of classes.
    fn escape(&mut self) -> Result<(), String> {
        let c = self.left.next().ok_or("pcre ends with a backslash")?;
        match c {
            'A' | 'G' => {
                self.looks_at_begin = true;
                self.pattern.push_str("\\A");
            }
            'z' => {
                self.looks_at_end = true;
                self.pattern.push_str("\\z");
            }
            'Z' => {
                self.looks_at_end = true;
                self.pattern.push_str(END);
            }
            'h' => self.pattern.push_str("[\\t ]"),
            'H' => self.pattern.push_str("[^\\t ]"),
            'R' => self.pattern.push_str("(?:\\r\\n|[\\n-\\r])"),
            'N' => self.pattern.push_str("[^\\n]"),
            'Q' => self.literally(),
            c => self.character(c)?,
        }
        Ok(())
    }

    /// All up to `\E` stands for itself.
    fn literally(&mut self) {
        while let Some(c) = self.left.next() {
            if c == '\\' && self.left.next_if_eq(&'E').is_some() {
                return;
            }
            self.plain(c);
        }
    }

    /// A character that stands for itself.
    fn plain(&mut self, c: char) {
        if c.is_ascii() && !c.is_ascii_alphanumeric() {
            let _ = write!(self.pattern, "\\x{:02x}", u32::from(c));
        } else {
            self.pattern.push(c);
        }
    }

    /// An escaped character, in classes and outside.
    fn character(&mut self, c: char) -> Result<(), String> {
        match c {
            'e' => self.pattern.push_str("\\x1b"),
            'a' => self.pattern.push_str("\\x07"),
            'E' => {}
            'x' if self.left.peek() == Some(&'{') => self.pattern.push_str("\\x"),
            'x' => {
                let digits: String = (0..2).map_while(|_| self.left.next_if(char::is_ascii_hexdigit)).collect();
                let _ = write!(self.pattern, "\\x{digits:0>2}");
            }
            '0' => {
                let digits: String = (0..2).map_while(|_| self.left.next_if(|c| ('0'..'8').contains(c))).collect();
                let _ = write!(self.pattern, "\\x{:02x}", u8::from_str_radix(&digits, 8).unwrap_or(0));
            }
            '1'..='9' => return Err("pcre has a backreference".to_owned()),
            'd' | 'D' | 'w' | 'W' | 's' | 'S' | 'b' | 'B' | 'n' | 'r' | 't' | 'f' | 'v' => {
                self.pattern.push('\\');
                self.pattern.push(c);
            }
            c if c.is_alphabetic() => return Err(format!("pcre has '\\{c}'")),
            c => self.plain(c),
        }
        Ok(())
    }

    /// A class: brackets, hyphens and signs of sets in it stand for themselves.
    fn class(&mut self) -> Result<(), String> {
        self.pattern.push('[');
        if self.left.next_if_eq(&'^').is_some() {
            self.pattern.push('^');
        }
        if self.left.next_if_eq(&']').is_some() {
            self.pattern.push_str("\\]");
        }
        let mut was_hyphen = false;
        while let Some(c) = self.left.next() {
            let is_hyphen = c == '-' && !was_hyphen;
            match c {
                ']' => {
                    self.pattern.push(']');
                    return Ok(());
                }
                '\\' => match self.left.next().ok_or("pcre ends with a backslash")? {
                    'b' => self.pattern.push_str("\\x08"),
                    'h' => self.pattern.push_str("\\t\\x20"),
                    c => self.character(c)?,
                },
                '[' if self.left.peek() == Some(&':') => self.pattern.push('['),
                '-' if is_hyphen => self.pattern.push('-'),
                // The end of a named class, such as [:alpha:].
                ':' if self.left.peek() == Some(&']') && self.pattern.contains("[:") => {
                    self.pattern.push(':');
                    if self.is_in_named() {
                        self.pattern.extend(self.left.next());
                    }
                }
                ':' | '^' => self.pattern.push(c),
                c => self.plain(c),
            }
            was_hyphen = is_hyphen;
        }
        Err("pcre has a class without an end".to_owned())
    }

    /// Whether a named class has begun that has not ended.
    fn is_in_named(&self) -> bool {
        let begun = self.pattern.rfind("[:");
        begun.is_some_and(|at| !self.pattern[at..].contains(":]"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pcre(text: &str) -> Result<Pcre, String> {
        Ok(Written::parse(text)?.compile()?.0)
    }

    #[track_caller]
    fn found(text: &str, payload: &[u8]) -> Option<usize> {
        pcre(text).unwrap_or_else(|wrong| panic!("{text}: {wrong}")).end(payload)
    }

    #[test]
    fn expressions_mean_what_they_mean_in_pcre() {
        for (text, payload, end) in [
            ("\"/abc/\"", &b"xabcx"[..], Some(4)),
            ("\"/ABC/i\"", b"xabcx", Some(4)),
            ("\"/a.c/\"", b"a\nc", None),
            ("\"/a.c/s\"", b"a\nc", Some(3)),
            ("\"/a b # c/x\"", b"ab", Some(2)),
            ("\"/[ a]{2}/x\"", b"a ", Some(2)),
            ("\"/^b/\"", b"a\nb", None),
            ("\"/^b/m\"", b"a\nb", Some(3)),
            ("\"/a$/\"", b"ba\n", Some(3)),
            ("\"/a$/E\"", b"ba\n", None),
            ("\"/a$/m\"", b"a\nb", Some(1)),
            ("\"/a\\Z/\"", b"a\n", Some(2)),
            ("\"/b/A\"", b"ab", None),
            ("\"/b|a/A\"", b"ab", Some(1)),
            ("\"/a+/G\"", b"aaa", Some(1)),
            ("\"m|a/b|i\"", b"A/B", Some(3)),
            ("\"/\\/a\\\"\\;/\"", b"/a\";", Some(4)),
            ("\"/\\<a\\>/\"", b"<a>", Some(3)),
            ("\"/a{b}{2,}/\"", b"a{b}}", Some(5)),
            ("\"/a{,2}/\"", b"a{,2}", Some(5)),
            ("\"/a{2}/\"", b"aa", Some(2)),
            ("\"/\\xff\\x0/\"", b"\xff\0", Some(2)),
            ("\"/\\012\\0/\"", b"\n\0", Some(2)),
            ("\"/[^\\xff]\\xff/\"", b"\xfe\xff", Some(2)),
            ("\"/[[&&~]+x/\"", b"[&~x", Some(4)),
            ("\"/[]a]+x/\"", b"]ax", Some(3)),
            ("\"/[^]a]x/\"", b"ax]xbx", Some(6)),
            ("\"/[a\\-z]+[+--]x/\"", b"-a,x", Some(4)),
            ("\"/[[:digit:]:]+x/\"", b"1:x", Some(3)),
            ("\"/[:a]+x/\"", b":ax", Some(3)),
            ("\"/[\\b\\h]x/\"", b"\x08x", Some(2)),
            ("\"/\\Qa.b*\\E+/\"", b"a.b**", Some(5)),
            ("\"/(?>a+)b/\"", b"aab", Some(3)),
            ("\"/a++b/\"", b"aab", Some(3)),
            ("\"/\\h\\R\\N/\"", b" \r\nx", Some(4)),
            ("\"/(?i)a(?-i)b/\"", b"AB", None),
            ("\"/\\d\\w\\s\\S/\"", b"1_ !", Some(4)),
            ("\"/\\bx\\b/\"", b"ax x", Some(4)),
            ("\"/café/\"", "café".as_bytes(), Some(5)),
        ] {
            assert_eq!(found(text, payload), end, "{text} in {payload:?}");
        }
    }

    #[test]
    fn what_is_not_supported_is_told() {
        for (text, told) in [
            ("/a/", "pcre has no quotes"),
            ("\"/a/", "pcre has no closing quote"),
            ("\"abc\"", "pcre has no delimiters"),
            ("\"/abc\"", "pcre has no closing delimiter"),
            ("\"/a/k\"", "pcre has the option 'k'"),
            ("\"/(a)\\1/\"", "pcre has a backreference"),
            ("\"/a\\K/\"", "pcre has '\\K'"),
            (
                "\"/(?=a)b/\"",
                "pcre is not understood: look-around, including look-ahead and look-behind, is not supported",
            ),
            (
                "\"/(?<!a)b/\"",
                "pcre is not understood: look-around, including look-ahead and look-behind, is not supported",
            ),
            ("\"/(a/\"", "pcre is not understood: unclosed group"),
            ("\"/[a/\"", "pcre has a class without an end"),
            ("\"/a{1000}{1000}/\"", "pcre needs more than 262144 bytes"),
            ("\"/((((a{50}){50}){50}){50})/\"", "pcre needs more than 262144 bytes"),
        ] {
            assert_eq!(pcre(text).unwrap_err(), told, "{text}");
        }
        let deep = format!("\"/{}a{}/\"", "(".repeat(9000), ")".repeat(9000));
        assert!(pcre(&deep).unwrap_err().starts_with("pcre is not understood: exceed the maximum number of nested"));
    }

    #[test]
    fn options_that_are_not_for_the_expression_are_known() {
        let written = |text: &str| Written::parse(text).unwrap();
        let flags = |written: Written| (written.is_negated, written.is_relative, written.buffer);
        assert_eq!(flags(written("!\"/a/R\"")), (true, true, None));
        assert_eq!(flags(written("\"/a/UR\"")), (false, true, Some("http_uri")));
        for (text, begin, end) in [
            ("\"/[$^]\\$\\^/U\"", false, false),
            ("\"/^a/\"", true, false),
            ("\"/a/A\"", true, false),
            ("\"/\\Aa/\"", true, false),
            ("\"/a$/\"", false, true),
            ("\"/a\\Z/\"", false, true),
            ("\"/a\\z/\"", false, true),
        ] {
            assert_eq!((written(text).looks_at_begin, written(text).looks_at_end), (begin, end), "{text}");
        }
    }

    /// What makes engines that go back explode takes time in proportion to the text here.
    #[test]
    fn expressions_that_go_back_elsewhere_are_searched_in_one_pass() {
        let text = vec![b'a'; 1 << 16];
        for pattern in ["\"/(a+)+b/\"", "\"/(a|a)*b/\"", "\"/(a|aa)+$b/\"", "\"/(.*a){12}b/s\""] {
            assert_eq!(found(pattern, &text), None, "{pattern}");
        }
    }
}
