//! What is searched, and what is done with what is found.

use crate::launch::bad;
use crate::packets::{NONE, PacketRows, SPANS_ALL};
use bifolio_device::Result;

/// The longest variable part that one launch searches, in bytes.
const SPAN_BYTES_MAX: u64 = 1 << 30;

/// Where the first hit of a packet goes: that which ends first, and the longest of those.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstHit {
    /// The output word for it, in the lower half of a hit of the list; [`NOTHING`](super::NOTHING) where there is none, and
    /// [`UNSEARCHED`](super::UNSEARCHED).
    pub word: u32,
    /// The byte of output rows that is set where there is one; [`NONE`]: none.
    pub slot: u32,
    /// What that byte is set to.
    pub value: u32,
}

/// Which hits go into the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// None: there is no list.
    Nothing,
    /// All.
    All,
    /// Each literal of a packet at least once: where it ends first, and elsewhere hardly ever. [`keep`](super::keep) leaves the
    /// first alone.
    Once,
    /// At least the first hit of a packet, and others hardly ever. [`keep`](super::keep) leaves the first alone.
    First,
}

/// A search over a batch. Its rows have spans of all bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiteralSearch {
    /// Where the packets are.
    pub rows: PacketRows,
    /// Whether only what follows the TCP, UDP or ICMP header is searched, up to the length that the IP header says; else
    /// the whole span. It needs the network region. Packets whose headers contradict each other are left to the processor.
    pub payload: bool,
    /// Which hits go into the list.
    pub list: Listed,
    /// What is done with the first hit of each packet.
    pub first: Option<FirstHit>,
}

/// Hits go into the list.
const LIST: u32 = 1;
/// The first hit of a packet goes into its output row.
const FIRST: u32 = 2;
/// Into the list goes each literal of a packet once.
const ONCE: u32 = 4;
/// One of them.
const ONE: u32 = 8;

impl LiteralSearch {
    /// Bytes of the params as they travel.
    const BYTES: usize = PacketRows::BYTES + 32;

    /// Refuses what the kernels would trip over. The rows are right.
    pub(super) fn check(&self) -> Result<()> {
        let rows = &self.rows;
        if rows.spans != SPANS_ALL || rows.span_bytes > SPAN_BYTES_MAX {
            return Err(bad(format!(
                "a search wants spans of all bytes, {SPAN_BYTES_MAX} at most, got kind {} and {}",
                rows.spans, rows.span_bytes
            )));
        }
        if self.payload && rows.network == NONE {
            return Err(bad("a search of payloads needs the network region".to_owned()));
        }
        let Some(FirstHit { word, slot, value }) = self.first else { return Ok(()) };
        let overlap = |byte: u32| byte != NONE && byte / 4 == word;
        if !(1..rows.output_words).contains(&word) || overlap(slot) || overlap(rows.test) || word == rows.ttl {
            return Err(bad(format!(
                "output word {word} is not free for a hit in rows of {} words",
                rows.output_words
            )));
        }
        if slot != NONE && (slot >= rows.output_words * 4 || slot == rows.test || value > 255) {
            return Err(bad(format!("byte {slot} of an output row cannot become {value} where there is a hit")));
        }
        Ok(())
    }

    /// `LiteralMatchParams` of `literal_match.h`, with room for so many hits.
    pub(super) fn to_bytes(self, room: u32, tiles: u32) -> Vec<u8> {
        let first = self.first.unwrap_or(FirstHit { word: 0, slot: NONE, value: 0 });
        let list = match self.list {
            Listed::Nothing => 0,
            Listed::All => LIST,
            Listed::Once => LIST | ONCE,
            Listed::First => LIST | ONCE | ONE,
        };
        let mode = list | if self.first.is_some() { FIRST } else { 0 };
        let words = [mode, self.payload.into(), first.word, first.slot, first.value, room, tiles, 0];
        [self.rows.to_bytes(), words.map(u32::to_ne_bytes).concat()].concat()
    }

    /// What [`to_bytes`](Self::to_bytes) gave, and for how many hits there is room.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<(Self, u32)> {
        let rows = PacketRows::from_bytes(bytes)?;
        let (words, _) = bytes.get(PacketRows::BYTES..Self::BYTES)?.as_chunks::<4>();
        let words: Vec<u32> = words.iter().map(|word| u32::from_ne_bytes(*word)).collect();
        let [mode, payload, word, slot, value, room, _, _] = words[..] else { return None };
        let first = (mode & FIRST != 0).then_some(FirstHit { word, slot, value });
        let list = match (mode & LIST != 0, mode & ONCE != 0, mode & ONE != 0) {
            (false, ..) => Listed::Nothing,
            (true, false, _) => Listed::All,
            (true, true, false) => Listed::Once,
            (true, true, true) => Listed::First,
        };
        Some((Self { rows, payload: payload != 0, list, first }, room))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search() -> LiteralSearch {
        let rows = PacketRows { spans: SPANS_ALL, network: 2, test: 3, ..PacketRows::new(9, 7, 4) };
        LiteralSearch { rows, payload: true, list: Listed::All, first: Some(FirstHit { word: 2, slot: 1, value: 7 }) }
    }

    #[test]
    fn params_survive_the_trip_to_the_device() {
        let plain = LiteralSearch { payload: false, list: Listed::Nothing, first: None, ..search() };
        let once = LiteralSearch { list: Listed::Once, ..search() };
        for search in [search(), plain, once, LiteralSearch { list: Listed::First, ..search() }] {
            let bytes = search.to_bytes(77, 5);
            assert_eq!((bytes.len(), LiteralSearch::from_bytes(&bytes)), (LiteralSearch::BYTES, Some((search, 77))));
        }
        assert_eq!(LiteralSearch::from_bytes(&search().to_bytes(77, 5)[1..]), None);
    }

    #[test]
    fn searches_that_would_race_or_reach_outside_of_rows_are_refused() {
        assert!(search().check().is_ok());
        let first = |word, slot, value| Some(FirstHit { word, slot, value });
        for wrong in [first(0, 4, 1), first(4, 1, 1), first(2, 8, 1), first(2, 16, 1), first(2, 3, 1), first(2, 1, 256)]
        {
            assert!(LiteralSearch { first: wrong, ..search() }.check().is_err(), "{wrong:?}");
        }
        let of = |rows| LiteralSearch { rows, ..search() }.check().unwrap_err().to_string();
        assert!(of(PacketRows { network: NONE, ..search().rows }).contains("network region"));
        assert!(of(PacketRows { spans: 1, ..search().rows }).contains("all bytes"));
        assert!(of(PacketRows { span_bytes: (1 << 30) + 4, ..search().rows }).contains("all bytes"));
        assert!(of(PacketRows { test: 8, ..search().rows }).contains("not free"));
    }
}
