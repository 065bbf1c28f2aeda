//! Home: writing what was released to the file, and what CPUs read and write through the cache.

use super::{State, chunks};
use crate::fault::{Point, at, step};
use crate::home::{write_all, write_masked};
use crate::memory::Scratch;
use crate::page::{Device, Flush};
use crate::replica::{Part, runs};
use crate::{Error, ErrorKind, Result};
use bifolio_kernels::{Base, byte_mask};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

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
        let (content, mut masks) = self.released_bytes(device, pages, parts, scratch)?;
        step(Point::FlushRead, self.path())?;
        for page in pages.clone().filter(|page| self.pages[*page as usize].how_to_flush(device) == Flush::Careful) {
            let here = self.bytes_of(&(page..page + 1));
            let origin = self.download(device, parts[1], &here, scratch)?;
            let mut home = vec![0; origin.len()];
            let read = std::os::unix::fs::FileExt::read_exact_at(self.home.file.buffered(), &mut home, here.start);
            read.map_err(|error| Error::writing(self.path(), error))?;
            let first = ((here.start - bytes.start) / 8) as usize;
            for at in (0..origin.len()).filter(|at| origin[*at] != home[*at]) {
                masks[first + at / 8] &= !(1 << (at % 8));
            }
        }
        let path = self.path().to_owned();
        let written = self.home.write(|file| write_masked(file, bytes.start, &content, &masks, done));
        written.map_err(|error| Error::writing(&path, error))
    }

    /// What a device has released of some pages, and which bytes of it home lacks.
    pub(super) fn released_bytes(
        &self,
        device: Device,
        pages: &Range<u64>,
        parts: [Part; 2],
        scratch: &Scratch,
    ) -> Result<(Vec<u8>, Vec<u8>)> {
        let replica = self.existing(device)?;
        let bytes = self.bytes_of(pages);
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
        let run = || -> bifolio_device::Result<Vec<u8>> {
            let table = byte_mask::encode(&entries);
            let place = Scratch::first(&scratch.table, table.len() as u64)?;
            scratch.stream.upload(place, &table)?;
            let counts = Scratch::first(&scratch.results, entries.len() as u64 * 4)?;
            let all = Base::Addresses;
            let operands = byte_mask::Operands { current: all, twin: all, mask: all };
            // SAFETY: as for `merge`; the masks lie in scratch memory.
            unsafe { replica.memory.kernels.byte_mask(&scratch.stream, operands, place, counts) }?;
            let mut masks = vec![0; (bytes.end - bytes.start).div_ceil(8) as usize];
            scratch
                .stream
                .download(&mut masks, Scratch::first(&scratch.incoming, (bytes.end - bytes.start).div_ceil(8))?)?;
            Ok(masks)
        };
        let masks = run().map_err(|error| self.device(error))?;
        Ok((self.download(device, parts[0], &bytes, scratch)?, masks))
    }

    pub(super) fn download(
        &self,
        device: Device,
        part: Part,
        bytes: &Range<u64>,
        scratch: &Scratch,
    ) -> Result<Vec<u8>> {
        let mut host = vec![0; (bytes.end - bytes.start) as usize];
        let copied = scratch.stream.download(&mut host, self.existing(device)?.slice(part, bytes));
        copied.map_err(|error| self.device(error))?;
        Ok(host)
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

    /// Everything that was released of a range reaches the file.
    pub(crate) fn flush_range(&mut self, range: &Range<u64>) -> Result<()> {
        let pages = self.pages_of(range);
        let pending = pages.filter(|page| self.pages[*page as usize].pending().next().is_some()).collect();
        self.flush(&pending)
    }

    /// Makes the file durable.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.follow_cut()?;
        self.flush_range(&(0..self.size))?;
        let path = self.path().to_owned();
        let synced = at(Point::SyncFlushed).and_then(|()| self.home.file.buffered().sync_data());
        synced.map_err(|error| Error::writing(&path, error))
    }

    /// A CPU's read: what was released is home by then.
    pub(crate) fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.look()?;
        let end = offset.saturating_add(buffer.len() as u64).min(self.size);
        if offset >= end {
            return Ok(0);
        }
        self.flush_range(&(offset..end))?;
        let wanted = (end - offset) as usize;
        let read = std::os::unix::fs::FileExt::read_exact_at(self.home.file.buffered(), &mut buffer[..wanted], offset);
        let path = self.path();
        read.map_err(|error| {
            Error::new(ErrorKind::Read, path, format!("reading {wanted} bytes at {offset} failed: {error}"))
        })?;
        Ok(wanted)
    }

    /// A CPU's write, page by page known.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        self.look()?;
        // What devices have released is older, and must not come home on top of it later.
        self.flush_range(&(offset..end))?;
        let path = self.path().to_owned();
        let written = self.home.write(|file| write_all(file, offset, bytes));
        written.map_err(|error| {
            Error::new(ErrorKind::Write, &path, format!("writing {} bytes at {offset} failed: {error}", bytes.len()))
        })?;
        if end > self.size {
            self.resize(end);
        }
        self.unsettle(None);
        for page in self.pages_of(&(offset..end)) {
            self.pages[page as usize].changed_at_home();
        }
        Ok(())
    }
}
