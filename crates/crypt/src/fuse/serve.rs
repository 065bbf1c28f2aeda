//! The kernel's requests, taken apart and answered.

use super::attr::{decode_device, kind_of_entry, timespec};
use super::nodes::Node;
use super::options::Warn;
use super::outcome::{Failure, Outcome, lock};
use super::tree::{Caller, Change, Entered, Tree};
use crate::file::CryptFile;
use crate::folder::Listed;
use crate::holes::Sought;
use fuser::{
    BsdFileFlags, Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

/// How long the kernel may answer from what it knows: as gocryptfs says.
const TTL: Duration = Duration::from_secs(1);
/// Bytes of a request at most. The kernel's own limit is 1 MiB unless the administrator raises it.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Requests that the kernel sends ahead of need, or writes back, at a time.
const BACKGROUND_MAX: u16 = 64;

pub(super) struct Server {
    tree: Tree,
    handles: RwLock<HashMap<u64, Handle>>,
    next_handle: AtomicU64,
    warn: Warn,
    is_read_only: bool,
}

#[derive(Clone)]
enum Handle {
    File(Arc<CryptFile>),
    Folder(Arc<Mutex<Listing>>),
}

/// What an open directory held when it was read from its beginning.
struct Listing {
    node: Arc<Node>,
    entries: Option<Arc<Vec<Listed>>>,
}

impl Server {
    pub(super) fn new(tree: Tree, warn: Warn, is_read_only: bool) -> Self {
        Self { tree, handles: RwLock::default(), next_handle: AtomicU64::new(1), warn, is_read_only }
    }

    fn hold(&self, handle: Handle) -> FileHandle {
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.handles.write().unwrap_or_else(PoisonError::into_inner).insert(number, handle);
        FileHandle(number)
    }

    fn release(&self, handle: FileHandle) {
        let released = self.handles.write().unwrap_or_else(PoisonError::into_inner).remove(&handle.0);
        // Closing takes its time, and the table is free meanwhile.
        drop(released);
    }

    fn file(&self, handle: FileHandle) -> Outcome<Arc<CryptFile>> {
        match self.handles.read().unwrap_or_else(PoisonError::into_inner).get(&handle.0) {
            Some(Handle::File(file)) => Ok(Arc::clone(file)),
            _ => Err(Failure::Number(libc::EBADF)),
        }
    }

    fn listing(&self, handle: FileHandle) -> Outcome<Arc<Mutex<Listing>>> {
        match self.handles.read().unwrap_or_else(PoisonError::into_inner).get(&handle.0) {
            Some(Handle::Folder(listing)) => Ok(Arc::clone(listing)),
            _ => Err(Failure::Number(libc::EBADF)),
        }
    }

    /// An open directory's node and entries, which are read anew at the beginning.
    fn entries(&self, handle: FileHandle, offset: u64) -> Outcome<(Arc<Node>, Arc<Vec<Listed>>)> {
        let listing = self.listing(handle)?;
        let mut listing = lock(&listing);
        let node = Arc::clone(&listing.node);
        match &listing.entries {
            Some(entries) if offset > 0 => Ok((node, Arc::clone(entries))),
            _ => {
                let entries = Arc::new(self.tree.list(&node, &*self.warn)?);
                listing.entries = Some(Arc::clone(&entries));
                Ok((node, entries))
            }
        }
    }

    fn errno(&self, failure: Failure) -> Errno {
        match failure {
            Failure::Number(number) => Errno::from_i32(number),
            Failure::Sentence(error) => {
                (self.warn)(&error.to_string());
                Errno::from_i32(error.errno())
            }
        }
    }

    fn answer_entry(&self, entered: Outcome<Entered>, reply: ReplyEntry) {
        match entered {
            Ok(entered) => reply.entry(&TTL, &entered.attr, Generation(entered.node.generation)),
            Err(failure) => reply.error(self.errno(failure)),
        }
    }

    fn answer(&self, done: Outcome<()>, reply: ReplyEmpty) {
        match done {
            Ok(()) => reply.ok(),
            Err(failure) => reply.error(self.errno(failure)),
        }
    }
}

fn caller(request: &Request) -> Caller {
    Caller { user: request.uid(), group: request.gid() }
}

fn set_time(time: Option<TimeOrNow>) -> libc::timespec {
    match time {
        None => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        Some(TimeOrNow::Now) => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => timespec(time),
    }
}

/// Lends memory that a thread keeps.
fn with_buffer<T>(len: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! {
        static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(vec![]) };
    }
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        work(&mut buffer[..len])
    })
}

impl Filesystem for Server {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Whatever this kernel lacks, it goes without.
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        if let Err(most) = config.set_max_readahead(REQUEST_BYTES_MAX) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        // Writes are not cached by the kernel (FUSE_WRITEBACK_CACHE): that takes twice the processors' time for large
        // ones, gives errors to whoever closes the file, and makes sizes the kernel's.
        for capability in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_DIO,
            // With this, what is cached is kept from one open to the next, unless the file below has changed.
            InitFlags::FUSE_AUTO_INVAL_DATA,
        ] {
            let _ = config.add_capabilities(capability);
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let entered = self.tree.node(parent.0).and_then(|parent| self.tree.lookup(&parent, name.as_bytes()));
        self.answer_entry(entered, reply);
    }

    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        self.tree.forget(ino.0, nlookup);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.tree.node(ino.0).and_then(|node| self.tree.attr(&node)) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(failure) => reply.error(self.errno(failure)),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let has_times = atime.is_some() || mtime.is_some();
        let times = has_times.then(|| [set_time(atime), set_time(mtime)]);
        let change = Change { mode, owner: uid, group: gid, size, times };
        match self.tree.node(ino.0).and_then(|node| self.tree.change(&node, &change)) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(failure) => reply.error(self.errno(failure)),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.tree.node(ino.0).and_then(|node| self.tree.readlink(&node)) {
            Ok(target) => reply.data(&target),
            Err(failure) => reply.error(self.errno(failure)),
        }
    }

    fn mknod(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, rdev: u32, reply: ReplyEntry) {
        let entered = self
            .tree
            .node(parent.0)
            .and_then(|parent| self.tree.mknod(&parent, name.as_bytes(), mode, decode_device(rdev), caller(request)));
        self.answer_entry(entered, reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let parent = self.tree.node(parent.0);
        let entered = parent.and_then(|parent| self.tree.mkdir(&parent, name.as_bytes(), mode, caller(request)));
        self.answer_entry(entered, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.answer(self.tree.node(parent.0).and_then(|parent| self.tree.unlink(&parent, name.as_bytes())), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.answer(self.tree.node(parent.0).and_then(|parent| self.tree.rmdir(&parent, name.as_bytes())), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let parent = self.tree.node(parent.0);
        let entered = parent.and_then(|parent| self.tree.symlink(&parent, name.as_bytes(), target, caller(request)));
        self.answer_entry(entered, reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let rename = || {
            let (parent, new_parent) = (self.tree.node(parent.0)?, self.tree.node(newparent.0)?);
            let (from, to) = ((&parent, name.as_bytes()), (&new_parent, newname.as_bytes()));
            self.tree.rename(from, to, flags.bits())
        };
        self.answer(rename(), reply);
    }

    fn link(&self, _: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let link = || {
            let (node, parent) = (self.tree.node(ino.0)?, self.tree.node(newparent.0)?);
            self.tree.link(&node, &parent, newname.as_bytes())
        };
        self.answer_entry(link(), reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let is_writable = flags.acc_mode() != OpenAccMode::O_RDONLY && !self.is_read_only;
        match self.tree.node(ino.0).and_then(|node| self.tree.open(&node, is_writable)) {
            Ok(file) => reply.opened(self.hold(Handle::File(file)), FopenFlags::FOPEN_KEEP_CACHE),
            Err(failure) => reply.error(self.errno(failure)),
        }
    }

    fn create(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, _: i32, reply: ReplyCreate) {
        let parent = self.tree.node(parent.0);
        match parent.and_then(|parent| self.tree.create(&parent, name.as_bytes(), mode, caller(request))) {
            Ok((entered, file)) => {
                let generation = Generation(entered.node.generation);
                let handle = self.hold(Handle::File(file));
                reply.created(&TTL, &entered.attr, generation, handle, FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(failure) => reply.error(self.errno(failure)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let file = match self.file(fh) {
            Ok(file) => file,
            Err(failure) => return reply.error(self.errno(failure)),
        };
        with_buffer(size as usize, |buffer| match file.read_at(buffer, offset) {
            Ok(read) => reply.data(&buffer[..read]),
            Err(error) => reply.error(self.errno(error.into())),
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.file(fh).and_then(|file| Ok(file.write_some(data, offset)?)) {
            Ok(written) => reply.written(written as u32),
            Err(failure) => reply.error(self.errno(failure)),
        }
    }

    /// Nothing waits for a close: what was written is in the file below, and errors were told. The kernel asks once.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.release(fh);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.answer(self.file(fh).and_then(|file| Ok(file.sync(datasync)?)), reply);
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.tree.node(ino.0) {
            Ok(node) => {
                let listing = Arc::new(Mutex::new(Listing { node, entries: None }));
                reply.opened(self.hold(Handle::Folder(listing)), FopenFlags::empty());
            }
            Err(failure) => reply.error(self.errno(failure)),
        }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let (node, entries) = match self.entries(fh, offset) {
            Ok(found) => found,
            Err(failure) => return reply.error(self.errno(failure)),
        };
        let dots = [(ino, "."), (parent_of(&node), "..")];
        for (index, (id, name)) in (0..).zip(dots) {
            if index >= offset && reply.add(id, index + 1, FileType::Directory, name) {
                return reply.ok();
            }
        }
        for (index, listed) in (2..).zip(entries.iter()).skip(offset.saturating_sub(2) as usize) {
            let id = INodeNo(self.tree.id_of(listed.entry.inode));
            if reply.add(id, index + 1, kind_of_entry(listed.entry.kind), OsStr::from_bytes(&listed.plain)) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let (node, entries) = match self.entries(fh, offset) {
            Ok(found) => found,
            Err(failure) => return reply.error(self.errno(failure)),
        };
        let own = match self.tree.attr(&node) {
            Ok(attr) => attr,
            Err(failure) => return reply.error(self.errno(failure)),
        };
        for (index, (id, name)) in (0..).zip([(ino, "."), (parent_of(&node), "..")]) {
            // The kernel makes no inodes of these two, nor counts them as looked up.
            let attr = fuser::FileAttr { ino: id, ..own };
            if index >= offset && reply.add(id, index + 1, name, &Duration::ZERO, &attr, Generation(0)) {
                return reply.ok();
            }
        }
        for (index, listed) in (2..).zip(entries.iter()).skip(offset.saturating_sub(2) as usize) {
            // What has gone since then is left out.
            let Ok(entered) = self.tree.enter_listed(&node, listed) else { continue };
            let generation = Generation(entered.node.generation);
            let name = OsStr::from_bytes(&listed.plain);
            if reply.add(entered.attr.ino, index + 1, name, &TTL, &entered.attr, generation) {
                self.tree.forget(entered.node.id, 1);
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.release(fh);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.answer(self.tree.node(ino.0).and_then(|node| self.tree.sync_folder(&node)), reply);
    }

    fn lseek(&self, _: &Request, _: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let seek = || {
            let sought = match whence {
                libc::SEEK_DATA => Sought::Data,
                libc::SEEK_HOLE => Sought::Hole,
                _ => return Err(Failure::Number(libc::EINVAL)),
            };
            let none = Failure::Number(libc::ENXIO);
            let Ok(from) = u64::try_from(offset) else { return Err(none) };
            self.file(fh)?.seek(sought, from)?.ok_or(none)
        };
        match seek() {
            Ok(at) => reply.offset(at as i64),
            Err(failure) => reply.error(self.errno(failure)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.tree.state_of_all() {
            Ok(all) => reply.statfs(
                all.f_blocks,
                all.f_bfree,
                all.f_bavail,
                all.f_files,
                all.f_ffree,
                all.f_bsize as u32,
                255,
                all.f_frsize as u32,
            ),
            Err(failure) => reply.error(self.errno(failure)),
        }
    }

    // Attributes are refused once and for all: after ENOSYS the kernel does not ask again, not even on every write.

    fn setxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: &[u8], _: i32, _: u32, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let allocate = || {
            if mode & !libc::FALLOC_FL_KEEP_SIZE != 0 {
                return Err(Failure::Number(libc::EOPNOTSUPP));
            }
            let file = self.file(fh)?;
            let end = offset.checked_add(length).ok_or(Failure::Number(libc::EFBIG))?;
            file.reserve(offset, length)?;
            if mode == 0 {
                file.extend_to(end)?;
            }
            Ok(())
        };
        self.answer(allocate(), reply);
    }
}

fn parent_of(node: &Node) -> INodeNo {
    INodeNo(node.links().first().map_or(node.id, |place| place.parent.id))
}
