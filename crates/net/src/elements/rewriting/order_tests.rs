//! Rewriters that share flows, and those who look at them, on random traffic: what leaves, and which flows there are, does not
//! depend on whether packets go together.

use std::net::Ipv4Addr;

use fastrand::Rng;

use super::tests::packet;
use crate::Packet;
use crate::elements::testing::{self, Harness};
use crate::headers::{checksum, icmp, ip};

const GATEWAY: &str = include_str!("../../../../../examples/net/nat-gateway.click");
const OWN: [u8; 4] = [203, 0, 113, 1];

/// An ICMP error about the beginning of a packet.
fn error(rng: &mut Rng, from: [u8; 4], about: &[u8]) -> Vec<u8> {
    let kind = [icmp::UNREACHABLE, icmp::TIME_EXCEEDED][rng.usize(..2)];
    let mut message = [&[kind, 1, 0, 0, 0, 0, 0, 0], &about[..about.len().min(rng.usize(20..60))]].concat();
    icmp::set_checksum(&mut message);
    testing::ip(ip::PROTOCOL_ICMP, from, [about[12], about[13], about[14], about[15]], &message)
}

fn text(kind: &str, from: [u8; 4], from_port: u16, to: [u8; 4], to_port: u16) -> String {
    format!("{kind} {} {from_port} {} {to_port}", Ipv4Addr::from(from), Ipv4Addr::from(to))
}

fn set_ttl(bytes: &mut [u8], ttl: u8) {
    bytes[8] = ttl;
    bytes[10..12].fill(0);
    let sum = checksum::internet(&bytes[..20]);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// A frame that comes to the gateway, painted with the side that it comes from.
fn frame(rng: &mut Rng) -> Packet {
    let (inside, outside) = ([192, 168, 0, rng.u8(2..6)], [198, 51, 100, rng.u8(1..3)]);
    let (port, chosen, service, id) =
        (rng.u16(5000..5004), rng.u16(1024..1216), [21, 53, 80][rng.usize(..3)], rng.u16(..8));
    let kind = ["T", "U"][rng.usize(..2)];
    let (side, mut bytes) = match rng.u8(..12) {
        0..4 => (0, packet(&text(kind, inside, port, outside, service), b"abcdef").bytes().to_vec()),
        4..7 => (1, packet(&text(kind, outside, service, OWN, chosen), b"abcdef").bytes().to_vec()),
        7 => (0, packet(&text("ping", inside, id, outside, id), b"abcdef").bytes().to_vec()),
        8 => (1, packet(&text("pong", outside, id, OWN, id), b"abcdef").bytes().to_vec()),
        9 => (1, error(rng, [9, 9, 9, 9], packet(&text("ping", OWN, id, outside, id), b"abcdef").bytes())),
        _ => (1, error(rng, [9, 9, 9, 9], packet(&text(kind, OWN, chosen, outside, service), b"abcdef").bytes())),
    };
    if rng.u8(..10) == 0 {
        set_ttl(&mut bytes, 1);
    }
    let header = [2, 0, 0, 0, 0, 1 + side, 2, 0, 0, 0, 0, 9, 8, 0];
    let mut packet = Packet::from_slice(&[&header[..], &bytes].concat());
    packet.set_anno_u8(crate::packet::anno::PAINT, side);
    packet
}

#[test]
fn a_gateway_sends_the_same_with_batches_and_without() {
    let mut rng = Rng::with_seed(bifolio_testing::seed());
    let config = GATEWAY
        .replace("FromDevice($INNER, METHOD $METHOD)", "give :: Give -> side :: PaintSwitch")
        .replace("FromDevice($OUTER, METHOD $METHOD)", "side [1]")
        .replace("ToDevice($INNER, METHOD $METHOD)", "inner_out :: Take")
        .replace("ToDevice($OUTER, METHOD $METHOD)", "outer_out :: Take");
    let mut harness = Harness::new(&config);
    let mut errors = 0;
    for host in 2..5 {
        harness.write("inner/arp.insert", &format!("192.168.0.{host} 02:00:00:00:01:0{host}")).unwrap();
    }
    for round in 0..60 {
        if round == 3 {
            harness.write("outer/arp.insert", "203.0.113.254 02:00:00:00:00:fe").unwrap();
        }
        let count = rng.usize(1..120);
        harness.give("give", (0..count).map(|_| frame(&mut rng)).collect::<Vec<_>>());
        let is_error =
            |bytes: &Vec<u8>| bytes.len() > 34 && bytes[23] == ip::PROTOCOL_ICMP && bytes[34] != icmp::ECHO_REPLY;
        errors += harness.take_bytes("inner_out").into_iter().filter(is_error).count();
        harness.take_bytes("outer_out");
        for handler in ["flows.tcp_table", "flows.udp_table", "pings.table", "flows.mapping_failures"] {
            harness.read(handler);
        }
        harness.pass(rng.f64() * 20.0);
    }
    assert!(errors > 10, "only {errors} errors came back");
}

/// A segment or datagram, painted with the input that it comes to.
fn visitor(rng: &mut Rng) -> Packet {
    let (inside, outside) = ([10, 0, 0, rng.u8(1..4)], [2, 0, 0, rng.u8(1..3)]);
    let (own, chosen) =
        if rng.u8(..3) > 0 { ([1, 0, 0, 1], rng.u16(1024..1061)) } else { ([1, 0, 0, 2], rng.u16(2000..2011)) };
    let (port, kind) = (rng.u16(30..33), ["T", "T", "U"][rng.usize(..3)]);
    let data = match rng.u8(..4) {
        0 => format!("PORT 10,0,0,{},7,{}\r\n", rng.u8(1..4), rng.u8(1..200)),
        _ => "abcdefgh".to_owned(),
    };
    let (input, mut packet) = match rng.u8(..10) {
        0..3 => (0, packet(&text("T", inside, port, outside, 21), data.as_bytes())),
        3 => (1, packet(&text("T", outside, 21, own, chosen), data.as_bytes())),
        4 | 5 => (2 + rng.u8(..2), packet(&text(kind, inside, port, outside, 20), b"abcd")),
        6 => (4, packet(&text(kind, outside, 20, own, chosen), b"abcd")),
        _ => {
            let service = rng.u16(20..22);
            let about = packet(&text(kind, own, chosen, outside, service), b"abcdefgh");
            let mut packet = Packet::from_slice(&error(rng, [9, 9, 9, 9], about.bytes()));
            packet.set_network_header(0, 20);
            (5, packet)
        }
    };
    packet.set_anno_u8(crate::packet::anno::PAINT, input);
    packet
}

/// FTP commands make flows of one rewriter for control packets of another one; they share a capacity, patterns and a mapper,
/// and one leads to the other.
#[test]
fn rewriters_that_share_do_the_same_with_batches_and_without() {
    let mut rng = Rng::with_seed(bifolio_testing::seed());
    let config = "IPRewriterPatterns(pat 1.0.0.1 1024-1060# - -);
         m :: RoundRobinIPMapper(pat 0 1, 1.0.0.2 2000-2010? - - 0 1);
         control :: TCPRewriter(pattern pat 0 1, drop, MAPPING_CAPACITY 25);
         data :: IPRewriter(pattern pat 0 1, m, drop, MAPPING_CAPACITY control);
         errors :: ICMPRewriter(control data);
         give :: Give -> sw :: PaintSwitch;
         sw[0] -> FTPPortMapper(control, data, 0) -> [0] control; sw[1] -> [1] control;
         sw[2] -> [0] data; sw[3] -> [1] data; sw[4] -> [2] data; sw[5] -> errors;
         control[0] -> tee :: Tee -> c0 :: Take; tee[1] -> [1] data; control[1] -> c1 :: Take;
         data[0] -> d0 :: Take; data[1] -> d1 :: Take; errors[0] -> e0 :: Take; errors[1] -> e1 :: Take";
    let sinks = ["c0", "c1", "d0", "d1", "e0", "e1"];
    let mut harness = Harness::new(config);
    let mut came = [0; 6];
    for _ in 0..150 {
        let count = rng.usize(1..100);
        harness.give("give", (0..count).map(|_| visitor(&mut rng)).collect::<Vec<_>>());
        came.iter_mut().zip(sinks).for_each(|(came, sink)| *came += harness.take(sink).len());
        for handler in ["control.table", "data.tcp_table", "data.udp_table", "control.size", "data.mapping_failures"] {
            harness.read(handler);
        }
        harness.pass(rng.f64() * 10.0);
    }
    assert!(came.iter().all(|&came| came > 3), "{sinks:?}: {came:?}");
}
