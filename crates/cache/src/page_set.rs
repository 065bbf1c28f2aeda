//! Sets of pages, as runs: what an operation works on lies mostly side by side, and a set of a thousand pages is one run.

use std::ops::Range;

/// Pages by their numbers, in ascending order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PageSet {
    /// Ascending, none of them empty, with something missing between two.
    runs: Vec<Range<u64>>,
}

impl PageSet {
    pub(crate) const fn new() -> Self {
        Self { runs: vec![] }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many pages.
    pub(crate) fn len(&self) -> u64 {
        self.runs.iter().map(|run| run.end - run.start).sum()
    }

    pub(crate) fn contains(&self, page: u64) -> bool {
        let at = self.runs.partition_point(|run| run.end <= page);
        self.runs.get(at).is_some_and(|run| run.start <= page)
    }

    /// Pages beside each other.
    pub(crate) fn runs(&self) -> &[Range<u64>] {
        &self.runs
    }

    /// From the first page to the last.
    pub(crate) fn hull(&self) -> Option<Range<u64>> {
        Some(self.runs.first()?.start..self.runs.last()?.end)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs.iter().flat_map(Clone::clone)
    }

    /// Those of them of which something is true.
    #[must_use]
    pub(crate) fn filtered(&self, is: impl FnMut(&u64) -> bool) -> Self {
        self.iter().filter(is).collect()
    }

    /// Keeps those of which something is true.
    pub(crate) fn retain(&mut self, is: impl FnMut(&u64) -> bool) {
        *self = self.filtered(is);
    }

    /// Adds pages that begin nowhere before its last one.
    pub(crate) fn append(&mut self, pages: Range<u64>) {
        debug_assert!(self.runs.last().is_none_or(|last| last.end <= pages.start + 1), "pages come in order");
        match self.runs.last_mut() {
            Some(last) if last.end >= pages.start => last.end = last.end.max(pages.end),
            _ => self.runs.push(pages),
        }
    }

    pub(crate) fn insert(&mut self, page: u64) {
        // Where it is, or to the end of which it belongs.
        let at = self.runs.partition_point(|run| run.end < page);
        match self.runs.get_mut(at) {
            Some(run) if run.start <= page && page < run.end => {}
            Some(run) if run.end == page => {
                run.end += 1;
                if self.runs.get(at + 1).is_some_and(|next| next.start == page + 1) {
                    self.runs[at].end = self.runs.remove(at + 1).end;
                }
            }
            Some(run) if run.start == page + 1 => run.start = page,
            _ => self.runs.insert(at, page..page + 1),
        }
    }
}

impl Extend<u64> for PageSet {
    fn extend<T: IntoIterator<Item = u64>>(&mut self, pages: T) {
        for page in pages {
            match self.runs.last_mut() {
                Some(run) if run.end == page => run.end += 1,
                Some(run) if run.end > page => self.insert(page),
                _ => self.runs.push(page..page + 1),
            }
        }
    }
}

impl FromIterator<u64> for PageSet {
    fn from_iter<T: IntoIterator<Item = u64>>(pages: T) -> Self {
        let mut all = Self::new();
        all.extend(pages);
        all
    }
}

impl IntoIterator for PageSet {
    type Item = u64;
    type IntoIter = std::iter::Flatten<std::vec::IntoIter<Range<u64>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.runs.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn it_is_a_set() {
        let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
        for _ in 0..300 {
            let mut draw = |most: usize| -> Vec<u64> { (0..random.usize(..most)).map(|_| random.u64(..40)).collect() };
            let (first, more) = (draw(60), draw(20));
            let mut set: PageSet = first.iter().copied().collect();
            let mut oracle: BTreeSet<u64> = first.into_iter().collect();
            for page in more {
                set.insert(page);
                oracle.insert(page);
                assert!(set.iter().eq(oracle.iter().copied()), "{set:?} is not {oracle:?}");
            }
            assert!(set.runs().windows(2).all(|pair| pair[0].end < pair[1].start), "{set:?}");
            assert!((0..50).all(|page| set.contains(page) == oracle.contains(&page)));
            assert_eq!(set.len(), oracle.len() as u64);
            assert_eq!(set.hull(), oracle.first().zip(oracle.last()).map(|(first, last)| *first..*last + 1));
            let odd = set.filtered(|page| page % 2 == 1);
            oracle.retain(|page| page % 2 == 1);
            assert!(odd.into_iter().eq(oracle));
        }
    }
}
