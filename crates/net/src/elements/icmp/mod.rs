//! ICMP: errors, pings and their answers.

use crate::element::Class;

mod encap;
mod error;
mod names;
mod responder;
mod source;

/// All of this group.
pub(super) static CLASSES: &[Class] = &[
    Class::new::<error::IcmpError>("ICMPError", "1/1", "a", "generates ICMP error packets"),
    Class::new::<encap::IcmpIpEncap>("ICMPIPEncap", "1/1", "a", "encapsulates packets in ICMP headers"),
    Class::new::<encap::IcmpPingEncap>("ICMPPingEncap", "1/1", "a", "encapsulates packets in ICMP ping headers"),
    Class::new::<responder::IcmpPingResponder>("ICMPPingResponder", "1/1-2", "a/ah", "responds to ICMP echo requests"),
    Class::new::<source::IcmpPingSource>("ICMPPingSource", "0-1/1", "h/a", "periodically sends ICMP echo requests")
        .flow("x/y"),
];
