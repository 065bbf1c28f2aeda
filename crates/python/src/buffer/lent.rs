//! What an object lends.

use super::array::null;
use super::routers::{adopt, router_at, router_by};
use crate::error::bad;
use crate::life::Keeper;
use bifolio_device::pointer::{Located, locate};
use bifolio_device::{BackendKind, DeviceId, DevicePtr, DeviceSlice};
use bifolio_io::{Router, process};
use pyo3::prelude::*;
use std::sync::Arc;

/// The default stream of a device, which waits for all streams that do not opt out.
pub(crate) const DEFAULT_STREAM: u64 = 1;

/// What the memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Bytes of a file land in it.
    Destination,
    /// Bytes of it go to a file.
    Source,
}

/// Memory of a Python object, for as long as `keeper` is kept.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) router: Arc<Router>,
    pub(crate) address: DevicePtr,
    pub(crate) bytes: u64,
    pub(crate) keeper: Keeper,
    /// The stream whose work on it comes first; none where there is no such work.
    pub(crate) producer: Option<u64>,
}

impl Lent {
    /// Memory of the host.
    pub(super) fn of_host(py: Python<'_>, address: u64, bytes: u64, keeper: Keeper) -> PyResult<Self> {
        if address == 0 && bytes > 0 {
            return Err(null(bytes));
        }
        let router = router_at(py, DeviceId::HOST)?;
        Ok(Self { router, address: DevicePtr(address), bytes, keeper, producer: None })
    }

    /// Memory that is said to be a GPU's.
    pub(super) fn of_gpu(
        py: Python<'_>,
        address: u64,
        bytes: u64,
        keeper: Keeper,
        producer: Option<u64>,
    ) -> PyResult<Self> {
        if bytes == 0 {
            return Self::of_host(py, 0, 0, keeper);
        }
        if address == 0 {
            return Err(null(bytes));
        }
        let located = locate(address).ok_or_else(|| {
            bad(format!(
                "{address:#x} is not GPU memory of this process: it was freed, or is managed or page-locked memory, \
                 which has to be passed as a host array"
            ))
        })?;
        check_length(address, bytes, &located)?;
        let context = (located.device, located.context, located.incarnation);
        let router = router_by(py, context, || process::router_of(&located))?;
        // Only CUDA's streams can be waited for from outside.
        let producer = producer.filter(|_| located.device.backend == BackendKind::Cuda);
        Ok(Self { router, address: located.address, bytes, keeper, producer })
    }

    /// Leaves out its first bytes.
    pub(crate) fn skip(&mut self, bytes: u64) -> PyResult<()> {
        if bytes > self.bytes {
            return Err(bad(format!(
                "buffer_offset {bytes} is beyond the end of the buffer, which has {} bytes",
                self.bytes
            )));
        }
        self.address = self.address.offset_by(bytes);
        self.bytes -= bytes;
        Ok(())
    }

    /// Its first bytes.
    pub(crate) fn first(&self, bytes: u64) -> DeviceSlice<'static> {
        // SAFETY: `bytes` is at most `self.bytes`, and `keeper` keeps the memory; whoever uses the slice
        // keeps that.
        unsafe { DeviceSlice::from_raw_ordered(self.address, bytes) }
    }

    /// Waits for work of the program's on the memory.
    pub(crate) fn settle(router: &Router, producer: Option<u64>) -> bifolio_device::Result<()> {
        match producer {
            None => Ok(()),
            Some(raw) => adopt(router, raw)?.synchronize(),
        }
    }
}

/// Refuses a length that the memory behind an address does not have. Allocators that map memory piece by
/// piece make several allocations of one, side by side.
fn check_length(address: u64, bytes: u64, located: &Located) -> PyResult<()> {
    let device = located.device;
    let mut covered = located.bytes_left(address);
    while covered < bytes {
        let at = address.saturating_add(covered);
        match locate(at).filter(|located| located.device == device) {
            Some(located) => covered += located.bytes_left(at).max(1),
            None => {
                return Err(bad(format!(
                    "{bytes} bytes at {address:#x} reach beyond the allocation on {device}, which ends after {covered} bytes"
                )));
            }
        }
    }
    Ok(())
}
