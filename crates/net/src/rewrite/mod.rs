//! Network address translation: flows, the patterns that make them, and what they change in packets.
//!
//! ```text
//!   pattern   how a new flow is rewritten: addresses, ports, ranges
//!   flows     all flows of a capacity: found from both sides, given up by age
//!   queue     which of them is next to be given up
//!   taken     ports and addresses of a range that are taken
//!   change    addresses, ports and checksums of packets
//!   tcp       states of connections, sequence numbers that moved
//!   icmp      packets inside ICMP errors
//!   ftp       PORT commands
//! ```
//!
//! A flow has two directions. Forward is how the packet came that made it; a reply is what comes back to the rewritten
//! addresses. Both are found by what their packets say, and become the reverse of what the other one is found by.

mod change;
mod flows;
mod ftp;
mod icmp;
mod pattern;
mod queue;
mod taken;
mod tcp;
#[cfg(test)]
mod tests;

pub use change::{Transport, apply_addresses, apply_ping, apply_ports, apply_source};
pub use flows::{Entry, Flow, FlowSet, MapId, NewFlow, OwnerId};
pub use ftp::{PortCommand, find_port_command};
pub use icmp::{Embedded, rewrite_embedded};
pub use pattern::{Names, Pattern, ports_of};
pub use taken::{Range, Variable};
pub use tcp::{Deltas, apply_sequence};
