//! Ethernet addresses by IP addresses, and packets that wait for them.
//!
//! Entries are in the order of their age. What is asked of hot paths, [`Table::lookup`], is one look into a hash table.

use crate::args::{ArgCx, Args, Failed, Interval};
use crate::headers::EtherAddress;
use crate::{Log, Packet, Timestamp};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write;
use std::hash::{BuildHasher, Hasher};
use std::net::Ipv4Addr;

/// Between two questions about one address.
const POLL: Timestamp = Timestamp::from_nanos(100_000_000);
/// The same after ten of them had no answer.
const SLOW_POLL: Timestamp = Timestamp::new(2, 0);

/// How a table is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    packets: u32,
    entries: u32,
    entry_packets: u32,
    slim_factor: u32,
    pub(super) timeout: Interval,
}

impl Default for Limits {
    fn default() -> Self {
        let timeout = Interval(Timestamp::new(300, 0));
        Self { packets: 2048, entries: 0, entry_packets: 0, slim_factor: 2, timeout }
    }
}

impl Limits {
    /// Reads them; all are keywords.
    pub(super) fn read(&mut self, args: &mut Args<'_>) {
        args.key("CAPACITY", &mut self.packets)
            .key("ENTRY_CAPACITY", &mut self.entries)
            .key("ENTRY_PACKET_CAPACITY", &mut self.entry_packets)
            .key("CAPACITY_SLIM_FACTOR", &mut self.slim_factor)
            .key("TIMEOUT", &mut self.timeout);
        if self.slim_factor == 0 {
            args.error("CAPACITY_SLIM_FACTOR cannot be zero");
        }
    }
}

/// Hashes addresses, which others choose, by a product with a number that they do not know.
#[derive(Debug, Clone, Copy)]
struct Keyed {
    key: u64,
    hash: u64,
}

impl BuildHasher for Keyed {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        *self
    }
}

impl Hasher for Keyed {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        let product = u128::from(self.hash ^ u64::from(value)) * u128::from(self.key);
        self.hash = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

/// Where an entry stands among the others: by age, then by order.
type Age = (Timestamp, i64);

struct Entry {
    ether: EtherAddress,
    is_known: bool,
    age: Age,
    polled: Timestamp,
    /// Questions since the last answer.
    polls: u8,
    packets: VecDeque<Packet>,
}

impl Entry {
    fn is_expired(&self, now: Timestamp, timeout: Timestamp) -> bool {
        !timeout.is_zero() && self.age.0 + timeout < now
    }

    fn is_live(&self, now: Timestamp, timeout: Timestamp) -> bool {
        self.is_known && !self.is_expired(now, timeout)
    }

    /// Whether it is time for a question, which is counted then.
    fn polls(&mut self, now: Timestamp) -> bool {
        let pause = if self.polls >= 10 { SLOW_POLL } else { POLL };
        let may = now >= self.polled + pause;
        if may {
            self.polled = now;
            self.polls = self.polls.saturating_add(1);
        }
        may
    }
}

/// What became of a packet that had to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// It waits, and it is time for a question.
    Ask,
    /// It waits.
    Waits,
    /// It was dropped.
    Dropped,
}

/// A table.
pub(super) struct Table {
    limits: Limits,
    entries: HashMap<u32, Entry, Keyed>,
    /// Addresses by age, the oldest first.
    ages: BTreeMap<Age, u32>,
    /// How often an age was given: makes each one different.
    turn: i64,
    packets: usize,
    drops: u64,
}

impl Default for Table {
    fn default() -> Self {
        let keyed = Keyed { key: fastrand::u64(..) | 1, hash: fastrand::u64(..) };
        let entries = HashMap::with_hasher(keyed);
        Self { limits: Limits::default(), entries, ages: BTreeMap::new(), turn: 0, packets: 0, drops: 0 }
    }
}

impl Table {
    pub(super) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// The Ethernet address of an IP address, and whether it is time to ask for it again: `poll` after the last answer, if
    /// that is not zero.
    #[inline]
    pub(super) fn lookup(&mut self, ip: u32, poll: Timestamp, now: Timestamp) -> Option<(EtherAddress, bool)> {
        let timeout = self.limits.timeout.0;
        let entry = self.entries.get_mut(&ip).filter(|entry| entry.is_live(now, timeout))?;
        let asks = !poll.is_zero() && now >= entry.age.0 + poll && entry.polls(now);
        Some((entry.ether, asks))
    }

    /// The entry of an address; a new one may push others out.
    fn ensure(&mut self, ip: u32, now: Timestamp) -> &mut Entry {
        if !self.entries.contains_key(&ip) {
            self.slim_entries(now, 1);
            self.turn += 1;
            let age = (now, self.turn);
            self.ages.insert(age, ip);
            let entry = Entry {
                ether: EtherAddress::BROADCAST,
                is_known: false,
                age,
                polled: now - Timestamp::new(1, 0),
                polls: 0,
                packets: VecDeque::new(),
            };
            self.entries.insert(ip, entry);
        }
        self.entries.get_mut(&ip).expect("it is there, or was put there")
    }

    /// Gives an entry a new age; `first`: it stands before those of the same age.
    fn set_age(&mut self, ip: u32, live: Timestamp, first: bool) {
        self.turn += 1;
        let age = (live, if first { -self.turn } else { self.turn });
        let Some(entry) = self.entries.get_mut(&ip) else { return };
        self.ages.remove(&entry.age);
        entry.age = age;
        self.ages.insert(age, ip);
    }

    /// An address has this Ethernet address; that of everybody: it is not known. Returns the packets that waited for it.
    pub(super) fn insert(&mut self, ip: u32, ether: EtherAddress, now: Timestamp) {
        let entry = self.ensure(ip, now);
        (entry.ether, entry.is_known, entry.polls) = (ether, !ether.is_broadcast(), 0);
        entry.polled = now - Timestamp::new(1, 0);
        self.set_age(ip, now, false);
    }

    /// Takes the packets that wait for an address.
    pub(super) fn take(&mut self, ip: u32) -> VecDeque<Packet> {
        let packets = self.entries.get_mut(&ip).map(|entry| std::mem::take(&mut entry.packets)).unwrap_or_default();
        self.packets -= packets.len();
        packets
    }

    /// Keeps a packet until its address is known.
    pub(super) fn keep(&mut self, ip: u32, packet: Packet, now: Timestamp) -> Kept {
        let (timeout, most) = (self.limits.timeout.0, self.limits.entry_packets as usize);
        let entry = self.ensure(ip, now);
        let (live, waiting) = (entry.age.0, entry.packets.len());
        // Somebody still wants it, so it does not expire.
        if !timeout.is_zero() && live < now - timeout {
            self.set_age(ip, now - timeout, true);
        }
        if most > 0 && waiting >= most {
            self.drops += 1;
            return Kept::Dropped;
        }
        self.packets += 1;
        if self.limits.packets > 0 && self.packets > self.limits.packets as usize {
            self.slim_entries(now, 0);
            self.slim_packets();
        }
        // A new limit may just have pushed it out.
        let entry = self.ensure(ip, now);
        entry.packets.push_back(packet);
        if entry.polls(now) { Kept::Ask } else { Kept::Waits }
    }

    /// Drops entries that are over their time, and the oldest ones, so that `more` fit.
    pub(super) fn slim_entries(&mut self, now: Timestamp, more: usize) {
        let most = self.limits.entries as usize;
        while let Some((_, &ip)) = self.ages.first_key_value() {
            let is_expired = self.entries[&ip].is_expired(now, self.limits.timeout.0);
            let full = most > 0 && self.entries.len() + more > most;
            // As in Click, what is over its time goes when the timer says so, or when there is no room.
            if !full && (more > 0 || !is_expired) {
                break;
            }
            self.ages.pop_first();
            let dropped = self.entries.remove(&ip).map_or(0, |entry| entry.packets.len());
            self.packets -= dropped;
            self.drops += dropped as u64;
        }
    }

    /// Drops the oldest addresses' packets; one that is to be added is counted.
    fn slim_packets(&mut self) {
        let most = self.limits.packets as usize;
        let target = (most - most / self.limits.slim_factor as usize).max(1);
        for ip in self.ages.values() {
            let Some(entry) = self.entries.get_mut(ip) else { continue };
            while self.packets > target && entry.packets.pop_front().is_some() {
                self.packets -= 1;
                self.drops += 1;
            }
        }
    }

    /// Takes all that another table has, unless there is something in this one; says whether it did.
    pub(super) fn take_over(&mut self, old: &mut Self) -> bool {
        let is_new = self.entries.is_empty();
        if is_new {
            let limits = self.limits;
            *self = std::mem::take(old);
            self.limits = limits;
        }
        is_new
    }

    pub(super) fn clear(&mut self) {
        self.drops += self.entries.values().map(|entry| entry.packets.len() as u64).sum::<u64>();
        self.entries.clear();
        self.ages.clear();
        self.packets = 0;
    }

    pub(super) fn drops(&self) -> u64 {
        self.drops
    }

    pub(super) fn count(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn length(&self) -> usize {
        self.packets
    }

    /// A line for each address, the oldest first.
    pub(super) fn text(&self, now: Timestamp) -> String {
        self.ages.values().fold(String::new(), |mut text, ip| {
            let entry = &self.entries[ip];
            let known = u8::from(entry.is_live(now, self.limits.timeout.0));
            let _ = writeln!(text, "{} {known} {} {}", Ipv4Addr::from(*ip), entry.ether, now - entry.age.0);
            text
        })
    }

    /// `insert` of handlers: `IP ETH`.
    pub(super) fn insert_text(&mut self, cx: ArgCx<'_>, text: &str, now: Timestamp) -> Result<(), String> {
        let (mut ip, mut ether) = (Ipv4Addr::UNSPECIFIED, EtherAddress::default());
        words(cx, text, |args| args.must("IP", &mut ip).must("ETH", &mut ether).finish())?;
        self.insert(ip.to_bits(), ether, now);
        Ok(())
    }

    /// `delete` of handlers: `IP`.
    pub(super) fn delete_text(&mut self, cx: ArgCx<'_>, text: &str, now: Timestamp) -> Result<(), String> {
        let mut ip = Ipv4Addr::UNSPECIFIED;
        words(cx, text, |args| args.must("IP", &mut ip).finish())?;
        self.insert(ip.to_bits(), EtherAddress::BROADCAST, now);
        Ok(())
    }
}

/// Reads words that were given to a handler.
fn words(cx: ArgCx<'_>, text: &str, work: impl FnOnce(&mut Args<'_>) -> Result<(), Failed>) -> Result<(), String> {
    let mut log = Log::new();
    work(&mut Args::words(text, cx, &mut log)).map_err(|Failed| log.to_string().trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::new(1_000_000, millis * 1_000_000)
    }

    fn table(config: &str) -> Table {
        let (names, mut log) = (crate::args::NameDb::default(), Log::new());
        let cx = ArgCx { elements: &crate::args::NoElements, names: &names, element: "x" };
        let mut table = Table::default();
        table.limits.read(&mut Args::new(config, cx, &mut log));
        assert_eq!(log.errors(), 0, "{log}");
        table
    }

    fn packet(number: u8) -> Packet {
        Packet::from_slice(&[number])
    }

    #[test]
    fn addresses_are_forgotten_after_their_time_and_asked_for_before() {
        let mut table = table("TIMEOUT 10");
        let ether = EtherAddress([5; 6]);
        table.insert(1, ether, at(0));
        let poll = Timestamp::new(5, 0);
        assert_eq!(table.lookup(1, poll, at(4999)), Some((ether, false)));
        assert_eq!(table.lookup(1, poll, at(5000)), Some((ether, true)));
        assert_eq!(table.lookup(1, poll, at(5099)), Some((ether, false)));
        assert_eq!(table.lookup(1, poll, at(5100)), Some((ether, true)));
        assert_eq!(table.lookup(1, Timestamp::ZERO, at(10_000)), Some((ether, false)));
        assert_eq!(table.lookup(1, poll, at(10_001)), None);
        assert_eq!(table.lookup(2, poll, at(0)), None);
        assert_eq!(table.count(), 1);
        table.slim_entries(at(10_001), 0);
        assert_eq!(table.count(), 0);
    }

    #[test]
    fn questions_become_rare() {
        let mut table = table("");
        let asks = (0..6000).filter(|&millis| table.keep(7, packet(0), at(millis)) == Kept::Ask).collect::<Vec<_>>();
        assert_eq!(asks, [0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 2900, 4900]);
    }

    #[test]
    fn too_many_packets_push_the_oldest_out() {
        let mut table = table("CAPACITY 10");
        for number in 0..11 {
            table.keep(u32::from(number) / 2, packet(number), at(i64::from(number)));
        }
        // Five were dropped for the last one: numbers 0 to 5, of which the last one is half an entry's.
        assert_eq!((table.length(), table.drops(), table.count()), (5, 6, 6));
        let left: Vec<u8> = (0..6).flat_map(|ip| table.take(ip)).map(|packet| packet.bytes()[0]).collect();
        assert_eq!((left, table.length()), (vec![6, 7, 8, 9, 10], 0));
    }

    #[test]
    fn too_many_packets_for_one_address_are_dropped() {
        let mut table = table("ENTRY_PACKET_CAPACITY 2");
        assert_eq!([0, 1, 2].map(|n| table.keep(1, packet(n), at(0))), [Kept::Ask, Kept::Waits, Kept::Dropped]);
        assert_eq!(table.keep(2, packet(3), at(0)), Kept::Ask);
        assert_eq!((table.length(), table.drops()), (3, 1));
    }

    #[test]
    fn too_many_addresses_push_the_oldest_out() {
        let mut table = table("ENTRY_CAPACITY 2");
        for ip in [1, 2, 1, 3] {
            table.insert(ip, EtherAddress([ip as u8; 6]), at(i64::from(ip)));
        }
        assert_eq!(table.count(), 2);
        assert!(table.lookup(2, Timestamp::ZERO, at(9)).is_some() && table.lookup(1, Timestamp::ZERO, at(9)).is_none());
        table.keep(4, packet(0), at(9));
        table.clear();
        assert_eq!((table.count(), table.length(), table.drops()), (0, 0, 1));
    }

    #[test]
    fn what_waits_is_what_is_counted() {
        let mut rng = fastrand::Rng::with_seed(bifolio_testing::seed());
        let mut table = table("CAPACITY 20, ENTRY_CAPACITY 6, ENTRY_PACKET_CAPACITY 5, TIMEOUT 1");
        let (mut now, mut given, mut taken, mut refused) = (0, 0, 0, 0);
        for _ in 0..20_000 {
            now += rng.i64(0..40);
            let ip = rng.u32(..9);
            match rng.u8(..8) {
                0 => {
                    table.insert(ip, EtherAddress([1; 6]), at(now));
                    taken += table.take(ip).len() as u64;
                }
                1 => table.slim_entries(at(now), 0),
                _ => {
                    given += 1;
                    refused += u64::from(table.keep(ip, packet(0), at(now)) == Kept::Dropped);
                }
            }
            let waiting: usize = table.entries.values().map(|entry| entry.packets.len()).sum();
            assert_eq!(waiting, table.length());
            assert!(waiting <= 20 && table.count() <= 6 && table.ages.len() == table.count());
            assert!(table.entries.values().all(|entry| entry.packets.len() <= 5));
            assert_eq!(given, taken + table.drops() + waiting as u64, "{refused} refused");
        }
    }
}
