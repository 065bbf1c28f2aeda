//! What the header of a rule says of packets: protocol, addresses, ports, direction.
//!
//! A rule refuses no packet because of what is not known: an address or a port that stands for a variable without a value, a
//! protocol that is none of IP's, and ports that are not in the packet count as met.

use super::rule::Header;
use crate::headers::{Ip, ip};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// How many variables may stand for each other in a row.
const DEPTH_MAX: usize = 16;
/// How many addresses and ports one end of a rule may have, with all that its variables stand for.
const ITEMS_MAX: usize = 1 << 16;
/// How many all rules may have together, where rules with the same header have them once.
pub(super) const ITEMS_TOTAL: usize = 1 << 21;
/// The last port.
const PORT_MAX: u32 = 0xffff;

/// What the names behind `$` stand for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variables(BTreeMap<String, String>);

impl Variables {
    /// Of words such as `HOME_NET [10.0.0.0/8,!10.1.0.0/16]`.
    ///
    /// # Errors
    /// A sentence about the first one that is wrong.
    pub fn new<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        for word in words {
            let (name, value) =
                word.trim().split_once(char::is_whitespace).ok_or_else(|| format!("'{word}' has no value"))?;
            let value: String = value.split_whitespace().collect();
            all.insert(name.trim_start_matches('$').to_owned(), value);
        }
        let known = Self(all);
        for (name, value) in &known.0 {
            let mut left = ITEMS_TOTAL;
            // What is neither an address nor a port can stand nowhere.
            if let Err(wrong) = known.set(value, ADDRESSES, &mut left) {
                known.set(value, PORTS, &mut left).map_err(|_| format!("{name}: {wrong}"))?;
            }
        }
        Ok(known)
    }
}

/// Of a packet, what headers of rules look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    protocol: u8,
    addresses: [u32; 2],
    /// Nothing where they are not in the packet.
    ports: Option<[u16; 2]>,
}

impl Facts {
    /// Of what begins with an IP header; nothing where its lengths contradict each other.
    pub fn of(network: &[u8]) -> Option<Self> {
        let ip = Ip::new(network).filter(|ip| ip.version() == 4 && ip.header_len() >= ip::LEN)?;
        if usize::from(ip.total_len()) < ip.header_len() {
            return None;
        }
        let has_ports = matches!(ip.protocol(), ip::PROTOCOL_TCP | ip::PROTOCOL_UDP) && ip.is_first_fragment();
        let ports = ip.payload().first_chunk::<4>().filter(|_| has_ports);
        let ports = ports.map(|[a, b, c, d]| [u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d])]);
        Some(Self { protocol: ip.protocol(), addresses: [ip.source(), ip.destination()].map(Ipv4Addr::to_bits), ports })
    }

    /// The ports that it comes from and goes to; nothing where they are not in the packet.
    #[inline]
    pub(super) fn ports(&self) -> Option<[u16; 2]> {
        self.ports
    }
}

/// Numbers from one to another, apart and in ascending order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    fn of(mut all: Vec<(u32, u32)>) -> Self {
        all.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::with_capacity(all.len());
        for (first, last) in all {
            match joined.last_mut().filter(|before| first <= before.1.saturating_add(1)) {
                Some(before) => before.1 = before.1.max(last),
                None => joined.push((first, last)),
            }
        }
        Self(joined)
    }

    /// All up to a number, but for these.
    fn others(&self, most: u32) -> Self {
        let (mut others, mut next) = (Vec::new(), Some(0));
        for &(first, last) in &self.0 {
            if let Some(begin) = next.filter(|begin| *begin < first) {
                others.push((begin, first - 1));
            }
            next = last.checked_add(1);
        }
        others.extend(next.filter(|begin| *begin <= most).map(|begin| (begin, most)));
        Self(others)
    }

    fn has(&self, number: u32) -> bool {
        let behind = self.0.partition_point(|(first, _)| *first <= number);
        behind.checked_sub(1).is_some_and(|at| number <= self.0[at].1)
    }

    fn count(&self) -> usize {
        self.0.iter().map(|(first, last)| (last - first) as usize + 1).sum()
    }
}

/// Numbers from one to another.
type Spans = Vec<(u32, u32)>;

/// Of what there are sets: the largest number, and how one item is read.
#[derive(Clone, Copy)]
struct Kind {
    most: u32,
    item: fn(&str) -> Result<Spans, String>,
}

const ADDRESSES: Kind = Kind { most: u32::MAX, item: address };
const PORTS: Kind = Kind { most: PORT_MAX, item: port };

fn address(text: &str) -> Result<Spans, String> {
    let wrong = || format!("'{text}' is no address");
    // No packet that is looked at here has one of IPv6.
    if text.contains(':') {
        return Ok(Vec::new());
    }
    let (address, len) = text.split_once('/').unwrap_or((text, "32"));
    let address: Ipv4Addr = address.parse().map_err(|_| wrong())?;
    let mask = match len.parse::<u32>() {
        Ok(len @ 0..=32) => u32::MAX.checked_shl(32 - len).unwrap_or(0),
        _ => len.parse::<Ipv4Addr>().map_err(|_| wrong())?.to_bits(),
    };
    if (!mask).checked_add(1).is_some_and(|bits| !bits.is_power_of_two()) {
        return Err(wrong());
    }
    let first = address.to_bits() & mask;
    Ok(vec![(first, first | !mask)])
}

fn port(text: &str) -> Result<Spans, String> {
    let number = |text: &str, default: u32| match text {
        "" => Ok(default),
        text => text.parse::<u16>().map(u32::from).map_err(|_| format!("'{text}' is no port")),
    };
    let (first, last) = match text.split_once(':') {
        Some((first, last)) => (number(first, 0)?, number(last, PORT_MAX)?),
        None if text.is_empty() => return Err("a port is missing".to_owned()),
        None => (number(text, 0)?, number(text, 0)?),
    };
    if first > last { Err(format!("'{text}' has no port")) } else { Ok(vec![(first, last)]) }
}

/// What stands between commas, but for those between brackets.
fn items(list: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let ends = |c: char| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth == 0
    };
    list.split(ends).map(str::trim).filter(|item| !item.is_empty()).collect()
}

impl Variables {
    /// What a text stands for; nothing where that is not known. All texts together may have as many items as are `left`.
    fn set(&self, text: &str, kind: Kind, left: &mut usize) -> Result<Option<Ranges>, String> {
        let mut own = ITEMS_MAX.min(*left);
        let before = own;
        let set = self.part(text, kind, DEPTH_MAX, &mut own);
        *left -= before - own;
        set
    }

    fn part(&self, text: &str, kind: Kind, depth: usize, left: &mut usize) -> Result<Option<Ranges>, String> {
        let deeper = depth.checked_sub(1).ok_or("variables or brackets stand in each other too often")?;
        *left = left.checked_sub(1).ok_or("it or all rules together have too many addresses and ports")?;
        if let Some(rest) = text.strip_prefix('!') {
            return Ok(self.part(rest.trim_start(), kind, deeper, left)?.map(|ranges| ranges.others(kind.most)));
        }
        if let Some(name) = text.strip_prefix('$') {
            let value = self.0.get(name);
            return value.map_or(Ok(None), |value| self.part(value, kind, deeper, left));
        }
        if let Some(list) = text.strip_prefix('[') {
            let list = list.strip_suffix(']').ok_or_else(|| format!("'{text}' has no closing bracket"))?;
            return self.list(&items(list), kind, deeper, left);
        }
        if text == "any" {
            return Ok(Some(Ranges(vec![(0, kind.most)])));
        }
        (kind.item)(text).map(|ranges| Some(Ranges::of(ranges)))
    }

    /// Those of a list that are in it by an item, or all where it has none but exceptions, without those exceptions.
    fn list(&self, items: &[&str], kind: Kind, depth: usize, left: &mut usize) -> Result<Option<Ranges>, String> {
        let (mut with, mut without, mut is_known, mut has_with) = (Vec::new(), Vec::new(), true, false);
        for item in items {
            if let Some(item) = item.strip_prefix('!') {
                // An exception that is not known is none.
                without.extend(self.part(item, kind, depth, left)?.unwrap_or_default().0);
                continue;
            }
            has_with = true;
            match self.part(item, kind, depth, left)? {
                Some(ranges) => with.extend(ranges.0),
                None => is_known = false,
            }
        }
        let excepted = Ranges::of(without);
        if !is_known || !has_with {
            return Ok(Some(excepted.others(kind.most)));
        }
        // What is in the one and not in the other is what is neither outside of the one nor in the other.
        let outside = Ranges::of(with).others(kind.most);
        Ok(Some(Ranges::of([outside.0, excepted.0].concat()).others(kind.most)))
    }
}

/// Ports of which a packet has one at a side, or else a rule is not for it.
pub(super) struct Ports {
    pub(super) numbers: Vec<u16>,
    /// Whether that is where it comes from, or where it goes to; both: one of them has it.
    pub(super) sides: [bool; 2],
}

/// What the header of a rule says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ends {
    protocol: Option<u8>,
    /// Source and destination; nothing: all.
    addresses: [Option<Ranges>; 2],
    ports: [Option<Ranges>; 2],
    /// Packets in the other direction are meant as well.
    is_either: bool,
}

impl Ends {
    /// Of a header, which may have as many addresses and ports as are `left`. What of it is not evaluated goes to `notes`.
    pub(super) fn new(header: &Header, variables: &Variables, left: &mut usize, notes: &mut Vec<String>) -> Self {
        let protocol = match &header.proto.to_ascii_lowercase()[..] {
            "tcp" | "tcp-pkt" | "tcp-stream" => Some(ip::PROTOCOL_TCP),
            "udp" => Some(ip::PROTOCOL_UDP),
            "icmp" => Some(ip::PROTOCOL_ICMP),
            "ip" | "pkthdr" => None,
            other => {
                notes.push(format!("protocol {other}"));
                None
            }
        };
        let mut ends = Self { protocol, addresses: [None, None], ports: [None, None], is_either: false };
        let Some([source, source_port, direction, destination, destination_port]) = &header.ends else { return ends };
        let mut set = |text: &str, kind| {
            variables.set(text, kind, left).unwrap_or_else(|wrong| {
                notes.push(wrong);
                None
            })
        };
        ends.addresses = [source, destination].map(|text| set(text, ADDRESSES));
        ends.ports = [source_port, destination_port].map(|text| set(text, PORTS));
        if direction == "<-" {
            ends.addresses.reverse();
            ends.ports.reverse();
        }
        ends.is_either = matches!(&direction[..], "<>" | "=>");
        ends
    }

    /// The ports that packets with ports are told by, those of the side that has fewer of them; nothing where these are more than
    /// `most`, or not known.
    pub(super) fn ports(&self, most: usize) -> Option<Ports> {
        let count = |side: &usize| self.ports[*side].as_ref().map_or(usize::MAX, Ranges::count);
        let side = [1, 0].into_iter().min_by_key(count)?;
        let ranges = self.ports[side].as_ref().filter(|ranges| ranges.count() <= most)?;
        let numbers = ranges.0.iter().flat_map(|(first, last)| *first as u16..=*last as u16).collect();
        Some(Ports { numbers, sides: [0, 1].map(|other| other == side || self.is_either) })
    }

    /// Whether it is for all packets, as far as it can be seen at once.
    pub(super) fn is_any(&self) -> bool {
        let has_all = |set: &Option<Ranges>, most: u32| set.as_ref().is_none_or(|set| set.0[..] == [(0, most)]);
        let (addresses, ports) = (&self.addresses, &self.ports);
        self.protocol.is_none()
            && addresses.iter().all(|set| has_all(set, u32::MAX))
            && ports.iter().all(|set| has_all(set, PORT_MAX))
    }

    /// Whether a packet is one that the rule is for.
    pub(super) fn is_met(&self, facts: &Facts) -> bool {
        let Facts { protocol, addresses, ports } = facts;
        let has = |set: &Option<Ranges>, number: u32| set.as_ref().is_none_or(|set| set.has(number));
        let is_way = |from: usize, to: usize| {
            let [sources, destinations] = &self.addresses;
            let [source_ports, destination_ports] = &self.ports;
            let fits =
                |ports: &[u16; 2]| has(source_ports, ports[from].into()) && has(destination_ports, ports[to].into());
            has(sources, addresses[from]) && has(destinations, addresses[to]) && ports.as_ref().is_none_or(fits)
        };
        self.protocol.is_none_or(|wanted| wanted == *protocol) && (is_way(0, 1) || self.is_either && is_way(1, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;
    use bifolio_testing::seed;

    fn ends(header: &str, variables: &Variables) -> (Ends, Vec<String>) {
        let read = parse(format!("alert {header} (content:\"x\";)").as_bytes());
        let mut notes = Vec::new();
        (Ends::new(&read.rules[0].header, variables, &mut { ITEMS_TOTAL }, &mut notes), notes)
    }

    fn facts(protocol: u8, from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Facts {
        let addresses = [from.0, to.0].map(u32::from_be_bytes);
        Facts { protocol, addresses, ports: Some([from.1, to.1]) }
    }

    #[test]
    fn protocols_addresses_ports_and_directions_are_looked_at() {
        let variables =
            Variables::new(["HOME_NET [10.0.0.0/8, !10.1.0.0/16]", "EXTERNAL_NET !$HOME_NET", "WEB [80,8000:8080]"])
                .unwrap();
        let (inside, hole, outside) = (([10, 0, 0, 1], 5), ([10, 1, 0, 1], 5), ([9, 9, 9, 9], 80));
        for (header, packet, is_met) in [
            ("tcp $EXTERNAL_NET any -> $HOME_NET any", facts(6, outside, inside), true),
            ("tcp $EXTERNAL_NET any -> $HOME_NET any", facts(6, inside, outside), false),
            ("tcp $EXTERNAL_NET any <> $HOME_NET any", facts(6, inside, outside), true),
            ("tcp $HOME_NET any <- $EXTERNAL_NET any", facts(6, outside, inside), true),
            ("tcp $EXTERNAL_NET any -> $HOME_NET any", facts(6, hole, inside), true),
            ("udp $EXTERNAL_NET any -> $HOME_NET any", facts(6, outside, inside), false),
            ("ip any any -> any any", facts(47, hole, outside), true),
            ("tcp any $WEB -> any !80", facts(6, outside, inside), true),
            ("tcp any $WEB -> any !$WEB", facts(6, outside, ([1; 4], 8040)), false),
            ("tcp any [:79,81:] -> any any", facts(6, outside, inside), false),
            ("tcp any [1:,!80] -> any any", facts(6, outside, inside), false),
            ("tcp [9.9.9.0/255.255.255.0,2001:db8::1] any -> any any", facts(6, outside, inside), true),
            ("tcp 2001:db8::1 any -> any any", facts(6, outside, inside), false),
            ("tcp [!9.9.9.9] any -> any any", facts(6, outside, inside), false),
            ("tcp !any any -> any any", facts(6, outside, inside), false),
            // What is not known refuses nothing.
            ("tcp $NOWHERE $NOTHING -> !$NOWHERE any", facts(6, outside, inside), true),
            ("tcp [$NOWHERE,!9.9.9.9] any -> any any", facts(6, outside, inside), false),
            ("tcp any 1 -> any 2", Facts { ports: None, ..facts(6, outside, inside) }, true),
        ] {
            let (ends, notes) = ends(header, &variables);
            assert_eq!((ends.is_met(&packet), &notes[..]), (is_met, &[][..]), "{header} of {packet:?}");
        }
    }

    #[test]
    fn what_is_not_understood_is_told_and_counts_as_met() {
        let circle = Variables(BTreeMap::from([("A".into(), "$B".into()), ("B".into(), "$A".into())]));
        for (header, note) in [
            ("http any any -> any any", "protocol http"),
            ("tcp 1.2.3 any -> any any", "'1.2.3' is no address"),
            ("tcp 1.2.3.4/33 any -> any any", "'1.2.3.4/33' is no address"),
            ("tcp 1.2.3.4/255.0.255.0 any -> any any", "'1.2.3.4/255.0.255.0' is no address"),
            ("tcp any 65536 -> any any", "'65536' is no port"),
            ("tcp any 9:8 -> any any", "'9:8' has no port"),
            ("tcp $A any -> any any", "variables or brackets stand in each other too often"),
        ] {
            let (ends, notes) = ends(header, &circle);
            assert_eq!(notes, [note], "{header}");
            assert!(ends.is_met(&facts(6, ([5; 4], 5), ([6; 4], 6))), "{header}");
        }
    }

    /// Variables that name the one before them twice: as many addresses as there are atoms, if somebody counts them all.
    #[test]
    fn variables_that_explode_are_refused() {
        let mut all = BTreeMap::from([("V0".to_owned(), "[1.2.3.4,1.2.3.5]".to_owned())]);
        for at in 1..14 {
            let before = vec![format!("$V{}", at - 1); 9].join(",");
            all.insert(format!("V{at}"), format!("[{before}]"));
        }
        let (all, mut left) = (Variables(all), ITEMS_TOTAL);
        let told = all.set("$V6", ADDRESSES, &mut left).unwrap_err();
        assert_eq!(told, "it or all rules together have too many addresses and ports");
        assert_eq!(left, ITEMS_TOTAL - ITEMS_MAX);
        // What is left for all bounds one, too.
        while left > 0 {
            assert!(all.set("$V6", ADDRESSES, &mut left).is_err());
        }
        assert!(all.set("any", ADDRESSES, &mut left).is_err());
        assert_eq!(Variables::new(["X"]).unwrap_err(), "'X' has no value");
        assert_eq!(Variables::new(["X 10.0.0.300"]).unwrap_err(), "X: '10.0.0.300' is no address");
        assert_eq!(Variables::new(["X [80,81]", "$Y $X"]).map(|all| all.0.len()), Ok(2));
    }

    #[test]
    fn ranges_are_as_sets_of_their_numbers() {
        let mut random = fastrand::Rng::with_seed(seed());
        for _ in 0..500 {
            let mut draw = || -> Vec<(u32, u32)> {
                (0..random.usize(..5))
                    .map(|_| (random.u32(..60), random.u32(..9)))
                    .map(|(at, len)| (at, at + len))
                    .collect()
            };
            let (with, without) = (draw(), draw());
            let text = |(first, last): &(u32, u32)| format!("{first}:{last}");
            let mut items: Vec<String> = with.iter().map(text).collect();
            items.extend(without.iter().map(|range| format!("!{}", text(range))));
            let set = Variables::default()
                .set(&format!("[{}]", items.join(",")), PORTS, &mut { ITEMS_TOTAL })
                .unwrap()
                .unwrap();
            for number in 0..80 {
                let is_in = |all: &[(u32, u32)]| all.iter().any(|(first, last)| (*first..=*last).contains(&number));
                let expected = (with.is_empty() || is_in(&with)) && !is_in(&without);
                assert_eq!(set.has(number), expected, "{number} in {items:?}");
                assert_eq!(set.others(PORT_MAX).has(number), !expected);
            }
            assert!(set.0.is_sorted() && set.0.windows(2).all(|two| two[0].1 + 1 < two[1].0), "{set:?}");
        }
    }

    #[test]
    fn facts_are_read_from_headers_that_tell_the_truth() {
        let packet = crate::streams::segment([7, 80], 0, 0, b"x");
        let expected = facts(6, ([10, 0, 0, 1], 7), ([10, 0, 0, 2], 80));
        assert_eq!(Facts::of(&packet), Some(expected));
        assert_eq!(Facts::of(&packet[..22]), Some(Facts { ports: None, ..expected }));
        let changed = |at: usize, byte: u8| {
            let mut packet = packet.clone();
            packet[at] = byte;
            Facts::of(&packet)
        };
        assert_eq!((changed(0, 0x65), changed(0, 0x44), changed(3, 19)), (None, None, None));
        assert_eq!(changed(7, 1), Some(Facts { ports: None, ..expected }), "a later fragment");
    }
}
