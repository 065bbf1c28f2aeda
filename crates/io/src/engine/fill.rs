//! Filling one piece of host memory with one piece of a file, on the calling thread: for short
//! requests, and for reading ahead, where starting engines would cost more than they gain.
//!
//! What is cached comes out of the page cache; the rest from storage, past the page cache where
//! that is quicker. The choice is a pure function of what is cached and what paths cost.

use crate::cost::Costs;
use crate::file::PlainFile;
use crate::kind::EngineKind;
use crate::plan::POLLUTION_FACTOR;
use crate::report::ResidencyReport;
use crate::residency::{self, Source};
use crate::storage::Storage;
use crate::{Error, ErrorKind, Result};
use std::ops::Range;

/// Asking whether a short range is cached takes about this long (`cachestat(2)`).
const ASK_S: f64 = 0.6e-6;

/// How a fill begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// With a read of what is cached (`RWF_NOWAIT`), which is all there is to it when everything
    /// is. After a miss the kernel is reading the page already, so the page cache is waited for.
    ByTrying,
    /// By asking what is cached.
    ByAsking,
}

/// Memory that was filled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filled {
    /// The path.
    pub(crate) engine: EngineKind,
    /// What was cached beforehand.
    pub(crate) residency: ResidencyReport,
}

/// How to begin, when `part_cached` of the latest requests to the file were cached: a wrong try
/// costs the difference between the page cache and storage, a question costs itself.
pub(crate) fn begin(part_cached: f64, bytes: u64, costs: &Costs) -> Begin {
    let lost_s = (1.0 - part_cached) * (costs.buffered.seconds(bytes) - costs.direct.seconds(bytes));
    if lost_s > ASK_S { Begin::ByAsking } else { Begin::ByTrying }
}

/// The path for `bytes`, of which `cached` are in the page cache.
fn path_for(cached: u64, bytes: u64, direct: bool, costs: &Costs) -> EngineKind {
    let through_cache_s =
        costs.cached.seconds(cached) + costs.buffered.seconds(bytes - cached.min(bytes)) * POLLUTION_FACTOR;
    if direct && cached < bytes && costs.direct.seconds(bytes) < through_cache_s {
        EngineKind::Direct
    } else {
        EngineKind::Cached
    }
}

/// Boundaries at which unbuffered reads may begin, on all but odd devices.
pub(crate) const BOUNDARY_BYTES: u64 = 4096;

/// Where the first byte of a range lies in memory that is filled with it: as far behind a boundary
/// as in the file, so that unbuffered reads fit.
pub(crate) fn first_of(range: &Range<u64>) -> usize {
    (range.start % BOUNDARY_BYTES) as usize
}

/// Bytes of memory that a fill of `range` needs.
pub(crate) fn memory_for(range: &Range<u64>) -> u64 {
    range.end.next_multiple_of(BOUNDARY_BYTES) - (range.start - range.start % BOUNDARY_BYTES)
}

/// Fills `memory`, which is aligned to a page and has the bytes of [`memory_for`], with `range`,
/// which is not empty and lies inside the file as it was a moment ago.
pub(crate) fn fill(
    file: &PlainFile,
    storage: &dyn Storage,
    costs: &Costs,
    begin: Begin,
    range: Range<u64>,
    memory: &mut [u8],
) -> Result<Filled> {
    let (bytes, first) = (range.end - range.start, first_of(&range));
    let report = |source, cached_bytes| ResidencyReport { source, cached_bytes, total_bytes: bytes };
    if begin == Begin::ByTrying {
        let wanted = &mut memory[first..first + bytes as usize];
        // Through the descriptor that is advised of random access: what is missing is then read as
        // asked for, and not a whole readahead window.
        let cached = storage.read_cached_at(file.probe(), wanted, range.start).unwrap_or(0);
        read_through_cache(file, storage, &range, wanted, cached)?;
        let residency = report(Source::Nowait, cached as u64);
        return Ok(Filled { engine: EngineKind::Cached, residency });
    }
    let residency = residency::query(file, storage, range.clone())?;
    let cached = residency.cached_bytes();
    let residency = report(residency.source, cached);
    if path_for(cached, bytes, cached < bytes && file.direct().is_ok(), costs) == EngineKind::Direct
        && read_past_cache(file, storage, &range, memory)?
    {
        return Ok(Filled { engine: EngineKind::Direct, residency });
    }
    read_through_cache(file, storage, &range, &mut memory[first..first + bytes as usize], 0)?;
    Ok(Filled { engine: EngineKind::Cached, residency })
}

/// The rest of `range` after its first `got` bytes.
fn read_through_cache(
    file: &PlainFile,
    storage: &dyn Storage,
    range: &Range<u64>,
    wanted: &mut [u8],
    mut got: usize,
) -> Result<()> {
    while got < wanted.len() {
        let at = range.start + got as u64;
        match storage.read_at(file.probe(), &mut wanted[got..], at) {
            Ok(0) => return Err(truncated(file, at, range)),
            Ok(read) => got += read,
            Err(error) => return Err(Error::system(file.path(), "read", error).at(at)),
        }
    }
    Ok(())
}

/// Unbuffered, from the boundary before the range to the one after it; false where the page cache
/// must do it.
fn read_past_cache(file: &PlainFile, storage: &dyn Storage, range: &Range<u64>, memory: &mut [u8]) -> Result<bool> {
    let Ok(direct) = file.direct() else { return Ok(false) };
    if !BOUNDARY_BYTES.is_multiple_of(direct.alignment) {
        return Ok(false);
    }
    let start = range.start - first_of(range) as u64;
    let memory = &mut memory[..memory_for(range) as usize];
    let (wanted, mut got) = ((range.end - start) as usize, 0);
    while got < wanted {
        let at = start + got as u64;
        match storage.read_at(&direct.file, &mut memory[got..], at) {
            Ok(0) => return Err(truncated(file, at, range)),
            Ok(read) => got += read,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
                // In the middle it only says that the read before stopped within a block.
                if got == 0 {
                    file.refuse_direct(format!("the file system refused an O_DIRECT read: {error}"));
                }
                return Ok(false);
            }
            Err(error) => return Err(Error::system(file.path(), "read", error).at(at.max(range.start))),
        }
    }
    Ok(true)
}

/// The file ends at `end`, inside the range.
fn truncated(file: &PlainFile, end: u64, range: &Range<u64>) -> Error {
    let missing = range.end - end.min(range.end);
    let detail = format!("the file was truncated during the read: it ends at {end}, {missing} bytes short");
    Error::new(ErrorKind::Truncated, file.path(), detail).at(end.max(range.start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_found_cached_is_tried_and_others_are_asked_about() {
        let costs = Costs::default();
        assert_eq!(begin(1.0, 4096, &costs), Begin::ByTrying);
        assert_eq!(begin(0.5, 4096, &costs), Begin::ByAsking);
        let mut slow_direct = costs;
        slow_direct.direct.overhead_s = 1.0;
        assert_eq!(begin(0.0, 4096, &slow_direct), Begin::ByTrying);
    }

    #[test]
    fn what_is_cached_comes_from_the_cache_and_the_rest_by_the_quicker_path() {
        let costs = Costs::default();
        assert_eq!(path_for(4096, 4096, true, &costs), EngineKind::Cached);
        assert_eq!(path_for(0, 4096, true, &costs), EngineKind::Direct);
        assert_eq!(path_for(0, 4096, false, &costs), EngineKind::Cached);
    }
}
