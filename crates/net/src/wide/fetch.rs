//! Payloads that a device fetches by itself: packets lie in slabs of memory that stay, which are registered with the device, and
//! what travels of a payload is where it is.
//!
//! A batch's packets are held until it is back, and where they go on before a device has answered, clones of them are: nobody writes
//! bytes of a packet that he does not have alone.

use super::layout::Layout;
use crate::packet::Slab;
use bifolio_compute::{Executor, Loaded};
use bifolio_device::{Device, DeviceSlice, HostRegistration, Stream};
use bifolio_kernels::scatter::{self, EXTENT_BYTES, Extent, Scatter};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a payload's entry in the table of a batch.
pub(super) const ENTRY_BYTES: usize = EXTENT_BYTES as usize;

/// Slabs that devices can read, each with its registration: it stays as long as the slab.
static REGISTERED: Mutex<Vec<HostRegistration>> = Mutex::new(Vec::new());

/// From how many bytes of a payload on, on average, fetching is faster than packing: on an H200 frames of 256 bytes took as long
/// either way, of 512 bytes 15 % less, of 1,514 bytes 30 % less, and of 128 bytes 28 % more
/// (bench/results/2026-11-24-net-paths-h200.md).
pub(super) const WORTH_BYTES: usize = 400;

/// Whether a device fetches payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fetch {
    /// Where it is faster: where payloads are long.
    #[default]
    Auto,
    /// Wherever it can.
    Always,
    /// Nowhere.
    Never,
}

/// A device that fetches payloads.
#[derive(Debug)]
pub(super) struct Fetcher {
    device: Device,
    loaded: Loaded,
}

impl Fetcher {
    /// On the executor's device.
    ///
    /// # Errors
    /// Why the device cannot do that, as a sentence without its full stop.
    pub(super) fn new(executor: &Executor, layout: &Layout) -> Result<Arc<Self>, String> {
        let device = executor.device().clone();
        if !layout.wants.payload || layout.has_texts() {
            return Err("its elements look at no payloads, or at what stands before them in flows, too".to_owned());
        }
        let capabilities = device.capabilities();
        if let Some(reason) = capabilities.host_pointers.reason().or_else(|| capabilities.virtual_memory.reason()) {
            return Err(reason.to_owned());
        }
        let loaded = executor.kernels().load(&Scatter).map_err(|error| error.to_string())??;
        let fetcher = Self { device, loaded };
        fetcher.reach_all()?;
        Ok(Arc::new(fetcher))
    }

    /// The device can read all slabs that there are now.
    ///
    /// # Errors
    /// Why not, as a sentence without its full stop.
    pub(super) fn reach_all(&self) -> Result<(), String> {
        if self.device.capabilities().host_addressable.is_yes() {
            return Ok(());
        }
        let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = registered.first().filter(|slab| !slab.serves(self.device.id())) {
            let id = self.device.id();
            return Err(format!(
                "packets' memory ({} bytes at a time) is registered with another kind of device than {id}",
                other.len()
            ));
        }
        for slab in Slab::after(registered.len()) {
            // SAFETY: slabs are whole pages that stay where they are.
            let registration = unsafe { self.device.register_host(slab.as_ptr(), Slab::BYTES) };
            registered.push(registration.map_err(|error| error.to_string())?);
        }
        Ok(())
    }

    /// Whether it can read all slabs that there are now.
    pub(super) fn reaches_all(&self) -> bool {
        self.device.capabilities().host_addressable.is_yes()
            || REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).len() == Slab::count()
    }

    /// Enqueues the fetch of all payloads of a table to their places among the spans.
    ///
    /// # Safety
    /// The table was made of packets that lie in slabs which the device reaches; the memory is the stream's device's, and nobody
    /// else's until the work is over.
    pub(super) unsafe fn launch(
        &self,
        stream: &Stream,
        table: DeviceSlice<'_>,
        spans: DeviceSlice<'_>,
    ) -> bifolio_device::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { scatter::gather(stream, self.loaded.module(), table, spans) }
    }
}

/// What a table says of a payload: it goes to a place among the spans.
pub(super) fn entry(payload: &[u8], to: usize) -> [u8; ENTRY_BYTES] {
    let src = payload.as_ptr().expose_provenance() as u64;
    Extent { src, dst: to as u64, len: payload.len() as u64 }.to_bytes()
}
