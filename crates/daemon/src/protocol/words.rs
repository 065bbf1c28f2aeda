//! Words of messages, one by one.

use super::limits::{NUMBERS_MAX, TEXT_BYTES_MAX};
use bifolio_cache::LeaseNumber;
use std::ops::Range;

/// Words that are read one by one.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    pub(super) fn small(&mut self) -> Option<usize> {
        self.word().filter(|word| *word < u64::from(u32::MAX)).map(|word| word as usize)
    }

    pub(super) fn count(&mut self, most: usize) -> Option<usize> {
        self.small().filter(|count| *count <= most)
    }

    pub(super) fn truth(&mut self) -> Option<bool> {
        match self.word()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(super) fn range(&mut self) -> Option<Range<u64>> {
        let (start, end) = (self.word()?, self.word()?);
        (start <= end).then_some(start..end)
    }

    pub(super) fn numbers(&mut self) -> Option<Vec<LeaseNumber>> {
        let count = self.count(NUMBERS_MAX)?;
        (0..count).map(|_| self.word()).collect()
    }

    pub(super) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes(TEXT_BYTES_MAX)?).ok()
    }

    pub(super) fn bytes(&mut self, most: usize) -> Option<Vec<u8>> {
        let len = self.count(most)?;
        let (bytes, rest) = self.0.split_at_checked(len.next_multiple_of(8))?;
        self.0 = rest;
        let (text, fill) = bytes.split_at(len);
        if fill.iter().any(|byte| *byte != 0) {
            return None;
        }
        Some(text.to_vec())
    }

    pub(super) fn end<T>(&self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

/// Words that are written one by one.
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn new(kind: u64, number: u64) -> Self {
        Self(Vec::with_capacity(64)).word(kind).word(number)
    }

    pub(super) fn word(mut self, word: u64) -> Self {
        self.0.extend(word.to_le_bytes());
        self
    }

    pub(super) fn words(self, words: impl IntoIterator<Item = u64>) -> Self {
        words.into_iter().fold(self, Self::word)
    }

    pub(super) fn range(self, range: &Range<u64>) -> Self {
        self.word(range.start).word(range.end)
    }

    pub(super) fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    pub(super) fn bytes(self, bytes: &[u8]) -> Self {
        let mut written = self.word(bytes.len() as u64);
        written.0.extend(bytes);
        let fill = bytes.len().next_multiple_of(8) - bytes.len();
        written.0.extend(std::iter::repeat_n(0, fill));
        written
    }
}
