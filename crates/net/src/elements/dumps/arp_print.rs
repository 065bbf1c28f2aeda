//! ARPPrint: prints ARP packets as tcpdump does.
//!
//! `ARPPrint([LABEL, TIMESTAMP, ETHER, OUTFILE, ACTIVE])`: packets pass, pushed or pulled; those whose network header is known
//! are printed, a line each, on standard error or to the file OUTFILE.
//!
//! - TIMESTAMP (true), ETHER (false): whether times and Ethernet addresses are printed, too. ACTIVE (true): prints.
//!
//! Handlers: `active` (r/w).
//!
//! Different from Click: packets of other protocols than IP are printed, as its source means to.

use super::lines::Lines;
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::headers::EtherAddress;
use crate::router::Cx;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

/// The element.
#[derive(Default)]
pub(super) struct ArpPrint {
    has_ether: bool,
    lines: Lines,
}

/// The fixed part of the header.
const HEADER_LEN: usize = 8;
/// The whole header, with addresses of Ethernet and IP.
const LEN: usize = 28;
/// Protocols of addresses: IP, and IP with trailers.
const IP: u16 = 0x0800;
const TRAILER: u16 = 0x1000;

fn describe(arp: &[u8]) -> String {
    if arp.len() < HEADER_LEN {
        return format!("truncated-arp ({})", arp.len());
    }
    let half = |at: usize| u16::from_be_bytes([arp[at], arp[at + 1]]);
    let (hardware, protocol, op) = (half(0), half(2), half(6));
    let (hardware_len, protocol_len) = (arp[4], arp[5]);
    if ![IP, TRAILER].contains(&protocol) || protocol_len != 4 || hardware_len == 0 {
        return format!("arp-#{op} for proto #{protocol} ({protocol_len}) hardware #{hardware} ({hardware_len})");
    }
    let Some(addresses) = arp.get(HEADER_LEN..LEN).filter(|_| hardware_len == 6) else {
        return format!("truncated-arp ({})", arp.len());
    };
    let ether = |at: usize| EtherAddress(std::array::from_fn(|i| addresses[at + i]));
    let ip = |at: usize| Ipv4Addr::new(addresses[at], addresses[at + 1], addresses[at + 2], addresses[at + 3]);
    let (sender, sender_ip, target, target_ip) = (ether(0), ip(6), ether(10), ip(16));
    let known = if target.to_bits() == 0 { String::new() } else { format!(" ({target})") };
    let text = match op {
        1 => format!("arp who-has {target_ip}{known} tell {sender_ip}"),
        2 => format!("arp reply {sender_ip} is-at {sender}"),
        3 => format!("rarp who-is {target} tell {sender}"),
        4 => format!("rarp reply {target} at {target_ip}"),
        8 => format!("invarp who-is {target} tell {sender}"),
        9 => format!("invarp reply {target} at {target_ip}"),
        _ => format!("arp-#{op}"),
    };
    let trailer = if protocol == TRAILER { "trailer-" } else { "" };
    let other = if hardware == 1 { String::new() } else { format!("hardware #{hardware}") };
    format!("{trailer}{text}{other}")
}

impl ArpPrint {
    fn line(&self, packet: &Packet, arp: &[u8]) -> String {
        let mut line = self.lines.head(packet);
        let at = packet.mac_offset().unwrap_or(0);
        let ether = packet.mac_header().unwrap_or_else(|| packet.bytes());
        let fits = packet.network_offset().is_some_and(|network| at + 14 <= network);
        if let (true, true, Some(header)) = (self.has_ether, fits, ether.first_chunk::<14>()) {
            let address = |at: usize| EtherAddress(std::array::from_fn(|i| header[at + i]));
            let _ = write!(line, "{} > {}: ", address(6), address(0));
        }
        line + &describe(arp)
    }
}

impl Element for ArpPrint {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        self.lines.args(args);
        args.key("ETHER", &mut self.has_ether).finish()
    }

    fn initialize(&mut self, _: &mut Cx<'_>) -> Result<(), String> {
        self.lines.open()
    }

    fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        if let (true, Some(arp)) = (self.lines.is_active, packet.network_header()) {
            let line = self.line(&packet, arp);
            self.lines.say(cx, &line);
        }
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("active", |print: &mut Self| &mut print.lines.is_active);
    }

    /// Its lines stand among those of others, unless they have a file of their own.
    fn observes(&self) -> bool {
        self.lines.is_shared()
    }

    fn cleanup(&mut self, cx: &mut Cx<'_>) {
        self.lines.close(cx);
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::{Harness, fuzz};

    /// An ARP packet behind an Ethernet header.
    fn arp(protocol: u16, op: u8, target: u8) -> Packet {
        let mut bytes = vec![1; 6];
        bytes.extend([2; 6]);
        bytes.extend([8, 6, 0, 1]);
        bytes.extend(protocol.to_be_bytes());
        bytes.extend([6, 4, 0, op, 3, 3, 3, 3, 3, 3, 1, 2, 3, 4]);
        bytes.extend([target; 6]);
        bytes.extend([5, 6, 7, 8]);
        let mut packet = Packet::from_slice(&bytes);
        packet.set_network_header(14, 28);
        packet
    }

    #[track_caller]
    fn printed(arguments: &str, packet: Packet) -> String {
        let mut harness = Harness::new(&format!("give :: Give -> ARPPrint({arguments}) -> take :: Take"));
        harness.give("give", [packet]);
        assert_eq!(harness.take("take").len(), 1);
        harness.said().join("|")
    }

    #[test]
    fn packets_have_their_lines() {
        let line = |op: u8, target: u8| printed("TIMESTAMP false", arp(0x800, op, target));
        let (three, nine) = ("03-03-03-03-03-03", "09-09-09-09-09-09");
        assert_eq!(line(1, 0), "arp who-has 5.6.7.8 tell 1.2.3.4");
        assert_eq!(line(1, 9), format!("arp who-has 5.6.7.8 ({nine}) tell 1.2.3.4"));
        assert_eq!(line(2, 9), format!("arp reply 1.2.3.4 is-at {three}"));
        assert_eq!(line(3, 9), format!("rarp who-is {nine} tell {three}"));
        assert_eq!(line(4, 9), format!("rarp reply {nine} at 5.6.7.8"));
        assert_eq!(line(8, 9), format!("invarp who-is {nine} tell {three}"));
        assert_eq!(line(9, 9), format!("invarp reply {nine} at 5.6.7.8"));
        assert_eq!(line(77, 9), "arp-#77");
        assert_eq!(printed("TIMESTAMP false", arp(0x1000, 77, 9)), "trailer-arp-#77");
        let other = printed("TIMESTAMP false", arp(0x1234, 1, 9));
        assert_eq!(other, "arp-#1 for proto #4660 (4) hardware #1 (6)");
        let mut short = arp(0x800, 1, 9);
        short.take(1);
        assert_eq!(printed("TIMESTAMP false", short), "truncated-arp (27)");
        let all = printed("x, ETHER true", arp(0x800, 77, 9));
        assert_eq!(all, "x: 0.000000: 02-02-02-02-02-02 > 01-01-01-01-01-01: arp-#77");
        assert_eq!(printed("ACTIVE false", arp(0x800, 1, 9)), "");
        assert_eq!(printed("", Packet::from_slice(&[0; 40])), "");
    }

    #[test]
    fn any_packet_passes() {
        assert_eq!(fuzz("give :: Give -> ARPPrint(x, ETHER true) -> take :: Take", &["take"])[0].len(), 2000);
        assert!(Harness::errors("Give -> ARPPrint(ETHER x) -> Take").contains("ETHER: type mismatch"));
        assert!(Harness::errors("Give -> ARPPrint(OUTFILE /) -> Take").contains("/: Is a directory"));
    }
}
