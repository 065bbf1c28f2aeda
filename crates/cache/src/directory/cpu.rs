//! What CPUs do through the cache: read, write and sync.

use super::Directory;
use super::compare::compare_with_file;
use super::flush::{flush, flush_range};
use super::fold::fold;
use super::look::{follow_cut, look, resize};
use crate::copies::home::write_all;
use crate::error::{Error, ErrorKind, Result};
use crate::fault::{Point, at};
use crate::page::{Device, Home, Page};
use crate::ranges::{intersection, runs};
use bifolio_io::cache_state;
use bifolio_io::residency::Residency;
use bifolio_io::storage::{OsStorage, Storage};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// From here on several threads copy from a device, which is quicker than one from the page cache.
const LONG_BYTES: u64 = 16 << 20;

/// Makes the file durable. The operating system tells of bytes that it could not write once, and takes them for
/// written from then on: so each holder is told, who notes in `told` up to which failure he was.
pub(crate) fn sync(directory: &mut Directory, told: &AtomicU64) -> Result<()> {
    follow_cut(directory)?;
    let size = directory.versions.size();
    flush_range(directory, &(0..size))?;
    let synced = at(Point::SyncFlushed).and_then(|()| directory.copies.home.file.buffered().sync_data());
    if let Err(error) = synced {
        directory.failed = (directory.failed.0 + 1, Some(error));
    }
    let (failures, error) = &directory.failed;
    let was_told = told.swap(*failures, Ordering::Relaxed);
    match error {
        Some(error) if was_told < *failures => Err(Error::undurable(directory.path(), error)),
        _ => Ok(()),
    }
}

/// A CPU's read. What devices have released comes from them, and stays there.
pub(crate) fn read(directory: &mut Directory, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    look(directory)?;
    let end = offset.saturating_add(buffer.len() as u64).min(directory.versions.size());
    if offset >= end {
        return Ok(0);
    }
    gather(directory, &(offset..end))?;
    let is_long = end - offset >= LONG_BYTES;
    let mut at = offset;
    while at < end {
        let (from, run) = run_from_one_place(directory, &(at..end));
        let part = &mut buffer[(run.start - offset) as usize..(run.end - offset) as usize];
        match from {
            From::File(None) => read_file(directory, &run, part)?,
            // Which several threads do quicker than one empties the page cache.
            From::File(Some(device)) if is_long => read_device(directory, device, &run, part)?,
            From::File(Some(device)) => read_nearest(directory, device, &run, part)?,
            From::Home(device) => read_device(directory, device, &run, part)?,
        }
        at = run.end;
    }
    Ok((end - offset) as usize)
}

/// Where content comes from for a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    /// The file has it, and a device maybe, too.
    File(Option<Device>),
    /// A device has what the file lacks.
    Home(Device),
}

/// Has home hold all that was released of each page of a range. Where what it has is in use, and is left as it is, that
/// is the file; and where the file is home, as who folds it would lay on it what it has not released: over a CPU's bytes,
/// which it may never have acquired.
fn gather(directory: &mut Directory, range: &Range<u64>) -> Result<()> {
    let pages = directory.versions.pages_of(range);
    // By home, which alone knows what the file had; nothing where it is certain.
    let mut homes: BTreeMap<Device, Vec<u64>> = BTreeMap::new();
    for page in directory.versions.pending(pages.clone()) {
        if let Home::Device(home) = directory.versions.home(page) {
            homes.entry(home).or_default().push(page);
        }
    }
    for (home, pages) in homes {
        runs(pages).iter().try_for_each(|run| compare_with_file(directory, home, run))?;
    }
    let mut folds: BTreeMap<Device, Vec<u64>> = BTreeMap::new();
    let mut flushed = BTreeSet::new();
    for page in directory.versions.pending(pages) {
        let Directory { versions, copies, .. } = &*directory;
        let is_pinned = |device: Device| copies.get(device).is_none_or(|own| own.is_pinned(own.frame_of(page)));
        match versions.home(page) {
            Home::Device(_) if versions.donors(page).is_empty() => {}
            Home::Device(device) if !is_pinned(device) => folds.entry(device).or_default().push(page),
            _ => _ = flushed.insert(page),
        }
    }
    flush(directory, &flushed)?;
    folds.into_iter().try_for_each(|(device, pages)| fold(directory, device, &pages))
}

/// The first bytes of a range that come from one place, and which.
fn run_from_one_place(directory: &Directory, range: &Range<u64>) -> (From, Range<u64>) {
    let (versions, page_bytes) = (&directory.versions, directory.versions.page_bytes());
    let from = |page: u64| match versions.page(page).map(Page::home) {
        Some(Home::Device(device)) => From::Home(device),
        _ => From::File(versions.holder(page)),
    };
    let mut pages = range.start / page_bytes..range.end.div_ceil(page_bytes);
    let first = from(pages.start);
    let other = pages.find(|page| from(*page) != first);
    (first, range.start..other.map_or(range.end, |page| page * page_bytes))
}

/// Reads what is in the page cache from there, and what it lacks from a device that has it. The page cache is asked
/// before what it has: a read that is to return what is cached and no more (`RWF_NOWAIT`) makes the kernel read the rest
/// ahead, from the disk, as soon as it meets what is not. Where the kernel does not say what it has, one such read tells.
fn read_nearest(directory: &mut Directory, device: Device, run: &Range<u64>, buffer: &mut [u8]) -> Result<()> {
    let file = Arc::clone(&directory.copies.home.file);
    let counted = cache_state::look_counted(&file, run.clone());
    let missing = counted.map_or(vec![], |residency| pages_missing(directory, run, &residency));
    let mut at = run.start;
    // What is cached before each piece and does not come after all is the device's to give as well.
    for piece in missing.into_iter().chain([run.end..run.end]) {
        let part = &mut buffer[(at - run.start) as usize..(piece.end - run.start) as usize];
        let cached = &mut part[..(piece.start - at) as usize];
        let read =
            if cached.is_empty() { 0 } else { OsStorage.read_cached_at(file.buffered(), cached, at).unwrap_or(0) };
        read_device(directory, device, &(at + read as u64..piece.end), &mut part[read..])?;
        at = piece.end;
    }
    Ok(())
}

/// The bytes of a run whose pages the page cache lacks, or has in part: one copy of a page costs less than several of
/// its parts.
fn pages_missing(directory: &Directory, run: &Range<u64>, residency: &Residency) -> Vec<Range<u64>> {
    let versions = &directory.versions;
    let missing = residency.runs().filter(|(_, is_cached)| !is_cached);
    let mut pages: Vec<u64> = missing.flat_map(|(piece, _)| versions.pages_of(&piece)).collect();
    pages.dedup();
    runs(pages).iter().map(|pages| intersection(&versions.bytes_of(pages), run)).collect()
}

fn read_device(directory: &mut Directory, device: Device, run: &Range<u64>, buffer: &mut [u8]) -> Result<()> {
    if !run.is_empty() {
        directory.copies.download(device, run.start, buffer)?;
        let served = directory.versions.pages_of(run);
        directory.versions.counts.served += served.end - served.start;
    }
    Ok(())
}

fn read_file(directory: &Directory, range: &Range<u64>, buffer: &mut [u8]) -> Result<()> {
    let read = directory.copies.home.file.buffered().read_exact_at(buffer, range.start);
    read.map_err(|error| {
        let detail = format!("read of {} bytes at {} failed: {error}", buffer.len(), range.start);
        Error::new(ErrorKind::Read, directory.path(), detail).with_cause(error)
    })
}

/// A CPU's write, page by page known.
pub(crate) fn write(directory: &mut Directory, offset: u64, bytes: &[u8]) -> Result<()> {
    let end = offset.saturating_add(bytes.len() as u64);
    look(directory)?;
    let size = directory.versions.size();
    // What devices have released came before this, and must not come home after it.
    flush_range(directory, &(offset..end.min(size)))?;
    let home = &mut directory.copies.home;
    home.write(|file| write_all(file, offset, bytes)).map_err(|error| {
        let detail = format!("write of {} bytes at {offset} failed: {error}", bytes.len());
        Error::new(ErrorKind::Write, home.path(), detail).with_cause(error)
    })?;
    if end > size {
        resize(directory, end)?;
    }
    let pages = directory.versions.pages_of(&(offset..end));
    directory.versions.note_changed(pages);
    Ok(())
}
