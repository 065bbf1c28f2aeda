//! Random bytes from the kernel.

/// Fills `bytes`.
pub(crate) fn fill(bytes: &mut [u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        // SAFETY: the range is given with its length.
        let filled = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        if filled > 0 {
            done += filled as usize;
        } else {
            let error = std::io::Error::last_os_error();
            // Nothing may be encrypted with a nonce that is not random.
            assert!(error.kind() == std::io::ErrorKind::Interrupted, "the kernel has no random bytes: {error}");
        }
    }
}
