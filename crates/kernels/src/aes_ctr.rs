//! AES in counter mode over one long stream or many: extents of device memory, each with a 128-bit
//! counter to begin from (NIST SP 800-38A).
//!
//! 32 threads take one extent. [`extents`] divides a stream into extents of 4 KiB, so that a long one
//! uses the whole device; short streams are listed one after the other. Encryption and decryption are
//! the same. See [`crate::aes`] for keys and side channels.

use crate::addressing::{self, Addressing};
use crate::aes::{self, Direction, GROUP_SIZE, KeySize, SCHEDULE_BYTES, Schedules};
use crate::kernel::{Effort, Kernel, Trial};
use crate::known_answer::{self, Draw};
use crate::launch::grid;
use ::aes::cipher::{KeyIvInit, StreamCipher};
use ::aes::{Aes128, Aes192, Aes256};
use bifolio_device::{DeviceSlice, HostLaunch, KernelArg, Module, ModuleSource, Result, Stream};
use ctr::Ctr128BE;
use std::slice;

const KERNEL: &str = "aes_ctr";

pub(crate) const HEADER: (&str, &str) = ("aes_ctr.h", include_str!("cl/aes_ctr.h"));

const MODULE: ModuleSource = ModuleSource {
    name: KERNEL,
    source: include_str!("cl/aes_ctr.cl"),
    headers: &[aes::HEADERS[0], aes::HEADERS[1], aes::HEADERS[2], HEADER],
    kernels: &[(KERNEL, run_on_host)],
};

/// The kernel.
#[derive(Debug)]
pub struct AesCtr;

impl Kernel for AesCtr {
    fn source(&self) -> &'static ModuleSource {
        &MODULE
    }

    fn try_out(&self, trial: &mut Trial<'_>) -> Result<(), String> {
        let module = trial.compiled()?;
        let (sizes, shapes): (&[KeySize], &[(usize, u64)]) = match trial.effort() {
            Effort::FirstUse => (&KeySize::ALL, &[(9, 5000)]),
            Effort::Interpreted => (&[KeySize::Aes128], &[(3, 100)]),
            // Lengths around a block, a thread's blocks and a step of a team, with more extents than a group takes.
            Effort::Exhaustive => (
                &KeySize::ALL,
                &[
                    (0, 16),
                    (1, 1),
                    (9, 15),
                    (8, 16),
                    (7, 17),
                    (9, 511),
                    (9, 512),
                    (9, 4095),
                    (9, 4097),
                    (3, 70_000),
                    (50, 100),
                ],
            ),
        };
        let cases = shapes.iter().flat_map(|shape| sizes.iter().map(move |size| (shape, size)));
        cases.into_iter().try_for_each(|((count, bytes), size)| {
            Case::draw(trial.draw(), *size, *count, *bytes).run(trial.stream(), module)
        })
    }
}

/// Extents that one group takes.
pub(crate) const TEAMS: u64 = 8;

/// What 32 threads take at once, and the length of the [`extents`] of a stream.
pub const STEP_BYTES: u64 = 4096;

/// One extent: places are multiples of 16, the length is anything. It is `AesCtrPiece` of `aes_ctr.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Place in the source.
    pub src: u64,
    /// Place in the destination, the same memory or apart.
    pub dst: u64,
    /// Length in bytes, 0 allowed.
    pub len: u64,
    counter_hi: u64,
    counter_lo: u64,
}

/// Size of a [`Extent`] in the device's table.
pub const EXTENT_BYTES: u64 = 40;

const _: () = assert!(size_of::<Extent>() as u64 == EXTENT_BYTES);

impl Extent {
    /// An extent whose first block is encrypted with `counter`, its bytes in big-endian order.
    pub fn new(src: u64, dst: u64, len: u64, counter: [u8; 16]) -> Self {
        let counter = u128::from_be_bytes(counter);
        Self { src, dst, len, counter_hi: (counter >> 64) as u64, counter_lo: counter as u64 }
    }

    fn counter(self) -> u128 {
        u128::from(self.counter_hi) << 64 | u128::from(self.counter_lo)
    }
}

/// A whole stream in extents of [`STEP_BYTES`], for [`encode`].
pub fn extents(stream: Extent) -> impl Iterator<Item = Extent> {
    (0..stream.len).step_by(STEP_BYTES as usize).map(move |at| {
        let counter = stream.counter().wrapping_add(u128::from(at / 16));
        Extent::new(stream.src + at, stream.dst + at, STEP_BYTES.min(stream.len - at), counter.to_be_bytes())
    })
}

/// The table of extents as the device reads it.
pub fn encode(extents: &[Extent]) -> Vec<u8> {
    let words = |extent: &Extent| {
        addressing::to_bytes(&[extent.src, extent.dst, extent.len, extent.counter_hi, extent.counter_lo])
    };
    extents.iter().flat_map(words).collect()
}

/// What the places of extents are counted from.
#[derive(Debug, Clone, Copy)]
pub struct Operands<'a> {
    /// Read.
    pub src: Addressing<'a>,
    /// Written.
    pub dst: Addressing<'a>,
}

/// Bytes of the schedule of one key.
const SCHEDULES_BYTES: u64 = SCHEDULE_BYTES as u64;

/// The schedule of a key of 16, 24 or 32 bytes.
pub fn schedules(key: &[u8]) -> Result<Schedules> {
    let mut bytes = aes::room_for(1, 0);
    aes::append_schedule(&mut bytes, key, Direction::Encrypt)?;
    Ok(Schedules::new(KeySize::of_key(key)?, bytes))
}

/// Refuses extents that do not lie at 16-byte boundaries inside their operands. The kernel cannot, as
/// the table is on the device.
pub fn check(extents: &[Extent], operands: &Operands<'_>) -> Result<()> {
    extents.iter().try_for_each(|extent| {
        operands.src.check("source", extent.src, extent.len)?;
        operands.dst.check("destination", extent.dst, extent.len)
    })
}

/// What the kernel computes for one extent, in place.
///
/// # Panics
/// If the key has neither 16 nor 32 bytes.
pub fn oracle(key: &[u8], counter: [u8; 16], data: &mut [u8]) {
    match key.len() {
        16 => Ctr128BE::<Aes128>::new_from_slices(key, &counter).expect("16 bytes").apply_keystream(data),
        24 => Ctr128BE::<Aes192>::new_from_slices(key, &counter).expect("24 bytes").apply_keystream(data),
        _ => Ctr128BE::<Aes256>::new_from_slices(key, &counter).expect("32 bytes").apply_keystream(data),
    }
}

/// Enqueues the extents of `table`, see [`encode`], at an 8-byte boundary.
///
/// # Safety
/// `module` is that of [`AesCtr`] on the stream's device; the memory is of that device, stays valid and is not
/// used by others until the work completes; `schedules` holds the bytes of [`schedules`] for a key of
/// this size; the extents pass [`check`], and each destination is its source or overlaps nothing else.
pub unsafe fn launch(
    stream: &Stream,
    module: &Module,
    size: KeySize,
    schedules: DeviceSlice<'_>,
    operands: Operands<'_>,
    table: DeviceSlice<'_>,
) -> Result<()> {
    let count = addressing::rows(table, EXTENT_BYTES)?;
    aes::check_schedules(schedules, SCHEDULES_BYTES)?;
    if count == 0 {
        return Ok(());
    }
    let (src, src_at) = operands.src.argument(stream.device())?;
    let (dst, dst_at) = operands.dst.argument(stream.device())?;
    let params = Params { src_at, dst_at, count, rounds: size.rounds() }.to_bytes();
    let args = [
        KernelArg::Buffer(schedules.ptr()),
        KernelArg::Buffer(table.ptr()),
        KernelArg::Buffer(src),
        KernelArg::Buffer(dst),
        KernelArg::Bytes(&params),
    ];
    // SAFETY: the arguments are those of the kernel, and the caller vouches for module and memory.
    unsafe { stream.launch(module, KERNEL, grid(count.div_ceil(TEAMS))?, GROUP_SIZE, &args) }
}

/// `AesCtrParams` of `aes_ctr.h`.
#[derive(Debug, Clone, Copy)]
struct Params {
    src_at: u64,
    dst_at: u64,
    count: u64,
    rounds: u32,
}

impl Params {
    fn to_bytes(self) -> Vec<u8> {
        let words = addressing::to_bytes(&[self.src_at, self.dst_at, self.count]);
        [words, [self.rounds, 0].map(u32::to_ne_bytes).concat()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, last) = bytes.split_at_checked(24)?;
        let [src_at, dst_at, count] = addressing::words_of(words)?;
        let rounds = u32::from_ne_bytes(*last.first_chunk()?);
        Some(Self { src_at, dst_at, count, rounds })
    }
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn run_on_host(launch: &HostLaunch<'_>) {
    let [
        KernelArg::Buffer(schedule),
        KernelArg::Buffer(table),
        KernelArg::Buffer(src),
        KernelArg::Buffer(dst),
        KernelArg::Bytes(params),
    ] = launch.args
    else {
        unreachable!("{KERNEL} has four buffers and one parameter struct");
    };
    let Some(params) = Params::from_bytes(params) else { unreachable!("{KERNEL} has 32 bytes of parameters") };
    // SAFETY: the caller passes host addresses of a schedule and of so many extents.
    let (schedule, extents) = unsafe {
        (
            slice::from_raw_parts(schedule.0 as *const u8, SCHEDULE_BYTES),
            slice::from_raw_parts(table.0 as *const Extent, params.count as usize),
        )
    };
    let key = aes::key_of_schedule(schedule, KeySize::of_rounds(params.rounds));
    for extent in extents.iter().filter(|extent| extent.len > 0) {
        let (from, to) = (src.offset_by(params.src_at + extent.src), dst.offset_by(params.dst_at + extent.dst));
        // SAFETY: the extent lies inside both operands; the two may be the same, which `copy` allows,
        // and nobody else uses the destination.
        let data = unsafe {
            std::ptr::copy(from.0 as *const u8, to.0 as *mut u8, extent.len as usize);
            slice::from_raw_parts_mut(to.0 as *mut u8, extent.len as usize)
        };
        oracle(&key, extent.counter().to_be_bytes(), data);
    }
}

/// Inputs with a known answer.
#[derive(Debug, Clone)]
pub struct Case {
    key: Vec<u8>,
    size: KeySize,
    source: Vec<u8>,
    destination_len: usize,
    /// Whole streams, before they are divided.
    streams: Vec<Extent>,
}

impl Case {
    /// `count` streams of `bytes` each, the last one ragged and one in eight empty; counters are
    /// anything; every other one overflows its lower half, and some have nothing in it.
    pub fn draw(draw: &mut Draw, size: KeySize, count: usize, bytes: u64) -> Self {
        let lens = draw.page_lengths(count, bytes);
        let ((src, source_len), (dst, destination_len)) = (draw.places(&lens), draw.places(&lens));
        let stream = |i: usize| {
            let mut counter: [u8; 16] = draw.bytes(16).try_into().expect("16 bytes");
            if i % 2 == 1 {
                counter[if i % 4 == 1 { 0 } else { 8 }..15].fill(0xff);
            } else if i % 4 == 2 {
                counter[8..].fill(0);
            }
            Extent::new(src[i], dst[i], lens[i], counter)
        };
        let streams = (0..count).map(stream).collect();
        let key = draw.bytes(size.bytes());
        let source = draw.bytes(source_len as usize);
        Self { key, size, source, destination_len: destination_len as usize, streams }
    }

    /// Runs the streams whole and divided, from place to place over poison and in place, and compares
    /// whole allocations.
    pub fn run(&self, stream: &Stream, module: &Module) -> Result<(), String> {
        for (divided, in_place) in [(false, false), (true, false), (true, true)] {
            let outcome = self.run_one(stream, module, divided, in_place).map_err(|error| error.to_string())?;
            outcome.map_err(|wrong| {
                format!(
                    "{} streams, {:?}, divided: {divided}, in place: {in_place}: {wrong}",
                    self.streams.len(),
                    self.size
                )
            })?;
        }
        Ok(())
    }

    fn run_one(&self, stream: &Stream, module: &Module, divided: bool, in_place: bool) -> Result<Result<(), String>> {
        let streams: Vec<_> =
            self.streams.iter().map(|s| Extent { dst: if in_place { s.src } else { s.dst }, ..*s }).collect();
        let mut expected = if in_place { self.source.clone() } else { vec![0x5a; self.destination_len] };
        let mut poisoned = expected.clone();
        for extent in &streams {
            let mut data = self.source[extent.src as usize..][..extent.len as usize].to_vec();
            oracle(&self.key, extent.counter().to_be_bytes(), &mut data);
            expected[extent.dst as usize..][..data.len()].copy_from_slice(&data);
            for (place, byte) in poisoned[extent.dst as usize..].iter_mut().zip(data) {
                *place = !byte;
            }
        }
        let table = if divided { streams.into_iter().flat_map(extents).collect() } else { streams };
        let schedules = known_answer::on_device(stream, schedules(&self.key)?.bytes())?;
        let src = known_answer::on_device(stream, &self.source)?;
        let dst = known_answer::on_device(stream, &poisoned)?;
        let to = if in_place { &src } else { &dst };
        let operands = Operands { src: Addressing::Relative(src.slice()), dst: Addressing::Relative(to.slice()) };
        check(&table, &operands)?;
        let table = known_answer::on_device(stream, &encode(&table))?;
        // SAFETY: the allocations live until the content was read back; the extents are apart.
        unsafe { launch(stream, module, self.size, schedules.slice(), operands, table.slice()) }?;
        Ok(known_answer::compare("byte", &known_answer::content(stream, to)?, &expected))
    }
}
