//! AES-GCM (NIST SP 800-38D) with tags of 16 bytes.

use super::BadKey;
use aws_lc_sys::EVP_AEAD_CTX;
use std::ptr::{self, NonNull};

/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;

/// A message that is not what was encrypted: another key, nonce or associated data, or changed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadTag;

impl std::fmt::Display for BadTag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the tag does not fit: the key is another one, or the bytes were changed")
    }
}

impl std::error::Error for BadTag {}

/// A key.
#[derive(Debug)]
pub struct Gcm(NonNull<EVP_AEAD_CTX>);

// SAFETY: the library promises that a context can be used by several threads at a time; it is only read.
unsafe impl Send for Gcm {}
// SAFETY: as above.
unsafe impl Sync for Gcm {}

impl Gcm {
    /// 16 bytes for AES-128, 24 for AES-192, 32 for AES-256.
    ///
    /// # Errors
    /// [`BadKey`] for another length.
    pub fn new(key: &[u8]) -> Result<Self, BadKey> {
        let refused = BadKey { len: key.len(), wanted: &[16, 24, 32] };
        let cipher = match key.len() {
            // SAFETY: takes nothing and returns a cipher that is never freed.
            16 => unsafe { aws_lc_sys::EVP_aead_aes_128_gcm() },
            // SAFETY: takes nothing and returns a cipher that is never freed.
            24 => unsafe { aws_lc_sys::EVP_aead_aes_192_gcm() },
            // SAFETY: takes nothing and returns a cipher that is never freed.
            32 => unsafe { aws_lc_sys::EVP_aead_aes_256_gcm() },
            _ => return Err(refused),
        };
        // SAFETY: the key has the cipher's length.
        let context = unsafe { aws_lc_sys::EVP_AEAD_CTX_new(cipher, key.as_ptr(), key.len(), TAG_BYTES) };
        NonNull::new(context).map(Self).ok_or(refused)
    }

    /// Encrypts in place. A nonce has at least one byte, usually 12 or 16, and is never used twice with a key.
    ///
    /// # Panics
    /// For a nonce without bytes, and a message of 64 GiB and more.
    pub fn encrypt(&self, nonce: &[u8], aad: &[u8], data: &mut [u8]) -> [u8; TAG_BYTES] {
        let mut tag = [0; TAG_BYTES];
        let mut tag_len = 0;
        let (at, len) = (data.as_mut_ptr(), data.len());
        // SAFETY: every range is given with its length; source and destination are the same.
        let done = unsafe {
            aws_lc_sys::EVP_AEAD_CTX_seal_scatter(
                self.0.as_ptr(),
                at,
                tag.as_mut_ptr(),
                &raw mut tag_len,
                TAG_BYTES,
                nonce.as_ptr(),
                nonce.len(),
                at,
                len,
                ptr::null(),
                0,
                aad.as_ptr(),
                aad.len(),
            )
        };
        assert!(done == 1 && tag_len == TAG_BYTES, "a nonce has bytes, and a message under 64 GiB");
        tag
    }

    /// Decrypts in place what passes; what does not is left as zeroes.
    ///
    /// # Errors
    /// [`BadTag`] if the message is not what was encrypted.
    pub fn decrypt(&self, nonce: &[u8], aad: &[u8], data: &mut [u8], tag: &[u8; TAG_BYTES]) -> Result<(), BadTag> {
        let (at, len) = (data.as_mut_ptr(), data.len());
        // SAFETY: every range is given with its length; source and destination are the same.
        let done = unsafe {
            aws_lc_sys::EVP_AEAD_CTX_open_gather(
                self.0.as_ptr(),
                at,
                nonce.as_ptr(),
                nonce.len(),
                at,
                len,
                tag.as_ptr(),
                TAG_BYTES,
                aad.as_ptr(),
                aad.len(),
            )
        };
        if done == 1 {
            return Ok(());
        }
        data.fill(0);
        Err(BadTag)
    }
}

impl Drop for Gcm {
    fn drop(&mut self) {
        // SAFETY: nobody else has it. The library clears the key.
        unsafe { aws_lc_sys::EVP_AEAD_CTX_free(self.0.as_ptr()) };
    }
}
