//! Demand mode: work that finds out while it runs which pages of a file it needs.
//!
//! ```text
//!   items ---> launch ---> what was asked for, what is finished
//!     ^                          |
//!     |    only the unfinished   |   room for what was missed: frames that nobody asked for go
//!     +------- fill <------------+   none: a part of it, or fewer items at a time
//! ```
//!
//! Kernels ask through a table on the device (`bifolio_kernels::demand`, with the header for programs). A
//! session pins the frames of the pages that it has filled, so that their addresses are those of the mapping
//! and stay valid while kernels run. The file's lock is held for filling, and not while kernels run.
//!
//! Progress: what a launch missed is filled as a whole if it fits, and what items use stays, so that every launch
//! brings them further. Where it does not fit, a part of it is filled in place of what was used, which is best
//! for items that need one place each, and tried for as long as it finishes some. Else the next launches have
//! fewer items, down to one; what a single item needs either fits, or the session ends with an error.

use crate::mapping::Mapping;
use crate::page::Device;
use crate::{Error, ErrorKind, Result};
use bifolio_device::{Allocation, DevicePtr, PinnedBuffer, Stream};
use bifolio_kernels::demand::{Answer, Layout, PagedRange};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

/// Runs kernels on a mapping's pages as they ask for them; from [`Mapping::demand`].
#[derive(Debug)]
pub struct Demand<'a> {
    mapping: &'a mut Mapping,
    /// The file's, for messages.
    path: PathBuf,
    stream: Stream,
    /// Made for the longest list of items so far.
    table: Option<Table>,
}

/// What one launch gets.
#[derive(Debug)]
pub struct Launch<'a> {
    /// Orders the launch between what the session does. A program that uses another stream waits for it before
    /// it returns.
    pub stream: &'a Stream,
    /// The table, `bifolio_demand *` of the header.
    pub table: DevicePtr,
    /// The mapping's first byte: what the header calls `file`.
    pub file: DevicePtr,
    /// Items to be worked on: slots of the table's list.
    pub items: u32,
    /// Launches before this one.
    pub round: u32,
}

/// What a session has done.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DemandReport {
    /// Launches.
    pub rounds: u32,
    /// Of those, launches that asked for more than there was room for.
    pub rounds_short: u32,
    /// Pages that items have asked for.
    pub asked: u64,
    /// Pages that were fetched, from the file or another device; some of them twice where memory is scarce.
    pub fetched: u64,
    /// Bytes of those.
    pub fetched_bytes: u64,
    /// Pages whose memory was needed.
    pub evicted: u64,
    /// Time of the launches, tables included.
    pub launch_seconds: f64,
    /// Time of filling pages.
    pub fill_seconds: f64,
    /// Time of the session.
    pub seconds: f64,
}

/// The table on the device, and as the host writes and reads it.
#[derive(Debug)]
struct Table {
    layout: Layout,
    items_max: u32,
    on_device: Allocation,
    on_host: PinnedBuffer,
}

impl Mapping {
    /// Demand mode on this mapping, which must be read-only; what is acquired stays so.
    ///
    /// # Errors
    /// `BadUse` for a mapping that is writable or closed, `Device`.
    pub fn demand(&mut self) -> Result<Demand<'_>> {
        self.part(&(0..self.len()))?;
        let (device, path) = self.file.shared.lock().device_and_path(self.device)?;
        if self.writable {
            let detail = "demand mode only reads: map the file read-only for it";
            return Err(Error::new(ErrorKind::BadUse, &path, detail));
        }
        let stream = device.create_stream().map_err(|error| Error::device(&path, error))?;
        Ok(Demand { mapping: self, path, stream, table: None })
    }
}

impl Demand<'_> {
    /// Works on the items `0..items`: `launch` launches the program's kernel, again and again for those that are
    /// not finished, until all are. Kernels use the header as it describes.
    ///
    /// Items see the file as it was when the session began, or later: what others change meanwhile is seen or
    /// not, page by page, until the next session. After an error some items are finished.
    ///
    /// # Errors
    /// `BadRange` if an item asks for bytes beyond the mapping, `OutOfMemory` if one item by itself asks for more
    /// than there is memory for, `BadUse` if unfinished items ask for nothing that is missing, `Read`, `Write` if
    /// what others have released cannot be written to the file, `Device`, also for what `launch` returns.
    pub fn run(
        &mut self,
        items: u32,
        mut launch: impl FnMut(&Launch<'_>) -> bifolio_device::Result<()>,
    ) -> Result<DemandReport> {
        let started = Instant::now();
        let mut report = DemandReport::default();
        let mut unfinished: Vec<u32> = (0..items).collect();
        if items > 0 {
            self.work(&mut unfinished, &mut launch, &mut report)?;
        }
        report.seconds = started.elapsed().as_secs_f64();
        Ok(report)
    }

    fn work(
        &mut self,
        unfinished: &mut Vec<u32>,
        launch: &mut impl FnMut(&Launch<'_>) -> bifolio_device::Result<()>,
        report: &mut DemandReport,
    ) -> Result<()> {
        let mut table = self.table(unfinished.len() as u32).map_err(|error| Error::device(&self.path, error))?;
        let mut session = Session::begin(self.mapping, &self.stream)?;
        let mut asked = vec![false; session.there.len()];
        let mut pace = Pace { window: unfinished.len(), credit: CREDIT_MAX, is_trying: false };
        while !unfinished.is_empty() {
            let active = &unfinished[..pace.window.min(unfinished.len())];
            let started = Instant::now();
            let answer = table.launch(active, &session, report.rounds, launch);
            let answer = answer.map_err(|error| Error::device(&self.path, error))?;
            report.rounds += 1;
            report.launch_seconds += started.elapsed().as_secs_f64();
            answer.used.iter().chain(&answer.wanted).for_each(|page| asked[*page as usize] = true);
            report.asked = asked.iter().filter(|asked| **asked).count() as u64;
            refuse(&answer, active, session.mapping.len())
                .map_err(|(kind, detail)| Error::new(kind, &self.path, detail))?;

            let (active, first) = (active.len(), active[0]);
            let mut slots = 0..;
            let is_left = |_: &u32| slots.next().is_some_and(|slot| answer.finished.binary_search(&slot).is_err());
            unfinished.retain(is_left);
            if unfinished.is_empty() {
                break;
            }
            let started = Instant::now();
            let short = session.fill(&answer, Amount::All, report)?;
            report.rounds_short += u32::from(short.is_some());
            match pace.after(active, answer.finished.len(), short.as_ref().map(|short| short.frames)) {
                Step::Launch => {}
                Step::FillPart => _ = session.fill(&answer, Amount::Part, report)?,
                Step::GiveUp => {
                    let why = short.map(|short| short.error.to_string()).unwrap_or_default();
                    let detail =
                        format!("item {first} asks for more of the file at a time than there is memory for: {why}");
                    return Err(Error::new(ErrorKind::OutOfMemory, &self.path, detail));
                }
            }
            report.fill_seconds += started.elapsed().as_secs_f64();
        }
        drop(session);
        self.table = Some(table);
        Ok(())
    }

    /// The table for so many items, taken out or made.
    fn table(&mut self, items: u32) -> bifolio_device::Result<Table> {
        if let Some(table) = self.table.take().filter(|table| table.items_max >= items) {
            return Ok(table);
        }
        let layout = Layout::new(extent(self.mapping), items);
        let device = self.stream.device();
        let on_device = device.alloc(layout.bytes())?;
        let on_host = device.alloc_pinned(layout.bytes() as usize)?;
        Ok(Table { layout, items_max: items, on_device, on_host })
    }
}

fn extent(mapping: &Mapping) -> PagedRange {
    let page_bytes = mapping.file.shared.lock().page_bytes();
    PagedRange {
        length: mapping.len(),
        skew: mapping.range.start % page_bytes,
        page_shift: page_bytes.trailing_zeros(),
    }
}

impl Table {
    /// One launch, from the table's upload to its answer.
    fn launch(
        &mut self,
        items: &[u32],
        session: &Session<'_>,
        round: u32,
        launch: &mut impl FnMut(&Launch<'_>) -> bifolio_device::Result<()>,
    ) -> bifolio_device::Result<Answer> {
        let (layout, count, stream) = (self.layout, items.len() as u32, session.stream);
        let pages = session.there.iter().zip(0..).filter(|(there, _)| **there).map(|(_, page)| page);
        layout.write(self.on_host.bytes_mut(), items, pages);
        let bytes = layout.bytes_to_upload(count);
        stream.upload(self.on_device.slice().part(0, bytes)?, &self.on_host.bytes()[..bytes as usize])?;
        let (table, file) = (self.on_device.ptr(), session.mapping.ptr());
        let launched = launch(&Launch { stream, table, file, items: count, round });
        let done = stream.synchronize();
        launched.and(done)?;
        let bytes = layout.bytes_to_download(count);
        let from = self.on_device.slice().part(0, bytes)?;
        stream.download(&mut self.on_host.bytes_mut()[..bytes as usize], from)?;
        Ok(layout.read(self.on_host.bytes(), count))
    }
}

/// Ends a session whose kernels ask for what cannot be, or for nothing.
fn refuse(answer: &Answer, active: &[u32], len: u64) -> Result<(), (ErrorKind, String)> {
    if let Some((offset, length)) = answer.bad {
        let detail = format!("an item asks for {length} bytes at {offset} of {len} mapped bytes");
        return Err((ErrorKind::BadRange, detail));
    }
    if answer.finished.is_empty() && answer.wanted.is_empty() {
        let detail = format!(
            "{} items, among them item {}, are neither finished nor ask for anything that is missing: finish them, or ask for what they wait for",
            active.len(),
            active[0]
        );
        return Err((ErrorKind::BadUse, detail));
    }
    Ok(())
}

/// How many items are launched at a time, and whether filling a part of what they miss pays.
#[derive(Debug)]
struct Pace {
    window: usize,
    /// Tries left at filling a part; those that finish something cost none.
    credit: u8,
    /// The next launch tells what the last try was good for.
    is_trying: bool,
}

const CREDIT_MAX: u8 = 2;

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Launch,
    FillPart,
    GiveUp,
}

impl Pace {
    /// After a launch with `active` items. Where not all that it missed was filled, `short` has the frames that
    /// there was memory for, and those that were needed.
    fn after(&mut self, active: usize, finished: usize, short: Option<(usize, usize)>) -> Step {
        let has_failed = self.is_trying && finished == 0;
        if self.is_trying {
            self.credit = if has_failed { self.credit - 1 } else { CREDIT_MAX.min(self.credit + 1) };
        }
        self.is_trying = short.is_some() && self.credit > 0 && !has_failed;
        self.window = match short {
            _ if self.is_trying => active,
            None if finished > 0 => active.saturating_mul(2),
            None => active,
            // What was used may have been for the finished: the same items again, to know what the others use.
            Some(_) if finished > 0 => active,
            Some(_) if active == 1 => return Step::GiveUp,
            Some((had, needed)) => {
                let share = (active as u128 * had as u128 / needed.max(1) as u128) as usize;
                share.clamp(1, active - 1)
            }
        };
        if self.is_trying { Step::FillPart } else { Step::Launch }
    }
}

/// How little room there was.
#[derive(Debug)]
struct Short {
    /// Frames that there was memory for, and that were needed.
    frames: (usize, usize),
    error: Error,
}

/// How much of what was missed is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Amount {
    /// All of it, or nothing; frames that items have used stay.
    All,
    /// As much as there is memory for, that of frames that were used included.
    Part,
}

/// Pinned frames, until the session ends.
struct Session<'a> {
    mapping: &'a Mapping,
    stream: &'a Stream,
    device: Device,
    /// The mapping's pages that kernels may read, by their numbers in the table.
    there: Vec<bool>,
    /// The file's number of the table's first page.
    first_page: u64,
    pages_per_frame: u64,
    frames: BTreeSet<usize>,
}

impl<'a> Session<'a> {
    /// Looks at the file. What the device has, and is certain to be up to date, is there from the beginning.
    fn begin(mapping: &'a Mapping, stream: &'a Stream) -> Result<Self> {
        let extent = extent(mapping);
        let (device, range) = (mapping.device, mapping.range.clone());
        let page_bytes = 1 << extent.page_shift;
        let mut session = Self {
            mapping,
            stream,
            device,
            there: vec![false; extent.pages() as usize],
            first_page: range.start / page_bytes,
            pages_per_frame: 1,
            frames: BTreeSet::new(),
        };
        let mut state = mapping.file.shared.lock();
        session.pages_per_frame = state.pages_of_frame(device)?;
        for page in state.up_to_date(device, &range)? {
            let frame = (page / session.pages_per_frame) as usize;
            if !session.frames.contains(&frame) {
                state.pin_frame(device, frame)?;
                session.frames.insert(frame);
            }
            session.there[(page - session.first_page) as usize] = true;
        }
        drop(state);
        Ok(session)
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

    /// Fills pages that were asked for and missing. Frames that nobody asked for are given up for it. What there
    /// was no room for, if anything.
    fn fill(&mut self, answer: &Answer, amount: Amount, report: &mut DemandReport) -> Result<Option<Short>> {
        let mut state = self.mapping.file.shared.lock();
        let before = state.counts;
        let frames = |pages: &[u64]| pages.iter().map(|page| self.frame_of(*page)).collect::<BTreeSet<usize>>();
        let wanted = frames(&answer.wanted);
        let used = if amount == Amount::All { frames(&answer.used) } else { BTreeSet::new() };
        let missing: Vec<usize> = wanted.difference(&self.frames).copied().collect();
        let mut stale: Vec<usize> =
            self.frames.iter().copied().filter(|frame| !wanted.contains(frame) && !used.contains(frame)).collect();
        let in_use = self.frames.len() - stale.len();
        let mut short = None;
        for (number, frame) in missing.iter().enumerate() {
            let mut pinned = state.pin_frame(self.device, *frame);
            if is_out_of_memory(&pinned) && !stale.is_empty() {
                for frame in stale.drain(..) {
                    state.unpin_frame(self.device, frame);
                    self.frames.remove(&frame);
                    let pages = self.pages_of(frame);
                    self.there[pages].fill(false);
                }
                pinned = state.pin_frame(self.device, *frame);
            }
            match pinned {
                Ok(()) => _ = self.frames.insert(*frame),
                Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                    short = Some(Short { frames: (in_use + number, in_use + missing.len()), error });
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(Short { frames: (had, _), .. }) = short
            && amount == Amount::All
        {
            for frame in &missing[..had - in_use] {
                state.unpin_frame(self.device, *frame);
                self.frames.remove(frame);
            }
            return Ok(short);
        }
        let has_room = |page: &u64| self.frames.contains(&self.frame_of(*page));
        let filled: Vec<u64> = answer.wanted.iter().copied().filter(has_room).collect();
        let pages: BTreeSet<u64> = filled.iter().map(|page| self.first_page + page).collect();
        let fetched_bytes = state.bring_pages(self.device, &pages)?;
        for page in filled {
            self.there[page as usize] = true;
        }
        report.fetched += state.counts.fetched - before.fetched;
        report.evicted += state.counts.evicted - before.evicted;
        report.fetched_bytes += fetched_bytes;
        Ok(short)
    }
}

fn is_out_of_memory(outcome: &Result<()>) -> bool {
    outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::OutOfMemory)
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // Whatever has failed or panicked, no kernel runs when memory is taken away.
        let _ = self.stream.synchronize();
        let mut state = self.mapping.file.shared.lock();
        for frame in std::mem::take(&mut self.frames) {
            state.unpin_frame(self.device, frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(window: usize, credit: u8, is_trying: bool) -> Pace {
        Pace { window, credit, is_trying }
    }

    #[test]
    fn a_part_is_filled_for_as_long_as_that_finishes_items() {
        let mut pace = pace(100, 2, false);
        assert_eq!(pace.after(100, 0, Some((4, 40))), Step::FillPart);
        for _ in 0..5 {
            assert_eq!((pace.after(90, 7, Some((4, 40))), pace.window, pace.credit), (Step::FillPart, 90, 2));
        }
        assert_eq!((pace.after(60, 0, Some((4, 40))), pace.window, pace.credit), (Step::Launch, 6, 1));
        assert_eq!(pace.after(6, 0, None), Step::Launch);
        assert_eq!((pace.after(6, 6, None), pace.window), (Step::Launch, 12));
        assert_eq!(pace.after(12, 0, Some((4, 5))), Step::FillPart);
        assert_eq!((pace.after(12, 0, Some((4, 5))), pace.window, pace.credit), (Step::Launch, 9, 0));
        assert_eq!((pace.after(9, 2, Some((4, 5))), pace.window), (Step::Launch, 9), "then carefully");
    }

    #[test]
    fn launches_shrink_where_memory_is_short_and_grow_where_it_is_not() {
        let after = |active, finished, short| {
            let mut pace = pace(active, 0, false);
            (pace.after(active, finished, short), pace.window)
        };
        assert_eq!(after(100, 0, None), (Step::Launch, 100), "items go on with what was filled");
        assert_eq!(after(100, 3, None), (Step::Launch, 200));
        assert_eq!(after(usize::MAX, 1, None), (Step::Launch, usize::MAX));
        assert_eq!(after(100, 3, Some((1, 50))), (Step::Launch, 100), "what was used may have been of the finished");
        assert_eq!(after(100, 0, Some((10, 40))), (Step::Launch, 25));
        assert_eq!(after(100, 0, Some((0, 40))), (Step::Launch, 1));
        assert_eq!(after(100, 0, Some((999, 1000))), (Step::Launch, 99), "always fewer");
        assert_eq!(after(2, 0, Some((3, 4))), (Step::Launch, 1));
        assert_eq!(after(1, 0, Some((3, 4))), (Step::GiveUp, 1));
        assert_eq!(after(1, 1, Some((3, 4))), (Step::Launch, 1));
    }
}
