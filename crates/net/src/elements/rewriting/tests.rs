//! Rewriters in routers: what comes out, in simulated time.

use std::net::Ipv4Addr;

use crate::Packet;
use crate::elements::testing::{self, Harness, fuzz};
use crate::headers::{FlowId, Icmp, Ip, IpMut, TcpMut, checksum, icmp, ip, tcp};

/// A router with a rewriter `rw` of two inputs and two outputs, or with what else there is.
pub(super) fn two(rewriter: &str, more: &str) -> Harness {
    Harness::new(&format!(
        "rw :: {rewriter}; {more}; g0 :: Give -> [0]rw; g1 :: Give -> [1]rw; rw[0] -> t0 :: Take; rw[1] -> t1 :: Take"
    ))
}

pub(super) fn address(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

fn marked(bytes: &[u8]) -> Packet {
    let mut packet = Packet::from_slice(bytes);
    packet.set_network_header(0, 20);
    packet
}

/// A packet with right checksums, as `PROTOCOL SADDR SPORT DADDR DPORT`; pings have their identifier as ports.
pub(super) fn packet(text: &str, data: &[u8]) -> Packet {
    let words: Vec<_> = text.split_whitespace().collect();
    let (source, destination) = (address(words[1]).octets(), address(words[3]).octets());
    let (from, to): (u16, u16) = (words[2].parse().unwrap(), words[4].parse().unwrap());
    let bytes = match words[0] {
        "U" => testing::udp((source, from), (destination, to), data),
        "T" => {
            let mut segment = vec![0; tcp::LEN];
            let mut header = TcpMut::new(&mut segment).unwrap();
            header.set_source(from);
            header.set_destination(to);
            header.set_header_len(tcp::LEN);
            segment.extend(data);
            let sum = checksum::transport(source.into(), destination.into(), ip::PROTOCOL_TCP, &segment);
            TcpMut::new(&mut segment).unwrap().set_checksum(sum);
            testing::ip(ip::PROTOCOL_TCP, source, destination, &segment)
        }
        "ping" | "pong" => {
            let kind = if words[0] == "ping" { icmp::ECHO } else { icmp::ECHO_REPLY };
            let mut message = [&[kind, 0, 0, 0][..], &from.to_be_bytes(), &[0, 1], data].concat();
            icmp::set_checksum(&mut message);
            testing::ip(ip::PROTOCOL_ICMP, source, destination, &message)
        }
        other => testing::ip(other.parse().unwrap(), source, destination, data),
    };
    marked(&bytes)
}

/// A packet as [`packet`] reads it; all checksums are right.
#[track_caller]
pub(super) fn text(packet: &Packet) -> String {
    let bytes = packet.network_header().unwrap();
    let ip = Ip::checked(bytes).unwrap();
    assert!(ip.is_checksum_valid());
    let (payload, source, destination) = (ip.payload(), ip.source(), ip.destination());
    let word = match ip.protocol() {
        ip::PROTOCOL_TCP => "T".to_owned(),
        ip::PROTOCOL_UDP => "U".to_owned(),
        ip::PROTOCOL_ICMP => {
            assert!(checksum::is_valid(payload));
            let icmp = Icmp::new(payload).unwrap();
            let word = if icmp.kind() == icmp::ECHO { "ping" } else { "pong" };
            return format!("{word} {source} {} {destination} {}", icmp.id(), icmp.id());
        }
        other => other.to_string(),
    };
    if matches!(ip.protocol(), ip::PROTOCOL_TCP | ip::PROTOCOL_UDP) {
        let sum = checksum::pseudo(source, destination, ip.protocol(), payload.len() as u16).with(payload);
        assert_eq!(sum.folded(), 0xffff);
    }
    let flow = FlowId::of(ip).unwrap_or(FlowId::addresses(ip));
    format!("{word} {source} {} {destination} {}", flow.source_port, flow.destination_port)
}

/// Each line: `TIME INPUT PACKET => OUTPUT PACKET`, or `=> -` where it is dropped. Times are in seconds. A packet has data,
/// unless a dot is behind it.
#[track_caller]
fn run(harness: &mut Harness, lines: &str) {
    let mut now = 0.0;
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (given, expected) = line.split_once("=>").unwrap();
        let mut words = given.trim().splitn(3, ' ');
        let at: f64 = words.next().unwrap().parse().unwrap();
        let source = format!("g{}", words.next().unwrap());
        harness.pass(at - now);
        now = at;
        let words = words.next().unwrap();
        let (words, data) = words.strip_suffix(" .").map_or((words, &b"XXX"[..]), |words| (words, b""));
        harness.give(&source, [packet(words, data)]);
        let out: Vec<_> = ["t0", "t1"]
            .iter()
            .enumerate()
            .flat_map(|(port, sink)| {
                harness.take(sink).iter().map(|packet| format!("{port} {}", text(packet))).collect::<Vec<_>>()
            })
            .collect();
        let expected: Vec<_> = Some(expected.trim()).filter(|text| *text != "-").into_iter().collect();
        assert_eq!(out, expected, "{line}");
    }
}

#[test]
fn patterns_are_read_and_told() {
    let mut harness = Harness::new(
        "rw :: IPRewriter(pattern 1.0.0.1 1 - - 0 1, pattern 1.0.0.1 1-65535 - - 0 1, pattern 1.0.0.1 - - - 0 1, drop, \
         pass, keep 1 0, m); m :: RoundRobinIPMapper(- - - - 0 0, - - - - 0 1); \
         i :: Give -> rw; Give -> [1]rw; Give -> [2]rw; Give -> [3]rw; Give -> [4]rw; Give -> [5]rw; Give -> [6]rw; \
         rw -> Take; rw[1] -> Take",
    );
    let expected = "1.0.0.1 1 - -\n1.0.0.1 1-65535 - -\n1.0.0.1 - - -\n<drop>\n<nochange>\n<keep>\n<mapper>\n";
    assert_eq!(
        (harness.read("rw.patterns"), harness.read("rw.pattern1")),
        (expected.into(), "1.0.0.1 1-65535 - -".into())
    );
    harness.write("rw.pattern0", "keep 0 0").unwrap();
    assert_eq!(harness.read("rw.pattern0"), "<keep>");
    assert!(harness.write("rw.pattern0", "keep 0 2").unwrap_err().contains("input spec 0: output port out of range"));
}

#[test]
fn specifications_are_checked() {
    let errors = |specs: &str| {
        let inputs = "Give -> rw; Give -> [1]rw; Give -> [2]rw; Give -> [3]rw";
        Harness::errors(&format!("rw :: IPAddrRewriter({specs}); {inputs}; rw -> Take; rw[1] -> Take"))
    };
    let told = errors(
        "pattern 1.0.0.1 1x - - 0 1, pattern 1.0.0.0 0-255 - - 0 1, pattern 1.0.0.0 456-19 - - 0 1, \
                       pattern 1.0.0.0 456-65536 - - 0 1",
    );
    for input in [0, 2, 3] {
        assert!(told.contains(&format!("  input spec {input}: bad source port\n")), "{told}");
    }
    assert!(!told.contains("input spec 1"));
    let told = errors("pattern nix 0 1, pattern - - - - 0 2, keep 0, nix");
    for expected in [
        "input spec 0: no such pattern 'nix'",
        "input spec 1: output port out of range",
        "input spec 2: bad forward port",
        "input spec 3: unknown specification",
    ] {
        assert!(told.contains(expected), "{told}");
    }
    let told = errors("rw, pattern 0 1, pass 2, drop 1");
    for expected in [
        "input spec 0: element is not an IPMapper",
        "input spec 1: syntax error",
        "input spec 2: output port out of range",
        "input spec 3: syntax error, expected 'drop'",
    ] {
        assert!(told.contains(expected), "{told}");
    }
    assert!(errors("drop, drop").contains("need 4 arguments, one per input port"));
    assert!(errors("drop, drop, drop, drop, MAPPING_CAPACITY nix").contains("bad MAPPING_CAPACITY"));
    assert!(errors("drop, drop, drop, drop, TIMEOUT x").contains("TIMEOUT: type mismatch"));
    assert!(errors("drop, drop, drop, drop, DST_ANNO true").contains("need 4 arguments"));
    let told =
        Harness::errors("m :: RoundRobinIPMapper(- - - - 0 0, - - - - 1 0); Give -> rw :: IPRewriter(m) -> Take");
    assert!(told.contains("input spec 0: output port out of range in m :: RoundRobinIPMapper pattern 1"), "{told}");
    assert!(Harness::errors("RoundRobinIPMapper()").contains("no patterns given"));
    let told = Harness::errors("IPRewriterPatterns(a - - - -, a - - - -, b - x -, c a, d nix, e - - - - -)");
    let expected = [
        "pattern 'a' already defined",
        "bad destination address",
        "no such pattern 'nix'",
        "syntax error",
        "Router could not be initialized!",
    ];
    let lines: Vec<_> = told.lines().skip(1).map(|line| line.trim_start_matches("config:1:").trim()).collect();
    assert_eq!(lines, expected);
}

#[test]
fn flows_are_rewritten_and_their_replies_back() {
    let mut harness = two("UDPRewriter(pattern 1.0.0.1 1024-1026# - - 0 1, drop)", "");
    run(
        &mut harness,
        "1 0 T 18.26.4.44 1 18.26.4.44 2 => 0 T 1.0.0.1 1024 18.26.4.44 2
         1 0 T 18.26.4.44 1 18.26.4.44 2 => 0 T 1.0.0.1 1024 18.26.4.44 2
         1 0 T 18.26.4.9 10 18.26.4.44 20 => 0 T 1.0.0.1 1025 18.26.4.44 20
         1 1 T 18.26.4.44 2 1.0.0.1 1024 => 1 T 18.26.4.44 2 18.26.4.44 1
         1 1 T 18.26.4.44 1 1.0.0.1 1024 => -
         1 1 T 18.26.4.44 20 1.0.0.1 1025 => 1 T 18.26.4.44 20 18.26.4.9 10
         1 0 89 1.0.0.1 0 2.0.0.2 0 => -",
    );
    assert_eq!((harness.read("rw.table_size"), harness.read("rw.nmappings")), ("2".into(), "2".into()));
}

#[test]
fn a_changed_pattern_ends_its_flows_and_tables_tell_the_others() {
    let config = "IPRewriter(pattern 1.0.0.2 1024-65534# - - 0 1, pattern 1.0.0.3 1024-65534# - - 0 1, drop)";
    let mut harness = Harness::new(&format!(
        "rw :: {config}; g0 :: Give -> [0]rw; g1 :: Give -> [1]rw; g2 :: Give -> [2]rw; \
         rw[0] -> t0 :: Take; rw[1] -> t1 :: Take; rw[2] -> Take"
    ));
    run(
        &mut harness,
        ".001 0 T 53.1.1.1 1 2.115.2.2 2 => 0 T 1.0.0.2 1024 2.115.2.2 2
         .002 0 T 53.1.1.4 1 2.115.2.2 2 => 0 T 1.0.0.2 1025 2.115.2.2 2
         .003 1 T 2.115.2.2 2 1.0.0.2 1024 => 1 T 2.115.2.2 2 53.1.1.1 1
         .004 1 T 53.1.1.1 1 2.115.2.2 2 => 0 T 1.0.0.2 1024 2.115.2.2 2
         .005 1 T 53.1.1.2 1 2.115.2.2 2 => 0 T 1.0.0.3 1024 2.115.2.2 2
         .006 2 T 53.1.1.3 1 2.115.2.2 2 => -
         .007 1 T 2.115.2.2 2 1.0.0.2 1024 => 1 T 2.115.2.2 2 53.1.1.1 1",
    );
    harness.write("rw.pattern0", "pattern 1.0.0.4 1024-65534# - - 0 1").unwrap();
    assert_eq!(harness.read("rw.patterns"), "1.0.0.4 1024-65534 - -\n1.0.0.3 1024-65534 - - [1]\n<drop>\n");
    run(
        &mut harness,
        ".011 0 T 53.1.1.1 1 2.115.2.2 2 => 0 T 1.0.0.4 1024 2.115.2.2 2
         .012 0 T 53.1.1.4 1 2.115.2.2 2 => 0 T 1.0.0.4 1025 2.115.2.2 2
         .013 2 T 2.115.2.2 2 1.0.0.3 1024 => 1 T 2.115.2.2 2 53.1.1.2 1
         .013 1 T 2.115.2.2 2 1.0.0.2 1024 => 0 T 1.0.0.3 1025 1.0.0.2 1024
         .0135 1 T 2.115.2.2 2 1.0.0.4 1024 => 1 T 2.115.2.2 2 53.1.1.1 1
         .014 1 T 53.1.1.1 1 2.115.2.2 2 => 0 T 1.0.0.4 1024 2.115.2.2 2
         .015 1 T 53.1.1.2 1 2.115.2.2 2 => 0 T 1.0.0.3 1024 2.115.2.2 2
         .016 2 T 53.1.1.3 1 2.115.2.2 2 => -",
    );
    let table = harness.read("rw.tcp_table");
    let mut lines: Vec<_> = table.lines().map(|line| line.rsplit_once(" exp").unwrap().0).collect();
    lines.sort_unstable();
    let expected = "(1.0.0.2, 1024, 1.0.0.3, 1025) => (1.0.0.2, 1024, 2.115.2.2, 2) [0 *1] i1
(2.115.2.2, 2, 1.0.0.2, 1024) => (1.0.0.3, 1025, 1.0.0.2, 1024) [*0 1] i1
(2.115.2.2, 2, 1.0.0.3, 1024) => (2.115.2.2, 2, 53.1.1.2, 1) [0 *1] i1
(2.115.2.2, 2, 1.0.0.4, 1024) => (2.115.2.2, 2, 53.1.1.1, 1) [0 *1] i0
(2.115.2.2, 2, 1.0.0.4, 1025) => (2.115.2.2, 2, 53.1.1.4, 1) [0 *1] i0
(53.1.1.1, 1, 2.115.2.2, 2) => (1.0.0.4, 1024, 2.115.2.2, 2) [*0 1] i0
(53.1.1.2, 1, 2.115.2.2, 2) => (1.0.0.3, 1024, 2.115.2.2, 2) [*0 1] i1
(53.1.1.4, 1, 2.115.2.2, 2) => (1.0.0.4, 1025, 2.115.2.2, 2) [*0 1] i0";
    assert_eq!(lines.join("\n"), expected);
    assert_eq!((harness.read("rw.tcp_mappings"), harness.read("rw.udp_table")), (table, String::new()));
    for (from, to) in [
        ("1.0.0.2 1024 1.0.0.3 1025", "1.0.0.2 1024 2.115.2.2 2"),
        ("2.115.2.2 2 1.0.0.4 1025", "2.115.2.2 2 53.1.1.4 1"),
        ("53.1.1.4 1 2.115.2.2 2", "1.0.0.4 1025 2.115.2.2 2"),
        ("53.1.1.9 1 2.115.2.2 2", ""),
    ] {
        assert_eq!(harness.read(&format!("rw.tcp_lookup {from}")), to, "{from}");
    }
}

#[test]
fn a_capacity_is_shared_and_guarantees_hold() {
    let mut harness = Harness::new(
        "rw1 :: IPRewriter(pattern 1.0.0.2 1024-65534# - - 0 1, drop, MAPPING_CAPACITY rw2);
         rw2 :: IPRewriter(pattern 1.0.0.3 1024-65534# - - 0 1, drop, MAPPING_CAPACITY 3);
         g0 :: Give -> rw1; g1 :: Give -> [1]rw1; g2 :: Give -> rw2; g3 :: Give -> [1]rw2;
         t0 :: Take; t1 :: Take; rw1[0] -> t0; rw1[1] -> t1; rw2[0] -> t0; rw2[1] -> t1",
    );
    run(
        &mut harness,
        ".1 0 T 53.1.1.1 1 2.115.2.2 2 => 0 T 1.0.0.2 1024 2.115.2.2 2
         .2 1 T 2.115.2.2 2 1.0.0.2 1024 => 1 T 2.115.2.2 2 53.1.1.1 1
         .3 2 T 53.1.1.1 1 2.115.2.2 2 => 0 T 1.0.0.3 1024 2.115.2.2 2
         .4 2 T 53.1.1.2 1 2.115.2.2 2 => 0 T 1.0.0.3 1025 2.115.2.2 2
         .5 2 T 53.1.1.3 1 2.115.2.2 2 => -
         .6 1 T 2.115.2.2 2 1.0.0.2 1024 => 1 T 2.115.2.2 2 53.1.1.1 1
         .7 3 T 2.115.2.2 2 1.0.0.3 1024 => 1 T 2.115.2.2 2 53.1.1.1 1
         .8 3 T 2.115.2.2 2 1.0.0.3 1025 => 1 T 2.115.2.2 2 53.1.1.2 1
         .9 3 T 2.115.2.2 2 1.0.0.3 1026 => -
         5.65 0 T 53.1.1.4 1 2.115.2.2 2 => 0 T 1.0.0.2 1025 2.115.2.2 2
         5.66 0 T 53.1.1.5 1 2.115.2.2 2 => -
         6.1 1 T 2.115.2.2 2 1.0.0.2 1024 => -
         6.2 3 T 2.115.2.2 2 1.0.0.3 1024 => 1 T 2.115.2.2 2 53.1.1.1 1
         6.3 3 T 2.115.2.2 2 1.0.0.3 1025 => 1 T 2.115.2.2 2 53.1.1.2 1
         6.5 1 T 2.115.2.2 2 1.0.0.2 1025 => 1 T 2.115.2.2 2 53.1.1.4 1
         6.6 1 T 2.115.2.2 2 1.0.0.2 1026 => -",
    );
    let read = |harness: &mut Harness, name| harness.read(name);
    let names = ["rw1.size", "rw2.size", "rw1.capacity", "rw1.table_size", "rw2.table_size", "rw1.mapping_failures"];
    assert_eq!(names.map(|name| read(&mut harness, name)), ["3", "3", "3", "1", "2", "1"]);
}

/// Flows 1 to 9 of TCP, with data both ways; then what ends first ends for a new one: UDP, then TCP without replies.
#[test]
fn what_ends_first_makes_room() {
    let mut harness = two("IPRewriter(pattern 2.0.0.1 1024-65535# - - 0 1, drop, MAPPING_CAPACITY 8)", "");
    let begin = |n: u32, out: &str| format!("0.{n} 0 T 1.0.0.{n} {} 2.0.0.2 {} => {out}\n", n + 10, n + 20);
    let reply = |s: u32, n: u32, is_there: bool| {
        let out = if is_there { format!("1 T 2.0.0.2 {} 1.0.0.{n} {}", n + 20, n + 10) } else { "-".into() };
        format!("{s}.{n} 1 T 2.0.0.2 {} 2.0.0.1 {} => {out}\n", n + 20, n + 1023)
    };
    let forward = (1..=8).map(|n| begin(n, &format!("0 T 2.0.0.1 {} 2.0.0.2 {}", n + 1023, n + 20)));
    let replies = (1..=9).map(|n| reply(1, n, n < 9));
    let later = (1..=9).map(|n| reply(7, n, n > 1 && n < 9));
    let lines = forward.chain([begin(9, "-")]).chain(replies);
    let lines = lines.chain(["7.0 0 U 1.0.0.10 20 2.0.0.2 30 => 0 U 2.0.0.1 1033 2.0.0.2 30\n".into()]).chain(later);
    let rest = "8.0 1 U 2.0.0.2 30 2.0.0.1 1033 => 1 U 2.0.0.2 30 1.0.0.10 20
         14.0 0 T 1.0.0.11 21 2.0.0.2 31 => 0 T 2.0.0.1 1034 2.0.0.2 31
         14.1 1 U 2.0.0.2 30 2.0.0.1 1033 => -
         14.2 0 T 1.0.0.11 21 2.0.0.2 31 => 0 T 2.0.0.1 1034 2.0.0.2 31
         20.0 0 U 1.0.0.12 22 2.0.0.2 32 => 0 U 2.0.0.1 1035 2.0.0.2 32
         20.1 1 T 2.0.0.2 31 2.0.0.1 1034 => -
         20.2 1 U 2.0.0.2 32 2.0.0.1 1035 => 1 U 2.0.0.2 32 1.0.0.12 22";
    run(&mut harness, &(lines.collect::<String>() + rest));
}

#[test]
fn a_smaller_capacity_gives_up_what_ends_first() {
    let mut harness =
        two("IPRewriter(pattern 2.0.0.1 1024-65535# - - 0 1, drop, MAPPING_CAPACITY 10, GUARANTEE 0)", "");
    for n in 1..=10 {
        run(&mut harness, &format!("1 0 T 1.0.0.{n} 1 2.0.0.2 2 => 0 T 2.0.0.1 {} 2.0.0.2 2", n + 1023));
    }
    for n in 1..=10 {
        run(&mut harness, &format!("1 1 T 2.0.0.2 2 2.0.0.1 {} => 1 T 2.0.0.2 2 1.0.0.{n} 1", n + 1023));
    }
    // Without replies it would end first, and isn't guaranteed.
    run(&mut harness, "1 0 T 1.0.0.11 1 2.0.0.2 2 => -\n1 1 T 2.0.0.2 2 2.0.0.1 1034 => -");
    assert_eq!((harness.read("rw.mapping_failures"), harness.read("rw.size")), ("1".into(), "10".into()));
    harness.write("rw.capacity", "8").unwrap();
    assert_eq!((harness.read("rw.capacity"), harness.read("rw.size")), ("8".into(), "8".into()));
    for n in 1..=10 {
        let out = if n <= 2 { "-".into() } else { format!("1 T 2.0.0.2 2 1.0.0.{n} 1") };
        run(&mut harness, &format!("1 1 T 2.0.0.2 2 2.0.0.1 {} => {out}", n + 1023));
    }
    assert!(harness.write("rw.capacity", "-1").is_err() && harness.write("rw.capacity", "x").is_err());
    harness.write("rw.clear", "").unwrap();
    assert_eq!((harness.read("rw.size"), harness.read("rw.table_size")), ("0".into(), "0".into()));
}

#[test]
fn flows_end_in_their_time() {
    let config = "IPRewriter(keep 0 1, drop, REAP_INTERVAL 1, TCP_GUARANTEE 1, UDP_GUARANTEE 1, TCP_NODATA_TIMEOUT 3, \
                  TCP_TIMEOUT 20, UDP_TIMEOUT 5, UDP_STREAMING_TIMEOUT 10)";
    let mut harness = two(config, "");
    run(
        &mut harness,
        "0 0 T 1.0.0.1 1 2.0.0.2 2 => 0 T 1.0.0.1 1 2.0.0.2 2
         0 0 T 1.0.0.2 1 2.0.0.2 2 => 0 T 1.0.0.2 1 2.0.0.2 2
         0 1 T 2.0.0.2 2 1.0.0.2 1 => 1 T 2.0.0.2 2 1.0.0.2 1
         0 0 U 1.0.0.1 1 2.0.0.2 2 => 0 U 1.0.0.1 1 2.0.0.2 2
         0 0 U 1.0.0.2 1 2.0.0.2 2 => 0 U 1.0.0.2 1 2.0.0.2 2
         0 1 U 2.0.0.2 2 1.0.0.2 1 => 1 U 2.0.0.2 2 1.0.0.2 1
         0 0 U 1.0.0.2 1 2.0.0.2 2 => 0 U 1.0.0.2 1 2.0.0.2 2",
    );
    assert!(harness.read("rw.udp_table").ends_with(" => (2.0.0.2, 2, 1.0.0.2, 1) [0 *1] i0 exp10\n"));
    for (seconds, size) in [(2.5, 4), (1.0, 3), (1.0, 3), (1.0, 2), (4.0, 2), (1.0, 1), (9.0, 1), (1.0, 0)] {
        harness.pass(seconds);
        assert_eq!(harness.read("rw.size"), size.to_string());
    }
}

#[test]
fn tcp_connections_that_were_ended_end_sooner() {
    let config = "TCPRewriter(keep 0 1, drop, REAP_INTERVAL 1, GUARANTEE 1, TCP_DONE_TIMEOUT 2, TIMEOUT 100)";
    for (flags, size) in [(tcp::FIN, "0"), (tcp::ACK, "1")] {
        let mut harness = two(config, "");
        for (input, flow) in [("g0", "T 1.0.0.1 1 2.0.0.2 2"), ("g1", "T 2.0.0.2 2 1.0.0.1 1")] {
            let mut last = packet(flow, b"x");
            TcpMut::new(&mut last.bytes_mut()[20..]).unwrap().set_flags(flags);
            harness.give(input, [packet(flow, b"x"), last]);
        }
        harness.pass(3.5);
        assert_eq!(harness.read("rw.size"), size);
    }
}

#[test]
fn flows_between_a_port_and_itself_are_survived() {
    let mut harness =
        two("IPRewriter(pattern 2.0.0.1 1024-65535# - - 0 1, drop, MAPPING_CAPACITY 10, GUARANTEE 0)", "");
    run(
        &mut harness,
        "1 0 T 1.0.0.1 11 2.0.0.2 21 => 0 T 2.0.0.1 1024 2.0.0.2 21
         2 0 T 2.0.0.1 1025 2.0.0.1 1025 => 0 T 2.0.0.1 1025 2.0.0.1 1025
         2 1 T 2.0.0.1 1025 2.0.0.1 1025 => 1 T 2.0.0.1 1025 2.0.0.1 1025",
    );
    assert_eq!(harness.read("rw.mapping_failures"), "0");
    let config = "UDPRewriter(pattern 1.0.0.2 1024-65534# - - 0 1, drop, GUARANTEE 1, TIMEOUT 4, STREAMING_TIMEOUT 5, \
                  MAPPING_CAPACITY 3)";
    run(
        &mut two(config, ""),
        "1 0 T 1.0.0.2 1024 1.0.0.2 1024 => 0 T 1.0.0.2 1024 1.0.0.2 1024
         2 0 T 1.0.0.2 1 1.0.0.2 1024 => 0 T 1.0.0.2 1025 1.0.0.2 1024
         3 0 T 1.0.0.2 2 2.0.0.2 1024 => 0 T 1.0.0.2 1026 2.0.0.2 1024
         4 0 T 1.0.0.2 3 2.0.0.2 1024 => 0 T 1.0.0.2 1027 2.0.0.2 1024
         5 0 T 1.0.0.2 4 2.0.0.2 1024 => 0 T 1.0.0.2 1028 2.0.0.2 1024
         6 0 T 1.0.0.2 5 1.0.0.2 1024 => 0 T 1.0.0.2 1029 1.0.0.2 1024",
    );
}

#[test]
fn replies_get_the_annotation_of_the_first_packet() {
    for (rewriter, destination) in [("IPRewriter", true), ("IPRewriter", false), ("UDPRewriter", true)] {
        let config =
            format!("{rewriter}(pattern 1.0.0.1 1024-65535# - - 0 1, drop, REPLY_ANNO PAINT, DST_ANNO {destination})");
        let mut harness = two(&config, "");
        let mut first = packet("U 18.26.4.44 30 10.0.0.4 40", b"");
        first.set_anno_u8(16, 7);
        harness.give("g0", [first]);
        harness.give("g1", [packet("U 10.0.0.4 40 1.0.0.1 1024", b"")]);
        let (out, back) = (harness.take("t0").remove(0), harness.take("t1").remove(0));
        assert_eq!((out.anno_u8(16), back.anno_u8(16)), (7, 7));
        let nowhere = Ipv4Addr::UNSPECIFIED;
        let expected = if destination { (address("10.0.0.4"), address("18.26.4.44")) } else { (nowhere, nowhere) };
        assert_eq!((out.dst_ip(), back.dst_ip()), expected);
    }
}

#[test]
fn what_has_no_flow_passes_where_that_is_said() {
    let mut harness = two("IPRewriter(pass 1, drop)", "");
    let mut fragment = packet("U 1.0.0.1 1 2.0.0.2 2", b"abc");
    IpMut::new(fragment.bytes_mut()).unwrap().set_flags_offset(5);
    ip::set_checksum(fragment.bytes_mut());
    let others = [fragment, packet("89 1.0.0.1 0 2.0.0.2 0", b"abc"), packet("T 1.0.0.1 1 2.0.0.2 2", b"")];
    harness.give("g0", others.clone());
    assert_eq!(harness.take_bytes("t1"), others.each_ref().map(|packet| packet.bytes().to_vec()));
    harness.give("g1", others);
    assert_eq!((harness.take("t0").len(), harness.take("t1").len(), harness.read("rw.size")), (0, 0, "0".into()));
}

#[test]
fn addresses_are_rewritten_for_all_protocols() {
    let mut harness = two("IPAddrRewriter(pattern 3.0.0.1-3.0.0.255# - 0 0, drop)", "");
    run(
        &mut harness,
        "1 0 T 1.0.0.1 5 9.9.9.9 6 => 0 T 3.0.0.1 5 9.9.9.9 6
         1 0 U 1.0.0.2 5 9.9.9.8 6 => 0 U 3.0.0.2 5 9.9.9.8 6
         1 0 89 1.0.0.1 0 9.9.9.7 0 => 0 89 3.0.0.1 0 9.9.9.7 0
         1 0 T 9.9.9.6 7 3.0.0.1 8 => 0 T 9.9.9.6 7 1.0.0.1 8",
    );
    let expected = "1.0.0.1 => 3.0.0.1 [*0 0] i0 exp7200\n3.0.0.1 => 1.0.0.1 [0 *0] i0 exp7200\n";
    assert!(harness.read("rw.table").starts_with(expected));
    let mut harness = two("IPAddrPairRewriter(pattern 3.0.0.1-3.0.0.255# - 0 1, keep 1 0)", "");
    run(
        &mut harness,
        "1 0 T 1.0.0.1 1 9.9.9.9 2 => 0 T 3.0.0.1 1 9.9.9.9 2
         1 0 T 1.0.0.2 1 9.9.9.8 2 => 0 T 3.0.0.2 1 9.9.9.8 2
         1 0 U 1.0.0.1 1 9.9.9.9 2 => 0 U 3.0.0.1 1 9.9.9.9 2
         1 0 T 1.0.0.1 1 9.9.9.7 2 => 0 T 3.0.0.3 1 9.9.9.7 2
         1 0 T 9.9.9.6 1 3.0.0.1 2 => 0 T 3.0.0.4 1 3.0.0.1 2
         1 0 T 9.9.9.7 1 3.0.0.3 2 => 1 T 9.9.9.7 1 1.0.0.1 2",
    );
    let expected = "(1.0.0.1, 9.9.9.9) => (3.0.0.1, 9.9.9.9) [*0 1] i0 exp7200\n";
    assert!(harness.read("rw.mappings").starts_with(expected));
}

#[test]
fn pings_get_identifiers_of_their_own() {
    let mut harness = two("ICMPPingRewriter(pattern 2.0.0.2 - 0-65535# 0 1, drop)", "");
    run(
        &mut harness,
        "1 0 ping 1.0.0.1 10230 5.0.0.5 10230 => 0 ping 2.0.0.2 0 5.0.0.5 0
         1 1 pong 5.0.0.5 0 2.0.0.2 0 => 1 pong 5.0.0.5 10230 1.0.0.1 10230
         1 0 ping 1.0.0.1 10230 5.0.0.5 10230 => 0 ping 2.0.0.2 0 5.0.0.5 0
         1 0 ping 1.0.0.2 0 5.0.0.5 0 => 0 ping 2.0.0.2 1 5.0.0.5 1
         1 1 pong 5.0.0.5 1 2.0.0.2 1 => 1 pong 5.0.0.5 0 1.0.0.2 0
         1 1 pong 5.0.0.5 9 2.0.0.2 9 => -
         1 0 pong 5.0.0.5 9 2.0.0.2 9 => -
         1 0 T 1.0.0.1 1 2.0.0.2 2 => -",
    );
    let expected = "(1.0.0.1, 5.0.0.5, 10230) => (2.0.0.2, 5.0.0.5, 0) [*0 1] i0 exp300\n\
                    (5.0.0.5, 2.0.0.2, 0) => (5.0.0.5, 1.0.0.1, 10230) [0 *1] i0 exp300\n";
    assert!(harness.read("rw.table").starts_with(expected));
    // Its own identifier, where that is free.
    let mut harness = two("ICMPPingRewriter(pattern 2.0.0.2 - 0-65535 0 1, drop)", "");
    run(&mut harness, "1 0 ping 1.0.0.1 10 5.0.0.5 10 => 0 ping 2.0.0.2 10 5.0.0.5 10");
    harness.give("g0", [packet("ping 1.0.0.2 10 5.0.0.5 10", b"")]);
    assert_ne!(text(&harness.take("t0")[0]), "ping 2.0.0.2 10 5.0.0.5 10");
}

#[test]
fn patterns_with_names_are_shared() {
    let mut harness = Harness::new(
        "IPRewriterPatterns(pat 1.0.0.1 1024-65535# - -, same pat);
         rw :: IPRewriter(pattern pat 0 1, drop); u :: UDPRewriter(pattern same 0 0);
         g0 :: Give -> rw; g1 :: Give -> [1]rw; g2 :: Give -> u;
         t0 :: Take; t1 :: Take; rw[0] -> t0; rw[1] -> t1; u -> t0",
    );
    run(
        &mut harness,
        "1 0 U 9.0.0.1 1 2.0.0.2 2 => 0 U 1.0.0.1 1024 2.0.0.2 2
         1 2 U 9.0.0.1 1 2.0.0.2 2 => 0 U 1.0.0.1 1025 2.0.0.2 2
         1 0 T 9.0.0.1 1 2.0.0.2 2 => 0 T 1.0.0.1 1026 2.0.0.2 2",
    );
    harness.write("rw.pattern1", "pattern pat 1 0").unwrap();
    run(&mut harness, "1 1 U 9.0.0.3 1 2.0.0.2 2 => 1 U 1.0.0.1 1027 2.0.0.2 2");
}

#[test]
fn a_mapper_takes_patterns_in_turn() {
    let mut harness = Harness::new(
        "r :: RoundRobinIPMapper(- - - - 0 0, - - - - 1 0, - - - - 2 0); g0 :: Give -> rw :: IPRewriter(r);
         rw[0] -> t0 :: Take; rw[1] -> t1 :: Take; rw[2] -> t2 :: Take",
    );
    let mut outputs = Vec::new();
    for (host, port) in [(2, 2), (2, 3), (2, 2), (3, 2), (4, 2), (2, 3), (2, 3)] {
        harness.give("g0", [packet(&format!("U 1.0.0.1 1 1.0.0.{host} {port}"), b"")]);
        outputs.extend((0..3).filter(|output| harness.take(&format!("t{output}")).len() == 1));
    }
    assert_eq!(outputs, [0, 1, 0, 2, 0, 1, 1]);
    // A full range is passed over.
    let mut harness = two("UDPRewriter(r, drop)", "r :: RoundRobinIPMapper(1.0.0.1 5-6 - - 0 0, 1.0.0.2 7-8# - - 1 0)");
    for (host, expected) in ["t0", "t1", "t0", "t1"].iter().enumerate() {
        harness.give("g0", [packet(&format!("U 5.0.0.{host} 1 1.0.0.9 1"), b"")]);
        assert_eq!(harness.take(expected).len(), 1);
    }
    harness.give("g0", [packet("U 9.9.9.8 1 1.0.0.9 1", b"")]);
    assert_eq!(harness.read("rw.mapping_failures"), "1");
}

#[test]
fn a_port_is_used_for_each_destination() {
    for class in ["IPRewriter", "UDPRewriter", "TCPRewriter"] {
        run(
            &mut two(&format!("{class}(pattern 1.0.0.1 1024-1026# - - 0 1, drop)"), ""),
            "1 0 T 18.26.4.44 1 10.0.0.4 1 => 0 T 1.0.0.1 1024 10.0.0.4 1
             1 0 T 18.26.4.44 2 10.0.0.8 2 => 0 T 1.0.0.1 1025 10.0.0.8 2
             1 0 T 18.26.4.44 3 10.0.0.4 3 => 0 T 1.0.0.1 1026 10.0.0.4 3
             1 0 T 18.26.4.44 4 10.0.0.8 2 => 0 T 1.0.0.1 1024 10.0.0.8 2
             1 0 T 18.26.4.44 5 10.0.0.8 2 => 0 T 1.0.0.1 1026 10.0.0.8 2
             1 0 T 18.26.4.44 6 10.0.0.8 2 => -
             1 0 T 18.26.4.44 3 10.0.0.4 3 => 0 T 1.0.0.1 1026 10.0.0.4 3
             1 1 T 10.0.0.4 1 1.0.0.1 1024 => 1 T 10.0.0.4 1 18.26.4.44 1
             1 1 T 10.0.0.8 2 1.0.0.1 1024 => 1 T 10.0.0.8 2 18.26.4.44 4
             1 1 T 10.0.0.8 2 1.0.0.1 1025 => 1 T 10.0.0.8 2 18.26.4.44 2
             1 1 T 10.0.0.8 2 1.0.0.1 1026 => 1 T 10.0.0.8 2 18.26.4.44 5",
        );
    }
}

#[test]
fn connections_without_data_both_ways_end_before_others() {
    let mut harness =
        two("TCPRewriter(pattern 2.0.0.1 1024-65535# - - 0 1, drop, MAPPING_CAPACITY 2, GUARANTEE 0)", "");
    run(
        &mut harness,
        "1 0 T 1.0.0.1 10 2.0.0.2 20 . => 0 T 2.0.0.1 1024 2.0.0.2 20
         2 0 T 1.0.0.2 11 2.0.0.2 21 . => 0 T 2.0.0.1 1025 2.0.0.2 21
         3 0 T 1.0.0.3 12 2.0.0.2 22 . => 0 T 2.0.0.1 1026 2.0.0.2 22
         4 1 T 2.0.0.2 20 2.0.0.1 1024 . => -
         5 1 T 2.0.0.2 21 2.0.0.1 1025 . => 1 T 2.0.0.2 21 1.0.0.2 11
         6 1 T 2.0.0.2 22 2.0.0.1 1026 . => 1 T 2.0.0.2 22 1.0.0.3 12
         # Data both ways, and one way.
         7 0 T 1.0.0.2 11 2.0.0.2 21 => 0 T 2.0.0.1 1025 2.0.0.2 21
         8 1 T 2.0.0.2 21 2.0.0.1 1025 => 1 T 2.0.0.2 21 1.0.0.2 11
         9 0 T 1.0.0.3 12 2.0.0.2 22 => 0 T 2.0.0.1 1026 2.0.0.2 22
         10 1 T 2.0.0.2 22 2.0.0.1 1026 . => 1 T 2.0.0.2 22 1.0.0.3 12
         11 0 T 1.0.0.4 13 2.0.0.2 23 . => 0 T 2.0.0.1 1027 2.0.0.2 23
         13 0 T 1.0.0.5 14 2.0.0.2 24 . => 0 T 2.0.0.1 1028 2.0.0.2 24
         15 0 T 1.0.0.6 15 2.0.0.2 25 . => 0 T 2.0.0.1 1029 2.0.0.2 25
         18 1 T 2.0.0.2 21 2.0.0.1 1025 . => 1 T 2.0.0.2 21 1.0.0.2 11
         19 1 T 2.0.0.2 22 2.0.0.1 1026 . => -
         20 1 T 2.0.0.2 23 2.0.0.1 1027 . => -
         21 1 T 2.0.0.2 24 2.0.0.1 1028 . => -
         22 1 T 2.0.0.2 25 2.0.0.1 1029 . => 1 T 2.0.0.2 25 1.0.0.6 15",
    );
    // A reset: now that one ends first.
    let mut reset = packet("T 1.0.0.2 11 2.0.0.2 21", b"");
    TcpMut::new(&mut reset.bytes_mut()[20..]).unwrap().set_flags(tcp::RST);
    harness.give("g0", [reset]);
    assert_eq!(harness.take("t0").len(), 1);
    run(
        &mut harness,
        "24 0 T 1.0.0.7 16 2.0.0.2 26 . => 0 T 2.0.0.1 1030 2.0.0.2 26
         26 1 T 2.0.0.2 21 2.0.0.1 1025 . => -
         30 1 T 2.0.0.2 25 2.0.0.1 1029 . => 1 T 2.0.0.2 25 1.0.0.6 15
         31 1 T 2.0.0.2 26 2.0.0.1 1030 . => 1 T 2.0.0.2 26 1.0.0.7 16",
    );
}

#[test]
fn any_packets_are_survived() {
    for (class, pattern) in [
        ("IPRewriter", "1.0.0.1 1024-1100 - -"),
        ("TCPRewriter", "1.0.0.1 1024-1100 - -"),
        ("UDPRewriter", "- 1024-1100# 2.0.0.2 5"),
        ("IPAddrRewriter", "3.0.0.0/30 -"),
        ("IPAddrPairRewriter", "3.0.0.0/24 -"),
        ("ICMPPingRewriter", "1.0.0.1 1024-1100 - -"),
    ] {
        let config = format!("{class}(pattern {pattern} 0 1, pass, MAPPING_CAPACITY 50, REAP_INTERVAL 1)");
        let sinks = ["take", "other"];
        fuzz(&format!("give :: Give -> rw :: {config} -> take :: Take; rw[1] -> other :: Take; Give -> [1]rw"), &sinks);
        let chain = format!(
            "give :: Give -> FTPPortMapper(c, rw, 0) -> c :: TCPRewriter(pass) -> rw :: {config} \
             -> ICMPError(1.0.0.1, 3) -> ICMPRewriter(rw) -> take :: Take; rw[1] -> other :: Take; Give -> [1]rw"
        );
        fuzz(&chain, &sinks);
    }
}
