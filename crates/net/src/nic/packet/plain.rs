//! Receiving without a ring: one recvmsg(2) a packet.

use super::super::Received;
use super::super::finish::{State, TAG};
use super::super::sys;
use super::{About, Limits};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Room for the longest packet, and for a tag before it.
const ROOM: usize = TAG + (128 << 10);

#[derive(Debug)]
pub(super) struct Plain {
    room: Vec<u8>,
}

/// Bytes that the kernel keeps for us: as many as in a ring.
const QUEUE: i32 = 4 << 20;

/// Room for control messages, aligned as they want it.
#[repr(C, align(8))]
struct Control([u8; 128]);

impl Plain {
    pub(super) fn new(socket: BorrowedFd<'_>) -> io::Result<Self> {
        sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, &1)?;
        sys::set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1)?;
        // The usual room is for some 250 packets. More than the system's limit takes CAP_NET_ADMIN.
        for option in [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE] {
            let _ = sys::set_option(socket, libc::SOL_SOCKET, option, &QUEUE);
        }
        Ok(Self { room: vec![0; ROOM] })
    }

    /// Gives out up to `max` packets; returns how many, and what ended it, but for there being no more.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        max: usize,
        limits: Limits,
        take: &mut dyn FnMut(Received<'_>),
    ) -> (usize, Option<io::Error>) {
        let mut count = 0;
        while count < max {
            match self.packet(socket, limits, take) {
                Ok(None) => break,
                Ok(Some(given)) => count += usize::from(given),
                Err(error) => return (count, Some(error)),
            }
        }
        (count, None)
    }

    fn packet(
        &mut self,
        socket: BorrowedFd<'_>,
        limits: Limits,
        take: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<Option<bool>> {
        let mut from: libc::sockaddr_ll = sys::zeroed();
        let mut control = Control([0; 128]);
        let space = &mut self.room[TAG..];
        let mut piece = libc::iovec { iov_base: space.as_mut_ptr().cast(), iov_len: space.len() };
        // SAFETY: a structure of numbers and pointers that may be null.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut from).cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as u32;
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Control>() as _;
        // SAFETY: all pointers are to locals and to the room, each with its length.
        let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_TRUNC) };
        let Some(wire_len) = sys::count(result)? else { return Ok(None) };
        let captured = wire_len.min(ROOM - TAG);
        let (mut state, timestamp) = described(&message);
        state.whole = captured == wire_len;
        let about = About { wire_len, timestamp, kind: from.sll_pkttype };
        Ok(Some(limits.give(&mut self.room[..TAG + captured], state, about, take)))
    }
}

/// What the control messages of a received message say.
fn described(message: &libc::msghdr) -> (State, Option<Duration>) {
    let (mut state, mut timestamp) = (State::default(), None);
    // SAFETY: `message` was filled in by recvmsg, and its control buffer lives.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null, or a header within the control buffer.
    while let Some(header) = unsafe { next.as_ref() } {
        // SAFETY: the header is one of this message's.
        let data = unsafe { libc::CMSG_DATA(header) };
        match (header.cmsg_level, header.cmsg_type) {
            (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                // SAFETY: the kernel puts this structure there, at an address of any alignment.
                let data = unsafe { data.cast::<libc::tpacket_auxdata>().read_unaligned() };
                state.status = data.tp_status;
                state.tag = data.tp_vlan_tci;
                state.tag_protocol = data.tp_vlan_tpid;
                state.network = usize::from(data.tp_net).saturating_sub(usize::from(data.tp_mac));
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                // SAFETY: as above.
                let time = unsafe { data.cast::<libc::timespec>().read_unaligned() };
                timestamp = Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32));
            }
            _ => {}
        }
        // SAFETY: as for the first.
        next = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    (state, timestamp)
}

const _: () = assert!(offset_of!(libc::sockaddr_ll, sll_pkttype) == 10);
