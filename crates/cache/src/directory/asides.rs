//! Which frames were left to readers, of whom each sees one in the place of what the file has there by now.

use crate::memory::Memory;
use crate::page::Device;
use crate::state::keeper::Reader;
use crate::state::lease::{Client, LeaseNumber};
use crate::state::replicas::FrameNumber;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What readers see in the place of a file's frames.
#[derive(Debug, Default)]
pub(crate) struct Asides {
    /// By what was acquired, and the byte of the file at which a frame lies.
    seen: BTreeMap<(Client, LeaseNumber), BTreeMap<(Device, u64), FrameNumber>>,
    left: BTreeMap<(Device, FrameNumber), Left>,
}

/// A frame that was left to readers.
#[derive(Debug)]
struct Left {
    memory: Arc<Memory>,
    bytes: u64,
    readers: usize,
}

impl Asides {
    /// What a reader sees: none if that is what the file has.
    pub(crate) fn seen(&self, device: Device, reader: &Reader) -> Option<FrameNumber> {
        self.seen.get(&(reader.client, reader.lease))?.get(&(device, reader.at)).copied()
    }

    /// Whether anything was left to who has acquired something.
    pub(crate) fn is_any_left(&self, client: Client, lease: LeaseNumber) -> bool {
        self.seen.contains_key(&(client, lease))
    }

    /// Whether a frame was left to a client.
    pub(crate) fn is_left_to(&self, client: Client, device: Device, at: u64, number: FrameNumber) -> bool {
        let mut own = self.seen.range((client, 0)..=(client, LeaseNumber::MAX));
        own.any(|(_, frames)| frames.get(&(device, at)) == Some(&number))
    }

    /// Bytes of frames of a device that were left to readers.
    pub(crate) fn bytes(&self, device: Device) -> u64 {
        self.left.iter().filter(|((of, _), _)| *of == device).map(|(_, left)| left.bytes).sum()
    }

    /// How long a frame is that was left to somebody.
    pub(super) fn bytes_of(&self, device: Device, number: FrameNumber) -> Option<u64> {
        self.left.get(&(device, number)).map(|left| left.bytes)
    }

    /// A frame is left to a reader.
    pub(super) fn note_left(
        &mut self,
        memory: &Arc<Memory>,
        device: Device,
        number: FrameNumber,
        bytes: u64,
        reader: &Reader,
    ) {
        self.seen.entry((reader.client, reader.lease)).or_default().insert((device, reader.at), number);
        let new = || Left { memory: Arc::clone(memory), bytes, readers: 0 };
        self.left.entry((device, number)).or_insert_with(new).readers += 1;
    }

    /// What was acquired under a number is released.
    pub(super) fn end(&mut self, client: Client, lease: LeaseNumber) {
        for ((device, at), number) in self.seen.remove(&(client, lease)).unwrap_or_default() {
            self.let_go(device, number, &Reader { client, lease, at });
        }
    }

    fn let_go(&mut self, device: Device, number: FrameNumber, reader: &Reader) {
        let Some(left) = self.left.get_mut(&(device, number)) else { return };
        left.memory.keeping().end_left(number, *reader);
        left.readers -= 1;
        if left.readers == 0 {
            left.memory.let_go_left(number, left.bytes);
            self.left.remove(&(device, number));
        }
    }

    /// Leaves everything as it is, for whoever finds it.
    pub(super) fn abandon(&mut self) {
        self.seen.clear();
        for left in std::mem::take(&mut self.left).into_values() {
            left.memory.disown(left.bytes);
        }
    }
}
