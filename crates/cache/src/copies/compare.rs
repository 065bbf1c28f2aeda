//! Which pages differ: of two images, and of an image and home.

use super::Copies;
use super::replica::{Image, Replica};
use crate::error::Result;
use crate::memory::Scratch;
use crate::page::Device;
use crate::page_set::PageSet;
use crate::ranges::{intersection, runs};
use bifolio_device::DeviceSlice;
use bifolio_kernels::page_diff;
use std::ops::Range;

impl Copies {
    /// Pages of some bytes in which a device's copy, as of its latest release or fetch, differs from what the file has,
    /// which was read into the device's memory.
    /// Of pages that are pending the base is asked: what was released and not flushed differs by right, or is there by
    /// somebody else's hand.
    pub(crate) fn differ_from_home(
        &self,
        device: Device,
        bytes: &Range<u64>,
        is_pending: impl Fn(u64) -> bool,
        incoming: DeviceSlice<'_>,
        scratch: &Scratch,
    ) -> Result<PageSet> {
        let theirs = |here: &Range<u64>| {
            let part = incoming.part(here.start - bytes.start, here.end - here.start);
            part.map_err(|error| self.failed(error))
        };
        let replica = self.replica(device)?;
        let pages = bytes.start / self.page_bytes..bytes.end.div_ceil(self.page_bytes);
        let mut changed = PageSet::new();
        for (image, here) in replica.settled_images(bytes) {
            let differing = self.differing_pages(replica, image, &here, theirs(&here)?, scratch)?;
            changed.extend(differing.into_iter().filter(|page| !is_pending(*page)));
        }
        for run in runs(pages.filter(|page| is_pending(*page))) {
            let of_run = run.start * self.page_bytes..(run.end * self.page_bytes).min(bytes.end);
            for here in replica.pieces(&of_run) {
                changed.extend(self.differing_pages(replica, Image::Base, &here, theirs(&here)?, scratch)?);
            }
        }
        Ok(changed)
    }

    /// Pages of some bytes of a file of `size` bytes that the device has changed since its latest release, as far as
    /// they have twins: whole pages. What lies in the place of a page that was never fetched is among them.
    pub(crate) fn changed_since_release(
        &self,
        device: Device,
        range: &Range<u64>,
        size: u64,
        scratch: &Scratch,
    ) -> Result<PageSet> {
        let replica = self.replica(device)?;
        let pages =
            range.start / self.page_bytes * self.page_bytes..range.end.next_multiple_of(self.page_bytes).min(size);
        let mut changed = PageSet::new();
        for frames in replica.runs_with(Image::Twin, replica.frames_of(range)) {
            let bytes = intersection(&frames, &pages);
            if !bytes.is_empty() {
                let twin = replica.slice(Image::Twin, &bytes);
                changed.extend(self.differing_pages(replica, Image::Current, &bytes, twin, scratch)?);
            }
        }
        Ok(changed)
    }

    /// Pages of some bytes of an image that differ from other memory of the device.
    fn differing_pages(
        &self,
        replica: &Replica,
        image: Image,
        bytes: &Range<u64>,
        other: DeviceSlice<'_>,
        scratch: &Scratch,
    ) -> Result<PageSet> {
        let words = page_diff::bitmap_words(bytes.end - bytes.start);
        let run = || -> bifolio_device::Result<Vec<u8>> {
            let bitmap = Scratch::first(&scratch.results, words * 4)?;
            // SAFETY: the memory stays until the stream is waited for, and nobody writes to it.
            unsafe { replica.memory.kernels.page_diff(&scratch.stream, replica.slice(image, bytes), other, bitmap) }?;
            let mut host = vec![0; words as usize * 4];
            scratch.stream.download(&mut host, bitmap)?;
            Ok(host)
        };
        let bitmap = run().map_err(|error| self.failed(error))?;
        Ok(pages_of_bitmap(&bitmap, bytes, self.page_bytes))
    }
}

/// The pages of some bytes that a bitmap names, a bit for each piece of theirs.
fn pages_of_bitmap(bitmap: &[u8], bytes: &Range<u64>, page_bytes: u64) -> PageSet {
    let page_of = |piece: u64| (bytes.start + piece * page_diff::PAGE_BYTES) / page_bytes;
    let mut pages = PageSet::new();
    let (words, _) = bitmap.as_chunks::<4>();
    for (first, word) in (0..).step_by(page_diff::PAGES_PER_WORD as usize).zip(words) {
        let mut bits = u32::from_ne_bytes(*word);
        while bits != 0 {
            // The bits beside each other that are set.
            let from = bits.trailing_zeros();
            let count = (bits >> from).trailing_ones();
            pages.append(page_of(first + u64::from(from))..page_of(first + u64::from(from + count - 1)) + 1);
            bits &= u32::MAX.checked_shl(from + count).unwrap_or(0);
        }
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_bit_names_its_page() {
        let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
        for _ in 0..500 {
            let words: Vec<u32> =
                (0..5).map(|_| random.u32(..) & random.u32(..) | random.u32(..) & random.u32(..)).collect();
            let words: Vec<u32> = words.into_iter().map(|word| if random.bool() { u32::MAX } else { word }).collect();
            let page_bytes = 4096 << random.u64(..7);
            let start = random.u64(..50) * page_bytes;
            let bitmap: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let pieces = (0..160_u64).filter(|piece| words[*piece as usize / 32] >> (piece % 32) & 1 == 1);
            let oracle: BTreeSet<u64> = pieces.map(|piece| (start + piece * 4096) / page_bytes).collect();
            let found = pages_of_bitmap(&bitmap, &(start..start + 160 * 4096), page_bytes);
            assert!(found.iter().eq(oracle), "{words:x?} in pages of {page_bytes}");
        }
    }
}
