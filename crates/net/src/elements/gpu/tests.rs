//! Paths beside their CPU elements: the same packets leave, with the same bytes, whoever computes.

use crate::elements::testing::{Harness, noise, udp};
use crate::packet::anno;
use crate::{Packet, PacketType};
use bifolio_device::{DeviceChoice, DeviceId};
use bifolio_testing::seed;

/// Where paths are computed in these tests: by the CPU's twins, by the oracles, and by every device that there is.
pub(super) fn places() -> Vec<String> {
    let mut places = ["host, USE cpu", "host, USE device", "host, USE device, FETCH true"].map(str::to_owned).to_vec();
    let found = bifolio_device::discover();
    let devices = found.iter().flat_map(|report| &report.devices).filter(|device| device.id != DeviceId::HOST);
    let works = |id: &DeviceId| bifolio_device::open(DeviceChoice::Exactly(*id)).is_ok();
    let ways = |id| [format!("{id}, USE device"), format!("{id}, USE device, FETCH true")];
    places.extend(devices.map(|device| device.id).filter(works).flat_map(ways));
    places
}

/// A path with these elements, from `give` on.
pub(super) fn path(place: &str, size: usize, elements: &str) -> String {
    format!(
        "give :: Give -> b :: Batcher({size}, 1ms, ADAPTIVE false) -> h :: HostToDeviceMemcpy({place}) -> {elements}
         -> DeviceToHostMemcpy -> GPUCompletionQueue -> Debatcher -> "
    )
}

/// Packets of all kinds: with options, with times to live that end, and noise.
pub(super) fn traffic(count: usize) -> Vec<Packet> {
    let mut random = fastrand::Rng::with_seed(seed());
    let mut packets = noise(count);
    for packet in packets.iter_mut().filter(|packet| packet.network_offset().is_some()) {
        let has_options = random.u8(..4) == 0;
        if let Some(header) = packet.network_header_mut() {
            header[8] = [0, 1, 2, 64, 255][random.usize(..5)];
            if has_options {
                header[0] = 0x40 | random.u8(5..8);
            }
            if random.bool() {
                let _ = crate::headers::ip::set_checksum(header);
            }
        }
    }
    packets
}

/// What matters of packets: all but the annotations that a path leaves.
pub(super) type Seen = (Vec<u8>, [Option<isize>; 3], std::net::Ipv4Addr, PacketType);

pub(super) fn seen(packets: &[Packet]) -> Vec<Seen> {
    let offsets = |packet: &Packet| [packet.mac_offset(), packet.network_offset(), packet.transport_offset()];
    packets.iter().map(|packet| (packet.bytes().to_vec(), offsets(packet), packet.dst_ip(), packet.kind())).collect()
}

/// What comes to sinks.
#[track_caller]
pub(super) fn sinks(config: &str, packets: &[Packet], sinks: &[&str]) -> Vec<Vec<Seen>> {
    let mut harness = Harness::new(config);
    for part in packets.chunks(90) {
        harness.give("give", part.iter().cloned());
        harness.pass(0.01);
    }
    if config.contains("h :: HostToDeviceMemcpy") {
        // Whoever takes over for a device that is well hides what it cannot do.
        assert_eq!((harness.read("h.failures"), harness.said()), ("0".to_owned(), vec![]), "{config}");
    }
    sinks.iter().map(|sink| seen(&harness.take(sink))).collect()
}

#[test]
fn headers_are_checked_and_changed_as_by_the_cpu() {
    let names = ["ok", "bad", "expired"];
    let packets = traffic(1500);
    let by_cpu = sinks(
        "give :: Give -> c :: CheckIPHeader(BADSRC 10.0.1.1) -> t :: DecIPTTL -> SetIPChecksum -> ok :: Take;
         c[1] -> bad :: Take; t[1] -> expired :: Take",
        &packets,
        &names,
    );
    assert!(by_cpu.iter().all(|packets| !packets.is_empty()), "all ways are taken");
    for place in places() {
        let elements = "GPUCheckIPHeader(BADSRC 10.0.1.1) -> GPUDecIPTTL -> GPUSetIPChecksum";
        let config = path(&place, 37, elements)
            + "d :: Dispatcher(18) -> ok :: Take; d[1] -> bad :: Take; d[2] -> expired :: Take";
        assert_eq!(sinks(&config, &packets, &names), by_cpu, "{place}");
    }
}

/// Symptom: the CPU computed most batches of a device that was well, and nobody was told. Cause: where no packet had options, the
/// empty part for them began behind the rows, where kernels take none.
#[test]
fn a_device_takes_batches_of_any_size_without_options() {
    let mut packets = traffic(1200);
    packets.iter_mut().filter_map(Packet::network_header_mut).for_each(|header| header[0] = 0x45);
    for size in [1, 2, 3, 37] {
        // Its rows have nine words.
        let elements = "GPUCheckIPHeader -> GPUDecIPTTL -> GPUSDNClassifier(proto tcp => 1, ANNO 17) -> GPUIPLookup(0/0 1.1.1.1 0)";
        let path = |place: &str| path(place, size, elements) + "take :: Take";
        let some = &packets[..size * 30];
        let by_cpu = sinks(&path("host, USE cpu"), some, &["take"]);
        for place in places() {
            assert_eq!(sinks(&path(&place), some, &["take"]), by_cpu, "{place}, {size} at a time");
        }
    }
}

#[test]
fn packets_leave_in_their_order_and_a_batch_waits_no_longer_than_it_may() {
    let config = path("host", 10, "GPUSetIPChecksum") + "take :: Take";
    let mut harness = Harness::new(&config);
    harness.give("give", (0..25).map(|n| Packet::from_slice(&[n])));
    assert_eq!(harness.take_bytes("take"), (0..20).map(|n| vec![n]).collect::<Vec<_>>());
    assert_eq!((harness.read("b.length"), harness.read("b.count")), ("5".to_owned(), "25".to_owned()));
    harness.pass(0.0009);
    assert_eq!(harness.take("take").len(), 0);
    harness.pass(0.0002);
    assert_eq!(harness.take_bytes("take"), (20..25).map(|n| vec![n]).collect::<Vec<_>>());
    assert_eq!(harness.read("h.batches"), "3");
    assert_eq!((harness.read("h.packets"), harness.read("h.failures")), ("25".to_owned(), "0".to_owned()));
}

#[test]
fn a_batcher_whose_batches_are_all_under_way_counts_what_it_drops() {
    let config = "give :: Give -> b :: Batcher(4, 0, ADAPTIVE false) -> HostToDeviceMemcpy(host) -> GPUSetIPChecksum -> DeviceToHostMemcpy
                  -> GPUCompletionQueue(2) -> Debatcher(1) -> q :: Queue(1) -> take :: Take(MANUAL true)";
    let mut harness = Harness::new(config);
    for n in 0..20 {
        harness.give("give", [Packet::from_slice(&[n])]);
    }
    let drops: usize = harness.read("b.drops").parse().unwrap();
    assert!(drops > 0, "two batches of at most 4 packets cannot have 20");
    assert_eq!(harness.read("q.drops"), "0");
    assert_eq!(harness.said(), ["b :: Batcher: overflow"]);
    let mut left = Vec::new();
    for _ in 0..40 {
        left.extend(harness.pull("take").map(|packet| packet.bytes()[0]));
        harness.run();
    }
    assert_eq!(left.len() + drops, 20, "nothing is lost but what is counted");
    assert!(left.is_sorted());
}

#[test]
fn who_does_not_fit_gets_a_sentence() {
    let wrong = |config: &str, sentence: &str| {
        let said = Harness::errors(config);
        assert!(said.contains(sentence), "{config}\n{said}");
    };
    let end = "DeviceToHostMemcpy -> GPUCompletionQueue -> Debatcher -> Discard";
    wrong(
        &format!("Idle -> b :: Batcher -> c :: Counter -> HostToDeviceMemcpy(host) -> {end}"),
        "'b :: Batcher' wide output 0 connected to 'c :: Counter' input 0, which takes single packets; put a Debatcher between them",
    );
    wrong(
        &format!("i :: Idle -> h :: HostToDeviceMemcpy(host) -> {end}"),
        "'i :: Idle' output 0 connected to 'h :: HostToDeviceMemcpy' wide input 0, which takes batches; put a Batcher between them",
    );
    wrong(
        &format!("Idle -> Batcher -> g :: GPUDecIPTTL -> HostToDeviceMemcpy(host) -> {end}"),
        "HostToDeviceMemcpy expected behind 'Batcher@2 :: Batcher', and 'g :: GPUDecIPTTL' is there",
    );
    wrong(
        &format!("Idle -> Batcher -> HostToDeviceMemcpy(host) -> GPUDecIPTTL -> GPUCheckIPHeader -> {end}"),
        "is the first one of a path",
    );
    wrong(&format!("Idle -> Batcher -> HostToDeviceMemcpy(nowhere) -> {end}"), "DEVICE");
    wrong(&format!("Idle -> Batcher(0) -> HostToDeviceMemcpy(host) -> {end}"), "SIZE: must be between 1 and 262144");
    wrong(
        &format!("Idle -> Batcher -> HostToDeviceMemcpy(host, USE both) -> {end}"),
        "USE: 'both' is none of auto, device and cpu",
    );
    wrong(
        &format!("Idle -> Batcher -> h :: HostToDeviceMemcpy(host) -> {end}; Idle -> Batcher -> h"),
        "'h :: HostToDeviceMemcpy' is in two paths",
    );
}

#[test]
fn packets_that_do_not_take_part_pass_as_they_are() {
    let config =
        "give :: Give -> Batcher(8, 1ms) -> HostToDeviceMemcpy(host) -> GPUDecIPTTL(CHK_ANNO 16, CHK_VALUE 1, ANNO 17)
                  -> DeviceToHostMemcpy -> GPUCompletionQueue -> Debatcher -> take :: Take";
    let mut harness = Harness::new(config);
    let packets = (0..40).map(|n| {
        let mut packet = Packet::from_slice(&udp(([1; 4], 1), ([2; 4], 2), &[n]));
        packet.set_network_header(0, 20);
        packet.set_anno_u8(anno::PAINT, n % 3);
        packet
    });
    harness.give("give", packets);
    harness.pass(0.01);
    let taken = harness.take("take");
    assert_eq!(taken.len(), 40);
    for packet in taken {
        let ttl = packet.network_header().unwrap()[8];
        assert_eq!(ttl, if packet.anno_u8(anno::PAINT) == 1 { 63 } else { 64 });
    }
}

/// Sinks of four outputs.
fn four_ways(from: &str) -> String {
    (0..4).map(|n| format!("{from}[{n}] -> t{n} :: Take;")).collect::<Vec<_>>().concat()
}

/// What comes by four ways while an element's handlers are written, one after each hundred packets; and what two are read as then.
fn while_it_changes(
    config: &str,
    element: &str,
    changes: [&str; 4],
    reads: [&str; 2],
    packets: &[Packet],
) -> (Vec<[Vec<Seen>; 4]>, [String; 2]) {
    let mut harness = Harness::new(config);
    let mut all = Vec::new();
    for (packets, change) in packets.chunks(100).zip(changes) {
        harness.give("give", packets.iter().cloned());
        harness.pass(0.01);
        all.push([0, 1, 2, 3].map(|n| seen(&harness.take(&format!("t{n}")))));
        let (handler, value) = change.split_once(' ').unwrap();
        harness.write(&format!("{element}.{handler}"), value).unwrap();
    }
    (all, reads.map(|handler| harness.read(&format!("{element}.{handler}"))))
}

#[test]
fn routes_are_looked_up_as_by_the_cpu_while_they_change() {
    let routes = "0/0 0, 10.0.0.0/24 1, 10.0.0.1/32 9.9.9.9 2, 10.0.1.0/24 7.7.7.7 3";
    let changes = ["add 10.0.0.2/32 8.8.8.8 3", "remove 10.0.0.0/24", "set 10.0.0.1/32 0", "ctrl add 10.0.0.0/30 2"];
    let packets = traffic(400);
    let run = |config: String| while_it_changes(&config, "r", changes, ["table", "lookup 10.0.0.2"], &packets);
    let by_cpu = run(format!("give :: Give -> r :: DirectIPLookup({routes}); {}", four_ways("r")));
    assert!(by_cpu.0.iter().flatten().filter(|packets| !packets.is_empty()).count() > 8, "all ways are taken");
    for place in places() {
        let config = path(&place, 23, &format!("r :: GPUIPLookup({routes})")) + "d :: Dispatcher; " + &four_ways("d");
        assert_eq!(run(config), by_cpu, "{place}");
    }
}

#[test]
fn addresses_come_from_headers_that_a_path_has_checked_itself() {
    let lookup = "r :: GPUIPLookup(0/0 0, 10.0.0.1/32 1, 10.0.0.2/32 9.9.9.9 1)";
    let config = path("host", 8, &format!("GPUCheckIPHeader -> {lookup}"))
        + "v :: Dispatcher(18) -> d :: Dispatcher -> one :: Take; d[1] -> two :: Take; v[1] -> bad :: Take";
    let mut harness = Harness::new(&config);
    let packet = |last| Packet::from_slice(&udp(([1; 4], 1), ([10, 0, 0, last], 2), b"x"));
    let mut wrong = packet(1);
    wrong.bytes_mut()[10] ^= 1;
    harness.give("give", [packet(1), packet(2), packet(3), wrong]);
    harness.pass(0.01);
    let to = |packets: Vec<Packet>| packets.iter().map(|packet| packet.dst_ip().octets()).collect::<Vec<_>>();
    assert_eq!(to(harness.take("two")), [[10, 0, 0, 1], [9; 4]]);
    assert_eq!((to(harness.take("one")), harness.take("bad").len()), (vec![[10, 0, 0, 3]], 1));
}

#[test]
fn paths_share_a_table() {
    let config = path("host", 4, "r :: GPUIPLookup(0/0 3)")
        + "t0 :: Take; "
        + &path("host", 4, "s :: GPUIPLookup(TABLE r)")
            .replace("give", "more")
            .replace("b ::", "c ::")
            .replace("h ::", "i ::")
        + "t1 :: Take";
    let mut harness = Harness::new(&config);
    harness.write("s.set", "0/0 5").unwrap();
    for (source, sink) in [("give", "t0"), ("more", "t1")] {
        harness.give(source, [Packet::from_slice(b"x")]);
        harness.pass(0.01);
        assert_eq!(harness.take(sink)[0].anno_u8(anno::PAINT), 5);
    }
    assert_eq!(harness.read("r.table"), harness.read("s.table"));
    let said = Harness::errors(&(path("host", 4, "r :: GPUIPLookup(TABLE give)") + "Discard"));
    assert!(said.contains("TABLE: 'give :: Give' has no table of its own that this element can share"), "{said}");
}

#[test]
fn rules_sort_packets_as_by_the_cpu_while_they_change() {
    let rules =
        "proto udp dport 0-30000 => 0, src 10.0.0.0/24 => 1 PRIORITY 1, eth_type 0x8100 => 2 PRIORITY 3, ip => 2,
                 icmp_type 0-255 => 0 PRIORITY 2";
    let rules = rules.replace("icmp_type 0-255", "icmp_type 8");
    let changes =
        ["add dport 7 => 3 PRIORITY 9", "remove ip => 2", "add eth => 3 PRIORITY 2", "add tos 0 => 1 PRIORITY 4"];
    let packets = traffic(400);
    let run = |config: String| while_it_changes(&config, "c", changes, ["table", "rules"], &packets);
    let by_cpu = run(format!("give :: Give -> c :: SDNClassifier({rules}); {}", four_ways("c")));
    assert!(by_cpu.0.iter().flatten().filter(|packets| !packets.is_empty()).count() > 8, "all ways are taken");
    for place in places() {
        let config = path(&place, 23, &format!("c :: GPUSDNClassifier({rules}, MISS 3)"))
            + "d :: Dispatcher; "
            + &four_ways("d");
        assert_eq!(run(config), by_cpu, "{place}");
    }
}

#[test]
fn rules_about_what_does_not_travel_are_refused() {
    let mut harness = Harness::new(&(path("host", 8, "c :: GPUSDNClassifier(ip => 0)") + "take :: Take"));
    let error = harness.write("c.add", "vlan 7 => 1").unwrap_err();
    assert_eq!(error, "rule 'vlan 7 => 1' looks at the Ethernet header, which does not travel in this path");
    assert_eq!(harness.read("c.rules"), "1");
}

/// Packets with payloads of a few letters, so that literals are in many of them.
pub(super) fn texts(count: usize) -> Vec<Packet> {
    let mut random = fastrand::Rng::with_seed(seed());
    let mut packets = traffic(count);
    for packet in &mut packets {
        let header = packet.network_header().map_or(0, <[u8]>::len);
        let at = packet.len() - header.saturating_sub(28).min(packet.len());
        packet.bytes_mut()[at..].iter_mut().for_each(|byte| *byte = b"abcABC"[random.usize(..6)]);
    }
    packets
}

#[test]
fn payloads_are_searched_as_by_the_cpu() {
    let packets = texts(600);
    let rules = r#"alert tcp any any -> any any (content:"ab"; content:"C"; distance:1; sid:7;)
alert udp any any -> any any (content:"cab"; nocase; sid:8;)
alert ip any any -> any any (content:!"a"; content:"bb"; sid:9;)
alert udp any :99 <> 10.0.0.0/8 !5 (content:"a"; pcre:"/a[bc]+A/i"; sid:10;)
alert udp any any -> any any (content:"B"; offset:3; sid:11;)
alert udp any [1:500] <> any any (content:"Ab"; sid:12;)
"#;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, rules.as_bytes()).unwrap();
    let configs = [
        r#"PATTERN ab bca "aBc" c, SID_ANNO 20"#.to_owned(),
        r#"PATTERN ab bca "aBc", NOCASE true, FIRST true, SID_ANNO 20, ANNO 3"#.to_owned(),
        format!("RULES {}, SID_ANNO 20", file.path().display()),
    ];
    let run = |config: &str, all: bool| {
        let mut harness = Harness::new(config);
        harness.give("give", packets.iter().cloned());
        harness.pass(0.01);
        let seen =
            |packet: &Packet| (packet.bytes().to_vec(), packet.anno_u8(16), packet.anno_u8(3), packet.anno_u32(20));
        let taken: Vec<_> = harness.take("take").iter().map(seen).collect();
        let read = ["m.count", "m.matches", "m.rules"].map(|handler| harness.read(handler));
        (taken, read, if all { harness.read("m.overflows") } else { String::new() })
    };
    for config in configs {
        let (taken, read, _) = run(&format!("give :: Give -> m :: IDSMatcher({config}) -> take :: Take"), false);
        assert!(read[0] != "0" && read[0] != "600", "some match: {read:?}");
        for place in places() {
            for room in [1, 64] {
                let path = path(&place, 40, &format!("m :: GPUIDSMatcher({config}, ROOM {room})")) + "take :: Take";
                let (by_path, read_of_path, overflows) = run(&path, true);
                let differs = (0..taken.len()).find(|at| by_path.get(*at) != taken.get(*at));
                assert_eq!(differs.map(|at| (&by_path[at], &taken[at])), None, "{place}, {config}");
                assert_eq!(read_of_path, read, "{place}, {config}");
                assert!(overflows == "0" || room == 1, "{place}, {config}: {overflows} batches had no room");
            }
        }
    }
}

/// A literal that a packet has everywhere filled the list of its batch, and the host searched all of that again.
#[test]
fn a_literal_that_is_everywhere_in_packets_needs_room_once() {
    let texts = [b"ab".repeat(700), b"-".repeat(1400), b"ba".repeat(350), b"axbyab".to_vec()];
    let packets = (0..60).map(|at| {
        let mut packet = Packet::from_slice(&udp(([1; 4], 1), ([2; 4], 2), &texts[at % texts.len()]));
        packet.set_network_header(0, 20);
        packet
    });
    for place in places() {
        for (first, matches) in [(false, "1\t45\t\n2\t30\t\n"), (true, "1\t30\t\n2\t15\t\n")] {
            let elements = format!("m :: GPUIDSMatcher(PATTERN ab ba, FIRST {first}, ROOM 2)");
            let mut harness = Harness::new(&(path(&place, 20, &elements) + "take :: Take"));
            harness.give("give", packets.clone());
            harness.pass(0.01);
            assert_eq!(harness.take("take").len(), 60);
            let read = ["m.overflows", "m.count", "m.matches"].map(|handler| harness.read(handler));
            assert_eq!(read, ["0", "45", matches], "{place}, {first}");
        }
    }
}

#[test]
fn a_diverging_path_searches_each_packet_for_its_own_literals() {
    let packets = texts(500);
    let run = |config: &str| {
        let mut harness = Harness::new(config);
        harness.give("give", packets.iter().cloned());
        harness.pass(0.01);
        let (one, two) = (seen(&harness.take("one")), seen(&harness.take("two")));
        (one, two, harness.read("i.count"), harness.read("j.count"))
    };
    let by_cpu = run(
        "give :: Give -> c :: SDNClassifier(proto udp => 0); i :: IDSMatcher(PATTERN ab); j :: IDSMatcher(PATTERN cc);
         c[0] -> i; c[1] -> j; p :: PaintSwitch -> one :: Take; p[1] -> two :: Take; i -> p; j -> p;",
    );
    assert!(by_cpu.0.len() > 20 && by_cpu.1.len() > 20, "both ways are taken");
    for place in places() {
        let elements =
            "GPUSDNClassifier(proto udp => 0, MISS 1, ANNO 19) -> i :: GPUIDSMatcher(PATTERN ab, CHK_ANNO 19)
             -> j :: GPUIDSMatcher(PATTERN cc, CHK_ANNO 19, CHK_VALUE 1)";
        let config = path(&place, 50, elements) + "p :: Dispatcher -> one :: Take; p[1] -> two :: Take";
        let by_path = run(&config);
        assert!(by_path == by_cpu, "{place}");
    }
    let changed = "GPUIDSMatcher(PATTERN x, CHK_ANNO 19) -> GPUSDNClassifier(ip => 0, ANNO 19)";
    let said = Harness::errors(&(path("host", 8, changed) + "Discard"));
    assert!(said.contains("annotation 19 is looked at again by an element of the path"), "{said}");
    let same = "GPUIDSMatcher(PATTERN x) -> GPUSDNClassifier(ip => 0)";
    let said = Harness::errors(&(path("host", 8, same) + "Discard"));
    assert!(said.contains("annotation 16 is set by GPUIDSMatcher when a batch is back"), "{said}");
}

#[test]
fn headers_that_were_pulled_travel_and_have_room() {
    let config = path("host", 16, "m :: GPUIDSMatcher(PATTERN evil)") + "take :: Take";
    let mut harness = Harness::new(&config);
    let mut random = fastrand::Rng::with_seed(seed());
    let packets = (0..400).map(|_| {
        let body = vec![b'x'; random.usize(8800..9000)];
        let mut packet = Packet::from_slice(&udp(([1; 4], 1), ([2; 4], 2), &body));
        packet.set_network_header(0, 20);
        packet.pull(28);
        packet
    });
    harness.give("give", packets);
    harness.pass(0.01);
    assert_eq!(harness.take("take").len(), 400);
}

/// Packets of a few TCP flows, of which some are lost, come twice or too early, between packets of all kinds.
pub(super) fn flows(count: usize) -> Vec<Packet> {
    let mut random = fastrand::Rng::with_seed(seed());
    let (mut packets, mut next) = (texts(count / 4), [0_u32; 4]);
    for _ in 0..count {
        let flow = random.usize(..next.len());
        let payload: Vec<u8> = (0..random.usize(..7)).map(|_| b"abcABC"[random.usize(..6)]).collect();
        let flags = [0, 0, 0, 0, 0, 0, 0, 1, 2, 4][random.usize(..10)];
        let mut packet = Packet::from_slice(&crate::streams::segment([flow as u16, 80], next[flow], flags, &payload));
        packet.set_network_header(0, 20);
        next[flow] += payload.len() as u32 + u32::from(random.u8(..9) == 0);
        let at = packets.len() - random.usize(..3.min(packets.len()));
        packets.insert(if random.u8(..9) == 0 { at } else { packets.len() }, packet);
        if random.u8(..9) == 0 {
            packets.extend(packets.last().cloned());
        }
    }
    // Those of all kinds go anywhere; the others keep their order.
    for at in 0..count / 4 {
        let packet = packets.remove(at);
        packets.insert(random.usize(..packets.len()), packet);
    }
    packets
}

#[test]
fn literals_across_packets_are_found_as_by_the_cpu() {
    let config = r#"PATTERN abca "bCAb" cc "aBcabcabc" b, STREAM true, SID_ANNO 20, FLOWS 3"#;
    let run = |config: &str, packets: &[Packet]| {
        let mut harness = Harness::new(config);
        for part in packets.chunks(130) {
            harness.give("give", part.iter().cloned());
            harness.pass(0.01);
        }
        let seen = |packet: &Packet| (packet.bytes().to_vec(), packet.anno_u8(16), packet.anno_u32(20));
        let taken: Vec<_> = harness.take("take").iter().map(seen).collect();
        (taken, ["m.count", "m.matches", "m.strays", "m.flows"].map(|handler| harness.read(handler)))
    };
    let by_twin = |config: &str, packets: &[Packet]| {
        run(&format!("give :: Give -> m :: IDSMatcher({config}) -> take :: Take"), packets)
    };
    // Now and then no literal lies across packets.
    let draw = || {
        let packets = flows(700);
        let by_cpu = by_twin(config, &packets);
        let alone = by_twin(&config.replace("STREAM true", "STREAM false"), &packets);
        (by_cpu.1[1] != alone.1[1] && by_cpu.1[2] != "0").then_some((packets, by_cpu))
    };
    let (packets, by_cpu) = (0..20).find_map(|_| draw()).expect("literals across packets, and strays");
    let run = |config: &str| run(config, &packets);
    for place in places() {
        for (room, more) in [(1, ""), (64, ""), (64, " -> GPUSetIPChecksum(ANNO 17)"), (64, " -> GPUDecIPTTL(ANNO 17)")]
        {
            let config = path(&place, 40, &format!("m :: GPUIDSMatcher({config}, ROOM {room}){more}")) + "take :: Take";
            let by_path = run(&config);
            assert_eq!(by_path.1, by_cpu.1, "{place}, {room}");
            if more.is_empty() {
                assert!(by_path.0 == by_cpu.0, "{place}, {room}");
            }
        }
        let config = path(&place, 40, &format!("m :: GPUIDSMatcher({config})")) + "take :: Take";
        assert!(run(&config.replace("ADAPTIVE false", "SLICING false, ADAPTIVE false")) == by_cpu, "{place}");
    }
}

#[test]
fn flows_are_followed_only_where_all_packets_take_part() {
    for (elements, sentence) in [
        ("GPUCheckIPHeader -> GPUIDSMatcher(PATTERN x, STREAM true)", "have that done before the Batcher"),
        ("GPUIDSMatcher(PATTERN x, STREAM true, CHK_ANNO 17)", "have that done before the Batcher"),
        (
            "GPUIDSMatcher(PATTERN x, STREAM true) -> GPUIDSMatcher(PATTERN y, STREAM true, ANNO 17)",
            "two elements of one path follow flows; each needs a path of its own",
        ),
    ] {
        let said = Harness::errors(&(path("host", 8, elements) + "Discard"));
        assert!(said.contains(sentence), "{elements}: {said}");
    }
}

#[test]
fn twelve_thousand_literals_are_searched_as_by_the_cpu() {
    let mut random = fastrand::Rng::with_seed(seed());
    let mut word = |few: &[u8]| -> String {
        (0..random.usize(4..24)).map(|_| char::from(few[random.usize(..few.len())])).collect()
    };
    let literals: Vec<String> = (0..12_000).map(|_| word(b"abcdefghijklmnopqrstuvwxyzABCDE/=. ")).collect();
    let rule = |(sid, literal): (u32, &String)| {
        let nocase = if sid % 3 == 0 { ",nocase" } else { "" };
        format!("alert ip any any -> any any ( content:\"{literal}\"{nocase}; sid:{sid}; )\n")
    };
    let text = (1..).zip(&literals).map(rule).collect::<Vec<_>>().concat();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    let mut random = fastrand::Rng::with_seed(seed());
    let packets: Vec<Packet> = (0..300)
        .map(|_| {
            let mut payload: Vec<u8> =
                (0..random.usize(..6)).flat_map(|_| literals[random.usize(..12_000)].bytes()).collect();
            payload.iter_mut().filter(|_| random.u8(..30) == 0).for_each(|byte| *byte = byte.to_ascii_uppercase());
            let bytes = udp(([1; 4], 1), ([2; 4], 2), &payload);
            let mut packet = Packet::from_slice(&bytes);
            packet.set_network_header(0, 20);
            packet
        })
        .collect();
    let run = |config: &str| {
        let mut harness = Harness::new(config);
        harness.give("give", packets.iter().cloned());
        harness.pass(0.01);
        let found: Vec<u32> = harness.take("take").iter().map(|packet| packet.anno_u32(20)).collect();
        (found, harness.read("m.matches"))
    };
    let options = format!("RULES {}, SID_ANNO 20", file.path().display());
    let by_cpu = run(&format!("give :: Give -> m :: IDSMatcher({options}) -> take :: Take"));
    assert!(by_cpu.1.lines().count() > 300, "{}", by_cpu.1);
    for place in places() {
        assert!(
            run(&(path(&place, 100, &format!("m :: GPUIDSMatcher({options})")) + "take :: Take")) == by_cpu,
            "{place}"
        );
    }
}
