//! The services' CPU paths: AES by AWS-LC, which picks the fastest constant-time code for the processor,
//! and P and Q of RAID-6.
//!
//! Keys are copied into the library's contexts, which it clears when they are freed. Everything here can
//! be shared by threads.

mod ctr;
mod ffi;
mod gcm;
mod kdf;
pub mod pq;
mod xts;

pub use ctr::Ctr;
pub use gcm::{BadTag, Gcm, TAG_BYTES};
pub use kdf::{BadCost, ScryptCost, hkdf_sha256, scrypt};
pub use xts::Xts;

/// A key of a length that the mode does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadKey {
    /// Bytes of the key.
    pub len: usize,
    /// Bytes of the keys that the mode has.
    pub wanted: &'static [usize],
}

impl std::fmt::Display for BadKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let wanted: Vec<String> = self.wanted.iter().map(ToString::to_string).collect();
        if self.wanted.contains(&self.len) {
            return write!(f, "the key of {} bytes was refused: its two halves are the same", self.len);
        }
        write!(f, "a key has {} bytes, not {}", wanted.join(" or "), self.len)
    }
}

impl std::error::Error for BadKey {}
