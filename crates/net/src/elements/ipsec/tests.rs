//! The elements beside another implementation of AES-GCM, and beside packets that another program has made.

use crate::Packet;
use crate::elements::testing::{Harness, fuzz, ip, noise, udp};
use crate::headers::Ip;
use bifolio_kernels::aes_gcm::oracle_decrypt;
use bifolio_testing::seed;

const TUNNEL: &str = "SRC 192.0.2.1, DST 192.0.2.2";

/// A key of so many bytes with its salt, as digits.
fn key(bytes: usize) -> String {
    let digit = |digit: u8| char::from_digit(digit.into(), 16).expect("below 16");
    (1..=bytes as u8).chain([0xa0, 0xa1, 0xa2, 0xa3]).flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn unhex(digits: &str) -> Vec<u8> {
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// A packet whose IP header is known, behind so many other bytes.
fn marked(bytes: &[u8], before: usize) -> Packet {
    let mut packet = Packet::from_slice(&[vec![0xee; before], bytes.to_vec()].concat());
    packet.set_mac_header(0);
    packet.set_network_header(before as isize, usize::from(bytes[0] & 15) * 4);
    packet
}

/// Packets of many lengths, some behind Ethernet headers, some with options.
fn packets(count: usize) -> Vec<Packet> {
    let mut random = fastrand::Rng::with_seed(seed());
    let one = |_| {
        let payload: Vec<u8> = (0..random.usize(..1400)).map(|_| random.u8(..)).collect();
        let mut bytes = ip([1, 6, 17][random.usize(..3)], [10, 0, 0, 1], [10, 0, 0, 2], &payload);
        if random.bool() {
            bytes.splice(20..20, [1; 8]);
            bytes[0] = 0x47;
            let len = bytes.len() as u16;
            bytes[2..4].copy_from_slice(&len.to_be_bytes());
        }
        bytes[1] = random.u8(..);
        let _ = crate::headers::ip::set_checksum(&mut bytes);
        let mut packet = marked(&bytes, [0, 14][random.usize(..2)]);
        if random.bool() {
            packet.put(7).rchunks_mut(7).next().unwrap().fill(0x77);
        }
        packet
    };
    (0..count).map(one).collect()
}

#[test]
fn packets_are_encrypted_as_another_implementation_decrypts_them() {
    let packets = packets(60);
    for (bytes, mode, is_extended) in [(16, "tunnel", false), (24, "transport", true), (32, "tunnel", true)] {
        let outer = if mode == "tunnel" { TUNNEL } else { "ESN true" };
        let first = if is_extended { (1_u64 << 32) - 9 } else { 5 };
        let mut harness = Harness::new(&format!(
            "give :: Give -> e :: IPsecESPEncap(0x1234, 0x{}, MODE {mode}, {outer}, ESN {is_extended}, NUMBER {first}, IV 77) -> take :: Take",
            key(bytes)
        ));
        harness.give("give", packets.iter().cloned());
        let taken = harness.take("take");
        assert_eq!(taken.len(), packets.len());
        assert_eq!(harness.read("e.number"), (first + 60).to_string());
        let secret = unhex(&key(bytes));
        let (secret, salt) = secret.split_at(bytes);
        for ((number, before), after) in (first..).zip(&packets).zip(&taken) {
            let (inner, at) = (before.network_header().unwrap(), before.network_offset().unwrap());
            let inner = &inner[..Ip::new(inner).unwrap().total_len().into()];
            assert_eq!((after.network_offset(), after.mac_offset()), (Some(at), Some(0)));
            assert_eq!(after.bytes()[..at as usize], before.bytes()[..at as usize], "what is before it stays");
            let header = Ip::checked(after.network_header().unwrap()).unwrap();
            assert!(header.is_checksum_valid() && header.protocol() == 50);
            assert_eq!(usize::from(header.total_len()), after.len() - at as usize);
            let esp = header.payload();
            let (text, tag) = esp[16..].split_last_chunk::<16>().unwrap();
            assert_eq!(esp[..8], [&0x1234_u32.to_be_bytes()[..], &(number as u32).to_be_bytes()].concat());
            let nonce = [salt, &esp[8..16]].concat();
            let whole = number.to_be_bytes();
            let aad = [&esp[..4], if is_extended { &whole[..] } else { &whole[4..] }].concat();
            let mut text = text.to_vec();
            assert!(oracle_decrypt(secret, &nonce, &aad, &mut text, *tag));
            let [rest @ .., pad_len, next] = &text[..] else { panic!("a trailer") };
            let (content, padding) = rest.split_at(rest.len() - usize::from(*pad_len));
            assert!(*pad_len < 4 && padding.iter().zip(1..).all(|(byte, number)| *byte == number));
            let old = Ip::new(inner).unwrap();
            if mode == "tunnel" {
                assert_eq!((content, *next), (inner, 4));
                assert_eq!((header.tos(), header.ttl(), after.dst_ip()), (old.tos(), 64, [192, 0, 2, 2].into()));
            } else {
                assert_eq!((content, *next), (old.payload(), old.protocol()));
                assert_eq!((header.source(), header.header_len(), header.ttl()), (old.source(), old.header_len(), 64));
            }
        }
    }
}

/// By Scapy 2.8.0: length of the key, tunnel, ESN (then the number is 2^32 + 7, else 7), and what became of the packet.
const BY_SCAPY: [(usize, bool, bool, &str); 4] = [
    (
        16,
        true,
        false,
        "45000060000100004032f667c0000201c0000202000012340000000709080706050403022f204428bbe9dc5cd1190e6ce1000c38a7de7a37e53b3e16382d07b9d454129c0b212276cb04a6031f083e415955ccc92aee5ca17def1e79003d3ecd",
    ),
    (
        24,
        false,
        false,
        "4500004c005500003f3267290a0000010a000002000012340000000709080706050403025bc8b78410ab7e370dd9f236eb4ac65f05aa275a0b4e1b664eac17c0a4cc02f577d123ceb95b173c",
    ),
    (
        32,
        true,
        true,
        "45000060000100004032f667c0000201c00002020000123400000007090807060504030291a1b69413c7f58af5a7fbeaa487a327492d4d33f42d4eaa24a38a4996d9c159c04cd2990156546b42a35d334c3117e90c685bd6561b044d08aa7d6b",
    ),
    (
        16,
        false,
        true,
        "4500004c005500003f3267290a0000010a0000020000123400000007090807060504030269c843d2bbaac33b9d69047087652c56cbfe0e509ea739d71b2eb80cbf918d6d4ad6bba35472ef06",
    ),
];

#[test]
fn packets_of_scapy_are_made_and_read() {
    let mut plain = udp(([10, 0, 0, 1], 1000), ([10, 0, 0, 2], 2000), b"sample of text");
    (plain[5], plain[8]) = (0x55, 63);
    crate::headers::ip::set_checksum(&mut plain).unwrap();
    for (bytes, has_tunnel, is_extended, sealed) in BY_SCAPY {
        let sealed = unhex(sealed);
        let number = if is_extended { (1_u64 << 32) + 7 } else { 7 };
        let (mode, outer) = if has_tunnel { ("tunnel", TUNNEL) } else { ("transport", "TTL 64") };
        let common = format!("0x1234, {}, MODE {mode}, ESN {is_extended}", key(bytes));
        let iv = 0x0908_0706_0504_0302 ^ number;
        let mut harness = Harness::new(&format!(
            "give :: Give -> IPsecESPEncap({common}, {outer}, NUMBER {number}, IV {iv}) -> take :: Take;
             early :: Give -> IPsecESPEncap({common}, {outer}, NUMBER 4294967295, IV 0) -> u :: IPsecESPUnencap({common}) -> open :: Take;
             late :: Give -> u"
        ));
        harness.give("give", [marked(&plain, 0)]);
        let taken = harness.take_bytes("take");
        // Scapy numbers and marks its tunnel's header in its own way.
        assert_eq!(taken[0][20..], sealed[20..]);
        assert!(has_tunnel || taken[0] == sealed);
        if is_extended {
            harness.give("early", [marked(&plain, 0)]);
        }
        harness.give("late", [marked(&sealed, 14)]);
        let opened = harness.take_bytes("open");
        assert_eq!(opened.len(), 1 + usize::from(is_extended));
        assert_eq!(opened.last().unwrap()[14..], plain);
        assert_eq!(harness.read("u.number"), number.to_string());
    }
}

#[test]
fn what_was_encrypted_comes_back_in_both_modes() {
    let packets = packets(80);
    for (mode, outer) in [("tunnel", TUNNEL), ("transport", "ESN false")] {
        let mut harness = Harness::new(&format!(
            "give :: Give -> e :: IPsecESPEncap(300, {0}, MODE {mode}, {outer}, IV 3) -> u :: IPsecESPUnencap(300, {0}, MODE {mode}) -> take :: Take",
            key(16)
        ));
        harness.give("give", packets.iter().cloned());
        let taken = harness.take("take");
        assert_eq!(taken.len(), packets.len());
        for (before, mut after) in packets.iter().zip(taken) {
            let at = before.network_offset().unwrap() as usize;
            let len = usize::from(Ip::new(before.network_header().unwrap()).unwrap().total_len());
            assert_eq!(after.bytes(), &before.bytes()[..at + len]);
            assert_eq!(after.network_offset(), before.network_offset());
            assert_eq!(after.transport_offset(), before.transport_offset());
            assert_eq!((after.mac_offset(), after.dst_ip()), (Some(0), [10, 0, 0, 2].into()));
            after.own();
        }
        assert_eq!((harness.read("e.count"), harness.read("u.count")), ("80".to_owned(), "80".to_owned()));
        assert_eq!((harness.read("e.drops"), harness.read("u.drops")), ("0".to_owned(), "0".to_owned()));
    }
}

/// How many packets were refused for a reason.
fn refused(harness: &mut Harness, element: &str, reason: &str) -> String {
    let details = harness.read(&format!("{element}.drop_details"));
    let line = details.lines().find_map(|line| line.split_once('\t').filter(|(_, text)| *text == reason));
    line.unwrap_or_else(|| panic!("no '{reason}' in {details}")).0.to_owned()
}

#[test]
fn replayed_old_and_forged_packets_are_refused_as_they_are() {
    let config = format!(
        "give :: Give -> IPsecESPEncap(300, {0}, {TUNNEL}, IV 0) -> sealed :: Take;
         back :: Give -> u :: IPsecESPUnencap(300, {0}, WINDOW 10) -> take :: Take; u[1] -> bad :: Take",
        key(32)
    );
    let mut harness = Harness::new(&config);
    harness.give("give", packets(40));
    let sealed = harness.take("sealed");
    let mut random = fastrand::Rng::with_seed(seed());
    // Not in their order, twice, and too late.
    harness.give("back", [5, 3, 5, 4, 30, 20, 21, 21, 31].map(|at: usize| sealed[at].clone()));
    assert_eq!(harness.take("take").len(), 6);
    assert_eq!(refused(&mut harness, "u", "replayed or too old"), "3");
    let bad = harness.take_bytes("bad");
    assert_eq!(bad, [5, 20, 21].map(|at: usize| sealed[at].bytes().to_vec()));
    // Each bit counts, and a forged packet neither moves the window nor is it seen.
    let forged: Vec<Packet> = (0..200)
        .map(|_| {
            let mut packet = sealed[39].clone();
            let at = packet.network_offset().unwrap() as usize + 24;
            let at = random.usize(at..packet.len());
            packet.bytes_mut()[at] ^= 1 << random.u8(..8);
            packet
        })
        .collect();
    harness.give("back", forged.iter().cloned());
    assert_eq!(harness.take("take").len(), 0);
    assert_eq!(harness.take_bytes("bad"), forged.iter().map(|packet| packet.bytes().to_vec()).collect::<Vec<_>>());
    harness.give("back", [sealed[39].clone()]);
    assert_eq!(harness.take("take").len(), 1);
}

#[test]
fn sequence_numbers_end_and_do_not_begin_again() {
    let mut harness = Harness::new(&format!(
        "give :: Give -> e :: IPsecESPEncap(300, {}, {TUNNEL}, IV 0, NUMBER 4294967290) -> take :: Take",
        key(16)
    ));
    harness.give("give", packets(20));
    assert_eq!(harness.take("take").len(), 6);
    assert_eq!(refused(&mut harness, "e", "no sequence number is left"), "14");
}

#[test]
fn a_packet_that_would_be_too_long_is_refused() {
    let mut harness = Harness::new(&format!(
        "give :: Give -> e :: IPsecESPEncap(300, {0}, {TUNNEL}, IV 0) -> u :: IPsecESPUnencap(300, {0}) -> take :: Take",
        key(16)
    ));
    // 20 bytes of header, 16 of ESP, 2 of its trailer, 16 of the tag: 65,535 less these at the most, at a boundary.
    let of = |len: usize| marked(&ip(17, [1; 4], [2; 4], &vec![9; len - 20]), 0);
    harness.give("give", [65_482, 65_483, 65_478, 65_479].map(of));
    let lens: Vec<_> = harness.take("take").iter().map(Packet::len).collect();
    assert_eq!(lens, [65_478]);
    assert_eq!(refused(&mut harness, "e", "too long"), "3");
}

#[test]
fn congestion_on_the_way_is_told_to_the_packet_inside() {
    let mut harness = Harness::new(&format!(
        "give :: Give -> IPsecESPEncap(300, {0}, {TUNNEL}, IV 0) -> MarkIPCE(true) -> IPsecESPUnencap(300, {0}) -> take :: Take",
        key(16)
    ));
    let of = |tos: u8| {
        let mut bytes = ip(17, [1; 4], [2; 4], b"x");
        bytes[1] = tos;
        crate::headers::ip::set_checksum(&mut bytes).unwrap();
        marked(&bytes, 0)
    };
    harness.give("give", [0xb8, 0xb9, 0xba].map(of));
    let taken = harness.take("take");
    let seen = |packet: &Packet| {
        let ip = Ip::new(packet.bytes()).unwrap();
        assert!(ip.is_checksum_valid());
        ip.tos()
    };
    assert_eq!(taken.iter().map(seen).collect::<Vec<_>>(), [0xb8, 0xbb, 0xbb]);
}

#[test]
fn hostile_packets_are_refused_and_nothing_panics() {
    for (mode, outer) in [("tunnel", TUNNEL), ("transport", "ESN true")] {
        let taken = fuzz(
            &format!(
                "give :: Give -> e :: IPsecESPEncap(300, {0}, MODE {mode}, {outer}, IV 0) -> u :: IPsecESPUnencap(300, {0}, MODE {mode})
                 -> take :: Take; e[1] -> bad :: Take",
                key(16)
            ),
            &["take", "bad"],
        );
        assert!(mode == "transport" || taken.iter().all(|packets| !packets.is_empty()));
    }
    let mut harness =
        Harness::new(&format!("give :: Give -> u :: IPsecESPUnencap(0x0a000101, {}) -> Discard", key(16)));
    // Noise of which much has the right protocol and SPI.
    let packets = noise(2000).into_iter().map(|mut packet| {
        if let Some(header) = packet.network_header_mut().filter(|header| header.len() > 24) {
            header[9] = 50;
            let at = usize::from(header[0] & 15) * 4;
            if let Some(spi) = header.get_mut(at..at + 4) {
                spi.copy_from_slice(&[10, 0, 1, 1]);
            }
        }
        packet
    });
    harness.give("give", packets);
    assert_eq!((harness.read("u.count"), harness.read("u.drops")), ("0".to_owned(), "2000".to_owned()));
    assert_ne!(refused(&mut harness, "u", "wrong tag"), "0");
}

#[test]
fn what_is_authentic_but_no_packet_is_refused() {
    use super::refusals::Refusal;
    use crate::elements::ipsec::frame::{content, inner};
    assert_eq!(content(&[1, 2, 2, 4]), Ok((&[][..], 4)));
    assert_eq!(content(&[1, 2, 3, 4]), Err(Refusal::Malformed));
    assert_eq!(content(&[4]), Err(Refusal::Malformed));
    let packet = ip(17, [1; 4], [2; 4], b"xyz");
    assert_eq!(inner(&[&packet[..], &[0; 9]].concat()), Ok(&packet[..]));
    assert_eq!(inner(&packet[..22]), Err(Refusal::Malformed));
}

#[test]
fn wrong_configurations_get_sentences() {
    let wrong = |class: &str, config: &str, sentence: &str| {
        let said = Harness::errors(&format!("Idle -> {class}({config}) -> Discard"));
        assert!(said.contains(sentence), "{config}\n{said}");
    };
    let good = key(16);
    wrong("IPsecESPEncap", &format!("255, {good}, {TUNNEL}"), "SPI: must be at least 256");
    wrong("IPsecESPEncap", &format!("300, {good}00, {TUNNEL}"), "must have 20, 28 or 36 bytes");
    wrong("IPsecESPEncap", &format!("300, {good}0, {TUNNEL}"), "two for each byte");
    wrong("IPsecESPEncap", &format!("300, zz, {TUNNEL}"), "KEY: must be hexadecimal digits");
    wrong("IPsecESPEncap", &format!("300, {TUNNEL}"), "one of KEY and KEYFILE is needed");
    wrong("IPsecESPEncap", &format!("300, KEYFILE /nowhere/key, {TUNNEL}"), "KEYFILE: /nowhere/key");
    wrong("IPsecESPEncap", &format!("300, {good}"), "SRC and DST are needed in tunnel mode");
    wrong("IPsecESPEncap", &format!("300, {good}, MODE transport, {TUNNEL}"), "there is no SRC");
    wrong("IPsecESPEncap", &format!("300, {good}, MODE beet, {TUNNEL}"), "'beet' is neither tunnel nor transport");
    wrong(
        "IPsecESPEncap",
        &format!("300, {good}, {TUNNEL}, NUMBER 4294967296"),
        "NUMBER: must be between 1 and 4294967295",
    );
    wrong("IPsecESPUnencap", &format!("300, {good}, WINDOW 0"), "WINDOW: must be between 1 and 65536");
}

#[test]
fn a_key_comes_from_a_file() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, format!("0x{}\n", key(24)).as_bytes()).unwrap();
    let mut harness = Harness::new(&format!(
        "give :: Give -> IPsecESPEncap(300, KEYFILE {}, {TUNNEL}, IV 0) -> u :: IPsecESPUnencap(300, {}) -> take :: Take",
        file.path().display(),
        key(24)
    ));
    harness.give("give", packets(3));
    assert_eq!(harness.take("take").len(), 3);
}

#[test]
fn who_comes_after_goes_on_with_numbers_and_window() {
    use super::receiver::Receiver;
    use super::sender::Sender;
    use crate::Log;
    use crate::args::{ArgCx, Args, NameDb, NoElements};
    fn of<T>(config: &str, make: fn(&mut Args<'_>) -> Result<T, crate::args::Failed>) -> T {
        let (mut log, names) = (Log::new(), NameDb::default());
        let cx = ArgCx { elements: &NoElements, names: &names, element: "" };
        let made = make(&mut Args::new(config, cx, &mut log));
        made.unwrap_or_else(|_| panic!("{log}"))
    }
    let sender = |key: &str| of(&format!("300, {key}, {TUNNEL}, IV 0"), Sender::of);
    let (old, new, other) = (sender(&key(16)), sender(&key(16)), sender(&key(24)));
    assert_eq!(old.take(5), 1);
    new.inherit(&old);
    other.inherit(&old);
    assert_eq!((new.next(), other.next()), (6, 1));
    let receiver = || of(&format!("300, {}", key(16)), Receiver::of);
    let (before, after) = (receiver(), receiver());
    let mut packet = marked(&ip(17, [1; 4], [2; 4], b"xyz"), 0);
    old.seal(&mut packet, 9, None).unwrap();
    before.open(&mut packet.clone(), None).unwrap();
    after.inherit(&before);
    assert_eq!(after.top(), 9);
    assert_eq!(after.open(&mut packet, None), Err(super::refusals::Refusal::Replayed));
}
