//! Datagrams: a client of one place, or a server that answers whom it heard last.

use super::super::{Kind, Received, Result, sys};
use super::{Admit, Bound, Options, Place};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub(super) struct Datagrams {
    socket: OwnedFd,
    place: Place,
    _bound: Option<Bound>,
    /// Who is sent to.
    peer: Option<sys::Name>,
    client: bool,
    room: Vec<u8>,
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Datagrams {
    pub(super) fn open(place: &Place, options: &Options) -> Result<Self> {
        let socket = place.socket(options)?;
        let bound = if options.client { options.local.as_ref() } else { Some(place) };
        let bound = bound.map(|place| Bound::new(socket.as_fd(), place)).transpose()?;
        let peer = if options.client { Some(place.name()?) } else { None };
        let room = vec![0; options.snap_len.max(1)];
        let (place, client) = (place.clone(), options.client);
        Ok(Self { socket, place, _bound: bound, peer, client, room })
    }

    pub(super) fn is_connected(&self) -> bool {
        self.peer.is_some()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn receive(&mut self, max: usize, admit: Admit<'_>, take: &mut dyn FnMut(Received<'_>)) -> usize {
        let mut count = 0;
        // Datagrams of those who are not let in count for the limit: a flood of them does not keep the caller.
        for _ in 0..max {
            // Errors are those of earlier datagrams, which nobody received.
            let Ok(Some((wire_len, from))) = sys::receive_from(self.socket.as_fd(), &mut self.room) else { break };
            if !self.client && !from.ip().is_none_or(|address| admit(*address.ip())) {
                continue;
            }
            if !self.client && from.is_named() {
                self.peer = Some(from);
            }
            let bytes = &self.room[..wire_len.min(self.room.len())];
            take(Received { bytes, wire_len, timestamp: None, destination: None });
            count += 1;
        }
        count
    }

    pub(super) fn send(&mut self, packets: &[&[u8]]) -> Result<usize> {
        let Some(peer) = self.peer else { return Ok(0) };
        for (count, packet) in packets.iter().enumerate() {
            match self.send_one(&peer, packet) {
                Ok(true) => {}
                Ok(false) => return Ok(count),
                Err(_) if count > 0 => return Ok(count),
                Err(error) => return Err(error),
            }
        }
        Ok(packets.len())
    }

    /// Sends to the port of the place at `host`.
    pub(super) fn send_to(&mut self, host: Ipv4Addr, packet: &[u8]) -> Result<bool> {
        match &self.place {
            Place::Udp(address) => self.send_one(&sys::Name::of_port(SocketAddrV4::new(host, address.port())), packet),
            _ => self.send(&[packet]).map(|count| count > 0),
        }
    }

    fn send_one(&self, peer: &sys::Name, packet: &[u8]) -> Result<bool> {
        match sys::send(self.socket.as_fd(), packet, Some(peer)) {
            Ok(sent) => Ok(sent.is_some()),
            Err(source) if source.raw_os_error() == Some(libc::ENOBUFS) => Ok(false),
            Err(source) => {
                let refused = source.raw_os_error() == Some(libc::EMSGSIZE);
                let error = self.place.error("send", source);
                Err(if refused { error.of_kind(Kind::Refused) } else { error })
            }
        }
    }
}
