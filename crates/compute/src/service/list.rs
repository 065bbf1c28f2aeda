//! What a request asks for item by item: cut again and again without a copy of the rest.

use std::ops::Range;
use std::sync::Arc;

/// Items of a request or of a part of one. Clones and cuts share them.
#[derive(Debug)]
pub struct List<T> {
    all: Arc<[T]>,
    range: Range<usize>,
    /// Where the part begins in the request's data: places of items count from the request's beginning.
    origin: u64,
}

impl<T> Clone for List<T> {
    fn clone(&self) -> Self {
        Self { all: Arc::clone(&self.all), range: self.range.clone(), origin: self.origin }
    }
}

impl<T> List<T> {
    /// The items.
    pub fn items(&self) -> &[T] {
        &self.all[self.range.clone()]
    }

    /// What is taken from the items' places to have them in the part's data.
    pub(crate) fn origin(&self) -> u64 {
        self.origin
    }

    /// The first `count` items, and the others, whose data begins `at` bytes further on.
    pub(crate) fn split(&self, count: usize, at: u64) -> (Self, Self) {
        let middle = self.range.start + count;
        let head = Self { all: Arc::clone(&self.all), range: self.range.start..middle, origin: self.origin };
        let tail = Self { all: Arc::clone(&self.all), range: middle..self.range.end, origin: self.origin + at };
        (head, tail)
    }
}

impl<T> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let all: Arc<[T]> = items.into_iter().collect();
        Self { range: 0..all.len(), all, origin: 0 }
    }
}

impl<T> From<Vec<T>> for List<T> {
    fn from(items: Vec<T>) -> Self {
        items.into_iter().collect()
    }
}
