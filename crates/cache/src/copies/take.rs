//! Taking what the file has by now into a replica, out of scratch memory that it was read to for a comparison: the bytes
//! have crossed the link already.

use super::Copies;
use super::fold::{Done, Into, List};
use super::places::Places;
use super::replica::Image;
use crate::error::Result;
use crate::memory::Scratch;
use crate::page::Device;
use bifolio_device::DeviceSlice;
use std::ops::Range;

/// What a device has of pages whose file has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// What the file had, and maybe changes that it has not released.
    Behind,
    /// What the file lacks, as home: it is laid on what the file has by now.
    Home,
}

impl Copies {
    /// Has pages of a device, in ascending order, of which it holds something, follow the file, whose content of some
    /// bytes is in scratch memory. What the device has changed and not released stays on top, and what kernels of the
    /// program's store meanwhile.
    pub(crate) fn take(
        &self,
        device: Device,
        pages: &[u64],
        taken: Taken,
        (bytes, incoming): (&Range<u64>, DeviceSlice<'_>),
        scratch: &Scratch,
    ) -> Result<Done> {
        let (Some(first), Some(last)) = (pages.first(), pages.last()) else { return Ok((vec![], Ok(()))) };
        self.blank_tail(bytes, incoming, scratch)?;
        let replica = self.replica(device)?;
        let all = *first..last + 1;
        let own = |image| Places::in_image(self.page_bytes, replica, image, &all);
        let read = bytes.start / self.page_bytes..bytes.end.div_ceil(self.page_bytes);
        let content = Places::in_slice(self.page_bytes, &read, incoming);
        let [current, twin, base] = Image::ALL.map(own);
        let (base, donors) = match taken {
            Taken::Behind => (None, vec![]),
            Taken::Home => (Some(base.clone()), vec![[twin.clone(), base]]),
        };
        let into = Into { current, twin: Some(twin), base };
        self.launch(replica, List { pages, end: bytes.end }, &into, (&content, None), &donors, scratch)
    }
}
