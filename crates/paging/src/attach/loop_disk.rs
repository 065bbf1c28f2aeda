//! A loop device (`drivers/block/loop.c`, `include/uapi/linux/loop.h`): on every kernel.
//!
//! It reads and writes the served file directly, several requests at a time, in sectors of 4 KiB.

use super::{Attachment, Disk, DiskServer, Served};
use bifolio_block::{Error, ErrorKind, Result};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const CONTROL: &str = "/dev/loop-control";
/// `LOOP_CTL_GET_FREE`, `LOOP_CONFIGURE`, `LOOP_CLR_FD`, `LOOP_GET_STATUS64`.
const GET_FREE: libc::c_ulong = 0x4C82;
const CONFIGURE: libc::c_ulong = 0x4C0A;
const CLEAR: libc::c_ulong = 0x4C01;
const GET_STATUS: libc::c_ulong = 0x4C05;
/// `LO_FLAGS_AUTOCLEAR`, `LO_FLAGS_DIRECT_IO`.
const AUTOCLEAR: u32 = 4;
const DIRECT_IO: u32 = 16;
/// Whoever is quicker takes a free device; then another one is asked for.
const TRIES: u32 = 32;
const NAME_BYTES: usize = 64;

/// Loop devices.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoopDisk;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME_BYTES],
    crypt_name: [u8; NAME_BYTES],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

impl Attachment for LoopDisk {
    fn name(&self) -> &'static str {
        "loop"
    }

    fn why_not(&self) -> Option<String> {
        let lacks = |path: &str| !Path::new(path).exists();
        if lacks(CONTROL) {
            return Some(format!("this kernel has no loop devices ({CONTROL} is missing; load the module loop)"));
        }
        lacks("/dev/fuse").then(|| "this kernel has no FUSE (/dev/fuse is missing; load the module fuse)".to_owned())
    }

    fn server(&self) -> Option<&'static dyn DiskServer> {
        None
    }

    fn attach(&self, served: &Served, stays: bool) -> Result<Disk> {
        let served = &served.file;
        let about = |doing: &str, error| Error::system(served.display(), doing, error);
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(served);
        let file = file.map_err(|error| about("opening it for a loop device", error))?;
        let control = File::options().read(true).write(true).open(CONTROL);
        let control = control.map_err(|error| about("opening /dev/loop-control", error))?;
        for _ in 0..TRIES {
            // SAFETY: takes no memory.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE) };
            if number < 0 {
                return Err(about("asking for a free loop device", io::Error::last_os_error()));
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let disk = File::options().read(true).write(true).open(&path);
            let disk = disk.map_err(|error| about(&format!("opening {}", path.display()), error))?;
            let mut config =
                Config { fd: file.as_raw_fd() as u32, block_size: 4096, info: Info::EMPTY, reserved: [0; 8] };
            config.info.flags = if stays { DIRECT_IO } else { AUTOCLEAR | DIRECT_IO };
            let name = served.as_os_str().as_bytes();
            let len = name.len().min(NAME_BYTES - 1);
            config.info.file_name[..len].copy_from_slice(&name[..len]);
            // SAFETY: the structure is the kernel's, and is read only.
            if unsafe { libc::ioctl(disk.as_raw_fd(), CONFIGURE, &raw const config) } == 0 {
                return Self::check_direct(&disk, &path).map(|()| Disk { path, _open: disk });
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EBUSY) {
                return Err(about(&format!("making {} of it", path.display()), error));
            }
        }
        Err(Error::new(ErrorKind::InUse, served.display(), "others take every free loop device first; try again"))
    }

    fn detach(&self, disk: &Path, served: &Served) -> Result<()> {
        let served = &served.file;
        let Ok(file) = File::options().read(true).write(true).open(disk) else { return Ok(()) };
        // It may be somebody else's by now.
        let Some(info) = Info::of(&file) else { return Ok(()) };
        let name = served.as_os_str().as_bytes();
        if !info.file_name.starts_with(&name[..name.len().min(NAME_BYTES - 1)]) {
            return Ok(());
        }
        // SAFETY: takes no memory.
        if unsafe { libc::ioctl(file.as_raw_fd(), CLEAR) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(()),
            error => Err(Error::system(disk.display(), "taking the loop device apart", error)),
        }
    }
}

impl LoopDisk {
    /// A loop device that went through the page cache would need memory to write memory out.
    fn check_direct(disk: &File, path: &Path) -> Result<()> {
        if Info::of(disk).is_some_and(|info| info.flags & DIRECT_IO != 0) {
            return Ok(());
        }
        let detail = "the kernel made a loop device without direct I/O, on which swap could wait for itself";
        Err(Error::new(ErrorKind::Missing, path.display(), detail))
    }
}

impl Info {
    const EMPTY: Self = Self {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        sizelimit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; NAME_BYTES],
        crypt_name: [0; NAME_BYTES],
        encrypt_key: [0; 32],
        init: [0; 2],
    };

    /// What a loop device is made of; none for a free one.
    fn of(disk: &File) -> Option<Self> {
        let mut info = Self::EMPTY;
        // SAFETY: the structure is the kernel's, which fills it.
        (unsafe { libc::ioctl(disk.as_raw_fd(), GET_STATUS, &raw mut info) } == 0).then_some(info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!((size_of::<Info>(), size_of::<Config>()), (232, 304));
    }

    #[test]
    fn a_file_becomes_a_disk_and_goes_when_nobody_uses_it() {
        if let Some(why) = LoopDisk.why_not() {
            return bifolio_testing::skip(why);
        }
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let file = folder.path().join("disk");
        std::fs::write(&file, bifolio_testing::noise(1 << 20, 3)).unwrap();
        let served = |file: &Path| Served { file: file.to_owned(), disk: None };
        let disk = match LoopDisk.attach(&served(&file), false) {
            Ok(disk) => disk,
            Err(error) => return bifolio_testing::skip(format!("loop devices cannot be made here: {error}")),
        };
        assert_eq!(std::fs::read(&disk.path).unwrap(), std::fs::read(&file).unwrap());
        LoopDisk.detach(&disk.path, &served(Path::new("/another/file"))).unwrap();
        assert!(Info::of(&File::open(&disk.path).unwrap()).is_some(), "another one's is left alone");
        let path = disk.path.clone();
        drop(disk);
        bifolio_testing::until("the loop device goes", || {
            File::open(&path).map_or(true, |free| Info::of(&free).is_none())
        });
        LoopDisk.detach(&path, &served(&file)).unwrap();
    }
}
