//! Contexts of the library's, owned, and pooled where a thread needs one of its own.

use aws_lc_sys::{EVP_CIPHER, EVP_CIPHER_CTX};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

/// A cipher with its key.
#[derive(Debug)]
pub(super) struct Context(NonNull<EVP_CIPHER_CTX>);

// SAFETY: a context is plain memory without ties to the thread that made it.
unsafe impl Send for Context {}

impl Context {
    fn empty() -> Self {
        // SAFETY: takes nothing, and returns a context or null.
        let context = unsafe { aws_lc_sys::EVP_CIPHER_CTX_new() };
        // The library's allocator ends where the process's does.
        Self(NonNull::new(context).expect("there is memory for a cipher's context"))
    }

    /// None if the cipher refuses the key, which must have the cipher's length.
    pub(super) fn new(cipher: *const EVP_CIPHER, key: &[u8], encrypt: bool) -> Option<Self> {
        let context = Self::empty();
        // SAFETY: the cipher is one of the library's own, and the key has the length that it reads.
        let done = unsafe {
            assert_eq!(aws_lc_sys::EVP_CIPHER_key_length(cipher) as usize, key.len());
            let engine = ptr::null_mut();
            let iv = ptr::null();
            aws_lc_sys::EVP_CipherInit_ex(context.0.as_ptr(), cipher, engine, key.as_ptr(), iv, i32::from(encrypt))
        };
        (done == 1).then_some(context)
    }

    fn copy(&self) -> Self {
        let copy = Self::empty();
        // SAFETY: both are contexts, and the other one is not in use.
        let done = unsafe { aws_lc_sys::EVP_CIPHER_CTX_copy(copy.0.as_ptr(), self.0.as_ptr()) };
        assert_eq!(done, 1, "a context with a key can be copied");
        copy
    }

    /// Begins anew with an IV.
    pub(super) fn begin(&mut self, iv: &[u8; 16]) {
        let (cipher, engine, key) = (ptr::null(), ptr::null_mut(), ptr::null());
        // SAFETY: the context has cipher and key, and reads an IV of 16 bytes. -1 keeps the direction.
        let done = unsafe { aws_lc_sys::EVP_CipherInit_ex(self.0.as_ptr(), cipher, engine, key, iv.as_ptr(), -1) };
        assert_eq!(done, 1, "an IV of 16 bytes is taken");
    }

    /// Encrypts or decrypts in place.
    pub(super) fn update(&mut self, data: &mut [u8]) {
        // The library counts in int.
        for part in data.chunks_mut(1 << 30) {
            let (at, len) = (part.as_mut_ptr(), part.len() as i32);
            let mut written = 0;
            // SAFETY: the context has cipher, key and IV; as many bytes are written as are read, in place.
            let done = unsafe { aws_lc_sys::EVP_CipherUpdate(self.0.as_ptr(), at, &raw mut written, at, len) };
            assert!(done == 1 && written == len, "a stream cipher takes what it is given");
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: nobody else has it. The library clears the key.
        unsafe { aws_lc_sys::EVP_CIPHER_CTX_free(self.0.as_ptr()) };
    }
}

/// Contexts with the same key: one for each thread that is at work.
#[derive(Debug)]
pub(super) struct Pool {
    model: Mutex<Context>,
    idle: Mutex<Vec<Context>>,
}

impl Pool {
    pub(super) fn new(model: Context) -> Self {
        Self { model: Mutex::new(model), idle: Mutex::default() }
    }

    /// Lends a context to `work`.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Context) -> T) -> T {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut context = idle.unwrap_or_else(|| self.model.lock().unwrap_or_else(PoisonError::into_inner).copy());
        let outcome = work(&mut context);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(context);
        outcome
    }
}
