//! The language of `IPClassifier` and `IPFilter`: text to expressions.
//!
//! ```text
//!   expr   ::= orexpr | orexpr ? expr : expr
//!   orexpr ::= term { (or | "||") term }
//!   term   ::= factor { [and | "&&"] factor }
//!   factor ::= (not | "!") factor | "(" expr ")" | test
//!   test   ::= true | false | qualifiers [& mask] [relation] [value]
//! ```

use super::expr::{Expr, Id, Node};
use super::kind::{Ends, Field, Header, ICMP_TYPE, Kind, Mask, Relation};
use super::names::{self, Names, TCP, TCP_OR_UDP, UDP, protocol_text};
use super::primitive::Primitive;
use crate::Log;

/// The words of a pattern.
pub(super) fn words(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut words = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let first = bytes[at];
        if first.is_ascii_whitespace() || first == 0x0b {
            at += 1;
            continue;
        }
        let next = bytes.get(at + 1).copied();
        let len = match first {
            b'&' | b'|' if next == Some(first) => 2,
            b'<' | b'>' | b'!' | b'=' if next == Some(b'=') => 2,
            _ => {
                let run = bytes[at..].iter().take_while(|&&byte| is_word(byte)).count();
                // A character that is no part of any word stands alone, all its bytes.
                run.max(text[at..].chars().next().map_or(1, char::len_utf8))
            }
        };
        words.push(&text[at..at + len]);
        at += len;
    }
    words
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'/' | b'@' | b'_' | b':')
}

/// What a word stands for.
enum Meaning {
    Unknown,
    /// A name, but of something else, or of several things; reported if there was a log.
    Wrong,
    Type(Kind),
    Value(Kind, u32),
}

fn spoken(kind: Kind, transport: Option<u32>, word: &str) -> String {
    format!("{} {} {word}", kind.text(), transport.map(protocol_text).unwrap_or_default())
}

/// Looks a word up, as a value of `kind` for `transport`.
fn lookup(
    names: &dyn Names,
    word: &str,
    kind: Kind,
    transport: Option<u32>,
    report: Option<(usize, &mut Log)>,
) -> Meaning {
    if kind == Kind::None {
        if let Some(named) = Kind::named(word) {
            return Meaning::Type(named);
        }
        if matches!(word, "dest" | "dst" | "ether" | "ip" | "not" | "src") {
            return Meaning::Unknown;
        }
    }
    let number = names::number(word).is_some();
    let found = [
        (Kind::Protocol, names::protocol(names, word)),
        (Kind::Port, names::port(names, TCP as u8, word)),
        (Kind::Port, names::port(names, UDP as u8, word)),
        (Kind::TcpFlags, names::tcp_flag(word)),
        (ICMP_TYPE, names::icmp_type(word)),
    ];
    if number || found.iter().all(|(_, value)| value.is_none()) {
        return Meaning::Unknown;
    }
    let fits_protocol = |at: usize| match (at, transport) {
        (0, _) | (_, None) => true,
        (1 | 3, Some(protocol)) => matches!(protocol, TCP | TCP_OR_UDP),
        (2, Some(protocol)) => matches!(protocol, UDP | TCP_OR_UDP),
        (_, Some(protocol)) => protocol == names::ICMP,
    };
    let mut fitting = [None; 5];
    for (at, &(of, value)) in found.iter().enumerate() {
        fitting[at] = value.filter(|_| (kind == Kind::None || kind == of) && fits_protocol(at));
    }
    if fitting[1].is_some() && fitting[1] == fitting[2] {
        fitting[2] = None;
    }
    let mut matching = fitting.iter().zip(&found).filter_map(|(value, (of, _))| value.map(|value| (*of, value)));
    match (matching.next(), matching.next()) {
        (Some((of, value)), None) => return Meaning::Value(of, value),
        (first, _) => {
            if let Some((slot, log)) = report {
                let tries: Vec<_> = found
                    .iter()
                    .filter(|(_, value)| value.is_some())
                    .map(|(of, _)| format!("'{}'", spoken(*of, transport, word)))
                    .collect();
                let how = if first.is_some() { "ambiguous" } else { "meaningless" };
                let (said, tries) = (spoken(kind, transport, word), tries.join(", "));
                log.error_here(format_args!("pattern {slot}: '{said}' is {how}; try {tries}"));
            }
        }
    }
    Meaning::Wrong
}

/// Where the parser stands in a rule of the grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    ExprStart,
    /// After an orexpr.
    Expr,
    /// After the expr behind a `?`.
    Choice,
    OrStart,
    Or,
    TermStart,
    /// After a factor that had to come.
    Term,
    /// After a factor that need not have come.
    Juxtaposed,
    Factor,
    Not,
    Group,
}

/// A rule of the grammar that is being parsed.
struct Frame {
    state: State,
    /// Where its last part began.
    at: usize,
    negated: bool,
    parts: Vec<Id>,
}

impl Frame {
    fn new(state: State, negated: bool) -> Self {
        Self { state, at: 0, negated, parts: Vec::new() }
    }
}

/// Parses the words of one pattern.
pub(super) struct Parser<'a> {
    words: &'a [&'a str],
    at: usize,
    slot: usize,
    names: &'a dyn Names,
    log: &'a mut Log,
    expr: Expr,
    before: Primitive,
}

impl<'a> Parser<'a> {
    /// For `words` from the one at `at`, pattern number `slot`.
    pub(super) fn new(words: &'a [&'a str], at: usize, slot: usize, names: &'a dyn Names, log: &'a mut Log) -> Self {
        Self { words, at, slot, names, log, expr: Expr::default(), before: Primitive::default() }
    }

    /// The expression; wrong ones are reported, and come out as something.
    pub(super) fn parse(mut self) -> Expr {
        self.parse_expr();
        if let Some(word) = self.words.get(self.at) {
            self.error(format!("garbage after expression at '{word}'"));
        }
        self.expr
    }

    fn error(&mut self, text: impl std::fmt::Display) {
        self.log.error_here(format_args!("pattern {}: {text}", self.slot));
    }

    fn word(&self, at: usize) -> &'a str {
        self.words.get(at).copied().unwrap_or("")
    }

    /// The word here, if it is not the last one.
    fn word_before_last(&self) -> &'a str {
        if self.at + 1 >= self.words.len() { "" } else { self.words[self.at] }
    }

    fn take(&mut self, either: &str, or: &str) -> bool {
        let found = self.at < self.words.len() && (self.words[self.at] == either || self.words[self.at] == or);
        self.at += usize::from(found);
        found
    }

    /// The stack of rules is one of ours, since input decides how deep it is.
    fn parse_expr(&mut self) {
        let mut stack = vec![Frame::new(State::ExprStart, false)];
        while let Some(mut frame) = stack.pop() {
            let (next, result) = self.step(&mut frame);
            match (next, result) {
                (Some(below), _) => {
                    frame.at = self.at;
                    stack.push(frame);
                    stack.push(below);
                }
                (None, Some(id)) => {
                    if let Some(above) = stack.last_mut() {
                        above.parts.push(id);
                    }
                }
                (None, None) => {}
            }
        }
    }

    /// One step of a rule: the rule to parse next, or, at its end, what it came to.
    fn step(&mut self, frame: &mut Frame) -> (Option<Frame>, Option<Id>) {
        let (to, next) = match frame.state {
            State::ExprStart => (State::Expr, State::OrStart),
            State::Expr if self.take("?", "?") => (State::Choice, State::ExprStart),
            State::Expr => return (None, self.choose(&frame.parts)),
            State::Choice => {
                if self.at == frame.at || !self.take(":", ":") {
                    self.error("missing ':' in ternary expression");
                    return (None, self.choose(&frame.parts));
                }
                (State::Expr, State::OrStart)
            }
            State::OrStart => (State::Or, State::TermStart),
            State::Or if self.take("or", "||") => (State::Or, State::TermStart),
            State::Or => return (None, Some(self.expr.any(std::mem::take(&mut frame.parts)))),
            State::TermStart => (State::Term, State::Factor),
            State::Term | State::Juxtaposed => {
                if self.at == frame.at {
                    if frame.state == State::Term {
                        self.error("missing expression");
                    }
                    return (None, Some(self.expr.all(std::mem::take(&mut frame.parts))));
                }
                (if self.take("and", "&&") { State::Term } else { State::Juxtaposed }, State::Factor)
            }
            State::Factor => {
                if self.take("not", "!") {
                    frame.state = State::Not;
                    return (Some(Frame::new(State::Factor, !frame.negated)), None);
                }
                if self.take("(", "(") {
                    (State::Group, State::ExprStart)
                } else {
                    return (None, self.parse_test(frame.negated));
                }
            }
            State::Not => {
                if self.at == frame.at {
                    self.error(format!("missing expression after '{}'", self.word(self.at - 1)));
                }
                return (None, frame.parts.pop());
            }
            State::Group => {
                self.end_group(frame.at);
                let id = frame.parts.pop();
                return (None, id.map(|id| self.expr.negate_if(frame.negated, id)));
            }
        };
        frame.state = to;
        (Some(Frame::new(next, false)), None)
    }

    fn end_group(&mut self, began: usize) {
        if self.at == began {
            self.error("missing expression after '('");
        }
        if !self.take(")", ")") && self.at != began {
            self.error("missing ')'");
        }
    }

    /// `a ? b : c ? d : e`, of its parts.
    fn choose(&mut self, parts: &[Id]) -> Option<Id> {
        let (&last, front) = parts.split_last()?;
        let mut result = last;
        for pair in front.rchunks_exact(2) {
            result = self.expr.add(Node::Choose(pair[0], pair[1], result));
        }
        // An odd part is left after an error only; every node has a parent nevertheless.
        if front.len() % 2 == 1 {
            result = self.expr.add(Node::And(vec![front[0], result]));
        }
        Some(result)
    }

    fn parse_test(&mut self, mut negated: bool) -> Option<Id> {
        let first_at = self.at;
        match self.word(self.at) {
            "" | ")" | "||" | "or" | "?" | ":" => return None,
            word @ ("true" | "false") => {
                self.at += 1;
                return Some(self.expr.add(Node::Const((word == "true") != negated)));
            }
            _ => {}
        }
        let mut primitive = Primitive::default();
        let header = self.parse_qualifiers(&mut primitive, &mut negated);
        if self.at != first_at {
            self.before = Primitive::default();
        }
        if self.word_before_last() == "[" && self.at > first_at && primitive.kind == Kind::None {
            self.parse_brackets(&mut primitive);
        }
        let mask = self.parse_mask(header);
        self.parse_relation(&mut primitive);
        self.parse_value(&mut primitive, header);
        if self.at == first_at {
            let word = self.word(self.at);
            self.error(format!("empty term near '{word}'"));
            return None;
        }
        primitive.check(&self.before, header, mask, self.slot, self.log)?;
        self.before = primitive;
        let id = primitive.compile(&mut self.expr);
        Some(self.expr.negate_if(negated, id))
    }

    fn parse_qualifiers(&mut self, primitive: &mut Primitive, negated: &mut bool) -> Option<Header> {
        let mut header = None;
        while self.at < self.words.len() {
            let word = self.words[self.at];
            match lookup(self.names, word, Kind::None, None, None) {
                Meaning::Type(kind) => {
                    primitive.set_kind(kind, self.slot, self.log);
                    if let Kind::Field(Field { protocol: Some(protocol), .. }) = kind {
                        primitive.set_transport(protocol, self.slot, self.log);
                    }
                }
                Meaning::Value(Kind::Protocol, protocol) => primitive.set_transport(protocol, self.slot, self.log),
                Meaning::Value(..) | Meaning::Wrong => break,
                Meaning::Unknown => match word {
                    "src" => {
                        let ends = self.source_and();
                        primitive.set_ends(ends, self.slot, self.log);
                    }
                    "dst" | "dest" => primitive.set_ends(Ends::Destination, self.slot, self.log),
                    "ip" if header.is_none() => header = Some(Header::Ip),
                    "ether" if header.is_none() => header = Some(Header::Ether),
                    "not" | "!" => *negated = !*negated,
                    _ => break,
                },
            }
            self.at += 1;
        }
        header
    }

    /// `src`, or `src and dst`, or `src or dst`; leaves the last of its words.
    fn source_and(&mut self) -> Ends {
        if !matches!(self.word(self.at + 2), "dst" | "dest") {
            return Ends::Source;
        }
        let ends = match self.word(self.at + 1) {
            "and" | "&&" => Ends::Both,
            "or" | "||" => Ends::Either,
            _ => return Ends::Source,
        };
        self.at += 2;
        ends
    }

    /// `[POS]`, `[POS:LEN]` or `[FIRST,LAST]`.
    fn parse_brackets(&mut self, primitive: &mut Primitive) {
        let first = self.at + 1;
        let Some(len) = self.words[first..].iter().position(|&word| word == "]") else {
            self.error("missing ']'");
            self.at = first;
            return;
        };
        self.at = first + len + 1;
        let text = self.words[first..first + len].concat();
        let signed = |word: &str| names::number(word).map(|number| i64::from(number.cast_signed()));
        let range = if let Some((position, len)) = text.split_once(':') {
            signed(position).zip(signed(len))
        } else if let Some((position, last)) = text.split_once(',') {
            signed(position).zip(signed(last)).map(|(position, last)| (position, last - position + 1))
        } else {
            signed(&text).map(|position| (position, 1))
        };
        match range {
            None => self.error("syntax error after '[', expected '[POS]' or '[POS:LEN]'"),
            Some((_, len)) if !(1..=4).contains(&len) => {
                self.error("LEN in '[POS:LEN]' out of range, should be between 1 and 4");
            }
            Some((position, _)) if !(0..8192).contains(&position) => {
                self.error("POS in '[POS:LEN]' out of range, should be between 0 and 8191");
            }
            Some((position, len)) if position / 4 != (position + len - 1) / 4 => {
                self.error(format!("field [{position}:{len}] does not fit in a single word"));
            }
            Some((position, len)) => {
                let field = Field { protocol: primitive.transport, bit: position as u32 * 8, bits: len as u32 * 8 };
                primitive.set_kind(Kind::Field(field), self.slot, self.log);
            }
        }
    }

    fn parse_mask(&mut self, header: Option<Header>) -> Mask {
        if self.word_before_last() != "&" {
            return Mask::None;
        }
        let word = self.word(self.at + 1);
        let mask = if let Some(number) = names::number(word) {
            Mask::Number(number)
        } else if let Some(address) = names::address(self.names, word).filter(|_| header != Some(Header::Ether)) {
            Mask::Address(address)
        } else if let Some(address) = names::ethernet(self.names, word).filter(|_| header != Some(Header::Ip)) {
            Mask::Ether(address)
        } else {
            return Mask::None;
        };
        self.at += 2;
        if matches!(mask, Mask::Number(0) | Mask::Address(0)) {
            self.error("zero mask ignored");
            return Mask::None;
        }
        mask
    }

    fn parse_relation(&mut self, primitive: &mut Primitive) {
        let (relation, negated) = match self.word_before_last() {
            "=" | "==" => (Relation::Equal, false),
            "!=" => (Relation::Equal, true),
            ">" => (Relation::Greater, false),
            "<" => (Relation::Less, false),
            ">=" => (Relation::Less, true),
            "<=" => (Relation::Greater, true),
            _ => return,
        };
        (primitive.relation, primitive.negated) = (relation, negated);
        self.at += 1;
    }

    fn parse_value(&mut self, primitive: &mut Primitive, header: Option<Header>) {
        let Some(&word) = self.words.get(self.at) else { return };
        self.at += 1;
        match lookup(self.names, word, primitive.kind, primitive.transport, Some((self.slot, self.log))) {
            Meaning::Wrong => {
                primitive.kind = Kind::Wrong;
                return;
            }
            Meaning::Value(kind, value) => {
                (primitive.data, primitive.value) = (kind, value);
                return;
            }
            Meaning::Type(_) | Meaning::Unknown => {}
        }
        if let Some(number) = names::number(word) {
            (primitive.data, primitive.value) = (Kind::Number, number);
        } else if header != Some(Header::Ether) && self.parse_address(primitive, word) {
        } else if let Some(address) = names::ethernet(self.names, word).filter(|_| header != Some(Header::Ip)) {
            (primitive.data, primitive.ether) = (Kind::Ether, address);
        } else {
            if primitive.relation != Relation::Equal || primitive.negated {
                self.error(format!("dangling operator near '{word}'"));
            }
            self.at -= 1;
        }
    }

    /// An address, `ADDRESS mask MASK`, or a network.
    fn parse_address(&mut self, primitive: &mut Primitive, word: &str) -> bool {
        if let Some(address) = names::address(self.names, word) {
            (primitive.data, primitive.value) = (Kind::Host, address);
            if self.word_before_last() == "mask"
                && let Some(mask) = names::address(self.names, self.word(self.at + 1))
            {
                self.at += 2;
                (primitive.data, primitive.mask) = (Kind::Net, mask);
                return true;
            }
            if primitive.kind != Kind::Net {
                return true;
            }
        }
        match names::network(self.names, word) {
            Some((address, mask)) => {
                (primitive.data, primitive.value, primitive.mask) = (Kind::Net, address, mask);
                true
            }
            None => primitive.data == Kind::Host,
        }
    }
}
