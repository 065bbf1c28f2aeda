//! System calls that take a directory's descriptor and one name, and never follow a symbolic link.

use crate::holes::Sought;
use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

/// Descriptors that are taken not to be limited: as many as Linux lets a process have without being told otherwise.
const DESCRIPTORS_MAX: u64 = 1 << 20;

/// Times to set: access, modification.
pub(crate) type Times = [libc::timespec; 2];

fn name(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Opens an entry; `O_NOFOLLOW` and `O_CLOEXEC` are added.
pub(crate) fn open(at: BorrowedFd<'_>, entry: &[u8], flags: i32, mode: u32) -> io::Result<OwnedFd> {
    let entry = name(entry)?;
    let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY;
    loop {
        // SAFETY: the name ends with a zero byte.
        match check(unsafe { libc::openat(at.as_raw_fd(), entry.as_ptr(), flags, mode) }) {
            // SAFETY: the descriptor is new, and nobody else has it.
            Ok(fd) => return Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The state of an entry.
pub(crate) fn stat(at: BorrowedFd<'_>, entry: &[u8]) -> io::Result<libc::stat> {
    stat_with(at.as_raw_fd(), &name(entry)?, libc::AT_SYMLINK_NOFOLLOW)
}

/// The state of what a descriptor stands for.
pub(crate) fn stat_of(fd: BorrowedFd<'_>) -> io::Result<libc::stat> {
    stat_with(fd.as_raw_fd(), c"", libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW)
}

fn stat_with(at: RawFd, entry: &CStr, flags: i32) -> io::Result<libc::stat> {
    let mut state = MaybeUninit::uninit();
    // SAFETY: the name ends with a zero byte, and there is room for the state.
    check(unsafe { libc::fstatat(at, entry.as_ptr(), state.as_mut_ptr(), flags) })?;
    // SAFETY: the call succeeded, so it has written the state.
    Ok(unsafe { state.assume_init() })
}

/// Makes a directory.
pub(crate) fn mkdir(at: BorrowedFd<'_>, entry: &[u8], mode: u32) -> io::Result<()> {
    let entry = name(entry)?;
    // SAFETY: the name ends with a zero byte.
    check(unsafe { libc::mkdirat(at.as_raw_fd(), entry.as_ptr(), mode) }).map(drop)
}

/// Makes a FIFO, a socket, a device or an empty file.
pub(crate) fn mknod(at: BorrowedFd<'_>, entry: &[u8], mode: u32, device: u64) -> io::Result<()> {
    let entry = name(entry)?;
    // SAFETY: the name ends with a zero byte.
    check(unsafe { libc::mknodat(at.as_raw_fd(), entry.as_ptr(), mode, device) }).map(drop)
}

/// Removes an entry: a directory with `is_dir`, else anything else.
pub(crate) fn unlink(at: BorrowedFd<'_>, entry: &[u8], is_dir: bool) -> io::Result<()> {
    let entry = name(entry)?;
    let flags = if is_dir { libc::AT_REMOVEDIR } else { 0 };
    // SAFETY: the name ends with a zero byte.
    check(unsafe { libc::unlinkat(at.as_raw_fd(), entry.as_ptr(), flags) }).map(drop)
}

/// Renames an entry, with the flags of `renameat2`.
pub(crate) fn rename(from: (BorrowedFd<'_>, &[u8]), to: (BorrowedFd<'_>, &[u8]), flags: u32) -> io::Result<()> {
    let (from_name, to_name) = (name(from.1)?, name(to.1)?);
    let (from, to) = (from.0.as_raw_fd(), to.0.as_raw_fd());
    // SAFETY: the names end with zero bytes.
    check(unsafe { libc::renameat2(from, from_name.as_ptr(), to, to_name.as_ptr(), flags) }).map(drop)
}

/// Makes another name for a file.
pub(crate) fn link(from: (BorrowedFd<'_>, &[u8]), to: (BorrowedFd<'_>, &[u8])) -> io::Result<()> {
    let (from_name, to_name) = (name(from.1)?, name(to.1)?);
    let (from, to) = (from.0.as_raw_fd(), to.0.as_raw_fd());
    // SAFETY: the names end with zero bytes. Without flags a symbolic link is not followed.
    check(unsafe { libc::linkat(from, from_name.as_ptr(), to, to_name.as_ptr(), 0) }).map(drop)
}

/// Makes a symbolic link.
pub(crate) fn symlink(target: &[u8], at: BorrowedFd<'_>, entry: &[u8]) -> io::Result<()> {
    let (target, entry) = (name(target)?, name(entry)?);
    // SAFETY: the names end with zero bytes.
    check(unsafe { libc::symlinkat(target.as_ptr(), at.as_raw_fd(), entry.as_ptr()) }).map(drop)
}

/// The target of a symbolic link.
pub(crate) fn readlink(at: BorrowedFd<'_>, entry: &[u8]) -> io::Result<Vec<u8>> {
    let entry = name(entry)?;
    let mut target = vec![0_u8; libc::PATH_MAX as usize];
    // SAFETY: the name ends with a zero byte, and the room is given with its length.
    let len = unsafe { libc::readlinkat(at.as_raw_fd(), entry.as_ptr(), target.as_mut_ptr().cast(), target.len()) };
    target.truncate(usize::try_from(len).map_err(|_| io::Error::last_os_error())?);
    Ok(target)
}

/// Changes the mode of what a descriptor stands for, also of one that was opened with `O_PATH`.
pub(crate) fn chmod(fd: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    let path = name(format!("/proc/self/fd/{}", fd.as_raw_fd()).as_bytes())?;
    // SAFETY: the path ends with a zero byte.
    check(unsafe { libc::fchmodat(libc::AT_FDCWD, path.as_ptr(), mode, 0) }).map(drop)
}

/// Changes the owner of what a descriptor stands for.
pub(crate) fn chown(fd: BorrowedFd<'_>, owner: Option<u32>, group: Option<u32>) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW;
    let (owner, group) = (owner.unwrap_or(u32::MAX), group.unwrap_or(u32::MAX));
    // SAFETY: the name ends with a zero byte.
    check(unsafe { libc::fchownat(fd.as_raw_fd(), c"".as_ptr(), owner, group, flags) }).map(drop)
}

/// Changes the owner of an entry.
pub(crate) fn chown_entry(at: BorrowedFd<'_>, entry: &[u8], owner: u32, group: Option<u32>) -> io::Result<()> {
    let entry = name(entry)?;
    let group = group.unwrap_or(u32::MAX);
    // SAFETY: the name ends with a zero byte.
    check(unsafe { libc::fchownat(at.as_raw_fd(), entry.as_ptr(), owner, group, libc::AT_SYMLINK_NOFOLLOW) }).map(drop)
}

/// Changes the times of what a descriptor stands for.
pub(crate) fn utimens(fd: BorrowedFd<'_>, times: &Times) -> io::Result<()> {
    // SAFETY: the name ends with a zero byte, and there are two times.
    check(unsafe { libc::utimensat(fd.as_raw_fd(), c"".as_ptr(), times.as_ptr(), libc::AT_EMPTY_PATH) }).map(drop)
}

/// Makes a directory's entries durable. `fd` is one that can be read.
pub(crate) fn sync(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes no memory.
    check(unsafe { libc::fsync(fd.as_raw_fd()) }).map(drop)
}

/// Where data begins, or a hole, from an offset on; none behind the last data. Where the file system does not say,
/// everything is data.
pub(crate) fn seek(fd: BorrowedFd<'_>, sought: Sought, from: u64) -> io::Result<Option<u64>> {
    let whence = match sought {
        Sought::Data => libc::SEEK_DATA,
        Sought::Hole => libc::SEEK_HOLE,
    };
    // SAFETY: takes no memory.
    let at = unsafe { libc::lseek(fd.as_raw_fd(), from as i64, whence) };
    if at >= 0 {
        return Ok(Some(at as u64));
    }
    let error = io::Error::last_os_error();
    match (error.raw_os_error(), sought) {
        (Some(libc::ENXIO), _) | (Some(libc::EINVAL | libc::EOPNOTSUPP), Sought::Hole) => Ok(None),
        (Some(libc::EINVAL | libc::EOPNOTSUPP), Sought::Data) => Ok(Some(from)),
        _ => Err(error),
    }
}

/// The state of a file system.
pub(crate) fn statvfs(fd: BorrowedFd<'_>) -> io::Result<libc::statvfs> {
    let mut state = MaybeUninit::uninit();
    // SAFETY: there is room for the state.
    check(unsafe { libc::fstatvfs(fd.as_raw_fd(), state.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so it has written the state.
    Ok(unsafe { state.assume_init() })
}

/// An entry of a directory.
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) inode: u64,
    /// `DT_REG` and so on; `DT_UNKNOWN` where the file system does not say.
    pub(crate) kind: u8,
}

/// A directory's entries, without `.` and `..`. `fd` may be one that was opened with `O_PATH`.
pub(crate) fn entries(fd: BorrowedFd<'_>) -> io::Result<Vec<Entry>> {
    struct Stream(NonNull<libc::DIR>);
    impl Drop for Stream {
        fn drop(&mut self) {
            // SAFETY: the stream is open, and nobody else has it.
            unsafe { libc::closedir(self.0.as_ptr()) };
        }
    }
    let readable = open(fd, b".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    // SAFETY: the descriptor is a directory's that can be read.
    let stream = NonNull::new(unsafe { libc::fdopendir(readable.as_raw_fd()) }).ok_or_else(io::Error::last_os_error)?;
    // From now on it is the stream's.
    std::mem::forget(readable);
    let stream = Stream(stream);
    let mut entries = vec![];
    loop {
        // SAFETY: the location of the thread's error number is always there.
        unsafe { *libc::__errno_location() = 0 };
        // SAFETY: the stream is open and used by this thread alone.
        let entry = unsafe { libc::readdir(stream.0.as_ptr()) };
        if entry.is_null() {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(0) { Ok(entries) } else { Err(error) };
        }
        // SAFETY: the entry is there until the next call, and its name ends with a zero byte. The name may be
        // longer than the array that the struct declares, so no reference to the struct is made.
        let name = unsafe { CStr::from_ptr((&raw const (*entry).d_name).cast()) }.to_bytes();
        if name != b"." && name != b".." {
            // SAFETY: as above.
            let (inode, kind) = unsafe { ((*entry).d_ino, (*entry).d_type) };
            entries.push(Entry { name: name.to_vec(), inode, kind });
        }
    }
}

/// Whether the process may do what only the administrator may.
pub(crate) fn is_root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Lets the process have as many descriptors as it may, and says how many that are. That it stays as it was is no
/// failure.
pub(crate) fn raise_file_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: there is room for the limit.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return DESCRIPTORS_MAX;
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: the limit is one that was read.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0 {
        limit = raised;
    }
    limit.rlim_cur.min(DESCRIPTORS_MAX)
}
