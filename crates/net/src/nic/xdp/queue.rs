//! The socket of one receive queue of a device, with its memory and its four rings.
//!
//! ```text
//!               fill ring: free frames            receive ring: frames with packets
//!   receiver  ----------------------->  kernel  ----------------------------------->  receiver
//!               transmit ring: frames with packets   completion ring: free frames
//!   sender    ------------------------------>  kernel  ------------------------->  sender
//! ```
//!
//! The first half of the frames belongs to the receiver, the other half to the sender, so that they share nothing but
//! the socket, and may be in different threads without a lock.

use super::super::sys::{self, Mapping};
use super::Copying;
use super::ring::{Consumer, Producer};
use crate::nic::Received;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Entries of each ring, and frames of each half.
const FRAMES: u32 = 2048;

/// The kernel keeps as many bytes of each frame free for programs.
const KERNEL_HEADROOM: u32 = 256;

/// How often a queue that is in use is asked for again, and after which pause: two seconds in all.
const BUSY_TRIES: u32 = 200;
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// What both halves use.
#[derive(Debug)]
pub(super) struct Queue {
    // The memory goes after the socket: the kernel may write to it until then.
    socket: OwnedFd,
    memory: Mapping,
    frame_len: u32,
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Receives from a queue.
#[derive(Debug)]
pub(super) struct ReceiveHalf {
    fill: Producer<u64>,
    receive: Consumer<libc::xdp_desc>,
    queue: Arc<Queue>,
}

/// Sends by a queue.
#[derive(Debug)]
pub(super) struct SendHalf {
    transmit: Producer<libc::xdp_desc>,
    completion: Consumer<u64>,
    free: Vec<u64>,
    queue: Arc<Queue>,
}

/// The length of frames for packets of `len` bytes; nothing where they are too long for any.
pub(super) fn frame_len(len: u32) -> Option<u32> {
    [2048, 4096].into_iter().find(|&frame| len + KERNEL_HEADROOM <= frame)
}

/// Opens queue `number` of a device.
pub(super) fn open(
    socket: OwnedFd,
    device: u32,
    number: u32,
    frame_len: u32,
    copying: Copying,
) -> io::Result<(Arc<Queue>, ReceiveHalf, SendHalf)> {
    let memory = Mapping::anonymous((2 * FRAMES * frame_len) as usize)?;
    let mut region: libc::xdp_umem_reg = sys::zeroed();
    region.addr = memory.address();
    region.len = u64::from(2 * FRAMES * frame_len);
    region.chunk_size = frame_len;
    let fd = socket.as_fd();
    sys::set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &region)?;
    for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING] {
        sys::set_option(fd, libc::SOL_XDP, ring, &FRAMES)?;
    }
    raise_budget(fd);
    let at: libc::xdp_mmap_offsets = sys::option(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
    let mut fill = Producer::map(fd, libc::XDP_UMEM_PGOFF_FILL_RING, at.fr, FRAMES)?;
    let completion = Consumer::map(fd, libc::XDP_UMEM_PGOFF_COMPLETION_RING, at.cr, FRAMES)?;
    let receive = Consumer::map(fd, libc::XDP_PGOFF_RX_RING as u64, at.rx, FRAMES)?;
    let transmit = Producer::map(fd, libc::XDP_PGOFF_TX_RING as u64, at.tx, FRAMES)?;
    for frame in 0..FRAMES {
        fill.put(u64::from(frame * frame_len));
    }
    fill.publish();
    bind(fd, device, number, copying)?;
    let free = (FRAMES..2 * FRAMES).map(|frame| u64::from(frame * frame_len)).collect();
    let queue = Arc::new(Queue { socket, memory, frame_len });
    let receiver = ReceiveHalf { fill, receive, queue: Arc::clone(&queue) };
    let sender = SendHalf { transmit, completion, free, queue: Arc::clone(&queue) };
    Ok((queue, receiver, sender))
}

/// Lets the kernel send a whole ring in a call, not 32 packets. Kernels before 6.17 do not know it.
fn raise_budget(socket: BorrowedFd<'_>) {
    const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
    let _ = sys::set_option(socket, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &FRAMES);
}

fn bind(socket: BorrowedFd<'_>, device: u32, number: u32, copying: Copying) -> io::Result<()> {
    let mut address: libc::sockaddr_xdp = sys::zeroed();
    address.sxdp_family = libc::AF_XDP as u16;
    address.sxdp_ifindex = device;
    address.sxdp_queue_id = number;
    address.sxdp_flags = libc::XDP_USE_NEED_WAKEUP
        | match copying {
            Copying::AsPossible => 0,
            Copying::Always => libc::XDP_COPY,
            Copying::Never => libc::XDP_ZEROCOPY,
        };
    // The kernel gives a queue back some time after the socket that had it was closed.
    for _ in 0..BUSY_TRIES {
        match sys::bind(socket, &address) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => thread::sleep(BUSY_PAUSE),
            result => return result,
        }
    }
    sys::bind(socket, &address)
}

impl Queue {
    /// Whether the kernel puts packets into our memory without copying them.
    pub(super) fn is_zero_copy(&self) -> bool {
        let options = sys::option::<u32>(self.as_fd(), libc::SOL_XDP, libc::XDP_OPTIONS);
        options.is_ok_and(|options| options & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// Packets that the kernel could not hand over.
    pub(super) fn dropped(&self) -> u64 {
        match sys::option::<libc::xdp_statistics>(self.as_fd(), libc::SOL_XDP, libc::XDP_STATISTICS) {
            Ok(counts) => counts.rx_dropped + counts.rx_ring_full,
            Err(_) => 0,
        }
    }

    /// Takes the error that waits at the socket, which would make it look ready for ever.
    pub(super) fn clear_error(&self) {
        let _ = sys::option::<i32>(self.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR);
    }

    /// Makes the kernel look at the transmit ring.
    fn call(&self) -> io::Result<()> {
        let (fd, none) = (self.socket.as_raw_fd(), std::ptr::null());
        // SAFETY: no bytes and no address.
        let result = unsafe { libc::sendto(fd, none, 0, libc::MSG_DONTWAIT, none.cast(), 0) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Makes the kernel look at the fill ring.
    fn call_for_fill(&self) {
        let (fd, none) = (self.socket.as_raw_fd(), std::ptr::null_mut());
        // SAFETY: no room for bytes, no address. A failure is seen at the next look for packets.
        unsafe { libc::recvfrom(fd, none, 0, libc::MSG_DONTWAIT, none.cast(), none.cast()) };
    }
}

impl ReceiveHalf {
    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Gives out up to `max` packets, and returns how many.
    pub(super) fn receive(&mut self, max: usize, snap_len: usize, take: &mut dyn FnMut(Received<'_>)) -> usize {
        let mut count = 0;
        while count < max
            && let Some(found) = self.receive.take()
        {
            // SAFETY: a frame that the kernel has put into the receive ring is ours until we put it into the fill ring.
            let bytes: &[u8] = unsafe { self.queue.memory.bytes(found.addr as usize, found.len as usize) };
            let wire_len = bytes.len();
            take(Received { bytes: &bytes[..wire_len.min(snap_len)], wire_len, timestamp: None, destination: None });
            // There are as many frames as the ring has entries, so there is room.
            self.fill.put(found.addr / u64::from(self.queue.frame_len) * u64::from(self.queue.frame_len));
            count += 1;
        }
        if count > 0 {
            self.receive.release();
            self.fill.publish();
            if self.fill.needs_call() {
                self.queue.call_for_fill();
            }
        }
        count
    }

    /// Throws away what has come.
    pub(super) fn clear(&mut self) {
        while self.receive(FRAMES as usize, 0, &mut |_| ()) > 0 {}
    }
}

impl SendHalf {
    /// Puts the first of `packets` into the ring, and returns how many there was room for.
    pub(super) fn send(&mut self, packets: &[&[u8]]) -> usize {
        self.reclaim();
        let mut count = 0;
        for packet in packets {
            if packet.len() > self.packet_len_max() || !self.transmit.has_room() {
                break;
            }
            let Some(frame) = self.free.pop() else { break };
            // SAFETY: a free frame is ours until it goes into the transmit ring.
            unsafe { self.queue.memory.bytes(frame as usize, packet.len()) }.copy_from_slice(packet);
            self.transmit.put(libc::xdp_desc { addr: frame, len: packet.len() as u32, options: 0 });
            count += 1;
        }
        self.transmit.publish();
        count
    }

    pub(super) fn packet_len_max(&self) -> usize {
        self.queue.frame_len as usize
    }

    /// Makes the kernel send what is in the ring, as far as it does now.
    pub(super) fn push_on(&mut self) -> io::Result<()> {
        // A call sends 32 packets with kernels that have no larger budget.
        for _ in 0..=FRAMES / 32 {
            if self.transmit.is_drained() || !self.transmit.needs_call() {
                return Ok(());
            }
            match self.queue.call() {
                Ok(()) => {}
                Err(error) => match error.raw_os_error() {
                    // There is more, or frames are to be taken back first.
                    Some(libc::EAGAIN) => self.reclaim(),
                    Some(libc::EBUSY | libc::ENOBUFS | libc::EINTR) => return Ok(()),
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    fn reclaim(&mut self) {
        while let Some(frame) = self.completion.take() {
            self.free.push(frame);
        }
        self.completion.release();
    }
}
