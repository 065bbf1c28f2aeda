//! The volume's data: sectors of the device below, decrypted and encrypted.
//!
//! A sector is decrypted and encrypted as a whole: a read that overlaps a write could get the first half of the new
//! ciphertext and the second of the old one, which decrypts to neither; and a write of part of a sector reads it first, so
//! that what another write stores in between would be lost. So a write has its sectors to itself, and reads share theirs.
//!
//! A request is worked through in chunks that stay in a core's cache between the copy and the cipher. Reads
//! decrypt in the caller's memory; writes encrypt in a buffer from a pool, as the caller's memory is only
//! lent for reading. Long requests are shared out over this process's threads while others are idle.

use super::info::{LuksInfo, Unlock};
use super::segment::Segment;
use crate::load::{Cipher, Load, Loader, load_encrypted};
use bifolio_block::ranges::Ranges;
use bifolio_block::{BlockDevice, Error, ErrorKind, Geometry, Result};
use bifolio_compute::ThreadPool;
use bifolio_compute::cpu::Xts;
use bifolio_device::DeviceSlice;
use bifolio_kernels::aes_xts::Sectors;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use zeroize::Zeroizing;

/// Bytes between two looks at the cipher: what a core's second-level cache holds besides other things.
const CHUNK_BYTES: u64 = 128 << 10;
/// A thread takes longer to wake up than to decrypt much less.
const PART_BYTES_MIN: u64 = 1 << 20;
/// Buffers that are kept for later writes.
const BUFFERS_MAX: usize = 32;

/// An open LUKS volume.
pub struct Luks {
    inner: Arc<dyn Load>,
    info: LuksInfo,
    segment: Segment,
    cipher: Cipher,
    xts: Xts,
    unlock: Unlock,
    ranges: Ranges,
    /// Of [`CHUNK_BYTES`] each; plaintext passes through them, so that they are cleared in the end.
    buffers: Mutex<Vec<Zeroizing<Vec<u8>>>>,
}

impl std::fmt::Debug for Luks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Luks").field("inner", &self.inner).field("segment", &self.segment).finish_non_exhaustive()
    }
}

impl Luks {
    pub(super) fn new(
        inner: Arc<dyn Load>,
        info: LuksInfo,
        segment: Segment,
        key: Zeroizing<Vec<u8>>,
        unlock: Unlock,
    ) -> crate::Result<Self> {
        let xts = Xts::new(&key)
            .map_err(|error| crate::Error::new(crate::ErrorKind::Damaged, inner.name(), error.to_string()))?;
        let ranges = Ranges::default();
        let cipher = Cipher::new(key, segment.sectors);
        Ok(Self { inner, info, segment, cipher, xts, unlock, ranges, buffers: Mutex::default() })
    }

    /// What its header says.
    pub fn info(&self) -> &LuksInfo {
        &self.info
    }

    /// The device below.
    pub fn inner(&self) -> &Arc<dyn Load> {
        &self.inner
    }

    /// Where the data begins in the device below, in bytes.
    pub fn payload_offset(&self) -> u64 {
        self.segment.offset
    }

    /// How the sectors from an offset of the volume on are encrypted; the offset is rounded down to a sector.
    pub fn sectors_at(&self, offset: u64) -> Sectors {
        self.cipher.sectors_at(offset)
    }

    /// The volume key: the data key and the tweak key, one after the other.
    pub fn key(&self) -> &Zeroizing<Vec<u8>> {
        self.cipher.key()
    }

    fn sector_bytes(&self) -> u64 {
        u64::from(self.segment.sectors.bytes)
    }

    /// The sectors that have bytes of a range, as a range.
    fn whole_sectors(&self, offset: u64, len: u64) -> Range<u64> {
        let unit = self.sector_bytes();
        offset / unit * unit..(offset + len).next_multiple_of(unit)
    }

    /// Reads and decrypts whole sectors.
    fn read_sectors(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.inner.read(self.segment.offset + offset, buffer)?;
        self.xts.decrypt(self.sectors_at(offset), buffer).map_err(|error| self.broken(&error))
    }

    /// Reads a part of a request, chunk by chunk.
    fn read_part(&self, offset: u64, mut buffer: &mut [u8]) -> Result<()> {
        let end = offset + buffer.len() as u64;
        for chunk in chunks(self.whole_sectors(offset, buffer.len() as u64)) {
            let wanted = chunk.start.max(offset)..chunk.end.min(end);
            let (here, rest) = buffer.split_at_mut((wanted.end - wanted.start) as usize);
            buffer = rest;
            if wanted == chunk {
                self.read_sectors(chunk.start, here)?;
                continue;
            }
            let mut bounce = self.bounce();
            let sectors = &mut bounce[..(chunk.end - chunk.start) as usize];
            let done = self.read_sectors(chunk.start, sectors);
            if done.is_ok() {
                here.copy_from_slice(&sectors[(wanted.start - chunk.start) as usize..][..here.len()]);
            }
            self.give_back(bounce);
            done?;
        }
        Ok(())
    }

    /// Writes a part of a request, chunk by chunk.
    fn write_part(&self, offset: u64, mut data: &[u8]) -> Result<()> {
        let end = offset + data.len() as u64;
        let mut bounce = self.bounce();
        let mut done = Ok(());
        for chunk in chunks(self.whole_sectors(offset, data.len() as u64)) {
            let wanted = chunk.start.max(offset)..chunk.end.min(end);
            let (here, rest) = data.split_at((wanted.end - wanted.start) as usize);
            data = rest;
            let sectors = &mut bounce[..(chunk.end - chunk.start) as usize];
            done = self.write_chunk(&chunk, &wanted, here, sectors);
            if done.is_err() {
                break;
            }
        }
        self.give_back(bounce);
        done
    }

    /// Writes the bytes `wanted` of a chunk: sectors that they fill in part are read before.
    fn write_chunk(&self, chunk: &Range<u64>, wanted: &Range<u64>, data: &[u8], sectors: &mut [u8]) -> Result<()> {
        let unit = self.sector_bytes() as usize;
        let last = sectors.len() - unit;
        if wanted.start > chunk.start {
            self.read_sectors(chunk.start, &mut sectors[..unit])?;
        }
        let is_read = last == 0 && wanted.start > chunk.start;
        if wanted.end < chunk.end && !is_read {
            self.read_sectors(chunk.start + last as u64, &mut sectors[last..])?;
        }
        sectors[(wanted.start - chunk.start) as usize..][..data.len()].copy_from_slice(data);
        self.xts.encrypt(self.sectors_at(chunk.start), sectors).map_err(|error| self.broken(&error))?;
        self.inner.write(self.segment.offset + chunk.start, sectors)
    }

    fn check_write(&self, offset: u64, len: u64) -> Result<()> {
        self.check_range(offset, len)?;
        if self.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, self.name(), "it was opened for reading only"));
        }
        Ok(())
    }

    fn bounce(&self) -> Zeroizing<Vec<u8>> {
        let kept = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_else(|| Zeroizing::new(vec![0; CHUNK_BYTES as usize]))
    }

    fn give_back(&self, buffer: Zeroizing<Vec<u8>>) {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if buffers.len() < BUFFERS_MAX {
            buffers.push(buffer);
        }
    }

    fn broken(&self, error: &bifolio_kernels::Error) -> Error {
        Error::new(ErrorKind::BadUse, self.name(), error.to_string())
    }
}

/// A range in pieces that end at multiples of [`CHUNK_BYTES`].
fn chunks(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut start = range.start;
    std::iter::from_fn(move || {
        let end = range.end.min((start + 1).next_multiple_of(CHUNK_BYTES));
        let chunk = start..end;
        start = end;
        (!chunk.is_empty()).then_some(chunk)
    })
}

/// Bytes of each part of a request, but the last, for so many threads.
fn part_bytes(len: u64, threads: usize) -> u64 {
    len.div_ceil(threads.max(1) as u64).next_multiple_of(CHUNK_BYTES)
}

impl BlockDevice for Luks {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        let inner = self.inner.geometry();
        let block_bytes = self.sector_bytes();
        let optimal_bytes = inner.optimal_bytes.max(block_bytes).next_multiple_of(block_bytes);
        Geometry { size: self.segment.len, block_bytes, optimal_bytes }
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let len = buffer.len() as u64;
        self.check_range(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let _held = self.ranges.read(self.whole_sectors(offset, len));
        let pool = ThreadPool::of_process();
        let width = pool.width(len, PART_BYTES_MIN);
        let part = part_bytes(len, width);
        let parts =
            buffer.chunks_mut(part as usize).enumerate().map(|(i, part_of)| (offset + i as u64 * part, part_of));
        pool.divide(width, parts, |(offset, buffer)| self.read_part(offset, buffer))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let len = data.len() as u64;
        self.check_write(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let _held = self.ranges.write(self.whole_sectors(offset, len));
        let pool = ThreadPool::of_process();
        let width = pool.width(len, PART_BYTES_MIN);
        if width == 1 {
            return self.write_part(offset, data);
        }
        let part = part_bytes(len, width);
        let unit = self.sector_bytes();
        // Parts meet at sectors, of which each is written by one of them.
        let first = part - offset % unit;
        let (head, rest) = data.split_at(data.len().min(first as usize));
        let rest = rest.chunks(part as usize).enumerate().map(|(i, data)| (offset + first + i as u64 * part, data));
        let parts: Vec<_> = std::iter::once((offset, head)).chain(rest).collect();
        pool.divide(width, parts, |(offset, data)| self.write_part(offset, data))
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    fn complaints(&self) -> Vec<String> {
        self.inner.complaints()
    }

    fn settle(&self) -> Result<()> {
        self.inner.settle()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check_write(offset, len)?;
        let unit = self.sector_bytes();
        let (start, end) = (offset.next_multiple_of(unit), (offset + len) / unit * unit);
        if !self.unlock.discard || start >= end {
            return Ok(());
        }
        let _held = self.ranges.write(start..end);
        self.inner.discard(self.segment.offset + start, end - start)
    }
}

impl Load for Luks {
    fn load(&self, loader: &Loader, offset: u64, destination: DeviceSlice<'_>) -> crate::Result<()> {
        let len = destination.len();
        self.check_range(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let destination = loader.settled(destination)?;
        let _held = self.ranges.read(self.whole_sectors(offset, len));
        load_encrypted((&*self.inner, self.segment.offset), &self.cipher, loader, offset, destination)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_a_range_and_end_at_multiples() {
        for range in [0..0, 0..512, 4096..CHUNK_BYTES, 512..3 * CHUNK_BYTES + 512, CHUNK_BYTES..2 * CHUNK_BYTES] {
            let all: Vec<_> = chunks(range.clone()).collect();
            let mut at = range.start;
            for chunk in &all {
                assert_eq!(chunk.start, at);
                assert!(chunk.end > chunk.start && chunk.end - chunk.start <= CHUNK_BYTES);
                assert!(chunk.end == range.end || chunk.end.is_multiple_of(CHUNK_BYTES));
                at = chunk.end;
            }
            assert_eq!(at, range.end);
        }
    }

    #[test]
    fn parts_of_a_request_are_whole_chunks() {
        let mib = 1 << 20;
        assert_eq!(part_bytes(8 * mib, 4), 2 * mib);
        assert!(part_bytes(8 * mib, 1) >= 8 * mib);
        assert_eq!(part_bytes(1, 0), CHUNK_BYTES, "never nothing");
        for len in [1, 513, 3 * mib + 1, 100 * mib + 7] {
            assert!(part_bytes(len, 3).is_multiple_of(CHUNK_BYTES));
        }
    }
}
