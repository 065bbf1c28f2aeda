//! IPv4: the header of 20 to 60 bytes.

use std::net::Ipv4Addr;

use super::options::Options;
use super::{checksum, get16, get32, set16, set32};

/// Bytes of a header without options.
pub const LEN: usize = 20;
/// Bytes of a header with all options that fit.
pub const LEN_MAX: usize = 60;

/// ICMP.
pub const PROTOCOL_ICMP: u8 = 1;
/// IP in IP.
pub const PROTOCOL_IP: u8 = 4;
/// TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// DCCP, whose ports are where those of UDP are.
pub const PROTOCOL_DCCP: u8 = 33;

/// The bit that must be 0, in flags and offset together.
pub const RF: u16 = 0x8000;
/// "Don't fragment", in flags and offset together.
pub const DF: u16 = 0x4000;
/// "More fragments", in flags and offset together.
pub const MF: u16 = 0x2000;
/// The offset in units of 8 bytes, in flags and offset together.
pub const OFFSET_MASK: u16 = 0x1fff;

/// ECN: not capable of it.
pub const ECN_NOT_ECT: u8 = 0;
/// ECN: capable, second code.
pub const ECN_ECT1: u8 = 1;
/// ECN: capable, first code.
pub const ECN_ECT2: u8 = 2;
/// ECN: congestion experienced.
pub const ECN_CE: u8 = 3;

/// The option "record route".
pub const OPT_RR: u8 = 7;
/// The option "timestamp".
pub const OPT_TS: u8 = 68;
/// The option "loose source route".
pub const OPT_LSRR: u8 = 131;
/// The option "strict source route".
pub const OPT_SSRR: u8 = 137;
/// The option "router alert".
pub const OPT_RA: u8 = 148;

/// An IPv4 header, to read.
#[derive(Debug, Clone, Copy)]
pub struct Ip<'a> {
    header: &'a [u8; LEN],
    rest: &'a [u8],
}

impl<'a> Ip<'a> {
    /// The header at the beginning of `packet`.
    #[inline]
    pub fn new(packet: &'a [u8]) -> Option<Self> {
        packet.split_first_chunk().map(|(header, rest)| Self { header, rest })
    }

    /// The header at the beginning of `packet`, if its lengths are true: version 4, a header of at least 20 bytes which is
    /// no longer than the packet says that it is, and a packet that is all there. Checksums are left alone.
    #[inline]
    pub fn checked(packet: &'a [u8]) -> Option<Self> {
        let ip = Self::new(packet)?;
        let (header_len, total_len) = (ip.header_len(), usize::from(ip.total_len()));
        let sound = ip.version() == 4 && header_len >= LEN && header_len <= total_len && total_len <= packet.len();
        sound.then_some(ip)
    }

    /// The version; 4 for what this is about.
    #[inline]
    pub fn version(self) -> u8 {
        self.header[0] >> 4
    }

    /// Bytes of the header, as it says: a multiple of 4 up to 60, below 20 in a header that lies.
    #[inline]
    pub fn header_len(self) -> usize {
        usize::from(self.header[0] & 15) * 4
    }

    /// The type of service: DSCP and ECN.
    #[inline]
    pub fn tos(self) -> u8 {
        self.header[1]
    }

    /// The differentiated services code point, 0 to 63.
    #[inline]
    pub fn dscp(self) -> u8 {
        self.tos() >> 2
    }

    /// The ECN bits, such as [`ECN_CE`].
    #[inline]
    pub fn ecn(self) -> u8 {
        self.tos() & 3
    }

    /// Bytes of header and payload, as the header says.
    #[inline]
    pub fn total_len(self) -> u16 {
        get16(self.header, 2)
    }

    /// What the fragments of a packet have in common.
    #[inline]
    pub fn id(self) -> u16 {
        get16(self.header, 4)
    }

    /// Flags and fragment offset together: [`RF`], [`DF`], [`MF`], [`OFFSET_MASK`].
    #[inline]
    pub fn flags_offset(self) -> u16 {
        get16(self.header, 6)
    }

    /// Whether it must not be fragmented.
    #[inline]
    pub fn dont_fragment(self) -> bool {
        self.flags_offset() & DF != 0
    }

    /// Whether fragments follow.
    #[inline]
    pub fn more_fragments(self) -> bool {
        self.flags_offset() & MF != 0
    }

    /// Where the fragment's payload begins in the packet's, in bytes.
    #[inline]
    pub fn fragment_offset(self) -> usize {
        usize::from(self.flags_offset() & OFFSET_MASK) * 8
    }

    /// Whether this is a fragment, the first or another.
    #[inline]
    pub fn is_fragment(self) -> bool {
        self.flags_offset() & (MF | OFFSET_MASK) != 0
    }

    /// Whether the payload begins with the header of the transport: it is no fragment, or the first one.
    #[inline]
    pub fn is_first_fragment(self) -> bool {
        self.flags_offset() & OFFSET_MASK == 0
    }

    /// The time to live, in hops.
    #[inline]
    pub fn ttl(self) -> u8 {
        self.header[8]
    }

    /// The protocol of the payload, such as [`PROTOCOL_TCP`].
    #[inline]
    pub fn protocol(self) -> u8 {
        self.header[9]
    }

    /// The checksum of the header.
    #[inline]
    pub fn checksum(self) -> u16 {
        get16(self.header, 10)
    }

    /// Who sent it.
    #[inline]
    pub fn source(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(get32(self.header, 12))
    }

    /// Whom it is for.
    #[inline]
    pub fn destination(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(get32(self.header, 16))
    }

    /// The options, without what the header says that it has and that isn't there.
    #[inline]
    pub fn options(self) -> Options<'a> {
        let len = self.header_len().saturating_sub(LEN).min(self.rest.len());
        Options::new(&self.rest[..len])
    }

    /// What follows the header, up to the length that the header says or to the end of what is there; empty where the
    /// header's lengths contradict each other. A header of less than 20 bytes counts as 20.
    #[inline]
    pub fn payload(self) -> &'a [u8] {
        let begin = self.header_len().saturating_sub(LEN);
        let end = usize::from(self.total_len()).saturating_sub(LEN).min(self.rest.len());
        self.rest.get(begin..end).unwrap_or_default()
    }

    /// Whether the header is all there and its checksum is right.
    #[inline]
    pub fn is_checksum_valid(self) -> bool {
        match self.header_len() {
            LEN => checksum::is_valid20(self.header),
            len => self
                .rest
                .get(..len.wrapping_sub(LEN))
                .is_some_and(|options| checksum::Sum::default().with(self.header).with(options).folded() == 0xffff),
        }
    }
}

/// An IPv4 header, to write. Its checksum has to be set afterwards, see [`set_checksum`], or is adjusted where the method
/// says so.
#[derive(Debug)]
pub struct IpMut<'a> {
    header: &'a mut [u8; LEN],
}

impl<'a> IpMut<'a> {
    /// The header at the beginning of `packet`.
    #[inline]
    pub fn new(packet: &'a mut [u8]) -> Option<Self> {
        packet.first_chunk_mut().map(|header| Self { header })
    }

    /// The same, to read; without options and payload.
    #[inline]
    pub fn get(&self) -> Ip<'_> {
        Ip { header: self.header, rest: &[] }
    }

    /// Zeros, but for version 4 and the header's length in bytes, a multiple of 4 from 20 to 60.
    #[inline]
    pub fn clear(&mut self, header_len: usize) {
        *self.header = [0; LEN];
        self.set_header_len(header_len);
    }

    /// Sets version 4 and the header's length in bytes, a multiple of 4 from 20 to 60.
    #[inline]
    pub fn set_header_len(&mut self, len: usize) {
        self.header[0] = 0x40 | (len / 4) as u8 & 15;
    }

    /// Sets the type of service: DSCP and ECN.
    #[inline]
    pub fn set_tos(&mut self, tos: u8) {
        self.header[1] = tos;
    }

    /// Sets the type of service and adjusts the checksum.
    #[inline]
    pub fn change_tos(&mut self, tos: u8) {
        let old = get16(self.header, 0);
        self.set_tos(tos);
        self.adjust16(old, get16(self.header, 0));
    }

    /// Sets the bytes of header and payload.
    #[inline]
    pub fn set_total_len(&mut self, len: u16) {
        set16(self.header, 2, len);
    }

    /// Sets what fragments have in common.
    #[inline]
    pub fn set_id(&mut self, id: u16) {
        set16(self.header, 4, id);
    }

    /// Sets flags and fragment offset together.
    #[inline]
    pub fn set_flags_offset(&mut self, value: u16) {
        set16(self.header, 6, value);
    }

    /// Sets the time to live.
    #[inline]
    pub fn set_ttl(&mut self, ttl: u8) {
        self.header[8] = ttl;
    }

    /// Takes one off the time to live, which is not 0, and adjusts the checksum.
    #[inline]
    pub fn decrement_ttl(&mut self) {
        debug_assert_ne!(self.header[8], 0, "a time to live that is over");
        let sum = checksum::after_decrement(get16(self.header, 10));
        self.header[8] = self.header[8].wrapping_sub(1);
        self.set_checksum(sum);
    }

    /// Sets the protocol of the payload.
    #[inline]
    pub fn set_protocol(&mut self, protocol: u8) {
        self.header[9] = protocol;
    }

    /// Sets the checksum's field.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        set16(self.header, 10, checksum);
    }

    /// Sets who sends it.
    #[inline]
    pub fn set_source(&mut self, address: Ipv4Addr) {
        set32(self.header, 12, address.to_bits());
    }

    /// Sets whom it is for.
    #[inline]
    pub fn set_destination(&mut self, address: Ipv4Addr) {
        set32(self.header, 16, address.to_bits());
    }

    /// Sets who sends it and adjusts the checksum.
    #[inline]
    pub fn change_source(&mut self, address: Ipv4Addr) {
        let old = get32(self.header, 12);
        self.set_source(address);
        self.adjust32(old, address.to_bits());
    }

    /// Sets whom it is for and adjusts the checksum.
    #[inline]
    pub fn change_destination(&mut self, address: Ipv4Addr) {
        let old = get32(self.header, 16);
        self.set_destination(address);
        self.adjust32(old, address.to_bits());
    }

    #[inline]
    fn adjust16(&mut self, old: u16, new: u16) {
        self.set_checksum(checksum::adjust16(get16(self.header, 10), old, new));
    }

    #[inline]
    fn adjust32(&mut self, old: u32, new: u32) {
        self.set_checksum(checksum::adjust32(get16(self.header, 10), old, new));
    }
}

/// Sets the checksum of the header at the beginning of `packet`, options included; `None`, and nothing is written, where
/// the header isn't all there or says that it has less than 20 bytes.
#[inline]
pub fn set_checksum(packet: &mut [u8]) -> Option<()> {
    let len = Ip::new(packet)?.header_len();
    let header = packet.get_mut(..len).filter(|_| len >= LEN)?;
    header[10..12].fill(0);
    let checksum = checksum::internet(header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use bifolio_testing::{noise, seed};

    use super::*;

    fn sample() -> Vec<u8> {
        let mut packet = vec![0xee; 40];
        let mut ip = IpMut::new(&mut packet).unwrap();
        ip.clear(24);
        ip.set_tos(0xb9);
        ip.set_total_len(36);
        ip.set_id(0x1234);
        ip.set_flags_offset(MF | 3);
        ip.set_ttl(64);
        ip.set_protocol(PROTOCOL_UDP);
        ip.set_source(Ipv4Addr::new(10, 0, 0, 1));
        ip.set_destination(Ipv4Addr::new(18, 26, 4, 9));
        packet[20..24].copy_from_slice(&[1, 148, 3, 7]);
        set_checksum(&mut packet).unwrap();
        packet
    }

    #[test]
    fn a_header_keeps_what_is_written() {
        let packet = sample();
        let ip = Ip::checked(&packet).unwrap();
        assert_eq!((ip.version(), ip.header_len(), ip.tos(), ip.dscp(), ip.ecn()), (4, 24, 0xb9, 46, ECN_ECT1));
        assert_eq!((ip.total_len(), ip.id(), ip.ttl(), ip.protocol()), (36, 0x1234, 64, 17));
        assert!(ip.more_fragments() && !ip.dont_fragment() && ip.is_fragment() && !ip.is_first_fragment());
        assert_eq!((ip.flags_offset(), ip.fragment_offset()), (0x2003, 24));
        assert_eq!((ip.source().octets(), ip.destination().octets()), ([10, 0, 0, 1], [18, 26, 4, 9]));
        assert_eq!(ip.options().map(|opt| opt.unwrap().kind()).collect::<Vec<_>>(), [1, OPT_RA]);
        assert_eq!(ip.payload(), [0xee; 12]);
        assert!(ip.is_checksum_valid());
    }

    #[test]
    fn methods_that_change_a_field_keep_the_checksum_right() {
        let mut rng = fastrand::Rng::with_seed(seed());
        let mut packet = sample();
        for _ in 0..5000 {
            let mut ip = IpMut::new(&mut packet).unwrap();
            match rng.u8(..4) {
                0 => ip.change_tos(rng.u8(..)),
                1 if ip.get().ttl() > 0 => ip.decrement_ttl(),
                2 => ip.change_source(Ipv4Addr::from_bits(rng.u32(..))),
                _ => ip.change_destination(Ipv4Addr::from_bits(rng.u32(..))),
            }
            assert!(Ip::new(&packet).unwrap().is_checksum_valid());
            let kept = packet.clone();
            set_checksum(&mut packet).unwrap();
            assert_eq!(packet, kept);
        }
    }

    #[test]
    fn any_bytes_are_survived() {
        let mut rng = fastrand::Rng::with_seed(seed());
        for _ in 0..20_000 {
            let mut packet = noise(rng.usize(..80), rng.u64(..));
            if let Some(first) = packet.first_mut().filter(|_| rng.bool()) {
                *first = 0x40 | *first & 15;
            }
            if packet.len() > 3 && rng.bool() {
                packet[2] = 0;
            }
            let Some(ip) = Ip::new(&packet) else {
                assert!(packet.len() < LEN && Ip::checked(&packet).is_none() && set_checksum(&mut packet).is_none());
                continue;
            };
            ip.options().for_each(drop);
            let payload = ip.payload();
            assert!(
                payload.is_empty()
                    || payload.len() == usize::from(ip.total_len()).min(packet.len()) - ip.header_len().max(LEN)
            );
            if Ip::checked(&packet).is_some() {
                assert_eq!(payload.len(), usize::from(ip.total_len()) - ip.header_len());
            }
            let (valid, whole) = (ip.is_checksum_valid(), ip.header_len() >= LEN && ip.header_len() <= packet.len());
            assert!(!valid || whole);
            assert_eq!(set_checksum(&mut packet).is_some(), whole);
            assert_eq!(Ip::new(&packet).unwrap().is_checksum_valid(), whole);
        }
    }
}
