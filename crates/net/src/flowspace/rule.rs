//! A rule: what it tests, how important it is, and where its packets go.

use super::key::{
    DESTINATION, ETHER_DESTINATION, ETHER_SOURCE, ETHER_UPPER, HAS_DETAIL, HAS_ETHER, HAS_IP, HAS_PORTS, ICMP, Key,
    LINK, PORTS, PROTOCOL, SOURCE, TCP, WORDS,
};
use crate::headers::EtherAddress;
use std::fmt;
use std::net::Ipv4Addr;

/// The first and the last one of some ports.
type Ports = (u16, u16);

/// All ports.
const ALL: Ports = (0, u16::MAX);

/// A rule. A field that it does not name may be anything, and may be missing; a packet without a field that it names
/// does not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// What the bits of `mask` have to be.
    pub(super) value: [u32; WORDS],
    /// Bits that are tested. Of ports, those that a whole range has in common.
    pub(super) mask: [u32; WORDS],
    pub(super) source_ports: Ports,
    pub(super) destination_ports: Ports,
    /// Of rules that match, the one with the highest priority decides; of those, the first one.
    pub priority: u32,
    /// The number of an output.
    pub output: u16,
}

/// Bits of the mask of a range: those that its first and last port have in common from the highest one on.
fn common((first, last): Ports) -> u16 {
    !u16::MAX.checked_shr((first ^ last).leading_zeros()).unwrap_or(0)
}

impl Rule {
    /// A rule that every packet matches.
    pub fn new(output: u16, priority: u32) -> Self {
        Self { value: [0; WORDS], mask: [0; WORDS], source_ports: ALL, destination_ports: ALL, priority, output }
    }

    fn test(&mut self, word: usize, value: u32, mask: u32) {
        self.mask[word] |= mask;
        self.value[word] = self.value[word] & !mask | value & mask;
    }

    pub(super) fn test_ip(&mut self) {
        self.test(LINK, HAS_IP, HAS_IP);
    }

    /// Tests an address: the word `SOURCE` or `DESTINATION`.
    pub(super) fn test_address(&mut self, word: usize, address: u32, mask: u32) {
        self.test_ip();
        self.test(word, address, mask);
    }

    pub(super) fn test_protocol(&mut self, protocol: u8, mask: u8) {
        self.test_ip();
        self.test(PROTOCOL, u32::from(protocol) << 24, u32::from(mask) << 24);
    }

    pub(super) fn test_tos(&mut self, tos: u8, mask: u8) {
        self.test_ip();
        self.test(PROTOCOL, u32::from(tos) << 16, u32::from(mask) << 16);
    }

    /// Tests TCP flags (`detail` has them in its upper 8 bits), or ICMP type and code.
    pub(super) fn test_detail(&mut self, protocol: u8, detail: u16, mask: u16) {
        self.test_protocol(protocol, u8::MAX);
        self.test(LINK, HAS_DETAIL, HAS_DETAIL);
        self.test(PROTOCOL, u32::from(detail), u32::from(mask));
    }

    pub(super) fn test_source_ports(&mut self, ports: Ports) {
        self.source_ports = ports;
        self.test_ports(ports, 16);
    }

    pub(super) fn test_destination_ports(&mut self, ports: Ports) {
        self.destination_ports = ports;
        self.test_ports(ports, 0);
    }

    fn test_ports(&mut self, ports: Ports, shift: u32) {
        if ports != ALL {
            self.test_ip();
            self.test(LINK, HAS_PORTS, HAS_PORTS);
            self.test(PORTS, u32::from(ports.0) << shift, u32::from(common(ports)) << shift);
        }
    }

    pub(super) fn test_ether_type(&mut self, kind: u16) {
        self.test(LINK, u32::from(kind) << 16 | HAS_ETHER, 0xffff_0000 | HAS_ETHER);
    }

    /// Tests the VLAN's number; 0: none.
    pub(super) fn test_vlan(&mut self, number: u16) {
        self.test(LINK, u32::from(number) << 4 | HAS_ETHER, 0xfff0 | HAS_ETHER);
    }

    /// Tests an Ethernet address: the word `ETHER_SOURCE` or `ETHER_DESTINATION`.
    pub(super) fn test_ether(&mut self, word: usize, address: EtherAddress, mask: EtherAddress) {
        let shift = if word == ETHER_SOURCE { 16 } else { 0 };
        let upper = |address: EtherAddress| ((address.to_bits() >> 32) as u32) << shift;
        self.test(LINK, HAS_ETHER, HAS_ETHER);
        self.test(word, address.to_bits() as u32, mask.to_bits() as u32);
        self.test(ETHER_UPPER, upper(address), upper(mask));
    }

    /// Whether it tests something of the Ethernet header.
    pub fn looks_at_link(&self) -> bool {
        self.mask[LINK] & !(HAS_IP | HAS_PORTS | HAS_DETAIL) != 0
            || [ETHER_SOURCE, ETHER_DESTINATION, ETHER_UPPER].iter().any(|word| self.mask[*word] != 0)
    }

    /// Whether a packet with these fields matches.
    #[inline]
    pub fn matches(&self, key: &Key) -> bool {
        let words = self.value.iter().zip(&self.mask).zip(&key.0);
        let differ = words.fold(0, |differ, ((value, mask), word)| differ | (word ^ value) & mask);
        let (source, destination) = ((key.0[PORTS] >> 16) as u16, key.0[PORTS] as u16);
        let is_in = |(first, last): Ports, port| (first..=last).contains(&port);
        differ == 0 && is_in(self.source_ports, source) && is_in(self.destination_ports, destination)
    }
}

/// The text that stands for it in lists of rules.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = Vec::new();
        self.write_link(&mut fields);
        self.write_ip(&mut fields);
        if fields.is_empty() {
            fields.push("any".to_owned());
        }
        write!(f, "{} => {}", fields.join(", "), self.output)?;
        if self.priority != 0 {
            write!(f, " PRIORITY {}", self.priority)?;
        }
        Ok(())
    }
}

/// `10.0.0.0/8`, or `10.0.0.1/255.0.0.255` where the mask has holes.
fn address_text(address: u32, mask: u32) -> String {
    let len = mask.leading_ones();
    let is_prefix = len + mask.trailing_zeros() >= 32;
    let mask = if is_prefix { len.to_string() } else { Ipv4Addr::from_bits(mask).to_string() };
    format!("{}/{mask}", Ipv4Addr::from_bits(address))
}

fn ports_text((first, last): Ports) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

fn masked_text(value: u8, mask: u8) -> String {
    if mask == u8::MAX { value.to_string() } else { format!("{value:#04x}/{mask:#04x}") }
}

impl Rule {
    fn write_link(&self, fields: &mut Vec<String>) {
        let (value, mask) = (&self.value, &self.mask);
        let before = fields.len();
        for (word, shift, name) in [(ETHER_SOURCE, 16, "eth_src"), (ETHER_DESTINATION, 0, "eth_dst")] {
            let whole =
                |words: &[u32; WORDS]| u64::from(words[ETHER_UPPER] >> shift & 0xffff) << 32 | u64::from(words[word]);
            let address = |bits: u64| {
                let [_, _, bytes @ ..] = bits.to_be_bytes();
                EtherAddress(bytes).colons()
            };
            match whole(mask) {
                0 => {}
                0xffff_ffff_ffff => fields.push(format!("{name} {}", address(whole(value)))),
                mask => fields.push(format!("{name} {}/{}", address(whole(value)), address(mask))),
            }
        }
        if mask[LINK] >> 16 != 0 {
            fields.push(format!("eth_type {:#06x}", value[LINK] >> 16));
        }
        if mask[LINK] & 0xfff0 != 0 {
            fields.push(format!("vlan {}", value[LINK] >> 4 & 0xfff));
        }
        if mask[LINK] & HAS_ETHER != 0 && fields.len() == before {
            fields.push("eth".to_owned());
        }
    }

    fn write_ip(&self, fields: &mut Vec<String>) {
        let (value, mask) = (&self.value, &self.mask);
        let before = fields.len();
        for (word, name) in [(SOURCE, "src"), (DESTINATION, "dst")] {
            if mask[word] != 0 {
                fields.push(format!("{name} {}", address_text(value[word], mask[word])));
            }
        }
        for (shift, name) in [(24, "proto"), (16, "tos")] {
            let (value, mask) = ((value[PROTOCOL] >> shift) as u8, (mask[PROTOCOL] >> shift) as u8);
            if mask != 0 {
                fields.push(format!("{name} {}", masked_text(value, mask)));
            }
        }
        for (ports, name) in [(self.source_ports, "sport"), (self.destination_ports, "dport")] {
            if ports != ALL {
                fields.push(format!("{name} {}", ports_text(ports)));
            }
        }
        self.write_detail(fields);
        if mask[LINK] & HAS_IP != 0 && fields.len() == before {
            fields.push("ip".to_owned());
        }
    }

    fn write_detail(&self, fields: &mut Vec<String>) {
        let (value, mask) = (self.value[PROTOCOL], self.mask[PROTOCOL]);
        let upper = || masked_text((value >> 8) as u8, (mask >> 8) as u8);
        if self.mask[LINK] & HAS_DETAIL == 0 {
            return;
        }
        if value >> 24 == u32::from(TCP) {
            fields.push(format!("flags {}", upper()));
        } else {
            debug_assert_eq!(value >> 24, u32::from(ICMP));
            fields.push(format!("icmp_type {}", upper()));
            if mask & 0xff != 0 {
                fields.push(format!("icmp_code {}", masked_text(value as u8, mask as u8)));
            }
        }
    }
}
