//! Packets of the system: network devices and sockets, behind one small trait.
//!
//! ```text
//!   packet/    AF_PACKET: a receive ring (TPACKET_V3) or single reads; needs CAP_NET_RAW
//!   xdp/       AF_XDP: rings that are shared with the kernel; needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF
//!   tun        TUN and TAP devices; needs CAP_NET_ADMIN
//!   socket/    TCP, UDP and Unix sockets; needs nothing
//!   link       what a network device is: index, address, MTU
//!   block      keeping the kernel from what we receive
//!   bpf        programs in the kernel, for AF_XDP and for block
//!   finish     tags and checksums that the kernel had left to the device
//!   sys        the system calls, all that is unsafe but for shared memory
//! ```
//!
//! Everything here is non-blocking: a call does what can be done now, and [`Nic::descriptor`] tells when there is more.
//! A device that disappears gives one error of kind [`Kind::Gone`]; afterwards nothing comes from it and nothing goes
//! to it. Opened anew by its name it works again, should it be back.

mod block;
mod bpf;
mod error;
mod finish;
mod link;
pub mod packet;
pub mod socket;
mod sys;
pub mod tun;
mod watch;
pub mod xdp;

use std::os::fd::BorrowedFd;
use std::time::Duration;

pub use block::Block;
pub use error::{Error, Kind, Result};
pub use link::Link;
pub use sys::inherited;

/// Where a packet of a device was meant to go, as the kernel sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Destination {
    /// This host.
    Host,
    /// All hosts of the link.
    Broadcast,
    /// A group of hosts.
    Multicast,
    /// Another host; seen in promiscuous mode.
    Other,
    /// Another host, sent by this one.
    Outgoing,
}

/// A packet that has come. Its bytes are valid while it is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// The packet, from its link header on; at most the snapshot length of it.
    pub bytes: &'a [u8],
    /// How long it was on the link, in bytes.
    pub wire_len: usize,
    /// When the kernel received it, since 1970; nothing where the kernel does not say.
    pub timestamp: Option<Duration>,
    /// Where it was meant to go; nothing where the kernel does not say.
    pub destination: Option<Destination>,
}

/// Counts since the device was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets handed out by [`Nic::receive`].
    pub received: u64,
    /// Packets taken by [`Nic::send`].
    pub sent: u64,
    /// Packets that the kernel dropped because they were not fetched in time.
    pub dropped: u64,
}

/// A source and sink of packets.
pub trait Nic: Send {
    /// Gives up to `max` packets that have come to `take`, in their order, and returns how many. 0: none now.
    ///
    /// # Errors
    /// [`Kind::Gone`], once, where the device has disappeared. What is wrong with single packets is no error.
    fn receive(&mut self, max: usize, take: &mut dyn FnMut(Received<'_>)) -> Result<usize>;

    /// Sends the first of `packets`, and returns how many it took; fewer than all where the queue of the system is
    /// full. An empty burst pushes on what waits in a ring.
    ///
    /// # Errors
    /// The first packet is refused (too long, say), and none was taken; [`Kind::Gone`] where the device has
    /// disappeared.
    fn send(&mut self, packets: &[&[u8]]) -> Result<usize>;

    /// Readable when packets have come, writable when packets can be sent. It is the same during the life of this.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Counts since it was opened.
    fn statistics(&mut self) -> Statistics;

    /// The device; nothing for a socket.
    fn link(&self) -> Option<&Link>;
}
