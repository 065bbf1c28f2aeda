//! How an IPv4 packet is cut into fragments (RFC 791).
//!
//! The first fragment keeps the packet's header with all options; each other one has those options whose copy bit is set.
//! Options that lie about their lengths end the copying.

use super::ip::{self, DF, Ip, IpMut, LEN, LEN_MAX, MF, OFFSET_MASK};

/// The bit of an option's kind that says that each fragment has it.
const COPIED: u8 = 0x80;

/// Why a packet can't be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uncut {
    /// The header leaves less than 8 bytes for payload.
    MtuTooSmall,
    /// The header's lengths contradict the packet's, or the fragments would end beyond the longest packet.
    Malformed,
}

/// A fragment: a part of the packet's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins in the payload, in bytes; a multiple of 8.
    pub offset: usize,
    /// Its length in bytes; a multiple of 8 but for the last.
    pub len: usize,
}

/// How a packet is cut into fragments of at most a number of bytes.
#[derive(Debug, Clone)]
pub struct Cut {
    mtu: usize,
    first_header_len: usize,
    payload_len: usize,
    /// The header of all fragments but the first.
    header: [u8; LEN_MAX],
    header_len: usize,
    /// Flags and offset of the packet, which may be a fragment itself.
    flags_offset: u16,
}

impl Cut {
    /// A cut of the packet at the beginning of `packet` into fragments of at most `mtu` bytes. "Don't fragment" is for the
    /// caller to heed; fragments do not have it.
    pub fn new(packet: &[u8], mtu: usize) -> Result<Self, Uncut> {
        let ip = Ip::checked(packet).ok_or(Uncut::Malformed)?;
        let (first_header_len, payload_len) = (ip.header_len(), ip.payload().len());
        if mtu < first_header_len + 8 {
            return Err(Uncut::MtuTooSmall);
        }
        if ip.fragment_offset() + payload_len > usize::from(u16::MAX) {
            return Err(Uncut::Malformed);
        }
        let mut header = [0; LEN_MAX];
        header[..LEN].copy_from_slice(&packet[..LEN]);
        let header_len = LEN + copy_options(ip, &mut header[LEN..]);
        let flags_offset = ip.flags_offset() & !DF;
        Ok(Self { mtu, first_header_len, payload_len, header, header_len, flags_offset })
    }

    /// The fragments, in order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + use<> {
        let first = (self.mtu - self.first_header_len) & !7;
        let other = (self.mtu - self.header_len) & !7;
        let end = self.payload_len;
        let mut offset = 0;
        std::iter::from_fn(move || {
            let len = if offset == 0 { first } else { other }.min(end - offset);
            let piece = (len > 0).then_some(Piece { offset, len });
            offset += len;
            piece
        })
    }

    /// Bytes of a fragment's header.
    pub fn header_len(&self, piece: Piece) -> usize {
        if piece.offset == 0 { self.first_header_len } else { self.header_len }
    }

    /// Writes length, flags, offset, `id` and checksum of a fragment to the header of the first one, which stands at the
    /// beginning of `packet` as it was.
    pub fn finish_first(&self, piece: Piece, id: u16, packet: &mut [u8]) {
        self.finish(piece, id, packet);
    }

    /// Writes a fragment which is not the first one to `out`, which is as long as header and piece: its header, with `id`,
    /// and its part of the payload of `packet`.
    pub fn write(&self, piece: Piece, id: u16, packet: &[u8], out: &mut [u8]) {
        let (header, payload) = out.split_at_mut(self.header_len);
        header.copy_from_slice(&self.header[..self.header_len]);
        let begin = self.first_header_len + piece.offset;
        payload.copy_from_slice(&packet[begin..begin + piece.len]);
        self.finish(piece, id, out);
    }

    fn finish(&self, piece: Piece, id: u16, packet: &mut [u8]) {
        let header_len = self.header_len(piece);
        let last = piece.offset + piece.len == self.payload_len;
        let offset = (self.flags_offset & OFFSET_MASK) + (piece.offset / 8) as u16;
        let more = if last { self.flags_offset & MF } else { MF };
        if let Some(mut ip) = IpMut::new(packet) {
            ip.set_header_len(header_len);
            ip.set_total_len((header_len + piece.len) as u16);
            ip.set_id(id);
            ip.set_flags_offset(self.flags_offset & ip::RF | more | offset);
        }
        ip::set_checksum(packet);
    }
}

/// Copies the options that each fragment has, and ends them at a multiple of 4 bytes; how many bytes that is.
fn copy_options(ip: Ip<'_>, to: &mut [u8]) -> usize {
    let mut len = 0;
    for option in ip.options().map_while(Result::ok).filter(|option| option.kind() & COPIED != 0) {
        to[len..len + option.bytes.len()].copy_from_slice(option.bytes);
        len += option.bytes.len();
    }
    len.next_multiple_of(4)
}

#[cfg(test)]
pub(super) mod tests {
    use bifolio_testing::{noise, seed};

    use super::*;

    /// All fragments of a packet.
    pub(in crate::headers) fn cut(packet: &[u8], mtu: usize) -> Result<Vec<Vec<u8>>, Uncut> {
        let cut = Cut::new(packet, mtu)?;
        let id = Ip::new(packet).unwrap().id();
        let fragments = cut.pieces().map(|piece| {
            let mut out = vec![0xee; cut.header_len(piece) + piece.len];
            if piece.offset == 0 {
                out.copy_from_slice(&packet[..cut.header_len(piece) + piece.len]);
                cut.finish_first(piece, id, &mut out);
            } else {
                cut.write(piece, id, packet, &mut out);
            }
            out
        });
        Ok(fragments.collect())
    }

    /// A packet with these options and this payload.
    pub(in crate::headers) fn packet(flags_offset: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut packet = [&[0; LEN][..], options, payload].concat();
        let len = packet.len() as u16;
        let mut ip = IpMut::new(&mut packet).unwrap();
        ip.clear(LEN + options.len());
        ip.set_total_len(len);
        ip.set_id(0x1234);
        ip.set_ttl(64);
        ip.set_flags_offset(flags_offset);
        ip::set_checksum(&mut packet);
        packet
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<_> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    #[test]
    fn options_are_not_copied_without_their_bit() {
        let rest = "001e0028 00000000 00000000 50000000 8f550000";
        for (options, first, sum) in [("01010000", "1486", "3482"), ("02000000", "1387", "3383")] {
            let packet = bytes(&format!("4600002c00000000 6406{sum} 121a042c 0a000004 {options} {rest}"));
            let expected = [
                format!("4600002800002000 6406{first} 121a042c 0a000004 {options} {}", &rest[..36]),
                "4500001800000002 64063695 121a042c 0a000004 8f550000".into(),
            ];
            assert_eq!(cut(&packet, 40).unwrap(), expected.map(|hex| bytes(&hex)));
        }
    }

    #[test]
    fn copied_options_are_in_each_fragment() {
        // A timestamp, which is not copied, around a router alert, which is.
        let options = [68, 4, 5, 0, 148, 4, 0, 0, 68, 4, 5, 0];
        let fragments = cut(&packet(0, &options, &[7; 64]), 56).unwrap();
        assert_eq!(fragments.iter().map(Vec::len).collect::<Vec<_>>(), [56, 56, 32]);
        for fragment in &fragments[1..] {
            assert_eq!(Ip::checked(fragment).unwrap().options().as_bytes(), [148, 4, 0, 0]);
        }
        assert_eq!(Ip::checked(&fragments[0]).unwrap().options().as_bytes(), options);
    }

    #[test]
    fn what_cannot_be_cut_is_told() {
        assert_eq!(cut(&packet(0, &[], &[0; 100]), 27), Err(Uncut::MtuTooSmall));
        assert_eq!(cut(&packet(0, &[], &[0; 100]), 28).unwrap().len(), 13);
        assert_eq!(cut(&packet(0, &[1; 4], &[0; 100]), 31), Err(Uncut::MtuTooSmall));
        assert_eq!(cut(&packet(MF | OFFSET_MASK, &[], &[0; 100]), 60), Err(Uncut::Malformed));
        assert_eq!(cut(&packet(0, &[], &[0; 100])[..119], 60), Err(Uncut::Malformed));
        assert_eq!(cut(&[0x45; 10], 60), Err(Uncut::Malformed));
    }

    #[test]
    fn fragments_of_fragments_are_those_of_the_packet() {
        let mut rng = fastrand::Rng::with_seed(seed());
        for _ in 0..2000 {
            let options = vec![ip::OPT_LSRR; rng.usize(..5) * 4];
            let payload = noise(rng.usize(1..3000), rng.u64(..));
            let whole = packet(DF, &options, &payload);
            let mut pieces = vec![whole];
            for _ in 0..rng.u8(1..4) {
                let mtu = rng.usize(68..1000);
                pieces = pieces.iter().flat_map(|piece| cut(piece, mtu).unwrap()).collect();
                assert!(
                    pieces.iter().all(|piece| piece.len() <= mtu && Ip::checked(piece).unwrap().is_checksum_valid())
                );
            }
            let mut end = 0;
            for (i, piece) in pieces.iter().enumerate() {
                let ip = Ip::checked(piece).unwrap();
                assert_eq!((ip.fragment_offset(), ip.payload()), (end, &payload[end..end + ip.payload().len()]));
                end += ip.payload().len();
                assert_eq!((ip.more_fragments(), ip.dont_fragment()), (i + 1 < pieces.len(), false));
            }
            assert_eq!(end, payload.len());
        }
    }

    #[test]
    fn any_bytes_are_survived() {
        let mut rng = fastrand::Rng::with_seed(seed());
        for _ in 0..20_000 {
            let mut bytes = noise(rng.usize(..200), rng.u64(..));
            if bytes.len() > 4 {
                bytes[0] = 0x40 | rng.u8(5..16);
                bytes[2] = 0;
            }
            if let Ok(fragments) = cut(&bytes, rng.usize(..120)) {
                assert!(fragments.iter().all(|fragment| Ip::checked(fragment).is_some()));
            }
        }
    }
}
