//! Fields of a packet, as text or as bytes of a record.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use md5::{Digest, Md5};

use crate::headers::{EtherAddress, names};
use crate::lang::config::quote_bytes;
use crate::packet::anno;
use crate::{Packet, Timestamp};

use super::field::{Field, Form, What};
use super::tcp_options::Which;
use super::value::{DF, MF, OFFSET};
use super::{ICMP, TCP, TCP_FLAGS, UDP, UDP_LITE, has_ports, has_sequence, ip_options, tcp_options};

/// A packet, with the headers that can be trusted.
pub(super) struct Seen<'a> {
    packet: &'a Packet,
    /// From the IP header to the end of what its length says, or of what is there.
    ip: Option<&'a [u8]>,
    /// From the transport header to the same end; empty without one.
    transport: &'a [u8],
    /// The protocol whose header is at `transport`.
    protocol: Option<u8>,
    /// Whether that header begins with ports, even if the rest of it is wrong.
    has_ports: bool,
    /// Bytes behind the end that the IP header tells.
    tail_pad: usize,
    extra_len: u32,
    count_extra: bool,
}

/// What a field is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    Ethernet,
    Ip,
    Protocol(u8),
    Ports,
}

/// What a packet has for a field.
pub(super) enum Seeing<'a> {
    Number(u32),
    Time(Timestamp),
    Mac([u8; 6]),
    Options(&'a [u8]),
    Payload(&'a [u8]),
}

/// Keeps the first thing that is bad about a packet, if anybody wants to know.
pub(super) type Bad<'a> = Option<&'a mut String>;

fn note(bad: &mut Bad<'_>, text: impl std::fmt::Display) {
    if let Some(bad) = bad
        && bad.is_empty()
    {
        let _ = writeln!(bad, "!bad {text}");
    }
}

/// Notes what is bad about a packet; none, for what it lacks.
fn say<T>(text: &str, bad: &mut Bad<'_>) -> Option<T> {
    note(bad, text);
    None
}

impl<'a> Seen<'a> {
    /// A packet whose headers are looked at only if `headers`.
    pub(super) fn new(packet: &'a Packet, headers: bool, careful: bool, count_extra: bool, bad: &mut Bad<'_>) -> Self {
        let extra_len = packet.anno_u32(anno::EXTRA_LENGTH);
        let mut seen = Self {
            packet,
            ip: None,
            transport: &[],
            protocol: None,
            has_ports: false,
            tail_pad: 0,
            extra_len,
            count_extra,
        };
        if headers {
            seen.check_ip(careful, bad);
            seen.check_transport(bad);
            seen.count_extra_once();
        }
        seen
    }

    fn check_ip(&mut self, careful: bool, bad: &mut Bad<'_>) {
        let Some(header) = self.packet.network_header() else { return };
        if header.len() < 4 {
            return note(bad, "truncated IP header");
        }
        let (version, header_words) = (header[0] >> 4, usize::from(header[0] & 15));
        let ip_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if version != 4 {
            note(bad, format_args!("IP version {version}"));
        } else if header_words < 5 {
            note(bad, format_args!("IP header length {header_words}"));
        } else if ip_len < header_words * 4 {
            note(bad, format_args!("IP length {ip_len}"));
        } else if header.len() > ip_len {
            self.tail_pad = header.len() - ip_len;
            self.extra_len = self.extra_len.saturating_add(self.tail_pad as u32);
            self.ip = Some(&header[..ip_len]);
        } else {
            let missing = ip_len - header.len();
            if careful && missing > self.extra_len as usize {
                note(bad, format_args!("truncated IP missing {}", missing - self.extra_len as usize));
            }
            self.ip = Some(header);
        }
    }

    fn check_transport(&mut self, bad: &mut Bad<'_>) {
        let Some(ip) = self.ip else { return };
        let transport = self.packet.transport_header().unwrap_or_default();
        self.transport = &transport[..transport.len().saturating_sub(self.tail_pad)];
        let header_len = usize::from(ip[0] & 15) * 4;
        let first = ip.len() > header_len && u32::from(u16::from_be_bytes([ip[6], ip[7]])) & OFFSET == 0;
        if !first || self.packet.transport_header().is_none() {
            return;
        }
        self.protocol = Some(ip[9]);
        self.has_ports = has_ports(ip[9]);
        if let (TCP, Some(offset)) = (ip[9], self.transport.get(12).map(|byte| byte >> 4))
            && offset < 5
        {
            note(bad, format_args!("TCP header length {offset}"));
            self.protocol = None;
        }
    }

    /// The IP header's length counts what was not captured, up to its limit.
    fn count_extra_once(&mut self) {
        let Some(ip) = self.ip else { return };
        let full = ip.len() as u64 + u64::from(self.extra_len);
        self.extra_len = if ip[2..4] == [0xFF; 2] && full > 0xFFFF { (full - 0xFFFF) as u32 } else { 0 };
    }

    /// Says what is missing; none, for whoever misses it.
    fn missing<T>(&self, what: Missing, len: usize, bad: &mut Bad<'_>) -> Option<T> {
        let (protocol, wrong): (_, &dyn Fn(u8) -> bool) = match what {
            Missing::Ethernet => return say("Ethernet header", bad),
            _ if self.ip.is_none() => return say("no IP header", bad),
            Missing::Ip => return say("truncated IP header capture", bad),
            Missing::Ports => ("TCP/UDP", &|protocol| protocol != TCP && protocol != UDP),
            Missing::Protocol(TCP) => ("TCP", &|protocol| protocol != TCP),
            Missing::Protocol(UDP) => ("UDP", &|protocol| protocol != UDP),
            Missing::Protocol(_) => ("ICMP", &|protocol| protocol != ICMP),
        };
        let ip = self.ip?;
        if ip.get(9).is_some_and(|&protocol| wrong(protocol)) {
            // A packet of another protocol is not bad.
            return None;
        }
        let fragment = ip.len() >= 8 && u32::from(u16::from_be_bytes([ip[6], ip[7]])) & OFFSET != 0;
        let not_captured = (self.ip_len() as usize).saturating_sub(ip.len());
        let capture = self.transport.len() + not_captured >= len;
        let text = match (fragment, capture) {
            (true, _) => format!("fragmented {protocol} header"),
            (_, true) => format!("truncated {protocol} header capture"),
            _ => format!("truncated {protocol} header"),
        };
        say(&text, bad)
    }

    /// The IP header, where it has at least so many bytes.
    fn ip(&self, len: usize, bad: &mut Bad<'_>) -> Option<&'a [u8]> {
        match self.ip {
            Some(ip) if ip.len() >= len => Some(ip),
            _ => self.missing(Missing::Ip, len, bad),
        }
    }

    /// The header of a protocol, where it has at least so many bytes.
    fn of(&self, protocol: u8, len: usize, bad: &mut Bad<'_>) -> Option<&'a [u8]> {
        if self.protocol == Some(protocol) && self.transport.len() >= len {
            return Some(self.transport);
        }
        self.missing(Missing::Protocol(protocol), len, bad)
    }

    /// What the packet has for a field.
    pub(super) fn see(&self, field: &Field, bad: &mut Bad<'_>) -> Option<Seeing<'a>> {
        use Seeing::{Number, Options, Payload, Time};
        let half = |bytes: &[u8], at: usize| Number(u16::from_be_bytes([bytes[at], bytes[at + 1]]).into());
        let packet = self.packet;
        Some(match field.what {
            What::None => return None,
            What::Timestamp | What::Usec1 => Time(packet.timestamp()),
            What::Sec => Number(packet.timestamp().secs() as u32),
            What::Usec => Number(packet.timestamp().subsec_nanos() / 1000),
            What::FirstTimestamp => Time(Timestamp::from_nanos(packet.anno_u64(anno::FIRST_TIMESTAMP) as i64)),
            What::Count => Number(packet.anno_u32(anno::EXTRA_PACKETS).wrapping_add(1)),
            What::Link | What::Direction => Number(packet.anno_u8(anno::PAINT).into()),
            What::Aggregate => Number(packet.anno_u32(anno::AGGREGATE)),
            What::WireLen => Number(packet.len() as u32),
            What::EthSrc | What::EthDst | What::EthType => return self.ethernet(field.what, bad),
            What::IpTos => Number(self.ip(2, bad)?[1].into()),
            What::IpDscp => Number((self.ip(2, bad)?[1] >> 2).into()),
            What::IpEcn => Number((self.ip(2, bad)?[1] & 3).into()),
            What::IpId => half(self.ip(6, bad)?, 4),
            What::IpFrag | What::IpFragOff => half(self.ip(8, bad)?, 6),
            What::IpTtl => Number(self.ip(9, bad)?[8].into()),
            What::IpProto => Number(self.ip(10, bad)?[9].into()),
            What::IpSum => half(self.ip(12, bad)?, 10),
            What::IpSrc => Number(word(self.ip(16, bad)?, 12)),
            What::IpDst => Number(word(self.ip(20, bad)?, 16)),
            What::IpHl => Number(u32::from(self.ip(1, bad)?[0] & 15) * 4),
            What::IpOpt => {
                let len = usize::from(self.ip(1, bad)?[0] & 15) * 4;
                Options(if len > 20 { &self.ip(len, bad)?[20..len] } else { &[] })
            }
            What::IpLen => Number(self.ip_len().saturating_add(if self.count_extra { self.extra_len } else { 0 })),
            What::IpCaptureLen => Number(self.ip.map_or(packet.len(), <[u8]>::len) as u32),
            What::Sport | What::Dport => {
                let at = if field.what == What::Sport { 0 } else { 2 };
                if !self.has_ports || self.transport.len() < at + 2 {
                    return self.missing(Missing::Ports, at + 2, bad);
                }
                half(self.transport, at)
            }
            What::TcpSeq => Number(word(self.of(TCP, 8, bad)?, 4)),
            What::TcpAck => Number(word(self.of(TCP, 12, bad)?, 8)),
            What::TcpOff => Number(u32::from(self.of(TCP, 13, bad)?[12] >> 4) * 4),
            What::TcpFlags => {
                let header = self.of(TCP, 14, bad)?;
                Number(u32::from(header[13]) | u32::from(header[12] & 15) << 8)
            }
            What::TcpWindow => half(self.of(TCP, 16, bad)?, 14),
            What::TcpUrp => half(self.of(TCP, 20, bad)?, 18),
            What::TcpOpt | What::TcpNtOpt | What::TcpSack => Options(self.tcp_options(field.what, bad)?),
            What::UdpLen => half(self.of(UDP, 6, bad)?, 4),
            What::IcmpType | What::IcmpTypeName => Number(self.of(ICMP, 1, bad)?[0].into()),
            What::IcmpCode | What::IcmpCodeName => Number(self.of(ICMP, 2, bad)?[1].into()),
            What::IcmpFlowId | What::IcmpSeq => {
                if !has_sequence(self.of(ICMP, 1, bad)?[0]) {
                    return None;
                }
                let at = if field.what == What::IcmpFlowId { 4 } else { 6 };
                half(self.of(ICMP, at + 2, bad)?, at)
            }
            What::IcmpNextMtu => {
                if self.of(ICMP, 2, bad)?[..2] != [3, 4] {
                    return None;
                }
                half(self.of(ICMP, 8, bad)?, 6)
            }
            What::PayloadLen => {
                let counts = self.ip.is_none() || self.count_extra;
                Number(self.payload().1.saturating_add(if counts { self.extra_len } else { 0 }))
            }
            What::Payload | What::PayloadMd5 | What::PayloadMd5Hex => Payload(self.payload().0),
        })
    }

    fn ethernet(&self, what: What, bad: &mut Bad<'_>) -> Option<Seeing<'a>> {
        let packet = self.packet;
        let network = packet.network_offset();
        let mac = match packet.mac_offset() {
            None => network.is_none_or(|at| at > 0).then_some((packet.bytes(), 0)),
            Some(at) => packet.mac_header().map(|header| (header, at)),
        };
        let header = mac.filter(|(_, at)| network.unwrap_or(packet.len() as isize) - at == 14);
        let Some(header) = header.and_then(|(header, _)| header.first_chunk::<14>()) else {
            return self.missing(Missing::Ethernet, 0, bad);
        };
        let address = |at: usize| Seeing::Mac(std::array::from_fn(|i| header[at + i]));
        Some(match what {
            What::EthDst => address(0),
            What::EthSrc => address(6),
            _ => Seeing::Number(u16::from_be_bytes([header[12], header[13]]).into()),
        })
    }

    fn ip_len(&self) -> u32 {
        self.ip.map_or(self.packet.len() as u32, |ip| u16::from_be_bytes([ip[2], ip[3]]).into())
    }

    fn tcp_options(&self, what: What, bad: &mut Bad<'_>) -> Option<&'a [u8]> {
        let header = self.of(TCP, 13, bad)?;
        let len = usize::from(header[12] >> 4) * 4;
        // Nothing but a timestamp, as most packets have.
        let only_timestamp = len == 32 && header.get(20..24) == Some(&[1, 1, 8, 10]);
        if len <= 20 || (what != What::TcpOpt && only_timestamp) {
            return Some(&[]);
        }
        let beyond = header.len() + 1;
        header.get(20..len).or_else(|| self.missing(Missing::Protocol(TCP), beyond, bad))
    }

    /// What is behind all headers: the bytes that are there, and how many there should be.
    fn payload(&self) -> (&'a [u8], u32) {
        let Some(ip) = self.ip else {
            return (self.packet.bytes(), self.packet.len() as u32);
        };
        let headers = self.packet.network_header_len().max(usize::from(ip[0] & 15) * 4);
        let whole = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let first = ip.len() >= 10 && u32::from(u16::from_be_bytes([ip[6], ip[7]])) & OFFSET == 0;
        let transport = match ip.get(9) {
            Some(&TCP) if first && self.transport.len() >= 13 => usize::from(self.transport[12] >> 4) * 4,
            Some(&(UDP | UDP_LITE)) if first => 8,
            _ => 0,
        };
        let begin = if headers + transport <= whole { headers + transport } else { headers };
        (ip.get(begin..).unwrap_or_default(), whole.saturating_sub(begin) as u32)
    }

    /// Appends a field as text.
    pub(super) fn text(&self, field: &Field, seeing: &Seeing<'_>, out: &mut Vec<u8>) {
        match *seeing {
            Seeing::Number(number) => out.extend(self.number(field.what, number).bytes()),
            Seeing::Time(time) if field.what == What::Usec1 => out.extend((time.nanos() / 1000).to_string().bytes()),
            Seeing::Time(time) => out.extend(time.to_string().bytes()),
            Seeing::Mac(bytes) => out.extend(EtherAddress(bytes).to_string().bytes()),
            Seeing::Options(bytes) if field.what == What::IpOpt => ip_options::unparse(out, bytes),
            Seeing::Options(bytes) => tcp_options::unparse(out, bytes, which(field.what)),
            Seeing::Payload(bytes) => match field.what {
                What::PayloadMd5 => out.extend(digest_text(&Md5::digest(bytes))),
                What::PayloadMd5Hex => {
                    Md5::digest(bytes).iter().for_each(|byte| out.extend(format!("{byte:02x}").bytes()));
                }
                _ => out.extend(quote_bytes(bytes).bytes()),
            },
        }
    }

    fn number(&self, what: What, number: u32) -> String {
        let flag = |bit: u32, text: &'static str| if number & bit != 0 { text } else { "" };
        match what {
            What::IpSrc | What::IpDst => Ipv4Addr::from(number).to_string(),
            What::EthType => format!("{number:04X}"),
            What::IpFrag => char::from(fragment(number)).into(),
            What::IpFragOff => format!("{}{}{}", (number & OFFSET) << 3, flag(MF, "+"), flag(DF, "!")),
            What::IpEcn => ["no", "ect1", "ect2", "ce"][(number & 3) as usize].into(),
            What::IpProto => match number as u8 {
                TCP => "T".into(),
                UDP => "U".into(),
                ICMP => "I".into(),
                _ => number.to_string(),
            },
            What::Direction if number < 2 => [">", "<"][number as usize].into(),
            What::TcpFlags => tcp_flags(number),
            What::IcmpTypeName => name(names::icmp_type_name(number as u8), number),
            What::IcmpCodeName => name(names::icmp_code_name(self.transport[0], number as u8), number),
            _ => number.to_string(),
        }
    }

    /// Appends a field as bytes of a record; nothing seen is zeros.
    pub(super) fn record(field: &Field, seeing: Option<&Seeing<'_>>, out: &mut Vec<u8>) {
        let begin = out.len();
        match seeing {
            Some(Seeing::Number(number)) if field.what == What::IpFrag => out.push(fragment(*number)),
            Some(Seeing::Number(number)) => {
                let Form::Fixed(len) = field.form else { return };
                out.extend(&number.to_be_bytes()[4 - len..]);
            }
            Some(Seeing::Time(time)) if field.what == What::Usec1 => out.extend((time.nanos() / 1000).to_be_bytes()),
            Some(Seeing::Time(time)) => {
                let sub = time.subsec_nanos() / if field.is_nano() { 1 } else { 1000 };
                out.extend((time.secs() as u32).to_be_bytes());
                out.extend(sub.to_be_bytes());
            }
            Some(Seeing::Mac(bytes)) => out.extend(bytes),
            Some(Seeing::Options(bytes)) => {
                let selected = match field.what {
                    What::IpOpt => bytes.to_vec(),
                    what => tcp_options::select(bytes, which(what)),
                };
                // Headers have at most 40 bytes of options.
                out.push(selected.len() as u8);
                out.extend(selected);
            }
            Some(Seeing::Payload(bytes)) => out.extend(Md5::digest(bytes)),
            None => {}
        }
        let len = if let Form::Fixed(len) = field.form { len } else { 1 };
        if out.len() == begin {
            out.resize(begin + len, 0);
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn which(what: What) -> Which {
    match what {
        What::TcpNtOpt => Which::NoTimestamp,
        What::TcpSack => Which::Sack,
        _ => Which::All,
    }
}

fn name(name: Option<&str>, number: u32) -> String {
    name.map_or_else(|| number.to_string(), str::to_owned)
}

fn fragment(number: u32) -> u8 {
    match number {
        number if number & OFFSET != 0 => b'f',
        number if number & MF != 0 => b'F',
        number if number & DF != 0 => b'!',
        _ => b'.',
    }
}

fn tcp_flags(flags: u32) -> String {
    if flags.trailing_zeros() >= 9 {
        return ".".into();
    }
    (0..9).filter(|bit| flags >> bit & 1 == 1).map(|bit| char::from(TCP_FLAGS[bit])).collect()
}

/// A digest as 22 letters, six bits each from the lowest of the first byte.
fn digest_text(digest: &[u8]) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@";
    let bits = digest.iter().rev().fold(0u128, |bits, &byte| bits << 8 | u128::from(byte));
    (0..22).map(|letter| LETTERS[(bits >> (6 * letter) & 63) as usize]).collect()
}
