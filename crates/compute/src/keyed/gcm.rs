//! AES-GCM in device memory.

use super::{Cut, SecretMemory, Workspace, on_device};
use crate::cpu;
use bifolio_device::{Device, DeviceSlice, Error, ErrorKind, Module, Result, Stream};
use bifolio_kernels::aes::KeySize;
use bifolio_kernels::aes_gcm::{self, Blocks, Keyed, MESSAGE_BYTES, Message, START_BYTES};
use bifolio_kernels::{Addressing, KernelStatus, LoadedKernel};
use zeroize::Zeroizing;

/// A key on a device.
#[derive(Debug)]
pub struct DeviceGcm {
    pub(super) module: Option<Module>,
    status: KernelStatus,
    schedules: SecretMemory,
    size: KeySize,
    cpu: cpu::Gcm,
}

/// The memory that the places of messages are offsets in.
#[derive(Debug, Clone, Copy)]
pub struct Operands<'a> {
    /// Texts: read.
    pub src: DeviceSlice<'a>,
    /// Texts: written; the same memory as `src`, or apart.
    pub dst: DeviceSlice<'a>,
    /// Nonces and tags, which may lie between the texts of `src`.
    pub meta: DeviceSlice<'a>,
}

impl DeviceGcm {
    /// Puts a key into the memory of a device: 16, 24 or 32 bytes.
    ///
    /// # Errors
    /// `BadArgument` for a key that is none, and the device's.
    pub fn new(device: &Device, key: &[u8]) -> Result<Self> {
        let cpu = cpu::Gcm::new(key).map_err(|bad| Error::new(ErrorKind::BadArgument, bad.to_string()))?;
        let schedules = aes_gcm::schedules(key)?;
        let (module, status) = on_device(LoadedKernel::load(&aes_gcm::AesGcm, device)?.into_parts());
        let memory = SecretMemory::of(&device.create_stream()?, schedules.bytes())?;
        Ok(Self { module, status, schedules: memory, size: schedules.size(), cpu })
    }

    /// Where it is computed, and why.
    pub fn status(&self) -> &KernelStatus {
        &self.status
    }

    /// Verifies the messages and decrypts those whose tag is right; which ones those are. Of the others nothing is
    /// written to the destination.
    ///
    /// # Errors
    /// `BadArgument` for messages that do not pass [`aes_gcm::check`], and the device's. After an error nothing in the
    /// destination has been verified.
    ///
    /// # Safety
    /// The operands are memory of the workspace's device, which is the key's, and nobody else uses them until this returns;
    /// the destinations of two messages do not overlap.
    pub unsafe fn decrypt(
        &self,
        workspace: &mut Workspace,
        messages: &[Message],
        operands: Operands<'_>,
    ) -> Result<Vec<bool>> {
        let bases = bases(operands);
        aes_gcm::check(messages, &bases)?;
        let Some(module) = &self.module else {
            return messages.iter().map(|message| self.decrypt_by_cpu(&workspace.stream, message, operands)).collect();
        };
        let count = messages.len() as u64;
        let lens = [count * START_BYTES, count * MESSAGE_BYTES, count * 4];
        let (stream, rest, table_bytes) = workspace.parts(Cut::room(&lens))?;
        let mut cut = Cut { rest };
        let (starts, table, rights) = (cut.take(lens[0])?, cut.take(lens[1])?, cut.take(lens[2])?);
        aes_gcm::encode_into(messages, table_bytes);
        stream.upload(table, table_bytes)?;
        let keyed = Keyed { size: self.size, schedules: self.schedules.slice(), starts };
        // SAFETY: the caller's promise; module and schedules are this key's, and the download waits for the work.
        let launched = unsafe { aes_gcm::decrypt(stream, module, keyed, bases, table, rights) };
        let mut flags = vec![0; rights.len() as usize];
        launched.and(stream.download(&mut flags, rights))?;
        Ok(flags.as_chunks::<4>().0.iter().map(|flag| u32::from_ne_bytes(*flag) == 1).collect())
    }

    /// Enqueues the verification and decryption of blocks in a row in the workspace's stream; nothing of this takes longer
    /// for many. `rights` gets a u32 for each: 1 where the tag is right, else 0, and nothing of the block is written.
    ///
    /// # Errors
    /// `BadArgument` for blocks that do not pass [`Blocks::check`] and for too few flags, `Unsupported` where kernels do
    /// not do it ([`DeviceGcm::is_on_device`]), and the device's.
    ///
    /// # Safety
    /// As for [`DeviceGcm::decrypt`], until the stream has done the work; the workspace, the key and the flags are there until
    /// then, and the flags are memory of the device that overlaps nothing else.
    pub unsafe fn enqueue_blocks(
        &self,
        workspace: &mut Workspace,
        blocks: &Blocks,
        operands: Operands<'_>,
        rights: DeviceSlice<'_>,
    ) -> Result<()> {
        let bases = bases(operands);
        blocks.check(&bases)?;
        let Some(module) = &self.module else {
            return Err(Error::new(ErrorKind::Unsupported, "the kernels of AES-GCM do not work on this device"));
        };
        let count = blocks.count();
        let lens = [count * START_BYTES, count * MESSAGE_BYTES];
        let (stream, rest, _) = workspace.parts(Cut::room(&lens))?;
        let mut cut = Cut { rest };
        let (starts, table) = (cut.take(lens[0])?, cut.take(lens[1])?);
        let keyed = Keyed { size: self.size, schedules: self.schedules.slice(), starts };
        // SAFETY: the caller's promise; module and schedules are this key's, and the scratch is the stream's.
        unsafe {
            aes_gcm::list(stream, module, blocks, table)?;
            aes_gcm::decrypt(stream, module, keyed, bases, table, rights)
        }
    }

    /// Scratch of a workspace that so many blocks in a row take.
    pub fn scratch_bytes(blocks: u64) -> u64 {
        Cut::room(&[blocks * START_BYTES, blocks * MESSAGE_BYTES])
    }

    /// Whether kernels do the work.
    pub fn is_on_device(&self) -> bool {
        self.module.is_some()
    }

    /// Encrypts the messages, and writes their tags.
    ///
    /// # Errors
    /// As [`DeviceGcm::decrypt`].
    ///
    /// # Safety
    /// As [`DeviceGcm::decrypt`]; no tag overlaps anything else. No nonce is used twice with a key.
    pub unsafe fn encrypt(
        &self,
        workspace: &mut Workspace,
        messages: &[Message],
        operands: Operands<'_>,
    ) -> Result<()> {
        let bases = bases(operands);
        aes_gcm::check(messages, &bases)?;
        let Some(module) = &self.module else {
            return messages.iter().try_for_each(|message| self.encrypt_by_cpu(&workspace.stream, message, operands));
        };
        let count = messages.len() as u64;
        let lens = [count * START_BYTES, count * MESSAGE_BYTES];
        let (stream, rest, table_bytes) = workspace.parts(Cut::room(&lens))?;
        let mut cut = Cut { rest };
        let (starts, table) = (cut.take(lens[0])?, cut.take(lens[1])?);
        aes_gcm::encode_into(messages, table_bytes);
        stream.upload(table, table_bytes)?;
        let keyed = Keyed { size: self.size, schedules: self.schedules.slice(), starts };
        // SAFETY: the caller's promise; module and schedules are this key's, and the work is waited for.
        let launched = unsafe { aes_gcm::encrypt(stream, module, keyed, bases, table) };
        launched.and(stream.synchronize())
    }

    fn decrypt_by_cpu(&self, stream: &Stream, message: &Message, operands: Operands<'_>) -> Result<bool> {
        let (nonce, aad) = (nonce_of(stream, message, operands)?, message.aad());
        let mut tag = [0; cpu::TAG_BYTES];
        stream.download(&mut tag, operands.meta.part(message.tag, cpu::TAG_BYTES as u64)?)?;
        let mut text = text_of(stream, message, operands)?;
        if self.cpu.decrypt(&nonce, aad, &mut text, &tag).is_err() {
            return Ok(false);
        }
        stream.upload(operands.dst.part(message.dst, message.len)?, &text)?;
        Ok(true)
    }

    fn encrypt_by_cpu(&self, stream: &Stream, message: &Message, operands: Operands<'_>) -> Result<()> {
        let (nonce, aad) = (nonce_of(stream, message, operands)?, message.aad());
        let mut text = text_of(stream, message, operands)?;
        let tag = self.cpu.encrypt(&nonce, aad, &mut text);
        stream.upload(operands.dst.part(message.dst, message.len)?, &text)?;
        stream.upload(operands.meta.part(message.tag, tag.len() as u64)?, &tag)
    }
}

fn bases(operands: Operands<'_>) -> aes_gcm::Operands<'_> {
    let Operands { src, dst, meta } = operands;
    aes_gcm::Operands {
        src: Addressing::Relative(src),
        dst: Addressing::Relative(dst),
        meta: Addressing::Relative(meta),
    }
}

fn nonce_of(stream: &Stream, message: &Message, operands: Operands<'_>) -> Result<Vec<u8>> {
    let mut nonce = vec![0; message.nonce_len() as usize];
    stream.download(&mut nonce, operands.meta.part(message.nonce, message.nonce_len())?)?;
    Ok(nonce)
}

fn text_of(stream: &Stream, message: &Message, operands: Operands<'_>) -> Result<Zeroizing<Vec<u8>>> {
    let mut text = Zeroizing::new(vec![0; message.len as usize]);
    stream.download(&mut text, operands.src.part(message.src, message.len)?)?;
    Ok(text)
}
