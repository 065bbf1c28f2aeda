//! Streams for the copies of engines, and the device memory that belongs to each.

use bifolio_device::{Allocation, Device, DeviceSlice, Result, Stream};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Streams kept between requests: creating one is slow, and requests must not share one.
#[derive(Debug)]
pub(crate) struct Streams {
    device: Device,
    idle: Mutex<Vec<CopyStream>>,
}

/// A stream, and the device memory through which slots are scattered on it: one buffer is enough,
/// as the next copy into it waits for the scatter before.
#[derive(Debug)]
struct CopyStream {
    stream: Stream,
    staging: OnceLock<Allocation>,
}

impl Streams {
    pub(crate) fn new(device: &Device) -> Arc<Self> {
        Arc::new(Self { device: device.clone(), idle: Mutex::default() })
    }

    pub(crate) fn take(self: &Arc<Self>) -> Result<LentStream> {
        let idle = self.lock().pop();
        let create = || Ok(CopyStream { stream: self.device.create_stream()?, staging: OnceLock::new() });
        let stream = idle.map_or_else(create, Ok)?;
        Ok(LentStream { lent: Some(stream), home: Arc::clone(self), is_clean: AtomicBool::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<CopyStream>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream in use. Dropping it keeps the stream for the next request if it was declared clean;
/// otherwise the stream goes too, because a failure stays on it.
#[derive(Debug)]
pub(crate) struct LentStream {
    lent: Option<CopyStream>,
    home: Arc<Streams>,
    is_clean: AtomicBool,
}

impl LentStream {
    /// Nothing is in flight, and nothing failed.
    pub(crate) fn declare_clean(&self) {
        self.is_clean.store(true, Ordering::Release);
    }

    /// Device memory of `len` bytes, the same for all users of one router, for work on this stream.
    pub(super) fn staging(&self, len: u64) -> Result<DeviceSlice<'_>> {
        let CopyStream { stream, staging } = self.lent();
        if let Some(memory) = staging.get() {
            return memory.slice().part(0, len);
        }
        let memory = stream.device().alloc(len)?;
        staging.get_or_init(|| memory).slice().part(0, len)
    }

    fn lent(&self) -> &CopyStream {
        self.lent.as_ref().expect("a lent stream is there until it is dropped")
    }
}

impl Deref for LentStream {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.lent().stream
    }
}

impl Drop for LentStream {
    fn drop(&mut self) {
        if let Some(lent) = self.lent.take().filter(|_| self.is_clean.load(Ordering::Acquire)) {
            self.home.lock().push(lent);
        }
    }
}
