//! Flows, patterns and changes together.

use std::net::Ipv4Addr;
use std::sync::Arc;

use bifolio_testing::{noise, seed};

use super::*;
use crate::headers::{FlowId, Icmp, Ip, IpMut, checksum, icmp, ip};

struct NoNames;

impl Names for NoNames {
    fn address(&self, text: &str) -> Option<Ipv4Addr> {
        text.parse().ok()
    }

    fn prefix(&self, text: &str) -> Option<(Ipv4Addr, u32)> {
        let (address, len) = text.split_once('/')?;
        Some((address.parse().ok()?, len.parse().ok().filter(|len| *len <= 32)?))
    }
}

fn pattern(text: &str) -> Result<Arc<Pattern>, String> {
    Pattern::parse(&text.split(' ').collect::<Vec<_>>(), &NoNames)
}

fn flow(n: u32) -> FlowId {
    FlowId::new(Ipv4Addr::from_bits(0x0a00_0000 + n), 1000, Ipv4Addr::new(2, 0, 0, 2), 80)
}

/// A set with one table and one owner.
fn set() -> (FlowSet, NewFlow) {
    let mut set = FlowSet::default();
    let (map, owner) = (set.add_map(), set.add_owner());
    let (flow, rewritten) = (flow(0), flow(0));
    (set, NewFlow { map, owner, flow, rewritten, outputs: [0, 1], protocol: 6, variable: None })
}

/// What a pattern makes of a flow, which becomes one of the set.
fn make(set: &mut FlowSet, new: &NewFlow, pattern: &Pattern, flow: FlowId, ping: bool) -> Option<FlowId> {
    let mut random = |top: u32| fastrand::u32(..=top);
    let (rewritten, variable) = pattern.rewrite(flow, ping, set, new.map, &mut random)?;
    set.insert(&NewFlow { flow, rewritten, variable, ..*new }, 1, 5, 10)?;
    Some(rewritten)
}

#[test]
fn patterns_are_written_as_they_are_read() {
    for (text, written) in [
        ("1.0.0.1 1 - -", "1.0.0.1 1 - -"),
        ("1.0.0.1 1-65535 - -", "1.0.0.1 1-65535 - -"),
        ("1.0.0.1 1024-1026# 2.0.0.2 80", "1.0.0.1 1024-1026 2.0.0.2 80"),
        ("- 5-6? - -", "- 5-6 - -"),
        ("1.0.0.1 - - -", "1.0.0.1 - - -"),
        ("1.0.0.1 7-7 - -", "1.0.0.1 7 - -"),
        ("- - - -", "- - - -"),
        ("1.0.0.1 -", "1.0.0.1 -"),
        ("1.0.0.1-1.0.0.9# 2.0.0.2", "1.0.0.1-1.0.0.9 2.0.0.2"),
        ("1.0.0.77/24 -", "1.0.0.1-1.0.0.254 -"),
        ("1.0.0.77/31 -", "1.0.0.76-1.0.0.77 -"),
        ("1.0.0.77/32 -", "1.0.0.77 -"),
    ] {
        assert_eq!(pattern(text).unwrap().to_string(), written, "{text}");
    }
    for (text, error) in [
        ("1.0.0.1 1x - -", "bad source port"),
        ("1.0.0.0 456-19 - -", "bad source port"),
        ("1.0.0.0 456-65536 - -", "bad source port"),
        ("1.0.0.0 0 - -", "bad source port"),
        ("1.0.0 1 - -", "bad source address"),
        ("1.0.0.9-1.0.0.1 -", "bad source address"),
        ("1.0.0.0/0 -", "bad source address"),
        ("- - x -", "bad destination address"),
        ("- - - 0", "bad destination port"),
        ("- - - 1-2", "bad destination port"),
        ("name", "syntax error"),
        ("- - - - -", "syntax error"),
    ] {
        assert_eq!(pattern(text).unwrap_err(), error, "{text}");
    }
}

#[test]
fn ports_are_taken_in_turn_and_used_again_when_free() {
    let (mut set, new) = set();
    let pattern = pattern("1.0.0.1 1024-1026# - -").unwrap();
    let port = |set: &mut FlowSet, n| make(set, &new, &pattern, flow(n), false).map(|flow| flow.source_port);
    assert_eq!([1, 2, 3, 4].map(|n| port(&mut set, n)), [Some(1024), Some(1025), Some(1026), None]);
    let other = FlowId { destination_port: 81, ..flow(9) };
    assert_eq!(make(&mut set, &new, &pattern, other, false).unwrap().source_port, 1024);
    set.shrink(11, false);
    assert_eq!((set.len(), port(&mut set, 5)), (0, Some(1025)));
}

#[test]
fn a_flow_keeps_its_own_port_where_that_is_free() {
    let (mut set, new) = set();
    let pattern = pattern("1.0.0.1 1000-1001 - -").unwrap();
    let port = |set: &mut FlowSet, n| make(set, &new, &pattern, flow(n), false).map(|flow| flow.source_port);
    assert_eq!([1, 2, 3].map(|n| port(&mut set, n)), [Some(1000), Some(1001), None]);
}

#[test]
fn no_two_flows_get_the_same_value_however_full_a_range_is() {
    for (text, ping) in [("1.0.0.1 2000-2999? - -", false), ("1.0.0.0/22 -", false), ("1.0.0.1 2000-2999 - -", true)] {
        let (mut set, new) = set();
        let pattern = pattern(text).unwrap();
        // Flows of another kind, in the middle of the range: they are found, not known.
        for i in 0..50 {
            let rewritten = if text.contains('/') {
                FlowId { source: Ipv4Addr::new(1, 0, 1, i), ..flow(0) }
            } else {
                FlowId { source: Ipv4Addr::new(1, 0, 0, 1), source_port: 2100 + u16::from(i), ..flow(0) }
            };
            let rewritten =
                if ping { FlowId { destination_port: rewritten.source_port + 1, ..rewritten } } else { rewritten };
            set.insert(&NewFlow { flow: flow(0x1_0000 + u32::from(i)), rewritten, ..new }, 1, 5, 10).unwrap();
        }
        let total = if text.contains('/') { 1022 } else { 1000 };
        for n in 0..total - 50 {
            assert!(make(&mut set, &new, &pattern, flow(n), ping).is_some(), "{text} {n}");
        }
        assert_eq!(make(&mut set, &new, &pattern, flow(5000), ping), None);
        assert_eq!(set.len(), total as usize);
        for n in 0..total - 50 {
            let entry = set.find(new.map, flow(n)).unwrap();
            let reply = set.flow(entry).rewritten(false).reverse();
            assert!(set.find(new.map, reply).unwrap().reply);
        }
    }
}

/// An oracle: flows in a list, of which the right one is found by looking at each.
#[test]
fn a_full_set_gives_up_what_ends_first_and_is_not_guaranteed() {
    struct Known {
        flow: FlowId,
        guaranteed: u64,
        expiry: u64,
    }
    let mut rng = fastrand::Rng::with_seed(seed());
    for _ in 0..50 {
        let (mut set, new) = set();
        set.set_capacity(20);
        let mut known: Vec<Known> = Vec::new();
        let mut now = 1;
        for _ in 0..1000 {
            now += rng.u64(..20);
            let (guarantee, timeout) = ([0, 0, 100, 300][rng.usize(..4)], rng.u64(1..2000) * 2);
            let guaranteed = if guarantee > 0 { now + guarantee } else { 0 };
            let key = flow(rng.u32(..60));
            match (set.find(new.map, key), rng.u8(..100)) {
                (_, 0) => {
                    let capacity = rng.usize(5..30);
                    set.set_capacity(capacity);
                    set.shrink(now, false);
                    known.retain(|flow| flow.guaranteed > now || flow.expiry > now);
                    // Those that are guaranteed last, and ties as they come.
                    known.sort_by_key(|flow| {
                        (flow.guaranteed > now, if flow.guaranteed > now { flow.guaranteed } else { flow.expiry })
                    });
                    let over = known.len().saturating_sub(capacity);
                    assert_eq!(set.len(), known.len() - over);
                    known.retain(|flow| set.find(new.map, flow.flow).is_some());
                }
                (Some(entry), _) => {
                    assert!(!entry.reply);
                    set.touch(entry, now, guarantee, timeout);
                    let old = known.iter_mut().find(|old| old.flow == key).unwrap();
                    (old.guaranteed, old.expiry) = (guaranteed, now + timeout);
                }
                (None, _) => {
                    assert!(known.iter().all(|old| old.flow != key));
                    let rewritten =
                        FlowId { source: Ipv4Addr::new(1, 0, 0, 1), source_port: key.source.octets()[3].into(), ..key };
                    let made = set.insert(&NewFlow { flow: key, rewritten, ..new }, now, guarantee, timeout);
                    known.push(Known { flow: key, guaranteed, expiry: now + timeout });
                    if known.len() > set.capacity() {
                        let first = known.iter().filter(|old| old.guaranteed <= now).map(|old| old.expiry).min();
                        let gone = known.iter().position(|old| set.find(new.map, old.flow).is_none()).unwrap();
                        let gone = known.swap_remove(gone);
                        assert_eq!(gone.flow == key, made.is_none());
                        assert!(
                            gone.guaranteed <= now && Some(gone.expiry) == first || first.is_none() && gone.flow == key
                        );
                    }
                }
            }
            assert_eq!((set.len(), set.count(new.owner) as usize), (known.len(), known.len()));
            assert!(known.iter().all(|old| set.find(new.map, old.flow).is_some()));
        }
        set.shrink(now, true);
        assert!(set.is_empty());
    }
}

#[test]
fn a_new_flow_ends_the_one_with_its_replies() {
    let (mut set, new) = set();
    let rewritten = FlowId { source: Ipv4Addr::new(1, 0, 0, 1), ..flow(1) };
    set.insert(&NewFlow { flow: flow(1), rewritten, ..new }, 1, 0, 10).unwrap();
    set.insert(&NewFlow { flow: flow(2), rewritten, ..new }, 1, 0, 10).unwrap();
    assert_eq!((set.len(), set.find(new.map, flow(1))), (1, None));
    let reply = set.find(new.map, rewritten.reverse()).unwrap();
    assert_eq!((reply.reply, set.flow(reply).rewritten(true)), (true, flow(2).reverse()));
    // One between a port and itself is found once.
    let own = FlowId::new(Ipv4Addr::new(9, 9, 9, 9), 5, Ipv4Addr::new(9, 9, 9, 9), 5);
    set.insert(&NewFlow { flow: own, rewritten: own, ..new }, 1, 0, 10).unwrap();
    assert!(set.find(new.map, own).unwrap().reply);
    set.remove_owned(new.owner);
    assert_eq!((set.len(), set.find(new.map, own), set.count(new.owner)), (0, None, 0));
}

/// A packet of a flow, with right checksums.
fn packet(flow: FlowId, protocol: u8, payload: usize, rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut packet = noise(20 + payload, rng.u64(..));
    let len = packet.len() as u16;
    let mut header = IpMut::new(&mut packet).unwrap();
    header.clear(20);
    header.set_total_len(len);
    header.set_ttl(9);
    header.set_protocol(protocol);
    header.set_source(flow.source);
    header.set_destination(flow.destination);
    ip::set_checksum(&mut packet);
    let transport = &mut packet[20..];
    if protocol == ip::PROTOCOL_ICMP {
        transport[..2].copy_from_slice(&[8, 0]);
        transport[4..6].copy_from_slice(&flow.source_port.to_be_bytes());
        icmp::set_checksum(transport);
        return packet;
    }
    let at = match protocol {
        ip::PROTOCOL_TCP => Some(16),
        ip::PROTOCOL_UDP | ip::PROTOCOL_DCCP => Some(6),
        _ => None,
    };
    if let Some(at) = at {
        transport[..2].copy_from_slice(&flow.source_port.to_be_bytes());
        transport[2..4].copy_from_slice(&flow.destination_port.to_be_bytes());
        transport[at..at + 2].fill(0);
        let sum = checksum::transport(flow.source, flow.destination, protocol, transport);
        let sum = if sum == 0 && protocol == ip::PROTOCOL_UDP { 0xffff } else { sum };
        transport[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

/// Whether a packet's checksums are right.
fn is_right(packet: &[u8]) -> bool {
    let ip = Ip::checked(packet).unwrap();
    let transport = match ip.protocol() {
        ip::PROTOCOL_ICMP => checksum::is_valid(ip.payload()),
        ip::PROTOCOL_TCP | ip::PROTOCOL_UDP | ip::PROTOCOL_DCCP => {
            let len = ip.payload().len() as u16;
            checksum::pseudo(ip.source(), ip.destination(), ip.protocol(), len).with(ip.payload()).folded() == 0xffff
        }
        _ => true,
    };
    transport && ip.is_checksum_valid()
}

fn any_flow(rng: &mut fastrand::Rng) -> FlowId {
    FlowId::new(Ipv4Addr::from_bits(rng.u32(..)), rng.u16(..), Ipv4Addr::from_bits(rng.u32(..)), rng.u16(..))
}

#[test]
fn changed_packets_have_right_checksums_and_replies_undo_them() {
    let mut rng = fastrand::Rng::with_seed(seed());
    for _ in 0..5000 {
        let (mut set, new) = set();
        let protocol = [ip::PROTOCOL_TCP, ip::PROTOCOL_UDP, ip::PROTOCOL_DCCP, 89][rng.usize(..4)];
        let (flow, rewritten) = (any_flow(&mut rng), any_flow(&mut rng));
        let rewritten = if rng.u8(..10) == 0 { flow } else { rewritten };
        let entry = set.insert(&NewFlow { flow, rewritten, ..new }, 1, 0, 10).unwrap();
        let original = packet(flow, protocol, rng.usize(20..60), &mut rng);
        let mut bytes = original.clone();
        apply_ports(&mut bytes, set.flow(entry), false);
        assert!(is_right(&bytes), "{protocol}");
        let changed = Ip::new(&bytes).unwrap();
        assert_eq!((changed.source(), changed.destination()), (rewritten.source, rewritten.destination));
        assert_eq!(FlowId::of(changed), Some(rewritten));
        // A reply of it.
        let mut reply = packet(rewritten.reverse(), protocol, 40, &mut rng);
        apply_ports(&mut reply, set.flow(entry), true);
        assert!(is_right(&reply) && FlowId::of(Ip::new(&reply).unwrap()) == Some(flow.reverse()));
        // Addresses alone.
        let mut bytes = original.clone();
        apply_addresses(&mut bytes, set.flow(entry), false);
        assert!(is_right(&bytes));
        assert_eq!(Ip::new(&bytes).unwrap().payload()[..4], original[20..24]);
    }
}

#[test]
fn one_address_is_changed_where_the_other_is_no_part_of_the_flow() {
    let mut rng = fastrand::Rng::with_seed(seed());
    for _ in 0..2000 {
        let (mut set, new) = set();
        let nowhere = Ipv4Addr::UNSPECIFIED;
        let (inside, outside, there) =
            (any_flow(&mut rng).source, any_flow(&mut rng).source, any_flow(&mut rng).source);
        let flow = FlowId::new(inside, 0, nowhere, 0);
        let rewritten = FlowId { source: outside, ..flow };
        let entry = set.insert(&NewFlow { flow, rewritten, ..new }, 1, 0, 10).unwrap();
        let mut bytes = packet(FlowId::new(inside, 1, there, 2), ip::PROTOCOL_UDP, 30, &mut rng);
        apply_source(&mut bytes, set.flow(entry), false);
        assert!(is_right(&bytes) && FlowId::of(Ip::new(&bytes).unwrap()) == Some(FlowId::new(outside, 1, there, 2)));
        let mut bytes = packet(FlowId::new(there, 2, outside, 1), ip::PROTOCOL_TCP, 30, &mut rng);
        apply_source(&mut bytes, set.flow(entry), true);
        assert!(is_right(&bytes) && FlowId::of(Ip::new(&bytes).unwrap()) == Some(FlowId::new(there, 2, inside, 1)));
    }
}

#[test]
fn pings_keep_right_checksums() {
    let mut rng = fastrand::Rng::with_seed(seed());
    for _ in 0..2000 {
        let (mut set, new) = set();
        let [flow, rewritten] = [0; 2].map(|_| {
            let flow = any_flow(&mut rng);
            FlowId { destination_port: flow.source_port.wrapping_add(1), ..flow }
        });
        let entry = set.insert(&NewFlow { flow, rewritten, ..new }, 1, 0, 10).unwrap();
        let mut bytes = packet(flow, ip::PROTOCOL_ICMP, 20, &mut rng);
        apply_ping(&mut bytes, set.flow(entry), false);
        assert!(is_right(&bytes));
        assert_eq!(Icmp::new(&bytes[20..]).unwrap().id(), rewritten.source_port);
        let answer = FlowId { source_port: rewritten.source_port, ..rewritten.reverse() };
        let mut bytes = packet(answer, ip::PROTOCOL_ICMP, 20, &mut rng);
        apply_ping(&mut bytes, set.flow(entry), true);
        assert!(is_right(&bytes));
        let ip = Ip::new(&bytes).unwrap();
        assert_eq!((ip.source(), ip.destination()), (flow.destination, flow.source));
        assert_eq!(Icmp::new(ip.payload()).unwrap().id(), flow.source_port);
    }
}

#[test]
fn a_udp_checksum_does_not_become_none() {
    let mut rng = fastrand::Rng::with_seed(seed());
    let mut seen = 0;
    for _ in 0..200_000 {
        let (mut set, new) = set();
        let (flow, rewritten) = (any_flow(&mut rng), any_flow(&mut rng));
        let entry = set.insert(&NewFlow { flow, rewritten, ..new }, 1, 0, 10).unwrap();
        let mut bytes = packet(flow, ip::PROTOCOL_UDP, 8, &mut rng);
        apply_ports(&mut bytes, set.flow(entry), false);
        assert_ne!(bytes[26..28], [0, 0]);
        seen += usize::from(bytes[26..28] == [0xff, 0xff]);
        bytes[26..28].fill(0);
        apply_ports(&mut bytes, set.flow(entry), true);
        assert_eq!(bytes[26..28], [0, 0], "none stays none");
    }
    println!("{seen} checksums were zero");
}

#[test]
fn errors_are_rewritten_with_the_packet_inside() {
    let mut rng = fastrand::Rng::with_seed(seed());
    for _ in 0..5000 {
        let protocol = [ip::PROTOCOL_TCP, ip::PROTOCOL_UDP, ip::PROTOCOL_DCCP, ip::PROTOCOL_ICMP, 89][rng.usize(..5)];
        let (sent, original) = (any_flow(&mut rng), any_flow(&mut rng));
        let inner = packet(sent, protocol, 30, &mut rng);
        let kept = rng.usize(20..=inner.len());
        let router = Ipv4Addr::from_bits(rng.u32(..));
        let mut bytes = packet(FlowId::new(router, 0, sent.source, 0), ip::PROTOCOL_ICMP, 8 + kept, &mut rng);
        bytes[20] = icmp::UNREACHABLE;
        bytes[28..].copy_from_slice(&inner[..kept]);
        icmp::set_checksum(&mut bytes[20..]);
        let embedded = Embedded::of(&bytes).unwrap();
        let mut to = original.reverse();
        if protocol == ip::PROTOCOL_ICMP {
            to.source_port = to.destination_port.wrapping_add(1);
            if kept >= 26 {
                assert_eq!(embedded.reply.source_port, sent.source_port);
            }
        } else if kept >= 28 && protocol != 89 {
            assert_eq!(embedded.reply, sent.reverse());
        }
        assert_eq!(rewrite_embedded(&mut bytes, &embedded, to), Some(original.source));
        assert!(is_right(&bytes));
        let outer = Ip::new(&bytes).unwrap();
        assert_eq!((outer.source(), outer.destination()), (router, original.source));
        let inside = Ip::new(&bytes[28..]).unwrap();
        assert_eq!((inside.source(), inside.destination()), (original.source, original.destination));
        assert!(inside.is_checksum_valid());
        if kept == inner.len() {
            assert!(is_right(&bytes[28..]), "{protocol}");
        }
    }
}

#[test]
fn any_bytes_are_survived() {
    let mut rng = fastrand::Rng::with_seed(seed());
    for _ in 0..30_000 {
        let (mut set, new) = set();
        let (flow, rewritten) = (any_flow(&mut rng), any_flow(&mut rng));
        let entry = set.insert(&NewFlow { flow, rewritten, ..new }, 1, 0, 10).unwrap();
        let mut bytes = noise(rng.usize(..100), rng.u64(..));
        for (at, value) in [(0, 0x45), (9, [1, 6, 17, 33][rng.usize(..4)]), (20, 3), (28, 0x45), (37, rng.u8(..20))] {
            if rng.bool() && at < bytes.len() {
                bytes[at] = value;
            }
        }
        let apply = [apply_ports, apply_addresses, apply_source, apply_ping][rng.usize(..4)];
        apply(&mut bytes, set.flow(entry), rng.bool());
        set.flow_mut(entry).track_tcp(&bytes, rng.bool());
        if let Some(embedded) = Embedded::of(&bytes) {
            rewrite_embedded(&mut bytes, &embedded, rewritten);
        }
    }
}

/// Flows of some owners go to another set, and are found there from both sides; the others stay. Nothing is lost or counted
/// twice, and what was chosen from a range stays taken.
#[test]
fn flows_go_to_another_set_with_those_who_made_them() {
    let mut rng = fastrand::Rng::with_seed(seed());
    for _ in 0..50 {
        let (mut old, new) = set();
        let (mut next, other) = set();
        let (owners, range) = ([new.owner, old.add_owner()], pattern("1.0.0.1 1024-1200 - -").unwrap());
        let mut flows = Vec::new();
        for n in 0..rng.u32(..100) {
            let owner = owners[rng.usize(..2)];
            let made = make(&mut old, &NewFlow { owner, ..new }, &range, flow(n), false).unwrap();
            flows.push((flow(n), made, owner));
        }
        let before = (old.count(owners[0]), old.count(owners[1]));
        next.take_over(&mut old, |map, owner| {
            (map == new.map && owner == owners[1]).then_some((other.map, other.owner))
        });
        assert_eq!((old.count(owners[0]), old.count(owners[1]), next.count(other.owner)), (before.0, 0, before.1));
        assert_eq!((old.len(), next.len()), (before.0 as usize, before.1 as usize));
        for (flow, made, owner) in &flows {
            let sides = [(&old, new.map), (&next, other.map)].map(|(set, map)| {
                let found = set.find(map, *flow).is_some_and(|entry| set.flow(entry).rewritten(false) == *made);
                assert_eq!(found, set.find(map, made.reverse()).is_some_and(|entry| entry.reply));
                found
            });
            assert_eq!(sides, [*owner == owners[0], *owner == owners[1]]);
        }
        let more: Vec<_> = (200..250).filter_map(|n| make(&mut next, &other, &range, flow(n), false)).collect();
        let kept = flows.iter().filter(|(_, _, owner)| *owner == owners[1]).map(|(_, made, _)| *made);
        let mut all: Vec<_> = more.into_iter().chain(kept).map(|made| made.source_port).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        next.shrink(11, false);
        assert_eq!((next.len(), next.count(other.owner)), (0, 0));
    }
}
