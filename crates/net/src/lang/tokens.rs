//! What the parser reads without a look at what contains it: tokens, configuration strings, parameters, ports, and errors.

use super::lexer::{Kind, Lexer, Token};
use super::syntax::{Block, Connector, Formal, Ports, Statement, StatementKind};
use crate::error::Landmark;

/// Ports above this are refused: every port below a used one exists, and takes room.
const MAX_PORT: u32 = 65_535;
/// After as many errors the rest of a text is not looked at.
const MAX_ERRORS: usize = 1000;

/// Reads tokens, and what is made of a few of them.
pub(super) struct Parser<'a> {
    lexer: Lexer<'a>,
    /// Tokens that were read and put back; the next one is last.
    ahead: Vec<Token>,
    /// Where the last token ended that was taken and not put back.
    last_end: usize,
    pub(super) depth: usize,
    errors: usize,
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str, file: &str) -> Self {
        Self { lexer: Lexer::new(text, file), ahead: Vec::new(), last_end: 0, depth: 0, errors: 0 }
    }

    pub(super) fn next(&mut self) -> Token {
        let token = self.ahead.pop().unwrap_or_else(|| self.lexer.next());
        self.last_end = token.span.end;
        token
    }

    pub(super) fn put_back(&mut self, token: Token) {
        self.last_end = self.last_end.min(token.span.start);
        self.ahead.push(token);
    }

    pub(super) fn peek(&mut self) -> Token {
        let token = self.ahead.pop().unwrap_or_else(|| self.lexer.next());
        self.ahead.push(token.clone());
        token
    }

    /// Takes the next token if it is the character `byte`.
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let found = self.peek().is(byte);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn text(&self, token: &Token) -> &str {
        &self.lexer.text()[token.span.clone()]
    }

    pub(super) fn variable(&self, token: &Token) -> String {
        self.text(token)[1..].to_string()
    }

    /// Where the last token ended.
    pub(super) fn last_end(&self) -> usize {
        self.last_end
    }

    /// Where the next token is looked for.
    pub(super) fn landmark(&self) -> Landmark {
        self.lexer.landmark()
    }

    /// Whether it has said that nothing more is looked at.
    pub(super) fn has_given_up(&self) -> bool {
        self.errors > MAX_ERRORS
    }

    /// Whether so much is wrong that nothing more is looked at.
    pub(super) fn has_enough(&self) -> bool {
        self.errors >= MAX_ERRORS
    }

    pub(super) fn lexer_errors(&mut self, block: &mut Block) {
        for (landmark, text) in std::mem::take(&mut self.lexer.errors) {
            self.error(block, &landmark, text);
        }
    }

    /// Goes to the end of the text, where all blocks end.
    pub(super) fn give_up(&mut self, block: &mut Block) {
        if self.errors == MAX_ERRORS {
            let landmark = self.peek().landmark;
            self.error(block, &landmark, "too many errors");
        }
        self.ahead.clear();
        self.lexer.skip_to_end();
    }

    pub(super) fn error(&mut self, block: &mut Block, landmark: &Landmark, text: impl Into<String>) {
        if self.errors > MAX_ERRORS {
            return;
        }
        self.errors += 1;
        let span = self.last_end..self.last_end;
        block.statements.push(Statement { landmark: landmark.clone(), span, kind: StatementKind::Error(text.into()) });
    }

    pub(super) fn syntax_error(&mut self, block: &mut Block, token: &Token) {
        let text = format!("syntax error near '{}'", printable(self.text(token)));
        self.error(block, &token.landmark, text);
    }

    pub(super) fn expected(&mut self, block: &mut Block, what: &str) {
        let landmark = self.peek().landmark;
        self.error(block, &landmark, format!("expected {what}"));
    }

    pub(super) fn parenthesized(&mut self, block: &mut Block) -> Option<String> {
        if !self.take(b'(') {
            self.expected(block, "'('");
            return None;
        }
        Some(self.config(block))
    }

    /// The configuration string behind `(`, and the `)`.
    pub(super) fn config(&mut self, block: &mut Block) -> String {
        let config = self.lexer.config();
        if !self.take(b')') {
            self.expected(block, "')'");
        }
        config
    }

    pub(super) fn tunnel(&mut self, block: &mut Block) -> Option<StatementKind> {
        let from = self.tunnel_end(block, "expected tunnel input name");
        let arrow = self.next();
        if arrow.kind != Kind::Arrow {
            self.put_back(arrow);
            self.expected(block, "'->'");
        }
        let to = self.tunnel_end(block, "expected tunnel output name");
        Some(StatementKind::Tunnel { from: from?, to: to? })
    }

    pub(super) fn tunnel_end(&mut self, block: &mut Block, error: &str) -> Option<String> {
        let token = self.next();
        if token.kind == Kind::Identifier {
            return Some(self.text(&token).to_string());
        }
        self.error(block, &token.landmark, error);
        self.put_back(token);
        None
    }

    pub(super) fn formals(&mut self, block: &mut Block) -> Vec<Formal> {
        let mut formals = Vec::new();
        loop {
            let Some(formal) = self.formal(&formals, block) else { return formals };
            formals.push(formal);
            let separator = self.next();
            if separator.is(b'|') {
                return formals;
            }
            if !separator.is(b',') {
                self.error(block, &separator.landmark, "expected ',' or '|'");
                self.put_back(separator);
                return formals;
            }
        }
    }

    pub(super) fn formal(&mut self, before: &[Formal], block: &mut Block) -> Option<Formal> {
        let first = self.next();
        let landmark = first.landmark.clone();
        match first.kind {
            Kind::Variable => return Some(Formal { keyword: String::new(), name: self.variable(&first), landmark }),
            Kind::Char(b'|') => return None,
            Kind::Identifier => {
                let second = self.next();
                if second.kind == Kind::Variable {
                    let keyword = self.text(&first).to_string();
                    return Some(Formal { keyword, name: self.variable(&second), landmark });
                }
                self.put_back(second);
            }
            _ => {}
        }
        if !before.is_empty() {
            self.error(block, &landmark, "expected variable");
        }
        self.put_back(first);
        None
    }

    /// The connector behind a list; nothing where the chain ends.
    pub(super) fn connector(&mut self, block: &mut Block) -> Option<Connector> {
        loop {
            let token = self.next();
            match token.kind {
                Kind::Arrow => return Some(Connector::Single),
                Kind::DoubleArrow => return Some(Connector::Multiple),
                Kind::Char(b',') | Kind::DoubleColon => self.syntax_error(block, &token),
                Kind::Char(b';') => return None,
                Kind::Identifier
                | Kind::Keyword(_)
                | Kind::DoubleBar
                | Kind::Char(b'{' | b'}' | b'[' | b')')
                | Kind::End => {
                    self.put_back(token);
                    return None;
                }
                _ => {
                    self.syntax_error(block, &token);
                    return None;
                }
            }
        }
    }

    /// Ports in brackets, if there are some.
    pub(super) fn ports(&mut self, block: &mut Block) -> Ports {
        let mut ports = Ports::default();
        if !self.take(b'[') {
            return ports;
        }
        loop {
            let token = self.next();
            match token.kind {
                Kind::Identifier => {
                    let number = self.port(&token, block);
                    ports.numbers.push(number);
                }
                Kind::Char(b']') => {
                    if ports.numbers.is_empty() {
                        ports.numbers.push(0);
                    }
                    ports.open = true;
                    return ports;
                }
                _ => {
                    self.error(block, &token.landmark, "syntax error: expected port number");
                    self.put_back(token);
                    return ports;
                }
            }
            let token = self.next();
            if token.is(b']') {
                return ports;
            }
            if !token.is(b',') {
                self.error(block, &token.landmark, "syntax error: expected ','");
                self.put_back(token);
            }
        }
    }

    pub(super) fn port(&mut self, token: &Token, block: &mut Block) -> u32 {
        let text = match parse_port(self.text(token)) {
            Some(number) if number <= MAX_PORT => return number,
            Some(number) => format!("port number {number} too large, max {MAX_PORT}"),
            None => "syntax error: port number should be integer".to_string(),
        };
        self.error(block, &token.landmark, text);
        0
    }
}

/// A number in C's notation: decimal, octal with a leading 0, hexadecimal with a leading 0x.
fn parse_port(text: &str) -> Option<u32> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    u32::from_str_radix(digits, radix).ok()
}

/// A text with escapes for what would not be seen.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { format!("\\{:03o}", u32::from(c)) } else { c.to_string() }).collect()
}
