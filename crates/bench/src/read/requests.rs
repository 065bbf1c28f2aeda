//! The requests of a run. Pure.

use super::choices::{Pattern, RequestSize};
use super::options::Options;
use fastrand::Rng;
use std::collections::HashSet;
use std::ops::Range;

/// The requests of a run: disjoint, and all runs of a group make the same ones in the same order.
#[derive(Debug)]
pub(super) struct Requests {
    pub(super) size: RequestSize,
    /// None where there is one request.
    pub(super) pattern: Option<Pattern>,
    /// The part of the file whose state matters.
    pub(super) region: Range<u64>,
    /// Offset and length of each.
    pub(super) list: Vec<(u64, u64)>,
    /// All of them together.
    pub(super) bytes: u64,
}

impl Requests {
    /// Every size in every pattern; the whole file has none.
    pub(super) fn draw_all(file_bytes: u64, options: &Options) -> Vec<Self> {
        let of_size = |size: &RequestSize| {
            let patterns = if *size == RequestSize::File { &[Pattern::Sequential][..] } else { &options.patterns };
            patterns.iter().map(|pattern| Self::draw(file_bytes, *size, *pattern, options)).collect::<Vec<_>>()
        };
        options.sizes.iter().flat_map(of_size).collect()
    }

    /// Draws requests at places that are multiples of their size.
    pub(super) fn draw(file_bytes: u64, size: RequestSize, pattern: Pattern, options: &Options) -> Self {
        let RequestSize::Bytes(bytes) = size else {
            return Self { size, pattern: None, region: 0..file_bytes, list: vec![(0, file_bytes)], bytes: file_bytes };
        };
        let limit = file_bytes.min(options.region_bytes.max(bytes));
        let (region, places) = match pattern {
            Pattern::Random => (0..limit, scattered(limit / bytes, options.requests, options.seed)),
            // What lies behind the last request is nobody's state: short ones would read a corner.
            Pattern::Sequential => {
                let count = (limit / bytes).min(options.requests);
                (0..if count < options.requests { limit } else { count * bytes }, (0..count).collect())
            }
        };
        let list: Vec<_> = places.into_iter().map(|place| (place * bytes, bytes)).collect();
        Self { size, pattern: Some(pattern), region, bytes: bytes * list.len() as u64, list }
    }

    /// The first `count` requests, neighbours that follow each other in the list as one.
    pub(super) fn joined(&self, count: usize) -> Vec<Range<u64>> {
        let mut joined: Vec<Range<u64>> = vec![];
        for &(offset, length) in &self.list[..count] {
            match joined.last_mut() {
                Some(last) if last.end == offset => last.end += length,
                _ => joined.push(offset..offset + length),
            }
        }
        joined
    }

    /// For people: the size, and the pattern where there is one.
    pub(super) fn name(&self) -> String {
        match self.pattern {
            None => self.size.to_string(),
            Some(pattern) => format!("{}, {}", self.size, pattern.name()),
        }
    }
}

/// `wanted` different numbers below `places` (all, if there are no more) in a random order.
fn scattered(places: u64, wanted: u64, seed: u64) -> Vec<u64> {
    let mut random = Rng::with_seed(seed);
    // Of a large file few places are read, and a list of all of them would not fit in memory.
    if places / 4 > wanted {
        let mut drawn = HashSet::new();
        return std::iter::repeat_with(|| random.u64(0..places))
            .filter(|place| drawn.insert(*place))
            .take(wanted as usize)
            .collect();
    }
    let mut all: Vec<u64> = (0..places).collect();
    random.shuffle(&mut all);
    all.truncate(wanted as usize);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn options(requests: u64, seed: u64) -> Options {
        Options { region_bytes: 1 << 20, requests, seed, ..Options::new(vec![]) }
    }

    proptest! {
        #[test]
        fn requests_are_disjoint_inside_the_file_and_bounded(
            file in 1_u64..1 << 36, bytes in 1_u64..1 << 31, wanted in 1_u64..5000, seed in any::<u64>()
        ) {
            let options = options(wanted, seed);
            for pattern in [Pattern::Random, Pattern::Sequential] {
                let requests = Requests::draw(file, RequestSize::Bytes(bytes), pattern, &options);
                let limit = file.min(bytes.max(1 << 20));
                prop_assert_eq!(requests.list.len() as u64, (limit / bytes).min(wanted));
                prop_assert!(requests.region.end <= limit && requests.region.end >= requests.bytes);
                prop_assert!(requests.bytes <= (1_u64 << 20).max(bytes));
                let mut sorted = requests.list.clone();
                sorted.sort_unstable();
                prop_assert!(sorted.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
                prop_assert!(sorted.last().is_none_or(|(offset, length)| offset + length <= requests.region.end));
                prop_assert!(pattern == Pattern::Random || sorted == requests.list);
                let joined = requests.joined(requests.list.len());
                prop_assert_eq!(joined.iter().map(|part| part.end - part.start).sum::<u64>(), requests.bytes);
                prop_assert!(pattern == Pattern::Random || joined.len() <= 1);
            }
        }

        #[test]
        fn scattered_places_differ_and_reach_all_over(places in 20_000_u64..1 << 40, seed in any::<u64>()) {
            let drawn = scattered(places, 500, seed);
            let quarters: HashSet<u64> = drawn.iter().map(|place| place / (places / 4 + 1)).collect();
            prop_assert_eq!((drawn.len(), quarters.len()), (500, 4));
            prop_assert_eq!(drawn.iter().collect::<HashSet<_>>().len(), 500);
            prop_assert_eq!(drawn, scattered(places, 500, seed));
        }
    }

    #[test]
    fn a_file_is_drawn_once_whatever_the_patterns() {
        let mut options = options(10, 1);
        options.patterns = vec![Pattern::Random, Pattern::Sequential];
        options.sizes = vec![RequestSize::File, RequestSize::Bytes(512)];
        let names: Vec<_> = Requests::draw_all(1 << 20, &options).iter().map(Requests::name).collect();
        assert_eq!(names, ["file", "512, random", "512, sequential"]);
    }
}
