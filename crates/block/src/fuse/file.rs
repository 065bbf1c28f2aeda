//! A device as the only file of a mounted folder (FUSE).
//!
//! Requests go past the page cache, which has the bytes below already: nothing is kept back here, so that an end of the
//! process loses nothing that was written. Several threads serve.

use super::mount::{MountOptions, Mounted, mount};
use crate::{BlockDevice, Error, Result};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest request.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Nothing about the file changes while it is mounted.
const TTL: Duration = Duration::from_secs(3600);
/// The type of the file system is `fuse.` and this.
const SUBTYPE: &str = "bifolio";
const FOLDER: INodeNo = INodeNo::ROOT;
const FILE: INodeNo = INodeNo(2);

/// A device that is mounted as a file. It stays mounted when this is dropped.
#[derive(Debug)]
pub struct MountedDevice {
    mounted: Mounted,
    device: Arc<dyn BlockDevice>,
}

/// Mounts a folder with one file of this name: the device.
///
/// # Errors
/// Those of [`mount`].
pub fn export(device: Arc<dyn BlockDevice>, name: &OsStr, at: &Path) -> Result<MountedDevice> {
    let options = MountOptions {
        subtype: SUBTYPE,
        source: source(&*device),
        is_read_only: device.is_read_only(),
        allows_other: false,
        allows_devices: false,
        allows_suid: false,
        allows_exec: true,
        allows_nonempty: false,
        threads: std::thread::available_parallelism().map_or(2, |count| count.get().clamp(2, 8)),
    };
    let mounted = mount(at, &options, || Ok(DeviceFile::new(Arc::clone(&device), name.to_owned())))?;
    Ok(MountedDevice { mounted, device })
}

impl MountedDevice {
    /// Serves as [`Mounted::serve_until`] does, and flushes.
    ///
    /// # Errors
    /// Those of serving, and of a flush.
    pub fn serve_until(
        self,
        is_stopped: &dyn Fn() -> bool,
        tick: &mut dyn FnMut(),
        detached: &dyn Fn(&Path),
    ) -> Result<()> {
        let ended = self.mounted.serve_until(is_stopped, tick, detached);
        let flushed = self.device.flush();
        ended.and(flushed)
    }
}

/// What `mount` shows as the source: whoever looks at it has another current directory.
fn source(device: &dyn BlockDevice) -> String {
    let name = device.name();
    let path = std::path::absolute(&name).ok().filter(|path| path.exists());
    path.map_or(name, |path| path.display().to_string())
}

/// The folder and its file, for the kernel.
struct DeviceFile {
    device: Arc<dyn BlockDevice>,
    name: OsString,
    size: u64,
    mounted: SystemTime,
    times: Times,
}

/// When the file was read and written, as far as somebody has to know: kept while it is mounted.
struct Times(Mutex<(SystemTime, SystemTime)>);

impl Times {
    fn get(&self) -> (SystemTime, SystemTime) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, accessed: Option<TimeOrNow>, modified: Option<TimeOrNow>) {
        let time = |given, before| match given {
            None => before,
            Some(TimeOrNow::Now) => SystemTime::now(),
            Some(TimeOrNow::SpecificTime(time)) => time,
        };
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *times = (time(accessed, times.0), time(modified, times.1));
    }
}

/// Why attributes cannot be set: the file has its device's size, and its owner and mode are those of the mount. A size
/// that is set in vain would let programs believe that what they did not overwrite is gone (`>` of a shell truncates
/// first), so it is refused, as for a sealed file in memory.
fn refusal(is_file: bool, wanted: Option<u64>, size: u64, is_owner_or_mode: bool) -> Option<Errno> {
    match wanted {
        Some(_) if !is_file => Some(Errno::EISDIR),
        Some(wanted) if wanted != size => Some(Errno::EPERM),
        _ if is_owner_or_mode => Some(Errno::EPERM),
        _ => None,
    }
}

impl DeviceFile {
    fn new(device: Arc<dyn BlockDevice>, name: OsString) -> Self {
        let size = device.geometry().size;
        let mounted = SystemTime::now();
        Self { device, name, size, mounted, times: Times(Mutex::new((mounted, mounted))) }
    }

    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let is_file = inode == FILE;
        let (accessed, modified) = if is_file { self.times.get() } else { (self.mounted, self.mounted) };
        let perm = match (is_file, self.device.is_read_only()) {
            (false, _) => 0o500,
            (true, true) => 0o400,
            (true, false) => 0o600,
        };
        FileAttr {
            ino: inode,
            size: if is_file { self.size } else { 0 },
            blocks: if is_file { self.size / 512 } else { 0 },
            atime: accessed,
            mtime: modified,
            ctime: self.mounted.max(modified),
            crtime: UNIX_EPOCH,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm,
            nlink: if is_file { 1 } else { 2 },
            // SAFETY: takes nothing and cannot fail.
            uid: unsafe { libc::getuid() },
            // SAFETY: as above.
            gid: unsafe { libc::getgid() },
            rdev: 0,
            blksize: REQUEST_BYTES_MAX,
            flags: 0,
        }
    }
}

thread_local! {
    /// Where a serving thread puts what it reads.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Filesystem for DeviceFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // What the kernel does not know is left out.
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        let _ = config.set_max_readahead(REQUEST_BYTES_MAX);
        let _ = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == FOLDER && name == self.name {
            reply.entry(&TTL, &self.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attributes(inode));
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let is_owner_or_mode = mode.is_some() || uid.is_some() || gid.is_some();
        if let Some(errno) = refusal(inode == FILE, size, self.size, is_owner_or_mode) {
            return reply.error(errno);
        }
        if inode == FILE {
            self.times.set(accessed, modified);
        }
        reply.attr(&TTL, &self.attributes(inode));
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if inode == FILE {
            let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
            reply.opened(FileHandle(0), flags);
        } else {
            reply.error(Errno::EISDIR);
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = u64::from(size).min(self.size.saturating_sub(offset)) as usize;
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < len {
                buffer.resize(len, 0);
            }
            match self.device.read(offset.min(self.size), &mut buffer[..len]) {
                Ok(()) => reply.data(&buffer[..len]),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let len = (data.len() as u64).min(self.size.saturating_sub(offset)) as usize;
        if len == 0 && !data.is_empty() {
            return reply.error(Errno::ENOSPC);
        }
        let written = self.device.write(offset.min(self.size), &data[..len]);
        let is_sync = flags.0 & libc::O_DSYNC != 0;
        match written.and_then(|()| if is_sync { self.device.flush() } else { Ok(()) }) {
            Ok(()) => {
                self.times.set(None, Some(TimeOrNow::Now));
                reply.written(len as u32);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // A close promises nothing; fsync does.
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(&self.device.flush(), reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let end = offset.saturating_add(length);
        if mode == 0 && end <= self.size {
            // All of it is there already.
            return reply.ok();
        }
        // A hole would have to be read as zeroes, which a discarded sector need not be.
        reply.error(Errno::EOPNOTSUPP);
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let folder = FileType::Directory;
        let entries = [
            (FOLDER, folder, OsStr::new(".")),
            (FOLDER, folder, OsStr::new("..")),
            (FILE, FileType::RegularFile, &self.name),
        ];
        for (at, (inode, kind, name)) in entries.into_iter().enumerate().skip(offset as usize) {
            if reply.add(inode, at as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}

fn answer(done: &Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn errno(error: &Error) -> Errno {
    Errno::from_i32(error.errno())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: `truncate` of a mounted device's file succeeded and changed nothing, so that what it should have cut was
    /// read afterwards. Cause: shorter sizes were taken as those of a block device, which has none.
    #[test]
    fn a_size_is_refused_that_is_not_the_devices() {
        let number = |errno: Option<Errno>| errno.map(Errno::code);
        for size in [0, 1, 4095, 4097, u64::MAX] {
            assert_eq!(number(refusal(true, Some(size), 4096, false)), Some(libc::EPERM), "{size}");
        }
        assert_eq!(number(refusal(true, Some(4096), 4096, false)), None);
        assert_eq!(number(refusal(true, None, 4096, false)), None);
        assert_eq!(number(refusal(true, None, 4096, true)), Some(libc::EPERM));
        assert_eq!(number(refusal(false, Some(0), 4096, false)), Some(libc::EISDIR));
    }
}
