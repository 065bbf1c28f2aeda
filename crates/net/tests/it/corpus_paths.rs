//! Malformed packets through every element of paths: the CPU's elements, their twins, the kernels' oracles and every device say the
//! same of them, and leave the same bytes.

use crate::differential::places;
use crate::live::{Live, start_changed};
use crate::malformed::{frames, packets};
use bifolio_net::elements::GROUPS;
use bifolio_net::router::Options;
use bifolio_net::{Clock, Packet};
use bifolio_testing::seed;
use std::fmt::Write;

/// Elements of a path, and those of the CPU that do the same.
struct Case {
    path: &'static str,
    /// What parts packets behind the path, with outputs of its own; `d` is its name.
    parted_by: &'static str,
    /// The CPU's, between `give` and outputs of `e`; nothing where there are none that do the same.
    by_cpu: &'static str,
    /// How many outputs `d` and `e` have.
    outputs: usize,
    /// What is before both.
    before: &'static [&'static str],
    /// Handlers of the path's elements, and of the CPU's, that say the same.
    handlers: &'static [[&'static str; 2]],
}

/// Headers that nobody has checked, those that are right, and those of Ethernet's payload.
const MARKED: &[&str] = &["MarkIPHeader(0)", "CheckIPHeader", "MarkIPHeader(14)"];
const UNMARKED: &[&str] = &["Null"];
const ANY: &[&str] = &["MarkIPHeader(0)", "CheckIPHeader", "MarkIPHeader(14)", "Null"];

/// Every element, alone and behind others.
const CASES: &[Case] = &[
    Case {
        path: "c :: GPUCheckIPHeader(BADSRC 255.255.255.255 10.0.0.255, GOODDST 10.0.1.2)",
        parted_by: "Dispatcher(18)",
        by_cpu: "e :: CheckIPHeader(BADSRC 255.255.255.255 10.0.0.255, GOODDST 10.0.1.2)",
        outputs: 2,
        before: UNMARKED,
        handlers: &[["c.drops", "e.drops"]],
    },
    Case {
        path: "GPUCheckIPHeader(14, CHECKSUM false)",
        parted_by: "Dispatcher(18)",
        by_cpu: "e :: CheckIPHeader(OFFSET 14, CHECKSUM false)",
        outputs: 2,
        before: UNMARKED,
        handlers: &[],
    },
    Case {
        path: "t :: GPUDecIPTTL",
        parted_by: "Dispatcher(18)",
        by_cpu: "e :: { input -> t :: DecIPTTL -> output; Idle -> [1] output; t[1] -> [2] output }",
        outputs: 3,
        before: &["CheckIPHeader"],
        handlers: &[["t.drops", "e/t.drops"]],
    },
    Case {
        path: "GPUDecIPTTL(MULTICAST false, ANNO 30)",
        parted_by: "Dispatcher(30)",
        by_cpu: "e :: DecIPTTL(MULTICAST false)",
        outputs: 1,
        before: MARKED,
        handlers: &[],
    },
    Case {
        path: "GPUSetIPChecksum",
        parted_by: "Dispatcher(18)",
        by_cpu: "e :: SetIPChecksum",
        outputs: 1,
        before: MARKED,
        handlers: &[],
    },
    Case {
        path: "r :: GPUIPLookup(0/0 0, 10.0.0.0/8 1, 10.0.1.0/24 10.0.1.9 1, 10.0.1.2/32 2, 255.255.255.255/32 2)",
        parted_by: "Dispatcher",
        by_cpu: "e :: DirectIPLookup(0/0 0, 10.0.0.0/8 1, 10.0.1.0/24 10.0.1.9 1, 10.0.1.2/32 2, 255.255.255.255/32 2)",
        outputs: 3,
        before: &["GetIPAddress(16)", "MarkIPHeader(0) -> GetIPAddress(12)", "CheckIPHeader"],
        handlers: &[["r.table", "e.table"]],
    },
    Case {
        path: "c :: GPUSDNClassifier(dst 10.0.1.0/24 proto udp dport 0-100 => 0 PRIORITY 3, proto tcp flags 2/2 => 1 PRIORITY 2,
                  proto icmp icmp_type 8 => 1 PRIORITY 2, vlan 4095 => 0 PRIORITY 5, eth_type 0x0806 => 1 PRIORITY 4,
                  dscp 5 => 1, eth_dst 02:00:00:00:00:01 => 0, ip => 0, MISS 2)",
        parted_by: "Dispatcher",
        by_cpu: "e :: SDNClassifier(dst 10.0.1.0/24 proto udp dport 0-100 => 0 PRIORITY 3, proto tcp flags 2/2 => 1 PRIORITY 2,
                  proto icmp icmp_type 8 => 1 PRIORITY 2, vlan 4095 => 0 PRIORITY 5, eth_type 0x0806 => 1 PRIORITY 4,
                  dscp 5 => 1, eth_dst 02:00:00:00:00:01 => 0, ip => 0)",
        outputs: 3,
        before: ANY,
        handlers: &[["c.table", "e.table"]],
    },
    Case {
        path: r#"m :: GPUIDSMatcher(PATTERN "\<00 00 00>" GET "PORT 10" question E, NOCASE true, SID_ANNO 40, ROOM 64)"#,
        parted_by: "Dispatcher",
        by_cpu: r#"e :: IDSMatcher(PATTERN "\<00 00 00>" GET "PORT 10" question E, NOCASE true, SID_ANNO 40)"#,
        outputs: 2,
        before: ANY,
        handlers: &[["m.count", "e.count"], ["m.matches", "e.matches"]],
    },
    Case {
        path: "s :: GPUIPsecESP(0x1000, 0x000102030405060708090a0b0c0d0e0f10111213, DIRECTION encrypt, SRC 1.0.0.1, DST 2.0.0.2, IV 0)",
        parted_by: "Dispatcher(18)",
        by_cpu: "e :: IPsecESPEncap(0x1000, 0x000102030405060708090a0b0c0d0e0f10111213, SRC 1.0.0.1, DST 2.0.0.2, IV 0)",
        outputs: 2,
        before: &["MarkIPHeader(0)", "MarkIPHeader(14)"],
        handlers: &[["s.drop_details", "e.drop_details"]],
    },
    Case {
        path: "r :: GPUIPsecESP(0x1000, 0x000102030405060708090a0b0c0d0e0f10111213, DIRECTION decrypt)",
        parted_by: "Dispatcher(18)",
        by_cpu: "e :: IPsecESPUnencap(0x1000, 0x000102030405060708090a0b0c0d0e0f10111213)",
        outputs: 2,
        before: &[
            "MarkIPHeader(0)",
            "CheckIPHeader -> IPsecESPEncap(0x1000, 0x000102030405060708090a0b0c0d0e0f10111213, SRC 1.0.0.1, DST 2.0.0.2, IV 0)",
        ],
        handlers: &[["r.drop_details", "e.drop_details"]],
    },
    Case {
        path: "GPUCheckIPHeader -> GPUDecIPTTL -> GPUSetIPChecksum -> GPUSDNClassifier(proto udp => 1, ip => 2, ANNO 19, MISS 3)
               -> i :: GPUIDSMatcher(PATTERN question, ANNO 17, CHK_ANNO 19, CHK_VALUE 1)
               -> j :: GPUIDSMatcher(PATTERN GET, ANNO 17, CHK_ANNO 19, CHK_VALUE 2) -> GPUIPLookup(0/0 0, 10.0.1.0/24 1)",
        parted_by: "{ input -> v :: Dispatcher(18); v[1] -> [3] output; v[2] -> [4] output;
                      v[0] -> p :: Dispatcher(17); p[1] -> [2] output;
                      p[0] -> r :: Dispatcher; r[0] -> [0] output; r[1] -> [1] output }",
        by_cpu: "e :: { input -> c :: CheckIPHeader -> t :: DecIPTTL -> SetIPChecksum -> s :: SDNClassifier(proto udp => 1, ip => 2);
                        c[1] -> [3] output; t[1] -> [4] output; s[0] -> [3] output;
                        s[1] -> i :: IDSMatcher(PATTERN question) -> r :: DirectIPLookup(0/0 0, 10.0.1.0/24 1);
                        s[2] -> j :: IDSMatcher(PATTERN GET) -> r; i[1] -> [2] output; j[1] -> [2] output;
                        r[0] -> [0] output; r[1] -> [1] output }",
        outputs: 5,
        before: UNMARKED,
        handlers: &[["i.matches", "e/i.matches"], ["j.matches", "e/j.matches"]],
    },
];

/// Batches, and how much of the corpus goes through them: of few packets, where the longest fits alone, and of many.
/// There is room for all that are sent at once, as the source does not ask for it.
const BATCHES: [(&str, usize); 2] = [("7", 500), ("512, SLICING false", usize::MAX)];

/// A source, what is to be tried, and who keeps what comes out of it.
fn config(before: &str, tried: &str, parted_by: &str, outputs: usize) -> String {
    let mut text = format!("give :: Send -> sent :: Counter -> {before} -> {tried};\n");
    for output in 0..outputs {
        let _ = writeln!(text, "{parted_by} [{output}] -> keep{output} :: Keep;");
    }
    text
}

fn by_path(case: &Case, before: &str, batch: &str, (device, user): (&str, &str)) -> String {
    let path = format!(
        "b :: Batcher({batch}) -> HostToDeviceMemcpy({device}, USE {user}) -> {} -> DeviceToHostMemcpy
         -> GPUCompletionQueue(128) -> back :: Debatcher -> d :: {}",
        case.path, case.parted_by
    );
    config(before, &path, "d", case.outputs)
}

/// What can be seen of a packet; annotations, too, where `all`.
fn seen(packet: &Packet, all: bool) -> String {
    let offsets = [packet.mac_offset(), packet.network_offset(), packet.transport_offset()];
    let annotations = if all { packet.anno().to_vec() } else { packet.dst_ip().octets().to_vec() };
    format!("{:x?} {annotations:x?} {offsets:?} {:?}", packet.bytes(), packet.kind())
}

/// What comes out by each output.
type Out = Vec<Vec<Packet>>;

/// What becomes of packets, by a configuration, and what its handlers say.
fn through(config: &str, outputs: usize, handlers: &[&str], packets: &[Vec<u8>]) -> (Out, Vec<String>) {
    let options = Options { clock: Clock::simulated(), seed: 3, ..Options::default() };
    let mut live: Live = start_changed(config, &[], options, |_| ());
    let (mut out, mut sent) = (vec![Vec::new(); outputs], 0);
    let is_path = config.contains("Batcher");
    for some in packets.chunks(700) {
        live.send("give", some.iter().map(|bytes| Packet::from_slice(bytes)));
        sent += some.len();
        live.until("all packets are through", |live| {
            live.read("sent.count") == sent.to_string()
                && (!is_path || live.read("b.length") == "0" && live.read("b.count") == live.read("back.count"))
        });
        for (output, packets) in out.iter_mut().enumerate() {
            packets.extend(live.kept(&format!("keep{output}")));
        }
    }
    // Elements of the CPU tell of bad packets; of paths nothing is heard unless a batch fails or has no room.
    let is_trouble = |line: &String| line.contains("overflow") || line.contains("takes over");
    let said: Vec<_> = live.said().into_iter().filter(is_trouble).collect();
    assert!(said.is_empty(), "{config}: {said:?}");
    (out, handlers.iter().map(|handler| live.read(handler)).collect())
}

#[track_caller]
fn compare(what: &str, one: &Out, other: &Out, all: bool) {
    for (output, (one, other)) in one.iter().zip(other).enumerate() {
        let show = |packets: &[Packet], at: usize| packets.get(at).map(|packet| seen(packet, all));
        let many = one.len().max(other.len());
        if let Some(at) = (0..many).find(|at| show(one, *at) != show(other, *at)) {
            let counts = [one.len(), other.len()];
            panic!(
                "{what}\noutput {output}, packet {at} of {counts:?}:\n  {:?}\n  {:?}",
                show(one, at),
                show(other, at)
            );
        }
    }
}

/// The corpus, and packets of it with bytes that are others.
fn corpus(random: &mut fastrand::Rng) -> Vec<Vec<u8>> {
    let mut all = [packets(), frames()].concat();
    for _ in 0..1000 {
        let mut packet = all[random.usize(..all.len())].clone();
        for _ in 0..random.usize(1..4) {
            // Headers more often than what is behind them.
            let most = if random.bool() { packet.len().min(60) } else { packet.len() };
            if most > 0 {
                packet[random.usize(..most)] = random.u8(..);
            }
        }
        all.push(packet);
    }
    random.shuffle(&mut all);
    // The longest ones are among the first.
    all.sort_by_key(|packet| packet.len() < 60_000);
    all
}

#[test]
fn malformed_packets_are_the_same_to_paths_and_to_elements_of_the_cpu() {
    let mut random = fastrand::Rng::with_seed(seed());
    let packets = corpus(&mut random);
    // Who is chosen for `auto` is one of the others.
    let places: Vec<_> = places().into_iter().filter(|(_, user)| *user != "auto").collect();
    for case in CASES {
        let [of_path, of_cpu] = [0, 1].map(|side| case.handlers.iter().map(|pair| pair[side]).collect::<Vec<_>>());
        for (before, (batch, most)) in case.before.iter().flat_map(|before| BATCHES.map(|batch| (before, batch))) {
            let packets = &packets[..packets.len().min(most)];
            let by_cpu = config(before, case.by_cpu, "e", case.outputs);
            let expected = through(&by_cpu, case.outputs, &of_cpu, packets);
            let came: usize = expected.0.iter().map(Vec::len).sum();
            assert!(came > 50, "{by_cpu}: {came} packets come out");
            let mut first = None;
            for (device, user) in &places {
                let config = by_path(case, before, batch, (device, user));
                let found = through(&config, case.outputs, &of_path, packets);
                compare(&config, &found.0, &expected.0, false);
                assert_eq!(found.1, expected.1, "{config}");
                // Of each other, they differ in nothing at all.
                compare(&config, &found.0, first.get_or_insert_with(|| found.0.clone()), true);
            }
        }
    }
}

#[test]
fn no_element_of_paths_is_left_out() {
    let classes = GROUPS.iter().flat_map(|(_, classes)| classes.iter().map(|class| class.name));
    let computed: Vec<_> = classes.filter(|name| name.starts_with("GPU") && *name != "GPUCompletionQueue").collect();
    assert!(computed.len() >= 6, "{computed:?}");
    let is_tried = |name: &str| CASES.iter().any(|case| case.path.contains(name));
    let left: Vec<_> = computed.into_iter().filter(|name| !is_tried(name)).collect();
    assert!(left.is_empty(), "{left:?} have no case");
}
