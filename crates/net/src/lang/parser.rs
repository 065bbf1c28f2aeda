//! From tokens to the syntax tree. It never gives up: what it cannot understand becomes an error in the tree.

use super::lexer::{Keyword, Kind, Token};
use super::syntax::{
    Block, Body, Chain, Class, Compound, Element, ElementClass, Item, Link, MAX_DEPTH, Ports, Statement, StatementKind,
};
use super::tokens::Parser;
use crate::error::Landmark;

/// Parses a text. `file` is its name in messages.
pub fn parse(text: &str, file: &str) -> Block {
    Parser::new(text, file).block(Nesting::File).0
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

impl Parser<'_> {
    fn block(&mut self, nesting: Nesting) -> (Block, Ended) {
        let mut block = Block::default();
        let ended = loop {
            self.lexer_errors(&mut block);
            if self.has_enough() {
                self.give_up(&mut block);
            }
            if let Some(ended) = self.statement(nesting, &mut block) {
                break ended;
            }
        };
        self.lexer_errors(&mut block);
        (block, ended)
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
                    _ if self.has_given_up() => {}
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
            let span = token.span.start..self.last_end();
            block.statements.push(Statement { landmark: token.landmark.clone(), span, kind });
        }
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
        Compound { bodies, extends, span: open.span.start..self.last_end() }
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
            let span = start.span.start..self.last_end();
            block.statements.push(Statement { landmark: start.landmark, span, kind: StatementKind::Chain(chain) });
        }
    }

    /// The line at which a list ends.
    fn end_of(&self, elements: &[Element]) -> Landmark {
        elements.last().map_or_else(|| self.landmark(), |element| element.landmark.clone())
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
        let landmark = if matches!(item, Item::Name(_)) { token.landmark } else { self.landmark() };
        let class = self.declared_class(&item, block);
        let config = if self.take(b'(') { Some(self.config(block)) } else { None };
        let span = start..self.last_end();
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
}
