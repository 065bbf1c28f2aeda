//! Files of authenticated blocks: what is stored crosses the link, and is verified and decrypted where it lands.
//!
//! Blocks lie one behind the other with their nonces and tags (AES-GCM), so a part of the file is brought into scratch
//! memory as it is, and the kernel takes each block from there to its place. What a tag does not fit is not written.
//! A block of zeroes is a hole, which no tag fits: those that were refused are looked at once more.
//!
//! Whose files these are is not known here. A format's own crate (`bifolio-crypt`) opens the file, reads it by the CPU,
//! and says as a [`SealedDevice`] where its blocks lie and by which key: that crate links no router, and this one no
//! format.

use super::device::Load;
use super::file::RoutedFile;
use super::follow::{FOLLOWED_BYTES_MIN, Transform, UNIT_BYTES, load_followed};
use super::loader::Loader;
use super::parts::in_parts;
use crate::{Error, ErrorKind, Result};
use bifolio_block::{BlockDevice, FileDevice, Geometry, SEALED_OVERHEAD_BYTES, SealedBlocks, SealedDevice};
use bifolio_compute::keyed::{DeviceGcm, GcmOperands, PerDevice, SecretMemory, Workspace};
use bifolio_device::DeviceSlice;
use bifolio_kernels::aes_gcm::{Blocks, Message};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The boundary that kernels want.
const WORD_BYTES: u64 = 16;
/// Bytes of what the kernel says of a block.
const FLAG_BYTES: u64 = 4;
/// Plain bytes of a request that is followed: the more, the more scratch memory, and the seldomer the link pauses.
const FOLLOWED_BYTES: u64 = 512 << 20;

/// A file of authenticated blocks: read by the CPU as its format does, loaded by the device.
pub struct Sealed {
    plain: Arc<dyn BlockDevice>,
    stored: RoutedFile,
    blocks: SealedBlocks,
    key: Zeroizing<Vec<u8>>,
    /// The same key on each device that was used.
    on_devices: PerDevice<DeviceGcm>,
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed").field("plain", &self.plain).field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

impl Sealed {
    /// The way into device memory for a file whose format says how it is stored.
    ///
    /// # Errors
    /// The system's, if the stored file cannot be opened once more.
    pub fn of(file: impl SealedDevice + 'static) -> Result<Self> {
        let (stored, blocks, key) = (file.stored()?, file.blocks(), Zeroizing::new(file.key().to_vec()));
        Ok(Self::new(Arc::new(file), stored, blocks, &key))
    }

    /// `plain` is the content of the file `stored`, whose blocks are encrypted with `key` by AES-256-GCM.
    pub fn new(plain: Arc<dyn BlockDevice>, stored: FileDevice, blocks: SealedBlocks, key: &[u8]) -> Self {
        let key = Zeroizing::new(key.to_vec());
        Self { plain, stored: RoutedFile::new(stored), blocks, key, on_devices: PerDevice::default() }
    }

    fn size(&self) -> u64 {
        self.plain.geometry().size
    }

    fn stored_bytes(&self) -> u64 {
        self.stored.geometry().size
    }
}

impl BlockDevice for Sealed {
    fn name(&self) -> String {
        self.plain.name()
    }

    fn geometry(&self) -> Geometry {
        self.plain.geometry()
    }

    fn is_read_only(&self) -> bool {
        self.plain.is_read_only()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> bifolio_block::Result<()> {
        self.plain.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: &[u8]) -> bifolio_block::Result<()> {
        self.plain.write(offset, data)
    }

    fn flush(&self) -> bifolio_block::Result<()> {
        self.plain.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> bifolio_block::Result<()> {
        self.plain.discard(offset, len)
    }
}

impl Load for Sealed {
    fn load(&self, loader: &Loader, offset: u64, destination: DeviceSlice<'_>) -> Result<()> {
        self.check_range(offset, destination.len())?;
        if destination.is_empty() {
            return Ok(());
        }
        let destination = loader.settled(destination)?;
        let made = self.on_devices.get(loader.device(), || DeviceGcm::new(loader.device(), &self.key));
        let gcm = made.map_err(|error| loader.failed(error))?;
        let transfer = Transfer { file: self, gcm: &gcm, loader };
        let range = offset..offset + destination.len();
        let slice = |part: &Range<u64>| {
            destination.part(part.start - offset, part.end - part.start).map_err(|error| loader.failed(error))
        };
        let (mut followed, edges) = transfer.cut(&range, destination);
        while !followed.is_empty() {
            loader.check_cancel(&self.name())?;
            let part = followed.start..followed.end.min(followed.start + FOLLOWED_BYTES);
            transfer.followed(&part, slice(&part)?)?;
            followed.start = part.end;
        }
        edges.iter().try_for_each(|edge| {
            in_parts(edge, self.blocks.block_bytes, &|part| {
                loader.check_cancel(&self.name())?;
                transfer.part(&part, slice(&part)?)
            })
        })
    }
}

struct Transfer<'a> {
    file: &'a Sealed,
    gcm: &'a Arc<DeviceGcm>,
    loader: &'a Loader,
}

/// Blocks that are verified and decrypted as they land.
#[derive(Debug)]
struct Opening {
    gcm: Arc<DeviceGcm>,
    layout: SealedBlocks,
    /// All blocks of the request, which lie in `sealed` from its beginning on.
    blocks: Blocks,
    sealed: DeviceSlice<'static>,
    place: DeviceSlice<'static>,
    /// A u32 for each block.
    rights: DeviceSlice<'static>,
}

impl Opening {
    /// Those in a range of `sealed`, which begins with one.
    fn blocks_in(&self, unit: &Range<u64>) -> (Range<u64>, Blocks) {
        let sealed = self.layout.sealed_bytes();
        let numbers = unit.start / sealed..unit.end.div_ceil(sealed);
        let plain = self.layout.plain_at(numbers.start);
        let len = self.layout.plain_at(numbers.end).min(self.blocks.len) - plain;
        let first = self.blocks.first + numbers.start;
        (numbers, Blocks { sealed: unit.start, plain, first, len, ..self.blocks })
    }
}

impl Transform for Opening {
    fn scratch_bytes(&self, unit: u64) -> u64 {
        DeviceGcm::scratch_bytes(unit.div_ceil(self.layout.sealed_bytes()))
    }

    fn enqueue(&self, workspace: &mut Workspace, unit: Range<u64>) -> bifolio_device::Result<()> {
        let (numbers, blocks) = self.blocks_in(&unit);
        let rights = self.rights.part(numbers.start * FLAG_BYTES, (numbers.end - numbers.start) * FLAG_BYTES)?;
        let operands = GcmOperands { src: self.sealed, dst: self.place, meta: self.sealed };
        // SAFETY: whoever made this keeps the memory, and waits for the workspace; every block has a place and a flag of its
        // own.
        unsafe { self.gcm.enqueue_blocks(workspace, &blocks, operands, rights) }
    }
}

impl Transfer<'_> {
    /// What of a range is long enough to be followed: whole blocks that land where kernels like it. And the rest.
    fn cut(&self, range: &Range<u64>, destination: DeviceSlice<'_>) -> (Range<u64>, Vec<Range<u64>>) {
        let (blocks, size) = (self.file.blocks, self.file.size());
        let start = range.start.next_multiple_of(blocks.block_bytes);
        // The last block of the file may be shorter.
        let end = if range.end == size { size } else { range.end / blocks.block_bytes * blocks.block_bytes };
        let is_long = end.saturating_sub(start) >= FOLLOWED_BYTES_MIN;
        let at_boundary = destination.ptr().offset_by(start - range.start).0.is_multiple_of(WORD_BYTES);
        let is_there = blocks.header_bytes + blocks.sealed_len(size) <= self.file.stored_bytes();
        if !is_long || !at_boundary || !is_there || !self.gcm.is_on_device() {
            return (range.start..range.start, vec![range.clone()]);
        }
        let edges = [range.start..start, end..range.end].into_iter().filter(|edge| !edge.is_empty());
        (start..end, edges.collect())
    }

    /// Whole blocks, by one request behind whose bytes they are decrypted.
    fn followed(&self, part: &Range<u64>, place: DeviceSlice<'_>) -> Result<()> {
        let layout = self.file.blocks;
        let (numbers, len) = (layout.holding(part), part.end - part.start);
        let (count, sealed_bytes) = (numbers.end - numbers.start, layout.sealed_len(len));
        let blocks = self.blocks(numbers.start, len);
        self.loader.with_scratch(sealed_bytes, |scratch| {
            self.loader.with_scratch(count * FLAG_BYTES, |flags| {
                let sealed = scratch.part(0, sealed_bytes).map_err(|error| self.failed(error))?;
                let rights = flags.part(0, count * FLAG_BYTES).map_err(|error| self.failed(error))?;
                // SAFETY: all three are used as long as `load_followed` runs.
                let opening = unsafe {
                    let [sealed, place, rights] =
                        [sealed, place, rights].map(|memory| DeviceSlice::from_raw_ordered(memory.ptr(), memory.len()));
                    Arc::new(Opening { gcm: Arc::clone(self.gcm), layout, blocks, sealed, place, rights })
                };
                let unit_bytes = UNIT_BYTES / layout.block_bytes * layout.sealed_bytes();
                let transform = (Arc::clone(&opening) as Arc<dyn Transform>, unit_bytes);
                let from = layout.sealed_at(numbers.start);
                // SAFETY: the caller lent the destination to this request, and the others are its own.
                let left = unsafe { load_followed(&self.file.stored, self.loader, from, sealed, transform) }?;
                let left = left.ok_or_else(|| self.refused(numbers.start))?;
                let mut are_right = self.rights(rights)?;
                for unit in &left {
                    let (within, blocks) = opening.blocks_in(unit);
                    let plain = place.part(blocks.plain, blocks.len).map_err(|error| self.failed(error))?;
                    let sealed = sealed.part(unit.start, unit.end - unit.start).map_err(|error| self.failed(error))?;
                    self.decrypt(&(blocks.first..blocks.first + blocks.count()), sealed, plain)?;
                    // What it refused was looked at.
                    are_right[within.start as usize..within.end as usize].fill(true);
                }
                (0..count).zip(are_right).filter(|(_, is_right)| !is_right).try_for_each(|(number, _)| {
                    let message = blocks.message(number).map_err(|error| self.failed(error))?;
                    self.hole(numbers.start + number, &message, sealed, place)
                })
            })
        })
    }

    /// Which blocks were what they should be.
    fn rights(&self, flags: DeviceSlice<'_>) -> Result<Vec<bool>> {
        let mut bytes = vec![0; flags.len() as usize];
        self.loader.with_workspace(|workspace| {
            workspace.stream().download(&mut bytes, flags).map_err(|error| self.failed(error))
        })?;
        Ok(bytes.as_chunks::<{ FLAG_BYTES as usize }>().0.iter().map(|flag| u32::from_ne_bytes(*flag) == 1).collect())
    }

    /// One part: its whole blocks in place, the others by way of scratch memory.
    fn part(&self, part: &Range<u64>, place: DeviceSlice<'_>) -> Result<()> {
        let layout = self.file.blocks;
        let blocks = layout.holding(part);
        let sealed_end = layout.sealed_at(blocks.end).min(self.file.stored_bytes());
        let cipher = layout.sealed_at(blocks.start)..sealed_end;
        if cipher.is_empty() {
            // The file was cut after its content was measured.
            return Err(self.refused(blocks.start));
        }
        let plain = layout.plain_at(blocks.start)..layout.plain_at(blocks.end).min(self.file.size());
        let in_place = *part == plain && place.ptr().0.is_multiple_of(WORD_BYTES);
        self.loader.with_scratch(cipher.end - cipher.start, |scratch| {
            let sealed = scratch.part(0, cipher.end - cipher.start).map_err(|error| self.failed(error))?;
            self.file.stored.load(self.loader, cipher.start, sealed)?;
            if in_place {
                return self.decrypt(&blocks, sealed, place);
            }
            // What is decrypted beyond the range is nobody's, and cleared.
            let memory = SecretMemory::new(self.loader.device(), plain.end - plain.start);
            let memory = memory.map_err(|error| self.failed(error))?;
            self.decrypt(&blocks, sealed, memory.slice())?;
            self.loader.with_workspace(|workspace| {
                let wanted = memory.slice().part(part.start - plain.start, part.end - part.start);
                let copied = wanted.and_then(|wanted| {
                    // SAFETY: both are there until the stream has been waited for; the memory is new, so apart.
                    unsafe { workspace.stream().copy_on_device(place, wanted) }
                });
                copied.and(workspace.stream().synchronize()).map_err(|error| self.failed(error))
            })
        })
    }

    /// Blocks from one on, whose plain bytes are so many.
    fn blocks(&self, first: u64, len: u64) -> Blocks {
        let SealedBlocks { block_bytes, id, .. } = self.file.blocks;
        Blocks { sealed: 0, plain: 0, first, len, block_bytes, id }
    }

    fn decrypt(&self, numbers: &Range<u64>, sealed: DeviceSlice<'_>, place: DeviceSlice<'_>) -> Result<()> {
        if self.file.blocks.sealed_len(place.len()) > sealed.len() {
            return Err(self.refused(numbers.end - 1));
        }
        let blocks = self.blocks(numbers.start, place.len());
        let messages: Vec<Message> = (0..numbers.end - numbers.start)
            .map(|block| blocks.message(block).map_err(|error| self.failed(error)))
            .collect::<Result<_>>()?;
        let operands = GcmOperands { src: sealed, dst: place, meta: sealed };
        let rights = self.loader.with_workspace(|workspace| {
            // SAFETY: the caller lent the destination to this request, the scratch is its own, and both wait here; each
            // block has a place of its own.
            unsafe { self.gcm.decrypt(workspace, &messages, operands) }.map_err(|error| self.failed(error))
        })?;
        let refused = numbers.clone().zip(&rights).zip(&messages).filter(|((_, right), _)| !**right);
        refused.into_iter().try_for_each(|((block, _), message)| self.hole(block, message, sealed, place))
    }

    /// What was refused is a hole, or an error.
    fn hole(&self, block: u64, message: &Message, sealed: DeviceSlice<'_>, place: DeviceSlice<'_>) -> Result<()> {
        let mut bytes = vec![0xff; (message.len + SEALED_OVERHEAD_BYTES) as usize];
        let read = sealed.part(message.nonce, bytes.len() as u64);
        self.loader.with_workspace(|workspace| {
            let read = read.and_then(|from| workspace.stream().download(&mut bytes, from));
            read.map_err(|error| self.failed(error))?;
            if bytes.iter().any(|byte| *byte != 0) {
                return Err(self.refused(block));
            }
            let zeroes = place.part(message.dst, message.len).and_then(|to| {
                // SAFETY: the caller lent the destination to this request, which waits here.
                unsafe { workspace.stream().fill(to, 0) }?;
                workspace.stream().synchronize()
            });
            zeroes.map_err(|error| self.failed(error))
        })
    }

    fn refused(&self, block: u64) -> Error {
        let (offset, at) = (self.file.blocks.plain_at(block), self.file.blocks.sealed_at(block));
        let detail = format!(
            "block {block} (offset {offset}, byte {at} of the encrypted file) failed authentication: it is not what was encrypted for this place; none of it was returned"
        );
        Error::new(ErrorKind::Damaged, self.file.name(), detail)
    }

    fn failed(&self, error: bifolio_device::Error) -> Error {
        self.loader.failed(error)
    }
}
