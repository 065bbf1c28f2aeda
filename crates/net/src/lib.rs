//! A packet engine that runs Click's language, whole: elements, connections, tasks, timers and handlers, with batches
//! inside.
//!
//! ```text
//!   packet/    bytes with room and annotations
//!   clock      time of the system, or simulated
//!   error      messages about configurations, in Click's form
//!   lang/      the language: text to a flat graph of elements
//!   classify/  patterns and filter expressions, compiled to decision programs
//!   lookup/    longest-prefix tables
//!   headers/   what Ethernet, ARP, IP, ICMP, TCP and UDP headers look like, checksums
//!   capture/   files of packets: pcap, pcapng, summary dumps
//!   rewrite/   network address translation: flows, patterns, changes of packets
//!   nic/       packets of the system's: AF_PACKET, AF_XDP, TUN, sockets
//! ```

pub mod capture;
pub mod classify;
mod clock;
mod error;
pub mod headers;
pub mod lang;
pub mod lookup;
pub mod nic;
pub mod packet;
pub mod rewrite;

pub use clock::{Clock, Timestamp};
pub use error::{Entry, Landmark, Level, Log};
pub use packet::{Packet, PacketType};
