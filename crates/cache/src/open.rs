//! Files that are open: one directory each, under a lock, for everybody who has opened the file.

use crate::directory::failures::Unwritten;
use crate::directory::loss::{self, surviving};
use crate::directory::{Directory, Locked, flush, look, mappings, recover, room};
use crate::error::Result;
use crate::monitor::Monitor;
use crate::page::Device;
use crate::state::keeper::Keeper;
use crate::state::lease::{Client, LeaseNumber, Use};
use crate::state::plan::Found;
use crate::stats::Counts;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Device and inode.
pub(crate) type Key = (u64, u64);

/// What has happened to pages.
#[derive(Debug)]
pub(crate) struct Past {
    /// Of files that nobody has open any more.
    pub(crate) closed: Counts,
    /// By device, for which it was done, of all files.
    pub(crate) by_device: Vec<Counts>,
}

impl Past {
    pub(crate) fn new(devices: usize) -> Self {
        Self { closed: Counts::default(), by_device: vec![Counts::default(); devices] }
    }
}

/// One file's directory, and what is done without waiting for it. It outlives the file's last holder for as long as
/// somebody looks at it.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    directory: Monitor<Directory>,
    /// Whether looking at it can tell that it has not changed.
    pub(crate) is_observable: bool,
    devices: usize,
    past: Arc<Mutex<Past>>,
    /// Failures of syncs that syncs of the whole cache have told of.
    pub(crate) told: AtomicU64,
    /// Failures that there were when its last holder closed it.
    untold: AtomicU64,
    /// What is pinned no longer, noted without waiting for the directory.
    let_go: Mutex<Vec<(Client, LeaseNumber)>>,
    /// Whether it waits to be written back.
    pub(crate) noted: AtomicBool,
}

/// What a file has on each device (pages held, behind, pending), and its counts.
pub(crate) type Summary = (Vec<(u64, u64, u64)>, Counts);

impl OpenedFile {
    pub(crate) fn new(directory: Directory, is_observable: bool, devices: usize, past: &Arc<Mutex<Past>>) -> Self {
        let (directory, past) = (Monitor::new(directory), Arc::clone(past));
        Self {
            directory,
            is_observable,
            devices,
            past,
            told: AtomicU64::new(0),
            untold: AtomicU64::new(u64::MAX),
            let_go: Mutex::default(),
            noted: AtomicBool::new(false),
        }
    }

    /// Does what is to be done with what another process has left, before anything else.
    ///
    /// # Errors
    /// It could not be done; what was left is as it was.
    pub(crate) fn go_on(&self, found: &Found, keeper: &dyn Keeper) -> Result<()> {
        let mut directory = self.lock();
        let gone_on = recover::go_on(&mut directory, found, |client| keeper.is_alive(client));
        if gone_on.is_err() {
            directory.abandon();
        }
        gone_on
    }

    /// Begins an operation on the file.
    pub(crate) fn lock(&self) -> Locked<'_> {
        let mut directory = self.directory.lock();
        for (client, number) in self.let_go.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // It may have been let go twice.
            let pinned = directory.versions.lease(client, number).filter(|lease| lease.what == Use::Pinned);
            if let Some(pinned) = pinned {
                mappings::unpin(&mut directory, pinned.device, &pinned.bytes);
                directory.versions.end_lease(client, number);
            }
        }
        loss::give_up(&mut directory);
        directory
    }

    /// Has what was pinned unpinned by whoever uses the directory next.
    pub(crate) fn let_go(&self, client: Client, number: LeaseNumber) {
        self.let_go.lock().unwrap_or_else(PoisonError::into_inner).push((client, number));
    }

    /// Works on the file under its lock, for a device or a CPU, and counts it there.
    pub(crate) fn with<T>(&self, device: Option<Device>, work: impl FnOnce(&mut Locked<'_>) -> T) -> T {
        let mut directory = self.lock();
        let outcome = work(&mut directory);
        let done = directory.versions.counts;
        drop(directory);
        if let Some(device) = device {
            let mut past = self.past();
            past.by_device[device] = past.by_device[device].plus(&done);
        }
        outcome
    }

    /// The same, and begins again where it meets a lost device.
    pub(crate) fn operate<T>(
        &self,
        device: Option<Device>,
        work: impl FnMut(&mut Locked<'_>) -> Result<T>,
    ) -> Result<T> {
        self.with(device, |directory| surviving(directory, work))
    }

    pub(crate) fn summary(&self) -> Summary {
        self.summary_of(&self.lock())
    }

    /// The same, unless somebody works on the file.
    pub(crate) fn summary_now(&self) -> Option<Summary> {
        self.directory.try_lock().map(|directory| self.summary_of(&directory))
    }

    fn summary_of(&self, directory: &Directory) -> Summary {
        let versions = &directory.versions;
        (versions.pages_by_state(self.devices), versions.counts_of_all())
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lock().versions.counts_of_all()
    }

    /// Takes memory away on a device that nobody uses, up to some bytes: how many, and whether operations that have not
    /// ended have more.
    pub(crate) fn give_room(&self, device: Device, bytes: u64) -> (u64, bool) {
        room::give_room(&mut self.lock(), device, bytes)
    }

    /// The same of what is elsewhere as well.
    pub(crate) fn give_clean(&self, device: Device, bytes: u64) -> u64 {
        room::give_clean(&mut self.lock(), device, bytes).unwrap_or(0)
    }

    /// Bytes of a device that readers keep as their versions.
    pub(crate) fn left_bytes(&self, device: Device) -> u64 {
        self.lock().asides.bytes(device)
    }

    /// Waits until an operation that has locked something of it has given that up.
    pub(crate) fn wait_for_others(&self) {
        self.directory.wait_for_others();
    }

    /// The first bytes from an offset on that the file lacks some of, as many as are asked for.
    pub(crate) fn unwritten(&self, from: u64, bytes: u64) -> Option<Range<u64>> {
        let directory = self.lock();
        let versions = &directory.versions;
        let first = versions.first_unsettled(&(from..versions.size().max(from)))?;
        Some(first..first + bytes)
    }

    /// Writes what the file lacks of a range; whether it could.
    pub(crate) fn write_back(&self, range: &Range<u64>) -> bool {
        surviving(&mut self.lock(), |directory| flush::write_back(directory, range)).is_ok()
    }

    /// Writes what was released to the file.
    pub(crate) fn write_out(&self) -> Result<(), Unwritten> {
        mappings::write_out(&mut self.lock())
    }

    /// Writes what was released to the file, and takes everything from the devices but what cannot be written.
    pub(crate) fn end(&self) -> Result<(), Unwritten> {
        let mut directory = self.lock();
        let ended = mappings::end(&mut directory);
        self.untold.store(directory.failures.count(), Ordering::Relaxed);
        let counts = directory.versions.take_counts();
        let mut past = self.past();
        past.closed = past.closed.plus(&counts);
        ended
    }

    /// Gives the memory back of what the file has by now, as nobody holds it who could use that.
    pub(crate) fn give_back(&self) {
        let mut directory = self.lock();
        mappings::give_back_unused(&mut directory);
        let counts = directory.versions.take_counts();
        let mut past = self.past();
        past.closed = past.closed.plus(&counts);
    }

    /// Whether the file has everything that was released, and nothing is to be told to who opens it.
    pub(crate) fn is_done(&self) -> bool {
        let directory = self.directory.lock();
        let is_told = directory.failures.count() <= self.untold.load(Ordering::Relaxed);
        is_told && directory.versions.first_unsettled(&(0..directory.versions.size())).is_none()
    }

    /// Looks what has become of the file meanwhile. What cannot be seen now is seen, or told, when it is used.
    pub(crate) fn look(&self) {
        let _ = look::look(&mut self.lock(), &(0..0));
    }

    /// Up to which failure a new holder counts as told: what happens while nobody holds the file is told to who comes.
    pub(crate) fn told_to_newcomers(&self) -> u64 {
        self.lock().failures.count().min(self.untold.load(Ordering::Relaxed))
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock, if nobody has it.
pub(crate) fn now<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
