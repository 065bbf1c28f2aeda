//! Where the bytes of a file lie in its encrypted file. Pure functions, for whoever reads encrypted files by another
//! way than [`CryptFile`](crate::CryptFile), such as into the memory of a device.
//!
//! ```text
//!   18 bytes       | nonce 16 | 4096 bytes, encrypted | tag 16 | nonce 16 | ...   last block: 1 to 4096 bytes
//!   2, file's id 16 |<------------- block 0 ------------------>|<-- block 1
//! ```
//!
//! An empty file has no header. A whole block of zeroes is a hole, and holds 4096 zeroes.

use std::ops::Range;

/// Bytes of the header.
pub const HEADER_BYTES: u64 = 18;
/// Plain bytes of a block; the last one may be shorter.
pub const PLAIN_BLOCK_BYTES: u64 = 4096;
/// Bytes of a block's nonce, which is its beginning.
pub const NONCE_BYTES: u64 = 16;
/// Bytes of a block's tag, which is its end.
pub const TAG_BYTES: u64 = 16;
/// What encryption adds to a block.
pub const OVERHEAD_BYTES: u64 = NONCE_BYTES + TAG_BYTES;
/// Bytes of a whole encrypted block.
pub const CIPHER_BLOCK_BYTES: u64 = PLAIN_BLOCK_BYTES + OVERHEAD_BYTES;
/// Plain bytes of a file at most: as many as have an offset when they are encrypted.
pub(crate) const PLAIN_BYTES_MAX: u64 = {
    let blocks = (i64::MAX as u64 - HEADER_BYTES) / CIPHER_BLOCK_BYTES;
    blocks * PLAIN_BLOCK_BYTES
};

/// Plain bytes of an encrypted file of `cipher_len` bytes. A last block that is too short to be one (the file was
/// cut) counts as one byte, so that reading it is an error and not the end of the file.
pub fn plain_len(cipher_len: u64) -> u64 {
    let blocks = cipher_len.saturating_sub(HEADER_BYTES);
    let last = match blocks % CIPHER_BLOCK_BYTES {
        0 => 0,
        bytes => bytes.saturating_sub(OVERHEAD_BYTES).max(1),
    };
    blocks / CIPHER_BLOCK_BYTES * PLAIN_BLOCK_BYTES + last
}

/// Bytes of the encrypted file for `plain_len` bytes.
pub fn cipher_len(plain_len: u64) -> u64 {
    if plain_len == 0 {
        return 0;
    }
    HEADER_BYTES + plain_len + plain_len.div_ceil(PLAIN_BLOCK_BYTES) * OVERHEAD_BYTES
}

/// The block that holds a plain offset.
pub fn block_of(offset: u64) -> u64 {
    offset / PLAIN_BLOCK_BYTES
}

/// The plain offset of a block.
pub fn plain_offset(block: u64) -> u64 {
    block * PLAIN_BLOCK_BYTES
}

/// Where a block begins in the encrypted file: its nonce; its encrypted bytes follow after [`NONCE_BYTES`].
pub fn cipher_offset(block: u64) -> u64 {
    HEADER_BYTES + block * CIPHER_BLOCK_BYTES
}

/// The blocks that hold `len` bytes from a plain offset on.
pub fn blocks(offset: u64, len: u64) -> Range<u64> {
    if len == 0 { block_of(offset)..block_of(offset) } else { block_of(offset)..block_of(offset + len - 1) + 1 }
}

/// The range of the encrypted file that holds whole blocks; in the last block of a file it ends behind its end.
pub(crate) fn cipher_range(blocks: Range<u64>) -> Range<u64> {
    cipher_offset(blocks.start)..cipher_offset(blocks.end)
}

/// What a block's tag also covers: its number and the file's id.
pub(crate) fn associated_data(block: u64, file_id: &super::FileId) -> [u8; 24] {
    let mut data = [0; 24];
    data[..8].copy_from_slice(&block.to_be_bytes());
    data[8..].copy_from_slice(file_id);
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_around_the_bounds_of_blocks() {
        for (plain, cipher) in
            [(0, 0), (1, 18 + 33), (4095, 18 + 4127), (4096, 18 + 4128), (4097, 18 + 4128 + 33), (8192, 18 + 2 * 4128)]
        {
            assert_eq!(cipher_len(plain), cipher);
            assert_eq!(plain_len(cipher), plain);
        }
        // Cut in the header, behind it, and in a block's nonce or tag.
        for (cipher, plain) in [(1, 0), (17, 0), (18, 0), (19, 1), (18 + 32, 1), (18 + 4128 + 5, 4097)] {
            assert_eq!(plain_len(cipher), plain);
        }
        assert!(i64::try_from(cipher_len(PLAIN_BYTES_MAX)).is_ok());
    }

    proptest! {
        #[test]
        fn lengths_come_back_and_blocks_hold_their_bytes(plain in 0..PLAIN_BYTES_MAX, len in 0..100_000_u64) {
            prop_assert_eq!(plain_len(cipher_len(plain)), plain);
            let range = blocks(plain, len);
            prop_assert!(plain_offset(range.start) <= plain);
            prop_assert!(len == 0 || plain_offset(range.end) >= plain + len);
            prop_assert!(plain_offset(range.end) < plain + len + PLAIN_BLOCK_BYTES);
            prop_assert_eq!(
                cipher_range(range.clone()),
                cipher_offset(range.start)..HEADER_BYTES + range.end * CIPHER_BLOCK_BYTES
            );
        }
    }
}
