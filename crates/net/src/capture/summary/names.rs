//! Names for numbers of IP and ICMP.

const TYPES: &[(&str, u8)] = &[
    ("echo", 8),
    ("echo-reply", 0),
    ("inforeq", 15),
    ("inforeq-reply", 16),
    ("maskreq", 17),
    ("maskreq-reply", 18),
    ("parameterproblem", 12),
    ("redirect", 5),
    ("routeradvert", 9),
    ("routersolicit", 10),
    ("sourcequench", 4),
    ("timeexceeded", 11),
    ("timestamp", 13),
    ("timestamp-reply", 14),
    ("unreachable", 3),
];

const UNREACHABLE: &[(&str, u8)] = &[
    ("net", 0),
    ("host", 1),
    ("protocol", 2),
    ("port", 3),
    ("needfrag", 4),
    ("srcroutefail", 5),
    ("netunknown", 6),
    ("hostunknown", 7),
    ("isolated", 8),
    ("netprohibited", 9),
    ("hostprohibited", 10),
    ("tosnet", 11),
    ("toshost", 12),
    ("filterprohibited", 13),
    ("hostprecedence", 14),
    ("precedencecutoff", 15),
];

const REDIRECT: &[(&str, u8)] = &[("net", 0), ("host", 1), ("tosnet", 2), ("toshost", 3)];
const EXCEEDED: &[(&str, u8)] = &[("transit", 0), ("reassembly", 1)];
const PARAMETER: &[(&str, u8)] = &[("erroratptr", 0), ("missingopt", 1), ("length", 2)];
const PROTOCOLS: &[(&str, u8)] = &[
    ("icmp", 1),
    ("igmp", 2),
    ("ipip", 4),
    ("tcp", 6),
    ("udp", 17),
    // The letters of dumps.
    ("I", 1),
    ("T", 6),
    ("U", 17),
];

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

/// The number of an IP protocol's name or digits.
pub(super) fn protocol(text: &str) -> Option<u8> {
    number(PROTOCOLS, text)
}

/// The name of an IP protocol.
pub(crate) fn protocol_name(value: u8) -> Option<&'static str> {
    name(PROTOCOLS, value)
}

/// The number of an ICMP type's name or digits.
pub(super) fn icmp_type(text: &str) -> Option<u8> {
    number(TYPES, text)
}

/// The name of an ICMP type.
pub(crate) fn icmp_type_name(value: u8) -> Option<&'static str> {
    name(TYPES, value)
}

/// The number of an ICMP code's name or digits; names depend on the type.
pub(super) fn icmp_code(icmp_type: Option<u8>, text: &str) -> Option<u8> {
    number(codes(icmp_type), text)
}

/// The name of a code of an ICMP type.
pub(crate) fn icmp_code_name(icmp_type: u8, value: u8) -> Option<&'static str> {
    name(codes(Some(icmp_type)), value)
}

fn codes(icmp_type: Option<u8>) -> &'static [(&'static str, u8)] {
    match icmp_type {
        Some(3) => UNREACHABLE,
        Some(5) => REDIRECT,
        Some(11) => EXCEEDED,
        Some(12) => PARAMETER,
        _ => &[],
    }
}

fn number(names: &[(&str, u8)], text: &str) -> Option<u8> {
    let known = names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    known.or_else(|| u8::try_from(super::cursor::integer(text.as_bytes())?).ok())
}

fn name(names: &[(&'static str, u8)], value: u8) -> Option<&'static str> {
    names.iter().find(|(_, known)| *known == value).map(|(name, _)| *name)
}
