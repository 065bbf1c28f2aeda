//! What stands for a batch on wide connections: a packet that has its number. The path has the batch.

use crate::Packet;

/// A packet that stands for a batch.
pub(super) fn carrier(number: u64) -> Packet {
    Packet::new(0, &number.to_le_bytes(), 0)
}

/// The number of the batch that a packet stands for. Only such packets come through wide ports.
pub(super) fn number(carrier: &Packet) -> u64 {
    carrier.bytes().first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}
