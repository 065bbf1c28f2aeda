//! Asking the kernel what of a file is in the page cache.
//!
//! `cachestat(2)` counts the cached pages of a range; halving the range wherever the answer is
//! "partly" finds the runs. Below a few MiB `mincore(2)` gives the map, one byte a page; it costs
//! 25 ns a page on a range that is not mapped, so of a large and very scattered range only a part
//! is mapped out, and the rest stays as counted: a block that is mostly cached or mostly not.
//!
//! Both can be blind: `mincore` reports every page as cached for files that one may not write,
//! some containers report none, and `cachestat` is new (6.5) and refused for files of others. A
//! read of one byte with `RWF_NOWAIT` tells the truth for its page, so a map that `cachestat` does
//! not vouch for is checked by such reads, and where it is contradicted the range is sampled by
//! them. They are not the first choice because a "no" makes current kernels read the page. The
//! result says which source was believed.

use super::{Residency, Source};
use crate::Result;
use crate::file::PlainFile;
use crate::storage::Storage;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

/// Bytes of a page of the page cache: 4 KiB on x86, up to 64 KiB elsewhere.
fn page_bytes() -> u64 {
    static PAGE: OnceLock<u64> = OnceLock::new();
    // SAFETY: a plain question to the C library.
    *PAGE.get_or_init(|| u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

/// The most `RWF_NOWAIT` reads spent on one request (about 1 us each).
const PROBES_MAX: u64 = 1024;

/// A partly cached range of up to this size is mapped out by `mincore` (1,024 pages, about 25 us).
const LEAF_BYTES: u64 = 4 << 20;

/// Bytes that are mapped out in any case, and the part of a range that is beyond them: on a half
/// cached 8 GiB file on the H200 machine that is 6 ms of a request of 1.2 s.
const MAPPED_OUT_BYTES: u64 = 64 << 20;
const MAPPED_OUT_PART: u64 = 8;

/// The finest distance between such reads: the kernel's usual readahead window.
const PROBE_STRIDE_MIN: u64 = 128 << 10;

/// Asks the kernel what of `range` is cached.
pub fn query(file: &PlainFile, storage: &dyn Storage, range: Range<u64>) -> Result<Residency> {
    let by_probes = || believe(mincore(file, &range), &range, &|offset| is_cached(file, storage, offset));
    Ok(count(file, range.clone()).unwrap_or_else(by_probes))
}

/// What `cachestat` says of `range`, and no read; none where it is missing or refused.
pub fn count(file: &PlainFile, range: Range<u64>) -> Option<Residency> {
    if file.is_in_memory() {
        return Some(Residency::all(Source::InMemory, range));
    }
    if range.is_empty() {
        return Some(Residency::none(Source::Cachestat, range));
    }
    let pages = cachestat(file, &range).ok()?;
    Some(Search::new(file, &range).runs(pages))
}

/// The search for runs by halving.
struct Search<'a> {
    file: &'a PlainFile,
    range: Range<u64>,
    runs: Vec<Range<u64>>,
    /// Bytes that may still be mapped out.
    map_left: u64,
    source: Source,
}

impl<'a> Search<'a> {
    fn new(file: &'a PlainFile, range: &Range<u64>) -> Self {
        let map_left = MAPPED_OUT_BYTES + (range.end - range.start) / MAPPED_OUT_PART;
        Self { file, range: range.clone(), runs: vec![], map_left, source: Source::Cachestat }
    }

    /// The residency, given the cached pages of the whole range.
    fn runs(mut self, pages: u64) -> Residency {
        self.resolve(self.range.clone(), pages);
        Residency::new(self.source, self.range, self.runs)
    }

    fn resolve(&mut self, part: Range<u64>, pages: u64) {
        let total = page_count(&part);
        if pages == 0 {
            return;
        }
        if pages >= total {
            return self.runs.push(part);
        }
        if part.end - part.start <= LEAF_BYTES {
            return self.map_out(part, pages, total);
        }
        // Halves meet at a page, so that no page is counted twice.
        let middle = (part.start + (part.end - part.start) / 2).next_multiple_of(page_bytes());
        for half in [part.start..middle, middle..part.end] {
            let counted = cachestat(self.file, &half).unwrap_or(0);
            self.resolve(half, counted);
        }
    }

    fn map_out(&mut self, part: Range<u64>, pages: u64, total: u64) {
        let len = part.end - part.start;
        let map = if len <= self.map_left { mincore(self.file, &part).ok() } else { None };
        // A map that says all or none where `cachestat` counted some is blind.
        match map.map(|runs| Residency::new(Source::Mincore, part.clone(), runs)) {
            Some(map) if (1..len).contains(&map.cached_bytes()) => {
                self.map_left -= len;
                self.source = Source::Mincore;
                self.runs.extend(map.cached);
            }
            // As counted: reading a few pages from storage with the rest, or too many.
            _ if pages * 8 >= total * 7 => self.runs.push(part),
            _ => {}
        }
    }
}

/// Decides between a map that nothing vouches for, and samples.
fn believe(map: io::Result<Vec<Range<u64>>>, range: &Range<u64>, probe: &dyn Fn(u64) -> Option<bool>) -> Residency {
    if let Ok(runs) = map {
        let residency = Residency::new(Source::Mincore, range.clone(), runs);
        if agrees(&residency, probe) {
            return residency;
        }
    }
    sample(range, probe)
}

/// Whether a map is to be believed: one page of each kind is tried.
fn agrees(residency: &Residency, probe: &dyn Fn(u64) -> Option<bool>) -> bool {
    let first = |wanted| residency.runs().find(|(_, is_cached)| *is_cached == wanted).map(|(run, _)| run.start);
    let contradicted = |wanted: bool| first(wanted).and_then(probe).is_some_and(|is_cached| is_cached != wanted);
    !contradicted(true) && !contradicted(false)
}

fn sample(range: &Range<u64>, probe: &dyn Fn(u64) -> Option<bool>) -> Residency {
    let stride = ((range.end - range.start) / PROBES_MAX).max(PROBE_STRIDE_MIN).next_multiple_of(page_bytes());
    let mut runs = Vec::new();
    let mut start = range.start;
    while start < range.end {
        let end = (start - start % stride + stride).min(range.end);
        match probe(start + (end - start) / 2) {
            Some(true) => runs.push(start..end),
            Some(false) => {}
            None => return Residency::none(Source::Assumed, range.clone()),
        }
        start = end;
    }
    Residency::new(Source::Nowait, range.clone(), runs)
}

/// Whether the page at `offset` is cached; none where the file system cannot say.
fn is_cached(file: &PlainFile, storage: &dyn Storage, offset: u64) -> Option<bool> {
    match storage.read_cached_at(file.probe(), &mut [0], offset) {
        Ok(read) => Some(read > 0),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(false),
        Err(_) => None,
    }
}

fn page_count(range: &Range<u64>) -> u64 {
    range.end.div_ceil(page_bytes()) - range.start / page_bytes()
}

/// Cached pages of a range, as `cachestat(2)` counts them.
fn cachestat(file: &PlainFile, range: &Range<u64>) -> io::Result<u64> {
    #[repr(C)]
    struct CachestatRange {
        offset: u64,
        length: u64,
    }
    /// `nr_cache`, `nr_dirty`, `nr_writeback`, `nr_evicted`, `nr_recently_evicted`.
    type Cachestat = [u64; 5];
    /// The same number on every architecture (system calls since 424 are).
    const SYS_CACHESTAT: libc::c_long = 451;
    let asked = CachestatRange { offset: range.start, length: range.end - range.start };
    let mut counted: Cachestat = [0; 5];
    // SAFETY: both structs are laid out as the kernel declares them and live through the call.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, file.buffered().as_raw_fd(), &raw const asked, counted.as_mut_ptr(), 0) };
    if result == 0 { Ok(counted[0]) } else { Err(io::Error::last_os_error()) }
}

/// Cached runs of a range, as `mincore(2)` reports them on a mapping made for the question.
fn mincore(file: &PlainFile, range: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let start = range.start - range.start % page_bytes();
    let len = (range.end - start) as usize;
    let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
    // SAFETY: a new mapping, whose pages are never touched, so a truncation cannot hurt.
    let mapped =
        unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file.buffered().as_raw_fd(), start as i64) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mut pages = vec![0_u8; len.div_ceil(page_bytes() as usize)];
    // SAFETY: the mapping is ours, and the vector has a byte for each of its pages.
    let result = unsafe { libc::mincore(mapped, len, pages.as_mut_ptr()) };
    let error = io::Error::last_os_error();
    // SAFETY: the mapping made above, used by nobody.
    unsafe { libc::munmap(mapped, len) };
    if result == 0 { Ok(runs_of_pages(&pages, start)) } else { Err(error) }
}

fn runs_of_pages(pages: &[u8], start: u64) -> Vec<Range<u64>> {
    let mut runs = Vec::new();
    let mut at = 0;
    for chunk in pages.chunk_by(|one, two| one & 1 == two & 1) {
        if chunk[0] & 1 == 1 {
            runs.push(start + at * page_bytes()..start + (at + chunk.len() as u64) * page_bytes());
        }
        at += chunk.len() as u64;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tests' files are laid out for this; `page_bytes` is the same on x86.
    const PAGE: u64 = 4096;
    use crate::storage::OsStorage;
    use proptest::prelude::*;
    use std::os::unix::fs::FileExt;

    proptest! {
        #[test]
        fn runs_cover_the_range_in_order_and_match_the_pages(pages in proptest::collection::vec(any::<bool>(), 1..200),
                                                            head in 0..PAGE, tail in 0..PAGE) {
            let bytes: Vec<u8> = pages.iter().map(|page| u8::from(*page)).collect();
            let range = head..(pages.len() as u64 * PAGE - tail).max(head + 1);
            let residency = Residency::new(Source::Mincore, range.clone(), runs_of_pages(&bytes, 0));
            let mut at = range.start;
            for (run, cached) in residency.runs() {
                prop_assert_eq!(run.start, at);
                for offset in [run.start, run.end - 1] {
                    prop_assert_eq!(pages[(offset / PAGE) as usize], cached);
                }
                at = run.end;
            }
            prop_assert_eq!(at, range.end);
            let counted = range.clone().filter(|offset| pages[(offset / PAGE) as usize]).count() as u64;
            prop_assert_eq!(residency.cached_bytes(), counted);
        }
    }

    /// A file beside the program, which lies on a disk even where /tmp is in memory.
    fn on_disk() -> tempfile::NamedTempFile {
        tempfile::NamedTempFile::new_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap()
    }

    fn map_of(text: &str) -> Vec<Range<u64>> {
        runs_of_pages(text.bytes().map(|b| b - b'0').collect::<Vec<_>>().as_slice(), 0)
    }

    #[test]
    fn without_cachestat_a_blind_map_is_found_out_by_one_read() {
        let range = 0..4 * PAGE;
        let says_none = believe(Ok(map_of("0000")), &range, &|_| Some(true));
        assert_eq!((says_none.source, says_none.cached_bytes()), (Source::Nowait, 4 * PAGE));
        let says_all = believe(Ok(map_of("1111")), &range, &|_| Some(false));
        assert_eq!((says_all.source, says_all.cached_bytes()), (Source::Nowait, 0));
        let honest = believe(Ok(map_of("0110")), &range, &|offset| Some((PAGE..3 * PAGE).contains(&offset)));
        assert_eq!((honest.source, honest.cached_bytes()), (Source::Mincore, 2 * PAGE));
    }

    #[test]
    fn where_nothing_can_tell_the_answer_says_so() {
        let range = 0..4 * PAGE;
        let unknown = believe(Err(io::Error::from_raw_os_error(libc::ENOSYS)), &range, &|_| None);
        assert_eq!((unknown.source, unknown.cached_bytes()), (Source::Assumed, 0));
    }

    #[test]
    fn a_real_file_is_seen_warm_cold_and_half() {
        let file = on_disk();
        let len = 4_u64 << 20;
        file.as_file().write_all_at(&vec![7; len as usize], 0).unwrap();
        file.as_file().sync_all().unwrap();
        let open = PlainFile::open(file.path()).unwrap();
        if open.is_in_memory() {
            return bifolio_testing::skip("the build folder is in memory, so nothing is ever cold");
        }
        let see = || query(&open, &OsStorage, 0..len).unwrap();
        assert_eq!(see().cached_bytes(), len);
        let drop_pages = |offset: u64, len: u64| {
            // SAFETY: advice on an open descriptor.
            unsafe {
                libc::posix_fadvise(open.buffered().as_raw_fd(), offset as i64, len as i64, libc::POSIX_FADV_DONTNEED)
            }
        };
        drop_pages(len / 2, len / 2);
        let half = see();
        assert_eq!((half.cached_bytes(), half.cached().len()), (len / 2, 1), "{half:?}");
        drop_pages(0, len);
        assert_eq!(see().cached_bytes(), 0);
    }

    #[test]
    fn halving_finds_the_runs_that_the_map_shows() {
        let file = on_disk();
        let len = 40_u64 << 20;
        file.as_file().write_all_at(&vec![7; len as usize], 0).unwrap();
        file.as_file().sync_all().unwrap();
        let open = PlainFile::open(file.path()).unwrap();
        if open.is_in_memory() {
            return bifolio_testing::skip("the build folder is in memory, so nothing is ever cold");
        }
        for (start, drop_len) in [(0, 1 << 20), (5 << 20, 3 << 20), (9_000_000, 12_345_678), (39 << 20, 1 << 20)] {
            // SAFETY: advice on an open descriptor.
            unsafe { libc::posix_fadvise(open.buffered().as_raw_fd(), start, drop_len, libc::POSIX_FADV_DONTNEED) };
            for range in [0..len, 4097..len - 1, 5_000_000..30_000_001] {
                let found = query(&open, &OsStorage, range.clone()).unwrap();
                let map = Residency::new(found.source, range.clone(), mincore(&open, &range).unwrap());
                assert_eq!(found, map);
            }
        }
    }
}
