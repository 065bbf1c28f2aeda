//! Kernels over batches of packets, which lie in rows.
//!
//! ```text
//!   rows           where a batch's rows are, and what is in them
//!   row_kernel     launch, oracle and host path of kernels that have a thread for each packet
//!   case           random batches, truthful and not
//!   begin ...      the kernels
//!   literal_match  literals searched for in all of a packet, or in its payload
//!   esp            packets encrypted, or verified and decrypted
//! ```
//!
//! A batch goes through several kernels, which leave verdicts and ports for each other in its output rows. What stands
//! in rows comes from the network, and may lie: kernels read nothing outside of what the parameters name.

mod begin;
mod case;
pub mod esp;
pub mod flow;
pub mod ip_header;
pub mod ip_lookup;
pub mod literal_match;
mod row_kernel;
mod rows;

pub use begin::{Begin, PacketBegin};
pub use flow::{Classify, FlowClassify};
pub use ip_header::{Header, IpHeader};
pub use ip_lookup::{IpLookup, Lookup};
pub use row_kernel::{Memory, RowKernel, launch, oracle};
pub use rows::{
    CAPTURED_MAX, HAS_BYTE_13, HAS_LINK, HAS_NETWORK, HAS_TRANSPORT, LINK_SHIFT, LINK_WORDS, NETWORK_WORDS, NONE,
    PacketRows, SPANS_ALL, SPANS_NONE, SPANS_OPTIONS,
};
