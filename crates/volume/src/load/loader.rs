//! What loads of one device share: the router, streams with their scratch, and scratch memory.

use crate::{Error, ErrorKind, Result};
use bifolio_compute::keyed::Workspace;
use bifolio_device::{Allocation, Device, DeviceSlice};
use bifolio_io::{ReadOptions, Router};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What brings volumes into the memory of one device.
#[derive(Debug)]
pub struct Loader {
    pub(super) router: Arc<Router>,
    options: ReadOptions,
    workspaces: Mutex<Vec<Workspace>>,
    scratch: Mutex<Vec<Allocation>>,
}

impl Loader {
    /// One for the router's device; `options` hold for every request to the router, but that each has its own follower.
    pub fn new(router: Arc<Router>, options: ReadOptions) -> Self {
        let options = ReadOptions { on_arrival: None, ..options };
        Self { router, options, workspaces: Mutex::default(), scratch: Mutex::default() }
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

    /// Lends a workspace to `work`.
    ///
    /// # Errors
    /// `Device` if none can be made, and those of `work`.
    pub(crate) fn with_workspace<T>(&self, work: impl FnOnce(&mut Workspace) -> Result<T>) -> Result<T> {
        let mut workspace = self.take_workspace()?;
        let outcome = work(&mut workspace);
        self.give_back(workspace);
        outcome
    }

    /// An idle workspace, or a new one.
    pub(super) fn take_workspace(&self) -> Result<Workspace> {
        let idle = self.lock().pop();
        idle.map_or_else(|| Workspace::new(self.device()).map_err(|error| self.failed(error)), Ok)
    }

    /// Lends device memory of at least so many bytes to `work`, with whatever is in it: for what is no secret.
    ///
    /// # Errors
    /// `Device` if there is none, and those of `work`.
    pub(crate) fn with_scratch<T, E: From<Error>>(
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
    pub(crate) fn settled<'a>(&self, memory: DeviceSlice<'a>) -> Result<DeviceSlice<'a>> {
        self.device().settle(memory).map_err(|error| self.failed(error))
    }

    /// A device's failure.
    pub fn failed(&self, error: bifolio_device::Error) -> Error {
        Error::new(ErrorKind::Device, self.device().id(), error.detail().to_owned()).with_cause(error)
    }

    /// Refuses to go on once the caller has cancelled.
    ///
    /// # Errors
    /// `Cancelled`.
    pub(crate) fn check_cancel(&self, subject: &str) -> Result<()> {
        if self.options.cancel.is_cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, subject, "the request was cancelled"));
        }
        Ok(())
    }

    /// For the next who asks for one.
    pub(super) fn give_back(&self, workspace: Workspace) {
        self.lock().push(workspace);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Workspace>> {
        self.workspaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
