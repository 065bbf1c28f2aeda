//! A device in memory that fails on demand: the seam for tests of everything that is stacked on others.
//!
//! It remembers what was written since the last flush. A loss of power keeps any part of that: every
//! block of [`FaultyDevice::BLOCK_BYTES`] by itself, or none, or all before some point.

use crate::{BlockDevice, Error, ErrorKind, Geometry, Result};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What to do, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a failure by itself, and any of them may come together")]
pub struct Faults {
    /// So many more writes and flushes succeed; then power is gone, and every request fails. None: it stays.
    pub power_for: Option<u64>,
    /// Every read fails.
    pub reads_fail: bool,
    /// Every write fails.
    pub writes_fail: bool,
    /// Every flush fails.
    pub flushes_fail: bool,
    /// Every write fails as on a full disk.
    pub is_full: bool,
    /// A bad sector: writes that include this byte fail.
    pub bad_byte: Option<u64>,
}

/// A device in memory.
#[derive(Debug)]
pub struct FaultyDevice {
    name: String,
    medium: Mutex<Medium>,
}

#[derive(Debug)]
struct Medium {
    /// As it is read.
    now: Vec<u8>,
    /// What a loss of power leaves for certain.
    flushed: Vec<u8>,
    /// Blocks written since, oldest first.
    pending: Vec<(usize, Vec<u8>)>,
    faults: Faults,
    requests: u64,
}

impl FaultyDevice {
    /// A write of so many bytes at a multiple of them is whole or not there; longer ones can be torn.
    pub const BLOCK_BYTES: usize = 512;

    /// A device with this content, a multiple of [`FaultyDevice::BLOCK_BYTES`], all of it flushed.
    ///
    /// # Panics
    /// For another length.
    pub fn new(name: impl Into<String>, content: Vec<u8>) -> Self {
        assert!(content.len().is_multiple_of(Self::BLOCK_BYTES), "whole blocks");
        let medium = Medium {
            flushed: content.clone(),
            now: content,
            pending: Vec::new(),
            faults: Faults::default(),
            requests: 0,
        };
        Self { name: name.into(), medium: Mutex::new(medium) }
    }

    /// From now on.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// Writes and flushes so far, failed ones too.
    pub fn requests(&self) -> u64 {
        self.lock().requests
    }

    /// As it is read now.
    pub fn content(&self) -> Vec<u8> {
        self.lock().now.clone()
    }

    /// Changes bytes as a medium does that has gone bad.
    pub fn corrupt(&self, offset: usize, change: impl FnOnce(&mut [u8]), len: usize) {
        let mut medium = self.lock();
        change(&mut medium.now[offset..offset + len]);
        let now = medium.now[offset..offset + len].to_vec();
        medium.flushed[offset..offset + len].copy_from_slice(&now);
    }

    /// The device after a loss of power, all faults gone: of the blocks written since the last flush those stay for
    /// which `survives` says so, which is asked with the number of the write among them.
    #[must_use]
    pub fn after_power_loss(&self, mut survives: impl FnMut(usize) -> bool) -> Self {
        let medium = self.lock();
        let mut content = medium.flushed.clone();
        for (number, (at, block)) in medium.pending.iter().enumerate() {
            if survives(number) {
                content[*at..*at + block.len()].copy_from_slice(block);
            }
        }
        Self::new(self.name.clone(), content)
    }

    fn lock(&self) -> MutexGuard<'_, Medium> {
        self.medium.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, kind: ErrorKind, detail: &str) -> Error {
        Error::new(kind, &self.name, detail)
    }
}

impl Medium {
    /// Counts a write or flush; whether there is power for it.
    fn spend(&mut self) -> bool {
        self.requests += 1;
        match &mut self.faults.power_for {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    fn store(&mut self, offset: usize, data: &[u8]) {
        self.now[offset..offset + data.len()].copy_from_slice(data);
        let unit = FaultyDevice::BLOCK_BYTES;
        let blocks = offset / unit..(offset + data.len()).div_ceil(unit);
        for block in blocks {
            let at = block * unit;
            let content = self.now[at..at + unit].to_vec();
            self.pending.push((at, content));
        }
    }
}

impl BlockDevice for FaultyDevice {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn geometry(&self) -> Geometry {
        let block = Self::BLOCK_BYTES as u64;
        Geometry { size: self.lock().now.len() as u64, block_bytes: block, optimal_bytes: block }
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.check_range(offset, buffer.len() as u64)?;
        let medium = self.lock();
        if medium.faults.reads_fail || medium.faults.power_for == Some(0) {
            return Err(self.failed(ErrorKind::Read, "an injected fault: the read failed"));
        }
        buffer.copy_from_slice(&medium.now[offset as usize..offset as usize + buffer.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_range(offset, data.len() as u64)?;
        let mut medium = self.lock();
        if !medium.spend() {
            return Err(self.failed(ErrorKind::Write, "an injected fault: no power"));
        }
        if medium.faults.is_full {
            return Err(self.failed(ErrorKind::NoSpace, "an injected fault: no space left"));
        }
        let is_bad = medium.faults.bad_byte.is_some_and(|at| (offset..offset + data.len() as u64).contains(&at));
        if medium.faults.writes_fail || is_bad {
            return Err(self.failed(ErrorKind::Write, "an injected fault: the write failed"));
        }
        medium.store(offset as usize, data);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let mut medium = self.lock();
        if !medium.spend() || medium.faults.flushes_fail {
            return Err(self.failed(ErrorKind::Write, "an injected fault: the flush failed"));
        }
        let medium = &mut *medium;
        medium.flushed.clone_from(&medium.now);
        medium.pending.clear();
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        // Read as anything: as what shows a caller that relies on zeroes.
        self.check_range(offset, len)?;
        self.write(offset, &vec![0xdb; len as usize])
    }
}
