//! A program that needs more memory than it has: every word that it wrote is verified, and every fault that had to wait is
//! timed.
//!
//! Half of the words of a page are drawn and half are small numbers, as in the memory of programs: what compresses pages
//! finds something to compress, and not everything.

use super::cgroup;
use crate::error::{Error, Result};
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const PAGE_WORDS: usize = 512;

/// What the program does.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Its memory.
    pub bytes: u64,
    /// The cgroup that it is in.
    pub entrance: Option<PathBuf>,
    /// How long.
    pub time: Duration,
    /// The seed of places and words.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Pages that were verified, every word of them.
    pub pages_verified: u64,
    /// Words that were not what was written.
    pub wrong_words: u64,
    /// Accesses that waited for swap (major faults).
    pub slow_faults: u64,
    /// Of these, in microseconds: the median, what 99 of 100 took at most, and the longest.
    pub p50_us: f64,
    /// As above.
    pub p99_us: f64,
    /// As above.
    pub longest_us: f64,
    /// From the first write to the last check, in seconds.
    pub seconds: f64,
}

/// Memory of its own in whole pages, which the kernel has not seen yet, and what should be in it.
struct Memory {
    pages: Vec<[u64; PAGE_WORDS]>,
    versions: Vec<u32>,
    seed: u64,
}

/// Runs it.
///
/// # Errors
/// The cgroup's.
pub fn load(options: &LoadOptions) -> Result<LoadReport> {
    if let Some(entrance) = &options.entrance {
        cgroup::enter(entrance)?;
    }
    let pages = (options.bytes / (PAGE_WORDS as u64 * 8)).max(1) as usize;
    if u32::try_from(pages).is_err() {
        return Err(Error::bad_use(format!("{} bytes are too many for this program", options.bytes)));
    }
    let mut memory = Memory::new(pages, options.seed);
    let mut random = Rng::with_seed(options.seed);
    let mut faults: Vec<u32> = Vec::with_capacity(1 << 20);
    let (mut verified, mut wrong) = (0, 0);
    let begin = Instant::now();
    (0..pages).for_each(|page| memory.renew(page));
    // Clusters at drawn places, as programs come back to what they used together; at last every page.
    let mut visit = |memory: &mut Memory, page| {
        memory.touch(page, &mut faults);
        wrong += memory.wrong_words(page);
        verified += 1;
    };
    while begin.elapsed() < options.time {
        let first = random.usize(..pages);
        let count = [1, 1, 4, 16][random.usize(..4)];
        for page in first..(first + count).min(pages) {
            visit(&mut memory, page);
            if random.bool() {
                memory.renew(page);
            }
        }
    }
    (0..pages).for_each(|page| visit(&mut memory, page));
    let seconds = begin.elapsed().as_secs_f64();
    faults.sort_unstable();
    let at = |share: f64| faults.get(((faults.len() as f64 * share) as usize).min(faults.len().max(1) - 1));
    let us = |ns: Option<&u32>| ns.map_or(0.0, |ns| f64::from(*ns) / 1000.0);
    Ok(LoadReport {
        pages_verified: verified,
        wrong_words: wrong,
        slow_faults: faults.len() as u64,
        p50_us: us(at(0.5)),
        p99_us: us(at(0.99)),
        longest_us: us(faults.last()),
        seconds,
    })
}

impl Memory {
    fn new(pages: usize, seed: u64) -> Self {
        Self { pages: vec![[0; PAGE_WORDS]; pages], versions: vec![0; pages], seed }
    }

    /// Reads one word, and notes how long that took if it had to wait.
    fn touch(&self, page: usize, faults: &mut Vec<u32>) {
        let before = major_faults();
        let begin = Instant::now();
        std::hint::black_box(self.pages[page][page % PAGE_WORDS]);
        let took = begin.elapsed();
        if major_faults() > before && faults.len() < faults.capacity() {
            faults.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
        }
    }

    /// Writes a page's next version.
    fn renew(&mut self, page: usize) {
        self.versions[page] += 1;
        let wanted = words(page, self.versions[page], self.seed);
        self.pages[page].iter_mut().zip(wanted).for_each(|(word, wanted)| *word = wanted);
    }

    fn wrong_words(&self, page: usize) -> u64 {
        let wanted = words(page, self.versions[page], self.seed);
        self.pages[page].iter().zip(wanted).filter(|(word, wanted)| **word != *wanted).count() as u64
    }
}

/// What a page holds: which page and which version it is can be told from every other word.
fn words(page: usize, version: u32, seed: u64) -> impl Iterator<Item = u64> {
    let mut random = Rng::with_seed(seed ^ ((page as u64) << 32 | u64::from(version)));
    (0..PAGE_WORDS as u64).map(move |at| if at % 2 == 0 { random.u64(..) } else { at & 7 })
}

fn major_faults() -> i64 {
    // SAFETY: plain old data, for which zeroes are a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is filled.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_majflt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_word_is_counted_and_right_ones_are_not() {
        let mut memory = Memory::new(3, 42);
        (0..3).for_each(|page| memory.renew(page));
        assert_eq!(memory.wrong_words(1), 0);
        memory.pages[1][100] ^= 1 << 63;
        assert_eq!(memory.wrong_words(1), 1);
        memory.versions[2] += 1;
        assert!(memory.wrong_words(2) > 200, "another version");
        memory.pages.swap(0, 2);
        assert!(memory.wrong_words(0) > 200, "another page");
    }

    #[test]
    fn without_a_limit_every_page_is_verified_and_none_is_wrong() {
        let options = LoadOptions { bytes: 1 << 20, entrance: None, time: Duration::from_millis(20), seed: 3 };
        let report = load(&options).unwrap();
        assert!(report.pages_verified >= 256 && report.wrong_words == 0, "{report:?}");
    }
}
