//! A packet from the fields of a line or a record.
//!
//! Fields come in their order (annotations, link, network, transport, payload); each makes the headers that it needs.
//! What nothing says is zero, but for IP version and header length, protocol, a time to live of 100, and a flow's addresses.

use std::net::Ipv4Addr;

use crate::headers::{FlowId, checksum};
use crate::packet::anno;
use crate::{Packet, Timestamp};

use super::field::{Field, What};
use super::value::{OFFSET, Value};
use super::{DCCP, ICMP, TCP, UDP, UDP_LITE, has_ports, has_sequence};

/// Room before and behind the headers.
const HEADROOM: usize = 64;
const TAILROOM: usize = 192;
const IP_LEN: usize = 20;
const TCP_LEN: usize = 20;
/// The longest IP or TCP header.
const HEADER_LEN_MAX: usize = 60;
/// Bytes that a packet may get from a length field alone: the most that IP has.
const LEN_MAX: u32 = 0xFFFF;

/// Headers that packets get where nothing says otherwise.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defaults {
    pub(super) protocol: u8,
    pub(super) flow: Option<FlowId>,
}

/// A packet that is being made.
pub(super) struct Builder {
    packet: Packet,
    defaults: Defaults,
    is_ip: bool,
    icmp_type: Option<u8>,
    icmp_code: Option<u8>,
    /// Whether fields say how long the IP header is, and the TCP header.
    has_ip_len: bool,
    has_tcp_len: bool,
    /// The length that the packet should have, link header included; 0: nobody said.
    want_len: u32,
}

impl Builder {
    pub(super) fn new(defaults: Defaults) -> Self {
        let packet = Packet::with_room(HEADROOM, 0, TAILROOM);
        Self {
            packet,
            defaults,
            is_ip: true,
            icmp_type: None,
            icmp_code: None,
            has_ip_len: false,
            has_tcp_len: false,
            want_len: 0,
        }
    }

    pub(super) fn icmp_type(&self) -> Option<u8> {
        self.icmp_type
    }

    fn grow(&mut self, n: usize) {
        let len = self.packet.len();
        self.packet.put(n)[len..].fill(0);
    }

    fn network_offset(&self) -> usize {
        self.packet.network_offset().map_or(0, |at| at.max(0) as usize)
    }

    fn network(&mut self) -> &mut [u8] {
        self.packet.network_header_mut().unwrap_or_default()
    }

    fn transport(&mut self) -> &mut [u8] {
        self.packet.transport_header_mut().unwrap_or_default()
    }

    fn transport_len(&self) -> usize {
        self.packet.transport_header().map_or(0, <[u8]>::len)
    }

    fn protocol(&self) -> u8 {
        self.packet.network_header().and_then(|ip| ip.get(9)).copied().unwrap_or(0)
    }

    fn header_len(&self) -> usize {
        self.packet.network_header().map_or(0, |ip| usize::from(ip[0] & 15) * 4)
    }

    fn is_first_fragment(&self) -> bool {
        let ip = self.packet.network_header().unwrap_or_default();
        ip.len() >= 8 && u32::from(u16::from_be_bytes([ip[6], ip[7]])) & OFFSET == 0
    }

    /// Makes an IP header; false where the packet has none, or none of this protocol (0: any).
    fn make_ip(&mut self, protocol: u8) -> bool {
        if !self.is_ip {
            return false;
        }
        if self.packet.network_header().is_none_or(|ip| ip.len() < IP_LEN) {
            let at = self.network_offset();
            self.grow(IP_LEN);
            self.packet.set_network_header(at as isize, IP_LEN);
            let Defaults { protocol, flow } = self.defaults;
            let ip = self.network();
            (ip[0], ip[8], ip[9]) = (0x45, 100, protocol);
            if let Some(flow) = flow {
                ip[12..16].copy_from_slice(&flow.source.octets());
                ip[16..20].copy_from_slice(&flow.destination.octets());
            }
        }
        protocol == 0 || [0, protocol].contains(&self.protocol())
    }

    /// Makes a transport header, as far as the wanted length has room for it; false behind the first fragment.
    fn make_transport(&mut self) -> bool {
        if !self.is_first_fragment() {
            return false;
        }
        let len = match self.protocol() {
            TCP => TCP_LEN,
            UDP | UDP_LITE | ICMP => 8,
            DCCP => 12,
            _ => return true,
        };
        if self.transport_len() >= 8 {
            return true;
        }
        let begin = self.network_offset() + self.header_len();
        let room = if self.want_len > 0 { (self.want_len as usize).saturating_sub(begin) } else { usize::MAX };
        let len = len.min(room);
        let have = self.transport_len();
        if have < len {
            self.grow(len - have);
            let (tcp, ports, flow) = (self.protocol() == TCP, has_ports(self.protocol()), self.defaults.flow);
            let header = self.transport();
            if tcp && header.len() > 12 {
                header[12] = (TCP_LEN as u8 / 4) << 4;
            }
            if let (Some(flow), true) = (flow, ports) {
                set16(header, 0, flow.source_port);
                set16(header, 2, flow.destination_port);
            }
        }
        true
    }

    /// Puts a field into the packet.
    pub(super) fn inject(&mut self, field: &Field, value: &Value) {
        self.has_ip_len |= matches!(field.what, What::IpOpt | What::IpHl);
        self.has_tcp_len |= matches!(field.what, What::TcpOff | What::TcpOpt | What::TcpNtOpt | What::TcpSack);
        match field.what {
            what if (what as u8) < What::EthSrc as u8 => self.annotate(what, value),
            what if (what as u8) < What::IpSrc as u8 => self.link(what, value),
            What::IpCaptureLen => {}
            what if (what as u8) < What::Sport as u8 => self.ip(what, value),
            What::Sport => self.port(0, value.number() as u16),
            What::Dport => self.port(2, value.number() as u16),
            What::UdpLen => self.udp_len(value.number() as u16),
            what if (what as u8) < What::IcmpType as u8 => self.tcp(what, value),
            what if (what as u8) < What::Payload as u8 => self.icmp(what, value.number()),
            What::Payload => self.payload(value.bytes().len() as u32, value.bytes()),
            What::PayloadLen => self.payload(value.number(), &[]),
            _ => {}
        }
    }

    fn annotate(&mut self, what: What, value: &Value) {
        let (packet, number) = (&mut self.packet, value.number());
        let time = packet.timestamp();
        match what {
            What::Timestamp | What::Usec1 => packet.set_timestamp(value.time()),
            What::Sec => packet.set_timestamp(Timestamp::new(number.into(), time.subsec_nanos().into())),
            What::Usec => packet.set_timestamp(Timestamp::new(time.secs(), i64::from(number) * 1000)),
            What::FirstTimestamp => packet.set_anno_u64(anno::FIRST_TIMESTAMP, value.time().nanos() as u64),
            What::Count => packet.set_anno_u32(anno::EXTRA_PACKETS, number.saturating_sub(1)),
            What::Link | What::Direction => packet.set_anno_u8(anno::PAINT, number as u8),
            What::Aggregate => packet.set_anno_u32(anno::AGGREGATE, number),
            What::WireLen => self.want_len = number,
            _ => {}
        }
    }

    fn link(&mut self, what: What, value: &Value) {
        if self.packet.mac_header().is_none() {
            self.packet.push(14)[..14].fill(0);
            self.packet.set_mac_header(0);
            self.packet.set_network_header(14, 0);
            self.packet.bytes_mut()[12..14].copy_from_slice(&[8, 0]);
        }
        let header = self.packet.bytes_mut();
        match what {
            What::EthDst => header[..6].copy_from_slice(value.bytes()),
            What::EthSrc => header[6..12].copy_from_slice(value.bytes()),
            _ => {
                set16(header, 12, value.number() as u16);
                self.is_ip = matches!(value.number(), 0x0800 | 0x86DD);
            }
        }
    }

    fn ip(&mut self, what: What, value: &Value) {
        if !self.make_ip(0) {
            return;
        }
        let number = value.number();
        let ip = self.network();
        match what {
            What::IpSrc => ip[12..16].copy_from_slice(&number.to_be_bytes()),
            What::IpDst => ip[16..20].copy_from_slice(&number.to_be_bytes()),
            What::IpTos => ip[1] = number as u8,
            What::IpDscp => ip[1] = ip[1] & 3 | (number << 2) as u8,
            What::IpEcn => ip[1] = ip[1] & !3 | (number & 3) as u8,
            What::IpTtl => ip[8] = number as u8,
            What::IpFrag | What::IpFragOff => set16(ip, 6, number as u16),
            What::IpId => set16(ip, 4, number as u16),
            What::IpSum => set16(ip, 10, number as u16),
            What::IpProto => ip[9] = number as u8,
            What::IpOpt => self.ip_options(value.bytes()),
            What::IpHl => self.set_header_len(number as usize),
            What::IpLen => self.want_len = number.saturating_add(self.network_offset() as u32),
            _ => {}
        }
    }

    fn ip_options(&mut self, options: &[u8]) {
        let len = (IP_LEN + options.len()).next_multiple_of(4);
        if options.is_empty() || len > HEADER_LEN_MAX {
            return;
        }
        self.set_header_len(len.max(self.header_len()));
        let end = self.header_len();
        let ip = self.network();
        ip[IP_LEN..IP_LEN + options.len()].copy_from_slice(options);
        ip[IP_LEN + options.len()..end].fill(0);
    }

    /// Makes the IP header longer, with options that say that there are none. Nothing is behind it yet.
    fn set_header_len(&mut self, len: usize) {
        let len = len.next_multiple_of(4);
        let have = self.header_len();
        if len > have && len <= HEADER_LEN_MAX {
            self.grow(len - have);
            let at = self.network_offset() as isize;
            self.packet.set_network_header(at, len);
            self.network()[0] = 0x40 | (len / 4) as u8;
        }
    }

    fn port(&mut self, at: usize, port: u16) {
        if self.make_ip(0) && self.make_transport() && (self.protocol() == 0 || has_ports(self.protocol())) {
            set16(self.transport(), at, port);
        }
    }

    fn tcp(&mut self, what: What, value: &Value) {
        if !self.make_ip(TCP) || !self.make_transport() {
            return;
        }
        let number = value.number();
        let header = self.transport();
        let mut set = |at: usize, bytes: &[u8]| {
            if let Some(place) = header.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        };
        match what {
            What::TcpSeq => set(4, &number.to_be_bytes()),
            What::TcpAck => set(8, &number.to_be_bytes()),
            What::TcpWindow => set(14, &(number as u16).to_be_bytes()),
            What::TcpUrp => set(18, &(number as u16).to_be_bytes()),
            What::TcpFlags if header.len() > 13 => {
                header[13] = number as u8;
                header[12] = header[12] & 0xF0 | (number >> 8 & 15) as u8;
            }
            What::TcpOff => self.set_tcp_len(number as usize),
            What::TcpOpt | What::TcpNtOpt | What::TcpSack => self.tcp_options(value.bytes()),
            _ => {}
        }
    }

    /// Makes the TCP header longer, with options that say that there are none.
    fn set_tcp_len(&mut self, len: usize) {
        let len = len.next_multiple_of(4);
        let Some(&offset) = self.transport().get(12) else { return };
        let have = usize::from(offset >> 4) * 4;
        if len > have && len <= HEADER_LEN_MAX {
            let missing = len.saturating_sub(self.transport_len());
            self.grow(missing);
            let header = self.transport();
            header[12] = header[12] & 15 | ((len / 4) << 4) as u8;
        }
    }

    fn tcp_options(&mut self, options: &[u8]) {
        let len = (TCP_LEN + options.len()).next_multiple_of(4);
        if options.is_empty() || len > HEADER_LEN_MAX || self.transport_len() < TCP_LEN {
            return;
        }
        self.set_tcp_len(len);
        let header = self.transport();
        let end = usize::from(header[12] >> 4) * 4;
        header[TCP_LEN..TCP_LEN + options.len()].copy_from_slice(options);
        header[TCP_LEN + options.len()..end].fill(0);
    }

    fn udp_len(&mut self, len: u16) {
        if self.make_ip(0) && self.make_transport() && matches!(self.protocol(), 0 | UDP | UDP_LITE) {
            let missing = 8usize.saturating_sub(self.transport_len());
            self.grow(missing);
            set16(self.transport(), 4, len);
        }
    }

    fn icmp(&mut self, what: What, number: u32) {
        if !self.make_ip(ICMP) || !self.make_transport() {
            return;
        }
        let len = if what == What::IcmpType && matches!(number, 13 | 14) { 20 } else { 8 };
        let missing = len.max(8usize).saturating_sub(self.transport_len());
        self.grow(missing);
        let sequenced = self.icmp_type.is_none_or(has_sequence);
        let needs_fragments =
            self.icmp_type.is_none_or(|kind| kind == 3) && self.icmp_code.is_none_or(|code| code == 4);
        let header = self.transport();
        match what {
            What::IcmpType | What::IcmpTypeName => {
                header[0] = number as u8;
                self.icmp_type = Some(number as u8);
            }
            What::IcmpCode | What::IcmpCodeName => {
                header[1] = number as u8;
                self.icmp_code = Some(number as u8);
            }
            What::IcmpFlowId if sequenced => set16(header, 4, number as u16),
            What::IcmpSeq if sequenced => set16(header, 6, number as u16),
            What::IcmpNextMtu if needs_fragments => set16(header, 6, number as u16),
            _ => {}
        }
    }

    /// The payload has `len` bytes, and begins with these; where a length was given, headers fill what it leaves.
    fn payload(&mut self, len: u32, bytes: &[u8]) {
        if self.make_ip(0) {
            self.make_transport();
        }
        let len = len.min(LEN_MAX);
        let begin = self.payload_begin() as u32;
        if !self.is_ip || self.want_len == 0 {
            self.want_len = begin + len;
        } else {
            self.fill_headers(self.want_len.min(LEN_MAX).saturating_sub(begin + len) as usize);
        }
        if !bytes.is_empty() {
            let begin = self.payload_begin();
            let missing = (begin + bytes.len()).saturating_sub(self.packet.len());
            self.grow(missing);
            self.packet.bytes_mut()[begin..begin + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Where the payload begins, behind the headers that are there.
    fn payload_begin(&self) -> usize {
        if !self.is_ip {
            return self.packet.len();
        }
        let transport = self.packet.transport_header().unwrap_or_default();
        let len = match self.protocol() {
            _ if !self.is_first_fragment() => 0,
            TCP if transport.len() > 12 => usize::from(transport[12] >> 4) * 4,
            UDP | UDP_LITE => 8,
            _ => 0,
        };
        self.network_offset() + self.header_len() + len
    }

    /// Makes TCP's header, then IP's, longer by options, so that `excess` bytes less are payload; those whose length was given
    /// stay as they are.
    fn fill_headers(&mut self, excess: usize) {
        let excess = excess - excess % 4;
        let mut left = excess;
        let is_tcp = self.is_first_fragment() && self.protocol() == TCP;
        if is_tcp && !self.has_tcp_len && self.transport().get(12).is_some_and(|at| at >> 4 == 5) {
            let more = left.min(HEADER_LEN_MAX - TCP_LEN);
            self.set_tcp_len(TCP_LEN + more);
            left -= more;
        }
        if !self.has_ip_len && self.header_len() == IP_LEN && left > 0 {
            let more = left.min(HEADER_LEN_MAX - IP_LEN);
            let at = self.network_offset();
            self.grow(more);
            let bytes = self.packet.bytes_mut();
            let end = bytes.len();
            bytes.copy_within(at + IP_LEN..end - more, at + IP_LEN + more);
            bytes[at + IP_LEN..at + IP_LEN + more].fill(0);
            bytes[at] = 0x40 | ((IP_LEN + more) / 4) as u8;
            self.packet.set_network_header(at as isize, IP_LEN + more);
        }
    }

    /// The packet, with its lengths, and with checksums over all of them if asked.
    pub(super) fn finish(mut self, checksums: bool) -> Packet {
        if self.defaults.flow.is_some() {
            self.make_ip(0);
        }
        if self.is_ip && self.packet.network_header().is_some_and(|ip| ip.len() >= IP_LEN) {
            self.make_transport();
            self.set_lengths(checksums);
        }
        let extra = self.want_len.saturating_sub(self.packet.len() as u32);
        if extra > 0 {
            self.packet.set_anno_u32(anno::EXTRA_LENGTH, extra);
        }
        self.packet
    }

    fn set_lengths(&mut self, checksums: bool) {
        let have = self.network().len();
        let wanted = self.want_len.saturating_sub(self.network_offset() as u32).min(LEN_MAX);
        let ip_len = if wanted == 0 { have.min(LEN_MAX as usize) } else { wanted as usize };
        set16(self.network(), 2, ip_len as u16);
        let header_len = self.header_len();
        if self.protocol() == UDP && self.is_first_fragment() && self.transport().get(4..6) == Some(&[0, 0]) {
            set16(self.transport(), 4, ip_len.saturating_sub(header_len) as u16);
        }
        let ip = self.network();
        let destination = Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]);
        self.packet.set_dst_ip(destination);
        if checksums {
            self.grow(ip_len.saturating_sub(have));
            self.set_checksums(ip_len.min(self.packet.network_header().map_or(0, <[u8]>::len)));
        }
    }

    fn set_checksums(&mut self, ip_len: usize) {
        let (header_len, protocol) = (self.header_len(), self.protocol());
        let ip = self.network();
        let more = u16::from_be_bytes([ip[6], ip[7]]) & 0x3FFF != 0;
        let at = match protocol {
            TCP => 16,
            UDP => 6,
            ICMP => 2,
            _ => usize::MAX,
        };
        set16(ip, 10, 0);
        let sum = checksum::internet(&ip[..header_len]);
        set16(ip, 10, sum);
        let source = Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]);
        let destination = Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]);
        let Some(segment) = ip.get_mut(header_len..ip_len).filter(|segment| segment.len() >= at.saturating_add(2))
        else {
            return;
        };
        if more {
            return;
        }
        set16(segment, at, 0);
        let sum = match protocol {
            ICMP => checksum::internet(segment),
            UDP => checksum::udp(source, destination, segment),
            _ => checksum::transport(source, destination, protocol, segment),
        };
        set16(segment, at, sum);
    }
}

/// Writes two bytes, where they are there.
fn set16(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}
