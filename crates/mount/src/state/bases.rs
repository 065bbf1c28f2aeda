//! What the kernel was last given of pages of shared files, in memory that outlives the server: without it a page that
//! comes back to a successor would be written whole, over what devices have released beside what was stored.
//!
//! A base is torn if the server is killed while it is written. Then the page is either being given, and is given again, or it
//! has come back, and comes again: bytes of it that the base already has were written before.

use super::Rows;
use bifolio_keeper::{Result, SharedMemory};
use std::io;
use std::sync::atomic::Ordering;

/// Pages at a time: 64 GiB.
const BASES_MAX: usize = 1 << 24;
/// Words of a row: the node, which is never 0, the page, how many bytes the base has.
const NODE: usize = 0;
const PAGE_NUMBER: usize = 1;
const LEN: usize = 2;
const WIDTH: usize = 3;

/// The kernel's unit.
const PAGE: usize = 4096;
const PAGE_WORDS: usize = PAGE / size_of::<u64>();

/// All bases of all files.
#[derive(Debug)]
pub(crate) struct Bases {
    rows: Rows,
    pages: SharedMemory,
}

/// The base of one page. Bytes behind what it has are zeroes: there the file ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Base(u32);

impl Bases {
    /// None yet.
    pub(crate) fn create() -> Result<Self> {
        Ok(Self {
            rows: Rows::create("bifolio-mount-bases", WIDTH, BASES_MAX)?,
            pages: SharedMemory::create("bifolio-mount-pages", BASES_MAX * PAGE_WORDS)?,
        })
    }

    pub(super) fn adopt(&self) {
        self.rows.adopt();
    }

    /// All that are known: node, page, base.
    pub(crate) fn all(&self) -> Vec<(u64, u64, Base)> {
        self.rows.all().map(|row| (self.rows.get(row, NODE), self.rows.get(row, PAGE_NUMBER), Base(row))).collect()
    }

    /// A new base of a page.
    ///
    /// # Errors
    /// `ENFILE` when there are too many.
    pub(crate) fn add(&self, node: u64, page: u64, bytes: &[u8]) -> io::Result<Base> {
        let base = Base(self.rows.take()?);
        self.set(base, bytes);
        self.rows.set(base.0, PAGE_NUMBER, page);
        self.rows.set(base.0, NODE, node);
        Ok(base)
    }

    /// The kernel is given a page once more.
    pub(crate) fn set(&self, base: Base, bytes: &[u8]) {
        self.write(base, 0, bytes);
        self.rows.set(base.0, LEN, bytes.len() as u64);
    }

    /// Bytes of a page are others now.
    pub(crate) fn put(&self, base: Base, at: usize, bytes: &[u8]) {
        let len = self.len(base);
        if len < at {
            self.write(base, len, &vec![0; at - len]);
        }
        self.write(base, at, bytes);
        self.rows.set(base.0, LEN, len.max(at + bytes.len()) as u64);
    }

    /// The file ends in this page now.
    pub(crate) fn cut(&self, base: Base, len: usize) {
        self.rows.set(base.0, LEN, self.len(base).min(len) as u64);
    }

    /// What it has from a place on.
    pub(crate) fn read(&self, base: Base, at: usize, room: &mut [u8; PAGE]) -> usize {
        let len = self.len(base);
        let first = at / size_of::<u64>();
        for (word, part) in self.words(base)[first..].iter().zip(room[first * 8..].chunks_exact_mut(8)) {
            part.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        if at < len {
            room.copy_within(at..len, 0);
        }
        len.saturating_sub(at)
    }

    /// The kernel has forgotten the page.
    pub(crate) fn remove(&self, base: Base) {
        self.rows.give_back(base.0);
    }

    fn len(&self, base: Base) -> usize {
        (self.rows.get(base.0, LEN) as usize).min(PAGE)
    }

    fn words(&self, base: Base) -> &[std::sync::atomic::AtomicU64] {
        &self.pages.words()[base.0 as usize * PAGE_WORDS..][..PAGE_WORDS]
    }

    fn write(&self, base: Base, at: usize, bytes: &[u8]) {
        let (words, end) = (self.words(base), at + bytes.len());
        let mut from = at;
        while from < end {
            let (word, inside) = (&words[from / 8], from % 8);
            let count = (8 - inside).min(end - from);
            let mut value = if count < 8 { word.load(Ordering::Relaxed).to_ne_bytes() } else { [0; 8] };
            value[inside..inside + count].copy_from_slice(&bytes[from - at..from - at + count]);
            word.store(u64::from_ne_bytes(value), Ordering::Release);
            from += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beside bytes in memory, which are a base as it was before.
    #[test]
    fn a_base_has_what_was_put_and_zeroes_where_nothing_was() {
        let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
        let bases = Bases::create().unwrap();
        let (base, mut expected) = (bases.add(5, 7, &[]).unwrap(), vec![]);
        for step in 0..20_000 {
            let at = random.usize(..PAGE);
            let bytes = vec![step as u8; random.usize(..=PAGE - at)];
            match random.u8(..4) {
                0 => {
                    bases.set(base, &bytes);
                    expected.clone_from(&bytes);
                }
                1 => {
                    bases.cut(base, at);
                    expected.truncate(at);
                }
                _ => {
                    bases.put(base, at, &bytes);
                    expected.resize(expected.len().max(at + bytes.len()), 0);
                    expected[at..at + bytes.len()].copy_from_slice(&bytes);
                }
            }
            let (from, mut room) = (random.usize(..PAGE), [9; PAGE]);
            let len = bases.read(base, from, &mut room);
            assert_eq!(room[..len], *expected.get(from..).unwrap_or_default(), "step {step}");
        }
        assert_eq!(bases.all(), [(5, 7, base)]);
        bases.remove(base);
        assert!(bases.all().is_empty());
    }
}
