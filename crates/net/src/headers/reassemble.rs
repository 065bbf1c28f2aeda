//! Reassembly of IPv4 packets from their fragments, in bounded memory.
//!
//! Fragments may come in any order, more than once, and overlap, as long as they agree about each byte and about the end:
//! else nobody can tell which of them is right, and the packet is given up with all fragments of it that are yet to come
//! (as RFC 5722 has it for IPv6). Memory is that of bytes that came, whatever offsets they claim. What isn't whole after
//! [`TIMEOUT_S`], counted from the first fragment that came, is given up (RFC 1122, 3.3.2), and so is the oldest where
//! memory runs short.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::Ipv4Addr;

use super::ip::{self, Ip, IpMut, MF};

/// Seconds after which a packet that isn't whole is given up.
pub const TIMEOUT_S: i64 = 30;

/// Bytes that a fragment costs besides its own: a node of a tree, and its share of the rest.
const OVERHEAD: usize = 64;

/// Bytes that a packet costs besides its fragments: its header, its place, and what the caller keeps of it.
const ORIGIN: usize = 512;

/// What the fragments of a packet have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    source: Ipv4Addr,
    destination: Ipv4Addr,
    id: u16,
    protocol: u8,
}

/// What became of a fragment.
#[derive(Debug)]
pub enum Outcome<T> {
    /// It was the last one that was missing: here is the packet.
    Whole(Assembly<T>),
    /// It is kept.
    Held,
    /// It is none, as its lengths lie or its payload isn't a multiple of 8 bytes though others follow.
    Bad,
    /// It contradicts others, or comes after one that did.
    Contradicted,
}

/// Fragments of one packet.
#[derive(Debug)]
pub struct Assembly<T> {
    /// What came with the first fragment, or with any, if the first one did not come.
    pub origin: T,
    /// The header of the first fragment; of any, without options, if the first one did not come.
    header: Vec<u8>,
    has_first: bool,
    /// The payload: parts that neither touch nor overlap, by their offsets. Parts that touch are put together at the end.
    parts: BTreeMap<usize, Vec<u8>>,
    /// Bytes of payload that came.
    len: usize,
    /// Where the payload ends, once the last fragment came.
    end: Option<usize>,
    /// The longest fragment, header included.
    longest: usize,
    poisoned: bool,
    begin_s: i64,
    serial: u64,
}

/// The table of packets that aren't whole. `T` is what the caller wants back of the first fragment.
#[derive(Debug)]
pub struct Reassembler<T> {
    table: HashMap<Key, Assembly<T>, RandomState>,
    /// In the order of their beginning; those that ended meanwhile are passed over, by their serial numbers.
    order: VecDeque<(Key, u64)>,
    serial: u64,
    memory: usize,
    memory_max: usize,
}

impl<T> Assembly<T> {
    /// Bytes of the longest fragment, header included.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// The bytes of payload that are there: beginnings and ends, in order.
    pub fn extents(&self) -> Vec<(usize, usize)> {
        let mut extents: Vec<(usize, usize)> = Vec::new();
        for (&begin, part) in &self.parts {
            match extents.last_mut() {
                Some(last) if last.1 == begin => last.1 += part.len(),
                _ => extents.push((begin, begin + part.len())),
            }
        }
        extents
    }

    /// Bytes of the packet, header included, as far as it came.
    pub fn total_len(&self) -> usize {
        let end = self.parts.last_key_value().map_or(0, |(begin, part)| begin + part.len());
        self.header.len() + end
    }

    /// Writes the packet to `out`, of [`Self::total_len`] bytes: zeros for what did not come. It is no fragment any more,
    /// unless its end did not come.
    pub fn write(&self, out: &mut [u8]) {
        out.fill(0);
        let (header, payload) = out.split_at_mut(self.header.len());
        header.copy_from_slice(&self.header);
        for (&begin, part) in &self.parts {
            payload[begin..begin + part.len()].copy_from_slice(part);
        }
        let len = out.len();
        if let Some(mut ip) = IpMut::new(out) {
            let more = if self.end.is_some() { 0 } else { MF };
            let flags = ip.get().flags_offset() & !(MF | ip::OFFSET_MASK);
            ip.set_flags_offset(flags | more);
            ip.set_total_len(len as u16);
        }
        ip::set_checksum(out);
    }

    /// Adds a part; false where it contradicts what is there.
    fn add(&mut self, begin: usize, payload: &[u8], last: bool) -> bool {
        let end = begin + payload.len();
        let known_end = self.parts.last_key_value().map_or(0, |(begin, part)| begin + part.len());
        let fits = match self.end {
            Some(known) => end <= known && (!last || end == known),
            None => !last || end >= known_end,
        };
        if last {
            self.end = Some(end);
        }
        fits && self.agrees(begin, payload) && self.fill(begin, payload)
    }

    /// Whether a part has the same bytes as those that it overlaps.
    fn agrees(&self, begin: usize, payload: &[u8]) -> bool {
        let end = begin + payload.len();
        self.overlapping(begin, end).all(|(at, part)| {
            let (from, to) = (begin.max(at), end.min(at + part.len()));
            payload[from - begin..to - begin] == part[from - at..to - at]
        })
    }

    /// The parts that overlap the bytes from `begin` to `end`: at most one of them begins before.
    fn overlapping(&self, begin: usize, end: usize) -> impl Iterator<Item = (usize, &Vec<u8>)> {
        let before = self.parts.range(..begin).next_back().filter(|(at, part)| **at + part.len() > begin);
        before.into_iter().chain(self.parts.range(begin..end)).map(|(&at, part)| (at, part))
    }

    /// Adds what is missing of a part.
    fn fill(&mut self, begin: usize, payload: &[u8]) -> bool {
        let end = begin + payload.len();
        let there: Vec<_> = self.overlapping(begin, end).map(|(at, part)| (at, at + part.len())).collect();
        let mut at = begin;
        for (from, to) in there.into_iter().chain([(end, end)]) {
            if at < from {
                self.parts.insert(at, payload[at - begin..from - begin].to_vec());
                self.len += from - at;
            }
            at = at.max(to);
        }
        true
    }

    fn is_whole(&self) -> bool {
        self.has_first && self.end == Some(self.len)
    }

    fn memory(&self) -> usize {
        self.len + self.parts.len() * OVERHEAD + ORIGIN + size_of::<Self>()
    }
}

impl<T> Reassembler<T> {
    /// An empty table which keeps up to about `memory_max` bytes.
    pub fn new(memory_max: usize) -> Self {
        let table = HashMap::with_hasher(RandomState::new());
        Self { table, order: VecDeque::new(), serial: 0, memory: 0, memory_max }
    }

    /// How many packets aren't whole.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Bytes that are kept.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Takes the fragment at the beginning of `packet`, which came at `now_s`. `origin` is asked for what the caller wants
    /// back, where this fragment is the first one of the packet, or of those that came.
    pub fn add(&mut self, packet: &[u8], now_s: i64, origin: impl FnOnce() -> T) -> Outcome<T> {
        let Some(ip) = Ip::checked(packet) else { return Outcome::Bad };
        let (begin, payload, last) = (ip.fragment_offset(), ip.payload(), !ip.more_fragments());
        let end = begin + payload.len();
        if payload.is_empty() || !last && payload.len() % 8 != 0 || end + ip::LEN > usize::from(u16::MAX) {
            return Outcome::Bad;
        }
        let key = Key { source: ip.source(), destination: ip.destination(), id: ip.id(), protocol: ip.protocol() };
        let assembly = match self.table.entry(key) {
            Entry::Occupied(entry) => {
                let assembly = entry.into_mut();
                if ip.is_first_fragment() && !assembly.has_first {
                    assembly.origin = origin();
                }
                assembly
            }
            Entry::Vacant(entry) => {
                self.serial += 1;
                self.order.push_back((key, self.serial));
                self.memory += ORIGIN + size_of::<Assembly<T>>();
                entry.insert(Assembly::new(packet, now_s, self.serial, origin()))
            }
        };
        let before = assembly.memory();
        if !assembly.poisoned {
            assembly.take_header(packet, ip);
            let longest = ip::LEN.max(ip.header_len()) + payload.len();
            assembly.longest = assembly.longest.max(longest);
            assembly.poisoned = !assembly.add(begin, payload, last);
        }
        let whole = assembly.is_whole();
        if assembly.poisoned {
            assembly.parts.clear();
            assembly.len = 0;
        }
        let (poisoned, too_long) = (assembly.poisoned, assembly.total_len() > usize::from(u16::MAX));
        self.memory = self.memory + assembly.memory() - before;
        match self.table.entry(key) {
            Entry::Occupied(entry) if whole && !poisoned => {
                let assembly = entry.remove();
                self.memory -= assembly.memory();
                if too_long { Outcome::Bad } else { Outcome::Whole(assembly) }
            }
            _ if poisoned => Outcome::Contradicted,
            _ => Outcome::Held,
        }
    }

    /// Gives up packets that are too old at `now_s` or for which memory is short, each to `give_up`, oldest first. To be
    /// called before each fragment. Those whose fragments contradicted each other are forgotten without a word.
    pub fn reap(&mut self, now_s: i64, mut give_up: impl FnMut(Assembly<T>)) {
        let enough = if self.memory > self.memory_max { self.memory_max / 4 * 3 } else { usize::MAX };
        while let Some(&(key, serial)) = self.order.front() {
            let Entry::Occupied(entry) = self.table.entry(key) else {
                self.order.pop_front();
                continue;
            };
            if entry.get().serial == serial {
                if self.memory <= enough && entry.get().begin_s > now_s - TIMEOUT_S - 1 {
                    break;
                }
                let assembly = entry.remove();
                self.memory -= assembly.memory();
                if !assembly.poisoned {
                    give_up(assembly);
                }
            }
            self.order.pop_front();
        }
        // An old packet must not keep the places of thousands that ended behind it.
        if self.order.len() > 2 * self.table.len() + 64 {
            let table = &self.table;
            self.order.retain(|(key, serial)| table.get(key).is_some_and(|assembly| assembly.serial == *serial));
        }
    }

    /// The packets that aren't whole, oldest first, as addresses, number and extents.
    pub fn iter(&self) -> impl Iterator<Item = (Ipv4Addr, Ipv4Addr, u16, &Assembly<T>)> {
        let live = |(key, serial): &(Key, u64)| {
            let assembly = self.table.get(key).filter(|assembly| assembly.serial == *serial)?;
            Some((key.source, key.destination, key.id, assembly))
        };
        self.order.iter().filter_map(live)
    }
}

impl<T> Assembly<T> {
    fn new(packet: &[u8], begin_s: i64, serial: u64, origin: T) -> Self {
        let mut header = packet[..ip::LEN].to_vec();
        header[0] = 0x45;
        Self {
            origin,
            header,
            has_first: false,
            parts: BTreeMap::new(),
            len: 0,
            end: None,
            longest: 0,
            poisoned: false,
            begin_s,
            serial,
        }
    }

    /// The first fragment brings the header.
    fn take_header(&mut self, packet: &[u8], ip: Ip<'_>) {
        if ip.is_first_fragment() && !self.has_first {
            self.has_first = true;
            self.header = packet[..ip.header_len()].to_vec();
        }
    }
}

#[cfg(test)]
mod tests {
    use bifolio_testing::{noise, seed};

    use super::super::fragment::tests::{cut, packet};
    use super::*;

    const MEMORY: usize = 1 << 20;

    fn whole<T>(outcome: Outcome<T>) -> Option<Vec<u8>> {
        let Outcome::Whole(assembly) = outcome else { return None };
        let mut out = vec![0xee; assembly.total_len()];
        assembly.write(&mut out);
        Some(out)
    }

    #[test]
    fn shuffled_doubled_and_overlapping_fragments_make_the_packet() {
        let mut rng = fastrand::Rng::with_seed(seed());
        for _ in 0..1000 {
            let options = [vec![], vec![148, 4, 0, 0], vec![1; 40]][rng.usize(..3)].clone();
            let sent = packet(0, &options, &noise(rng.usize(200..4000), rng.u64(..)));
            // Twice, cut in two ways: the parts overlap, and agree.
            let mut fragments = cut(&sent, rng.usize(100..180)).unwrap();
            fragments.extend(cut(&sent, rng.usize(100..1000)).unwrap());
            rng.shuffle(&mut fragments);
            let mut table = Reassembler::new(MEMORY);
            let mut packets = Vec::new();
            for fragment in &fragments {
                table.reap(1, |_| panic!("given up"));
                packets.extend(whole(table.add(fragment, 1, || ())));
            }
            assert!(packets.first() == Some(&sent) && packets.len() <= 2);
            if packets.len() == 2 {
                assert_eq!((packets[1] == sent, table.len(), table.memory()), (true, 0, 0));
            }
        }
    }

    /// An oracle: bytes in a line, of which each is unknown or known.
    #[test]
    fn a_packet_is_whole_when_each_byte_came_and_agreed() {
        let mut rng = fastrand::Rng::with_seed(seed());
        for _ in 0..3000 {
            let sent = noise(rng.usize(1..12) * 8, rng.u64(..));
            let mut table = Reassembler::new(MEMORY);
            let mut known = vec![None; 200];
            let (mut end, mut poisoned) = (None, false);
            for _ in 0..20 {
                let begin = rng.usize(..sent.len() / 8) * 8;
                let to = (begin + 8 * rng.usize(1..5)).min(sent.len());
                let last = if rng.u8(..10) == 0 { rng.bool() } else { to == sent.len() };
                let mut part = sent[begin..to].to_vec();
                if rng.u8(..20) == 0 {
                    part[rng.usize(..to - begin)] ^= 1;
                }
                let flags = (begin / 8) as u16 | if last { 0 } else { MF };
                let beyond = known.iter().rposition(Option::is_some).map_or(0, |at| at + 1);
                poisoned |=
                    end.is_some_and(|end| to > end || last && to != end) || end.is_none() && last && to < beyond;
                poisoned |=
                    known[begin..to].iter().zip(&part).any(|(known, byte)| known.is_some_and(|known| known != *byte));
                end = if last { Some(to) } else { end };
                known[begin..to].iter_mut().zip(&part).for_each(|(known, byte)| *known = Some(*byte));
                let outcome = table.add(&packet(flags, &[], &part), 1, || ());
                if flags & (MF | ip::OFFSET_MASK) == 0 && !poisoned {
                    end = end.or(Some(to));
                }
                let complete = end.filter(|&end| known[..end].iter().all(Option::is_some));
                match outcome {
                    Outcome::Contradicted => assert!(poisoned),
                    Outcome::Held => assert!(!poisoned && complete.is_none()),
                    Outcome::Bad => panic!("a good fragment"),
                    Outcome::Whole(assembly) => {
                        assert!(!poisoned);
                        let mut out = vec![0; assembly.total_len()];
                        assembly.write(&mut out);
                        let expected: Vec<_> = known[..complete.unwrap()].iter().map(|byte| byte.unwrap()).collect();
                        assert_eq!(out, packet(0, &[], &expected));
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn what_contradicts_is_given_up_with_what_follows() {
        let mut table = Reassembler::new(MEMORY);
        let first = packet(MF, &[], &[1; 16]);
        assert!(matches!(table.add(&first, 1, || ()), Outcome::Held));
        assert!(matches!(table.add(&packet(MF | 1, &[], &[2; 16]), 1, || ()), Outcome::Contradicted));
        assert!(matches!(table.add(&packet(2, &[], &[1; 16]), 1, || ()), Outcome::Contradicted));
        let mut given_up = 0;
        table.reap(31, |_| given_up += 1);
        assert_eq!((table.len(), given_up), (1, 0));
        table.reap(32, |_| given_up += 1);
        assert_eq!((table.len(), given_up, table.memory()), (0, 0, 0));
        table.add(&first, 32, || ());
        assert!(whole(table.add(&packet(2, &[], &[1; 16]), 32, || ())).is_some());
    }

    #[test]
    fn what_is_not_whole_in_time_is_given_up_as_far_as_it_came() {
        let mut table = Reassembler::new(MEMORY);
        table.add(&packet(MF | 1, &[], &[1; 8]), 10, || "second");
        table.add(&packet(4, &[], &[2; 8]), 39, || "fourth");
        let mut given_up = Vec::new();
        table.reap(40, |assembly| given_up.push(assembly));
        assert!(given_up.is_empty());
        assert_eq!(table.iter().map(|(.., assembly)| assembly.extents()).collect::<Vec<_>>(), [[(8, 16), (32, 40)]]);
        table.reap(41, |assembly| given_up.push(assembly));
        let assembly = given_up.pop().unwrap();
        let mut out = vec![0xee; assembly.total_len()];
        assembly.write(&mut out);
        let payload = [[0; 8], [1; 8], [0; 8], [0; 8], [2; 8]].concat();
        assert_eq!((out, assembly.origin, table.memory()), (packet(0, &[], &payload), "second", 0));
    }

    #[test]
    fn memory_is_bounded_whatever_offsets_say() {
        let mut rng = fastrand::Rng::with_seed(seed());
        let mut table = Reassembler::new(64 << 10);
        let mut given_up = 0;
        for i in 0..20_000 {
            let mut fragment = packet(MF | rng.u16(..8000), &[], &noise(8 * rng.usize(1..20), i));
            IpMut::new(&mut fragment).unwrap().set_id(rng.u16(..));
            table.reap(1, |_| given_up += 1);
            table.add(&fragment, 1, || ());
            assert!(table.memory() <= (64 << 10) + 2000 && table.order.len() <= 2 * table.len() + 66);
            assert_eq!(table.memory(), table.table.values().map(Assembly::memory).sum::<usize>());
        }
        assert!(given_up > 1000);
    }

    #[test]
    fn what_would_be_longer_than_a_packet_can_be_is_bad() {
        let mut table = Reassembler::new(MEMORY);
        assert!(matches!(table.add(&packet(ip::OFFSET_MASK, &[], &[0; 8]), 1, || ()), Outcome::Bad));
        assert!(matches!(table.add(&packet(MF, &[], &[0; 9]), 1, || ()), Outcome::Bad));
        assert!(matches!(table.add(&packet(MF, &[], &[]), 1, || ()), Outcome::Bad));
        assert!(matches!(table.add(&packet(MF, &[], &[0; 16])[..35], 1, || ()), Outcome::Bad));
        assert_eq!(table.len(), 0);
        // With its options the header is longer than those of later fragments.
        table.add(&packet(8184, &[], &[0; 40]), 1, || ());
        for offset in (1..8184).step_by(93) {
            assert!(matches!(table.add(&packet(MF | offset, &[], &[0; 744]), 1, || ()), Outcome::Held), "{offset}");
        }
        assert!(matches!(table.add(&packet(MF, &[1; 40], &[0; 8]), 1, || ()), Outcome::Bad));
        assert_eq!((table.len(), table.memory()), (0, 0));
    }
}
