//! Writes and discards. Everything below a request of any alignment is whole pages.
//!
//! A write through, page by page in this order, so that a kill between any two steps leaves what is true:
//! ```text
//!   clean copies in device memory become invalid
//!   the backing gets the bytes            (on an error: nothing else has changed)
//!   device memory gets them, and is valid (on an error: it stays invalid)
//!   marks of a discard or of a loss go
//! ```

use super::trust::NotCopied;
use super::{Mode, PagingCache};
use crate::directory::Block;
use crate::header::HEADER_BYTES;
use crate::header::{Header, Left};
use crate::pages::{BLOCK_BYTES, PAGE_BYTES, Pages, Part, parts};
use crate::stats::Counter;
use bifolio_block::Result;
use std::sync::atomic::Ordering;

/// Blocks of a discard that are locked at a time.
const DISCARD_BLOCKS: u64 = 256;

impl PagingCache {
    /// Notes in the header that the backing is in use, before the first write since it was whole.
    pub(super) fn note_use(&self) -> Result<()> {
        if self.is_noted.load(Ordering::Acquire) {
            return Ok(());
        }
        // Whoever comes at the same time writes the same.
        let left = if self.mode == Mode::WriteBack { Left::OpenBack } else { Left::OpenThrough };
        Header { size: self.size, left }.write(&*self.backing)?;
        self.is_noted.store(true, Ordering::Release);
        Ok(())
    }

    pub(super) fn write_bytes(&self, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset + data.len() as u64;
        let first_whole = offset.next_multiple_of(PAGE_BYTES).min(end);
        let last_whole = (end / PAGE_BYTES * PAGE_BYTES).max(first_whole);
        let (head, rest) = data.split_at((first_whole - offset) as usize);
        let (middle, tail) = rest.split_at((last_whole - first_whole) as usize);
        self.write_within_page(offset, head)?;
        if !middle.is_empty() {
            let _held = self.ranges.write(Self::blocks(first_whole, middle.len() as u64));
            self.write_pages(first_whole, middle)?;
        }
        self.write_within_page(last_whole, tail)
    }

    /// Reads a page, changes some of it and writes it.
    fn write_within_page(&self, offset: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let page = offset / PAGE_BYTES * PAGE_BYTES;
        let _held = self.ranges.write(Self::blocks(page, PAGE_BYTES));
        let mut lent = self.buffers.take();
        let own = &mut lent.bytes()[..PAGE_BYTES as usize];
        parts(page, PAGE_BYTES).try_for_each(|part| self.read_part(&part, own).map(drop))?;
        let at = (offset - page) as usize;
        own[at..at + data.len()].copy_from_slice(data);
        self.write_pages(page, own)
    }

    /// Writes whole pages, whose range the caller holds alone.
    fn write_pages(&self, offset: u64, data: &[u8]) -> Result<()> {
        if self.mode == Mode::WriteThrough {
            return self.write_through(offset, data);
        }
        parts(offset, data.len() as u64).try_for_each(|part| {
            let own = &data[part.at..part.at + (part.bytes.end - part.bytes.start) as usize];
            if self.keep_dirty(&part, own) {
                return Ok(());
            }
            self.write_through(u64::from(part.block) * BLOCK_BYTES + part.bytes.start, own)
        })
    }

    /// Puts pages into device memory alone; false if they have to go through.
    fn keep_dirty(&self, part: &Part, data: &[u8]) -> bool {
        if !self.is_serving() {
            return false;
        }
        let pages = Pages::of(&part.pages());
        let mut table = self.table();
        let pages_max = u64::from(table.present()) * 16 * u64::from(self.dirty_percent_max) / 100;
        if table.dirty_pages() + pages.count() > pages_max {
            return false;
        }
        let Some(at) = table.admit(&self.directory, part.block, true) else { return false };
        drop(table);
        let copied = self.copy_in(at, part.bytes.start, data);
        let is_there = copied.is_ok();
        let mut table = self.table();
        if is_there {
            table.set_valid(&self.directory, at, pages, true);
            table.touch_written(at);
            self.unmark(part.block, pages);
        } else if copied == Err(NotCopied::Broken) {
            // What only the device had of these pages is of no use any more, unless the backing gets the new bytes.
            let lost = table.invalidate(&self.directory, at, pages);
            let block = self.directory.block(part.block);
            self.directory.set_block(part.block, Block { lost: block.lost.or(lost), ..block });
        }
        table.unpin(&self.directory, at);
        is_there
    }

    fn write_through(&self, offset: u64, data: &[u8]) -> Result<()> {
        for part in parts(offset, data.len() as u64) {
            self.table().invalidate_clean(&self.directory, part.block, Pages::of(&part.pages()));
        }
        self.backing.write(HEADER_BYTES + offset, data)?;
        for part in parts(offset, data.len() as u64) {
            let own = &data[part.at..part.at + (part.bytes.end - part.bytes.start) as usize];
            self.put_clean(&part, own);
        }
        Ok(())
    }

    /// Puts pages that the backing has into device memory, if that is to be had.
    fn put_clean(&self, part: &Part, data: &[u8]) {
        let pages = Pages::of(&part.pages());
        let serves = self.is_serving();
        let slot = {
            let mut table = self.table();
            if serves {
                table.admit(&self.directory, part.block, true)
            } else {
                table.look(&self.directory, part.block, Pages::NONE).slot.map(|(at, _)| at)
            }
        };
        let is_there = slot.is_some_and(|at| serves && self.copy_in(at, part.bytes.start, data).is_ok());
        let mut table = self.table();
        if let Some(at) = slot {
            if is_there {
                table.set_valid(&self.directory, at, pages, false);
                table.touch_written(at);
            } else {
                table.invalidate(&self.directory, at, pages);
            }
        }
        self.unmark(part.block, pages);
        if let Some(at) = slot {
            table.unpin(&self.directory, at);
        }
        if !is_there {
            self.directory.stats().add(Counter::BypassPages, pages.count());
        }
    }

    /// The pages are neither zeroes nor lost any more. The table is locked.
    fn unmark(&self, number: u32, pages: Pages) {
        let block = self.directory.block(number);
        let (zero, lost) = (block.zero.without(pages), block.lost.without(pages));
        if (zero, lost) != (block.zero, block.lost) {
            self.directory.set_block(number, Block { zero, lost, ..block });
        }
    }

    /// Marks the whole pages of a range as zeroes; the rest of it stays as it is.
    pub(super) fn discard_pages(&self, offset: u64, len: u64) {
        let mut now = offset.next_multiple_of(PAGE_BYTES);
        let end = (offset + len) / PAGE_BYTES * PAGE_BYTES;
        while now < end {
            let stop = end.min((now / BLOCK_BYTES + DISCARD_BLOCKS) * BLOCK_BYTES);
            let _held = self.ranges.write(Self::blocks(now, stop - now));
            parts(now, stop - now).for_each(|part| self.discard_part(&part));
            now = stop;
        }
    }

    fn discard_part(&self, part: &Part) {
        let pages = Pages::of(&part.pages());
        let mut table = self.table();
        let block = self.directory.block(part.block);
        let (zero, lost) = (block.zero.or(pages), block.lost.without(pages));
        self.directory.set_block(part.block, Block { zero, lost, ..block });
        if let Some((at, _)) = table.look(&self.directory, part.block, Pages::NONE).slot {
            table.invalidate(&self.directory, at, pages);
            table.unpin(&self.directory, at);
        }
    }
}
