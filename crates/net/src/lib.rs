//! A packet engine that runs Click's language, whole: elements, connections, tasks, timers and handlers, with batches
//! inside.
//!
//! ```text
//!   element    what packets go through: the trait, and what a class says of itself
//!   elements/  those that come with the engine, a file each
//!   registry   classes by name
//!   args/      configuration strings to values
//!   handler    what people read and write of an element
//!   router/    elements that are connected and run
//!   packet/    bytes with room and annotations
//!   clock      time of the system, or simulated
//!   error      messages about configurations, in Click's form
//!   lang/      the language: text to a flat graph of elements
//!   command/   click and its tools
//!   draw/      drawings of graphs
//!   classify/  patterns and filter expressions, compiled to decision programs
//!   flowspace/ rules over many fields, of which the best decides
//!   lookup/    longest-prefix tables
//!   matcher/   many literals searched at once
//!   rules/     rules of Snort and Suricata
//!   headers/   what Ethernet, ARP, IP, ICMP, TCP and UDP headers look like, checksums
//!   capture/   files of packets: pcap, pcapng, summary dumps
//!   rewrite/   network address translation: flows, patterns, changes of packets
//!   wide/      batches of packets that a device computes
//!   watch/     rates, metrics and drawings of a router that runs
//!   nic/       packets of the system's: AF_PACKET, AF_XDP, TUN, sockets
//! ```

// Names of elements are words of the language, and stand everywhere.
#![allow(clippy::doc_markdown)]
// Elements have as many keywords that are true or false as Click's have.
#![allow(clippy::struct_excessive_bools)]

pub mod args;
pub mod capture;
pub mod classify;
mod clock;
pub mod command;
pub mod draw;
pub mod element;
pub mod elements;
mod error;
/// What people and scripts read and write of an element, as text.
pub mod handler {
    pub use crate::element::{FreeReadFn, FreeWriteFn, Handler, Handlers, Read, ReadFn, Write, WriteFn};
}
pub mod flowspace;
pub mod headers;
pub mod lang;
pub mod lookup;
pub mod matcher;
pub mod nic;
pub mod packet;
mod registry;
pub mod rewrite;
pub mod router;
pub mod rules;
mod schedule;
pub mod streams;
pub mod watch;
pub mod wide;

pub use clock::{Clock, Pace, Timestamp};
pub use error::{Entry, Landmark, Level, Log};
pub use packet::{Packet, PacketType};
pub use registry::Registry;
