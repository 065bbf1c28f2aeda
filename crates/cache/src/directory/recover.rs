//! Going on where another process has ended: what it has left of a file is found, what it was doing is done or was never
//! begun, and who used something does, or does not any more. What is done is decided elsewhere ([`crate::state::plan`]).
//!
//! Each step ends with its record, and can be done again: this process may end here as well.

use super::aside;
use super::flush::flush_of;
use super::mappings::{detach, unpin};
use super::release::{discard, release_noted};
use super::wait::with_pages;
use super::{Directory, Locked, identity};
use crate::copies::home::Home;
use crate::copies::plan::Fold;
use crate::copies::replica::{Image, Replica};
use crate::error::{Error, ErrorKind, Result};
use crate::fault::{Point, step};
use crate::frames::Incoming;
use crate::memory::DeviceMemory;
use crate::monitor::Hold;
use crate::options::CacheOptions;
use crate::page::{BeforeRelease, Device, Page};
use crate::page_set::PageSet;
use crate::state::keeper::{FileId, Keeper};
use crate::state::layout::Word;
use crate::state::lease::{Grant, Use};
use crate::state::plan::{Found, Step, steps};
use crate::state::record::{Operation, Transition};
use crate::state::region::Region;
use crate::state::replicas::Content;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// A file's directory as a region says that it is, and what is to be done with it before anything else.
///
/// # Errors
/// `BadUse` for what is no region, or of another cache; `OutOfMemory`, `Device`.
pub(crate) fn find(
    home: Home,
    descriptor: OwnedFd,
    options: CacheOptions,
    (keeper, id): (&Arc<dyn Keeper>, FileId),
    devices: &[DeviceMemory],
) -> Result<(Directory, Found)> {
    let path = home.path().to_owned();
    let region = Region::open(descriptor).map_err(|why| refused(&path, &why))?;
    let found = (region.devices(), region.get(Word::PageBytes));
    if found != (devices.len(), options.page_bytes) {
        let (count, page_bytes) = found;
        let why = format!(
            "it is of {count} devices and pages of {page_bytes} bytes, and this cache has {} and pages of {}",
            devices.len(),
            options.page_bytes
        );
        return Err(refused(&path, &why));
    }
    if region.file() != identity(&home, id) {
        // That one was deleted, and its number is another one's by now.
        keeper.drop_region(id);
        return Ok((Directory::kept(home, devices.len(), options, keeper, id)?, Found::default()));
    }
    let mut directory = Directory::over(home, region, options)?;
    directory.keeper = Some((Arc::clone(keeper), id));
    let found = find_content(&mut directory, devices);
    if found.is_err() {
        directory.copies.abandon();
    }
    found.map(|found| (directory, found))
}

fn find_content(directory: &mut Directory, devices: &[DeviceMemory]) -> Result<Found> {
    let path = directory.path().to_owned();
    let mut windows: Vec<Range<u64>> = vec![];
    let mut lost: Vec<(Device, Range<u64>)> = vec![];
    for (device, there) in devices.iter().enumerate() {
        let content = Content::of(directory.versions.region(), device);
        let mut content = content.map_err(|error| refused(&path, &error.to_string()))?;
        content.recover().map_err(|why| refused(&path, &why))?;
        if content.windows().is_empty() {
            continue;
        }
        windows.extend(content.windows());
        let memory = there.memory(&directory.options)?;
        let (replica, missing) = Replica::find(&memory, directory.options.page_bytes, content)
            .map_err(|error| Error::device(&path, error))?;
        lost.extend(missing.into_iter().map(|frame| (device, replica.pages_of(frame))));
        directory.copies.insert(device, replica);
    }
    let found = directory.versions.recover(&windows).map_err(|why| refused(&path, &why))?;
    for (device, pages) in lost {
        lose(directory, device, &pages);
    }
    check_pages(directory).map_err(|why| refused(&path, &why))?;
    for (_, transition, pages) in &found.transitions {
        check_transition(directory, transition, pages).map_err(|why| refused(&path, &why))?;
    }
    let mut found = found;
    found.leases.retain(|lease| was_begun(directory, lease));
    for lease in &found.leases {
        hold(directory, lease)?;
    }
    aside::find(directory, &found.leases);
    Ok(found)
}

/// Refuses pages of which a device is said to have what it has no memory for.
fn check_pages(directory: &Directory) -> Result<(), String> {
    for page in directory.versions.known() {
        for device in 0..directory.copies.devices() {
            let row = directory.versions.page(page).copied().unwrap_or_default();
            let is_lacking = row.is_held_by(device) && !has(directory, device, Image::Current, page)
                || row.is_pending(device) && !has(directory, device, Image::Base, page);
            if is_lacking {
                return Err(format!("device {device} has no memory for what it has of page {page}"));
            }
        }
    }
    Ok(())
}

/// Refuses what cannot have been begun.
fn check_transition(directory: &Directory, transition: &Transition, pages: &[u64]) -> Result<(), String> {
    let images: &[Image] = match transition.operation {
        Operation::Fetch | Operation::Flush | Operation::Cut => &[],
        Operation::Release | Operation::Merge => &[Image::Current, Image::Twin],
        Operation::Fold => &Image::ALL,
    };
    let all = match (transition.operation, pages) {
        (Operation::Fold, [first, .., last]) => *first..last + 1,
        _ => 0..0,
    };
    let device = transition.device;
    // Who lends a page acquires it, or has it flushed, before a release of it begins.
    let can_be = |page: &Page| {
        let is_released = transition.operation == Operation::Release && page.is_held_by(device);
        !is_released || page.before_release(device) == BeforeRelease::Nothing
    };
    let is_there = |page: u64| {
        directory.versions.page(page).is_some_and(can_be)
            && images.iter().all(|image| has(directory, device, *image, page))
    };
    match pages.iter().copied().chain(all).find(|page| !is_there(*page)) {
        Some(page) => Err(format!("page {page} cannot be what device {device} was at work on")),
        None => Ok(()),
    }
}

fn has(directory: &Directory, device: Device, image: Image, page: u64) -> bool {
    let replica = directory.copies.get(device);
    replica.is_some_and(|replica| replica.has(image, replica.frame_of(page)))
}

/// A frame of a device was kept by nobody: what was released of it, and is nowhere else, is lost, and whoever syncs is
/// told.
fn lose(directory: &mut Directory, device: Device, pages: &Range<u64>) {
    let pages = pages.start.min(directory.versions.len())..pages.end.min(directory.versions.len());
    let pending = directory.versions.pending_on(device, pages.clone());
    pages.for_each(|page| directory.versions.note_dropped(device, page));
    if !pending.is_empty() {
        let error = io::Error::other("memory of a device with what was released is gone with the process that had it");
        directory.failures.note_undurable(error);
    }
}

/// Whether a mapping got its addresses; else it was only noted, and whoever has asked for it asks again.
fn was_begun(directory: &mut Directory, lease: &Grant) -> bool {
    let has_addresses = has_addresses(directory, lease);
    if lease.what == Use::Mapped && !has_addresses {
        directory.versions.end_lease(lease.client, lease.number);
        return false;
    }
    true
}

fn has_addresses(directory: &Directory, lease: &Grant) -> bool {
    directory.copies.get(lease.device).is_some_and(|replica| replica.has_addresses(&lease.bytes))
}

/// Somebody uses something.
fn hold(directory: &mut Directory, lease: &Grant) -> Result<()> {
    let (device, bytes) = (lease.device, &lease.bytes);
    if !has_addresses(directory, lease) {
        return Err(refused(directory.path(), "somebody uses what has no addresses"));
    }
    match lease.what {
        Use::Mapped => _ = directory.copies.replica_mut(device)?.hold(bytes.start),
        Use::Read => _ = directory.copies.pin(device, bytes)?,
        Use::Write => {
            directory.copies.pin(device, bytes)?;
            directory.versions.begin_use(device, bytes);
        }
        Use::Pinned => super::mappings::pin(directory, device, bytes)?,
    }
    Ok(())
}

/// Does what is to be done.
///
/// # Errors
/// As of a release or a flush. Nothing is lost then: what was found can be found again.
pub(crate) fn go_on(
    directory: &mut Locked<'_>,
    found: &Found,
    is_alive: impl Fn(crate::state::lease::Client) -> bool,
) -> Result<()> {
    let unit =
        (0..directory.copies.devices()).filter_map(|device| directory.copies.get(device)).map(Replica::frame_bytes);
    let unit = unit.max();
    if let Some(unit) = unit {
        directory.widen_unit(unit);
    }
    let steps = steps(found, |page| directory.versions.page(page).copied(), is_alive);
    for (record, what) in steps {
        take(directory, &what)?;
        step(Point::Recovered, directory.path())?;
        let pages = match &record {
            Some(number) => pages_of(found, *number),
            None => &[],
        };
        directory.versions.finish(record, pages.iter().copied());
    }
    for (_, transition, _) in found.transitions.iter().filter(|(_, transition, _)| transition.inputs != 0) {
        directory.copies.memory(transition.device)?.forget_frame(transition.inputs);
    }
    // Frames that were new had what was in them.
    let size = directory.versions.size();
    let end = directory.copies.reserved();
    directory.copies.blank(&(size.min(end)..end))
}

fn pages_of(found: &Found, number: u16) -> &[u64] {
    found.transitions.iter().find(|(other, ..)| *other == number).map_or(&[], |(_, _, pages)| pages)
}

fn take(directory: &mut Locked<'_>, what: &Step) -> Result<()> {
    let all = 0..u64::MAX;
    match what {
        Step::Drop { device, pages } => {
            for page in pages {
                directory.versions.note_dropped(*device, *page);
            }
            Ok(())
        }
        Step::Merge { device, pages, inputs } => merge_again(directory, *device, pages, *inputs),
        Step::Fold { device, pages, inputs, donors, has_origin } => {
            fold_again(directory, *device, pages, *inputs, donors, *has_origin)
        }
        Step::Release { device, pages } => {
            let (memory, pages) = (directory.copies.memory(*device)?, with_bases(directory, *device, pages)?);
            memory.with_scratch(|scratch| release_noted(directory, *device, &pages, scratch))
        }
        Step::Flush { device, pages, from } => {
            let pages = pages.iter().copied().collect();
            with_pages(directory, &all, Hold::Write, |directory| flush_of(directory, *device, &pages, *from))
        }
        Step::Blank { bytes } => directory.copies.blank(bytes),
        Step::End(lease) => {
            end(directory, lease);
            Ok(())
        }
    }
}

/// Somebody is not there any more who has used something.
pub(crate) fn end(directory: &mut Locked<'_>, lease: &Grant) {
    let (device, bytes) = (lease.device, &lease.bytes);
    match lease.what {
        Use::Mapped => detach(directory, device, bytes.start),
        Use::Read | Use::Write => discard(directory, device, bytes, lease.what == Use::Write),
        Use::Pinned => unpin(directory, device, bytes),
    }
    directory.end_lease(lease.client, lease.number);
}

/// Those of some pages that have all images: those that were lost are nobody's to release.
fn with_bases(directory: &Directory, device: Device, pages: &[u64]) -> Result<PageSet> {
    let replica = directory.copies.replica(device)?;
    let has_all = |page: &u64| Image::ALL.into_iter().all(|image| replica.has(image, replica.frame_of(*page)));
    Ok(pages.iter().copied().filter(has_all).collect())
}

fn merge_again(directory: &mut Directory, device: Device, numbers: &[u64], inputs: u32) -> Result<()> {
    let memory = directory.copies.memory(device)?;
    let incoming = find_inputs(directory, &memory, inputs)?;
    let pages: Vec<_> = numbers.iter().map(|page| directory.versions.bytes_of(&(*page..page + 1))).collect();
    if numbers.len() as u64 * directory.versions.page_bytes() > incoming.len() {
        return Err(refused(directory.path(), "what was read for it is shorter than that"));
    }
    let list = directory.copies.to_merge(&pages);
    let copies = &directory.copies;
    memory.with_scratch(|scratch| copies.merge(device, &pages, &list, &incoming, scratch)).map(|_| ())
}

fn fold_again(
    directory: &mut Directory,
    device: Device,
    pages: &Range<u64>,
    inputs: u32,
    donors: &[Device],
    has_origin: bool,
) -> Result<()> {
    let memory = directory.copies.memory(device)?;
    let inputs = find_inputs(directory, &memory, inputs)?;
    let Directory { versions, copies, .. } = directory;
    let plan = Fold {
        pages: pages.clone(),
        bytes: versions.bytes_of(pages),
        home: versions.home(pages.start),
        knows_file: versions.knows_file(device, pages.start),
        donors: donors.to_vec(),
        is_direct: false,
    };
    let is_held = |page| versions.is_held_by(device, page);
    let (folded, outcome) =
        memory.with_scratch(|scratch| copies.fold_again(device, &plan, has_origin, &inputs, is_held, scratch))?;
    for (page, mut folded) in pages.clone().zip(folded) {
        // Those that were folded before these have lost something, perhaps.
        folded.lost |= versions.donors(page).len() > donors.len();
        versions.note_folded(device, page, folded);
    }
    outcome
}

fn find_inputs(directory: &Directory, memory: &crate::memory::Memory, number: u32) -> Result<Incoming> {
    let found = memory.find_incoming(number).map_err(|error| Error::device(directory.path(), error))?;
    found.ok_or_else(|| refused(directory.path(), "nobody has kept what was read for it"))
}

fn refused(path: &Path, why: &str) -> Error {
    let detail = format!(
        "what another process has left of it cannot be gone on with: {why}; without it, what was released and not synced is lost"
    );
    Error::new(ErrorKind::BadUse, path, detail)
}
