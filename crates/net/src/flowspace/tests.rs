use super::key::{Key, TCP};
use super::{FlowTable, Rule, parse_rules};
use crate::headers::EtherAddress;
use fastrand::Rng;
use std::net::Ipv4Addr;

fn rng() -> Rng {
    Rng::with_seed(bifolio_testing::seed())
}

/// What every classifier has to find: of the rules that match, the first one of the highest priority.
fn linear(rules: &[Rule], key: &Key) -> Option<u16> {
    let matching = rules.iter().filter(|rule| rule.matches(key));
    matching.reduce(|best, rule| if rule.priority > best.priority { rule } else { best }).map(|rule| rule.output)
}

fn table_of(rules: &[Rule]) -> FlowTable {
    let mut table = FlowTable::default();
    table.add(rules).unwrap();
    table
}

#[track_caller]
fn agree(table: &FlowTable, rules: &[Rule], keys: &[Key]) {
    let mut outputs = Vec::new();
    table.classify(keys, &mut outputs);
    assert_eq!((outputs.len(), table.count()), (keys.len(), rules.len()));
    for (key, output) in keys.iter().zip(&outputs) {
        assert_eq!(*output, linear(rules, key), "{key:x?}");
    }
}

/// Addresses that are near each other, so that rules overlap.
fn address(rng: &mut Rng) -> u32 {
    [0x0a00_0000, 0x0a01_0000, 0xc0a8_0000][rng.usize(..3)] | rng.u32(..) & [0x3, 0x303, 0xffff][rng.usize(..3)]
}

fn prefix(rng: &mut Rng) -> String {
    let mask = if rng.u8(..8) == 0 { Ipv4Addr::from_bits(rng.u32(..)).to_string() } else { rng.u8(..=32).to_string() };
    format!("{}/{mask}", Ipv4Addr::from_bits(address(rng)))
}

fn port(rng: &mut Rng) -> u16 {
    [rng.u16(..8), rng.u16(1020..1030), rng.u16(..)][rng.usize(..3)]
}

fn ports(rng: &mut Rng) -> String {
    let (one, two) = (port(rng), port(rng));
    if rng.bool() { one.to_string() } else { format!("{}-{}", one.min(two), one.max(two)) }
}

fn ether(rng: &mut Rng) -> EtherAddress {
    EtherAddress([rng.u8(..2), 0, 0, 0, 0, rng.u8(..3)])
}

/// The text of a field, if it is named.
fn field(rng: &mut Rng, name: &str) -> Option<String> {
    let value = match name {
        "src" | "dst" if rng.u8(..3) > 0 => prefix(rng),
        "sport" | "dport" if rng.u8(..3) == 0 => ports(rng),
        "proto" if rng.bool() => "tcp".to_owned(),
        _ if rng.u8(..6) > 0 => return None,
        "eth_src" => ether(rng).colons(),
        "eth_dst" => format!("{}/{}", ether(rng).colons(), ether(rng).colons()),
        "eth_type" => ["0x0800", "2054"][rng.usize(..2)].to_owned(),
        "vlan" => rng.u8(..3).to_string(),
        "tos" => format!("{}/0x{:x}", rng.u8(..4), rng.u8(..4)),
        "flags" => format!("0x{:02x}/0x{:02x}", rng.u8(..), rng.u8(..) & 0x12),
        _ => return None,
    };
    Some(format!("{name} {value}"))
}

const NAMES: [&str; 10] = ["eth_src", "eth_dst", "eth_type", "vlan", "src", "dst", "proto", "tos", "sport", "dport"];

fn rule_text(rng: &mut Rng) -> String {
    let mut fields: Vec<_> = NAMES.iter().filter_map(|name| field(rng, name)).collect();
    if fields.iter().any(|field| field == "proto tcp") {
        fields.extend(field(rng, "flags"));
    }
    if fields.is_empty() {
        fields.push(["any", "ip", "eth", "icmp_type 8/0xf8, icmp_code 0", "proto 17/0x11"][rng.usize(..5)].to_owned());
    }
    rng.shuffle(&mut fields);
    format!("{} => {} PRIORITY {}", fields.join([", ", " "][rng.usize(..2)]), rng.u16(..500), rng.u32(..4))
}

fn rule(rng: &mut Rng) -> Rule {
    let text = rule_text(rng);
    Rule::parse(&text, 500).unwrap_or_else(|wrong| panic!("{text}: {wrong:?}"))
}

/// A frame with fields of the kind that rules test.
fn frame(rng: &mut Rng) -> Vec<u8> {
    let mut frame = [ether(rng).0, ether(rng).0].concat();
    for _ in 0..rng.u8(..6).saturating_sub(3) {
        frame.extend([0x81, 0, rng.u8(..) & 0xf0, rng.u8(..3)]);
    }
    frame.extend([8, rng.u8(..8) / 7 * 6]);
    let protocol = [TCP, TCP, 17, 1, 47][rng.usize(..5)];
    frame.extend([0x45, rng.u8(..4), 0, 40, 0, 0, 0, rng.u8(..16) / 15, 64, protocol, 0, 0]);
    frame.extend(address(rng).to_be_bytes());
    frame.extend(address(rng).to_be_bytes());
    frame.extend(port(rng).to_be_bytes());
    frame.extend(port(rng).to_be_bytes());
    frame.extend((0..16).map(|_| rng.u8(..)));
    if rng.u8(..16) == 0 {
        frame.truncate(rng.usize(..frame.len()));
    }
    frame
}

fn keys(rng: &mut Rng, count: usize) -> Vec<Key> {
    (0..count).map(|_| Key::of_frame(&frame(rng))).collect()
}

#[test]
fn a_table_finds_what_a_search_through_all_rules_finds() {
    let mut rng = rng();
    for count in [0, 1, 2, 10, 100, 1000] {
        let rules: Vec<_> = (0..count).map(|_| rule(&mut rng)).collect();
        agree(&table_of(&rules), &rules, &keys(&mut rng, 700));
    }
}

#[test]
fn updates_in_any_order_leave_the_table_of_the_rules_that_are_left() {
    let mut rng = rng();
    let (mut table, mut rules): (_, Vec<Rule>) = (FlowTable::default(), Vec::new());
    for round in 0..40 {
        // Grows, shrinks to nothing, and grows again.
        let grows = round % 20 < 10;
        for _ in 0..300 {
            if rng.u8(..10) < if grows { 9 } else { 1 } || rules.is_empty() {
                let rule =
                    if rules.is_empty() || rng.u8(..8) > 0 { rule(&mut rng) } else { rules[rng.usize(..rules.len())] };
                table.add(&[rule]).unwrap();
                rules.push(rule);
            } else {
                let gone = rules[rng.usize(..rules.len())];
                assert!(table.remove(&gone));
                let first = rules.iter().position(|rule| *rule == gone).unwrap();
                rules.remove(first);
            }
        }
        agree(&table, &rules, &keys(&mut rng, 200));
    }
    let absent = Rule { priority: 9, ..rule(&mut rng) };
    assert!(!table.remove(&absent));
}

/// Rules that no hash can tell apart, and every packet is compared with.
#[test]
fn ranges_without_a_common_bit_cost_no_more_than_their_number() {
    let mut rng = rng();
    let ranges = |rng: &mut Rng| format!("{}-{}", rng.u16(1..0x8000), rng.u16(0x8000..0xffff));
    let text = |rng: &mut Rng| format!("sport {}, dport {} => {}", ranges(rng), ranges(rng), rng.u16(..500));
    let rules: Vec<_> = (0..5000).map(|_| Rule::parse(&text(&mut rng), 500).unwrap()).collect();
    let table = table_of(&rules);
    let (tables, bytes) = table.size();
    assert!(tables <= 2 && bytes < 5000 * 200 + (2 << 20), "{tables} tables, {bytes} bytes");
    agree(&table, &rules, &keys(&mut rng, 300));
}

/// Rules that test bits in more ways than there are tables.
#[test]
fn masks_without_number_share_a_few_tables() {
    let mut rng = rng();
    let mask = |rng: &mut Rng| format!("{}/{}", Ipv4Addr::from_bits(address(rng)), Ipv4Addr::from_bits(rng.u32(..)));
    let text = |rng: &mut Rng| format!("src {}, dst {} => {}", mask(rng), mask(rng), rng.u16(..500));
    let rules: Vec<_> = (0..3000).map(|_| Rule::parse(&text(&mut rng), 500).unwrap()).collect();
    let mut table = table_of(&rules);
    let (tables, bytes) = table.size();
    assert!(tables <= 64 && bytes < 3000 * 200 + (2 << 20), "{tables} tables, {bytes} bytes");
    agree(&table, &rules, &keys(&mut rng, 300));
    assert!(rules.iter().all(|rule| table.remove(rule)));
    assert_eq!(table.count(), 0);
}

#[test]
fn rules_are_read_from_the_text_that_they_print() {
    let mut rng = rng();
    for _ in 0..2000 {
        let rule = rule(&mut rng);
        assert_eq!(Rule::parse(&rule.to_string(), 500), Ok(rule), "{rule}");
    }
    let text = "eth_dst FF:FF:FF:FF:FF:FF, eth_type 0x0800, vlan 0, src 10.0.0.0/8, proto 6, tos 0xb8/0xfc, dport 80-89, \
                flags 0x02/0x12 => 3 PRIORITY 7";
    assert_eq!(Rule::parse(text, 4).unwrap().to_string(), text);
    let short = Rule::parse("dscp 46 dst 1.2.3.4 flags 0x02/0x12 => 0", 1).unwrap().to_string();
    assert_eq!(short, "dst 1.2.3.4/32, proto 6, tos 0xb8/0xfc, flags 0x02/0x12 => 0");
}

/// A change of a packet.
type Change = fn(&mut Vec<u8>);

#[test]
fn fields_that_a_packet_does_not_have_match_no_test_of_them() {
    let matches =
        |rule: &str, bytes: &[u8]| Rule::parse(&format!("{rule} => 0"), 1).unwrap().matches(&Key::of_frame(bytes));
    let mut udp = vec![0; 12];
    udp.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0]);
    for rule in
        ["any", "eth", "ip", "src 0.0.0.0", "proto udp", "sport 0", "dport 0-10", "vlan 0", "tos 0", "eth_type 0x800"]
    {
        assert!(matches(rule, &udp), "{rule}");
        assert_eq!(matches(rule, &[]), rule == "any", "{rule}");
    }
    for rule in ["dport 1-65535", "flags 0", "icmp_type 0", "proto 17/0x01, src 1.0.0.0/8", "vlan 1", "tos 1/1"] {
        assert!(!matches(rule, &udp), "{rule}");
    }
    let cases: [(&str, Change); 5] = [
        ("a later fragment has no ports", |packet| packet[21] = 1),
        ("a packet says that it ends before its ports", |packet| packet[17] = 23),
        ("it is cut off", |packet| packet.truncate(37)),
        ("a header says that it is longer than the packet", |packet| packet[14] = 0x4f),
        ("or that it is shorter than any", |packet| packet[14] = 0x44),
    ];
    for (case, change) in cases {
        let mut packet = udp.clone();
        change(&mut packet);
        assert!(!matches("sport 0-1", &packet), "{case}");
        assert!(matches("eth_type 2048", &packet), "{case}");
        assert_eq!(matches("proto udp", &packet), packet[14] == 0x45, "{case}");
    }
    udp.splice(12..12, [0x88, 0xa8, 0xff, 0xff, 0x81, 0, 0, 9]);
    assert!(matches("vlan 4095, eth_type 0x800, dport 0", &udp) && !matches("vlan 9", &udp));
    assert!(matches("vlan 4095, eth_type 0x8100", &udp[..18]));
}

#[test]
fn files_have_rules_of_both_kinds() {
    let text = "# comment\n\n@1.2.3.0/24\t0.0.0.0/0\t0 : 65535\t1024:65535\t0x06/0xFF\t0x0200/0x0200\t\n\
                @0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00 0x0000/0x0000 => 2 PRIORITY 3 # here\n\
                @1.1.1.1/32 2.2.2.2/31 0 : 65535 0 : 65535 0x01/0xFF 0x0500/0xff00\n any => 1";
    let texts: Vec<_> = parse_rules(text, 3).unwrap().iter().map(Rule::to_string).collect();
    let expected = [
        "src 1.2.3.0/24, proto 6, dport 1024-65535, flags 0x02/0x02 => 0",
        "ip => 2 PRIORITY 3",
        "src 1.1.1.1/32, dst 2.2.2.2/31, proto 1, icmp_type 5 => 0",
        "any => 1",
    ];
    assert_eq!(texts, expected);
}

#[test]
fn everything_that_is_wrong_is_told_with_its_line() {
    let text = "any => 0\nsrc 1.2.3.4/33, tos 256 => 9\ncolour red => 0 PRIORITY x\n@1.2.3.4/32 5 : 4\n\
                @x/1 1.1.1.1/32 5 : 4 0:70000 0x06 0x1/0x1\n@1.1.1.1/32 1.1.1.1/32 0:1 0:1 0x11/0xFF 0x1/0x1\n\
                src 1.1.1.1 src 1.1.1.1, proto udp, flags 2 tos 1 dscp 1 sport 2-1 =>\n => 1 2\nsrc 1.1.1.1";
    let told: Vec<_> = parse_rules(text, 2).unwrap_err().iter().map(|(line, text)| format!("{line}: {text}")).collect();
    let expected = [
        "2: src: bad value '1.2.3.4/33'",
        "2: tos: bad value '256'",
        "2: bad PORT '9', there are 2 outputs",
        "3: unknown field 'colour'",
        "3: unknown field 'red'",
        "3: bad PRIORITY 'x'",
        "4: expected '@SRC/LEN DST/LEN LOW : HIGH LOW : HIGH PROTO/MASK [FLAGS/MASK]'",
        "5: bad source 'x/1'",
        "5: bad source ports '5 : 4'",
        "5: bad destination ports '0 : 70000'",
        "5: bad protocol '0x06'",
        "6: flags are of TCP or ICMP",
        "7: src: given twice",
        "7: sport: bad value '2-1'",
        "7: dscp: is a part of tos",
        "7: fields of different protocols",
        "7: bad PORT '', there are 2 outputs",
        "8: expected fields or 'any' before '=>'",
        "8: '=>' should be followed by 'PORT [PRIORITY n]'",
        "9: expected 'FIELD VALUE, ... => PORT [PRIORITY n]'",
    ];
    assert_eq!(told, expected);
}

/// What the kernel's oracle finds with the image.
fn on_device(image: &[u32], key: &Key) -> Option<u16> {
    bifolio_kernels::packets::flow::look_up(|at| image[at], &key.0).map(|found| found.output)
}

#[test]
fn an_image_answers_as_the_table_does_whatever_changed() {
    let mut rng = rng();
    let (mut table, mut rules): (_, Vec<Rule>) = (FlowTable::default(), Vec::new());
    let narrow = |rng: &mut Rng| Rule { output: rng.u16(..255), ..rule(rng) };
    for round in 0..30 {
        for _ in 0..rng.usize(..300) {
            if rules.is_empty() || rng.u8(..10) < if round % 10 < 6 { 7 } else { 2 } {
                rules.push(narrow(&mut rng));
                table.add(&rules[rules.len() - 1..]).unwrap();
            } else {
                assert!(table.remove(&rules.swap_remove(rng.usize(..rules.len()))));
            }
        }
        let (image, keys, mut outputs) = (table.image().unwrap(), keys(&mut rng, 300), Vec::new());
        table.classify(&keys, &mut outputs);
        for (key, output) in keys.iter().zip(outputs) {
            assert_eq!(on_device(&image, key), output, "{key:x?} among {} rules", rules.len());
        }
    }
    table.add(&[Rule::new(255, 0)]).unwrap();
    assert!(table.image().unwrap_err().contains("cannot tell output 255"));
}

/// A packet in a row, as the kernel reads it: the whole frame, or the network header alone.
fn row(frame: Option<&[u8]>, network: Option<&[u8]>) -> Vec<u8> {
    use bifolio_kernels::packets::{HAS_LINK, HAS_NETWORK, LINK_SHIFT};
    let padded = |bytes: &[u8], len: usize| (0..len).map(|at| bytes.get(at).copied().unwrap_or(0)).collect::<Vec<_>>();
    let packet = network.unwrap_or_default();
    let header_len = packet.first().map_or(0, |first| usize::from(first & 15) * 4);
    let total_len = packet.get(2..4).map_or(0, |len| usize::from(u16::from_be_bytes([len[0], len[1]])));
    let transport = packet.get(header_len..total_len.min(packet.len())).unwrap_or_default();
    let mut descriptor = packet.len() as u32 | u32::from(transport.get(13).copied().unwrap_or(0)) << 16;
    if let Some(frame) = frame.filter(|frame| frame.len() >= 14) {
        descriptor |= HAS_LINK | ((frame.len() as u32 - 14) / 2).min(4) << LINK_SHIFT;
    }
    if network.is_some() {
        descriptor |= HAS_NETWORK;
    }
    let link = padded(frame.unwrap_or_default(), 24);
    [descriptor.to_le_bytes().to_vec(), link, padded(packet, 20), padded(transport, 4)].concat()
}

/// From a packet's bytes by way of its row and the image to the output that the table has for its key.
#[test]
fn a_packet_in_a_row_is_classified_as_its_key_is() {
    use bifolio_kernels::packets::{Classify, NONE, PacketRows, oracle};
    let mut rng = rng();
    let rules: Vec<_> = (0..400).map(|_| Rule { output: rng.u16(..255), ..rule(&mut rng) }).collect();
    let (table, mut input, mut keys) = (table_of(&rules), Vec::new(), Vec::new());
    for _ in 0..3000 {
        let mut frame = frame(&mut rng);
        if rng.u8(..4) == 0 && !frame.is_empty() {
            let at = rng.usize(..frame.len());
            frame[at] = rng.u8(..);
        }
        let (mac, begin) = (rng.u8(..4) > 0, [14, 18, 22][rng.usize(..3)]);
        let network = frame.get(begin..).filter(|_| rng.u8(..8) > 0);
        let link = mac.then_some(&frame[..]);
        input.extend(row(link, network));
        keys.push(match (link, network) {
            (link, Some(network)) => Key::of_packet(link, network),
            (link, None) => Key::of_packet(link, &[]),
        });
    }
    let count = keys.len() as u32;
    let rows = PacketRows { link: 1, network: 7, transport: 12, ..PacketRows::new(count, 13, 1) };
    let image = table.image().unwrap();
    let classify = Classify::new(rows, 2, 255, NONE, &image).unwrap();
    let bytes: Vec<u8> = image.iter().flat_map(|word| word.to_le_bytes()).collect();
    let (mut found, mut outputs) = (vec![0; keys.len() * 4], Vec::new());
    oracle(&classify, &input, &[&bytes], &mut found);
    table.classify(&keys, &mut outputs);
    for ((row, output), key) in found.chunks(4).zip(outputs).zip(keys) {
        assert_eq!(u16::from(row[2]), output.unwrap_or(255), "{key:x?}");
    }
}
