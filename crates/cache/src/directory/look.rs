//! What has become of the file since the cache looked last: unknown changes, and another length.

use super::record::begin;
use super::{Directory, Locked};
use crate::copies::home::Looked;
use crate::error::{Error, Result};
use crate::fault::{Point, step};
use crate::monitor::Hold;
use crate::state::record::{Operation, Transition};
use std::ops::Range;

/// Looks whether something unknown has happened to the file, for an operation on a range that has locked nothing yet.
pub(crate) fn look(directory: &mut Locked<'_>, range: &Range<u64>) -> Result<()> {
    let Looked { size, is_unchanged } = directory.copies.home.look().map_err(Error::reading)?;
    if !is_unchanged {
        directory.versions.doubt();
    }
    // Also where nothing has changed since: following it may have failed after the look that found it.
    if size == directory.versions.size() { Ok(()) } else { follow(directory, range) }
}

/// Follows a truncation, before something of a range is written behind the new end.
pub(super) fn follow_cut(directory: &mut Locked<'_>, range: &Range<u64>) -> Result<()> {
    let size = directory.copies.size()?;
    if size < directory.versions.size() { follow(directory, range) } else { Ok(()) }
}

/// Follows the file to its length, once nobody else works on what lies behind the shorter of both. Where the range lies
/// before that, and somebody does, whoever needs it follows.
fn follow(directory: &mut Locked<'_>, range: &Range<u64>) -> Result<()> {
    loop {
        let end = directory.copies.size()?.min(directory.versions.size());
        let tail = directory.versions.whole_pages(&(end..u64::MAX));
        if directory.try_take(tail.clone(), Hold::Change).is_none() {
            if range.end <= directory.whole(&tail).start {
                return Ok(());
            }
            directory.take([tail], Hold::Change);
        }
        // It may have become another one since.
        let size = directory.copies.size();
        let is_held = size.as_ref().map_or(true, |size| end <= *size && end <= directory.versions.size());
        let outcome = match size {
            Ok(size) if is_held => resize(directory, size),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        directory.give_all();
        if outcome.is_err() || is_held {
            return outcome;
        }
    }
}

/// Follows the file's growth and truncation, by whoever has locked what lies behind the shorter length.
pub(super) fn resize(directory: &mut Directory, size: u64) -> Result<()> {
    let before = directory.versions.size();
    let mut outcome = Ok(());
    if size < before {
        let cut = Transition { bytes: size..before, ..Transition::of(Operation::Cut, 0) };
        let record = begin(directory, &cut, [])?;
        outcome = step(Point::CutFound, directory.path());
        outcome = outcome.and_then(|()| directory.copies.blank(&cut.bytes));
        outcome = outcome.and_then(|()| step(Point::CutBlanked, directory.path()));
        directory.versions.finish(record, []);
    }
    if outcome.is_ok() && size != before {
        directory.versions.resize(size, directory.copies.reserved());
    }
    outcome
}
