//! A batch's rows, as CPU twins read and write them.

use super::layout::Layout;
use super::texts::{TEXT_BYTES, place};
use bifolio_kernels::packets::{HAS_LINK, HAS_NETWORK, LINK_SHIFT, NONE};

/// Which packets take part in a stage: those whose slot has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    /// The slot.
    pub slot: u32,
    /// Its value.
    pub value: u8,
}

/// Input rows, spans and output rows of a batch.
#[derive(Debug)]
pub struct Rows<'a> {
    layout: &'a Layout,
    count: usize,
    input: &'a [u8],
    spans: &'a [u8],
    texts: &'a [u8],
    output: &'a mut [u8],
}

/// An input row, with its span.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    layout: &'a Layout,
    bytes: &'a [u8],
    spans: &'a [u8],
}

impl<'a> Row<'a> {
    /// The word with this number, its bytes as on the wire.
    #[inline]
    pub fn word(self, word: u32) -> [u8; 4] {
        let at = word as usize * 4;
        [self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]]
    }

    /// What the packer found out.
    #[inline]
    pub fn descriptor(self) -> u32 {
        u32::from_le_bytes(self.word(0))
    }

    /// Bytes of the packet from its network header on.
    #[inline]
    pub fn captured(self) -> usize {
        (self.descriptor() & 0xffff) as usize
    }

    /// The first 20 bytes of the network header, if they are there.
    #[inline]
    pub fn network(self) -> Option<&'a [u8; 20]> {
        let is_there = self.descriptor() & HAS_NETWORK != 0 && self.captured() >= 20;
        if is_there { self.bytes[self.layout.network() as usize * 4..].first_chunk() } else { None }
    }

    /// The beginning of the Ethernet frame, with up to two VLAN tags, as far as it travels.
    #[inline]
    pub fn link(self) -> Option<&'a [u8]> {
        let first = self.layout.link();
        let more = (self.descriptor() >> LINK_SHIFT & 7) as usize;
        let is_there = first != NONE && self.descriptor() & HAS_LINK != 0;
        is_there.then(|| &self.bytes[first as usize * 4..][..14 + 2 * more.min(4)])
    }

    /// The first 4 bytes of the transport header, zero where they are not there.
    #[inline]
    pub fn transport(self) -> [u8; 4] {
        let word = self.layout.transport();
        if word == NONE { [0; 4] } else { self.word(word) }
    }

    /// Byte 13 of the transport header, which are the flags of TCP, or zero.
    #[inline]
    pub fn byte_13(self) -> u8 {
        (self.descriptor() >> 16) as u8
    }

    /// Where in the variable part the packet's bytes begin.
    #[inline]
    pub fn span_at(self) -> u64 {
        u64::from(u32::from_le_bytes(self.word(1))) * 4
    }

    /// The packet's part of variable length: options, or all behind the first 20 bytes of the network header.
    #[inline]
    pub fn span(self) -> &'a [u8] {
        if !self.layout.has_spans() {
            return &[];
        }
        let at = self.span_at() as usize;
        let rest = self.captured().saturating_sub(20);
        let len = if self.layout.wants.payload {
            rest
        } else if !self.layout.wants.options {
            0
        } else {
            let header = usize::from(self.bytes[self.layout.network() as usize * 4] & 15) * 4;
            header.saturating_sub(20).min(rest)
        };
        self.spans.get(at..at + len).unwrap_or_default()
    }
}

impl<'a> Rows<'a> {
    /// The rows of `count` packets.
    pub(super) fn new(
        layout: &'a Layout,
        count: usize,
        input: &'a [u8],
        spans: &'a [u8],
        texts: &'a [u8],
        output: &'a mut [u8],
    ) -> Self {
        Self { layout, count, input, spans, texts, output }
    }

    /// What is searched of a packet where flows are followed: its payload, and what stands before it.
    pub fn text(&self, packet: usize) -> &'a [u8] {
        let (entries, _) = self.texts.as_chunks::<TEXT_BYTES>();
        let Some(entry) = entries.get(packet) else { return &[] };
        let (at, len) = place(*entry);
        self.spans.get(at..at + len).unwrap_or_default()
    }

    /// Output rows get their first values.
    pub(super) fn begin(&mut self) {
        let (slots, ttl, network) = (self.layout.slots_in(), self.layout.ttl(), self.layout.network());
        for packet in 0..self.count {
            let row = self.row(packet);
            let first = if slots == NONE { [0; 4] } else { row.word(slots) };
            let header = if ttl == NONE { [0; 4] } else { row.word(network + 2) };
            let out = self.out(packet);
            out.fill(0);
            out[..4].copy_from_slice(&first);
            if ttl != NONE {
                out[ttl as usize * 4..][..4].copy_from_slice(&header);
            }
        }
    }

    /// How many packets there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Where things lie.
    pub fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// A packet's input row.
    #[inline]
    pub fn row(&self, packet: usize) -> Row<'a> {
        let bytes = self.layout.input_bytes();
        Row { layout: self.layout, bytes: &self.input[packet * bytes..][..bytes], spans: self.spans }
    }

    /// A packet's output row.
    #[inline]
    pub fn out(&mut self, packet: usize) -> &mut [u8] {
        let bytes = self.layout.output_bytes();
        &mut self.output[packet * bytes..][..bytes]
    }

    /// Whether a packet takes part.
    #[inline]
    pub fn takes_part(&self, packet: usize, test: Option<Test>) -> bool {
        let at = packet * self.layout.output_bytes();
        test.is_none_or(|test| self.output[at + test.slot as usize] == test.value)
    }

    /// Writes a slot.
    #[inline]
    pub fn set_slot(&mut self, packet: usize, slot: u32, value: u8) {
        self.out(packet)[slot as usize] = value;
    }

    /// A word of an output row, its bytes as on the wire.
    #[inline]
    pub fn out_word(&mut self, packet: usize, word: u32) -> &mut [u8; 4] {
        let at = word as usize * 4;
        self.out(packet)[at..].first_chunk_mut().expect("words that a layout names are there")
    }
}
