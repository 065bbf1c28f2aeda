//! `AF_PACKET`: all packets of a network device, beside the kernel's own handling of them.
//!
//! Receiving goes by a ring of blocks that is shared with the kernel (`TPACKET_V3`): no system call and no copy by the
//! kernel's hand for each packet. The kernel passes a block on when it is full or a millisecond old, so that is what
//! packets wait for at most. Where the kernel refuses a ring, packets are read one by one.
//!
//! Sending goes by sendmmsg(2), a burst a call, or by a transmit ring (`TPACKET_V2`). The ring saves the system call's
//! work of finding the packets, but the kernel takes all behind the Ethernet header by references to the ring's pages,
//! which a virtual device copies again. On veth the ring is 5 to 8% slower, for 64 and for 1,400 bytes, so it is used on
//! request only.
//!
//! Needs `CAP_NET_RAW` in the network namespace of the device, and nothing else.

mod plain;
mod ring;
mod send;
mod send_ring;

use super::finish::{State, TAG, finish};
use super::link::{Device, Link};
use super::{Destination, Error, Kind, Nic, Received, Result, Statistics, sys};
use plain::Plain;
use ring::Ring;
use send_ring::SendRing;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Bytes of an Ethernet header with two VLAN tags.
const HEADER: usize = 22;

/// How packets are spread over the sockets of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// By flow.
    Hash,
    /// In turns.
    RoundRobin,
    /// By the processor that the packet came to.
    Processor,
    /// To the first that has room.
    Rollover,
    /// At random.
    Random,
    /// By the device's receive queue.
    Queue,
}

impl Spread {
    fn number(self) -> u32 {
        match self {
            Self::Hash => libc::PACKET_FANOUT_HASH,
            Self::RoundRobin => libc::PACKET_FANOUT_LB,
            Self::Processor => libc::PACKET_FANOUT_CPU,
            Self::Rollover => libc::PACKET_FANOUT_ROLLOVER,
            Self::Random => libc::PACKET_FANOUT_RND,
            Self::Queue => libc::PACKET_FANOUT_QM,
        }
    }
}

/// How a device is received from.
#[derive(Debug, Clone)]
pub struct Options {
    /// Also packets for other hosts.
    pub promiscuous: bool,
    /// Also packets that this host sends by the device, except those sent by our own sender of it.
    pub outgoing: bool,
    /// Longest part of a packet that is given out, in bytes.
    pub snap_len: usize,
    /// The one link protocol that is received; 0: all.
    pub protocol: u16,
    /// The group of sockets that share the packets of the device, and how.
    pub fanout: Option<(u16, Spread)>,
    /// Whether to receive by a ring, where the kernel allows it.
    pub ring: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { promiscuous: false, outgoing: false, snap_len: 2046, protocol: 0, fanout: None, ring: true }
    }
}

/// A packet socket that is bound to a device.
#[derive(Debug)]
pub struct PacketSocket {
    // Declared before the socket: rings are unmapped first.
    receiver: Option<Receiver>,
    send_ring: Option<SendRing>,
    socket: Arc<OwnedFd>,
    device: Device,
    options: Options,
    statistics: Statistics,
    told_gone: bool,
}

#[derive(Debug)]
enum Receiver {
    Ring(Ring),
    Plain(Plain),
}

/// The sockets that receive what the host sends, by network namespace and device. A sender of the same device uses such
/// a socket, since the kernel does not give a socket what it has sent itself.
static RECEIVERS: Mutex<Vec<(u64, u32, Weak<OwnedFd>)>> = Mutex::new(Vec::new());

impl PacketSocket {
    /// Receives from and sends to the device `name`.
    pub fn open(name: &str, options: &Options) -> Result<Self> {
        let device = Device::named(name)?;
        let socket = new_socket(name)?;
        let receiver = prepare(socket.as_fd(), &device.link, options)
            .and_then(|receiver| bind(socket.as_fd(), &device.link, options.protocol_number()).map(|()| receiver))
            .map_err(|source| Error::system(format!("{name}: cannot receive packets"), source))?;
        if let Some((group, spread)) = options.fanout {
            join(socket.as_fd(), group, spread).map_err(|source| {
                Error::system(format!("{name}: cannot join the fanout group {group}"), source)
                    .hint(Kind::Unsupported, "all sockets of a group need the same protocol and spread")
            })?;
        }
        let socket = Arc::new(socket);
        let mut receivers = RECEIVERS.lock().unwrap_or_else(PoisonError::into_inner);
        receivers.retain(|(_, _, socket)| socket.strong_count() > 0);
        if options.outgoing {
            receivers.push((namespace(socket.as_fd()), device.link.index, Arc::downgrade(&socket)));
        }
        drop(receivers);
        Ok(Self { receiver: Some(receiver), ..Self::over(socket, device, options.clone()) })
    }

    /// Sends to the device `name`. Nothing is received by it.
    pub fn sender(name: &str) -> Result<Self> {
        Self::sender_by(name, false)
    }

    /// The same by a transmit ring. Where a receiver of ours sees what the host sends, it sends without a ring.
    ///
    /// # Errors
    /// As for [`PacketSocket::sender`], and where the kernel refuses a ring.
    pub fn ring_sender(name: &str) -> Result<Self> {
        Self::sender_by(name, true)
    }

    fn sender_by(name: &str, has_ring: bool) -> Result<Self> {
        let device = Device::named(name)?;
        let socket = new_socket(name)?;
        let space = namespace(socket.as_fd());
        let receivers = RECEIVERS.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = receivers
            .iter()
            .rev()
            .filter(|(of, index, _)| (*of, *index) == (space, device.link.index))
            .find_map(|(_, _, socket)| socket.upgrade());
        drop(receivers);
        if let Some(shared) = shared {
            return Ok(Self::over(shared, device, Options::default()));
        }
        let longest = device.link.mtu as usize + HEADER;
        let prepare = || {
            let ring = has_ring.then(|| SendRing::new(socket.as_fd(), longest)).transpose()?;
            bind(socket.as_fd(), &device.link, 0).map(|()| ring)
        };
        let send_ring = prepare().map_err(|source| Error::system(format!("{name}: cannot send packets"), source))?;
        Ok(Self { send_ring, ..Self::over(Arc::new(socket), device, Options::default()) })
    }

    fn over(socket: Arc<OwnedFd>, device: Device, options: Options) -> Self {
        let statistics = Statistics::default();
        Self { receiver: None, send_ring: None, socket, device, options, statistics, told_gone: false }
    }

    /// Whether packets are sent by a ring.
    pub fn has_send_ring(&self) -> bool {
        self.send_ring.is_some()
    }

    /// Whether packets are received by a ring.
    pub fn has_ring(&self) -> bool {
        matches!(self.receiver, Some(Receiver::Ring(_)))
    }

    fn put(&mut self, packets: &[&[u8]]) -> io::Result<usize> {
        match &mut self.send_ring {
            Some(ring) => ring.send(self.socket.as_fd(), packets),
            None => send::send(self.socket.as_fd(), packets),
        }
    }

    /// What an error of the socket means: it is taken away, passing (nothing), or the device's end.
    fn failure(&self, source: io::Error, what: &str) -> Option<Error> {
        if !self.device.exists() {
            return Some(self.device.gone());
        }
        match source.raw_os_error() {
            // A device that is down comes up again, and the kernel goes on then.
            Some(libc::ENETDOWN | libc::ENXIO) if what == "receive" => None,
            Some(libc::EMSGSIZE) => Some(
                Error::system(format!("{}: cannot {what} a packet", self.device.link.name), source)
                    .of_kind(Kind::Refused),
            ),
            _ => Some(Error::system(format!("{}: cannot {what} a packet", self.device.link.name), source)),
        }
    }

    /// The error of a receiver that found nothing, once where that is the device's end. The socket's own error is no
    /// sure sign of that: a sender which shares the socket may have taken it.
    fn nothing_received(&mut self, failed: Option<io::Error>) -> Result<()> {
        if !self.device.exists() {
            let is_told = std::mem::replace(&mut self.told_gone, true);
            pending_error(self.socket.as_fd());
            return if is_told { Ok(()) } else { Err(self.device.gone()) };
        }
        let failed = failed.or_else(|| pending_error(self.socket.as_fd()));
        failed.and_then(|source| self.failure(source, "receive")).map_or(Ok(()), Err)
    }
}

impl Options {
    fn protocol_number(&self) -> u16 {
        if self.protocol == 0 { libc::ETH_P_ALL as u16 } else { self.protocol }
    }
}

impl Nic for PacketSocket {
    fn receive(&mut self, max: usize, take: &mut dyn FnMut(Received<'_>)) -> Result<usize> {
        let limits = Limits { snap_len: self.options.snap_len, outgoing: self.options.outgoing };
        let (count, failed) = match &mut self.receiver {
            Some(Receiver::Ring(ring)) => (ring.receive(max, limits, take), None),
            Some(Receiver::Plain(plain)) => plain.receive(self.socket.as_fd(), max, limits, take),
            None => (0, None),
        };
        self.statistics.received += count as u64;
        if count == 0 && max > 0 {
            self.nothing_received(failed)?;
        }
        Ok(count)
    }

    fn send(&mut self, packets: &[&[u8]]) -> Result<usize> {
        // The error that waits at a socket since its device was down is told once, also when it is up again.
        let mut sent = self.put(packets);
        if sent.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENETDOWN)) {
            sent = self.put(packets);
        }
        match sent {
            Ok(count) => {
                self.statistics.sent += count as u64;
                Ok(count)
            }
            Err(source) => match self.failure(source, "send") {
                Some(error) => Err(error),
                None => Ok(0),
            },
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn statistics(&mut self) -> Statistics {
        if self.receiver.is_some() {
            // Reading these counts sets them to zero.
            let new =
                sys::option::<libc::tpacket_stats_v3>(self.descriptor(), libc::SOL_PACKET, libc::PACKET_STATISTICS);
            self.statistics.dropped += new.map_or(0, |new| u64::from(new.tp_drops));
        }
        self.statistics
    }

    fn link(&self) -> Option<&Link> {
        Some(&self.device.link)
    }
}

/// What of a packet is given out.
#[derive(Debug, Clone, Copy)]
struct Limits {
    snap_len: usize,
    outgoing: bool,
}

impl Limits {
    /// Gives the packet in `room` out, which starts with [`TAG`] free bytes; false where it is not wanted.
    fn give(self, room: &mut [u8], state: State, about: About, take: &mut dyn FnMut(Received<'_>)) -> bool {
        let destination = destination(about.kind);
        if destination == Some(Destination::Outgoing) && !self.outgoing {
            return false;
        }
        let start = finish(room, state);
        let bytes = &room[start..];
        let wire_len = about.wire_len + (TAG - start);
        let bytes = &bytes[..bytes.len().min(self.snap_len)];
        take(Received { bytes, wire_len, timestamp: about.timestamp, destination });
        true
    }
}

/// What the kernel tells about a packet.
#[derive(Debug, Clone, Copy)]
struct About {
    wire_len: usize,
    timestamp: Option<std::time::Duration>,
    /// `PACKET_HOST` and so on.
    kind: u8,
}

fn destination(kind: u8) -> Option<Destination> {
    Some(match kind {
        libc::PACKET_HOST => Destination::Host,
        libc::PACKET_BROADCAST => Destination::Broadcast,
        libc::PACKET_MULTICAST => Destination::Multicast,
        libc::PACKET_OTHERHOST => Destination::Other,
        libc::PACKET_OUTGOING => Destination::Outgoing,
        _ => return None,
    })
}

/// A socket without a protocol: nothing comes from any device before it is bound to one.
fn new_socket(name: &str) -> Result<OwnedFd> {
    sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(|source| {
        Error::system(format!("{name}: cannot open a packet socket"), source)
            .hint(Kind::Denied, "this needs CAP_NET_RAW, so run as root or give the program that capability")
            .hint(Kind::Unsupported, "the kernel has no packet sockets (CONFIG_PACKET)")
    })
}

/// Sets a socket up for receiving; it receives when it is bound.
fn prepare(socket: BorrowedFd<'_>, link: &Link, options: &Options) -> io::Result<Receiver> {
    let set = |name, value: i32| sys::set_option(socket, libc::SOL_PACKET, name, &value);
    if !options.outgoing {
        // Kernels before 4.20 do not know it; what gets through is left out when it is received.
        let _ = set(libc::PACKET_IGNORE_OUTGOING, 1);
    }
    if options.promiscuous {
        request_promiscuous(socket, link)?;
    }
    if options.ring
        && let Ok(ring) = Ring::new(socket)
    {
        return Ok(Receiver::Ring(ring));
    }
    set(libc::PACKET_VERSION, 0)?;
    Plain::new(socket).map(Receiver::Plain)
}

/// Makes the device receive all packets for as long as the socket is open.
fn request_promiscuous(socket: BorrowedFd<'_>, link: &Link) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: link.index as i32,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// A device receives packets for all hosts while this exists.
#[derive(Debug)]
pub(super) struct Promiscuous {
    _socket: OwnedFd,
}

impl Promiscuous {
    pub(super) fn new(link: &Link) -> Result<Self> {
        let socket = new_socket(&link.name)?;
        request_promiscuous(socket.as_fd(), link).map_err(|source| {
            Error::system(format!("{}: cannot receive packets for other hosts", link.name), source)
        })?;
        Ok(Self { _socket: socket })
    }
}

fn bind(socket: BorrowedFd<'_>, link: &Link, protocol: u16) -> io::Result<()> {
    let mut address: libc::sockaddr_ll = sys::zeroed();
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = link.index as i32;
    // A full queue of the kernel is met later this way; the kernel's own limit still holds.
    let _ = sys::set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &(1 << 20));
    match sys::bind(socket, &address) {
        // The device is there, but down: it is received from when it comes up.
        Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => Ok(()),
        result => result,
    }
}

fn join(socket: BorrowedFd<'_>, group: u16, spread: Spread) -> io::Result<()> {
    let value = u32::from(group) | spread.number() << 16;
    sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &value)
}

/// The error that waits at a socket, taken from it.
fn pending_error(socket: BorrowedFd<'_>) -> Option<io::Error> {
    match sys::option::<i32>(socket, libc::SOL_SOCKET, libc::SO_ERROR) {
        Ok(0) | Err(_) => None,
        Ok(number) => Some(io::Error::from_raw_os_error(number)),
    }
}

/// A number of the socket's network namespace; 0 for all where the kernel (before 5.14) does not tell.
pub(super) fn namespace(socket: BorrowedFd<'_>) -> u64 {
    const SO_NETNS_COOKIE: i32 = 71;
    sys::option(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE).unwrap_or(0)
}
