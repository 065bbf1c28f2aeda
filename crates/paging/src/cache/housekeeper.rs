//! The threads of a cache that serve nobody. Each may wait for the device, or for the backing, without the others.

use super::PagingCache;
use super::device::DEVICE_PAUSE;
use bifolio_block::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the housekeeper looks.
const TICK: Duration = Duration::from_millis(10);
/// How often it is looked whether anybody hangs in the device.
const WATCH: Duration = Duration::from_millis(100);
/// How long the end waits for threads that are in the device.
const END_MAX: Duration = Duration::from_secs(2);

/// Threads that do until this is dropped what [`PagingCache::tick`] does: one looks after the device, and may never return
/// from a call of it, one writes back, and one looks whether anybody is in such a call.
#[derive(Debug)]
pub struct Housekeeper {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Housekeeper {
    /// Starts it.
    ///
    /// # Errors
    /// The system's.
    pub fn start(cache: Arc<PagingCache>) -> Result<Self> {
        let is_over = Arc::<AtomicBool>::default();
        let mut own = Self { is_over, threads: vec![] };
        let (watched, writing) = (Arc::clone(&cache), Arc::clone(&cache));
        let name = cache.name.clone();
        own.spawn(&name, TICK, move || cache.look_after_device())?;
        own.spawn(&name, TICK, move || writing.write_back_when_due())?;
        own.spawn(&name, WATCH, move || _ = watched.leave_hanging(watched.now_ms()))?;
        Ok(own)
    }

    fn spawn(&mut self, name: &str, pause: Duration, role: impl Fn() + Send + 'static) -> Result<()> {
        let seen = Arc::clone(&self.is_over);
        let look = move || {
            while !seen.load(Ordering::Acquire) {
                role();
                std::thread::park_timeout(pause);
            }
        };
        let thread = std::thread::Builder::new().name("bifolio-paging".to_owned()).spawn(look);
        let failed = |error| bifolio_block::Error::system(name, "starting its housekeeper", error);
        self.threads.push(thread.map_err(failed)?);
        Ok(())
    }
}

impl Drop for Housekeeper {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.threads.iter().for_each(|thread| thread.thread().unpark());
        let begun = Instant::now();
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && begun.elapsed() < END_MAX {
                std::thread::sleep(DEVICE_PAUSE);
            }
            // One that is still in the device is left to it: what is in the backing must not wait for that.
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}
