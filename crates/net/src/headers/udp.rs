//! UDP: the header of 8 bytes.

use super::{get16, set16};

/// Bytes of the header.
pub const LEN: usize = 8;

/// A UDP header, to read.
#[derive(Debug, Clone, Copy)]
pub struct Udp<'a> {
    header: &'a [u8; LEN],
    rest: &'a [u8],
}

impl<'a> Udp<'a> {
    /// The header at the beginning of `datagram`.
    #[inline]
    pub fn new(datagram: &'a [u8]) -> Option<Self> {
        datagram.split_first_chunk().map(|(header, rest)| Self { header, rest })
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

    /// Bytes of header and data, as the header says.
    #[inline]
    pub fn total_len(self) -> u16 {
        get16(self.header, 4)
    }

    /// The checksum of pseudo-header, header and data; 0 where there is none.
    #[inline]
    pub fn checksum(self) -> u16 {
        get16(self.header, 6)
    }

    /// The data, up to the length that the header says or to the end of what is there.
    #[inline]
    pub fn payload(self) -> &'a [u8] {
        let len = usize::from(self.total_len()).saturating_sub(LEN).min(self.rest.len());
        &self.rest[..len]
    }
}

/// A UDP header, to write.
#[derive(Debug)]
pub struct UdpMut<'a> {
    header: &'a mut [u8; LEN],
}

impl<'a> UdpMut<'a> {
    /// The header at the beginning of `datagram`.
    #[inline]
    pub fn new(datagram: &'a mut [u8]) -> Option<Self> {
        datagram.first_chunk_mut().map(|header| Self { header })
    }

    /// The same, to read; without the data.
    #[inline]
    pub fn get(&self) -> Udp<'_> {
        Udp { header: self.header, rest: &[] }
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

    /// Sets the bytes of header and data.
    #[inline]
    pub fn set_total_len(&mut self, len: u16) {
        set16(self.header, 4, len);
    }

    /// Sets the checksum's field.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        set16(self.header, 6, checksum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_keeps_what_is_written() {
        let mut datagram = [0xee; 12];
        let mut udp = UdpMut::new(&mut datagram).unwrap();
        udp.set_source(1024);
        udp.set_destination(53);
        udp.set_total_len(11);
        udp.set_checksum(0xabcd);
        let udp = Udp::new(&datagram).unwrap();
        assert_eq!((udp.source(), udp.destination(), udp.total_len(), udp.checksum()), (1024, 53, 11, 0xabcd));
        assert_eq!(udp.payload(), [0xee; 3]);
        for (len, expected) in [(0, 0), (7, 0), (8, 0), (9, 1), (12, 4), (13, 4), (0xffff, 4)] {
            UdpMut::new(&mut datagram).unwrap().set_total_len(len);
            assert_eq!(Udp::new(&datagram).unwrap().payload().len(), expected, "{len}");
        }
        assert!(Udp::new(&datagram[..7]).is_none());
    }
}
