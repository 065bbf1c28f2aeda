//! Headers of the protocols, and their checksums.
//!
//! A view, such as [`Ip`] or [`TcpMut`], borrows the fixed part of a header: making one checks the bounds once (and only
//! them: `None` where the bytes are too few), and its fields are read and written without further checks. What a header
//! says of itself (versions, lengths, checksums) may lie; what depends on such a length answers with what is there.
//! Numbers are the machine's own; the views convert from and to network order. Setting a field leaves checksums alone,
//! unless the name of the method says otherwise.
//!
//! ```text
//!   ether      Ethernet addresses and headers, VLAN tags
//!   arp        ARP for IPv4 over Ethernet
//!   ip         IPv4
//!   icmp  udp  tcp
//!   options    options of IPv4 and TCP headers
//!   checksum   the Internet checksum, whole and adjusted
//!   flow       addresses and ports of a flow
//!   payload    what follows these headers
//!   names      names of protocols, ICMP types and codes
//!   fragment  reassemble
//! ```

pub mod arp;
pub mod checksum;
pub mod ether;
pub mod flow;
pub mod fragment;
pub mod icmp;
pub mod ip;
pub mod names;
pub mod options;
pub mod payload;
pub mod reassemble;
pub mod tcp;
pub mod udp;

pub use arp::{Arp, ArpMut};
pub use ether::{Ether, EtherAddress, EtherMut, Vlan};
pub use flow::{FlowId, HashKey};
pub use icmp::{Icmp, IcmpMut};
pub use ip::{Ip, IpMut};
pub use tcp::{Tcp, TcpMut};
pub use udp::{Udp, UdpMut};

/// Two bytes at a fixed place of a header, as a number.
#[inline]
fn get16<const N: usize>(header: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([header[at], header[at + 1]])
}

/// Four bytes at a fixed place of a header, as a number.
#[inline]
fn get32<const N: usize>(header: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

/// Writes a number to two bytes of a header.
#[inline]
fn set16<const N: usize>(header: &mut [u8; N], at: usize, value: u16) {
    [header[at], header[at + 1]] = value.to_be_bytes();
}

/// Writes a number to four bytes of a header.
#[inline]
fn set32<const N: usize>(header: &mut [u8; N], at: usize, value: u32) {
    [header[at], header[at + 1], header[at + 2], header[at + 3]] = value.to_be_bytes();
}
