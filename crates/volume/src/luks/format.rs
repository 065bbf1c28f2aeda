//! New LUKS2 volumes.

use super::derive::derive;
use super::ffi::{Context, Failed, NewHeader, NewPbkdf};
use super::memory::Memory;
use crate::{BlockDevice, Error, ErrorKind, Result, signatures};
use bifolio_io::Cancel;
use zeroize::Zeroizing;

/// What a new volume is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatOptions {
    /// Bits of the key, both halves of it: 256 for AES-128, 512 for AES-256.
    pub key_bits: u32,
    /// Bytes of an encrypted sector: 512, 1024, 2048 or 4096.
    pub sector_bytes: u32,
    /// Costs of guessing the passphrase.
    pub pbkdf: Pbkdf,
    /// A name, which can be read without the key.
    pub label: Option<String>,
}

/// Costs of Argon2id, which makes the keyslot's key out of a passphrase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pbkdf {
    /// What one try shall take on this machine, in milliseconds; measured if `iterations` is not given.
    pub time_ms: u32,
    /// Passes over the memory, at least 4.
    pub iterations: Option<u32>,
    /// Memory in KiB, at most: 32 to 4194304.
    pub memory_kib: u32,
    /// Threads, at most: 1 to 4.
    pub threads: u32,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self { key_bits: 512, sector_bytes: 4096, pbkdf: Pbkdf::default(), label: None }
    }
}

/// cryptsetup's.
impl Default for Pbkdf {
    fn default() -> Self {
        Self { time_ms: 2000, iterations: None, memory_kib: 1 << 20, threads: 4 }
    }
}

/// A header in memory.
struct Made {
    bytes: Vec<u8>,
    /// Of these, both copies of the metadata.
    metadata_bytes: usize,
    key: Zeroizing<Vec<u8>>,
}

/// Writes a header with one keyslot, and gives the volume's new key.
pub(super) fn format(
    inner: &dyn BlockDevice,
    secret: &[u8],
    options: &FormatOptions,
    cancel: Option<&Cancel>,
) -> Result<Zeroizing<Vec<u8>>> {
    check(inner, options)?;
    let (name, size) = (inner.name(), inner.geometry().size);
    let (secret, options) = (Zeroizing::new(secret.to_vec()), options.clone());
    let made = derive(&inner.name(), cancel, move || make(&name, size, &secret, &options))?;
    let header_bytes = made.bytes.len() as u64;
    // What is at the end would be found before the header, such as a superblock of md; the beginning is overwritten.
    signatures::erase(inner, |mark| mark.start >= header_bytes)?;
    store(inner, &made.bytes, made.metadata_bytes)?;
    Ok(made.key)
}

fn make(name: &str, size: u64, secret: &[u8], options: &FormatOptions) -> Result<Made> {
    let memory = Memory::new(size)?;
    let context = Context::new(&memory.path())?;
    let pbkdf = NewPbkdf {
        time_ms: options.pbkdf.time_ms,
        iterations: options.pbkdf.iterations.unwrap_or(0),
        memory_kb: options.pbkdf.memory_kib,
        threads: options.pbkdf.threads,
    };
    let key_bytes = options.key_bits as usize / 8;
    let failed = |doing: &'static str| {
        move |failed: Failed| Error::new(ErrorKind::BadState, name, format!("{doing} failed: {}", failed.reason()))
    };
    let header = NewHeader { key_bytes, sector_bytes: options.sector_bytes, label: options.label.as_deref(), pbkdf };
    context.format(&header).map_err(failed("making a LUKS2 header"))?;
    context.add_keyslot(pbkdf, secret).map_err(failed("making a keyslot"))?;
    let key = context.volume_key(None, key_bytes).map_err(failed("taking the new key"))?;
    let header_bytes = context.data_offset() * 512;
    let metadata_bytes = 2 * context.metadata_bytes().unwrap_or((1 << 14, 0)).0;
    if header_bytes >= size {
        return Err(too_small(name, size, header_bytes));
    }
    drop(context);
    Ok(Made { bytes: memory.content(header_bytes)?, metadata_bytes: metadata_bytes as usize, key })
}

fn check(inner: &dyn BlockDevice, options: &FormatOptions) -> Result<()> {
    let wrong = |detail: String| Err(Error::new(ErrorKind::BadUse, inner.name(), detail));
    if inner.is_read_only() {
        return Err(Error::new(ErrorKind::ReadOnly, inner.name(), "it was opened for reading only"));
    }
    if !matches!(options.key_bits, 256 | 512) {
        return wrong(format!("a key of AES-XTS has 256 or 512 bits, not {}", options.key_bits));
    }
    if !matches!(options.sector_bytes, 512 | 1024 | 2048 | 4096) {
        return wrong(format!("a sector has 512, 1024, 2048 or 4096 bytes, not {}", options.sector_bytes));
    }
    let size = inner.geometry().size;
    if !size.is_multiple_of(u64::from(options.sector_bytes)) {
        return wrong(format!(
            "its {size} bytes are not a multiple of the sector size, {}; choose smaller sectors",
            options.sector_bytes
        ));
    }
    if options.label.as_ref().is_some_and(|label| label.contains('\0') || label.len() > 47) {
        return wrong("a label has at most 47 bytes, none of them zero".into());
    }
    // The library's usual header; without it the device would fill memory for nothing.
    if size <= 16 << 20 {
        return Err(too_small(&inner.name(), size, 16 << 20));
    }
    Ok(())
}

fn too_small(name: &str, size: u64, header_bytes: u64) -> Error {
    let detail = format!("it has {size} bytes, and the header alone takes {header_bytes}");
    Error::new(ErrorKind::BadRange, name, detail)
}

/// Brings the header to the device: a loss of power leaves no header, never one whose keyslots are missing.
fn store(inner: &dyn BlockDevice, header: &[u8], metadata_bytes: usize) -> Result<()> {
    let (metadata, keyslots) = header.split_at(metadata_bytes);
    inner.write(0, &vec![0; metadata.len()])?;
    inner.flush()?;
    inner.write(metadata.len() as u64, keyslots)?;
    inner.flush()?;
    inner.write(0, metadata)?;
    Ok(inner.flush()?)
}
