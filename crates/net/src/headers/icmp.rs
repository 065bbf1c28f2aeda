//! ICMP: the header of 8 bytes that all messages have.

use super::{checksum, get16, get32, set16, set32};

/// Bytes of the header.
pub const LEN: usize = 8;

/// Answer to an echo request.
pub const ECHO_REPLY: u8 = 0;
/// Destination unreachable.
pub const UNREACHABLE: u8 = 3;
/// Source quench.
pub const SOURCE_QUENCH: u8 = 4;
/// Redirect.
pub const REDIRECT: u8 = 5;
/// Echo request, a ping.
pub const ECHO: u8 = 8;
/// Router advertisement.
pub const ROUTER_ADVERTISEMENT: u8 = 9;
/// Router solicitation.
pub const ROUTER_SOLICITATION: u8 = 10;
/// Time exceeded.
pub const TIME_EXCEEDED: u8 = 11;
/// Parameter problem.
pub const PARAMETER_PROBLEM: u8 = 12;
/// Timestamp request.
pub const TIMESTAMP: u8 = 13;
/// Timestamp reply.
pub const TIMESTAMP_REPLY: u8 = 14;
/// Information request.
pub const INFO: u8 = 15;
/// Information reply.
pub const INFO_REPLY: u8 = 16;
/// Address mask request.
pub const MASK: u8 = 17;
/// Address mask reply.
pub const MASK_REPLY: u8 = 18;

/// Code of [`UNREACHABLE`]: the network.
pub const UNREACHABLE_NET: u8 = 0;
/// Code of [`UNREACHABLE`]: the host.
pub const UNREACHABLE_HOST: u8 = 1;
/// Code of [`UNREACHABLE`]: the protocol.
pub const UNREACHABLE_PROTOCOL: u8 = 2;
/// Code of [`UNREACHABLE`]: the port.
pub const UNREACHABLE_PORT: u8 = 3;
/// Code of [`UNREACHABLE`]: fragmentation is needed and forbidden.
pub const UNREACHABLE_NEEDFRAG: u8 = 4;
/// Code of [`TIME_EXCEEDED`]: in transit.
pub const TIME_EXCEEDED_TRANSIT: u8 = 0;
/// Code of [`TIME_EXCEEDED`]: at reassembly.
pub const TIME_EXCEEDED_REASSEMBLY: u8 = 1;

/// Whether a message of this type is an error, with the beginning of the packet that it is about.
#[inline]
pub fn is_error(kind: u8) -> bool {
    matches!(kind, UNREACHABLE | SOURCE_QUENCH | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM)
}

/// An ICMP header, to read.
#[derive(Debug, Clone, Copy)]
pub struct Icmp<'a> {
    header: &'a [u8; LEN],
    rest: &'a [u8],
}

impl<'a> Icmp<'a> {
    /// The header at the beginning of `message`.
    #[inline]
    pub fn new(message: &'a [u8]) -> Option<Self> {
        message.split_first_chunk().map(|(header, rest)| Self { header, rest })
    }

    /// The type.
    #[inline]
    pub fn kind(self) -> u8 {
        self.header[0]
    }

    /// The code, which says more about the type.
    #[inline]
    pub fn code(self) -> u8 {
        self.header[1]
    }

    /// The checksum of header and data.
    #[inline]
    pub fn checksum(self) -> u16 {
        get16(self.header, 2)
    }

    /// The identifier of an echo, timestamp or information message, or of its answer.
    #[inline]
    pub fn id(self) -> u16 {
        get16(self.header, 4)
    }

    /// The sequence number of such a message; the next hop's MTU in [`UNREACHABLE_NEEDFRAG`].
    #[inline]
    pub fn sequence(self) -> u16 {
        get16(self.header, 6)
    }

    /// Bytes 4 to 7, as a number: the gateway of a redirect, the pointer of a parameter problem in the upper 8 bits.
    #[inline]
    pub fn parameter(self) -> u32 {
        get32(self.header, 4)
    }

    /// What follows the header: in errors, the beginning of the packet that they are about.
    #[inline]
    pub fn payload(self) -> &'a [u8] {
        self.rest
    }
}

/// An ICMP header, to write.
#[derive(Debug)]
pub struct IcmpMut<'a> {
    header: &'a mut [u8; LEN],
}

impl<'a> IcmpMut<'a> {
    /// The header at the beginning of `message`.
    #[inline]
    pub fn new(message: &'a mut [u8]) -> Option<Self> {
        message.first_chunk_mut().map(|header| Self { header })
    }

    /// The same, to read; without what follows.
    #[inline]
    pub fn get(&self) -> Icmp<'_> {
        Icmp { header: self.header, rest: &[] }
    }

    /// Sets type and code.
    #[inline]
    pub fn set_kind(&mut self, kind: u8, code: u8) {
        (self.header[0], self.header[1]) = (kind, code);
    }

    /// Sets the checksum's field.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        set16(self.header, 2, checksum);
    }

    /// Sets the identifier.
    #[inline]
    pub fn set_id(&mut self, id: u16) {
        set16(self.header, 4, id);
    }

    /// Sets the sequence number.
    #[inline]
    pub fn set_sequence(&mut self, sequence: u16) {
        set16(self.header, 6, sequence);
    }

    /// Sets bytes 4 to 7, as a number.
    #[inline]
    pub fn set_parameter(&mut self, value: u32) {
        set32(self.header, 4, value);
    }
}

/// Sets the checksum of `message`, all of it; `None`, and nothing is written, where it has no header.
#[inline]
pub fn set_checksum(message: &mut [u8]) -> Option<()> {
    IcmpMut::new(message)?.set_checksum(0);
    let checksum = checksum::internet(message);
    IcmpMut::new(message)?.set_checksum(checksum);
    Some(())
}

/// The checksum of a message of zeros, which adjusting makes 0, is 0xffff: to be called after the checksum was adjusted.
#[inline]
pub fn settle_zero(message: &mut [u8]) {
    if Icmp::new(message).is_some_and(|icmp| icmp.checksum() == 0) && message.iter().all(|&byte| byte == 0) {
        message[2..4].fill(0xff);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_keeps_what_is_written() {
        let mut message = [0xee; 13];
        let mut icmp = IcmpMut::new(&mut message).unwrap();
        icmp.set_kind(ECHO, 1);
        icmp.set_id(0x1234);
        icmp.set_sequence(0x5678);
        set_checksum(&mut message).unwrap();
        assert!(checksum::is_valid(&message));
        let icmp = Icmp::new(&message).unwrap();
        assert_eq!((icmp.kind(), icmp.code(), icmp.id(), icmp.sequence()), (ECHO, 1, 0x1234, 0x5678));
        assert_eq!((icmp.parameter(), icmp.payload()), (0x1234_5678, &[0xee; 5][..]));
        IcmpMut::new(&mut message).unwrap().set_parameter(0x0102_0304);
        assert_eq!(message[4..8], [1, 2, 3, 4]);
        assert!(Icmp::new(&message[..7]).is_none() && set_checksum(&mut message[..7]).is_none());
    }

    #[test]
    fn a_message_of_zeros_has_a_checksum() {
        let mut message = [8, 0, 0xf7, 0xff, 0, 0, 0, 0, 0];
        assert!(checksum::is_valid(&message));
        message[0] = ECHO_REPLY;
        IcmpMut::new(&mut message).unwrap().set_checksum(checksum::adjust16(0xf7ff, 0x0800, 0));
        settle_zero(&mut message);
        assert!(checksum::is_valid(&message));
    }

    #[test]
    fn errors_are_the_types_with_a_packet_inside() {
        assert_eq!((0..=255).filter(|&kind| is_error(kind)).collect::<Vec<_>>(), [3, 4, 5, 11, 12]);
    }
}
