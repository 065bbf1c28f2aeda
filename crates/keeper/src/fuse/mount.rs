//! A FUSE mount whose root is a file: made, and greeted, by the process that outlives those who serve it.
//!
//! Every serving thread has a descriptor of its own (a clone), so that threads do not wait for each other in the kernel.
//! The kernel fails the requests of a descriptor that nobody holds any more. So the keeper makes all clones and holds them,
//! and a worker gets duplicates: requests that a killed worker has read stay where they are, until a successor has them sent
//! again.

use super::channel::{Channel, RequestBuffer};
use super::wire::Operation;
use crate::{Error, ErrorKind, Result};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `FUSE_DEV_IOC_CLONE`.
const CLONE: libc::c_ulong = 0x8004_e500;

/// A mounted file, and the descriptors by which it is served. It stays mounted when this is dropped, and fails every
/// request once all descriptors are closed.
#[derive(Debug)]
pub struct FileMount {
    at: PathBuf,
    descriptors: Vec<OwnedFd>,
    can_resend: bool,
}

impl FileMount {
    /// Mounts on an existing file, for `threads` serving threads, at least one.
    ///
    /// # Errors
    /// `Missing` without FUSE, `Permission` for others than root, and the system's.
    pub fn new(at: &Path, threads: usize) -> Result<Self> {
        let first = open_device()?;
        mount(at, &first)?;
        let greeted = greet(first.try_clone().map_err(|error| Error::system("duplicating a descriptor", error))?);
        let made = greeted.and_then(|can_resend| {
            let clones = (1..threads.max(1)).map(|_| clone(&first)).collect::<Result<Vec<_>>>()?;
            let descriptors = std::iter::once(OwnedFd::from(first)).chain(clones).collect();
            Ok(Self { at: at.to_owned(), descriptors, can_resend })
        });
        made.inspect_err(|_| {
            let _ = unmount(at);
        })
    }

    /// Where it is mounted.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Whether the kernel sends unanswered requests again (Linux 6.9). Without that, requests that a killed worker had read
    /// wait until the mount is aborted.
    pub fn can_resend(&self) -> bool {
        self.can_resend
    }

    /// The descriptors, one for each thread.
    pub fn into_descriptors(self) -> Vec<OwnedFd> {
        self.descriptors
    }
}

/// Takes a mounted file out of sight, at once; who has it open goes on.
///
/// # Errors
/// The system's.
pub fn unmount(at: &Path) -> Result<()> {
    unmount_with(at, libc::MNT_DETACH)
}

/// Fails every request of a mounted file, now and later, whoever holds its descriptors: for one whose worker waits for
/// itself. It is out of sight then, too.
///
/// # Errors
/// The system's.
pub fn abort(at: &Path) -> Result<()> {
    // A forced unmount ends the connection, and may then still find the file in use.
    let aborted = unmount_with(at, libc::MNT_FORCE);
    unmount_with(at, libc::MNT_DETACH).or(aborted)
}

fn unmount_with(at: &Path, flag: libc::c_int) -> Result<()> {
    let path = c_path(at)?;
    // SAFETY: the path is a C string.
    if unsafe { libc::umount2(path.as_ptr(), flag | libc::UMOUNT_NOFOLLOW) } == 0 {
        return Ok(());
    }
    Err(Error::last_os(format_args!("unmounting {}", at.display())))
}

fn open_device() -> Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Error::new(ErrorKind::Missing, "this kernel has no FUSE (/dev/fuse is missing); load the module fuse")
        }
        _ => Error::system("opening /dev/fuse", error),
    })
}

fn mount(at: &Path, device: &File) -> Result<()> {
    let path = c_path(at)?;
    let options = format!("fd={},rootmode=100600,user_id=0,group_id=0,default_permissions", device.as_raw_fd());
    let options = CString::new(options).map_err(|_| Error::new(ErrorKind::BadUse, "an option has a zero byte"))?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: all strings are C strings, which the call copies.
    let done = unsafe {
        libc::mount(c"bifolio".as_ptr(), path.as_ptr(), c"fuse.bifolio".as_ptr(), flags, options.as_ptr().cast())
    };
    if done == 0 {
        return Ok(());
    }
    Err(Error::last_os(format_args!("mounting a file on {}", at.display())))
}

/// Answers the kernel's greeting, which comes first; true if it can send requests again.
fn greet(device: File) -> Result<bool> {
    let channel = Channel::new(device.into());
    let mut buffer = RequestBuffer::new();
    loop {
        let Some(request) = channel.next(&mut buffer, Duration::ZERO)? else {
            return Err(Error::new(ErrorKind::Gone, "the file was unmounted before the kernel had greeted"));
        };
        if let Operation::Init { major, minor, readahead, flags } = request.operation {
            if major != 7 || minor < 31 {
                let detail =
                    format!("this kernel's FUSE is of version {major}.{minor}, and 7.31 is the oldest that serves");
                return Err(Error::new(ErrorKind::Missing, detail));
            }
            channel.answer_greeting(request.unique, minor, readahead, flags)?;
            return Ok(flags & super::wire::flag::RESEND != 0);
        }
        channel.fail(request.unique, libc::EIO)?;
    }
}

fn clone(first: &File) -> Result<OwnedFd> {
    let device = open_device()?;
    let number = first.as_raw_fd() as u32;
    // SAFETY: the call reads the number of an open descriptor.
    if unsafe { libc::ioctl(device.as_raw_fd(), CLONE, &raw const number) } == 0 {
        return Ok(device.into());
    }
    Err(Error::last_os("making a further descriptor of the mount"))
}

fn c_path(path: &Path) -> Result<CString> {
    let refused = |_| Error::new(ErrorKind::BadUse, format!("{} has a zero byte in its name", path.display()));
    CString::new(path.as_os_str().as_bytes()).map_err(refused)
}
