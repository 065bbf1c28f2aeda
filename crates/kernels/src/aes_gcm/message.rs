//! Messages, where they lie, and the table of them as the device reads it.

use crate::addressing::{self, Addressing};
use crate::launch::bad;
use bifolio_device::Result;

/// Most additional data of a message.
pub const AAD_MAX: usize = 32;

pub(super) const TAG_BYTES: u64 = 16;

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
    pub(super) nonce_len: u32,
    pub(super) aad_len: u32,
    pub(super) aad: [u8; AAD_MAX],
}

/// Size of a [`Message`] in the device's table.
pub const MESSAGE_BYTES: u64 = 80;

const _: () = assert!(size_of::<Message>() as u64 == MESSAGE_BYTES);

/// Where the parts of a message lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
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
    pub fn new(layout: Layout, len: u64, nonce_len: u32, aad: &[u8]) -> Result<Self> {
        if !matches!(nonce_len, 12 | 16) {
            return Err(bad(format!("an AES-GCM nonce of {nonce_len} bytes is not supported: use 12 or 16")));
        }
        if aad.len() > AAD_MAX {
            return Err(bad(format!(
                "AES-GCM takes at most {AAD_MAX} bytes of additional data here, got {}",
                aad.len()
            )));
        }
        if len > ((1 << 32) - 2) * 16 {
            return Err(bad(format!("{len} bytes are more than AES-GCM may encrypt under one nonce")));
        }
        let Layout { src, dst, nonce, tag } = layout;
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
        Message::new(Layout { src, dst, nonce, tag: src + len }, len, Self::NONCE_BYTES as u32, &aad)
    }

    /// Refuses blocks that do not lie inside their operands, or between 16-byte boundaries.
    pub fn check(&self, operands: &Operands<'_>) -> Result<()> {
        if self.block_bytes == 0 || !self.block_bytes.is_multiple_of(16) {
            return Err(bad(format!(
                "consecutive AES-GCM blocks need a multiple of 16 bytes each, got {}",
                self.block_bytes
            )));
        }
        match self.count() {
            0 => Ok(()),
            count => check(&[self.message(0)?, self.message(count - 1)?], operands),
        }
    }

    /// `AesGcmBlocks` of `aes_gcm.h`.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let words = [self.sealed, self.plain, self.first, self.len, self.block_bytes, self.count()];
        [addressing::to_bytes(&words), self.id.to_vec()].concat()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, id) = bytes.split_at_checked(48)?;
        let [sealed, plain, first, len, block_bytes, _] = addressing::words_of(words)?;
        Some(Self { sealed, plain, first, len, block_bytes, id: id.try_into().ok()? })
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
    pub src: Addressing<'a>,
    /// Texts: written.
    pub dst: Addressing<'a>,
    /// Nonces and tags.
    pub meta: Addressing<'a>,
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
