//! What is done with packets, and where results and texts lie.

use crate::launch::bad;
use crate::packets::{NONE, PacketRows, SPANS_ALL};
use bifolio_device::Result;
use std::ops::Range;

/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// The most bytes by which an encrypted packet with its tag is longer than what it has in the variable part.
pub const GROWTH: u64 = 40;

const DECRYPTS: u32 = 1;
const TUNNEL: u32 = 2;
const EXTENDED: u32 = 4;

/// What becomes of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Encrypts, `tunnel` whole packets, else what follows their IP header. The sequence number of the first packet is `number`, that
    /// of the second one more, whether the packets between take part or not. IVs are sequence numbers added to `iv`, bit by bit.
    Encrypt {
        /// Whether the IP header is encrypted, too.
        tunnel: bool,
        /// The first packet's sequence number.
        number: u64,
        /// In which bits IVs differ from sequence numbers.
        iv: u64,
    },
    /// Verifies and decrypts. A packet's sequence number is the lowest from `lowest` on with the bits that it has.
    Decrypt {
        /// The lowest that one can have; 0 for numbers of 32 bits.
        lowest: u64,
    },
}

/// ESP over a batch, whose rows have the network region and spans of all bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Esp {
    /// Where the packets are.
    pub rows: PacketRows,
    /// What becomes of them.
    pub mode: Mode,
    /// Whether sequence numbers have 64 bits (ESN).
    pub is_extended: bool,
    /// The security parameters index, as on the wire.
    pub spi: [u8; 4],
    /// What nonces begin with.
    pub salt: [u8; 4],
    /// Where, in bytes from the output buffer's begin, the kernel's part of the output lies: a multiple of 16.
    pub part_at: u64,
}

impl Esp {
    /// Bytes of the params as they travel.
    pub(super) const BYTES: usize = PacketRows::BYTES + 56;

    /// Result: the packet is none for this, or was left out.
    pub const LEFT: u32 = 0;
    /// Result: there is a text, and the tag was right.
    pub const DONE: u32 = 1;
    /// Result: the tag was wrong.
    pub const FORGED: u32 = 2;

    fn growth(&self) -> u64 {
        if matches!(self.mode, Mode::Encrypt { .. }) { GROWTH } else { 0 }
    }

    /// Bytes of the kernel's part of the output: a result for each packet, then texts.
    pub fn part_bytes(count: u64, span_bytes: u64) -> u64 {
        Self::results_bytes(count) + span_bytes + count * GROWTH
    }

    fn results_bytes(count: u64) -> u64 {
        (count * 4).next_multiple_of(16)
    }

    /// Where in the kernel's part of the output a packet's result is, a word in the host's order.
    pub fn result(packet: usize) -> Range<usize> {
        packet * 4..packet * 4 + 4
    }

    /// Where in that part its text is; `span` is its place in the variable part. What is encrypted ends with the tag.
    pub fn text(&self, packet: usize, span: u64, len: usize) -> Range<usize> {
        let at = Self::results_bytes(self.rows.count.into()) + span + packet as u64 * self.growth();
        at as usize..at as usize + len
    }

    /// Bytes that are encrypted of `bytes`: these with their trailer.
    pub fn padded(bytes: usize) -> usize {
        (bytes + 2).next_multiple_of(4)
    }

    /// Refuses what the kernel would trip over. The rows are right.
    pub(super) fn check(&self, output_len: u64) -> Result<()> {
        let Self { rows, part_at, .. } = self;
        if rows.spans != SPANS_ALL || rows.network == NONE {
            return Err(bad("ESP wants the network region and spans of all bytes".to_owned()));
        }
        let bytes = Self::part_bytes(rows.count.into(), rows.span_bytes);
        if !part_at.is_multiple_of(16) || part_at.checked_add(bytes).is_none_or(|end| end > output_len) {
            return Err(bad(format!(
                "results and texts of {bytes} bytes at {part_at} are not at a 16-byte boundary in a buffer of {output_len} bytes"
            )));
        }
        Ok(())
    }

    /// `EspParams` of `esp.h`.
    pub(super) fn to_bytes(self, rounds: u32) -> Vec<u8> {
        let (first, number, iv) = match self.mode {
            Mode::Encrypt { tunnel, number, iv } => (if tunnel { TUNNEL } else { 0 }, number, iv),
            Mode::Decrypt { lowest } => (DECRYPTS, lowest, 0),
        };
        let mode = first | if self.is_extended { EXTENDED } else { 0 };
        let count = u64::from(self.rows.count);
        let text_at = self.part_at + Self::results_bytes(count);
        let wide = [self.part_at, text_at, number, iv].map(u64::to_ne_bytes).concat();
        let narrow = [rounds, mode, self.growth() as u32, 0].map(u32::to_ne_bytes).concat();
        [self.rows.to_bytes(), wide, self.salt.to_vec(), self.spi.to_vec(), narrow].concat()
    }

    /// What [`to_bytes`](Self::to_bytes) gave, and the rounds.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<(Self, u32)> {
        let rows = PacketRows::from_bytes(bytes)?;
        let (wide, narrow) = bytes.get(PacketRows::BYTES..Self::BYTES)?.split_at(32);
        let wide: Vec<u64> = wide.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let [salt, spi, rounds, bits, _, _] = *narrow.as_chunks::<4>().0 else { return None };
        let [part_at, _, number, iv] = wide[..] else { return None };
        let (rounds, bits) = (u32::from_ne_bytes(rounds), u32::from_ne_bytes(bits));
        let mode = if bits & DECRYPTS == 0 {
            Mode::Encrypt { tunnel: bits & TUNNEL != 0, number, iv }
        } else {
            Mode::Decrypt { lowest: number }
        };
        Some((Self { rows, mode, is_extended: bits & EXTENDED != 0, spi, salt, part_at }, rounds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn esp(mode: Mode) -> Esp {
        let rows = PacketRows { spans: SPANS_ALL, network: 2, span_bytes: 44, ..PacketRows::new(9, 7, 4) };
        Esp { rows, mode, is_extended: true, spi: [1, 2, 3, 4], salt: [5, 6, 7, 8], part_at: 160 }
    }

    #[test]
    fn params_survive_the_trip_to_the_device() {
        let modes = [Mode::Encrypt { tunnel: true, number: 1 << 40, iv: 7 }, Mode::Decrypt { lowest: u64::MAX }];
        for esp in modes.map(esp) {
            let bytes = esp.to_bytes(12);
            assert_eq!((bytes.len(), Esp::from_bytes(&bytes)), (Esp::BYTES, Some((esp, 12))));
        }
        assert_eq!(Esp::from_bytes(&esp(modes[0]).to_bytes(10)[1..]), None);
    }

    #[test]
    fn parts_that_do_not_lie_in_the_output_are_refused() {
        let esp = esp(Mode::Decrypt { lowest: 0 });
        let end = 160 + Esp::part_bytes(9, 44);
        assert!(esp.check(end).is_ok());
        assert!(esp.check(end - 1).is_err());
        assert!(Esp { part_at: 164, ..esp }.check(end + 16).is_err());
        assert!(Esp { part_at: u64::MAX - 15, ..esp }.check(end).is_err());
        assert!(Esp { rows: PacketRows { spans: 1, ..esp.rows }, ..esp }.check(end).is_err());
        assert!(Esp { rows: PacketRows { network: NONE, ..esp.rows }, ..esp }.check(end).is_err());
    }
}
