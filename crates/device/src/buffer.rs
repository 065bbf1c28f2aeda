//! Device memory that requests own shares of.

use crate::{Allocation, DeviceSlice, Result};
use std::any::Any;
use std::sync::Arc;

/// Device memory that a request owns a share of: it stays allocated until the request is over, even
/// if the handle is dropped or the request cancelled.
#[derive(Debug, Clone)]
pub struct Buffer {
    slice: DeviceSlice<'static>,
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

impl Buffer {
    /// All of an allocation.
    pub fn new(memory: &Arc<Allocation>) -> Self {
        let slice = memory.slice();
        // SAFETY: the buffer keeps the allocation, and the slice leaves it only with a borrow.
        let slice = unsafe { slice.lasting() };
        Self { slice, owner: Some(Arc::<Allocation>::clone(memory)) }
    }

    /// Memory that the caller vouches for.
    ///
    /// # Safety
    /// The memory stays valid until every request with this buffer or a part of it is over, also
    /// cancelled ones and those whose handles were dropped.
    pub unsafe fn foreign(slice: DeviceSlice<'_>) -> Self {
        // SAFETY: the caller's promise.
        Self { slice: unsafe { slice.lasting() }, owner: None }
    }

    /// Memory that stays valid for as long as `owner` is kept: a share of it is dropped, on any thread, when
    /// the last request with this buffer or a part of it is over.
    ///
    /// # Safety
    /// The memory is valid until `owner` is dropped.
    pub unsafe fn kept(slice: DeviceSlice<'_>, owner: Arc<dyn Any + Send + Sync>) -> Self {
        // SAFETY: the caller's promise.
        Self { slice: unsafe { slice.lasting() }, owner: Some(owner) }
    }

    /// The part `offset..offset + len`; an error if it does not lie inside.
    pub fn part(&self, offset: u64, len: u64) -> Result<Self> {
        Ok(Self { slice: self.slice.part(offset, len)?, owner: self.owner.clone() })
    }

    /// The memory.
    pub fn slice(&self) -> DeviceSlice<'_> {
        self.slice
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.slice.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.slice.is_empty()
    }
}
