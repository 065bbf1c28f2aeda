//! Names and digits for numbers of IP and ICMP, and names of ports.

use crate::headers::{ip, names};

/// Ports that tcpdump writes by their names.
const PORTS: &[(&str, u16)] = &[
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
    ("hsrp", 1985),
    ("http", 80),
    ("https", 443),
    ("imap2", 143),
    ("imap3", 220),
    ("imaps", 993),
    ("ipp", 631),
    ("irc", 194),
    ("isakmp", 500),
    ("ldap", 389),
    ("mdns", 5353),
    ("nameserver", 42),
    ("netbios-dgm", 138),
    ("netbios-ns", 137),
    ("netbios-ssn", 139),
    ("nfs", 2049),
    ("nntp", 119),
    ("ntp", 123),
    ("pop3", 110),
    ("pop3s", 995),
    ("rip", 520),
    ("route", 520),
    ("router", 520),
    ("smtp", 25),
    ("snmp", 161),
    ("snmp-trap", 162),
    ("ssh", 22),
    ("sunrpc", 111),
    ("svrloc", 427),
    ("syslog", 514),
    ("telnet", 23),
    ("tftp", 69),
    ("whois", 43),
    ("www", 80),
];

/// The number of a port's name or digits.
pub(in super::super) fn port(text: &str) -> Option<u16> {
    let known = PORTS.iter().find(|(name, _)| *name == text).map(|(_, port)| *port);
    known.or_else(|| text.parse().ok())
}

/// The number of an IP protocol's name, its letter in dumps, or its digits.
pub(super) fn protocol(text: &str) -> Option<u8> {
    let letter = match text {
        "I" => Some(ip::PROTOCOL_ICMP),
        "T" => Some(ip::PROTOCOL_TCP),
        "U" => Some(ip::PROTOCOL_UDP),
        _ => None,
    };
    letter.or_else(|| names::protocol(text)).or_else(|| digits(text))
}

/// The number of an ICMP type's name or digits.
pub(super) fn icmp_type(text: &str) -> Option<u8> {
    names::icmp_type(text).or_else(|| digits(text))
}

/// The number of an ICMP code's name or digits; names depend on the type.
pub(super) fn icmp_code(icmp_type: Option<u8>, text: &str) -> Option<u8> {
    icmp_type.and_then(|kind| names::icmp_code(kind, text)).or_else(|| digits(text))
}

fn digits(text: &str) -> Option<u8> {
    u8::try_from(super::cursor::integer(text.as_bytes())?).ok()
}
