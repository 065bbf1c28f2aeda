//! Packets on their way: those of one burst, at the inputs where they wait.
//!
//! A burst goes through the router like a wave: elements are visited in the order of their ranks, each one with all packets
//! that wait for it, in the order in which single packets would have come. That order is each packet's *place*. Packets that
//! come of one packet share its places in the order in which they were emitted, so that those which an element emits at once
//! stand where they would stand if each had gone its way before the next was emitted.

use super::wiring::Target;
use crate::Packet;
use crate::packet::{Batch, Place};

/// Places of a packet that begins a burst, as a power of two.
const SPAN_BITS: u8 = 36;
/// How many packets that come of one have places of their own, likewise; more share the last.
const PARTS_BITS: u8 = 6;

/// Packets that wait at an input.
#[derive(Default)]
struct Waiting {
    batch: Batch,
    /// The last place, where they are in order.
    last: u64,
    is_unsorted: bool,
}

/// Packets that wait at all inputs, and which elements have some.
pub(super) struct Wave {
    inputs: Vec<Waiting>,
    /// A bit for each rank, and how many are set.
    ready: Vec<u64>,
    marks: usize,
    spare: Vec<Batch>,
}

impl Wave {
    pub(super) fn new(inputs: usize, elements: usize) -> Self {
        let inputs = (0..inputs).map(|_| Waiting::default()).collect();
        Self { inputs, ready: vec![0; elements.div_ceil(64)], marks: 0, spare: Vec::new() }
    }

    #[inline]
    pub(super) fn mark(&mut self, rank: u32) {
        let (word, bit) = (&mut self.ready[rank as usize / 64], 1 << (rank % 64));
        self.marks += usize::from(*word & bit == 0);
        *word |= bit;
    }

    /// Whether no packet waits.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.marks == 0
    }

    /// A packet comes to an input; says where it waits there.
    #[inline]
    pub(super) fn add(&mut self, target: Target, packet: Packet) -> usize {
        let waiting = &mut self.inputs[target.input as usize];
        let at = packet.place().at;
        waiting.is_unsorted |= at < waiting.last;
        waiting.last = at;
        waiting.batch.push(packet);
        let index = waiting.batch.len() - 1;
        self.mark(target.rank);
        index
    }

    /// Packets come to an input together, and are in order; their memory is exchanged where nobody waits. Says where the last
    /// of them waits.
    #[inline]
    pub(super) fn add_all(&mut self, target: Target, batch: &mut Batch) -> usize {
        let waiting = &mut self.inputs[target.input as usize];
        if let (Some(first), Some(last)) = (batch.first(), batch.last()) {
            let (first, last) = (first.place().at, last.place().at);
            if waiting.batch.is_empty() {
                std::mem::swap(&mut waiting.batch, batch);
            } else {
                waiting.is_unsorted |= first < waiting.last;
                waiting.batch.append(batch);
            }
            waiting.last = last;
            self.mark(target.rank);
        }
        self.inputs[target.input as usize].batch.len().wrapping_sub(1)
    }

    /// The place of a packet that still waits where `add` put it.
    #[inline]
    pub(super) fn narrow(&mut self, target: Target, index: usize, place: Place) {
        self.inputs[target.input as usize].batch[index].set_place(place);
    }

    /// The first element that has packets, by its rank; it is not marked any more.
    #[inline]
    pub(super) fn first(&mut self) -> Option<usize> {
        self.first_below(usize::MAX)
    }

    /// The same, if its rank is below this one.
    #[inline]
    pub(super) fn first_below(&mut self, end: usize) -> Option<usize> {
        if self.marks == 0 {
            return None;
        }
        let word = self.ready.iter().position(|word| *word != 0)?;
        let bit = self.ready[word].trailing_zeros();
        let rank = word * 64 + bit as usize;
        if rank >= end {
            return None;
        }
        self.ready[word] &= !(1 << bit);
        self.marks -= 1;
        Some(rank)
    }

    /// Whether an element has packets whose rank is below this one.
    #[inline]
    pub(super) fn has_below(&self, end: usize) -> bool {
        let word = self.ready.iter().position(|word| *word != 0);
        word.is_some_and(|word| word * 64 + (self.ready[word].trailing_zeros() as usize) < end)
    }

    #[inline]
    pub(super) fn has(&self, input: usize) -> bool {
        !self.inputs[input].batch.is_empty()
    }

    /// Memory for packets.
    #[inline]
    pub(super) fn spare(&mut self) -> Batch {
        self.spare.pop().unwrap_or_default()
    }

    /// All packets of an input, in order.
    #[inline]
    pub(super) fn take(&mut self, input: usize) -> Batch {
        let spare = self.spare();
        let waiting = &mut self.inputs[input];
        waiting.last = 0;
        let mut batch = std::mem::replace(&mut waiting.batch, spare);
        if std::mem::take(&mut waiting.is_unsorted) {
            // Stable: packets without places of their own stay in the order in which they came.
            batch.sort_by_key(|packet| packet.place().at);
        }
        batch
    }

    /// Memory for the next batch.
    #[inline]
    pub(super) fn give_back(&mut self, mut batch: Batch) {
        batch.clear();
        if self.spare.len() < 64 {
            self.spare.push(batch);
        }
    }
}

/// The places of the n-th packet that begins a burst.
#[inline]
pub(super) fn begin(n: u32) -> Place {
    Place { at: u64::from(n) << SPAN_BITS, bits: SPAN_BITS }
}

/// The places of the n-th packet that comes of one, from the second on; and those which are left to the first.
#[inline]
pub(super) fn part(of: Place, n: u32) -> Place {
    let step = (1 << of.bits) >> PARTS_BITS;
    let last = (1 << PARTS_BITS) - 1;
    Place { at: of.at + u64::from(n).min(last) * step, bits: of.bits.saturating_sub(PARTS_BITS) }
}
