//! Volumes into device memory.
//!
//! ```text
//!   BlockDevice::load(range)
//!       file      the router's engines, by the cache state of the file
//!       luks      ciphertext by the device below, decrypted where it lands
//!       md        members at the same time, each chunk to its place; what is lost is computed there
//! ```
//!
//! Encrypted files come by one request of the router, and what lands is decrypted behind it by a stream of its own
//! ([`load_followed`]). Other long requests are cut into parts, and a few threads take one part after the other: while one part is
//! decrypted or recovered, others are on their way over the link. So of the computation only that of the
//! last part is seen. A thread's part is whole when it takes the next.
//!
//! Plaintext and recovered data exist in device memory only, except on devices whose kernels do not work.

mod crypt;
mod follow;
mod stripes;
#[cfg(test)]
mod tests;

pub(crate) use crypt::{Cipher, load_encrypted};
pub use follow::{FOLLOWED_BYTES_MIN, UNIT_BYTES, Work, load_followed};
pub(crate) use stripes::{Failed, Stripes, load_stripes};

use crate::{BlockDevice, Error, ErrorKind, Result};
use bifolio_compute::keyed::Lane;
use bifolio_device::{Allocation, Device, DeviceSlice, PinnedBuffer};
use bifolio_io::{ReadOptions, Router};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a part: enough for the rate of the link, and little beside the volumes that are worth a GPU.
const PART_BYTES: u64 = 128 << 20;
/// Parts at a time: one that is computed on and two that are on their way, as each begins and ends slowly.
const PARTS: usize = 3;
/// Bytes that go through host memory at a time, where they have to.
const BOUNCE_BYTES: usize = 1 << 20;

/// What brings volumes into the memory of one device.
#[derive(Debug)]
pub struct Loader {
    router: Arc<Router>,
    options: ReadOptions,
    lanes: Mutex<Vec<Lane>>,
    scratch: Mutex<Vec<Allocation>>,
}

impl Loader {
    /// One for the router's device; `options` hold for every request to the router, but that each has its own follower.
    pub fn new(router: Arc<Router>, options: ReadOptions) -> Self {
        let options = ReadOptions { follow: None, ..options };
        Self { router, options, lanes: Mutex::default(), scratch: Mutex::default() }
    }

    /// The router.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// The device that memory is on.
    pub fn device(&self) -> &Device {
        self.router.device()
    }

    /// How files are read.
    pub fn options(&self) -> &ReadOptions {
        &self.options
    }

    /// Lends a lane to `work`.
    ///
    /// # Errors
    /// `Device` if none can be made, and those of `work`.
    pub fn with_lane<T>(&self, work: impl FnOnce(&mut Lane) -> Result<T>) -> Result<T> {
        let mut lane = self.take_lane()?;
        let outcome = work(&mut lane);
        self.lock().push(lane);
        outcome
    }

    /// An idle lane, or a new one.
    fn take_lane(&self) -> Result<Lane> {
        let idle = self.lock().pop();
        idle.map_or_else(|| Lane::new(self.device()).map_err(|error| self.failed(error)), Ok)
    }

    /// Lends device memory of at least so many bytes to `work`, with whatever is in it: for what is no secret.
    ///
    /// # Errors
    /// `Device` if there is none, and those of `work`.
    pub fn with_scratch<T, E: From<Error>>(
        &self,
        bytes: u64,
        work: impl FnOnce(DeviceSlice<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let (found, smaller) = {
            let mut idle = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
            match idle.iter().position(|memory| memory.len() >= bytes) {
                Some(at) => (Some(idle.swap_remove(at)), None),
                None => (None, idle.pop()),
            }
        };
        // One of those that are too small makes room for it.
        drop(smaller);
        let memory = match found {
            Some(memory) => memory,
            None => self.device().alloc(bytes).map_err(|error| self.failed(error))?,
        };
        let outcome = work(memory.slice());
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
        outcome
    }

    /// Waits for what the program's default streams hold, if the memory is foreign: the memory, for whatever streams
    /// of the loader's. Every load begins with it.
    ///
    /// # Errors
    /// `Device`.
    pub fn settled<'a>(&self, memory: DeviceSlice<'a>) -> Result<DeviceSlice<'a>> {
        self.device().settle(memory).map_err(|error| self.failed(error))
    }

    /// A device's failure.
    pub fn failed(&self, error: bifolio_device::Error) -> Error {
        // Its message leads with the device, where it names it.
        let text = error.to_string();
        let id = self.device().id().to_string();
        let detail = text.strip_prefix(&format!("{id}: ")).map_or(text.clone(), str::to_owned);
        Error::new(ErrorKind::Device, id, detail).with_source(error)
    }

    /// Refuses to go on once the caller has cancelled.
    ///
    /// # Errors
    /// `Cancelled`.
    pub fn check_cancel(&self, subject: &str) -> Result<()> {
        if self.options.cancel.is_cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, subject, "the request was cancelled"));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Lane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls `load` for the parts of a range, several at a time. Parts begin and end at multiples of `unit`, except where
/// the range itself does not.
///
/// # Errors
/// The first failure, which stops the others.
pub fn in_parts<E: Send>(
    range: &Range<u64>,
    unit: u64,
    load: &(dyn Fn(Range<u64>) -> Result<(), E> + Sync),
) -> Result<(), E> {
    let part_bytes = PART_BYTES.next_multiple_of(unit);
    if range.end - range.start <= part_bytes {
        return if range.is_empty() { Ok(()) } else { load(range.clone()) };
    }
    let (first, last) = (range.start / part_bytes, range.end.div_ceil(part_bytes));
    let (next, is_stopped) = (AtomicU64::new(first), AtomicBool::new(false));
    let failure = Mutex::new(None);
    let work = || {
        while !is_stopped.load(Ordering::Acquire) {
            let part = next.fetch_add(1, Ordering::Relaxed);
            if part >= last {
                break;
            }
            let bytes = (part * part_bytes).max(range.start)..((part + 1) * part_bytes).min(range.end);
            if let Err(error) = load(bytes) {
                is_stopped.store(true, Ordering::Release);
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..PARTS.min((last - first) as usize) {
            // Without a thread more, this one does its parts.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Reads a device by the CPU, and copies: for what has no better way.
pub(crate) fn through_host<D: BlockDevice + ?Sized>(
    device: &D,
    loader: &Loader,
    offset: u64,
    destination: DeviceSlice<'_>,
) -> Result<()> {
    device.check_range(offset, destination.len())?;
    let destination = loader.settled(destination)?;
    let failed = |error| loader.failed(error);
    let mut bounce: PinnedBuffer = loader.device().alloc_pinned(BOUNCE_BYTES).map_err(failed)?;
    let outcome = loader.with_lane(|lane| {
        let mut at = 0;
        while at < destination.len() {
            loader.check_cancel(&device.name())?;
            let len = (BOUNCE_BYTES as u64).min(destination.len() - at);
            let bytes = &mut bounce.bytes_mut()[..len as usize];
            device.read(offset + at, bytes)?;
            lane.stream().upload(destination.part(at, len).map_err(failed)?, bytes).map_err(failed)?;
            loader.options.progress.fetch_add(len, Ordering::Relaxed);
            at += len;
        }
        Ok(())
    });
    // It held what may be a secret.
    zeroize::Zeroize::zeroize(bounce.bytes_mut());
    outcome
}
