//! Encrypted files into device memory: ciphertext crosses the link, and is verified and decrypted there.
//!
//! Blocks lie one behind the other with their nonces and tags, so a part of the encrypted file is brought into
//! scratch memory as it is, and the kernel takes each block from there to its place. What a tag does not fit is
//! not written. A block of zeroes is a hole, which no tag fits: those that were refused are looked at once more.

use crate::config::CONFIG_NAME;
use crate::content::layout::{
    self, CIPHER_BLOCK_BYTES, HEADER_BYTES, NONCE_BYTES, OVERHEAD_BYTES, PLAIN_BLOCK_BYTES, TAG_BYTES,
};
use crate::content::{FileId, is_hole};
use crate::format::Format;
use crate::{CipherDir, CryptFile, Key};
use bifolio_compute::keyed::{DeviceGcm, GcmOperands, Lane, SecretMemory};
use bifolio_device::DeviceSlice;
use bifolio_kernels::aes_gcm::{Blocks, Layout, Message};
use bifolio_volume::load::{FOLLOWED_BYTES_MIN, UNIT_BYTES, Work, in_parts, load_followed};
use bifolio_volume::{BlockDevice, Error, ErrorKind, FileDevice, Geometry, Loader, Result};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The boundary that kernels want.
const WORD_BYTES: u64 = 16;
/// Blocks that are decrypted at a time while others are on their way.
const UNIT_BLOCKS: u64 = UNIT_BYTES / PLAIN_BLOCK_BYTES;
/// Bytes of what the kernel says of a block.
const FLAG_BYTES: u64 = 4;
/// Plain bytes of a request that is followed: the more, the more scratch memory, and the seldomer the link pauses.
const FOLLOWED_BYTES: u64 = 512 << 20;

/// An encrypted file as a row of plain bytes, for reading. Its size is that of the moment when it was opened.
#[derive(Debug)]
pub struct LoadableFile {
    name: String,
    /// Of the encrypted file.
    stored: PathBuf,
    cipher: FileDevice,
    plain: CryptFile,
    id: Option<FileId>,
    size: u64,
    format: Arc<Format>,
}

impl LoadableFile {
    /// Opens a file of a directory by its plain path.
    ///
    /// # Errors
    /// Those of [`CipherDir::open_file`], and those of a header that is none.
    pub fn open(dir: &CipherDir, plain_path: &Path) -> crate::Result<Self> {
        let plain = dir.open_file(plain_path, false)?;
        let id = plain.file_id()?;
        let name = dir.path().join(plain_path);
        let failed = |error| crate::Error::system(name.display(), "opening the encrypted file", error);
        let file = plain.with_file(std::fs::File::try_clone).map_err(failed)?;
        let cipher = FileDevice::of_file(file, &name, false)
            .map_err(|error| crate::Error::new(crate::ErrorKind::Read, name.display(), error.to_string()))?;
        // What has no header yet has no bytes.
        let size = if id.is_none() { 0 } else { layout::plain_len(cipher.geometry().size) };
        let stored = dir.lookup(plain_path)?;
        Ok(Self { name: name.display().to_string(), stored, cipher, plain, id, size, format: Arc::clone(dir.format()) })
    }

    /// Opens a file by a path that leads through an encrypted directory: its part behind the directory is plain.
    ///
    /// # Errors
    /// `NotACipherDir` if no directory on the way has a configuration, and those of [`CipherDir::open`] and
    /// [`LoadableFile::open`].
    pub fn open_path(path: &Path, key: &Key<'_>) -> crate::Result<Self> {
        let root = path.ancestors().skip(1).find(|folder| folder.join(CONFIG_NAME).is_file());
        let root = root.ok_or_else(|| {
            let detail = format!("no folder on the way to it is an encrypted directory, which has a {CONFIG_NAME}");
            crate::Error::new(crate::ErrorKind::NotACipherDir, path.display(), detail)
        })?;
        let plain = path.strip_prefix(root).expect("an ancestor is a prefix");
        // The empty ancestor is the current folder.
        let root = if root.as_os_str().is_empty() { Path::new(".") } else { root };
        Self::open(&CipherDir::open(root, key)?, plain)
    }
}

impl LoadableFile {
    /// Where the encrypted file lies.
    pub fn stored_at(&self) -> &Path {
        &self.stored
    }
}

impl BlockDevice for LoadableFile {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn geometry(&self) -> Geometry {
        Geometry { size: self.size, block_bytes: PLAIN_BLOCK_BYTES, optimal_bytes: 1 << 20 }
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.check_range(offset, buffer.len() as u64)?;
        let got = self.plain.read_at(buffer, offset).map_err(|error| of_plain(&self.name, &error))?;
        if got < buffer.len() {
            let detail = format!("it was cut while it was open: {} bytes at offset {offset} are gone", buffer.len());
            return Err(Error::new(ErrorKind::Read, &self.name, detail));
        }
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        Err(self.read_only())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Err(self.read_only())
    }

    fn load(&self, loader: &Loader, offset: u64, destination: DeviceSlice<'_>) -> Result<()> {
        self.check_range(offset, destination.len())?;
        let Some(id) = self.id.filter(|_| !destination.is_empty()) else { return Ok(()) };
        let destination = loader.settled(destination)?;
        let made = self
            .format
            .on_devices
            .get(loader.device(), || DeviceGcm::new(loader.device(), &self.format.content_key[..]));
        let gcm = made.map_err(|error| loader.failed(error))?;
        let run = Run { file: self, id, gcm: &gcm, loader };
        let range = offset..offset + destination.len();
        let slice = |part: &Range<u64>| {
            destination.part(part.start - offset, part.end - part.start).map_err(|error| loader.failed(error))
        };
        let (mut followed, edges) = run.cut(&range, destination);
        while !followed.is_empty() {
            loader.check_cancel(&self.name)?;
            let part = followed.start..followed.end.min(followed.start + FOLLOWED_BYTES);
            run.followed(&part, slice(&part)?)?;
            followed.start = part.end;
        }
        edges.iter().try_for_each(|edge| {
            in_parts(edge, PLAIN_BLOCK_BYTES, &|part| {
                loader.check_cancel(&self.name)?;
                run.part(&part, slice(&part)?)
            })
        })
    }
}

impl LoadableFile {
    fn read_only(&self) -> Error {
        Error::new(ErrorKind::ReadOnly, &self.name, "it was opened for reading only")
    }
}

/// The same failure, as those of volumes are.
fn of_plain(name: &str, error: &crate::Error) -> Error {
    let kind = match error.kind() {
        crate::ErrorKind::Corrupt | crate::ErrorKind::Damaged => ErrorKind::Damaged,
        _ => ErrorKind::Read,
    };
    let text = error.to_string();
    let detail = text.split_once(": ").map_or(&*text, |(_, detail)| detail);
    Error::new(kind, name, detail)
}

struct Run<'a> {
    file: &'a LoadableFile,
    id: FileId,
    gcm: &'a Arc<DeviceGcm>,
    loader: &'a Loader,
}

/// Blocks that are verified and decrypted as they land.
#[derive(Debug)]
struct Opening {
    gcm: Arc<DeviceGcm>,
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
        let numbers = unit.start / CIPHER_BLOCK_BYTES..unit.end.div_ceil(CIPHER_BLOCK_BYTES);
        let plain = layout::plain_offset(numbers.start);
        let len = layout::plain_offset(numbers.end).min(self.blocks.len) - plain;
        let first = self.blocks.first + numbers.start;
        (numbers, Blocks { sealed: unit.start, plain, first, len, ..self.blocks })
    }
}

impl Work for Opening {
    fn scratch_bytes(&self, unit: u64) -> u64 {
        DeviceGcm::scratch_bytes(unit.div_ceil(CIPHER_BLOCK_BYTES))
    }

    fn enqueue(&self, lane: &mut Lane, unit: Range<u64>) -> bifolio_device::Result<()> {
        let (numbers, blocks) = self.blocks_in(&unit);
        let rights = self.rights.part(numbers.start * FLAG_BYTES, (numbers.end - numbers.start) * FLAG_BYTES)?;
        let operands = GcmOperands { src: self.sealed, dst: self.place, meta: self.sealed };
        // SAFETY: whoever made this keeps the memory, and waits for the lane; every block has a place and a flag of its
        // own.
        unsafe { self.gcm.enqueue_blocks(lane, &blocks, operands, rights) }
    }
}

impl Run<'_> {
    /// What of a range is long enough to be followed: whole blocks that land where kernels like it. And the rest.
    fn cut(&self, range: &Range<u64>, destination: DeviceSlice<'_>) -> (Range<u64>, Vec<Range<u64>>) {
        let start = range.start.next_multiple_of(PLAIN_BLOCK_BYTES);
        // The last block of the file may be shorter.
        let end =
            if range.end == self.file.size { range.end } else { range.end / PLAIN_BLOCK_BYTES * PLAIN_BLOCK_BYTES };
        let is_long = end.saturating_sub(start) >= FOLLOWED_BYTES_MIN;
        let at_boundary = destination.ptr().offset_by(start - range.start).0.is_multiple_of(WORD_BYTES);
        let is_there = layout::cipher_len(self.file.size) <= self.file.cipher.geometry().size;
        if !is_long || !at_boundary || !is_there || !self.gcm.is_on_device() {
            return (range.start..range.start, vec![range.clone()]);
        }
        let edges = [range.start..start, end..range.end].into_iter().filter(|edge| !edge.is_empty());
        (start..end, edges.collect())
    }

    /// Whole blocks, by one request behind whose bytes they are decrypted.
    fn followed(&self, part: &Range<u64>, place: DeviceSlice<'_>) -> Result<()> {
        let numbers = layout::blocks(part.start, part.end - part.start);
        let len = part.end - part.start;
        let (count, cipher_bytes) = (numbers.end - numbers.start, layout::cipher_len(len) - HEADER_BYTES);
        let blocks =
            Blocks { sealed: 0, plain: 0, first: numbers.start, len, block_bytes: PLAIN_BLOCK_BYTES, id: self.id };
        self.loader.with_scratch(cipher_bytes, |scratch| {
            self.loader.with_scratch(count * FLAG_BYTES, |flags| {
                let sealed = scratch.part(0, cipher_bytes).map_err(|error| self.failed(error))?;
                let rights = flags.part(0, count * FLAG_BYTES).map_err(|error| self.failed(error))?;
                // SAFETY: all three are used as long as `load_followed` runs.
                let opening = unsafe {
                    let [sealed, place, rights] =
                        [sealed, place, rights].map(|memory| DeviceSlice::from_raw_ordered(memory.ptr(), memory.len()));
                    Arc::new(Opening { gcm: Arc::clone(self.gcm), blocks, sealed, place, rights })
                };
                let work = (Arc::clone(&opening) as Arc<dyn Work>, UNIT_BLOCKS * CIPHER_BLOCK_BYTES);
                let from = layout::cipher_offset(numbers.start);
                // SAFETY: the caller lent the destination to this request, and the others are its own.
                let left = unsafe { load_followed(&self.file.cipher, self.loader, from, sealed, work) }?;
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
        self.loader.with_lane(|lane| lane.stream().download(&mut bytes, flags).map_err(|error| self.failed(error)))?;
        Ok(bytes.as_chunks::<{ FLAG_BYTES as usize }>().0.iter().map(|flag| u32::from_ne_bytes(*flag) == 1).collect())
    }

    /// One part: its whole blocks in place, the others by way of scratch memory.
    fn part(&self, part: &Range<u64>, place: DeviceSlice<'_>) -> Result<()> {
        let blocks = layout::blocks(part.start, part.end - part.start);
        let cipher_end = layout::cipher_offset(blocks.end).min(self.file.cipher.geometry().size);
        let cipher = layout::cipher_offset(blocks.start)..cipher_end;
        let plain_end = layout::plain_offset(blocks.end).min(self.file.size);
        let plain = layout::plain_offset(blocks.start)..plain_end;
        let in_place = *part == plain && place.ptr().0.is_multiple_of(WORD_BYTES);
        self.loader.with_scratch(cipher.end - cipher.start, |scratch| {
            let sealed = scratch.part(0, cipher.end - cipher.start).map_err(|error| self.failed(error))?;
            self.file.cipher.load(self.loader, cipher.start, sealed)?;
            if in_place {
                return self.decrypt(&blocks, sealed, place);
            }
            // What is decrypted beyond the range is nobody's, and cleared.
            let memory = SecretMemory::new(self.loader.device(), plain.end - plain.start);
            let memory = memory.map_err(|error| self.failed(error))?;
            self.decrypt(&blocks, sealed, memory.slice())?;
            self.loader.with_lane(|lane| {
                let wanted = memory.slice().part(part.start - plain.start, part.end - part.start);
                let copied = wanted.and_then(|wanted| {
                    // SAFETY: both are there until the stream has been waited for; the memory is new, so apart.
                    unsafe { lane.stream().copy_on_device(place, wanted) }
                });
                copied.and(lane.stream().synchronize()).map_err(|error| self.failed(error))
            })
        })
    }

    fn decrypt(&self, blocks: &Range<u64>, sealed: DeviceSlice<'_>, place: DeviceSlice<'_>) -> Result<()> {
        if layout::cipher_len(place.len()) - HEADER_BYTES > sealed.len() {
            return Err(self.refused(blocks.end - 1));
        }
        let messages: Vec<Message> =
            blocks.clone().map(|block| self.message(block, blocks.start, place.len())).collect::<Result<_>>()?;
        let operands = GcmOperands { src: sealed, dst: place, meta: sealed };
        let rights = self.loader.with_lane(|lane| {
            // SAFETY: the caller lent the destination to this request, the scratch is its own, and both wait here; each
            // block has a place of its own.
            unsafe { self.gcm.decrypt(lane, &messages, operands) }.map_err(|error| self.failed(error))
        })?;
        let refused = blocks.clone().zip(&rights).zip(&messages).filter(|((_, right), _)| !**right);
        refused.into_iter().try_for_each(|((block, _), message)| self.hole(block, message, sealed, place))
    }

    /// A block behind the first of a part, whose plain bytes have `room`.
    fn message(&self, block: u64, first: u64, room: u64) -> Result<Message> {
        let dst = layout::plain_offset(block - first);
        let len = PLAIN_BLOCK_BYTES.min(room - dst);
        let nonce = layout::cipher_offset(block) - layout::cipher_offset(first);
        let src = nonce + NONCE_BYTES;
        let places = Layout { src, dst, nonce, tag: src + len };
        let aad = layout::associated_data(block, &self.id);
        Message::new(places, len, NONCE_BYTES as u32, &aad).map_err(|error| self.failed(error))
    }

    /// What was refused is a hole, or an error.
    fn hole(&self, block: u64, message: &Message, sealed: DeviceSlice<'_>, place: DeviceSlice<'_>) -> Result<()> {
        let mut bytes = vec![0xff; (message.len + OVERHEAD_BYTES) as usize];
        let read = sealed.part(message.nonce, bytes.len() as u64);
        self.loader.with_lane(|lane| {
            let read = read.and_then(|from| lane.stream().download(&mut bytes, from));
            read.map_err(|error| self.failed(error))?;
            if !is_hole(&bytes) {
                return Err(self.refused(block));
            }
            let zeroes = place.part(message.dst, message.len).and_then(|to| {
                // SAFETY: the caller lent the destination to this request, which waits here.
                unsafe { lane.stream().fill(to, 0) }?;
                lane.stream().synchronize()
            });
            zeroes.map_err(|error| self.failed(error))
        })
    }

    fn refused(&self, block: u64) -> Error {
        let (offset, at) = (layout::plain_offset(block), layout::cipher_offset(block));
        let detail = format!(
            "block {block} (offset {offset}, byte {at} of the encrypted file) is not what was encrypted for this place; \
             nothing of it was given out"
        );
        Error::new(ErrorKind::Damaged, &self.file.name, detail)
    }

    fn failed(&self, error: bifolio_device::Error) -> Error {
        self.loader.failed(error)
    }
}

const _: () = assert!(NONCE_BYTES == WORD_BYTES && CIPHER_BLOCK_BYTES.is_multiple_of(WORD_BYTES) && TAG_BYTES == 16);
