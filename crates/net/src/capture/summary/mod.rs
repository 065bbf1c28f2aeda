//! IP summary dumps: files with a line, or a binary record, for each packet.
//!
//! ```text
//!   field      the fields that a dump may have: names, sizes, the order in which they make a packet
//!   names      names and digits for numbers of IP and ICMP, names of ports
//!   ip_options  tcp_options    options as text, and back
//!   describe   fields of a packet, as text or bytes
//!   write      whole dumps from packets
//!   value      fields of a line or a record
//!   cursor     goes through a field's text
//!   build      a packet from fields
//!   read       packets from whole dumps
//! ```
//!
//! The format is that of Click's `ToIPSummaryDump`, version 1.3. Where Click's manual and its binary records differ
//! (byte order of `ts_usec1` and `ntimestamp`, options stored twice), records here are as the manual says.

mod build;
pub(super) mod cursor;
mod describe;
mod field;
mod ip_options;
pub(super) mod names;
mod read;
mod tcp_options;
#[cfg(test)]
mod tests;
pub(super) mod value;
mod write;

pub use field::Field;
pub use read::{Notice, SummaryOptions, SummaryReader};
pub use write::{Summarizer, SummaryWriterOptions, header};

/// What the first line of a dump says.
const VERSION: (u32, u32) = (1, 3);
/// Flags of a TCP header, from the lowest bit.
pub(super) const TCP_FLAGS: &[u8; 9] = b"FSRPAUECN";

/// Protocols that have ports in the first four bytes of their headers: TCP, UDP, DCCP, UDP-Lite.
fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | DCCP | UDP_LITE)
}

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const DCCP: u8 = 33;
const UDP_LITE: u8 = 136;

/// Whether an ICMP message has an identifier and a sequence number: echo, timestamp and information.
fn has_sequence(icmp_type: u8) -> bool {
    matches!(icmp_type, 0 | 8 | 13..=16)
}
