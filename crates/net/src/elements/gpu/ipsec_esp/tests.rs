//! GPUIPsecESP beside IPsecESPEncap and IPsecESPUnencap: the same packets leave, with the same bytes, whoever computes.

use crate::elements::gpu::faults::device;
use crate::elements::gpu::tests::{path, places, seen, sinks, traffic};
use crate::elements::testing::Harness;
use crate::{Clock, Packet};
use bifolio_device::backend::fault::Faults;
use bifolio_testing::seed;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const KEYS: [&str; 3] = [
    "0x0102030405060708090a0b0c0d0e0f10a0a1a2a3",
    "0x0102030405060708090a0b0c0d0e0f101112131415161718a0a1a2a3",
    "0x0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20a0a1a2a3",
];
const TUNNEL: &str = "SRC 192.0.2.1, DST 192.0.2.2";
const NAMES: [&str; 2] = ["good", "bad"];

/// What both ends are told, and what the sender is told besides.
fn associations() -> Vec<(String, String)> {
    let modes = [("tunnel", TUNNEL), ("transport", "TTL 64")];
    let each = |(number, key): (usize, &&str)| {
        let (mode, outer) = modes[number % 2];
        let (is_extended, first) = [(false, 1), (true, (1_u64 << 32) - 150), (true, 1)][number];
        (format!("300, {key}, MODE {mode}, ESN {is_extended}"), format!("{outer}, IV 12345, NUMBER {first}"))
    };
    KEYS.iter().enumerate().map(each).collect()
}

/// Traffic with longer packets, some fragments and Ethernet headers among it.
fn plain(count: usize) -> Vec<Packet> {
    let mut random = fastrand::Rng::with_seed(seed());
    let mut packets = traffic(count);
    for packet in &mut packets {
        let more = random.usize(..1300);
        let Some(at) = packet.network_offset().filter(|_| random.bool()) else { continue };
        random.fill(&mut packet.put(more)[..]);
        let len = packet.len() - at as usize;
        if let Some(header) = packet.network_header_mut() {
            header[0] = 0x45 + random.u8(..8) / 7;
            header[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            header[6] = random.u8(..8) / 7 * 0x20;
            let _ = crate::headers::ip::set_checksum(header);
        }
    }
    packets
}

/// What a sender makes of it, with some of it twice, late, changed, or cut.
fn sealed(common: &str, more: &str, packets: &[Packet]) -> Vec<Packet> {
    let mut harness = Harness::new(&format!("give :: Give -> IPsecESPEncap({common}, {more}) -> take :: Take"));
    harness.give("give", packets.iter().cloned());
    let mut sealed = harness.take("take");
    assert!(sealed.len() > packets.len() / 20);
    let mut random = fastrand::Rng::with_seed(seed());
    for _ in 0..sealed.len() / 4 {
        let to = random.usize(..sealed.len());
        let behind = (to + random.usize(1..5)).min(sealed.len() - 1);
        match random.u8(..4) {
            // A number that is far ahead would make all others too old.
            0 => sealed.insert(behind, sealed[to].clone()),
            1 => sealed.swap(to, behind),
            2 => {
                let packet = &mut sealed[to];
                let at = random.usize(..packet.len());
                packet.bytes_mut()[at] ^= 1 << random.u8(..8);
            }
            _ => {
                let packet = &mut sealed[to];
                packet.take(random.usize(..40));
                let _ = random.bool().then(|| packet.put(5));
            }
        }
    }
    sealed
}

#[test]
fn packets_are_encrypted_as_by_the_cpu() {
    let packets = plain(500);
    for (common, more) in associations() {
        let end = "good :: Take; e[1] -> bad :: Take";
        let by_cpu = sinks(&format!("give :: Give -> e :: IPsecESPEncap({common}, {more}) -> {end}"), &packets, &NAMES);
        assert!(by_cpu.iter().all(|packets| packets.len() > 20), "both ways are taken");
        for place in places() {
            let esp = format!("e :: GPUIPsecESP({common}, {more}, DIRECTION encrypt)");
            let config = path(&place, 37, &esp) + "d :: Dispatcher(18) -> good :: Take; d[1] -> bad :: Take";
            assert_eq!(sinks(&config, &packets, &NAMES), by_cpu, "{place}: {common}");
        }
    }
}

#[test]
fn packets_are_verified_and_decrypted_as_by_the_cpu() {
    for (common, more) in associations() {
        let packets = sealed(&common, &more, &plain(900));
        let run = |config: String| {
            let mut harness = Harness::new(&config);
            for part in packets.chunks(90) {
                harness.give("give", part.iter().cloned());
                harness.pass(0.01);
            }
            let read = ["u.count", "u.drop_details", "u.number"].map(|handler| harness.read(handler));
            (NAMES.map(|sink| seen(&harness.take(sink))), read)
        };
        let end = "good :: Take; u[1] -> bad :: Take";
        let by_cpu = run(format!("give :: Give -> u :: IPsecESPUnencap({common}, WINDOW 60) -> {end}"));
        assert!(by_cpu.0.iter().all(|packets| packets.len() > 1), "both ways are taken: {:?}", by_cpu.1);
        for place in places() {
            let esp = format!("u :: GPUIPsecESP({common}, WINDOW 60, DIRECTION decrypt)");
            let config = path(&place, 37, &esp) + "d :: Dispatcher(18) -> good :: Take; d[1] -> bad :: Take";
            assert_eq!(run(config), by_cpu, "{place}: {common}");
        }
    }
}

#[test]
fn what_was_encrypted_comes_back_and_the_device_has_done_it() {
    // Without padding behind packets, which is taken off.
    let packets: Vec<Packet> = plain(2000)
        .into_iter()
        .filter(|packet| {
            let header = packet.network_header().filter(|_| packet.network_offset().is_some_and(|at| at >= 0));
            header.and_then(crate::headers::Ip::checked).is_some_and(|ip| {
                usize::from(ip.total_len()) == header.map_or(0, <[u8]>::len)
                    && ip.is_checksum_valid()
                    && !ip.is_fragment()
            })
        })
        .collect();
    assert!(packets.len() > 50);
    for ((common, more), place) in
        associations().iter().flat_map(|one| places().into_iter().map(move |place| (one, place)))
    {
        let more = &more.replace("4294967146", "4294967276");
        let second = path(&place, 50, &format!("u :: GPUIPsecESP({common}, DIRECTION decrypt)"))
            .replace("give :: Give -> b ::", "c ::")
            .replace("h ::", "i ::");
        let config = path(&place, 37, &format!("e :: GPUIPsecESP({common}, {more}, DIRECTION encrypt)"))
            + &second
            + "take :: Take";
        let mut harness = Harness::new(&config);
        harness.give("give", packets.iter().cloned());
        harness.pass(0.01);
        let bytes = |packets: &[Packet]| packets.iter().map(|packet| packet.bytes().to_vec()).collect::<Vec<_>>();
        assert_eq!(bytes(&harness.take("take")), bytes(&packets), "{place}");
        let again = (harness.read("e.recomputed"), harness.read("u.recomputed"));
        // The first batch is submitted when nothing has come yet: what comes behind the turn in it has another upper half.
        let turned = more.contains("NUMBER 4294967276");
        assert!(again.0 == "0" && (again.1 == "0") != turned, "{place}: {again:?}");
    }
}

#[test]
fn headers_that_were_changed_in_the_path_are_encrypted_as_changed() {
    let packets = plain(1500);
    let names = ["good", "bad", "expired"];
    let common = format!("300, {}", KEYS[0]);
    // Batches take numbers for all of their packets: IVs and numbers differ, and so what was encrypted is compared.
    let by_cpu = sinks(
        "give :: Give -> c :: CheckIPHeader -> t :: DecIPTTL -> good :: Take; c[1] -> bad :: Take; t[1] -> expired :: Take",
        &packets,
        &names,
    );
    assert!(by_cpu.iter().all(|packets| !packets.is_empty()), "all ways are taken");
    for place in places() {
        let esp = format!("e :: GPUIPsecESP({common}, {TUNNEL}, DIRECTION encrypt)");
        let config = path(&place, 37, &format!("GPUCheckIPHeader -> GPUDecIPTTL -> {esp}"))
            + &format!(
                "d :: Dispatcher(18) -> u :: IPsecESPUnencap({common}, WINDOW 1000) -> good :: Take;
                 d[1] -> bad :: Take; d[2] -> expired :: Take"
            );
        let found = sinks(&config, &packets, &names);
        assert_eq!(found, by_cpu, "{place}");
    }
}

#[test]
fn packets_that_do_not_take_part_stay_as_they_are() {
    for place in places() {
        let esp = format!("GPUIPsecESP(300, {}, {TUNNEL}, IV 0, DIRECTION encrypt, CHK_ANNO 16, CHK_VALUE 1)", KEYS[1]);
        let mut harness = Harness::new(&(path(&place, 8, &esp) + "take :: Take"));
        let packets: Vec<Packet> = (0..40)
            .map(|n| {
                let mut packet = Packet::from_slice(&crate::elements::testing::udp(([1; 4], 1), ([2; 4], 2), &[n]));
                packet.set_network_header(0, 20);
                packet.set_anno_u8(crate::packet::anno::PAINT, n % 3);
                packet
            })
            .collect();
        harness.give("give", packets.iter().cloned());
        harness.pass(0.01);
        for (before, after) in packets.iter().zip(harness.take("take")) {
            let is_sealed = before.anno_u8(crate::packet::anno::PAINT) == 1;
            assert_eq!(before.bytes() == after.bytes(), !is_sealed, "{place}");
        }
    }
}

#[test]
fn paths_share_an_association() {
    let config = path("host", 4, &format!("e :: GPUIPsecESP(300, {}, {TUNNEL}, IV 0, DIRECTION encrypt)", KEYS[0]))
        + "t0 :: Take; "
        + &path("host", 4, "f :: GPUIPsecESP(TABLE e)")
            .replace("give", "more")
            .replace("b ::", "c ::")
            .replace("h ::", "i ::")
        + "t1 :: Take";
    let mut harness = Harness::new(&config);
    let mut numbers = Vec::new();
    for (source, sink) in [("give", "t0"), ("more", "t1"), ("give", "t0")] {
        let mut packet = Packet::from_slice(&crate::elements::testing::udp(([1; 4], 1), ([2; 4], 2), b"x"));
        packet.set_network_header(0, 20);
        harness.give(source, [packet.clone(), packet]);
        harness.pass(0.01);
        numbers.extend(harness.take(sink).iter().map(|packet| packet.bytes()[27]));
    }
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    assert_eq!((harness.read("f.number"), harness.read("f.count")), ("7".to_owned(), "6".to_owned()));
}

#[test]
fn who_changes_whole_packets_is_the_last_of_a_path() {
    let esp = format!("GPUIPsecESP(300, {}, DIRECTION decrypt)", KEYS[0]);
    let said = Harness::errors(&(path("host", 8, &format!("{esp} -> GPUDecIPTTL")) + "Discard"));
    assert!(said.contains("an element that changes packets as a whole is the last one of its path"), "{said}");
    let said = Harness::errors(&(path("host", 8, &esp.replace("decrypt", "both")) + "Discard"));
    assert!(said.contains("DIRECTION: 'both' is neither encrypt nor decrypt"), "{said}");
}

/// A batch that is computed twice has its numbers twice: neither is one lost, nor is a nonce used for two texts.
#[test]
fn sequence_numbers_go_on_when_a_device_fails() {
    let packets = plain(300);
    let (common, more) = &associations()[0];
    let end = "good :: Take; e[1] -> bad :: Take";
    let by_cpu = sinks(&format!("give :: Give -> e :: IPsecESPEncap({common}, {more}) -> {end}"), &packets, &NAMES);
    let mut told = 0;
    for good in [0, 1, 3, 5] {
        for is_launch in [false, true] {
            let faults = Arc::new(Faults::default());
            let (_executor, place) = device(&faults);
            let esp = format!("e :: GPUIPsecESP({common}, {more}, DIRECTION encrypt)");
            let config = path(&format!("{place}, USE device"), 37, &esp)
                .replace("GPUCompletionQueue", "GPUCompletionQueue(20)")
                + "d :: Dispatcher(18) -> good :: Take; d[1] -> bad :: Take";
            let mut harness = Harness::once(&config, Clock::simulated());
            (if is_launch { &faults.launches } else { &faults.downloads }).store(good, Ordering::SeqCst);
            for part in packets.chunks(90) {
                harness.give("give", part.iter().cloned());
                harness.pass(0.01);
            }
            told += harness.said().len();
            assert_eq!(NAMES.map(|name| seen(&harness.take(name))).to_vec(), by_cpu, "after {good}");
            assert_eq!((harness.read("e.number"), harness.read("h.lost")), ("301".to_owned(), "0".to_owned()));
        }
    }
    assert!(told > 4, "failures are told: {told}");
}
