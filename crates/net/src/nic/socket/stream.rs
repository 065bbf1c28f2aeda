//! Streams: a client of one server, or a server of one client at a time.

use super::super::watch::Watch;
use super::super::{Error, Received, Result, sys};
use super::{Admit, Bound, Event, Options, Place};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Connections that wait for their turn.
const BACKLOG: i32 = 16;
/// How long a client waits for its server at most, in milliseconds.
const CONNECT_MS: i32 = 30_000;
/// Events that are kept for who asks for them.
const EVENTS: usize = 16;
/// Peers that are turned away in one go, so that a flood of them does not keep the caller.
const TURNED_AWAY: usize = 16;

pub(super) struct Streams {
    watch: Watch,
    /// The server's own socket; a client has none.
    listener: Option<(OwnedFd, Bound)>,
    peer: Option<Peer>,
    local: Option<Bound>,
    no_delay: bool,
    room: Vec<u8>,
    events: VecDeque<Event>,
}

/// A connection.
struct Peer {
    socket: OwnedFd,
    name: String,
    /// The end of a packet of which the system took the beginning.
    rest: Vec<u8>,
    /// Whether it is watched for room.
    awaited: bool,
}

impl Streams {
    pub(super) fn open(place: &Place, options: &Options) -> Result<Self> {
        let socket = place.socket(options)?;
        let mut streams = Self {
            watch: Watch::new().map_err(|source| place.error("poll", source))?,
            listener: None,
            peer: None,
            local: None,
            no_delay: options.no_delay && matches!(place, Place::Tcp(_)),
            room: vec![0; options.snap_len.max(1)],
            events: VecDeque::new(),
        };
        if options.client {
            streams.local = options.local.as_ref().map(|local| Bound::new(socket.as_fd(), local)).transpose()?;
            connect(socket.as_fd(), place)?;
            streams.talk_to(socket, place.to_string()).map_err(|source| place.error("poll", source))?;
        } else {
            let bound = Bound::new(socket.as_fd(), place)?;
            sys::listen(socket.as_fd(), BACKLOG).map_err(|source| place.error("listen", source))?;
            streams.watch.add(socket.as_fd()).map_err(|source| place.error("poll", source))?;
            streams.listener = Some((socket, bound));
        }
        Ok(streams)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.peer.is_some()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// The socket that has an address of its own.
    pub(super) fn bound(&self) -> BorrowedFd<'_> {
        match (&self.listener, &self.peer) {
            (Some((socket, _)), _) => socket.as_fd(),
            (None, Some(peer)) => peer.socket.as_fd(),
            (None, None) => self.watch.as_fd(),
        }
    }

    pub(super) fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(super) fn receive(&mut self, max: usize, admit: Admit<'_>, take: &mut dyn FnMut(Received<'_>)) -> usize {
        self.push_on();
        let mut count = 0;
        while count < max {
            let Some(peer) = &self.peer else {
                if self.accept(admit) {
                    continue;
                }
                break;
            };
            match sys::read(peer.socket.as_fd(), &mut self.room) {
                Ok(None) => break,
                Ok(Some(len @ 1..)) => {
                    let bytes = &self.room[..len];
                    take(Received { bytes, wire_len: len, timestamp: None, destination: None });
                    count += 1;
                }
                Ok(Some(0)) | Err(_) => self.close(),
            }
        }
        count
    }

    pub(super) fn send(&mut self, packets: &[&[u8]]) -> usize {
        for (count, packet) in packets.iter().enumerate() {
            if !self.push_on() {
                return count;
            }
            let Some(peer) = &mut self.peer else { return count };
            // What cannot go now stands behind what is sent already: a packet is never torn.
            peer.rest.extend_from_slice(packet);
        }
        self.push_on();
        packets.len()
    }

    /// Sends what is left of a packet; false where some of it stays, or there is nobody to send to.
    fn push_on(&mut self) -> bool {
        let Some(peer) = &mut self.peer else { return false };
        while !peer.rest.is_empty() {
            match sys::send(peer.socket.as_fd(), &peer.rest, None) {
                Ok(Some(len)) => drop(peer.rest.drain(..len)),
                Ok(None) => break,
                Err(_) => {
                    self.close();
                    return false;
                }
            }
        }
        let waits = !peer.rest.is_empty();
        if waits != peer.awaited && self.watch.change(peer.socket.as_fd(), waits).is_ok() {
            peer.awaited = waits;
        }
        !waits
    }

    /// Takes the next connection that is let in; false where there is none.
    fn accept(&mut self, admit: Admit<'_>) -> bool {
        for _ in 0..TURNED_AWAY {
            let Some((listener, _)) = &self.listener else { return false };
            let Ok(Some((socket, name))) = sys::accept(listener.as_fd()) else { return false };
            let address = name.ip();
            if let Some(address) = address
                && !admit(*address.ip())
            {
                self.tell(Event::Denied(*address.ip()));
                continue;
            }
            let name = address.map_or_else(|| "a local process".to_owned(), |address| address.to_string());
            if self.talk_to(socket, name.clone()).is_ok() {
                self.tell(Event::Opened(name));
                return true;
            }
        }
        false
    }

    /// Makes a connection the one that is talked by; the next waits as long.
    fn talk_to(&mut self, socket: OwnedFd, name: String) -> io::Result<()> {
        if self.no_delay {
            sys::set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, &1)?;
        }
        // Not for Unix sockets, which know when their peer is gone.
        let _ = probe(socket.as_fd());
        self.watch.add(socket.as_fd())?;
        if let Some((listener, _)) = &self.listener {
            self.watch.remove(listener.as_fd())?;
        }
        self.peer = Some(Peer { socket, name, rest: Vec::new(), awaited: false });
        Ok(())
    }

    fn close(&mut self) {
        let Some(peer) = self.peer.take() else { return };
        drop(peer.socket);
        self.tell(Event::Closed(peer.name));
        if let Some((listener, _)) = &self.listener {
            // Failing means that it is watched still.
            let _ = self.watch.add(listener.as_fd());
        }
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

/// Connects to a server, and waits for it.
fn connect(socket: BorrowedFd<'_>, place: &Place) -> Result<()> {
    let name = place.name()?;
    let failed = |source| -> Error { place.error("connect", source) };
    if sys::connect(socket, &name).map_err(failed)? {
        return Ok(());
    }
    if sys::wait(socket, libc::POLLOUT, CONNECT_MS).map_err(failed)? == 0 {
        return Err(failed(io::ErrorKind::TimedOut.into()));
    }
    match sys::option::<i32>(socket, libc::SOL_SOCKET, libc::SO_ERROR).map_err(failed)? {
        0 => Ok(()),
        number => Err(failed(io::Error::from_raw_os_error(number))),
    }
}

/// Finds a TCP peer that has vanished: by probes when it is silent, by a limit when it owes an answer.
fn probe(socket: BorrowedFd<'_>) -> io::Result<()> {
    const LIMIT_MS: i32 = 120_000;
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1)?;
    for (name, value) in [
        (libc::TCP_KEEPIDLE, 60),
        (libc::TCP_KEEPINTVL, 15),
        (libc::TCP_KEEPCNT, 4),
        (libc::TCP_USER_TIMEOUT, LIMIT_MS),
    ] {
        sys::set_option(socket, libc::IPPROTO_TCP, name, &value)?;
    }
    Ok(())
}
