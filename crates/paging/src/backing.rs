//! The backing file: where content is when device memory is not.
//!
//! Requests go past the system's page cache where the file system has direct I/O: a swap device that needed memory to
//! write memory out would wait for itself. What is not aligned to a page goes through a buffer of ours. A file system
//! without direct I/O (an old tmpfs) is used through the page cache, and [`Backing::why_cached`] says so.
//!
//! Who opens one claims it, so that a second cache on it is refused.

use crate::buffers::Buffers;
use crate::header::HEADER_BYTES;
use crate::pages::{BLOCK_BYTES, PAGE_BYTES};
use bifolio_block::{BlockDevice, Error, ErrorKind, FileDevice, Geometry, Result};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Threads that can wait for unaligned requests at the same time.
const BUFFERS: usize = 4;

/// An open backing file.
#[derive(Debug)]
pub struct Backing {
    device: FileDevice,
    direct: Option<File>,
    buffers: Buffers,
}

impl Backing {
    /// Opens and claims a file, or a block device.
    ///
    /// # Errors
    /// `InUse` if another cache has it, and those of opening.
    pub fn open(path: &Path) -> Result<Self> {
        let device = FileDevice::open(path, true)?;
        device.claim()?;
        Ok(Self::with(device, path))
    }

    /// The same for a descriptor that a keeper has claimed.
    ///
    /// # Errors
    /// Those of opening.
    pub fn adopt(file: File, path: &Path) -> Result<Self> {
        let device = FileDevice::of_file(file, path, true)?;
        Ok(Self::with(device, path))
    }

    fn with(device: FileDevice, path: &Path) -> Self {
        // By the open file's own name, as the path may be another file's by now.
        let own = format!("/proc/self/fd/{}", device.file().as_raw_fd());
        let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(own);
        let _ = path;
        Self { device, direct: direct.ok(), buffers: Buffers::new(BUFFERS) }
    }

    /// Makes a file with room for `content` bytes, every block of it allocated, and claims it. An existing one is grown
    /// where it is shorter, and cut where it is longer.
    ///
    /// # Errors
    /// `NoSpace`, `InUse`, and the system's.
    pub fn create(path: &Path, content: u64) -> Result<Self> {
        let about = |error| Error::writing(path.display(), "making the backing file", error);
        let file = match path.metadata() {
            // One that the system uses (a mount, an array, swap) is refused by that.
            Ok(found) if found.file_type().is_block_device() => FileDevice::open(path, true)?.into_file(),
            _ => {
                let file =
                    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
                file.map_err(about)?
            }
        };
        let len = content + HEADER_BYTES;
        // Whoever has claimed it must not have it cut under it.
        FileDevice::of_file(file.try_clone().map_err(about)?, path, true)?.claim()?;
        if file.metadata().map_err(about)?.is_file() {
            file.set_len(len).map_err(about)?;
            allocate(&file, len).map_err(|error| {
                Error::writing(path.display(), format!("allocating {len} bytes for the backing file"), error)
            })?;
            file.sync_all().map_err(about)?;
        }
        Self::adopt(file, path)
    }

    /// The open file, whose claim stays with its descriptors.
    pub fn file(&self) -> &File {
        self.device.file()
    }

    /// Why requests go through the page cache, if they do.
    pub fn why_cached(&self) -> Option<&'static str> {
        self.direct
            .is_none()
            .then_some("the backing's file system has no direct I/O, so writes need memory of the system")
    }

    fn can_be_direct(offset: u64, buffer: *const u8, len: usize) -> bool {
        (offset | len as u64 | buffer as u64).is_multiple_of(PAGE_BYTES)
    }

    fn doing(what: &str, len: usize, offset: u64) -> String {
        format!("{what} {len} bytes at offset {offset}")
    }
}

/// Allocates without holes; where the file system cannot, zeroes are written.
fn allocate(file: &File, len: u64) -> io::Result<()> {
    // SAFETY: takes no memory; the descriptor is open.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as i64) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if !matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) {
        return Err(error);
    }
    let zeroes = vec![0; 1 << 20];
    (0..len).step_by(1 << 20).try_for_each(|at| {
        let part = (len - at).min(1 << 20) as usize;
        file.write_all_at(&zeroes[..part], at)
    })
}

impl BlockDevice for Backing {
    fn name(&self) -> String {
        self.device.name()
    }

    fn geometry(&self) -> Geometry {
        Geometry { block_bytes: PAGE_BYTES, ..self.device.geometry() }
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.check_range(offset, buffer.len() as u64)?;
        let Some(direct) = &self.direct else { return self.device.read(offset, buffer) };
        let len = buffer.len();
        let failed = |error: io::Error| Error::system(self.name(), Self::doing("reading", len, offset), error);
        if Self::can_be_direct(offset, buffer.as_ptr(), len) {
            return direct.read_exact_at(buffer, offset).map_err(failed);
        }
        if !(offset | len as u64).is_multiple_of(PAGE_BYTES) {
            return self.device.read(offset, buffer);
        }
        let mut lent = self.buffers.take();
        for (part, at) in buffer.chunks_mut(BLOCK_BYTES as usize).zip((offset..).step_by(BLOCK_BYTES as usize)) {
            let own = &mut lent.bytes()[..part.len()];
            direct.read_exact_at(own, at).map_err(failed)?;
            part.copy_from_slice(own);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_range(offset, data.len() as u64)?;
        let Some(direct) = &self.direct else { return self.device.write(offset, data) };
        let failed = |error: io::Error| Error::writing(self.name(), Self::doing("writing", data.len(), offset), error);
        if Self::can_be_direct(offset, data.as_ptr(), data.len()) {
            return direct.write_all_at(data, offset).map_err(failed);
        }
        if !(offset | data.len() as u64).is_multiple_of(PAGE_BYTES) {
            return self.device.write(offset, data);
        }
        let mut lent = self.buffers.take();
        for (part, at) in data.chunks(BLOCK_BYTES as usize).zip((offset..).step_by(BLOCK_BYTES as usize)) {
            let own = &mut lent.bytes()[..part.len()];
            own.copy_from_slice(part);
            direct.write_all_at(own, at).map_err(failed)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    /// Its room stays allocated: a write that had to look for blocks would need memory when there is none.
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check_range(offset, len)
    }
}

/// An error for a size that no backing can have.
pub(crate) fn check_content(name: &str, content: u64) -> Result<()> {
    let blocks_max = u64::from(u32::MAX - 1);
    if content == 0 || !content.is_multiple_of(PAGE_BYTES) || content / BLOCK_BYTES >= blocks_max {
        let detail = format!("{content} bytes cannot be its size; choose a multiple of {PAGE_BYTES}, below 256 TiB");
        return Err(Error::new(ErrorKind::BadUse, name, detail));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_new_backing_has_no_holes_and_a_second_cache_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("swap.img");
        let backing = Backing::create(&path, 1 << 20).unwrap();
        let there = path.metadata().unwrap();
        assert_eq!(there.len(), (1 << 20) + HEADER_BYTES);
        assert!(there.blocks() * 512 >= there.len(), "{} blocks", there.blocks());
        assert_eq!(there.mode() & 0o777, 0o600);
        assert_eq!(Backing::open(&path).unwrap_err().kind(), ErrorKind::InUse);
        assert_eq!(Backing::create(&path, 1 << 19).unwrap_err().kind(), ErrorKind::InUse);
        assert_eq!(path.metadata().unwrap().len(), (1 << 20) + HEADER_BYTES, "it was not cut");
        // The claim goes with the last descriptor, as a keeper's does.
        let held = backing.file().try_clone().unwrap();
        drop(backing);
        assert_eq!(Backing::open(&path).unwrap_err().kind(), ErrorKind::InUse);
        drop(held);
        Backing::open(&path).unwrap();
    }

    #[test]
    fn any_alignment_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let backing = Backing::create(&folder.path().join("swap.img"), 1 << 20).unwrap();
        let draw = &mut fastrand::Rng::with_seed(bifolio_testing::seed());
        let mut oracle = vec![0; (1 << 20) + HEADER_BYTES as usize];
        for _ in 0..300 {
            let unit = [1, 512, PAGE_BYTES][draw.usize(..3)];
            let offset = draw.u64(..(1 << 20) / unit) * unit;
            let len = (draw.u64(..200_000) / unit * unit).min(oracle.len() as u64 - offset) as usize;
            let range = offset as usize..offset as usize + len;
            if draw.bool() {
                draw.fill(&mut oracle[range.clone()]);
                backing.write(offset, &oracle[range]).unwrap();
            } else {
                let mut seen = vec![0; len];
                backing.read(offset, &mut seen).unwrap();
                assert!(seen == oracle[range]);
            }
        }
        assert_eq!(backing.read(oracle.len() as u64, &mut [0]).unwrap_err().kind(), ErrorKind::BadRange);
    }
}
