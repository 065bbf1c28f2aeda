//! What callers choose.

use super::After;
use crate::storage::{OsStorage, Storage};
use crate::{Costs, EngineKind, P2pDriver};
use bifolio_device::Cancel;
use bifolio_device::{DeviceSlice, Event};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Choices for a router.
#[derive(Debug, Clone)]
pub struct RouterOptions {
    /// Threads that copy out of the page cache for one request.
    pub threads: usize,
    /// Bytes of a pinned slot, a power of two from 64 KiB.
    pub slot_bytes: usize,
    /// Pinned bytes at most.
    pub pool_bytes: usize,
    /// Page-cache bytes that may be pinned for ranges that are read again and again; 0 for none.
    pub mapped_bytes: u64,
    /// Pinned bytes at most for reading ahead of short sequential requests; 0 for no readahead.
    pub readahead_bytes: usize,
    /// Measured costs, as from a [`crate::Profile`]; without them defaults, corrected by what is
    /// observed.
    pub costs: Option<Costs>,
    /// The driver of the direct path; by default the device's own, where it reports one.
    pub p2p: Option<Arc<dyn P2pDriver>>,
    /// Stops every further request of the router: for work that is many requests, such as a
    /// calibration.
    pub cancel: Cancel,
    /// How files are read; a fault injector in tests.
    pub storage: Arc<dyn Storage>,
}

impl Default for RouterOptions {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            threads: cpus.min(8),
            slot_bytes: 4 << 20,
            pool_bytes: 64 << 20,
            mapped_bytes: physical_memory() / 4,
            readahead_bytes: 32 << 20,
            costs: None,
            p2p: None,
            cancel: Cancel::default(),
            storage: Arc::new(OsStorage),
        }
    }
}

fn physical_memory() -> u64 {
    // SAFETY: plain questions to the C library.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).unwrap_or(0) * u64::try_from(page).unwrap_or(0)
}

/// Who chooses the engine of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineChoice {
    /// The planner.
    #[default]
    Auto,
    /// The caller: all bytes by this engine, or an error.
    Only(EngineKind),
}

impl FromStr for EngineChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse()
            .map(Self::Only)
            .map_err(|_| format!("\"{text}\" is not an engine: use auto, cached, mapped, direct or p2p"))
    }
}

impl std::fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Only(engine) => engine.fmt(f),
        }
    }
}

/// Choices for one request.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Who chooses the engine.
    pub engine: EngineChoice,
    /// Look at the residency even where the plan does not need it (an engine was chosen).
    pub report_residency: bool,
    /// Stops the request.
    pub cancel: Cancel,
    /// Counts bytes on their way to the device while the request runs.
    pub progress: Arc<AtomicU64>,
    /// What work of the program's on the destination comes first.
    pub after: After,
    /// Works on bytes as they land: of one request, of one range of a plain file to one place. Others are not followed.
    pub follow: Option<Arc<dyn Follow>>,
}

/// Work that follows the bytes of a request to a device, while others are still on their way.
pub trait Follow: Send + Sync + std::fmt::Debug {
    /// A run of the request by engines begins; short requests have none. It is a second one where the first could not go
    /// on, and brings all bytes again: what was done with those of the first must be over when this returns.
    fn begin(&self);

    /// The bytes of `place`, a part of the destination, will be there when `event` is done. Any thread calls this, once
    /// for each byte of a run at most: some bytes come by ways that have no events, and are there when the request
    /// ends.
    ///
    /// # Errors
    /// They end the request.
    fn copied(&self, place: DeviceSlice<'_>, event: &Event) -> bifolio_device::Result<()>;
}
