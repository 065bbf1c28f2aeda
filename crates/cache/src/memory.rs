//! The memory of one device that a cache may use: frames under a budget, and scratch memory of its own.

use crate::{CacheOptions, Error, ErrorKind};
use bifolio_device::{Allocation, Device, DeviceId, DeviceSlice, FRAME_BYTES, Frame, Result, Stream};
use bifolio_io::Router;
use bifolio_kernels::Kernels;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Bytes of incoming content that are merged at a time.
pub(crate) const INCOMING_BYTES: u64 = 64 << 20;
/// Bytes of tables and results.
const TABLE_BYTES: u64 = 4 << 20;

/// Bytes of a host for cached files, where nobody says otherwise.
const HOST_BYTES: u64 = 1 << 30;

/// How a device's router is made when it is first needed.
type Opener = Box<dyn Fn() -> crate::Result<Arc<Router>> + Send + Sync>;

/// A device of a cache, opened when something is first mapped there.
pub(crate) struct Place {
    pub(crate) id: DeviceId,
    open: Opener,
    memory: Mutex<Option<Arc<Memory>>>,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("id", &self.id).field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl Place {
    pub(crate) fn open(router: Arc<Router>) -> Self {
        Self::lazy(router.device().id(), Box::new(move || Ok(Arc::clone(&router))))
    }

    pub(crate) fn lazy(id: DeviceId, open: Opener) -> Self {
        Self { id, open, memory: Mutex::default() }
    }

    /// Its memory, if something was mapped there.
    pub(crate) fn opened(&self) -> Option<Arc<Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same, or a refusal while somebody opens it.
    pub(crate) fn opened_now(&self) -> Result<Option<Arc<Memory>>, ()> {
        match self.memory.try_lock() {
            Ok(memory) => Ok(memory.clone()),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner().clone()),
            Err(TryLockError::WouldBlock) => Err(()),
        }
    }

    /// Its memory.
    pub(crate) fn memory(&self, options: &CacheOptions) -> crate::Result<Arc<Memory>> {
        let mut opened = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = &*opened {
            return Ok(Arc::clone(memory));
        }
        let (router, nowhere) = ((self.open)()?, Path::new("the cache"));
        let device = router.device().clone();
        if let Some(reason) = device.capabilities().virtual_memory.reason() {
            let detail = format!("{} cannot hold cached files: {reason}", self.id);
            return Err(Error::new(ErrorKind::Device, nowhere, detail));
        }
        let budget_bytes = match options.budget_bytes {
            CacheOptions::BY_DEVICE => budget_of(&device).map_err(|error| Error::device(nowhere, error))?,
            bytes => bytes,
        };
        let memory = Memory::new(&device, router, budget_bytes);
        let memory = Arc::new(memory.map_err(|error| Error::device(nowhere, error))?);
        *opened = Some(Arc::clone(&memory));
        Ok(memory)
    }
}

fn budget_of(device: &Device) -> Result<u64> {
    let bytes = if device.info().is_accelerator { device.memory()?.free / 2 } else { HOST_BYTES };
    Ok(bytes / FRAME_BYTES * FRAME_BYTES)
}

/// Memory of one device of a cache.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) device: Device,
    pub(crate) router: Arc<Router>,
    pub(crate) kernels: Kernels,
    budget_bytes: u64,
    used_bytes: AtomicU64,
    spare: Mutex<Vec<Frame>>,
    scratch: Mutex<Option<Scratch>>,
}

/// Memory for the time of one operation, and a stream for its work.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) stream: Stream,
    pub(crate) incoming: Allocation,
    pub(crate) table: Allocation,
    pub(crate) results: Allocation,
}

impl Memory {
    pub(crate) fn new(device: &Device, router: Arc<Router>, budget_bytes: u64) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            router,
            kernels: Kernels::load(device)?,
            budget_bytes,
            used_bytes: AtomicU64::new(0),
            spare: Mutex::default(),
            scratch: Mutex::default(),
        })
    }

    /// A frame, or none if the budget is used up.
    pub(crate) fn take_frame(&self) -> Result<Option<Frame>> {
        if let Some(frame) = self.spare().pop() {
            return Ok(Some(frame));
        }
        let fits = |used: u64| Some(used + FRAME_BYTES).filter(|sum| *sum <= self.budget_bytes);
        if self.used_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_err() {
            return Ok(None);
        }
        self.device
            .create_frame()
            .map(Some)
            .inspect_err(|_| _ = self.used_bytes.fetch_sub(FRAME_BYTES, Ordering::AcqRel))
    }

    /// Takes a frame back: creating one costs more than mapping it.
    pub(crate) fn give_frame(&self, frame: Frame) {
        self.spare().push(frame);
    }

    /// Bytes of frames that hold something.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Acquire) - self.spare().len() as u64 * FRAME_BYTES
    }

    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Runs `work` with scratch memory, which is made when first needed and kept.
    pub(crate) fn with_scratch<T>(&self, work: impl FnOnce(&Scratch) -> crate::Result<T>) -> crate::Result<T> {
        let mut kept = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let scratch = match kept.take() {
            Some(scratch) => scratch,
            None => Scratch::new(&self.device).map_err(|error| Error::device("the cache".as_ref(), error))?,
        };
        let outcome = work(&scratch);
        // Whatever failed, nothing of it is under way when the memory is used again.
        let _ = scratch.stream.synchronize();
        *kept = Some(scratch);
        outcome
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Frame>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scratch {
    fn new(device: &Device) -> Result<Self> {
        Ok(Self {
            stream: device.create_stream()?,
            incoming: device.alloc(INCOMING_BYTES)?,
            table: device.alloc(TABLE_BYTES)?,
            results: device.alloc(TABLE_BYTES)?,
        })
    }

    /// The first bytes of some scratch memory.
    pub(crate) fn first(memory: &Allocation, bytes: u64) -> Result<DeviceSlice<'_>> {
        memory.slice().part(0, bytes)
    }
}
