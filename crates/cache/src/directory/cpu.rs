//! What CPUs do through the cache: read, write and sync.

use super::Directory;
use super::flush::flush_range;
use super::look::{follow_cut, look, resize};
use crate::copies::home::write_all;
use crate::error::{Error, ErrorKind, Result};
use crate::fault::{Point, at};
use bifolio_io::storage::{OsStorage, Storage};
use std::ops::Range;
use std::os::unix::fs::FileExt;
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

/// A CPU's read: what was released is home by then.
pub(crate) fn read(directory: &mut Directory, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    look(directory)?;
    let end = offset.saturating_add(buffer.len() as u64).min(directory.versions.size());
    if offset >= end {
        return Ok(0);
    }
    // Also what a device could show without: whoever is told of what is read here may look at the file himself.
    flush_range(directory, &(offset..end))?;
    let is_long = end - offset >= LONG_BYTES;
    let page_bytes = directory.versions.page_bytes();
    let mut at = offset;
    while at < end {
        let rest = &mut buffer[(at - offset) as usize..(end - offset) as usize];
        // What is in the page cache comes from there, what it lacks from a device that has it. Long reads are
        // quicker from the device, by several threads.
        let is_quicker = is_long && directory.versions.holder(at / page_bytes).is_some();
        let mut cached = || OsStorage.read_cached_at(directory.copies.home.file.buffered(), rest, at).unwrap_or(0);
        let read = if is_quicker { 0 } else { cached() };
        at = if read > 0 { at + read as u64 } else { read_uncached(directory, at, rest)? };
    }
    Ok((end - offset) as usize)
}

/// Bytes that are not in the page cache, as many as come from one place; where they end.
fn read_uncached(directory: &mut Directory, at: u64, buffer: &mut [u8]) -> Result<u64> {
    let Directory { versions, copies, .. } = directory;
    let (range, page_bytes) = (at..at + buffer.len() as u64, versions.page_bytes());
    let holder = versions.holder(at / page_bytes);
    let mut pages = at / page_bytes..range.end.div_ceil(page_bytes);
    let other = pages.find(|page| versions.holder(*page) != holder);
    let run = at..other.map_or(range.end, |page| page * page_bytes);
    let buffer = &mut buffer[..(run.end - at) as usize];
    match holder {
        Some(device) => {
            copies.download(device, at, buffer)?;
            versions.counts.served += versions.pages_of(&run).count() as u64;
        }
        None => read_file(directory, &run, buffer)?,
    }
    Ok(run.end)
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
    directory.versions.note_changed_at_home(pages);
    Ok(())
}
