//! What callers choose for a router.

use crate::cost::Costs;
use crate::engine::p2p::P2pDriver;
use crate::storage::{OsStorage, Storage};
use bifolio_device::Cancel;
use std::sync::Arc;

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
            threads: threads_for(cpus),
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

/// Eight threads fill the link of an H200 where memory is quick, and twelve where it is not: 256 MiB and more come 9 to 15
/// percent faster by twelve on machines with 16 processors. The others are left to the program.
fn threads_for(cpus: usize) -> usize {
    cpus.min(8).max((cpus * 3 / 4).min(12))
}

fn physical_memory() -> u64 {
    // SAFETY: plain questions to the C library.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).unwrap_or(0) * u64::try_from(page).unwrap_or(0)
}
