//! Writing back: dirty pages reach the backing in the background, before a flush returns, and before their chunk goes.
//!
//! A block is read-locked meanwhile: readers go on, a writer waits, so what becomes clean is what was written back.

use super::PagingCache;
use crate::header::HEADER_BYTES;
use crate::pages::{BLOCK_BYTES, PAGE_BYTES};
use crate::stats::Counter;
use bifolio_block::{ErrorKind, Result};

impl PagingCache {
    /// Writes back everything that was dirty when this began, in the order of the backing. What one block cannot, the others
    /// can: the first error is returned when all were tried.
    pub(super) fn write_back_all(&self) -> Result<()> {
        if self.table().dirty_pages() == 0 {
            return Ok(());
        }
        let mut done = Ok(());
        for number in 0..self.directory.shape().blocks {
            let is_dirty = |at| !self.directory.slot(at).dirty.is_empty();
            if self.directory.block(number).slot.is_some_and(is_dirty) {
                done = done.and(self.write_back(number));
            }
        }
        done
    }

    /// Writes back what is dirty of a block.
    ///
    /// # Errors
    /// The backing's, and `Read` where the device does not give its pages; they stay dirty.
    pub(super) fn write_back(&self, number: u32) -> Result<()> {
        let _held = self.ranges.read(u64::from(number)..u64::from(number) + 1);
        let pinned = self.table().pin_dirty(&self.directory, number);
        let Some((at, dirty)) = pinned else { return Ok(()) };
        let mut lent = self.buffers.take();
        let written = dirty.runs().try_for_each(|run| {
            let start = u64::from(run.start) * PAGE_BYTES;
            let own = &mut lent.bytes()[..(run.len() as u64 * PAGE_BYTES) as usize];
            let place = u64::from(number) * BLOCK_BYTES + start;
            let read = self.copy_out(at, start, own);
            if read.is_err() {
                let detail =
                    format!("writing back offset {place} failed, as the device did not give what it has of it");
                return Err(self.failed(ErrorKind::Read, detail));
            }
            self.backing.write(HEADER_BYTES + place, own)
        });
        let mut table = self.table();
        if written.is_ok() {
            table.set_clean(&self.directory, at, dirty);
            self.directory.stats().add(Counter::WrittenBackPages, dirty.count());
        }
        table.unpin(&self.directory, at);
        written
    }
}
