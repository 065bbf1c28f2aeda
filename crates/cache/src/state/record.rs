//! What is being done to pages at the moment, for whoever finds the region after the end of the process that did it.
//!
//! A record is written before an operation touches frames whose content it cannot be without, and ended when they are
//! whole again. Which pages it is about, the pages are marked with: they may lie anywhere. What is to be done with a
//! record that is found depends on the operation alone:
//!
//! | operation | frames while it lasts | what is done |
//! |---|---|---|
//! | fetch | pages without changes of the device's own: read half | dropped: the file has them |
//! | merge | own changes go on top of what was read: twins behind | redone, with what was read, which is in a frame |
//! | fold | the same, and bases; inputs are overwritten | redone, with the inputs, which are in a frame |
//! | release | twins become what is released | redone: the rest of it |
//! | flush | what was released is in the file in part | redone from where it was noted to be |
//! | cut | what lies behind the end becomes zeroes | redone |
//!
//! A merge and a fold go by words, of which `current` is written before the twin, and the twin before the base. Half of
//! either says of a byte that came from elsewhere that the device has changed it: with the same inputs it is changed to
//! what it is, and is nobody's change again. What a kernel stores meanwhile stays, as ever.
//!
//! All else needs no record. Pages are written one by one ([`super::pages`]), and each alone is in a state that the
//! protocol has. Frames that are new say that they are unfilled. What a CPU writes is compared after a crash, as all of
//! the file is. A release that goes to the file at once leaves bytes there that are like a CPU's, and the others
//! unreleased: who has asked for it asks again. A lease is noted when all is there, and ends when all is taken back.

use super::layout::{Part, RECORD_ROW, RECORDS_MAX};
use super::region::Region;
use super::replicas::FrameNumber;
use super::table::{Row, Table};
use crate::page::Device;
use std::io;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Fetch,
    Merge,
    Fold,
    Release,
    Flush,
    Cut,
}

const OPERATIONS: [Operation; 6] =
    [Operation::Fetch, Operation::Merge, Operation::Fold, Operation::Release, Operation::Flush, Operation::Cut];

/// As the region has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Record {
    /// Of a cut: the bytes. Of a flush: up to where they are in the file.
    start: u64,
    end: u64,
    /// Of a fold: whose twins and bases follow the content in the frame, and whether what the file has is another one.
    donors: u64,
    device: u32,
    /// The frame with what was read, of a merge and a fold.
    inputs: u32,
    has_origin: u32,
    /// The operation plus one; 0 for none, and for one that was not written as a whole.
    state: u32,
}

// SAFETY: numbers, without padding.
unsafe impl Row for Record {}
const _: () = assert!(size_of::<Record>() == RECORD_ROW);

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Transition {
    pub(crate) operation: Operation,
    pub(crate) device: Device,
    pub(crate) bytes: Range<u64>,
    pub(crate) donors: u64,
    pub(crate) has_origin: bool,
    pub(crate) inputs: FrameNumber,
}

impl Transition {
    pub(crate) fn of(operation: Operation, device: Device) -> Self {
        Self { operation, device, bytes: 0..0, donors: 0, has_origin: false, inputs: 0 }
    }
}

impl Record {
    fn of(transition: &Transition) -> Self {
        let state = OPERATIONS.iter().position(|known| *known == transition.operation).unwrap_or(0) as u32 + 1;
        Self {
            start: transition.bytes.start,
            end: transition.bytes.end,
            donors: transition.donors,
            device: transition.device as u32,
            inputs: transition.inputs,
            has_origin: u32::from(transition.has_origin),
            state,
        }
    }

    fn transition(&self) -> Option<Transition> {
        let operation = *OPERATIONS.get((self.state as usize).checked_sub(1)?)?;
        Some(Transition {
            operation,
            device: self.device as Device,
            bytes: self.start..self.end,
            donors: self.donors,
            has_origin: self.has_origin != 0,
            inputs: self.inputs,
        })
    }
}

/// The number of a record, from 1 on.
pub(crate) type RecordNumber = u16;

#[derive(Debug)]
pub(crate) struct Records {
    table: Table<Record>,
    /// By page: the record that is of it, or one that has ended.
    marks: Table<u16>,
    rows: u64,
}

impl Records {
    pub(crate) fn of(region: &Region) -> Self {
        Self { table: region.table(Part::Records), marks: region.table(Part::Marks), rows: 0 }
    }

    /// Memory for pages to be marked.
    pub(crate) fn reserve(&mut self, pages: &Range<u64>) -> io::Result<()> {
        self.marks.reserve(pages)
    }

    /// Of a region that another process has left, whose pages have memory: what it did when it ended, by number, with the
    /// pages in ascending order.
    pub(crate) fn recover(&mut self, devices: usize) -> Result<Vec<(RecordNumber, Transition, Vec<u64>)>, String> {
        self.table.reserve(&(0..RECORDS_MAX)).map_err(|error| format!("no memory for records: {error}"))?;
        self.rows = RECORDS_MAX;
        let mut found = Vec::new();
        for row in 0..RECORDS_MAX {
            let Some(record) = self.table.get(row).filter(|record| record.state != 0) else { continue };
            let sound = record.transition().filter(|one| one.device < devices && one.bytes.start <= one.bytes.end);
            let Some(transition) = sound else { return Err(format!("record {row} cannot be what it is")) };
            let number = row as RecordNumber + 1;
            found.push((number, transition, self.pages_of(number)));
        }
        // Of records that were not begun, or had ended.
        let is_stale = |page: &u64| {
            self.marks.get(*page).is_some_and(|mark| *mark != 0 && found.iter().all(|(number, ..)| number != mark))
        };
        let stale: Vec<u64> = self.marks.rows_in(&(0..u64::MAX)).filter(is_stale).collect();
        for page in stale {
            self.marks.set(page, 0);
        }
        Ok(found)
    }

    fn pages_of(&self, number: RecordNumber) -> Vec<u64> {
        self.marks.rows_in(&(0..u64::MAX)).filter(|page| self.marks.get(*page) == Some(&number)).collect()
    }

    /// Notes what will be done, before it begins.
    pub(crate) fn begin(
        &mut self,
        transition: &Transition,
        pages: impl IntoIterator<Item = u64>,
    ) -> io::Result<RecordNumber> {
        let is_free = |row: &u64| self.table.get(*row).is_some_and(|record| record.state == 0);
        let row = if let Some(row) = (0..self.rows).find(is_free) {
            row
        } else {
            let rows = (self.rows + 64).min(RECORDS_MAX);
            if rows == self.rows {
                return Err(io::Error::other(format!("{RECORDS_MAX} operations on a file at a time at most")));
            }
            self.table.reserve(&(0..rows))?;
            std::mem::replace(&mut self.rows, rows)
        };
        let number = row as RecordNumber + 1;
        pages.into_iter().for_each(|page| self.marks.set(page, number));
        let record = Record::of(transition);
        self.table.set(row, Record { state: 0, ..record });
        compiler_fence(Ordering::SeqCst);
        self.table.set(row, record);
        compiler_fence(Ordering::SeqCst);
        Ok(number)
    }

    /// Notes that it is about some more pages.
    pub(crate) fn mark(&mut self, number: RecordNumber, pages: impl IntoIterator<Item = u64>) {
        pages.into_iter().for_each(|page| self.marks.set(page, number));
        compiler_fence(Ordering::SeqCst);
    }

    /// Notes how far it has come.
    pub(crate) fn advance(&mut self, number: RecordNumber, start: u64) {
        let row = u64::from(number) - 1;
        if let Some(record) = self.table.get(row).copied() {
            self.table.set(row, Record { start, ..record });
        }
    }

    /// It is done, or will not be.
    pub(crate) fn end(&mut self, number: RecordNumber, pages: impl IntoIterator<Item = u64>) {
        let row = u64::from(number) - 1;
        compiler_fence(Ordering::SeqCst);
        if let Some(record) = self.table.get(row).copied() {
            self.table.set(row, Record { state: 0, ..record });
        }
        compiler_fence(Ordering::SeqCst);
        // The number is somebody else's from now on.
        pages.into_iter().for_each(|page| self.marks.set(page, 0));
    }
}

#[cfg(test)]
mod tests {
    use bifolio_kernels::fold::{self, Page};

    /// What a fold makes of a byte: current, twin and base, from its inputs, which are kept.
    fn folded([current, twin, base]: [u8; 3], (content, origin): (u8, u8), donors: &[[u8; 2]]) -> [u8; 3] {
        let (mut current, mut twin, mut base) = ([current], [twin], [base]);
        let donors: Vec<_> = donors.iter().map(|[twin, base]| ([*twin], [*base])).collect();
        let donors: Vec<(&[u8], &[u8])> = donors.iter().map(|(twin, base)| (&twin[..], &base[..])).collect();
        fold::oracle(Page {
            current: &mut current,
            twin: Some(&mut twin),
            base: Some(&mut base),
            content: &[content],
            origin: Some(&[origin]),
            donors: &donors,
        });
        [current[0], twin[0], base[0]]
    }

    /// Wherever it ended: after none of its stores, or the first ones of `current`, twin and base. A merge is a fold without
    /// donors.
    #[test]
    fn a_fold_that_is_done_again_comes_to_the_same() {
        let values = 0..3_u8;
        let each = |count: u32| {
            (0..3_u32.pow(count)).map(move |number| (0..count).map(move |at| (number / 3_u32.pow(at) % 3) as u8))
        };
        for mut bytes in each(7) {
            let mut next = || bytes.next().unwrap_or(0);
            let (before, inputs, donor) = ([next(), next(), next()], (next(), next()), [[next(), next()]]);
            for donors in [&[][..], &donor] {
                let after = folded(before, inputs, donors);
                for done in 0..=3 {
                    let mut torn = before;
                    torn[..done].copy_from_slice(&after[..done]);
                    assert_eq!(
                        folded(torn, inputs, donors),
                        after,
                        "{before:?}, {inputs:?}, {donors:?}, {done} stores"
                    );
                    // What a kernel stores after that stays.
                    for stored in values.clone().filter(|stored| done > 1 && *stored != after[1]) {
                        let [current, twin, _] = folded([stored, torn[1], torn[2]], inputs, donors);
                        assert_eq!((current, twin), (stored, after[1]), "{before:?}, {inputs:?}, {donors:?}");
                    }
                }
            }
        }
    }
}
