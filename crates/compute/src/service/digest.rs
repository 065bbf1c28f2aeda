//! CRC32C and SHA-256 of many blocks.

use super::List;
use super::{Batch, Data, Entry, Launch, Output, Prepared, Service, Shape, offset_in};
use crate::kernels::{Kernels, Loaded};
use crate::{Error, Result};
use bifolio_device::Device;
use bifolio_kernels::Addressing;
use bifolio_kernels::digest::{self, Block, Digest};
use sha2::Digest as _;
use std::sync::Arc;

/// Digests of blocks, one after the other: 4 bytes in the host's order for CRC32C, 32 for SHA-256.
#[derive(Debug)]
pub struct Digests {
    digest: Digest,
    device: Result<Loaded, String>,
}

/// The blocks of a request: ascending places in its input, multiples of 16, that do not overlap.
pub type Blocks = List<Block>;

impl Digests {
    /// The service of a digest.
    ///
    /// # Errors
    /// The device's.
    pub fn new(kernels: &Kernels, digest: Digest) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { digest, device: kernels.load(&digest)? }))
    }

    /// A request's whole input in blocks of `block_bytes`, a multiple of 16, the last one shorter.
    ///
    /// # Panics
    /// For blocks without bytes.
    pub fn blocks(input: u64, block_bytes: u64) -> Blocks {
        let block = |at| Block { at, len: block_bytes.min(input - at) };
        (0..input).step_by(block_bytes as usize).map(block).collect()
    }
}

impl Service for Digests {
    type Params = Blocks;

    fn name(&self) -> &'static str {
        match self.digest {
            Digest::Crc32c => "crc32c",
            Digest::Sha256 => "sha-256",
        }
    }

    fn shape(&self, blocks: &Blocks, input: u64) -> Result<Shape> {
        let mut end = 0;
        for block in blocks.items() {
            let at = block.at.checked_sub(blocks.origin());
            let fits = at.and_then(|at| at.checked_add(block.len)).is_some_and(|end| end <= input);
            if block.at < end || !block.at.is_multiple_of(16) || !fits {
                let detail = format!(
                    "the block of {} bytes at {} overlaps, lies between 16-byte boundaries",
                    block.len, block.at
                );
                return Err(Error::bad(format!("{detail}, or beyond the {input} bytes of the request")));
            }
            end = block.at + block.len;
        }
        Ok(Shape { output: Output::Nothing, results: blocks.items().len() as u64 * self.digest.bytes() })
    }

    fn cut(&self, blocks: &Blocks, at_most: u64) -> u64 {
        let (items, origin) = (blocks.items(), blocks.origin());
        let before = items.partition_point(|block| block.at - origin <= at_most);
        items[..before].last().map_or(0, |block| block.at - origin)
    }

    fn split(&self, blocks: &Blocks, at: u64) -> (Blocks, Blocks) {
        blocks.split(blocks.items().partition_point(|block| block.at - blocks.origin() < at), at)
    }

    fn refusal(&self) -> Option<String> {
        self.device.as_ref().err().cloned()
    }

    fn sample(&self, about_bytes: u64) -> (Blocks, Vec<u8>) {
        (Self::blocks(about_bytes, 4096), vec![0x5a; about_bytes as usize])
    }

    fn on_cpu(&self, blocks: &Blocks, data: Data<'_>, results: &mut [u8]) -> Result<()> {
        let input = data.input();
        let found = results.chunks_exact_mut(self.digest.bytes() as usize);
        for (block, found) in blocks.items().iter().zip(found) {
            let bytes = &input[(block.at - blocks.origin()) as usize..][..block.len as usize];
            match self.digest {
                Digest::Crc32c => found.copy_from_slice(&crc32c::crc32c(bytes).to_ne_bytes()),
                Digest::Sha256 => found.copy_from_slice(&sha2::Sha256::digest(bytes)),
            }
        }
        Ok(())
    }

    fn prepare(&self, _device: &Device, entries: &[Entry<'_, Blocks>], batch: Batch<'_>) -> Result<Prepared> {
        let mut blocks = vec![];
        for entry in entries {
            let (start, origin) = (offset_in(batch.inputs, entry.input), entry.params.origin());
            let moved = |block: &Block| Block { at: block.at - origin + start, len: block.len };
            blocks.extend(entry.params.items().iter().map(moved));
        }
        Ok(Prepared { table: digest::encode(&blocks), scratch_bytes: 0 })
    }

    unsafe fn launch(&self, _entries: &[Entry<'_, Blocks>], launch: &Launch<'_>) -> Result<()> {
        let Ok(loaded) = &self.device else { return Err(Error::bad("the kernels are not loaded")) };
        let (stream, base) = (launch.stream, Addressing::Relative(launch.batch.inputs));
        // SAFETY: the caller's promise; the module is this digest's, and the table this batch's.
        unsafe { digest::launch(stream, loaded.module(), self.digest, base, launch.table, launch.results) }?;
        Ok(())
    }
}
