//! Malformed packets through every element that looks at IP headers, and malformed captures: nothing panics, and packets that
//! go together become what single packets become.

use crate::live::{Live, start_changed, try_start_with};
use crate::malformed::{captures, frames, packets};
use bifolio_net::elements::GROUPS;
use bifolio_net::router::Options;
use bifolio_net::{Clock, Packet};
use bifolio_testing::seed;
use std::fmt::Write;
use std::path::Path;

/// Groups whose elements all have to be tried.
const TRIED: [&str; 4] = ["Fragments", "ICMP", "IP", "Rewriting"];

/// A class, how many inputs and outputs it has here, its arguments, and what else the configuration needs.
type Case = (&'static str, usize, usize, &'static str, &'static str);

const OUTER: &str = "outer :: IPRewriter(pattern 1.0.0.1 1024-65535# - - 0 0); also :: Send -> outer -> kept :: Keep;";
const ROUTES: &str = "10.0.0.0/8 0, 10.0.1.0/24 10.0.1.9 1, 0/0 1";
const BOTH: &str = "pattern 1.0.0.1 1024-65535# - - 0 1, drop";

/// Every element of those groups, and others that trust IP headers.
const CASES: &[Case] = &[
    ("CheckIPHeader", 1, 2, "DETAILS true", ""),
    ("CheckIPHeader2", 1, 2, "", ""),
    ("CheckTCPHeader", 1, 2, "", ""),
    ("CheckUDPHeader", 1, 2, "", ""),
    ("CheckICMPHeader", 1, 2, "", ""),
    ("MarkIPHeader", 1, 1, "4", ""),
    ("StripIPHeader", 1, 1, "", ""),
    ("UnstripIPHeader", 1, 1, "", ""),
    ("GetIPAddress", 1, 1, "16", ""),
    ("SetIPAddress", 1, 1, "1.2.3.4", ""),
    ("StoreIPAddress", 1, 1, "1.2.3.4, 16", ""),
    ("SetIPDSCP", 1, 1, "5", ""),
    ("MarkIPCE", 1, 1, "", ""),
    ("DecIPTTL", 1, 2, "", ""),
    ("IPGWOptions", 1, 2, "10.0.0.1", ""),
    ("FixIPSrc", 1, 1, "10.0.0.1", ""),
    ("IDSMatcher", 1, 2, "PATTERN \"\\<00 00>\" GET, SID_ANNO 4", ""),
    ("SDNClassifier", 1, 3, "src 10.0.0.0/8 proto tcp => 0, dport 1-1023 => 1", ""),
    ("IPEncap", 1, 1, "17, 1.0.0.1, 2.0.0.2", ""),
    ("UDPIPEncap", 1, 1, "1.0.0.1, 1, 2.0.0.2, 2", ""),
    ("IPInputCombo", 1, 1, "1", ""),
    ("IPOutputCombo", 1, 5, "1, 10.0.0.1, 68", ""),
    ("SetIPChecksum", 1, 1, "", ""),
    ("SetTCPChecksum", 1, 1, "", ""),
    ("SetUDPChecksum", 1, 2, "", ""),
    ("StaticIPLookup", 1, 2, ROUTES, ""),
    ("LinearIPLookup", 1, 2, ROUTES, ""),
    ("RadixIPLookup", 1, 2, ROUTES, ""),
    ("DirectIPLookup", 1, 2, ROUTES, ""),
    ("RangeIPLookup", 1, 2, ROUTES, ""),
    ("ICMPError", 1, 1, "10.0.0.1, timeexceeded", ""),
    ("ICMPIPEncap", 1, 1, "1.0.0.1, 2.0.0.2, 8", ""),
    ("ICMPPingEncap", 1, 1, "1.0.0.1, 2.0.0.2", ""),
    ("ICMPPingResponder", 1, 2, "", ""),
    ("ICMPPingSource", 1, 1, "1.0.0.1, 2.0.0.2, LIMIT 3", ""),
    ("IPFragmenter", 1, 2, "68", ""),
    ("IPFragmenter", 1, 2, "100, HONOR_DF false", ""),
    ("IPReassembler", 1, 2, "", ""),
    ("IPRewriter", 2, 2, BOTH, ""),
    ("TCPRewriter", 2, 2, BOTH, ""),
    ("UDPRewriter", 2, 2, BOTH, ""),
    ("IPRewriter", 1, 1, "pattern p 0 0", "IPRewriterPatterns(p 1.0.0.1 1024-1030 - -);"),
    ("IPRewriter", 1, 2, "m", "m :: RoundRobinIPMapper(1.0.0.1 5-9 - - 0 0, 1.0.0.2 - - - 1 1);"),
    ("IPAddrRewriter", 2, 2, BOTH_ADDRESSES, ""),
    ("IPAddrPairRewriter", 2, 2, BOTH_PAIRS, ""),
    ("ICMPPingRewriter", 2, 2, BOTH, ""),
    ("ICMPRewriter", 1, 2, "outer", OUTER),
    ("FTPPortMapper", 1, 1, "outer, outer, 0", OUTER),
    ("IPClassifier", 1, 2, "tcp opt syn or icmp type 3 or src port < 1024 or ip frag, -", ""),
    ("IPFilter", 1, 1, "deny dst tcp port 80, deny ip hl > 5, deny udp dst port 53, allow all", ""),
    ("IPPrint", 1, 1, "CONTENTS true", ""),
    ("AggregateIPFlows", 1, 2, "ICMP true", ""),
    ("ToIPSummaryDump", 1, 1, "/dev/null, FIELDS ip_opt tcp_opt udp_len icmp_type_name payload ip_fragoff link", ""),
    ("StripToNetworkHeader", 1, 1, "", ""),
    ("ARPQuerier", 2, 2, "10.0.0.1, 2:0:0:0:0:1", ""),
];

const BOTH_ADDRESSES: &str = "pattern 1.0.0.1-1.0.0.9 - 0 1, drop";
const BOTH_PAIRS: &str = "pattern 1.0.0.1 - 0 1, drop";

/// What comes before an element: nothing, what marks headers that nobody has checked, and what lets good ones pass.
const BEFORE: [&str; 3] = ["Null", "MarkIPHeader(0)", "CheckIPHeader"];

fn config((class, inputs, outputs, args, more): Case, before: &str) -> String {
    let mut text = format!("e :: {class}({args}); {more}\n");
    for input in 0..inputs {
        let _ = writeln!(text, "send{input} :: Send -> {before} -> [{input}] e;");
    }
    for output in 0..outputs {
        let _ = writeln!(text, "e [{output}] -> keep{output} :: Keep;");
    }
    text
}

fn options(is_batched: bool) -> Options {
    Options { clock: Clock::simulated(), is_batched, seed: 3, ..Options::default() }
}

/// What can be seen of a packet.
fn seen(packet: &Packet) -> String {
    let offsets = [packet.mac_offset(), packet.network_offset(), packet.transport_offset()];
    format!("{:x?} {:x?} {offsets:?} {} {:?}", packet.bytes(), packet.anno(), packet.timestamp(), packet.kind())
}

/// All that comes out of a router when these are sent, a moment between them, and what it says.
fn through(live: &mut Live, (_, inputs, outputs, ..): Case, waves: &[Vec<Vec<u8>>]) -> (Vec<Vec<String>>, Vec<String>) {
    let mut out = vec![Vec::new(); outputs];
    for wave in waves {
        for input in 0..inputs {
            live.send(&format!("send{input}"), wave.iter().map(|bytes| Packet::from_slice(bytes)));
        }
        live.settle(7);
        for (output, packets) in out.iter_mut().enumerate() {
            packets.extend(live.kept(&format!("keep{output}")).iter().map(seen));
        }
    }
    // Elements have their packets in the same order, but do not take turns after each one.
    let mut said = live.said();
    said.sort_unstable();
    (out, said)
}

fn compare<T: PartialEq + std::fmt::Debug>(what: &str, single: &[T], batched: &[T]) {
    let first = (0..single.len().max(batched.len())).find(|&at| single.get(at) != batched.get(at));
    if let Some(at) = first {
        panic!("{what} {at}:\n  one by one {:?}\n  batched    {:?}", single.get(at), batched.get(at));
    }
}

#[test]
fn malformed_packets_go_through_every_ip_element() {
    let mut random = fastrand::Rng::with_seed(seed());
    let mut waves = vec![packets(), frames()];
    // The second one in the order of fragments and flows as they are meant.
    random.shuffle(&mut waves[0]);
    for case in CASES {
        let mut came = 0;
        for before in BEFORE {
            let config = config(*case, before);
            let [single, batched] = [false, true].map(|is_batched| {
                let mut live = start_changed(&config, &[], options(is_batched), |_| ());
                through(&mut live, *case, &waves)
            });
            compare(&format!("{config}: what is said,"), &single.1, &batched.1);
            for (output, (single, batched)) in single.0.iter().zip(&batched.0).enumerate() {
                compare(&format!("{config}: output {output}, packet"), single, batched);
            }
            came += single.0.iter().map(Vec::len).sum::<usize>();
        }
        assert!(came > 0, "nothing comes out of {}", case.0);
    }
}

#[test]
fn no_element_of_these_groups_is_left_out() {
    let groups = GROUPS.iter().filter(|(name, _)| TRIED.contains(name));
    let classes: Vec<_> = groups.flat_map(|(_, classes)| classes.iter().map(|class| class.name)).collect();
    assert!(classes.len() > 40, "{classes:?}");
    let is_tried = |name: &str| CASES.iter().any(|case| case.0 == name || case.4.contains(name));
    let left: Vec<_> = classes.into_iter().filter(|name| !is_tried(name)).collect();
    assert!(left.is_empty(), "{left:?} have no case");
}

/// What a capture becomes, and what is said about it; or why it is refused.
fn copied(capture: &Path, copy: &Path, is_batched: bool) -> Result<(Vec<u8>, Vec<String>), String> {
    let config = format!(
        "FromDump({}, STOP true) -> Strip(14) -> CheckIPHeader -> IPFragmenter(68, HONOR_DF false) -> ToDump({}, ENCAP IP)",
        capture.display(),
        copy.display()
    );
    let mut live = try_start_with(&config, options(is_batched))?;
    live.run();
    let said = live.said();
    drop(live);
    Ok((std::fs::read(copy).unwrap(), said))
}

#[test]
fn malformed_captures_are_read_as_far_as_they_go() {
    let folder = tempfile::tempdir().unwrap();
    let [capture, copy] = ["capture", "copy"].map(|name| folder.path().join(name));
    let (mut refused, mut told, mut packets) = (0, 0, 0);
    for bytes in captures() {
        std::fs::write(&capture, &bytes).unwrap();
        let [single, batched] = [false, true].map(|is_batched| copied(&capture, &copy, is_batched));
        assert_eq!(single, batched, "{bytes:x?}");
        match single {
            Ok((bytes, said)) => {
                told += usize::from(!said.is_empty());
                packets += usize::from(bytes.len() > 24);
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 20 && told > 50 && packets > 50, "{refused} refused, {told} told about, {packets} with packets");
}
