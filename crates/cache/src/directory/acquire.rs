//! Acquiring: bringing pages up to date, by looking, comparing, fetching what the file has and folding what it
//! lacks.

use super::Locked;
use super::aside::{seen_by_others, set_aside, show_released, written_by_others};
use super::bring::bring as bring_up_to_date;
use super::compare::{Asker, compare_with_file};
use super::fetch::Request;
use super::look::look;
use super::wait::with_pages;
use crate::error::Result;
use crate::fault::{Point, step};
use crate::monitor::Hold;
use crate::page::Device;
use crate::state::lease::{Client, LeaseNumber};
use crate::stats::Report;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

/// Whether somebody waits for pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// It is acquired by a client.
    Acquired(Client),
    Ahead,
}

/// Brings a range on a device up to date, and keeps it there until it is released, under a number of a client's. What other
/// clients have acquired to read stays as they see it, and what they are writing is not seen.
pub(crate) fn acquire(
    directory: &mut Locked<'_>,
    device: Device,
    range: &Range<u64>,
    writable: bool,
    (client, lease): (Client, LeaseNumber),
) -> Result<Report> {
    let started = Instant::now();
    let before = directory.versions.counts;
    look(directory, range)?;
    step(Point::AcquireLooked, directory.path())?;
    let is_seen = if writable {
        !seen_by_others(directory, device, range, Some(client)).is_empty()
    } else {
        !written_by_others(directory, device, range, client).is_empty()
    };
    if !is_seen && is_there(directory, device, range, writable) {
        directory.copies.pin(device, range)?;
        let pages = directory.versions.pages_of(range);
        directory.versions.counts.hits += pages.end - pages.start;
    } else {
        with_pages(directory, range, Hold::Change, |directory| {
            let frames = directory.copies.pin(device, range)?;
            let mut outcome = bring(directory, device, range, writable, When::Acquired(client));
            if outcome.is_ok() && !writable {
                outcome = show_released(directory, device, range, (client, lease));
            }
            if outcome.is_err() {
                directory.end_lease(client, lease);
                directory.copies.unpin(device, frames);
            }
            outcome
        })?;
    }
    if writable {
        directory.versions.begin_use(device, range);
    }
    Ok(Report::between(&before, &directory.versions.counts, started))
}

/// Whether all of a range is as its acquire will have it, and nobody is at work on it: then there is nothing to be
/// waited for, whoever is at work on other pages of its frames.
fn is_there(directory: &Locked<'_>, device: Device, range: &Range<u64>, writable: bool) -> bool {
    let (versions, copies) = (&directory.versions, &directory.copies);
    let is_settled = versions.is_range_settled(device, range, writable);
    if !directory.has_others() {
        return is_settled;
    }
    let is_up_to_date = || {
        let is_ready = copies.get(device).is_some_and(|replica| replica.is_ready(range, writable));
        is_ready && versions.pages_of(range).all(|page| versions.is_up_to_date(device, page))
    };
    !directory.is_changed_by_others(&versions.whole_pages(range)) && (is_settled || is_up_to_date())
}

/// Brings a range before it is acquired; false if there is no room for it, or it cannot be read.
pub(crate) fn bring_ahead(directory: &mut Locked<'_>, device: Device, range: &Range<u64>, writable: bool) -> bool {
    let range = range.start..range.end.min(directory.versions.size());
    if range.is_empty() || look(directory, &range).is_err() {
        return false;
    }
    with_pages(directory, &range, Hold::Change, |directory| {
        let Ok(frames) = directory.copies.pin(device, &range) else { return false };
        let outcome = bring(directory, device, &range, writable, When::Ahead);
        directory.copies.unpin(device, frames);
        outcome.is_ok()
    })
}

fn bring(directory: &mut Locked<'_>, device: Device, range: &Range<u64>, writable: bool, when: When) -> Result<()> {
    let pages = directory.versions.pages_of(range);
    // What is brought ahead was not acquired.
    let hit = |directory: &mut Locked<'_>, pages: u64| {
        directory.versions.counts.hits += if when == When::Ahead { 0 } else { pages };
    };
    let client = if let When::Acquired(client) = when { Some(client) } else { None };
    if writable && let Some(client) = client {
        // Its stores are nobody else's until they are released and acquired.
        let seen = seen_by_others(directory, device, range, Some(client));
        set_aside(directory, device, seen)?;
    }
    if directory.versions.is_range_settled(device, range, writable) {
        hit(directory, pages.end - pages.start);
        return Ok(());
    }
    let asker = if when == When::Ahead { Asker::Looks } else { Asker::Acquires };
    let taken = compare_with_file(directory, device, asker, &pages)?;
    step(Point::AcquireCompared, directory.path())?;
    let mut behind = directory.versions.behind(device, pages.clone());
    let all_behind = behind.len();
    let mut seen = seen_by_others(directory, device, range, client);
    let frame_of = |directory: &Locked<'_>, page| Ok(directory.copies.replica(device)?.frame_of(page));
    let changing: BTreeSet<usize> = behind.iter().map(|page| frame_of(directory, *page)).collect::<Result<_>>()?;
    seen.retain(|frame, _| changing.contains(frame));
    if when == When::Ahead {
        // Whoever uses a page brings it up to date when he acquires it again.
        let is_used = |page| directory.versions.uses(device, page) > 0;
        let frames = directory.copies.replica(device)?;
        behind.retain(|page| !is_used(*page) && !seen.contains_key(&frames.frame_of(*page)));
    }
    let is_whole = behind.len() == all_behind;
    hit(directory, (pages.end - pages.start).saturating_sub(all_behind as u64 + taken));
    if when != When::Ahead && !seen.is_empty() {
        set_aside(directory, device, seen)?;
        // Making room for copies may have done something.
        behind = directory.versions.behind(device, pages);
    }
    let frames: Vec<usize> = directory.copies.replica(device)?.frames_of(range).collect();
    bring_up_to_date(directory, &Request { device, frames: &frames, writable, behind: &behind })?;
    step(Point::AcquireFetched, directory.path())?;
    if is_whole {
        directory.versions.settle(device, range, writable);
    }
    Ok(())
}
