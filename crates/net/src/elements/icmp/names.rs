//! Names of ICMP types and codes.

use crate::args::{Arg, ArgCx};
use crate::headers::icmp;

const TYPES: &[(&str, u8)] = &[
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

/// A type of ICMP messages: a number, which may be none of a type, or a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct IcmpType(pub(super) i32);

impl Arg for IcmpType {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        find(TYPES, text).map_or_else(|| i32::parse(text, cx), |value| Ok(value.into())).map(Self)
    }
}

fn find(names: &[(&str, u8)], text: &str) -> Option<u8> {
    names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value)
}

/// The code of this number or name, of messages of this type.
pub(super) fn code(kind: u8, text: &str, cx: &ArgCx<'_>) -> Option<u8> {
    let names: &[(&str, u8)] = match kind {
        icmp::UNREACHABLE => UNREACHABLE,
        icmp::REDIRECT => &[("net", 0), ("host", 1), ("tosnet", 2), ("toshost", 3)],
        icmp::TIME_EXCEEDED => &[("transit", 0), ("reassembly", 1)],
        icmp::PARAMETER_PROBLEM => &[("erroratptr", 0), ("missingopt", 1), ("length", 2)],
        _ => &[],
    };
    find(names, text).or_else(|| u8::parse(text, cx).ok())
}
