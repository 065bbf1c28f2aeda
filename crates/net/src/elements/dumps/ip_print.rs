//! IPPrint: prints IP packets as tcpdump does.
//!
//! `IPPrint([LABEL, CONTENTS, PAYLOAD, MAXLENGTH, ID, TTL, TOS, LENGTH, TIMESTAMP, AGGREGATE, PAINT, SWAP, OUTFILE, ACTIVE])`:
//! packets pass, pushed or pulled; those whose network header is known are printed, a line each, on standard error or to the
//! file OUTFILE.
//!
//! - CONTENTS (NONE): bytes of packets, `HEX`, `ASCII` or `NONE`; PAYLOAD: those behind the headers. Not both.
//! - MAXLENGTH (1500; negative: all): how many of them.
//! - ID, TTL, TOS, LENGTH, AGGREGATE, PAINT (false), TIMESTAMP (true): what else is printed.
//! - SWAP (true): identifiers and numbers of ICMP are in network order.
//! - ACTIVE (true): prints. CHANNEL: accepted, and of no meaning.
//!
//! Handlers: `active` (r/w).
//!
//! Different from Click: a header that ends early is printed as truncated wherever it ends.

use super::lines::{Contents, Lines};
use crate::Packet;
use crate::args::{Args, Failed, Word};
use crate::element::Element;
use crate::handler::Handlers;
use crate::headers::names;
use crate::packet::anno;
use crate::router::Cx;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

/// The element.
#[expect(clippy::struct_excessive_bools, reason = "each is an argument")]
pub(super) struct IpPrint {
    contents: Contents,
    is_payload: bool,
    max_len: i64,
    has_id: bool,
    has_ttl: bool,
    has_tos: bool,
    has_len: bool,
    has_aggregate: bool,
    has_paint: bool,
    swaps: bool,
    lines: Lines,
}

impl Default for IpPrint {
    fn default() -> Self {
        Self {
            contents: Contents::None,
            is_payload: false,
            max_len: 1500,
            has_id: false,
            has_ttl: false,
            has_tos: false,
            has_len: false,
            has_aggregate: false,
            has_paint: false,
            swaps: true,
            lines: Lines::default(),
        }
    }
}

/// A packet whose IP header is there.
struct Ip<'a> {
    header: &'a [u8],
    /// What is behind it, as far as the packet and its length go.
    rest: &'a [u8],
    is_first: bool,
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn address(bytes: &[u8], at: usize) -> Ipv4Addr {
    word(bytes, at).into()
}

impl<'a> Ip<'a> {
    fn new(packet: &'a Packet) -> Option<Self> {
        let header = packet.network_header().filter(|header| header.len() >= 20)?;
        let header_len = usize::from(header[0] & 15) * 4;
        let rest = packet.transport_header().unwrap_or_default();
        let payload_len = usize::from(half(header, 2)).saturating_sub(header_len);
        let is_first = half(header, 6) << 3 == 0;
        Some(Self { header, rest: &rest[..rest.len().min(payload_len)], is_first })
    }

    fn pair(&self) -> String {
        format!("{} > {}", address(self.header, 12), address(self.header, 16))
    }

    /// Addresses with ports, which are there.
    fn ports(&self) -> String {
        let (source, destination) = (address(self.header, 12), address(self.header, 16));
        format!("{source}.{} > {destination}.{}: ", half(self.rest, 0), half(self.rest, 2))
    }

    fn tcp(&self, packet_len: usize) -> String {
        let header = self.rest;
        if header.len() < 4 || !self.is_first {
            return self.pair() + if self.is_first { ": truncated-tcp" } else { ": tcp" };
        }
        let mut text = self.ports();
        if header.len() < 14 {
            return text + "truncated-tcp";
        }
        let ip_len = half(self.header, 2);
        let headers = u32::from(self.header[0] & 15) * 4 + u32::from(header[12] >> 4) * 4;
        let mut len = u32::from(ip_len).wrapping_sub(headers);
        let flags = header[13];
        for (bit, letter, counts) in [(2, 'S', true), (1, 'F', true), (4, 'R', false), (8, 'P', false)] {
            if flags & bit != 0 {
                text.push(letter);
                len = len.wrapping_add(u32::from(counts));
            }
        }
        if !text.ends_with(char::is_alphabetic) {
            text.push('.');
        }
        let seq = word(header, 4);
        let _ = write!(text, " {seq}:{}({},{packet_len},{ip_len})", seq.wrapping_add(len), len as i32);
        if flags & 0x10 != 0 {
            let _ = write!(text, " ack {}", word(header, 8));
        }
        if header.len() < 16 {
            return text + "truncated-tcp";
        }
        text + &format!(" win {}", half(header, 14))
    }

    fn udp(&self) -> String {
        let header = self.rest;
        if header.len() < 4 || !self.is_first {
            return self.pair() + if self.is_first { ": truncated-udp" } else { ": udp" };
        }
        self.ports() + &if header.len() < 8 { "truncated-udp".to_owned() } else { format!("udp {}", half(header, 4)) }
    }

    fn icmp(&self, swaps: bool) -> String {
        let text = self.pair() + ": ";
        let header = self.rest;
        if !self.is_first {
            return text + "icmp";
        }
        if header.len() < 2 {
            return text + "truncated-icmp";
        }
        let (kind, code) = (header[0], header[1]);
        match kind {
            0 | 8 => {
                let name = if kind == 0 { "icmp echo-reply " } else { "icmp echo " };
                let number = |at: usize| if swaps { half(header, at) } else { half(header, at).swap_bytes() };
                if header.len() < 8 {
                    return text + name + "truncated-icmp";
                }
                format!("{text}{name}({}, {})", number(4), number(6))
            }
            3 => text + &unreachable(header, code),
            _ => {
                let name = names::icmp_type_name(kind).map_or_else(|| format!("type {kind}"), str::to_owned);
                let code = match names::icmp_code_name(kind, code) {
                    Some(name) => format!(" {name}"),
                    None if code > 0 => format!(" code {code}"),
                    None => String::new(),
                };
                format!("{text}icmp {name}{code}")
            }
        }
    }
}

/// What an unreachable message says of the packet inside of it.
fn unreachable(header: &[u8], code: u8) -> String {
    let name = names::icmp_code_name(3, code).map_or_else(|| format!("code {code}"), str::to_owned);
    let Some(inner) = header.get(8..).filter(|inner| inner.len() >= 20) else {
        return format!("icmp unreachable {name} truncated-icmp");
    };
    let text = format!("icmp {} unreachable {name}", address(inner, 16));
    let protocol = names::protocol_name(inner[9]);
    match code {
        2 => format!("{text} {}", protocol.map_or_else(|| inner[9].to_string(), str::to_owned)),
        3 => {
            let protocol = protocol.map_or_else(|| format!("protocol {}", inner[9]), str::to_owned);
            match inner.get(usize::from(inner[0] & 15) * 4..).filter(|ports| ports.len() >= 4) {
                Some(ports) => format!("{text} {protocol}/{}", half(ports, 2)),
                None => format!("{text} {protocol}truncated-icmp"),
            }
        }
        4 if half(header, 6) != 0 => format!("{text} (mtu {})", half(header, 6)),
        _ => text,
    }
}

impl IpPrint {
    fn line(&self, packet: &Packet) -> String {
        let mut line = self.lines.head(packet);
        if self.has_aggregate {
            let _ = write!(line, "#{}", packet.anno_u32(anno::AGGREGATE));
        }
        if self.has_paint {
            let _ = write!(line, "{}{}", if self.has_aggregate { "." } else { "paint " }, packet.anno_u8(anno::PAINT));
        }
        if self.has_aggregate || self.has_paint {
            line.push_str(": ");
        }
        let Some(ip) = Ip::new(packet) else { return line + "truncated-ip" };
        self.header(&ip, &mut line);
        let text = match ip.header[9] {
            6 => ip.tcp(packet.len()),
            17 => ip.udp(),
            1 => ip.icmp(self.swaps),
            protocol => format!("{}: ip-proto-{protocol}", ip.pair()),
        };
        line.push_str(&text);
        let flags = half(ip.header, 6);
        if flags & 0x3FFF != 0 {
            let payload_len = i32::from(half(ip.header, 2)) - i32::from(ip.header[0] & 15) * 4;
            let more = if flags & 0x2000 != 0 { "+" } else { "" };
            let (id, offset) = (half(ip.header, 4), (flags & 0x1FFF) << 3);
            let _ = write!(line, " (frag {id}:{payload_len}@{offset}{more})");
        }
        self.print(packet, &ip, &mut line);
        line
    }

    fn header(&self, ip: &Ip<'_>, line: &mut String) {
        let fields = [
            (self.has_id, "id", half(ip.header, 4)),
            (self.has_ttl, "ttl", ip.header[8].into()),
            (self.has_tos, "tos", ip.header[1].into()),
            (self.has_len, "length", half(ip.header, 2)),
        ];
        for (_, name, value) in fields.iter().filter(|(is_printed, ..)| *is_printed) {
            let _ = write!(line, "{name} {value} ");
        }
    }

    /// Bytes of the packet, or of its payload.
    fn print(&self, packet: &Packet, ip: &Ip<'_>, line: &mut String) {
        let mut bytes = packet.bytes();
        if self.is_payload {
            let transport = packet.transport_header().unwrap_or_default();
            let skip = match ip.header[9] {
                6 if ip.is_first => transport.get(12).map_or(0, |offset| usize::from(offset >> 4) * 4),
                17 if ip.is_first => 8,
                _ => 0,
            };
            bytes = transport.get(skip..).unwrap_or_default();
        }
        let len = usize::try_from(self.max_len).unwrap_or(usize::MAX).min(bytes.len());
        let width = if self.contents == Contents::Hex { 24 } else { 48 };
        self.contents.print(&bytes[..len], width, line);
    }
}

impl Element for IpPrint {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut payload, mut channel) = (Word("no".into()), Word::default());
        self.lines.args(args);
        args.key("CONTENTS", &mut self.contents).key("PAYLOAD", &mut payload);
        args.key("MAXLENGTH", &mut self.max_len).key("NBYTES", &mut self.max_len).key("ID", &mut self.has_id);
        args.key("PAINT", &mut self.has_paint).key("TOS", &mut self.has_tos);
        args.key("TTL", &mut self.has_ttl).key("SWAP", &mut self.swaps).key("LENGTH", &mut self.has_len);
        args.key("AGGREGATE", &mut self.has_aggregate).key("CHANNEL", &mut channel);
        let payload = match payload.0.to_ascii_uppercase().as_str() {
            "NO" | "FALSE" => Contents::None,
            "YES" | "TRUE" | "HEX" => Contents::Hex,
            "ASCII" => Contents::Ascii,
            _ => {
                let text = format!("bad payload value '{}'; should be 'false', 'hex', or 'ascii'", payload.0);
                args.error(text);
                Contents::None
            }
        };
        self.is_payload = payload != Contents::None;
        if self.is_payload && self.contents != Contents::None {
            args.error("specify at most one of PAYLOAD and CONTENTS");
        } else if self.is_payload {
            self.contents = payload;
        }
        args.finish()
    }

    fn initialize(&mut self, _: &mut Cx<'_>) -> Result<(), String> {
        self.lines.open()
    }

    fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        if self.lines.is_active && packet.network_offset().is_some() {
            let line = self.line(&packet);
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
    use crate::elements::testing::{Harness, fuzz, ip, udp};
    use crate::packet::anno;
    use crate::{Packet, Timestamp};

    const A: [u8; 4] = [1, 2, 3, 4];
    const B: [u8; 4] = [5, 6, 7, 8];

    fn marked(bytes: &[u8]) -> Packet {
        let mut packet = Packet::from_slice(bytes);
        packet.set_network_header(0, 20);
        packet.set_timestamp(Timestamp::new(3, 0));
        packet
    }

    #[track_caller]
    fn printed(arguments: &str, bytes: &[u8]) -> String {
        let mut harness = Harness::new(&format!("give :: Give -> IPPrint({arguments}) -> take :: Take"));
        let mut packet = marked(bytes);
        packet.set_anno_u8(anno::PAINT, 9);
        packet.set_anno_u32(anno::AGGREGATE, 77);
        harness.give("give", [packet]);
        assert_eq!(harness.take("take").len(), 1);
        harness.said().join("|")
    }

    /// A TCP packet with these flags.
    fn tcp(flags: u8) -> Vec<u8> {
        let mut segment = vec![0, 80, 0, 81, 0, 0, 0, 100, 0, 0, 0, 200, 0x50, flags, 0, 60, 0, 0, 0, 0];
        segment.extend(b"payload!");
        ip(6, A, B, &segment)
    }

    #[test]
    fn protocols_have_their_lines() {
        assert_eq!(printed("", &udp((A, 5), (B, 6), b"x")), "3.000000: 1.2.3.4.5 > 5.6.7.8.6: udp 9");
        let line = "x: 1.2.3.4.80 > 5.6.7.8.81: S 100:109(9,48,48) win 60";
        assert_eq!(printed("x, TIMESTAMP false", &tcp(2)), line);
        let line = "1.2.3.4.80 > 5.6.7.8.81: . 100:108(8,48,48) ack 200 win 60";
        assert_eq!(printed("TIMESTAMP false", &tcp(0x10)), line);
        assert_eq!(printed("TIMESTAMP false", &ip(50, A, B, &[])), "1.2.3.4 > 5.6.7.8: ip-proto-50");
        let icmp =
            |message: &[u8]| printed("TIMESTAMP false", &ip(1, A, B, message)).replace("1.2.3.4 > 5.6.7.8: ", "");
        assert_eq!(icmp(&[8, 0, 0, 0, 1, 2, 3, 4]), "icmp echo (258, 772)");
        assert_eq!(icmp(&[0, 0, 0, 0]), "icmp echo-reply truncated-icmp");
        assert_eq!(icmp(&[11, 0]), "icmp timeexceeded transit");
        assert_eq!(icmp(&[77, 5]), "icmp type 77 code 5");
        let about = |code: u8| [&[3, code, 0, 0, 0, 0, 5, 0x78][..], &udp((B, 7), (A, 9), b"")].concat();
        assert_eq!(icmp(&about(3)), "icmp 1.2.3.4 unreachable port udp/9");
        assert_eq!(icmp(&about(2)), "icmp 1.2.3.4 unreachable protocol udp");
        assert_eq!(icmp(&about(4)), "icmp 1.2.3.4 unreachable needfrag (mtu 1400)");
        assert_eq!(icmp(&about(99)), "icmp 1.2.3.4 unreachable code 99");
        assert_eq!(icmp(&[3, 1, 0, 0, 0, 0, 0, 0]), "icmp unreachable host truncated-icmp");
        let swapped = printed("TIMESTAMP false, SWAP false", &ip(1, A, B, &[8, 0, 0, 0, 1, 2, 3, 4]));
        assert!(swapped.ends_with("(513, 1027)"), "{swapped}");
    }

    #[test]
    fn headers_may_be_cut_and_packets_fragments() {
        let short = |len: usize| printed("TIMESTAMP false", &tcp(2)[..len]);
        assert_eq!(short(19), "truncated-ip");
        assert_eq!(short(23), "1.2.3.4 > 5.6.7.8: truncated-tcp");
        assert_eq!(short(33), "1.2.3.4.80 > 5.6.7.8.81: truncated-tcp");
        assert!(short(34).ends_with("truncated-tcp"));
        let mut fragment = udp((A, 5), (B, 6), b"12345678");
        fragment[6..8].copy_from_slice(&[0x20, 2]);
        assert_eq!(printed("TIMESTAMP false", &fragment), "1.2.3.4 > 5.6.7.8: udp (frag 7:16@16+)");
    }

    #[test]
    fn fields_and_bytes_are_printed_if_asked() {
        let bytes = udp((A, 5), (B, 6), b"hello, \x01orld, this is a long line that is broken");
        let line =
            printed("TIMESTAMP false, ID true, TTL true, TOS true, LENGTH true, PAINT true, AGGREGATE true", &bytes);
        assert_eq!(line, "#77.9: id 7 ttl 64 tos 0 length 76 1.2.3.4.5 > 5.6.7.8.6: udp 56");
        assert_eq!(printed("TIMESTAMP false, PAINT true", &bytes), "paint 9: 1.2.3.4.5 > 5.6.7.8.6: udp 56");
        let payload = printed("TIMESTAMP false, PAYLOAD ascii", &bytes);
        let expected = "1.2.3.4.5 > 5.6.7.8.6: udp 56\n  hello, . orld, th is is a  long lin e that i s broken";
        assert_eq!(payload, expected);
        let hex = printed("TIMESTAMP false, CONTENTS HEX, MAXLENGTH 6", &bytes);
        assert_eq!(hex, "1.2.3.4.5 > 5.6.7.8.6: udp 56\n  4500004c 0007");
    }

    #[test]
    fn lines_may_go_to_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let config = format!("give :: Give -> p :: IPPrint(OUTFILE {}, TIMESTAMP false) -> Take", path.display());
        let mut harness = Harness::new(&config);
        harness.give("give", [marked(&udp((A, 5), (B, 6), b""))]);
        harness.write("p.active", "false").unwrap();
        harness.give("give", [marked(&udp((A, 5), (B, 6), b""))]);
        assert_eq!(harness.said(), [""; 0]);
        drop(harness);
        assert_eq!(std::fs::read_to_string(path).unwrap(), "1.2.3.4.5 > 5.6.7.8.6: udp 8\n");
    }

    #[test]
    fn wrong_arguments_are_told() {
        let errors = |arguments: &str| Harness::errors(&format!("Give -> IPPrint({arguments}) -> Take"));
        assert!(errors("PAYLOAD x").contains("bad payload value 'x'; should be 'false', 'hex', or 'ascii'"));
        assert!(errors("PAYLOAD hex, CONTENTS hex").contains("specify at most one of PAYLOAD and CONTENTS"));
        assert!(errors("CONTENTS x").contains("bad contents value 'x'"));
        assert!(errors("OUTFILE /").contains("/: Is a directory"));
    }

    #[test]
    fn any_packet_passes() {
        let config = "give :: Give -> IPPrint(x, PAYLOAD hex) -> IPPrint(y, CONTENTS ascii) -> take :: Take";
        assert_eq!(fuzz(config, &["take"])[0].len(), 2000);
    }
}
