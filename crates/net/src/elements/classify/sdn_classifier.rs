//! SDNClassifier: packets go to outputs by rules over many fields, of which the one with the highest priority decides.
//!
//! `SDNClassifier([RULE, ...,] [keywords RULES, DROP])`: push input, any number of push outputs.
//!
//! - RULE: `FIELD VALUE FIELD VALUE ... => PORT [PRIORITY n]`, such as `src 10.0.0.0/8 proto tcp dport 80-89 => 1`. Fields may be
//!   separated by commas, too, where the rule is a quoted string. PRIORITY is 0 to 4294967295 (0); of rules with the same one,
//!   the first decides.
//! - RULES: a file with a rule in each line, or a filter as ClassBench writes it (`@SRC/LEN DST/LEN LOW : HIGH LOW : HIGH
//!   PROTO/MASK [FLAGS/MASK]`), which leads to output 0 unless `=> PORT [PRIORITY n]` follows. They come before those of the
//!   configuration. At most 256 MiB.
//! - DROP: whether packets that no rule matches are dropped (false). Else they go to the last output.
//!
//! Fields: `eth_src`, `eth_dst` (with /MASK), `eth_type`, `vlan` (0: none), `src`, `dst` (with /LEN or /MASK), `proto`, `tos` (with
//! /MASK), `dscp`, `sport`, `dport` (with `-LAST`), `flags` of TCP, `icmp_type`, `icmp_code` (with /MASK); without a value `eth`,
//! `ip` and `any`. Numbers are decimal, or hexadecimal after `0x`. A packet without a field fails every test of it: so do ports of
//! later fragments.
//!
//! Where the network header is not known, packets are Ethernet frames from their link header or their first byte on, with up
//! to two VLAN tags. Headers that lie of their lengths are none.
//!
//! At least 10,000 rules; the table takes 200 bytes for each of them and 1 MiB, and is not shared. It is changed between
//! batches: a rule is added or removed in microseconds, and milliseconds where rules have doubled and the table is made anew.
//!
//! Handlers: `add`, `remove` (rules as in a file, one a line; where a line is wrong, nothing is done), `table` (rules in the order
//! in which they are tried), `rules` (how many), `info` (rules, hash tables, bytes of memory), `count` (packets to each output, a
//! line each), `drops`, `reset_counts`. Who removes a rule names its PORT and PRIORITY, too.
//!
//! Click has no such element; Snap has.

use super::classifier::outputs;
use super::flow_rules::{info, of_text, remove, rules_of};
use super::lanes::Lanes;
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::{Batch, Element};
use crate::flowspace::{FlowTable, Key};
use crate::handler::Handlers;
use crate::router::Cx;
use std::fmt::Write;

/// The element.
#[derive(Default)]
pub(super) struct SdnClassifier {
    table: FlowTable,
    /// Where packets go that no rule matches; beyond all outputs: they are dropped.
    rest: usize,
    counts: Vec<u64>,
    drops: u64,
    keys: Vec<Key>,
    found: Vec<Option<u16>>,
    lanes: Lanes,
}

/// The fields of a packet, from its headers where they are known.
#[inline]
fn key(packet: &Packet) -> Key {
    match (packet.network_header(), packet.mac_header()) {
        (Some(network), mac) => Key::of_packet(mac, network),
        (None, mac) => Key::of_frame(mac.unwrap_or(packet.bytes())),
    }
}

impl SdnClassifier {
    /// Counts a packet; returns its output.
    #[inline]
    fn count(counts: &mut [u64], drops: &mut u64, rest: usize, found: Option<u16>) -> usize {
        let port = found.map_or(rest, usize::from);
        *counts.get_mut(port).unwrap_or(drops) += 1;
        port
    }

    fn counts(&self) -> String {
        self.counts.iter().enumerate().fold(String::new(), |mut text, (output, count)| {
            let _ = writeln!(text, "{output} {count}");
            text
        })
    }
}

impl Element for SdnClassifier {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut path, mut drops) = (String::new(), false);
        args.key("RULES", &mut path).key("DROP", &mut drops);
        let outputs = outputs(args);
        let rules = rules_of(args, &path, outputs);
        args.finish()?;
        let mut table = FlowTable::default();
        table.add(&rules).map_err(|error| args.error(error))?;
        self.table = table;
        self.rest = if drops { usize::MAX } else { outputs.saturating_sub(1) };
        self.counts.resize(outputs, 0);
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        self.table.classify(&[key(&packet)], &mut self.found);
        let found = self.found.first().copied().flatten();
        let port = Self::count(&mut self.counts, &mut self.drops, self.rest, found);
        cx.emit_checked(port, packet);
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        // All fields first, so that headers are loaded together, and then all lookups.
        self.keys.clear();
        self.keys.extend(batch.iter().map(key));
        self.table.classify(&self.keys, &mut self.found);
        let (counts, drops, rest) = (&mut self.counts, &mut self.drops, self.rest);
        let ports = self.found.iter().map(|&found| Self::count(counts, drops, rest, found));
        self.lanes.send_each(cx, batch, ports);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("table", |classifier: &mut Self, _| classifier.table.to_string());
        handlers.read("rules", |classifier: &mut Self, _| classifier.table.count());
        handlers.read("info", |classifier: &mut Self, _| info(&classifier.table));
        handlers.read("count", |classifier: &mut Self, _| classifier.counts());
        handlers.read("drops", |classifier: &mut Self, _| classifier.drops);
        handlers.button("reset_counts", |classifier: &mut Self, _| {
            classifier.counts.fill(0);
            classifier.drops = 0;
        });
        handlers.write("add", |classifier: &mut Self, cx, text| {
            let rules = of_text(text, cx.outputs())?;
            classifier.table.add(&rules)
        });
        handlers.write("remove", |classifier: &mut Self, cx, text| {
            remove(&mut classifier.table, &of_text(text, cx.outputs())?)
        });
    }

    fn reconfigures(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::{Harness, fuzz, noise, udp};
    use std::io::Write;

    const SINKS: &str = "c[0] -> a :: Take; c[1] -> b :: Take; c[2] -> d :: Take";

    fn harness(config: &str) -> Harness {
        Harness::new(&format!("give :: Give -> c :: SDNClassifier({config}); {SINKS}"))
    }

    /// An Ethernet frame to a port.
    fn frame(port: u16) -> Packet {
        let packet = udp(([1, 2, 3, 4], 5), ([10, 0, 0, 1], port), &[port as u8]);
        Packet::from_slice(&[&[0; 12][..], &[8, 0], &packet[..]].concat())
    }

    fn ports(harness: &mut Harness) -> [Vec<u8>; 3] {
        ["a", "b", "d"].map(|sink| harness.take(sink).iter().map(|packet| *packet.bytes().last().unwrap()).collect())
    }

    #[test]
    fn the_best_rule_decides_and_the_last_output_gets_the_rest() {
        let rules =
            "src 1.2.0.0/16 dport 5-8 => 0, \"proto udp, dport 7\" => 1 PRIORITY 2, dst 10.0.0.1 dport 6-9 => 1";
        let mut harness = harness(&rules.replace("\" => 1 PRIORITY 2", " => 1 PRIORITY 2\""));
        harness.give("give", (4..11).map(frame));
        assert_eq!(ports(&mut harness), [vec![5, 6, 8], vec![7, 9], vec![4, 10]]);
        assert_eq!((harness.read("c.count"), harness.read("c.drops")), ("0 3\n1 2\n2 2\n".into(), "0".into()));
        harness.write("c.reset_counts", "").unwrap();
        assert_eq!(harness.read("c.count"), "0 0\n1 0\n2 0\n");
    }

    #[test]
    fn packets_without_a_rule_are_dropped_if_that_is_wanted() {
        let mut harness = harness("dport 5 => 0, DROP true, dport 7 => 2");
        harness.give("give", (4..9).map(frame));
        assert_eq!(ports(&mut harness), [vec![5], vec![], vec![7]]);
        assert_eq!(harness.read("c.drops"), "3");
    }

    #[test]
    fn headers_are_found_where_annotations_are_and_where_not() {
        let mut harness = harness("eth_type 0x800 dport 5 => 0, dport 5 => 1");
        let bare = |is_marked: bool| {
            let mut packet = frame(5);
            packet.pull(14);
            if is_marked {
                packet.set_network_header(0, 20);
            }
            packet
        };
        let mut stripped = bare(true);
        stripped.set_mac_header(-14);
        let mut behind = Packet::from_slice(&[&[9, 9][..], frame(5).bytes()].concat());
        behind.set_mac_header(2);
        harness.give("give", [frame(5), bare(true), bare(false), stripped, behind]);
        let got = ["a", "b", "d"].map(|sink| harness.take(sink).iter().map(Packet::len).collect::<Vec<_>>());
        assert_eq!(got, [vec![43, 29, 45], vec![29], vec![29]]);
    }

    #[test]
    fn rules_change_while_packets_run() {
        let mut harness = harness("dport 5 => 0");
        harness.write("c.add", "dport 4-6 => 1\n@1.2.3.4/32 0.0.0.0/0 5:5 6:7 0x11/0xff => 0 PRIORITY 1").unwrap();
        let table = "src 1.2.3.4/32, proto 17, sport 5, dport 6-7 => 0 PRIORITY 1\ndport 5 => 0\ndport 4-6 => 1\n";
        assert_eq!((harness.read("c.table"), harness.read("c.rules")), (table.into(), "3".into()));
        assert!(harness.read("c.info").starts_with("rules 3\ntables "));
        harness.give("give", (4..9).map(frame));
        assert_eq!(ports(&mut harness), [vec![5, 6, 7], vec![4], vec![8]]);
        harness.write("c.remove", "dport 5 => 0").unwrap();
        harness.give("give", (4..9).map(frame));
        assert_eq!(ports(&mut harness), [vec![6, 7], vec![4, 5], vec![8]]);
        assert_eq!(harness.write("c.remove", "dport 5 => 0").unwrap_err(), "rule 'dport 5 => 0' not found");
        assert_eq!(
            harness.write("c.add", "dport x => 3").unwrap_err(),
            "dport: bad value 'x'\nbad PORT '3', there are 3 outputs"
        );
        assert_eq!(harness.write("c.add", "any => 0\nany => 9").unwrap_err(), "2: bad PORT '9', there are 3 outputs");
        assert_eq!(harness.read("c.rules"), "2");
        harness.write("c.config", "dport 9 => 1, DROP true").unwrap();
        assert_eq!(harness.read("c.table"), "dport 9 => 1\n");
    }

    #[test]
    fn rules_of_a_file_come_before_those_of_the_configuration() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "# rules\n@1.2.3.4/32\t0.0.0.0/0\t0 : 65535\t5 : 6\t0x11/0xFF\t0x0000/0x0000\ndport 8 => 1")
            .unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        let mut harness = harness(&format!("dport 6-8 => 2, RULES {path}, any => 1"));
        harness.give("give", (4..10).map(frame));
        assert_eq!(ports(&mut harness), [vec![5, 6], vec![4, 8, 9], vec![7]]);
        writeln!(file, "dport 9 => 7\nx").unwrap();
        let told = Harness::errors(&format!("Give -> SDNClassifier(RULES {path}, y => 0) -> Take"));
        for line in
            ["3: bad PORT '1', there are 1 outputs", "4: bad PORT '7', there are 1 outputs", "5: expected 'FIELD VALUE"]
        {
            assert!(told.contains(&format!("  {path}:{line}")), "{told}");
        }
        assert!(told.contains("  rule 1: unknown field 'y'\n"), "{told}");
        let told = Harness::errors("Give -> SDNClassifier(RULES /nowhere/at/all) -> Take");
        assert!(told.contains("  RULES: /nowhere/at/all: No such file or directory\n"), "{told}");
    }

    #[test]
    fn every_packet_goes_to_one_output() {
        let rules = "src 10.0.0.0/24 => 0, proto udp sport 0-30000 => 1, dst 10.0.0.1 icmp_type 8 => 0, vlan 1-2 => 2";
        let told = Harness::errors(&format!("Give -> c :: SDNClassifier({rules}); {SINKS}"));
        assert!(told.contains("  rule 4: vlan: bad value '1-2'\n"), "{told}");
        let rules = rules.replace("1-2", "1");
        let mut one = harness(&rules);
        let packets = noise(500);
        one.give("give", packets.iter().cloned());
        let got: usize = ["a", "b", "d"].iter().map(|sink| one.take(sink).len()).sum();
        assert_eq!(got, packets.len());
        fuzz(&format!("give :: Give -> c :: SDNClassifier({rules}); {SINKS}"), &["a", "b", "d"]);
    }
}
