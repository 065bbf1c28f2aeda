//! Scatter: many small extents from one staging buffer to their places in one launch.
//!
//! Offsets and lengths are anything; extents may share source bytes and must not overlap in the
//! destination. Nothing between the extents is touched. The kernel is made for many extents of
//! some hundred bytes to some hundred KiB; one of many MiB belongs in a plain copy, which uses the
//! whole device.

use crate::known_answer::Draw;
use crate::{Error, ErrorKind, KDEF_H, Result, WORD_BYTES};
use bifolio_device::{DevicePtr, DeviceSlice, HostLaunch, KernelArg, Module, ModuleSource, Stream};
use std::slice;

const GROUP_SIZE: u32 = 256;

/// Extents that one group takes at a time: one for each team of 32 threads.
const EXTENTS_PER_GROUP: u64 = 8;

/// What a group copies in one step.
const PIECE_BYTES: u64 = 4096;

/// More groups than any device runs at once; further extents are reached by striding.
const GROUPS_MAX: u64 = 4096;

/// The kernel's name in [`MODULE`].
pub const KERNEL: &str = "scatter";

/// The kernel's source.
pub const MODULE: ModuleSource = ModuleSource {
    name: KERNEL,
    source: include_str!("cl/scatter.cl"),
    headers: &[KDEF_H, ("scatter.h", include_str!("cl/scatter.h"))],
    kernels: &[(KERNEL, run_on_host)],
};

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
        three_words([self.src, self.dst, self.len])
    }

    fn from_bytes(bytes: &[u8; EXTENT_BYTES as usize]) -> Self {
        let [src, dst, len] = of_three_words(bytes);
        Self { src, dst, len }
    }

    fn fits(self, staging: u64, destination: u64) -> bool {
        let inside = |at: u64, limit| at.checked_add(self.len).is_some_and(|end| end <= limit);
        inside(self.src, staging) && inside(self.dst, destination)
    }
}

/// `ScatterParams` of `scatter.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Params {
    count: u64,
    staging_at: u64,
    destination_at: u64,
}

const _: () = assert!(size_of::<Params>() == 24);

impl Params {
    fn to_bytes(self) -> [u8; 24] {
        three_words([self.count, self.staging_at, self.destination_at])
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [count, staging_at, destination_at] = of_three_words(bytes.try_into().ok()?);
        Some(Self { count, staging_at, destination_at })
    }
}

fn three_words(words: [u64; 3]) -> [u8; 24] {
    let mut bytes = [0; 24];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

fn of_three_words(bytes: &[u8; 24]) -> [u64; 3] {
    let (words, _) = bytes.as_chunks::<8>();
    [words[0], words[1], words[2]].map(u64::from_ne_bytes)
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

pub(crate) fn decode(bytes: &[u8]) -> Vec<Extent> {
    let (extents, _) = bytes.as_chunks::<{ EXTENT_BYTES as usize }>();
    extents.iter().map(Extent::from_bytes).collect()
}

/// Refuses extents that reach outside their buffers, for callers whose extents come from elsewhere.
pub fn check(extents: &[Extent], staging_len: u64, destination_len: u64) -> Result<()> {
    match extents.iter().find(|extent| !extent.fits(staging_len, destination_len)) {
        None => Ok(()),
        Some(extent) => Err(Error::new(
            ErrorKind::BadArgument,
            format!(
                "an extent of {} bytes from {} to {} does not fit {staging_len} staged bytes and a destination of {destination_len}",
                extent.len, extent.src, extent.dst
            ),
        )),
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

/// Enqueues the copies of `extents`, an array of [`Extent`] on the device at an 8-byte boundary.
/// `staging` and `destination` may begin anywhere.
///
/// # Safety
/// `module` is [`MODULE`] on the stream's device; the three ranges are memory of that device and
/// stay valid until the work completes; every extent in the array lies inside `staging` and
/// `destination` (see [`check`]), and no two overlap in the destination.
pub unsafe fn launch(
    stream: &Stream,
    module: &Module,
    staging: DeviceSlice<'_>,
    extents: DeviceSlice<'_>,
    destination: DeviceSlice<'_>,
) -> Result<()> {
    let count = count(extents)?;
    if count == 0 {
        return Ok(());
    }
    let boundary = stream.device().info().kernel_buffer_alignment.max(WORD_BYTES);
    let (staging, staging_at) = align_down(staging.ptr(), boundary);
    let (destination, destination_at) = align_down(destination.ptr(), boundary);
    let params = Params { count, staging_at, destination_at }.to_bytes();
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

/// The number of extents in an array, or what is wrong with it.
pub(crate) fn count(extents: DeviceSlice<'_>) -> Result<u64> {
    if extents.len().is_multiple_of(EXTENT_BYTES) && (extents.is_empty() || extents.ptr().0.is_multiple_of(8)) {
        return Ok(extents.len() / EXTENT_BYTES);
    }
    let detail = format!("{} bytes at {} are no array of extents of 24 bytes each", extents.len(), extents.ptr());
    Err(Error::new(ErrorKind::BadArgument, detail))
}

/// The boundary at or before `ptr`, and how far `ptr` is beyond it.
fn align_down(ptr: DevicePtr, boundary: u64) -> (DevicePtr, u64) {
    let beyond = ptr.0 % boundary;
    (DevicePtr(ptr.0 - beyond), beyond)
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
    let Some(params) = Params::from_bytes(params) else { unreachable!("scatter has 24 bytes of parameters") };
    // SAFETY: the caller passes the host address of `count` extents at an 8-byte boundary.
    let extents = unsafe { slice::from_raw_parts(extents.0 as *const Extent, params.count as usize) };
    // One slice for each extent: a slice over the whole destination would claim the bytes between
    // the extents, which others may be writing.
    for extent in extents.iter().filter(|extent| extent.len > 0) {
        let (src, dst) = (
            staging.offset_by(params.staging_at + extent.src),
            destination.offset_by(params.destination_at + extent.dst),
        );
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
pub struct Case {
    /// The whole allocations, with bytes before and after the ranges that the launch is given.
    staging: Vec<u8>,
    background: Vec<u8>,
    extents: Vec<Extent>,
    /// How far into their allocations staging and destination begin.
    shift: (usize, usize),
    seed: u64,
}

impl Case {
    /// `count` extents of up to `longest` bytes, with gaps, in a destination of random bytes; one
    /// extent in eight is empty, and one in sixteen is long enough to be copied by a whole group.
    pub fn draw(draw: &mut Draw, count: usize, longest: u64) -> Self {
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
        Self { staging, background, extents, shift, seed: draw.seed() }
    }

    /// Runs the kernel and compares the whole allocation with the oracle's, the bytes between and
    /// around the extents included; the error is a sentence about the first wrong byte.
    pub fn run(&self, stream: &Stream, module: &Module) -> Result<(), String> {
        let mut expected = self.background.clone();
        oracle(&self.staging[self.shift.0..], &self.extents, &mut expected[self.shift.1..]);
        let found = self.on_device(stream, module, &expected).map_err(|error| error.to_string())?;
        match found.iter().zip(&expected).position(|(found, expected)| found != expected) {
            None => Ok(()),
            Some(at) => Err(format!(
                "{} extents: byte {at} of the destination is {:#04x} instead of {:#04x} (seed {})",
                self.extents.len(),
                found[at],
                expected[at],
                self.seed
            )),
        }
    }

    fn on_device(&self, stream: &Stream, module: &Module, expected: &[u8]) -> Result<Vec<u8>> {
        let device = stream.device();
        let staging = device.alloc(self.staging.len() as u64)?;
        let destination = device.alloc(self.background.len() as u64)?;
        let extents = device.alloc(self.extents.len() as u64 * EXTENT_BYTES)?;
        // Whole allocations from their beginning: Oclgrind 21.10 takes what the host writes further
        // on in a buffer for uninitialised.
        stream.upload(staging.slice(), &self.staging)?;
        stream.upload(destination.slice(), &self.poisoned(expected))?;
        stream.upload(extents.slice(), &encode(&self.extents))?;
        let from = beyond(staging.slice(), self.shift.0)?;
        let to = beyond(destination.slice(), self.shift.1)?;
        // SAFETY: the allocations live until the download below has waited for the work; the
        // extents were drawn inside the buffers, in ascending order.
        unsafe { launch(stream, module, from, extents.slice(), to) }?;
        let mut found = vec![0; expected.len()];
        stream.download(&mut found, destination.slice())?;
        Ok(found)
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

fn beyond(range: DeviceSlice<'_>, bytes: usize) -> Result<DeviceSlice<'_>> {
    range.part(bytes as u64, range.len() - bytes as u64)
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
