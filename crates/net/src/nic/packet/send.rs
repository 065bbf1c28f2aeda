//! Sending bursts by sendmmsg(2).

use super::super::sys;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Packets in one call: enough that its price does not count.
const BURST: usize = 64;

/// Sends the first of `packets`, and returns how many the kernel took; the error of the first where it took none.
pub(super) fn send(socket: BorrowedFd<'_>, packets: &[&[u8]]) -> io::Result<usize> {
    let mut sent = 0;
    for burst in packets.chunks(BURST) {
        match send_burst(socket, burst) {
            Ok(count) => {
                sent += count;
                if count < burst.len() {
                    break;
                }
            }
            Err(error) if sent == 0 => return Err(error),
            // What is wrong with it is told when it is the first.
            Err(_) => break,
        }
    }
    Ok(sent)
}

fn send_burst(socket: BorrowedFd<'_>, packets: &[&[u8]]) -> io::Result<usize> {
    // SAFETY: structures of numbers and pointers that may be null.
    let (mut pieces, mut messages): ([libc::iovec; BURST], [libc::mmsghdr; BURST]) = unsafe { std::mem::zeroed() };
    for ((piece, message), packet) in pieces.iter_mut().zip(&mut messages).zip(packets) {
        // The kernel only reads it.
        *piece = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
        message.msg_hdr.msg_iov = std::ptr::from_mut(piece);
        message.msg_hdr.msg_iovlen = 1;
    }
    let count = packets.len().min(BURST) as u32;
    // SAFETY: the first `count` messages have one piece each, which is one of `packets`; all live during the call.
    let result = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
    match sys::count(result as isize) {
        Ok(sent) => Ok(sent.unwrap_or(0)),
        // The queue of the device is full.
        Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(0),
        Err(error) => Err(error),
    }
}
