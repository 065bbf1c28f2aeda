//! Names of IP protocols, and of ICMP types and codes, that configurations, filters and dumps know. All of them are Click's.

use super::{icmp, ip};

/// Names and numbers, by name.
type Table = [(&'static str, u8)];

const PROTOCOLS: &Table = &[
    ("dccp", ip::PROTOCOL_DCCP),
    ("gre", 47),
    ("icmp", ip::PROTOCOL_ICMP),
    ("igmp", 2),
    ("ipip", 4),
    ("sctp", 132),
    ("tcp", ip::PROTOCOL_TCP),
    ("udp", ip::PROTOCOL_UDP),
];

const TYPES: &Table = &[
    ("echo", icmp::ECHO),
    ("echo-reply", icmp::ECHO_REPLY),
    ("inforeq", icmp::INFO),
    ("inforeq-reply", icmp::INFO_REPLY),
    ("maskreq", icmp::MASK),
    ("maskreq-reply", icmp::MASK_REPLY),
    ("parameterproblem", icmp::PARAMETER_PROBLEM),
    ("redirect", icmp::REDIRECT),
    ("routeradvert", icmp::ROUTER_ADVERTISEMENT),
    ("routersolicit", icmp::ROUTER_SOLICITATION),
    ("sourcequench", icmp::SOURCE_QUENCH),
    ("timeexceeded", icmp::TIME_EXCEEDED),
    ("timestamp", icmp::TIMESTAMP),
    ("timestamp-reply", icmp::TIMESTAMP_REPLY),
    ("unreachable", icmp::UNREACHABLE),
];

const UNREACHABLE: &Table = &[
    ("filterprohibited", 13),
    ("host", 1),
    ("hostprecedence", 14),
    ("hostprohibited", 10),
    ("hostunknown", 7),
    ("isolated", 8),
    ("needfrag", 4),
    ("net", 0),
    ("netprohibited", 9),
    ("netunknown", 6),
    ("port", 3),
    ("precedencecutoff", 15),
    ("protocol", 2),
    ("srcroutefail", 5),
    ("toshost", 12),
    ("tosnet", 11),
];
const REDIRECT: &Table = &[("host", 1), ("net", 0), ("toshost", 3), ("tosnet", 2)];
const TIME_EXCEEDED: &Table = &[("reassembly", 1), ("transit", 0)];
const PARAMETER_PROBLEM: &Table = &[("erroratptr", 0), ("length", 2), ("missingopt", 1)];

fn number(table: &Table, name: &str) -> Option<u8> {
    table.binary_search_by_key(&name, |(name, _)| name).ok().map(|at| table[at].1)
}

fn name(table: &Table, number: u8) -> Option<&'static str> {
    table.iter().find(|(_, known)| *known == number).map(|(name, _)| *name)
}

fn codes(kind: u8) -> &'static Table {
    match kind {
        icmp::UNREACHABLE => UNREACHABLE,
        icmp::REDIRECT => REDIRECT,
        icmp::TIME_EXCEEDED => TIME_EXCEEDED,
        icmp::PARAMETER_PROBLEM => PARAMETER_PROBLEM,
        _ => &[],
    }
}

/// The number of an IP protocol's name.
pub fn protocol(text: &str) -> Option<u8> {
    number(PROTOCOLS, text)
}

/// The name of an IP protocol.
pub fn protocol_name(protocol: u8) -> Option<&'static str> {
    name(PROTOCOLS, protocol)
}

/// The number of an ICMP type's name.
pub fn icmp_type(text: &str) -> Option<u8> {
    number(TYPES, text)
}

/// The name of an ICMP type.
pub fn icmp_type_name(kind: u8) -> Option<&'static str> {
    name(TYPES, kind)
}

/// The number of a name of a code, of messages of an ICMP type.
pub fn icmp_code(kind: u8, text: &str) -> Option<u8> {
    number(codes(kind), text)
}

/// The name of a code of an ICMP type.
pub fn icmp_code_name(kind: u8, code: u8) -> Option<&'static str> {
    name(codes(kind), code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_its_number_and_back() {
        for table in [PROTOCOLS, TYPES, UNREACHABLE, REDIRECT, TIME_EXCEEDED, PARAMETER_PROBLEM] {
            for &(text, value) in table {
                assert_eq!((number(table, text), name(table, value)), (Some(value), Some(text)));
            }
            assert_eq!((number(table, "nix"), name(table, 255)), (None, None));
        }
        assert_eq!((icmp_code(icmp::REDIRECT, "tosnet"), icmp_code(icmp::UNREACHABLE, "tosnet")), (Some(2), Some(11)));
        assert_eq!((icmp_code(icmp::ECHO, "net"), icmp_code_name(icmp::ECHO, 0)), (None, None));
    }
}
