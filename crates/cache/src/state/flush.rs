//! Flushing: writing what was released to the file.

use super::{State, chunks};
use crate::fault::{Point, step};
use crate::home::write_masked;
use crate::memory::Scratch;
use crate::page::{Device, Flush};
use crate::replica::{Part, runs};
use crate::{Error, Result};
use bifolio_kernels::{Base, byte_mask};
use std::collections::BTreeSet;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError};

impl State {
    /// Writes to the file what was released of some pages, by all devices, in their order. After a failure what
    /// was not written stays pending.
    pub(crate) fn flush(&mut self, pages: &BTreeSet<u64>) -> Result<()> {
        for device in 0..self.replicas.len() {
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
        step(Point::FlushNoted, self.path())?;
        self.drop_origins(device, pages)
    }

    /// Writes home, and after a failure notes in the second part what is there already: a careful flush must not
    /// take it for somebody else's later.
    pub(super) fn write_or_note(
        &mut self,
        device: Device,
        pages: &Range<u64>,
        parts: [Part; 2],
        scratch: &Scratch,
    ) -> Result<()> {
        let mut done = 0;
        let outcome = self.write_home(device, pages, parts, scratch, &mut done);
        if outcome.is_err() && done > 0 {
            let start = self.bytes_of(pages).start;
            let replica = self.existing(device)?;
            let [from, to] = parts.map(|part| replica.slice(part, &(start..start + done as u64)));
            // SAFETY: both have memory there, which stays until the stream is waited for.
            let copied = unsafe { scratch.stream.copy_on_device(to, from) };
            copied.and_then(|()| scratch.stream.synchronize()).map_err(|error| self.device(error))?;
        }
        outcome
    }

    /// Writes to the file the bytes in which two parts of a replica differ, from the first of them.
    fn write_home(
        &mut self,
        device: Device,
        pages: &Range<u64>,
        parts: [Part; 2],
        scratch: &Scratch,
        done: &mut usize,
    ) -> Result<()> {
        let bytes = self.bytes_of(pages);
        let len = (bytes.end - bytes.start) as usize;
        let host = scratch.host().map_err(|error| self.device(error))?;
        let mut pinned = host.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let (content, masks) = pinned.bytes_mut().split_at_mut(len);
        let masks = &mut masks[..len.div_ceil(8)];
        self.differing_bytes(device, pages, parts, scratch, (content, masks))?;
        step(Point::FlushRead, self.path())?;
        for page in pages.clone().filter(|page| self.pages[*page as usize].how_to_flush(device) == Flush::Careful) {
            let here = self.bytes_of(&(page..page + 1));
            let mut origin = vec![0; (here.end - here.start) as usize];
            let copied = scratch.stream.download(&mut origin, self.existing(device)?.slice(parts[1], &here));
            copied.map_err(|error| self.device(error))?;
            let mut home = vec![0; origin.len()];
            let read = self.home.file.buffered().read_exact_at(&mut home, here.start);
            read.map_err(|error| Error::writing(self.path(), error))?;
            let first = ((here.start - bytes.start) / 8) as usize;
            for at in (0..origin.len()).filter(|at| origin[*at] != home[*at]) {
                masks[first + at / 8] &= !(1 << (at % 8));
            }
        }
        let path = self.path().to_owned();
        let mut fragments = self.home.fragments.take();
        let written = self.home.write(|file| write_masked(file, bytes.start, content, masks, done, &mut fragments));
        self.home.fragments = fragments;
        written.map_err(|error| Error::writing(&path, error))
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
            let all = Base::Addresses;
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
