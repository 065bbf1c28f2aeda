//! What is searched of packets where flows are followed: payloads, each with what the packet before it of its flow ended with.
//!
//! Texts lie among the spans. A table behind the rows says of each where it begins, and how long it is: rows of two words, as
//! kernels that search spans know them. What stood before payloads is kept with the batch, for when it is back, and
//! for when it has to be packed again: the flows have gone on by then.

use crate::Packet;
use crate::headers::payload::behind_headers;

/// Words of a text's entry in the table.
pub(super) const TEXT_WORDS: u32 = 2;
/// Bytes of it.
pub(super) const TEXT_BYTES: usize = TEXT_WORDS as usize * 4;
/// What kernels take off the captured bytes of a row: the header that is not in its span.
const HEADER: u32 = 20;

/// What stands before the payloads of a batch, by its packets.
#[derive(Debug, Default)]
pub struct Texts {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<u32>,
    /// Whether each packet has a text.
    is_there: Vec<bool>,
    table: Vec<u8>,
}

/// What of a packet is searched; nothing where its header is not known or contradicts itself.
#[inline]
pub(super) fn payload(packet: &Packet) -> Option<&[u8]> {
    packet.network_header().and_then(behind_headers)
}

/// A text's entry in the table; `at` is a multiple of 4.
pub(super) fn entry(at: usize, len: usize) -> [u8; TEXT_BYTES] {
    let words = [HEADER + len as u32, (at / 4) as u32].map(u32::to_le_bytes);
    std::array::from_fn(|byte| words[byte / 4][byte % 4])
}

/// Where a text begins, and how long it is.
#[inline]
pub(super) fn place(entry: [u8; TEXT_BYTES]) -> (usize, usize) {
    let word = |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]) as usize;
    (word(4) * 4, word(0).saturating_sub(HEADER as usize))
}

impl Texts {
    /// What stands before a packet's payload.
    #[inline]
    pub fn before(&self, packet: usize) -> &[u8] {
        let start = packet.checked_sub(1).map_or(0, |previous| self.ends[previous]);
        &self.bytes[start as usize..self.ends[packet] as usize]
    }

    /// Whether a packet has a text; else whoever looks for something has to search all of it by itself.
    #[inline]
    pub fn is_there(&self, packet: usize) -> bool {
        self.is_there[packet]
    }

    /// Bytes to which what stands before the next packet's payload is appended.
    pub(super) fn next(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// A packet's text has its place: at the end of the spans, which have so many bytes. Writes it there, and says how long it is.
    pub(super) fn add(&mut self, packet: &Packet, span_bytes: usize, room: &mut [u8]) -> usize {
        self.ends.push(self.bytes.len() as u32);
        let (number, payload) = (self.ends.len() - 1, payload(packet));
        self.is_there.push(payload.is_some());
        let (before, payload) = (self.before(number), payload.unwrap_or_default());
        let len = before.len() + payload.len();
        room[..before.len()].copy_from_slice(before);
        room[before.len()..len].copy_from_slice(payload);
        self.table.extend(entry(span_bytes, len));
        len
    }

    /// The table.
    pub(super) fn table(&self) -> &[u8] {
        &self.table
    }

    /// Of a batch that is to be packed again: what stood before payloads stays.
    pub(super) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.is_there.clear();
        self.table.clear();
    }
}
