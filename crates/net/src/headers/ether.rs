//! Ethernet: addresses, the header of 14 bytes, VLAN tags.

use std::fmt;
use std::str::FromStr;

use super::{get16, set16};

/// Bytes of a header without VLAN tags.
pub const LEN: usize = 14;
/// Bytes of a header with one VLAN tag.
pub const VLAN_LEN: usize = 18;

/// The type of IPv4.
pub const TYPE_IP: u16 = 0x0800;
/// The type of ARP.
pub const TYPE_ARP: u16 = 0x0806;
/// The type of IPv6.
pub const TYPE_IP6: u16 = 0x86dd;
/// The type of a VLAN tag (802.1Q).
pub const TYPE_VLAN: u16 = 0x8100;
/// The type of an outer VLAN tag (802.1ad).
pub const TYPE_QINQ: u16 = 0x88a8;

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EtherAddress(pub [u8; 6]);

impl EtherAddress {
    /// The address of everybody.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// The address at a fixed place of a header.
    #[inline]
    pub(super) fn within<const N: usize>(header: &[u8; N], at: usize) -> Self {
        Self(std::array::from_fn(|i| header[at + i]))
    }

    /// Whether this is the address of everybody.
    #[inline]
    pub fn is_broadcast(self) -> bool {
        self == Self::BROADCAST
    }

    /// Whether this is the address of a group; everybody is one.
    #[inline]
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether this address is one given by its user, not by a manufacturer.
    #[inline]
    pub fn is_local(self) -> bool {
        self.0[0] & 2 != 0
    }

    /// The address as a number below 2^48, for hashes and comparisons.
    #[inline]
    pub fn to_bits(self) -> u64 {
        self.0.iter().fold(0, |bits, &byte| bits << 8 | u64::from(byte))
    }

    /// The text with colons, such as `00:11:22:AA:BB:CC`; that of `Display` has dashes, as the standard has.
    pub fn colons(self) -> String {
        self.joined(":")
    }

    fn joined(self, separator: &str) -> String {
        self.0.map(|byte| format!("{byte:02X}")).join(separator)
    }
}

impl From<[u8; 6]> for EtherAddress {
    fn from(bytes: [u8; 6]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for EtherAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.joined("-"))
    }
}

/// A text that is no Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseEtherError;

impl fmt::Display for ParseEtherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid Ethernet address")
    }
}

impl std::error::Error for ParseEtherError {}

impl FromStr for EtherAddress {
    type Err = ParseEtherError;

    /// Six groups of one or two hexadecimal digits, between colons or dashes.
    fn from_str(text: &str) -> Result<Self, ParseEtherError> {
        let mut bytes = [0; 6];
        let mut groups = text.split([':', '-']);
        for byte in &mut bytes {
            *byte = groups.next().and_then(group).ok_or(ParseEtherError)?;
        }
        if groups.next().is_some() { Err(ParseEtherError) } else { Ok(Self(bytes)) }
    }
}

/// One byte of an address; the standard parser would take a sign.
fn group(text: &str) -> Option<u8> {
    let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit()) && text.len() <= 2;
    if digits { u8::from_str_radix(text, 16).ok() } else { None }
}

/// The tag of a VLAN, without its type: priority, drop eligibility and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Vlan(pub u16);

impl Vlan {
    /// A tag of its parts, of which the lower 3, 1 and 12 bits count.
    #[inline]
    pub fn new(priority: u8, drop_eligible: bool, id: u16) -> Self {
        Self(u16::from(priority & 7) << 13 | u16::from(drop_eligible) << 12 | (id & 0xfff))
    }

    /// The number of the VLAN, 0 to 4095.
    #[inline]
    pub fn id(self) -> u16 {
        self.0 & 0xfff
    }

    /// The priority, 0 to 7.
    #[inline]
    pub fn priority(self) -> u8 {
        (self.0 >> 13) as u8
    }

    /// Whether the frame may be dropped first.
    #[inline]
    pub fn drop_eligible(self) -> bool {
        self.0 & 0x1000 != 0
    }
}

/// An Ethernet header, to read.
#[derive(Debug, Clone, Copy)]
pub struct Ether<'a> {
    header: &'a [u8; LEN],
    rest: &'a [u8],
}

impl<'a> Ether<'a> {
    /// The header at the beginning of `frame`.
    #[inline]
    pub fn new(frame: &'a [u8]) -> Option<Self> {
        frame.split_first_chunk().map(|(header, rest)| Self { header, rest })
    }

    /// Whom the frame is for.
    #[inline]
    pub fn destination(self) -> EtherAddress {
        EtherAddress::within(self.header, 0)
    }

    /// Who sent it.
    #[inline]
    pub fn source(self) -> EtherAddress {
        EtherAddress::within(self.header, 6)
    }

    /// The type of what follows; below 1536, the length of an 802.3 frame.
    #[inline]
    pub fn kind(self) -> u16 {
        get16(self.header, 12)
    }

    /// The VLAN tag that follows the addresses (802.1Q), if it is whole.
    #[inline]
    pub fn vlan(self) -> Option<Vlan> {
        let tag = self.rest.first_chunk::<4>().filter(|_| self.kind() == TYPE_VLAN)?;
        Some(Vlan(get16(tag, 0)))
    }

    /// The type behind up to `tags` VLAN tags (802.1Q or 802.1ad), and the length of the header with them.
    #[inline]
    pub fn inner(self, tags: usize) -> (u16, usize) {
        let (mut kind, mut rest, mut len) = (self.kind(), self.rest, LEN);
        for _ in 0..tags {
            let Some((tag, after)) = rest.split_first_chunk::<4>().filter(|_| matches!(kind, TYPE_VLAN | TYPE_QINQ))
            else {
                break;
            };
            (kind, rest, len) = (get16(tag, 2), after, len + 4);
        }
        (kind, len)
    }

    /// What follows the header, tags included.
    #[inline]
    pub fn payload(self) -> &'a [u8] {
        self.rest
    }
}

/// An Ethernet header, to write.
#[derive(Debug)]
pub struct EtherMut<'a> {
    header: &'a mut [u8; LEN],
}

impl<'a> EtherMut<'a> {
    /// The header at the beginning of `frame`.
    #[inline]
    pub fn new(frame: &'a mut [u8]) -> Option<Self> {
        frame.first_chunk_mut().map(|header| Self { header })
    }

    /// The same, to read.
    #[inline]
    pub fn get(&self) -> Ether<'_> {
        Ether { header: self.header, rest: &[] }
    }

    /// Sets whom the frame is for.
    #[inline]
    pub fn set_destination(&mut self, address: EtherAddress) {
        self.header[..6].copy_from_slice(&address.0);
    }

    /// Sets who sends it.
    #[inline]
    pub fn set_source(&mut self, address: EtherAddress) {
        self.header[6..12].copy_from_slice(&address.0);
    }

    /// Sets the type of what follows.
    #[inline]
    pub fn set_kind(&mut self, kind: u16) {
        set16(self.header, 12, kind);
    }

    /// Swaps source and destination.
    #[inline]
    pub fn mirror(&mut self) {
        let (destination, source) = (self.get().destination(), self.get().source());
        self.set_destination(source);
        self.set_source(destination);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_colons_dashes_and_short_groups() {
        let address = EtherAddress([0, 0x11, 0x22, 0xaa, 0xbb, 0xcc]);
        for text in ["00:11:22:AA:BB:CC", "00-11-22-aa-bb-cc", "0:11:22:aA:Bb:cc", "00:11-22:AA-BB:CC"] {
            assert_eq!(text.parse(), Ok(address), "{text}");
        }
        assert_eq!((address.to_string(), address.colons()), ("00-11-22-AA-BB-CC".into(), "00:11:22:AA:BB:CC".into()));
        assert_eq!(address.to_bits(), 0x0011_22aa_bbcc);
        for text in [
            "",
            "1",
            "0:1:2:3:4",
            "0:1:2:3:4:5:6",
            "0:1:2:3:4:",
            "0:1:2:3:4:+5",
            "0:1:2:3:4:123",
            "0:1:2:3:4:5 ",
            "g:1:2:3:4:5",
        ] {
            assert_eq!(text.parse::<EtherAddress>(), Err(ParseEtherError), "{text}");
        }
    }

    #[test]
    fn kinds_of_addresses_are_bits_of_the_first_byte() {
        assert!(EtherAddress::BROADCAST.is_broadcast() && EtherAddress::BROADCAST.is_group());
        let group: EtherAddress = "01:00:5e:00:00:01".parse().unwrap();
        assert!(group.is_group() && !group.is_broadcast() && !group.is_local());
        assert!(EtherAddress([2, 0, 0, 0, 0, 1]).is_local());
    }

    #[test]
    fn a_frame_keeps_what_is_written() {
        let mut frame = [0; 60];
        let mut header = EtherMut::new(&mut frame).unwrap();
        header.set_destination(EtherAddress([1, 2, 3, 4, 5, 6]));
        header.set_source(EtherAddress([7, 8, 9, 10, 11, 12]));
        header.set_kind(TYPE_ARP);
        header.mirror();
        assert_eq!(frame[..14], [7, 8, 9, 10, 11, 12, 1, 2, 3, 4, 5, 6, 8, 6]);
        assert!(Ether::new(&frame[..13]).is_none());
        assert_eq!(Ether::new(&frame).unwrap().payload().len(), 46);
    }

    #[test]
    fn stacked_tags_are_followed_as_far_as_they_go() {
        let mut frame = [0; 26];
        EtherMut::new(&mut frame).unwrap().set_kind(TYPE_QINQ);
        frame[14..18].copy_from_slice(&[0, 1, 0x81, 0]);
        frame[18..22].copy_from_slice(&[0xe5, 2, 0x81, 0]);
        frame[22..26].copy_from_slice(&[0, 3, 8, 0]);
        let header = Ether::new(&frame).unwrap();
        assert_eq!((header.inner(9), header.inner(1)), ((TYPE_IP, 26), (TYPE_VLAN, 18)));
        assert_eq!((header.inner(0), header.vlan()), ((TYPE_QINQ, 14), None));
        assert_eq!(Ether::new(&frame[..25]).unwrap().inner(9), (TYPE_VLAN, 22));
        let tag = Vlan(0xe502);
        assert_eq!((tag.id(), tag.priority(), tag.drop_eligible()), (0x502, 7, false));
        assert_eq!(Vlan::new(7, true, 0xf502), Vlan(0xf502));
    }
}
