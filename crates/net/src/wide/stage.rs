//! What an element of a path computes: by the CPU, by a kernel, and on packets when they are back.

use super::layout::{Layout, Wants};
use super::rows::Rows;
use super::texts::Texts;
use crate::Packet;
use bifolio_compute::Executor;
use bifolio_device::{DeviceSlice, Stream};
use bifolio_kernels::packets::PacketRows;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// What an element brings to a path before it is known what the others want.
pub trait Operation: Send + Sync {
    /// What it looks at and changes; `before` are the elements before it in the path.
    ///
    /// # Errors
    /// A sentence where it cannot be at this place.
    fn wants(&self, before: &[Wants]) -> Result<Wants, String>;

    /// Gets ready for a path on a device.
    ///
    /// # Errors
    /// A sentence for whoever wrote the configuration.
    fn stage(&self, layout: &Layout, before: &[Wants], executor: &Executor) -> Result<Arc<dyn Stage>, String>;
}

/// One element's work on batches. What it looks up may change between batches, and while a device computes one.
pub trait Stage: Debug + Send + Sync {
    /// Why the device cannot compute it, as a sentence without its full stop.
    fn refusal(&self) -> Option<String>;

    /// Bytes of what is found beyond output rows, for so many packets with so many bytes in the variable part.
    fn extra_bytes(&self, count: usize, span_bytes: usize) -> u64 {
        let _ = (count, span_bytes);
        0
    }

    /// What a batch of so many packets is computed with, from its submission on until it is back, where tables may change in
    /// between; no packets: a batch that is measured, whose result nobody sees. A batch that is computed twice has the same.
    fn snapshot(&self, count: usize) -> Snapshot {
        let _ = count;
        Snapshot(None)
    }

    /// Computes on the calling thread.
    fn on_cpu(&self, rows: &mut Rows<'_>, snapshot: &Snapshot, extra: &mut [u8]);

    /// Enqueues kernels.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Safety
    /// All memory is of the stream's device, holds the rows and nobody else's until the work is over.
    unsafe fn launch(&self, launching: &Launching<'_>) -> bifolio_device::Result<()>;

    /// A batch is back: does to packets what slots and words do not say, before these are written into them.
    fn finish(&self, done: &mut Done<'_>) {
        let _ = done;
    }

    /// The same when slots and words have been written into packets, for the element that is the last one as it changes them
    /// as a whole ([`Wants::rewrites`]).
    fn rewrite(&self, done: &mut Done<'_>) {
        let _ = done;
    }
}

/// What one stage computes a batch with.
#[derive(Clone)]
pub struct Snapshot(pub Option<Arc<dyn Any + Send + Sync>>);

impl Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Snapshot" } else { "no snapshot" })
    }
}

impl Snapshot {
    /// As what the stage has made it.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.clone()?.downcast().ok()
    }
}

/// A launch.
#[derive(Debug, Clone, Copy)]
pub struct Launching<'a> {
    /// Where it is enqueued.
    pub stream: &'a Stream,
    /// Rows and spans, by their places in the two buffers.
    pub rows: PacketRows,
    /// Where flows are followed, what is searched of packets, as the spans of rows of their own.
    pub texts: Option<PacketRows>,
    /// Input rows and spans.
    pub input: DeviceSlice<'a>,
    /// Output rows, and what is found beyond them.
    pub output: DeviceSlice<'a>,
    /// What the batch is computed with.
    pub snapshot: &'a Snapshot,
    /// Where in `output` this stage's own part lies.
    pub extra_at: u64,
    /// Its length.
    pub extra_bytes: u64,
}

/// A batch that is back.
#[derive(Debug)]
pub struct Done<'a> {
    /// Where things lie.
    pub layout: &'a Layout,
    /// The packets.
    pub packets: &'a mut [Packet],
    /// Where flows are followed, what was searched of a whole batch's packets.
    pub texts: Option<&'a Texts>,
    /// What the batch was computed with.
    pub snapshot: &'a Snapshot,
    /// Their input rows, where they have a variable part.
    pub rows: &'a [u8],
    /// Their output rows.
    pub output: &'a [u8],
    /// What this stage found beyond them.
    pub extra: &'a [u8],
}

impl Done<'_> {
    /// A packet with its output row.
    #[inline]
    pub fn packet(&mut self, at: usize) -> (&mut Packet, &[u8]) {
        let bytes = self.layout.output_bytes();
        (&mut self.packets[at], &self.output[at * bytes..][..bytes])
    }

    /// Has the processor load what will be looked at of a packet that is looked at soon.
    #[inline]
    pub fn fetch(&self, at: usize) {
        if let Some(packet) = self.packets.get(at + 8) {
            packet.fetch();
        }
        if let Some(packet) = self.packets.get(at + 4) {
            packet.fetch_headers();
        }
    }

    /// Where in the variable part a packet's bytes began.
    #[inline]
    pub fn span_at(&self, at: usize) -> u64 {
        let row = &self.rows[at * self.layout.input_bytes()..];
        row[4..].first_chunk().map_or(0, |word| u64::from(u32::from_le_bytes(*word)) * 4)
    }
}
