//! A table of rows of numbers in memory that outlives the process.

use crate::sync::lock;
use bifolio_keeper::{Result, SharedMemory};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words before the first row; the first of them counts rows that were ever used.
const HEAD_WORDS: usize = 512;

/// Rows of the same width. One whose first word is 0 is free.
#[derive(Debug)]
pub(crate) struct Rows {
    memory: SharedMemory,
    width: usize,
    count: usize,
    /// Of this process.
    free: Mutex<Vec<u32>>,
}

impl Rows {
    /// `count` free rows.
    pub(crate) fn create(name: &str, width: usize, count: usize) -> Result<Self> {
        let memory = SharedMemory::create(name, HEAD_WORDS + width * count)?;
        Ok(Self { memory, width, count, free: Mutex::default() })
    }

    /// Finds what a predecessor has left free.
    pub(crate) fn adopt(&self) {
        let used = self.used().load(Ordering::Acquire) as u32;
        *lock(&self.free) = (0..used).rev().filter(|row| self.first(*row) == 0).collect();
    }

    /// All rows that count.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> {
        let used = self.used().load(Ordering::Acquire) as u32;
        (0..used).filter(|row| self.first(*row) != 0)
    }

    /// A row for this process to fill.
    ///
    /// # Errors
    /// `ENFILE` when all are used.
    pub(crate) fn take(&self) -> io::Result<u32> {
        let mut free = lock(&self.free);
        if let Some(row) = free.pop() {
            return Ok(row);
        }
        // Under the lock: only one process works on it at a time.
        let used = self.used().load(Ordering::Acquire);
        if used >= self.count as u64 {
            return Err(io::Error::from_raw_os_error(libc::ENFILE));
        }
        self.used().store(used + 1, Ordering::Release);
        Ok(used as u32)
    }

    /// Fills a row, its first word at last; from then on it counts.
    pub(crate) fn fill(&self, row: u32, words: &[u64]) {
        for (at, word) in words.iter().enumerate().rev() {
            self.set(row, at, *word);
        }
    }

    /// Gives a row back.
    pub(crate) fn give_back(&self, row: u32) {
        self.give_back_all(&[row], || {});
    }

    /// Gives rows back: they do not count any more when `between` is called, and are taken again after it.
    pub(crate) fn give_back_all(&self, rows: &[u32], between: impl FnOnce()) {
        for row in rows {
            self.set(*row, 0, 0);
        }
        between();
        lock(&self.free).extend_from_slice(rows);
    }

    /// Rows that nobody has, for whoever adopts them and takes none yet.
    pub(crate) fn free(&self) -> Vec<u32> {
        lock(&self.free).clone()
    }

    pub(crate) fn get(&self, row: u32, at: usize) -> u64 {
        self.word(row, at).load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, row: u32, at: usize, value: u64) {
        self.word(row, at).store(value, Ordering::Release);
    }

    fn first(&self, row: u32) -> u64 {
        self.get(row, 0)
    }

    fn word(&self, row: u32, at: usize) -> &AtomicU64 {
        debug_assert!(at < self.width);
        &self.memory.words()[HEAD_WORDS + row as usize * self.width + at]
    }

    fn used(&self) -> &AtomicU64 {
        &self.memory.words()[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_count_are_found_and_those_that_do_not_are_used_again() {
        let rows = Rows::create("test", 3, 4).unwrap();
        let taken: Vec<u32> = (0..4).map(|_| rows.take().unwrap()).collect();
        assert_eq!(rows.take().unwrap_err().raw_os_error(), Some(libc::ENFILE));
        rows.fill(taken[1], &[7, 8, 9]);
        rows.fill(taken[2], &[5, 0, 6]);
        rows.give_back(taken[2]);
        // As a successor sees it, to whom rows that were taken and not filled are free.
        rows.adopt();
        assert_eq!(rows.all().collect::<Vec<_>>(), [taken[1]]);
        assert_eq!([0, 1, 2].map(|at| rows.get(taken[1], at)), [7, 8, 9]);
        let mut again: Vec<u32> = (0..3).map(|_| rows.take().unwrap()).collect();
        again.sort_unstable();
        assert_eq!(again, [taken[0], taken[2], taken[3]]);
        assert!(rows.take().is_err());
    }
}
