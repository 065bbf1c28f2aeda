//! IPRewriter, TCPRewriter, UDPRewriter, IPAddrRewriter, IPAddrPairRewriter, ICMPPingRewriter: network address translation.
//!
//! `IPRewriter(INPUTSPEC1, ..., INPUTSPECn [, KEYWORDS])`, and likewise the others: one or more push inputs, each with a
//! specification, and one or more push outputs. Packets have their IP headers marked. A packet of a known flow is rewritten
//! and leaves by the flow's output; for a new flow, the specification of the packet's input says what becomes of it:
//!
//! ```text
//!   drop, discard                    it is dropped
//!   pass [OUTPUT]                    it leaves as it is, and makes no flow; also passthrough, nochange
//!   keep FOUTPUT ROUTPUT             it makes a flow that changes nothing
//!   pattern PATTERN FOUTPUT ROUTPUT  it makes a flow by a pattern, or by the name of one (IPRewriterPatterns)
//!   ELEMENT                          a RoundRobinIPMapper makes the flow
//! ```
//!
//! FOUTPUT is where its packets leave, ROUTPUT where replies do, once they are rewritten back. What a flow is known by:
//!
//! ```text
//!   IPRewriter          addresses, ports and protocol: TCP and UDP
//!   TCPRewriter         addresses and ports: TCP; sequence numbers move where FTPPortMapper wants that
//!   UDPRewriter         addresses and ports: UDP, TCP, DCCP
//!   IPAddrRewriter      source address, or destination address of replies: all packets
//!   IPAddrPairRewriter  both addresses: all packets
//!   ICMPPingRewriter    addresses and identifier of echo requests and of their replies; a pattern's port is the identifier
//! ```
//!
//! Other packets, and for the first three and the last one fragments but the first, pass where the input says `pass`, and are
//! dropped otherwise. IP, TCP, UDP, DCCP and ICMP checksums are adjusted, so that wrong ones stay wrong.
//!
//! Keywords (times in seconds, or with a unit):
//!
//! - `MAPPING_CAPACITY` (or `CAPACITY`): how many flows there may be, or another rewriter whose flows and capacity are
//!   shared; 2,147,483,647.
//! - `GUARANTEE`: for so long after each packet a flow does not end for a new one; 5. A new flow in a full table ends the one
//!   that would end first and is not guaranteed; there being none, its packet is dropped, and that counts as a failure.
//! - `TIMEOUT`: for so long it is kept otherwise. IPAddrRewriter and IPAddrPairRewriter 7,200; ICMPPingRewriter and
//!   UDPRewriter 300; for TCP the same as `TCP_TIMEOUT`.
//! - TCP: `TCP_TIMEOUT` (86,400), where data went both ways; `TCP_NODATA_TIMEOUT` (300), where it did not;
//!   `TCP_DONE_TIMEOUT` (240), where both sides ended; `TCP_GUARANTEE` (5).
//! - UDP: `UDP_TIMEOUT` (300); `UDP_STREAMING_TIMEOUT` (the same), after three packets with a reply among them;
//!   `UDP_GUARANTEE` (5). UDPRewriter also takes `STREAMING_TIMEOUT`.
//! - `REAP_INTERVAL` (or `REAP_TIME`): how often flows that have ended are looked for; 900, 0 for never.
//! - `DST_ANNO`: whether the destination annotation becomes the new destination; true. Not for IPAddrRewriter and
//!   IPAddrPairRewriter, which set it, the first one for replies only.
//! - `REPLY_ANNO`: a byte of annotations which replies get as the flow's first packet had it.
//!
//! Handlers: `table` (IPRewriter: `tcp_table`, `udp_table`), `lookup SADDR SPORT DADDR DPORT` (TCPRewriter; IPRewriter:
//! `tcp_lookup`), `table_size`, `mapping_failures`, `patterns`, `patternN` (r/w; written, it ends the input's flows), `size`,
//! `capacity` (r/w), `clear`. `mappings`, `tcp_mappings`, `udp_mappings` and `nmappings` are old names.
//!
//! Unlike Click: ranges are searched in logarithmic time; the identifiers of pings to one host differ; a table lists replies of
//! IPAddrRewriter by their destination, and those of pings by their identifier; DCCP's checksum is adjusted, and a UDP
//! checksum never becomes 0, which means none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::args::{AnnoArg, Args, Failed, Interval, Raw};
use crate::element::Element;
use crate::handler::Handlers;
use crate::headers::{FlowId, Icmp, Ip, icmp, ip};
use crate::rewrite::{self, Entry, Flow, FlowSet, MapId, NewFlow};
use crate::router::Cx;
use crate::{Packet, Timestamp};

use super::mapper::RoundRobinIpMapper;
use super::spec::{Spec, Way};

/// Which rewriter it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// IPRewriter.
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
struct Times {
    guarantee: u64,
    timeout: u64,
    /// Of TCP: data went both ways, or both sides ended. Of UDP: three packets and a reply.
    data: u64,
    done: u64,
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

/// The element.
pub(super) struct Rewriter {
    kind: Kind,
    specs: Vec<Spec>,
    flows: Arc<Mutex<FlowSet>>,
    /// Whose flows these are, too.
    shares: Option<usize>,
    /// Its tables: for all, or for TCP and UDP.
    maps: [MapId; 2],
    /// Of flows of TCP, and of others.
    tcp: Times,
    other: Times,
    reap: Timestamp,
    sets_destination: bool,
    reply_anno: Option<AnnoArg<1>>,
}

/// What a packet's flow is found by.
#[derive(Debug, Clone, Copy)]
struct Key {
    flow: FlowId,
    /// Where a reply is found, if it is found otherwise.
    reply: Option<FlowId>,
    protocol: u8,
    /// Whether it may make a flow.
    is_new: bool,
}

/// A mapping, as elements want it that know a flow without a packet of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mapping {
    /// What the flow becomes.
    pub(super) rewritten: FlowId,
    /// Where it goes.
    pub(super) output: usize,
    /// The flow, and its direction.
    pub(super) entry: Entry,
    /// The annotation of replies.
    pub(super) reply_anno: u8,
}

fn lock(flows: &Mutex<FlowSet>) -> MutexGuard<'_, FlowSet> {
    flows.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time in milliseconds.
pub(super) fn millis(now: Timestamp) -> u64 {
    (now.nanos() / 1_000_000).max(0) as u64
}

impl Default for Rewriter {
    fn default() -> Self {
        Self::new(Kind::Ip)
    }
}

impl Rewriter {
    /// One of a kind.
    pub(super) fn boxed(kind: Kind) -> Box<dyn Element> {
        Box::new(Self::new(kind))
    }

    fn new(kind: Kind) -> Self {
        Self {
            kind,
            specs: Vec::new(),
            flows: Arc::default(),
            shares: None,
            maps: [MapId::default(); 2],
            tcp: Times::default(),
            other: Times::default(),
            reap: Timestamp::ZERO,
            sets_destination: true,
            reply_anno: None,
        }
    }

    /// Which one it is.
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// The flows.
    pub(super) fn flows(&self) -> MutexGuard<'_, FlowSet> {
        lock(&self.flows)
    }

    /// What its inputs do.
    pub(super) fn specs(&self) -> &[Spec] {
        &self.specs
    }

    /// Changes what an input does; its flows end.
    pub(super) fn set_spec(&mut self, input: usize, mut spec: Spec) {
        let owner = self.specs[input].owner;
        self.flows().remove_owned(owner);
        spec.owner = owner;
        self.specs[input] = spec;
    }

    /// The table of flows of a protocol.
    pub(super) fn map(&self, protocol: u8) -> MapId {
        self.maps[usize::from(self.kind == Kind::Ip && protocol == ip::PROTOCOL_UDP)]
    }

    fn key(&self, packet: &Packet) -> Option<Key> {
        let bytes = packet.network_header()?;
        let ip = Ip::new(bytes).filter(|ip| ip.header_len() >= ip::LEN && ip.header_len() <= bytes.len())?;
        let protocol = ip.protocol();
        let nowhere = std::net::Ipv4Addr::UNSPECIFIED;
        let known = |flow, reply| Key { flow, reply, protocol: 0, is_new: true };
        let has_ports = match (self.kind, protocol) {
            (Kind::Address, _) => {
                let reply = FlowId::new(nowhere, 0, ip.destination(), 0);
                return Some(known(FlowId::new(ip.source(), 0, nowhere, 0), Some(reply)));
            }
            (Kind::Pair, _) => return Some(known(FlowId::addresses(ip), None)),
            (Kind::Ping, ip::PROTOCOL_ICMP) => return ping_key(ip),
            (Kind::Ip | Kind::Tcp | Kind::Udp, ip::PROTOCOL_TCP)
            | (Kind::Ip | Kind::Udp, ip::PROTOCOL_UDP)
            | (Kind::Udp, ip::PROTOCOL_DCCP) => ip.payload().len() >= 8,
            _ => false,
        };
        let flow = FlowId::of(ip).filter(|_| has_ports)?;
        Some(Key { protocol, ..known(flow, None) })
    }

    /// Makes a flow for a packet that came to an input, if the input's way is to make one; its output otherwise.
    fn make(&mut self, cx: &mut Cx<'_>, input: usize, key: Key, now_ms: u64) -> Result<Entry, Option<usize>> {
        let map = self.map(key.protocol);
        let Self { flows, specs, kind, tcp, other, .. } = self;
        let spec = &specs[input];
        let (ping, mut set) = (*kind == Kind::Ping, lock(flows));
        let made = match &spec.way {
            Way::Drop => return Err(None),
            Way::Pass(output) => return Err(Some(*output)),
            Way::Keep => Some((key.flow, None, spec.outputs)),
            Way::Pattern(which) => {
                let mut random = |top: u32| cx.rng().u32(..=top);
                let made = which.get().and_then(|pattern| pattern.rewrite(key.flow, ping, &mut set, map, &mut random));
                made.map(|(rewritten, variable)| (rewritten, variable, spec.outputs))
            }
            Way::Mapper(element) => {
                let ask = |mapper: &mut RoundRobinIpMapper, cx: &mut Cx<'_>| {
                    mapper.map(key.flow, ping, &mut set, map, &mut |top| cx.rng().u32(..=top))
                };
                cx.with(*element, ask).flatten()
            }
        };
        let Some((rewritten, variable, outputs)) = made else {
            set.count_failure(spec.owner);
            return Err(None);
        };
        if !kind.takes(rewritten) {
            return Err(None);
        }
        let is_tcp = kind.counts_tcp(key.protocol);
        let times = if is_tcp { tcp } else { other };
        let new =
            NewFlow { map, owner: spec.owner, flow: key.flow, rewritten, outputs, protocol: key.protocol, variable };
        set.insert(&new, now_ms, times.guarantee, times.timeout).ok_or(None)
    }

    /// Rewrites a packet of a flow; where it goes.
    fn rewrite(&mut self, packet: &mut Packet, entry: Entry, now_ms: u64) -> usize {
        let Self { flows, kind, tcp, other, .. } = self;
        let (mut set, reply) = (lock(flows), entry.reply);
        let flow = set.flow_mut(entry);
        let destination = flow.rewritten(reply).destination;
        let is_tcp = kind.counts_tcp(flow.protocol);
        if let Some(bytes) = packet.network_header_mut() {
            kind.apply(bytes, flow, reply);
        }
        let times = if is_tcp { tcp } else { other };
        let timeout = times.timeout(flow, is_tcp);
        let (output, reply_anno) = (flow.output(reply), flow.reply_anno);
        set.touch(entry, now_ms, times.guarantee, timeout);
        drop(set);
        if self.sets_destination && (reply || *kind != Kind::Address) {
            packet.set_dst_ip(destination);
        }
        if let Some(AnnoArg(at)) = self.reply_anno.filter(|_| reply) {
            packet.set_anno_u8(at, reply_anno);
        }
        output
    }

    /// The mapping of a flow without a packet; one that an input makes, if it is said, where there is none.
    pub(super) fn mapping(
        &mut self,
        cx: &mut Cx<'_>,
        protocol: u8,
        flow: FlowId,
        input: Option<usize>,
    ) -> Option<Mapping> {
        let nowhere = std::net::Ipv4Addr::UNSPECIFIED;
        let key = match (self.kind, protocol) {
            (Kind::Address, _) => {
                let reply = FlowId::new(nowhere, 0, flow.destination, 0);
                Key { flow: FlowId::new(flow.source, 0, nowhere, 0), reply: Some(reply), protocol: 0, is_new: true }
            }
            (Kind::Pair, _) => {
                let flow = FlowId { source_port: 0, destination_port: 0, ..flow };
                Key { flow, reply: None, protocol: 0, is_new: true }
            }
            (Kind::Ping, ip::PROTOCOL_ICMP) => {
                let id = flow.source_port;
                let other = id.wrapping_add(1);
                let (source_port, destination_port) = if input.is_some() { (id, other) } else { (other, id) };
                Key { flow: FlowId { source_port, destination_port, ..flow }, reply: None, protocol, is_new: true }
            }
            (Kind::Ip | Kind::Tcp | Kind::Udp, ip::PROTOCOL_TCP)
            | (Kind::Ip | Kind::Udp, ip::PROTOCOL_UDP)
            | (Kind::Udp, ip::PROTOCOL_DCCP) => Key { flow, reply: None, protocol, is_new: true },
            _ => return None,
        };
        let map = self.map(protocol);
        let found = self.find(map, key).filter(|&entry| {
            let known = self.flows().flow(entry).protocol;
            known == 0 || known == protocol
        });
        let entry = match (found, input) {
            (Some(entry), _) => entry,
            (None, None) => return None,
            (None, Some(input)) => self.make(cx, input, key, millis(cx.now())).ok()?,
        };
        let set = self.flows();
        let flow = set.flow(entry);
        let rewritten = flow.rewritten(entry.reply);
        Some(Mapping { rewritten, output: flow.output(entry.reply), entry, reply_anno: flow.reply_anno })
    }

    fn find(&self, map: MapId, key: Key) -> Option<Entry> {
        let set = self.flows();
        set.find(map, key.flow).or_else(|| set.find(map, key.reply?))
    }

    fn read_times(&mut self, args: &mut Args<'_>) {
        let seconds = |seconds: i64| Interval(Timestamp::new(seconds, 0));
        let (is_tcp, is_udp) = (matches!(self.kind, Kind::Ip | Kind::Tcp), matches!(self.kind, Kind::Ip | Kind::Udp));
        let is_long = matches!(self.kind, Kind::Address | Kind::Pair);
        let (mut data, mut no_data, mut done) = (seconds(86_400), seconds(300), seconds(240));
        let (mut timeout, mut guarantee) = (seconds(if is_long { 7200 } else { 300 }), seconds(5));
        let (mut streaming, mut udp_guarantee, mut reap) = (None, seconds(5), seconds(900));
        args.key("REAP_INTERVAL", &mut reap).key("REAP_TIME", &mut reap).key("GUARANTEE", &mut guarantee);
        if is_tcp {
            args.key("TCP_NODATA_TIMEOUT", &mut no_data).key("TCP_GUARANTEE", &mut guarantee);
            args.key("TIMEOUT", &mut data).key("TCP_TIMEOUT", &mut data).key("TCP_DONE_TIMEOUT", &mut done);
        } else {
            args.key("TIMEOUT", &mut timeout);
        }
        if is_udp {
            args.key("UDP_TIMEOUT", &mut timeout).key("UDP_STREAMING_TIMEOUT", &mut streaming);
            args.key("UDP_GUARANTEE", if is_tcp { &mut udp_guarantee } else { &mut guarantee });
        }
        if self.kind == Kind::Udp {
            args.key("STREAMING_TIMEOUT", &mut streaming);
        }
        let ms = |interval: Interval| millis(interval.0);
        self.tcp = Times { guarantee: ms(guarantee), timeout: ms(no_data), data: ms(data), done: ms(done) };
        let guarantee = if self.kind == Kind::Ip { udp_guarantee } else { guarantee };
        let data = ms(streaming.unwrap_or(timeout));
        self.other = Times { guarantee: ms(guarantee), timeout: ms(timeout), data, done: 0 };
        self.reap = reap.0;
    }

    fn read_capacity(&mut self, args: &mut Args<'_>) {
        let (mut old, mut word) = (None::<Raw>, None::<Raw>);
        args.key("CAPACITY", &mut old).key("MAPPING_CAPACITY", &mut word);
        let Some(Raw(text)) = word.or(old) else { return };
        let rewriter = |element: &usize| CLASS_NAMES.contains(&args.cx().elements.class(*element));
        if let Some(capacity) = text.parse::<i32>().ok().filter(|&capacity| capacity >= 0) {
            self.flows().set_capacity(capacity as usize);
        } else if let Some(element) = args.cx().find(&text).filter(rewriter) {
            self.shares = Some(element);
        } else {
            args.error("bad MAPPING_CAPACITY");
        }
    }

    /// Takes the flows of the rewriter that it shares with, or that this one shares with, and so on.
    fn share(&mut self, cx: &mut Cx<'_>) {
        let mut shares = self.shares;
        for _ in 0..cx.router().len() {
            let Some(element) = shares else { break };
            let Some((flows, next)) = cx.with(element, |other: &mut Self, _| (Arc::clone(&other.flows), other.shares))
            else {
                break;
            };
            (self.flows, shares) = (flows, next);
        }
    }

    /// An input may ask a mapper with outputs that there aren't.
    pub(super) fn check_mapper(&self, cx: &mut Cx<'_>, input: usize) -> Result<(), String> {
        let Way::Mapper(element) = self.specs[input].way else { return Ok(()) };
        let outputs = cx.outputs();
        let wrong = cx.with(element, |mapper: &mut RoundRobinIpMapper, _| mapper.out_of_range(outputs)).flatten();
        let Some(pattern) = wrong else { return Ok(()) };
        let name = cx.router().declaration(element);
        Err(format!("input spec {input}: output port out of range in {name} pattern {pattern}"))
    }
}

impl Kind {
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

/// Requests and replies have one identifier: the other port is the next number, and tells one from the other.
fn ping_key(ip: Ip<'_>) -> Option<Key> {
    let icmp = Icmp::new(ip.payload()).filter(|_| ip.is_first_fragment())?;
    let (id, other) = (icmp.id(), icmp.id().wrapping_add(1));
    let (ports, is_new) = match icmp.kind() {
        icmp::ECHO => ((id, other), true),
        icmp::ECHO_REPLY => ((other, id), false),
        _ => return None,
    };
    let flow = FlowId::new(ip.source(), ports.0, ip.destination(), ports.1);
    Some(Key { flow, reply: None, protocol: ip::PROTOCOL_ICMP, is_new })
}

impl Element for Rewriter {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        self.read_times(args);
        self.read_capacity(args);
        args.key("REPLY_ANNO", &mut self.reply_anno);
        if !matches!(self.kind, Kind::Address | Kind::Pair) {
            args.key("DST_ANNO", &mut self.sets_destination);
        }
        args.result()?;
        let cx = args.cx();
        let (inputs, outputs) = cx.elements.number(cx.element).map_or((1, 1), |number| cx.elements.ports(number));
        let specs = args.rest();
        if specs.len() != inputs {
            return Err(args.error(format_args!("need {inputs} arguments, one per input port")));
        }
        for (input, text) in specs.iter().enumerate() {
            match Spec::parse(text, outputs, args.cx()) {
                Ok(spec) => self.specs.push(spec),
                Err(error) => _ = args.error(format_args!("input spec {input}: {error}")),
            }
        }
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        self.share(cx);
        for input in 0..self.specs.len() {
            self.specs[input].resolve(cx);
            self.check_mapper(cx, input)?;
        }
        let mut set = lock(&self.flows);
        self.maps = [set.add_map(), set.add_map()];
        for spec in &mut self.specs {
            spec.owner = set.add_owner();
        }
        drop(set);
        if !self.reap.is_zero() {
            cx.timer_after(0, self.reap);
        }
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, port: usize, mut packet: Packet) {
        let (key, now_ms) = (self.key(&packet), millis(cx.now()));
        let known = key.and_then(|key| self.find(self.map(key.protocol), key));
        let entry = match (known, key) {
            (Some(entry), _) => Ok(entry),
            (None, Some(key)) if key.is_new => {
                let made = self.make(cx, port, key, now_ms);
                if let (Ok(entry), Some(AnnoArg(at))) = (made, self.reply_anno) {
                    self.flows().flow_mut(entry).reply_anno = packet.anno_u8(at);
                }
                made
            }
            // What has no flow passes where new ones do.
            _ => match self.specs[port].way {
                Way::Pass(output) => Err(Some(output)),
                _ => Err(None),
            },
        };
        match entry {
            Ok(entry) => {
                let output = self.rewrite(&mut packet, entry, now_ms);
                cx.emit(output, packet);
            }
            Err(Some(output)) => cx.emit(output, packet),
            Err(None) => {}
        }
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        self.flows().shrink(millis(cx.now()), false);
        cx.timer_after(0, self.reap);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        super::text::handlers(self, handlers);
    }
}
