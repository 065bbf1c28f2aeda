//! Where a packet's headers are: what elements have found out about it, for those that follow.

use super::{Meta, NOWHERE, Packet};

impl Packet {
    #[inline]
    fn tail(&self, at: u32) -> Option<&[u8]> {
        let meta = &**self.0;
        let end = meta.start + meta.len;
        (at <= end).then(|| meta.buffer.part(at, end - at))
    }

    #[inline]
    fn tail_mut(&mut self, at: impl Fn(&Meta) -> u32) -> Option<&mut [u8]> {
        self.own();
        let meta = &mut **self.0;
        let (at, end) = (at(meta), meta.start + meta.len);
        (at <= end).then(|| meta.buffer.part_mut(at, end - at))
    }

    /// From the link layer's header to the end of the data.
    pub fn mac_header(&self) -> Option<&[u8]> {
        self.tail(self.0.mac)
    }

    /// The same, for writing.
    pub fn mac_header_mut(&mut self) -> Option<&mut [u8]> {
        self.tail_mut(|meta| meta.mac)
    }

    /// From the network layer's header to the end of the data; an IP header there has been checked for its length.
    #[inline]
    pub fn network_header(&self) -> Option<&[u8]> {
        self.tail(self.0.network)
    }

    /// The same, for writing.
    #[inline]
    pub fn network_header_mut(&mut self) -> Option<&mut [u8]> {
        self.tail_mut(|meta| meta.network)
    }

    /// From the transport layer's header to the end of the data.
    #[inline]
    pub fn transport_header(&self) -> Option<&[u8]> {
        self.tail(self.0.transport)
    }

    /// The same, for writing.
    pub fn transport_header_mut(&mut self) -> Option<&mut [u8]> {
        self.tail_mut(|meta| meta.transport)
    }

    /// Length of the network layer's header, as whoever marked it said: from it to the transport layer's.
    #[inline]
    pub fn network_header_len(&self) -> usize {
        let meta = &**self.0;
        if meta.network == NOWHERE || meta.transport == NOWHERE {
            return 0;
        }
        meta.transport.saturating_sub(meta.network) as usize
    }

    fn relative(&self, at: u32) -> Option<isize> {
        (at != NOWHERE).then(|| at as isize - self.0.start as isize)
    }

    /// Where the link layer's header is, counted from the data's beginning; negative where it was pulled.
    pub fn mac_offset(&self) -> Option<isize> {
        self.relative(self.0.mac)
    }

    /// Where the network layer's header is, likewise.
    pub fn network_offset(&self) -> Option<isize> {
        self.relative(self.0.network)
    }

    /// Where the transport layer's header is, likewise.
    pub fn transport_offset(&self) -> Option<isize> {
        self.relative(self.0.transport)
    }

    #[inline]
    fn absolute(&self, offset: isize) -> u32 {
        // Before the buffer is beyond it, too; and what lies before the packet's own bytes is no header of it.
        let at = (self.0.start as isize + offset) as usize;
        if at > self.0.buffer.capacity() || at < self.0.low as usize { NOWHERE } else { at as u32 }
    }

    /// The link layer's header begins at this offset of the data, or of what was pulled before it; elsewhere, there is none.
    pub fn set_mac_header(&mut self, offset: isize) {
        self.0.mac = self.absolute(offset);
    }

    /// The network layer's header begins at this offset of the data and has `len` bytes; the transport layer's follows.
    #[inline]
    pub fn set_network_header(&mut self, offset: isize, len: usize) {
        self.0.network = self.absolute(offset);
        self.0.transport = self.absolute(offset + len as isize);
    }

    /// The transport layer's header begins at this offset of the data.
    pub fn set_transport_header(&mut self, offset: isize) {
        self.0.transport = self.absolute(offset);
    }

    /// No header is known any more.
    pub fn clear_headers(&mut self) {
        let meta = &mut **self.0;
        (meta.mac, meta.network, meta.transport) = (NOWHERE, NOWHERE, NOWHERE);
    }
}
