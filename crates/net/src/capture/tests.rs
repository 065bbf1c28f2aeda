use std::io::Write;

use bifolio_testing::{command, has, noise, seed};
use fastrand::Rng;

use super::super::{LinkType, Order, PcapNgWriter, PcapOptions, PcapWriter};
use super::*;

/// A packet as it is written, and as it should be read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owned {
    time_ns: i64,
    data: Vec<u8>,
    wire_len: u32,
    link: LinkType,
}

impl From<Record<'_>> for Owned {
    fn from(record: Record<'_>) -> Self {
        let Record { time_ns, data, wire_len, link, .. } = record;
        Self { time_ns, data: data.to_vec(), wire_len, link }
    }
}

fn packets(random: &mut Rng, link: LinkType, unit_ns: i64) -> Vec<Owned> {
    let packet = |_| {
        let data = noise(if random.u8(..) == 0 { 70_000 } else { random.usize(..200) }, random.u64(..));
        let wire_len = data.len() as u32 + random.u32(..3) * random.u32(..5000);
        let time_ns = random.i64(0..4_000_000_000_000_000_000) / unit_ns * unit_ns;
        Owned { time_ns, data, wire_len, link }
    };
    (0..50).map(packet).collect()
}

fn read_all(bytes: &[u8]) -> (Vec<Owned>, Option<String>) {
    let mut reader = match Reader::new(Source::bytes("f", bytes.to_vec())) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error.to_string())),
    };
    let mut packets = Vec::new();
    let error = loop {
        match reader.read() {
            Ok(Some(record)) => packets.push(record.into()),
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    assert!(matches!(reader.read(), Ok(None)), "no more packets after the end");
    (packets, error)
}

fn pcap(options: PcapOptions, packets: &[Owned]) -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new(), options).unwrap();
    for packet in packets {
        writer.write(packet.time_ns, &packet.data, packet.wire_len).unwrap();
    }
    writer.into_inner()
}

fn pcapng(options: PcapOptions, packets: &[Owned]) -> Vec<u8> {
    let mut writer = PcapNgWriter::new(Vec::new(), options).unwrap();
    for packet in packets {
        writer.write(packet.time_ns, &packet.data, packet.wire_len).unwrap();
    }
    writer.into_inner()
}

type Form = fn(PcapOptions, &[Owned]) -> Vec<u8>;
const FORMS: [Form; 2] = [pcap, pcapng];

#[test]
fn packets_are_read_as_written() {
    let mut random = Rng::with_seed(seed());
    for form in FORMS {
        for (nano, unit_ns) in [(false, 1000), (true, 1)] {
            let link = LinkType(random.u32(..300)).0;
            let options = PcapOptions { link: LinkType::from_file(link), snaplen: u32::MAX, nano };
            let packets = packets(&mut random, options.link, unit_ns);
            assert_eq!(read_all(&form(options, &packets)), (packets, None));
        }
    }
}

#[test]
fn the_snapshot_length_cuts_packets_and_keeps_their_length() {
    for form in FORMS {
        let packet = Owned { time_ns: 5, data: vec![1, 2, 3, 4, 5], wire_len: 5, link: LinkType::RAW };
        let options = PcapOptions { link: LinkType::RAW, snaplen: 3, nano: true };
        let cut = Owned { data: vec![1, 2, 3], ..packet.clone() };
        assert_eq!(read_all(&form(options, &[packet])), (vec![cut], None));
    }
}

#[test]
fn a_cut_file_delivers_the_packets_before_the_cut_then_one_error() {
    let mut random = Rng::with_seed(seed());
    for form in FORMS {
        let options = PcapOptions { link: LinkType::ETHERNET, snaplen: u32::MAX, nano: true };
        let packets: Vec<Owned> = packets(&mut random, options.link, 1).into_iter().take(4).collect();
        let ends: Vec<usize> = (0..=packets.len()).map(|count| form(options, &packets[..count]).len()).collect();
        let bytes = form(options, &packets);
        for len in ends[0]..bytes.len().min(ends[0] + 2000) {
            let whole = ends.iter().filter(|&&end| end <= len).count() - 1;
            let (read, error) = read_all(&bytes[..len]);
            assert_eq!(read, packets[..whole]);
            let expected = format!("f: the file ends inside the packet at offset {}", ends[whole]);
            assert_eq!(error, (!ends.contains(&len)).then_some(expected));
        }
    }
}

#[test]
fn what_is_no_file_of_packets_is_said_in_clicks_words() {
    let error = |bytes: &[u8]| read_all(bytes).1.unwrap();
    assert_eq!(error(&[]), "f: empty file");
    assert_eq!(error(&[0; 23]), "f: not a tcpdump file (too short)");
    assert_eq!(error(&[0; 24]), "f: not a tcpdump file (bad magic number)");
    let mut file = pcap(PcapOptions { link: LinkType::RAW, snaplen: 9, nano: false }, &[]);
    file[4] = 3;
    assert_eq!(error(&file), "f: unknown major version 3");
    file[4] = 2;
    file.extend([[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1]].concat());
    assert_eq!(error(&file), "f: bad packet header at offset 24; giving up");
    assert_eq!(Reader::open("/no/such").unwrap_err().to_string(), "/no/such: No such file or directory");
}

/// Builds files by hand, in either byte order.
struct Builder {
    order: Order,
    bytes: Vec<u8>,
}

impl Builder {
    fn words(&mut self, words: &[u32]) -> &mut Self {
        for word in words {
            let bytes = if self.order == Order::Little { word.to_le_bytes() } else { word.to_be_bytes() };
            self.bytes.extend(bytes);
        }
        self
    }

    fn halves(&mut self, halves: &[u16]) -> &mut Self {
        for half in halves {
            let bytes = if self.order == Order::Little { half.to_le_bytes() } else { half.to_be_bytes() };
            self.bytes.extend(bytes);
        }
        self
    }

    /// A block of a pcapng file.
    fn block(&mut self, kind: u32, body: impl FnOnce(&mut Self)) -> &mut Self {
        let mut inner = Self { order: self.order, bytes: Vec::new() };
        body(&mut inner);
        let len = (inner.bytes.len().next_multiple_of(4) + 12) as u32;
        self.words(&[kind, len]);
        self.bytes.extend(&inner.bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0xEE);
        self.words(&[len])
    }

    fn section(&mut self) -> &mut Self {
        self.block(SECTION, |block| {
            block.words(&[0x1A2B_3C4D]).halves(&[1, 0]).words(&[u32::MAX, u32::MAX, 0x0002_0003, 0x6162_6300]);
        })
    }
}

const ORDERS: [Order; 2] = [Order::Little, Order::Big];

#[test]
fn both_byte_orders_and_old_headers_are_read() {
    for order in ORDERS {
        let packet =
            |time_ns, data: &[u8], wire_len| Owned { time_ns, data: data.to_vec(), wire_len, link: LinkType::RAW };
        let file = |magic, minor, link| {
            let mut file = Builder { order, bytes: Vec::new() };
            file.words(&[magic]).halves(&[2, minor]).words(&[0, 0, 65535, link]);
            file
        };
        let mut plain = file(0xA1B2_C3D4, 4, 12);
        plain.words(&[7, 8, 3, 90]).bytes.extend([1, 2, 3]);
        // A byte more than the packet has, as tcptrace writes.
        plain.words(&[8, 0, 4, 3]).bytes.extend([4, 5, 6, 7]);
        let expected = vec![packet(7_000_008_000, &[1, 2, 3], 90), packet(8_000_000_000, &[4, 5, 6], 3)];
        assert_eq!(read_all(&plain.bytes), (expected.clone(), None));
        let mut modified = file(0xA1B2_CD34, 4, 101);
        modified.words(&[7, 8, 3, 90, 0xFFFF_FFFF, 0xFFFF_FFFF]).bytes.extend([1, 2, 3]);
        assert_eq!(read_all(&modified.bytes), (expected[..1].to_vec(), None));
        for minor in [2, 3] {
            let mut old = file(0xA1B2_C3D4, minor, 101);
            old.words(&[7, 8, 90, 3]).bytes.extend([1, 2, 3]);
            assert_eq!(read_all(&old.bytes), (expected[..1].to_vec(), None));
        }
        let mut nano = file(0xA1B2_3C4D, 4, 0x1000_0065);
        nano.words(&[7, 8000, 3, 90]).bytes.extend([1, 2, 3]);
        assert_eq!(read_all(&nano.bytes), (expected[..1].to_vec(), None));
    }
}

#[test]
fn all_packet_blocks_of_sections_in_both_orders_are_read() {
    let mut file = Builder { order: Order::Big, bytes: Vec::new() };
    let mut expected = Vec::new();
    for order in ORDERS {
        file.order = order;
        file.section();
        // Microseconds by default; units of 2^-10 s, 5 s ahead; picoseconds, with comments around.
        file.block(1, |block| {
            block.halves(&[101, 0]).words(&[4]);
        });
        file.block(1, |block| {
            block.halves(&[1, 0]).words(&[0]).halves(&[9, 1, 0x8A | 0x8A << 8, 0, 14, 8]);
            let halves = if order == Order::Big { [0, 5] } else { [5, 0] };
            block.words(&halves).halves(&[0, 0]);
        });
        file.block(1, |block| {
            block.halves(&[113, 0]).words(&[0]).halves(&[1, 3, 0x6161, 0x6161, 9, 1, 0x0C0C, 0]);
        });
        file.block(0x0BAD, |block| {
            block.words(&[1, 2, 3]);
        });
        file.block(6, |block| block.words(&[0, 1, 5, 3, 9]).bytes.extend([1, 2, 3]));
        file.block(6, |block| {
            block.words(&[1, 0, 512, 0, 0]);
        });
        file.block(6, |block| block.words(&[2, 0, 7000, 1, 1]).bytes.extend([9]));
        file.block(3, |block| block.words(&[6]).bytes.extend([4, 5, 6, 7]));
        file.block(2, |block| block.halves(&[0, 77]).words(&[0, 6, 2, 2]).bytes.extend([8, 9]));
        let mut packet = |time_ns, data: &[u8], wire_len, link| {
            expected.push(Owned { time_ns, data: data.to_vec(), wire_len, link });
        };
        packet(((1 << 32) + 5) * 1000, &[1, 2, 3], 9, LinkType::RAW);
        packet(5_500_000_000, &[], 0, LinkType::ETHERNET);
        packet(7, &[9], 1, LinkType::SLL);
        packet(0, &[4, 5, 6, 7], 6, LinkType::RAW);
        packet(6000, &[8, 9], 2, LinkType::RAW);
    }
    assert_eq!(read_all(&file.bytes), (expected, None));
    let reader = Reader::new(Source::bytes("f", file.bytes)).unwrap();
    assert_eq!(reader.link(), LinkType::RAW);
}

#[test]
fn damaged_blocks_are_errors_with_their_offsets() {
    let file = |build: &dyn Fn(&mut Builder)| {
        let mut file = Builder { order: Order::Little, bytes: Vec::new() };
        file.section().block(1, |block| {
            block.halves(&[1, 0]).words(&[0]);
        });
        let offset = file.bytes.len();
        build(&mut file);
        read_all(&file.bytes).1.unwrap().replace(&format!("offset {offset}"), "HERE")
    };
    let packet = |words: [u32; 5]| {
        move |file: &mut Builder| {
            file.block(6, |block| {
                block.words(&words);
            });
        }
    };
    assert_eq!(file(&packet([1, 0, 0, 0, 0])), "f: packet of interface 1, which is not described, at HERE");
    assert_eq!(file(&packet([0, 0, 0, 1, 1])), "f: bad packet header at HERE");
    assert_eq!(
        file(&|file| {
            file.words(&[6, 33]).words(&[0; 20]);
        }),
        "f: bad block length 33 at HERE"
    );
    assert_eq!(
        file(&|file| {
            file.words(&[6, 8]).words(&[0; 20]);
        }),
        "f: bad block length 8 at HERE"
    );
    let disagree = file(&|file| {
        file.words(&[6, 32, 0, 0, 0, 0, 0, 36]);
    });
    assert_eq!(disagree, "f: block lengths 32 and 36 disagree at HERE");
    let huge = file(&|file| {
        file.words(&[6, 0xFFFF_FFF0, 0]);
    });
    assert_eq!(huge, "f: bad block length 4294967280 at HERE");
    let unknown = file(&|file| {
        file.words(&[99, 0xFFFF_FFF0, 0]);
    });
    assert_eq!(unknown, "f: the file ends inside the packet at HERE");
}

#[test]
fn moving_within_a_file_goes_on_with_the_packet_there() {
    for form in FORMS {
        let mut random = Rng::with_seed(seed());
        let options = PcapOptions { link: LinkType::ETHERNET, snaplen: u32::MAX, nano: true };
        let packets = packets(&mut random, options.link, 1);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&form(options, &packets)).unwrap();
        let mut reader = Reader::open(file.path().to_str().unwrap()).unwrap();
        assert_eq!(reader.file_len(), Some(file.path().metadata().unwrap().len()));
        let mut offsets = Vec::new();
        while let Some(record) = reader.read().unwrap() {
            offsets.push(record.offset);
        }
        assert_eq!(Some(reader.position()), reader.file_len());
        for _ in 0..50 {
            let index = random.usize(..packets.len());
            reader.seek(offsets[index]).unwrap();
            assert_eq!(Owned::from(reader.read().unwrap().unwrap()), packets[index]);
        }
    }
}

#[test]
fn any_bytes_and_any_damage_are_survived() {
    let mut random = Rng::with_seed(seed());
    for round in 0..400 {
        let options = PcapOptions { link: LinkType::ETHERNET, snaplen: 100, nano: round % 3 == 0 };
        let packets: Vec<Owned> = packets(&mut random, options.link, 1).into_iter().take(5).collect();
        let mut bytes = FORMS[round % 2](options, &packets);
        for _ in 0..random.usize(1..9) {
            let at = random.usize(..bytes.len());
            match random.u8(..4) {
                0 => bytes[at] = random.u8(..),
                1 => bytes[at] = [0, 0xFF][random.usize(..2)],
                2 => drop(bytes.drain(at.max(1)..(at.max(1) + random.usize(..9)).min(bytes.len()))),
                _ => bytes.truncate(at.max(1)),
            }
        }
        let (read, _) = read_all(&bytes);
        let total: usize = read.iter().map(|packet| packet.data.len()).sum();
        assert!(total <= bytes.len(), "a file of {} bytes gave {total}", bytes.len());
    }
}

/// tcpdump reads what is written here, and what it writes is read here.
#[test]
fn tcpdump_reads_and_writes_the_same_packets() {
    if !has("tcpdump") {
        return;
    }
    let mut random = Rng::with_seed(seed());
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for form in FORMS {
        for (nano, unit_ns) in [(false, 1000), (true, 1)] {
            let options = PcapOptions { link: LinkType::ETHERNET, snaplen: 262_144, nano };
            let packets = packets(&mut random, options.link, unit_ns);
            // No packet without bytes, and no time that tcpdump's 32 bits of seconds do not hold.
            let kept: Vec<Owned> = packets.into_iter().filter(|packet| packet.time_ns < 1 << 60).collect();
            std::fs::write(path("in"), form(options, &kept)).unwrap();
            let precision = format!("--time-stamp-precision={}", if nano { "nano" } else { "micro" });
            let status =
                command("tcpdump").arg("-r").arg(path("in")).arg("-w").arg(path("out")).arg(precision).output();
            let status = status.unwrap();
            assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
            assert_eq!(read_all(&std::fs::read(path("out")).unwrap()), (kept, None));
        }
    }
}
