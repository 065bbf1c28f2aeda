//! What outlives a server that is killed: plain numbers in shared memory, which its successor has mapped as well, as both
//! are forks of one keeper. The descriptors that they name stay open, as all forks share one table
//! ([`bifolio_keeper::forks`]).
//!
//! ```text
//!   nodes    inodes that the kernel knows: number, file, descriptor or handle, how often it was told of each
//!   handles  openings: which file, by which descriptor, by which request
//!   locks    owners of locks, by the descriptor that has them
//!   turns    requests at work that must not be done twice
//!   recalls  threads that wait for the kernel to return pages
//!   bases    what the kernel was last given of pages that it keeps
//! ```
//!
//! Each is a table of rows ([`Rows`]). A row counts from when its first word is stored, which is the last one to be, and
//! until that is 0, which it becomes first. A descriptor is named in it from after it was opened until before it is closed.

mod bases;
mod rows;
mod turns;

pub(crate) use bases::{Base, Bases};
pub(crate) use rows::Rows;
pub(crate) use turns::{Before, RESENT, Turn, Turns};

use bifolio_keeper::{Result, SharedMemory};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Inodes that the kernel may know at a time.
const NODES_MAX: usize = 1 << 23;
pub(crate) const NODE_WORDS: usize = 28;
/// Openings.
const HANDLES_MAX: usize = 1 << 21;
pub(crate) const HANDLE_WORDS: usize = 6;
/// Owners of locks.
const LOCKS_MAX: usize = 1 << 18;
pub(crate) const LOCK_WORDS: usize = 4;

const WORDS: usize = 64;

/// Threads that wait for the kernel to return pages.
const RECALLS_MAX: usize = 1 << 10;

/// Single numbers, by their places.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Word {
    /// What the kernel can do, as it said when it greeted (`FUSE_INIT`); its version, 32 bits each for major and minor; and
    /// how far it reads ahead at most.
    Capabilities,
    Version,
    ReadAhead,
    /// Whether the kernel has refused to pass files: it is not asked again.
    CannotPass,
    /// The last handle, and the last generation.
    Handle,
    Generation,
    /// It is unmounted, and served until nobody has files open.
    Unmounted,
    /// The descriptor, plus one, of the connection by which shared files are written; or 0.
    Connection,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct State {
    words: SharedMemory,
    pub(crate) nodes: Arc<Rows>,
    pub(crate) handles: Arc<Rows>,
    pub(crate) locks: Arc<Rows>,
    pub(crate) turns: Turns,
    recalls: Rows,
    pub(crate) bases: Arc<Bases>,
}

impl State {
    /// Nothing is known yet. Memory is taken as it is used.
    pub(crate) fn create() -> Result<Self> {
        let rows = |name, width, count| Rows::create(name, width, count).map(Arc::new);
        Ok(Self {
            words: SharedMemory::create("bifolio-mount", WORDS)?,
            nodes: rows("bifolio-mount-nodes", NODE_WORDS, NODES_MAX)?,
            handles: rows("bifolio-mount-handles", HANDLE_WORDS, HANDLES_MAX)?,
            locks: rows("bifolio-mount-locks", LOCK_WORDS, LOCKS_MAX)?,
            turns: Turns::create()?,
            recalls: Rows::create("bifolio-mount-recalls", 1, RECALLS_MAX)?,
            bases: Arc::new(Bases::create()?),
        })
    }

    /// In a successor: finds what is free, which each process knows for itself.
    pub(crate) fn adopt(&self) {
        self.nodes.adopt();
        self.handles.adopt();
        self.locks.adopt();
        self.turns.adopt();
        self.forget_recalls();
        self.recalls.adopt();
        self.bases.adopt();
    }

    pub(crate) fn word(&self, word: Word) -> &AtomicU64 {
        &self.words.words()[word as usize]
    }

    pub(crate) fn get(&self, word: Word) -> u64 {
        self.word(word).load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, word: Word, value: u64) {
        self.word(word).store(value, Ordering::Release);
    }

    /// The next number of a kind: none is used twice, whoever serves.
    pub(crate) fn next(&self, word: Word) -> u64 {
        self.word(word).fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Waits in the kernel for what programs have stored, which a server has to take: this thread is known to do nothing else,
    /// so that another server takes it if this one is killed.
    pub(crate) fn while_recalling<T>(&self, wait: impl FnOnce() -> T) -> T {
        let row = self.recalls.take().ok();
        // SAFETY: asks for a number.
        row.inspect(|row| self.recalls.set(*row, 0, unsafe { libc::gettid() } as u64));
        let done = wait();
        row.inspect(|row| self.recalls.give_back(*row));
        done
    }

    /// Whether a thread does that.
    pub(crate) fn is_recalling(&self, thread: u32) -> bool {
        self.recalls.all().any(|row| self.recalls.get(row, 0) == u64::from(thread))
    }

    /// A server begins, and what its predecessor's threads waited for is over, or is soon.
    fn forget_recalls(&self) {
        self.recalls.all().for_each(|row| self.recalls.set(row, 0, 0));
    }
}
