//! Keys from passphrases (scrypt, RFC 7914) and from other keys (HKDF with SHA-256, RFC 5869).

use std::ptr;

/// A cost of scrypt's: memory is about `128 * n * r` bytes, time grows with `n * r * p`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScryptCost {
    /// A power of two above 1.
    pub n: u64,
    /// Size of a block, usually 8.
    pub r: u64,
    /// Passes that could run beside each other, usually 1.
    pub p: u64,
}

impl ScryptCost {
    /// Bytes of memory that deriving a key needs; none if they cannot be counted.
    pub fn memory_bytes(&self) -> Option<usize> {
        let blocks = self.n.checked_add(self.p)?.checked_add(1)?;
        usize::try_from(blocks.checked_mul(self.r)?.checked_mul(128)?).ok()
    }
}

/// scrypt refused its cost, or there was not enough memory for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadCost(pub ScryptCost);

impl std::fmt::Display for BadCost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ScryptCost { n, r, p } = self.0;
        write!(f, "scrypt with N={n}, r={r}, p={p} is not possible, or there is not enough memory for it")
    }
}

impl std::error::Error for BadCost {}

/// Fills `key` from a passphrase.
///
/// # Errors
/// [`BadCost`] if the cost is no possible one, or there is not the memory.
pub fn scrypt(passphrase: &[u8], salt: &[u8], cost: ScryptCost, key: &mut [u8]) -> Result<(), BadCost> {
    let memory_bytes = cost.memory_bytes().ok_or(BadCost(cost))?;
    // SAFETY: every range is given with its length.
    let done = unsafe {
        aws_lc_sys::EVP_PBE_scrypt(
            passphrase.as_ptr().cast(),
            passphrase.len(),
            salt.as_ptr(),
            salt.len(),
            cost.n,
            cost.r,
            cost.p,
            memory_bytes,
            key.as_mut_ptr(),
            key.len(),
        )
    };
    if done == 1 { Ok(()) } else { Err(BadCost(cost)) }
}

/// Fills `key` from another key; `info` names what it is for, and there is no salt.
///
/// # Panics
/// For a `key` of more than 255 digests, which no cipher has.
pub fn hkdf_sha256(secret: &[u8], info: &[u8], key: &mut [u8]) {
    // SAFETY: every range is given with its length; an empty salt is not read.
    let done = unsafe {
        aws_lc_sys::HKDF(
            key.as_mut_ptr(),
            key.len(),
            aws_lc_sys::EVP_sha256(),
            secret.as_ptr(),
            secret.len(),
            ptr::null(),
            0,
            info.as_ptr(),
            info.len(),
        )
    };
    assert_eq!(done, 1, "a key has at most 255 digests");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        })
    }

    /// RFC 7914, section 12.
    #[test]
    fn scrypt_gives_the_keys_of_its_standard() {
        let mut key = [0xaa; 64];
        scrypt(b"password", b"NaCl", ScryptCost { n: 1024, r: 8, p: 16 }, &mut key).unwrap();
        assert!(hex(&key).starts_with("fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77376634b373162"));
    }

    #[test]
    fn impossible_costs_are_refused() {
        for (n, r, p) in [(0, 8, 1), (1, 8, 1), (1000, 8, 1), (1 << 63, 8, 1), (1024, 0, 1), (1024, 8, u64::MAX)] {
            assert!(scrypt(b"", b"", ScryptCost { n, r, p }, &mut [0; 32]).is_err(), "{n} {r} {p}");
        }
    }

    /// RFC 5869, test case 3: neither salt nor info.
    #[test]
    fn hkdf_gives_the_keys_of_its_standard() {
        let mut key = [0xaa; 42];
        hkdf_sha256(&[0x0b; 22], b"", &mut key);
        let expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8";
        assert_eq!(hex(&key), expected);
    }
}
