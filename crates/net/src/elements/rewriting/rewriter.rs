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
//! In the place of another router, a rewriter takes the flows of one of its name and class, as far as it has inputs that make
//! such flows: the same word or pattern, and the same outputs. Others end. A range goes on where the same input stopped.
//!
//! Unlike Click: ranges are searched in logarithmic time; the identifiers of pings to one host differ; a table lists replies of
//! IPAddrRewriter by their destination, and those of pings by their identifier; DCCP's checksum is adjusted, and a UDP
//! checksum never becomes 0, which means none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::args::{Args, Failed, Interval, Raw};
use crate::element::{Batch, Element, downcast};
use crate::handler::Handlers;
use crate::headers::FlowId;
use crate::rewrite::{Entry, FlowSet, MapId};
use crate::router::Cx;
use crate::{Log, Packet, Timestamp};

use super::core::{CLASS_NAMES, Core, Key, Kind, Times, millis};
use super::mapper::RoundRobinIpMapper;
use super::spec::{Spec, Way};

/// The element.
#[derive(Default)]
pub(super) struct Rewriter {
    core: Core,
    specs: Vec<Spec>,
    /// What each input makes of flows, in words, since it was initialised or changed.
    told: Vec<String>,
    flows: Arc<Mutex<FlowSet>>,
    /// Whose flows these are, too.
    shares: Option<usize>,
    /// Elements that have patterns for rewriters, and what is next in them.
    patterns: Vec<usize>,
    reap: Timestamp,
    /// Of a batch: what its flows are found by, and those that were found.
    found: Vec<(Option<Key>, Option<Entry>)>,
    /// Its packets by their outputs.
    sorted: Vec<Batch>,
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

/// Elements whose patterns several rewriters may use.
const PATTERN_CLASSES: [&str; 2] = ["RoundRobinIPMapper", "IPRewriterPatterns"];

fn lock(flows: &Mutex<FlowSet>) -> MutexGuard<'_, FlowSet> {
    flows.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rewriter {
    /// One of a kind.
    pub(super) fn boxed(kind: Kind) -> Box<dyn Element> {
        let core = Core { kind, sets_destination: true, ..Core::default() };
        Box::new(Self { core, ..Self::default() })
    }

    /// Which one it is.
    pub(super) fn kind(&self) -> Kind {
        self.core.kind
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
    pub(super) fn set_spec(&mut self, cx: &mut Cx<'_>, input: usize, mut spec: Spec) {
        self.told[input] = spec.told(cx);
        let owner = self.specs[input].owner;
        self.flows().remove_owned(owner);
        spec.owner = owner;
        self.specs[input] = spec;
    }

    /// The table of flows of a protocol.
    pub(super) fn map(&self, protocol: u8) -> MapId {
        self.core.map(protocol)
    }

    /// The mapping of a flow without a packet, as a reply; or one that an input makes, if it is said, where there is none.
    pub(super) fn mapping(
        &mut self,
        cx: &mut Cx<'_>,
        protocol: u8,
        flow: FlowId,
        input: Option<usize>,
    ) -> Option<Mapping> {
        let Self { core, specs, flows, .. } = self;
        let key = core.key_of(protocol, flow, input.is_none())?;
        let mut set = lock(flows);
        let is_of =
            |set: &FlowSet, entry: Entry| matches!(set.flow(entry).protocol, known if known == 0 || known == protocol);
        let entry = match (core.find(&set, key).filter(|&entry| is_of(&set, entry)), input) {
            (Some(entry), _) => entry,
            (None, None) => return None,
            (None, Some(input)) => core.make(&mut set, cx, specs.get(input)?, key, millis(cx.now())).ok()?,
        };
        let flow = set.flow(entry);
        let (rewritten, output) = (flow.rewritten(entry.reply), flow.output(entry.reply));
        Some(Mapping { rewritten, output, entry, reply_anno: flow.reply_anno })
    }

    fn read_times(&mut self, args: &mut Args<'_>) {
        let seconds = |seconds: i64| Interval(Timestamp::new(seconds, 0));
        let (is_tcp, is_udp) =
            (matches!(self.core.kind, Kind::Ip | Kind::Tcp), matches!(self.core.kind, Kind::Ip | Kind::Udp));
        let is_long = matches!(self.core.kind, Kind::Address | Kind::Pair);
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
        if self.core.kind == Kind::Udp {
            args.key("STREAMING_TIMEOUT", &mut streaming);
        }
        let ms = |interval: Interval| millis(interval.0);
        self.core.tcp = Times { guarantee: ms(guarantee), timeout: ms(no_data), data: ms(data), done: ms(done) };
        let guarantee = if self.core.kind == Kind::Ip { udp_guarantee } else { guarantee };
        let data = ms(streaming.unwrap_or(timeout));
        self.core.other = Times { guarantee: ms(guarantee), timeout: ms(timeout), data, done: 0 };
        // A shorter interval would keep simulated time from going on.
        self.reap = if reap.0.is_zero() { reap.0 } else { reap.0.max(Timestamp::from_nanos(1_000_000)) };
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

impl Element for Rewriter {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        self.read_times(args);
        self.read_capacity(args);
        args.key("REPLY_ANNO", &mut self.core.reply_anno);
        if !matches!(self.core.kind, Kind::Address | Kind::Pair) {
            args.key("DST_ANNO", &mut self.core.sets_destination);
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
        let router = cx.router();
        self.patterns = (0..router.len()).filter(|&e| PATTERN_CLASSES.contains(&router.class_of(e).name)).collect();
        for input in 0..self.specs.len() {
            self.specs[input].resolve(cx);
            self.check_mapper(cx, input)?;
        }
        self.told = self.specs.iter().map(|spec| spec.told(cx)).collect();
        let mut set = lock(&self.flows);
        self.core.maps = [set.add_map(), set.add_map()];
        for spec in &mut self.specs {
            spec.owner = set.add_owner();
        }
        drop(set);
        if !self.reap.is_zero() {
            cx.timer_after(0, self.reap);
        }
        Ok(())
    }

    fn take_state(&mut self, cx: &mut Cx<'_>, old: &mut dyn Element, _: &mut Log) {
        let Some(old) = downcast::<Self>(old).filter(|old| old.core.kind == self.core.kind) else {
            return;
        };
        let map = |map| old.core.maps.iter().position(|own| *own == map).map(|at| self.core.maps[at]);
        // The input with the same number before others that say the same.
        let input = |owner| {
            let from = old.specs.iter().position(|spec| spec.owner == owner)?;
            let is_same = |to: &usize| self.told.get(*to) == Some(&old.told[from]);
            std::iter::once(from).chain(0..self.specs.len()).find(is_same)
        };
        for (own, old) in self.specs.iter().zip(&old.specs) {
            if let (Way::Pattern(own), Way::Pattern(old)) = (&own.way, &old.way) {
                own.go_on(old);
            }
        }
        let mut set = lock(&self.flows);
        set.take_over(&mut lock(&old.flows), |from, owner| Some((map(from)?, self.specs[input(owner)?].owner)));
        set.shrink(millis(cx.now()), false);
    }

    /// A pattern may be written at any time, so whoever may have one shares with all who have some.
    fn shares(&self) -> Vec<usize> {
        self.shares.iter().chain(&self.patterns).copied().collect()
    }

    fn push(&mut self, cx: &mut Cx<'_>, port: usize, mut packet: Packet) {
        let Self { core, specs, flows, .. } = self;
        let (key, mut set) = (core.key(&packet), lock(flows));
        let known = key.and_then(|key| core.find(&set, key));
        if let Some(output) = core.pass(&mut set, cx, &specs[port], &mut packet, (key, known)) {
            cx.emit(output, packet);
        }
    }

    /// Flows are looked up for all packets before the first one is rewritten, so that waits for memory overlap.
    fn push_batch(&mut self, cx: &mut Cx<'_>, port: usize, batch: &mut Batch) {
        let Self { core, specs, flows, found, sorted, .. } = self;
        let mut set = lock(flows);
        found.clear();
        found.extend(
            batch.iter().map(|packet| core.key(packet)).map(|key| (key, key.and_then(|key| core.find(&set, key)))),
        );
        let changes = set.changes();
        sorted.resize_with(cx.outputs(), Batch::new);
        for (mut packet, &(key, known)) in batch.drain(..).zip(&*found) {
            let known = if set.changes() == changes { known } else { key.and_then(|key| core.find(&set, key)) };
            if let Some(output) = core.pass(&mut set, cx, &specs[port], &mut packet, (key, known)) {
                sorted[output].push(packet);
            }
        }
        drop(set);
        // One of each packet, so that it keeps its place among the others, whatever way it goes.
        sorted.iter_mut().enumerate().for_each(|(output, sorted)| cx.emit_batch(output, sorted));
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        self.flows().shrink(millis(cx.now()), false);
        cx.timer_after(0, self.reap);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        super::text::handlers(self, handlers);
    }
}
