//! Scenarios with hosts that answer, late, wrongly or not at all.

use super::*;
use crate::elements::testing::{Harness, noise};

const ME: [u8; 6] = [2, 1, 0, 10, 10, 15];

fn ip(destination: [u8; 4], content: u8) -> Packet {
    let mut packet = Packet::from_slice(&[content]);
    packet.set_dst_ip(destination.into());
    packet
}

/// An answer that says where an address is.
fn answer(sender: [u8; 4], ether: [u8; 6]) -> Packet {
    let mut bytes = [0; 42];
    bytes[..14].copy_from_slice(&header(EtherAddress(ME), EtherAddress(ether), TYPE_ARP));
    let mut message = ArpMut::new(&mut bytes[14..]).unwrap();
    message.set_operation(arp::REPLY);
    message.set_sender(EtherAddress(ether), sender.into());
    message.set_target(EtherAddress(ME), [1, 0, 10, 10].into());
    Packet::from_slice(&bytes)
}

fn harness(arguments: &str) -> Harness {
    Harness::new(&format!(
        "give :: Give -> q :: ARPQuerier(1.0.10.10/16, 2:1:0:a:a:f, {arguments}) -> take :: Take;\n\
         answers :: Give -> [1]q; q[1] -> asks :: Take"
    ))
}

/// Whom frames are for, and their content.
fn frames(harness: &mut Harness) -> Vec<([u8; 6], u8)> {
    let taken = harness.take("take");
    for packet in &taken {
        let frame = Ether::new(packet.bytes()).unwrap();
        assert_eq!((frame.source(), frame.kind(), packet.mac_offset()), (EtherAddress(ME), TYPE_IP, Some(0)));
    }
    taken.iter().map(|packet| (Ether::new(packet.bytes()).unwrap().destination().0, packet.bytes()[14])).collect()
}

/// Whom questions are sent to, and what they are about.
fn asked(harness: &mut Harness) -> Vec<([u8; 6], [u8; 4])> {
    let taken = harness.take("asks");
    let asked = taken.iter().map(|packet| {
        let frame = Ether::new(packet.bytes()).unwrap();
        let message = Arp::new(frame.payload()).unwrap();
        assert!(message.is_ip_over_ether() && frame.kind() == TYPE_ARP && packet.len() == 42);
        assert_eq!((message.operation(), message.sender(), frame.source().0), (arp::REQUEST, EtherAddress(ME), ME));
        assert_eq!((message.sender_ip().octets(), message.target().0), ([1, 0, 10, 10], [0; 6]));
        (frame.destination().0, message.target_ip().octets())
    });
    asked.collect()
}

const ALL: [u8; 6] = [0xff; 6];

#[test]
fn packets_wait_for_the_answer_and_leave_in_order() {
    let mut harness = harness("");
    harness.give("give", [ip([1, 0, 0, 1], 1), ip([1, 0, 0, 2], 2), ip([1, 0, 0, 1], 3)]);
    assert_eq!((frames(&mut harness), asked(&mut harness)), (vec![], vec![(ALL, [1, 0, 0, 1]), (ALL, [1, 0, 0, 2])]));
    assert_eq!((harness.read("q.length"), harness.read("q.count")), ("3".to_owned(), "2".to_owned()));
    // An odd first byte is a group's, and no host has such an address.
    harness.give("answers", [answer([1, 0, 0, 1], [7; 6])]);
    assert_eq!(frames(&mut harness), []);
    harness.give("answers", [answer([1, 0, 0, 1], [8; 6])]);
    harness.give("give", [ip([1, 0, 0, 1], 4)]);
    assert_eq!(frames(&mut harness), [([8; 6], 1), ([8; 6], 3), ([8; 6], 4)]);
    assert_eq!((asked(&mut harness), harness.read("q.length")), (vec![], "1".to_owned()));
}

#[test]
fn some_addresses_need_no_question() {
    let mut harness = harness("");
    harness.give(
        "give",
        [
            ip([255, 255, 255, 255], 1),
            ip([1, 0, 255, 255], 2),
            ip([224, 129, 2, 3], 3),
            ip([0, 0, 0, 0], 4),
            ip([0, 0, 0, 0], 5),
        ],
    );
    assert_eq!(frames(&mut harness), [(ALL, 1), (ALL, 2), ([1, 0, 0x5e, 1, 2, 3], 3)]);
    assert_eq!((asked(&mut harness), harness.read("q.drops")), (vec![], "2".to_owned()));
    assert_eq!(harness.said(), ["q :: ARPQuerier: would query for 0.0.0.0; missing dest IP addr annotation?"]);
    harness.write("q.broadcast", "1.0.0.9").unwrap();
    harness.give("give", [ip([1, 0, 0, 9], 6)]);
    assert_eq!(frames(&mut harness), [(ALL, 6)]);
}

#[test]
fn questions_are_rate_limited_for_each_address() {
    let mut harness = harness("CAPACITY 10");
    for _ in 0..30 {
        harness.give("give", (0..3).map(|_| ip([2, 0, 0, 2], 0)));
        harness.pass(0.05);
    }
    // Ten tenths of a second, then nothing for two seconds.
    assert_eq!(asked(&mut harness).len(), 10);
    let waiting: u64 = harness.read("q.length").parse().unwrap();
    assert_eq!(harness.read("q.stats"), format!("{} packets killed\n10 ARP queries sent\n", 90 - waiting));
}

#[test]
fn hosts_are_asked_again_before_they_are_forgotten() {
    for (arguments, to) in [("", [7; 6]), ("BROADCAST_POLL true", ALL)] {
        let mut harness = harness(&format!("TIMEOUT 0.1s, POLL_TIMEOUT 0.08s, {arguments}"));
        harness.write("q.insert", "1.0.0.1 7:7:7:7:7:7").unwrap();
        harness.pass(0.05);
        harness.give("give", [ip([1, 0, 0, 1], 1)]);
        assert_eq!((frames(&mut harness).len(), asked(&mut harness).len()), (1, 0));
        harness.pass(0.031);
        harness.give("give", [ip([1, 0, 0, 1], 2)]);
        assert_eq!((frames(&mut harness), asked(&mut harness)), (vec![([7; 6], 2)], vec![(to, [1, 0, 0, 1])]));
        harness.pass(0.03);
        harness.give("give", [ip([1, 0, 0, 1], 3)]);
        assert_eq!((frames(&mut harness), harness.read("q.length")), (vec![], "1".to_owned()));
    }
}

#[test]
fn only_answers_about_hosts_count() {
    let mut harness = harness("");
    let mut request = answer([1, 0, 0, 1], [7; 6]);
    request.bytes_mut()[21] = 1;
    let mut other = answer([1, 0, 0, 2], [7; 6]);
    other.bytes_mut()[12] = 9;
    let cut = Packet::from_slice(&answer([1, 0, 0, 3], [8; 6]).bytes()[..41]);
    harness.give("answers", [request, other, cut, answer([1, 0, 0, 4], [7; 6]), answer([1, 0, 0, 5], [8; 6])]);
    assert_eq!((harness.read("q.responses"), harness.read("q.count")), ("4".to_owned(), "1".to_owned()));
    assert!(harness.read("q.table").starts_with("1.0.0.5 1 08-08-08-08-08-08 "));
}

#[test]
fn a_table_is_shared() {
    for (declared, named) in
        [("t :: ARPTable;", "t"), ("Give -> t :: ARPQuerier(9.0.0.9, 9:9:9:9:9:9) -> Take; Give -> [1]t;", "t")]
    {
        let mut harness = Harness::new(&format!(
            "{declared} give :: Give -> q :: ARPQuerier(TABLE {named}, 1.0.10.10, 2:1:0:a:a:f) -> take :: Take;\n\
             Give -> [1]q"
        ));
        harness.write("t.insert", "1.0.0.1 8:8:8:8:8:8").unwrap();
        harness.give("give", [ip([1, 0, 0, 1], 1)]);
        assert_eq!(frames(&mut harness), [([8; 6], 1)], "{declared}");
        harness.write("q.delete", "1.0.0.1").unwrap();
        assert!(harness.read("t.table").starts_with("1.0.0.1 0 FF"));
        harness.write("q.clear", "").unwrap();
        assert_eq!(harness.read("t.count"), "0");
    }
    let told =
        Harness::errors("Give -> q :: ARPQuerier(1.0.10.10, 2:1:0:a:a:f, TABLE give) -> Take; give :: Give -> [1]q");
    assert!(told.contains("TABLE: type mismatch, expected ARPTable"), "{told}");
}

#[test]
fn answers_within_the_router_find_the_packets_that_wait() {
    let mut harness = Harness::new(
        "give :: Give -> q :: ARPQuerier(1.0.0.1/24, 2:1:0:a:a:f) -> take :: Take;\n\
         q[1] -> ARPResponder(2.0.0.0/16 4:3:3:3:3:3, 2.1.0.0/16 6:5:5:5:5:5) -> [1]q",
    );
    harness.give("give", [ip([2, 0, 0, 1], 1), ip([2, 1, 0, 1], 2), ip([2, 2, 0, 1], 3), ip([2, 0, 0, 1], 4)]);
    let contents: Vec<u8> = frames(&mut harness).iter().map(|frame| frame.1).collect();
    assert_eq!((contents, harness.read("q.length")), (vec![1, 2, 4], "1".to_owned()));
}

#[test]
fn the_addresses_are_changed_while_it_runs() {
    let mut harness = harness("");
    harness.write("q.insert", "1.0.0.1 8:8:8:8:8:8").unwrap();
    assert_eq!(harness.read("q.ipaddr"), "1.0.10.10");
    harness.write("q.config", "1.0.10.10/24, 2:1:0:a:a:f").unwrap();
    assert_eq!((harness.read("q.count"), harness.read("q.broadcast")), ("1".to_owned(), "1.0.10.255".to_owned()));
    harness.write("q.config", "1.0.10.11, 2:1:0:a:a:f, BROADCAST 1.2.3.4").unwrap();
    assert_eq!((harness.read("q.count"), harness.read("q.broadcast")), ("0".to_owned(), "1.2.3.4".to_owned()));
    harness.write("q.ipaddr", "0.0.0.0").unwrap();
    harness.give("give", [ip([1, 0, 0, 1], 1)]);
    assert_eq!((harness.read("q.drops"), asked(&mut harness)), ("1".to_owned(), vec![]));
}

#[test]
fn arguments_are_checked() {
    let told = Harness::errors("Give -> q :: ARPQuerier(x, POLL_TIMEOUT y) -> Take; Give -> [1]q");
    for expected in ["IP: type mismatch", "ETH: type mismatch", "POLL_TIMEOUT: type mismatch"] {
        assert!(told.contains(expected), "{told}");
    }
    let told = Harness::errors("Give -> q :: ARPQuerier(1.2.3.4, 1:2, CAPACITY -1, 5) -> Take; Give -> [1]q");
    for expected in ["ETH: type mismatch", "CAPACITY: must be >= 0", "too many arguments"] {
        assert!(told.contains(expected), "{told}");
    }
}

#[test]
fn known_and_unknown_hops_mix() {
    let mut rng = fastrand::Rng::with_seed(bifolio_testing::seed());
    let mut harness = harness("TIMEOUT 2s, POLL_TIMEOUT 0.4s, ENTRY_CAPACITY 3, CAPACITY 6");
    for _ in 0..60 {
        let packets = (0..rng.u8(..12)).map(|content| ip([1, 0, 0, rng.u8(..5)], content));
        let packets: Vec<_> = packets.collect();
        harness.give("give", packets);
        if rng.bool() {
            harness.give("answers", [answer([1, 0, 0, rng.u8(..5)], [8; 6])]);
        }
        harness.pass(f64::from(rng.u8(..10)) / 20.0);
    }
    assert!(!frames(&mut harness).is_empty() && !asked(&mut harness).is_empty());
}

#[test]
fn any_packets_may_come() {
    let mut harness = harness("CAPACITY 5, ENTRY_CAPACITY 2");
    for _ in 0..10 {
        harness.give("give", noise(50));
        harness.give("answers", noise(50));
        harness.pass(0.3);
    }
    frames(&mut harness);
    asked(&mut harness);
}

/// Symptom: packets that go together leave in another order, or by another querier, than one by one. Cause: answers that come to
/// one querier change a table that others look at, and they did not say so.
#[test]
fn queriers_with_one_table_see_packets_in_their_order() {
    let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
    for tables in [["TABLE t", "TABLE t"], ["TABLE b", "TABLE t"], ["CAPACITY 9", "TABLE a"]] {
        let mut harness = Harness::new(&format!(
            "give :: Give -> side :: PaintSwitch; t :: ARPTable;
             side [0] -> a :: ARPQuerier(1.0.10.10/16, 2:1:0:a:a:f, {}) -> take :: Take; a [1] -> asks :: Take;
             side [1] -> b :: ARPQuerier(1.0.10.11/16, 2:1:0:a:a:e, {}) -> more :: Take; b [1] -> more_asks :: Take;
             side [2] -> [1] a; side [3] -> [1] b",
            tables[0], tables[1]
        ));
        for _ in 0..20 {
            let packets = (0..random.usize(1..60)).map(|n| {
                let (side, host) = (random.u8(..4), [1, 0, 0, random.u8(1..9)]);
                let mut packet =
                    if side < 2 { ip(host, n as u8) } else { answer(host, [2, random.u8(..), 3, 4, 5, 6]) };
                packet.set_anno_u8(crate::packet::anno::PAINT, side);
                packet
            });
            harness.give("give", packets.collect::<Vec<_>>());
            for sink in ["take", "more", "asks", "more_asks"] {
                harness.take(sink);
            }
            assert_eq!(harness.read("a.table"), harness.read("b.table"));
            harness.write(["a.clear", "b.delete"][random.usize(..2)], "1.0.0.3").unwrap();
        }
    }
}
