//! Link types: what a packet of a file begins with.

use std::fmt;

/// The number that files have for the kind of a packet's first header (`LINKTYPE_`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkType(pub u32);

/// Where a packet's IP header is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkHeader {
    /// Bytes before it.
    pub offset: usize,
    /// 4 or 6.
    pub version: u8,
    /// The header's length in bytes, options of version 4 included.
    pub len: usize,
}

const NAMES: &[(&str, LinkType)] = &[
    ("NULL", LinkType::NULL),
    ("IP", LinkType::RAW),
    ("ETHER", LinkType::ETHERNET),
    ("FDDI", LinkType::FDDI),
    ("ATM", LinkType::ATM),
    ("RFC1483", LinkType::ATM),
    ("ATM_RFC1483", LinkType::ATM),
    ("802_11", LinkType::WIFI),
    ("802.11", LinkType::WIFI),
    ("802_11_RADIO", LinkType::WIFI_RADIO),
    ("802.11_RADIO", LinkType::WIFI_RADIO),
    ("SLL", LinkType::SLL),
    ("AIRONET", LinkType(120)),
    ("HDLC", LinkType::HDLC),
    ("PPP_HDLC", LinkType::PPP_HDLC),
    ("PPP", LinkType::PPP),
    ("SUNATM", LinkType::SUNATM),
    ("PRISM", LinkType::PRISM),
    // Names of ours, for what came after Click's list.
    ("LOOP", LinkType::LOOP),
    ("SLL2", LinkType::SLL2),
];

/// Ethernet types of IP, version 4 and 6, and of a VLAN tag.
const IP4: u16 = 0x0800;
const IP6: u16 = 0x86DD;
const VLAN: u16 = 0x8100;

impl LinkType {
    /// A protocol family in the byte order of the machine that captured, then the packet.
    pub const NULL: Self = Self(0);
    /// Ethernet.
    pub const ETHERNET: Self = Self(1);
    /// PPP, its address and control bytes optional.
    pub const PPP: Self = Self(9);
    /// FDDI.
    pub const FDDI: Self = Self(10);
    /// PPP or Cisco's HDLC.
    pub const PPP_HDLC: Self = Self(50);
    /// ATM after RFC 1483.
    pub const ATM: Self = Self(100);
    /// IP without a link header.
    pub const RAW: Self = Self(101);
    /// Cisco's HDLC.
    pub const HDLC: Self = Self(104);
    /// IEEE 802.11.
    pub const WIFI: Self = Self(105);
    /// As [`LinkType::NULL`], the family in network byte order.
    pub const LOOP: Self = Self(108);
    /// Linux "cooked".
    pub const SLL: Self = Self(113);
    /// IEEE 802.11 behind a Prism header of 144 bytes.
    pub const PRISM: Self = Self(119);
    /// ATM behind four bytes of Sun's.
    pub const SUNATM: Self = Self(123);
    /// IEEE 802.11 behind a radiotap header.
    pub const WIFI_RADIO: Self = Self(127);
    /// IP version 4 without a link header.
    pub const IP4: Self = Self(228);
    /// IP version 6 without a link header.
    pub const IP6: Self = Self(229);
    /// Linux "cooked", second version.
    pub const SLL2: Self = Self(276);

    /// The type for a name such as `ETHER`, or for a number such as `#113`.
    pub fn parse(name: &str) -> Option<Self> {
        if let Some((_, link)) = NAMES.iter().find(|(known, _)| *known == name) {
            return Some(*link);
        }
        let digits = name.strip_prefix('#')?;
        let number: u32 = match digits.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16).ok()?,
            None => digits.parse().ok()?,
        };
        (number < 0x7FFF_FFFF).then_some(Self(number))
    }

    /// The type for the number in a file: the numbers that systems have for raw IP become one.
    pub fn from_file(number: u32) -> Self {
        match number {
            12 | 14 => Self::RAW,
            number => Self(number),
        }
    }

    /// Whether the packets are IP packets without a link header.
    pub fn is_ip(self) -> bool {
        [Self::RAW, Self::IP4, Self::IP6].contains(&self)
    }

    /// Whether [`LinkType::network_header`] knows this type.
    pub fn finds_ip(self) -> bool {
        self != Self(120) && (self.is_ip() || NAMES.iter().any(|(_, link)| *link == self))
    }

    /// Where a packet's IP header is; none where it has none, or not whole.
    pub fn network_header(self, packet: &[u8]) -> Option<NetworkHeader> {
        let offset = self.network_offset(packet)?;
        let header = packet.get(offset..)?;
        match header.first()? >> 4 {
            4 => {
                let len = usize::from(header[0] & 15) * 4;
                (len >= 20 && len <= header.len()).then_some(NetworkHeader { offset, version: 4, len })
            }
            6 if header.len() >= 40 => Some(NetworkHeader { offset, version: 6, len: 40 }),
            _ => None,
        }
    }

    /// Where what should be IP begins, after the link header's word.
    fn network_offset(self, packet: &[u8]) -> Option<usize> {
        match self {
            Self::RAW | Self::IP4 | Self::IP6 => Some(0),
            Self::ETHERNET => Walk { packet, at: 0 }.ethernet(),
            Self::FDDI => Walk { packet, at: 0 }.fddi(),
            Self::ATM => Walk { packet, at: 0 }.llc(),
            Self::SUNATM => Walk { packet, at: 4 }.llc(),
            Self::SLL => is_ip(type_at(packet, 14)?).then_some(16),
            Self::SLL2 => (packet.len() >= 20 && is_ip(type_at(packet, 0)?)).then_some(20),
            Self::HDLC => hdlc(packet),
            Self::PPP_HDLC => match packet.get(..4)? {
                [0xFF, _, 0, 0x21 | 0x57] => Some(4),
                [0x0F | 0x8F, ..] => hdlc(packet),
                _ => None,
            },
            Self::PPP => ppp(packet),
            Self::WIFI => Walk { packet, at: 0 }.wifi(),
            Self::PRISM => Walk { packet, at: 144 }.wifi(),
            Self::WIFI_RADIO => {
                let len = u16::from_le_bytes([*packet.get(2)?, *packet.get(3)?]);
                if len >= 8 { Walk { packet, at: usize::from(len) }.wifi() } else { None }
            }
            Self::NULL | Self::LOOP => family(packet),
            _ => None,
        }
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, link)| link == self) {
            Some((name, _)) => f.write_str(name),
            None if self.is_ip() => f.write_str("IP"),
            None => write!(f, "#{}", self.0),
        }
    }
}

fn is_ip(ether_type: u16) -> bool {
    ether_type == IP4 || ether_type == IP6
}

fn type_at(packet: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]))
}

fn hdlc(packet: &[u8]) -> Option<usize> {
    is_ip(type_at(packet, 2)?).then_some(4)
}

fn ppp(packet: &[u8]) -> Option<usize> {
    let at = if packet.starts_with(&[0xFF, 0x03]) { 2 } else { 0 };
    match packet.get(at..)? {
        [0x21 | 0x57, _, ..] => Some(at + 1),
        [0, 0x21 | 0x57, ..] => Some(at + 2),
        _ => None,
    }
}

/// The family may be in either byte order: it is in that of the machine that captured.
fn family(packet: &[u8]) -> Option<usize> {
    let bytes = packet.get(..4)?;
    let little = u16::from_le_bytes([bytes[0], bytes[1]]);
    let family = if little == 0 { u16::from_be_bytes([bytes[2], bytes[3]]) } else { little };
    // AF_INET everywhere; AF_INET6 of BSD, FreeBSD and Darwin.
    [2, 24, 28, 30].contains(&family).then_some(4)
}

/// Goes through headers that stand inside of each other. Each step goes forward, so it ends with the packet.
struct Walk<'a> {
    packet: &'a [u8],
    at: usize,
}

/// What follows a header of logical link control.
enum Inner {
    Ip(usize),
    Ethernet(usize),
    Fddi(usize),
}

impl Walk<'_> {
    fn ethernet(&self) -> Option<usize> {
        match type_at(self.packet, self.at + 12)? {
            VLAN if is_ip(type_at(self.packet, self.at + 16)?) => Some(self.at + 18),
            kind if is_ip(kind) => Some(self.at + 14),
            _ => None,
        }
    }

    fn fddi(mut self) -> Option<usize> {
        loop {
            // A frame of asynchronous logical link control, whose header is 13 bytes.
            if self.packet.get(self.at)? & 0xF0 != 0x50 || self.packet.len() < self.at + 21 {
                return None;
            }
            self.at += 13;
            match self.inner()? {
                Inner::Ip(at) => return Some(at),
                Inner::Ethernet(at) => return Walk { at, ..self }.ethernet(),
                Inner::Fddi(at) => self.at = at,
            }
        }
    }

    fn llc(self) -> Option<usize> {
        match self.inner()? {
            Inner::Ip(at) => Some(at),
            Inner::Ethernet(at) => Walk { at, ..self }.ethernet(),
            Inner::Fddi(at) => Walk { at, ..self }.fddi(),
        }
    }

    fn wifi(mut self) -> Option<usize> {
        let header = self.packet.get(self.at..self.at.checked_add(24)?)?;
        if header[0] & 0x0C != 0x08 {
            return None;
        }
        self.at += if header[1] & 3 == 3 { 30 } else { 24 };
        self.llc()
    }

    /// What is behind the header of logical link control here.
    fn inner(&self) -> Option<Inner> {
        let header = self.packet.get(self.at..)?;
        let ether_type = type_at(header, 6);
        if header.starts_with(&[0xAA, 0xAA, 3, 0, 0, 0]) && is_ip(ether_type?) {
            return Some(Inner::Ip(self.at + 8));
        }
        if header.len() >= 4 && header.starts_with(&[6, 6]) {
            return Some(Inner::Ip(self.at + 4));
        }
        if !header.starts_with(&[0xAA, 0xAA]) {
            return None;
        }
        match (header.get(3..6)?, ether_type?) {
            // Ethernet, or Cisco's bridging: the type stands where Ethernet's would.
            ([0, 0, 0 | 0xF8], _) => Some(Inner::Ethernet((self.at + 6).checked_sub(12)?)),
            // Bridged after RFC 2684, with and without checksums.
            ([0, 0x80, 0xC2], 1 | 7) => Some(Inner::Ethernet(self.at + 8)),
            ([0, 0x80, 0xC2], 4 | 10) => Some(Inner::Fddi(self.at + 9)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IP: [u8; 20] = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

    fn behind(link: LinkType, header: &[u8]) -> Option<usize> {
        let packet: Vec<u8> = header.iter().copied().chain(IP).collect();
        link.network_header(&packet).map(|header| header.offset)
    }

    #[test]
    fn the_network_header_is_found_behind_each_link_header() {
        let mac = [2u8; 12];
        let ether = |tail: &[u8]| [&mac[..], tail].concat();
        let snap = [0xAA, 0xAA, 3, 0, 0, 0, 8, 0];
        let fddi = [&[0x50][..], &mac].concat();
        let cases: &[(LinkType, Vec<u8>)] = &[
            (LinkType::RAW, vec![]),
            (LinkType::ETHERNET, ether(&[8, 0])),
            (LinkType::ETHERNET, ether(&[0x81, 0, 0, 5, 8, 0])),
            (LinkType::FDDI, [&fddi[..], &snap].concat()),
            (LinkType::ATM, snap.to_vec()),
            (LinkType::ATM, vec![6, 6, 3, 0]),
            (LinkType::ATM, [&[0xAA, 0xAA, 3, 0, 0x80, 0xC2, 0, 7][..], &ether(&[8, 0])].concat()),
            (LinkType::ATM, [&[0xAA, 0xAA, 3, 0, 0x80, 0xC2, 0, 4, 0][..], &fddi, &snap].concat()),
            (LinkType::SUNATM, [&[1, 2, 3, 4][..], &snap].concat()),
            (LinkType::SLL, [&[0; 14][..], &[8, 0]].concat()),
            (LinkType::SLL2, [&[8, 0][..], &[0; 18]].concat()),
            (LinkType::HDLC, vec![0x0F, 0, 8, 0]),
            (LinkType::PPP_HDLC, vec![0xFF, 3, 0, 0x21]),
            (LinkType::PPP_HDLC, vec![0x8F, 0, 8, 0]),
            (LinkType::PPP, vec![0xFF, 3, 0, 0x21]),
            (LinkType::PPP, vec![0x21]),
            (LinkType::NULL, vec![2, 0, 0, 0]),
            (LinkType::NULL, vec![0, 0, 0, 2]),
            (LinkType::LOOP, vec![0, 0, 0, 2]),
            (LinkType::WIFI, [&[8, 0][..], &[0; 22], &snap].concat()),
            (LinkType::WIFI, [&[8, 3][..], &[0; 28], &snap].concat()),
            (LinkType::PRISM, [&[0; 144][..], &[8, 0], &[0; 22], &snap].concat()),
            (LinkType::WIFI_RADIO, [&[0, 0, 8, 0, 0, 0, 0, 0, 8, 0][..], &[0; 22], &snap].concat()),
        ];
        for (link, header) in cases {
            assert_eq!(behind(*link, header), Some(header.len()), "{link} {header:?}");
            assert!(link.finds_ip());
        }
        assert_eq!(behind(LinkType::ETHERNET, &ether(&[8, 6])), None);
        assert!(!LinkType(120).finds_ip() && !LinkType(147).finds_ip());
    }

    #[test]
    fn headers_that_are_not_whole_are_none() {
        for len in 0..20 {
            assert_eq!(LinkType::RAW.network_header(&IP[..len]), None);
        }
        let mut with_options = [0; 24];
        with_options[0] = 0x46;
        assert_eq!(LinkType::RAW.network_header(&with_options[..23]), None);
        let found = NetworkHeader { offset: 0, version: 4, len: 24 };
        assert_eq!(LinkType::RAW.network_header(&with_options), Some(found));
        assert_eq!(LinkType::RAW.network_header(&[0x44; 60]), None);
        assert_eq!(LinkType::RAW.network_header(&[0x60; 39]), None);
        assert_eq!(LinkType::RAW.network_header(&[0x60; 40]).unwrap().version, 6);
    }

    #[test]
    fn names_and_numbers_are_read_as_written() {
        for (name, link) in NAMES {
            assert_eq!(LinkType::parse(name), Some(*link));
            assert_eq!(LinkType::parse(&link.to_string()), Some(*link));
        }
        assert_eq!(LinkType::parse("#147"), Some(LinkType(147)));
        assert_eq!(LinkType(147).to_string(), "#147");
        assert_eq!([LinkType::parse("ether"), LinkType::parse("#"), LinkType::parse("#4294967295")], [None; 3]);
        assert_eq!([LinkType::from_file(12), LinkType::from_file(14)], [LinkType::RAW; 2]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(link in 0u32..300, packet in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Some(found) = LinkType(link).network_header(&packet) {
                prop_assert!(found.offset + found.len <= packet.len());
            }
        }
    }
}
