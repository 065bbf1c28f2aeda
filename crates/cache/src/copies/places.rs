//! Where pages lie in the addresses of a device, as a kernel over a list of pages names them.

use super::replica::{Image, Replica};
use bifolio_device::DeviceSlice;
use std::ops::Range;

/// Places of some pages: runs of them that lie behind each other, in ascending order.
#[derive(Debug, Clone)]
pub(super) struct Places {
    page_bytes: u64,
    /// Pages, and the address of the first.
    runs: Vec<(Range<u64>, u64)>,
}

impl Places {
    /// Some pages in memory of their own, behind each other.
    pub(super) fn in_slice(page_bytes: u64, pages: &Range<u64>, slice: DeviceSlice<'_>) -> Self {
        Self { page_bytes, runs: vec![(pages.clone(), slice.ptr().0)] }
    }

    /// Some pages in an image of a replica, as far as their frames have memory for it.
    pub(super) fn in_image(page_bytes: u64, replica: &Replica, image: Image, pages: &Range<u64>) -> Self {
        let bytes = pages.start * page_bytes..pages.end * page_bytes;
        let of_image = replica.runs_with(image, replica.frames_of(&bytes));
        Self::in_images(page_bytes, replica, of_image.into_iter().map(|run| (image, run)), pages)
    }

    /// Some pages in images of a replica: which bytes of the file are in which.
    pub(super) fn in_images(
        page_bytes: u64,
        replica: &Replica,
        images: impl IntoIterator<Item = (Image, Range<u64>)>,
        pages: &Range<u64>,
    ) -> Self {
        let run = |(image, bytes): (Image, Range<u64>)| {
            let here = pages.start.max(bytes.start / page_bytes)..pages.end.min(bytes.end.div_ceil(page_bytes));
            let at = here.start * page_bytes;
            (!here.is_empty()).then(|| (here, replica.slice(image, &(at..at)).ptr().0))
        };
        let mut runs: Vec<_> = images.into_iter().filter_map(run).collect();
        runs.sort_unstable_by_key(|(pages, _)| pages.start);
        Self { page_bytes, runs }
    }

    /// The address of a page's first byte, if it lies anywhere.
    pub(super) fn of(&self, page: u64) -> Option<u64> {
        let at = match &self.runs[..] {
            // Mostly.
            [_] => 0,
            runs => runs.partition_point(|(pages, _)| pages.end <= page),
        };
        let (pages, address) = self.runs.get(at).filter(|(pages, _)| pages.contains(&page))?;
        Some(address + (page - pages.start) * self.page_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_lies_in_the_run_that_has_it() {
        let places = Places { page_bytes: 10, runs: vec![(2..4, 1000), (4..5, 500), (7..9, 0)] };
        let found: Vec<_> = (0..10).map(|page| places.of(page)).collect();
        let none = None;
        assert_eq!(found, [none, none, Some(1000), Some(1010), Some(500), none, none, Some(0), Some(10), none]);
    }
}
