//! A member as it will be once the log has been carried out: what an array that was not closed cleanly is read through
//! while it is open for reading only.
//!
//! The medium stays as it is. What the log has is kept in memory, at most the size of the log for each member, and lies
//! over what is read.

use super::layout::Layout;
use super::log::Entry;
use super::state::Assembly;
use crate::Result;
use crate::load::{Load, Loader, through_host};
use bifolio_block::{BlockDevice, Error, ErrorKind, Geometry, Result as BlockResult};
use bifolio_device::DeviceSlice;
use bifolio_io::{OnArrival, ReadExtent};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What was made good when an array was opened that had not been closed cleanly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Replay {
    /// Writes that were under way, or not known to be finished, and were carried out from the log.
    pub writes: u64,
    /// Bytes of them on all members, P and Q included.
    pub bytes: u64,
    /// Stripes whose P and Q were computed again.
    pub stripes: u64,
    /// The members were not written: they are read as they will be once the array is opened for writing.
    pub in_memory: bool,
}

/// Carries records out on members in memory; how many bytes that is.
pub(super) fn replay(state: &mut Assembly, layout: Layout, stripes: u64, records: &[Vec<Entry<'static>>]) -> u64 {
    let mut by_role: Vec<Patches> = state.members.iter().map(|_| Patches::default()).collect();
    let mut bytes = 0;
    for entry in records.iter().flatten() {
        let Some(member) = state.members.get(entry.role).and_then(Option::as_ref) else { continue };
        if fits(entry, layout, stripes) {
            by_role[entry.role].insert(member.superblock.data_offset + entry.offset, entry.bytes.to_vec());
            bytes += entry.bytes.len() as u64;
        }
    }
    for (member, patches) in state.members.iter_mut().zip(by_role) {
        if let Some(member) = member.as_mut().filter(|_| !patches.0.is_empty()) {
            member.device = Arc::new(Replayed { below: Arc::clone(&member.device), patches });
        }
    }
    bytes
}

/// Whether an entry lies inside of its member's data.
pub(super) fn fits(entry: &Entry<'_>, layout: Layout, stripes: u64) -> bool {
    let end = entry.offset.checked_add(entry.bytes.len() as u64);
    end.is_some_and(|end| end <= stripes * layout.chunk_bytes())
}

/// Bytes at offsets, none of them twice.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Patches(BTreeMap<u64, Vec<u8>>);

impl Patches {
    /// Later ones lie over earlier ones.
    fn insert(&mut self, offset: u64, bytes: Vec<u8>) {
        let end = offset + bytes.len() as u64;
        if bytes.is_empty() {
            return;
        }
        // At most one that begins before reaches in, and maybe out again.
        if let Some((start, before)) = self.0.range_mut(..offset).next_back() {
            let rest = before.get((end - start) as usize..).filter(|rest| !rest.is_empty()).map(<[u8]>::to_vec);
            before.truncate((offset - start) as usize);
            if let Some(rest) = rest {
                self.0.insert(end, rest);
            }
        }
        while let Some(start) = self.0.range(offset..end).next().map(|(start, _)| *start) {
            let inside = self.0.remove(&start).unwrap_or_default();
            if let Some(rest) = inside.get((end - start) as usize..).filter(|rest| !rest.is_empty()) {
                self.0.insert(end, rest.to_vec());
            }
        }
        self.0.insert(offset, bytes);
    }

    /// Those in a range, each with its offset, the first one maybe only in part.
    fn of(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let end = offset.saturating_add(len);
        let first = self.0.range(..=offset).next_back().map_or(offset, |(start, _)| *start);
        let all = self.0.range(first..end).map(|(start, bytes)| (*start, bytes.as_slice()));
        all.filter(move |(start, bytes)| start + bytes.len() as u64 > offset)
    }

    fn touch(&self, offset: u64, len: u64) -> bool {
        self.of(offset, len).next().is_some()
    }

    fn apply(&self, offset: u64, buffer: &mut [u8]) {
        let end = offset + buffer.len() as u64;
        for (start, bytes) in self.of(offset, buffer.len() as u64) {
            let (from, to) = (start.max(offset), (start + bytes.len() as u64).min(end));
            let part = &bytes[(from - start) as usize..(to - start) as usize];
            buffer[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
        }
    }
}

/// A member with what the log has for it.
#[derive(Debug)]
struct Replayed {
    below: Arc<dyn Load>,
    patches: Patches,
}

impl Replayed {
    fn read_only(&self) -> Error {
        Error::new(ErrorKind::ReadOnly, self.name(), "it was opened for reading only")
    }
}

impl BlockDevice for Replayed {
    fn name(&self) -> String {
        self.below.name()
    }

    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> BlockResult<()> {
        self.below.read(offset, buffer)?;
        self.patches.apply(offset, buffer);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> BlockResult<()> {
        Err(self.read_only())
    }

    fn flush(&self) -> BlockResult<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> BlockResult<()> {
        Err(self.read_only())
    }
}

impl Load for Replayed {
    fn load(&self, loader: &Loader, offset: u64, destination: DeviceSlice<'_>) -> Result<()> {
        if self.patches.touch(offset, destination.len()) {
            through_host(self, loader, offset, destination)
        } else {
            self.below.load(loader, offset, destination)
        }
    }

    fn load_followed(
        &self,
        loader: &Loader,
        offset: u64,
        destination: DeviceSlice<'_>,
        follow: &Arc<dyn OnArrival>,
    ) -> Result<bool> {
        if self.patches.touch(offset, destination.len()) {
            return Ok(false);
        }
        self.below.load_followed(loader, offset, destination, follow)
    }

    fn load_extents(&self, loader: &Loader, extents: &[ReadExtent], destination: DeviceSlice<'_>) -> Result<()> {
        if !extents.iter().any(|extent| self.patches.touch(extent.offset, extent.length)) {
            return self.below.load_extents(loader, extents, destination);
        }
        extents.iter().try_for_each(|extent| {
            let place = destination.part(extent.place, extent.length).map_err(|error| loader.failed(error))?;
            self.load(loader, extent.offset, place)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The oracle writes into an array.
        #[test]
        fn patches_read_as_if_they_had_been_written(
            writes in prop::collection::vec((0_usize..200, 0_usize..60, any::<u8>()), 0..40),
            reads in prop::collection::vec((0_usize..200, 0_usize..100), 1..20),
        ) {
            let (mut expected, mut patches) = (vec![0; 300], Patches::default());
            for (at, len, byte) in writes {
                let bytes: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8)).collect();
                expected[at..at + len].copy_from_slice(&bytes);
                patches.insert(at as u64, bytes);
            }
            for (at, len) in reads {
                let mut buffer = vec![0; len];
                patches.apply(at as u64, &mut buffer);
                prop_assert_eq!(&buffer, &expected[at..at + len]);
                let is_touched = expected[at..at + len].iter().any(|byte| *byte != 0);
                prop_assert!(!is_touched || patches.touch(at as u64, len as u64));
            }
        }
    }
}
