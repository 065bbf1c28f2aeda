//! TCP: the header of 20 to 60 bytes.

use super::options::Options;
use super::{get16, get32, set16, set32};

/// Bytes of a header without options.
pub const LEN: usize = 20;

/// The flag that ends a flow in one direction.
pub const FIN: u8 = 1;
/// The flag that begins a flow.
pub const SYN: u8 = 2;
/// The flag that ends a flow at once.
pub const RST: u8 = 4;
/// The flag that asks for data to be handed on.
pub const PSH: u8 = 8;
/// The flag that says that the acknowledgement counts.
pub const ACK: u8 = 16;
/// The flag that says that the urgent pointer counts.
pub const URG: u8 = 32;
/// ECN echo.
pub const ECE: u8 = 64;
/// Congestion window reduced.
pub const CWR: u8 = 128;

/// The option with the largest segment.
pub const OPT_MSS: u8 = 2;
/// The option with the window's scale.
pub const OPT_WSCALE: u8 = 3;
/// The option that permits selective acknowledgements.
pub const OPT_SACK_PERMITTED: u8 = 4;
/// The option with selective acknowledgements.
pub const OPT_SACK: u8 = 5;
/// The option with timestamps.
pub const OPT_TIMESTAMP: u8 = 8;

/// A TCP header, to read.
#[derive(Debug, Clone, Copy)]
pub struct Tcp<'a> {
    header: &'a [u8; LEN],
    rest: &'a [u8],
}

impl<'a> Tcp<'a> {
    /// The header at the beginning of `segment`.
    #[inline]
    pub fn new(segment: &'a [u8]) -> Option<Self> {
        segment.split_first_chunk().map(|(header, rest)| Self { header, rest })
    }

    /// The port of who sent it.
    #[inline]
    pub fn source(self) -> u16 {
        get16(self.header, 0)
    }

    /// The port of whom it is for.
    #[inline]
    pub fn destination(self) -> u16 {
        get16(self.header, 2)
    }

    /// The sequence number of the first byte of data.
    #[inline]
    pub fn sequence(self) -> u32 {
        get32(self.header, 4)
    }

    /// The sequence number that is expected next.
    #[inline]
    pub fn acknowledgement(self) -> u32 {
        get32(self.header, 8)
    }

    /// Bytes of the header, as it says: a multiple of 4 up to 60, below 20 in a header that lies.
    #[inline]
    pub fn header_len(self) -> usize {
        usize::from(self.header[12] >> 4) * 4
    }

    /// The flags, such as [`SYN`].
    #[inline]
    pub fn flags(self) -> u8 {
        self.header[13]
    }

    /// Whether one of `flags` is set.
    #[inline]
    pub fn has(self, flags: u8) -> bool {
        self.flags() & flags != 0
    }

    /// The window, not scaled.
    #[inline]
    pub fn window(self) -> u16 {
        get16(self.header, 14)
    }

    /// The checksum of pseudo-header, header and data.
    #[inline]
    pub fn checksum(self) -> u16 {
        get16(self.header, 16)
    }

    /// The urgent pointer.
    #[inline]
    pub fn urgent(self) -> u16 {
        get16(self.header, 18)
    }

    /// The options, without what the header says that it has and that isn't there.
    #[inline]
    pub fn options(self) -> Options<'a> {
        let len = self.header_len().saturating_sub(LEN).min(self.rest.len());
        Options::new(&self.rest[..len])
    }

    /// What follows the header; empty where the header isn't all there.
    #[inline]
    pub fn payload(self) -> &'a [u8] {
        self.rest.get(self.header_len().saturating_sub(LEN)..).unwrap_or_default()
    }
}

/// A TCP header, to write.
#[derive(Debug)]
pub struct TcpMut<'a> {
    header: &'a mut [u8; LEN],
}

impl<'a> TcpMut<'a> {
    /// The header at the beginning of `segment`.
    #[inline]
    pub fn new(segment: &'a mut [u8]) -> Option<Self> {
        segment.first_chunk_mut().map(|header| Self { header })
    }

    /// The same, to read; without options and data.
    #[inline]
    pub fn get(&self) -> Tcp<'_> {
        Tcp { header: self.header, rest: &[] }
    }

    /// Sets the port of who sends it.
    #[inline]
    pub fn set_source(&mut self, port: u16) {
        set16(self.header, 0, port);
    }

    /// Sets the port of whom it is for.
    #[inline]
    pub fn set_destination(&mut self, port: u16) {
        set16(self.header, 2, port);
    }

    /// Sets the sequence number.
    #[inline]
    pub fn set_sequence(&mut self, sequence: u32) {
        set32(self.header, 4, sequence);
    }

    /// Sets the acknowledged sequence number.
    #[inline]
    pub fn set_acknowledgement(&mut self, sequence: u32) {
        set32(self.header, 8, sequence);
    }

    /// Sets the header's length in bytes, a multiple of 4 from 20 to 60; the reserved bits become 0.
    #[inline]
    pub fn set_header_len(&mut self, len: usize) {
        self.header[12] = ((len / 4) as u8) << 4;
    }

    /// Sets the flags.
    #[inline]
    pub fn set_flags(&mut self, flags: u8) {
        self.header[13] = flags;
    }

    /// Sets the window.
    #[inline]
    pub fn set_window(&mut self, window: u16) {
        set16(self.header, 14, window);
    }

    /// Sets the checksum's field.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        set16(self.header, 16, checksum);
    }

    /// Sets the urgent pointer.
    #[inline]
    pub fn set_urgent(&mut self, urgent: u16) {
        set16(self.header, 18, urgent);
    }
}

#[cfg(test)]
mod tests {
    use bifolio_testing::{noise, seed};

    use super::*;

    #[test]
    fn a_header_keeps_what_is_written() {
        let mut segment = [0xee; 30];
        segment[20..24].copy_from_slice(&[2, 4, 5, 0xb4]);
        let mut tcp = TcpMut::new(&mut segment).unwrap();
        tcp.set_source(1024);
        tcp.set_destination(80);
        tcp.set_sequence(0x0102_0304);
        tcp.set_acknowledgement(0x0506_0708);
        tcp.set_header_len(24);
        tcp.set_flags(SYN | ACK);
        tcp.set_window(0x1234);
        tcp.set_checksum(0x5678);
        tcp.set_urgent(0x9abc);
        let tcp = Tcp::new(&segment).unwrap();
        assert_eq!((tcp.source(), tcp.destination(), tcp.header_len()), (1024, 80, 24));
        assert_eq!((tcp.sequence(), tcp.acknowledgement()), (0x0102_0304, 0x0506_0708));
        assert_eq!((tcp.flags(), tcp.has(SYN), tcp.has(FIN | RST)), (0x12, true, false));
        assert_eq!((tcp.window(), tcp.checksum(), tcp.urgent()), (0x1234, 0x5678, 0x9abc));
        assert_eq!((tcp.options().as_bytes(), tcp.payload()), (&[2, 4, 5, 0xb4][..], &[0xee; 6][..]));
    }

    #[test]
    fn any_bytes_are_survived() {
        let mut rng = fastrand::Rng::with_seed(seed());
        for _ in 0..5000 {
            let segment = noise(rng.usize(..80), rng.u64(..));
            let Some(tcp) = Tcp::new(&segment) else {
                assert!(segment.len() < LEN);
                continue;
            };
            let len = tcp.header_len().max(LEN).min(segment.len());
            assert_eq!(tcp.options().as_bytes(), &segment[LEN..len]);
            assert_eq!(tcp.payload(), &segment[len..]);
            tcp.options().for_each(drop);
        }
    }
}
