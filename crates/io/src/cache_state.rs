//! Bringing ranges of a file into a known page-cache state, for calibration and benchmarks.

use crate::storage::OsStorage;
use crate::{Error, ErrorKind, OpenFile, Result, residency};
use std::io::Write;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes written or read at a time.
const STEP: u64 = 8 << 20;

/// Writes dirty pages back and drops a range from the page cache. An error if pages stay: another
/// process has them mapped or registered, or the file system keeps them.
pub fn evict(file: &OpenFile, range: Range<u64>) -> Result<()> {
    let file = file.plain();
    // Registered pages cannot be dropped.
    file.windows.clear();
    file.readahead.clear();
    file.buffered().sync_all().map_err(|error| Error::system(file.path(), "writing it back", error))?;
    let (fd, offset, len) = (file.buffered().as_raw_fd(), range.start as i64, (range.end - range.start) as i64);
    // SAFETY: advice on an open descriptor.
    unsafe { libc::posix_fadvise(fd, offset, len, libc::POSIX_FADV_DONTNEED) };
    let left = residency::query(file, &OsStorage, range.clone())?.cached_bytes();
    // Large folios that straddle the ends may stay.
    let straddling = 4 << 20;
    if left > straddling.min((range.end - range.start) / 4) {
        let detail = format!(
            "{left} bytes of it stay in the page cache although they were dropped: is it in use, or in memory?"
        );
        return Err(Error::new(ErrorKind::Calibration, file.path(), detail).at(range.start));
    }
    Ok(())
}

/// Reads a range into the page cache, and nothing beside it.
pub fn load(file: &OpenFile, range: Range<u64>) -> Result<()> {
    let file = file.plain();
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
            Err(error) => outcome = Err(Error::system(file.path(), "reading it into the page cache", error).at(at)),
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
    let mut state = seed;
    let mut buffer = vec![0_u8; STEP as usize];
    let mut written = 0;
    let mut file = file;
    while written < bytes {
        let part = &mut buffer[..STEP.min(bytes - written) as usize];
        fill(part, &mut state);
        file.write_all(part).map_err(fail)?;
        written += part.len() as u64;
        progress(written);
    }
    file.sync_all().map_err(fail)
}

/// Pseudo-random bytes (splitmix64).
fn fill(buffer: &mut [u8], state: &mut u64) {
    for chunk in buffer.chunks_mut(8) {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        chunk.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes()[..chunk.len()]);
    }
}
