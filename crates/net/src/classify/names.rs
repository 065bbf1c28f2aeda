//! Names that filter expressions know: protocols, ports, ICMP types, TCP flags, and what a configuration adds.

use crate::headers;

/// `tcpudp`: either of the two. Like the next ones beyond a byte, so never a protocol's number.
pub(super) const TCP_OR_UDP: u32 = 256;
/// `transp`: whatever protocol there is.
const TRANSP: u32 = 257;
/// `payload`: the same for filters.
const PAYLOAD: u32 = 258;
pub(super) const ICMP: u32 = 1;
pub(super) const TCP: u32 = 6;
pub(super) const UDP: u32 = 17;
pub(super) const DCCP: u32 = 33;

/// What is no protocol, but stands where one does.
const SPECIAL: [(&str, u32); 3] = [("payload", PAYLOAD), ("tcpudp", TCP_OR_UDP), ("transp", TRANSP)];

const PORTS: [(&str, u32); 34] = [
    ("auth", 113),
    ("bootpc", 68),
    ("bootps", 67),
    ("chargen", 19),
    ("daytime", 13),
    ("discard", 9),
    ("dns", 53),
    ("domain", 53),
    ("echo", 7),
    ("finger", 79),
    ("ftp", 21),
    ("ftp-data", 20),
    ("https", 443),
    ("imap3", 220),
    ("imaps", 993),
    ("irc", 194),
    ("netbios-dgm", 138),
    ("netbios-ns", 137),
    ("netbios-ssn", 139),
    ("nntp", 119),
    ("ntp", 123),
    ("pop3", 110),
    ("pop3s", 995),
    ("pptp", 1723),
    ("rip", 520),
    ("route", 520),
    ("smtp", 25),
    ("snmp", 161),
    ("snmp-trap", 162),
    ("ssh", 22),
    ("sunrpc", 111),
    ("telnet", 23),
    ("tftp", 69),
    ("www", 80),
];

const TCP_FLAGS: [(&str, u32); 6] = [("ack", 16), ("fin", 1), ("psh", 8), ("rst", 4), ("syn", 2), ("urg", 32)];

/// Names of a configuration's own, beside the built-in ones, which come first.
pub trait Names {
    /// The number of an IP protocol.
    fn protocol(&self, _name: &str) -> Option<u8> {
        None
    }

    /// The number of a port of `protocol` (6 or 17).
    fn port(&self, _protocol: u8, _name: &str) -> Option<u16> {
        None
    }

    /// An IP address.
    fn address(&self, _name: &str) -> Option<[u8; 4]> {
        None
    }

    /// An IP network: address and mask.
    fn network(&self, _name: &str) -> Option<([u8; 4], [u8; 4])> {
        None
    }

    /// An Ethernet address.
    fn ethernet(&self, _name: &str) -> Option<[u8; 6]> {
        None
    }
}

/// No names beside the built-in ones.
#[derive(Debug, Clone, Copy, Default)]
pub struct BuiltIn;

impl Names for BuiltIn {}

fn find(table: &[(&str, u32)], word: &str) -> Option<u32> {
    table.binary_search_by(|entry| entry.0.cmp(word)).ok().map(|at| table[at].1)
}

pub(super) fn protocol(names: &dyn Names, word: &str) -> Option<u32> {
    let known = || protocol_number(word).or_else(|| names.protocol(word)).map(u32::from);
    find(&SPECIAL, word).or_else(known)
}

pub(super) fn port(names: &dyn Names, protocol: u8, word: &str) -> Option<u32> {
    find(&PORTS, word).or_else(|| names.port(protocol, word).map(u32::from))
}

/// The number of a protocol that everybody knows.
pub(crate) fn protocol_number(word: &str) -> Option<u8> {
    headers::names::protocol(word)
}

/// The number of a port that everybody knows.
pub(crate) fn port_number(protocol: u8, word: &str) -> Option<u16> {
    port(&BuiltIn, protocol, word).and_then(|number| u16::try_from(number).ok())
}

pub(super) fn icmp_type(word: &str) -> Option<u32> {
    headers::names::icmp_type(word).map(u32::from)
}

pub(super) fn tcp_flag(word: &str) -> Option<u32> {
    find(&TCP_FLAGS, word)
}

/// What a protocol is called in messages.
pub(super) fn protocol_text(protocol: u32) -> String {
    match protocol {
        ICMP => "icmp".into(),
        2 => "igmp".into(),
        4 => "ipip".into(),
        TCP => "tcp".into(),
        UDP => "udp".into(),
        TCP_OR_UDP => "tcpudp".into(),
        TRANSP => "transp".into(),
        other => format!("ip proto {other}"),
    }
}

/// A number as Click writes them: decimal, `0x` and hexadecimal, `0` and octal, `-` before; 32 bits.
pub(super) fn number(word: &str) -> Option<u32> {
    let (negative, digits) = match word.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, word.strip_prefix('+').unwrap_or(word)),
    };
    let (digits, radix) = if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        (hex, 16)
    } else if digits.len() > 1 && digits.starts_with('0') {
        (&digits[1..], 8)
    } else {
        (digits, 10)
    };
    if !digits.starts_with(|first: char| first.is_digit(radix)) {
        return None;
    }
    let value = u32::from_str_radix(digits, radix).ok()?;
    match negative {
        true if value > 1 << 31 => None,
        true => Some(value.wrapping_neg()),
        false => Some(value),
    }
}

fn dotted(word: &str) -> Option<(u32, u32)> {
    let (mut value, mut parts) = (0, 0);
    for part in word.split('.') {
        if parts == 4 || part.is_empty() || part.len() > 3 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        value = value << 8 | u32::from(part.parse::<u8>().ok()?);
        parts += 1;
    }
    Some((value << (8 * (4 - parts)), parts))
}

/// An IP address, or the name of one, in host order.
pub(super) fn address(names: &dyn Names, word: &str) -> Option<u32> {
    match dotted(word) {
        Some((value, 4)) => Some(value),
        _ => names.address(word).map(u32::from_be_bytes),
    }
}

/// An IP network such as `10.0.0.0/8`, `10/8` or `10.0.0.0/255.0.0.0`, or the name of one: address and mask.
pub(super) fn network(names: &dyn Names, word: &str) -> Option<(u32, u32)> {
    let named = || names.network(word).map(|(address, mask)| (u32::from_be_bytes(address), u32::from_be_bytes(mask)));
    let Some((front, back)) = word.split_once('/') else { return named() };
    let Some((value, parts)) = dotted(front) else { return named() };
    if let Some((mask, 4)) = dotted(back) {
        return (parts == 4).then_some((value, mask));
    }
    let bits: u32 = back.parse().ok()?;
    (bits <= 8 * parts).then(|| (value, prefix_mask(bits)))
}

/// The mask of a prefix of `bits` bits, 0 to 32.
fn prefix_mask(bits: u32) -> u32 {
    u32::MAX.checked_shl(32 - bits).unwrap_or(0)
}

/// An Ethernet address such as `0:1:2:a:b:c`, or the name of one.
pub(super) fn ethernet(names: &dyn Names, word: &str) -> Option<[u8; 6]> {
    let separator = if word.contains(':') { ':' } else { '-' };
    let mut address = [0; 6];
    let mut parts = word.split(separator);
    for byte in &mut address {
        match parts.next().filter(|part| part.len() <= 2).and_then(|part| u8::from_str_radix(part, 16).ok()) {
            Some(value) => *byte = value,
            None => return names.ethernet(word),
        }
    }
    if parts.next().is_none() { Some(address) } else { names.ethernet(word) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_for_binary_search() {
        for table in [&SPECIAL[..], &PORTS, &TCP_FLAGS] {
            assert!(table.is_sorted_by(|one, other| one.0 < other.0));
        }
    }

    #[test]
    fn numbers_are_decimal_hexadecimal_or_octal() {
        let cases = [
            ("0", Some(0)),
            ("10", Some(10)),
            ("0x1F", Some(31)),
            ("010", Some(8)),
            ("-1", Some(u32::MAX)),
            ("4294967295", Some(u32::MAX)),
            ("4294967296", None),
            ("-2147483649", None),
            ("", None),
            ("0x", None),
            ("1a", None),
            ("08", None),
            ("--1", None),
            ("0x+1", None),
        ];
        for (word, expected) in cases {
            assert_eq!(number(word), expected, "{word}");
        }
    }

    #[test]
    fn addresses_networks_and_ethernet_addresses() {
        assert_eq!(address(&BuiltIn, "1.2.3.4"), Some(0x0102_0304));
        assert_eq!(address(&BuiltIn, "1.2.3"), None);
        assert_eq!(address(&BuiltIn, "1.2.3.256"), None);
        assert_eq!(network(&BuiltIn, "1.2.3.4/24"), Some((0x0102_0304, 0xffff_ff00)));
        assert_eq!(network(&BuiltIn, "10/8"), Some((0x0a00_0000, 0xff00_0000)));
        assert_eq!(network(&BuiltIn, "10/9"), None);
        assert_eq!(network(&BuiltIn, "1.2.3.4/0"), Some((0x0102_0304, 0)));
        assert_eq!(network(&BuiltIn, "1.2.3.4/255.0.255.0"), Some((0x0102_0304, 0xff00_ff00)));
        assert_eq!(network(&BuiltIn, "1.2.3.4/33"), None);
        assert_eq!(ethernet(&BuiltIn, "0:1:2:a:B:cc"), Some([0, 1, 2, 10, 11, 0xcc]));
        assert_eq!(ethernet(&BuiltIn, "00-01-02-03-04-05"), Some([0, 1, 2, 3, 4, 5]));
        assert_eq!(ethernet(&BuiltIn, "0:1:2:3:4"), None);
        assert_eq!(ethernet(&BuiltIn, "0:1:2:3:4:5:6"), None);
    }
}
