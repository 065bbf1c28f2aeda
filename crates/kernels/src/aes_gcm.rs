//! AES-GCM of many messages in device memory (NIST SP 800-38D): nonces of 12 or 16 bytes, up to 32
//! bytes of additional data, tags of 16 bytes. The blocks of gocryptfs are such messages.
//!
//! Two launches follow each other in the stream: one computes what every message begins with into
//! scratch memory of the caller's, the other has 32 threads for each message. Decryption hashes first
//! and decrypts afterwards: the plaintext of a message whose tag is wrong is not written, and its flag
//! is 0. The scratch is as secret as the plaintext: clear it with the schedules. See [`crate::aes`] for
//! keys and side channels; the products of the hash are made of integer products, without tables.
//!
//! The kernels are made for messages of some hundred bytes to some hundred KiB.

mod case;

pub use case::{Case, try_list};

use crate::aes::{self, BLOCKS_PER_THREAD, Direction, GROUP_SIZE, KeySize, SCHEDULE_BYTES, Schedules};
use crate::aes_ctr::{self, TEAMS};
use crate::page_list::{self, Base};
use crate::{Error, ErrorKind, Result};
use ::aes::cipher::{BlockCipherEncrypt, BlockSizeUser, consts::U12, consts::U16};
use ::aes::{Aes128, Aes256, Block};
use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{AesGcm, Nonce};
use bifolio_device::{DevicePtr, DeviceSlice, HostLaunch, KernelArg, Module, ModuleSource, Stream};
use ghash::{GHash, universal_hash::UniversalHash};
use std::slice;
use zeroize::Zeroizing;

/// Name of the kernel that lists the messages of blocks in a row.
pub const MESSAGES: &str = "aes_gcm_messages";
/// Name of the kernel that computes what messages begin with.
pub const STARTS: &str = "aes_gcm_starts";
/// Name of the kernel that encrypts and writes tags.
pub const ENCRYPT: &str = "aes_gcm_encrypt";
/// Name of the kernel that verifies and decrypts.
pub const DECRYPT: &str = "aes_gcm_decrypt";

/// The kernels' source.
pub const MODULE: ModuleSource = ModuleSource {
    name: "aes_gcm",
    source: include_str!("cl/aes_gcm.cl"),
    headers: &[
        aes::HEADERS[0],
        aes::HEADERS[1],
        aes::HEADERS[2],
        aes_ctr::HEADER,
        ("aes_gcm.h", include_str!("cl/aes_gcm.h")),
    ],
    kernels: &[
        (MESSAGES, messages_on_host),
        (STARTS, starts_on_host),
        (ENCRYPT, encrypt_on_host),
        (DECRYPT, decrypt_on_host),
    ],
};

/// Powers of H that travel with a schedule.
const POWERS: usize = 32;

/// Bytes of the schedule and the powers of one key.
pub const SCHEDULES_BYTES: u64 = (SCHEDULE_BYTES + POWERS * 16) as u64;

/// Bytes of scratch for a message.
pub const START_BYTES: u64 = 32;

/// Most additional data of a message.
pub const AAD_MAX: usize = 32;

const TAG_BYTES: u64 = 16;

/// One message. The text's places are multiples of 16, those of nonce and tag are anything. It is
/// `AesGcmMessage` of `aes_gcm.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Place of the text in the source.
    pub src: u64,
    /// Its place in the destination, the same memory or apart.
    pub dst: u64,
    /// Place of the nonce, which is read, among nonces and tags.
    pub nonce: u64,
    /// Place of the tag there: written by an encryption, read by a decryption.
    pub tag: u64,
    /// Length of the text in bytes, 0 allowed.
    pub len: u64,
    nonce_len: u32,
    aad_len: u32,
    aad: [u8; AAD_MAX],
}

/// Size of a [`Message`] in the device's table.
pub const MESSAGE_BYTES: u64 = 80;

const _: () = assert!(size_of::<Message>() as u64 == MESSAGE_BYTES);

/// Where the parts of a message lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// Place of the text in the source.
    pub src: u64,
    /// Place of the text in the destination.
    pub dst: u64,
    /// Place of the nonce.
    pub nonce: u64,
    /// Place of the tag.
    pub tag: u64,
}

impl Message {
    /// A message of `len` bytes with a nonce of `nonce_len`, 12 or 16.
    pub fn new(places: Places, len: u64, nonce_len: u32, aad: &[u8]) -> Result<Self> {
        if !matches!(nonce_len, 12 | 16) {
            return Err(bad(format!("a nonce of AES-GCM has 12 or 16 bytes here, not {nonce_len}")));
        }
        if aad.len() > AAD_MAX {
            return Err(bad(format!("{} bytes of additional data are more than {AAD_MAX}", aad.len())));
        }
        if len > ((1 << 32) - 2) * 16 {
            return Err(bad(format!("{len} bytes are more than one nonce of AES-GCM may encrypt")));
        }
        let Places { src, dst, nonce, tag } = places;
        let mut padded = [0; AAD_MAX];
        padded[..aad.len()].copy_from_slice(aad);
        Ok(Self { src, dst, nonce, tag, len, nonce_len, aad_len: aad.len() as u32, aad: padded })
    }

    /// Its additional data.
    pub fn aad(&self) -> &[u8] {
        &self.aad[..self.aad_len as usize]
    }

    /// Bytes of its nonce.
    pub fn nonce_len(&self) -> u64 {
        u64::from(self.nonce_len)
    }
}

/// Blocks one behind the other, each a nonce of 16 bytes, its text and its tag, whose additional data is the block's
/// number (big-endian) and an id: the content of gocryptfs's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// Place of the first block in the source, a multiple of 16; also among nonces and tags.
    pub sealed: u64,
    /// Place of its text in the destination, a multiple of 16.
    pub plain: u64,
    /// Its number.
    pub first: u64,
    /// Bytes of all texts, without nonces and tags.
    pub len: u64,
    /// Bytes of each text but the last, which may be shorter: a multiple of 16, not 0.
    pub block_bytes: u64,
    /// What follows the number in the additional data.
    pub id: [u8; 16],
}

impl Blocks {
    const NONCE_BYTES: u64 = 16;

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.len.div_ceil(self.block_bytes)
    }

    /// The message that a block is, counted from the first of these.
    ///
    /// # Errors
    /// Those of [`Message::new`].
    pub fn message(&self, block: u64) -> Result<Message> {
        let nonce = self.sealed + block * (self.block_bytes + Self::NONCE_BYTES + TAG_BYTES);
        let (src, dst) = (nonce + Self::NONCE_BYTES, self.plain + block * self.block_bytes);
        let len = self.block_bytes.min(self.len - block * self.block_bytes);
        let aad = [&(self.first + block).to_be_bytes()[..], &self.id].concat();
        Message::new(Places { src, dst, nonce, tag: src + len }, len, Self::NONCE_BYTES as u32, &aad)
    }

    /// Refuses blocks that do not lie inside their operands, or between 16-byte boundaries.
    pub fn check(&self, operands: &Operands<'_>) -> Result<()> {
        if self.block_bytes == 0 || !self.block_bytes.is_multiple_of(16) {
            return Err(bad(format!(
                "blocks of AES-GCM in a row have a multiple of 16 bytes, not {}",
                self.block_bytes
            )));
        }
        match self.count() {
            0 => Ok(()),
            count => check(&[self.message(0)?, self.message(count - 1)?], operands),
        }
    }

    /// `AesGcmBlocks` of `aes_gcm.h`.
    fn to_bytes(self) -> Vec<u8> {
        let words = [self.sealed, self.plain, self.first, self.len, self.block_bytes, self.count()];
        [page_list::to_bytes(&words), self.id.to_vec()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, id) = bytes.split_at_checked(48)?;
        let [sealed, plain, first, len, block_bytes, _] = page_list::words_of(words)?;
        Some(Self { sealed, plain, first, len, block_bytes, id: id.try_into().ok()? })
    }
}

/// Enqueues the listing of blocks in a row in `table`, which has [`MESSAGE_BYTES`] for each at an 8-byte boundary, for
/// [`decrypt`].
///
/// # Safety
/// `module` is [`MODULE`] on the stream's device; the table is of that device, stays valid and is not used by others
/// until the work completes.
pub unsafe fn list(stream: &Stream, module: &Module, blocks: &Blocks, table: DeviceSlice<'_>) -> Result<()> {
    let count = blocks.count();
    if page_list::rows(table, MESSAGE_BYTES)? < count {
        return Err(bad(format!("a table of {} bytes has no room for {count} messages", table.len())));
    }
    if count == 0 {
        return Ok(());
    }
    let groups = aes::grid(count.div_ceil(u64::from(GROUP_SIZE)))?;
    let params = blocks.to_bytes();
    // SAFETY: the arguments are the kernel's, there is room for every message, and the caller vouches for the rest.
    unsafe {
        let args = [KernelArg::Buffer(table.ptr()), KernelArg::Bytes(&params)];
        stream.launch(module, MESSAGES, groups, GROUP_SIZE, &args)
    }
}

/// The table of messages as the device reads it.
pub fn encode(messages: &[Message]) -> Vec<u8> {
    let mut table = Vec::new();
    encode_into(messages, &mut table);
    table
}

/// The same in a vector that is used again and again.
pub fn encode_into(messages: &[Message], table: &mut Vec<u8>) {
    table.clear();
    table.reserve(messages.len() * MESSAGE_BYTES as usize);
    for message in messages {
        for word in [message.src, message.dst, message.nonce, message.tag, message.len] {
            table.extend_from_slice(&word.to_ne_bytes());
        }
        for len in [message.nonce_len, message.aad_len] {
            table.extend_from_slice(&len.to_ne_bytes());
        }
        table.extend_from_slice(&message.aad);
    }
}

/// What the places of messages are counted from.
#[derive(Debug, Clone, Copy)]
pub struct Operands<'a> {
    /// Texts: read.
    pub src: Base<'a>,
    /// Texts: written.
    pub dst: Base<'a>,
    /// Nonces and tags.
    pub meta: Base<'a>,
}

/// What a key needs on the device, and what is computed with it.
#[derive(Debug, Clone, Copy)]
pub struct Keyed<'a> {
    /// The size of the key.
    pub size: KeySize,
    /// What [`schedules`] made of it: read.
    pub schedules: DeviceSlice<'a>,
    /// Scratch of [`START_BYTES`] for each message, at a 16-byte boundary: written, then read.
    pub starts: DeviceSlice<'a>,
}

/// The schedule and the powers of H of a key of 16 or 32 bytes.
pub fn schedules(key: &[u8]) -> Result<Schedules> {
    let size = KeySize::of_key(key)?;
    let mut bytes = aes::room_for(1, POWERS * 16);
    aes::append_schedule(&mut bytes, key, Direction::Encrypt)?;
    let h = Zeroizing::new(encrypt_block(key, [0; 16]));
    let mut power = h.clone();
    for _ in 0..POWERS {
        for word in power.as_chunks::<4>().0.iter().rev() {
            bytes.extend_from_slice(&u32::from_be_bytes(*word).to_ne_bytes());
        }
        // The hash of one block is its product with H.
        *power = hash(&h, &[*power]);
    }
    Ok(Schedules::new(size, bytes))
}

fn hash(h: &[u8; 16], blocks: &[[u8; 16]]) -> [u8; 16] {
    let mut hash = GHash::new(&(*h).into());
    for block in blocks {
        hash.update(&[(*block).into()]);
    }
    hash.finalize().into()
}

fn encrypt_block(key: &[u8], block: [u8; 16]) -> [u8; 16] {
    let mut block = Block::from(block);
    match key.len() {
        16 => Aes128::new_from_slice(key).expect("16 bytes").encrypt_block(&mut block),
        _ => Aes256::new_from_slice(key).expect("32 bytes").encrypt_block(&mut block),
    }
    block.into()
}

/// Refuses messages that do not lie inside their operands, or texts between 16-byte boundaries. The
/// kernels cannot, as the table is on the device.
pub fn check(messages: &[Message], operands: &Operands<'_>) -> Result<()> {
    messages.iter().try_for_each(|message| {
        operands.src.check("source", message.src, message.len)?;
        operands.dst.check("destination", message.dst, message.len)?;
        operands.meta.check_bytes("nonce", message.nonce, u64::from(message.nonce_len))?;
        operands.meta.check_bytes("tag", message.tag, TAG_BYTES)
    })
}

/// The tag of `text`, which is encrypted in place.
///
/// # Panics
/// If key or nonce have a length that the kernels do not know.
pub fn oracle_encrypt(key: &[u8], nonce: &[u8], aad: &[u8], text: &mut [u8]) -> [u8; 16] {
    match (key.len(), nonce.len()) {
        (16, 12) => seal::<Aes128, U12>(key, nonce, aad, text),
        (16, 16) => seal::<Aes128, U16>(key, nonce, aad, text),
        (32, 12) => seal::<Aes256, U12>(key, nonce, aad, text),
        (32, 16) => seal::<Aes256, U16>(key, nonce, aad, text),
        (key, nonce) => panic!("a key of {key} and a nonce of {nonce} bytes"),
    }
}

/// Whether the tag is right; then `text` is decrypted in place, else it stays.
///
/// # Panics
/// As [`oracle_encrypt`].
pub fn oracle_decrypt(key: &[u8], nonce: &[u8], aad: &[u8], text: &mut [u8], tag: [u8; 16]) -> bool {
    match (key.len(), nonce.len()) {
        (16, 12) => open::<Aes128, U12>(key, nonce, aad, text, tag),
        (16, 16) => open::<Aes128, U16>(key, nonce, aad, text, tag),
        (32, 12) => open::<Aes256, U12>(key, nonce, aad, text, tag),
        (32, 16) => open::<Aes256, U16>(key, nonce, aad, text, tag),
        (key, nonce) => panic!("a key of {key} and a nonce of {nonce} bytes"),
    }
}

fn seal<C, N>(key: &[u8], nonce: &[u8], aad: &[u8], text: &mut [u8]) -> [u8; 16]
where
    C: KeyInit + BlockSizeUser<BlockSize = U16> + BlockCipherEncrypt,
    N: ::aes::cipher::array::ArraySize,
{
    let cipher = AesGcm::<C, N>::new_from_slice(key).expect("the key's length is the cipher's");
    let nonce = Nonce::<N>::try_from(nonce).expect("the nonce's length is the type's");
    cipher.encrypt_inout_detached(&nonce, aad, text.into()).expect("the text is short enough").into()
}

fn open<C, N>(key: &[u8], nonce: &[u8], aad: &[u8], text: &mut [u8], tag: [u8; 16]) -> bool
where
    C: KeyInit + BlockSizeUser<BlockSize = U16> + BlockCipherEncrypt,
    N: ::aes::cipher::array::ArraySize,
{
    let cipher = AesGcm::<C, N>::new_from_slice(key).expect("the key's length is the cipher's");
    let nonce = Nonce::<N>::try_from(nonce).expect("the nonce's length is the type's");
    cipher.decrypt_inout_detached(&nonce, aad, text.into(), &tag.into()).is_ok()
}

/// Enqueues the encryption of the messages of `table`, see [`encode`], at an 8-byte boundary, and the
/// writing of their tags. Nonces are the caller's: the same one never twice under a key.
///
/// # Safety
/// `module` is [`MODULE`] on the stream's device; the memory is of that device, stays valid and is not
/// used by others until the work completes; `keyed.schedules` holds the bytes of [`schedules`] for a
/// key of this size; the messages pass [`check`]; each destination is its source or overlaps nothing
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
    let count = page_list::rows(table, MESSAGE_BYTES)?;
    aes::check_schedules(keyed.schedules, SCHEDULES_BYTES)?;
    if keyed.starts.len() / START_BYTES < count {
        return Err(bad(format!(
            "{count} messages need {} bytes of scratch; there are {}",
            count * START_BYTES,
            keyed.starts.len()
        )));
    }
    if let Some(rights) = rights
        && (rights.len() / 4 < count || !rights.ptr().0.is_multiple_of(4))
    {
        let there = format!("there are {} at {}", rights.len(), rights.ptr());
        return Err(bad(format!(
            "the flags of {count} messages need {} bytes at a 4-byte boundary; {there}",
            count * 4
        )));
    }
    if count == 0 {
        return Ok(());
    }
    let device = stream.device();
    let (src, src_at) = operands.src.argument(device)?;
    let (dst, dst_at) = operands.dst.argument(device)?;
    let (meta, meta_at) = operands.meta.argument(device)?;
    let (starts, starts_at) = Base::Range(keyed.starts).argument(device)?;
    let params = Params { src_at, dst_at, meta_at, starts_at, count, rounds: keyed.size.rounds() }.to_bytes();
    let [keys, table, src, dst, meta, starts] =
        [keyed.schedules.ptr(), table.ptr(), src, dst, meta, starts].map(KernelArg::Buffer);
    let params = KernelArg::Bytes(&params);
    let start_groups = aes::grid(count.div_ceil(u64::from(GROUP_SIZE) * BLOCKS_PER_THREAD))?;
    let groups = aes::grid(count.div_ceil(TEAMS))?;
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

fn bad(detail: String) -> Error {
    Error::new(ErrorKind::BadArgument, detail)
}

/// `AesGcmParams` of `aes_gcm.h`.
#[derive(Debug, Clone, Copy)]
struct Params {
    src_at: u64,
    dst_at: u64,
    meta_at: u64,
    starts_at: u64,
    count: u64,
    rounds: u32,
}

impl Params {
    fn to_bytes(self) -> Vec<u8> {
        let words = page_list::to_bytes(&[self.src_at, self.dst_at, self.meta_at, self.starts_at, self.count]);
        [words, [self.rounds, 0].map(u32::to_ne_bytes).concat()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, last) = bytes.split_at_checked(40)?;
        let [src_at, dst_at, meta_at, starts_at, count] = page_list::words_of(words)?;
        let rounds = u32::from_ne_bytes(*last.first_chunk()?);
        Some(Self { src_at, dst_at, meta_at, starts_at, count, rounds })
    }
}

/// The messages of a launch on the host.
struct HostMessages<'a> {
    key: Zeroizing<Vec<u8>>,
    messages: &'a [Message],
    params: Params,
}

impl HostMessages<'_> {
    /// # Safety
    /// The arguments are those of one of the kernels, with host addresses.
    unsafe fn new(keys: DevicePtr, table: DevicePtr, params: &[u8]) -> Self {
        let Some(params) = Params::from_bytes(params) else { unreachable!("AES-GCM has 48 bytes of parameters") };
        // SAFETY: the caller's promise.
        let (schedule, messages) = unsafe {
            (
                slice::from_raw_parts(keys.0 as *const u8, SCHEDULE_BYTES),
                slice::from_raw_parts(table.0 as *const Message, params.count as usize),
            )
        };
        Self { key: aes::key_of_schedule(schedule, KeySize::of_rounds(params.rounds)), messages, params }
    }

    /// # Safety
    /// `meta` is the host address of the nonces and tags.
    unsafe fn nonce(&self, message: &Message, meta: DevicePtr) -> Vec<u8> {
        let at = meta.offset_by(self.params.meta_at + message.nonce).0 as *const u8;
        // SAFETY: the caller's promise.
        unsafe { slice::from_raw_parts(at, message.nonce_len as usize) }.to_vec()
    }

    fn tag(&self, message: &Message, meta: DevicePtr) -> *mut [u8; 16] {
        meta.offset_by(self.params.meta_at + message.tag).0 as *mut [u8; 16]
    }

    /// # Safety
    /// `src` is the host address of the texts.
    unsafe fn text(&self, message: &Message, src: DevicePtr) -> Vec<u8> {
        if message.len == 0 {
            return Vec::new(); // It may have no memory at all.
        }
        let at = src.offset_by(self.params.src_at + message.src).0 as *const u8;
        // SAFETY: the caller's promise.
        unsafe { slice::from_raw_parts(at, message.len as usize) }.to_vec()
    }

    /// # Safety
    /// `dst` is the host address of a destination that nobody else uses.
    unsafe fn write(&self, message: &Message, dst: DevicePtr, text: &[u8]) {
        let at = dst.offset_by(self.params.dst_at + message.dst).0 as *mut u8;
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), at, text.len()) };
    }
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn messages_on_host(launch: &HostLaunch<'_>) {
    let [KernelArg::Buffer(table), KernelArg::Bytes(params)] = launch.args else {
        unreachable!("{MESSAGES} has one buffer and one parameter struct");
    };
    let Some(blocks) = Blocks::from_bytes(params) else {
        unreachable!("blocks of AES-GCM have 64 bytes of parameters")
    };
    for block in 0..blocks.count() {
        let message = blocks.message(block).expect("the lengths are allowed");
        // SAFETY: the caller's promise: there is room for every message.
        unsafe { (table.0 as *mut Message).add(block as usize).write(message) };
    }
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn starts_on_host(launch: &HostLaunch<'_>) {
    let [
        KernelArg::Buffer(keys),
        KernelArg::Buffer(table),
        KernelArg::Buffer(meta),
        KernelArg::Buffer(starts),
        KernelArg::Bytes(params),
    ] = launch.args
    else {
        unreachable!("{STARTS} has four buffers and one parameter struct");
    };
    // SAFETY: the caller's promise.
    let all = unsafe { HostMessages::new(*keys, *table, params) };
    let h = Zeroizing::new(encrypt_block(&all.key, [0; 16]));
    let at = starts.offset_by(all.params.starts_at).0 as *mut [u8; 16];
    for (i, message) in all.messages.iter().enumerate() {
        // SAFETY: the caller's promise.
        let nonce = unsafe { all.nonce(message, *meta) };
        let start = match <[u8; 16]>::try_from(nonce) {
            Ok(nonce) => hash(&h, &[nonce, 128_u128.to_be_bytes()]),
            Err(nonce) => std::array::from_fn(|i| nonce.get(i).copied().unwrap_or(u8::from(i == 15))),
        };
        // SAFETY: as above, of 32 bytes for each message that nobody else uses.
        unsafe {
            at.add(2 * i).write(start);
            at.add(2 * i + 1).write(encrypt_block(&all.key, start));
        }
    }
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn encrypt_on_host(launch: &HostLaunch<'_>) {
    let [
        KernelArg::Buffer(keys),
        KernelArg::Buffer(table),
        KernelArg::Buffer(_),
        KernelArg::Buffer(src),
        KernelArg::Buffer(dst),
        KernelArg::Buffer(meta),
        KernelArg::Bytes(params),
    ] = launch.args
    else {
        unreachable!("{ENCRYPT} has six buffers and one parameter struct");
    };
    // SAFETY: the caller's promise, here and in the loop.
    let all = unsafe { HostMessages::new(*keys, *table, params) };
    for message in all.messages {
        // SAFETY: as above; the tag overlaps nothing that is read.
        unsafe {
            let (nonce, mut text) = (all.nonce(message, *meta), all.text(message, *src));
            let tag = oracle_encrypt(&all.key, &nonce, message.aad(), &mut text);
            all.write(message, *dst, &text);
            all.tag(message, *meta).write(tag);
        }
    }
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn decrypt_on_host(launch: &HostLaunch<'_>) {
    let [
        KernelArg::Buffer(keys),
        KernelArg::Buffer(table),
        KernelArg::Buffer(_),
        KernelArg::Buffer(src),
        KernelArg::Buffer(dst),
        KernelArg::Buffer(meta),
        KernelArg::Buffer(rights),
        KernelArg::Bytes(params),
    ] = launch.args
    else {
        unreachable!("{DECRYPT} has seven buffers and one parameter struct");
    };
    // SAFETY: the caller's promise, here and in the loop.
    let all = unsafe { HostMessages::new(*keys, *table, params) };
    for (i, message) in all.messages.iter().enumerate() {
        // SAFETY: as above; there is a word for each message at a 4-byte boundary.
        unsafe {
            let (nonce, mut text) = (all.nonce(message, *meta), all.text(message, *src));
            let tag = *all.tag(message, *meta);
            let right = oracle_decrypt(&all.key, &nonce, message.aad(), &mut text, tag);
            if right {
                all.write(message, *dst, &text);
            }
            (rights.0 as *mut u32).add(i).write(u32::from(right));
        }
    }
}
