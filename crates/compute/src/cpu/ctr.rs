//! AES-CTR: a key stream over the data, the same in both directions.

use super::BadKey;
use super::ffi::{Context, Pool};

/// A key.
#[derive(Debug)]
pub struct Ctr(Pool);

impl Ctr {
    /// 16 bytes for AES-128, 24 for AES-192, 32 for AES-256.
    ///
    /// # Errors
    /// [`BadKey`] for another length.
    pub fn new(key: &[u8]) -> Result<Self, BadKey> {
        let refused = BadKey { len: key.len(), wanted: &[16, 24, 32] };
        let cipher = match key.len() {
            // SAFETY: takes nothing and returns a cipher that is never freed.
            16 => unsafe { aws_lc_sys::EVP_aes_128_ctr() },
            // SAFETY: takes nothing and returns a cipher that is never freed.
            24 => unsafe { aws_lc_sys::EVP_aes_192_ctr() },
            // SAFETY: takes nothing and returns a cipher that is never freed.
            32 => unsafe { aws_lc_sys::EVP_aes_256_ctr() },
            _ => return Err(refused),
        };
        Context::new(cipher, key, true).map(|context| Self(Pool::new(context))).ok_or(refused)
    }

    /// Encrypts or decrypts in place, from the first block of the key stream that begins at `counter` (128 bits,
    /// the most significant byte first).
    pub fn apply(&self, counter: &[u8; 16], data: &mut [u8]) {
        self.0.with(|context| {
            context.begin(counter);
            context.update(data);
        });
    }
}
