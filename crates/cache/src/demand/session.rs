//! The pages that a session holds: their frames are pinned until it ends.

use super::pace::Frames;
use crate::cached_file::CachedFile;
use crate::directory::loss::surviving;
use crate::directory::{Directory, Locked, demand};
use crate::error::{Error, ErrorKind, Result};
use crate::mapping::Mapping;
use crate::page::Device;
use crate::page_set::PageSet;
use bifolio_device::Stream;
use bifolio_kernels::demand::{Answer, PagedRange};
use std::collections::BTreeSet;
use std::ops::Range;

/// How little room there was.
#[derive(Debug)]
pub(super) struct Short {
    pub(super) frames: Frames,
    pub(super) error: Error,
}

/// How much of what was missed is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Amount {
    /// All of it, or nothing; frames that items have used stay.
    All,
    /// As much as there is memory for, that of frames that were used included.
    Part,
}

/// What a fill has done.
#[derive(Debug, Default)]
pub(super) struct Filled {
    /// What there was no room for, if anything.
    pub(super) short: Option<Short>,
    pub(super) fetched: u64,
    pub(super) fetched_bytes: u64,
    pub(super) evicted: u64,
}

/// Pinned frames, until the session ends.
pub(super) struct Session<'a> {
    file: &'a CachedFile,
    stream: &'a Stream,
    device: Device,
    /// The mapping's pages that kernels may read, by their numbers in the table.
    there: Vec<bool>,
    /// The file's number of the table's first page.
    first_page: u64,
    pages_per_frame: u64,
    frames: BTreeSet<usize>,
}

/// The pages of a mapping, as a table numbers them.
pub(super) fn extent(mapping: &Mapping) -> Result<PagedRange> {
    let page_bytes = mapping.file()?.held.lock().versions.page_bytes();
    let (length, skew) = (mapping.len(), mapping.range.start % page_bytes);
    Ok(PagedRange { length, skew, page_shift: page_bytes.trailing_zeros() })
}

impl<'a> Session<'a> {
    /// Looks at the file. What the device has, and is certain to be up to date, is there from the beginning.
    pub(super) fn begin(mapping: &'a Mapping, stream: &'a Stream) -> Result<Self> {
        let extent = extent(mapping)?;
        let (device, range) = (mapping.device, mapping.range.clone());
        let mut session = Self {
            file: mapping.file()?,
            stream,
            device,
            there: vec![false; extent.pages() as usize],
            first_page: range.start >> extent.page_shift,
            pages_per_frame: 1,
            frames: BTreeSet::new(),
        };
        let mut directory = mapping.file()?.held.lock();
        session.pages_per_frame = demand::pages_per_frame(&directory, device)?;
        for page in surviving(&mut directory, |directory| demand::up_to_date(directory, device, &range))? {
            let frame = (page / session.pages_per_frame) as usize;
            if !session.frames.contains(&frame) {
                demand::pin_frame(&mut directory, device, frame)?;
                session.frames.insert(frame);
            }
            session.there[(page - session.first_page) as usize] = true;
        }
        drop(directory);
        Ok(session)
    }

    /// How many pages the table has.
    pub(super) fn pages(&self) -> usize {
        self.there.len()
    }

    /// Pages that kernels may read.
    pub(super) fn there(&self) -> impl Iterator<Item = u64> + '_ {
        self.there.iter().zip(0..).filter(|(there, _)| **there).map(|(_, page)| page)
    }

    /// Fills pages that were asked for and missing. Frames that nobody asked for are given up for it, and where other
    /// operations hold what is missing at the moment, their ends are waited for.
    pub(super) fn fill(&mut self, answer: &Answer, amount: Amount) -> Result<Filled> {
        let file = self.file;
        let memory = file.pool.devices[self.device].opened();
        let mut turn = None;
        loop {
            let filled = self.try_to_fill(answer, amount)?;
            let is_passing = filled.short.as_ref().is_some_and(|short| short.error.is_passing());
            if !is_passing || filled.fetched > 0 {
                return Ok(filled);
            }
            turn = turn.or_else(|| memory.as_ref().map(|memory| memory.turn_when_short()));
            file.held.wait_for_others();
        }
    }

    fn try_to_fill(&mut self, answer: &Answer, amount: Amount) -> Result<Filled> {
        // The lock is not the session's, which changes meanwhile.
        let file = self.file;
        let pages = answer.wanted.iter().map(|page| self.first_page + page).collect();
        surviving(&mut file.held.lock(), |directory| {
            demand::with_pages(directory, &pages, |directory| self.fill_locked(directory, answer, amount))
        })
    }

    fn fill_locked(&mut self, directory: &mut Locked<'_>, answer: &Answer, amount: Amount) -> Result<Filled> {
        let wanted = self.frames_of(&answer.wanted);
        let used = if amount == Amount::All { self.frames_of(&answer.used) } else { BTreeSet::new() };
        let (pinned, short) = self.pin_missing(directory, &wanted, &used)?;
        if short.is_some() && amount == Amount::All {
            for frame in pinned {
                self.give_up(directory, frame);
            }
            return Ok(Filled { short, ..Filled::default() });
        }
        let has_room = |page: &u64| self.frames.contains(&self.frame_of(*page));
        let filled: Vec<u64> = answer.wanted.iter().copied().filter(has_room).collect();
        let pages: PageSet = filled.iter().map(|page| self.first_page + page).collect();
        let fetched_bytes = demand::bring_pages(directory, self.device, &pages)?;
        for page in filled {
            self.there[page as usize] = true;
        }
        let done = directory.versions.counts;
        Ok(Filled { short, fetched: done.fetched, fetched_bytes, evicted: done.evicted })
    }

    /// Pins those of the wanted frames that are not pinned, as far as there is memory; once it is short, all frames
    /// go that are neither wanted nor used. The frames, and how little room there was.
    fn pin_missing(
        &mut self,
        directory: &mut Locked<'_>,
        wanted: &BTreeSet<usize>,
        used: &BTreeSet<usize>,
    ) -> Result<(Vec<usize>, Option<Short>)> {
        let missing: Vec<usize> = wanted.difference(&self.frames).copied().collect();
        let is_stale = |frame: &usize| !wanted.contains(frame) && !used.contains(frame);
        let mut stale: Vec<usize> = self.frames.iter().copied().filter(is_stale).collect();
        let in_use = self.frames.len() - stale.len();
        for (number, frame) in missing.iter().enumerate() {
            let mut pinned = demand::pin_frame(directory, self.device, *frame);
            if is_out_of_memory(&pinned) && !stale.is_empty() {
                stale.drain(..).for_each(|frame| self.give_up(directory, frame));
                pinned = demand::pin_frame(directory, self.device, *frame);
            }
            match pinned {
                Ok(()) => _ = self.frames.insert(*frame),
                Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                    let frames = Frames { had: in_use + number, needed: in_use + missing.len() };
                    return Ok((missing[..number].to_vec(), Some(Short { frames, error })));
                }
                Err(error) => return Err(error),
            }
        }
        Ok((missing, None))
    }

    /// A frame, and what is in it, is the session's no more.
    fn give_up(&mut self, directory: &mut Directory, frame: usize) {
        demand::unpin_frame(directory, self.device, frame);
        self.frames.remove(&frame);
        let pages = self.pages_of(frame);
        self.there[pages].fill(false);
    }

    fn frames_of(&self, pages: &[u64]) -> BTreeSet<usize> {
        pages.iter().map(|page| self.frame_of(*page)).collect()
    }

    fn frame_of(&self, page: u64) -> usize {
        ((self.first_page + page) / self.pages_per_frame) as usize
    }

    /// The table's pages of a frame.
    fn pages_of(&self, frame: usize) -> Range<usize> {
        let place = |page: u64| page.saturating_sub(self.first_page).min(self.there.len() as u64) as usize;
        let first = frame as u64 * self.pages_per_frame;
        place(first)..place(first + self.pages_per_frame)
    }
}

fn is_out_of_memory(outcome: &Result<()>) -> bool {
    outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::OutOfMemory)
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // Whatever has failed or panicked, no kernel runs when memory is taken away.
        let _ = self.stream.synchronize();
        let mut directory = self.file.held.lock();
        for frame in std::mem::take(&mut self.frames) {
            demand::unpin_frame(&mut directory, self.device, frame);
        }
    }
}
