//! Digests of many blocks of device memory: CRC32C (RFC 3720) and SHA-256 (FIPS 180-4).
//!
//! Blocks are listed in a table, see [`Block`]; their digests lie one after the other in the order of
//! the table. 32 threads share the CRC of a block. A SHA-256 is one chain, which one thread follows:
//! it needs tens of thousands of blocks to fill a GPU.

use crate::addressing::{self, Addressing};
use crate::kernel::{Effort, KDEF_H, Kernel, Trial};
use crate::known_answer::{self, Draw};
use crate::launch::{bad, grid, is_aligned};
use bifolio_device::{DeviceSlice, HostLaunch, KernelArg, Module, ModuleSource, Result, Stream};
use sha2::{Digest as _, Sha256};
use std::slice;

/// Which digest, and its kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Digest {
    /// 4 bytes in the host's order.
    Crc32c,
    /// 32 bytes.
    Sha256,
}

const CRC32C: ModuleSource = ModuleSource {
    name: "crc32c",
    source: include_str!("cl/crc32c.cl"),
    headers: &[KDEF_H, ("crc32c.h", include_str!("cl/crc32c.h"))],
    kernels: &[("crc32c", crc32c_on_host)],
};

const SHA256: ModuleSource = ModuleSource {
    name: "sha256",
    source: include_str!("cl/sha256.cl"),
    headers: &[KDEF_H, ("sha256.h", include_str!("cl/sha256.h"))],
    kernels: &[("sha256", sha256_on_host)],
};

impl Kernel for Digest {
    fn source(&self) -> &'static ModuleSource {
        match self {
            Self::Crc32c => &CRC32C,
            Self::Sha256 => &SHA256,
        }
    }

    fn try_out(&self, trial: &mut Trial<'_>) -> Result<(), String> {
        let module = trial.compiled()?;
        let shapes = match trial.effort() {
            Effort::FirstUse => vec![(20, 2000)],
            Effort::Interpreted => vec![(9, 600)],
            // Lengths around 16 bytes, a step of a team, and what fits a last block of SHA-256 with its length.
            Effort::Exhaustive => {
                let lengths = [15, 16, 17, 55, 56, 63, 64, 65, 511, 512, 513, 4096, 70_000];
                lengths.map(|bytes| (9, bytes)).into_iter().chain([(0, 16), (1, 1), (300, 100)]).collect()
            }
        };
        shapes
            .into_iter()
            .try_for_each(|(count, bytes)| Case::draw(trial.draw(), count, bytes).run(*self, trial.stream(), module))
    }
}

/// What a thread of CRC32C skips from one word to the next.
const STEP_BYTES: u32 = 512;

impl Digest {
    /// Length of a digest in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Crc32c => 4,
            Self::Sha256 => 32,
        }
    }

    /// Threads of a group and the blocks that it takes.
    fn group(self) -> (u32, u64) {
        match self {
            Self::Crc32c => (256, 8),
            Self::Sha256 => (128, 128),
        }
    }

    /// The boundary of the digests.
    fn boundary(self) -> u64 {
        match self {
            Self::Crc32c => 4,
            Self::Sha256 => 16,
        }
    }

    /// `Crc32cParams` of `crc32c.h` or `Sha256Params` of `sha256.h`.
    fn params(self, blocks_at: u64, count: u64) -> Vec<u8> {
        let mut params = addressing::to_bytes(&[blocks_at, count]);
        if self == Self::Crc32c {
            params.extend(step_words().map(u32::to_ne_bytes).concat());
            params.extend(after_words().map(u32::to_ne_bytes).concat());
        }
        params
    }
}

/// One block: its place is a multiple of 16.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Place of the block.
    pub at: u64,
    /// Length in bytes, 0 allowed.
    pub len: u64,
}

/// Size of a [`Block`] in the device's table.
pub const BLOCK_BYTES: u64 = 16;

const _: () = assert!(size_of::<Block>() as u64 == BLOCK_BYTES);

/// The table of blocks as the device reads it.
pub fn encode(blocks: &[Block]) -> Vec<u8> {
    blocks.iter().flat_map(|block| addressing::to_bytes(&[block.at, block.len])).collect()
}

/// Refuses blocks that do not lie at 16-byte boundaries inside the base. The kernels cannot, as the
/// table is on the device.
pub fn check(blocks: &[Block], base: Addressing<'_>) -> Result<()> {
    blocks.iter().try_for_each(|block| base.check("block", block.at, block.len))
}

/// The digest of one block.
pub fn oracle(digest: Digest, block: &[u8]) -> Vec<u8> {
    match digest {
        Digest::Crc32c => ::crc32c::crc32c(block).to_ne_bytes().to_vec(),
        Digest::Sha256 => Sha256::digest(block).to_vec(),
    }
}

/// Enqueues the digests of the blocks in `table`, see [`encode`], at an 8-byte boundary. `digests` gets
/// [`Digest::bytes`] for each, at a 4-byte boundary for CRC32C and a 16-byte boundary for SHA-256.
///
/// # Safety
/// `module` is the digest's [`Kernel::source`] on the stream's device; the memory is of that device, stays valid and
/// is not written by others until the work completes; the blocks pass [`check`], and `digests` overlaps
/// none of them.
pub unsafe fn launch(
    stream: &Stream,
    module: &Module,
    digest: Digest,
    base: Addressing<'_>,
    table: DeviceSlice<'_>,
    digests: DeviceSlice<'_>,
) -> Result<()> {
    let count = addressing::rows(table, BLOCK_BYTES)?;
    if digests.len() / digest.bytes() < count || !is_aligned(digests, digest.boundary()) {
        let (need, boundary) = (count * digest.bytes(), digest.boundary());
        let (len, ptr) = (digests.len(), digests.ptr());
        return Err(bad(format!(
            "the digests of {count} blocks need {need} bytes at a {boundary}-byte boundary, got {len} at {ptr}"
        )));
    }
    if count == 0 {
        return Ok(());
    }
    let (base, blocks_at) = base.argument(stream.device())?;
    let params = digest.params(blocks_at, count);
    let args = [
        KernelArg::Buffer(base),
        KernelArg::Buffer(table.ptr()),
        KernelArg::Buffer(digests.ptr()),
        KernelArg::Bytes(&params),
    ];
    let (group_size, blocks) = digest.group();
    let kernel = digest.name();
    // SAFETY: the arguments are those of the kernel, the digests have room for every block, and the
    // caller vouches for the module and the memory.
    unsafe { stream.launch(module, kernel, grid(count.div_ceil(blocks))?, group_size, &args) }
}

/// A register with one more zero bit behind what it has seen.
fn next_bit(crc: u32) -> u32 {
    (crc >> 1) ^ (if crc & 1 == 0 { 0 } else { 0x82f6_3b78 })
}

fn zero_bytes(crc: u32, bytes: u32) -> u32 {
    (0..bytes * 8).fold(crc, |crc, _| next_bit(crc))
}

/// Every bit of a register, moved on by a step.
fn step_words() -> [u32; 32] {
    std::array::from_fn(|bit| zero_bytes(1 << bit, STEP_BYTES))
}

/// The powers of x that move a register on by 16 bytes times the index.
fn after_words() -> [u32; 32] {
    std::array::from_fn(|i| zero_bytes(1 << 31, 16 * i as u32))
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn crc32c_on_host(launch: &HostLaunch<'_>) {
    // SAFETY: the caller's promise.
    unsafe { run_on_host(launch, Digest::Crc32c) };
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn sha256_on_host(launch: &HostLaunch<'_>) {
    // SAFETY: the caller's promise.
    unsafe { run_on_host(launch, Digest::Sha256) };
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn run_on_host(launch: &HostLaunch<'_>, digest: Digest) {
    let [KernelArg::Buffer(base), KernelArg::Buffer(table), KernelArg::Buffer(digests), KernelArg::Bytes(params)] =
        launch.args
    else {
        unreachable!("digests have three buffers and one parameter struct");
    };
    let Some([blocks_at, count]) = params.get(..16).and_then(addressing::words_of) else {
        unreachable!("the parameters of digests begin with two words")
    };
    // SAFETY: the caller passes host addresses of so many blocks, and of a digest for each that nobody
    // else uses.
    let (blocks, digests) = unsafe {
        (
            slice::from_raw_parts(table.0 as *const Block, count as usize),
            slice::from_raw_parts_mut(digests.0 as *mut u8, (count * digest.bytes()) as usize),
        )
    };
    for (block, place) in blocks.iter().zip(digests.chunks_exact_mut(digest.bytes() as usize)) {
        let at = base.offset_by(blocks_at + block.at).0 as *const u8;
        // SAFETY: the block lies inside the base; an empty one may have no memory at all.
        let bytes = if block.len == 0 { &[] } else { unsafe { slice::from_raw_parts(at, block.len as usize) } };
        place.copy_from_slice(&oracle(digest, bytes));
    }
}

/// Inputs with a known answer.
#[derive(Debug, Clone)]
pub struct Case {
    content: Vec<u8>,
    blocks: Vec<Block>,
}

impl Case {
    /// `count` blocks of `bytes`, the last one ragged and one in eight empty, in random order.
    pub fn draw(draw: &mut Draw, count: usize, bytes: u64) -> Self {
        let lens = draw.page_lengths(count, bytes);
        let (places, end) = draw.places(&lens);
        let blocks = places.into_iter().zip(lens).map(|(at, len)| Block { at, len }).collect();
        Self { content: draw.bytes(end as usize), blocks }
    }

    /// Runs a kernel over poisoned digests and compares them with the oracle's.
    pub fn run(&self, digest: Digest, stream: &Stream, module: &Module) -> Result<(), String> {
        let of = |block: &Block| oracle(digest, &self.content[block.at as usize..][..block.len as usize]);
        let expected: Vec<u8> = self.blocks.iter().flat_map(of).collect();
        let found = || -> Result<Vec<u8>> {
            let content = known_answer::on_device(stream, &self.content)?;
            let table = known_answer::on_device(stream, &encode(&self.blocks))?;
            let poison: Vec<u8> = expected.iter().map(|byte| !byte).collect();
            let digests = known_answer::on_device(stream, &poison)?;
            check(&self.blocks, Addressing::Relative(content.slice()))?;
            let base = Addressing::Relative(content.slice());
            // SAFETY: the allocations live until the digests were read back.
            unsafe { launch(stream, module, digest, base, table.slice(), digests.slice()) }?;
            known_answer::content(stream, &digests)
        };
        let found = found().map_err(|error| error.to_string())?;
        known_answer::compare("byte", &found, &expected)
            .map_err(|wrong| format!("{digest:?} of {} blocks: {wrong}", self.blocks.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, B.4.
    #[test]
    fn crcs_are_those_of_the_standard() {
        let ascending: Vec<u8> = (0..32).collect();
        let crc = |block: &[u8]| oracle(Digest::Crc32c, block);
        assert_eq!(crc(&[0; 32]), 0x8a91_36aa_u32.to_ne_bytes());
        assert_eq!(crc(&[0xff; 32]), 0x62a8_ab43_u32.to_ne_bytes());
        assert_eq!(crc(&ascending), 0x46dd_794e_u32.to_ne_bytes());
    }

    /// The examples for FIPS 180-4: "abc" and the one of two blocks.
    #[test]
    fn digests_are_those_of_the_standard() {
        let abc = [0xba78_16bf_8f01_cfea_4141_40de_5dae_2223_u128, 0xb003_61a3_9617_7a9c_b410_ff61_f200_15ad];
        let two = [0x248d_6a61_d206_38b8_e5c0_2693_0c3e_6039_u128, 0xa33c_e459_64ff_2167_f6ec_edd4_19db_06c1];
        assert_eq!(oracle(Digest::Sha256, b"abc"), abc.map(u128::to_be_bytes).concat());
        let text = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        assert_eq!(oracle(Digest::Sha256, text), two.map(u128::to_be_bytes).concat());
    }
}
