//! Packets by TCP, UDP and Unix sockets.
//!
//! With datagrams a packet is a datagram. With streams there are no borders: a packet is what one read gives, so what
//! was sent as two packets may come as one, and the other way round.
//!
//! A server of streams talks to one peer at a time; the next waits until that one closes. A TCP peer that vanishes
//! without closing is found by probes within two minutes, so it keeps the place no longer. A peer that does not read
//! stops what is sent to it, never the caller: [`Nic::send`] takes nothing then.

mod datagram;
mod stream;

use super::link::Link;
use super::{Error, Kind, Nic, Received, Result, Statistics, sys};
use datagram::Datagrams;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use stream::Streams;

/// What is at an end of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A host and port of TCP.
    Tcp(SocketAddrV4),
    /// A host and port of UDP. As the peer of a client, host 0.0.0.0 stands for each packet's own.
    Udp(SocketAddrV4),
    /// A file, with streams.
    Unix(PathBuf),
    /// A file, with datagrams.
    UnixDatagram(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "TCP {address}"),
            Self::Udp(address) => write!(f, "UDP {address}"),
            Self::Unix(path) => write!(f, "Unix socket {}", path.display()),
            Self::UnixDatagram(path) => write!(f, "Unix datagram socket {}", path.display()),
        }
    }
}

/// Decides whether a server talks to a host.
pub type Admit<'a> = &'a mut dyn FnMut(Ipv4Addr) -> bool;

/// How a socket is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether it connects to its place; a server waits there.
    pub client: bool,
    /// Where a client comes from, of the same kind as its place; nothing: the system chooses.
    pub local: Option<Place>,
    /// Longest packet that is received, in bytes; more of a datagram is cut off.
    pub snap_len: usize,
    /// Whether TCP sends at once, without waiting for more.
    pub no_delay: bool,
    /// Bytes that the system keeps until they are sent; nothing: the system's default.
    pub send_buffer: Option<u32>,
    /// Bytes that the system keeps until they are received; nothing: the system's default.
    pub receive_buffer: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self { client: false, local: None, snap_len: 2048, no_delay: true, send_buffer: None, receive_buffer: None }
    }
}

/// What has happened to the connections of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A peer has connected.
    Opened(String),
    /// The connection has ended: by the peer, or by an error.
    Closed(String),
    /// A peer was turned away.
    Denied(Ipv4Addr),
}

/// A socket that carries packets.
pub struct PacketPipe {
    inner: Inner,
    statistics: Statistics,
}

enum Inner {
    Streams(Streams),
    Datagrams(Datagrams),
}

impl fmt::Debug for PacketPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketPipe").field("connected", &self.is_connected()).finish_non_exhaustive()
    }
}

impl PacketPipe {
    /// Opens a client of `place`, or a server at it.
    pub fn open(place: &Place, options: &Options) -> Result<Self> {
        let inner = match place {
            Place::Tcp(_) | Place::Unix(_) => Inner::Streams(Streams::open(place, options)?),
            Place::Udp(_) | Place::UnixDatagram(_) => Inner::Datagrams(Datagrams::open(place, options)?),
        };
        Ok(Self { inner, statistics: Statistics::default() })
    }

    /// Whether there is somebody to send to.
    pub fn is_connected(&self) -> bool {
        match &self.inner {
            Inner::Streams(streams) => streams.is_connected(),
            Inner::Datagrams(datagrams) => datagrams.is_connected(),
        }
    }

    /// The port that it is bound to; nothing for Unix sockets.
    pub fn port(&self) -> Option<u16> {
        let fd = match &self.inner {
            Inner::Streams(streams) => streams.bound(),
            Inner::Datagrams(datagrams) => datagrams.as_fd(),
        };
        sys::own_name(fd).ok()?.ip().map(|address| address.port())
    }

    /// Sends a packet to a host, by a UDP client without a host of its own. False where there is no room now.
    pub fn send_to(&mut self, host: Ipv4Addr, packet: &[u8]) -> Result<bool> {
        let Inner::Datagrams(datagrams) = &mut self.inner else { return self.send(&[packet]).map(|count| count > 0) };
        let sent = datagrams.send_to(host, packet)?;
        self.statistics.sent += u64::from(sent);
        Ok(sent)
    }

    /// The same as [`Nic::receive`], by a server that talks only to hosts for which `admit` says so.
    pub fn receive_from(&mut self, max: usize, admit: Admit<'_>, take: &mut dyn FnMut(Received<'_>)) -> usize {
        let count = match &mut self.inner {
            Inner::Streams(streams) => streams.receive(max, admit, take),
            Inner::Datagrams(datagrams) => datagrams.receive(max, admit, take),
        };
        self.statistics.received += count as u64;
        count
    }

    /// The next of what has happened to connections; the last few are kept.
    pub fn event(&mut self) -> Option<Event> {
        match &mut self.inner {
            Inner::Streams(streams) => streams.event(),
            Inner::Datagrams(_) => None,
        }
    }
}

impl Nic for PacketPipe {
    fn receive(&mut self, max: usize, take: &mut dyn FnMut(Received<'_>)) -> Result<usize> {
        Ok(self.receive_from(max, &mut |_| true, take))
    }

    /// Takes nothing where nobody is connected. Readiness to send is told as readability of the descriptor.
    fn send(&mut self, packets: &[&[u8]]) -> Result<usize> {
        let count = match &mut self.inner {
            Inner::Streams(streams) => streams.send(packets),
            Inner::Datagrams(datagrams) => datagrams.send(packets)?,
        };
        self.statistics.sent += count as u64;
        Ok(count)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.inner {
            Inner::Streams(streams) => streams.descriptor(),
            Inner::Datagrams(datagrams) => datagrams.descriptor(),
        }
    }

    fn statistics(&mut self) -> Statistics {
        self.statistics
    }

    fn link(&self) -> Option<&Link> {
        None
    }
}

impl Place {
    fn name(&self) -> Result<sys::Name> {
        match self {
            Self::Tcp(address) | Self::Udp(address) => Ok(sys::Name::of_port(*address)),
            Self::Unix(path) | Self::UnixDatagram(path) => sys::Name::of_path(path).ok_or_else(|| {
                Error::new(Kind::Missing, format!("{self}: names of sockets have 1 to 107 bytes, none of them zero"))
            }),
        }
    }

    fn path(&self) -> Option<&PathBuf> {
        match self {
            Self::Unix(path) | Self::UnixDatagram(path) => Some(path),
            _ => None,
        }
    }

    /// A socket for it, set up by `options`.
    fn socket(&self, options: &Options) -> Result<OwnedFd> {
        let (domain, kind) = match self {
            Self::Tcp(_) => (libc::AF_INET, libc::SOCK_STREAM),
            Self::Udp(_) => (libc::AF_INET, libc::SOCK_DGRAM),
            Self::Unix(_) => (libc::AF_UNIX, libc::SOCK_STREAM),
            Self::UnixDatagram(_) => (libc::AF_UNIX, libc::SOCK_DGRAM),
        };
        let set_up = || {
            let socket = sys::socket(domain, kind, 0)?;
            let set = |name, value: i32| sys::set_option(socket.as_fd(), libc::SOL_SOCKET, name, &value);
            if domain == libc::AF_INET {
                set(libc::SO_REUSEADDR, 1)?;
            }
            if let Some(bytes) = options.send_buffer {
                set(libc::SO_SNDBUF, bytes as i32)?;
            }
            if let Some(bytes) = options.receive_buffer {
                set(libc::SO_RCVBUF, bytes as i32)?;
            }
            Ok(socket)
        };
        set_up().map_err(|source| self.error("socket", source))
    }

    /// The error of a system call about it, as Click words it.
    fn error(&self, call: &str, source: io::Error) -> Error {
        Error::system(format!("{self}: {call}"), source)
    }
}

/// A place that a socket is bound to. The file of a Unix socket goes when it does.
#[derive(Debug)]
struct Bound(Place);

impl Bound {
    fn new(socket: BorrowedFd<'_>, place: &Place) -> Result<Self> {
        let name = place.name()?;
        let result = match sys::bind_to(socket, &name) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(place, &name) => {
                place.path().map(std::fs::remove_file).transpose().and_then(|_| sys::bind_to(socket, &name))
            }
            result => result,
        };
        result.map_err(|source| place.error("bind", source))?;
        Ok(Self(place.clone()))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(path) = self.0.path() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether a Unix socket is the file of a process that has ended: it exists, and nobody is behind it.
fn is_stale(place: &Place, name: &sys::Name) -> bool {
    let kind = match place {
        Place::Unix(_) => libc::SOCK_STREAM,
        Place::UnixDatagram(_) => libc::SOCK_DGRAM,
        _ => return false,
    };
    let is_socket = |path: &PathBuf| std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    if !place.path().is_some_and(is_socket) {
        return false;
    }
    let Ok(socket) = sys::socket(libc::AF_UNIX, kind, 0) else { return false };
    let result = sys::connect(socket.as_fd(), name);
    result.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
