//! AES-GCM of many messages.

use super::List;
use super::{Batch, Completed, Data, Entry, Launch, Output, Prepared, Service, Shape, offset_in};
use crate::cpu::{self, TAG_BYTES};
use crate::kernels::{Kernels, Loaded};
use crate::keyed::SecretMemory;
use crate::{Error, ErrorKind, Result};
use bifolio_device::Device;
use bifolio_kernels::Addressing;
use bifolio_kernels::aes::{Direction, KeySize};
use bifolio_kernels::aes_gcm::{self, AAD_MAX, Keyed, Layout, START_BYTES};
use std::ops::Range;
use std::sync::Arc;

/// A key and a direction. Encryption finds a tag of 16 bytes for each message, decryption a flag: a u32 in the
/// host's order, 1 for a message that passed. A request with a message that did not fails with `BadTag`; the
/// places of such messages are cleared, and the others decrypted.
#[derive(Debug)]
pub struct AesGcm {
    name: &'static str,
    cpu: cpu::Gcm,
    direction: Direction,
    size: KeySize,
    device: Result<(Loaded, SecretMemory), String>,
}

/// A message of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Place of its text in the request's data, a multiple of 16.
    pub at: u64,
    /// Length of its text in bytes.
    pub len: u64,
    /// 12 or 16 bytes, never the same twice under one key.
    pub nonce: Vec<u8>,
    /// At most 32 bytes that are verified with the text.
    pub aad: Vec<u8>,
    /// What a decryption compares with; an encryption does not read it.
    pub tag: [u8; TAG_BYTES],
}

/// The messages of a request, in ascending places that do not overlap. What lies between them is copied to a
/// destination or not.
pub type Messages = List<Message>;

/// Bytes of a nonce in the device's table.
const NONCE_STRIDE: u64 = 16;

impl AesGcm {
    /// 16, 24 or 32 bytes.
    ///
    /// # Errors
    /// `BadArgument` for a key that is none, and the device's.
    pub fn new(kernels: &Kernels, key: &[u8], direction: Direction) -> Result<Arc<Self>> {
        let cpu = cpu::Gcm::new(key).map_err(|bad| Error::bad(bad.to_string()))?;
        let schedules = aes_gcm::schedules(key)?;
        let size = schedules.size();
        let device = kernels.keyed(&aes_gcm::AesGcm, schedules.bytes())?;
        let name = match (size, direction) {
            (KeySize::Aes128, Direction::Encrypt) => "aes-128-gcm-encrypt",
            (KeySize::Aes128, Direction::Decrypt) => "aes-128-gcm-decrypt",
            (KeySize::Aes192, Direction::Encrypt) => "aes-192-gcm-encrypt",
            (KeySize::Aes192, Direction::Decrypt) => "aes-192-gcm-decrypt",
            (KeySize::Aes256, Direction::Encrypt) => "aes-256-gcm-encrypt",
            (KeySize::Aes256, Direction::Decrypt) => "aes-256-gcm-decrypt",
        };
        Ok(Arc::new(Self { name, cpu, direction, size, device }))
    }

    fn result_bytes(&self) -> u64 {
        match self.direction {
            Direction::Encrypt => TAG_BYTES as u64,
            Direction::Decrypt => 4,
        }
    }

    fn wrong(index: usize, message: &Message) -> Error {
        let Message { at, len, .. } = message;
        let detail = format!(
            "message {index}, {len} bytes at {at}, is not what was encrypted: the key is another one, or bytes were changed"
        );
        Error::new(ErrorKind::BadTag, detail)
    }

    /// Where the tables of a batch lie in the one that travels: messages, nonces, then the tags to compare with.
    fn layout(count: u64) -> [Range<u64>; 3] {
        let nonces = (count * aes_gcm::MESSAGE_BYTES).next_multiple_of(256);
        let tags = nonces + count * NONCE_STRIDE;
        [0..count * aes_gcm::MESSAGE_BYTES, nonces..tags, tags..tags + count * TAG_BYTES as u64]
    }
}

impl Service for AesGcm {
    type Params = Messages;

    fn name(&self) -> &'static str {
        self.name
    }

    fn shape(&self, messages: &Messages, input: u64) -> Result<Shape> {
        let mut end = 0;
        for (i, message) in messages.items().iter().enumerate() {
            let at = message.at.checked_sub(messages.origin());
            let fits = at.and_then(|at| at.checked_add(message.len)).is_some_and(|end| end <= input);
            let detail = if message.at < end || !message.at.is_multiple_of(16) || !fits {
                format!("overlaps, lies between 16-byte boundaries, or beyond the {input} bytes of the request")
            } else if !matches!(message.nonce.len(), 12 | 16) {
                format!("has a nonce of {} bytes, not 12 or 16", message.nonce.len())
            } else if message.aad.len() > AAD_MAX {
                format!("has {} bytes of additional data, more than {AAD_MAX}", message.aad.len())
            } else {
                end = message.at + message.len;
                continue;
            };
            return Err(Error::bad(format!("message {i}, {} bytes at {}, {detail}", message.len, message.at)));
        }
        Ok(Shape { output: Output::Same, results: messages.items().len() as u64 * self.result_bytes() })
    }

    fn cut(&self, messages: &Messages, at_most: u64) -> u64 {
        let (items, origin) = (messages.items(), messages.origin());
        let before = items.partition_point(|message| message.at - origin <= at_most);
        items[..before].last().map_or(0, |message| message.at - origin)
    }

    fn split(&self, messages: &Messages, at: u64) -> (Messages, Messages) {
        messages.split(messages.items().partition_point(|message| message.at - messages.origin() < at), at)
    }

    fn refusal(&self) -> Option<String> {
        self.device.as_ref().err().cloned()
    }

    /// Messages of 4 KiB, encrypted where they are to be decrypted.
    fn sample(&self, about_bytes: u64) -> (Messages, Vec<u8>) {
        let mut data = vec![0x5a; about_bytes as usize];
        let message = |(i, text): (usize, &mut [u8])| {
            let nonce = [&i.to_le_bytes()[..], &[0; 4]].concat();
            let tag = match self.direction {
                Direction::Encrypt => [0; TAG_BYTES],
                Direction::Decrypt => self.cpu.encrypt(&nonce, &[], text),
            };
            Message { at: i as u64 * 4096, len: text.len() as u64, nonce, aad: vec![], tag }
        };
        let messages = data.chunks_mut(4096).enumerate().map(message).collect();
        (messages, data)
    }

    fn on_cpu(&self, messages: &Messages, data: Data<'_>, results: &mut [u8]) -> Result<()> {
        let text = match data {
            Data::InPlace(data) => data,
            Data::Apart(input, output) => {
                output.copy_from_slice(input);
                output
            }
            Data::Read(_) => return Err(Error::bad("this service writes and has no destination")),
        };
        let mut wrong = None;
        let found = results.chunks_exact_mut(self.result_bytes() as usize);
        for (i, (message, found)) in messages.items().iter().zip(found).enumerate() {
            let text = &mut text[(message.at - messages.origin()) as usize..][..message.len as usize];
            match self.direction {
                Direction::Encrypt => found.copy_from_slice(&self.cpu.encrypt(&message.nonce, &message.aad, text)),
                Direction::Decrypt => {
                    let passed = self.cpu.decrypt(&message.nonce, &message.aad, text, &message.tag).is_ok();
                    found.copy_from_slice(&u32::from(passed).to_ne_bytes());
                    if !passed {
                        wrong.get_or_insert_with(|| Self::wrong(i, message));
                    }
                }
            }
        }
        wrong.map_or(Ok(()), Err)
    }

    fn prepare(&self, _device: &Device, entries: &[Entry<'_, Messages>], batch: Batch<'_>) -> Result<Prepared> {
        let count = entries.iter().map(|entry| entry.params.items().len() as u64).sum();
        let [_, nonces, tags] = Self::layout(count);
        let mut rows = Vec::with_capacity(count as usize);
        let mut table = vec![0; tags.end as usize];
        for entry in entries {
            let (src, dst) = (offset_in(batch.inputs, entry.input), offset_in(batch.outputs, entry.output));
            for message in entry.params.items() {
                let at = message.at - entry.params.origin();
                let i = rows.len() as u64;
                let (nonce, tag) = (nonces.start + i * NONCE_STRIDE, tags.start + i * TAG_BYTES as u64);
                table[nonce as usize..][..message.nonce.len()].copy_from_slice(&message.nonce);
                table[tag as usize..][..TAG_BYTES].copy_from_slice(&message.tag);
                let places = Layout { src: src + at, dst: dst + at, nonce, tag };
                rows.push(aes_gcm::Message::new(places, message.len, message.nonce.len() as u32, &message.aad)?);
            }
        }
        let encoded = aes_gcm::encode(&rows);
        table[..encoded.len()].copy_from_slice(&encoded);
        Ok(Prepared { table, scratch_bytes: count * START_BYTES })
    }

    unsafe fn launch(&self, entries: &[Entry<'_, Messages>], launch: &Launch<'_>) -> Result<()> {
        let Ok((loaded, schedules)) = &self.device else { return Err(Error::bad("the kernels are not loaded")) };
        let count = entries.iter().map(|entry| entry.params.items().len() as u64).sum();
        let [rows, _, tags] = Self::layout(count);
        let (stream, module) = (launch.stream, loaded.module());
        let keyed = Keyed { size: self.size, schedules: schedules.slice(), starts: launch.scratch };
        // The places of nonces and tags count from the table.
        let meta = Addressing::Relative(launch.table);
        let operands = aes_gcm::Operands {
            src: Addressing::Relative(launch.batch.inputs),
            dst: Addressing::Relative(launch.batch.outputs),
            meta,
        };
        let table = launch.table.part(rows.start, rows.end)?;
        // SAFETY: the caller's promise; module and schedules are this key's, and the table this batch's. The tags
        // leave the table in stream order.
        unsafe {
            match self.direction {
                Direction::Decrypt => aes_gcm::decrypt(stream, module, keyed, operands, table, launch.results)?,
                Direction::Encrypt => {
                    aes_gcm::encrypt(stream, module, keyed, operands, table)?;
                    let len = tags.end - tags.start;
                    let found = launch.table.part(tags.start, len)?;
                    stream.copy_on_device(launch.results.part(0, len)?, found)?;
                }
            }
        }
        Ok(())
    }

    fn complete(&self, messages: &Messages, results: &mut [u8]) -> Completed {
        if self.direction == Direction::Encrypt {
            return Completed::default();
        }
        let flags = results.as_chunks::<4>().0.iter().map(|flag| u32::from_ne_bytes(*flag));
        let mut completed = Completed::default();
        for (i, (message, _)) in messages.items().iter().zip(flags).enumerate().filter(|(_, (_, flag))| *flag != 1) {
            completed.error.get_or_insert_with(|| Self::wrong(i, message));
            let at = message.at - messages.origin();
            completed.unverified.push(at..at + message.len);
        }
        completed
    }
}
