//! What moves the chunks of a stream's requests to and from device memory: one staging buffer, slots, and the kernel,
//! which all queues of a router share.

use super::chunk::{CHUNK_BYTES, TABLE_BYTES, table_bytes};
use super::ring::Ring;
use crate::abi::CUfileOpError::CU_FILE_INTERNAL_ERROR;
use crate::buffer::Memory;
use crate::status::{Failure, Outcome};
use bifolio_device::{Allocation, BackendKind, DeviceSlice, Event, Stream};
use bifolio_io::Router;
use bifolio_kernels::{Kernels, scatter::Scatter};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// By the address of the router, which they keep.
type AllSupplies = HashMap<usize, Arc<Supplies>>;

static SUPPLIES: LazyLock<Mutex<AllSupplies>> = LazyLock::new(Mutex::default);

fn all_supplies() -> MutexGuard<'static, AllSupplies> {
    SUPPLIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the queues of a router share.
#[derive(Debug)]
pub(super) struct Supplies {
    /// None where `scatter` does not run on the device: its host path would wait for closed gates.
    pub(super) kernels: Option<Kernels>,
    /// Slots of all queues.
    pub(super) slots: AtomicUsize,
    router: Arc<Router>,
}

impl Drop for Supplies {
    fn drop(&mut self) {
        if !self.router.device().is_alive() {
            // The program has reset the device, and the module went with it.
            std::mem::forget(self.kernels.take());
        }
    }
}

/// What a queue needs to move bytes of a device.
#[derive(Debug)]
pub(super) struct Staging {
    memory: Allocation,
    pub(super) ring: Ring,
    pub(super) supplies: Arc<Supplies>,
}

impl Staging {
    /// Allocates what moving bytes of the router's device needs, but for slots. Allocating, and loading kernels, waits
    /// for closed gates; no thread that opens one does it.
    pub(super) fn new(router: &Arc<Router>) -> Outcome<Self> {
        let memory = router.device().alloc((TABLE_BYTES + CHUNK_BYTES) as u64)?;
        Ok(Self { memory, ring: Ring::default(), supplies: supplies_of(router) })
    }

    /// Makes slots for a request of so many chunks.
    pub(super) fn grow(&mut self, chunks: usize) -> Outcome<()> {
        self.ring.grow(self.supplies.router.device(), chunks, &self.supplies.slots)
    }

    /// The memory of a chunk's commands on `stream`: its table, its data, and the program's memory beyond the base.
    pub(super) fn areas<'a>(&'a self, stream: &'a Stream, memory: &Memory, len: usize) -> Outcome<Areas<'a>> {
        let kernels = self.supplies.kernels.as_ref().ok_or_else(missing)?;
        let (base, rest) = memory.rest().ok_or_else(missing)?;
        let all = self.memory.slice();
        Ok(Areas {
            stream,
            kernels,
            all: all.part(0, (TABLE_BYTES + len) as u64)?,
            table: all.part(0, table_bytes(len))?,
            data: all.part(TABLE_BYTES as u64, len as u64)?,
            // SAFETY: the program keeps its memory until the stream is past the request.
            program: unsafe { DeviceSlice::from_raw_ordered(base, rest) },
        })
    }

    /// Gives it up, once the slots are not in use any more.
    pub(super) fn give_up(mut self) {
        let slots = self.ring.wait();
        self.supplies.slots.fetch_sub(slots, Ordering::Relaxed);
        if !self.supplies.router.device().is_alive() {
            // The program has reset the device, and the memory went with it.
            std::mem::forget((self.memory, self.ring));
        }
    }
}

/// Gives up what no queue has a share of.
pub(super) fn forget_unused() {
    let unused: Vec<_> = all_supplies().extract_if(|_, supplies| Arc::strong_count(supplies) == 1).collect();
    drop(unused);
}

pub(super) fn missing() -> Failure {
    Failure::new(CU_FILE_INTERNAL_ERROR, "a bug in Bifolio, please report it: a stream's queue has no staging memory")
}

/// What the queues of a router share, made for the first of them.
pub(super) fn supplies_of(router: &Arc<Router>) -> Arc<Supplies> {
    let mut all = all_supplies();
    let is_over = |supplies: &Arc<Supplies>| Arc::strong_count(supplies) == 1 && !supplies.router.device().is_alive();
    let over: Vec<_> = all.extract_if(|_, supplies| is_over(supplies)).collect();
    let supplies = all.entry(Arc::as_ptr(router).addr()).or_insert_with(|| {
        let device = router.device();
        let kernels = Kernels::load(device, &[&Scatter]).ok();
        let on_host = device.id().backend == BackendKind::Host;
        let runs = |kernels: &Kernels| on_host || kernels.runs_on_device(&Scatter);
        let (kernels, router) = (kernels.filter(runs), Arc::clone(router));
        Arc::new(Supplies { kernels, slots: AtomicUsize::new(0), router })
    });
    let supplies = Arc::clone(supplies);
    drop(all);
    drop(over);
    supplies
}

/// Memory that the commands of one chunk use, and their stream.
pub(super) struct Areas<'a> {
    stream: &'a Stream,
    kernels: &'a Kernels,
    all: DeviceSlice<'a>,
    table: DeviceSlice<'a>,
    data: DeviceSlice<'a>,
    program: DeviceSlice<'a>,
}

impl Areas<'_> {
    /// Enqueues what brings a slot to the program's memory: the event behind it.
    ///
    /// # Safety
    /// The slot, staging and the program's memory stay until then, and the table that is in the slot when its
    /// turn comes names bytes inside the latter two.
    pub(super) unsafe fn bring(&self, slot: *const u8) -> Outcome<Event> {
        // SAFETY: the caller's promise.
        unsafe {
            self.stream.copy_to_device(self.all, slot)?;
            self.kernels.scatter(self.stream, self.data, self.table, self.program)?;
        }
        Ok(self.stream.record()?)
    }

    /// Enqueues what fetches the program's memory to a slot: the event behind it.
    ///
    /// # Safety
    /// As for `bring`.
    pub(super) unsafe fn fetch(&self, slot: *mut u8) -> Outcome<Event> {
        // SAFETY: the caller's promise.
        unsafe {
            self.stream.copy_to_device(self.table, slot)?;
            self.kernels.scatter(self.stream, self.program, self.table, self.data)?;
            self.stream.copy_to_host(slot.wrapping_add(TABLE_BYTES), self.data)?;
        }
        Ok(self.stream.record()?)
    }
}
