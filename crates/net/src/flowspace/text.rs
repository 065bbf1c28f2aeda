//! Rules as text: `src 10.0.0.0/8, proto tcp, dport 80-89 => 1 PRIORITY 5`.
//!
//! Fields are separated by commas or spaces, each with its value:
//!
//! ```text
//!   eth_src, eth_dst      aa:bb:cc:dd:ee:ff, with /MASK
//!   eth_type              0x0800
//!   vlan                  0 to 4095; 0: no tag, or one without a VLAN
//!   src, dst              10.0.0.0/8, 10.0.0.1/255.0.0.255, an address
//!   proto                 a number or a name, with /MASK
//!   tos                   0 to 255, with /MASK
//!   dscp                  0 to 63
//!   sport, dport          80, 80-89
//!   flags                 of TCP: a number with /MASK
//!   icmp_type, icmp_code  0 to 255, with /MASK
//!   eth, ip, any          no value: there is such a header; everything matches
//! ```
//!
//! Numbers are decimal, or hexadecimal after `0x`.

use super::key::{DESTINATION, ETHER_DESTINATION, ETHER_SOURCE, ICMP, SOURCE, TCP};
use super::rule::Rule;
use crate::classify::protocol_number;
use crate::headers::EtherAddress;
use std::net::Ipv4Addr;

/// A number of at most `most`, decimal or hexadecimal.
pub(super) fn number(text: &str, most: u32) -> Option<u32> {
    let (radix, digits) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (16, digits),
        None => (10, text),
    };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
    u32::from_str_radix(digits, radix).ok().filter(|&number| is_number && number <= most)
}

fn byte(text: &str) -> Option<u8> {
    number(text, 255).map(|number| number as u8)
}

fn port(text: &str) -> Option<u16> {
    number(text, 65535).map(|number| number as u16)
}

/// A value, and a mask behind a slash: all ones where there is none.
fn masked<T>(
    text: &str,
    ones: T,
    value: impl Fn(&str) -> Option<T>,
    mask: impl Fn(&str) -> Option<T>,
) -> Option<(T, T)> {
    match text.split_once('/') {
        Some((before, after)) => Some((value(before)?, mask(after)?)),
        None => Some((value(text)?, ones)),
    }
}

fn masked_byte(text: &str) -> Option<(u8, u8)> {
    masked(text, u8::MAX, byte, byte)
}

/// An address with a prefix's length or a mask.
pub(super) fn network(text: &str) -> Option<(u32, u32)> {
    let address = |text: &str| text.parse().ok().map(Ipv4Addr::to_bits);
    let len = |text: &str| Some(u32::MAX.checked_shl(32 - number(text, 32)?).unwrap_or(0));
    masked(text, u32::MAX, address, |mask| len(mask).or_else(|| address(mask)))
}

fn ether(text: &str) -> Option<(EtherAddress, EtherAddress)> {
    let address = |text: &str| text.parse().ok();
    masked(text, EtherAddress::BROADCAST, address, address)
}

/// The first and the last port.
pub(super) fn ports(first: &str, last: &str) -> Option<(u16, u16)> {
    let (first, last) = (port(first)?, port(last)?);
    (first <= last).then_some((first, last))
}

fn protocol(text: &str) -> Option<(u8, u8)> {
    masked(text, u8::MAX, |name| byte(name).or_else(|| protocol_number(name)), byte)
}

/// Adds a test; nothing where the value is wrong.
fn field(rule: &mut Rule, name: &str, value: &str) -> Option<()> {
    match name {
        "eth_src" | "eth_dst" => {
            let (address, mask) = ether(value)?;
            rule.test_ether(if name == "eth_src" { ETHER_SOURCE } else { ETHER_DESTINATION }, address, mask);
        }
        "eth_type" => rule.test_ether_type(port(value)?),
        "vlan" => rule.test_vlan(number(value, 4095)? as u16),
        "src" | "dst" => {
            let (address, mask) = network(value)?;
            rule.test_address(if name == "src" { SOURCE } else { DESTINATION }, address, mask);
        }
        "proto" => {
            let (protocol, mask) = protocol(value)?;
            rule.test_protocol(protocol, mask);
        }
        "tos" => {
            let (tos, mask) = masked_byte(value)?;
            rule.test_tos(tos, mask);
        }
        "dscp" => rule.test_tos((number(value, 63)? as u8) << 2, 0xfc),
        "sport" | "dport" => {
            let ports =
                value.split_once('-').map_or_else(|| ports(value, value), |(first, last)| ports(first, last))?;
            if name == "sport" { rule.test_source_ports(ports) } else { rule.test_destination_ports(ports) }
        }
        "flags" | "icmp_type" => {
            let (value, mask) = masked_byte(value)?;
            let protocol = if name == "flags" { TCP } else { ICMP };
            rule.test_detail(protocol, u16::from(value) << 8, u16::from(mask) << 8);
        }
        "icmp_code" => {
            let (value, mask) = masked_byte(value)?;
            rule.test_detail(ICMP, u16::from(value), u16::from(mask));
        }
        _ => return None,
    }
    Some(())
}

/// Names of fields that take a value.
const NAMES: [&str; 14] = [
    "eth_src",
    "eth_dst",
    "eth_type",
    "vlan",
    "src",
    "dst",
    "proto",
    "tos",
    "dscp",
    "sport",
    "dport",
    "flags",
    "icmp_type",
    "icmp_code",
];

/// The protocol whose field this is.
fn protocol_of(name: &str) -> Option<u8> {
    match name {
        "flags" => Some(TCP),
        "icmp_type" | "icmp_code" => Some(ICMP),
        _ => None,
    }
}

/// Reads where the packets of a rule go: `PORT [PRIORITY n]`.
pub(super) fn action(text: &str, outputs: usize, wrong: &mut Vec<String>) -> (u16, u32) {
    let mut words = text.split_whitespace();
    let output = words.next().unwrap_or_default();
    let (keyword, priority) = (words.next(), words.next().unwrap_or_default());
    let output = port(output).filter(|&output| usize::from(output) < outputs).unwrap_or_else(|| {
        wrong.push(format!("bad PORT '{}', there are {outputs} outputs", output.escape_debug()));
        0
    });
    let priority = match keyword {
        None => 0,
        Some("PRIORITY") if words.next().is_none() => number(priority, u32::MAX).unwrap_or_else(|| {
            wrong.push(format!("bad PRIORITY '{}'", priority.escape_debug()));
            0
        }),
        Some(_) => {
            wrong.push("'=>' should be followed by 'PORT [PRIORITY n]'".to_owned());
            0
        }
    };
    (output, priority)
}

/// Fields as they are read.
struct Fields<'a> {
    rule: Rule,
    seen: Vec<&'a str>,
    /// Protocols that fields name or are of, each with its mask.
    protocols: Vec<(u8, u8)>,
    wrong: Vec<String>,
}

impl<'a> Fields<'a> {
    fn read(&mut self, text: &'a str) {
        let mut words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty()).peekable();
        if words.peek().is_none() {
            self.wrong.push("expected fields or 'any' before '=>'".to_owned());
        }
        while let Some(name) = words.next() {
            match name {
                "any" => {}
                "ip" => self.rule.test_ip(),
                "eth" => self.rule.test_ether(ETHER_SOURCE, EtherAddress::default(), EtherAddress::default()),
                _ if NAMES.contains(&name) => self.field(name, words.next().unwrap_or_default()),
                _ => self.wrong.push(format!("unknown field '{}'", name.escape_debug())),
            }
        }
        if self.seen.contains(&"tos") && self.seen.contains(&"dscp") {
            self.wrong.push("dscp: is a part of tos".to_owned());
        }
        let is_general = self.seen.iter().all(|name| protocol_of(name).is_none());
        if !is_general && self.protocols.windows(2).any(|two| two[0] != two[1]) {
            self.wrong.push("fields of different protocols".to_owned());
        }
    }

    fn field(&mut self, name: &'a str, value: &str) {
        if self.seen.contains(&name) {
            return self.wrong.push(format!("{name}: given twice"));
        }
        self.seen.push(name);
        let named = if name == "proto" { protocol(value) } else { protocol_of(name).map(|of| (of, u8::MAX)) };
        self.protocols.extend(named);
        if field(&mut self.rule, name, value).is_none() {
            self.wrong.push(format!("{name}: bad value '{}'", value.escape_debug()));
        }
    }
}

impl Rule {
    /// Reads a rule for an element with so many outputs. Everything that is wrong is told, a line each.
    pub fn parse(text: &str, outputs: usize) -> Result<Self, Vec<String>> {
        let Some((fields, action_text)) = text.split_once("=>") else {
            return Err(vec!["expected 'FIELD VALUE, ... => PORT [PRIORITY n]'".to_owned()]);
        };
        let mut reading = Fields { rule: Self::new(0, 0), seen: Vec::new(), protocols: Vec::new(), wrong: Vec::new() };
        reading.read(fields);
        let (output, priority) = action(action_text, outputs, &mut reading.wrong);
        let rule = Self { priority, output, ..reading.rule };
        if reading.wrong.is_empty() { Ok(rule) } else { Err(reading.wrong) }
    }
}
