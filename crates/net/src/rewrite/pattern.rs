//! Patterns: how a new flow is rewritten, such as `1.0.0.1 1024-65535# - -`.
//!
//! A pattern is `SADDR SPORT DADDR DPORT`, or `SADDR DADDR` for rewriters that leave ports alone. A dash leaves a field as
//! it is. `SPORT`, or else `SADDR`, may be a range: `L-H`, or for addresses a prefix too, without its first and last
//! address. From a range of ports, the flow's own port is taken where it is free, else one at random and, that being
//! taken, the next one. With `#` behind it, values are taken in turn; with `?`, always at random.

use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::flows::{FlowSet, MapId};
use super::taken::{Range, Variable};
use crate::headers::FlowId;

/// What a configuration has names for.
pub trait Names {
    /// The address of this name or text.
    fn address(&self, text: &str) -> Option<Ipv4Addr>;
    /// Address and length of the prefix of this name or text, such as `1.0.0.0/8`.
    fn prefix(&self, text: &str) -> Option<(Ipv4Addr, u32)>;
}

/// How a new flow is rewritten. Those with a name are shared, with what is next in their range.
#[derive(Debug)]
pub struct Pattern {
    source: Option<Ipv4Addr>,
    source_port: Option<u16>,
    destination: Option<Ipv4Addr>,
    destination_port: Option<u16>,
    /// Whether it is about ports.
    has_ports: bool,
    choice: Option<Choice>,
}

/// A range, and how one of its values is chosen.
#[derive(Debug)]
struct Choice {
    range: Range,
    in_turn: bool,
    own_first: bool,
    /// The next value in turn, counted from the range's beginning.
    next: AtomicU32,
}

impl Pattern {
    /// A pattern of its words. Errors are Click's.
    pub fn parse(words: &[&str], names: &dyn Names) -> Result<Arc<Self>, String> {
        match *words {
            [source, destination] => Self::of(source, None, destination, "-", names),
            [source, destination, port] => Self::of(source, Some(port), destination, "-", names),
            [source, port, destination, other] => Self::of(source, Some(port), destination, other, names),
            _ => Err("syntax error".into()),
        }
    }

    fn of(
        source: &str,
        port: Option<&str>,
        destination: &str,
        other: &str,
        names: &dyn Names,
    ) -> Result<Arc<Self>, String> {
        let (source, addresses) = match source {
            "-" => (None, None),
            text => match names.address(text) {
                Some(address) => (Some(address), None),
                None => address_range(text, names)
                    .map(|range| split(range, Ipv4Addr::from_bits))
                    .ok_or("bad source address")?,
            },
        };
        let (source_port, ports) = match port {
            None | Some("-") => (None, None),
            Some(text) => match number(text).filter(|&port| port > 0) {
                Some(port) => (Some(port), None),
                None => port_range(text).map(|range| split(range, |port| port as u16)).ok_or("bad source port")?,
            },
        };
        let destination = match destination {
            "-" => None,
            text => Some(names.address(text).ok_or("bad destination address")?),
        };
        let destination_port = match other {
            "-" => None,
            text => Some(number(text).filter(|&port| port > 0).ok_or("bad destination port")?),
        };
        // Ports are what varies wherever there are any; a range of addresses is its first one then.
        let choice = if port.is_some() { ports } else { addresses };
        let choice = choice.filter(|choice| choice.range.low < choice.range.high);
        Ok(Arc::new(Self { source, source_port, destination, destination_port, has_ports: port.is_some(), choice }))
    }

    /// What a flow becomes, and what was chosen from a range: `None` where all of it is taken. The reply must be free in
    /// `map` of `flows`. For a `ping`, ports are identifiers, and the destination's is the source's plus 1.
    pub fn rewrite(
        &self,
        flow: FlowId,
        ping: bool,
        flows: &mut FlowSet,
        map: MapId,
        random: &mut dyn FnMut(u32) -> u32,
    ) -> Option<(FlowId, Option<Variable>)> {
        let mut to = FlowId {
            source: self.source.unwrap_or(flow.source),
            source_port: self.source_port.unwrap_or(flow.source_port),
            destination: self.destination.unwrap_or(flow.destination),
            destination_port: self.destination_port.unwrap_or(flow.destination_port),
        };
        let variable = match (self.has_ports, ping) {
            (true, true) => Variable::Pair,
            (true, false) => Variable::Port,
            (false, _) => Variable::Address,
        };
        if let Some(choice) = &self.choice {
            let reply = to.reverse();
            let own = self.has_ports.then_some(u32::from(flow.source_port));
            let value = choice.value(own, random, |start| flows.choose(map, variable, reply, choice.range, start))?;
            to = variable.set(reply, value).reverse();
        } else if ping {
            to.destination_port = to.source_port.wrapping_add(1);
        }
        Some((to, self.choice.is_some().then_some(variable)))
    }

    /// Goes on in its range where another pattern stopped that is written like this one.
    pub fn go_on(&self, other: &Self) {
        if let (Some(own), Some(other)) = (&self.choice, other.choice.as_ref().filter(|_| self == other)) {
            own.next.store(other.next.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// Patterns are the same where they are written the same.
impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Choice {
    /// A free value, which `free` finds from a start on.
    fn value(
        &self,
        own: Option<u32>,
        random: &mut dyn FnMut(u32) -> u32,
        mut free: impl FnMut(u32) -> Option<u32>,
    ) -> Option<u32> {
        let Range { low, high } = self.range;
        let own = own.filter(|own| self.own_first && (low..=high).contains(own));
        if let Some(own) = own.filter(|&own| free(own) == Some(own)) {
            self.next.store(own - low + 1, Ordering::Relaxed);
            return Some(own);
        }
        let start = if self.in_turn {
            let next = self.next.load(Ordering::Relaxed);
            if next > high - low { low } else { low + next }
        } else {
            low + random(high - low)
        };
        let value = free(start)?;
        self.next.store((value - low).saturating_add(1), Ordering::Relaxed);
        Some(value)
    }
}

fn number(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The first value of a range, and the choice from it.
fn split<T>(choice: Choice, of: impl Fn(u32) -> T) -> (Option<T>, Option<Choice>) {
    (Some(of(choice.range.low)), Some(choice))
}

/// A range without the sign behind it, which says how to choose.
fn choice(text: &str, range: impl Fn(&str) -> Option<Range>) -> Option<Choice> {
    let (text, in_turn, own_first) = match (text.strip_suffix('#'), text.strip_suffix('?')) {
        (Some(text), _) => (text, true, false),
        (_, Some(text)) => (text, false, false),
        _ => (text, false, true),
    };
    let range = range(text).filter(|range| range.low <= range.high)?;
    Some(Choice { range, in_turn, own_first, next: AtomicU32::new(0) })
}

fn port_range(text: &str) -> Option<Choice> {
    choice(text, |text| {
        let (low, high) = text.split_once('-')?;
        Some(Range { low: number(low)?.into(), high: number(high)?.into() })
    })
}

fn address_range(text: &str, names: &dyn Names) -> Option<Choice> {
    choice(text, |text| {
        if let Some((low, high)) = text.split_once('-') {
            return Some(Range { low: names.address(low)?.to_bits(), high: names.address(high)?.to_bits() });
        }
        let (address, len) = names.prefix(text).filter(|(address, len)| !address.is_unspecified() && *len > 0)?;
        let host = u32::MAX.checked_shr(len).unwrap_or(0);
        let net = address.to_bits() & !host;
        Some(match len {
            32 => Range { low: address.to_bits(), high: address.to_bits() },
            31 => Range { low: net, high: net + 1 },
            _ => Range { low: net + 1, high: net + host - 1 },
        })
    })
}

/// The outputs behind a pattern: of packets, and of replies. Errors are Click's.
pub fn ports_of(words: &[&str]) -> Result<(usize, usize), &'static str> {
    let [forward, reply] = *words else { return Err("bad forward port") };
    let forward = forward.parse().map_err(|_| "bad forward port")?;
    Ok((forward, reply.parse().map_err(|_| "bad reply port")?))
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = |f: &mut fmt::Formatter<'_>, value: Option<String>| f.write_str(value.as_deref().unwrap_or("-"));
        let range = self.choice.as_ref().map(|choice| choice.range);
        let source = self.source.map(|source| match range.filter(|_| !self.has_ports) {
            Some(range) => format!("{source}-{}", Ipv4Addr::from_bits(range.high)),
            None => source.to_string(),
        });
        let port = self.source_port.map(|port| match range.filter(|_| self.has_ports) {
            Some(range) => format!("{port}-{}", range.high),
            None => port.to_string(),
        });
        field(f, source)?;
        if self.has_ports {
            f.write_str(" ")?;
            field(f, port)?;
        }
        f.write_str(" ")?;
        field(f, self.destination.map(|address| address.to_string()))?;
        if self.has_ports {
            f.write_str(" ")?;
            field(f, self.destination_port.map(|port| port.to_string()))?;
        }
        Ok(())
    }
}
