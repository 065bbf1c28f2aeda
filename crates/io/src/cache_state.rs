//! Bringing ranges of a file into a known page-cache state, for calibration and benchmarks.

use crate::file::{OpenFile, PlainFile};
use crate::residency::{self, Residency, Source};
use crate::storage::OsStorage;
use crate::{Error, ErrorKind, Result};
use std::io::Write;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Bytes written or read at a time.
const STEP: u64 = 8 << 20;

/// Bytes asked about at a time where the answer must be exact: a request is planned with an answer
/// that rounds very scattered parts.
const LOOK_BYTES: u64 = 32 << 20;

/// The largest folio is one entry of a page middle directory on x86; those that straddle the ends
/// of a range stay when it is dropped.
const FOLIO_BYTES_MAX: u64 = 4 << 20;

/// Pages that the kernel is still reading ahead for an earlier request cannot be dropped; it is done
/// soon. So often and after so long it is tried again.
const DROPS_MAX: u32 = 40;
const DROP_PAUSE: Duration = Duration::from_millis(5);

/// Repairs of a state before it is set up anew, and how often that is tried: pages that are being read, or wait in a
/// processor's list, stay at the first attempt.
const REPAIRS_MAX: u32 = 3;
const REBUILDS_MAX: u32 = 5;

/// What of `range` is in the page cache, to the page where the kernel can tell.
///
/// # Errors
/// Those of asking the kernel.
pub fn look(file: &OpenFile, range: Range<u64>) -> Result<Residency> {
    let Some(layout) = file.layout() else { return look_plain(file.plain(), range) };
    let (mut source, mut runs) = (Source::Registered, vec![]);
    for (member, part) in file.parts(&range) {
        let seen = look_plain(&file.members()[member], part)?;
        source = source.max(seen.source);
        for run in seen.cached() {
            runs.extend(layout.chunks_of(member, run).map(|(offset, length)| offset..offset + length));
        }
    }
    runs.sort_by_key(|run| run.start);
    Ok(Residency::new(source, range, runs))
}

/// The same of a range of up to 32 MiB without any read, after which the kernel might read ahead: none where it does not
/// count what is cached (`cachestat`), and of a striped file.
pub fn look_counted(file: &OpenFile, range: Range<u64>) -> Option<Residency> {
    if file.layout().is_some() { None } else { residency::count(file.plain(), range) }
}

fn look_plain(file: &PlainFile, range: Range<u64>) -> Result<Residency> {
    let mut source = if range.is_empty() { Source::Cachestat } else { Source::Registered };
    let (mut at, mut runs) = (range.start, Vec::new());
    while at < range.end {
        let end = (at - at % LOOK_BYTES).saturating_add(LOOK_BYTES).min(range.end);
        let part = residency::query(file, &OsStorage, at..end)?;
        // The least certain of the sources vouches for all of it.
        source = source.max(part.source);
        runs.extend_from_slice(part.cached());
        at = end;
    }
    Ok(Residency::new(source, range, runs))
}

/// Brings `range` into the state in which exactly the runs `wanted` are cached; they lie inside
/// the range, in file order, and do not overlap. Only what differs is dropped or read, so a range
/// that is nearly right is quickly right. Where the kernel cannot tell what is cached, or folios
/// stay because they reach beyond a run, everything is dropped and read again. Look at what was
/// reached: the ends of runs that are not aligned to pages are rounded by the kernel.
///
/// # Errors
/// `Calibration` if pages stay in the cache, and those of asking the kernel and of reading.
pub fn arrange(file: &OpenFile, range: Range<u64>, wanted: &[Range<u64>]) -> Result<()> {
    for (member, part) in file.parts(&range) {
        let of_member = |run: &Range<u64>| file.layout().map_or(run.clone(), |layout| layout.part_of(run, member));
        let wanted: Vec<_> = wanted.iter().map(of_member).filter(|run| !run.is_empty()).collect();
        arrange_plain(&file.members()[member], part, &wanted)?;
    }
    Ok(())
}

fn arrange_plain(file: &PlainFile, range: Range<u64>, wanted: &[Range<u64>]) -> Result<()> {
    let tolerated = ((range.end - range.start) / 200).max(2 * 4096);
    for attempt in 0..REPAIRS_MAX + REBUILDS_MAX {
        let seen = look_plain(file, range.clone())?;
        match seen.source {
            Source::InMemory => return Ok(()),
            Source::Nowait | Source::Assumed => return arrange_anew(file, &range, wanted),
            _ if attempt > 0 && bytes_that_differ(seen.cached(), wanted) <= tolerated => return Ok(()),
            _ => {}
        }
        if attempt > 0 {
            std::thread::sleep(DROP_PAUSE);
        }
        if attempt < REPAIRS_MAX {
            repair(file, &subtract(seen.cached(), wanted), &subtract(wanted, seen.cached()))?;
        } else {
            arrange_anew(file, &range, wanted)?;
        }
    }
    Ok(())
}

fn repair(file: &PlainFile, surplus: &[Range<u64>], missing: &[Range<u64>]) -> Result<()> {
    if !surplus.is_empty() {
        prepare_to_drop(file)?;
    }
    for run in surplus {
        drop_pages(file, run);
    }
    missing.iter().try_for_each(|run| load_plain(file, run.clone()))
}

fn bytes_that_differ(one: &[Range<u64>], two: &[Range<u64>]) -> u64 {
    let only_in_one_of_them = [subtract(one, two), subtract(two, one)];
    only_in_one_of_them.iter().flatten().map(|run| run.end - run.start).sum()
}

fn arrange_anew(file: &PlainFile, range: &Range<u64>, wanted: &[Range<u64>]) -> Result<()> {
    if wanted != [range.clone()] {
        // With what straddles its ends.
        let start = range.start.saturating_sub(FOLIO_BYTES_MAX);
        evict_plain(file, start..range.end.saturating_add(FOLIO_BYTES_MAX).min(file.size()?.max(range.end)))?;
    }
    wanted.iter().try_for_each(|run| load_plain(file, run.clone()))
}

/// The parts of `runs` that none of `others` covers; both are in file order and disjoint.
fn subtract(runs: &[Range<u64>], others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for run in runs {
        let mut at = run.start;
        let first = others.partition_point(|other| other.end <= at);
        for other in others[first..].iter().take_while(|other| other.start < run.end) {
            if at < other.start {
                left.push(at..other.start);
            }
            at = at.max(other.end);
        }
        if at < run.end {
            left.push(at..run.end);
        }
    }
    left
}

/// Writes dirty pages back and drops a range from the page cache. An error if pages stay: another
/// process has them mapped or registered, or the file system keeps them.
pub fn evict(file: &OpenFile, range: Range<u64>) -> Result<()> {
    file.parts(&range).into_iter().try_for_each(|(member, part)| evict_plain(&file.members()[member], part))
}

fn evict_plain(file: &PlainFile, range: Range<u64>) -> Result<()> {
    prepare_to_drop(file)?;
    // Large folios that straddle the ends may stay.
    let tolerated = FOLIO_BYTES_MAX.min((range.end - range.start) / 4);
    let mut left = u64::MAX;
    for attempt in 0..DROPS_MAX {
        if attempt > 0 {
            std::thread::sleep(DROP_PAUSE);
        }
        drop_pages(file, &range);
        left = residency::query(file, &OsStorage, range.clone())?.cached_bytes();
        if left <= tolerated {
            break;
        }
    }
    if left > tolerated {
        let detail =
            format!("{left} bytes remain in the page cache after they were dropped: is the file in use, or in memory?");
        return Err(Error::new(ErrorKind::Calibration, file.path(), detail).at(range.start));
    }
    Ok(())
}

/// Registered pages and dirty pages cannot be dropped.
fn prepare_to_drop(file: &PlainFile) -> Result<()> {
    file.release_pages();
    file.buffered().sync_all().map_err(|error| Error::system(file.path(), "sync", error))
}

fn drop_pages(file: &PlainFile, range: &Range<u64>) {
    let (fd, offset, len) = (file.buffered().as_raw_fd(), range.start as i64, (range.end - range.start) as i64);
    // SAFETY: advice on an open descriptor.
    unsafe { libc::posix_fadvise(fd, offset, len, libc::POSIX_FADV_DONTNEED) };
}

/// Reads a range into the page cache, and nothing beside it.
pub fn load(file: &OpenFile, range: Range<u64>) -> Result<()> {
    file.parts(&range).into_iter().try_for_each(|(member, part)| load_plain(&file.members()[member], part))
}

fn load_plain(file: &PlainFile, range: Range<u64>) -> Result<()> {
    let fd = file.buffered().as_raw_fd();
    let advise = |advice| {
        // SAFETY: advice on an open descriptor.
        unsafe { libc::posix_fadvise(fd, 0, 0, advice) }
    };
    // Readahead would load what lies behind the range.
    advise(libc::POSIX_FADV_RANDOM);
    let mut buffer = vec![0; STEP as usize];
    let mut at = range.start;
    let mut outcome = Ok(());
    while at < range.end && outcome.is_ok() {
        let part = &mut buffer[..STEP.min(range.end - at) as usize];
        match file.buffered().read_at(part, at) {
            Ok(0) => break,
            Ok(read) => at += read as u64,
            Err(error) => outcome = Err(Error::system(file.path(), "reading into the page cache", error).at(at)),
        }
    }
    advise(libc::POSIX_FADV_NORMAL);
    outcome
}

/// Fills a file with `bytes` of seeded data that no disk or file system can compress, and writes
/// it back. `progress` is told the bytes written.
pub fn write_incompressible(
    file: &std::fs::File,
    path: &Path,
    bytes: u64,
    seed: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let fail = |error| Error::system(path, "writing test data", error);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut buffer = vec![0_u8; STEP as usize];
    let mut written = 0;
    let mut file = file;
    while written < bytes {
        let part = &mut buffer[..STEP.min(bytes - written) as usize];
        random.fill(part);
        file.write_all(part).map_err(fail)?;
        written += part.len() as u64;
        progress(written);
    }
    file.sync_all().map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pages of the file that the kernel is asked to hold.
    const PAGES: u64 = 1024;

    fn runs_of(pages: &[bool]) -> Vec<Range<u64>> {
        let page = |(number, wanted): (usize, &bool)| wanted.then(|| number as u64 * 4096..(number as u64 + 1) * 4096);
        let range = 0..pages.len() as u64 * 4096;
        let runs = pages.iter().enumerate().filter_map(page);
        Residency::new(Source::Mincore, range, runs).cached().to_vec()
    }

    proptest! {
        #[test]
        fn what_is_left_of_runs_is_what_a_page_by_page_look_finds(
            pages in proptest::collection::vec((any::<bool>(), any::<bool>()), 1..200)
        ) {
            let of = |choose: &dyn Fn(&(bool, bool)) -> bool| runs_of(&pages.iter().map(choose).collect::<Vec<_>>());
            let (one, two) = (of(&|page| page.0), of(&|page| page.1));
            prop_assert_eq!(subtract(&one, &two), of(&|page| page.0 && !page.1));
        }
    }

    #[test]
    fn any_state_is_reached_from_any_other() {
        let file = tempfile::NamedTempFile::new_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        std::fs::write(file.path(), vec![7; (PAGES * 4096) as usize]).unwrap();
        let open = OpenFile::open(file.path()).unwrap();
        let range = 0..PAGES * 4096;
        if open.is_in_memory() || look(&open, range.clone()).unwrap().source > Source::Mincore {
            return bifolio_testing::skip("nobody can tell here what of a file is cached");
        }
        let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
        // Written by large folios at first, which straddle what is wanted.
        for cell_pages in [1, 16, 64, 1024, 3, 256] {
            let cells: Vec<bool> = (0..PAGES).map(|_| random.u8(..3) == 0).collect();
            let pages: Vec<bool> = (0..PAGES as usize).map(|page| cells[page / cell_pages]).collect();
            let wanted = runs_of(&pages);
            arrange(&open, range.clone(), &wanted).unwrap();
            let differs = bytes_that_differ(look(&open, range.clone()).unwrap().cached(), &wanted);
            assert!(differs <= 5 * 4096, "cells of {cell_pages} pages: {differs} bytes differ");
        }
    }
}
