//! Hits as the device leaves them.
//!
//! A hit is a number of 64 bits: the packet in bits 32 to 63, where the literal ends in bits 16 to 31, from the begin of what
//! is searched, and its rank in bits 0 to 15. Sorted they are in the order in which one search after the other finds them.

use super::params::Listed;
use std::collections::HashSet;

/// What the list begins with: a counter, a word that is not 0 where hits had no room, two words more.
pub const LIST_BYTES: u64 = 16;
/// In the place of end and rank: no literal was found.
pub const NOTHING: u32 = u32::MAX;
/// In the place of end and rank: the processor has to search this packet.
pub const UNSEARCHED: u32 = u32::MAX - 1;

/// Bytes of a list with room for so many hits.
pub fn list_bytes(hits: u32) -> u64 {
    LIST_BYTES + u64::from(hits) * 8
}

/// The hits of a list, sorted. None: there was no room for all, and the processor has to search the batch.
pub fn hits(list: &[u8]) -> Option<Vec<u64>> {
    let (head, hits) = list.split_at_checked(LIST_BYTES as usize)?;
    let count = u32::from_ne_bytes(*head.first_chunk()?);
    if head[4..8] != [0; 4] {
        return None;
    }
    let mut hits: Vec<u64> =
        hits.as_chunks().0.get(..count as usize)?.iter().map(|hit| u64::from_ne_bytes(*hit)).collect();
    hits.sort_unstable();
    Some(hits)
}

/// Leaves of sorted hits those that a list is to have.
pub fn keep(hits: &mut Vec<u64>, listed: Listed) {
    match listed {
        Listed::Nothing | Listed::All => {}
        Listed::Once => {
            let mut seen = HashSet::new();
            hits.retain(|hit| seen.insert((hit >> 32, *hit as u16, *hit as u32 >= UNSEARCHED)));
        }
        Listed::First => hits.dedup_by_key(|hit| *hit >> 32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_without_room_for_all_is_none() {
        let list = |count: u32, missed: u32, hits: &[u64]| {
            let head = [count, missed, 0, 0].map(u32::to_ne_bytes).concat();
            [head, hits.iter().flat_map(|hit| hit.to_ne_bytes()).collect()].concat()
        };
        assert_eq!(hits(&list(2, 0, &[9, 3, 1])), Some(vec![3, 9]));
        assert_eq!(hits(&list(4, 0, &[9, 3, 1])), None);
        assert_eq!(hits(&list(1, 1, &[9, 3, 1])), None);
        assert_eq!(hits(&list(0, 0, &[])[1..]), None);
    }

    #[test]
    fn hits_are_left_as_the_list_is_to_have_them() {
        let hit = |packet: u64, end: u64, rank: u64| packet << 32 | end << 16 | rank;
        let unsearched = 2 << 32 | u64::from(UNSEARCHED);
        let all = vec![hit(1, 2, 9), hit(1, 2, 10), hit(1, 3, 9), unsearched, hit(3, 4, 9)];
        for (listed, left) in [
            (Listed::All, all.clone()),
            (Listed::Once, vec![hit(1, 2, 9), hit(1, 2, 10), unsearched, hit(3, 4, 9)]),
            (Listed::First, vec![hit(1, 2, 9), unsearched, hit(3, 4, 9)]),
        ] {
            let mut hits = all.clone();
            keep(&mut hits, listed);
            assert_eq!(hits, left, "{listed:?}");
        }
    }
}
