use std::net::Ipv4Addr;

use bifolio_testing::seed;
use fastrand::Rng;

use super::field::FIELDS;
use super::tcp_options::Which;
use super::*;
use crate::Packet;
use crate::capture::Source;
use crate::headers::checksum;

const PLAIN: SummaryWriterOptions =
    SummaryWriterOptions { binary: false, bad_packets: false, careful_trunc: true, extra_length: true };

fn summarizer(fields: &str, options: SummaryWriterOptions) -> Summarizer {
    let fields = fields.split(' ').map(|name| Field::find(name).unwrap()).collect();
    Summarizer::new(fields, options)
}

fn lines(packets: &[Packet], fields: &str, options: SummaryWriterOptions) -> String {
    let mut summarizer = summarizer(fields, options);
    let mut out = Vec::new();
    for packet in packets {
        summarizer.describe(packet, &mut out);
    }
    String::from_utf8(out).unwrap()
}

fn dump(packets: &[Packet], fields: &str, binary: bool) -> Vec<u8> {
    let mut summarizer = summarizer(fields, SummaryWriterOptions { binary, ..PLAIN });
    let mut out = header(&summarizer, "a test", None, None).into_bytes();
    for packet in packets {
        summarizer.describe(packet, &mut out);
    }
    out
}

fn reader(dump: impl Into<Vec<u8>>) -> SummaryReader {
    let options = SummaryOptions { protocol: 6, checksums: false };
    SummaryReader::new(Source::bytes("f", dump.into()), options)
}

fn read_all(mut reader: SummaryReader) -> (Vec<Packet>, Vec<String>) {
    let mut packets = Vec::new();
    let error = match reader.start() {
        Err(error) => Some(error.to_string()),
        Ok(()) => loop {
            match reader.read() {
                Ok(Some(packet)) => packets.push(packet),
                Ok(None) => break None,
                Err(error) => break Some(error.to_string()),
            }
        },
    };
    let notices = reader.take_notices().into_iter().map(|notice| format!("{}: {}", notice.landmark, notice.text));
    (packets, notices.chain(error).collect())
}

/// The packets of a dump that nothing is wrong with.
fn packets(dump: impl Into<Vec<u8>>) -> Vec<Packet> {
    let (packets, notices) = read_all(reader(dump));
    assert_eq!(notices, [""; 0]);
    packets
}

#[test]
fn ip_options_are_written_as_they_are_read() {
    let cases = [
        (".", "."),
        ("nop;nop;eol", "."),
        ("ssrr{128.4.45.60,128.4.49.61^1.1.1.1,2.2.2.2}", "ssrr{128.4.45.60,128.4.49.61^1.1.1.1,2.2.2.2}"),
        ("ssrr{128.4.45.60,128.4.49.61,^1.1.1.1,2.2.2.2}", "ssrr{128.4.45.60,128.4.49.61^1.1.1.1,2.2.2.2}"),
        ("lsrr{1.2.3.4^}", "lsrr{1.2.3.4^}"),
        ("rr{2.3.4.5}+3", "rr{2.3.4.5}+3"),
        ("rr{}+1", "rr{}+1"),
        ("ts{1.0.0.1=!8320,1.0.0.2=8321}++5", "ts.ip{1.0.0.1=!8320,1.0.0.2=8321^}++5"),
        ("ts.ip{1.0.0.1=!8320,1.0.0.2=8321}++5", "ts.ip{1.0.0.1=!8320,1.0.0.2=8321^}++5"),
        ("ts.3{1.0.0.1=1,^1.0.0.3,1.0.0.4=?}+1", "ts.preip{1.0.0.1=1^1.0.0.3,1.0.0.4,0.0.0.0}"),
        ("ts{1.0.0.1=1^1.0.0.3,1.0.0.4=?}+1", "ts.preip{1.0.0.1=1^1.0.0.3,1.0.0.4,0.0.0.0}"),
        ("ts{1,10000,!45}+2", "ts{1,10000,!45}+2"),
        ("ts{1,10000,!45^0,0};rr{}+1", "ts{1,10000,!45}+2;rr{}+1"),
        ("ts{1,10000,!45,^0,0}", "ts{1,10000,!45}+2"),
        ("98;99=0:5:10", "98;99=0:5:10"),
    ];
    let line = |options: &str| format!("18.26.4.44 30 10.0.0.4 40 T {options}\n");
    let text: Vec<String> = cases.iter().map(|(given, _)| line(given)).collect();
    let text = text.concat();
    let expected: Vec<String> = cases.iter().map(|(_, got)| line(got)).collect();
    let expected = expected.concat();
    let fields = "src sport dst dport proto ip_opt";
    let made = packets(format!("!data {fields}\n{text}"));
    assert_eq!(lines(&made, fields, PLAIN), expected);
    let through_records = packets(dump(&made, fields, true));
    assert_eq!(lines(&through_records, fields, PLAIN), expected);
    for wrong in
        ["?", "ssrr{1.2.3}", "rr{1.2.3.4", "ts{", "ts{1.2.3.4}", "98=", "256", "rr{}+11", "rr{}x", "99=1:2:", "x"]
    {
        let made = packets(format!("!data src ip_opt\n1.2.3.4 {wrong}\n"));
        assert_eq!(lines(&made, "ip_opt", PLAIN), ".\n", "{wrong}");
    }
}

#[test]
fn tcp_options_are_written_as_they_are_read() {
    let cases = [
        (".", ".", "."),
        ("mss1400;wscale10;sackok;ts1:4294967295", "mss1400;wscale10;sackok;ts1:4294967295", "mss1400;wscale10;sackok"),
        ("ts669063908:38382731", "ts669063908:38382731", "."),
        ("nop;nop;sack95-98,sack1:2", "sack95-98;sack1-2", "sack95-98;sack1-2"),
        ("sack1-2;sack3-4;sack5-6;sack7-8", "sack1-2;sack3-4;sack5-6;sack7-8", "sack1-2;sack3-4;sack5-6;sack7-8"),
        ("98;99=0:5:10;eol", "98;99=0:5:10", "98;99=0:5:10"),
    ];
    for (given, all, some) in cases {
        let made = packets(format!("!data tcp_opt\n{given}\n"));
        assert_eq!(lines(&made, "tcp_opt tcp_ntopt", PLAIN), format!("{all} {some}\n"));
        let records = packets(dump(&made, "tcp_opt", true));
        assert_eq!(lines(&records, "tcp_opt tcp_ntopt", PLAIN), format!("{all} {some}\n"));
        let selected = packets(dump(&made, "tcp_ntopt", true));
        assert_eq!(lines(&selected, "tcp_opt", PLAIN), format!("{some}\n"));
    }
    for wrong in ["mss65536", "wscale256", "mss", "sack1", "ts1", "ts1:", "mss1;", "1=2:3", "99=256", "?"] {
        assert_eq!(tcp_options::parse(wrong.as_bytes(), Which::All), None, "{wrong}");
    }
}

#[test]
fn options_of_any_bytes_are_described_and_texts_are_stable() {
    let mut random = Rng::with_seed(seed());
    for _ in 0..5000 {
        let kinds = [0, 1, 2, 3, 4, 5, 7, 8, 68, 131, 137, 99];
        let mut options: Vec<u8> = (0..random.usize(..=40)).map(|_| random.u8(..16)).collect();
        for option in &mut options {
            if random.u8(..4) == 0 {
                *option = kinds[random.usize(..kinds.len())];
            }
        }
        let mut text = Vec::new();
        tcp_options::unparse(&mut text, &options, Which::All);
        if let Some(parsed) = tcp_options::parse(&text, Which::All) {
            let mut again = Vec::new();
            tcp_options::unparse(&mut again, &parsed, Which::All);
            assert_eq!(again, text);
        }
        text.clear();
        ip_options::unparse(&mut text, &options);
        // A pointer between entries has no text, and is not kept.
        if let Some(parsed) = ip_options::parse(&text) {
            let mut again = Vec::new();
            ip_options::unparse(&mut again, &parsed);
            let parsed_again = ip_options::parse(&again).unwrap();
            assert_eq!(parsed_again, parsed, "{} {}", String::from_utf8_lossy(&text), String::from_utf8_lossy(&again));
        }
    }
}

#[test]
fn cut_packets_have_dashes_and_bad_ones_a_line() {
    let text = "!data sport dport tcp_urp tcp_opt\n1 2 3 wscale10\n2 3 4 wscale10\n3 4 5 wscale10\n4 5 6 wscale10\n5 6 7 wscale10\n";
    let mut made = packets(text);
    for (packet, len) in made.iter_mut().zip([44, 41, 38, 23, 20]) {
        let cut = packet.len() - len;
        packet.take(cut);
        packet.set_anno_u32(crate::packet::anno::EXTRA_LENGTH, cut as u32);
    }
    let options = SummaryWriterOptions { bad_packets: true, ..PLAIN };
    let text = lines(&made, "sport dport tcp_urp tcp_opt", options);
    let expected = "1 2 3 wscale10\n!bad truncated TCP header capture\n2 3 4 -\n!bad truncated TCP header capture\n3 4 - -\n\
                    !bad truncated TCP/UDP header capture\n4 - - -\n!bad truncated TCP/UDP header capture\n- - - -\n";
    assert_eq!(text, expected);
}

#[test]
fn bad_headers_are_told() {
    let ip = |bytes: &[u8]| {
        let mut packet = Packet::from_slice(bytes);
        packet.set_network_header(0, 20);
        packet
    };
    let options = SummaryWriterOptions { bad_packets: true, ..PLAIN };
    let bad = |packet: &Packet| lines(std::slice::from_ref(packet), "src", options).lines().next().unwrap().to_owned();
    let mut header = [0u8; 20];
    (header[0], header[3], header[9]) = (0x45, 20, 6);
    assert_eq!(bad(&Packet::from_slice(&header)), "!bad no IP header");
    assert_eq!(bad(&ip(&header)), "0.0.0.0");
    assert_eq!(bad(&ip(&header[..3])), "!bad truncated IP header");
    assert_eq!(bad(&ip(&header[..9])), "!bad truncated IP missing 11");
    let change = |at: usize, value: u8| {
        let mut changed = header;
        changed[at] = value;
        bad(&ip(&changed))
    };
    assert_eq!(change(0, 0x65), "!bad IP version 6");
    assert_eq!(change(0, 0x44), "!bad IP header length 4");
    assert_eq!(change(3, 19), "!bad IP length 19");
    assert_eq!(change(3, 25), "!bad truncated IP missing 5");
    let fragment = packets("!data ip_fragoff ip_len\n8 60\n");
    assert_eq!(lines(&fragment, "sport", options), "!bad fragmented TCP/UDP header\n-\n");
}

#[test]
fn icmp_is_read_and_written_by_names() {
    let fields = "src dst icmp_type_name icmp_code_name";
    let text = "1.1.1.1 2.2.2.2 echo 0\n1.1.1.1 2.2.2.2 unreachable needfrag\n1.1.1.1 2.2.2.2 99 7\n";
    let made = packets(format!("!data {fields}\n!proto I\n{text}"));
    assert_eq!(lines(&made, fields, PLAIN), text);
    assert_eq!(lines(&made, "icmp_type icmp_code proto", PLAIN), "8 0 I\n3 4 I\n99 7 I\n");
    let flows = packets("!proto icmp\n!data icmp_type icmp_flowid icmp_seq icmp_nextmtu\n8 5 6 7\n3 5 6 1400\n");
    assert_eq!(lines(&flows, "icmp_flowid icmp_seq icmp_nextmtu", PLAIN), "5 6 -\n- - -\n");
    let mtu = packets("!proto icmp\n!data icmp_type icmp_code icmp_nextmtu\n3 needfrag 1400\n");
    assert_eq!(lines(&mtu, "icmp_nextmtu", PLAIN), "1400\n");
}

/// A random text for a field that packets of the protocol have.
fn text(random: &mut Rng, name: &str, protocol: u8) -> String {
    let number = |random: &mut Rng, bits: u32| (random.u32(..) >> (32 - bits) >> random.u32(..bits)).to_string();
    match name {
        "timestamp" | "first_timestamp" => format!("{}.{:06}", random.u32(..), random.u32(..1_000_000)),
        "ntimestamp" | "first_ntimestamp" => format!("{}.{:06}1{:02}", random.u32(..), random.u32(..1_000_000), 5),
        "ts_usec1" => random.u64(..1 << 52).to_string(),
        "count" => random.u32(1..9).to_string(),
        "direction" => [">", "<", "7"][random.usize(..3)].into(),
        "eth_src" | "eth_dst" => crate::headers::EtherAddress(std::array::from_fn(|_| random.u8(..))).to_string(),
        "ip_src" | "ip_dst" => Ipv4Addr::from(random.u32(..)).to_string(),
        "ip_fragoff" => ["0", "0+", "0!", "0+!"][random.usize(..4)].into(),
        "ip_ecn" => ["no", "ect1", "ect2", "ce"][random.usize(..4)].into(),
        "ip_proto" => ["I", "T", "U"][usize::from(protocol > 1) + usize::from(protocol > 6)].into(),
        "ip_opt" => ["ssrr{1.2.3.4^5.6.7.8}", ".", "rr{}+3", "ts{5,!6}+2"][random.usize(..4)].into(),
        "tcp_flags" => {
            let flags = random.u32(1..512);
            (0..9).filter(|bit| flags >> bit & 1 == 1).map(|bit| char::from(TCP_FLAGS[bit])).collect()
        }
        "tcp_opt" => ["mss1460;sackok", ".", "ts1:2", "sack1-2;sack3-4", "99=1:2"][random.usize(..5)].into(),
        "icmp_type" => ["0", "8", "13"][random.usize(..3)].into(),
        "payload" => crate::lang::config::quote_bytes(&bifolio_testing::noise(random.usize(1..40), random.u64(..))),
        "ts_sec" | "aggregate" | "tcp_seq" | "tcp_ack" => number(random, 32),
        "ts_usec" => random.u32(..1_000_000).to_string(),
        "ip_dscp" => number(random, 6),
        // Zero stands for a length that nothing says.
        "udp_len" => random.u32(1..1000).to_string(),
        "link" | "paint" | "ip_tos" | "ip_ttl" | "icmp_code" => number(random, 8),
        _ => number(random, 16),
    }
}

#[test]
fn lines_of_all_fields_are_written_as_they_are_read() {
    let mut random = Rng::with_seed(seed());
    let base =
        "timestamp first_timestamp count direction aggregate eth_src eth_dst ip_src ip_dst ip_ttl ip_id ip_proto";
    let more =
        "ntimestamp first_ntimestamp ts_sec ts_usec ts_usec1 link paint ip_fragoff ip_tos ip_dscp ip_ecn ip_sum ip_opt";
    let of = |protocol| match protocol {
        6 => "sport dport tcp_seq tcp_ack tcp_flags tcp_window tcp_urp tcp_opt payload",
        17 => "sport dport udp_len payload",
        _ => "icmp_type icmp_code icmp_flowid icmp_seq",
    };
    for _ in 0..300 {
        let protocol = [1, 6, 17][random.usize(..3)];
        let mut names: Vec<&str> = base.split(' ').chain(of(protocol).split(' ')).collect();
        if random.bool() {
            names.extend(more.split(' '));
        }
        // Of fields that say the same, one; and the protocol decides what the others mean.
        for group in [
            &["timestamp", "ntimestamp", "ts_usec1", "ts_sec"][..],
            &["first_timestamp", "first_ntimestamp"],
            &["direction", "link", "paint"],
            &["ip_tos", "ip_dscp"],
        ] {
            let kept = group[random.usize(..group.len())];
            names.retain(|name| !group.contains(name) || *name == kept);
        }
        names.retain(|name| *name == "ip_proto" || random.u8(..4) > 0);
        let both = [("ip_tos", "ip_ecn"), ("timestamp", "ts_usec"), ("ntimestamp", "ts_usec"), ("ts_usec1", "ts_usec")];
        for (first, second) in both {
            let has_first = names.contains(&first);
            names.retain(|name| *name != second || !has_first);
        }
        random.shuffle(&mut names);
        let fields = names.join(" ");
        let line = names.iter().map(|name| text(&mut random, name, protocol)).collect::<Vec<_>>().join(" ") + "\n";
        let made = packets(format!("!IPSummaryDump 1.3\n!data {fields}\n{line}"));
        assert_eq!(lines(&made, &fields, PLAIN), line, "{fields}");
        if !names.contains(&"payload") {
            // Records have eight bits of TCP's flags, and microseconds but where nanoseconds are asked for.
            let through = packets(dump(&made, &fields, true));
            let line = lines(&through, &fields.replace("tcp_flags", "none"), PLAIN);
            assert_eq!(line, lines(&made, &fields.replace("tcp_flags", "none"), PLAIN), "{fields}");
        }
    }
}

#[test]
fn lengths_make_headers_and_extra_bytes() {
    let length = |text: &str| {
        let made = packets(format!("!data ip_len payload_len\n{text}\n"));
        lines(&made, "ip_len ip_hl tcp_off payload_len ip_capture_len", PLAIN)
    };
    assert_eq!(length("60 20"), "60 20 20 20 40\n");
    assert_eq!(length("60 0"), "60 20 40 0 60\n");
    assert_eq!(length("100 0"), "100 40 60 0 100\n");
    assert_eq!(length("- 1000"), "1040 20 20 1000 40\n");
    assert_eq!(length("1500 -"), "1500 20 20 1460 40\n");
    // Headers whose length is given stay as they are.
    for (fields, values, expected) in [
        ("ip_opt tcp_opt", ". .", "100 20 20 60 45\n"),
        ("ip_opt", ".", "100 20 60 20 85\n"),
        ("tcp_off", "20", "100 60 20 20 85\n"),
    ] {
        let made = packets(format!("!data {fields} ip_len payload\n{values} 100 \"hello\"\n"));
        let line = lines(&made, "ip_len ip_hl tcp_off payload_len ip_capture_len", PLAIN);
        assert_eq!(line, expected, "{fields}");
    }
    assert_eq!(
        lines(&packets("!data ip_len\n28\n"), "ip_len ip_capture_len sport tcp_seq tcp_ack", PLAIN),
        "28 28 0 0 -\n"
    );
    let payload = packets("!data ip_len payload proto\n100 \"hello\" U\n");
    assert_eq!(lines(&payload, "ip_len payload payload_md5_hex udp_len", PLAIN).split(' ').next(), Some("100"));
    let made = packets("!data payload proto\n\"hello\" U\n");
    let fields = "ip_len udp_len payload payload_len payload_md5 payload_md5_hex";
    let expected = "33 13 \"hello\" 5 DfeqQW7sQyxUX1zKqCrXsc 5d41402abc4b2a76b9719d911017c592\n";
    assert_eq!(lines(&made, fields, PLAIN), expected);
}

#[test]
fn checksums_are_right_and_cover_all_bytes() {
    for (proto, at, header) in [("T", 16, 20), ("U", 6, 8), ("I", 2, 8)] {
        let text = format!("!proto {proto}\n!data src dst ip_len ip_id\n1.2.3.4 5.6.7.8 77 9\n");
        let options = SummaryOptions { protocol: 6, checksums: true };
        let (packets, _) = read_all(SummaryReader::new(Source::bytes("f", text.into_bytes()), options));
        let bytes = packets[0].bytes();
        assert_eq!(bytes.len(), 77);
        assert!(checksum::is_valid(&bytes[..20]));
        let mut segment = bytes[20..].to_vec();
        assert!(segment.len() > header);
        let sum = u16::from_be_bytes([segment[at], segment[at + 1]]);
        segment[at..at + 2].fill(0);
        let (source, destination) = ([1, 2, 3, 4].into(), [5, 6, 7, 8].into());
        let expected = match proto {
            "T" => checksum::transport(source, destination, 6, &segment),
            "U" => checksum::udp(source, destination, &segment),
            _ => checksum::internet(&segment),
        };
        assert_eq!(sum, expected);
    }
}

#[test]
fn flows_protocols_and_aggregates_are_defaults() {
    let text = "!creator x\n!flowid 1.0.0.1 10 2.0.0.2 20 U\n!aggregate 17\n!data ip_id sport\n5 -\n6 99\n";
    let made = packets(text);
    let fields = "src sport dst dport proto id aggregate";
    assert_eq!(lines(&made, fields, PLAIN), "1.0.0.1 10 2.0.0.2 20 U 5 17\n1.0.0.1 99 2.0.0.2 20 U 6 17\n");
    let mut reader = reader("5\n");
    reader.set_contents("'ip id'");
    reader.set_flow("1.0.0.1 10 - -");
    let (made, notices) = read_all(reader);
    assert_eq!(lines(&made, "src sport dst dport id", PLAIN), "1.0.0.1 10 0.0.0.0 0 5\n");
    assert_eq!(notices, [""; 0]);
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let said = |text: &str| read_all(reader(text)).1;
    assert_eq!(said(""), ["f: empty file"]);
    assert_eq!(
        said("1.2.3.4\n"),
        ["f:0: missing banner line; is this an IP summary dump?", "f:1: no '!data' provided"]
    );
    assert_eq!(said("!IPSummaryDump 2.0\n"), ["f:0: unexpected IPSummaryDump version 2.0"]);
    let text = "!data src snort payload_md5\n!flowid 1\n!proto x\n!aggregate\nx y z\nx y z\n  \n";
    let expected = [
        "f:1: unknown content type 'snort'",
        "f:1: content type 'payload_md5' ignored on input",
        "f:2: bad !flowid specification",
        "f:3: bad protocol in !proto",
        "f:4: bad !aggregate specification",
        "f:5: packet parse error",
    ];
    assert_eq!(said(text), expected);
    assert_eq!(said("!data ip_id\n!binary\n\0\0\0\x03"), ["f:record 1: binary record too short"]);
    assert_eq!(said("!data ip_id\n!binary\n\0\0\0\x09ab"), ["f: the file ends inside the record at offset 20"]);
    assert_eq!(said("!data ip_id\n!binary\n\x70\0\0\x09ab"), ["f:record 1: binary record too long"]);
}

#[test]
fn lines_end_in_all_ways() {
    let made = packets("!data ip_id\r1\r\n2\n\n# 9\n3\r4");
    assert_eq!(lines(&made, "ip_id", PLAIN), "1\n2\n3\n4\n");
}

#[test]
fn old_versions_mean_what_they_meant() {
    let made = packets("!IPSummaryDump 1.0\n!data 'ip fragoff' 'tcp flags'\n5+ SA\n- 18\n0 XYW\n");
    assert_eq!(lines(&made, "ip_fragoff tcp_flags", PLAIN), "40+ -\n0 SA\n0 EC\n");
}

#[test]
fn any_packet_is_described_in_every_field() {
    let mut random = Rng::with_seed(seed());
    let fields: Vec<&'static Field> = FIELDS.iter().collect();
    let records = fields.iter().copied().filter(|field| field.fits_binary()).collect();
    let options = SummaryWriterOptions { bad_packets: true, ..PLAIN };
    let mut writers = [
        Summarizer::new(fields, options),
        Summarizer::new(records, SummaryWriterOptions { binary: true, extra_length: false, ..options }),
    ];
    for _ in 0..5000 {
        let mut bytes = bifolio_testing::noise(random.usize(..120), random.u64(..));
        for (at, values) in
            [(0, [0x45, 0x46, 0x4F]), (2, [0, 0, 0]), (6, [0, 0, 0x20]), (7, [0, 0, 1]), (9, [1, 6, 17])]
        {
            if let (Some(byte), true) = (bytes.get_mut(at), random.u8(..4) > 0) {
                *byte = values[random.usize(..3)];
            }
        }
        let mut packet = Packet::from_slice(&bytes);
        if random.bool() {
            packet.set_network_header(random.u8(..4) as isize - 2, [20, 20, 24, 60][random.usize(..4)]);
        }
        if random.bool() {
            packet.set_mac_header(random.u8(..20) as isize - 14);
        }
        packet.anno_mut().fill_with(|| random.u8(..) & random.u8(..));
        packet.pull(random.usize(..3));
        let mut out = Vec::new();
        for writer in &mut writers {
            out.clear();
            writer.describe(&packet, &mut out);
            assert!(!out.is_empty());
        }
    }
}

#[test]
fn any_damage_of_dumps_is_survived() {
    let mut random = Rng::with_seed(seed());
    let all: Vec<&str> = FIELDS.iter().map(Field::name).collect();
    for round in 0..600 {
        let binary = round % 2 == 0;
        let mut names = all.clone();
        random.shuffle(&mut names);
        names.truncate(random.usize(1..20));
        names.retain(|name| !binary || Field::find(name).unwrap().fits_binary());
        let fields = if names.is_empty() { "ip_id".into() } else { names.join(" ") };
        let lines: String = (0..3)
            .map(|_| names.iter().map(|name| text(&mut random, name, 6)).collect::<Vec<_>>().join(" ") + "\n")
            .collect();
        let (made, _) = read_all(reader(format!("!IPSummaryDump 1.3\n!data {fields}\n{lines}")));
        let mut bytes = dump(&made, &fields, binary);
        for _ in 0..random.usize(..12) {
            let at = random.usize(..bytes.len());
            bytes[at] = [random.u8(..), b'9', 0, 0xFF, b'"', b' '][random.usize(..6)];
        }
        let (packets, _) = read_all(reader(bytes));
        assert!(packets.iter().all(|packet| packet.len() <= 70_000));
    }
}
