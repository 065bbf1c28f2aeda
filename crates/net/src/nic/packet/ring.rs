//! A receive ring of `TPACKET_V3`.
//!
//! ```text
//!   block 0        block 1        block 2 ...
//!   status packets status packets status packets
//! ```
//!
//! The status word says whose a block is. The kernel fills its blocks in order and hands them over whole; the reader
//! walks the packets of a block and hands it back.

use super::super::Received;
use super::super::finish::{State, TAG};
use super::super::sys::{self, Mapping};
use super::{About, Limits};
use std::io;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes in a block: hundreds of short packets, and more than the longest packet.
const BLOCK: usize = 128 << 10;
/// Blocks in a ring: 4 MiB, which hold some 20,000 short packets.
const BLOCKS: usize = 32;
/// After how many milliseconds the kernel hands a block over that is not full: the least that it knows.
const RETIRE_MS: u32 = 1;

// Where `struct tpacket_block_desc` has its fields, in bytes.
const STATUS: usize = 8;
const PACKETS: usize = 12;
const FIRST: usize = 16;

/// Where the address of the link layer stands behind the header of a packet: aligned to 16 bytes.
const ADDRESS: usize = size_of::<libc::tpacket3_hdr>().next_multiple_of(16);

#[derive(Debug)]
pub(super) struct Ring {
    memory: Mapping,
    /// The block that is read.
    block: usize,
    /// Packets of it that are not read yet.
    left: u32,
    /// Where the next of them starts, in bytes of the ring.
    at: usize,
}

impl Ring {
    /// Gives the socket, which is not bound yet, a ring.
    pub(super) fn new(socket: BorrowedFd<'_>) -> io::Result<Self> {
        const TPACKET_V3: i32 = 2;
        sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &TPACKET_V3)?;
        sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_RESERVE, &(TAG as u32))?;
        let mut request: libc::tpacket_req3 = sys::zeroed();
        request.tp_block_size = BLOCK as u32;
        request.tp_block_nr = BLOCKS as u32;
        // With version 3 frames have any length; the kernel only wants to see a number that fits.
        request.tp_frame_size = 2048;
        request.tp_frame_nr = (BLOCK / 2048 * BLOCKS) as u32;
        request.tp_retire_blk_tov = RETIRE_MS;
        sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        match Mapping::of(socket, 0, BLOCK * BLOCKS) {
            Ok(memory) => Ok(Self { memory, block: 0, left: 0, at: 0 }),
            Err(error) => {
                // A socket with a ring that is not mapped would receive nothing by other means.
                let none: libc::tpacket_req3 = sys::zeroed();
                sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &none)?;
                Err(error)
            }
        }
    }

    /// Gives out up to `max` packets, and returns how many.
    pub(super) fn receive(&mut self, max: usize, limits: Limits, take: &mut dyn FnMut(Received<'_>)) -> usize {
        let mut count = 0;
        while count < max && (self.left > 0 || self.next_block()) {
            count += usize::from(self.packet(limits, take));
            if self.left == 0 {
                self.hand_back();
            }
        }
        count
    }

    /// Starts to read the next block, if it is ours.
    fn next_block(&mut self) -> bool {
        let base = self.block * BLOCK;
        if self.memory.word(base + STATUS).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return false;
        }
        self.left = self.memory.word(base + PACKETS).load(Ordering::Relaxed);
        self.at = base + self.memory.word(base + FIRST).load(Ordering::Relaxed) as usize;
        if self.left == 0 {
            self.hand_back();
        }
        self.left > 0
    }

    fn hand_back(&mut self) {
        self.memory.word(self.block * BLOCK + STATUS).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.block = (self.block + 1) % BLOCKS;
    }

    /// Gives the next packet of the block out; false where it is not wanted.
    fn packet(&mut self, limits: Limits, take: &mut dyn FnMut(Received<'_>)) -> bool {
        // SAFETY: the block is ours since its status word said so, until `hand_back`.
        let header: libc::tpacket3_hdr = unsafe { self.memory.get(self.at) };
        let kind = self.at + ADDRESS + offset_of!(libc::sockaddr_ll, sll_pkttype);
        // SAFETY: as above, and no other view of the block exists: packets are looked at one after another.
        let kind = unsafe { self.memory.bytes(kind, 1) }[0];
        let start = self.at + usize::from(header.tp_mac) - TAG;
        // SAFETY: as above. The kernel left room for a tag before the packet, as it was asked to.
        let room = unsafe { self.memory.bytes(start, TAG + header.tp_snaplen as usize) };
        let state = State {
            status: header.tp_status,
            tag: header.hv1.tp_vlan_tci as u16,
            tag_protocol: header.hv1.tp_vlan_tpid,
            network: usize::from(header.tp_net).saturating_sub(usize::from(header.tp_mac)),
            whole: header.tp_snaplen == header.tp_len,
        };
        let timestamp = Duration::from_secs(header.tp_sec.into()) + Duration::from_nanos(header.tp_nsec.into());
        let about = About { wire_len: header.tp_len as usize, timestamp: Some(timestamp), kind };
        self.at += header.tp_next_offset as usize;
        self.left -= 1;
        limits.give(room, state, about, take)
    }
}
