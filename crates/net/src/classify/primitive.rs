//! One primitive of a filter expression: qualifiers, operator, mask and value, checked and made into tests.
//!
//! What is left out is completed as Click completes it: from the kind of value, and from the primitive before.

use super::expr::{Area, Expr, Id, Test};
use super::kind::{Ends, Header, Kind, Mask, Relation, TOS};
use super::names::{DCCP, TCP, TCP_OR_UDP, UDP, protocol_text};
use crate::Log;

/// A primitive.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Primitive {
    pub(super) kind: Kind,
    /// The kind of the value.
    pub(super) data: Kind,
    pub(super) relation: Relation,
    /// The opposite of the relation.
    pub(super) negated: bool,
    pub(super) ends: Option<Ends>,
    pub(super) transport: Option<u32>,
    pub(super) value: u32,
    pub(super) mask: u32,
    pub(super) ether: [u8; 6],
    ether_mask: [u8; 6],
}

/// Reports an error, and says that it did.
fn wrong(log: &mut Log, slot: usize, text: &str) -> Option<()> {
    log.error_here(format_args!("pattern {slot}: {text}"));
    None
}

impl Primitive {
    pub(super) fn set_kind(&mut self, kind: Kind, slot: usize, log: &mut Log) {
        if self.kind != Kind::None {
            wrong(log, slot, "type specified twice");
        }
        self.kind = kind;
    }

    pub(super) fn set_ends(&mut self, ends: Ends, slot: usize, log: &mut Log) {
        if self.ends.is_some() {
            wrong(log, slot, "'src' or 'dst' specified twice");
        }
        self.ends = Some(ends);
    }

    pub(super) fn set_transport(&mut self, protocol: u32, slot: usize, log: &mut Log) {
        if self.transport.is_some_and(|known| known != protocol) {
            wrong(log, slot, "transport protocol specified twice");
        }
        self.transport = Some(protocol);
    }

    fn text(&self) -> String {
        let ends = match self.ends {
            None => "",
            Some(Ends::Source) => "src ",
            Some(Ends::Destination) => "dst ",
            Some(Ends::Either) => "src or dst ",
            Some(Ends::Both) => "src and dst ",
        };
        format!("{ends}{}", self.kind.text())
    }

    fn relation_text(&self) -> &'static str {
        match (self.relation, self.negated) {
            (Relation::Greater, false) => ">",
            (Relation::Greater, true) => "<=",
            (Relation::Less, false) => "<",
            (Relation::Less, true) => ">=",
            (Relation::Equal, false) => "=",
            (Relation::Equal, true) => "!=",
        }
    }

    fn fail(&self, slot: usize, log: &mut Log, text: &str) -> Option<()> {
        wrong(log, slot, &format!("'{}': {text}", self.text()))
    }

    /// Completes the primitive by its value's kind and by `before`, the one before it, and checks it. `None`: an error was
    /// reported.
    pub(super) fn check(
        &mut self,
        before: &Self,
        header: Option<Header>,
        mask: Mask,
        slot: usize,
        log: &mut Log,
    ) -> Option<()> {
        let ends_given = self.ends.is_some();
        match self.kind {
            Kind::Wrong => return None,
            Kind::None => self.infer_kind(before, slot, log)?,
            _ => {}
        }
        let header = header.unwrap_or(if self.data == Kind::Ether { Header::Ether } else { Header::Ip });
        if header == Header::Ether && self.kind == Kind::Host {
            self.kind = Kind::Ether;
        }
        if header == Header::Ether && self.kind != Kind::Ether {
            let missing = matches!(self.kind, Kind::Host | Kind::Net);
            return self.fail(slot, log, if missing { "address missing" } else { "ip only" });
        }
        self.check_value(header, mask, slot, log)?;
        if matches!(self.kind, Kind::Host | Kind::Port | Kind::Ether) {
            self.ends = self.ends.or(Some(Ends::Either));
        } else if ends_given {
            log.warning_here(format_args!("pattern {slot}: '{}': 'src' or 'dst' ignored", self.text()));
        }
        Some(())
    }

    /// Sets the kind by the value's.
    fn infer_kind(&mut self, before: &Self, slot: usize, log: &mut Log) -> Option<()> {
        if self.data == Kind::Number {
            if !matches!(before.kind, Kind::Field(_) | Kind::Protocol | Kind::Port) {
                return wrong(log, slot, "specify header field or 'port'");
            }
            self.data = before.kind;
        }
        match self.data {
            Kind::None if self.transport.is_some() => self.kind = Kind::Protocol,
            Kind::None => return wrong(log, slot, "partial directive"),
            Kind::Host | Kind::Net | Kind::TcpFlags | Kind::Ether | Kind::Port => {
                self.kind = self.data;
                self.ends = self.ends.or(before.ends);
                if self.kind == Kind::Port {
                    self.transport = self.transport.or(before.transport);
                }
            }
            Kind::Field(field) => {
                self.kind = self.data;
                self.transport = self.transport.or(field.protocol);
            }
            other => self.kind = other,
        }
        Some(())
    }

    /// Checks that the value is one for the kind.
    fn check_value(&mut self, header: Header, mask: Mask, slot: usize, log: &mut Log) -> Option<()> {
        match self.kind {
            Kind::Host | Kind::Net => self.check_address(mask, slot, log),
            Kind::Ether => self.check_ether(header, mask, slot, log),
            Kind::Protocol => self.check_protocol(mask, slot, log),
            Kind::Port => {
                if !matches!(self.data, Kind::Number | Kind::Port) {
                    return self.fail(slot, log, "value missing");
                }
                self.data = Kind::Port;
                let protocol = *self.transport.get_or_insert(TCP_OR_UDP);
                if !matches!(protocol, TCP | UDP | DCCP | TCP_OR_UDP) {
                    return wrong(log, slot, &format!("'port': bad protocol {protocol}"));
                }
                self.check_number(0xffff, mask, slot, log)
            }
            Kind::TcpFlags => self.check_tcp_flags(mask, slot, log),
            Kind::Ect => {
                if !matches!(self.data, Kind::None | Kind::Number) {
                    return self.fail(slot, log, "value missing");
                }
                if self.data == Kind::None {
                    self.value = 0;
                    self.negated = true;
                }
                self.check_number(3, mask, slot, log)?;
                self.kind = TOS;
                Some(())
            }
            Kind::Ce | Kind::Fragment | Kind::Whole => {
                if self.data != Kind::None || mask != Mask::None {
                    return self.fail(slot, log, "value not supported");
                }
                match self.kind {
                    Kind::Ce => (self.kind, self.mask, self.value) = (TOS, 3, 3),
                    Kind::Whole => (self.kind, self.negated) = (Kind::Fragment, true),
                    _ => {}
                }
                Some(())
            }
            Kind::Field(field) => {
                if self.data != Kind::Number && self.data != self.kind {
                    return self.fail(slot, log, "value missing");
                }
                self.check_number(u32::MAX >> (32 - field.bits), mask, slot, log)
            }
            Kind::None | Kind::Wrong | Kind::Number => None,
        }
    }

    fn check_address(&mut self, mask: Mask, slot: usize, log: &mut Log) -> Option<()> {
        if self.data != self.kind {
            return self.fail(slot, log, "address missing");
        }
        if self.relation != Relation::Equal {
            return self.fail(slot, log, "operator not supported");
        }
        if self.kind == Kind::Host {
            self.mask = u32::MAX;
        }
        self.kind = Kind::Host;
        match mask {
            Mask::None => {}
            Mask::Number(bits) | Mask::Address(bits) => self.mask = bits,
            Mask::Ether(_) => return self.fail(slot, log, "bad mask"),
        }
        Some(())
    }

    fn check_ether(&mut self, header: Header, mask: Mask, slot: usize, log: &mut Log) -> Option<()> {
        if header != Header::Ether || self.data != Kind::Ether {
            return self.fail(slot, log, "address missing");
        }
        if self.relation != Relation::Equal {
            return self.fail(slot, log, "operator not supported");
        }
        self.ether_mask = match mask {
            Mask::None => [0xff; 6],
            Mask::Ether(bits) => bits,
            _ => return self.fail(slot, log, "bad mask"),
        };
        Some(())
    }

    fn check_protocol(&mut self, mask: Mask, slot: usize, log: &mut Log) -> Option<()> {
        match (self.data, self.transport) {
            (Kind::Number | Kind::Protocol, Some(protocol)) if protocol != self.value => {
                return self.fail(slot, log, "specified twice");
            }
            (Kind::Number | Kind::Protocol, _) => {}
            (Kind::None, Some(protocol)) => self.value = protocol,
            _ => return self.fail(slot, log, "value missing"),
        }
        let named = self.data != Kind::Number && self.value > 255;
        (self.data, self.transport) = (Kind::None, None);
        if named {
            // Click lets `!=` pass here, and tests something else then.
            if self.relation != Relation::Equal || self.negated || mask != Mask::None {
                let protocol = protocol_text(self.value);
                return wrong(log, slot, &format!("'{protocol}': operator or mask not supported"));
            }
            self.mask = 0xff;
        } else {
            self.check_number(0xff, mask, slot, log)?;
        }
        if self.relation == Relation::Equal && self.mask == 0xff && !self.negated {
            self.transport = Some(self.value);
        }
        Some(())
    }

    fn check_tcp_flags(&mut self, mask: Mask, slot: usize, log: &mut Log) -> Option<()> {
        if !matches!(self.data, Kind::Number | Kind::TcpFlags) {
            return self.fail(slot, log, "value missing");
        }
        self.data = Kind::TcpFlags;
        let protocol = *self.transport.get_or_insert(TCP);
        if protocol != TCP {
            return wrong(log, slot, &format!("'tcp opt': bad protocol {protocol}"));
        }
        if self.relation != Relation::Equal || self.negated || mask != Mask::None {
            return self.fail(slot, log, "operator or mask not supported");
        }
        if self.value > 255 {
            return wrong(log, slot, &format!("'tcp opt': value {} out of range", self.value.cast_signed()));
        }
        self.mask = self.value;
        Some(())
    }

    /// Checks a number against the largest one that its field holds, and turns "less" into "not greater".
    fn check_number(&mut self, full: u32, mask: Mask, slot: usize, log: &mut Log) -> Option<()> {
        let mask = match mask {
            Mask::None => full,
            Mask::Number(bits) => bits,
            Mask::Address(_) | Mask::Ether(_) => return self.fail(slot, log, "bad mask"),
        };
        if mask & !full != 0 {
            return self.fail(slot, log, &format!("mask out of range, bound 0x{full:X}"));
        }
        let value = self.value;
        self.mask = mask;
        match self.relation {
            Relation::Equal if value > full => {
                return self.fail(slot, log, &format!("out of range, bound {full}"));
            }
            Relation::Equal => self.value = value & mask,
            Relation::Less if value == 0 || value > mask => self.settle(value > mask, mask, slot, log),
            Relation::Greater if value >= mask => self.settle(false, mask, slot, log),
            Relation::Greater => {}
            Relation::Less => {
                self.value -= 1;
                self.negated = !self.negated;
                self.relation = Relation::Greater;
            }
        }
        Some(())
    }

    /// A relation whose result does not depend on the packet: an equality of nothing.
    fn settle(&mut self, holds: bool, mask: u32, slot: usize, log: &mut Log) {
        let result = holds != self.negated;
        let relation = self.relation_text();
        log.warning_here(format_args!(
            "pattern {slot}: relation '{relation} {}' is always {result} (range 0-{mask})",
            self.value
        ));
        (self.value, self.mask) = (0, 0);
        (self.relation, self.negated) = (Relation::Equal, !result);
    }

    /// Adds the tests of a checked primitive.
    pub(super) fn compile(&self, expr: &mut Expr) -> Id {
        let mut parts = Vec::new();
        match self.transport {
            Some(TCP_OR_UDP) => {
                let protocols = [TCP, UDP].map(|protocol| expr.test(Self::protocol(0xff, protocol)));
                parts.push(expr.any(protocols.into()));
            }
            Some(protocol) if protocol < 256 => parts.push(expr.test(Self::protocol(0xff, protocol))),
            _ => {}
        }
        let first_only = match self.kind {
            Kind::Port | Kind::TcpFlags => true,
            Kind::Field(field) => field.protocol.is_some(),
            _ => false,
        };
        if first_only {
            parts.push(expr.test(Test::equal(Area::Network, 6, 2, 0x1fff, 0)));
        }
        match self.kind {
            Kind::Host => {
                let ends = [12, 16].map(|offset| vec![self.related(Area::Network, offset, 4, 0)]);
                parts.push(self.compile_ends(ends, expr));
            }
            Kind::Ether => {
                let ends = [self.ether_tests(6, 4), self.ether_tests(0, 2)];
                parts.push(self.compile_ends(ends, expr));
            }
            Kind::Port => {
                let port = |offset| Test { need: 4, ..self.related(Area::Transport, offset, 2, 0) };
                parts.push(self.compile_ends([vec![port(0)], vec![port(2)]], expr));
            }
            Kind::Protocol if self.transport.is_some() => {}
            Kind::Protocol => {
                let test = self.related(Area::Network, 9, 1, 0);
                let id = expr.test(test);
                parts.push(expr.negate_if(self.negated, id));
            }
            Kind::Fragment => {
                let id = expr.test(Test { short: !self.negated, ..Test::equal(Area::Network, 6, 2, 0x3fff, 0) });
                parts.push(expr.negate_if(!self.negated, id));
            }
            Kind::TcpFlags => parts.push(expr.test(Test::equal(Area::Transport, 13, 1, self.mask, self.value))),
            Kind::Field(field) => {
                let (first, end) = (field.bit / 8, (field.bit + field.bits).div_ceil(8));
                let area = if field.protocol.is_some() { Area::Transport } else { Area::Network };
                let id = expr.test(self.related(area, first, end - first, end * 8 - field.bit - field.bits));
                parts.push(expr.negate_if(self.negated, id));
            }
            Kind::None | Kind::Wrong | Kind::Number | Kind::Net | Kind::Whole | Kind::Ect | Kind::Ce => {}
        }
        expr.all(parts)
    }

    fn protocol(mask: u32, value: u32) -> Test {
        Test::equal(Area::Network, 9, 1, mask, value)
    }

    /// The relation without its negation; a packet without the field fails with it and without.
    fn related(&self, area: Area, offset: u32, len: u32, shift: u32) -> Test {
        Test {
            greater: self.relation == Relation::Greater,
            short: self.negated,
            value: self.value << shift,
            ..Test::equal(area, offset, len, self.mask << shift, 0)
        }
        .normal()
    }

    /// The tests of an Ethernet address at `offset`, `first` bytes of it in the first word.
    fn ether_tests(&self, offset: u32, first: u32) -> Vec<Test> {
        let bits = |bytes: &[u8]| bytes.iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
        let pieces = [(0, first), (first, 6 - first)];
        let test = |(from, len): (u32, u32)| {
            let range = from as usize..(from + len) as usize;
            let (mask, value) = (bits(&self.ether_mask[range.clone()]), bits(&self.ether[range]));
            Test { short: self.negated, ..Test::equal(Area::Mac, offset + from, len, mask, value) }
        };
        pieces.map(test).into()
    }

    /// The tests of source and destination, combined.
    fn compile_ends(&self, [source, destination]: [Vec<Test>; 2], expr: &mut Expr) -> Id {
        let ends = self.ends.unwrap_or(Ends::Either);
        let mut parts = Vec::new();
        for (tests, other) in [(source, Ends::Destination), (destination, Ends::Source)] {
            if ends != other {
                let ids = tests.into_iter().map(|test| expr.test(test)).collect();
                parts.push(expr.all(ids));
            }
        }
        let id = if ends == Ends::Either { expr.any(parts) } else { expr.all(parts) };
        expr.negate_if(self.negated, id)
    }
}

impl Test {
    /// For equality, only the bits of the mask in the value.
    fn normal(self) -> Self {
        if self.greater { self } else { Self { value: self.value & self.mask, ..self } }
    }
}
