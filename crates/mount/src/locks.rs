//! Locks of ranges of files: POSIX locks and those of open file descriptions, as locks on the source.
//!
//! Each owner of locks has an open file description of the source of its own here, and the kernel's locks of open file
//! descriptions on that: they hold against other owners, and against programs beside the mount, whichever kind of lock
//! those use. What an owner has goes with his description: a process's locks when it closes any descriptor of the file
//! (`flush` names him), those of an open file description with its last descriptor (`release`).
//!
//! The descriptions outlive a server that is killed, with what is locked, and its successor finds them in rows
//! ([`crate::state`]).
//!
//! Nobody is told when a lock becomes free elsewhere, and the library that takes requests apart knows no interrupts. So
//! whoever waits tries again and again, less and less often, and gives up when a signal is pending for him.

use crate::fault::{Point, at};
use crate::nodes::Node;
use crate::state::Rows;
use crate::sync::lock;
use crate::sys;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Between two tries, at first and at most.
const PAUSE_MIN: Duration = Duration::from_micros(500);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// A range and what is wanted of it, in `fcntl`'s words; the end is its last byte.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) kind: i32,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// Whoever has locks of a file: the node's id and the kernel's name for him.
type Owner = (u64, u64);

/// Words of an owner's row. The node is never 0, and the descriptor one more.
const NODE: usize = 0;
const OWNER: usize = 1;
const OPENING: usize = 2;
pub(crate) const LOCK_DESCRIPTOR: usize = 3;

/// All locks.
#[derive(Debug)]
pub(crate) struct Locks {
    rows: Arc<Rows>,
    owners: Mutex<HashMap<Owner, Owned>>,
}

#[derive(Debug)]
struct Owned {
    file: Arc<OwnedFd>,
    /// The opening by which he came.
    opening: u64,
    row: u32,
}

impl Locks {
    /// Those that predecessors knew.
    pub(crate) fn adopt(rows: Arc<Rows>) -> Self {
        let mut owners = HashMap::new();
        for row in rows.all() {
            let word = |at| rows.get(row, at);
            // SAFETY: it is open, as rows name what is, and nobody else of this process has it.
            let file = unsafe { OwnedFd::from_raw_fd((word(LOCK_DESCRIPTOR) - 1) as i32) };
            owners.insert((word(NODE), word(OWNER)), Owned { file: Arc::new(file), opening: word(OPENING), row });
        }
        Self { rows, owners: Mutex::new(owners) }
    }

    /// Tries to lock, or unlocks. `EAGAIN` if somebody else has it.
    pub(crate) fn set(
        &self,
        node: &Node,
        kept: BorrowedFd<'_>,
        owner: u64,
        opening: u64,
        wanted: Wanted,
    ) -> io::Result<()> {
        let file = {
            let mut owners = lock(&self.owners);
            match owners.get(&(node.id, owner)) {
                Some(owned) => Arc::clone(&owned.file),
                None if wanted.kind == libc::F_UNLCK => return Ok(()),
                None => {
                    let file = Arc::new(open(kept)?);
                    let row = self.rows.take().map_err(|_| io::Error::from_raw_os_error(libc::ENOLCK))?;
                    self.rows.fill(row, &[node.id, owner, opening, file.as_raw_fd() as u64 + 1]);
                    owners.insert((node.id, owner), Owned { file: Arc::clone(&file), opening, row });
                    file
                }
            }
        };
        sys::lock(file.as_fd(), libc::F_OFD_SETLK, &mut of(wanted))
    }

    /// Who is in the way of a lock: what he has, and his process where it is known.
    pub(crate) fn get(
        &self,
        node: &Node,
        kept: BorrowedFd<'_>,
        owner: u64,
        wanted: Wanted,
    ) -> io::Result<(Wanted, u32)> {
        let known = lock(&self.owners).get(&(node.id, owner)).map(|owned| Arc::clone(&owned.file));
        let file = known.map_or_else(|| open(kept).map(Arc::new), Ok)?;
        let mut found = of(wanted);
        sys::lock(file.as_fd(), libc::F_OFD_GETLK, &mut found)?;
        let start = found.l_start as u64;
        let end = if found.l_len == 0 { i64::MAX as u64 } else { start + found.l_len as u64 - 1 };
        let process = u32::try_from(found.l_pid).unwrap_or(0);
        Ok((Wanted { kind: i32::from(found.l_type), start, end }, process))
    }

    /// A process has closed a descriptor of a file: its locks go.
    pub(crate) fn closed(&self, node: u64, owner: u64) {
        let mut owners = lock(&self.owners);
        let gone = owners.remove(&(node, owner));
        if let Some(owned) = &gone {
            self.forget(owned);
        }
        drop(owners);
    }

    /// An open file description is gone: its locks go.
    pub(crate) fn released(&self, node: u64, opening: u64) {
        let mut owners = lock(&self.owners);
        if !owners.is_empty() {
            let gone: Vec<_> = owners.extract_if(|of, owned| of.0 == node && owned.opening == opening).collect();
            for (_, owned) in &gone {
                self.forget(owned);
            }
            drop(owners);
        }
    }

    /// Called with the table locked, so that no owner ever has two rows: a successor would find both, close the descriptor of
    /// one, and leave a row that names it, whoever's it is by then. The descriptor is closed afterwards.
    fn forget(&self, owned: &Owned) {
        at(Point::Unlocking);
        self.rows.give_back(owned.row);
    }
}

/// Tries until it is decided; `EINTR` once a signal is pending for the thread that waits.
pub(crate) fn wait(thread: u32, mut attempt: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let mut pause = PAUSE_MIN;
    loop {
        match attempt() {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {}
            decided => return decided,
        }
        if is_signalled(thread) {
            return Err(io::Error::from_raw_os_error(libc::EINTR));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Whether a thread is to handle a signal, or is gone.
fn is_signalled(thread: u32) -> bool {
    // A thread of another namespace has no number here.
    thread != 0 && std::fs::read_to_string(format!("/proc/{thread}/status")).map_or(true, |text| has_signal(&text))
}

/// Whether signals are pending that are neither blocked nor ignored, by what `/proc` says of a thread.
fn has_signal(status: &str) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    };
    (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") & !mask("SigIgn:") != 0
}

/// For locks of both kinds where that may be: a program that is being executed cannot be opened for writing.
fn open(kept: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    sys::reopen(kept, libc::O_RDWR)
        .or_else(|_| sys::reopen(kept, libc::O_RDONLY))
        .or_else(|_| sys::reopen(kept, libc::O_WRONLY))
}

fn of(wanted: Wanted) -> libc::flock {
    let len = if wanted.end >= i64::MAX as u64 { 0 } else { (wanted.end - wanted.start + 1) as i64 };
    libc::flock {
        l_type: wanted.kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: wanted.start as i64,
        l_len: len,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_signal_counts_unless_it_is_blocked_or_ignored() {
        let status = |pending: &str, blocked: &str, ignored: &str| {
            format!("Name:\tcat\nSigPnd:\t{pending}\nShdPnd:\t0\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\n")
        };
        assert!(has_signal(&status("0000000000000002", "0", "0")));
        assert!(!has_signal(&status("0000000000000002", "2", "0")));
        assert!(!has_signal(&status("0000000000000002", "0", "2")));
        assert!(!has_signal(&status("0", "0", "0")));
    }

    static LOCKS: OnceLock<Locks> = OnceLock::new();
    static UNLOCKED: AtomicU32 = AtomicU32::new(0);

    /// Symptom: after two kills a file of somebody else was closed. Cause: between the end of an owner's locks and the end of
    /// his row another thread gave him a second one.
    #[test]
    fn an_owner_gets_no_row_while_his_last_one_is_there() {
        crate::fault::watch(|point| {
            if let (Point::Unlocking, Some(locks)) = (point, LOCKS.get()) {
                assert!(locks.owners.try_lock().is_err(), "another thread may give him a row");
                UNLOCKED.fetch_add(1, Ordering::Relaxed);
            }
        });
        let rows = Arc::new(Rows::create("test", crate::state::LOCK_WORDS, 4).unwrap());
        let locks = LOCKS.get_or_init(|| Locks::adopt(Arc::clone(&rows)));
        for opening in [7, 8] {
            let file = std::fs::File::open("/dev/null").unwrap();
            let row = rows.take().unwrap();
            rows.fill(row, &[1, opening, opening, file.as_raw_fd() as u64 + 1]);
            let owned = Owned { file: Arc::new(file.into()), opening, row };
            lock(&locks.owners).insert((1, opening), owned);
        }
        locks.closed(1, 7);
        locks.released(1, 8);
        assert_eq!((rows.all().count(), UNLOCKED.load(Ordering::Relaxed)), (0, 2));
    }
}
