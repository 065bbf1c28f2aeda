//! Payloads that a device fetches out of packets' memory by itself: what it finds is what it finds in those that are packed.

use super::faults::device;
use super::tests::{path, places, texts};
use crate::elements::testing::Harness;
use crate::{Clock, Packet};
use bifolio_device::backend::fault::Faults;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const SEARCH: &str = "m :: GPUIDSMatcher(PATTERN ab bca aBc c, SID_ANNO 20)";

/// Packets as they leave: their bytes, and the literal that was found first.
type Found = Vec<(Vec<u8>, u32)>;

fn found(packets: &[Packet]) -> Found {
    packets.iter().map(|packet| (packet.bytes().to_vec(), packet.anno_u32(20))).collect()
}

/// What a path finds, with its batches so large, and what is read of it in the end.
fn run(place: &str, packets: &[Packet], size: usize) -> (Found, String) {
    let mut harness = Harness::new(&(path(place, size, SEARCH) + "take :: Take"));
    for part in packets.chunks(70) {
        harness.give("give", part.iter().cloned());
        harness.pass(0.01);
    }
    (found(&harness.take("take")), harness.read("h.unfetched"))
}

fn by_cpu(packets: &[Packet]) -> Found {
    let mut harness = Harness::new("give :: Give -> IDSMatcher(PATTERN ab bca aBc c, SID_ANNO 20) -> take :: Take");
    harness.give("give", packets.iter().cloned());
    found(&harness.take("take"))
}

#[test]
fn what_is_fetched_is_what_is_packed_whatever_packets_share_and_however_long_they_are() {
    let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
    let mut packets = texts(400);
    for at in 0..packets.len() {
        match random.u8(..16) {
            // Bytes that others have, too.
            0 => packets[at] = packets[random.usize(..=at)].clone(),
            // A payload that does not begin where words do.
            1 => packets[at].shift(random.isize(-3..4)),
            // More than a slab's buffer has room for: its batch is packed.
            2 if at > 300 => {
                let more = packets[at].put(3000);
                let len = more.len();
                more[len - 3000..].fill(b'a');
            }
            _ => {}
        }
    }
    let expected = by_cpu(&packets);
    assert!(expected.iter().any(|(_, sid)| *sid > 0) && expected.iter().any(|(_, sid)| *sid == 0));
    for place in places().into_iter().filter(|place| place.contains("FETCH")) {
        for size in [1, 37, 400] {
            let (found, unfetched) = run(&place, &packets, size);
            assert!(found == expected, "{place}, batches of {size}");
            assert!(unfetched.is_empty() || place.contains("opencl"), "{place}: {unfetched}");
        }
    }
}

#[test]
fn who_cannot_fetch_packs_and_says_why() {
    let packets = texts(50);
    let expected = by_cpu(&packets);
    let (found, unfetched) = run("host, FETCH true", &packets, 20);
    assert!(found == expected && unfetched.contains("say USE device"), "{unfetched}");
    let streamed = SEARCH.replace("SID_ANNO", "STREAM true, SID_ANNO");
    let mut harness = Harness::new(&(path("host, USE device, FETCH true", 20, &streamed) + "take :: Take"));
    assert!(harness.read("h.unfetched").contains("what stands before them in flows"));
    let mut harness = Harness::new(&(path("host, USE device, FETCH true", 20, "GPUDecIPTTL") + "take :: Take"));
    assert!(harness.read("h.unfetched").contains("look at no payloads"));
    let mut harness = Harness::new(&(path("host, USE device, FETCH false", 20, SEARCH) + "take :: Take"));
    assert_eq!(harness.read("h.unfetched"), "");
}

#[test]
fn long_payloads_are_fetched_by_themselves_and_short_ones_are_not() {
    let mut harness = Harness::new(&(path("host, USE device", 20, SEARCH) + "take :: Take"));
    let mut bytes = 0;
    for (len, is_fetched) in [(1400, false), (1400, true), (60, true), (60, false)] {
        let body = vec![b'x'; len];
        let packets = (0..20).map(|_| {
            let mut packet = Packet::from_slice(&crate::elements::testing::udp(([1; 4], 1), ([2; 4], 2), &body));
            packet.set_network_header(0, 20);
            packet
        });
        harness.give("give", packets);
        harness.pass(0.01);
        let now = harness.read("h.bytes").parse::<usize>().unwrap();
        let row = harness.read("b.row_bytes").parse::<usize>().unwrap();
        // A place in the table of payloads has 24 bytes.
        assert_eq!(now - bytes < 20 * (row + 50), is_fetched, "{len}");
        bytes = now;
    }
    assert_eq!(harness.take("take").len(), 80);
}

#[test]
fn a_device_that_fails_while_it_fetches_loses_nothing() {
    let packets = texts(300);
    let expected = by_cpu(&packets);
    let operations: [fn(&Faults) -> &AtomicI64; 4] =
        [|faults| &faults.copies, |faults| &faults.downloads, |faults| &faults.launches, |faults| &faults.life];
    let mut failures = 0;
    for operation in operations {
        for good in [0, 1, 2, 3, 5, 8] {
            let faults = Arc::new(Faults::default());
            let (_executor, place) = device(&faults);
            let config = path(&format!("{place}, USE device, FETCH true"), 37, SEARCH) + "take :: Take";
            let mut harness = Harness::once(&config, Clock::simulated());
            operation(&faults).store(good, Ordering::SeqCst);
            for part in packets.chunks(70) {
                harness.give("give", part.iter().cloned());
                harness.pass(0.01);
            }
            let said = harness.said();
            assert!(found(&harness.take("take")) == expected, "after {good}: {said:?}");
            failures += harness.read("h.failures").parse::<u32>().unwrap();
        }
    }
    assert!(failures > 10, "batches were computed anew: {failures}");
}
