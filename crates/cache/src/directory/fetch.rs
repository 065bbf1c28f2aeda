//! Fetching pages: frames get memory, and what the device has of their pages is looked at, while earlier ones are
//! read.
//!
//! ```text
//!   prepare   a portion of the frames: memory, and what is to be done with their pages (FetchPlan)
//!      |  extents
//!   read      home -> device, on a thread of its own where there is much of it
//!      |
//!   finish    merge what the device has changed; zeroes; twins
//!      |
//!   noted     versions; after a failure the plan is undone instead
//! ```

use super::compare::changed_since_release;
use super::record::begin;
use super::room::map;
use super::wait::{read_home, scratch_to_read};
use super::{Directory, Locked};
use crate::copies::plan::{Extent, FetchPlan, is_scattered};
use crate::copies::replica::Image;
use crate::error::{Error, ErrorKind, Result};
use crate::fault::{Point, step};
use crate::memory::Scratch;
use crate::page::Device;
use crate::page_set::PageSet;
use crate::ranges::runs;
use crate::state::record::{Operation, Transition};
use std::ops::Range;
use std::sync::mpsc;
use std::thread;

/// Bytes whose frames are prepared at first, or as many as these frames have; the others are, while these are read. Long
/// requests are read best: each one has a millisecond in which the link is not busy.
const FIRST_PORTION_BYTES: u64 = 64 << 20;
const FIRST_PORTION_FRAMES: u64 = 8;

/// Less than this is read by the thread that acquires, as starting another costs more.
const ALONE_BYTES_MAX: u64 = 16 << 20;

/// What is to be fetched, in ascending order.
pub(super) struct Request<'a> {
    pub(super) device: Device,
    /// Frames that get memory, and twins if they are written.
    pub(super) frames: &'a [usize],
    pub(super) writable: bool,
    /// Those of their pages that are behind; nothing of them is pending.
    pub(super) behind: &'a [u64],
}

impl Request<'_> {
    /// Those of the pages that lie in a range.
    fn behind_in(&self, pages: &Range<u64>) -> &[u64] {
        let at = |page: u64| self.behind.partition_point(|other| *other < page);
        &self.behind[at(pages.start)..at(pages.end)]
    }
}

/// Fetches pages, all or none.
pub(super) fn fetch(directory: &mut Locked<'_>, request: &Request<'_>) -> Result<()> {
    let record = begin(directory, &Transition::of(Operation::Fetch, request.device), [])?;
    let mut plan = FetchPlan { record, ..FetchPlan::default() };
    let outcome = prepare_and_read(directory, request, &mut plan)
        .and_then(|()| step(Point::FillRead, directory.path()))
        .and_then(|()| finish(directory, request.device, &plan))
        .and_then(|()| step(Point::FetchRead, directory.path()));
    if outcome.is_err() {
        directory.copies.undo(request.device, &plan);
    } else {
        directory.versions.note_fetched(request.device, request.behind);
    }
    directory.versions.finish(record, plan.direct);
    outcome
}

fn prepare_and_read(directory: &mut Locked<'_>, request: &Request<'_>, plan: &mut FetchPlan) -> Result<()> {
    let source = directory.copies.source(request.device)?;
    let replica = directory.copies.replica(request.device)?;
    let frame_bytes = replica.frame_bytes();
    let Some(first) = request.frames.first() else { return Ok(()) };
    // SAFETY: only parts of the range of addresses are used in which memory was mapped before; their frames are pinned,
    // and so both stay while the pages are locked.
    let all = unsafe { replica.all(*first as u64 * frame_bytes) };
    if request.behind.len() as u64 * directory.versions.page_bytes() <= ALONE_BYTES_MAX {
        let list = prepare(directory, request, request.frames, plan)?;
        give_twins(directory, request, request.frames, plan)?;
        return if list.is_empty() { Ok(()) } else { read_home(directory, request.device, &list, all) };
    }
    thread::scope(|scope| {
        let (to_read, lists) = mpsc::channel::<Vec<Extent>>();
        let reader = scope.spawn(move || lists.into_iter().try_for_each(|list| source.read(&list, all)));
        let first = (FIRST_PORTION_BYTES / frame_bytes).max(FIRST_PORTION_FRAMES) as usize;
        let (first, rest) = request.frames.split_at(first.min(request.frames.len()));
        let prepared = [first, rest].into_iter().try_for_each(|portion| {
            let list = prepare(directory, request, portion, plan)?;
            // A reader that has failed has said so. Two at once would take slots from each other, for twice the time.
            let _ = list.is_empty() || to_read.send(list).is_ok();
            give_twins(directory, request, portion, plan)
        });
        drop(to_read);
        let path = directory.path().to_owned();
        let panicked = |_| Err(Error::new(ErrorKind::Device, &path, "a reading thread panicked"));
        let read = directory.wait(|| {
            let is_disturbed = step(Point::HomeRead, &path);
            is_disturbed.and(reader.join().unwrap_or_else(panicked))
        });
        prepared.and(read)
    })
}

/// Gives some of the frames memory, but for twins, and finds out what is to be done with those of their pages that are
/// behind: what is to be read to its place.
fn prepare(
    directory: &mut Locked<'_>,
    request: &Request<'_>,
    frames: &[usize],
    plan: &mut FetchPlan,
) -> Result<Vec<Extent>> {
    let device = request.device;
    let (Some(&first), Some(&last)) = (frames.first(), frames.last()) else { return Ok(vec![]) };
    give_memory(directory, request, frames, plan)?;
    let page_bytes = directory.versions.page_bytes();
    let bytes = directory.copies.replica(device)?.bytes_of(&(first as u64..last as u64 + 1));
    let behind = request.behind_in(&(bytes.start / page_bytes..bytes.end / page_bytes));
    let (held, own) = with_changes(directory, device, behind, plan)?;
    let direct = behind.iter().copied().filter(|page| !own.contains(*page));
    directory.versions.mark(plan.record, direct.clone());
    let (mut from_home, mut previous) = (Vec::new(), held.iter().copied().peekable());
    for run in runs(direct) {
        while previous.next_if(|page| *page < run.start).is_some() {}
        let is_held = previous.peek().is_some_and(|page| *page < run.end);
        let bytes = directory.versions.bytes_of(&run);
        match peer_with(directory, device, &run).filter(|_| !is_held) {
            Some(peer) => {
                let (copies, memory) = (&directory.copies, directory.copies.memory(device)?);
                memory.with_scratch(|scratch| copies.copy_from_peer(device, peer, &bytes, scratch))?;
                directory.versions.counts.from_peers += run.end - run.start;
            }
            None => from_home.push((bytes.clone(), directory.copies.replica(device)?.place(bytes.start))),
        }
        plan.direct.extend(run);
    }
    plan.held.extend(held.iter().filter(|page| !own.contains(**page)));
    plan.own.extend(own);
    Ok(from_home)
}

fn give_memory(
    directory: &mut Locked<'_>,
    request: &Request<'_>,
    frames: &[usize],
    plan: &mut FetchPlan,
) -> Result<()> {
    let device = request.device;
    for &frame in frames {
        step(Point::AcquireMapped, directory.path())?;
        if !directory.copies.replica(device)?.has(Image::Current, frame) {
            map(directory, device, Image::Current, frame)?;
            plan.new.push(frame as u64);
        }
    }
    Ok(())
}

/// Gives the frames twins where they are to be written. Nothing is read into those, so reading goes on meanwhile.
fn give_twins(directory: &mut Locked<'_>, request: &Request<'_>, frames: &[usize], plan: &mut FetchPlan) -> Result<()> {
    let device = request.device;
    for &frame in frames.iter().filter(|_| request.writable) {
        if !directory.copies.replica(device)?.has(Image::Twin, frame) {
            map(directory, device, Image::Twin, frame)?;
            plan.fresh.push(frame as u64);
        }
    }
    Ok(())
}

/// Those of some pages of which the device has something, with a twin that is older than this fetch, and of those the
/// ones with changes of its own, or that may get them at this moment.
fn with_changes(
    directory: &Directory,
    device: Device,
    behind: &[u64],
    plan: &FetchPlan,
) -> Result<(Vec<u64>, PageSet)> {
    let (versions, replica) = (&directory.versions, directory.copies.replica(device)?);
    // Without a twin there are no changes to keep.
    let is_held = |page: &u64| {
        let frame = replica.frame_of(*page);
        versions.is_held_by(device, *page) && replica.has(Image::Twin, frame) && !plan.is_fresh(frame)
    };
    let held: Vec<u64> = behind.iter().copied().filter(is_held).collect();
    let mut own = with_own_changes(directory, device, &held)?;
    // A kernel of another mapping's may be storing into those at this moment.
    own.extend(held.iter().copied().filter(|page| versions.uses(device, *page) > 0));
    Ok((held, own))
}

/// Those of some pages, with twins, that the device has changed since its last release; all of them where merging
/// costs no more than finding out.
fn with_own_changes(directory: &Directory, device: Device, held: &[u64]) -> Result<PageSet> {
    let (Some(first), Some(last)) = (held.first(), held.last()) else { return Ok(PageSet::new()) };
    if is_scattered(runs(held.iter().copied()).len(), held.len() as u64 * directory.versions.page_bytes()) {
        return Ok(held.iter().copied().collect());
    }
    let hull = directory.versions.bytes_of(&(*first..last + 1));
    let memory = directory.copies.memory(device)?;
    let mut changed = memory.with_scratch(|scratch| changed_since_release(directory, device, &hull, scratch))?;
    changed.retain(|page| held.binary_search(page).is_ok());
    Ok(changed)
}

/// Another device of the same kind that has all of some pages as they are at home.
fn peer_with(directory: &Directory, device: Device, pages: &Range<u64>) -> Option<Device> {
    let Directory { versions, copies, .. } = directory;
    let backend = |device: Device| Some(copies.get(device)?.memory.device.id().backend);
    let is_peer = |other: &Device| *other != device && backend(*other) == backend(device);
    let has_all = |other: &Device| pages.clone().all(|page| versions.is_up_to_date(*other, page));
    (0..copies.devices()).filter(is_peer).find(has_all)
}

/// Merges the pages that have changes of the device's own, and makes twins.
fn finish(directory: &mut Locked<'_>, device: Device, plan: &FetchPlan) -> Result<()> {
    let memory = directory.copies.memory(device)?;
    if !plan.own.is_empty() {
        let scratch = scratch_to_read(directory, &memory)?;
        for group in plan.own.chunks((scratch.incoming.len() / directory.versions.page_bytes()) as usize) {
            merge(directory, device, group, &scratch)?;
        }
    }
    let Directory { versions, copies, .. } = &mut **directory;
    memory.with_scratch(|scratch| copies.complete(device, plan, versions.size(), scratch))?;
    copies.fill(device, Image::Twin, plan.fresh.iter().map(|frame| *frame as usize))
}

fn merge(directory: &mut Locked<'_>, device: Device, numbers: &[u64], scratch: &Scratch) -> Result<()> {
    let pages: Vec<_> = numbers.iter().map(|page| directory.versions.bytes_of(&(*page..page + 1))).collect();
    let list = directory.copies.to_merge(&pages);
    read_home(directory, device, &list, scratch.incoming.slice())?;
    step(Point::MergeRead, directory.path())?;
    let merge = Transition { inputs: scratch.incoming.frame, ..Transition::of(Operation::Merge, device) };
    let record = begin(directory, &merge, numbers.iter().copied())?;
    let merged = step(Point::MergeBegun, directory.path())
        .and_then(|()| directory.copies.merge(device, &pages, &list, &scratch.incoming, scratch));
    let outcome = merged.and_then(|merged| step(Point::MergeDone, directory.path()).map(|()| merged));
    directory.versions.finish(record, numbers.iter().copied());
    let merged = outcome?;
    directory.versions.counts.merged += merged.own;
    directory.versions.counts.races += merged.races;
    Ok(())
}
