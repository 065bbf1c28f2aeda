//! The kernel's requests, taken apart and answered.

use crate::answer::{TTL, answer, answer_attribute, answer_entry, answer_written, errno};
use crate::attr::{attr, decode_device, kind_of_entry, set_time};
use crate::caller::Caller;
use crate::fault::{Point, at};
use crate::listing;
use crate::locks::{self, Wanted};
use crate::openings::To;
use crate::opens::Backing;
use crate::server::{Change, Server};
use crate::state::Turn;
use crate::sys;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// The server, for the library.
pub(crate) struct Serve {
    pub(crate) server: Arc<Server>,
    /// How many file systems may lie on each other for the kernel to pass files.
    pub(crate) stack_depth: u32,
    pub(crate) passes: bool,
}

fn key(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
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

impl Serve {
    fn caller(&self, request: &Request) -> Caller {
        Caller::of(request, self.server.is_root)
    }

    /// For a request that must not be done twice, until it is answered.
    fn turn(&self, request: &Request) -> Turn<'_> {
        self.server.state.turns.take(request.unique().0)
    }
}

impl Filesystem for Serve {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.greet(config);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer_entry(self.server.lookup(parent.0, name.as_bytes(), request.unique().0), reply);
    }

    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        self.server.nodes.forget(ino.0, nlookup);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        at(Point::Asked);
        match self.server.attr(ino.0) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        fh: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let has_times = atime.is_some() || mtime.is_some();
        let times = has_times.then(|| [set_time(atime), set_time(mtime)]);
        let change = Change { mode, owner: uid, group: gid, size, times };
        match self.server.change(ino.0, fh.map(|fh| fh.0), &change, self.caller(request)) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.server.readlink(ino.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (name, device) = (name.as_bytes(), decode_device(rdev));
        let make = |folder: BorrowedFd<'_>| {
            self.caller(request).make(mode, umask, |mode| sys::mknod(folder, name, mode, device))
        };
        let turn = self.turn(request);
        answer_entry(self.server.make(&turn, parent.0, name, make), reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let name = name.as_bytes();
        let make =
            |folder: BorrowedFd<'_>| self.caller(request).make(mode, umask, |mode| sys::mkdir(folder, name, mode));
        let turn = self.turn(request);
        answer_entry(self.server.make(&turn, parent.0, name, make), reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let turn = self.turn(request);
        answer(self.server.remove(&turn, parent.0, name.as_bytes(), false), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let turn = self.turn(request);
        answer(self.server.remove(&turn, parent.0, name.as_bytes(), true), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (name, target) = (name.as_bytes(), target.as_os_str().as_bytes());
        let make = |folder: BorrowedFd<'_>| self.caller(request).make(0, 0, |_| sys::symlink(target, folder, name));
        let turn = self.turn(request);
        answer_entry(self.server.make(&turn, parent.0, name, make), reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = ((parent.0, name.as_bytes()), (newparent.0, newname.as_bytes()));
        let turn = self.turn(request);
        answer(self.server.rename(&turn, from, to, flags.bits()), reply);
    }

    fn link(&self, request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let turn = self.turn(request);
        answer_entry(self.server.link(&turn, ino.0, newparent.0, newname.as_bytes()), reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let backing = |file: BorrowedFd<'_>| {
            let number = reply.open_backing(file)?.into_raw();
            // SAFETY: the number is this session's and new, and goes with what is made of it here.
            Ok(Backing::new(number, unsafe { reply.wrap_backing(number) }))
        };
        let node = self.server.nodes.get(ino.0);
        let opened = node.and_then(|node| self.server.open(&node, flags.0, request.unique().0, backing));
        match opened {
            Ok(opened) => match &opened.backing {
                Some(backing) => {
                    // SAFETY: the number is open for as long as `backing`, and lent for this answer.
                    let lent = unsafe { reply.wrap_backing(backing.number) };
                    reply.opened_passthrough(FileHandle(opened.handle), opened.flags, &lent);
                    lent.into_raw();
                }
                None => reply.opened(FileHandle(opened.handle), opened.flags),
            },
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (place, turn) = ((parent.0, name.as_bytes()), self.turn(request));
        let caller = self.caller(request);
        let backing = |file: BorrowedFd<'_>| {
            let number = reply.open_backing(file)?.into_raw();
            // SAFETY: the number is this session's and new, and goes with what is made of it here.
            Ok(Backing::new(number, unsafe { reply.wrap_backing(number) }))
        };
        let created = self.server.create(&turn, place, (mode, umask, flags), caller, backing);
        match created {
            Ok((entry, opened)) => {
                let (handle, generation) = (FileHandle(opened.handle), Generation(entry.generation));
                match &opened.backing {
                    Some(backing) => {
                        // SAFETY: the number is open for as long as `backing`, and lent for this answer.
                        let lent = unsafe { reply.wrap_backing(backing.number) };
                        reply.created_passthrough(&TTL, &entry.attr, generation, handle, opened.flags, &lent);
                        lent.into_raw();
                    }
                    None => reply.created(&TTL, &entry.attr, generation, handle, opened.flags),
                }
            }
            Err(error) => reply.error(errno(&error)),
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
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // The kernel names an owner of locks where a program reads, and none where it reads pages to keep.
        let is_kept = lock_owner.is_none();
        with_buffer(size as usize, |buffer| {
            match self.server.openings.file(fh.0).and_then(|file| file.read(offset, buffer, is_kept)) {
                Ok(read) => reply.data(&buffer[..read]),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let to = match flags.0 & libc::O_APPEND {
            _ if write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) => To::Back(offset),
            0 => To::At(offset),
            _ => To::End,
        };
        let is_killing = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let turn = self.turn(request);
        let written = self.server.write(fh.0, (to, data), is_killing, &turn);
        at(Point::Written);
        answer_written(written, reply);
    }

    /// A process has closed a descriptor, with which its locks go.
    fn flush(&self, _: &Request, ino: INodeNo, _: FileHandle, lock_owner: LockOwner, reply: ReplyEmpty) {
        self.server.locks.closed(ino.0, lock_owner.0);
        reply.ok();
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
        self.server.release(fh.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        answer(self.server.openings.file(fh.0).and_then(|file| file.sync(datasync)), reply);
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.server.open_folder_of(ino.0, request.unique().0) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.server.openings.folder(fh.0).and_then(|folder| {
            listing::read(&folder, offset, |entry| {
                let id = self.server.id_of_entry(&folder, entry);
                Ok(reply.add(INodeNo(id), entry.next, kind_of_entry(entry.kind), OsStr::from_bytes(entry.name)))
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdirplus(&self, _: &Request, _: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let listed = self.server.openings.folder(fh.0).and_then(|folder| {
            listing::read(&folder, offset, |entry| {
                let name = OsStr::from_bytes(entry.name);
                if entry.is_dot() {
                    // Of these the kernel takes the number and the kind alone, and counts nothing.
                    let mut attr = attr(self.server.id_of_entry(&folder, entry), &sys::stat(folder.as_fd())?);
                    attr.ino = INodeNo(self.server.id_of_entry(&folder, entry));
                    return Ok(reply.add(attr.ino, entry.next, name, &TTL, &attr, Generation(0)));
                }
                // What is gone by now is not listed.
                let Ok(found) = self.server.find(folder.as_fd(), entry.name, 0) else { return Ok(false) };
                let (id, generation) = (found.attr.ino, Generation(found.generation));
                let is_full = reply.add(id, entry.next, name, &TTL, &found.attr, generation);
                if is_full {
                    self.server.nodes.forget(id.0, 1);
                }
                Ok(is_full)
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.server.release(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        answer(self.server.openings.folder(fh.0).and_then(|folder| sys::sync(folder.as_fd(), datasync)), reply);
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self.server.state_of_all(ino.0) {
            Ok(all) => reply.statfs(
                all.f_blocks,
                all.f_bfree,
                all.f_bavail,
                all.f_files,
                all.f_ffree,
                all.f_bsize as u32,
                all.f_namemax as u32,
                all.f_frsize as u32,
            ),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let turn = self.turn(request);
        let set = |key: CString| self.server.set_attribute(ino.0, &key, value, flags, self.caller(request), &turn);
        answer(key(name).and_then(set), reply);
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let get = |key: CString| {
            self.server.with_attributes(ino.0, |file| {
                let mut value = vec![0; size as usize];
                let len = sys::get_attribute(file, &key, &mut value)?;
                value.resize(len, 0);
                Ok(value)
            })
        };
        answer_attribute(key(name).and_then(get), size, reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        answer_attribute(self.server.attribute_names(ino.0, self.caller(request)), size, reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let turn = self.turn(request);
        let remove = |key: CString| self.server.remove_attribute(ino.0, &key, &turn);
        answer(key(name).and_then(remove), reply);
    }

    fn getlk(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        _: u32,
        reply: ReplyLock,
    ) {
        let get = || {
            let node = self.server.nodes.get(ino.0)?;
            let file = self.server.nodes.file(&node)?;
            self.server.locks.get(&node, file.as_fd(), lock_owner.0, Wanted { kind: typ, start, end })
        };
        match get() {
            Ok((found, process)) => reply.locked(found.start, found.end, found.kind, process),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setlk(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        _: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let server = Arc::clone(&self.server);
        let set = move || {
            let node = server.nodes.get(ino.0)?;
            let file = server.nodes.file(&node)?;
            server.locks.set(&node, file.as_fd(), lock_owner.0, fh.0, Wanted { kind: typ, start, end })
        };
        let first = set();
        let is_taken = first.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN));
        if !(sleep && is_taken) {
            return answer(first, reply);
        }
        // Others are served meanwhile, who may be those that have the lock.
        let thread = request.pid();
        let wait = move || answer(locks::wait(thread, set), reply);
        // If no thread can be started, the reply goes with the work, and the library answers with an error.
        let _ = std::thread::Builder::new().name("bifolio-lock".to_owned()).spawn(wait);
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        _: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        match self.server.control(fh.0, cmd, in_data, out_size as usize) {
            Ok((result, bytes, len)) => reply.ioctl(result, &bytes[..len]),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let allocate = || {
            let file = self.server.openings.file(fh.0)?;
            let turn = self.turn(request);
            if turn.was_done(|| false)? {
                return Ok(());
            }
            turn.done(self.caller(request).change(|| file.allocate(&self.server.nodes, mode, offset, length)))
        };
        answer(allocate(), reply);
    }

    fn lseek(&self, _: &Request, _: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        match self.server.openings.file(fh.0).and_then(|file| file.seek(offset, whence)) {
            Ok(at) => reply.offset(at),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let copy = || {
            let (from, to) = (self.server.openings.file(fh_in.0)?, self.server.openings.file(fh_out.0)?);
            self.caller(request).change(|| from.copy(offset_in, &to, offset_out, len))
        };
        answer_written(copy(), reply);
    }

    fn poll(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: fuser::PollNotifier,
        _: fuser::PollEvents,
        _: fuser::PollFlags,
        reply: fuser::ReplyPoll,
    ) {
        // Files are always ready, which the kernel says by itself from then on.
        reply.error(Errno::ENOSYS);
    }
}
