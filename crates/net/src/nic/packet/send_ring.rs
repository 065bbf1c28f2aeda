//! Sending by a ring that is shared with the kernel (`TPACKET_V2`).
//!
//! Each frame has a status word that says whose it is: free, to be sent, or on its way. The kernel looks at the ring
//! during a call only, and in order. What it did not take in a call is taken back at once, so that between two calls
//! nothing waits in the ring, and a packet that it refuses can be told.

use super::super::sys::{self, Mapping};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;

/// Bytes of a ring, unless packets are very long.
const RING: usize = 1 << 20;
/// Frames of a ring for very long packets.
const FRAMES_MIN: usize = 8;

// Where `struct tpacket2_hdr` has its fields, and where the packet starts, in bytes.
const STATUS: usize = 0;
const LEN: usize = 4;
const PACKET: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(16);

#[derive(Debug)]
pub(super) struct SendRing {
    memory: Mapping,
    frame_len: usize,
    frames: usize,
    /// The frame that the kernel looks at first.
    next: usize,
}

impl SendRing {
    /// Gives the socket, which is not bound yet, a ring for packets of up to `len` bytes.
    pub(super) fn new(socket: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        const TPACKET_V2: i32 = 1;
        let frame_len = (PACKET + len).next_power_of_two();
        let frames = (RING / frame_len).max(FRAMES_MIN);
        sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &TPACKET_V2)?;
        let mut request: libc::tpacket_req = sys::zeroed();
        request.tp_block_size = (frame_len * frames) as u32;
        request.tp_block_nr = 1;
        request.tp_frame_size = frame_len as u32;
        request.tp_frame_nr = frames as u32;
        sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_TX_RING, &request)?;
        Ok(Self { memory: Mapping::of(socket, 0, frame_len * frames)?, frame_len, frames, next: 0 })
    }

    /// Sends the first of `packets`, and returns how many the kernel took; the error of the first where it took none.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, packets: &[&[u8]]) -> io::Result<usize> {
        let mut put = 0;
        while put < packets.len().min(self.frames) && self.put(put, packets[put]) {
            put += 1;
        }
        if put == 0 {
            let is_long = packets.first().is_some_and(|packet| packet.len() > self.frame_len - PACKET);
            return if is_long { Err(io::Error::from_raw_os_error(libc::EMSGSIZE)) } else { Ok(0) };
        }
        let called = call(socket);
        let sent = self.take_back(put);
        match called {
            Err(error) if sent == 0 && !is_full(&error) => Err(error),
            _ => Ok(sent),
        }
    }

    /// The status word of the frame at so many behind the next.
    fn status(&self, ahead: usize) -> (usize, &std::sync::atomic::AtomicU32) {
        let at = (self.next + ahead) % self.frames * self.frame_len;
        (at, self.memory.word(at + STATUS))
    }

    /// Puts a packet into a frame; false where the frame is on its way, or too short.
    fn put(&self, ahead: usize, packet: &[u8]) -> bool {
        let (at, status) = self.status(ahead);
        if packet.len() > self.frame_len - PACKET || status.load(Ordering::Acquire) != libc::TP_STATUS_AVAILABLE {
            return false;
        }
        // SAFETY: a frame that is available is ours until its status says that it is to be sent.
        unsafe {
            self.memory.put(at + LEN, packet.len() as u32);
            self.memory.bytes(at + PACKET, packet.len()).copy_from_slice(packet);
        }
        status.store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        true
    }

    /// Takes back what the kernel left of the `put` frames, and returns how many it took.
    fn take_back(&mut self, put: usize) -> usize {
        let is_left = |ahead: usize| {
            let status = self.status(ahead).1.load(Ordering::Acquire);
            matches!(status, libc::TP_STATUS_SEND_REQUEST | libc::TP_STATUS_WRONG_FORMAT)
        };
        let sent = (0..put).position(is_left).unwrap_or(put);
        for ahead in sent..put {
            self.status(ahead).1.store(libc::TP_STATUS_AVAILABLE, Ordering::Release);
        }
        self.next = (self.next + sent) % self.frames;
        sent
    }
}

/// Makes the kernel send what is in the ring.
fn call(socket: BorrowedFd<'_>) -> io::Result<()> {
    let none = std::ptr::null();
    // SAFETY: no bytes and no address.
    let result = unsafe { libc::sendto(socket.as_raw_fd(), none, 0, libc::MSG_DONTWAIT, none.cast(), 0) };
    sys::count(result).map(drop)
}

/// Whether there will be room later.
fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOBUFS)
}
