//! Opening and making volumes.

use super::data::Luks;
use super::derive::derive;
use super::format::{self, FormatOptions};
use super::header::{self, Header};
use super::info::{LuksInfo, Unlock};
use crate::{Error, ErrorKind, Load, Result};
use bifolio_block::BlockDevice;
use bifolio_io::Cancel;
use std::sync::Arc;
use zeroize::Zeroizing;

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
    pub fn open(inner: Arc<dyn Load>, secret: &[u8]) -> Result<Self> {
        Self::open_with(inner, secret, Unlock::default())
    }

    /// The same with choices.
    ///
    /// # Errors
    /// Those of [`Luks::open`].
    pub fn open_with(inner: Arc<dyn Load>, secret: &[u8], unlock: Unlock) -> Result<Self> {
        Self::open_until(inner, secret, unlock, None)
    }

    /// The same until it is cancelled, which does not wait for a key derivation that is under way.
    ///
    /// # Errors
    /// Those of [`Luks::open`], and `Cancelled`.
    pub fn open_until(inner: Arc<dyn Load>, secret: &[u8], unlock: Unlock, cancel: Option<&Cancel>) -> Result<Self> {
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
    pub fn format(inner: Arc<dyn Load>, secret: &[u8], options: &FormatOptions) -> Result<Self> {
        Self::format_until(inner, secret, options, None)
    }

    /// The same until it is cancelled, which does not wait for the measuring and deriving of a key. Once anything is
    /// written it is not cancelled any more.
    ///
    /// # Errors
    /// Those of [`Luks::format`], and `Cancelled`, in which case nothing was written.
    pub fn format_until(
        inner: Arc<dyn Load>,
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
