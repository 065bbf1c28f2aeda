//! Scatter: many small extents from one staging buffer to their places in one launch.
//!
//! Offsets and lengths are anything; extents may share source bytes and must not overlap in the
//! destination. Nothing between the extents is touched. The kernel is made for many extents of
//! some hundred bytes to some hundred KiB; one of many MiB belongs in a plain copy, which uses the
//! whole device.

use crate::addressing::{self, Addressing, align_down};
use crate::kernel::{Effort, KDEF_H, Kernel, Trial};
use crate::known_answer::{self, Draw};
use crate::launch::{WORD_BYTES, bad, download};
use crate::load::Kernels;
use bifolio_device::{DevicePtr, DeviceSlice, HostLaunch, KernelArg, Module, ModuleSource, Result, Stream};
use std::slice;

const GROUP_SIZE: u32 = 256;

/// Extents that one group takes at a time: one for each team of 32 threads.
const EXTENTS_PER_GROUP: u64 = 8;

/// What a group copies in one step.
const PIECE_BYTES: u64 = 4096;

/// More groups than any device runs at once; further extents are reached by striding.
const GROUPS_MAX: u64 = 4096;

const KERNEL: &str = "scatter";

const MODULE: ModuleSource = ModuleSource {
    name: KERNEL,
    source: include_str!("cl/scatter.cl"),
    headers: &[KDEF_H, ("scatter.h", include_str!("cl/scatter.h"))],
    kernels: &[(KERNEL, run_on_host)],
};

/// The kernel; [`Kernels::scatter`] runs it.
#[derive(Debug)]
pub struct Scatter;

impl Kernel for Scatter {
    fn source(&self) -> &'static ModuleSource {
        &MODULE
    }

    fn try_out(&self, trial: &mut Trial<'_>) -> Result<(), String> {
        let shapes = match trial.effort() {
            // Enough extents for a second batch.
            Effort::FirstUse => vec![(50, 700)],
            Effort::Interpreted => vec![(1, 16), (8, 100), (9, 300), (20, 512)],
            // More extents than one grid holds, and numbers of them around the teams of a group.
            Effort::Exhaustive => {
                let lengths = [0, 1, 16, 100, 512, 4096];
                let counts = [0, 1, 7, 8, 9, 255, 1000];
                let around = counts.into_iter().flat_map(|count| lengths.map(|longest| (count, longest)));
                around.chain([(40_000, 20)]).collect()
            }
        };
        shapes.into_iter().try_for_each(|(count, longest)| {
            Case::draw(trial.draw(), count, longest).run(trial.stream(), trial.module())
        })
    }

    fn has_host_path(&self) -> bool {
        true
    }
}

/// One extent: `len` bytes at `src` in the staging buffer go to `dst` in the destination.
/// It is `ScatterExtent` of `scatter.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the staging buffer.
    pub src: u64,
    /// Offset in the destination.
    pub dst: u64,
    /// Length in bytes, 0 allowed.
    pub len: u64,
}

/// Size of an [`Extent`] in the device's array.
pub const EXTENT_BYTES: u64 = 24;

const _: () = assert!(size_of::<Extent>() as u64 == EXTENT_BYTES);

impl Extent {
    /// As it lies in the device's array.
    pub fn to_bytes(self) -> [u8; EXTENT_BYTES as usize] {
        let mut bytes = [0; EXTENT_BYTES as usize];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip([self.src, self.dst, self.len]) {
            *to = word.to_ne_bytes();
        }
        bytes
    }

    fn fits(self, staging: u64, destination: u64) -> bool {
        let inside = |at: u64, limit| at.checked_add(self.len).is_some_and(|end| end <= limit);
        inside(self.src, staging) && inside(self.dst, destination)
    }
}

/// The same extents in pieces that use more of the device, where there is room for so many: 62 extents of 64 KiB
/// occupy 8 of a GPU's hundred and more multiprocessors, and take as long as their way over the link.
pub fn shared_out(extents: Vec<Extent>, room: u64) -> Vec<Extent> {
    let pieces: u64 = extents.iter().map(|extent| extent.len.div_ceil(PIECE_BYTES)).sum();
    if pieces > room || pieces <= extents.len() as u64 {
        return extents;
    }
    let split = |Extent { src, dst, len }: Extent| {
        let piece = move |at| Extent { src: src + at, dst: dst + at, len: PIECE_BYTES.min(len - at) };
        (0..len).step_by(PIECE_BYTES as usize).map(piece)
    };
    extents.into_iter().flat_map(split).collect()
}

/// The array of extents as the device reads it.
pub fn encode(extents: &[Extent]) -> Vec<u8> {
    extents.iter().flat_map(|extent| extent.to_bytes()).collect()
}

fn decode(bytes: &[u8]) -> Vec<Extent> {
    let extents = bytes.chunks_exact(EXTENT_BYTES as usize).filter_map(addressing::words_of);
    extents.map(|[src, dst, len]| Extent { src, dst, len }).collect()
}

/// Refuses extents that reach outside their buffers.
fn check(extents: &[Extent], staging_len: u64, destination_len: u64) -> Result<()> {
    match extents.iter().find(|extent| !extent.fits(staging_len, destination_len)) {
        None => Ok(()),
        Some(Extent { src, dst, len }) => Err(bad(format!(
            "an extent of {len} bytes from offset {src} to {dst} does not fit in a staging buffer of {staging_len} bytes and a destination of {destination_len}",
        ))),
    }
}

/// What the kernel computes.
///
/// # Panics
/// If an extent reaches outside its buffers.
pub fn oracle(staging: &[u8], extents: &[Extent], destination: &mut [u8]) {
    for extent in extents {
        let (src, dst, len) = (extent.src as usize, extent.dst as usize, extent.len as usize);
        destination[dst..dst + len].copy_from_slice(&staging[src..src + len]);
    }
}

impl Kernels {
    /// Copies `extents`, an array of [`Extent`] on the device at an 8-byte boundary, from `staging` to `destination`,
    /// which may begin anywhere.
    ///
    /// # Errors
    /// Ranges that do not fit, and what the device refuses.
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
        let module = self.module(&Scatter)?;
        // SAFETY: the caller's promise; the module is the right one.
        unsafe { run(stream, module, staging, extents, destination) }
    }
}

/// The same with addresses in place of offsets in a staging buffer: what kernels of the device can read at addresses, such as
/// registered host memory where [`bifolio_device::Capabilities::host_pointers`] says so.
///
/// # Errors
/// Ranges that do not fit, devices without addresses, and what the device refuses.
///
/// # Safety
/// As for [`Kernels::scatter`]; `module` is that of [`Scatter`] on the stream's device, and the memory at the extents' addresses
/// stays in place until the work completes.
pub unsafe fn gather(
    stream: &Stream,
    module: &Module,
    extents: DeviceSlice<'_>,
    destination: DeviceSlice<'_>,
) -> Result<()> {
    let base = Addressing::Absolute.argument(stream.device())?;
    // SAFETY: the caller's promise.
    unsafe { launch(stream, module, base, extents, destination) }
}

/// # Safety
/// As for [`Kernels::scatter`]; `module` is [`MODULE`] on the stream's device.
unsafe fn run(
    stream: &Stream,
    module: Option<&Module>,
    staging: DeviceSlice<'_>,
    extents: DeviceSlice<'_>,
    destination: DeviceSlice<'_>,
) -> Result<()> {
    let Some(module) = module else {
        // SAFETY: the caller's promise.
        return unsafe { by_copies(stream, staging, extents, destination) };
    };
    let boundary = stream.device().info().kernel_buffer_alignment.max(WORD_BYTES);
    // SAFETY: the caller's promise. Nothing is touched between the boundary and the range's beginning.
    unsafe { launch(stream, module, align_down(staging.ptr(), boundary), extents, destination) }
}

/// `staging` is a buffer, and what is added to every place in it.
///
/// # Safety
/// As for [`run`].
unsafe fn launch(
    stream: &Stream,
    module: &Module,
    (staging, staging_at): (DevicePtr, u64),
    extents: DeviceSlice<'_>,
    destination: DeviceSlice<'_>,
) -> Result<()> {
    let count = addressing::rows(extents, EXTENT_BYTES)?;
    if count == 0 {
        return Ok(());
    }
    let boundary = stream.device().info().kernel_buffer_alignment.max(WORD_BYTES);
    let (destination, destination_at) = align_down(destination.ptr(), boundary);
    // `ScatterParams` of `scatter.h`.
    let params = addressing::to_bytes(&[count, staging_at, destination_at]);
    let args = [
        KernelArg::Buffer(staging),
        KernelArg::Buffer(extents.ptr()),
        KernelArg::Buffer(destination),
        KernelArg::Bytes(&params),
    ];
    let groups = count.div_ceil(EXTENTS_PER_GROUP).min(GROUPS_MAX) as u32;
    // SAFETY: the arguments are those of the kernel, and the caller vouches for the module, the
    // memory and the extents. Nothing is touched between the boundary and the range's beginning.
    unsafe { stream.launch(module, KERNEL, groups, GROUP_SIZE, &args) }
}

/// The copies stay on the device: the extents are all that the host has to know.
///
/// # Safety
/// As for [`Kernels::scatter`].
unsafe fn by_copies(
    stream: &Stream,
    staging: DeviceSlice<'_>,
    extents: DeviceSlice<'_>,
    destination: DeviceSlice<'_>,
) -> Result<()> {
    let extents = decode(&download(stream, extents)?);
    check(&extents, staging.len(), destination.len())?;
    for extent in extents {
        let (from, to) = (staging.part(extent.src, extent.len)?, destination.part(extent.dst, extent.len)?);
        // SAFETY: the caller keeps both ranges valid until the work completes.
        unsafe { stream.copy_on_device(to, from) }?;
    }
    Ok(())
}

/// The kernel as the `host` device runs it.
///
/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn run_on_host(launch: &HostLaunch<'_>) {
    let [
        KernelArg::Buffer(staging),
        KernelArg::Buffer(extents),
        KernelArg::Buffer(destination),
        KernelArg::Bytes(params),
    ] = launch.args
    else {
        unreachable!("scatter has three buffers and one parameter struct");
    };
    let Some([count, staging_at, destination_at]) = addressing::words_of(params) else {
        unreachable!("scatter has 24 bytes of parameters")
    };
    // SAFETY: the caller passes the host address of `count` extents at an 8-byte boundary.
    let extents = unsafe { slice::from_raw_parts(extents.0 as *const Extent, count as usize) };
    // One slice for each extent: a slice over the whole destination would claim the bytes between
    // the extents, which others may be writing.
    for extent in extents.iter().filter(|extent| extent.len > 0) {
        let (src, dst) =
            (staging.offset_by(staging_at + extent.src), destination.offset_by(destination_at + extent.dst));
        let len = extent.len as usize;
        // SAFETY: the caller vouches that the extent lies inside both buffers, that the two do not
        // overlap, and that nobody else uses these bytes of the destination.
        let (src, dst) = unsafe {
            (slice::from_raw_parts(src.0 as *const u8, len), slice::from_raw_parts_mut(dst.0 as *mut u8, len))
        };
        oracle(src, &[Extent { src: 0, dst: 0, len: extent.len }], dst);
    }
}

/// Inputs with a known answer.
#[derive(Debug, Clone)]
struct Case {
    /// The whole allocations, with bytes before and after the ranges that the launch is given.
    staging: Vec<u8>,
    background: Vec<u8>,
    extents: Vec<Extent>,
    /// How far into their allocations staging and destination begin.
    shift: (usize, usize),
}

impl Case {
    /// `count` extents of up to `longest` bytes, with gaps, in a destination of random bytes; one
    /// extent in eight is empty, and one in sixteen is long enough to be copied by a whole group.
    fn draw(draw: &mut Draw, count: usize, longest: u64) -> Self {
        let (mut src, mut dst) = (0, 0);
        let mut extents = Vec::with_capacity(count);
        for _ in 0..count {
            let len = match draw.below(16) {
                0 | 1 => 0,
                2 => longest * 16 + draw.below(16),
                _ => draw.below(longest + 1),
            };
            // Half of the extents follow each other directly, the other half at odd distances.
            let mut gap = || draw.below(2) * draw.below(33);
            let extent = Extent { src: src + gap(), dst: dst + gap(), len };
            (src, dst) = (extent.src + len, extent.dst + len);
            extents.push(extent);
        }
        let shift = (draw.below(40) as usize, draw.below(40) as usize);
        let staging = draw.bytes(shift.0 + src as usize);
        let background = draw.bytes(shift.1 + dst as usize + 32);
        Self { staging, background, extents, shift }
    }

    /// Runs the kernel and compares the whole allocation with the oracle's, the bytes between and
    /// around the extents included; the error is a sentence about the first wrong byte.
    fn run(&self, stream: &Stream, module: Option<&Module>) -> Result<(), String> {
        let mut expected = self.background.clone();
        oracle(&self.staging[self.shift.0..], &self.extents, &mut expected[self.shift.1..]);
        let found = self.on_device(stream, module, &expected).map_err(|error| error.to_string())?;
        known_answer::compare("of the destination, byte", &found, &expected)
            .map_err(|wrong| format!("{} extents: {wrong}", self.extents.len()))
    }

    fn on_device(&self, stream: &Stream, module: Option<&Module>, expected: &[u8]) -> Result<Vec<u8>> {
        // Whole allocations from their beginning: Oclgrind 21.10 takes what the host writes further
        // on in a buffer for uninitialised.
        let staging = known_answer::on_device(stream, &self.staging)?;
        let destination = known_answer::on_device(stream, &self.poisoned(expected))?;
        let extents = known_answer::on_device(stream, &encode(&self.extents))?;
        let from = known_answer::behind(&staging, self.shift.0)?;
        let to = known_answer::behind(&destination, self.shift.1)?;
        // SAFETY: the allocations live until the download below has waited for the work; the
        // extents were drawn inside the buffers, in ascending order.
        unsafe { run(stream, module, from, extents.slice(), to) }?;
        known_answer::content(stream, &destination)
    }

    /// The background, with the complement of the answer where an extent goes: a byte that the
    /// kernel leaves alone is wrong.
    fn poisoned(&self, expected: &[u8]) -> Vec<u8> {
        let mut poisoned = self.background.clone();
        for extent in &self.extents {
            let first = self.shift.1 + extent.dst as usize;
            for at in first..first + extent.len as usize {
                poisoned[at] = !expected[at];
            }
        }
        poisoned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_between_the_extents_stay() {
        let mut destination = *b"..........";
        let extents = [
            Extent { src: 3, dst: 1, len: 2 },
            Extent { src: 0, dst: 9, len: 1 },
            Extent { src: 6, dst: 5, len: 0 },
            Extent { src: 3, dst: 6, len: 2 },
        ];
        oracle(b"abcdef", &extents, &mut destination);
        assert_eq!(&destination, b".de...de.a");
    }

    #[test]
    fn shared_out_extents_copy_the_same_bytes() {
        let extents = [(3, 70_000, 0), (1, 5, 65_536), (70_000, 140_001, 4097), (9, 150_000, 12)];
        let extents = extents.map(|(src, dst, len)| Extent { src, dst, len }).to_vec();
        assert_eq!(shared_out(extents.clone(), 18), extents, "there is no room");
        assert_eq!(shared_out(extents[3..].to_vec(), 99), extents[3..]);
        let pieces = shared_out(extents.clone(), 19);
        assert_eq!(pieces.len(), 19);
        assert!(pieces.iter().all(|piece| (1..=PIECE_BYTES).contains(&piece.len)));
        let staging: Vec<u8> = (0..80_000_u32).map(|at| (at % 251) as u8).collect();
        let after = |extents: &[Extent]| {
            let mut destination = vec![0x5a; 160_000];
            oracle(&staging, extents, &mut destination);
            destination
        };
        assert!(after(&pieces) == after(&extents));
    }

    #[test]
    fn extents_survive_the_trip_to_the_device() {
        let extents = [Extent { src: 1, dst: u64::MAX, len: 3 }, Extent { src: 1 << 40, dst: 0, len: 0 }];
        assert_eq!(decode(&encode(&extents)), extents);
    }

    #[test]
    fn extents_outside_their_buffers_are_refused() {
        let extent = |src, dst, len| [Extent { src, dst, len }];
        assert!(check(&extent(2, 6, 4), 6, 10).is_ok());
        assert!(check(&extent(3, 6, 4), 6, 10).is_err());
        assert!(check(&extent(2, 7, 4), 6, 10).is_err());
        assert!(check(&extent(u64::MAX, 0, 2), 6, 10).unwrap_err().to_string().contains("does not fit"));
    }
}
