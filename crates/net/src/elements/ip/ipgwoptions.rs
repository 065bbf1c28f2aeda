//! IPGWOptions: does what IP options ask of every router. FixIPSrc: sets the source where a packet asks for it.
//!
//! `IPGWOptions(MYADDR [, OTHERADDRS])`: agnostic; output 1, where there is one, pushes packets whose options are wrong, with
//! the "parameter problem" annotation at the byte that is wrong; they are dropped otherwise. Both are counted.
//!
//! - Record route: MYADDR is written to the next place, if there is one.
//! - Timestamp: the milliseconds of the day are written, with MYADDR before them if the option wants addresses, or where the
//!   option has asked for one of MYADDR and OTHERADDRS (a list, between spaces). A full option counts who could not write.
//! - Other options, source routes among them, are left alone. The checksum is set again after one of these two.
//!
//! Handler: `drops`. An option that is shorter than its own fixed part is wrong at its third byte (Click reads what follows it).
//!
//! `FixIPSrc(IPADDR)`: agnostic. A packet with the "fix IP source" annotation gets the source IPADDR and a new checksum, and
//! loses the annotation. Others pass as they are.

use super::addresses::{Addresses, positional};
use crate::args::{Arg, Args, Failed};
use crate::element::{Batch, Element};
use crate::handler::Handlers;
use crate::headers::ip::{LEN, LEN_MAX, OPT_RR, OPT_TS, set_checksum};
use crate::headers::{Ip, IpMut};
use crate::packet::anno;
use crate::router::Cx;
use crate::{Packet, Timestamp};
use std::net::Ipv4Addr;

/// What was found among options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Done {
    /// Whether there is an option for routers.
    pub(super) is_for_us: bool,
    /// Whether a byte changed.
    pub(super) has_changed: bool,
}

/// Who processes options, and when.
pub(super) struct Router<'a> {
    pub(super) address: Ipv4Addr,
    pub(super) others: &'a [Ipv4Addr],
    pub(super) now: Timestamp,
}

impl Router<'_> {
    /// Processes the options of a packet's known IP header, and sets its checksum again if there was something to do; nothing
    /// is written where an option is wrong: then the offset in the header of what is wrong comes back.
    pub(super) fn process(&self, packet: &mut Packet) -> Result<Done, u8> {
        let Some(header) = packet.network_header() else { return Ok(Done::default()) };
        let len = Ip::new(header).map_or(0, Ip::header_len).min(header.len());
        if len <= LEN {
            return Ok(Done::default());
        }
        let mut copy = [0; LEN_MAX];
        copy[..len].copy_from_slice(&header[..len]);
        let done = self.options(&mut copy[..len])?;
        if done.is_for_us
            && let Some(header) = packet.network_header_mut()
        {
            header[..len].copy_from_slice(&copy[..len]);
            // A header that says more than there is has no checksum to be set.
            let _ = set_checksum(header);
        }
        Ok(done)
    }

    fn options(&self, header: &mut [u8]) -> Result<Done, u8> {
        let mut done = Done::default();
        let mut at = LEN;
        while at < header.len() {
            let kind = header[at];
            if kind == 0 {
                break;
            }
            if kind == 1 {
                at += 1;
                continue;
            }
            let len = header.get(at + 1).map_or(0, |len| usize::from(*len));
            if len < 2 || at + len > header.len() {
                return Err(at as u8 + 1);
            }
            let option = &mut header[at..at + len];
            let wrong = |byte: u8| at as u8 + byte;
            let changed = match kind {
                OPT_RR => self.record_route(option).map_err(wrong)?,
                OPT_TS => self.timestamp(option).map_err(wrong)?,
                _ => false,
            };
            done.is_for_us |= matches!(kind, OPT_RR | OPT_TS);
            done.has_changed |= changed;
            at += len;
        }
        Ok(done)
    }

    /// The pointer counts from 1, and is that of the next place.
    fn record_route(&self, option: &mut [u8]) -> Result<bool, u8> {
        let place = option.get(2).map_or(0, |pointer| usize::from(*pointer)).wrapping_sub(1);
        match place.checked_add(4) {
            Some(end) if place >= 3 && end <= option.len() => {
                option[place..end].copy_from_slice(&self.address.octets());
                option[2] += 4;
                Ok(true)
            }
            _ if place == option.len() => Ok(false),
            _ => Err(2),
        }
    }

    fn timestamp(&self, option: &mut [u8]) -> Result<bool, u8> {
        let [_, _, pointer, flags, ..] = *option else { return Err(2) };
        let place = usize::from(pointer).wrapping_sub(1);
        let (overflow, form) = (flags >> 4, flags & 15);
        if !(4..=255).contains(&place) {
            return Err(2);
        }
        let millis = (self.now.secs().rem_euclid(86_400) * 1000) as u32 + self.now.subsec_nanos() / 1_000_000;
        let is_free = |bytes: usize| place + bytes <= option.len();
        match form {
            0 if is_free(4) => {
                option[place..place + 4].copy_from_slice(&millis.to_be_bytes());
                option[2] += 4;
            }
            1 if is_free(8) => {
                option[place..place + 4].copy_from_slice(&self.address.octets());
                option[place + 4..place + 8].copy_from_slice(&millis.to_be_bytes());
                option[2] += 8;
            }
            0 | 1 if overflow < 15 => option[3] = (overflow + 1) << 4 | form,
            3 if is_free(8) => {
                let asked = Ipv4Addr::from([option[place], option[place + 1], option[place + 2], option[place + 3]]);
                if asked != self.address && !self.others.contains(&asked) {
                    return Ok(false);
                }
                option[place + 4..place + 8].copy_from_slice(&millis.to_be_bytes());
                option[2] += 8;
            }
            _ => return Err(3),
        }
        Ok(true)
    }
}

/// Whether there is nothing to do for a packet: its IP header is not known, or is there without options.
#[inline]
fn has_no_options(packet: &Packet) -> bool {
    let first = packet.network_header().and_then(|header| header.first());
    first.is_none_or(|first| usize::from(first & 15) * 4 <= LEN)
}

/// Processes options.
pub(super) struct IpGwOptions {
    address: Ipv4Addr,
    others: Addresses,
    drops: u64,
}

impl Default for IpGwOptions {
    fn default() -> Self {
        Self { address: Ipv4Addr::UNSPECIFIED, others: Addresses::default(), drops: 0 }
    }
}

impl Element for IpGwOptions {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.must("MYADDR", &mut self.address);
        if !args.has_key("OTHERADDRS", &mut self.others) {
            positional(args, &mut [("OTHERADDRS", &mut |text, cx| Addresses::store(text, cx, &mut self.others))]);
        }
        args.finish()
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, port: usize, batch: &mut Batch) {
        if batch.iter().all(has_no_options) {
            return cx.emit_batch(0, batch);
        }
        cx.push_each(self, port, batch);
    }

    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let router = Router { address: self.address, others: &self.others.0, now: cx.now() };
        let Err(wrong) = router.process(&mut packet) else { return Some(packet) };
        self.drops += 1;
        packet.set_anno_u8(anno::ICMP_PARAMPROB, wrong);
        cx.emit_checked(1, packet);
        None
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("drops", |options: &mut Self, _| options.drops);
    }
}

/// Sets the source of a packet that asks for it; the checksum stands for later.
#[inline]
pub(super) fn fix_source(packet: &mut Packet, address: Ipv4Addr) -> bool {
    packet.anno_u8(anno::FIX_IP_SRC) != 0 && set_source(packet, address)
}

fn set_source(packet: &mut Packet, address: Ipv4Addr) -> bool {
    let is_there = packet.network_header().is_some_and(|header| header.len() >= LEN);
    if !is_there {
        return false;
    }
    packet.set_anno_u8(anno::FIX_IP_SRC, 0);
    if let Some(header) = packet.network_header_mut() {
        if let Some(mut ip) = IpMut::new(header) {
            ip.set_source(address);
        }
        let _ = set_checksum(header);
    }
    true
}

/// Sets sources.
pub(super) struct FixIpSrc(Ipv4Addr);

impl Default for FixIpSrc {
    fn default() -> Self {
        Self(Ipv4Addr::UNSPECIFIED)
    }
}

impl Element for FixIpSrc {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.must("IPADDR", &mut self.0).finish()
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        fix_source(&mut packet, self.0);
        Some(packet)
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        for packet in batch.iter_mut() {
            fix_source(packet, self.0);
        }
        cx.emit_batch(0, batch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::testing::{Harness, fuzz, ip};

    /// An IP packet with these options, padded by their end, and a right checksum.
    fn with_options(options: &[u8]) -> Vec<u8> {
        let mut packet = ip(17, [1; 4], [2; 4], &[]);
        let padded = options.len().next_multiple_of(4);
        packet[0] = 0x40 | (5 + padded / 4) as u8;
        packet[3] = 20 + padded as u8;
        packet.extend(options);
        packet.resize(20 + padded, 0);
        set_checksum(&mut packet).unwrap();
        packet
    }

    const CONFIG: &str =
        "give :: Give -> CheckIPHeader -> g :: IPGWOptions(10.0.0.1, 10.0.1.1 10.0.2.1) -> take :: Take;
                          g[1] -> bad :: Take";

    /// The options that come out, or where they are wrong.
    fn processed(options: &[u8]) -> Result<Vec<u8>, u8> {
        let mut harness = Harness::new(CONFIG);
        harness.give_bytes("give", &with_options(options));
        if let Some(packet) = harness.take("bad").first() {
            assert_eq!((packet.bytes(), harness.read("g.drops")), (&with_options(options)[..], "1".into()));
            return Err(packet.anno_u8(anno::ICMP_PARAMPROB));
        }
        let packet = &harness.take("take")[0];
        assert!(Ip::new(packet.bytes()).unwrap().is_checksum_valid());
        Ok(packet.bytes()[20..20 + options.len()].to_vec())
    }

    // Simulated time begins at 1:46:40 of a day.
    const NOW: [u8; 4] = 6_400_000_u32.to_be_bytes();

    #[test]
    fn a_route_is_recorded_while_there_is_room() {
        assert_eq!(processed(&[7, 7, 4, 0, 0, 0, 0]), Ok(vec![7, 7, 8, 10, 0, 0, 1]));
        assert_eq!(processed(&[1, 7, 7, 8, 1, 2, 3, 4]), Ok(vec![1, 7, 7, 8, 1, 2, 3, 4]));
        assert_eq!(processed(&[7, 11, 8, 1, 2, 3, 4, 0, 0, 0, 0]), Ok(vec![7, 11, 12, 1, 2, 3, 4, 10, 0, 0, 1]));
        for pointer in [0, 1, 3, 5, 7, 9, 255] {
            assert_eq!(processed(&[1, 7, 7, pointer, 0, 0, 0, 0]), Err(23), "{pointer}");
        }
    }

    #[test]
    fn timestamps_are_written_in_each_form() {
        let [a, b, c, d] = NOW;
        assert_eq!(processed(&[68, 8, 5, 0, 0, 0, 0, 0]), Ok(vec![68, 8, 9, 0, a, b, c, d]));
        assert_eq!(processed(&[68, 8, 9, 0x20, 1, 2, 3, 4]), Ok(vec![68, 8, 9, 0x30, 1, 2, 3, 4]));
        let written = [68, 12, 13, 1, 10, 0, 0, 1, a, b, c, d];
        assert_eq!(processed(&[68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0]), Ok(written.to_vec()));
        assert_eq!(processed(&[68, 8, 5, 0xe1, 9, 9, 9, 9]), Ok(vec![68, 8, 5, 0xf1, 9, 9, 9, 9]));
        let asked = |address: [u8; 4]| [&[68, 12, 5, 3][..], &address, &[0; 4]].concat();
        let answered = |address: [u8; 4]| [&[68, 12, 13, 3][..], &address, &NOW].concat();
        for address in [[10, 0, 0, 1], [10, 0, 1, 1], [10, 0, 2, 1]] {
            assert_eq!(processed(&asked(address)), Ok(answered(address)));
        }
        assert_eq!(processed(&asked([10, 0, 3, 1])), Ok(asked([10, 0, 3, 1])));
    }

    #[test]
    fn a_wrong_timestamp_is_told_by_its_byte() {
        for (option, byte) in [
            ([68, 8, 4, 0, 0, 0, 0, 0], 22),
            ([68, 8, 0, 0, 0, 0, 0, 0], 22),
            ([68, 8, 9, 0xf0, 0, 0, 0, 0], 23),
            ([68, 8, 5, 3, 0, 0, 0, 0], 23),
            ([68, 8, 5, 2, 0, 0, 0, 0], 23),
            ([68, 3, 5, 0, 0, 0, 0, 0], 22),
        ] {
            assert_eq!(processed(&option), Err(byte), "{option:?}");
        }
    }

    #[test]
    fn other_options_are_left_alone_and_lengths_checked() {
        let source_route = [131, 7, 4, 1, 2, 3, 4, 0];
        assert_eq!(processed(&source_route), Ok(source_route.to_vec()));
        assert_eq!(processed(&[0, 7, 7, 7]), Ok(vec![0, 7, 7, 7]));
        for (options, byte) in [([131, 1, 0, 0], 21), ([131, 0, 0, 0], 21), ([131, 5, 0, 0], 21), ([1, 1, 1, 7], 24)] {
            assert_eq!(processed(&options), Err(byte), "{options:?}");
        }
    }

    #[test]
    fn the_source_is_fixed_where_it_is_asked_for() {
        let mut harness = Harness::new("give :: Give -> MarkIPHeader -> FixIPSrc(9.8.7.6) -> take :: Take");
        let mut packet = Packet::from_slice(&ip(17, [1; 4], [2; 4], &[]));
        harness.give("give", [packet.clone()]);
        packet.set_anno_u8(anno::FIX_IP_SRC, 1);
        harness.give("give", [packet]);
        let out = harness.take("take");
        let sources: Vec<_> = out.iter().map(|packet| Ip::new(packet.bytes()).unwrap().source().octets()).collect();
        assert_eq!(sources, [[1; 4], [9, 8, 7, 6]]);
        assert!(Ip::new(out[1].bytes()).unwrap().is_checksum_valid());
        assert_eq!(out[1].anno_u8(anno::FIX_IP_SRC), 0);
    }

    #[test]
    fn configurations_that_are_wrong() {
        for (config, told) in [
            ("IPGWOptions", "MYADDR: required argument missing"),
            ("IPGWOptions(1.2.3.4, x)", "OTHERADDRS: type mismatch"),
            ("IPGWOptions(1.2.3.4, 1.2.3.4, 3)", "too many arguments"),
            ("FixIPSrc", "IPADDR: required argument missing"),
            ("FixIPSrc(1.2.3.4, 5)", "too many arguments"),
        ] {
            let log = Harness::errors(&format!("Give -> {config} -> Take"));
            assert!(log.contains(told), "{config}: {log}");
        }
    }

    #[test]
    fn any_options_are_survived() {
        let mut rng = fastrand::Rng::with_seed(bifolio_testing::seed());
        let mut harness = Harness::new(CONFIG);
        for _ in 0..3000 {
            let mut options: Vec<u8> = (0..rng.usize(1..=40)).map(|_| rng.u8(..)).collect();
            options[0] = [7, 68, options[0]][rng.usize(..3)];
            if options.len() > 3 && rng.bool() {
                options[1] = rng.u8(2..=options.len() as u8);
                options[2] = rng.u8(..45);
            }
            harness.give_bytes("give", &with_options(&options));
        }
        let (good, bad) = (harness.take("take"), harness.take("bad"));
        assert_eq!(good.len() + bad.len(), 3000);
        assert!(!good.is_empty() && !bad.is_empty());
        assert!(good.iter().all(|packet| Ip::new(packet.bytes()).unwrap().is_checksum_valid()));
        fuzz("give :: Give -> g :: IPGWOptions(1.2.3.4) -> FixIPSrc(1.2.3.4) -> take :: Take", &["take"]);
    }
}
