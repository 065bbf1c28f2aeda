//! Names of ICMP types and codes.

use crate::args::{Arg, ArgCx};
use crate::headers::names;

/// A type of ICMP messages: a number, which may be none of a type, or a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct IcmpType(pub(super) i32);

impl Arg for IcmpType {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        names::icmp_type(text).map_or_else(|| i32::parse(text, cx), |value| Ok(value.into())).map(Self)
    }
}

/// The code of this number or name, of messages of this type.
pub(super) fn code(kind: u8, text: &str, cx: &ArgCx<'_>) -> Option<u8> {
    names::icmp_code(kind, text).or_else(|| u8::parse(text, cx).ok())
}
