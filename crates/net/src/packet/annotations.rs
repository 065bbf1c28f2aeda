//! What goes with a packet beside its bytes, where Click has it.

use super::Packet;
use crate::Timestamp;
use std::net::Ipv4Addr;

/// Bytes of annotations that a packet has.
pub const ANNO_BYTES: usize = 48;

/// Where annotations lie, in bytes, and how long they are.
pub mod anno {
    /// Destination IP address, 4 bytes in network order.
    pub const DST_IP: usize = 0;
    /// Destination IPv6 address, 16 bytes.
    pub const DST_IP6: usize = 0;
    /// Paint, 1 byte.
    pub const PAINT: usize = 16;
    /// Where an IP header's problem is, 1 byte.
    pub const ICMP_PARAMPROB: usize = 17;
    /// What a path of GPU elements says of a packet, 1 byte: 0, or why it is not to go on; not one of Click's.
    pub const VERDICT: usize = 18;
    /// Whether the source address is to be set to the output's, 1 byte.
    pub const FIX_IP_SRC: usize = 19;
    /// VLAN tag, 2 bytes in network order.
    pub const VLAN_TCI: usize = 20;
    /// Aggregate number, 4 bytes.
    pub const AGGREGATE: usize = 20;
    /// An IP address for whatever use, 4 bytes.
    pub const MISC_IP: usize = 20;
    /// How many more packets this one stands for, 4 bytes.
    pub const EXTRA_PACKETS: usize = 24;
    /// How many bytes of the packet were not captured, 4 bytes.
    pub const EXTRA_LENGTH: usize = 28;
    /// First timestamp of several packets, 8 bytes.
    pub const FIRST_TIMESTAMP: usize = 32;
    /// Index of the device that it came from, 4 bytes; not one of Click's.
    pub const DEVICE: usize = 40;
}

/// To whom the link layer sent a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum PacketType {
    /// This host.
    #[default]
    Host = 0,
    /// Everybody.
    Broadcast = 1,
    /// A group.
    Multicast = 2,
    /// Somebody else.
    OtherHost = 3,
    /// Sent by this host.
    Outgoing = 4,
    /// Sent by this host to itself.
    Loopback = 5,
    /// Nobody knows.
    FastRoute = 6,
}

impl Packet {
    /// When it came or was captured; zero where nobody said so.
    pub fn timestamp(&self) -> Timestamp {
        self.0.timestamp
    }

    /// Sets when it came.
    pub fn set_timestamp(&mut self, timestamp: Timestamp) {
        self.0.timestamp = timestamp;
    }

    /// To whom the link layer sent it.
    pub fn kind(&self) -> PacketType {
        self.0.kind
    }

    /// Sets to whom the link layer sent it.
    pub fn set_kind(&mut self, kind: PacketType) {
        self.0.kind = kind;
    }

    /// All bytes of annotations.
    pub fn anno(&self) -> &[u8; ANNO_BYTES] {
        &self.0.anno
    }

    /// The same, for writing.
    pub fn anno_mut(&mut self) -> &mut [u8; ANNO_BYTES] {
        &mut self.0.anno
    }

    /// A byte of the annotations.
    #[inline]
    pub fn anno_u8(&self, at: usize) -> u8 {
        self.0.anno[at]
    }

    /// Sets a byte of the annotations.
    #[inline]
    pub fn set_anno_u8(&mut self, at: usize, value: u8) {
        self.0.anno[at] = value;
    }

    /// Two bytes of the annotations, in the machine's order.
    #[inline]
    pub fn anno_u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes([self.0.anno[at], self.0.anno[at + 1]])
    }

    /// Sets two bytes of the annotations.
    #[inline]
    pub fn set_anno_u16(&mut self, at: usize, value: u16) {
        self.0.anno[at..at + 2].copy_from_slice(&value.to_ne_bytes());
    }

    /// Four bytes of the annotations, in the machine's order.
    #[inline]
    pub fn anno_u32(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0.anno[at..at + 4]);
        u32::from_ne_bytes(bytes)
    }

    /// Sets four bytes of the annotations.
    #[inline]
    pub fn set_anno_u32(&mut self, at: usize, value: u32) {
        self.0.anno[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    /// Eight bytes of the annotations, in the machine's order.
    pub fn anno_u64(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0.anno[at..at + 8]);
        u64::from_ne_bytes(bytes)
    }

    /// Sets eight bytes of the annotations.
    pub fn set_anno_u64(&mut self, at: usize, value: u64) {
        self.0.anno[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }

    /// Destination IP address annotation: where the packet goes next, which need not be what its header says.
    #[inline]
    pub fn dst_ip(&self) -> Ipv4Addr {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0.anno[anno::DST_IP..anno::DST_IP + 4]);
        Ipv4Addr::from(bytes)
    }

    /// Sets the destination IP address annotation.
    #[inline]
    pub fn set_dst_ip(&mut self, address: Ipv4Addr) {
        self.0.anno[anno::DST_IP..anno::DST_IP + 4].copy_from_slice(&address.octets());
    }

    /// Sets every annotation to zero, headers and timestamp included.
    pub fn clear_annotations(&mut self) {
        self.clear_headers();
        let meta = &mut **self.0;
        meta.anno = [0; ANNO_BYTES];
        meta.timestamp = Timestamp::default();
        meta.kind = PacketType::default();
    }

    /// Takes over another packet's annotations, except for its headers.
    pub fn copy_annotations(&mut self, from: &Self) {
        let (to, from) = (&mut **self.0, &**from.0);
        (to.anno, to.timestamp, to.kind) = (from.anno, from.timestamp, from.kind);
    }
}
