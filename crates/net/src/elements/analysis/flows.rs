//! Flows of TCP and UDP, their numbers, and fragments that wait for theirs.

use crate::headers::ip::Ip;
use crate::packet::anno;
use crate::{Packet, Timestamp};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::Ipv4Addr;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;

/// Two hosts, the lower address first, and the protocol that they speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Pair {
    protocol: u8,
    low: u32,
    high: u32,
}

/// What becomes of a packet.
pub(super) enum Taken {
    /// It has the number of its flow.
    Flow(Packet),
    /// It is of no flow.
    Other(Packet),
    /// It is kept.
    Waits,
}

#[derive(Debug)]
struct Flow {
    number: u32,
    /// Whether its first packet came from the higher address, or port.
    is_reverse: bool,
    /// A bit for each side that has ended.
    over: u8,
    first: Timestamp,
    last: Timestamp,
    filepos: u64,
    packets: [u32; 2],
}

/// Packets of a pair that wait, and what is known of their identifiers.
#[derive(Debug, Default)]
struct Waiting {
    packets: VecDeque<Packet>,
    known: HashMap<u16, Mark>,
}

/// The number of a flow, the paint of a packet, and the ports by which the flow is found.
#[derive(Debug, Clone, Copy)]
struct Mark {
    number: u32,
    paint: u8,
    ports: (u16, u16),
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct Flows {
    table: HashMap<(Pair, (u16, u16)), Flow>,
    waiting: BTreeMap<Pair, Waiting>,
    /// Numbers that have been given.
    numbers: u32,
    now: i64,
    tcp_timeout: i64,
    done_timeout: i64,
    udp_timeout: i64,
    fragment_timeout: i64,
    has_icmp: bool,
    has_fragments: bool,
    ended: Option<Vec<(u32, String)>>,
}

/// What a packet says of its flow: its own IP header, or, of an ICMP error, that of the packet that it is about.
fn header(packet: &Packet, has_icmp: bool) -> Option<(Ip<'_>, u8)> {
    let bytes = packet.network_header()?;
    let ip = Ip::new(bytes)?;
    if ip.protocol() != ICMP {
        return Some((ip, 0));
    }
    let message = packet.transport_header().filter(|_| has_icmp && ip.is_first_fragment())?;
    let is_error = matches!(message.first(), Some(3 | 4 | 5 | 11 | 12));
    let inner = Ip::new(message.get(8..).filter(|_| is_error)?)?;
    let is_whole = inner.header_len() >= 20 && message.len() >= 8 + inner.header_len();
    is_whole.then_some((inner, 2))
}

impl Flows {
    /// Timeouts in seconds: of TCP, of TCP that is over, of UDP, and of fragments.
    pub(super) fn configure(&mut self, timeouts: [i64; 4], has_icmp: bool) {
        [self.tcp_timeout, self.done_timeout, self.udp_timeout, self.fragment_timeout] = timeouts;
        self.has_icmp = has_icmp;
    }

    /// Whether fragments wait for their ports.
    pub(super) fn set_fragments(&mut self, has_fragments: bool) {
        self.has_fragments = has_fragments;
    }

    /// From now on, what flows were is kept until it is taken.
    pub(super) fn keep_ended(&mut self) {
        self.ended = Some(Vec::new());
    }

    /// Takes what flows were that have ended, in the order of their numbers.
    pub(super) fn take_ended(&mut self) -> Vec<String> {
        let mut ended = self.ended.as_mut().map(std::mem::take).unwrap_or_default();
        ended.sort_by_key(|(number, _)| *number);
        ended.into_iter().map(|(_, text)| text).collect()
    }

    /// The second of the last packet.
    pub(super) fn now(&self) -> i64 {
        self.now
    }

    /// Numbers a packet. Those that waited and wait no more are added to `out`, and whether they have a flow.
    pub(super) fn take(
        &mut self,
        mut packet: Packet,
        filepos: &mut dyn FnMut() -> u64,
        out: &mut Vec<(Packet, bool)>,
    ) -> Taken {
        let Some((ip, mut paint)) = header(&packet, self.has_icmp) else { return Taken::Other(packet) };
        let (source, destination) = (u32::from(ip.source()), u32::from(ip.destination()));
        let protocol = ip.protocol();
        if ![TCP, UDP].contains(&protocol) || (source, destination) == (0, 0) {
            return Taken::Other(packet);
        }
        let pair = Pair { protocol, low: source.min(destination), high: source.max(destination) };
        paint ^= u8::from(pair.low != source);
        let mut mark = None;
        let (is_fragment, id) = (ip.is_fragment(), ip.id());
        if ip.is_first_fragment() {
            let ports = ip.payload().first_chunk::<4>();
            let Some(&[a, b, c, d]) = ports else { return Taken::Other(packet) };
            let mut ports = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            paint ^= u8::from(source == destination && ports.0 > ports.1);
            if paint & 1 == 1 {
                ports = (ports.1, ports.0);
            }
            let is_syn = protocol == TCP && paint < 2 && flags(&packet).is_some_and(|flags| flags & SYN != 0);
            let flow = self.find(pair, ports, paint & 1 == 1, packet.timestamp(), is_syn, filepos);
            paint ^= u8::from(flow.is_reverse);
            mark = Some(Mark { number: flow.number, paint, ports });
        }
        packet.set_anno_u32(anno::AGGREGATE, mark.map_or(0, |mark| mark.number));
        packet.set_anno_u8(anno::PAINT, mark.map_or(paint, |mark| mark.paint));
        if (self.has_fragments && is_fragment) || self.waiting.contains_key(&pair) {
            self.wait(pair, packet, id, mark, out);
            return Taken::Waits;
        }
        let Some(mark) = mark else { return Taken::Other(packet) };
        self.now = packet.timestamp().secs();
        self.passes(pair, mark, &packet);
        Taken::Flow(packet)
    }

    /// The flow of these ports, which begins with this packet where there is none, or none any more.
    fn find(
        &mut self,
        pair: Pair,
        ports: (u16, u16),
        is_reverse: bool,
        time: Timestamp,
        is_syn: bool,
        filepos: &mut dyn FnMut() -> u64,
    ) -> &Flow {
        let timeouts = [self.tcp_timeout, self.done_timeout, self.udp_timeout];
        let is_old = |flow: &Flow| {
            let timeout = timeouts[if pair.protocol == UDP { 2 } else { usize::from(flow.over == 3) }];
            time.secs() - flow.last.secs() > timeout || (flow.over == 3 && is_syn)
        };
        if self.table.get(&(pair, ports)).is_some_and(is_old)
            && let Some(flow) = self.table.remove(&(pair, ports))
        {
            self.end(pair, ports, &flow);
        }
        let numbers = &mut self.numbers;
        self.table.entry((pair, ports)).or_insert_with(|| {
            *numbers = numbers.wrapping_add(1);
            Flow { number: *numbers, is_reverse, over: 0, first: time, last: time, filepos: filepos(), packets: [0; 2] }
        })
    }

    /// A packet of a flow leaves.
    fn passes(&mut self, pair: Pair, mark: Mark, packet: &Packet) {
        let Some(flow) = self.table.get_mut(&(pair, mark.ports)).filter(|flow| flow.number == mark.number) else {
            return;
        };
        flow.last = packet.timestamp();
        if mark.paint >= 2 {
            return;
        }
        flow.packets[usize::from(mark.paint)] += 1;
        let flags = flags(packet).filter(|_| pair.protocol == TCP).unwrap_or(0);
        if flags & RST != 0 {
            flow.over = 3;
        } else if flags & FIN != 0 {
            flow.over |= 1 << mark.paint;
        } else if flags & SYN != 0 {
            flow.over = 0;
        }
    }

    fn wait(&mut self, pair: Pair, packet: Packet, id: u16, mark: Option<Mark>, out: &mut Vec<(Packet, bool)>) {
        self.now = packet.timestamp().secs();
        let waiting = self.waiting.entry(pair).or_default();
        if let Some(mark) = mark {
            waiting.known.insert(id, mark);
        }
        waiting.packets.push_back(packet);
        self.release(pair, self.now.saturating_sub(self.fragment_timeout), out);
    }

    /// Lets packets go that are older than a second, or are no fragments, up to the first one that is neither.
    fn release(&mut self, pair: Pair, before: i64, out: &mut Vec<(Packet, bool)>) {
        let Some(mut waiting) = self.waiting.remove(&pair) else { return };
        while let Some(head) = waiting.packets.front() {
            let fields = header(head, self.has_icmp).map(|(ip, _)| (ip.is_fragment(), ip.id()));
            let (is_fragment, id) = fields.unwrap_or_default();
            if is_fragment && head.timestamp().secs() >= before {
                break;
            }
            let Some(mut packet) = waiting.packets.pop_front() else { break };
            let mark = waiting.known.get(&id).copied();
            let number = packet.anno_u32(anno::AGGREGATE);
            if let (Some(mark), true) = (mark, number == 0) {
                packet.set_anno_u32(anno::AGGREGATE, mark.number);
                packet.set_anno_u8(anno::PAINT, mark.paint);
            }
            if let Some(mark) = mark {
                self.passes(pair, Mark { paint: packet.anno_u8(anno::PAINT), ..mark }, &packet);
            }
            let has_flow = packet.anno_u32(anno::AGGREGATE) != 0;
            out.push((packet, has_flow));
        }
        if !waiting.packets.is_empty() {
            self.waiting.insert(pair, waiting);
        }
    }

    /// Drops flows that are old, and lets old fragments go.
    pub(super) fn reap(&mut self, out: &mut Vec<(Packet, bool)>) {
        self.reap_before(self.now, out);
    }

    /// Ends all flows, and lets all fragments go.
    pub(super) fn clear(&mut self, out: &mut Vec<(Packet, bool)>) {
        self.reap_before(i64::MAX, out);
    }

    fn reap_before(&mut self, now: i64, out: &mut Vec<(Packet, bool)>) {
        let pairs: Vec<Pair> = self.waiting.keys().copied().collect();
        for pair in pairs {
            self.release(pair, now.saturating_sub(self.fragment_timeout), out);
        }
        let timeouts = [self.tcp_timeout, self.done_timeout, self.udp_timeout];
        let is_old = |pair: &Pair, flow: &Flow| {
            let timeout = timeouts[if pair.protocol == UDP { 2 } else { usize::from(flow.over == 3) }];
            flow.last.secs() < now.saturating_sub(timeout)
        };
        let waiting = &self.waiting;
        let old = self.table.extract_if(|(pair, _), flow| is_old(pair, flow) && !waiting.contains_key(pair));
        let old: Vec<_> = old.collect();
        for ((pair, ports), flow) in old {
            self.end(pair, ports, &flow);
        }
    }

    fn end(&mut self, pair: Pair, ports: (u16, u16), flow: &Flow) {
        let Some(ended) = &mut self.ended else { return };
        let (mut from, mut to) = ((pair.low, ports.0), (pair.high, ports.1));
        if flow.is_reverse {
            (from, to) = (to, from);
        }
        let (source, destination) = (Ipv4Addr::from(from.0), Ipv4Addr::from(to.0));
        let filepos = if flow.filepos == 0 { String::new() } else { format!(" filepos='{}'", flow.filepos) };
        let text = format!(
            "<flow aggregate='{}' src='{source}' sport='{}' dst='{destination}' dport='{}' begin='{}' duration='{}'{filepos}>\n  \
             <stream dir='0' packets='{}' /><stream dir='1' packets='{}' />\n</flow>\n",
            flow.number,
            from.1,
            to.1,
            flow.first,
            flow.last - flow.first,
            flow.packets[0],
            flow.packets[1]
        );
        ended.push((flow.number, text));
    }
}

/// The flags of a packet's own TCP header.
fn flags(packet: &Packet) -> Option<u8> {
    let ip = Ip::new(packet.network_header()?)?;
    let header = packet.transport_header().filter(|_| ip.protocol() == TCP && ip.is_first_fragment())?;
    header.get(13).copied()
}
