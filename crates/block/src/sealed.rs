//! Content that is stored in authenticated blocks, as its format describes it to whoever decrypts elsewhere.

use crate::{BlockDevice, FileDevice, Result};
use std::ops::Range;

/// Bytes of a block's nonce, which is its beginning, and of its tag, which is its end.
pub const OVERHEAD_BYTES: u64 = 16 + 16;

/// A device whose bytes are stored in a file of authenticated blocks (AES-256-GCM): nonce, ciphertext, tag.
pub trait SealedDevice: BlockDevice {
    /// The file as it is stored, by a descriptor of its own.
    ///
    /// # Errors
    /// The system's.
    fn stored(&self) -> Result<FileDevice>;

    /// Where the blocks lie.
    fn blocks(&self) -> SealedBlocks;

    /// The key of the blocks. Whoever copies it clears the copy.
    fn key(&self) -> &[u8];
}

/// Where the blocks of a file lie, and what their tags cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedBlocks {
    /// Bytes of the file before the first block.
    pub header_bytes: u64,
    /// Plain bytes of a block, a multiple of 16; the last one of a file may be shorter.
    pub block_bytes: u64,
    /// What a tag covers beside its block and the block's number.
    pub id: [u8; 16],
}

impl SealedBlocks {
    /// Bytes of a whole block in the file.
    pub fn sealed_bytes(self) -> u64 {
        self.block_bytes + OVERHEAD_BYTES
    }

    /// Bytes of the blocks that hold `plain` bytes from a block's beginning on.
    pub fn sealed_len(self, plain: u64) -> u64 {
        plain + plain.div_ceil(self.block_bytes) * OVERHEAD_BYTES
    }

    /// Where a block begins in the file.
    pub fn sealed_at(self, block: u64) -> u64 {
        self.header_bytes + block * self.sealed_bytes()
    }

    /// Where a block begins in the content.
    pub fn plain_at(self, block: u64) -> u64 {
        block * self.block_bytes
    }

    /// The blocks that hold a range of the content, which is not empty.
    pub fn holding(self, range: &Range<u64>) -> Range<u64> {
        range.start / self.block_bytes..range.end.div_ceil(self.block_bytes)
    }
}
