//! What of a file is in the page cache before a run.

use crate::error::Result;
use bifolio_io::cache_state::{evict, load, look};
use bifolio_io::{OpenFile, Residency};
use serde::{Serialize, Serializer};
use std::fmt::{self, Display, Formatter};
use std::ops::Range;
use std::str::FromStr;

/// The cache state of a whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheState {
    /// All of it.
    Warm,
    /// Nothing.
    Cold,
}

impl CacheState {
    /// Whether the file can be in this state at all.
    pub fn is_possible(self, file: &OpenFile) -> bool {
        self == Self::Warm || !file.is_in_memory()
    }

    /// Brings all of a file into this state.
    pub fn set_up(self, file: &OpenFile) -> Result<()> {
        let all = 0..file.size()?;
        match self {
            Self::Warm if look(file, all.clone())?.cached_bytes() < all.end => load(file, all)?,
            Self::Warm => {}
            Self::Cold => evict(file, all)?,
        }
        Ok(())
    }
}

impl Display for CacheState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warm => "warm",
            Self::Cold => "cold",
        })
    }
}

impl FromStr for CacheState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = [Self::Warm, Self::Cold].into_iter().find(|state| state.to_string() == text);
        named.ok_or_else(|| format!("\"{text}\" is not a cache state: use warm or cold"))
    }
}

impl Serialize for CacheState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The part of a range that is cached, 0 to 1.
pub fn cached_part(residency: &Residency) -> f64 {
    let range = residency.range();
    residency.cached_bytes() as f64 / (range.end - range.start).max(1) as f64
}

/// Bytes of `part` that are cached.
pub fn cached_bytes_of(residency: &Residency, part: &Range<u64>) -> u64 {
    let runs = residency.cached();
    let first = runs.partition_point(|run| run.end <= part.start);
    let inside = runs[first..].iter().take_while(|run| run.start < part.end);
    inside.map(|run| run.end.min(part.end) - run.start.max(part.start)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_io::residency::Source;

    #[test]
    fn cached_bytes_of_a_part_are_those_of_the_runs_inside_it() {
        let residency = Residency::new(Source::Cachestat, 0..100, [10..20, 30..40, 90..100]);
        let of = |part: Range<u64>| cached_bytes_of(&residency, &part);
        assert_eq!([of(0..10), of(0..15), of(15..35), of(12..13), of(40..90), of(0..100)], [0, 5, 10, 1, 0, 30]);
        assert!((cached_part(&residency) - 0.3).abs() < 1e-12);
    }

    #[test]
    fn states_are_read_as_they_are_written() {
        for state in [CacheState::Warm, CacheState::Cold] {
            assert_eq!(state.to_string().parse(), Ok(state));
        }
        assert!("hot".parse::<CacheState>().unwrap_err().contains("warm or cold"));
    }
}
