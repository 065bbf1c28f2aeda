//! What the packets of TCP flows ended with, so that what lies across two of them can be searched for.
//!
//! Of each direction of a flow, the last packet with a payload counts: what it ended with is kept, and goes before the payload
//! of the packet that begins where it ended. A packet that begins elsewhere (one was lost, came twice, or overtook
//! another one) is searched alone, and counts from then on: whatever somebody sends in between, what is missed lies
//! beside it, and never later. Nothing is put into order here, and nobody waits for a packet that may not come.
//!
//! There are so many flows and bytes of each as the owner says. A new flow takes the place of the one from which nothing has come for
//! the longest time, so that the same packets are searched together wherever they are followed.

use crate::headers::payload::behind_headers;
use crate::headers::{FlowId, Ip, Tcp, ip, tcp};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The most bytes that are searched of a packet, what stands before its payload included.
pub const TEXT_MAX: usize = 0xffff - 20;

/// How flows are followed, and what came of it. Clones are of one.
#[derive(Debug, Clone)]
pub struct Following {
    /// The most flows at a time, each in one direction.
    pub flows: usize,
    /// The most bytes that are kept of each.
    pub tail: usize,
    /// The length of the longest literal that is searched for: more than that without a byte is not kept either.
    pub longest: Arc<AtomicUsize>,
    /// What came of it.
    pub counts: Arc<Counts>,
}

/// What came of following flows.
#[derive(Debug, Default)]
pub struct Counts {
    /// Flows that are followed at the moment.
    pub flows: AtomicU64,
    /// Packets that did not begin where the one before them ended.
    pub strays: AtomicU64,
}

impl PartialEq for Following {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.counts, &other.counts)
    }
}

impl Eq for Following {}

/// No flow.
const NONE: u32 = u32::MAX;

/// Flows that are followed.
#[derive(Debug)]
pub struct Streams {
    following: Following,
    by_flow: HashMap<FlowId, u32>,
    flows: Vec<Flow>,
    /// Places of flows that have ended.
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
}

/// One direction of a flow, among all by the time of their last packets.
#[derive(Debug)]
struct Flow {
    id: FlowId,
    /// Where the next packet is to begin.
    next: u32,
    tail: Vec<u8>,
    newer: u32,
    older: u32,
}

/// A packet of a flow.
struct Segment<'a> {
    id: FlowId,
    /// Where its payload begins, and where the next one's does.
    begin: u32,
    end: u32,
    payload: &'a [u8],
    flags: u8,
}

impl<'a> Segment<'a> {
    /// Of what begins with an IP header: a TCP packet that is all there, and no fragment.
    fn of(network: &'a [u8]) -> Option<Self> {
        let ip = Ip::checked(network).filter(|ip| ip.protocol() == ip::PROTOCOL_TCP && !ip.is_fragment())?;
        let body = ip.payload();
        let tcp = Tcp::new(body).filter(|tcp| tcp.header_len() >= tcp::LEN && tcp.header_len() <= body.len())?;
        let (id, payload, flags) = (FlowId::of(ip)?, behind_headers(network)?, tcp.flags());
        let begin = tcp.sequence().wrapping_add(u32::from(flags & tcp::SYN != 0));
        Some(Self { id, begin, end: begin.wrapping_add(payload.len() as u32), payload, flags })
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

impl Streams {
    /// None yet.
    pub fn new(following: Following) -> Self {
        let (flows, free) = (Vec::new(), Vec::new());
        Self { following, by_flow: HashMap::new(), flows, free, newest: NONE, oldest: NONE }
    }

    /// Bytes that are kept of each flow.
    pub fn keep(&self) -> usize {
        let longest = self.following.longest.load(Ordering::Relaxed);
        self.following.tail.min(longest.saturating_sub(1))
    }

    /// A packet has come, which begins with this IP header: appends to `before` what stands before its payload in its flow.
    pub fn follow(&mut self, network: &[u8], before: &mut Vec<u8>) {
        let Some(segment) = Segment::of(network) else { return };
        let known = self.by_flow.get(&segment.id).copied();
        if segment.has(tcp::RST) {
            return self.forget(known);
        }
        if !segment.payload.is_empty() || segment.has(tcp::SYN) {
            self.take(known, &segment, before);
        }
        if segment.has(tcp::FIN) {
            self.forget(self.by_flow.get(&segment.id).copied());
        }
    }

    /// A packet with a payload, or one that begins a flow.
    fn take(&mut self, known: Option<u32>, segment: &Segment<'_>, before: &mut Vec<u8>) {
        let keep = self.keep();
        let at = match known {
            Some(at) => {
                self.unlink(at);
                at
            }
            None => self.place(segment.id),
        };
        self.link(at);
        let flow = &mut self.flows[at as usize];
        if known.is_some() && flow.next == segment.begin && !segment.has(tcp::SYN) {
            let most = keep.min(TEXT_MAX.saturating_sub(segment.payload.len()));
            before.extend(&flow.tail[flow.tail.len().saturating_sub(most)..]);
        } else {
            flow.tail.clear();
            let is_stray = known.is_some() && !segment.has(tcp::SYN);
            self.following.counts.strays.fetch_add(is_stray.into(), Ordering::Relaxed);
        }
        flow.next = segment.end;
        let fresh = &segment.payload[segment.payload.len().saturating_sub(keep)..];
        let old = flow.tail.len().saturating_sub(keep - fresh.len());
        flow.tail.drain(..old);
        flow.tail.extend(fresh);
    }

    /// A place for a new flow: that of the oldest one where there are as many as may be.
    fn place(&mut self, id: FlowId) -> u32 {
        let is_full = self.by_flow.len() >= self.following.flows.max(1);
        if is_full {
            self.forget(Some(self.oldest));
        }
        let at = self.free.pop().unwrap_or(self.flows.len() as u32);
        let mut flow = Flow { id, next: 0, tail: Vec::new(), newer: NONE, older: NONE };
        match self.flows.get_mut(at as usize) {
            Some(place) => {
                // Its memory is used again.
                flow.tail = std::mem::take(&mut place.tail);
                flow.tail.clear();
                *place = flow;
            }
            None => self.flows.push(flow),
        }
        self.by_flow.insert(id, at);
        self.following.counts.flows.fetch_add(1, Ordering::Relaxed);
        at
    }

    fn forget(&mut self, known: Option<u32>) {
        let Some(at) = known else { return };
        self.unlink(at);
        self.by_flow.remove(&self.flows[at as usize].id);
        self.free.push(at);
        self.following.counts.flows.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes a flow out of the order.
    fn unlink(&mut self, at: u32) {
        let Flow { newer, older, .. } = self.flows[at as usize];
        match self.flows.get_mut(newer as usize) {
            Some(flow) => flow.older = older,
            None => self.newest = older,
        }
        match self.flows.get_mut(older as usize) {
            Some(flow) => flow.newer = newer,
            None => self.oldest = newer,
        }
    }

    /// Makes a flow that is in no order the newest.
    fn link(&mut self, at: u32) {
        let older = std::mem::replace(&mut self.newest, at);
        match self.flows.get_mut(older as usize) {
            Some(flow) => flow.newer = at,
            None => self.oldest = at,
        }
        let flow = &mut self.flows[at as usize];
        (flow.newer, flow.older) = (NONE, older);
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.following.counts.flows.fetch_sub(self.by_flow.len() as u64, Ordering::Relaxed);
    }
}

/// A TCP packet, from its IP header on.
#[cfg(test)]
pub(crate) fn segment(ports: [u16; 2], sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut tcp = vec![0; 20];
    tcp[..2].copy_from_slice(&ports[0].to_be_bytes());
    tcp[2..4].copy_from_slice(&ports[1].to_be_bytes());
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    (tcp[12], tcp[13]) = (0x50, flags);
    tcp.extend(payload);
    let len = (20 + tcp.len()) as u16;
    let mut packet = vec![0x45, 0, (len >> 8) as u8, len as u8, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    ip::set_checksum(&mut packet);
    packet.extend(tcp);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_testing::seed;
    use std::collections::VecDeque;

    fn following(flows: usize, tail: usize, longest: usize) -> Following {
        Following { flows, tail, longest: Arc::new(AtomicUsize::new(longest)), counts: Arc::default() }
    }

    fn before(streams: &mut Streams, packet: &[u8]) -> Vec<u8> {
        let mut before = Vec::new();
        streams.follow(packet, &mut before);
        before
    }

    #[test]
    fn a_packet_that_follows_has_the_end_of_its_flow_before_it() {
        let following = following(8, 100, 5);
        let mut streams = Streams::new(following.clone());
        let of = |sequence, flags, payload: &str| segment([1, 2], sequence, flags, payload.as_bytes());
        let steps = [
            (of(99, tcp::SYN, ""), ""),
            (of(100, 0, "ab"), ""),
            (of(102, 0, "cdefg"), "ab"),
            (of(107, tcp::ACK, ""), ""),
            (of(107, 0, "h"), "defg"),
            (of(108, 0, "i"), "efgh"),
            // A retransmission, and what comes behind it.
            (of(107, 0, "h"), ""),
            (of(108, 0, "ijk"), "h"),
            // A gap.
            (of(200, 0, "lmn"), ""),
            (of(203, tcp::FIN, "o"), "lmn"),
            (of(204, 0, "p"), ""),
            (of(205, tcp::RST, "q"), ""),
            (of(205, 0, "q"), ""),
        ];
        for (at, (packet, expected)) in steps.iter().enumerate() {
            assert_eq!(before(&mut streams, packet), expected.as_bytes(), "step {at}");
        }
        assert_eq!(following.counts.strays.load(Ordering::Relaxed), 2);
        drop(streams);
        assert_eq!(following.counts.flows.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn sequence_numbers_go_round_and_the_other_direction_is_another_flow() {
        let mut streams = Streams::new(following(8, 3, 100));
        assert_eq!(before(&mut streams, &segment([1, 2], u32::MAX - 1, 0, b"abcd")), b"");
        assert_eq!(before(&mut streams, &segment([2, 1], 2, 0, b"xy")), b"");
        assert_eq!(before(&mut streams, &segment([1, 2], 2, 0, b"efgh")), b"bcd");
        assert_eq!(before(&mut streams, &segment([1, 2], 6, 0, &vec![b'z'; TEXT_MAX - 20])), b"fgh");
        assert_eq!(before(&mut streams, &segment([1, 2], 6 + TEXT_MAX as u32 - 20, 0, b"e")), b"zzz");
    }

    #[test]
    fn what_is_no_whole_tcp_packet_is_not_followed() {
        let mut streams = Streams::new(following(8, 9, 9));
        before(&mut streams, &segment([1, 2], 0, 0, b"abc"));
        let good = segment([1, 2], 3, 0, b"def");
        let changed = |at: usize, byte: u8| {
            let mut packet = good.clone();
            packet[at] = byte;
            packet
        };
        let bad =
            [changed(0, 0x55), changed(3, 200), changed(7, 1), changed(6, 0x20), changed(9, 17), changed(32, 0x40)];
        for packet in bad.iter().chain([&good[..30].to_vec(), &changed(32, 0xf0)]) {
            assert_eq!(before(&mut streams, packet), b"", "{packet:?}");
        }
        assert_eq!(before(&mut streams, &good), b"abc");
    }

    /// The same, slow and obvious.
    struct Naive {
        /// The newest last.
        flows: VecDeque<(u16, u32, Vec<u8>)>,
        most: usize,
        keep: usize,
    }

    impl Naive {
        fn follow(&mut self, port: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
            let known = self.flows.iter().position(|(other, ..)| *other == port);
            let known = known.and_then(|at| self.flows.remove(at));
            if known.is_none() && self.flows.len() == self.most {
                self.flows.pop_front();
            }
            let before = known.filter(|(_, next, _)| *next == sequence).map_or(Vec::new(), |(.., text)| text);
            let mut text = [&before, payload].concat();
            text.drain(..text.len().saturating_sub(self.keep));
            self.flows.push_back((port, sequence + payload.len() as u32, text));
            before
        }
    }

    #[test]
    fn random_packets_are_followed_as_by_a_naive_list() {
        let mut random = fastrand::Rng::with_seed(seed());
        let mut joined = 0;
        for _ in 0..40 {
            let (most, tail, longest) = (random.usize(1..6), random.usize(1..9), random.usize(..12));
            let mut streams = Streams::new(following(most, tail, longest));
            let keep = tail.min(longest.saturating_sub(1));
            let mut naive = Naive { flows: VecDeque::new(), most, keep };
            let mut next = [0_u32; 7];
            for _ in 0..300 {
                let port = random.usize(..7);
                let payload: Vec<u8> = (0..random.usize(1..12)).map(|_| random.u8(b'a'..=b'z')).collect();
                if random.u8(..6) == 0 {
                    next[port] = random.u32(..5000);
                }
                let packet = segment([port as u16, 80], next[port], 0, &payload);
                let expected = naive.follow(port as u16, next[port], &payload);
                assert_eq!(before(&mut streams, &packet), expected);
                joined += usize::from(!expected.is_empty());
                next[port] += payload.len() as u32;
            }
            assert_eq!(streams.by_flow.len(), naive.flows.len());
            assert!(streams.flows.len() <= most);
        }
        assert!(joined > 500, "{joined}");
    }
}
