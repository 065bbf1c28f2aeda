//! Random bytes from the kernel: keys, nonces, ids.

/// Fills `bytes`.
///
/// # Panics
/// If the kernel has none: nothing may be encrypted with a nonce that is not random.
pub(crate) fn fill(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the kernel has random bytes");
}
