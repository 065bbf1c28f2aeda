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

mod pace;
mod session;
mod table;

use crate::directory::demand::device_and_path;
use crate::error::{Error, ErrorKind, Result};
use crate::mapping::Mapping;
use bifolio_device::{DevicePtr, Stream};
use bifolio_kernels::demand::Answer;
use pace::{Pace, Step};
use session::{Amount, Filled, Session, extent};
use std::path::PathBuf;
use std::time::Instant;
use table::Table;

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

impl Mapping {
    /// Demand mode on this mapping, which must be read-only; what is acquired stays so.
    ///
    /// # Errors
    /// `BadUse` for a mapping that is writable or closed, `Device`.
    pub fn demand(&mut self) -> Result<Demand<'_>> {
        self.part(&(0..self.len()))?;
        let (device, path) = device_and_path(&self.file()?.held.lock(), self.device)?;
        if self.writable {
            let detail = "demand mode needs a read-only mapping: map the file read-only";
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
        let mut asked = vec![false; session.pages()];
        let mut pace = Pace::new(unfinished.len());
        while !unfinished.is_empty() {
            let active = &unfinished[..pace.window.min(unfinished.len())];
            let answer = self.launch(active, &mut table, &session, launch, report)?;
            answer.used.iter().chain(&answer.wanted).for_each(|page| asked[*page as usize] = true);
            report.asked = asked.iter().filter(|asked| **asked).count() as u64;
            refuse(&answer, active, self.mapping.len())
                .map_err(|(kind, detail)| Error::new(kind, &self.path, detail))?;

            let (active, first) = (active.len(), active[0]);
            forget_finished(unfinished, &answer);
            if !unfinished.is_empty() {
                let started = Instant::now();
                self.fill(&mut session, &mut pace, &answer, (active, first), report)?;
                report.fill_seconds += started.elapsed().as_secs_f64();
            }
        }
        drop(session);
        self.table = Some(table);
        Ok(())
    }

    fn launch(
        &self,
        items: &[u32],
        table: &mut Table,
        session: &Session<'_>,
        launch: &mut impl FnMut(&Launch<'_>) -> bifolio_device::Result<()>,
        report: &mut DemandReport,
    ) -> Result<Answer> {
        let started = Instant::now();
        let (stream, file, round) = (&self.stream, self.mapping.ptr(), report.rounds);
        let answer = table.ask(items, session.there(), stream, |table| {
            launch(&Launch { stream, table, file, items: items.len() as u32, round })
        });
        let answer = answer.map_err(|error| Error::device(&self.path, error))?;
        report.rounds += 1;
        report.launch_seconds += started.elapsed().as_secs_f64();
        Ok(answer)
    }

    /// Fills what a launch with some active items missed, and decides on the next one.
    fn fill(
        &self,
        session: &mut Session<'_>,
        pace: &mut Pace,
        answer: &Answer,
        (active, first): (usize, u32),
        report: &mut DemandReport,
    ) -> Result<()> {
        let filled = session.fill(answer, Amount::All)?;
        report.add(&filled);
        report.rounds_short += u32::from(filled.short.is_some());
        match pace.after(active, answer.finished.len(), filled.short.as_ref().map(|short| short.frames)) {
            Step::Launch => {}
            Step::FillPart => report.add(&session.fill(answer, Amount::Part)?),
            Step::GiveUp => {
                let why = filled.short.map(|short| short.error.detail().to_owned()).unwrap_or_default();
                let detail = format!("item {first} asks for more of the file than there is memory for: {why}");
                return Err(Error::new(ErrorKind::OutOfMemory, &self.path, detail));
            }
        }
        Ok(())
    }

    /// The table for so many items, taken out or made.
    fn table(&mut self, items: u32) -> bifolio_device::Result<Table> {
        if let Some(table) = self.table.take().filter(|table| table.items_max() >= items) {
            return Ok(table);
        }
        // Whoever maps by another process has got no demand mode.
        let refused =
            |error: Error| bifolio_device::Error::new(bifolio_device::ErrorKind::BadArgument, error.to_string());
        Table::new(extent(self.mapping).map_err(refused)?, items, &self.stream)
    }
}

impl DemandReport {
    fn add(&mut self, filled: &Filled) {
        self.fetched += filled.fetched;
        self.fetched_bytes += filled.fetched_bytes;
        self.evicted += filled.evicted;
    }
}

/// Ends a session whose kernels ask for what cannot be, or for nothing.
fn refuse(answer: &Answer, active: &[u32], len: u64) -> Result<(), (ErrorKind, String)> {
    if let Some((offset, length)) = answer.bad {
        let detail = format!("an item asks for {length} bytes at {offset}, and {len} bytes are mapped");
        return Err((ErrorKind::BadRange, detail));
    }
    if answer.finished.is_empty() && answer.wanted.is_empty() {
        let detail = format!(
            "no progress: none of {} items, item {} the first of them, finishes or asks for a page that is missing",
            active.len(),
            active[0]
        );
        return Err((ErrorKind::BadUse, detail));
    }
    Ok(())
}

/// Takes those out that the answer says are finished: it has their slots, in ascending order.
fn forget_finished(unfinished: &mut Vec<u32>, answer: &Answer) {
    let mut slots = 0..;
    unfinished.retain(|_| slots.next().is_some_and(|slot| answer.finished.binary_search(&slot).is_err()));
}
