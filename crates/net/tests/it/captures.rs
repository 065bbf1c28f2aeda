//! The router of the examples on captures, in simulated time.

use crate::live::start_example;
use crate::traffic::{SECOND, Timed, ether, read, write};
use bifolio_net::Clock;
use bifolio_net::headers::checksum;
use bifolio_net::router::Options;
use std::path::Path;

const ROUTER: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

/// A frame with an IP packet to the router, at link `link`.
fn frame(link: usize, src: [u8; 4], dst: [u8; 4], ttl: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let len = (20 + payload.len()) as u16;
    let mut header = [0x45, 0, 0, 0, 0, 9, flags, 0, ttl, 17, 0, 0];
    header[2..4].copy_from_slice(&len.to_be_bytes());
    let mut header = [&header[..], &src, &dst].concat();
    let sum = checksum::internet(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [&ROUTER[link][..], &ether(src), &[8, 0], &header, payload].concat()
}

/// The answer of a host to an ARP question of the router.
fn arp_answer(link: usize, ip: [u8; 4]) -> Vec<u8> {
    let router = [10, 0, link as u8, 1];
    let body = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &ether(ip), &ip, &ROUTER[link], &router].concat();
    [&ROUTER[link][..], &ether(ip), &[8, 6], &body].concat()
}

/// What leaves by the links when this has come by them.
fn route(input: [&[Timed]; 2]) -> [Vec<Timed>; 2] {
    let folder = tempfile::tempdir().unwrap();
    let names = ["in0", "in1", "out0", "out1"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    for (name, packets) in names.iter().zip(input) {
        write(Path::new(name), packets);
    }
    let values =
        [("IN0", &*names[0]), ("IN1", &*names[1]), ("OUT0", &*names[2]), ("OUT1", &*names[3]), ("MTU1", "600")];
    let options = Options { clock: Clock::simulated(), seed: 5, ..Options::default() };
    let mut live = start_example("ip-router-pcap.click", &values, options);
    live.run();
    drop(live);
    [&names[2], &names[3]].map(|name| read(Path::new(name)))
}

const HOST0: [u8; 4] = [10, 0, 0, 2];
const HOST1: [u8; 4] = [10, 0, 1, 2];

/// The IP header's fields that a router changes or that say what a packet is: TTL, protocol, source and destination.
fn header(frame: &[u8]) -> (u8, u8, &[u8], &[u8]) {
    (frame[22], frame[23], &frame[26..30], &frame[30..34])
}

#[test]
fn packets_are_routed_cut_and_told_about() {
    let packets = [
        frame(0, HOST0, HOST1, 64, 0, &[7; 100]),
        frame(0, HOST0, HOST1, 64, 0, &[7; 1000]),
        frame(0, HOST0, HOST1, 64, 0x40, &[7; 1000]),
        frame(0, HOST0, HOST1, 1, 0, &[7; 100]),
        frame(0, HOST0, [10, 0, 0, 1], 64, 0, &[7; 100]),
    ];
    let from_left: Vec<_> = packets.iter().zip(2..).map(|(packet, time)| (time * SECOND, packet.clone())).collect();
    let from_left = [vec![(SECOND, arp_answer(0, HOST0))], from_left].concat();
    let from_right = [(SECOND, arp_answer(1, HOST1))];
    let [left, right] = route([&from_left, &from_right]);

    let of_right: Vec<_> = right.iter().map(|(_, frame)| (frame.len(), header(frame))).collect();
    let on = (63, 17, &HOST0[..], &HOST1[..]);
    // 996 + 4 bytes do not fit into 600 with their header: two fragments, of which all but the last have multiples of 8.
    assert_eq!(of_right, [(134, on), (14 + 20 + 576, on), (14 + 20 + 424, on)]);
    assert!(right.iter().all(|(_, frame)| frame[..12] == [ether(HOST1), ROUTER[1]].concat()));
    assert!(right.iter().all(|(_, frame)| checksum::internet(&frame[14..34]) == 0));

    let of_left: Vec<_> = left.iter().map(|(_, frame)| (frame[34], frame[35], header(frame).3)).collect();
    // Too long for its DF; its time is up; no such port.
    assert_eq!(of_left, [(3, 4, &HOST0[..]), (11, 0, &HOST0[..]), (3, 3, &HOST0[..])]);
    assert_eq!(left[0].1[40..42], 600u16.to_be_bytes(), "the length that fits");
}
