//! What a header says without its key, and how a volume is opened.

use serde::Serialize;

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
