//! Writing back: dirty pages reach the backing in the background, before a flush returns, and before their chunk goes.
//!
//! A block is read-locked meanwhile: readers go on, a writer waits, so what becomes clean is what was written back.

use super::PagingCache;
use crate::header::HEADER_BYTES;
use crate::pages::{BLOCK_BYTES, PAGE_BYTES, Pages};
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

    /// Writes back what is dirty of a block. What one run of pages cannot, the others can.
    ///
    /// # Errors
    /// The backing's, and `Read` where the device does not give its pages; they stay dirty.
    pub(super) fn write_back(&self, number: u32) -> Result<()> {
        let _held = self.ranges.read(u64::from(number)..u64::from(number) + 1);
        let pinned = self.table().pin_dirty(&self.directory, number);
        let Some((at, dirty)) = pinned else { return Ok(()) };
        let mut lent = self.buffers.take();
        let (mut written, mut done) = (Pages::NONE, Ok(()));
        for run in dirty.runs() {
            let start = u64::from(run.start) * PAGE_BYTES;
            let own = &mut lent.bytes()[..(run.len() as u64 * PAGE_BYTES) as usize];
            let place = u64::from(number) * BLOCK_BYTES + start;
            let moved = if self.copy_out(at, start, own).is_ok() {
                self.backing.write(HEADER_BYTES + place, own)
            } else {
                let detail =
                    format!("writing back offset {place} failed, as the device did not give what it has of it");
                Err(self.failed(ErrorKind::Read, detail))
            };
            match moved {
                Ok(()) => written = written.or(Pages::of(&run)),
                Err(error) => done = done.and(Err(error)),
            }
        }
        let mut table = self.table();
        table.set_clean(&self.directory, at, written);
        self.directory.stats().add(Counter::WrittenBackPages, written.count());
        table.unpin(&self.directory, at);
        done
    }
}
