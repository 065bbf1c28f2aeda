//! Loading of kernels on a device, with a known-answer test of each.
//!
//! A kernel that does not compile or answers wrongly has no module, and its status says why. Those that have a path
//! over host memory take it then ([`Kernels`]); in the place of others their users compute on the CPU.
//!
//! Work is stream-ordered where there is a module. The host path of `page_diff` waits for the stream,
//! computes and uploads, and so do those of `merge`, `byte_mask` and `fold`, page by page; that of
//! `scatter` reads the extents and enqueues one copy for each.

use crate::kernel::{Effort, Kernel, Trial};
use crate::known_answer::Draw;
use bifolio_device::{Device, Error, ErrorKind, Module, Result};
use serde::Serialize;
use std::fmt;

/// Where a kernel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KernelPath {
    /// On the device.
    Device,
    /// On the CPU, by its Rust oracle.
    Host,
}

/// How one kernel fared on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KernelStatus {
    /// The kernel.
    pub name: &'static str,
    /// Where it runs.
    pub path: KernelPath,
    /// Why it does not run on the device, as a sentence without its full stop.
    pub reason: Option<String>,
}

impl fmt::Display for KernelStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match self.path {
            KernelPath::Device => "device",
            KernelPath::Host => "host path",
        };
        write!(f, "{}: {path}", self.name)?;
        self.reason.iter().try_for_each(|reason| write!(f, ": {reason}"))
    }
}

/// One kernel on one device: its module if that may be used, and what to say about it.
#[derive(Debug, Clone)]
pub struct LoadedKernel {
    module: Option<Module>,
    status: KernelStatus,
}

impl LoadedKernel {
    /// Compiles a kernel (or finds it in the cache) and tries it. There is a module unless it does not compile or
    /// answers wrongly; on a device without kernels it is the oracles.
    ///
    /// # Errors
    /// Those of a device on which not even a stream can be made.
    pub fn load(kernel: &dyn Kernel, device: &Device) -> Result<Self> {
        let stream = device.create_stream()?;
        let try_out = |module: Module| {
            let draw = Draw::afresh();
            let seed = draw.seed();
            let outcome = kernel.try_out(&mut Trial::new(&stream, Some(&module), Effort::FirstUse, draw));
            outcome.map_err(|wrong| format!("known-answer test failed: {wrong} (seed {seed})"))?;
            Ok(module)
        };
        let loaded = device.load_module(kernel.source()).map_err(|error| error.to_string()).and_then(try_out);
        let (module, failure) = match loaded {
            // A module on a device without kernels is its oracle, run in stream order: still the
            // host path, without the detour through a download.
            Ok(module) => (Some(module), None),
            Err(failure) => (None, Some(failure)),
        };
        // What is wrong counts for more than what is as it always is.
        let reason = failure.or_else(|| device.capabilities().kernels.reason().map(str::to_owned));
        let path = if reason.is_none() { KernelPath::Device } else { KernelPath::Host };
        Ok(Self { module, status: KernelStatus { name: kernel.name(), path, reason } })
    }

    /// The module, if there is one.
    pub fn module(&self) -> Option<&Module> {
        self.module.as_ref()
    }

    /// How it fared.
    pub fn status(&self) -> &KernelStatus {
        &self.status
    }

    /// Both apart.
    pub fn into_parts(self) -> (Option<Module>, KernelStatus) {
        (self.module, self.status)
    }
}

/// Kernels on one device. What each does is a method that stands in the kernel's own file.
#[derive(Debug)]
pub struct Kernels {
    loaded: Vec<LoadedKernel>,
}

impl Kernels {
    /// Loads `kernels`. One that fails gets its host path.
    ///
    /// # Errors
    /// Those of a device on which not even a stream can be made.
    pub fn load(device: &Device, kernels: &[&dyn Kernel]) -> Result<Self> {
        let loaded = kernels.iter().map(|kernel| LoadedKernel::load(*kernel, device)).collect::<Result<_>>()?;
        Ok(Self { loaded })
    }

    /// How each kernel fared.
    pub fn report(&self) -> Vec<KernelStatus> {
        self.loaded.iter().map(|loaded| loaded.status.clone()).collect()
    }

    /// Whether a kernel is among these and runs on the device.
    pub fn runs_on_device(&self, kernel: &dyn Kernel) -> bool {
        self.get(kernel).is_some_and(|loaded| loaded.status.path == KernelPath::Device)
    }

    /// The module of a kernel, or none for its host path.
    pub(crate) fn module(&self, kernel: &dyn Kernel) -> Result<Option<&Module>> {
        let name = kernel.name();
        let missing = || Error::new(ErrorKind::Kernel, format!("the kernel {name} was not loaded on this device"));
        self.get(kernel).map(LoadedKernel::module).ok_or_else(missing)
    }

    fn get(&self, kernel: &dyn Kernel) -> Option<&LoadedKernel> {
        self.loaded.iter().find(|loaded| loaded.status.name == kernel.name())
    }
}
