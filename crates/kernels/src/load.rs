//! Loading of kernels on a device, with a known-answer test of each.
//!
//! [`Kernels`] are those that the cache needs, loaded together, with a host path for those that fail.
//! Those of a storage [`Service`] are loaded when it is first used, as compiling them all takes
//! seconds; where one fails, its user has a CPU path of its own.
//!
//! Work is stream-ordered on the device path. The host path of `page_diff` waits for the stream,
//! computes and uploads, and so do those of `merge` and `byte_mask`, page by page; that of `scatter`
//! reads the extents and enqueues one copy for each.

use crate::aes::KeySize;
use crate::digest::{self, Digest};
use crate::known_answer::Draw;
use crate::{aes_ctr, aes_gcm, aes_xts, raid6};
use crate::{byte_mask, merge, page_diff, page_list, scatter};
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
    merge: Kernel,
    byte_mask: Kernel,
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
        // Pages of three steps of a group, so that both loops over steps run.
        let merges = merge::Case::draw(&mut draw, 20, 3 * 4096);
        let masks = byte_mask::Case::draw(&mut draw, 20, 3 * 4096);
        Ok(Self {
            page_diff: Kernel::load(device, &page_diff::MODULE, |module| pages.run(&stream, module)),
            scatter: Kernel::load(device, &scatter::MODULE, |module| extents.run(&stream, module)),
            merge: Kernel::load(device, &merge::MODULE, |module| merges.run(&stream, module)),
            byte_mask: Kernel::load(device, &byte_mask::MODULE, |module| masks.run(&stream, module)),
        })
    }

    /// How each kernel fared.
    pub fn report(&self) -> Vec<KernelStatus> {
        [&self.page_diff, &self.scatter, &self.merge, &self.byte_mask].map(|kernel| kernel.status.clone()).into()
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

    /// Merges the pages of a table on the device byte for byte, and writes the flags of each; see
    /// [`merge`].
    ///
    /// # Safety
    /// The ranges and the pages are memory of the stream's device, which is the one the kernels were
    /// loaded on; they stay valid and are not used by others until the work completes; every page
    /// passes [`merge::check`], and those of `current` and `twin` overlap nothing else here.
    pub unsafe fn merge(
        &self,
        stream: &Stream,
        operands: merge::Operands<'_>,
        entries: DeviceSlice<'_>,
        flags: DeviceSlice<'_>,
    ) -> Result<()> {
        match &self.merge.module {
            // SAFETY: the caller's promise; the module is the right one.
            Some(module) => unsafe { merge::launch(stream, module, operands, entries, flags) },
            // SAFETY: the caller's promise.
            None => unsafe { merge_on_host(stream, operands, entries, flags) },
        }
    }

    /// Writes the byte masks of the pages of a table on the device, and the number of differing
    /// bytes of each; see [`byte_mask`].
    ///
    /// # Safety
    /// The ranges, pages and masks are memory of the stream's device, which is the one the kernels
    /// were loaded on; they stay valid and are not written by others until the work completes; every
    /// page passes [`byte_mask::check`], and the masks overlap nothing else here.
    pub unsafe fn byte_mask(
        &self,
        stream: &Stream,
        operands: byte_mask::Operands<'_>,
        entries: DeviceSlice<'_>,
        counts: DeviceSlice<'_>,
    ) -> Result<()> {
        match &self.byte_mask.module {
            // SAFETY: the caller's promise; the module is the right one.
            Some(module) => unsafe { byte_mask::launch(stream, module, operands, entries, counts) },
            // SAFETY: the caller's promise.
            None => unsafe { byte_mask_on_host(stream, operands, entries, counts) },
        }
    }
}

/// A storage service whose kernels are loaded by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// [`aes_xts`].
    AesXts,
    /// [`aes_ctr`].
    AesCtr,
    /// [`aes_gcm`].
    AesGcm,
    /// [`raid6`].
    Raid6,
    /// CRC32C of [`digest`].
    Crc32c,
    /// SHA-256 of [`digest`].
    Sha256,
}

impl Service {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::AesXts, Self::AesCtr, Self::AesGcm, Self::Raid6, Self::Crc32c, Self::Sha256];

    /// The source of its kernels.
    pub fn source(self) -> &'static ModuleSource {
        match self {
            Self::AesXts => &aes_xts::MODULE,
            Self::AesCtr => &aes_ctr::MODULE,
            Self::AesGcm => &aes_gcm::MODULE,
            Self::Raid6 => &raid6::MODULE,
            Self::Crc32c => Digest::Crc32c.module(),
            Self::Sha256 => Digest::Sha256.module(),
        }
    }

    /// Compiles its kernels (or finds them in the cache) and tries them. There is a module unless they
    /// do not compile or answer wrongly; on a device without kernels it is their oracles. The error is
    /// for a device on which not even a stream can be made.
    pub fn load(self, device: &Device) -> Result<(Option<Module>, KernelStatus)> {
        let stream = device.create_stream()?;
        let kernel = Kernel::load(device, self.source(), |module| self.try_out(&stream, module));
        Ok((kernel.module, kernel.status))
    }

    fn try_out(self, stream: &Stream, module: &Module) -> Result<(), String> {
        let mut draw = Draw::afresh();
        let sizes = [KeySize::Aes128, KeySize::Aes256];
        match self {
            Self::AesXts => {
                sizes.iter().try_for_each(|size| aes_xts::Case::draw(&mut draw, *size, 9, 1024).run(stream, module))
            }
            Self::AesCtr => {
                sizes.iter().try_for_each(|size| aes_ctr::Case::draw(&mut draw, *size, 9, 5000).run(stream, module))
            }
            Self::AesGcm => {
                aes_gcm::try_list(&mut draw, stream, module)?;
                sizes.iter().try_for_each(|size| aes_gcm::Case::draw(&mut draw, *size, 9, 5000).run(stream, module))
            }
            Self::Raid6 => {
                let geometry = raid6::Geometry { data: 5, chunk_bytes: 5120 };
                raid6::Case::draw(&mut draw, geometry, 8).run(stream, module)
            }
            Self::Crc32c => digest::Case::draw(&mut draw, 20, 2000).run(Digest::Crc32c, stream, module),
            Self::Sha256 => digest::Case::draw(&mut draw, 20, 2000).run(Digest::Sha256, stream, module),
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
    let words: Vec<u8> = page_diff::oracle(&download(stream, a)?, &download(stream, b)?)
        .into_iter()
        .flat_map(u32::to_ne_bytes)
        .collect();
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
    let extents = scatter::decode(&download(stream, extents)?);
    scatter::check(&extents, staging.len(), destination.len())?;
    for extent in extents {
        let (from, to) = (staging.part(extent.src, extent.len)?, destination.part(extent.dst, extent.len)?);
        // SAFETY: `Kernels::scatter`'s caller keeps both ranges valid until the work completes.
        unsafe { stream.copy_on_device(to, from) }?;
    }
    Ok(())
}

/// # Safety
/// As for [`Kernels::merge`].
unsafe fn merge_on_host(
    stream: &Stream,
    operands: merge::Operands<'_>,
    entries: DeviceSlice<'_>,
    flags: DeviceSlice<'_>,
) -> Result<()> {
    page_list::count(entries, flags)?;
    operands.arguments(stream.device())?;
    let entries = merge::decode(&download(stream, entries)?);
    merge::check(&entries, &operands)?;
    let mut words = Vec::with_capacity(entries.len() * 4);
    for entry in entries {
        // SAFETY: the caller's promise.
        let (current, twin, incoming) = unsafe {
            (
                operands.current.part(entry.current, entry.len)?,
                operands.twin.part(entry.twin, entry.len)?,
                operands.incoming.part(entry.incoming, entry.len)?,
            )
        };
        let (mut merged, mut pristine) = (download(stream, current)?, download(stream, twin)?);
        let found = merge::oracle(&mut merged, &mut pristine, &download(stream, incoming)?);
        if found & merge::INCOMING_CHANGED != 0 {
            stream.upload(current, &merged)?;
            stream.upload(twin, &pristine)?;
        }
        words.extend(found.to_ne_bytes());
    }
    stream.upload(flags.part(0, words.len() as u64)?, &words)
}

/// # Safety
/// As for [`Kernels::byte_mask`].
unsafe fn byte_mask_on_host(
    stream: &Stream,
    operands: byte_mask::Operands<'_>,
    entries: DeviceSlice<'_>,
    counts: DeviceSlice<'_>,
) -> Result<()> {
    page_list::count(entries, counts)?;
    operands.arguments(stream.device())?;
    let entries = byte_mask::decode(&download(stream, entries)?);
    byte_mask::check(&entries, &operands)?;
    let mut words = Vec::with_capacity(entries.len() * 4);
    for entry in entries {
        let mut mask = vec![0; byte_mask::mask_bytes(entry.len) as usize];
        // SAFETY: the caller's promise.
        let (current, twin, place) = unsafe {
            (
                operands.current.part(entry.current, entry.len)?,
                operands.twin.part(entry.twin, entry.len)?,
                operands.mask.part(entry.mask, mask.len() as u64)?,
            )
        };
        let count = byte_mask::oracle(&download(stream, current)?, &download(stream, twin)?, &mut mask);
        stream.upload(place, &mask)?;
        words.extend(count.to_ne_bytes());
    }
    stream.upload(counts.part(0, words.len() as u64)?, &words)
}

fn download(stream: &Stream, range: DeviceSlice<'_>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; range.len() as usize];
    stream.download(&mut bytes, range).map(|()| bytes)
}
