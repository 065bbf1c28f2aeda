//! Choices for a cache.

use crate::error::{Error, ErrorKind, Result};
use bifolio_device::FRAME_BYTES;
use std::time::Duration;

/// Longest frames that may be asked for.
const FRAME_BYTES_MAX: u64 = 1 << 30;

/// As long as operating systems keep dirty pages.
const WRITE_BACK_AFTER: Duration = Duration::from_secs(5);

/// When released bytes move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// When somebody needs them: devices and CPUs that read through the cache get them from the device that has them;
    /// to the file they go with a sync, an eviction, a CPU's write, or after some seconds.
    #[default]
    Lazy,
    /// At once, for files that CPU processes read by themselves.
    Eager,
}

/// Choices for a cache.
#[derive(Debug, Clone, Copy)]
pub struct CacheOptions {
    /// Bytes of a page, the unit of coherence: a power of two from 4 KiB to 2 MiB.
    pub page_bytes: u64,
    /// Bytes of each device's memory for cached files and their twins; see [`CacheOptions::BY_DEVICE`].
    pub budget_bytes: u64,
    /// When released bytes move.
    pub mode: Mode,
    /// Bytes of a frame, the unit of device memory: a power of two from 2 MiB to 1 GiB, or 0 for what fits the
    /// budget and the file, up to 512 MiB.
    pub frame_bytes: u64,
    /// How long what was released stays on devices alone at most, if nobody needs it before; `Duration::MAX` for as long
    /// as there is room.
    pub write_back_after: Duration,
}

impl CacheOptions {
    /// Leaves the budget to the device: half of what is free on a GPU when it is opened, 1 GiB of a host.
    pub const BY_DEVICE: u64 = 0;

    /// Refuses sizes that no cache has.
    pub(crate) fn check(&self) -> Result<()> {
        let (page_bytes, frame_bytes) = (self.page_bytes, self.frame_bytes);
        let bad = |detail: String| Err(Error::new(ErrorKind::BadRange, "the cache", detail));
        if !page_bytes.is_power_of_two() || !(4096..=FRAME_BYTES).contains(&page_bytes) {
            return bad(format!("pages cannot have {page_bytes} bytes: use a power of two from 4096 to {FRAME_BYTES}"));
        }
        if frame_bytes != 0
            && !(frame_bytes.is_power_of_two() && (FRAME_BYTES..=FRAME_BYTES_MAX).contains(&frame_bytes))
        {
            return bad(format!(
                "frames cannot have {frame_bytes} bytes: use a power of two from {FRAME_BYTES} to {FRAME_BYTES_MAX}, or 0"
            ));
        }
        Ok(())
    }
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            page_bytes: 64 << 10,
            budget_bytes: 1 << 30,
            mode: Mode::Lazy,
            frame_bytes: 0,
            write_back_after: WRITE_BACK_AFTER,
        }
    }
}
