//! What rewriters do with packets: find their flows, make them, and rewrite.

use std::net::Ipv4Addr;

use crate::args::AnnoArg;
use crate::headers::{FlowId, Icmp, Ip, icmp, ip};
use crate::rewrite::{self, Entry, Flow, FlowSet, MapId, NewFlow};
use crate::router::Cx;
use crate::{Packet, Timestamp};

use super::mapper::RoundRobinIpMapper;
use super::spec::{Spec, Way};

/// Which rewriter it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Kind {
    /// IPRewriter.
    #[default]
    Ip,
    /// TCPRewriter.
    Tcp,
    /// UDPRewriter.
    Udp,
    /// IPAddrRewriter.
    Address,
    /// IPAddrPairRewriter.
    Pair,
    /// ICMPPingRewriter.
    Ping,
}

/// The classes of rewriters.
pub(super) const CLASS_NAMES: [&str; 6] =
    ["IPRewriter", "TCPRewriter", "UDPRewriter", "IPAddrRewriter", "IPAddrPairRewriter", "ICMPPingRewriter"];

/// Milliseconds that flows are kept for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    pub(super) guarantee: u64,
    pub(super) timeout: u64,
    /// Of TCP: data went both ways. Of UDP: three packets and a reply.
    pub(super) data: u64,
    /// Of TCP: both sides ended.
    pub(super) done: u64,
}

impl Times {
    /// How long a flow is kept.
    fn timeout(&self, flow: &Flow, is_tcp: bool) -> u64 {
        match is_tcp {
            true if flow.is_done() => self.done,
            true if flow.has_data() => self.data,
            false if flow.is_streaming() => self.data,
            _ => self.timeout,
        }
    }
}

/// What a packet's flow is found by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    pub(super) flow: FlowId,
    /// Where a reply is found, if it is found otherwise.
    reply: Option<FlowId>,
    pub(super) protocol: u8,
    /// Whether it may make a flow.
    pub(super) is_new: bool,
}

impl Key {
    fn new(flow: FlowId, protocol: u8) -> Self {
        Self { flow, reply: None, protocol, is_new: true }
    }

    /// By the source, or by the destination of a reply.
    fn of_source(source: Ipv4Addr, destination: Ipv4Addr) -> Self {
        let nowhere = Ipv4Addr::UNSPECIFIED;
        let reply = FlowId::new(nowhere, 0, destination, 0);
        Self { reply: Some(reply), ..Self::new(FlowId::new(source, 0, nowhere, 0), 0) }
    }

    /// By the identifier: the other port is the next number, and tells replies from requests.
    fn of_ping(flow: FlowId, id: u16, is_reply: bool) -> Self {
        let other = id.wrapping_add(1);
        let (source_port, destination_port) = if is_reply { (other, id) } else { (id, other) };
        Self::new(FlowId { source_port, destination_port, ..flow }, ip::PROTOCOL_ICMP)
    }
}

/// A rewriter without its inputs and its flows.
#[derive(Debug, Default)]
pub(super) struct Core {
    pub(super) kind: Kind,
    /// Its tables: for all, or for TCP and UDP.
    pub(super) maps: [MapId; 2],
    /// Of flows of TCP, and of others.
    pub(super) tcp: Times,
    pub(super) other: Times,
    pub(super) sets_destination: bool,
    pub(super) reply_anno: Option<AnnoArg<1>>,
}

/// The time in milliseconds.
pub(super) fn millis(now: Timestamp) -> u64 {
    (now.nanos() / 1_000_000).max(0) as u64
}

impl Core {
    /// The table of flows of a protocol.
    pub(super) fn map(&self, protocol: u8) -> MapId {
        self.maps[usize::from(self.kind == Kind::Ip && protocol == ip::PROTOCOL_UDP)]
    }

    /// What a packet's flow is found by; nothing where such packets have none.
    pub(super) fn key(&self, packet: &Packet) -> Option<Key> {
        let bytes = packet.network_header()?;
        let ip = Ip::new(bytes).filter(|ip| ip.header_len() >= ip::LEN && ip.header_len() <= bytes.len())?;
        match self.kind {
            Kind::Address => Some(Key::of_source(ip.source(), ip.destination())),
            Kind::Pair => Some(Key::new(FlowId::addresses(ip), 0)),
            Kind::Ping if ip.protocol() == ip::PROTOCOL_ICMP && ip.is_first_fragment() => {
                let icmp =
                    Icmp::new(ip.payload()).filter(|icmp| matches!(icmp.kind(), icmp::ECHO | icmp::ECHO_REPLY))?;
                let is_reply = icmp.kind() == icmp::ECHO_REPLY;
                Some(Key { is_new: !is_reply, ..Key::of_ping(FlowId::addresses(ip), icmp.id(), is_reply) })
            }
            _ if self.kind.has_ports(ip.protocol()) && ip.payload().len() >= 8 => {
                Some(Key::new(FlowId::of(ip)?, ip.protocol()))
            }
            _ => None,
        }
    }

    /// The same of a flow without a packet. The identifier of pings is the source's port.
    pub(super) fn key_of(&self, protocol: u8, flow: FlowId, is_reply: bool) -> Option<Key> {
        match self.kind {
            Kind::Address => Some(Key::of_source(flow.source, flow.destination)),
            Kind::Pair => Some(Key::new(FlowId { source_port: 0, destination_port: 0, ..flow }, 0)),
            Kind::Ping if protocol == ip::PROTOCOL_ICMP => Some(Key::of_ping(flow, flow.source_port, is_reply)),
            _ => self.kind.has_ports(protocol).then_some(Key::new(flow, protocol)),
        }
    }

    /// The flow of a key.
    pub(super) fn find(&self, set: &FlowSet, key: Key) -> Option<Entry> {
        let map = self.map(key.protocol);
        set.find(map, key.flow).or_else(|| set.find(map, key.reply?))
    }

    /// Makes a flow for a packet that came to an input, if the input's way is to make one; its output otherwise.
    pub(super) fn make(
        &self,
        set: &mut FlowSet,
        cx: &mut Cx<'_>,
        spec: &Spec,
        key: Key,
        now_ms: u64,
    ) -> Result<Entry, Option<usize>> {
        let (map, ping) = (self.map(key.protocol), self.kind == Kind::Ping);
        let made = match &spec.way {
            Way::Drop => return Err(None),
            Way::Pass(output) => return Err(Some(*output)),
            Way::Keep => Some((key.flow, None, spec.outputs)),
            Way::Pattern(which) => {
                let mut random = |top: u32| cx.rng().u32(..=top);
                let made = which.get().and_then(|pattern| pattern.rewrite(key.flow, ping, set, map, &mut random));
                made.map(|(rewritten, variable)| (rewritten, variable, spec.outputs))
            }
            Way::Mapper(element) => {
                let ask = |mapper: &mut RoundRobinIpMapper, cx: &mut Cx<'_>| {
                    mapper.map(key.flow, ping, set, map, &mut |top| cx.rng().u32(..=top))
                };
                cx.with(*element, ask).flatten()
            }
        };
        let Some((rewritten, variable, outputs)) = made else {
            set.count_failure(spec.owner);
            return Err(None);
        };
        if !self.kind.takes(rewritten) {
            return Err(None);
        }
        let times = self.times(key.protocol);
        let new =
            NewFlow { map, owner: spec.owner, flow: key.flow, rewritten, outputs, protocol: key.protocol, variable };
        set.insert(&new, now_ms, times.guarantee, times.timeout).ok_or(None)
    }

    /// What becomes of a packet, given what its flow is found by and the flow that was found: where it goes, if anywhere.
    pub(super) fn pass(
        &self,
        set: &mut FlowSet,
        cx: &mut Cx<'_>,
        spec: &Spec,
        packet: &mut Packet,
        (key, known): (Option<Key>, Option<Entry>),
    ) -> Option<usize> {
        let now_ms = millis(cx.now());
        let entry = match (known, key) {
            (Some(entry), _) => Ok(entry),
            (None, Some(key @ Key { is_new: true, .. })) => {
                let made = self.make(set, cx, spec, key, now_ms);
                if let (Ok(entry), Some(AnnoArg(at))) = (made, self.reply_anno) {
                    set.flow_mut(entry).reply_anno = packet.anno_u8(at);
                }
                made
            }
            // What has no flow passes where new ones do.
            _ => match spec.way {
                Way::Pass(output) => Err(Some(output)),
                _ => Err(None),
            },
        };
        match entry {
            Ok(entry) => Some(self.rewrite(set, packet, entry, now_ms)),
            Err(output) => output,
        }
    }

    /// Rewrites a packet of a flow; where it goes.
    pub(super) fn rewrite(&self, set: &mut FlowSet, packet: &mut Packet, entry: Entry, now_ms: u64) -> usize {
        let (flow, reply) = (set.flow_mut(entry), entry.reply);
        if let Some(bytes) = packet.network_header_mut() {
            self.kind.apply(bytes, flow, reply);
        }
        if self.sets_destination && (reply || self.kind != Kind::Address) {
            packet.set_dst_ip(flow.rewritten(reply).destination);
        }
        if let Some(AnnoArg(at)) = self.reply_anno.filter(|_| reply) {
            packet.set_anno_u8(at, flow.reply_anno);
        }
        let times = self.times(flow.protocol);
        let timeout = times.timeout(flow, self.kind.counts_tcp(flow.protocol));
        let output = flow.output(reply);
        set.touch(entry, now_ms, times.guarantee, timeout);
        output
    }

    fn times(&self, protocol: u8) -> &Times {
        if self.kind.counts_tcp(protocol) { &self.tcp } else { &self.other }
    }
}

impl Kind {
    /// Whether its flows have the ports of packets of a protocol.
    fn has_ports(self, protocol: u8) -> bool {
        match protocol {
            ip::PROTOCOL_TCP => matches!(self, Self::Ip | Self::Tcp | Self::Udp),
            ip::PROTOCOL_UDP => matches!(self, Self::Ip | Self::Udp),
            ip::PROTOCOL_DCCP => self == Self::Udp,
            _ => false,
        }
    }

    /// Whether its packets can become this: a field that it doesn't change stays as it is.
    fn takes(self, rewritten: FlowId) -> bool {
        let (ports, zero) = ((rewritten.source_port, rewritten.destination_port), (0, 0));
        match self {
            Self::Address => ports == zero && rewritten.destination.is_unspecified(),
            Self::Pair => ports == zero,
            Self::Ping => ports.0.wrapping_add(1) == ports.1,
            Self::Ip | Self::Tcp | Self::Udp => true,
        }
    }

    /// Whether flows of a protocol have the states of TCP connections.
    fn counts_tcp(self, protocol: u8) -> bool {
        matches!(self, Self::Ip | Self::Tcp) && protocol == ip::PROTOCOL_TCP
    }

    /// Rewrites a packet.
    fn apply(self, bytes: &mut [u8], flow: &mut Flow, reply: bool) {
        match self {
            Self::Address => rewrite::apply_source(bytes, flow, reply),
            Self::Pair => rewrite::apply_addresses(bytes, flow, reply),
            Self::Ping => rewrite::apply_ping(bytes, flow, reply),
            Self::Ip | Self::Tcp | Self::Udp => rewrite::apply_ports(bytes, flow, reply),
        }
        match self {
            _ if self.counts_tcp(flow.protocol) => {
                flow.track_tcp(bytes, reply);
                rewrite::apply_sequence(bytes, flow, reply);
            }
            Self::Ip | Self::Udp => flow.track_packets(reply),
            _ => {}
        }
    }
}
