//! ARP for IPv4 addresses over Ethernet: 28 bytes.

use std::net::Ipv4Addr;

use super::{EtherAddress, get16, get32, set16, set32};

/// Bytes of a message.
pub const LEN: usize = 28;
/// The operation of a question.
pub const REQUEST: u16 = 1;
/// The operation of an answer.
pub const REPLY: u16 = 2;

/// The kind of hardware and of protocol, and the lengths of their addresses: Ethernet, IPv4, 6 and 4.
const FORMAT: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// An ARP message, to read.
#[derive(Debug, Clone, Copy)]
pub struct Arp<'a> {
    header: &'a [u8; LEN],
}

impl<'a> Arp<'a> {
    /// The message at the beginning of `data`, which follows an Ethernet header.
    #[inline]
    pub fn new(data: &'a [u8]) -> Option<Self> {
        data.first_chunk().map(|header| Self { header })
    }

    /// Whether it is about IPv4 over Ethernet; else the addresses mean nothing.
    #[inline]
    pub fn is_ip_over_ether(self) -> bool {
        self.header.starts_with(&FORMAT)
    }

    /// The kind of hardware; Ethernet is 1.
    #[inline]
    pub fn hardware(self) -> u16 {
        get16(self.header, 0)
    }

    /// The protocol's Ethernet type.
    #[inline]
    pub fn protocol(self) -> u16 {
        get16(self.header, 2)
    }

    /// Bytes of addresses of hardware and of the protocol.
    #[inline]
    pub fn address_lens(self) -> (u8, u8) {
        (self.header[4], self.header[5])
    }

    /// What it is: [`REQUEST`], [`REPLY`], others.
    #[inline]
    pub fn operation(self) -> u16 {
        get16(self.header, 6)
    }

    /// The sender's Ethernet address.
    #[inline]
    pub fn sender(self) -> EtherAddress {
        EtherAddress::within(self.header, 8)
    }

    /// The sender's IP address.
    #[inline]
    pub fn sender_ip(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(get32(self.header, 14))
    }

    /// The target's Ethernet address; zeros in a question.
    #[inline]
    pub fn target(self) -> EtherAddress {
        EtherAddress::within(self.header, 18)
    }

    /// The target's IP address.
    #[inline]
    pub fn target_ip(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(get32(self.header, 24))
    }
}

/// An ARP message, to write.
#[derive(Debug)]
pub struct ArpMut<'a> {
    header: &'a mut [u8; LEN],
}

impl<'a> ArpMut<'a> {
    /// The message at the beginning of `data`.
    #[inline]
    pub fn new(data: &'a mut [u8]) -> Option<Self> {
        data.first_chunk_mut().map(|header| Self { header })
    }

    /// The same, to read.
    #[inline]
    pub fn get(&self) -> Arp<'_> {
        Arp { header: self.header }
    }

    /// Says that the message is about IPv4 over Ethernet, and what it is.
    #[inline]
    pub fn set_operation(&mut self, operation: u16) {
        self.header[..6].copy_from_slice(&FORMAT);
        set16(self.header, 6, operation);
    }

    /// Sets the sender's addresses.
    #[inline]
    pub fn set_sender(&mut self, address: EtherAddress, ip: Ipv4Addr) {
        self.header[8..14].copy_from_slice(&address.0);
        set32(self.header, 14, ip.to_bits());
    }

    /// Sets the target's addresses.
    #[inline]
    pub fn set_target(&mut self, address: EtherAddress, ip: Ipv4Addr) {
        self.header[18..24].copy_from_slice(&address.0);
        set32(self.header, 24, ip.to_bits());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_keeps_what_is_written() {
        let mut bytes = [0xee; 30];
        let (one, two) = (EtherAddress([1, 2, 3, 4, 5, 6]), EtherAddress([7, 8, 9, 10, 11, 12]));
        let mut message = ArpMut::new(&mut bytes).unwrap();
        message.set_operation(REPLY);
        message.set_sender(one, Ipv4Addr::new(10, 0, 0, 1));
        message.set_target(two, Ipv4Addr::new(10, 0, 0, 2));
        let message = Arp::new(&bytes).unwrap();
        assert!(message.is_ip_over_ether());
        assert_eq!((message.hardware(), message.protocol(), message.address_lens()), (1, 0x800, (6, 4)));
        assert_eq!((message.operation(), message.sender(), message.target()), (REPLY, one, two));
        assert_eq!((message.sender_ip().octets(), message.target_ip().octets()), ([10, 0, 0, 1], [10, 0, 0, 2]));
        assert_eq!(bytes[28..], [0xee, 0xee]);
        assert!(Arp::new(&bytes[..27]).is_none());
        bytes[4] = 8;
        assert!(!Arp::new(&bytes).unwrap().is_ip_over_ether());
    }
}
