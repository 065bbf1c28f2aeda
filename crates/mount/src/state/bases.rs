//! What the kernel was last given of pages of shared files, in memory that outlives the server: without it a page that
//! comes back to a successor would be written whole, over what devices have released beside what was stored.
//!
//! The memory of a base is given back with it, and what a killed server has not given back its successor does.
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
        let mut free = self.rows.free();
        free.sort_unstable();
        self.give_memory_back(&free);
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

    /// The kernel has forgotten the pages. Nothing counts any more whose memory is given back.
    pub(crate) fn remove(&self, bases: impl IntoIterator<Item = Base>) {
        let mut rows: Vec<u32> = bases.into_iter().map(|base| base.0).collect();
        rows.sort_unstable();
        self.rows.give_back_all(&rows, || self.give_memory_back(&rows));
    }

    /// Of rows in their order, run by run.
    fn give_memory_back(&self, rows: &[u32]) {
        for run in rows.chunk_by(|one, next| one + 1 == *next) {
            let (first, count) = (run[0] as usize, run.len());
            self.pages.give_back(first * PAGE_WORDS..(first + count) * PAGE_WORDS);
        }
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
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

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
        bases.remove([base]);
        assert!(bases.all().is_empty());
    }

    /// Symptom: a server took as much memory as was ever mapped at a time, for as long as the folder was mounted.
    #[test]
    fn bases_that_are_removed_take_no_memory() {
        let bases = Bases::create().unwrap();
        let taken = || {
            let memory = bases.pages.as_fd().try_clone_to_owned().unwrap();
            std::fs::File::from(memory).metadata().unwrap().blocks() * 512
        };
        let add = |page: u64| bases.add(5, page, &[1; PAGE]).unwrap();
        let all: Vec<_> = (0..100).map(add).collect();
        assert_eq!(taken(), 100 * PAGE as u64);
        // Some of them, and one by one.
        bases.remove(all[20..100].iter().rev().copied());
        assert_eq!(taken(), 20 * PAGE as u64);
        all[5..20].iter().for_each(|base| bases.remove([*base]));
        assert_eq!(taken(), 5 * PAGE as u64);
        // A server is killed when they count no longer, and before their memory is given back.
        bases.rows.set(all[0].0, NODE, 0);
        bases.adopt();
        assert_eq!((taken(), bases.all().len()), (4 * PAGE as u64, 4));
        let mut room = [9; PAGE];
        let again = bases.add(5, 1000, &[]).unwrap();
        bases.put(again, 10, &[3]);
        assert_eq!((bases.read(again, 0, &mut room), room[..11].iter().sum::<u8>()), (11, 3));
        assert_eq!(bases.read(all[4], 0, &mut room), PAGE);
        assert!(room == [1; PAGE]);
    }
}
