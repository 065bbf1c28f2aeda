//! What completes a fetch once its bytes are on the device, and what takes it back. Which pages these are, the
//! directory has decided.

use super::Copies;
use super::plan::FetchPlan;
use super::replica::Image;
use crate::error::Result;
use crate::memory::Scratch;
use crate::page::Device;
use crate::ranges::runs;
use std::sync::Arc;

impl Copies {
    /// Zeroes behind the end of a file of `size` bytes, as in a mapping of it, and twins of what was read.
    pub(crate) fn complete(&self, device: Device, plan: &FetchPlan, size: u64, scratch: &Scratch) -> Result<()> {
        let replica = self.replica(device)?;
        let complete = || -> bifolio_device::Result<()> {
            // Of the last page.
            let last = plan.direct.last().max(plan.own.last());
            let end = last.map_or(0, |page| (page + 1) * self.page_bytes);
            if size < end {
                let tail = size..end;
                for image in [Image::Current, Image::Twin] {
                    if replica.has(image, replica.frame_of(size / self.page_bytes)) {
                        // SAFETY: the page has memory.
                        unsafe { scratch.stream.fill(replica.slice(image, &tail), 0) }?;
                    }
                }
            }
            // And of what was acquired behind it.
            for run in runs(plan.new.iter().copied()) {
                let all = replica.bytes_of(&run);
                let behind = all.start.max(size.next_multiple_of(self.page_bytes))..all.end;
                if !behind.is_empty() {
                    // SAFETY: the frames have memory, and the stream is waited for.
                    unsafe { scratch.stream.fill(replica.slice(Image::Current, &behind), 0) }?;
                }
            }
            for run in runs(plan.fresh.iter().copied()) {
                let all = replica.bytes_of(&run);
                let (to, from) = (replica.slice(Image::Twin, &all), replica.slice(Image::Current, &all));
                // SAFETY: both are mapped, and the stream is waited for.
                unsafe { scratch.stream.copy_on_device(to, from) }?;
            }
            let with_older_twin = |page: &u64| {
                let frame = replica.frame_of(*page);
                replica.has(Image::Twin, frame) && !plan.is_fresh(frame)
            };
            let direct = plan.direct.iter().copied().filter(with_older_twin);
            replica.copy(&scratch.stream, direct, Image::Current, Image::Twin)?;
            scratch.stream.synchronize()
        };
        complete().map_err(|error| self.failed(error))
    }

    /// After a failure: what was not read in full must not look like changes of the device's own.
    pub(crate) fn undo(&mut self, device: Device, plan: &FetchPlan) {
        let Ok(replica) = self.replica_mut(device) else { return };
        // A device that fails here has nothing left to publish.
        for frame in &plan.fresh {
            let _ = replica.unmap(Image::Twin, *frame as usize);
        }
        for frame in &plan.new {
            let _ = replica.unmap(Image::Current, *frame as usize);
        }
        let memory = Arc::clone(&replica.memory);
        let held = plan.held.iter().copied();
        let _ = memory.with_scratch(|scratch| self.copy(device, held, [Image::Twin, Image::Current], scratch));
    }
}
