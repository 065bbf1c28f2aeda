//! The launches, and the parameters that they carry.

use super::message::{Blocks, MESSAGE_BYTES, Operands};
use super::oracle::SCHEDULES_BYTES;
use crate::addressing::{self, Addressing};
use crate::aes::{self, BLOCKS_PER_THREAD, GROUP_SIZE, KeySize};
use crate::aes_ctr::TEAMS;
use crate::launch::{bad, grid, is_aligned};
use bifolio_device::{DeviceSlice, KernelArg, Module, Result, Stream};

/// The kernel that lists the messages of blocks in a row.
pub(super) const MESSAGES: &str = "aes_gcm_messages";
/// The kernel that computes what messages begin with.
pub(super) const STARTS: &str = "aes_gcm_starts";
/// The kernel that encrypts and writes tags.
pub(super) const ENCRYPT: &str = "aes_gcm_encrypt";
/// The kernel that verifies and decrypts.
pub(super) const DECRYPT: &str = "aes_gcm_decrypt";

/// Bytes of scratch for a message.
pub const START_BYTES: u64 = 32;

/// What a key needs on the device, and what is computed with it.
#[derive(Debug, Clone, Copy)]
pub struct Keyed<'a> {
    /// The size of the key.
    pub size: KeySize,
    /// What [`super::schedules`] made of it: read.
    pub schedules: DeviceSlice<'a>,
    /// Scratch of [`START_BYTES`] for each message, at a 16-byte boundary: written, then read.
    pub starts: DeviceSlice<'a>,
}

/// Enqueues the listing of blocks in a row in `table`, which has [`MESSAGE_BYTES`] for each at an 8-byte boundary, for
/// [`decrypt`].
///
/// # Safety
/// `module` is that of [`super::AesGcm`] on the stream's device; the table is of that device, stays valid and is not used by others
/// until the work completes.
pub unsafe fn list(stream: &Stream, module: &Module, blocks: &Blocks, table: DeviceSlice<'_>) -> Result<()> {
    let count = blocks.count();
    if addressing::rows(table, MESSAGE_BYTES)? < count {
        return Err(bad(format!("a table of {} bytes is too small for {count} messages", table.len())));
    }
    if count == 0 {
        return Ok(());
    }
    let groups = grid(count.div_ceil(u64::from(GROUP_SIZE)))?;
    let params = blocks.to_bytes();
    // SAFETY: the arguments are the kernel's, there is room for every message, and the caller vouches for the rest.
    unsafe {
        let args = [KernelArg::Buffer(table.ptr()), KernelArg::Bytes(&params)];
        stream.launch(module, MESSAGES, groups, GROUP_SIZE, &args)
    }
}

/// Enqueues the encryption of the messages of `table`, see [`super::encode`], at an 8-byte boundary, and the
/// writing of their tags. Nonces are the caller's: the same one never twice under a key.
///
/// # Safety
/// `module` is that of [`super::AesGcm`] on the stream's device; the memory is of that device, stays valid and is not
/// used by others until the work completes; `keyed.schedules` holds the bytes of [`super::schedules`] for a
/// key of this size; the messages pass [`super::check`]; each destination is its source or overlaps nothing
/// else, and no tag overlaps anything.
pub unsafe fn encrypt(
    stream: &Stream,
    module: &Module,
    keyed: Keyed<'_>,
    operands: Operands<'_>,
    table: DeviceSlice<'_>,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { launch(stream, module, keyed, operands, table, None) }
}

/// Enqueues the verification and decryption of the messages of `table`. `rights` gets a u32 for each at
/// a 4-byte boundary: 1 if its tag is right and its plaintext was written, else 0.
///
/// # Safety
/// As for [`encrypt`]; `rights` overlaps nothing else.
pub unsafe fn decrypt(
    stream: &Stream,
    module: &Module,
    keyed: Keyed<'_>,
    operands: Operands<'_>,
    table: DeviceSlice<'_>,
    rights: DeviceSlice<'_>,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { launch(stream, module, keyed, operands, table, Some(rights)) }
}

/// # Safety
/// As for the two faces.
unsafe fn launch(
    stream: &Stream,
    module: &Module,
    keyed: Keyed<'_>,
    operands: Operands<'_>,
    table: DeviceSlice<'_>,
    rights: Option<DeviceSlice<'_>>,
) -> Result<()> {
    let count = addressing::rows(table, MESSAGE_BYTES)?;
    aes::check_schedules(keyed.schedules, SCHEDULES_BYTES)?;
    if keyed.starts.len() / START_BYTES < count {
        return Err(bad(format!(
            "{count} messages need {} bytes of scratch memory, got {}",
            count * START_BYTES,
            keyed.starts.len()
        )));
    }
    if let Some(rights) = rights
        && (rights.len() / 4 < count || !is_aligned(rights, 4))
    {
        let (len, ptr) = (rights.len(), rights.ptr());
        let needed = count * 4;
        return Err(bad(format!(
            "the flags of {count} messages need {needed} bytes at a 4-byte boundary, got {len} at {ptr}"
        )));
    }
    if count == 0 {
        return Ok(());
    }
    let device = stream.device();
    let (src, src_at) = operands.src.argument(device)?;
    let (dst, dst_at) = operands.dst.argument(device)?;
    let (meta, meta_at) = operands.meta.argument(device)?;
    let (starts, starts_at) = Addressing::Relative(keyed.starts).argument(device)?;
    let params = Params { src_at, dst_at, meta_at, starts_at, count, rounds: keyed.size.rounds() }.to_bytes();
    let [keys, table, src, dst, meta, starts] =
        [keyed.schedules.ptr(), table.ptr(), src, dst, meta, starts].map(KernelArg::Buffer);
    let params = KernelArg::Bytes(&params);
    let start_groups = grid(count.div_ceil(u64::from(GROUP_SIZE) * BLOCKS_PER_THREAD))?;
    let groups = grid(count.div_ceil(TEAMS))?;
    // SAFETY: the arguments are those of the kernels, the scratch and the flags have room for every
    // message, and the caller vouches for the module and the memory.
    unsafe {
        stream.launch(module, STARTS, start_groups, GROUP_SIZE, &[keys, table, meta, starts, params])?;
        match rights {
            None => stream.launch(module, ENCRYPT, groups, GROUP_SIZE, &[keys, table, starts, src, dst, meta, params]),
            Some(rights) => {
                let rights = KernelArg::Buffer(rights.ptr());
                let args = [keys, table, starts, src, dst, meta, rights, params];
                stream.launch(module, DECRYPT, groups, GROUP_SIZE, &args)
            }
        }
    }
}

/// `AesGcmParams` of `aes_gcm.h`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Params {
    pub(super) src_at: u64,
    pub(super) dst_at: u64,
    pub(super) meta_at: u64,
    pub(super) starts_at: u64,
    pub(super) count: u64,
    pub(super) rounds: u32,
}

impl Params {
    fn to_bytes(self) -> Vec<u8> {
        let words = addressing::to_bytes(&[self.src_at, self.dst_at, self.meta_at, self.starts_at, self.count]);
        [words, [self.rounds, 0].map(u32::to_ne_bytes).concat()].concat()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, last) = bytes.split_at_checked(40)?;
        let [src_at, dst_at, meta_at, starts_at, count] = addressing::words_of(words)?;
        let rounds = u32::from_ne_bytes(*last.first_chunk()?);
        Some(Self { src_at, dst_at, meta_at, starts_at, count, rounds })
    }
}
