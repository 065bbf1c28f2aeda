//! Flushing: writing what was released to the file.

use super::written::leave_others;
use super::{State, chunks};
use crate::fault::{Point, step};
use crate::home::write_masked;
use crate::memory::Scratch;
use crate::page::Device;
use crate::replica::{Part, runs};
use crate::{Error, Result};
use bifolio_kernels::{Addressing, byte_mask};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

/// Bytes whose homes are looked at before they are written, at a time.
const LOOK_BYTES: u64 = 1 << 20;

impl State {
    /// Writes to the file what was released of some pages, by all devices, the highest first: those after it leave what
    /// it has written. After a failure what was not written stays pending.
    pub(crate) fn flush(&mut self, pages: &BTreeSet<u64>) -> Result<()> {
        for device in (0..self.replicas.len()).rev() {
            let mine: BTreeSet<u64> =
                pages.iter().copied().filter(|page| self.pages[*page as usize].is_pending(device)).collect();
            if mine.is_empty() {
                continue;
            }
            let memory = Arc::clone(&self.existing(device)?.memory);
            for run in runs(mine) {
                for chunk in chunks(&run, self.pages_at_a_time()) {
                    memory.with_scratch(|scratch| self.flush_chunk(device, &chunk, scratch))?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn flush_chunk(&mut self, device: Device, pages: &Range<u64>, scratch: &Scratch) -> Result<()> {
        self.write_or_note(device, pages, [Part::Base, Part::Origin], scratch)?;
        step(Point::FlushWritten, self.path())?;
        self.note_flushed(device, pages.clone());
        self.forget_written(pages.clone());
        step(Point::FlushNoted, self.path())?;
        self.drop_origins(device, pages)
    }

    /// Writes home, and notes in the second part what was written: of an origin after a failure, so that a later flush
    /// does not take it for somebody else's; of a twin always.
    pub(super) fn write_or_note(
        &mut self,
        device: Device,
        pages: &Range<u64>,
        parts: [Part; 2],
        scratch: &Scratch,
    ) -> Result<()> {
        let mut done = 0;
        let is_shared = parts[0] == Part::Now && pages.clone().any(|page| self.uses(device, page) > 1);
        let outcome = self.write_home(device, pages, parts, is_shared, scratch, &mut done);
        let is_noted = if parts[1] == Part::Origin { outcome.is_err() } else { !is_shared };
        if is_noted && done > 0 {
            let start = self.bytes_of(pages).start;
            let replica = self.existing(device)?;
            let [from, to] = parts.map(|part| replica.slice(part, &(start..start + done as u64)));
            // SAFETY: both have memory there, which stays until the stream is waited for.
            let copied = unsafe { scratch.stream.copy_on_device(to, from) };
            copied.and_then(|()| scratch.stream.synchronize()).map_err(|error| self.device(error))?;
        }
        outcome
    }

    /// Writes to the file the bytes in which two parts of a replica differ, from the first of them, and leaves those
    /// that somebody else has written since the second was home's. Where the first is shared with kernels that may be
    /// storing into it, all of this is done with one copy, which becomes the second.
    fn write_home(
        &mut self,
        device: Device,
        pages: &Range<u64>,
        parts: [Part; 2],
        is_shared: bool,
        scratch: &Scratch,
        done: &mut usize,
    ) -> Result<()> {
        let bytes = self.bytes_of(pages);
        let len = (bytes.end - bytes.start) as usize;
        let host = scratch.host().map_err(|error| self.device(error))?;
        let mut pinned = host.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let (content, masks) = pinned.bytes_mut().split_at_mut(len);
        let masks = &mut masks[..len.div_ceil(8)];
        if is_shared {
            self.differing_bytes_of_copies(device, pages, parts, scratch, (content, masks))?;
        } else {
            self.differing_bytes(device, pages, parts, scratch, (content, masks))?;
        }
        step(Point::FlushRead, self.path())?;
        let is_certain = self.is_home_certain(device, pages);
        // Where home is looked at before, there is little between the look and the write.
        let at_a_time = if is_certain { pages.end - pages.start } else { (LOOK_BYTES / self.page_bytes).max(1) };
        for piece in chunks(pages, at_a_time) {
            let here = self.bytes_of(&piece);
            let [from, to] = [here.start, here.end].map(|at| (at - bytes.start) as usize);
            let (content, masks) = (&content[from..to], &mut masks[from / 8..to.div_ceil(8)]);
            if !is_certain {
                self.leave_others(device, &piece, parts[1], scratch, (content, masks))?;
            }
            let (path, mut fragments) = (self.path().to_owned(), self.home.fragments.take());
            let mut written = 0;
            let outcome =
                self.home.write(|file| write_masked(file, here.start, content, masks, &mut written, &mut fragments));
            self.home.fragments = fragments;
            *done = from + written;
            self.note_written(device, &piece, &content[..written], masks);
            if is_shared {
                let to = self.existing(device)?.slice(parts[1], &(here.start..here.start + written as u64));
                scratch.stream.upload(to, &content[..written]).map_err(|error| self.device(error))?;
            }
            outcome.map_err(|error| Error::writing(&path, error))?;
        }
        Ok(())
    }

    /// Whether nobody can have changed some pages of the file since a device's replica was brought up to date.
    fn is_home_certain(&self, device: Device, pages: &Range<u64>) -> bool {
        let is_seen = |page: u64| {
            self.pages[page as usize].is_home_as_seen(device) && self.compared[device][page as usize] == self.doubt
        };
        pages.clone().all(is_seen) && self.home.is_unchanged()
    }

    /// Takes those bytes out of the masks of some pages that somebody else has written at home since an origin was
    /// home's: they stay.
    fn leave_others(
        &mut self,
        device: Device,
        pages: &Range<u64>,
        origin: Part,
        scratch: &Scratch,
        (content, masks): (&[u8], &mut [u8]),
    ) -> Result<()> {
        // From the first change to the last.
        let Some(first) = masks.iter().position(|bits| *bits != 0) else { return Ok(()) };
        let last = masks.iter().rposition(|bits| *bits != 0).unwrap_or(first);
        let hull = first * 8..(last * 8 + 8).min(content.len());
        let (masks, content) = (&mut masks[first..=last], &content[hull.clone()]);
        let start = pages.start * self.page_bytes + hull.start as u64;
        let (mut old, mut home) = (vec![0; content.len()], vec![0; content.len()]);
        let part = self.existing(device)?.slice(origin, &(start..start + content.len() as u64));
        scratch.stream.download(&mut old, part).map_err(|error| self.device(error))?;
        let there = self.home.read(&mut home, start).map_err(|error| Error::writing(self.path(), error))?;
        // What is not there any more is not written either.
        home[there..].copy_from_slice(&old[there..]);
        let place = |at: usize| {
            let at = start + at as u64;
            (at / self.page_bytes, (at % self.page_bytes) as usize)
        };
        let is_lower = |at: usize, value: u8| {
            let (page, at) = place(at);
            let state = &self.pages[page as usize];
            (0..device).any(|other| state.lacks(device, other) && self.written.is(page, other, at, value))
        };
        let mut left = BTreeSet::new();
        leave_others(masks, [content, &old, &home], is_lower, |at| _ = left.insert(place(at).0));
        for page in left {
            let state = &mut self.pages[page as usize];
            if !state.is_behind(device) {
                state.changed_at_home();
                self.unsettle(None);
            }
        }
        Ok(())
    }

    /// Remembers what a device has written home, where a higher one may overwrite it.
    fn note_written(&mut self, device: Device, pages: &Range<u64>, content: &[u8], masks: &[u8]) {
        let page_bytes = self.page_bytes as usize;
        for ((page, content), mask) in pages.clone().zip(content.chunks(page_bytes)).zip(masks.chunks(page_bytes / 8)) {
            let may = (device + 1..self.replicas.len()).any(|other| self.may_overwrite(other, page));
            if may && mask.iter().any(|bits| *bits != 0) {
                self.written.note(page, device, content, mask);
            }
        }
    }

    /// Whether a device may have a change of a page on its way that was begun with what it has now.
    fn may_overwrite(&self, device: Device, page: u64) -> bool {
        let state = &self.pages[page as usize];
        state.is_held_by(device) && (state.is_pending(device) || self.uses(device, page) > 0)
    }

    /// Forgets what devices have written of some pages, where no higher one waits to overwrite it.
    pub(super) fn forget_written(&mut self, pages: Range<u64>) {
        if self.written.is_empty() {
            return;
        }
        let mut written = std::mem::take(&mut self.written);
        written.retain(pages, |page, lower| {
            let state = self.pages.get(page as usize);
            let waits =
                |other: Device| state.is_some_and(|state| state.lacks(other, lower)) && self.may_overwrite(other, page);
            (lower + 1..self.replicas.len()).any(waits)
        });
        self.written = written;
    }

    /// Content of some pages on a device, and a bit for each byte in which another part differs.
    fn differing_bytes(
        &self,
        device: Device,
        pages: &Range<u64>,
        parts: [Part; 2],
        scratch: &Scratch,
        (content, masks): (&mut [u8], &mut [u8]),
    ) -> Result<()> {
        let replica = self.existing(device)?;
        let mask_bytes = byte_mask::mask_bytes(self.page_bytes);
        let entries: Vec<_> = pages
            .clone()
            .map(|page| {
                let here = self.bytes_of(&(page..page + 1));
                let [current, twin] = parts.map(|part| replica.slice(part, &here).ptr().0);
                let mask = scratch.incoming.ptr().0 + (page - pages.start) * mask_bytes;
                byte_mask::Entry { current, twin, mask, len: here.end - here.start }
            })
            .collect();
        let mut run = || -> bifolio_device::Result<()> {
            let stream = &scratch.stream;
            let table = byte_mask::encode(&entries);
            let place = Scratch::first(&scratch.table, table.len() as u64)?;
            stream.upload(place, &table)?;
            let counts = Scratch::first(&scratch.results, entries.len() as u64 * 4)?;
            let all = Addressing::Absolute;
            let operands = byte_mask::Operands { current: all, twin: all, mask: all };
            // SAFETY: as for `merge`; the masks lie in scratch memory.
            unsafe { replica.memory.kernels.byte_mask(stream, operands, place, counts) }?;
            // SAFETY: both have this length, and the stream is waited for below, whatever happens.
            let copied = unsafe {
                let from = replica.slice(parts[0], &self.bytes_of(pages));
                let content = stream.copy_to_host(content.as_mut_ptr(), from);
                let found = Scratch::first(&scratch.incoming, masks.len() as u64)?;
                content.and(stream.copy_to_host(masks.as_mut_ptr(), found))
            };
            copied.and(stream.synchronize())
        };
        run().map_err(|error| self.device(error))
    }

    /// The same, of a copy of each part: what is stored into the first after it was copied is no part of either.
    fn differing_bytes_of_copies(
        &self,
        device: Device,
        pages: &Range<u64>,
        parts: [Part; 2],
        scratch: &Scratch,
        (content, masks): (&mut [u8], &mut [u8]),
    ) -> Result<()> {
        let (replica, bytes) = (self.existing(device)?, self.bytes_of(pages));
        let mut other = vec![0; content.len()];
        let copy = |part, to: &mut [u8]| scratch.stream.download(to, replica.slice(part, &bytes));
        let copied = copy(parts[0], content).and_then(|()| copy(parts[1], &mut other));
        copied.map_err(|error| self.device(error))?;
        for ((mask, content), other) in masks.iter_mut().zip(content.chunks(8)).zip(other.chunks(8)) {
            let differ = content.iter().zip(other).enumerate().map(|(at, (one, other))| u8::from(one != other) << at);
            *mask = differ.sum();
        }
        Ok(())
    }

    /// Gives the memory of origins back that no pending page needs.
    pub(super) fn drop_origins(&mut self, device: Device, pages: &Range<u64>) -> Result<()> {
        let replica = self.existing(device)?;
        let frames: BTreeSet<usize> = pages.clone().map(|page| replica.frame_of(page)).collect();
        for frame in frames {
            let mut of_frame =
                self.existing(device)?.pages_of(frame).filter(|page| (*page as usize) < self.pages.len());
            if of_frame.all(|page| !self.pages[page as usize].is_pending(device)) {
                let path = self.home.path().to_owned();
                self.existing_mut(device)?.unmap(Part::Origin, frame).map_err(|error| Error::device(&path, error))?;
            }
        }
        Ok(())
    }
}
