//! Workers that are forks of their keeper and share its table of descriptors (`CLONE_FILES`).
//!
//! ```text
//!   keeper ──fork──> worker 0    opens 7, 8, 9            killed: 7, 8, 9 stay open
//!          ──fork──> worker 1    7, 8, 9 under the same numbers
//! ```
//!
//! Nothing has to be handed over: what a worker opens stays open when it is killed, with its locks and its position, and
//! costs no message. Which number is what, a worker writes into [`crate::SharedMemory`] that the keeper has made, which all
//! forks have mapped. It writes a number there after it has opened it, and takes it away before it closes it, so that what is
//! written is always true. What a killed worker had open beyond that its successor closes ([`Fork::left_open`]).
//!
//! A worker is a fork and nothing else, as a program that is executed gets a table of its own. So it does not become the
//! program that an update has put in place, and whoever calls [`run`] has no thread that could hold a lock at that moment:
//! none at all, or threads that wait. From its first worker on, a keeper opens nothing that stays open: a worker would take it
//! for its predecessor's.
//!
//! A killed worker has gone whole before the next one begins, so that nothing of it changes anything any more. There is one
//! exception: a thread that waits in the kernel for what only a worker can answer would wait for ever, and the process with
//! it. Whoever calls [`run`] says which threads do no more than that (`waits`), and these are left behind.
//!
//! When the keeper ends, the kernel ends its worker, and with it goes everything that was open.

use crate::keep::{Ended, Event};
use crate::restart::Restarts;
use crate::{Error, Result, SharedMemory};
use std::collections::BTreeSet;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How soon an end is noticed.
const TICK: Duration = Duration::from_millis(5);
/// How many ticks pass until a worker is looked at that does not end.
const TICKS_OF_LOOKS: u32 = 10;
/// How soon it is noticed that a worker has looked at what is open.
const LOOK: Duration = Duration::from_micros(200);
/// The code of a worker that panicked, as of a program that does.
const PANICKED: i32 = 101;

/// In a worker: whether it was told to end.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// What a worker knows of itself.
#[derive(Debug)]
pub struct Fork<'a> {
    number: u64,
    words: &'a SharedMemory,
    /// What was open when it began and was not when the first worker did.
    left: Vec<RawFd>,
}

/// Words: which worker was ready last, and which has looked at what is open.
const READY: usize = 0;
const LOOKED: usize = 1;

impl Fork<'_> {
    /// How many were there before.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Says that this worker serves.
    pub fn ready(&self) {
        self.words.words()[READY].store(self.number + 1, Ordering::Release);
    }

    /// Whether this worker was told to end (`SIGTERM`, `SIGINT`).
    pub fn is_ending(&self) -> bool {
        IS_ENDING.load(Ordering::Relaxed)
    }

    /// What predecessors have left open, apart from what is named, in the order of numbers; it is closed with what this
    /// returns. To be called once.
    pub fn left_open(&self, is_named: &dyn Fn(RawFd) -> bool) -> Vec<OwnedFd> {
        let left = self.left.iter().filter(|fd| !is_named(**fd));
        // SAFETY: nobody of this process has opened it, nor has it from its keeper: it was its predecessor's.
        left.map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }).collect()
    }
}

/// Keeps a worker running until one ends well: each is a fork of this process that does `work` and ends with its code. When
/// `is_stopped` says so, the worker is told to end, once it serves. One that ends before any has served is the last: what
/// it has to say it has said. `waits` says of a thread of a killed worker, by its number, that it does nothing but wait for the
/// next one. The thread that calls this has to stay: the kernel ends the worker with it.
///
/// # Errors
/// The system's, where no process can be made, again and again.
pub fn run(
    work: &mut dyn FnMut(&Fork<'_>) -> i32,
    waits: &dyn Fn(u32) -> bool,
    is_stopped: &dyn Fn() -> bool,
    event: &mut dyn FnMut(Event),
) -> Result<Ended> {
    let words = SharedMemory::create("bifolio-forks", 2)?;
    let kept = open_descriptors()?;
    let (mut restarts, mut has_served) = (Restarts::default(), false);
    let mut left_behind: Vec<libc::pid_t> = vec![];
    for number in 0.. {
        let begun = Instant::now();
        let mut begin = || {
            let Ok(open) = open_descriptors() else { return PANICKED };
            let left = open.difference(&kept).copied().collect();
            words.words()[LOOKED].store(number + 1, Ordering::Release);
            work(&Fork { number, words: &words, left })
        };
        let worker = match fork(&mut begin) {
            Ok(worker) => worker,
            Err(error) => match restarts.died(false, false, Duration::ZERO) {
                Some(delay) if !is_stopped() => {
                    event(Event::NotStarted(error));
                    std::thread::sleep(delay);
                    continue;
                }
                _ => return Err(error),
            },
        };
        let mut early = None;
        // Until it has looked, nothing is opened here: it would take that for its predecessor's.
        while words.words()[LOOKED].load(Ordering::Acquire) != number + 1 && early.is_none() {
            std::thread::sleep(LOOK);
            early = ended(worker)?;
        }
        event(Event::Started(worker as u32));
        let (mut is_ready, mut is_told, mut ticks) = (false, false, 0_u32);
        let status = loop {
            left_behind.retain(|old| matches!(ended(*old), Ok(None)));
            let mut ended = if early.is_some() { early } else { ended(worker)? };
            ticks = ticks.wrapping_add(1);
            if ended.is_none() && ticks.is_multiple_of(TICKS_OF_LOOKS) && only_waits(worker, waits) {
                left_behind.push(worker);
                ended = Some(ExitStatus::from_raw(libc::SIGKILL));
            }
            if !is_ready && words.words()[READY].load(Ordering::Acquire) == number + 1 {
                (is_ready, has_served) = (true, true);
                event(Event::Ready);
            }
            if let Some(status) = ended {
                break status;
            }
            if is_ready && !is_told && is_stopped() {
                is_told = true;
                // SAFETY: it is a child of ours that has not been waited for.
                unsafe { libc::kill(worker, libc::SIGTERM) };
            }
            std::thread::sleep(TICK);
        };
        if status.success() {
            return Ok(Ended::Well);
        }
        let was_killed = status.signal() == Some(libc::SIGKILL);
        match restarts.died(is_ready, was_killed, begun.elapsed()) {
            Some(delay) if has_served => {
                event(Event::Died(status));
                // Whoever kills one that serves has nothing to do with how it serves, and somebody waits for the next.
                std::thread::sleep(if is_ready && was_killed { Duration::ZERO } else { delay });
            }
            _ => return Ok(Ended::GaveUp(status)),
        }
    }
    unreachable!("numbers do not end")
}

/// A fork that shares the table of descriptors, and never returns from here.
fn fork(work: &mut dyn FnMut() -> i32) -> Result<libc::pid_t> {
    let keeper = std::process::id();
    let flags = libc::c_long::from(libc::CLONE_FILES | libc::SIGCHLD);
    // SAFETY: without a stack of its own it goes on here, as after `fork`, on a copy of this process's memory. Its caller sees
    // to it that no other thread holds a lock.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, 0_usize, 0_usize, 0_usize) };
    if child < 0 {
        return Err(Error::last_os("making a process"));
    }
    if child > 0 {
        return Ok(child as libc::pid_t);
    }
    // SAFETY: takes numbers, and a handler that stores one. Before the keeper's end is waited for, it may have come.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() as u32 != keeper {
            libc::_exit(1);
        }
        for signal in [libc::SIGTERM, libc::SIGINT] {
            libc::signal(signal, begin_to_end as extern "C" fn(i32) as libc::sighandler_t);
        }
    }
    // On a thread of its own: of the one that goes on after a fork, the C library has the keeper's number.
    let code = std::thread::scope(|scope| {
        let work = Sent(work);
        let thread = scope.spawn(move || {
            let work = work;
            catch_unwind(AssertUnwindSafe(|| (work.0)())).unwrap_or(PANICKED)
        });
        thread.join().unwrap_or(PANICKED)
    });
    // SAFETY: ends this process without the endings of its keeper, whose memory it has a copy of.
    unsafe { libc::_exit(code) }
}

/// Work that goes to another thread while the first one waits for it.
struct Sent<'a>(&'a mut dyn FnMut() -> i32);

// SAFETY: of the two threads of this process one waits until the other has ended.
unsafe impl Send for Sent<'_> {}

extern "C" fn begin_to_end(_: i32) {
    IS_ENDING.store(true, Ordering::Relaxed);
}

/// How a worker ended, if it has.
fn ended(worker: libc::pid_t) -> Result<Option<ExitStatus>> {
    let mut status = 0;
    // SAFETY: there is room for the status.
    match unsafe { libc::waitpid(worker, &raw mut status, libc::WNOHANG) } {
        0 => Ok(None),
        id if id == worker => Ok(Some(ExitStatus::from_raw(status))),
        _ => match std::io::Error::last_os_error() {
            error if error.kind() == std::io::ErrorKind::Interrupted => Ok(None),
            error => Err(Error::system("waiting for the worker", error)),
        },
    }
}

/// Whether a worker is ended but for threads that wait for its successor.
fn only_waits(worker: libc::pid_t, waits: &dyn Fn(u32) -> bool) -> bool {
    let has_ended = |status: &str| {
        let stat = std::fs::read_to_string(status).unwrap_or_default();
        // The state follows the name, which is in brackets.
        stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with(['Z', 'X']))
    };
    if !has_ended(&format!("/proc/{worker}/stat")) {
        return false;
    }
    let tasks = std::fs::read_dir(format!("/proc/{worker}/task")).into_iter().flatten().flatten();
    let mut numbers = tasks.filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
    numbers.all(|task| waits(task) || has_ended(&format!("/proc/{worker}/task/{task}/stat")))
}

/// The numbers of all open descriptors.
fn open_descriptors() -> Result<BTreeSet<RawFd>> {
    let failed = |error| Error::system("listing open descriptors (/proc/self/fd)", error);
    let listed = std::fs::read_dir("/proc/self/fd").map_err(failed)?;
    let mut numbers = BTreeSet::new();
    for entry in listed {
        let name = entry.map_err(failed)?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.parse::<RawFd>().ok()));
    }
    // The one of the listing is closed by now.
    // SAFETY: asks for flags.
    numbers.retain(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0);
    Ok(numbers)
}
