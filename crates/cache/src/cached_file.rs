//! An open file of a cache, as a CPU uses it.

use crate::directory::{Directory, cpu};
use crate::error::Result;
use crate::page::Device;
use crate::pool::{Held, Pool};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An open file of a cache. Clones share it.
#[derive(Debug)]
pub struct CachedFile {
    pub(crate) pool: Arc<Pool>,
    pub(crate) held: Arc<Held>,
    /// Failures of syncs that its holder knows of.
    pub(crate) told: AtomicU64,
}

impl Clone for CachedFile {
    fn clone(&self) -> Self {
        let told = AtomicU64::new(self.told.load(Ordering::Relaxed));
        Self { pool: Arc::clone(&self.pool), held: Arc::clone(&self.held), told }
    }
}

impl CachedFile {
    pub(crate) fn new(pool: &Arc<Pool>, held: Arc<Held>) -> Self {
        let told = AtomicU64::new(held.lock().failures());
        Self { pool: Arc::clone(pool), held, told }
    }

    /// Its size when it was last looked at.
    pub fn size(&self) -> u64 {
        self.held.lock().versions.size()
    }

    /// Reads as a CPU: everything that devices have released is seen. Less than was asked for at the end of
    /// the file.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.with(None, |directory| cpu::read(directory, offset, buffer))
    }

    /// Writes as a CPU; devices see it from their next acquire on, and only the pages that it touched move.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.with(None, |directory| cpu::write(directory, offset, bytes))
    }

    /// Writes everything that was released to the file, and makes it durable.
    ///
    /// # Errors
    /// `Write`. If the disk has failed since this holder of the file last asked, whoever's sync found out, that is
    /// told once.
    pub fn sync(&self) -> Result<()> {
        self.with(None, |directory| cpu::sync(directory, &self.told))
    }

    /// Works on the file under its lock, for a device or a CPU, and tells of it.
    pub(crate) fn with<T>(&self, device: Option<Device>, work: impl FnOnce(&mut Directory) -> T) -> T {
        let outcome = self.held.with(device, work);
        self.pool.operated();
        outcome
    }

    /// Takes memory on a device from other files.
    pub(crate) fn make_room(&self, device: Device, bytes: u64) -> bool {
        self.pool.make_room(device, bytes, &self.held)
    }
}
