//! CheckIPHeader: checks IP headers. CheckIPHeader2: the same without checksums, unless asked.
//!
//! `CheckIPHeader([OFFSET, CHECKSUM, INTERFACES, BADSRC, GOODDST, VERBOSE, DETAILS])`: agnostic; output 1, where there is one,
//! pushes packets that fail; they are dropped otherwise. The first that fails is told.
//!
//! A packet is right if 20 bytes at OFFSET (0) are there, with version 4, a header of at least 20 bytes, a length between the
//! header's and the packet's, a right checksum (unless CHECKSUM is false), and a source that is not in BADSRC, unless the
//! destination is in GOODDST. It is cut to the IP header's length, its header is known from then on, and its destination
//! address annotation is set.
//!
//! - BADSRC, GOODDST: lists of addresses, between spaces. Empty by default.
//! - INTERFACES: a list of addresses with masks: stands for BADSRC with their broadcast addresses, 0.0.0.0 and
//!   255.255.255.255, and GOODDST with the addresses.
//! - VERBOSE: true tells of each packet that fails. DETAILS: true counts them by reason.
//! - `CheckIPHeader(BADSRC, OFFSET)`, the old form: 0.0.0.0 and 255.255.255.255 are bad as well.
//!
//! Handlers: `drops`, `drop_details` (if DETAILS is true).

use super::addresses::{Addresses, BadSources, Interfaces, positional};
use super::reasons::{Reasons, divert};
use crate::Packet;
use crate::args::{Arg, ArgCx, Args, Failed};
use crate::element::{Batch, Element};
use crate::handler::Handlers;
use crate::headers::Ip;
use crate::headers::ip::LEN;
use crate::router::Cx;

const TINY: usize = 0;
const VERSION: usize = 1;
const HEADER_LEN: usize = 2;
const TOTAL_LEN: usize = 3;
const CHECKSUM: usize = 4;
const SOURCE: usize = 5;
const TEXTS: [&str; 6] =
    ["tiny packet", "bad IP version", "bad IP header length", "bad IP length", "bad IP checksum", "bad source address"];

/// What makes a header right.
#[derive(Default)]
pub(super) struct Rules {
    pub(super) has_checksum: bool,
    pub(super) bad_sources: Addresses,
    pub(super) good_destinations: Addresses,
}

impl Rules {
    /// INTERFACES, BADSRC and GOODDST.
    pub(super) fn configure(&mut self, args: &mut Args<'_>) {
        let mut interfaces = Interfaces::default();
        args.key("INTERFACES", &mut interfaces);
        args.key("BADSRC", &mut self.bad_sources).key("GOODDST", &mut self.good_destinations);
        self.bad_sources.0.extend(interfaces.broadcasts);
        self.good_destinations.0.extend(interfaces.addresses);
    }

    /// Checks the header at an offset, and makes it known; or the reason why not.
    #[inline]
    pub(super) fn check(&self, packet: &mut Packet, offset: usize) -> Result<(), usize> {
        let data = packet.bytes().get(offset..).unwrap_or_default();
        let ip = Ip::new(data).ok_or(TINY)?;
        if ip.version() != 4 {
            return Err(VERSION);
        }
        let (header_len, total_len) = (ip.header_len(), usize::from(ip.total_len()));
        if header_len < LEN {
            return Err(HEADER_LEN);
        }
        if total_len > data.len() || total_len < header_len {
            return Err(TOTAL_LEN);
        }
        if self.has_checksum && !ip.is_checksum_valid() {
            return Err(CHECKSUM);
        }
        let destination = ip.destination();
        if self.bad_sources.contains(ip.source()) && !self.good_destinations.contains(destination) {
            return Err(SOURCE);
        }
        let padding = data.len() - total_len;
        packet.set_network_header(offset as isize, header_len);
        if padding > 0 {
            packet.take(padding);
        }
        packet.set_dst_ip(destination);
        Ok(())
    }
}

/// The element; its checksums are checked by default, or not.
pub(super) struct Check<const CHECKSUMS: bool> {
    rules: Rules,
    offset: usize,
    reasons: Reasons<6>,
}

pub(super) type CheckIpHeader = Check<true>;
pub(super) type CheckIpHeader2 = Check<false>;

impl<const CHECKSUMS: bool> Default for Check<CHECKSUMS> {
    fn default() -> Self {
        let rules = Rules { has_checksum: CHECKSUMS, ..Rules::default() };
        Self { rules, offset: 0, reasons: Reasons::new(TEXTS) }
    }
}

impl<const CHECKSUMS: bool> Check<CHECKSUMS> {
    #[inline]
    fn check(&mut self, cx: &Cx<'_>, packet: &mut Packet) -> bool {
        match self.rules.check(packet, self.offset) {
            Ok(()) => true,
            Err(reason) => {
                self.reasons.count(cx, &format!("{}: IP", cx.name()), reason);
                false
            }
        }
    }

    /// What stands without a keyword: an offset, or the old form.
    fn positional(&mut self, args: &mut Args<'_>) {
        let (offset, sources) = (&mut self.offset, &mut self.rules.bad_sources.0);
        let is_alone = args.left() == 1;
        let mut first = |text: &str, cx: &ArgCx<'_>| {
            if is_alone && usize::store(text, cx, offset).is_ok() {
                return Ok(());
            }
            BadSources::parse(text, cx).map(|bad| sources.extend(bad.0))
        };
        let mut second = None;
        let mut keep = |text: &str, cx: &ArgCx<'_>| Option::store(text, cx, &mut second);
        positional(args, &mut [("BADSRC", &mut first), ("OFFSET", &mut keep)]);
        self.offset = second.unwrap_or(self.offset);
    }
}

impl<const CHECKSUMS: bool> Element for Check<CHECKSUMS> {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        self.rules.configure(args);
        self.reasons.configure(args);
        args.key("CHECKSUM", &mut self.rules.has_checksum).key("OFFSET", &mut self.offset);
        self.positional(args);
        args.finish()
    }

    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        if self.check(cx, &mut packet) {
            return Some(packet);
        }
        cx.emit_checked(1, packet);
        None
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        cx.filter_batch(batch, |cx, packet| {
            let is_right = self.check(cx, packet);
            if !is_right {
                divert(cx, 1, packet);
            }
            is_right
        });
    }

    fn handlers(&self, handlers: &mut Handlers) {
        self.reasons.handlers(handlers, |check: &mut Self| &mut check.reasons);
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::{Harness, fuzz, ip, udp};
    use crate::headers::{Ip, ip::set_checksum};

    const GOOD: ([u8; 4], [u8; 4]) = ([10, 0, 0, 1], [10, 0, 0, 2]);

    fn good() -> Vec<u8> {
        udp((GOOD.0, 5), (GOOD.1, 6), b"data")
    }

    #[test]
    fn a_right_packet_is_cut_and_its_header_known() {
        let mut harness = Harness::new("give :: Give -> c :: CheckIPHeader(14) -> take :: Take");
        let bytes = [&[7; 14][..], &good(), &[0; 9]].concat();
        harness.give_bytes("give", &bytes);
        let packet = &harness.take("take")[0];
        assert_eq!(packet.bytes(), &bytes[..14 + 32]);
        assert_eq!(packet.network_offset(), Some(14));
        assert_eq!(packet.transport_offset(), Some(34));
        assert_eq!(packet.dst_ip().octets(), GOOD.1);
        assert_eq!(harness.read("c.drops"), "0");
    }

    #[test]
    fn each_reason_is_counted_and_the_first_is_told() {
        let config = "give :: Give -> c :: CheckIPHeader(DETAILS true, BADSRC 10.0.0.9 10.0.0.8) -> take :: Take;
                      c[1] -> bad :: Take";
        let mut harness = Harness::new(config);
        let changed = |at: usize, value: u8| {
            let mut bytes = good();
            bytes[at] = value;
            bytes
        };
        let mut with_source = ip(17, [10, 0, 0, 8], GOOD.1, &[0; 8]);
        let bad =
            [good()[..19].to_vec(), changed(0, 0x55), changed(0, 0x44), changed(3, 33), changed(3, 19), changed(8, 3)];
        for bytes in &bad {
            harness.give_bytes("give", bytes);
        }
        harness.give_bytes("give", &with_source);
        assert_eq!(harness.take("take").len(), 0);
        assert_eq!(harness.take("bad").len(), 7);
        assert_eq!(harness.read("c.drops"), "7");
        let details = "1\ttiny packet\n1\tbad IP version\n1\tbad IP header length\n2\tbad IP length\n1\tbad IP checksum\n\
                       1\tbad source address\n";
        assert_eq!(harness.read("c.drop_details"), details);
        assert_eq!(harness.said(), ["c: IP header check failed: tiny packet"]);
        with_source[15] = 7;
        set_checksum(&mut with_source).unwrap();
        harness.give_bytes("give", &with_source);
        assert_eq!(harness.take("take").len(), 1);
    }

    #[test]
    fn without_checksums_a_wrong_one_passes() {
        let mut bytes = good();
        bytes[10] ^= 1;
        for (class, passes) in [
            ("CheckIPHeader", 0),
            ("CheckIPHeader(CHECKSUM false)", 1),
            ("CheckIPHeader2", 1),
            ("CheckIPHeader2(0, CHECKSUM true)", 0),
            ("CheckIPHeader(OFFSET 0, CHECKSUM false)", 1),
        ] {
            let mut harness = Harness::new(&format!("give :: Give -> {class} -> take :: Take"));
            harness.give_bytes("give", &bytes);
            assert_eq!(harness.take("take").len(), passes, "{class}");
        }
    }

    #[test]
    fn bad_sources_are_those_of_the_interfaces_or_of_the_old_form() {
        let from = |source: [u8; 4], destination| ip(6, source, destination, &[]);
        for (config, source, destination, passes) in [
            ("INTERFACES 18.26.4.9/24 18.32.9.44/28", [18, 26, 4, 255], [1, 1, 1, 1], false),
            ("INTERFACES 18.26.4.9/24 18.32.9.44/28", [18, 32, 9, 47], [1, 1, 1, 1], false),
            ("INTERFACES 18.26.4.9/24 18.32.9.44/28", [18, 32, 9, 47], [18, 26, 4, 9], true),
            ("INTERFACES 18.26.4.9/24", [0, 0, 0, 0], [1, 1, 1, 1], false),
            ("BADSRC 1.2.3.4", [0, 0, 0, 0], [1, 1, 1, 1], true),
            ("BADSRC 1.2.3.4, GOODDST 2.2.2.2", [1, 2, 3, 4], [2, 2, 2, 2], true),
            ("1.2.3.4 5.6.7.8", [5, 6, 7, 8], [1, 1, 1, 1], false),
            ("1.2.3.4 5.6.7.8, 0", [255, 255, 255, 255], [1, 1, 1, 1], false),
        ] {
            let mut harness = Harness::new(&format!("give :: Give -> CheckIPHeader({config}) -> take :: Take"));
            harness.give_bytes("give", &from(source, destination));
            assert_eq!(harness.take("take").len(), usize::from(passes), "{config} {source:?}");
        }
    }

    #[test]
    fn configurations_that_are_wrong() {
        for (config, told) in [
            ("x", "BADSRC: type mismatch"),
            ("1.2.3.4, x", "OFFSET: invalid number"),
            ("1.2.3.4, 0, 5", "too many arguments"),
            ("BADSRC 1.2.3", "BADSRC: type mismatch"),
            ("INTERFACES 1.2.3.4/40", "INTERFACES: type mismatch"),
            ("VERBOSE 3", "VERBOSE: type mismatch"),
            ("FOO 3", "FOO: unknown argument"),
            ("OFFSET -1", "OFFSET: must be >= 0"),
        ] {
            let log = Harness::errors(&format!("Give -> CheckIPHeader({config}) -> Take"));
            assert!(log.contains(told), "{config}: {log}");
        }
    }

    #[test]
    fn what_passes_is_an_ip_packet_whatever_comes() {
        let config = "give :: Give -> c :: CheckIPHeader(VERBOSE true) -> take :: Take; c[1] -> bad :: Take";
        let out = fuzz(config, &["take", "bad"]);
        assert!(out[0].iter().all(|packet| {
            let ip = Ip::checked(packet.bytes()).unwrap();
            ip.is_checksum_valid() && usize::from(ip.total_len()) == packet.len() && packet.network_offset() == Some(0)
        }));
        assert!(out[1].iter().all(|packet| !Ip::checked(packet.bytes()).is_some_and(Ip::is_checksum_valid)));
        assert_eq!(out[0].len() + out[1].len(), 2000);
    }

    #[test]
    fn an_offset_beyond_the_packet_is_a_tiny_packet() {
        let mut harness = Harness::new("give :: GivePull -> c :: CheckIPHeader(4000000000) -> take :: TakePull");
        harness.give("give", [Packet::from_slice(&good())]);
        assert_eq!((harness.take("take").len(), harness.read("c.drops")), (0, "1".into()));
    }
}
