//! What CPUs do through the cache: read, write and sync.

use super::compare::{Asker, compare_with_file};
use super::flush::{flush, flush_range, write_back};
use super::fold::{donors_by_home, fold};
use super::look::{follow_cut, look, resize};
use super::loss::surviving;
use super::wait::{with_pages, with_turn_to_write, write_home};
use super::{Directory, Locked};
use crate::copies::home;
use crate::error::{Error, ErrorKind, Result};
use crate::fault::{Point, at};
use crate::monitor::Hold;
use crate::page::{Device, Home, Page};
use crate::ranges::{intersection, runs};
use bifolio_io::cache_state;
use bifolio_io::residency::Residency;
use bifolio_io::storage::{OsStorage, Storage};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};

/// From here on several threads copy from a device, which is quicker than one from the page cache.
const LONG_BYTES: u64 = 16 << 20;

/// Makes the file durable. Each holder is told what is gone for good, who notes in `told` up to which failure he was.
pub(crate) fn sync(directory: &mut Locked<'_>, told: &AtomicU64) -> Result<()> {
    // Before anybody is told: what is run again tells nobody.
    surviving(directory, make_durable)?;
    directory.tell(told)
}

/// Syncs of a file take turns at that, and so nobody is told before he knows what another was.
fn make_durable(directory: &mut Locked<'_>) -> Result<()> {
    // Where somebody is at work there, no flush writes behind the end either.
    follow_cut(directory, &(0..0))?;
    let size = directory.versions.size();
    write_back(directory, &(0..size))?;
    let home = &directory.copies.home;
    let (turns, file) = (Arc::clone(&home.turns), Arc::clone(&home.file));
    let turn = directory.wait(|| turns.syncing.lock().unwrap_or_else(PoisonError::into_inner));
    let synced = directory.wait(|| at(Point::SyncFlushed).and_then(|()| file.buffered().sync_data()));
    if let Err(error) = synced {
        directory.failures.note_undurable(error);
    }
    drop(turn);
    Ok(())
}

/// A CPU's read. What devices have released comes from them, and stays there. Nothing is locked while it reads: of what
/// others do to the pages meanwhile it sees all, nothing, or parts, as with any read of a file.
pub(crate) fn read(directory: &mut Locked<'_>, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    let end = offset.saturating_add(buffer.len() as u64);
    look(directory, &(offset..end))?;
    let since = directory.versions.know_as_of_now();
    let end = end.min(directory.versions.size());
    if offset >= end {
        return Ok(0);
    }
    let range = offset..end;
    if is_to_be_gathered(directory, &range) {
        with_pages(directory, &range, Hold::Change, |directory| gather(directory, &range))?;
    }
    let is_long = end - offset >= LONG_BYTES;
    let mut at = offset;
    while at < end {
        let (from, run) = run_from_one_place(directory, &(at..end));
        if !directory.versions.is_home_known(&run, since) {
            // Since it was gathered, a device has released what it had not compared with what a CPU has written.
            with_pages(directory, &run, Hold::Change, |directory| gather(directory, &run))?;
            continue;
        }
        let part = &mut buffer[(at - offset) as usize..(run.end - offset) as usize];
        match from {
            From::File(None) => {
                let read = read_file(directory, &run, part)?;
                if read < run.end - run.start {
                    // Somebody has cut it off.
                    return Ok((run.start + read - offset) as usize);
                }
            }
            // Which several threads do quicker than one empties the page cache.
            From::File(Some(device)) if is_long => read_device(directory, device, &run, part)?,
            From::File(Some(device)) => read_nearest(directory, device, &run, part)?,
            From::Home(device) => read_home_device(directory, device, &run, part)?,
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

/// Whether home perhaps lacks something that was released of a range, or the file has changed under it.
fn is_to_be_gathered(directory: &Directory, range: &Range<u64>) -> bool {
    let versions = &directory.versions;
    let is_there = |page: u64| match versions.home(page) {
        Home::File => versions.is_settled(page),
        Home::Device(home) => versions.donors(page).is_empty() && versions.is_up_to_date(home, page),
    };
    !versions.pages_of(range).all(is_there)
}

/// Has home hold all that was released of each page of a range. Where what it has is in use, and is left as it is, that
/// is the file; and where the file is home, as who folds it would lay on it what it has not released: over a CPU's bytes,
/// which it may never have acquired.
fn gather(directory: &mut Locked<'_>, range: &Range<u64>) -> Result<()> {
    let pages = directory.versions.pages_of(range);
    // By home, which alone knows what the file had; nothing where it is certain.
    let mut homes: BTreeMap<Device, Vec<u64>> = BTreeMap::new();
    for page in directory.versions.pending(pages.clone()) {
        if let Home::Device(home) = directory.versions.home(page) {
            homes.entry(home).or_default().push(page);
        }
    }
    for (home, pages) in homes {
        for run in runs(pages) {
            compare_with_file(directory, home, Asker::Looks, &run)?;
        }
    }
    let (folds, flushed) = donors_by_home(directory, pages);
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

/// Reads what home has and the file lacks. Of short reads that follow each other most find what they ask for in host memory.
fn read_home_device(directory: &mut Directory, device: Device, run: &Range<u64>, buffer: &mut [u8]) -> Result<()> {
    let edition = directory.versions.edition();
    let wanted = match directory.read_ahead.look(run, edition) {
        Ok(kept) => {
            buffer.copy_from_slice(kept);
            let served = directory.versions.pages_of(run);
            directory.versions.counts.served += served.end - served.start;
            return Ok(());
        }
        Err(wanted) => wanted,
    };
    let end = there_until(directory, device, &(run.end..run.start + wanted));
    if end <= run.end {
        return read_device(directory, device, run, buffer);
    }
    let Directory { versions, copies, read_ahead, .. } = directory;
    let ahead = read_ahead.fill(run.start, end - run.start);
    copies.download(device, run.start, ahead)?;
    buffer.copy_from_slice(&ahead[..buffer.len()]);
    read_ahead.filled(edition);
    let served = versions.pages_of(run);
    versions.counts.served += served.end - served.start;
    Ok(())
}

/// Up to where a device is home of some bytes, and has all that was released of them.
fn there_until(directory: &Directory, device: Device, bytes: &Range<u64>) -> u64 {
    let versions = &directory.versions;
    let is_there = |page: u64| {
        versions.home(page) == Home::Device(device)
            && versions.donors(page).is_empty()
            && versions.is_up_to_date(device, page)
    };
    let missing = versions.pages_of(bytes).find(|page| !is_there(*page));
    let end = missing.map_or(bytes.end, |page| page * versions.page_bytes());
    end.min(versions.pages_of(bytes).end * versions.page_bytes()).min(versions.size())
}

fn read_device(directory: &mut Directory, device: Device, run: &Range<u64>, buffer: &mut [u8]) -> Result<()> {
    if !run.is_empty() {
        directory.copies.download(device, run.start, buffer)?;
        let served = directory.versions.pages_of(run);
        directory.versions.counts.served += served.end - served.start;
    }
    Ok(())
}

/// How many bytes there are.
fn read_file(directory: &mut Locked<'_>, range: &Range<u64>, buffer: &mut [u8]) -> Result<u64> {
    let file = Arc::clone(&directory.copies.home.file);
    let len = buffer.len();
    let read = directory.wait(|| at(Point::HomeRead).and_then(|()| home::read(&file, buffer, range.start)));
    let read = read.map_err(|error| {
        let detail = format!("read of {len} bytes at {} failed: {error}", range.start);
        Error::new(ErrorKind::Read, directory.path(), detail).with_cause(error)
    })?;
    Ok(read as u64)
}

/// A CPU's write, page by page known.
pub(crate) fn write(directory: &mut Locked<'_>, offset: u64, bytes: &[u8]) -> Result<()> {
    let range = offset..offset.saturating_add(bytes.len() as u64);
    look(directory, &range)?;
    loop {
        // Who makes the file longer has all to himself that lies behind its end.
        let size = directory.versions.size();
        let locked = if range.end > size { offset.min(size)..u64::MAX } else { range.clone() };
        let written = with_pages(directory, &locked, Hold::Change, |directory| {
            let size = directory.versions.size();
            // It may have become shorter since.
            let is_held = range.end <= size || locked.start <= size && locked.end > range.end;
            is_held.then(|| write_locked(directory, &range, bytes))
        });
        if let Some(written) = written {
            return written;
        }
    }
}

fn write_locked(directory: &mut Locked<'_>, range: &Range<u64>, bytes: &[u8]) -> Result<()> {
    let size = directory.versions.size();
    // What devices have released came before this, and must not come home after it.
    flush_range(directory, &(range.start..range.end.min(size)))?;
    let written = with_turn_to_write(directory, |directory, _| {
        write_home(directory, |file| home::write_all(file, range.start, bytes))
    });
    written.map_err(|error| {
        let detail = format!("write of {} bytes at {} failed: {error}", bytes.len(), range.start);
        Error::new(ErrorKind::Write, directory.path(), detail).with_cause(error)
    })?;
    if range.end > size {
        resize(directory, range.end)?;
    }
    let pages = directory.versions.pages_of(range);
    directory.versions.note_changed(pages);
    Ok(())
}
