//! From tokens to the syntax tree. It never gives up: what it cannot understand becomes an error in the tree.

use super::lexer::{Keyword, Kind, Lexer, Token};
use super::syntax::{
    Block, Body, Chain, Class, Compound, Connector, Element, ElementClass, Formal, Item, Link, MAX_DEPTH, Ports,
    Statement, StatementKind,
};
use crate::error::Landmark;

/// Ports above this are refused: every port below a used one exists, and takes room.
const MAX_PORT: u32 = 65_535;
/// After as many errors the rest of a text is not looked at.
const MAX_ERRORS: usize = 1000;

/// Parses a text. `file` is its name in messages.
pub fn parse(text: &str, file: &str) -> Block {
    let mut parser = Parser { lexer: Lexer::new(text, file), ahead: Vec::new(), last_end: 0, depth: 0, errors: 0 };
    parser.block(Nesting::File).0
}

/// What a block is the inside of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nesting {
    File,
    Compound,
    Group,
}

/// How a block ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    Closed,
    Overload,
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    /// Tokens that were read and put back; the next one is last.
    ahead: Vec<Token>,
    /// Where the last token ended that was taken and not put back.
    last_end: usize,
    depth: usize,
    errors: usize,
}

impl Parser<'_> {
    fn next(&mut self) -> Token {
        let token = self.ahead.pop().unwrap_or_else(|| self.lexer.next());
        self.last_end = token.span.end;
        token
    }

    fn put_back(&mut self, token: Token) {
        self.last_end = self.last_end.min(token.span.start);
        self.ahead.push(token);
    }

    fn peek(&mut self) -> Token {
        let token = self.ahead.pop().unwrap_or_else(|| self.lexer.next());
        self.ahead.push(token.clone());
        token
    }

    /// Takes the next token if it is the character `byte`.
    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek().is(byte);
        if found {
            self.next();
        }
        found
    }

    fn text(&self, token: &Token) -> &str {
        &self.lexer.text()[token.span.clone()]
    }

    fn variable(&self, token: &Token) -> String {
        self.text(token)[1..].to_string()
    }

    fn block(&mut self, nesting: Nesting) -> (Block, Ended) {
        let mut block = Block::default();
        let ended = loop {
            self.lexer_errors(&mut block);
            if self.errors >= MAX_ERRORS {
                self.give_up(&mut block);
            }
            if let Some(ended) = self.statement(nesting, &mut block) {
                break ended;
            }
        };
        self.lexer_errors(&mut block);
        (block, ended)
    }

    fn lexer_errors(&mut self, block: &mut Block) {
        for (landmark, text) in std::mem::take(&mut self.lexer.errors) {
            self.error(block, &landmark, text);
        }
    }

    /// Goes to the end of the text, where all blocks end.
    fn give_up(&mut self, block: &mut Block) {
        if self.errors == MAX_ERRORS {
            let landmark = self.peek().landmark;
            self.error(block, &landmark, "too many errors");
        }
        self.ahead.clear();
        self.lexer.skip_to_end();
    }

    fn error(&mut self, block: &mut Block, landmark: &Landmark, text: impl Into<String>) {
        if self.errors > MAX_ERRORS {
            return;
        }
        self.errors += 1;
        let span = self.last_end..self.last_end;
        block.statements.push(Statement { landmark: landmark.clone(), span, kind: StatementKind::Error(text.into()) });
    }

    fn syntax_error(&mut self, block: &mut Block, token: &Token) {
        let text = format!("syntax error near '{}'", printable(self.text(token)));
        self.error(block, &token.landmark, text);
    }

    fn expected(&mut self, block: &mut Block, what: &str) {
        let landmark = self.peek().landmark;
        self.error(block, &landmark, format!("expected {what}"));
    }

    /// Parses a statement; returns how the block ends where it does.
    fn statement(&mut self, nesting: Nesting, block: &mut Block) -> Option<Ended> {
        let token = self.next();
        match token.kind {
            Kind::Identifier | Kind::Arrow | Kind::DoubleArrow | Kind::Char(b'[' | b'{' | b'(') => {
                self.put_back(token);
                self.chain(nesting, block);
            }
            Kind::Keyword(keyword) => self.keyword(keyword, &token, block),
            Kind::Char(b';') => {}
            Kind::Char(b'}') if nesting == Nesting::Compound => return Some(Ended::Closed),
            Kind::DoubleBar if nesting == Nesting::Compound => return Some(Ended::Overload),
            Kind::Char(b')') if nesting == Nesting::Group => return Some(Ended::Closed),
            Kind::Char(b'}') | Kind::DoubleBar if nesting == Nesting::Group => {
                self.syntax_error(block, &token);
                self.put_back(token);
                return Some(Ended::Closed);
            }
            Kind::End => {
                match nesting {
                    _ if self.errors > MAX_ERRORS => {}
                    Nesting::File => {}
                    Nesting::Compound => self.error(block, &token.landmark, "expected '}'"),
                    Nesting::Group => self.error(block, &token.landmark, "expected ')'"),
                }
                return Some(Ended::Closed);
            }
            _ => self.syntax_error(block, &token),
        }
        None
    }

    fn keyword(&mut self, keyword: Keyword, token: &Token, block: &mut Block) {
        let kind = match keyword {
            Keyword::ElementClass => Some(self.element_class(block)),
            Keyword::Require => self.parenthesized(block).map(StatementKind::Require),
            Keyword::Provide => self.parenthesized(block).map(StatementKind::Provide),
            Keyword::Define => self.parenthesized(block).map(StatementKind::Define),
            Keyword::ConnectionTunnel => self.tunnel(block),
        };
        if let Some(kind) = kind {
            let span = token.span.start..self.last_end;
            block.statements.push(Statement { landmark: token.landmark.clone(), span, kind });
        }
    }

    fn parenthesized(&mut self, block: &mut Block) -> Option<String> {
        if !self.take(b'(') {
            self.expected(block, "'('");
            return None;
        }
        Some(self.config(block))
    }

    /// The configuration string behind `(`, and the `)`.
    fn config(&mut self, block: &mut Block) -> String {
        let config = self.lexer.config();
        if !self.take(b')') {
            self.expected(block, "')'");
        }
        config
    }

    fn element_class(&mut self, block: &mut Block) -> StatementKind {
        let token = self.next();
        let name = if token.kind == Kind::Identifier {
            self.text(&token).to_string()
        } else {
            self.error(block, &token.landmark, "expected element type name");
            self.put_back(token);
            String::new()
        };
        let token = self.next();
        let class = match token.kind {
            Kind::Char(b'{') => Class::Compound(self.compound(&token, block)),
            Kind::Identifier => Class::Name(self.text(&token).to_string(), token.span.clone()),
            _ => {
                self.syntax_error(block, &token);
                if matches!(token.kind, Kind::Char(b'}' | b')') | Kind::Keyword(_) | Kind::End) {
                    self.put_back(token);
                }
                Class::Missing
            }
        };
        StatementKind::ElementClass(ElementClass { name, class })
    }

    fn tunnel(&mut self, block: &mut Block) -> Option<StatementKind> {
        let from = self.tunnel_end(block, "expected tunnel input name");
        let arrow = self.next();
        if arrow.kind != Kind::Arrow {
            self.put_back(arrow);
            self.expected(block, "'->'");
        }
        let to = self.tunnel_end(block, "expected tunnel output name");
        Some(StatementKind::Tunnel { from: from?, to: to? })
    }

    fn tunnel_end(&mut self, block: &mut Block, error: &str) -> Option<String> {
        let token = self.next();
        if token.kind == Kind::Identifier {
            return Some(self.text(&token).to_string());
        }
        self.error(block, &token.landmark, error);
        self.put_back(token);
        None
    }

    /// What stands between `{`, which is read, and `}`, which it reads.
    fn compound(&mut self, open: &Token, block: &mut Block) -> Compound {
        let mut bodies = Vec::new();
        let mut extends = false;
        if self.depth >= MAX_DEPTH {
            self.error(block, &open.landmark, "maximum compound element nesting depth exceeded");
            self.skip_nested();
        } else {
            self.depth += 1;
            let mut ended = Ended::Overload;
            while ended == Ended::Overload {
                let first = self.peek();
                if first.kind == Kind::Dots {
                    extends = true;
                    self.next();
                    let close = self.next();
                    if close.is(b'}') && !bodies.is_empty() {
                        break;
                    }
                    self.error(block, &close.landmark, "'...' should occur last, after one or more compounds");
                    self.put_back(close);
                }
                let landmark = self.peek().landmark;
                let mut body = Body { landmark, ..Body::default() };
                let mut inner = Block::default();
                body.formals = self.formals(&mut inner);
                (body.block, ended) = self.block(Nesting::Compound);
                body.block.statements.splice(0..0, inner.statements);
                bodies.push(body);
            }
            self.depth -= 1;
        }
        if bodies.is_empty() {
            bodies.push(Body { landmark: open.landmark.clone(), ..Body::default() });
        }
        Compound { bodies, extends, span: open.span.start..self.last_end }
    }

    /// Skips up to the closing of what was opened last.
    fn skip_nested(&mut self) {
        let mut depth = 1usize;
        while depth > 0 {
            let token = self.next();
            match token.kind {
                Kind::Char(b'{' | b'(') => depth += 1,
                Kind::Char(b'}' | b')') => depth -= 1,
                Kind::End => return self.put_back(token),
                _ => {}
            }
        }
    }

    fn formals(&mut self, block: &mut Block) -> Vec<Formal> {
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

    fn formal(&mut self, before: &[Formal], block: &mut Block) -> Option<Formal> {
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

    /// A chain of element lists and connectors, and the `;` behind it.
    fn chain(&mut self, nesting: Nesting, block: &mut Block) {
        let start = self.peek();
        let mut chain = Chain { links: Vec::new(), dangling: false, end: start.landmark.clone() };
        let mut connector = None;
        loop {
            let elements = self.element_list(chain.links.is_empty(), nesting, block);
            if elements.is_empty() {
                chain.dangling = connector.is_some();
                break;
            }
            let token = self.peek();
            let end = if token.is(b';') { token.landmark } else { self.end_of(&elements) };
            chain.links.push(Link { connector, elements, end: end.clone() });
            chain.end = end;
            connector = self.connector(block);
            if connector.is_none() {
                break;
            }
        }
        if !chain.links.is_empty() {
            let span = start.span.start..self.last_end;
            block.statements.push(Statement { landmark: start.landmark, span, kind: StatementKind::Chain(chain) });
        }
    }

    /// The line at which a list ends.
    fn end_of(&self, elements: &[Element]) -> Landmark {
        elements.last().map_or_else(|| self.lexer.landmark(), |element| element.landmark.clone())
    }

    /// The connector behind a list; nothing where the chain ends.
    fn connector(&mut self, block: &mut Block) -> Option<Connector> {
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

    /// Elements with commas between them; none where there is no element.
    fn element_list(&mut self, first: bool, nesting: Nesting, block: &mut Block) -> Vec<Element> {
        let mut list: Vec<Element> = Vec::new();
        while let Some(element) = self.element(first, nesting, list.is_empty(), block) {
            list.push(element);
            if !self.take(b',') {
                break;
            }
        }
        let implicit = list.iter().any(|element| matches!(element.item, Item::Implicit));
        let next = self.peek();
        if implicit && !first && next.is_arrow() {
            self.error(block, &next.landmark, "implicit ports used in the middle of a chain");
        }
        list
    }

    fn element(&mut self, first: bool, nesting: Nesting, alone: bool, block: &mut Block) -> Option<Element> {
        let inputs = self.ports(block);
        let token = self.next();
        let item = match token.kind {
            Kind::Identifier => Item::Name(self.text(&token).to_string()),
            Kind::Char(b'{') => Item::Compound(self.compound(&token, block)),
            Kind::Char(b'(') => Item::Group(self.group(&token, block)),
            _ => return self.no_element(first, nesting, alone, inputs, token, block),
        };
        let start = token.span.start;
        let landmark = if matches!(item, Item::Name(_)) { token.landmark } else { self.lexer.landmark() };
        let class = self.declared_class(&item, block);
        let config = if self.take(b'(') { Some(self.config(block)) } else { None };
        let span = start..self.last_end;
        let outputs = self.ports(block);
        Some(Element { inputs, item, class, config, outputs, landmark, span })
    }

    /// What stands for no element where one was looked for: `input` or `output` in compound elements, else nothing.
    fn no_element(
        &mut self,
        first: bool,
        nesting: Nesting,
        alone: bool,
        ports: Ports,
        token: Token,
        block: &mut Block,
    ) -> Option<Element> {
        let has_ports = !ports.numbers.is_empty();
        let implicit = match token.kind {
            _ if nesting == Nesting::File => false,
            Kind::Arrow | Kind::DoubleArrow => first && (has_ports || alone),
            Kind::Char(b',') => has_ports,
            Kind::DoubleColon => false,
            _ => !first && (has_ports || alone),
        };
        let landmark = token.landmark.clone();
        if implicit {
            let span = token.span.start..token.span.start;
            self.put_back(token);
            let (inputs, outputs) = if first { (Ports::default(), ports) } else { (ports, Ports::default()) };
            return Some(Element { inputs, item: Item::Implicit, class: None, config: None, outputs, landmark, span });
        }
        if has_ports {
            self.error(block, &landmark, "stranded port ignored");
        }
        if alone && (nesting == Nesting::File || !first) {
            self.syntax_error(block, &token);
        } else {
            self.put_back(token);
        }
        None
    }

    fn declared_class(&mut self, item: &Item, block: &mut Block) -> Option<Class> {
        if self.peek().kind != Kind::DoubleColon || matches!(item, Item::Group(_)) {
            return None;
        }
        self.next();
        let token = self.next();
        Some(match token.kind {
            Kind::Identifier => Class::Name(self.text(&token).to_string(), token.span),
            Kind::Char(b'{') => Class::Compound(self.compound(&token, block)),
            _ => {
                self.error(block, &token.landmark, "missing element type in declaration");
                self.put_back(token);
                Class::Missing
            }
        })
    }

    fn group(&mut self, open: &Token, block: &mut Block) -> Block {
        if self.depth >= MAX_DEPTH {
            self.error(block, &open.landmark, "maximum element group nesting depth exceeded");
            self.skip_nested();
            return Block::default();
        }
        self.depth += 1;
        let (group, _) = self.block(Nesting::Group);
        self.depth -= 1;
        group
    }

    /// Ports in brackets, if there are some.
    fn ports(&mut self, block: &mut Block) -> Ports {
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

    fn port(&mut self, token: &Token, block: &mut Block) -> u32 {
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
