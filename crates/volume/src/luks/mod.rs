//! LUKS volumes (versions 1 and 2) with AES-XTS, over any device below.
//!
//! ```text
//!   ffi       libcryptsetup: headers, keyslots, digests
//!   memory    the copy of a header that the library works on
//!   header    what a header says, and the key out of it
//!   segment   where the data lies: claims of the header, checked
//!   json      LUKS2's description of a volume, checked
//!   diagnose  what is wrong with a header that the library refuses
//!   derive    key derivations, which can be given up
//!   format    new volumes
//!   data      the BlockDevice: sectors decrypted and encrypted
//!   ranges    which sectors requests in flight use
//! ```
//!
//! Opening never writes. Keys and passphrases are cleared when they are dropped, and no error or debug
//! output carries them.

mod data;
mod derive;
mod diagnose;
mod ffi;
mod format;
mod header;
mod json;
mod memory;
mod ranges;
mod segment;

pub use data::Luks;
pub use format::{FormatOptions, Pbkdf};

use crate::{BlockDevice, Error, ErrorKind, Result};
use bifolio_io::Cancel;
use derive::derive;
use header::Header;
use serde::Serialize;
use std::sync::Arc;
use zeroize::Zeroizing;

/// How a volume is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unlock {
    /// Also try keyslots that ask for more than 4 GiB, or the machine's memory, or for more than about ten minutes.
    pub any_cost: bool,
    /// Pass discards through to the device below, which shows whoever sees that which sectors are in use.
    pub discard: bool,
}

/// What a header says without its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LuksInfo {
    /// 1 or 2.
    pub version: u8,
    /// As it is written in the header.
    pub uuid: String,
    /// LUKS2 only; empty if there is none.
    pub label: String,
    /// Such as `aes-xts-plain64`.
    pub cipher: String,
    /// Bits of the volume key, both halves of it.
    pub key_bits: u32,
    /// Bytes of an encrypted sector.
    pub sector_bytes: Option<u32>,
    /// Where the data begins in the device below, in bytes.
    pub payload_offset: Option<u64>,
    /// Bytes of data.
    pub payload_bytes: Option<u64>,
    /// Those in use.
    pub keyslots: Vec<Keyslot>,
    /// Which copy of the header is damaged or out of date.
    pub header_note: Option<String>,
    /// Why the volume cannot be opened here, whatever the key.
    pub unsupported: Option<String>,
}

/// A keyslot in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Keyslot {
    /// From 0 on.
    pub number: u32,
    /// `argon2id`, `argon2i` or `pbkdf2`.
    pub pbkdf: String,
    /// Hash of `pbkdf2`, empty for the others.
    pub hash: String,
    /// Passes of Argon2 over its memory, or iterations.
    pub iterations: u32,
    /// Memory of Argon2, in KiB.
    pub memory_kib: u32,
    /// Threads of Argon2.
    pub threads: u32,
    /// It holds a key that is not the volume's.
    pub is_unbound: bool,
}

impl Luks {
    /// Whether a device begins with a LUKS header, or has the second copy of one.
    ///
    /// # Errors
    /// Those of reading; `Unsupported` for a later version of the format.
    pub fn is_luks(inner: &dyn BlockDevice) -> Result<bool> {
        Ok(header::signature(inner)?.is_some())
    }

    /// What a header says, without its key.
    ///
    /// # Errors
    /// `NotAVolume`, `Damaged`, `Missing` without libcryptsetup, and those of reading.
    pub fn info_of(inner: &dyn BlockDevice) -> Result<LuksInfo> {
        Ok(read_header(inner)?.info)
    }

    /// Opens a volume with a passphrase, or the content of a key file.
    ///
    /// # Errors
    /// `NotAVolume`, `Damaged`, `WrongKey`, `Unsupported` for ciphers and layouts that are not implemented and
    /// for keyslots that cost too much to try, `Missing` without libcryptsetup, and those of reading.
    pub fn open(inner: Arc<dyn BlockDevice>, secret: &[u8]) -> Result<Self> {
        Self::open_with(inner, secret, Unlock::default())
    }

    /// The same with choices.
    ///
    /// # Errors
    /// Those of [`Luks::open`].
    pub fn open_with(inner: Arc<dyn BlockDevice>, secret: &[u8], unlock: Unlock) -> Result<Self> {
        Self::open_until(inner, secret, unlock, None)
    }

    /// The same until it is cancelled, which does not wait for a key derivation that is under way.
    ///
    /// # Errors
    /// Those of [`Luks::open`], and `Cancelled`.
    pub fn open_until(
        inner: Arc<dyn BlockDevice>,
        secret: &[u8],
        unlock: Unlock,
        cancel: Option<&Cancel>,
    ) -> Result<Self> {
        let (device, secret) = (Arc::clone(&inner), Zeroizing::new(secret.to_vec()));
        let (info, segment, key) = derive(&inner.name(), cancel, move || {
            let header = read_header(&*device)?;
            // A layout that cannot be read needs no key.
            let segment = header.segment.as_ref().copied().ok();
            let key = segment.map(|_| header.unlock(&*device, &secret, unlock));
            Ok((header.info, header.segment?, key.transpose()?.unwrap_or_default()))
        })?;
        Self::new(inner, info, segment, key, unlock)
    }

    /// Writes a new LUKS2 header and opens the volume. Whatever was there is lost.
    ///
    /// # Errors
    /// `BadUse` for options that make no sense, `BadRange` for a device that is too small, `ReadOnly`, `NoSpace`,
    /// `Write`, `Missing`.
    pub fn format(inner: Arc<dyn BlockDevice>, secret: &[u8], options: &FormatOptions) -> Result<Self> {
        Self::format_until(inner, secret, options, None)
    }

    /// The same until it is cancelled, which does not wait for the measuring and deriving of a key. Once anything is
    /// written it is not cancelled any more.
    ///
    /// # Errors
    /// Those of [`Luks::format`], and `Cancelled`, in which case nothing was written.
    pub fn format_until(
        inner: Arc<dyn BlockDevice>,
        secret: &[u8],
        options: &FormatOptions,
        cancel: Option<&Cancel>,
    ) -> Result<Self> {
        let key = format::format(&*inner, secret, options, cancel)?;
        let header = read_header(&*inner)?;
        Self::new(inner, header.info, header.segment?, key, Unlock::default())
    }
}

fn read_header(inner: &dyn BlockDevice) -> Result<Header> {
    match header::signature(inner)? {
        Some(signature) => Header::read(inner, signature),
        None => Err(Error::new(ErrorKind::NotAVolume, inner.name(), "it has no LUKS header")),
    }
}
