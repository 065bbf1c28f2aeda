//! What one client asks for. It is believed in nothing: what it says that it uses is looked up in leases that were noted
//! for it, and what it may have follows from what the kernel says of it and of its descriptors.
//!
//! Whatever it asks for can be asked for again with the same number, and is done once.

use super::access::{Access, Opened, access, is_trusted, opened};
use super::copies::Copies;
use super::holding::Thing;
use super::users::Kind;
use super::{ClientUsage, SEND_SECONDS_MAX, Server};
use crate::fault::{Point, at};
use crate::protocol::{FRAMES_MAX, ToClient, ToServer, VERSION, decode_request, encode_answer};
use crate::socket::{MESSAGE_BYTES_MAX, Peer, Received, Socket};
use bifolio_cache::service::{Answer, Lender, Request, Service};
use bifolio_cache::{CachedFile, Client, Counts, Error, ErrorKind, FileId, LeaseNumber, Report, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};
use tracing::Level;

#[derive(Debug)]
pub(super) struct Session {
    server: Arc<Server>,
    client: Client,
    peer: Peer,
    socket: Socket,
    has_greeted: bool,
    files: BTreeMap<u64, Handle>,
    /// Bytes that stay where they are, by file and lease; 0 of a mapping.
    leases: BTreeMap<(u64, LeaseNumber), u64>,
    copies: Copies,
    copied_bytes: u64,
    usage: Arc<ClientUsage>,
}

/// A file that the client has open. To the cache each is a client of its own, so that each has leases of its own.
#[derive(Debug)]
struct Handle {
    id: FileId,
    file: CachedFile,
    /// When it was opened. To ask the cache would be to wait for whoever works with the file, with a descriptor open by which
    /// it may be written; and that is what he may be waiting for to end.
    size: u64,
    holder: Client,
    access: Access,
}

type Reply = (ToClient, Option<OwnedFd>);

impl Session {
    /// Of a client that has just connected.
    pub(super) fn new(server: &Arc<Server>, client: Client, peer: Peer, socket: Socket) -> Self {
        let (files, leases, copies) = (BTreeMap::new(), BTreeMap::new(), Copies::default());
        let (server, has_greeted, copied_bytes) = (Arc::clone(server), false, 0);
        let usage = Arc::new(ClientUsage { pid: peer.pid as u32, uid: peer.uid, ..ClientUsage::default() });
        Self { server, client, peer, socket, has_greeted, files, leases, copies, copied_bytes, usage }
    }

    /// Of one that another server has served.
    pub(super) fn resume(server: &Arc<Server>, client: Client, socket: Socket) -> Option<Self> {
        let peer = socket.peer().ok()?;
        socket.limit_sends(SEND_SECONDS_MAX);
        server.users.reconnect(peer.uid);
        let mut session = Self::new(server, client, peer, socket);
        session.has_greeted = true;
        for thing in server.holding.things() {
            let Thing::Handle(of, number) = thing else { continue };
            if of != client {
                continue;
            }
            let Some((_, [device, inode, mark])) = server.holding.get(thing) else { continue };
            let (holder, is_lent) = of_mark(mark);
            let Some(file) = server.find((device, inode)) else {
                server.holding.let_go(thing);
                continue;
            };
            let access = if is_lent { Access::Frames } else { Access::Copies };
            let file = file.for_client(holder);
            for (lease, _, bytes, is_used) in file.leases() {
                let bytes = if is_used { bytes.end - bytes.start } else { 0 };
                // It has them, whatever is permitted.
                let is_paid = server.users.take(session.peer.uid, Kind::Used, bytes).is_ok();
                session.leases.insert((number, lease), if is_paid { bytes } else { 0 });
            }
            let (id, size) = ((device, inode), file.size());
            session.files.insert(number, Handle { id, file, size, holder, access });
        }
        session.usage.files.store(session.files.len() as u64, Ordering::Relaxed);
        session.usage.bytes.store(session.leases.values().sum(), Ordering::Relaxed);
        Some(session)
    }

    pub(super) fn usage(&self) -> Arc<ClientUsage> {
        Arc::clone(&self.usage)
    }

    pub(super) fn client(&self) -> Client {
        self.client
    }

    pub(super) fn process(&self) -> i32 {
        self.peer.pid
    }

    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.socket.duplicate()
    }

    /// Has the client ask again what was not answered.
    pub(super) fn greet_again(&self) {
        // Where there is no room for it, others like it are there unread.
        let _ = self.socket.send_now(&encode_answer(0, &ToClient::Again));
    }

    /// Does what is asked for until the client goes. Everything of it ends with this.
    pub(super) fn run(mut self) {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        let mut pace = Pace::new(self.server.users.limits().messages_per_second);
        loop {
            let Ok(Received::Message(len, descriptor)) = self.socket.receive(&mut buffer) else { return };
            pace.wait();
            // Who says what is no message is not understood any further.
            let Some((number, message)) = decode_request(&buffer[..len]) else { return };
            if message == ToServer::Bye {
                return;
            }
            at(Point::Received);
            let (answer, lent) =
                self.answer(message, descriptor).unwrap_or_else(|error| (ToClient::failed(&error), None));
            at(Point::Done);
            if self.socket.send(&encode_answer(number, &answer), lent.as_ref().map(AsFd::as_fd)).is_err() {
                return;
            }
        }
    }

    fn answer(&mut self, message: ToServer, descriptor: Option<OwnedFd>) -> Result<Reply> {
        if !self.has_greeted && !matches!(message, ToServer::Hello { .. }) {
            return Err(Error::bad_use("say hello first"));
        }
        Ok(match message {
            ToServer::Hello { .. } => {
                // Whoever speaks another version is told which, and goes.
                self.has_greeted = true;
                let devices = self.server.cache.devices().iter().map(ToString::to_string).collect();
                (ToClient::Welcome { version: VERSION, devices }, None)
            }
            ToServer::Open { file } => (self.open(file, descriptor)?, None),
            ToServer::Close { file } => {
                self.close(file);
                (ToClient::Answered(Answer::Done), None)
            }
            ToServer::Ask { file, request: Request::Frames { lease, device, range } } => {
                (self.frames(file, lease, device, range)?, None)
            }
            ToServer::Ask { file, request } => (ToClient::Answered(self.ask(file, request)?), None),
            ToServer::Lend { file, device, at, frame } => match self.lend(file, device, at, frame)? {
                Some((bytes, descriptor)) => (ToClient::Lent { bytes }, Some(descriptor)),
                None => (ToClient::NotLent, None),
            },
            ToServer::Files { after } => {
                self.check_trusted()?;
                let (is_all, files) = self.server.describe(after);
                (ToClient::Files { is_all, files }, None)
            }
            ToServer::Status => {
                self.check_trusted()?;
                (ToClient::Status(self.server.status()), None)
            }
            ToServer::Keep { file, device, is_kept } => {
                self.check_trusted()?;
                let (server, id) = (&self.server, self.handle(file)?.id);
                if device >= server.devices.len() {
                    return Err(Error::bad_use(format!("there is no device with the number {device}")));
                }
                if is_kept {
                    server.keep(id, device, self.peer.uid)?;
                } else {
                    server.unkeep(id, device);
                }
                (ToClient::Answered(Answer::Done), None)
            }
            ToServer::Read { file, offset, len } => {
                let mut bytes = vec![0; len];
                let read = self.handle(file)?.file.read(offset, &mut bytes)?;
                bytes.truncate(read);
                (ToClient::Data { bytes }, None)
            }
            ToServer::Write { file, offset, bytes } => {
                let handle = self.handle(file)?;
                if handle.access == Access::Copies {
                    let detail = "this client may not write to the file by the daemon";
                    return Err(Error::told(ErrorKind::Permission, "writing", detail, Some(libc::EACCES)));
                }
                handle.file.write(offset, &bytes)?;
                (ToClient::Answered(Answer::Done), None)
            }
            ToServer::Sync { file } => {
                self.handle(file)?.file.sync()?;
                (ToClient::Answered(Answer::Done), None)
            }
            ToServer::Watch { done, is_past } => {
                self.check_trusted()?;
                let watches = &self.server.watches;
                if !watches.has(self.client) {
                    self.server.begin_to_watch(self);
                }
                watches.done(self.client, done, is_past);
                let next = watches.next(self.client, || self.socket.has_hung_up());
                let gone = || Error::told(ErrorKind::Gone, "the daemon", "it waits for this mount no longer", None);
                let (number, event) = next.ok_or_else(gone)?;
                (ToClient::Watched { number, event }, None)
            }
            ToServer::Bye => (ToClient::Answered(Answer::Done), None),
        })
    }

    /// Who may see what others have cached, and have it stay.
    fn check_trusted(&self) -> Result<()> {
        let Server { own_uid, options, .. } = &*self.server;
        if is_trusted(&self.peer, *own_uid, options) {
            return Ok(());
        }
        let detail = "what others have cached is not this user's business: ask as the daemon's user";
        Err(Error::told(ErrorKind::Permission, "the daemon", detail, None))
    }

    fn handle(&self, file: u64) -> Result<&Handle> {
        self.files.get(&file).ok_or_else(|| Error::bad_use(format!("no file is open under the number {file}")))
    }
}

/// Files.
impl Session {
    fn open(&mut self, number: u64, descriptor: Option<OwnedFd>) -> Result<ToClient> {
        if !self.files.contains_key(&number) {
            if self.files.len() >= self.server.users.limits().files {
                let detail = format!("{} files are open by one connection: close some", self.files.len());
                return Err(Error::told(ErrorKind::OutOfMemory, "the daemon", detail, None));
            }
            let descriptor = descriptor.ok_or_else(|| Error::bad_use("no descriptor came with the request"))?;
            let handle = self.open_descriptor(descriptor)?;
            let notes = [handle.id.0, handle.id.1, mark(handle.holder, handle.access == Access::Frames)];
            self.server.holding.note_alive(handle.holder);
            if let Err(error) = self.server.holding.hold(Thing::Handle(self.client, number), notes, None) {
                self.server.holding.note_gone(handle.holder);
                self.server.leave(handle.id);
                return Err(refused(ErrorKind::OutOfMemory, &error));
            }
            self.files.insert(number, handle);
            self.usage.files.fetch_add(1, Ordering::Relaxed);
        }
        let handle = self.handle(number)?;
        let (size, is_lent) = (handle.size, handle.access == Access::Frames);
        Ok(ToClient::Opened { size, is_lent })
    }

    /// What the descriptor proves is asked of the kernel. The file is opened anew to be read: a descriptor that may write
    /// would make every look at the file one that cannot tell whether it has changed.
    fn open_descriptor(&self, descriptor: OwnedFd) -> Result<Handle> {
        // SAFETY: asks for the flags of an open descriptor.
        let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFL) };
        let proven = if flags < 0 { Opened::Neither } else { opened(flags) };
        if proven == Opened::Neither {
            let detail = "the descriptor was not opened to be read";
            return Err(Error::told(ErrorKind::Permission, "a descriptor", detail, None));
        }
        let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let given = File::from(descriptor);
        let metadata = given.metadata().map_err(|error| refused(ErrorKind::Read, &error))?;
        if !metadata.is_file() {
            return Err(Error::told(ErrorKind::Read, "a descriptor", "only regular files are cached", None));
        }
        refuse_special(&given)?;
        let most = self.server.users.limits().file_bytes;
        if metadata.len() > most {
            let detail = format!("files of {most} bytes at most are cached, and it has {}", metadata.len());
            return Err(Error::told(ErrorKind::BadRange, "a descriptor", detail, None));
        }
        let id = (metadata.dev(), metadata.ino());
        let access = access(&self.peer, self.server.own_uid, &self.server.options, proven);
        if access == Access::Frames && !may_write(&link) {
            let detail = "the daemon may not write to it, who has to write what is released: open it to be read";
            return Err(Error::told(ErrorKind::Permission, "a descriptor", detail, Some(libc::EACCES)));
        }
        let file = if let Some(file) = self.server.find(id) {
            file
        } else {
            let own = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&link);
            let own = own.map_err(|error| refused(ErrorKind::Permission, &error))?;
            let (file, awaited) = self.server.open(id, &own.into(), self.peer.pid)?;
            // Closed first: whoever may write makes a look at the file one that cannot tell whether it has changed.
            drop(given);
            self.server.await_mounts(&awaited);
            file
        };
        at(Point::Opened);
        let holder = self.server.holding.new_client();
        Ok(Handle { id, file: file.for_client(holder), size: metadata.len(), holder, access })
    }

    /// Nothing of it is used any more.
    fn close(&mut self, number: u64) {
        let Some(handle) = self.files.remove(&number) else { return };
        self.usage.files.fetch_sub(1, Ordering::Relaxed);
        handle.file.end_leases();
        at(Point::Closed);
        let ended: Vec<_> = self.leases.keys().filter(|(file, _)| *file == number).copied().collect();
        for (file, lease) in ended {
            self.end(file, lease);
        }
        self.copies.retain(number, &[]);
        self.settle_copies(0);
        self.server.holding.let_go(Thing::Handle(self.client, number));
        self.server.holding.note_gone(handle.holder);
        drop(handle.file);
        self.server.leave(handle.id);
    }
}

/// Mappings.
impl Session {
    fn ask(&mut self, file: u64, request: Request) -> Result<Answer> {
        let handle = self.handle(file)?;
        let (id, cached, holder, access) = (handle.id, handle.file.clone(), handle.holder, handle.access);
        if access == Access::Copies && is_writing(&request) {
            let detail = "this client may not write to the file, or is another user's: map it to be read";
            return Err(Error::told(ErrorKind::Permission, "mapping", detail, None));
        }
        let begun = begins(&request).filter(|(lease, _)| !self.leases.contains_key(&(file, *lease)));
        if let Some((lease, bytes)) = begun {
            self.begin(file, lease, bytes)?;
        }
        let ends = ends(&request);
        if let Request::Acquire { range, .. } = &request {
            self.server.recall(id, range.clone());
        }
        let published = published(&request);
        let brought = match &request {
            Request::Acquire { device, range, .. } if begun.is_some() => {
                let mapped = cached.leases().into_iter().any(|(_, of, mapped, is_used)| {
                    !is_used && of == *device && mapped.start <= range.start && range.end <= mapped.end
                });
                // What is not mapped is refused below.
                mapped.then(|| self.server.together.bring(id, &cached, *device, range)).flatten()
            }
            _ => None,
        };
        let mut answer = cached.ask(holder, request).map(|answer| match (answer, brought) {
            (Answer::Acquired { report, edition }, brought) => Answer::Acquired {
                report: brought.map_or(report, |brought| report.after_bringing(&brought)),
                // Copies are made anew for what is acquired.
                edition: if access == Access::Frames { edition } else { 0 },
            },
            (answer, _) => answer,
        });
        if let Ok(Answer::Acquired { report, .. } | Answer::Reported(report)) = &answer {
            self.say_moved(id, report);
        }
        if let Some(range) = published.filter(|_| answer.is_ok())
            && self.server.recall(id, range)
        {
            // Who reads past the mount sees what is in the file.
            answer = cached.sync().and(answer);
        }
        match (begun, ends) {
            (Some((lease, _)), _) if answer.is_err() => self.end(file, lease),
            (_, Ends::One(lease)) if answer.is_ok() => self.end(file, lease),
            (_, Ends::Some) => self.settle(file, &cached),
            _ => {}
        }
        answer
    }

    /// Says what has moved, to whoever wants to know that.
    fn say_moved(&self, id: FileId, report: &Report) {
        if (report.fetched, report.evicted, report.copied) == (0, 0, 0) || !tracing::enabled!(Level::DEBUG) {
            return;
        }
        let Counts { fetched, from_peers, evicted, copied, .. } = report.counts;
        let (client, file, ms) = (self.client, self.server.path(id), report.seconds * 1e3);
        tracing::debug!(client, file, fetched, from_peers, evicted, copied, ms, "pages moved");
    }

    /// What has no lease any more is not the client's.
    fn settle(&mut self, file: u64, cached: &CachedFile) {
        let leases = cached.leases();
        let numbers: BTreeSet<LeaseNumber> = leases.iter().map(|(number, ..)| *number).collect();
        let ended = self.leases.keys().filter(|(of, lease)| *of == file && !numbers.contains(lease));
        let ended: Vec<_> = ended.copied().collect();
        for (file, lease) in ended {
            self.end(file, lease);
        }
        let mapped: Vec<_> = leases.into_iter().map(|(_, device, range, _)| (device, range)).collect();
        self.copies.retain(file, &mapped);
        self.settle_copies(0);
    }

    /// The user pays for copies that are there, of which so many bytes are new.
    fn settle_copies(&mut self, new: u64) {
        let (paid, now) = (self.copied_bytes + new, self.copies.bytes());
        self.server.users.give(self.peer.uid, Kind::Copied, paid.saturating_sub(now));
        self.copied_bytes = now;
    }

    /// Frames of what is mapped, or of the client's own copies of what is acquired: so many as an answer has room for.
    fn frames(&mut self, file: u64, lease: LeaseNumber, device: usize, range: Range<u64>) -> Result<ToClient> {
        let handle = self.handle(file)?;
        let (cached, holder, access) = (handle.file.clone(), handle.holder, handle.access);
        let first = range.start..range.start.saturating_add(1);
        let frame_bytes = cached.ask(holder, Request::Frames { lease, device, range: first });
        let Answer::Frames { frame_bytes, .. } = frame_bytes? else { return Err(Error::bad_use("no frames")) };
        let end = (range.start / frame_bytes + FRAMES_MAX as u64 - 1).saturating_mul(frame_bytes);
        let range = range.start..range.end.min(end.max(range.start.saturating_add(1)));
        let (end, request) = (range.end, Request::Frames { lease, device, range: range.clone() });
        let Answer::Frames { frames, .. } = cached.ask(holder, request)? else {
            return Err(Error::bad_use("no frames"));
        };
        if access == Access::Frames {
            return Ok(ToClient::Frames { frame_bytes, end, frames });
        }
        let mut copies = vec![];
        for (at, _) in frames {
            let frame = at..at + frame_bytes;
            let part = range.start.max(frame.start)..range.end.min(frame.end);
            let (server, uid) = (Arc::clone(&self.server), self.peer.uid);
            let mut taken = 0;
            let take = |bytes| server.users.take(uid, Kind::Copied, bytes).map(|()| taken = bytes);
            let on = (device, &server.devices[device]);
            let filled = self.copies.fill((file, &cached), on, &frame, (lease, &part), &server.holding, take);
            self.settle_copies(taken);
            let number = filled?;
            copies.extend(number.map(|number| (at, number)));
        }
        Ok(ToClient::Frames { frame_bytes, end, frames: copies })
    }

    fn lend(&self, file: u64, device: usize, at: u64, frame: u32) -> Result<Option<(u64, OwnedFd)>> {
        let handle = self.handle(file)?;
        match handle.access {
            Access::Frames => handle.file.lend(device, at, frame),
            Access::Copies => self.copies.lend(file, device, at, frame),
        }
    }

    fn begin(&mut self, file: u64, lease: LeaseNumber, bytes: u64) -> Result<()> {
        let most = self.server.users.limits().leases;
        if self.leases.len() >= most {
            let detail = format!("{most} mappings, acquired ranges and pins of one connection: release some");
            return Err(Error::told(ErrorKind::OutOfMemory, "the daemon", detail, None));
        }
        self.server.users.take(self.peer.uid, Kind::Used, bytes)?;
        self.leases.insert((file, lease), bytes);
        self.usage.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn end(&mut self, file: u64, lease: LeaseNumber) {
        if let Some(bytes) = self.leases.remove(&(file, lease)) {
            self.server.users.give(self.peer.uid, Kind::Used, bytes);
            self.usage.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.server.watches.end(self.client);
        let numbers: Vec<u64> = self.files.keys().copied().collect();
        for number in numbers {
            self.close(number);
        }
        self.server.users.disconnect(self.peer.uid);
        self.server.forget(self.client);
    }
}

/// How a handle's holder and access are noted for the next server.
fn mark(holder: Client, is_lent: bool) -> u64 {
    holder << 1 | u64::from(is_lent)
}

/// As above.
pub(super) fn of_mark(mark: u64) -> (Client, bool) {
    (mark >> 1, mark & 1 == 1)
}

/// Whether it asks for something that only who may write may have.
fn is_writing(request: &Request) -> bool {
    match request {
        Request::Acquire { writable, .. } | Request::Release { writable, .. } | Request::Bring { writable, .. } => {
            *writable
        }
        _ => false,
    }
}

/// What others see when it is done.
fn published(request: &Request) -> Option<Range<u64>> {
    match request {
        Request::Release { range, writable: true, .. } => Some(range.clone()),
        Request::Sync { .. } => Some(0..u64::MAX),
        _ => None,
    }
}

/// The lease that a request begins, and how many bytes stay where they are by it.
fn begins(request: &Request) -> Option<(LeaseNumber, u64)> {
    let bytes = |range: &Range<u64>| range.end.saturating_sub(range.start);
    match request {
        Request::Map { lease, .. } => Some((*lease, 0)),
        Request::Acquire { lease, range, .. } | Request::Pin { lease, range, .. } => Some((*lease, bytes(range))),
        _ => None,
    }
}

/// What a request ends.
enum Ends {
    Nothing,
    One(LeaseNumber),
    /// Those that are not there afterwards.
    Some,
}

fn ends(request: &Request) -> Ends {
    match request {
        Request::Release { lease, .. } => Ends::One(*lease),
        Request::Unmap { .. } | Request::Unpin { .. } => Ends::Some,
        _ => Ends::Nothing,
    }
}

/// Whether this process may open a file to be written, which is not done: it would tell everybody that somebody may write.
fn may_write(link: &str) -> bool {
    let Ok(link) = CString::new(link) else { return false };
    // SAFETY: the path is a C string.
    unsafe { libc::faccessat(libc::AT_FDCWD, link.as_ptr(), libc::W_OK, libc::AT_EACCESS) == 0 }
}

/// What such files say depends on who opens them, and the daemon opens them anew.
fn refuse_special(file: &File) -> Result<()> {
    const SPECIAL: [i64; 7] = [
        libc::PROC_SUPER_MAGIC,
        libc::SYSFS_MAGIC,
        libc::DEBUGFS_MAGIC,
        libc::TRACEFS_MAGIC,
        libc::SECURITYFS_MAGIC,
        libc::CGROUP_SUPER_MAGIC,
        libc::CGROUP2_SUPER_MAGIC,
    ];
    // SAFETY: plain old data, for which zeroes are a valid value.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and there is room for the answer.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut found) } != 0 || SPECIAL.contains(&found.f_type) {
        let detail = "files of the system's own are not cached";
        return Err(Error::told(ErrorKind::Read, "a descriptor", detail, None));
    }
    Ok(())
}

fn refused(kind: ErrorKind, error: &io::Error) -> Error {
    Error::told(kind, "a descriptor", format!("the daemon cannot use it: {error}"), error.raw_os_error())
}

/// So many messages in a second.
struct Pace {
    most: u32,
    begun: Instant,
    count: u32,
}

impl Pace {
    fn new(most: u32) -> Self {
        Self { most: most.max(1), begun: Instant::now(), count: 0 }
    }

    /// One more, which waits if there were too many.
    fn wait(&mut self) {
        let second = Duration::from_secs(1);
        let elapsed = self.begun.elapsed();
        if self.count >= self.most && elapsed < second {
            thread::sleep(second.saturating_sub(elapsed));
        }
        if self.count >= self.most || elapsed >= second {
            (self.begun, self.count) = (Instant::now(), 0);
        }
        self.count += 1;
    }
}
