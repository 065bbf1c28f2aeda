//! Mounts, which serve files of the cache to programs of the CPU: what they are told, and that they have done it.
//!
//! ```text
//!   a client acquires ── recall ──> queue of each mount ──> its Watch is answered
//!                                                               |  the kernel gives back what programs have stored:
//!   the acquire goes on <── done ── its next Watch <────────────'  the mount writes it, by another connection
//! ```
//!
//! Whoever has a mount recall a range holds nothing meanwhile that a write to the file waits for. A mount that does not do
//! what it was told is not waited for again: its connection is ended.

use super::holding::{Holding, Thing};
use crate::protocol::Event;
use crate::socket::Socket;
use bifolio_cache::{Client, FileId};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a mount may take: as long as a disk takes for what programs have stored.
pub(super) const EVENT_TIME_MAX: Duration = Duration::from_secs(30);

/// How often a session looks whether its mount is still there.
const LOOK: Duration = Duration::from_millis(200);

/// What becomes of something that a mount was told.
const PENDING: u8 = 0;
const DONE: u8 = 1;
/// Programs have the file open past the mount.
const DONE_PAST: u8 = 2;
const GONE: u8 = 3;

/// All mounts.
#[derive(Debug)]
pub(super) struct Watches {
    holding: Arc<Holding>,
    all: Mutex<BTreeMap<Client, Watcher>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Watcher {
    process: i32,
    /// Its connection.
    socket: OwnedFd,
    /// What it was not told yet, or has not done.
    queue: VecDeque<Told>,
}

#[derive(Debug)]
struct Told {
    number: u64,
    event: Event,
    outcome: Arc<AtomicU8>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.queue.iter().for_each(|told| told.outcome.store(GONE, Ordering::Release));
    }
}

/// What mounts were told.
#[derive(Debug, Default)]
pub(super) struct Awaited(Vec<(Client, Arc<AtomicU8>)>);

/// What became of it.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Programs have the file open past a mount.
    pub(super) is_past: bool,
    /// How many mounts have not answered, and are waited for no longer.
    pub(super) late: usize,
}

impl Watches {
    pub(super) fn new(holding: Arc<Holding>) -> Self {
        Self { holding, all: Mutex::default(), changed: Condvar::new() }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Client, Watcher>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has(&self, client: Client) -> bool {
        self.all().contains_key(&client)
    }

    /// Whether a connection is a mount's, as the server before this one has noted.
    pub(super) fn was_noted(&self, client: Client) -> bool {
        self.holding.get(Thing::Connection(client)).is_some_and(|(_, notes)| notes[0] == 1)
    }

    /// A mount of a process is there, and hears of all files that are cached; the next server knows of it as well. Called with
    /// the table of files locked, as [`Watches::tell`] is for those that come and go: nothing is told out of order.
    pub(super) fn begin(&self, client: Client, process: i32, socket: OwnedFd, files: impl Iterator<Item = FileId>) {
        self.holding.note(Thing::Connection(client), [1, 0, 0]);
        let events = files.map(Event::Wanted).chain([Event::All]);
        let queue = events.map(|event| self.told(event, Arc::default())).collect();
        self.all().insert(client, Watcher { process, socket, queue });
    }

    /// Ends a mount's.
    pub(super) fn end(&self, client: Client) {
        let gone = self.all().remove(&client);
        if gone.is_some() {
            drop(gone);
            self.changed.notify_all();
        }
    }

    /// No server before or after this one tells anything under the same number.
    fn told(&self, event: Event, outcome: Arc<AtomicU8>) -> Told {
        Told { number: self.holding.new_client(), event, outcome }
    }

    /// Tells all mounts, and gives what is to be awaited: nothing of those of one process.
    pub(super) fn tell(&self, event: &Event, but: Option<i32>) -> Awaited {
        let mut awaited = vec![];
        for (client, watcher) in &mut *self.all() {
            let outcome = Arc::default();
            watcher.queue.push_back(self.told(event.clone(), Arc::clone(&outcome)));
            if but != Some(watcher.process) {
                awaited.push((*client, outcome));
            }
        }
        self.changed.notify_all();
        Awaited(awaited)
    }

    /// Waits until they have done it, or are gone. Called with nothing that a write to a file waits for.
    pub(super) fn wait(&self, Awaited(awaited): &Awaited) -> Outcome {
        if awaited.is_empty() {
            return Outcome::default();
        }
        let begin = Instant::now();
        let is_pending = |outcome: &AtomicU8| outcome.load(Ordering::Acquire) == PENDING;
        let mut all = self.all();
        while awaited.iter().any(|(_, outcome)| is_pending(outcome)) {
            let Some(left) = EVENT_TIME_MAX.checked_sub(begin.elapsed()) else { break };
            all = self.changed.wait_timeout(all, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut late = 0;
        for (client, _) in awaited.iter().filter(|(_, outcome)| is_pending(outcome)) {
            if let Some(watcher) = all.remove(client) {
                late += 1;
                if let Ok(socket) = watcher.socket.try_clone() {
                    Socket::of(socket).shut_down();
                }
            }
        }
        if late > 0 {
            self.changed.notify_all();
        }
        let is_past = awaited.iter().any(|(_, outcome)| outcome.load(Ordering::Acquire) == DONE_PAST);
        Outcome { is_past, late }
    }

    /// A mount has done what it was told under a number.
    pub(super) fn done(&self, client: Client, number: u64, is_past: bool) {
        let mut all = self.all();
        let Some(watcher) = all.get_mut(&client) else { return };
        if watcher.queue.front().is_some_and(|told| told.number == number)
            && let Some(told) = watcher.queue.pop_front()
        {
            told.outcome.store(if is_past { DONE_PAST } else { DONE }, Ordering::Release);
            self.changed.notify_all();
        }
    }

    /// What it is told next; none once it is gone.
    pub(super) fn next(&self, client: Client, is_gone: impl Fn() -> bool) -> Option<(u64, Event)> {
        let mut all = self.all();
        loop {
            if let Some(told) = all.get(&client)?.queue.front() {
                return Some((told.number, told.event.clone()));
            }
            if is_gone() {
                return None;
            }
            all = self.changed.wait_timeout(all, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
