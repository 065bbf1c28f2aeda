//! The trait of everything that has bytes at offsets.

use crate::{Error, ErrorKind, Result};
use std::fmt::Debug;

/// Sizes of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// All of it.
    pub size: u64,
    /// Writes that begin and end at multiples of this need not read first.
    pub block_bytes: u64,
    /// Requests of a multiple of this, at a multiple of it, are the cheapest.
    pub optimal_bytes: u64,
}

/// Bytes at offsets.
///
/// Offsets and lengths are any, as those of `pread` and `pwrite`; only alignment to
/// [`Geometry::block_bytes`] is cheap. Threads call at the same time: requests whose ranges overlap have
/// no order among each other, except that none begins before an earlier one that has returned.
///
/// What a write has stored is in the device until power is lost, and survives that once a later
/// [`BlockDevice::flush`] has returned. A write that failed, or that was under way when power was lost,
/// may have stored any of its blocks.
pub trait BlockDevice: Send + Sync + Debug {
    /// What to call it in a sentence: the file's path, or what is made of several.
    fn name(&self) -> String;

    /// Sizes, which stay as they are while it is open.
    fn geometry(&self) -> Geometry;

    /// Whether writes are refused.
    fn is_read_only(&self) -> bool;

    /// Fills the buffer with the bytes from `offset` on.
    ///
    /// # Errors
    /// `BadRange` if it reaches beyond the end; after every error the buffer's content is of no use.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// Stores bytes from `offset` on.
    ///
    /// # Errors
    /// `BadRange` if they reach beyond the end, in which case nothing is stored; `ReadOnly`, `NoSpace`, `Write`.
    fn write(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// Returns when everything that was stored before is safe from a loss of power.
    ///
    /// # Errors
    /// `Write`; what was stored since the last flush may be lost then, and stays so.
    fn flush(&self) -> Result<()>;

    /// Flushes, and notes on the medium that everything is: for when nobody will write for a while, as at the end of a
    /// process that does not drop the device.
    ///
    /// # Errors
    /// Those of a flush.
    fn settle(&self) -> Result<()> {
        self.flush()
    }

    /// What has failed since this was asked for the last time and was made good, each as a sentence: nobody else hears of
    /// it, as requests succeed all the same.
    fn complaints(&self) -> Vec<String> {
        vec![]
    }

    /// Says that the content of a range is of no use any more. It may be read as anything until it is written
    /// again, and its room may be given back.
    ///
    /// # Errors
    /// Those of a write.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    /// Refuses a range that does not lie inside.
    ///
    /// # Errors
    /// `BadRange`.
    fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        let size = self.geometry().size;
        if offset.checked_add(len).is_some_and(|end| end <= size) {
            return Ok(());
        }
        let detail = format!("{len} bytes at offset {offset} reach beyond its end at {size}");
        Err(Error::new(ErrorKind::BadRange, self.name(), detail))
    }
}
