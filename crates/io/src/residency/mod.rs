//! Which bytes of a file are in the page cache, and how we know: the answer as a value, and the question (`query`).

mod query;

pub use query::{count, query};

use serde::Serialize;
use std::ops::Range;

/// How the residency was learnt, the most certain source first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Nobody looked: the bytes had been read ahead.
    ReadAhead,
    /// The range is registered with the device, which keeps its pages in place.
    Registered,
    /// The file lives in memory.
    InMemory,
    /// `cachestat(2)` counted.
    Cachestat,
    /// `mincore(2)` gave the map, of the parts that `cachestat` found partly cached.
    Mincore,
    /// Reads with `RWF_NOWAIT`, of everything (small requests) or of samples.
    Nowait,
    /// Nothing here can tell; taken as not cached.
    Assumed,
}

impl Source {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadAhead => "read_ahead",
            Self::Cachestat => "cachestat",
            Self::Mincore => "mincore",
            Self::Registered => "registered",
            Self::Nowait => "nowait",
            Self::InMemory => "in_memory",
            Self::Assumed => "assumed",
        }
    }
}

/// The page-cache state of one range of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Residency {
    /// How it was learnt.
    pub source: Source,
    range: Range<u64>,
    /// Cached runs in file order, disjoint, not touching, inside the range.
    cached: Vec<Range<u64>>,
}

impl Residency {
    /// A residency from cached runs in file order; they are clipped to `range` and merged.
    pub fn new(source: Source, range: Range<u64>, runs: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut cached: Vec<Range<u64>> = Vec::new();
        for run in runs {
            let run = run.start.max(range.start)..run.end.min(range.end);
            match cached.last_mut() {
                _ if run.is_empty() => {}
                Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
                _ => cached.push(run),
            }
        }
        Self { source, range, cached }
    }

    /// Everything is cached.
    pub(crate) fn all(source: Source, range: Range<u64>) -> Self {
        Self::new(source, range.clone(), [range])
    }

    fn none(source: Source, range: Range<u64>) -> Self {
        Self::new(source, range, [])
    }

    /// The range that it describes.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Cached runs in file order, disjoint, not touching.
    pub fn cached(&self) -> &[Range<u64>] {
        &self.cached
    }

    /// Bytes of the range that are cached.
    pub fn cached_bytes(&self) -> u64 {
        self.cached.iter().map(|run| run.end - run.start).sum()
    }

    /// All runs in file order, alternating: each a range, and whether it is cached.
    pub fn runs(&self) -> impl Iterator<Item = (Range<u64>, bool)> + '_ {
        let starts = self.cached.iter().map(|run| run.start).chain([self.range.end]);
        let ends = [self.range.start].into_iter().chain(self.cached.iter().map(|run| run.end));
        let gaps = ends.zip(starts).map(|(start, end)| (start..end, false));
        let cached = self.cached.iter().map(|run| (run.clone(), true)).map(Some).chain([None]);
        gaps.zip(cached).flat_map(|(gap, cached)| [Some(gap), cached]).flatten().filter(|(run, _)| !run.is_empty())
    }
}
