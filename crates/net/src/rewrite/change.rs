//! What a flow changes in its packets: addresses, ports, and the checksums over them.
//!
//! All functions take a packet that begins with an IPv4 header whose lengths are true. Only a first fragment has a
//! transport header to change; one that is too short for a field keeps the field.

use super::flows::Flow;
use crate::headers::{FlowId, Ip, IpMut, checksum, icmp, ip};

/// Where protocols have their checksums, from the transport header on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP: bytes 16 and 17.
    Tcp,
    /// UDP: bytes 6 and 7, zero for none.
    Udp,
    /// DCCP: bytes 6 and 7.
    Dccp,
    /// Another protocol, which has no ports, or none that are known.
    Other,
}

impl Transport {
    /// That of an IP protocol.
    #[inline]
    pub fn of(protocol: u8) -> Self {
        match protocol {
            ip::PROTOCOL_TCP => Self::Tcp,
            ip::PROTOCOL_UDP => Self::Udp,
            ip::PROTOCOL_DCCP => Self::Dccp,
            _ => Self::Other,
        }
    }

    /// The place of the checksum.
    #[inline]
    fn checksum_at(self) -> Option<usize> {
        match self {
            Self::Tcp => Some(16),
            Self::Udp | Self::Dccp => Some(6),
            Self::Other => None,
        }
    }
}

/// What a packet's checksums gain by a change of a flow: one's complement sums over addresses, and over addresses and
/// ports.
pub(super) fn deltas(from: FlowId, to: FlowId) -> (u16, u16) {
    let ((from_addresses, from_ports), (to_addresses, to_ports)) = (from.to_bits(), to.to_bits());
    let halves = |value: u64| (value >> 32) + (value & 0xffff_ffff);
    let addresses = fold(halves(!from_addresses) + halves(to_addresses));
    (addresses, fold(u64::from(addresses) + u64::from(!from_ports) + u64::from(to_ports)))
}

/// A sum of 16 bits that is the same modulo 2^16 - 1.
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum + (sum >> 16)) as u16
}

/// A checksum whose data gained `delta`.
#[inline]
fn gain(checksum: u16, delta: u16) -> u16 {
    // Both zeros of one's complement are no change at all; adding one could turn 0xffff to 0.
    if matches!(delta, 0 | 0xffff) { checksum } else { checksum::adjust16(checksum, 0, delta) }
}

/// Sets addresses and ports of a packet with TCP, UDP or DCCP, as the flow has them.
pub fn apply_ports(packet: &mut [u8], flow: &Flow, reply: bool) {
    let (addresses, transport) = flow.checksum_deltas(reply);
    set_addresses(packet, flow.rewritten(reply), addresses);
    let Some((protocol, segment)) = first_segment(packet) else { return };
    let to = flow.rewritten(reply);
    if let Some(ports) = segment.first_chunk_mut::<4>() {
        let [a, b] = to.source_port.to_be_bytes();
        let [c, d] = to.destination_port.to_be_bytes();
        *ports = [a, b, c, d];
    }
    update_checksum(protocol, segment, transport);
}

/// Sets both addresses of a packet of whatever protocol, as the flow has them.
pub fn apply_addresses(packet: &mut [u8], flow: &Flow, reply: bool) {
    let (addresses, _) = flow.checksum_deltas(reply);
    set_addresses(packet, flow.rewritten(reply), addresses);
    if let Some((protocol, segment)) = first_segment(packet) {
        update_checksum(protocol, segment, addresses);
    }
}

/// Sets the source of a packet of whatever protocol, or a reply's destination, as the flow has them: the other address is
/// no part of the flow.
pub fn apply_source(packet: &mut [u8], flow: &Flow, reply: bool) {
    let (addresses, _) = flow.checksum_deltas(reply);
    let mut to = flow.rewritten(reply);
    let Some(ip) = Ip::new(packet) else { return };
    if reply {
        to.source = ip.source();
    } else {
        to.destination = ip.destination();
    }
    set_addresses(packet, to, addresses);
    if let Some((protocol, segment)) = first_segment(packet) {
        update_checksum(protocol, segment, addresses);
    }
}

/// Sets addresses and identifier of a ping or of an answer, as the flow has them.
pub fn apply_ping(packet: &mut [u8], flow: &Flow, reply: bool) {
    let (addresses, _) = flow.checksum_deltas(reply);
    let to = flow.rewritten(reply);
    set_addresses(packet, to, addresses);
    let Some((ip::PROTOCOL_ICMP, segment)) = first_segment(packet) else { return };
    let Some(header) = segment.first_chunk_mut::<6>() else { return };
    let id = if reply { to.destination_port } else { to.source_port };
    let old = u16::from_be_bytes([header[4], header[5]]);
    let sum = checksum::adjust16(u16::from_be_bytes([header[2], header[3]]), old, id);
    [header[2], header[3]] = sum.to_be_bytes();
    [header[4], header[5]] = id.to_be_bytes();
    icmp::settle_zero(segment);
}

fn set_addresses(packet: &mut [u8], to: FlowId, delta: u16) {
    let Some(mut ip) = IpMut::new(packet) else { return };
    ip.set_source(to.source);
    ip.set_destination(to.destination);
    let sum = gain(ip.get().checksum(), delta);
    ip.set_checksum(sum);
}

/// Protocol and transport header of a packet that is no fragment, or the first one.
fn first_segment(packet: &mut [u8]) -> Option<(u8, &mut [u8])> {
    let ip = Ip::new(packet).filter(|ip| ip.is_first_fragment() && ip.header_len() >= ip::LEN)?;
    let (protocol, begin, end) = (ip.protocol(), ip.header_len(), usize::from(ip.total_len()));
    let end = end.min(packet.len());
    Some((protocol, packet.get_mut(begin..end)?))
}

fn update_checksum(protocol: u8, segment: &mut [u8], delta: u16) {
    let transport = Transport::of(protocol);
    let Some(at) = transport.checksum_at() else { return };
    let Some(field) = segment.get_mut(at..at + 2) else { return };
    let old = u16::from_be_bytes([field[0], field[1]]);
    let new = match (transport, old) {
        (Transport::Udp, 0) => return,
        (Transport::Udp, old) if gain(old, delta) == 0 => 0xffff,
        (_, old) => gain(old, delta),
    };
    field.copy_from_slice(&new.to_be_bytes());
}
