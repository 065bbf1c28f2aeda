//! The kernels as the `host` device runs them.

use super::launch::{DECRYPT, ENCRYPT, MESSAGES, Params, STARTS};
use super::message::{Blocks, Message};
use super::oracle::{encrypt_block, hash, oracle_decrypt, oracle_encrypt};
use crate::aes::{self, KeySize, SCHEDULE_BYTES};
use bifolio_device::{DevicePtr, HostLaunch, KernelArg};
use std::slice;
use zeroize::Zeroizing;

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
pub(super) unsafe fn messages_on_host(launch: &HostLaunch<'_>) {
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
pub(super) unsafe fn starts_on_host(launch: &HostLaunch<'_>) {
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
pub(super) unsafe fn encrypt_on_host(launch: &HostLaunch<'_>) {
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
pub(super) unsafe fn decrypt_on_host(launch: &HostLaunch<'_>) {
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
