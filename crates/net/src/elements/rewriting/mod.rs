//! Network address translation: rewriters, and what serves them.

use crate::element::{Class, Element, PHASE_DEFAULT, PHASE_INFO};

mod core;
mod ftp;
mod icmp;
mod mapper;
#[cfg(test)]
mod order_tests;
mod patterns;
mod rewriter;
mod spec;
#[cfg(test)]
mod tests;
mod text;

use self::core::Kind;
use rewriter::Rewriter;

/// A class of rewriters.
const fn rewriter(name: &'static str, summary: &'static str, make: fn() -> Box<dyn Element>) -> Class {
    Class { make, ..Class::new::<Rewriter>(name, "1-/1-", "h", summary) }
}

/// All of this group.
pub(super) static CLASSES: &[Class] = &[
    rewriter("IPRewriter", "rewrites TCP/UDP packets' addresses and ports", || Rewriter::boxed(Kind::Ip)),
    rewriter("TCPRewriter", "rewrites TCP packets' addresses, ports, and sequence numbers", || {
        Rewriter::boxed(Kind::Tcp)
    }),
    rewriter("UDPRewriter", "rewrites TCP/UDP packets' addresses and ports", || Rewriter::boxed(Kind::Udp)),
    rewriter("IPAddrRewriter", "rewrites IP packets' addresses", || Rewriter::boxed(Kind::Address)),
    rewriter("IPAddrPairRewriter", "rewrites IP packets' addresses by address pair", || Rewriter::boxed(Kind::Pair)),
    rewriter("ICMPPingRewriter", "rewrites ICMP echo requests and replies", || Rewriter::boxed(Kind::Ping)),
    Class::new::<icmp::IcmpRewriter>(
        "ICMPRewriter",
        "1/1-",
        "h",
        "rewrites ICMP packets based on IP rewriter mappings",
    ),
    Class::new::<patterns::IpRewriterPatterns>(
        "IPRewriterPatterns",
        "0/0",
        "a",
        "specifies shared patterns for IPRewriter(s)",
    )
    .phase(PHASE_INFO),
    Class::new::<mapper::RoundRobinIpMapper>("RoundRobinIPMapper", "0/0", "a", "round-robin mapping for IPRewriter(s)")
        .phase(PHASE_DEFAULT - 1),
    Class::new::<ftp::FtpPortMapper>("FTPPortMapper", "1/1", "a", "manipulates IPRewriter for FTP")
        .phase(PHASE_DEFAULT + 1),
];
