//! An open file of a cache, as a CPU uses it.

use crate::directory::failures::Unwritten;
use crate::directory::{Locked, cpu};
use crate::error::{ErrorKind, Result};
use crate::page::Device;
use crate::pool::{Held, Pool, Room};
use crate::state::lease::Client;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often an operation asks other files for memory.
const TRIES_MAX: u32 = 3;

/// An open file of a cache. Clones share it.
#[derive(Debug)]
pub struct CachedFile {
    /// Before the pool: the last holder of a file leaves to the cache what cannot be written.
    pub(crate) held: Arc<Held>,
    pub(crate) pool: Arc<Pool>,
    /// Failures of syncs that its holder knows of.
    pub(crate) told: AtomicU64,
    /// Who asks by it.
    pub(crate) client: Client,
}

impl Clone for CachedFile {
    fn clone(&self) -> Self {
        let told = AtomicU64::new(self.told.load(Ordering::Relaxed));
        Self { pool: Arc::clone(&self.pool), held: Arc::clone(&self.held), told, client: self.client }
    }
}

impl CachedFile {
    pub(crate) fn new(pool: &Arc<Pool>, held: Arc<Held>) -> Self {
        let told = AtomicU64::new(held.told_to_newcomers());
        Self { pool: Arc::clone(pool), held, told, client: 0 }
    }

    /// The same for another one of the processes that it serves.
    #[must_use]
    pub fn for_client(&self, client: Client) -> Self {
        Self { client, ..self.clone() }
    }

    /// Its size when it was last looked at.
    pub fn size(&self) -> u64 {
        self.held.lock().versions.size()
    }

    /// How many of its bytes each device of the cache has, in whole pages.
    pub fn cached_bytes(&self) -> Vec<u64> {
        let directory = self.held.lock();
        let (page_bytes, mut bytes) = (directory.versions.page_bytes(), vec![0; self.pool.devices.len()]);
        let pages = directory.versions.size().div_ceil(page_bytes);
        for page in (0..pages).filter_map(|page| directory.versions.page(page)) {
            for (device, bytes) in bytes.iter_mut().enumerate() {
                *bytes += if page.is_held_by(device) { page_bytes } else { 0 };
            }
        }
        bytes
    }

    /// Whether a device has the pages that some bytes are in, up to date or not.
    pub fn is_cached(&self, device: usize, mut bytes: impl Iterator<Item = u64>) -> bool {
        let directory = self.held.lock();
        let (versions, page_bytes) = (&directory.versions, directory.versions.page_bytes());
        bytes.all(|byte| versions.page(byte / page_bytes).is_some_and(|page| page.is_held_by(device)))
    }

    /// Reads as a CPU: everything that devices have released is seen. Less than was asked for at the end of
    /// the file.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.operate(None, |directory| cpu::read(directory, offset, buffer))
    }

    /// Writes as a CPU; devices see it from their next acquire on, and only the pages that it touched move.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.operate(None, |directory| cpu::write(directory, offset, bytes))
    }

    /// Writes everything that was released to the file, and makes it durable.
    ///
    /// # Errors
    /// `Write`. If the disk has failed since this holder of the file last asked, whoever's sync found out, that is
    /// told once, and so is what was released and is gone with a lost device.
    pub fn sync(&self) -> Result<()> {
        self.with(None, |directory| cpu::sync(directory, &self.told))
    }

    /// Ends this holder of the file. The last one writes everything that was released to the file, as dropping him does, and
    /// is told if that fails. The file is closed in any case: what cannot be written stays in the cache, which goes on
    /// trying, and gives it to whoever opens the file again.
    ///
    /// # Errors
    /// `Write` if something cannot be written, or if it is lost or perhaps not on the disk and this holder was not told
    /// by a sync.
    pub fn close(self) -> Result<()> {
        let Self { held, pool, told, .. } = self;
        let told = held.lock().tell(&told);
        let ended = Arc::into_inner(held).map_or(Ok(()), |last| last.end());
        drop(pool);
        ended.and(told)
    }

    /// Writes what was released to the file if there is no holder but the one who asks, who holds it so many times.
    pub(crate) fn write_if_last(&self, own: usize) -> Result<()> {
        if Arc::strong_count(&self.held) > own {
            return Ok(());
        }
        self.held.write_out().map_err(Unwritten::told)
    }

    /// Works on the file under its lock, for a device or a CPU, and tells of it.
    pub(crate) fn with<T>(&self, device: Option<Device>, work: impl FnOnce(&mut Locked<'_>) -> T) -> T {
        let outcome = self.held.with(device, work);
        self.pool.operated();
        outcome
    }

    /// The same, and begins again where it meets a lost device.
    pub(crate) fn operate<T>(
        &self,
        device: Option<Device>,
        work: impl FnMut(&mut Locked<'_>) -> Result<T>,
    ) -> Result<T> {
        let outcome = self.held.operate(device, work);
        self.pool.operated();
        outcome
    }

    /// The same for what needs up to `bytes` of memory of a device, again and again while there is some to be had: from
    /// other files, or when other operations have ended. One of those who wait for the latter tries at a time.
    pub(crate) fn with_room<T>(
        &self,
        device: Device,
        bytes: u64,
        mut work: impl FnMut(&mut Locked<'_>) -> Result<T>,
    ) -> Result<T> {
        let there = &self.pool.devices[device];
        let (memory, mut turn, mut tries) = (there.opened(), None, 0);
        loop {
            let error = match self.operate(Some(device), &mut work) {
                Err(error) if error.kind() == ErrorKind::OutOfMemory => error,
                outcome => return outcome,
            };
            let busy = if error.is_passing() {
                Arc::clone(&self.held.file)
            } else if tries == TRIES_MAX {
                return Err(error);
            } else {
                // Others may take what becomes free here, and nothing of this file is locked while they give it.
                tries += 1;
                match self.pool.make_room(device, bytes, &self.held) {
                    Room::Made => continue,
                    Room::Awaited(file) => file,
                    Room::None => return Err(error),
                }
            };
            turn = turn.or_else(|| memory.as_ref().map(|memory| memory.turn_when_short()));
            busy.wait_for_others();
        }
    }
}
