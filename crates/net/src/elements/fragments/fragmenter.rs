//! IPFragmenter: cuts IP packets that are too long into fragments.
//!
//! `IPFragmenter(MTU [, HONOR_DF, VERBOSE, HEADROOM])`: push. Packets whose IP length is at most MTU bytes (at least 8) pass.
//! Longer ones leave as fragments, the first one first; those with DF go to output 1, if there is one, unless HONOR_DF
//! (true) is false: then the fragments have an id at random, as nobody can rely on that of a packet with DF. So do packets
//! whose header leaves no room for 8 bytes. The first five of these are told, and all of them with VERBOSE (false). What is
//! before the IP header, such as an Ethernet header, stays before the first fragment only; the others have HEADROOM (64)
//! bytes of room. All have the packet's annotations. Options are copied as their copy bit says.
//!
//! Handlers: `drops`, `fragments`.
//!
//! Unlike Click: padding behind a packet that is not too long does not make it so, and a packet that is longer than it may
//! ever be, with its offset, is dropped and counted.

use crate::args::{Args, Failed};
use crate::element::{Batch, Element};
use crate::handler::Handlers;
use crate::headers::fragment::{Cut, Uncut};
use crate::headers::{Ip, ip};
use crate::packet::DEFAULT_HEADROOM;
use crate::router::Cx;
use crate::{Packet, headers};

/// Packets with DF that are told, where not all of them are.
const TOLD: u64 = 5;

/// The element.
pub(super) struct IpFragmenter {
    mtu: u32,
    honor_df: bool,
    is_verbose: bool,
    headroom: u32,
    drops: u64,
    fragments: u64,
}

impl Default for IpFragmenter {
    fn default() -> Self {
        let headroom = DEFAULT_HEADROOM as u32;
        Self { mtu: 0, honor_df: true, is_verbose: false, headroom, drops: 0, fragments: 0 }
    }
}

impl IpFragmenter {
    fn refuse(&mut self, cx: &mut Cx<'_>, packet: Packet) {
        if let Some(ip) = packet.network_header().and_then(Ip::new).filter(|_| self.is_verbose || self.drops < TOLD) {
            let (from, to, len) = (ip.source(), ip.destination(), packet.len());
            cx.say(format_args!("IPFragmenter({}) DF {from} {to} len={len}", self.mtu));
        }
        self.drops += 1;
        cx.emit_checked(1, packet);
    }

    fn fragment(&mut self, cx: &mut Cx<'_>, mut packet: Packet, cut: &Cut) {
        let Some((offset, ip)) = packet.network_offset().zip(packet.network_header().and_then(Ip::new)) else { return };
        let id = if ip.dont_fragment() { cx.rng().u16(..) } else { ip.id() };
        let pieces: Vec<_> = cut.pieces().collect();
        let Some((first, rest)) = pieces.split_first() else { return };
        let bytes = packet.network_header().unwrap_or_default();
        let write = |piece: &headers::fragment::Piece| {
            let mut fragment = Packet::with_room(self.headroom as usize, cut.header_len(*piece) + piece.len, 0);
            cut.write(*piece, id, bytes, fragment.bytes_mut());
            fragment.set_network_header(0, cut.header_len(*piece));
            fragment.copy_annotations(&packet);
            fragment
        };
        let others: Vec<_> = rest.iter().map(write).collect();
        let header_len = cut.header_len(*first);
        let end = offset + (header_len + first.len) as isize;
        packet.take(packet.len() - end.max(0) as usize);
        if let Some(bytes) = packet.network_header_mut() {
            cut.finish_first(*first, id, bytes);
        }
        self.fragments += pieces.len() as u64;
        cx.emit(0, packet);
        for fragment in others {
            cx.emit(0, fragment);
        }
    }
}

impl Element for IpFragmenter {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.must("MTU", &mut self.mtu).may("HONOR_DF", &mut self.honor_df).may("VERBOSE", &mut self.is_verbose);
        args.key("HEADROOM", &mut self.headroom).finish()?;
        if self.mtu < 8 {
            return Err(args.error("MTU must be at least 8"));
        }
        if self.headroom > 1 << 20 {
            return Err(args.error_of("HEADROOM", format_args!("out of range, bound {}", 1 << 20)));
        }
        Ok(())
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, port: usize, batch: &mut Batch) {
        let mtu = self.mtu as usize;
        if batch.iter().all(|packet| packet.network_header().is_some_and(|bytes| bytes.len() <= mtu)) {
            return cx.emit_batch(0, batch);
        }
        cx.push_each(self, port, batch);
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        let Some(bytes) = packet.network_header() else { return };
        let (len, mtu) = (bytes.len(), self.mtu as usize);
        let ip = Ip::new(bytes);
        if len <= mtu || ip.is_some_and(|ip| usize::from(ip.total_len()) <= mtu && ip.header_len() >= ip::LEN) {
            cx.emit(0, packet);
            return;
        }
        if ip.is_some_and(|ip| ip.dont_fragment() && self.honor_df) {
            self.refuse(cx, packet);
            return;
        }
        match Cut::new(bytes, mtu) {
            Ok(cut) => self.fragment(cx, packet, &cut),
            Err(Uncut::MtuTooSmall) => self.refuse(cx, packet),
            Err(Uncut::Malformed) => self.drops += 1,
        }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("drops", |element: &mut Self, _| element.drops);
        handlers.read("fragments", |element: &mut Self, _| element.fragments);
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::{self, Harness, fuzz};
    use crate::headers::{Ip, IpMut, ip};

    fn marked(before: usize, bytes: &[u8]) -> Packet {
        let mut packet = Packet::from_slice(&[&vec![0xee; before], bytes].concat());
        packet.set_network_header(before as isize, 20);
        packet.set_dst_ip([9, 9, 9, 9].into());
        packet
    }

    fn with_df() -> Vec<u8> {
        let mut bytes = testing::udp(([1, 0, 0, 1], 1), ([2, 0, 0, 2], 2), &[7; 100]);
        IpMut::new(&mut bytes).unwrap().set_flags_offset(ip::DF);
        ip::set_checksum(&mut bytes);
        bytes
    }

    #[test]
    fn long_packets_leave_in_fragments_and_short_ones_as_they_are() {
        let mut harness = Harness::new("give :: Give -> f :: IPFragmenter(60) -> take :: Take");
        let bytes = testing::udp(([1, 0, 0, 1], 1), ([2, 0, 0, 2], 2), &[7; 77]);
        let short = testing::udp(([1, 0, 0, 1], 1), ([2, 0, 0, 2], 2), &[7; 32]);
        let padded = [&short[..], &[0; 20]].concat();
        harness.give("give", [marked(14, &bytes), marked(0, &short), marked(0, &padded)]);
        let out = harness.take("take");
        let parts: Vec<_> =
            out.iter().take(3).map(|packet| Ip::checked(packet.network_header().unwrap()).unwrap()).collect();
        let offsets: Vec<_> =
            parts.iter().map(|ip| (ip.fragment_offset(), ip.payload().len(), ip.more_fragments())).collect();
        assert_eq!(offsets, [(0, 40, true), (40, 40, true), (80, 5, false)]);
        assert!(parts.iter().all(|ip| ip.is_checksum_valid() && ip.id() == 7));
        assert_eq!(parts.iter().flat_map(|ip| ip.payload()).copied().collect::<Vec<_>>(), bytes[20..]);
        assert_eq!(out.iter().map(Packet::len).collect::<Vec<_>>(), [74, 60, 25, 60, 80]);
        assert!(out.iter().all(|packet| packet.dst_ip().octets() == [9; 4]));
        assert_eq!((harness.read("f.fragments"), harness.read("f.drops")), ("3".into(), "0".into()));
    }

    #[test]
    fn what_must_not_be_cut_goes_to_the_second_output() {
        let mut harness = Harness::new("give :: Give -> f :: IPFragmenter(60) -> take :: Take; f[1] -> other :: Take");
        harness.give("give", (0..7).map(|_| marked(0, &with_df())));
        assert_eq!((harness.take("take").len(), harness.take_bytes("other")), (0, vec![with_df(); 7]));
        assert_eq!(harness.said(), vec!["IPFragmenter(60) DF 1.0.0.1 2.0.0.2 len=128"; 5]);
        assert_eq!(harness.read("f.drops"), "7");
        let mut harness = Harness::new("give :: Give -> f :: IPFragmenter(60, VERBOSE true) -> take :: Take");
        harness.give("give", (0..7).map(|_| marked(0, &with_df())));
        assert_eq!((harness.take("take").len(), harness.said().len()), (0, 7));
        let mut harness = Harness::new("give :: Give -> f :: IPFragmenter(20) -> take :: Take");
        harness.give("give", [marked(0, &testing::udp(([1, 0, 0, 1], 1), ([2, 0, 0, 2], 2), &[]))]);
        assert_eq!((harness.take("take").len(), harness.read("f.drops")), (0, "1".into()));
    }

    #[test]
    fn df_is_ignored_where_that_is_asked_for() {
        let mut harness = Harness::new("give :: Give -> f :: IPFragmenter(60, false, HEADROOM 8) -> take :: Take");
        harness.give("give", [marked(0, &with_df())]);
        let out = harness.take("take");
        let ips: Vec<_> = out.iter().map(|packet| Ip::checked(packet.bytes()).unwrap()).collect();
        assert!(ips.len() == 3 && ips.iter().all(|ip| !ip.dont_fragment() && ip.id() == ips[0].id()));
        assert_eq!(out[1].headroom(), 8);
    }

    #[test]
    fn its_arguments_are_checked() {
        let errors = |config: &str| Harness::errors(&format!("Give -> IPFragmenter({config}) -> Take"));
        assert!(errors("").contains("MTU: required argument missing"));
        assert!(errors("7").contains("  MTU must be at least 8"));
        assert!(errors("60, maybe").contains("HONOR_DF: type mismatch"));
        assert!(errors("60, HEADROOM 99999999").contains("HEADROOM: out of range"));
        assert!(errors("60, true, true, 5").contains("too many arguments"));
    }

    #[test]
    fn any_packets_are_survived() {
        for packet in fuzz("give :: Give -> IPFragmenter(40, false) -> take :: Take", &["take"]).concat() {
            let ip = packet.network_header().and_then(Ip::checked);
            assert!(ip.is_none_or(|ip| usize::from(ip.total_len()) <= 40));
        }
    }
}
