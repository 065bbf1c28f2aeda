//! Packets that go through a path together, with the buffers in which their slices travel.

use super::fetch::{ENTRY_BYTES, entry};
use super::layout::Layout;
use super::pack::pack;
use super::stage::Snapshot;
use super::texts::{TEXT_BYTES, Texts};
use crate::Packet;
use bifolio_compute::{HostMemory, Memory};
use bifolio_device::{Device, PinnedBuffer};
use std::collections::VecDeque;
use std::sync::Arc;

/// Where rows and what stages find begin: at multiples of this.
pub(super) const BOUNDARY: usize = 256;

/// Packets with their slices.
///
/// ```text
///   input     without spans:  rows                                  output:  rows | what stages find beyond them
///             options alone:  rows | spans, when it is full
///             with spans:     spans | rows, when it is full | the table of texts
///             fetched:        rows | the table of payloads, when it is full | room for spans, on the device
/// ```
#[derive(Debug)]
pub struct PacketBatch {
    /// The packets, until the batch is taken apart.
    pub(super) packets: Vec<Packet>,
    /// Those that have not left it since.
    pub(super) leaving: VecDeque<Packet>,
    /// How many there were, and of how many what was found has been written into them.
    pub(super) count: usize,
    pub(super) unpacked: usize,
    /// None while the executor has them.
    pub(super) buffers: Option<Buffers>,
    /// The device fetches its spans by itself.
    pub(super) is_fetched: bool,
    /// What waits for the end of the rest: rows for that of the spans, or options or the table of payloads for that of the rows.
    aside: Vec<u8>,
    pub(super) span_bytes: usize,
    /// What is searched of the packets, where flows are followed.
    pub(super) texts: Texts,
    /// What each stage computes it with.
    pub(super) snapshots: Arc<[Snapshot]>,
    /// Output rows are what was found.
    pub(super) is_computed: bool,
}

/// Pinned memory of a batch.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) input: PinnedBuffer,
    pub(super) output: PinnedBuffer,
}

impl Buffers {
    pub(super) fn new(device: &Device, input: usize, output: usize) -> bifolio_device::Result<Self> {
        Ok(Self { input: device.alloc_pinned(input.max(16))?, output: device.alloc_pinned(output.max(16))? })
    }
}

/// Where the parts of a packed batch lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) count: usize,
    pub(super) spans_at: usize,
    pub(super) span_bytes: usize,
    pub(super) rows_at: usize,
    /// The table of texts; where there are none, the end.
    pub(super) texts_at: usize,
    /// The table of payloads, where the device fetches them.
    pub(super) table_at: Option<usize>,
    /// How many bytes travel: the rest is room on the device.
    pub(super) travels: usize,
    pub(super) input_bytes: usize,
}

impl Extent {
    /// Of a batch with so many bytes of spans.
    pub(super) fn new(layout: &Layout, count: usize, span_bytes: usize, is_fetched: bool) -> Self {
        let rows_bytes = count * layout.input_bytes();
        if is_fetched {
            let table_at = rows_bytes.next_multiple_of(BOUNDARY);
            let travels = table_at + count * ENTRY_BYTES;
            let spans_at = travels.next_multiple_of(BOUNDARY);
            let input_bytes = spans_at + span_bytes;
            let (rows_at, texts_at, table_at) = (0, input_bytes, Some(table_at));
            return Self { count, spans_at, span_bytes, rows_at, texts_at, table_at, travels, input_bytes };
        }
        if layout.has_options_alone() {
            // Without options only rows travel; what is empty lies at the beginning, where kernels take it.
            let spans_at = if span_bytes > 0 { rows_bytes.next_multiple_of(BOUNDARY) } else { 0 };
            let input_bytes = rows_bytes.max(spans_at + span_bytes);
            let (rows_at, texts_at, table_at, travels) = (0, input_bytes, None, input_bytes);
            return Self { count, spans_at, span_bytes, rows_at, texts_at, table_at, travels, input_bytes };
        }
        let rows_at = span_bytes.next_multiple_of(BOUNDARY);
        let rows_end = rows_at + rows_bytes;
        let texts_at = if layout.has_texts() { rows_end.next_multiple_of(16) } else { rows_end };
        let input_bytes = if layout.has_texts() { texts_at + count * TEXT_BYTES } else { rows_end };
        let (spans_at, table_at, travels) = (0, None, input_bytes);
        Self { count, spans_at, span_bytes, rows_at, texts_at, table_at, travels, input_bytes }
    }
}

impl PacketBatch {
    pub(super) fn new(buffers: Buffers) -> Self {
        Self {
            packets: Vec::new(),
            leaving: VecDeque::new(),
            count: 0,
            unpacked: 0,
            buffers: Some(buffers),
            is_fetched: false,
            aside: Vec::new(),
            span_bytes: 0,
            texts: Texts::default(),
            snapshots: Arc::default(),
            is_computed: false,
        }
    }

    /// How many packets it has.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// How many of its packets have not left, of a batch that is taken apart.
    pub fn left(&self) -> usize {
        self.leaving.len()
    }

    /// Takes the packets out.
    pub fn drain(&mut self) -> impl Iterator<Item = Packet> + '_ {
        self.packets.drain(..)
    }

    /// Bytes that it will have with another packet, of whose spans there are so many.
    fn bytes_with(&self, layout: &Layout, len: usize) -> usize {
        let spans = if layout.has_spans() { self.span_bytes + len.next_multiple_of(4) } else { 0 };
        Extent::new(layout, self.len() + 1, spans, self.is_fetched).input_bytes
    }

    /// Whether a packet with so many bytes of spans has room.
    #[inline]
    pub(super) fn has_room(&self, layout: &Layout, len: usize) -> bool {
        let capacity = self.buffers.as_ref().map_or(0, |buffers| buffers.input.bytes().len());
        self.bytes_with(layout, len) <= capacity
    }

    /// How many packets more it surely has room for, where rows, and at most options, are all that travels.
    pub(super) fn rows_left(&self, layout: &Layout) -> usize {
        let capacity = self.buffers.as_ref().map_or(0, |buffers| buffers.input.bytes().len());
        let used = self.len() * layout.input_bytes() + BOUNDARY + self.span_bytes;
        capacity.saturating_sub(used) / (layout.input_bytes() + layout.span_bytes_max(usize::MAX))
    }

    /// Packs a packet's slice, for which there is room. What stands before its text is there.
    #[inline]
    pub(super) fn add(&mut self, layout: &Layout, packet: Packet) {
        let Some(buffers) = &mut self.buffers else { return };
        let (bytes, at) = (layout.input_bytes(), self.packets.len() * layout.input_bytes());
        if self.is_fetched {
            let row = &mut buffers.input.bytes_mut()[at..at + bytes];
            let span = pack(layout, &packet, row);
            row[4..8].copy_from_slice(&((self.span_bytes / 4) as u32).to_le_bytes());
            self.aside.extend_from_slice(&entry(span, self.span_bytes));
            self.span_bytes += span.len().next_multiple_of(4);
        } else if layout.has_options_alone() {
            let row = &mut buffers.input.bytes_mut()[at..at + bytes];
            let span = pack(layout, &packet, row);
            row[4..8].copy_from_slice(&((self.aside.len() / 4) as u32).to_le_bytes());
            if !span.is_empty() {
                self.aside.extend_from_slice(span);
                self.aside.resize(self.aside.len().next_multiple_of(4), 0);
                self.span_bytes = self.aside.len();
            }
        } else if layout.has_spans() {
            self.aside.resize(at + bytes, 0);
            let row = &mut self.aside[at..];
            let span = pack(layout, &packet, row);
            row[4..8].copy_from_slice(&((self.span_bytes / 4) as u32).to_le_bytes());
            let room = &mut buffers.input.bytes_mut()[self.span_bytes..];
            room[..span.len()].copy_from_slice(span);
            self.span_bytes += span.len().next_multiple_of(4);
            if layout.has_texts() {
                let room = &mut buffers.input.bytes_mut()[self.span_bytes..];
                self.span_bytes += self.texts.add(&packet, self.span_bytes, room).next_multiple_of(4);
            }
        } else {
            pack(layout, &packet, &mut buffers.input.bytes_mut()[at..at + bytes]);
        }
        self.packets.push(packet);
    }

    /// Where everything lies when it leaves now.
    pub(super) fn extent(&self, layout: &Layout) -> Extent {
        Extent::new(layout, self.len(), if layout.has_spans() { self.span_bytes } else { 0 }, self.is_fetched)
    }

    /// Brings what waited aside to its place; where everything lies then.
    pub(super) fn close(&mut self, layout: &Layout) -> Extent {
        let extent = self.extent(layout);
        if let Some(buffers) = self.buffers.as_mut().filter(|_| layout.has_spans()) {
            let input = buffers.input.bytes_mut();
            let behind_rows = if layout.has_options_alone() { extent.spans_at } else { extent.rows_at };
            let at = extent.table_at.unwrap_or(behind_rows);
            input[at..][..self.aside.len()].copy_from_slice(&self.aside);
            input[extent.texts_at..extent.input_bytes].copy_from_slice(self.texts.table());
        }
        extent
    }

    /// Packs all packets again, into memory that is at hand, with their spans.
    pub(super) fn pack_again(&mut self, layout: &Layout, buffers: Buffers) {
        let (packets, texts) = (std::mem::take(&mut self.packets), self.texts.take());
        self.clear();
        self.buffers = Some(buffers);
        for (at, packet) in packets.into_iter().enumerate() {
            if layout.has_texts() {
                self.texts.next().extend(texts.before(at));
            }
            self.add(layout, packet);
        }
    }

    /// Its rows, where packets have a part of variable length.
    pub(super) fn rows(&self, layout: &Layout) -> &[u8] {
        match &self.buffers {
            Some(buffers) if self.is_fetched || layout.has_options_alone() => {
                &buffers.input.bytes()[..self.count.max(self.len()) * layout.input_bytes()]
            }
            _ => &self.aside,
        }
    }

    /// Lends its buffers to a request.
    pub(super) fn lend(&mut self, input_bytes: usize, output_bytes: usize) -> Option<(Memory, Memory)> {
        let Buffers { input, output } = self.buffers.take()?;
        let part = |buffer, bytes| Memory::Host(HostMemory::PinnedPart(buffer, bytes));
        Some((part(input, input_bytes), part(output, output_bytes)))
    }

    /// Takes them back.
    pub(super) fn give_back(&mut self, source: Option<Memory>, destination: Option<Memory>) {
        let pinned = |memory: Option<Memory>| memory.and_then(Memory::into_pinned);
        if let (Some(input), Some(output)) = (pinned(source), pinned(destination)) {
            self.buffers = Some(Buffers { input, output });
        }
    }

    /// It is taken apart from now on.
    pub(super) fn open(&mut self) {
        self.count = self.packets.len();
        self.leaving = std::mem::take(&mut self.packets).into();
    }

    /// Without packets.
    pub(super) fn clear(&mut self) {
        self.packets.clear();
        self.leaving.clear();
        if self.packets.capacity() == 0 {
            // The memory for packets serves the next ones.
            self.packets = std::mem::take(&mut self.leaving).into();
        }
        (self.count, self.unpacked) = (0, 0);
        self.aside.clear();
        self.texts.clear();
        (self.is_fetched, self.span_bytes, self.is_computed, self.snapshots) = (false, 0, false, Arc::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::{Following, segment};
    use crate::wide::Wants;
    use bifolio_device::{DeviceChoice, DeviceId, open};
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_batch_that_is_packed_again_has_the_same_texts() {
        let longest = Arc::new(AtomicUsize::new(9));
        let texts = Some(Following { flows: 9, tail: 9, longest, counts: Arc::default() });
        let wants = [Wants { options: true, ..Wants::default() }, Wants { texts, ..Wants::default() }];
        let layout = Layout::new(&wants).unwrap();
        let device = open(DeviceChoice::Exactly(DeviceId::HOST)).unwrap();
        let mut batch = PacketBatch::new(Buffers::new(&device, 4096, 4096).unwrap());
        for (at, before) in ["", "abc", "", "defgh", ""].into_iter().enumerate() {
            let mut packet = Packet::from_slice(&segment([1, 2], 0, 0, &vec![b'x'; at * 3]));
            if at < 4 {
                packet.set_network_header(0, 20);
                batch.texts.next().extend(before.as_bytes());
            }
            batch.add(&layout, packet);
        }
        let packed = |batch: &mut PacketBatch| {
            let extent = batch.close(&layout);
            let mut spans = batch.buffers.as_ref().unwrap().input.bytes()[..extent.input_bytes].to_vec();
            // Nobody looks at what is between them.
            spans.drain(extent.span_bytes..extent.rows_at);
            spans
        };
        let first = packed(&mut batch);
        let text = b"defghxxxxxxxxx";
        assert!(first.windows(text.len()).any(|part| part == text));
        batch.pack_again(&layout, Buffers::new(&device, 4096, 4096).unwrap());
        assert_eq!(packed(&mut batch), first);
        assert_eq!(
            (batch.texts.before(3), batch.texts.is_there(3), batch.texts.is_there(4)),
            (&b"defgh"[..], true, false)
        );
    }
}
