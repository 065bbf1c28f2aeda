//! System calls that take descriptors and single names, and never follow a symbolic link.
//!
//! A descriptor that was opened with `O_PATH` keeps a file without any right to it. What such descriptors cannot be used
//! for goes by their names in `/proc/self/fd`, which lead to exactly that file, whatever has become of its name.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Times to set: access, modification.
pub(crate) type Times = [libc::timespec; 2];

/// The longest handle of a file (`MAX_HANDLE_SZ`).
pub(crate) const HANDLE_BYTES_MAX: usize = 128;

fn name(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_len(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// The name in `/proc` of what a descriptor stands for.
fn proc_name(fd: BorrowedFd<'_>) -> CString {
    CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("digits have no zero byte")
}

/// Opens an entry; `O_NOFOLLOW` and `O_CLOEXEC` are added.
pub(crate) fn open(at: BorrowedFd<'_>, entry: &[u8], flags: i32, mode: u32) -> io::Result<OwnedFd> {
    let entry = name(entry)?;
    let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY;
    // SAFETY: the name ends with a zero byte.
    let fd = retried(|| check(unsafe { libc::openat(at.as_raw_fd(), entry.as_ptr(), flags, mode) }))?;
    // SAFETY: the descriptor is new, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Keeps what an entry stands for, without opening it.
pub(crate) fn keep(at: BorrowedFd<'_>, entry: &[u8]) -> io::Result<OwnedFd> {
    open(at, entry, libc::O_PATH, 0)
}

/// Opens what a descriptor keeps.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: i32) -> io::Result<OwnedFd> {
    let path = proc_name(fd);
    let flags = (flags | libc::O_CLOEXEC | libc::O_NOCTTY) & !libc::O_NOFOLLOW;
    // SAFETY: the path ends with a zero byte.
    let fd = retried(|| check(unsafe { libc::open(path.as_ptr(), flags) }))?;
    // SAFETY: the descriptor is new, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// For what a descriptor was opened (`O_ACCMODE`); none for one that only keeps a place.
pub(crate) fn access_of(fd: BorrowedFd<'_>) -> Option<i32> {
    // SAFETY: takes and returns numbers.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    (flags >= 0 && flags & libc::O_PATH == 0).then_some(flags & libc::O_ACCMODE)
}

/// Whether a file is open in a way that it cannot be opened again, as its mode was only for later. It is not opened for it.
pub(crate) fn is_closed_to(fd: BorrowedFd<'_>) -> bool {
    let is_file = stat(fd).is_ok_and(|state| state.st_mode & libc::S_IFMT == libc::S_IFREG);
    let mode = match access_of(fd) {
        Some(libc::O_RDONLY) => libc::R_OK,
        Some(libc::O_WRONLY) => libc::W_OK,
        Some(_) => libc::R_OK | libc::W_OK,
        None => return false,
    };
    let path = proc_name(fd);
    // SAFETY: the path ends with a zero byte.
    let may = check(unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), mode, libc::AT_EACCESS) });
    is_file && may.is_err_and(|error| error.raw_os_error() == Some(libc::EACCES))
}

/// The number of the file system that a path leads to, which is not asked for anything.
pub(crate) fn device_of(path: &Path) -> io::Result<(u32, u32)> {
    let path = name(path.as_os_str().as_bytes())?;
    let mut state = MaybeUninit::<libc::statx>::uninit();
    let flags = libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    // SAFETY: the path ends with a zero byte, and there is room for the state.
    check(unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, 0, state.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so it has written the state.
    let state = unsafe { state.assume_init() };
    Ok((state.stx_dev_major, state.stx_dev_minor))
}

fn retried<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// The state of what a descriptor stands for.
pub(crate) fn stat(fd: BorrowedFd<'_>) -> io::Result<libc::stat> {
    let mut state = MaybeUninit::uninit();
    let flags = libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: the name ends with a zero byte, and there is room for the state.
    check(unsafe { libc::fstatat(fd.as_raw_fd(), c"".as_ptr(), state.as_mut_ptr(), flags) })?;
    // SAFETY: the call succeeded, so it has written the state.
    Ok(unsafe { state.assume_init() })
}

/// Which file an entry stands for, if it is there: the number of its inode.
pub(crate) fn inode_of(at: BorrowedFd<'_>, entry: &[u8]) -> io::Result<u64> {
    let entry = name(entry)?;
    let mut state = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the name ends with a zero byte, and there is room for the state.
    check(unsafe { libc::fstatat(at.as_raw_fd(), entry.as_ptr(), state.as_mut_ptr(), libc::AT_SYMLINK_NOFOLLOW) })?;
    // SAFETY: the call succeeded, so it has written the state.
    Ok(unsafe { state.assume_init() }.st_ino)
}

/// What finds a file again as long as it exists, whatever its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileHandle {
    pub(crate) kind: i32,
    pub(crate) bytes: Vec<u8>,
}

#[repr(C)]
struct RawHandle {
    len: u32,
    kind: i32,
    bytes: [u8; HANDLE_BYTES_MAX],
}

/// A file's handle, and the number of the mount that it is on. Not every file system has them.
pub(crate) fn handle(fd: BorrowedFd<'_>) -> io::Result<(FileHandle, i32)> {
    let mut raw = RawHandle { len: HANDLE_BYTES_MAX as u32, kind: 0, bytes: [0; HANDLE_BYTES_MAX] };
    let mut mount = 0;
    let at = (&raw mut raw).cast::<libc::file_handle>();
    // SAFETY: the name ends with a zero byte, and the handle has the room that its length says.
    check(unsafe { libc::name_to_handle_at(fd.as_raw_fd(), c"".as_ptr(), at, &raw mut mount, libc::AT_EMPTY_PATH) })?;
    Ok((FileHandle { kind: raw.kind, bytes: raw.bytes[..raw.len as usize].to_vec() }, mount))
}

/// Keeps a file by its handle; `mount` is an open folder of its mount.
pub(crate) fn keep_by_handle(mount: BorrowedFd<'_>, handle: &FileHandle) -> io::Result<OwnedFd> {
    let mut raw = RawHandle { len: handle.bytes.len() as u32, kind: handle.kind, bytes: [0; HANDLE_BYTES_MAX] };
    raw.bytes[..handle.bytes.len()].copy_from_slice(&handle.bytes);
    let at = (&raw mut raw).cast::<libc::file_handle>();
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the handle has as many bytes as its length says.
    let fd = check(unsafe { libc::open_by_handle_at(mount.as_raw_fd(), at, flags) })?;
    // SAFETY: the descriptor is new, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
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

/// Makes another name for a file that a descriptor keeps.
pub(crate) fn link(file: BorrowedFd<'_>, at: BorrowedFd<'_>, entry: &[u8]) -> io::Result<()> {
    let (path, entry) = (proc_name(file), name(entry)?);
    let (at, flags) = (at.as_raw_fd(), libc::AT_SYMLINK_FOLLOW);
    // SAFETY: the names end with zero bytes. What is followed is the name in `/proc` and no further one.
    check(unsafe { libc::linkat(libc::AT_FDCWD, path.as_ptr(), at, entry.as_ptr(), flags) }).map(drop)
}

/// Makes a symbolic link.
pub(crate) fn symlink(target: &[u8], at: BorrowedFd<'_>, entry: &[u8]) -> io::Result<()> {
    let (target, entry) = (name(target)?, name(entry)?);
    // SAFETY: the names end with zero bytes.
    check(unsafe { libc::symlinkat(target.as_ptr(), at.as_raw_fd(), entry.as_ptr()) }).map(drop)
}

/// The target of a symbolic link that a descriptor keeps.
pub(crate) fn readlink(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut target = vec![0_u8; libc::PATH_MAX as usize];
    let room = target.as_mut_ptr().cast();
    // SAFETY: the name ends with a zero byte, and the room is given with its length.
    let len = check_len(unsafe { libc::readlinkat(fd.as_raw_fd(), c"".as_ptr(), room, target.len()) })?;
    target.truncate(len);
    Ok(target)
}

/// Changes a mode.
pub(crate) fn chmod(fd: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    let path = proc_name(fd);
    // SAFETY: the path ends with a zero byte.
    check(unsafe { libc::fchmodat(libc::AT_FDCWD, path.as_ptr(), mode, 0) }).map(drop)
}

/// Changes an owner.
pub(crate) fn chown(fd: BorrowedFd<'_>, owner: Option<u32>, group: Option<u32>) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW;
    let (owner, group) = (owner.unwrap_or(u32::MAX), group.unwrap_or(u32::MAX));
    // SAFETY: the name ends with a zero byte.
    check(unsafe { libc::fchownat(fd.as_raw_fd(), c"".as_ptr(), owner, group, flags) }).map(drop)
}

/// Changes times.
pub(crate) fn set_times(fd: BorrowedFd<'_>, times: &Times) -> io::Result<()> {
    // SAFETY: the name ends with a zero byte, and there are two times.
    check(unsafe { libc::utimensat(fd.as_raw_fd(), c"".as_ptr(), times.as_ptr(), libc::AT_EMPTY_PATH) }).map(drop)
}

/// Changes the size of an open file.
pub(crate) fn truncate(fd: BorrowedFd<'_>, size: u64) -> io::Result<()> {
    let size = i64::try_from(size).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: takes no memory.
    retried(|| check(unsafe { libc::ftruncate(fd.as_raw_fd(), size) })).map(drop)
}

/// Makes an open file or directory durable.
pub(crate) fn sync(fd: BorrowedFd<'_>, is_data_only: bool) -> io::Result<()> {
    let fd = fd.as_raw_fd();
    // SAFETY: takes no memory.
    check(unsafe { if is_data_only { libc::fdatasync(fd) } else { libc::fsync(fd) } }).map(drop)
}

/// Allocates, or whatever the mode says.
pub(crate) fn allocate(fd: BorrowedFd<'_>, mode: i32, offset: u64, len: u64) -> io::Result<()> {
    // SAFETY: takes no memory.
    retried(|| check(unsafe { libc::fallocate(fd.as_raw_fd(), mode, offset as i64, len as i64) })).map(drop)
}

/// Where data begins, or a hole.
pub(crate) fn seek(fd: BorrowedFd<'_>, offset: i64, whence: i32) -> io::Result<i64> {
    // SAFETY: takes no memory.
    let at = unsafe { libc::lseek(fd.as_raw_fd(), offset, whence) };
    if at < 0 { Err(io::Error::last_os_error()) } else { Ok(at) }
}

/// Copies inside the kernel; how many bytes.
pub(crate) fn copy(from: (BorrowedFd<'_>, u64), to: (BorrowedFd<'_>, u64), len: u64) -> io::Result<usize> {
    let (mut read_at, mut write_at) = (from.1 as i64, to.1 as i64);
    let (from, to) = (from.0.as_raw_fd(), to.0.as_raw_fd());
    // SAFETY: both offsets are there for as long as the call.
    check_len(unsafe { libc::copy_file_range(from, &raw mut read_at, to, &raw mut write_at, len as usize, 0) })
}

/// Writes at the end of a file, wherever that is by now; how much.
pub(crate) fn append(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the part lies in the bytes, which the call only reads.
    check_len(unsafe { libc::pwritev2(fd.as_raw_fd(), &raw const part, 1, 0, libc::RWF_APPEND) })
}

/// The state of a file system.
pub(crate) fn statvfs(fd: BorrowedFd<'_>) -> io::Result<libc::statvfs> {
    let mut state = MaybeUninit::uninit();
    // SAFETY: there is room for the state.
    check(unsafe { libc::fstatvfs(fd.as_raw_fd(), state.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so it has written the state.
    Ok(unsafe { state.assume_init() })
}

/// The number of a kind of file system.
pub(crate) fn kind_of_file_system(fd: BorrowedFd<'_>) -> io::Result<i64> {
    let mut state = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: there is room for the state.
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), state.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so it has written the state.
    Ok(unsafe { state.assume_init() }.f_type)
}

/// Reads an extended attribute: with no room, its length.
pub(crate) fn get_attribute(fd: BorrowedFd<'_>, key: &CStr, room: &mut [u8]) -> io::Result<usize> {
    let path = proc_name(fd);
    // SAFETY: the strings end with zero bytes, and the room is given with its length.
    check_len(unsafe { libc::getxattr(path.as_ptr(), key.as_ptr(), room.as_mut_ptr().cast(), room.len()) })
}

/// Lists the names of extended attributes: with no room, the length of the list.
pub(crate) fn list_attributes(fd: BorrowedFd<'_>, room: &mut [u8]) -> io::Result<usize> {
    let path = proc_name(fd);
    // SAFETY: the path ends with a zero byte, and the room is given with its length.
    check_len(unsafe { libc::listxattr(path.as_ptr(), room.as_mut_ptr().cast(), room.len()) })
}

/// Sets an extended attribute, with the flags of `setxattr`.
pub(crate) fn set_attribute(fd: BorrowedFd<'_>, key: &CStr, value: &[u8], flags: i32) -> io::Result<()> {
    let path = proc_name(fd);
    // SAFETY: the strings end with zero bytes, and the value is given with its length.
    check(unsafe { libc::setxattr(path.as_ptr(), key.as_ptr(), value.as_ptr().cast(), value.len(), flags) }).map(drop)
}

/// Removes an extended attribute.
pub(crate) fn remove_attribute(fd: BorrowedFd<'_>, key: &CStr) -> io::Result<()> {
    let path = proc_name(fd);
    // SAFETY: the strings end with zero bytes.
    check(unsafe { libc::removexattr(path.as_ptr(), key.as_ptr()) }).map(drop)
}

/// Tries a lock of an open file description, or asks who has one (`F_OFD_SETLK`, `F_OFD_GETLK`).
pub(crate) fn lock(fd: BorrowedFd<'_>, command: i32, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the lock is there for as long as the call.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), command, std::ptr::from_mut(lock)) }).map(drop)
}

/// A call that reads or writes a small number of bytes about an open file.
pub(crate) fn control(fd: BorrowedFd<'_>, command: u32, bytes: &mut [u8; 64]) -> io::Result<i32> {
    // SAFETY: the commands that come here take at most 64 bytes.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::c_ulong::from(command), bytes.as_mut_ptr()) })
}

/// Has the kernel pass files no longer by a number that it gave for one (`FUSE_DEV_IOC_BACKING_CLOSE`).
pub(crate) fn close_backing(device: BorrowedFd<'_>, number: u32) {
    const BACKING_CLOSE: libc::c_ulong = 0x4004_e502;
    // SAFETY: the call reads one number. One that the kernel does not know is refused.
    unsafe { libc::ioctl(device.as_raw_fd(), BACKING_CLOSE, &raw const number) };
}

/// Fills memory with entries of a directory as the kernel writes them (`linux_dirent64`); how many bytes, 0 at its end.
pub(crate) fn entries(fd: BorrowedFd<'_>, room: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the room is given with its length.
    let len = unsafe { libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), room.as_mut_ptr(), room.len()) };
    usize::try_from(len).map_err(|_| io::Error::last_os_error())
}

/// Whether the process may do what only the administrator may.
pub(crate) fn is_root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Lets the process have as many descriptors as it may, and says how many that are.
pub(crate) fn raise_file_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: there is room for the limit.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return 1024;
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: the limit is one that was read.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0 {
        limit = raised;
    }
    limit.rlim_cur
}
