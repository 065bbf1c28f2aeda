//! Tests of the whole: compiled filters against an interpreter of their expressions, and Click's words and programs.

use fastrand::Rng;

use super::expr::Expr;
use super::program::{NONE, Program};
use super::vector::Vectors;
use super::{BuiltIn, Filter, Headers, parse, pattern};
use crate::Log;

fn parse_one(text: &str, log: &mut Log) -> Expr {
    let words = parse::words(text);
    parse::Parser::new(&words, 0, 0, &BuiltIn, log).parse()
}

/// What `IPFilter` says about an expression.
fn messages(text: &str) -> Vec<String> {
    let mut log = Log::new();
    Filter::ip_filter(&[format!("0 {text}")], 1, &BuiltIn, &mut log);
    log.entries().iter().map(|entry| entry.text.strip_prefix("pattern 0: ").unwrap_or(&entry.text).to_owned()).collect()
}

/// An IPv4 packet with a transport header.
fn packet(source: [u8; 4], destination: [u8; 4], protocol: u8, ports: [u16; 2]) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 40, 0, 1, 0, 0, 64, protocol, 0, 0];
    bytes.extend(source);
    bytes.extend(destination);
    bytes.extend(ports[0].to_be_bytes());
    bytes.extend(ports[1].to_be_bytes());
    bytes.extend([0; 16]);
    bytes
}

fn view(bytes: &[u8]) -> Headers<'_> {
    Headers { mac: &[], network: bytes, transport: bytes.first().map_or(0, |first| usize::from(first & 15) * 4) }
}

fn matches(text: &str, bytes: &[u8]) -> bool {
    let mut log = Log::new();
    let filter = Filter::ip_filter(&[format!("0 {text}")], 1, &BuiltIn, &mut log);
    assert_eq!(log.errors(), 0, "{text}: {log}");
    filter.expect("no errors").classify(&view(bytes)).is_some()
}

fn pick<'a>(rng: &mut Rng, all: &[&'a str]) -> &'a str {
    all[rng.usize(..all.len())]
}

/// An address out of few, so that packets meet rules.
fn random_address(rng: &mut Rng) -> String {
    format!("{}.{}.{}.{}", pick(rng, &["10", "18"]), rng.u8(..2), rng.u8(..2), rng.u8(..4))
}

fn random_primitive(rng: &mut Rng) -> String {
    let ends = pick(rng, &["", "src ", "dst ", "src or dst ", "src and dst "]);
    let relation = pick(rng, &["", "== ", "!= ", "< ", "> ", "<= ", ">= "]);
    let equality = pick(rng, &["", "= ", "!= "]);
    match rng.u8(..16) {
        0 | 1 => format!("{ends}host {equality}{}", random_address(rng)),
        2 => format!("{ends}net {}/{}", random_address(rng), rng.u8(..=32)),
        3 => format!("{ends}net {} mask {}", random_address(rng), pick(rng, &["255.255.0.0", "8.0.0.3", "0.1.1.1"])),
        4 => format!("{ends}host & {} {equality}{}", pick(rng, &["0xff000003", "255.0.255.0"]), random_address(rng)),
        5 | 6 => format!("{ends}{} port {relation}{}", pick(rng, &["", "tcp", "udp", "tcpudp"]), rng.u16(..6)),
        7 => format!("{ends}port & {} {relation}{}", 1 + rng.u16(..7), rng.u16(..6)),
        8 => format!("ip proto {relation}{}", pick(rng, &["1", "6", "17", "2"])),
        9 => pick(rng, &["tcp", "udp", "icmp", "tcpudp", "transp", "frag", "unfrag", "syn", "ack", "true", "false"])
            .into(),
        10 => format!("ip {} {relation}{}", pick(rng, &["ttl", "tos", "dscp", "hl", "vers", "id", "len"]), rng.u8(..9)),
        11 => format!("icmp type {relation}{}", pick(rng, &["echo", "0", "8", "3"])),
        12 => pick(rng, &["ip ect", "ip ce", "ip ect 2", "tcp opt syn", "tcp win > 2", "dst www"]).into(),
        13 => {
            let len = 1 + rng.u32(..4);
            let position = rng.u32(..5) * 4 + rng.u32(..=4 - len);
            let mask = if rng.bool() { format!("& {} ", 1 + rng.u8(..255)) } else { String::new() };
            format!("{}[{position}:{len}] {mask}{relation}{}", pick(rng, &["ip", "transp", "tcp", "udp"]), rng.u8(..9))
        }
        14 => format!("{ends}ether host {equality}0:0:0:0:0:{}", rng.u8(..2)),
        _ => format!("{ends}ether host & 0:0:0:0:{}:1 {equality}0:0:0:0:1:{}", rng.u8(1..3), rng.u8(..2)),
    }
}

fn random_expression(rng: &mut Rng, depth: u32) -> String {
    if depth == 0 || rng.u8(..4) == 0 {
        return random_primitive(rng);
    }
    let part = |rng: &mut Rng| random_expression(rng, depth - 1);
    match rng.u8(..7) {
        0 | 1 => format!("({}) and ({})", part(rng), part(rng)),
        2 | 3 => format!("({}) or ({})", part(rng), part(rng)),
        4 => format!("not ({})", part(rng)),
        5 => format!("({}) ? ({}) : ({})", part(rng), part(rng), part(rng)),
        _ => format!("!{}", random_primitive(rng)),
    }
}

/// A conjunction as rule sets have it: what tables are made for.
fn random_rule(rng: &mut Rng) -> String {
    let mut parts = Vec::new();
    for ends in ["src", "dst"] {
        match rng.u8(..4) {
            0 => parts.push(format!("{ends} host {}", random_address(rng))),
            1 => parts.push(format!("{ends} net {}/{}", random_address(rng), rng.u8(..=32))),
            _ => {}
        }
        if rng.bool() {
            parts.push(format!("{ends} port {} {}", pick(rng, &["=", ">", "<=", "!="]), rng.u16(..6)));
        }
    }
    match rng.u8(..6) {
        0 => parts.push(random_primitive(rng)),
        1 => parts.push(format!("({})", random_expression(rng, 2))),
        2 | 3 => parts.push(pick(rng, &["tcp", "udp", "icmp"]).into()),
        _ => {}
    }
    if parts.is_empty() { "frag".into() } else { parts.join(" and ") }
}

struct Sample {
    mac: Vec<u8>,
    network: Vec<u8>,
    transport: usize,
}

/// A packet of small numbers, cut anywhere.
fn random_packet(rng: &mut Rng) -> Sample {
    let mut network: Vec<u8> = (0..44).map(|_| if rng.bool() { 0 } else { rng.u8(..9) }).collect();
    let transport = if rng.u8(..4) == 0 { 24 } else { 20 };
    network[0] = 0x40 | (transport as u8 / 4);
    network[9] = *[1, 6, 6, 17, 17, 2].get(rng.usize(..6)).unwrap_or(&0);
    if rng.u8(..4) != 0 {
        (network[6], network[7]) = (0, 0);
    }
    for at in [12, 16] {
        network[at] = if rng.bool() { 10 } else { 18 };
        for byte in &mut network[at + 1..at + 3] {
            *byte &= 1;
        }
        network[at + 3] &= 3;
    }
    for at in [transport, transport + 2] {
        network[at] = 0;
        network[at + 1] = rng.u8(..7);
    }
    if rng.u8(..3) == 0 {
        network.truncate(rng.usize(..=44));
    }
    let mut mac: Vec<u8> = (0..14).map(|_| rng.u8(..2)).collect();
    if rng.u8(..4) == 0 {
        mac.truncate(rng.usize(..14));
    }
    for byte in mac.iter_mut().take(10) {
        *byte &= u8::from(rng.u8(..8) == 0);
    }
    Sample { mac, network, transport }
}

impl Sample {
    fn headers(&self) -> Headers<'_> {
        Headers { mac: &self.mac, network: &self.network, transport: self.transport }
    }
}

/// The first rule that holds, one after the other.
fn oracle(rules: &[(Expr, u32)], packet: &Headers<'_>) -> u32 {
    rules.iter().find(|(expr, _)| expr.holds(packet)).map_or(NONE, |rule| rule.1)
}

fn compare(rules: &[(Expr, u32)], texts: &[String], rng: &mut Rng, packets: usize) {
    let plain = Program::new(rules.iter().map(|(expr, verdict)| (expr, *verdict)), false);
    let mut programs = [plain.clone(), plain.clone(), plain];
    programs[1].optimise(false);
    programs[2].optimise(true);
    let vectors = Vectors::new(rules).expect("small enough");
    for _ in 0..packets {
        let sample = random_packet(rng);
        let headers = sample.headers();
        let expected = oracle(rules, &headers);
        for (how, program) in programs.iter().enumerate() {
            assert_eq!(
                program.run(&headers),
                expected,
                "program {how} of {texts:#?} for {headers:x?}\n{}",
                program.text()
            );
        }
        assert_eq!(vectors.run(&headers), expected, "tables of {texts:#?} for {headers:x?}");
    }
}

fn parse_rules(texts: &[String]) -> Vec<(Expr, u32)> {
    let mut log = Log::new();
    let rules = texts.iter().enumerate().map(|(at, text)| (parse_one(text, &mut log), at as u32)).collect();
    assert_eq!(log.errors(), 0, "{texts:#?}\n{log}");
    rules
}

#[test]
fn compiled_expressions_decide_as_an_interpreter_does() {
    let seed = bifolio_testing::seed();
    let mut rng = Rng::with_seed(seed);
    for _ in 0..400 {
        let count = rng.usize(1..5);
        let texts: Vec<_> = (0..count).map(|_| random_expression(&mut rng, 3)).collect();
        compare(&parse_rules(&texts), &texts, &mut rng, 60);
    }
}

#[test]
fn compiled_rule_sets_decide_as_an_interpreter_does() {
    let mut rng = Rng::with_seed(bifolio_testing::seed());
    for _ in 0..10 {
        let count = rng.usize(100..900);
        let texts: Vec<_> = (0..count).map(|_| random_rule(&mut rng)).collect();
        compare(&parse_rules(&texts), &texts, &mut rng, 200);
    }
}

#[test]
fn rules_about_more_fields_than_have_tables_are_decided_by_programs() {
    let mut rng = Rng::with_seed(bifolio_testing::seed());
    let texts: Vec<_> =
        (0..60).map(|at| format!("ip[{}] {} and ip[{}] < 5", at % 40, rng.u8(..4), rng.u8(..40))).collect();
    compare(&parse_rules(&texts), &texts, &mut rng, 500);
}

fn random_clause(rng: &mut Rng) -> String {
    let digits = 2 * rng.usize(1..7);
    let mut run = |wild: bool| -> String {
        let digit = |_| if wild && rng.u8(..6) == 0 { '?' } else { *['0', '0', '1', 'F'].get(rng.usize(..4)).unwrap() };
        (0..digits).map(digit).collect()
    };
    let (value, mask) = (run(true), run(false));
    let mask = if rng.bool() { format!("%{mask}") } else { String::new() };
    format!("{}{}/{value}{mask}", if rng.u8(..3) == 0 { "!" } else { "" }, rng.u8(..12))
}

/// Whether data matches a clause: digit by digit.
fn clause_matches(clause: &str, data: &[u8]) -> bool {
    let negated = clause.starts_with('!');
    let (offset, rest) = clause.trim_start_matches('!').split_once('/').unwrap();
    let (value, mask) = rest.split_once('%').unwrap_or((rest, ""));
    let offset: usize = offset.parse().unwrap();
    let mut result = true;
    for (at, digit) in value.chars().enumerate() {
        let Some(wanted) = digit.to_digit(16) else { continue };
        let mask = mask.chars().nth(at).map_or(15, |digit| digit.to_digit(16).unwrap());
        if mask == 0 {
            continue;
        }
        let byte = data.get(offset + at / 2).map(|byte| u32::from(if at % 2 == 0 { byte >> 4 } else { byte & 15 }));
        result &= byte.is_some_and(|byte| byte & mask == wanted & mask);
    }
    result != negated
}

#[test]
fn classifier_patterns_match_digit_by_digit() {
    let mut rng = Rng::with_seed(bifolio_testing::seed());
    for _ in 0..1500 {
        let count = rng.usize(1..6);
        let patterns: Vec<Vec<String>> =
            (0..count).map(|_| (0..rng.usize(1..4)).map(|_| random_clause(&mut rng)).collect()).collect();
        let texts: Vec<String> = patterns.iter().map(|clauses| clauses.join(" ")).collect();
        let mut log = Log::new();
        let filter = Filter::classifier(&texts, count, &mut log).expect("no errors");
        for _ in 0..30 {
            let data: Vec<u8> =
                (0..rng.usize(..24)).map(|_| *[0, 0, 1, 0xff, 0x10].get(rng.usize(..5)).unwrap()).collect();
            let expected =
                patterns.iter().position(|clauses| clauses.iter().all(|clause| clause_matches(clause, &data)));
            assert_eq!(filter.classify(&Headers::raw(&data)), expected, "{texts:?} {data:x?}\n{}", filter.program());
        }
    }
}

#[test]
fn classifier_reports_what_is_wrong() {
    let cases = [
        ("x", "expected a digit"),
        ("!", "expected a digit"),
        ("12", "expected '/'"),
        ("12/", "value has less than 2 hex digits"),
        ("12/1", "value has less than 2 hex digits"),
        ("12/123", "value has odd number of hex digits"),
        ("12/12%1234", "mask has too many hex digits"),
        ("12/1234%12", "mask has too few hex digits"),
        ("99999999999999999999999/12", "offset out of range, bound 65535"),
        ("65535/12", "offset out of range, bound 65535"),
        ("12/12é", "expected a digit"),
    ];
    for (text, expected) in cases {
        let mut log = Log::new();
        assert!(Filter::classifier(&[text], 1, &mut log).is_none(), "{text}");
        assert_eq!(log.entries()[0].text, format!("pattern 0: {expected}"), "{text}");
    }
    let mut log = Log::new();
    assert!(Filter::classifier(&["-"], 2, &mut log).is_none());
    assert_eq!(log.entries()[0].text, "need 2 arguments, one per output port");
}

#[test]
fn classifier_warns_of_outputs_without_packets() {
    let mut log = Log::new();
    let filter = Filter::classifier(&["12/0800", "-", "12/0806"], 3, &mut log).unwrap();
    assert_eq!(log.entries()[0].text, "output 2 matches no packets");
    assert_eq!(filter.classify(&Headers::raw(&[0; 20])), Some(1));
}

#[test]
fn programs_are_printed_as_click_prints_them() {
    let mut log = Log::new();
    let filter = Filter::classifier(&["1/01", "-"], 2, &mut log).unwrap();
    assert_eq!(filter.program(), " 0   0/00010000%00ff0000  yes->[0]  no->[1]\nsafe length 2\nalignment offset 0\n");
    let program = |rules: &[&str]| Filter::ip_filter(rules, 5, &BuiltIn, &mut Log::new()).expect("no errors").program();
    let all = |output: &str| format!("all->[{output}]\nsafe length 0\nalignment offset 0\n");
    let one = " 0 268/0a000001%ffffffff  yes->[0]  no->[X]\nsafe length 272\nalignment offset 0\n";
    assert_eq!(program(&[]), all("X"));
    assert_eq!(program(&["allow false"]), all("X"));
    assert_eq!(program(&["allow false", "allow false", "allow false", "allow true"]), all("0"));
    assert_eq!(program(&["allow false", "allow false", "allow src 10.0.0.1"]), one);
    assert_eq!(program(&["allow src 10.0.0.1"]), one);
    assert_eq!(
        program(&[
            "allow tcp && dst 10.0.0.0/32 && src 2.0.0.0/32",
            "allow tcp && dst 10.0.0.0/32 && dst port 80 && src 2.0.0.0/32",
            "allow all"
        ]),
        all("0")
    );
    assert_eq!(
        program(&[
            "allow src 0:1:2:3:4:5",
            "allow src 10.0.0.0 & 8.0.0.0 = 8.0.0.0",
            "allow dst 10:20:30:40:50:60",
            "allow host 9:A:B:C:D:E",
            "deny all"
        ])
        .lines()
        .count(),
        11
    );
}

#[test]
fn programs_of_common_filters_are_as_short_as_clicks() {
    let program = |rules: &[&str]| {
        let mut log = Log::new();
        Filter::ip_classifier(rules, rules.len(), &BuiltIn, &mut log).expect("no errors").program()
    };
    let expected = " 0 264/00060000%00ff0000  yes->step 2  no->step 1
 1 264/00110000%00ff0000  yes->step 2  no->step 6
 2 260/00000000%00001fff  yes->step 3  no->[5]
 3 512/00001e61%0000ffff  yes->[0]  no->step 4
 4 512/000022b8%0000ffff  yes->[1]  no->step 5
 5 512/00001b58%0000ffff  yes->[2]  no->[5]
 6 264/00010000%00ff0000  yes->step 7  no->[5]
 7 260/00000000%00001fff  yes->step 8  no->[4]
 8 512/08000000%ff000000  yes->[3]  no->[4]
safe length 516
alignment offset 0
";
    assert_eq!(program(&["dst port 7777", "dst port 8888", "dst port 7000", "icmp type echo", "icmp", "-"]), expected);
    let expected = " 0 264/00110000%00ff0000  yes->step 1  no->step 5
 1 260/00000000%00001fff  yes->step 2  no->step 5
 2 512/00000089%0000ffff  yes->[0]  no->step 3
 3 512/000014e9%0000ffff  yes->[1]  no->step 4
 4 512/00440000%ffff0000  yes->[2]  no->step 5
 5 268/80e6ce00%ffffff00  yes->[3]  no->step 6
 6 272/80e6ce00%ffffff00  yes->[3]  no->[4]
safe length 516
alignment offset 0
";
    let rules = ["udp dst port netbios-ns", "udp dst port 5353", "udp src port bootpc", "128.230.206.0/24", "-"];
    assert_eq!(program(&rules), expected);
    let expected = " 0 264/00010000%00ff0000  yes->[0]  no->step 1
 1 264/00060000%00ff0000  yes->step 3  no->step 2
 2 264/00110000%00ff0000  yes->step 3  no->[3]
 3 260/00000000%00001fff  yes->step 4  no->step 5
 4 512/00000035%0000ffff  yes->[1]  no->step 5
 5 264/00060000%00ff0000  yes->step 6  no->step 8
 6 260/00000000%00001fff  yes->step 7  no->[2]
 7 524/00020000%00120000  yes->step 9  no->[2]
 8 260/00000000%00001fff  yes->step 9  no->[3]
 9 512/00000000%fc00fc00  yes->[3]  no->[2]  short->yes
safe length 526
alignment offset 0
";
    let rules = ["proto icmp", "dst port 53", "(proto tcp and !(syn and !ack)) or (tcpudp port >= 1024)", "-"];
    assert_eq!(program(&rules), expected);
}

#[test]
fn short_packets_fail_a_test_and_its_opposite_alike() {
    let long = packet([0, 0, 0, 0], [0, 0, 0, 0], 17, [0, 0]);
    assert!(matches("ip[19]&128==0", &long) && matches("transp[1]&128==0", &long));
    assert!(!matches("ip[19]&128==0", &long[..19]) && !matches("transp[1]&128==0", &long[..21]));
    assert!(!matches("transp[1]&128!=0", &long[..21]));
    assert!(!matches("transp[1]&128==0 || transp[1]&128==128", &long[..21]));
    assert!(matches("not (transp[1]&128==0)", &long[..21]));
    assert!(!matches("not (transp[1]&128==0)", &long));
}

#[test]
fn qualifiers_carry_over_to_bare_values() {
    let bytes = packet([1, 2, 3, 4], [5, 6, 7, 8], 6, [80, 2000]);
    for text in [
        "src 9.9.9.9 or 1.2.3.4",
        "dst tcp port 80 or 2000",
        "src port >= 80 and <= 81",
        "host 5.6.7.8",
        "src 1.2.0.0 mask 255.255.0.0",
        "1.2/16",
        "src and dst port > 79",
        "src port www",
        "port != 81",
        "ip proto 17 or 6",
        "tcp port 2000",
        "!udp",
        "not udp and not icmp",
        "udp ? false : tcp ? true : false",
        "ip vers 4 hl 5 ip ttl == 64",
        "tcp[2:2] 2000",
        "ip[12:4] = 0x01020304",
        "ether host 0:0:0:0:0:1 or 1.2.3.4",
        "unfrag",
    ] {
        assert!(matches(text, &bytes), "{text}");
    }
    for text in [
        "dst 9.9.9.9 or 1.2.3.4",
        "src tcp port 2000 or 81",
        "src port 81 or 82",
        "src and dst port > 80",
        "dst www",
        "port != 80",
        "ip proto 1 or 17",
        "udp port 2000",
        "ip frag",
        "syn",
        "icmp type 0",
    ] {
        assert!(!matches(text, &bytes), "{text}");
    }
}

#[test]
fn errors_are_in_clicks_words() {
    let cases = [
        ("host 1.2.3.4 host 1.2.3.4 )", "garbage after expression at ')'"),
        ("src dst 1.2.3.4", "'src' or 'dst' specified twice"),
        ("port host 80", "type specified twice"),
        ("tcp udp port 80", "transport protocol specified twice"),
        ("80", "specify header field or 'port'"),
        ("src", "partial directive"),
        ("host 80", "'ip host': address missing"),
        ("net 1.2.3.4", "'ip net': address missing"),
        ("host > 1.2.3.4", "'ip host': operator not supported"),
        ("port 65536", "'port': out of range, bound 65535"),
        ("ip ttl 256", "'ip ttl': out of range, bound 255"),
        ("ip ttl & 256 == 0", "'ip ttl': mask out of range, bound 0xFF"),
        ("port", "'port': value missing"),
        ("icmp port 80", "'port': bad protocol 1"),
        ("udp tcp opt syn", "transport protocol specified twice"),
        ("udp opt 2", "'tcp opt': bad protocol 17"),
        ("tcp opt 256", "'tcp opt': value 256 out of range"),
        ("tcp opt != syn", "'tcp opt': operator or mask not supported"),
        ("ip frag 3", "'ip frag': value not supported"),
        ("ip ttl ssh", "'ip ttl  ssh' is meaningless; try 'port  ssh', 'port  ssh'"),
        ("echo", "'<none>  echo' is ambiguous; try 'port  echo', 'port  echo', 'icmp type  echo'"),
        ("(tcp", "missing ')'"),
        ("()", "missing expression"),
        ("tcp and", "missing expression"),
        ("tcp ? udp", "missing ':' in ternary expression"),
        ("ip[0", "missing ']'"),
        ("ip[x] 3", "syntax error after '[', expected '[POS]' or '[POS:LEN]'"),
        ("ip[0:5] 3", "LEN in '[POS:LEN]' out of range, should be between 1 and 4"),
        ("ip[3:2] 3", "field [3:2] does not fit in a single word"),
        ("ip[9999] 3", "POS in '[POS:LEN]' out of range, should be between 0 and 8191"),
        ("port & 0 == 3", "zero mask ignored"),
        ("port > hello", "dangling operator near 'hello'"),
        ("tcpudp port 80 %", "empty term near '%'"),
        ("hello", "empty term near 'hello'"),
        ("ether tcp", "'proto': ip only"),
        ("port > 70000", "relation '> 70000' is always false (range 0-65535)"),
        ("port <= 65535", "relation '<= 65535' is always true (range 0-65535)"),
        ("src tcp", "'src proto': 'src' or 'dst' ignored"),
        ("proto != tcpudp", "'tcpudp': operator or mask not supported"),
        ("ip proto 256", "'proto': out of range, bound 255"),
    ];
    for (text, expected) in cases {
        let found = messages(text);
        assert!(found.iter().any(|message| message == expected), "{text}: {found:#?}");
    }
}

#[test]
fn actions_are_outputs_or_drop() {
    let mut log = Log::new();
    let bytes = packet([1, 2, 3, 4], [5, 6, 7, 8], 6, [80, 2000]);
    let rules = ["drop udp", "2 dst port 81", "1 tcp", "allow all"];
    let filter = Filter::ip_filter(&rules, 3, &BuiltIn, &mut log).unwrap();
    assert_eq!(filter.classify(&view(&bytes)), Some(1));
    assert_eq!(filter.classify(&view(&packet([0; 4], [0; 4], 17, [0, 81]))), None);
    assert_eq!(filter.classify(&view(&packet([0; 4], [0; 4], 1, [0, 81]))), Some(0));
    assert_eq!(log.entries().len(), 0);
    let wrong = ["3 tcp", "pass tcp", "", "deny udp"];
    assert!(Filter::ip_filter(&wrong, 3, &BuiltIn, &mut log).is_none());
    let texts: Vec<_> = log.take().into_iter().map(|entry| entry.text).collect();
    assert_eq!(
        texts,
        [
            "pattern 0: slot '3' out of range",
            "pattern 1: unknown slot ID 'pass'",
            "empty pattern 2",
            "pattern 3: meaning of 'deny' has changed (now it means 'drop')"
        ]
    );
}

#[test]
fn any_text_is_parsed_or_refused() {
    let mut rng = Rng::with_seed(bifolio_testing::seed());
    let pieces = [
        "(",
        ")",
        "!",
        "not",
        "and",
        "or",
        "&&",
        "||",
        "?",
        ":",
        "&",
        "=",
        "<",
        ">=",
        "[",
        "]",
        "ip",
        "tcp",
        "src",
        "dst",
        "port",
        "net",
        "host",
        "ether",
        "proto",
        "type",
        "opt",
        "1.2.3.4",
        "10/8",
        "0:1:2:3:4:5",
        "mask",
        "5",
        "-1",
        "0x10",
        "echo",
        "www",
        "0:2",
        "é",
        "%",
        "true",
        "false",
        "ect",
        "frag",
        "unfrag",
        "payload",
        "-",
        "all",
    ];
    for _ in 0..20_000 {
        let text: Vec<_> = (0..rng.usize(..14)).map(|_| pick(&mut rng, &pieces)).collect();
        let text = text.join(if rng.bool() { " " } else { "" });
        let mut log = Log::new();
        let filter = Filter::ip_filter(&[&text], 2, &BuiltIn, &mut log);
        assert_eq!(filter.is_none(), log.errors() > 0, "{text}");
        if let Some(filter) = filter {
            filter.classify(&random_packet(&mut rng).headers());
        }
        let _ = pattern::parse(&text, 0, &mut log);
    }
}

#[test]
fn deep_nesting_needs_no_stack() {
    let depth = 200_000;
    for (front, back) in [("(", ")"), ("! ", ""), ("! (", ")"), ("tcp ? udp : (", ")"), ("tcp and (udp or ", ")")] {
        let text = format!("0 {}{}{}", front.repeat(depth), "syn", back.repeat(depth));
        let mut log = Log::new();
        assert!(Filter::ip_filter(&[text], 1, &BuiltIn, &mut log).is_some(), "{front}{back} {log}");
    }
    let mut log = Log::new();
    assert!(Filter::ip_filter(&[format!("0 {}", "(".repeat(depth))], 1, &BuiltIn, &mut log).is_none());
}

#[test]
fn too_many_patterns_are_refused() {
    let mut log = Log::new();
    let rules = vec!["drop tcp"; 40_000];
    assert!(Filter::ip_filter(&rules, 1, &BuiltIn, &mut log).is_none());
    assert_eq!(log.entries()[0].text, "40000 patterns, at most 32768 are allowed");
}
