//! Addresses for a driver that has none: each buffer gets a range of numbers of its own, and a
//! number inside it leads back to the buffer and an offset.
//!
//! Numbers are never handed out twice, so a stale address is an error and never somebody else's
//! memory, and a gap behind each buffer makes a range that runs over its end an error too.

use std::collections::BTreeMap;

/// Where numbers start: far from any host address, so that a mix-up is easily seen.
const FIRST: u64 = 1 << 40;
/// Buffers start at multiples of this, as do the frames of other backends.
const ALIGNMENT: u64 = 2 << 20;

/// Buffers of type `T` by address.
#[derive(Debug)]
pub(super) struct Addresses<T> {
    next: u64,
    buffers: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for Addresses<T> {
    fn default() -> Self {
        Self { next: FIRST, buffers: BTreeMap::new() }
    }
}

impl<T: Clone> Addresses<T> {
    /// Gives a buffer of `len > 0` bytes an address.
    pub(super) fn insert(&mut self, len: u64, buffer: T) -> u64 {
        let base = self.next;
        self.next = (base + len + 1).next_multiple_of(ALIGNMENT);
        self.buffers.insert(base, (len, buffer));
        base
    }

    /// Takes out the buffer that starts at `base`, with its length.
    pub(super) fn remove(&mut self, base: u64) -> Option<(u64, T)> {
        self.buffers.remove(&base)
    }

    /// The buffer that holds all of `address..address + len`, and the offset in it.
    pub(super) fn find(&self, address: u64, len: u64) -> Option<(T, u64)> {
        let (base, (size, buffer)) = self.buffers.range(..=address).next_back()?;
        let offset = address - base;
        (offset < *size && len <= size - offset).then(|| (buffer.clone(), offset))
    }

    /// The buffer that `address` lies in, the offset in it, and the bytes from there to its end.
    pub(super) fn rest(&self, address: u64) -> Option<(T, u64, u64)> {
        let (base, (size, buffer)) = self.buffers.range(..=address).next_back()?;
        let offset = address - base;
        (offset < *size).then(|| (buffer.clone(), offset, size - offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The table as a plain list, searched from end to end.
    fn oracle(list: &[(u64, u64, usize)], address: u64, len: u64) -> Option<(usize, u64)> {
        let holds = |&&(base, size, _): &&(u64, u64, usize)| {
            address >= base && address < base + size && u128::from(address) + u128::from(len) <= u128::from(base + size)
        };
        list.iter().find(holds).map(|&(base, _, id)| (id, address - base))
    }

    proptest! {
        #[test]
        fn finds_what_a_search_of_all_buffers_finds(
            steps in prop::collection::vec((any::<bool>(), 1_u64..5_000_000, any::<prop::sample::Index>()), 1..24),
            probes in prop::collection::vec((any::<prop::sample::Index>(), -9_i64..5_000_010, 0_u64..5_000_010), 1..64),
            far in any::<u64>(),
        ) {
            let mut addresses = Addresses::default();
            let mut list: Vec<(u64, u64, usize)> = vec![];
            let mut bases = vec![FIRST];
            for (id, (remove, len, which)) in steps.into_iter().enumerate() {
                if remove && !list.is_empty() {
                    let (base, size, id) = list.swap_remove(which.index(list.len()));
                    prop_assert_eq!(addresses.remove(base), Some((size, id)));
                    prop_assert_eq!(addresses.remove(base), None);
                } else {
                    let base = addresses.insert(len, id);
                    prop_assert!(base.is_multiple_of(ALIGNMENT) && !bases[1..].contains(&base), "an address came twice");
                    list.push((base, len, id));
                    bases.push(base);
                }
            }
            for (base, delta, len) in probes {
                let address = bases[base.index(bases.len())].wrapping_add_signed(delta);
                prop_assert_eq!(addresses.find(address, len), oracle(&list, address, len));
                let rest = addresses.rest(address);
                prop_assert_eq!(rest.map(|(id, offset, _)| (id, offset)), oracle(&list, address, 0));
                if let Some((id, offset, rest)) = rest {
                    prop_assert_eq!(addresses.find(address, rest), Some((id, offset)));
                    prop_assert_eq!(addresses.find(address, rest + 1), None);
                }
            }
            prop_assert_eq!(addresses.find(far, u64::MAX), None);
        }
    }

    #[test]
    fn a_range_over_the_end_of_a_buffer_does_not_reach_its_neighbour() {
        let mut addresses = Addresses::default();
        let first = addresses.insert(ALIGNMENT, 'a');
        let second = addresses.insert(1, 'b');
        assert!(second > first + ALIGNMENT);
        assert_eq!(addresses.find(first + ALIGNMENT, 0), None);
        assert_eq!(addresses.find(first + 1, ALIGNMENT), None);
    }
}
