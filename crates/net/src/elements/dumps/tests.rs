//! Dumps through whole routers.

use crate::Packet;
use crate::Timestamp;
use crate::capture::{LinkType, PcapOptions, PcapWriter, Reader};
use crate::elements::testing::{Harness, udp};
use crate::packet::anno;
use std::path::Path;

/// A folder for files, and a name in it.
pub(super) fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

pub(super) fn path(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

/// Writes a capture file: packets of one byte, at these times in seconds.
fn capture(path: &str, times: &[f64]) {
    let options = PcapOptions { link: LinkType::ETHERNET, snaplen: 100, nano: true };
    let mut writer = PcapWriter::new(Vec::new(), options).unwrap();
    for (number, time) in (0..).zip(times) {
        writer.write(Timestamp::from_secs_f64(*time).nanos(), &[number], 1).unwrap();
    }
    std::fs::write(path, writer.into_inner()).unwrap();
}

fn packets(path: &str) -> Vec<(i64, Vec<u8>, u32, LinkType)> {
    let mut reader = Reader::open(path).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.read().unwrap() {
        packets.push((record.time_ns, record.data.to_vec(), record.wire_len, record.link));
    }
    packets
}

fn numbers(harness: &mut Harness, sink: &str) -> Vec<u8> {
    harness.take(sink).iter().map(|packet| packet.bytes()[0]).collect()
}

/// Runs a dump of packets at these seconds, and gives the numbers of those that come.
#[track_caller]
fn run(times: &[f64], arguments: &str) -> (Vec<u8>, Harness) {
    let folder = folder();
    let name = path(&folder, "in.pcap");
    capture(&name, times);
    let mut harness = Harness::new(&format!("f :: FromDump({name}{arguments}) -> take :: Take"));
    harness.run();
    (numbers(&mut harness, "take"), harness)
}

const TEN: [f64; 10] = [5., 6., 7., 8., 9., 10., 11., 12., 13., 14.];

#[test]
fn packets_of_a_time_are_read() {
    let times = |arguments: &str| run(&TEN, arguments).0;
    assert_eq!(times(""), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(times(", START 7"), [2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(times(", START_AFTER 2s, END 9"), [2, 3]);
    assert_eq!(times(", END_AFTER 2.5"), [0, 1, 2]);
    assert_eq!(times(", START_AFTER 3, INTERVAL 2"), [3, 4]);
    assert_eq!(times(", SAMPLE 0"), [0; 0]);
    assert_eq!(times(", ACTIVE false"), [0; 0]);
}

#[test]
fn wrong_arguments_are_told() {
    let errors = |arguments: &str| Harness::errors(&format!("f :: FromDump(/no/such{arguments}) -> Take"));
    assert!(errors("").contains("/no/such: No such file or directory"));
    assert!(errors(", START 1, START_AFTER 1").contains("START and START_AFTER are mutually exclusive"));
    assert!(errors(", END 1, INTERVAL 1").contains("END, END_AFTER, and INTERVAL are mutually exclusive"));
    assert!(errors(", STOP true, END_CALL f.stop").contains("END_CALL and STOP are mutually exclusive"));
    assert!(errors(", SAMPLE x").contains("SAMPLE: type mismatch"));
    assert!(Harness::errors("FromDump -> Take").contains("FILENAME: required argument missing"));
    let errors = |arguments: &str| Harness::errors(&format!("Give -> ToDump({arguments})"));
    assert!(errors("/").contains("/: Is a directory"));
    assert!(errors("x, ENCAP FOO").contains("bad encapsulation type"));
    assert!(errors("x, ENCAP IP, USE_ENCAP_FROM y").contains("specify at most one of 'ENCAP' and 'USE_ENCAP_FROM'"));
    assert!(errors("x, USE_ENCAP_FROM \"\"").contains("element names missing after 'USE_ENCAP_FROM'"));
    assert!(errors("x, USE_ENCAP_FROM y").contains("no element named 'y'"));
}

#[test]
fn the_driver_is_stopped_at_the_end_if_asked() {
    assert_eq!(run(&TEN, "").1.runcount(), 1);
    let (numbers, mut harness) = run(&TEN, ", STOP true, END 7");
    assert_eq!((numbers, harness.runcount()), (vec![0, 1], 0));
    let (numbers, mut harness) = run(&[], ", STOP true");
    assert_eq!((numbers, harness.runcount()), (vec![], 0));
}

#[test]
fn an_end_may_be_moved_by_its_call() {
    let (read, mut harness) = run(&TEN, ", END 7, END_CALL f.extend_interval 2");
    assert_eq!(read, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(harness.read("f.active"), "true");
    let (read, mut harness) = run(&TEN, ", END 7");
    assert_eq!((read, harness.read("f.active")), (vec![0, 1], "false".into()));
    harness.write("f.extend_interval", "3").unwrap();
    // The packet at which it ended is gone.
    assert_eq!(numbers(&mut harness, "take"), [3, 4]);
    assert_eq!(harness.write("f.extend_interval", "x").unwrap_err(), "'extend_interval' takes a time interval");
}

#[test]
fn timing_keeps_the_delays_between_packets() {
    let (read, mut harness) = run(&[100., 100.5, 102.], ", TIMING true");
    assert_eq!(read, [0]);
    harness.pass(0.4);
    assert_eq!(numbers(&mut harness, "take"), [0; 0]);
    harness.pass(0.2);
    assert_eq!(numbers(&mut harness, "take"), [1]);
    harness.pass(2.0);
    assert_eq!(numbers(&mut harness, "take"), [2]);
}

#[test]
fn positions_can_be_read_and_set() {
    let (_, mut harness) = run(&TEN, "");
    assert_eq!(harness.read("f.count"), "10");
    assert_eq!(harness.read("f.filesize"), (24 + 17 * 10).to_string());
    assert_eq!(harness.read("f.filepos"), (24 + 17 * 10).to_string());
    assert_eq!(harness.read("f.packet_filepos"), (24 + 17 * 9).to_string());
    assert_eq!(harness.read("f.encap"), "ETHER");
    assert_eq!(harness.read("f.sampling_prob"), "1");
    assert!(Path::new(&harness.read("f.filename")).ends_with("in.pcap"));
    harness.write("f.filepos", &(24 + 17 * 8).to_string()).unwrap();
    harness.write("f.active", "true").unwrap();
    assert_eq!(numbers(&mut harness, "take"), [8, 9]);
    assert_eq!(harness.write("f.filepos", "x").unwrap_err(), "argument must be file offset");
    assert!(harness.write("f.filepos", "99999").unwrap_err().ends_with("FILEPOS out of range"));
    harness.write("f.reset_counts", "").unwrap();
    assert_eq!(harness.read("f.count"), "0");
    let (read, _) = run(&TEN, &format!(", FILEPOS {}", 24 + 17 * 3));
    assert_eq!(read, [3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn dumps_are_pulled_and_end() {
    let folder = folder();
    let name = path(&folder, "in.pcap");
    capture(&name, &TEN);
    let mut harness = Harness::new(&format!("FromDump({name}, STOP true) -> take :: TakePull"));
    harness.run();
    assert_eq!(numbers(&mut harness, "take"), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(harness.runcount(), 0);
    let mut harness = Harness::new(&format!("f :: FromDump({name}, ACTIVE false) -> take :: TakePull"));
    harness.run();
    assert_eq!(numbers(&mut harness, "take"), [0; 0]);
    harness.write("f.active", "true").unwrap();
    assert_eq!(numbers(&mut harness, "take").len(), 10);
}

#[test]
fn a_cut_file_delivers_what_it_has_and_says_so() {
    let folder = folder();
    let name = path(&folder, "in.pcap");
    capture(&name, &TEN);
    let bytes = std::fs::read(&name).unwrap();
    std::fs::write(&name, &bytes[..24 + 17 * 3 + 5]).unwrap();
    let mut harness = Harness::new(&format!("FromDump({name}) -> take :: Take"));
    harness.run();
    assert_eq!(numbers(&mut harness, "take"), [0, 1, 2]);
    assert_eq!(harness.said(), [format!("{name}: the file ends inside the packet at offset 75")]);
}

#[test]
fn ip_packets_get_their_headers_and_others_go_elsewhere() {
    let folder = folder();
    let name = path(&folder, "in.pcap");
    let options = PcapOptions { link: LinkType::ETHERNET, snaplen: 100, nano: true };
    let mut writer = PcapWriter::new(Vec::new(), options).unwrap();
    let mut frame = vec![1; 12];
    frame.extend([8, 0]);
    frame.extend(udp(([1, 2, 3, 4], 5), ([6, 7, 8, 9], 10), &[0; 4]));
    writer.write(1, &frame, 99).unwrap();
    frame[13] = 6;
    writer.write(1, &frame, 46).unwrap();
    std::fs::write(&name, writer.into_inner()).unwrap();
    let config = "f :: FromDump(FILE, FORCE_IP true) -> take :: Take; f[1] -> other :: Take";
    let mut harness = Harness::new(&config.replace("FILE", &name));
    harness.run();
    let taken = harness.take("take");
    assert_eq!(taken.len(), 1);
    let packet = &taken[0];
    assert_eq!(
        (packet.network_offset(), packet.transport_offset(), packet.mac_offset()),
        (Some(14), Some(34), Some(0))
    );
    assert_eq!((packet.dst_ip().octets(), packet.anno_u32(anno::EXTRA_LENGTH)), ([6, 7, 8, 9], 53));
    assert_eq!(harness.take("other").len(), 1);
    // Where nobody takes others, they are dropped.
    let mut harness = Harness::new(&config.replace("FILE", &name).replace("; f[1] -> other :: Take", ""));
    harness.run();
    assert_eq!((harness.take("take").len(), harness.read("f.count")), (1, "1".into()));
}

#[test]
fn what_is_written_is_read() {
    let seed = bifolio_testing::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = folder();
    for name in ["a.pcap", "a.pcap.gz", "a.pcapng", "a.pcapng.gz"] {
        let file = path(&folder, name);
        let given: Vec<Packet> = (0..100)
            .map(|_| {
                let mut packet = Packet::from_slice(&bifolio_testing::noise(random.usize(..100), random.u64(..)));
                packet.set_timestamp(Timestamp::from_nanos(random.i64(1..1 << 60)));
                packet.set_anno_u32(anno::EXTRA_LENGTH, random.u32(..50));
                packet
            })
            .collect();
        let mut harness =
            Harness::new(&format!("give :: Give -> t :: ToDump({file}, 60, SLL, NANO true) -> take :: Take"));
        harness.give("give", given.iter().cloned());
        assert_eq!(harness.take("take").len(), 100);
        assert_eq!((harness.read("t.count"), harness.read("t.filename")), ("100".into(), file.clone()));
        drop(harness);
        let expected = given.iter().map(|packet| {
            let bytes = packet.bytes();
            let wire_len = bytes.len() as u32 + packet.anno_u32(anno::EXTRA_LENGTH);
            (packet.timestamp().nanos(), bytes[..bytes.len().min(60)].to_vec(), wire_len, LinkType::SLL)
        });
        assert_eq!(packets(&file), expected.collect::<Vec<_>>());
    }
}

#[test]
fn packets_without_a_time_get_the_time_now_and_lengths_may_be_plain() {
    let folder = folder();
    let name = path(&folder, "a");
    let mut harness = Harness::new(&format!(
        "give :: Give -> Queue -> t :: ToDump({name}, ENCAP IP, EXTRA_LENGTH false, UNBUFFERED true)"
    ));
    let mut packet = Packet::from_slice(&[7; 3]);
    packet.set_anno_u32(anno::EXTRA_LENGTH, 5);
    harness.give("give", [packet]);
    harness.write("t.flush", "").unwrap();
    assert_eq!(packets(&name), [(1_000_000_000_000_000_000, vec![7; 3], 3, LinkType::RAW)]);
}

#[test]
fn the_link_type_is_that_of_the_elements_it_comes_from() {
    let folder = folder();
    let (one, two, out) = (path(&folder, "1"), path(&folder, "2"), path(&folder, "3"));
    capture(&one, &TEN);
    let raw = PcapWriter::new(Vec::new(), PcapOptions { link: LinkType::RAW, snaplen: 9, nano: false }).unwrap();
    std::fs::write(&two, raw.into_inner()).unwrap();
    let config = |names: &str| {
        format!("a :: FromDump({one}) -> t :: ToDump({out}, USE_ENCAP_FROM {names}); b :: FromDump({two}) -> Take")
    };
    let mut harness = Harness::new(&config("b"));
    harness.run();
    drop(harness);
    assert_eq!(packets(&out)[0].3, LinkType::RAW);
    let told = Harness::errors(&config("a b"));
    assert!(told.contains("source encapsulation types disagree:"), "{told}");
    assert!(told.contains("a has ETHER") && told.contains("b has IP"), "{told}");
    let told = Harness::errors(&config("t"));
    assert!(told.contains("'t' has no 'encap' read handler"), "{told}");
}
