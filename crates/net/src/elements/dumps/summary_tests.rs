//! IP summary dumps through whole routers.

use super::tests::{folder, path};
use crate::Packet;
use crate::elements::testing::Harness;
use crate::packet::anno;

/// Lines of a dump that are about packets.
fn lines(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().filter(|line| !line.starts_with('!')).map(str::to_owned).collect()
}

/// Runs `FromIPSummaryDump -> MIDDLE -> ToIPSummaryDump`; gives the lines that come out.
#[track_caller]
fn run(dump: &str, arguments: &str, out: &str) -> Vec<String> {
    let folder = folder();
    let (from, to) = (path(&folder, "in"), path(&folder, "out"));
    std::fs::write(&from, dump).unwrap();
    let mut harness = Harness::new(&format!("FromIPSummaryDump({from}{arguments}) -> ToIPSummaryDump({to}{out})"));
    harness.run();
    assert_eq!(harness.said(), [""; 0]);
    drop(harness);
    lines(&to)
}

#[test]
fn lines_are_written_as_they_are_read() {
    let dump = "!data src dst icmp_type\n!proto I\n18.26.4.44 10.0.0.4 echo\n10.0.0.4 18.26.4.44 echo-reply\n";
    let expected = ["18.26.4.44 10.0.0.4 echo", "10.0.0.4 18.26.4.44 echo-reply"];
    assert_eq!(run(dump, ", CHECKSUM true", ", FIELDS src dst icmp_type_name"), expected);
    let quoted = run(dump, ", STOP true", ", FIELDS 'ip src' \"ip dst\" icmp_type_name");
    assert_eq!(quoted, expected);
    assert_eq!(
        run("5 9\n", ", FIELDS ip_id sport, FLOWID 1.0.0.1 - 2.0.0.2 80 U", ", CONTENTS src sport dport id proto"),
        ["1.0.0.1 9 80 5 U"]
    );
    assert_eq!(run("!data ip_id\n5\n", ", PROTO 17", ", FIELDS proto"), ["U"]);
}

#[test]
fn a_dump_may_stand_in_the_configuration() {
    let folder = folder();
    let to = path(&folder, "out");
    let config = format!(
        "f :: FromIPSummaryDump(STOP true, CHECKSUM true, DATA \"!data src dst icmp_type\n!proto I\n18.26.4.44 10.0.0.4 echo\n\") \
         -> ToIPSummaryDump({to}, FIELDS src dst icmp_type_name, BANNER \"by hand\", VERBOSE true)"
    );
    let mut harness = Harness::new(&config);
    harness.run();
    assert_eq!(harness.runcount(), 0);
    let read = |harness: &mut Harness, name: &str| harness.read(&format!("f.{name}"));
    assert_eq!([read(&mut harness, "encap"), read(&mut harness, "filesize")], ["IP".to_owned(), "-".to_owned()]);
    drop(harness);
    let text = std::fs::read_to_string(&to).unwrap();
    let begin = "!IPSummaryDump 1.3\n!creator \"by hand\"\n!host ";
    assert!(text.starts_with(begin), "{text}");
    assert!(
        text.contains("!runtime 1000000000.000000 (Sun Sep  9 01:46:40 2001)\n!data ip_src ip_dst icmp_type_name\n")
    );
    assert!(text.ends_with("\n18.26.4.44 10.0.0.4 echo\n"));
}

#[test]
fn records_are_read_as_written() {
    let folder = folder();
    let (from, binary, to) = (path(&folder, "in"), path(&folder, "binary"), path(&folder, "out"));
    let text = "1.000001 1.2.3.4 30 10.0.0.4 40 T rr{2.3.4.5}+3 mss1460\n2.000002 1.2.3.4 10 10.0.0.8 80 T . .\n";
    let fields = "timestamp src sport dst dport proto ip_opt tcp_opt";
    std::fs::write(&from, format!("!data {fields}\n{text}")).unwrap();
    Harness::new(&format!("FromIPSummaryDump({from}) -> ToIPSummaryDump({binary}, BINARY true, FIELDS {fields})"))
        .run();
    let bytes = std::fs::read(&binary).unwrap();
    assert!(bytes.windows(9).any(|window| window == b"\n!binary\n"));
    Harness::new(&format!("FromIPSummaryDump({binary}) -> ToIPSummaryDump({to}, HEADER false, FIELDS {fields})")).run();
    assert_eq!(std::fs::read_to_string(&to).unwrap(), text);
}

#[test]
fn a_line_may_stand_for_several_packets() {
    let dump = "!data timestamp first_timestamp count ip_len proto\n5.0 1.0 3 301 U\n9.0 - 1 50 U\n7.0 - 2 20 U\n";
    let fields = "timestamp count ip_len udp_len";
    let split = run(dump, ", MULTIPACKET true", &format!(", FIELDS {fields}"));
    let expected = ["1.000000 1 100 80", "3.000000 1 100 80", "5.000000 1 101 81", "9.000000 1 50 30"];
    assert_eq!(split[..4], expected);
    assert_eq!(split.len(), 6);
    let whole = run(dump, "", &format!(", MULTIPACKET true, FIELDS {fields}"));
    assert_eq!(whole, ["5.000000 3 301 281", "9.000000 1 50 30", "7.000000 2 20 -"]);
    // Without a field for the count, lines are split where they are written.
    let times = run(dump, "", ", MULTIPACKET true, FIELDS timestamp");
    assert_eq!(times, ["1.000000", "3.000000", "5.000000", "9.000000", "7.000000", "7.000000"]);
}

#[test]
fn packets_pass_as_they_came() {
    let folder = folder();
    let to = path(&folder, "out");
    let config =
        format!("give :: Give -> t :: ToIPSummaryDump({to}, FIELDS ip_len count, BAD_PACKETS true) -> take :: Take");
    let mut harness = Harness::new(&config);
    let mut packet = Packet::from_slice(&[0x45, 0, 0, 19]);
    packet.set_network_header(0, 20);
    packet.set_anno_u32(anno::EXTRA_PACKETS, 4);
    packet.set_anno_u32(anno::EXTRA_LENGTH, 6);
    harness.give("give", [packet]);
    let taken = &harness.take("take")[0];
    assert_eq!((taken.anno_u32(anno::EXTRA_PACKETS), taken.anno_u32(anno::EXTRA_LENGTH)), (4, 6));
    harness.write("t.flush", "").unwrap();
    let text = std::fs::read_to_string(&to).unwrap();
    assert!(text.ends_with("!data ip_len count\n!bad IP length 19\n10 5\n"), "{text}");
}

#[test]
fn timing_pulling_and_activity_are_as_for_dumps() {
    let folder = folder();
    let from = path(&folder, "in");
    std::fs::write(&from, "!data timestamp ip_id\n5.0 1\n5.5 2\n6.5 3\n").unwrap();
    let mut harness = Harness::new(&format!("f :: FromIPSummaryDump({from}, TIMING true) -> take :: Take"));
    harness.run();
    assert_eq!(harness.take("take").len(), 1);
    harness.pass(0.6);
    assert_eq!(harness.take("take").len(), 1);
    harness.pass(1.0);
    assert_eq!(harness.take("take").len(), 1);
    let mut harness =
        Harness::new(&format!("f :: FromIPSummaryDump({from}, ACTIVE false, STOP true) -> take :: TakePull"));
    harness.run();
    assert_eq!((harness.take("take").len(), harness.read("f.active")), (0, "false".into()));
    harness.write("f.active", "true").unwrap();
    assert_eq!((harness.take("take").len(), harness.runcount()), (3, 0));
    assert_eq!(harness.read("f.filepos"), harness.read("f.filesize"));
    let none = format!("FromIPSummaryDump({from}, SAMPLE 0) -> take :: Take");
    let mut harness = Harness::new(&none);
    harness.run();
    assert_eq!(harness.take("take").len(), 0);
}

#[test]
fn wrong_arguments_are_told() {
    let errors = |arguments: &str| Harness::errors(&format!("FromIPSummaryDump({arguments}) -> Take"));
    assert!(errors("/no/such").contains("/no/such: No such file or directory"));
    assert!(errors("").contains("FILENAME: required argument missing"));
    assert!(errors("x, DATA y").contains("FILENAME and DATA conflict"));
    assert!(errors("x, FLOWID 1.2.3.4").contains("bad !flowid specification"));
    assert!(errors("DATA \"\"").contains("<data>: empty file"));
    let errors = |arguments: &str| Harness::errors(&format!("Give -> ToIPSummaryDump({arguments})"));
    assert!(errors("/").contains("/: Is a directory"));
    assert!(errors("x, FIELDS src snort").contains("unknown content type 'snort'"));
    assert!(errors("x, FIELDS payload, BINARY true").contains("cannot use field payload with BINARY"));
    assert!(errors("x, FIELDS").contains("FIELDS") || errors("x, FIELDS").contains("too many arguments"));
    assert!(Harness::errors("FromTcpdump(/no/such) -> Take").contains("/no/such: No such file or directory"));
}

#[test]
fn a_dump_that_is_not_there_may_be_allowed() {
    let mut harness = Harness::new("FromIPSummaryDump(/no/such, ALLOW_NONEXISTENT true, STOP true) -> take :: Take");
    harness.run();
    assert_eq!((harness.take("take").len(), harness.runcount()), (0, 0));
}

#[test]
fn what_is_wrong_with_a_dump_is_said() {
    let folder = folder();
    let from = path(&folder, "in");
    std::fs::write(&from, "1.2.3.4\n!data src\nx\n1.2.3.4\n").unwrap();
    let mut harness = Harness::new(&format!("FromIPSummaryDump({from}) -> take :: Take"));
    harness.run();
    assert_eq!(harness.take("take").len(), 1);
    assert_eq!(harness.said(), [format!("{from}:1: no '!data' provided")]);
}

#[test]
fn lines_of_tcpdump_become_packets() {
    let folder = folder();
    let (from, to) = (path(&folder, "in"), path(&folder, "out"));
    std::fs::write(
        &from,
        "1.5 1.2.3.4.5 > 6.7.8.9.ssh: S 7:7(0) win 8 <mss 1460> (DF)\n2.5 1.2.3.4.5 > 6.7.8.9.10:  udp 90 [ttl 1]\n",
    )
    .unwrap();
    let fields = "timestamp src sport dst dport tcp_seq tcp_opt ip_len ip_ttl";
    let mut harness = Harness::new(&format!(
        "f :: FromTcpdump({from}, STOP true, CHECKSUM true) -> ToIPSummaryDump({to}, FIELDS {fields})"
    ));
    harness.run();
    assert_eq!((harness.runcount(), harness.read("f.encap")), (0, "IP".into()));
    drop(harness);
    let expected = ["1.500000 1.2.3.4 5 6.7.8.9 22 7 mss1460 44 2", "2.500000 1.2.3.4 5 6.7.8.9 10 - - 118 1"];
    assert_eq!(lines(&to), expected);
}

#[test]
fn any_packet_is_written_in_any_field() {
    let folder = folder();
    let to = path(&folder, "out");
    let fields = "timestamp ip_src ip_opt sport tcp_opt tcp_sack payload payload_len payload_md5 icmp_code_name eth_src wire_len";
    crate::elements::testing::fuzz(
        &format!("give :: Give -> ToIPSummaryDump({to}, BAD_PACKETS true, FIELDS {fields}) -> take :: Take"),
        &["take"],
    );
    assert!(lines(&to).len() >= 2000);
}
