//! Loading of all kernels on a device, with a known-answer test of each and a host path for those
//! that fail.
//!
//! Work is stream-ordered on the device path. The host path of `page_diff` waits for the stream,
//! computes and uploads; that of `scatter` reads the extents and enqueues one copy for each.

use crate::known_answer::Draw;
use crate::{page_diff, scatter};
use bifolio_device::{Device, DeviceSlice, Module, ModuleSource, Result, Stream};
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

/// All kernels on one device.
#[derive(Debug)]
pub struct Kernels {
    page_diff: Kernel,
    scatter: Kernel,
}

impl Kernels {
    /// Compiles (or finds in the cache) and tries every kernel. A kernel that fails gets its host
    /// path; the error is for a device on which not even a stream can be made.
    pub fn load(device: &Device) -> Result<Self> {
        let stream = device.create_stream()?;
        let mut draw = Draw::afresh();
        // Two whole words of the bitmap and a ragged third; enough extents for a second batch.
        let pages = page_diff::Case::draw(&mut draw, 66 * page_diff::PAGE_BYTES as usize + 1234);
        let extents = scatter::Case::draw(&mut draw, 50, 700);
        Ok(Self {
            page_diff: Kernel::load(device, &page_diff::MODULE, |module| pages.run(&stream, module)),
            scatter: Kernel::load(device, &scatter::MODULE, |module| extents.run(&stream, module)),
        })
    }

    /// How each kernel fared.
    pub fn report(&self) -> Vec<KernelStatus> {
        [&self.page_diff, &self.scatter].map(|kernel| kernel.status.clone()).into()
    }

    /// Compares `a` with its twin `b` page by page; see [`page_diff`] for the bitmap.
    ///
    /// # Safety
    /// The ranges are memory of the stream's device, which is the one the kernels were loaded on;
    /// they stay valid and are not written by others until the work completes, and `bitmap`
    /// overlaps neither input.
    pub unsafe fn page_diff(
        &self,
        stream: &Stream,
        a: DeviceSlice<'_>,
        b: DeviceSlice<'_>,
        bitmap: DeviceSlice<'_>,
    ) -> Result<()> {
        match &self.page_diff.module {
            // SAFETY: the caller's promise; the module is the right one.
            Some(module) => unsafe { page_diff::launch(stream, module, a, b, bitmap) },
            None => page_diff_on_host(stream, a, b, bitmap),
        }
    }

    /// Copies the extents of an array on the device from `staging` to `destination`; see
    /// [`scatter`].
    ///
    /// # Safety
    /// The ranges are memory of the stream's device, which is the one the kernels were loaded on,
    /// and stay valid until the work completes; every extent lies inside both buffers, and no two
    /// overlap in the destination.
    pub unsafe fn scatter(
        &self,
        stream: &Stream,
        staging: DeviceSlice<'_>,
        extents: DeviceSlice<'_>,
        destination: DeviceSlice<'_>,
    ) -> Result<()> {
        match &self.scatter.module {
            // SAFETY: the caller's promise; the module is the right one.
            Some(module) => unsafe { scatter::launch(stream, module, staging, extents, destination) },
            None => scatter_by_copies(stream, staging, extents, destination),
        }
    }
}

/// One kernel: its module if that may be used, and what to say about it.
#[derive(Debug)]
struct Kernel {
    module: Option<Module>,
    status: KernelStatus,
}

impl Kernel {
    fn load(device: &Device, source: &ModuleSource, try_out: impl Fn(&Module) -> Result<(), String>) -> Self {
        let incapable = device.capabilities().kernels.reason();
        let loaded = device.load_module(source).map_err(|error| describe(&error)).and_then(|module| {
            try_out(&module).map_err(|wrong| format!("it failed its known-answer test: {wrong}"))?;
            Ok(module)
        });
        let (module, failure) = match loaded {
            // A module on a device without kernels is its oracle, run in stream order: still the
            // host path, without the detour through a download.
            Ok(module) => (Some(module), None),
            Err(failure) => (None, Some(failure)),
        };
        let reason = incapable.map(str::to_owned).or(failure);
        let path = if reason.is_none() { KernelPath::Device } else { KernelPath::Host };
        Self { module, status: KernelStatus { name: source.name, path, reason } }
    }
}

/// An error with its causes on one line.
fn describe(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn page_diff_on_host(stream: &Stream, a: DeviceSlice<'_>, b: DeviceSlice<'_>, bitmap: DeviceSlice<'_>) -> Result<()> {
    page_diff::groups(a, b, bitmap)?;
    let (mut left, mut right) = (vec![0; a.len() as usize], vec![0; b.len() as usize]);
    stream.download(&mut left, a)?;
    stream.download(&mut right, b)?;
    let words: Vec<u8> = page_diff::oracle(&left, &right).into_iter().flat_map(u32::to_ne_bytes).collect();
    stream.upload(bitmap.part(0, words.len() as u64)?, &words)
}

/// The copies stay on the device: the extents are all that the host has to know.
fn scatter_by_copies(
    stream: &Stream,
    staging: DeviceSlice<'_>,
    extents: DeviceSlice<'_>,
    destination: DeviceSlice<'_>,
) -> Result<()> {
    scatter::count(extents)?;
    let mut bytes = vec![0; extents.len() as usize];
    stream.download(&mut bytes, extents)?;
    let extents = scatter::decode(&bytes);
    scatter::check(&extents, staging.len(), destination.len())?;
    for extent in extents {
        let (from, to) = (staging.part(extent.src, extent.len)?, destination.part(extent.dst, extent.len)?);
        // SAFETY: `Kernels::scatter`'s caller keeps both ranges valid until the work completes.
        unsafe { stream.copy_on_device(to, from) }?;
    }
    Ok(())
}
