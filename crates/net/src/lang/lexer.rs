//! From text to tokens, with the place of each.
//!
//! Configuration strings follow rules of their own, so the parser asks for one after it has seen `(`; all else is tokens.
//! A file's lines may be renamed by line directives (`# 12 "name"`, `#line 12 "name"`), also within configuration strings.

use std::ops::Range;
use std::sync::Arc;

use super::config::{self, is_name_byte, is_space};
use crate::error::Landmark;

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A name of an element or a class, or a number.
    Identifier,
    /// `$name`.
    Variable,
    /// `->`.
    Arrow,
    /// `=>`.
    DoubleArrow,
    /// `::`.
    DoubleColon,
    /// `||`.
    DoubleBar,
    /// `...`.
    Dots,
    /// A word that has a meaning of its own.
    Keyword(Keyword),
    /// Any other single character.
    Char(u8),
    /// What is not ASCII.
    Other,
    /// The end of the text.
    End,
}

/// Words that have a meaning of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keyword {
    ElementClass,
    Require,
    Provide,
    Define,
    ConnectionTunnel,
}

/// A token, and where it is.
#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) kind: Kind,
    /// The bytes of the text that are the token.
    pub(super) span: Range<usize>,
    pub(super) landmark: Landmark,
}

impl Token {
    pub(super) fn is(&self, byte: u8) -> bool {
        self.kind == Kind::Char(byte)
    }

    pub(super) fn is_arrow(&self) -> bool {
        matches!(self.kind, Kind::Arrow | Kind::DoubleArrow)
    }
}

/// Cuts a text into tokens.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
    file: Arc<str>,
    original_file: Arc<str>,
    /// Directives that mean nothing, until the parser takes them.
    pub(super) errors: Vec<(Landmark, String)>,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str, file: &str) -> Self {
        let file: Arc<str> = file.into();
        Self { text, at: 0, line: 1, original_file: Arc::clone(&file), file, errors: Vec::new() }
    }

    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    pub(super) fn landmark(&self) -> Landmark {
        Landmark::new(Arc::clone(&self.file), self.line)
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.text.as_bytes().get(at).copied()
    }

    pub(super) fn skip_to_end(&mut self) {
        self.at = self.text.len();
    }

    /// The next token; [`Kind::End`] again and again at the end.
    pub(super) fn next(&mut self) -> Token {
        self.skip_blank();
        let start = self.at;
        let (kind, len) = self.kind_here();
        self.at += len;
        Token { kind, span: start..self.at, landmark: self.landmark() }
    }

    fn kind_here(&self) -> (Kind, usize) {
        let rest = &self.text[self.at..];
        let Some(first) = self.byte(self.at) else { return (Kind::End, 0) };
        if is_name_byte(first) {
            let len = identifier_len(rest.as_bytes());
            return (word_kind(&rest[..len]), len);
        }
        let fixed = [
            ("->", Kind::Arrow),
            ("=>", Kind::DoubleArrow),
            ("::", Kind::DoubleColon),
            ("||", Kind::DoubleBar),
            ("...", Kind::Dots),
        ];
        if let Some(&(text, kind)) = fixed.iter().find(|(text, _)| rest.starts_with(text)) {
            return (kind, text.len());
        }
        let name_len = rest.bytes().skip(1).take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
        match rest.chars().next() {
            Some('$') if name_len > 0 => (Kind::Variable, 1 + name_len),
            Some(c) if !c.is_ascii() => (Kind::Other, c.len_utf8()),
            _ => (Kind::Char(first), 1),
        }
    }

    /// Skips spaces, comments and line directives.
    fn skip_blank(&mut self) {
        while let Some(byte) = self.byte(self.at) {
            if is_space(byte) {
                self.newline_or_byte();
            } else if config::is_comment(self.text.as_bytes(), self.at) {
                self.skip_comment();
            } else if byte == b'#' && self.at_line_start() {
                self.directive();
            } else {
                break;
            }
        }
    }

    fn at_line_start(&self) -> bool {
        self.at == 0 || matches!(self.byte(self.at - 1), Some(b'\n' | b'\r'))
    }

    /// Goes on by a byte, or by a line's end, which is counted.
    fn newline_or_byte(&mut self) {
        match self.byte(self.at) {
            Some(b'\r') if self.byte(self.at + 1) == Some(b'\n') => {
                self.at += 2;
                self.line = self.line.saturating_add(1);
            }
            Some(b'\r' | b'\n') => {
                self.at += 1;
                self.line = self.line.saturating_add(1);
            }
            Some(_) => self.at += 1,
            None => {}
        }
    }

    fn skip_comment(&mut self) {
        if self.byte(self.at + 1) == Some(b'/') {
            self.skip_to_line_end();
            self.newline_or_byte();
            return;
        }
        self.at += 2;
        while self.at < self.text.len() {
            if self.text.as_bytes()[self.at..].starts_with(b"*/") {
                self.at += 2;
                return;
            }
            self.newline_or_byte();
        }
    }

    fn skip_to_line_end(&mut self) {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(rest.len());
    }

    /// Reads the line directive that starts here, up to the end of its line.
    fn directive(&mut self) {
        let start = self.at;
        self.skip_to_line_end();
        let line = &self.text[start..self.at];
        if let Some((number, file)) = parse_directive(line) {
            self.newline_or_byte();
            self.line = number;
            match file {
                Some(file) if file.is_empty() => self.file = Arc::clone(&self.original_file),
                Some(file) => self.file = file.into(),
                None => {}
            }
        } else {
            self.errors.push((self.landmark(), "unknown preprocessor directive".into()));
            self.newline_or_byte();
        }
    }

    /// The configuration string from here up to the unbalanced `)`, which is not read, or the end of the text.
    ///
    /// Line directives are left out of it.
    pub(super) fn config(&mut self) -> String {
        let text = self.text.as_bytes();
        let mut out = String::new();
        let mut kept = self.at;
        let mut depth = 0usize;
        while let Some(byte) = self.byte(self.at) {
            match byte {
                b'(' => depth += 1,
                b')' if depth == 0 => break,
                b')' => depth -= 1,
                b'#' if self.at_line_start() => {
                    out.push_str(&self.text[kept..self.at]);
                    self.directive();
                    kept = self.at;
                    continue;
                }
                b'/' if config::is_comment(text, self.at) => {
                    self.skip_comment();
                    continue;
                }
                b'"' | b'\'' => {
                    self.skip_quoted(byte);
                    continue;
                }
                b'\\' if self.byte(self.at + 1) == Some(b'<') => {
                    self.skip_hex();
                    continue;
                }
                _ => {}
            }
            self.newline_or_byte();
        }
        out.push_str(&self.text[kept..self.at]);
        out
    }

    fn skip_quoted(&mut self, quote: u8) {
        self.at += 1;
        while let Some(byte) = self.byte(self.at) {
            match byte {
                b'\\' if quote == b'"' && self.byte(self.at + 1) == Some(b'<') => self.skip_hex(),
                b'\\' if quote == b'"' => {
                    self.at += 1;
                    self.newline_or_byte();
                }
                _ if byte == quote => {
                    self.at += 1;
                    return;
                }
                _ => self.newline_or_byte(),
            }
        }
    }

    fn skip_hex(&mut self) {
        self.at += 2;
        while let Some(byte) = self.byte(self.at) {
            if byte == b'>' {
                self.at += 1;
                return;
            }
            if config::is_comment(self.text.as_bytes(), self.at) {
                self.skip_comment();
            } else {
                self.newline_or_byte();
            }
        }
    }
}

/// How long the identifier is with which `text` starts. A slash belongs to it between two characters of it.
fn identifier_len(text: &[u8]) -> usize {
    let inside = |&at: &usize| {
        let next = text.get(at + 1).is_some_and(|&byte| is_name_byte(byte));
        is_name_byte(text[at]) || (text[at] == b'/' && next)
    };
    (0..text.len()).take_while(inside).count()
}

fn word_kind(word: &str) -> Kind {
    match word {
        "elementclass" => Kind::Keyword(Keyword::ElementClass),
        "require" => Kind::Keyword(Keyword::Require),
        "provide" => Kind::Keyword(Keyword::Provide),
        "define" => Kind::Keyword(Keyword::Define),
        "connectiontunnel" => Kind::Keyword(Keyword::ConnectionTunnel),
        _ => Kind::Identifier,
    }
}

/// The line number and the file's name, if there is one, of a directive such as `# 12 "name"`.
fn parse_directive(line: &str) -> Option<(u32, Option<String>)> {
    let blanks = [' ', '\t'];
    let line = line[1..].trim_start_matches(blanks);
    let line = match line.strip_prefix("line") {
        Some(rest) if rest.starts_with(blanks) => rest.trim_start_matches(blanks),
        _ => line,
    };
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return None;
    }
    let number = line[..digits].parse().unwrap_or(u32::MAX);
    let name = line[digits..].trim_start_matches(blanks).strip_prefix('"');
    Some((number, name.map(quoted_name)))
}

/// What stands before the closing quote, unquoted.
fn quoted_name(text: &str) -> String {
    let mut escaped = false;
    let end = text.bytes().position(|byte| match byte {
        _ if escaped => {
            escaped = false;
            false
        }
        b'\\' => {
            escaped = true;
            false
        }
        byte => byte == b'"',
    });
    config::unquote(&format!("\"{}\"", &text[..end.unwrap_or(text.len())]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<(String, String)> {
        let mut lexer = Lexer::new(text, "f");
        let mut found = Vec::new();
        loop {
            let token = lexer.next();
            if token.kind == Kind::End {
                return found;
            }
            found.push((text[token.span].to_string(), token.landmark.to_string()));
        }
    }

    fn words(text: &str) -> Vec<String> {
        tokens(text).into_iter().map(|(word, _)| word).collect()
    }

    #[test]
    fn tokens_need_no_spaces_between_them() {
        assert_eq!(
            words("a::B[1]->[2]c=>d||...$x.;"),
            ["a", "::", "B", "[", "1", "]", "->", "[", "2", "]", "c", "=>", "d", "||", "...", "$x", ".", ";"]
        );
        assert_eq!(words("a/b//c\nd/ e@1_2 /x $ é"), ["a/b", "d", "/", "e@1_2", "/", "x", "$", "é"]);
        assert_eq!(words("a/*b*/c /* never"), ["a", "c"]);
    }

    #[test]
    fn lines_are_counted_for_every_kind_of_line_end() {
        let found: Vec<_> = tokens("a\nb\r\nc\rd /*\n\n*/ e // x\nf").into_iter().map(|(_, place)| place).collect();
        assert_eq!(found, ["f:1", "f:2", "f:3", "f:4", "f:6", "f:7"]);
    }

    #[test]
    fn directives_rename_lines_and_files() {
        let text = "a\n# 10 \"x\\\"y\" 3\nb\n#line 7\nc\n# 3 \"\"\nd\n  # e\n# what\nf";
        let mut lexer = Lexer::new(text, "f");
        let places: Vec<_> = (0..7).map(|_| lexer.next().landmark.to_string()).collect();
        assert_eq!(places, ["f:1", "x\"y:10", "x\"y:7", "f:3", "f:4", "f:4", "f:6"]);
        assert_eq!(lexer.errors, [(Landmark::new("f", 5), "unknown preprocessor directive".to_string())]);
    }

    #[test]
    fn a_configuration_string_ends_at_its_unbalanced_parenthesis() {
        let config = |text: &str| {
            let mut lexer = Lexer::new(text, "f");
            let config = lexer.config();
            (config, text[lexer.at..].to_string(), lexer.landmark().line())
        };
        assert_eq!(config("a (b)) c"), ("a (b)".into(), ") c".into(), 1));
        assert_eq!(config("\")\", ')\\', \"\\\")\") c"), ("\")\", ')\\', \"\\\")\"".into(), ") c".into(), 1));
        assert_eq!(config("// )\n)"), ("// )\n".into(), ")".into(), 2));
        assert_eq!(config("/* ) */ \\<)> \"\\<\">\")x"), ("/* ) */ \\<)> \"\\<\">\"".into(), ")x".into(), 1));
        assert_eq!(config("\n# 100 \"g\"\nx)"), ("\nx".into(), ")".into(), 100));
        assert_eq!(config("(a"), ("(a".into(), String::new(), 1));
        assert_eq!(config("\"\\\n\"\n)"), ("\"\\\n\"\n".into(), ")".into(), 3));
    }
}
