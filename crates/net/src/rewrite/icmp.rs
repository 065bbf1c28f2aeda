//! The beginning of a packet inside an ICMP error, which has to be rewritten as the packet was.

use std::net::Ipv4Addr;

use crate::headers::checksum::{self, Sum};
use crate::headers::{FlowId, Icmp, Ip, IpMut, icmp, ip};

use super::change::Transport;

/// A packet inside an ICMP error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Embedded {
    /// Its protocol.
    pub protocol: u8,
    /// Its flow, reversed: as replies to it come. The identifier of a ping is the source's port.
    pub reply: FlowId,
    /// Where its IP and its transport header are.
    ip_at: usize,
    transport_at: usize,
    /// Whether ports or the identifier are there.
    has_transport: bool,
}

impl Embedded {
    /// The one in a packet, which begins with an IPv4 header whose lengths are true; `None` where the packet is no ICMP
    /// error, or where too little of the other one is there.
    pub fn of(packet: &[u8]) -> Option<Self> {
        let is_first = |ip: &Ip<'_>| ip.is_first_fragment() && ip.header_len() >= ip::LEN;
        let outer = Ip::new(packet).filter(|ip| ip.protocol() == ip::PROTOCOL_ICMP && is_first(ip))?;
        let error = Icmp::new(outer.payload()).filter(|error| icmp::is_error(error.kind()))?;
        let inner = Ip::new(error.payload()).filter(|ip| ip.version() == 4 && ip.header_len() >= ip::LEN)?;
        let ip_at = outer.header_len() + icmp::LEN;
        let transport_at = ip_at + inner.header_len();
        let transport = error.payload().get(inner.header_len()..).filter(|_| inner.is_first_fragment());
        let mut reply = FlowId::addresses(inner).reverse();
        let has_transport = match (Transport::of(inner.protocol()), transport) {
            (Transport::Other, Some(&[icmp::ECHO, _, _, _, a, b, ..])) if inner.protocol() == ip::PROTOCOL_ICMP => {
                reply.source_port = u16::from_be_bytes([a, b]);
                true
            }
            (Transport::Tcp | Transport::Udp | Transport::Dccp, Some(&[a, b, c, d, _, _, _, _, ..])) => {
                reply.source_port = u16::from_be_bytes([c, d]);
                reply.destination_port = u16::from_be_bytes([a, b]);
                true
            }
            _ => false,
        };
        Some(Self { protocol: inner.protocol(), reply, ip_at, transport_at, has_transport })
    }
}

/// Rewrites a packet with an ICMP error whose `embedded` packet belongs to a flow: replies to it become `to`. The outer
/// destination becomes that of `to`, if it was that of the embedded packet's source; the new one is the answer then.
/// Checksums stay right, or wrong.
pub fn rewrite_embedded(packet: &mut [u8], embedded: &Embedded, to: FlowId) -> Option<Ipv4Addr> {
    let mut outer = IpMut::new(packet)?;
    let changed = outer.get().destination() == embedded.reply.destination;
    if changed {
        outer.change_destination(to.destination);
    }
    let icmp_at = embedded.ip_at - icmp::LEN;
    let end = usize::from(outer.get().total_len()).min(packet.len());
    let message = packet.get_mut(icmp_at..end)?;
    let before = Sum::default().with(&message[icmp::LEN..]).folded();
    change_inner(&mut message[icmp::LEN..], embedded, to);
    let after = Sum::default().with(&message[icmp::LEN..]).folded();
    let sum = checksum::adjust16(Icmp::new(message)?.checksum(), before, after);
    icmp::IcmpMut::new(message)?.set_checksum(sum);
    changed.then_some(to.destination)
}

fn change_inner(inner: &mut [u8], embedded: &Embedded, to: FlowId) {
    let Some(mut ip) = IpMut::new(inner) else { return };
    let old = (ip.get().source().to_bits(), ip.get().destination().to_bits());
    ip.change_source(to.destination);
    ip.change_destination(to.source);
    if !embedded.has_transport {
        return;
    }
    let Some(transport) = inner.get_mut(embedded.transport_at - embedded.ip_at..) else { return };
    if embedded.protocol == ip::PROTOCOL_ICMP {
        change_ping(transport, to.destination_port);
        return;
    }
    let addresses = |sum| {
        let sum = checksum::adjust32(sum, old.0, to.destination.to_bits());
        checksum::adjust32(sum, old.1, to.source.to_bits())
    };
    let ports = u32::from(to.destination_port) << 16 | u32::from(to.source_port);
    let Some(field) = transport.first_chunk_mut::<4>() else { return };
    let old_ports = u32::from_be_bytes(std::mem::replace(field, ports.to_be_bytes()));
    let kind = Transport::of(embedded.protocol);
    let at = if kind == Transport::Tcp { 16 } else { 6 };
    if let Some(field) = transport.get_mut(at..at + 2) {
        let sum = u16::from_be_bytes([field[0], field[1]]);
        let new = match (kind, checksum::adjust32(addresses(sum), old_ports, ports)) {
            (Transport::Udp, _) if sum == 0 => 0,
            (Transport::Udp, 0) => 0xffff,
            (_, new) => new,
        };
        field.copy_from_slice(&new.to_be_bytes());
    }
}

fn change_ping(message: &mut [u8], id: u16) {
    let Some(header) = message.first_chunk_mut::<6>() else { return };
    let old = u16::from_be_bytes([header[4], header[5]]);
    let sum = checksum::adjust16(u16::from_be_bytes([header[2], header[3]]), old, id);
    [header[2], header[3]] = sum.to_be_bytes();
    [header[4], header[5]] = id.to_be_bytes();
    icmp::settle_zero(message);
}
