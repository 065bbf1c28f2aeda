//! AES-XTS (IEEE 1619) over many sectors in device memory, as dm-crypt's `aes-xts-plain64`.
//!
//! A sector's tweak is its number as 64 bits, the least significant byte first. Two launches follow
//! each other in the stream: one computes the tweaks, 16 bytes for each sector, into scratch memory of
//! the caller's, the other the data. Tweaks are secret: whoever knows them can take XTS for plain
//! block encryption. Clear the scratch with the schedules. See [`crate::aes`] for keys and side channels.
//!
//! Source and destination are the same memory or apart.

use crate::addressing::Addressing;
use crate::aes::{self, BLOCKS_PER_THREAD, Direction, GROUP_SIZE, KeySize, SCHEDULE_BYTES, Schedules};
use crate::kernel::{Effort, Kernel, Trial};
use crate::known_answer::{self, Draw};
use crate::launch::{bad, grid};
use ::aes::cipher::{BlockCipherEncrypt, BlockSizeUser, KeyInit, consts::U16};
use ::aes::{Aes128, Aes256, Block, cipher::BlockCipherDecrypt};
use bifolio_device::{DeviceSlice, HostLaunch, KernelArg, Module, ModuleSource, Result, Stream};
use std::slice;
use xts_mode::Xts128;

const TWEAKS: &str = "aes_xts_tweaks";
const ENCRYPT: &str = "aes_xts_encrypt";
const DECRYPT: &str = "aes_xts_decrypt";

const MODULE: ModuleSource = ModuleSource {
    name: "aes_xts",
    source: include_str!("cl/aes_xts.cl"),
    headers: &[aes::HEADERS[0], aes::HEADERS[1], aes::HEADERS[2], ("aes_xts.h", include_str!("cl/aes_xts.h"))],
    kernels: &[(TWEAKS, tweaks_on_host), (ENCRYPT, encrypt_on_host), (DECRYPT, decrypt_on_host)],
};

/// The keys of the standard.
const SIZES: [KeySize; 2] = [KeySize::Aes128, KeySize::Aes256];

/// The kernels.
#[derive(Debug)]
pub struct AesXts;

impl Kernel for AesXts {
    fn source(&self) -> &'static ModuleSource {
        &MODULE
    }

    fn try_out(&self, trial: &mut Trial<'_>) -> Result<(), String> {
        let module = trial.compiled()?;
        let (sizes, shapes): (&[KeySize], &[(usize, u32)]) = match trial.effort() {
            Effort::FirstUse => (&SIZES, &[(9, 1024)]),
            Effort::Interpreted => (&[KeySize::Aes128], &[(3, 512)]),
            // Counts around one thread's eight tweaks, one group's 64 units of 512 bytes and its 2048 tweaks.
            Effort::Exhaustive => (
                &SIZES,
                &[
                    (0, 512),
                    (1, 512),
                    (7, 512),
                    (9, 512),
                    (63, 512),
                    (65, 512),
                    (2049, 512),
                    (5, 1024),
                    (33, 2048),
                    (1, 4096),
                    (7, 4096),
                    (9, 4096),
                ],
            ),
        };
        let cases = shapes.iter().flat_map(|shape| sizes.iter().map(move |size| (shape, size)));
        cases.into_iter().try_for_each(|((count, bytes), size)| {
            Case::draw(trial.draw(), *size, *count, *bytes).run(trial.stream(), module)
        })
    }
}

/// Four threads take so many bytes.
const UNIT_BYTES: u64 = 512;
const UNITS_PER_GROUP: u64 = GROUP_SIZE as u64 / 4;

/// Bytes of the schedules of one key.
const SCHEDULES_BYTES: u64 = 3 * SCHEDULE_BYTES as u64;

/// Bytes of a sector's tweak.
pub const TWEAK_BYTES: u64 = 16;

/// What sectors' numbers count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IvUnit {
    /// 512 bytes, whatever the size of a sector: the default of dm-crypt and LUKS2.
    Bytes512,
    /// Sectors: dm-crypt's `iv_large_sectors`.
    Sector,
}

/// How the data is divided into sectors, and what they are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sectors {
    /// Bytes of a sector: 512, 1024, 2048 or 4096.
    pub bytes: u32,
    /// Number of the first sector, in units of `iv_unit`.
    pub first_iv: u64,
    /// What the numbers count.
    pub iv_unit: IvUnit,
}

impl Sectors {
    /// The number of sectors in `len` bytes, or what is wrong.
    pub fn count(self, len: u64) -> Result<u64> {
        if !matches!(self.bytes, 512 | 1024 | 2048 | 4096) {
            return Err(bad(format!("sectors of {} bytes are not supported: use 512, 1024, 2048 or 4096", self.bytes)));
        }
        if !len.is_multiple_of(u64::from(self.bytes)) {
            return Err(bad(format!("{len} bytes are not a multiple of the sector size, {}", self.bytes)));
        }
        Ok(len / u64::from(self.bytes))
    }

    /// Those so many bytes further on, whole sectors.
    #[must_use]
    pub fn behind(self, bytes: u64) -> Self {
        let count = bytes / u64::from(self.bytes);
        Self { first_iv: self.first_iv.wrapping_add(count.wrapping_mul(u64::from(self.iv_step()))), ..self }
    }

    fn iv_step(self) -> u32 {
        match self.iv_unit {
            IvUnit::Bytes512 => self.bytes / 512,
            IvUnit::Sector => 1,
        }
    }
}

/// The memory of a launch. Every range begins at a 16-byte boundary.
#[derive(Debug, Clone, Copy)]
pub struct Operands<'a> {
    /// What [`schedules`] made of the key: read.
    pub schedules: DeviceSlice<'a>,
    /// Scratch of [`TWEAK_BYTES`] for each sector: written, then read.
    pub tweaks: DeviceSlice<'a>,
    /// Whole sectors: read.
    pub src: DeviceSlice<'a>,
    /// As long as `src`, which it may be: written.
    pub dst: DeviceSlice<'a>,
}

/// Schedules of an XTS key: the data key and the tweak key one after the other, 32 or 64 bytes. The
/// standard asks for two different halves; that is for the caller to see to.
pub fn schedules(key: &[u8]) -> Result<Schedules> {
    let (data, tweak) = key.split_at(key.len() / 2);
    let size = KeySize::of_key(tweak)?;
    if !SIZES.contains(&size) {
        return Err(bad(format!("an AES-XTS key of {} bytes is not supported: use 32 or 64", key.len())));
    }
    let mut bytes = aes::room_for(3, 0);
    aes::append_schedule(&mut bytes, data, Direction::Encrypt)?;
    aes::append_schedule(&mut bytes, data, Direction::Decrypt)?;
    aes::append_schedule(&mut bytes, tweak, Direction::Encrypt)?;
    Ok(Schedules::new(size, bytes))
}

/// `AesXtsParams` of `aes_xts.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Params {
    src_at: u64,
    dst_at: u64,
    tweaks_at: u64,
    sectors: u64,
    first_iv: u64,
    iv_step: u32,
    units_per_sector: u32,
    rounds: u32,
}

const PARAMS_BYTES: usize = 56;

impl Params {
    fn to_bytes(self) -> Vec<u8> {
        let words = [self.src_at, self.dst_at, self.tweaks_at, self.sectors, self.first_iv].map(u64::to_ne_bytes);
        let halves = [self.iv_step, self.units_per_sector, self.rounds, 0].map(u32::to_ne_bytes);
        [words.concat(), halves.concat()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; PARAMS_BYTES] = bytes.try_into().ok()?;
        let word = |i: usize| u64::from_ne_bytes(bytes.as_chunks().0[i]);
        let half = |i: usize| u32::from_ne_bytes(bytes.as_chunks().0[i]);
        Some(Self {
            src_at: word(0),
            dst_at: word(1),
            tweaks_at: word(2),
            sectors: word(3),
            first_iv: word(4),
            iv_step: half(10),
            units_per_sector: half(11),
            rounds: half(12),
        })
    }

    fn sector_bytes(self) -> usize {
        self.units_per_sector as usize * UNIT_BYTES as usize
    }
}

/// What the kernels compute: `data` in place, under a key of 32 or 64 bytes.
///
/// # Panics
/// If the key has another length or `data` is no whole number of sectors.
pub fn oracle(direction: Direction, key: &[u8], sectors: Sectors, data: &mut [u8]) {
    assert!(data.len().is_multiple_of(sectors.bytes as usize), "whole sectors");
    let (first, second) = key.split_at(key.len() / 2);
    let bytes = sectors.bytes as usize;
    let (iv, step) = (sectors.first_iv, sectors.iv_step());
    if first.len() == 16 {
        oracle_of::<Aes128>(direction, [first, second], bytes, (iv, step), data);
    } else {
        oracle_of::<Aes256>(direction, [first, second], bytes, (iv, step), data);
    }
}

fn oracle_of<C: KeyInit + BlockSizeUser<BlockSize = U16> + BlockCipherEncrypt + BlockCipherDecrypt>(
    direction: Direction,
    keys: [&[u8]; 2],
    sector_bytes: usize,
    (first_iv, iv_step): (u64, u32),
    data: &mut [u8],
) {
    let [first, second] = keys.map(|key| C::new_from_slice(key).expect("a key of 16 or 32 bytes"));
    let xts = Xts128::new(first, second);
    for (i, sector) in data.chunks_exact_mut(sector_bytes).enumerate() {
        let tweak = Block::from(tweak_input(first_iv, iv_step, i));
        match direction {
            Direction::Encrypt => xts.encrypt_sector(sector, tweak),
            Direction::Decrypt => xts.decrypt_sector(sector, tweak),
        }
    }
}

/// The number of sector `i`, as it is encrypted. Numbers wrap around like dm-crypt's.
fn tweak_input(first_iv: u64, iv_step: u32, i: usize) -> [u8; 16] {
    u128::from(first_iv.wrapping_add((i as u64).wrapping_mul(u64::from(iv_step)))).to_le_bytes()
}

/// Enqueues the encryption or decryption of `src` into `dst`.
///
/// # Safety
/// `module` is that of [`AesXts`] on the stream's device; the ranges are memory of that device and stay
/// valid, and are not used by others, until the work completes; `schedules` holds the bytes of
/// [`schedules`] for a key of this size; `dst` is `src` or overlaps it nowhere, and `tweaks`
/// overlaps nothing else.
pub unsafe fn launch(
    stream: &Stream,
    module: &Module,
    direction: Direction,
    size: KeySize,
    sectors: Sectors,
    operands: Operands<'_>,
) -> Result<()> {
    let count = check(sectors, operands)?;
    if count == 0 {
        return Ok(());
    }
    let at = |range| Addressing::Relative(range).argument(stream.device());
    let ((src, src_at), (dst, dst_at), (tweaks, tweaks_at)) =
        (at(operands.src)?, at(operands.dst)?, at(operands.tweaks)?);
    let units_per_sector = sectors.bytes / UNIT_BYTES as u32;
    let (first_iv, iv_step) = (sectors.first_iv, sectors.iv_step());
    let rounds = size.rounds();
    let params =
        Params { src_at, dst_at, tweaks_at, sectors: count, first_iv, iv_step, units_per_sector, rounds }.to_bytes();
    let keys = KernelArg::Buffer(operands.schedules.ptr());
    let tweak_groups = grid(count.div_ceil(u64::from(GROUP_SIZE) * BLOCKS_PER_THREAD))?;
    let groups = grid((count * u64::from(units_per_sector)).div_ceil(UNITS_PER_GROUP))?;
    let kernel = match direction {
        Direction::Encrypt => ENCRYPT,
        Direction::Decrypt => DECRYPT,
    };
    let params = KernelArg::Bytes(&params);
    let args = [keys, KernelArg::Buffer(tweaks), KernelArg::Buffer(src), KernelArg::Buffer(dst), params];
    // SAFETY: the arguments are those of the kernels, the ranges have the lengths that the
    // parameters claim, and the caller vouches for the module and the memory.
    unsafe {
        stream.launch(module, TWEAKS, tweak_groups, GROUP_SIZE, &[keys, KernelArg::Buffer(tweaks), params])?;
        stream.launch(module, kernel, groups, GROUP_SIZE, &args)
    }
}

/// The number of sectors, or what is wrong with the ranges.
fn check(sectors: Sectors, operands: Operands<'_>) -> Result<u64> {
    let count = sectors.count(operands.src.len())?;
    let Operands { schedules, tweaks, src, dst } = operands;
    if src.len() != dst.len() {
        return Err(bad(format!(
            "a source of {} bytes and a destination of {} differ in length",
            src.len(),
            dst.len()
        )));
    }
    if tweaks.len() / TWEAK_BYTES < count {
        return Err(bad(format!(
            "the tweaks of {count} sectors need {} bytes of scratch memory, got {}",
            count * TWEAK_BYTES,
            tweaks.len()
        )));
    }
    aes::check_schedules(schedules, SCHEDULES_BYTES)?;
    Ok(count)
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn tweaks_on_host(launch: &HostLaunch<'_>) {
    let [KernelArg::Buffer(keys), KernelArg::Buffer(tweaks), KernelArg::Bytes(params)] = launch.args else {
        unreachable!("{TWEAKS} has two buffers and one parameter struct");
    };
    let Some(params) = Params::from_bytes(params) else { unreachable!("{TWEAKS} has 56 bytes of parameters") };
    // SAFETY: the caller passes host addresses of three schedules, and of 16 bytes for each sector
    // that nobody else uses.
    let (keys, tweaks) = unsafe {
        (
            slice::from_raw_parts(keys.0 as *const u8, SCHEDULES_BYTES as usize),
            slice::from_raw_parts_mut(
                tweaks.offset_by(params.tweaks_at).0 as *mut u8,
                (params.sectors * TWEAK_BYTES) as usize,
            ),
        )
    };
    let size = KeySize::of_rounds(params.rounds);
    let key = aes::key_of_schedule(&keys[2 * SCHEDULE_BYTES..], size);
    for (i, tweak) in tweaks.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let mut block = Block::from(tweak_input(params.first_iv, params.iv_step, i));
        match size {
            KeySize::Aes128 => Aes128::new_from_slice(&key).expect("a key of 16 bytes").encrypt_block(&mut block),
            _ => Aes256::new_from_slice(&key).expect("a key of 32 bytes").encrypt_block(&mut block),
        }
        *tweak = block.into();
    }
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn encrypt_on_host(launch: &HostLaunch<'_>) {
    // SAFETY: the caller's promise.
    unsafe { data_on_host(launch, Direction::Encrypt) };
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn decrypt_on_host(launch: &HostLaunch<'_>) {
    // SAFETY: the caller's promise.
    unsafe { data_on_host(launch, Direction::Decrypt) };
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn data_on_host(launch: &HostLaunch<'_>, direction: Direction) {
    let [
        KernelArg::Buffer(keys),
        KernelArg::Buffer(_),
        KernelArg::Buffer(src),
        KernelArg::Buffer(dst),
        KernelArg::Bytes(params),
    ] = launch.args
    else {
        unreachable!("the kernels of AES-XTS have four buffers and one parameter struct");
    };
    let Some(params) = Params::from_bytes(params) else { unreachable!("AES-XTS has 56 bytes of parameters") };
    let len = params.sectors as usize * params.sector_bytes();
    let (src, dst) = (src.offset_by(params.src_at), dst.offset_by(params.dst_at));
    // SAFETY: the caller passes host addresses of three schedules and of `len` bytes of each; the
    // two ranges may be one, which `copy` allows, and nobody else uses the destination.
    let (keys, data) = unsafe {
        std::ptr::copy(src.0 as *const u8, dst.0 as *mut u8, len);
        (
            slice::from_raw_parts(keys.0 as *const u8, SCHEDULES_BYTES as usize),
            slice::from_raw_parts_mut(dst.0 as *mut u8, len),
        )
    };
    let size = KeySize::of_rounds(params.rounds);
    let pair = [0, 2].map(|i| aes::key_of_schedule(&keys[i * SCHEDULE_BYTES..], size));
    let (bytes, iv) = (params.sector_bytes(), (params.first_iv, params.iv_step));
    match size {
        KeySize::Aes128 => oracle_of::<Aes128>(direction, [&pair[0], &pair[1]], bytes, iv, data),
        _ => oracle_of::<Aes256>(direction, [&pair[0], &pair[1]], bytes, iv, data),
    }
}

/// Inputs with a known answer.
#[derive(Debug, Clone)]
pub struct Case {
    key: Vec<u8>,
    size: KeySize,
    sectors: Sectors,
    /// The whole source allocation.
    source: Vec<u8>,
    /// How far into their allocations source, destination and tweaks begin.
    shift: [usize; 3],
}

impl Case {
    /// `count` sectors of `sector_bytes` of random content, numbered from anywhere in either unit.
    pub fn draw(draw: &mut Draw, size: KeySize, count: usize, sector_bytes: u32) -> Self {
        let iv_unit = if draw.below(2) == 0 { IvUnit::Bytes512 } else { IvUnit::Sector };
        let first_iv = draw.next_u64() >> draw.below(64);
        let shift = [(); 3].map(|()| draw.below(40) as usize * 16);
        let source = draw.bytes(shift[0] + count * sector_bytes as usize);
        let sectors = Sectors { bytes: sector_bytes, first_iv, iv_unit };
        Self { key: draw.bytes(2 * size.bytes()), size, sectors, source, shift }
    }

    /// Runs both directions, from one place to another over poisoned memory and in place, and
    /// compares whole allocations with the oracle's.
    pub fn run(&self, stream: &Stream, module: &Module) -> Result<(), String> {
        for direction in [Direction::Encrypt, Direction::Decrypt] {
            for in_place in [false, true] {
                let mut expected = self.source[self.shift[0]..].to_vec();
                oracle(direction, &self.key, self.sectors, &mut expected);
                let found = self.on_device(stream, module, direction, in_place, &expected);
                let found = found.map_err(|error| error.to_string())?;
                let before = if in_place { self.source[..self.shift[0]].to_vec() } else { vec![0x5a; self.shift[1]] };
                let compared = known_answer::compare("byte", &found, &[before, expected].concat());
                compared.map_err(|wrong| {
                    format!("{direction:?}, {:?}, {:?}, in place: {in_place}: {wrong}", self.size, self.sectors)
                })?;
            }
        }
        Ok(())
    }

    fn on_device(
        &self,
        stream: &Stream,
        module: &Module,
        direction: Direction,
        in_place: bool,
        expected: &[u8],
    ) -> Result<Vec<u8>> {
        let poison = [vec![0x5a; self.shift[1]], expected.iter().map(|byte| !byte).collect()].concat();
        let schedules = known_answer::on_device(stream, schedules(&self.key)?.bytes())?;
        let count = self.sectors.count(expected.len() as u64)? as usize;
        let tweaks = known_answer::on_device(stream, &vec![0xa5; self.shift[2] + count * 16])?;
        let src = known_answer::on_device(stream, &self.source)?;
        let dst = known_answer::on_device(stream, &poison)?;
        let source = known_answer::behind(&src, self.shift[0])?;
        let operands = Operands {
            schedules: schedules.slice(),
            tweaks: known_answer::behind(&tweaks, self.shift[2])?,
            src: source,
            dst: if in_place { source } else { known_answer::behind(&dst, self.shift[1])? },
        };
        // SAFETY: the allocations live until `content` has waited for the work, and are apart.
        unsafe { launch(stream, module, direction, self.size, self.sectors, operands) }?;
        known_answer::content(stream, if in_place { &src } else { &dst })
    }
}
