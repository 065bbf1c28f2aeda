//! The memory of one file's state: all that must be known to go on, without a pointer.
//!
//! A region is memory of the process where nobody keeps it for another one. Else it is a memfd, one for each file: it is
//! given back with the file, who may see the file may see it, and what is wrong with one is no other file's harm. Its
//! length is fixed and sealed, for all rows that there can ever be ([`super::layout`]); memory is taken by the row.
//!
//! One process uses a region at a time. What the next one finds is not believed: whether a page, a lease or a window can
//! be as it is written there is asked before anything stands on it.

use super::layout::{MAGIC, Part, VERSION, WORDS, Word, region_bytes};
use super::table::{Row, Table};
use crate::page::DEVICES_MAX;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// What keeps its length as it is, for good.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Which file it is: device, inode, and when it was made, as inodes are given again; 0 where the file system does not know.
pub(crate) type Identity = (u64, u64, u64);

#[derive(Debug)]
pub(crate) struct Region {
    /// None for memory of the process.
    file: Option<Arc<File>>,
    words: Table<u64>,
}

impl Region {
    /// Memory of the process, which ends with it.
    pub(crate) fn private(page_bytes: u64, devices: usize) -> io::Result<Self> {
        Self::begin(None, page_bytes, devices, (0, 0, 0))
    }

    /// Memory with a descriptor, of a file.
    pub(crate) fn shared(page_bytes: u64, devices: usize, file: Identity) -> io::Result<Self> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string.
        let raw = unsafe { libc::memfd_create(c"bifolio-state".as_ptr(), flags) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours alone.
        let memory = unsafe { File::from_raw_fd(raw) };
        memory.set_len(region_bytes(devices))?;
        // SAFETY: a plain call on an open descriptor.
        if unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, SEALS) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Self::begin(Some(Arc::new(memory)), page_bytes, devices, file)
    }

    fn begin(file: Option<Arc<File>>, page_bytes: u64, devices: usize, identity: Identity) -> io::Result<Self> {
        let mut region = Self { words: table(file.as_ref(), Part::Words), file };
        region.words.reserve(&(0..WORDS))?;
        for (word, value) in [
            (Word::Version, VERSION),
            (Word::PageBytes, page_bytes),
            (Word::Devices, devices as u64),
            (Word::Doubt, 1),
            (Word::FileDevice, identity.0),
            (Word::FileInode, identity.1),
            (Word::FileBorn, identity.2),
            // Last: what ends before is none.
            (Word::Magic, MAGIC),
        ] {
            region.set(word, value);
        }
        Ok(region)
    }

    /// One that another process has begun.
    ///
    /// # Errors
    /// Why it is none, or none of this version.
    pub(crate) fn open(descriptor: OwnedFd) -> Result<Self, String> {
        // SAFETY: takes no argument and changes nothing.
        let seals = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            return Err("it is no memory file (memfd) of a length that stays".to_owned());
        }
        let file = Arc::new(File::from(descriptor));
        let len = file.metadata().map_err(|error| error.to_string())?.len();
        if len < WORDS * size_of::<u64>() as u64 {
            return Err(format!("it has {len} bytes"));
        }
        let mut words = table(Some(&file), Part::Words);
        words.reserve(&(0..WORDS)).map_err(|error| error.to_string())?;
        let region = Self { file: Some(file), words };
        let (magic, version, devices) = (region.get(Word::Magic), region.get(Word::Version), region.devices());
        if magic != MAGIC {
            return Err("it does not begin as a region does".to_owned());
        }
        if version != VERSION {
            return Err(format!("its layout is version {version}, and this is {VERSION}"));
        }
        if devices == 0 || devices > DEVICES_MAX || len != region_bytes(devices) {
            return Err(format!("it has {len} bytes for {devices} devices"));
        }
        let page_bytes = region.get(Word::PageBytes);
        if !page_bytes.is_power_of_two() || !(4096..=bifolio_device::FRAME_BYTES).contains(&page_bytes) {
            return Err(format!("no file has pages of {page_bytes} bytes"));
        }
        Ok(region)
    }

    /// Whether it outlives the process, if somebody keeps its descriptor.
    pub(crate) fn is_shared(&self) -> bool {
        self.file.is_some()
    }

    /// For whoever keeps it.
    pub(crate) fn descriptor(&self) -> Option<io::Result<OwnedFd>> {
        self.file.as_ref().map(|file| file.try_clone().map(OwnedFd::from))
    }

    pub(crate) fn get(&self, word: Word) -> u64 {
        self.words.get(word as u64).copied().unwrap_or(0)
    }

    pub(crate) fn set(&mut self, word: Word, value: u64) {
        self.words.set(word as u64, value);
    }

    pub(crate) fn file(&self) -> Identity {
        (self.get(Word::FileDevice), self.get(Word::FileInode), self.get(Word::FileBorn))
    }

    pub(crate) fn devices(&self) -> usize {
        self.get(Word::Devices) as usize
    }

    /// One of its tables. Each has one owner.
    pub(crate) fn table<T: Row>(&self, part: Part) -> Table<T> {
        table(self.file.as_ref(), part)
    }
}

fn table<T: Row>(file: Option<&Arc<File>>, part: Part) -> Table<T> {
    Table::new(file.map(Arc::clone), part.offset(), part.rows_max())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_found_as_it_was_left() {
        let mut region = Region::shared(65_536, 2, (7, 8, 9)).unwrap();
        region.set(Word::Size, 5000);
        let mut sizes = region.table::<u32>(Part::Compared(1));
        sizes.reserve(&(100..103)).unwrap();
        sizes.set(101, 9);
        let descriptor = region.descriptor().unwrap().unwrap();
        drop((region, sizes));
        let region = Region::open(descriptor).unwrap();
        assert_eq!((region.get(Word::Size), region.file(), region.devices()), (5000, (7, 8, 9), 2));
        let mut sizes = region.table::<u32>(Part::Compared(1));
        sizes.reserve(&(100..103)).unwrap();
        assert_eq!(sizes.rows_in(&(0..1000)).map(|row| *sizes.get(row).unwrap()).collect::<Vec<_>>(), [0, 9, 0]);
    }

    #[test]
    fn what_is_no_region_is_refused() {
        let why = |descriptor: OwnedFd| Region::open(descriptor).unwrap_err();
        assert!(why(tempfile::tempfile().unwrap().into()).contains("memory file"));
        let other = |word: Word, value: u64| {
            let mut region = Region::shared(4096, 2, (0, 0, 0)).unwrap();
            region.set(word, value);
            why(region.descriptor().unwrap().unwrap())
        };
        assert!(other(Word::Magic, 1).contains("begin"));
        let version = VERSION + 1;
        assert!(other(Word::Version, version).contains(&format!("version {version}")));
        for devices in [0, 3, 65, u64::MAX] {
            assert!(other(Word::Devices, devices).contains("devices"));
        }
        for bytes in [0, 1, 5000, 1 << 40] {
            assert!(other(Word::PageBytes, bytes).contains("pages"));
        }
    }
}
