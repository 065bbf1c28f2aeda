//! IPReassembler: puts fragments of IP packets together.
//!
//! `IPReassembler([HIMEM, MAX_MTU_ANNO])`: push or pull. What is no fragment passes. Fragments are kept until all of a
//! packet are there; it leaves with the annotations, and what is before the IP header, of its first fragment, and the
//! timestamp of the last one that came. What isn't whole 30 seconds after its first fragment came is given up: it goes to
//! output 1, if there is one, with zeros for what is missing. Time is that of the fragments' timestamps, and the router's
//! where they have none. Where fragments take more than HIMEM (262,144) bytes, the oldest packets are given up, until they
//! take three quarters of it. MAX_MTU_ANNO: where to put the length of the longest fragment, 2 bytes.
//!
//! Handler: `dump`, what has been counted and what is kept.
//!
//! Unlike Click: fragments that contradict each other give up their packet, silently, and those that come later with it;
//! the 30 seconds begin once; and memory is counted by bytes that came instead of by offsets, so that fragments with large
//! ones do not drive out others.

use std::fmt::Write;

use crate::Packet;
use crate::args::{AnnoArg, Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::headers::reassemble::{Assembly, Outcome, Reassembler};
use crate::headers::{Ip, ip};
use crate::packet::DEFAULT_HEADROOM;
use crate::router::Cx;

/// The element.
pub(super) struct IpReassembler {
    table: Reassembler<Packet>,
    mtu_anno: Option<AnnoArg<2>>,
    fragments: u64,
    good: u64,
    failed: u64,
    bad: u64,
}

impl Default for IpReassembler {
    fn default() -> Self {
        Self { table: Reassembler::new(256 << 10), mtu_anno: None, fragments: 0, good: 0, failed: 0, bad: 0 }
    }
}

/// What is before the IP header, with all annotations: little enough to be kept.
fn origin(packet: &Packet) -> Packet {
    let before = usize::try_from(packet.network_offset().unwrap_or(0)).unwrap_or(0);
    let mut origin = Packet::from_slice(packet.bytes().get(..before).unwrap_or_default());
    origin.copy_annotations(packet);
    if let Some(offset) = packet.mac_offset().filter(|offset| (0..=before as isize).contains(offset)) {
        origin.set_mac_header(offset);
    }
    origin
}

impl IpReassembler {
    /// The packet, as far as it came.
    fn assemble(&self, assembly: &Assembly<Packet>) -> Packet {
        let (origin, before) = (&assembly.origin, assembly.origin.len());
        let mut packet = Packet::with_room(DEFAULT_HEADROOM, before + assembly.total_len(), 0);
        let (head, whole) = packet.bytes_mut().split_at_mut(before);
        head.copy_from_slice(origin.bytes());
        assembly.write(whole);
        let header_len = Ip::new(whole).map_or(ip::LEN, Ip::header_len);
        packet.copy_annotations(origin);
        packet.set_network_header(before as isize, header_len);
        if let Some(offset) = origin.mac_offset() {
            packet.set_mac_header(offset);
        }
        if let Some(AnnoArg(at)) = self.mtu_anno {
            packet.set_anno_u16(at, assembly.longest() as u16);
        }
        packet
    }

    fn reap(&mut self, cx: &mut Cx<'_>, now_s: i64) {
        let mut given_up = Vec::new();
        self.table.reap(now_s, |assembly| given_up.push(assembly));
        for assembly in given_up {
            self.failed += 1;
            let packet = self.assemble(&assembly);
            cx.emit_checked(1, packet);
        }
    }

    fn dump(&self) -> String {
        let mut text = format!(
            "frags seen total:    {}\ngood reassemblies:   {}\nfailed reassemblies: {}\nbad fragments seen:  {}\ncached chunk data:\n",
            self.fragments, self.good, self.failed, self.bad
        );
        for (source, destination, id, assembly) in self.table.iter() {
            let _ = write!(text, " ({source}, {destination}) {id}");
            for (begin, end) in assembly.extents() {
                let _ = write!(text, " ({begin},{end})");
            }
            text.push('\n');
        }
        text
    }
}

impl Element for IpReassembler {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut memory: u32 = 256 << 10;
        args.key("HIMEM", &mut memory).key("MAX_MTU_ANNO", &mut self.mtu_anno).finish()?;
        self.table = Reassembler::new(memory as usize);
        Ok(())
    }

    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        if !packet.network_header().and_then(Ip::new).is_some_and(Ip::is_fragment) {
            return Some(packet);
        }
        self.fragments += 1;
        if packet.timestamp().is_zero() {
            packet.set_timestamp(cx.now());
        }
        let now_s = packet.timestamp().secs();
        self.reap(cx, now_s);
        match self.table.add(packet.network_header()?, now_s, || origin(&packet)) {
            Outcome::Whole(assembly) => {
                self.good += 1;
                let mut whole = self.assemble(&assembly);
                whole.set_timestamp(packet.timestamp());
                return Some(whole);
            }
            Outcome::Held => {}
            Outcome::Bad | Outcome::Contradicted => self.bad += 1,
        }
        None
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("dump", |element: &mut Self, _| element.dump());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;
    use crate::elements::testing::{self, Harness, fuzz};

    const CONFIG: &str = "give :: Give -> r :: IPReassembler(MAX_MTU_ANNO 24) -> take :: Take; r[1] -> other :: Take";

    /// Fragments of a UDP packet with so much data, as IPFragmenter makes them, at a time in seconds.
    fn fragments(id: u8, len: usize, before: usize, at: i64) -> (Vec<u8>, Vec<Packet>) {
        let data: Vec<_> = (0..len).map(|i| i as u8 ^ id).collect();
        let bytes = testing::udp(([1, 0, 0, id], 1), ([2, 0, 0, 2], 2), &data);
        let mut harness = Harness::new("give :: Give -> IPFragmenter(60) -> take :: Take");
        let mut packet = Packet::from_slice(&bytes);
        packet.set_network_header(0, 20);
        harness.give("give", [packet]);
        let fragments = harness.take("take").into_iter().map(|fragment| {
            let mut packet = Packet::from_slice(&[&vec![id; before], fragment.bytes()].concat());
            packet.set_network_header(before as isize, 20);
            packet.set_mac_header(0);
            packet.set_timestamp(Timestamp::new(at, 0));
            packet
        });
        (bytes, fragments.collect())
    }

    #[test]
    fn packets_are_whole_whatever_the_order_of_fragments() {
        let (one, mut first) = fragments(1, 300, 14, 5);
        let (two, second) = fragments(2, 250, 14, 6);
        first.reverse();
        first[0].set_anno_u8(16, 1);
        let last = first.len() - 1;
        first[last].set_anno_u8(16, 9);
        let mut harness = Harness::new(CONFIG);
        let mixed: Vec<_> = first.iter().zip(&second).flat_map(|(a, b)| [a.clone(), b.clone()]).collect();
        let rest = first.into_iter().skip(second.len()).collect::<Vec<_>>();
        harness.give("give", mixed.into_iter().chain(rest));
        let out = harness.take("take");
        assert_eq!(out.len(), 2);
        for (packet, (bytes, id)) in out.iter().zip([(two, 2), (one, 1)]) {
            assert_eq!(packet.network_header().unwrap(), bytes);
            assert_eq!((&packet.bytes()[..14], packet.mac_offset(), packet.anno_u16(24)), (&[id; 14][..], Some(0), 60));
        }
        assert_eq!(out[1].anno_u8(16), 9, "annotations are the first fragment's");
        assert!(harness.read("r.dump").starts_with("frags seen total:    15\ngood reassemblies:   2\n"));
    }

    #[test]
    fn what_is_not_whole_is_given_up_with_zeros() {
        let (_, mut first) = fragments(1, 100, 0, 5);
        let (_, second) = fragments(2, 100, 0, 36);
        first.remove(1);
        let mut harness = Harness::new(CONFIG);
        harness.give("give", first);
        assert!(harness.read("r.dump").ends_with("cached chunk data:\n (1.0.0.1, 2.0.0.2) 7 (0,40) (80,108)\n"));
        harness.give("give", second);
        assert_eq!(harness.take("take").len(), 1);
        let given_up = harness.take("other").remove(0);
        let ip = Ip::checked(given_up.bytes()).unwrap();
        assert_eq!((ip.payload().len(), &ip.payload()[40..80]), (108, &[0; 40][..]));
        assert!(harness.read("r.dump").contains("failed reassemblies: 1\n"));
    }

    #[test]
    fn others_pass_and_memory_is_bounded() {
        let mut harness =
            Harness::new("give :: Give -> r :: IPReassembler(HIMEM 8000) -> take :: Take; r[1] -> other :: Take");
        let whole = testing::udp(([1, 0, 0, 1], 1), ([2, 0, 0, 2], 2), &[7; 77]);
        let mut packet = Packet::from_slice(&whole);
        packet.set_network_header(0, 20);
        harness.give("give", [packet]);
        assert_eq!(harness.take_bytes("take"), [whole]);
        for id in 0..100 {
            let (_, fragments) = fragments(id, 100, 0, 5);
            harness.give("give", fragments.into_iter().take(2));
        }
        assert_eq!(harness.take("take").len(), 0);
        assert!(harness.take("other").len() > 80);
    }

    #[test]
    fn its_arguments_are_checked() {
        let errors = |config: &str| Harness::errors(&format!("Give -> IPReassembler({config}) -> Take"));
        assert!(errors("HIMEM x").contains("HIMEM: invalid number"));
        assert!(errors("MAX_MTU_ANNO 47").contains("MAX_MTU_ANNO: annotation out of range"));
        assert!(errors("5").contains("too many arguments"));
    }

    #[test]
    fn any_packets_are_survived() {
        fuzz("give :: Give -> IPReassembler -> take :: Take", &["take"]);
        fuzz("give :: Give -> IPFragmenter(40, false) -> IPReassembler(HIMEM 5000) -> take :: Take", &["take"]);
    }
}
