//! The server's process: it has the cache, and does what clients ask for.
//!
//! It has nothing that must outlive it: pages, leases and records are in regions, connections and descriptors with the
//! keeper. It may be killed at any point. A panic ends it, too: what it leaves is looked at by the next, as after a kill.
//!
//! A thread for each connection does one request after the other. Lock order: `files`, `users`, and what the cache locks;
//! none of the two is held while a disk is waited for, but by who opens a file.

mod access;
mod copies;
mod holding;
mod kept;
mod log;
mod news;
mod pressure;
mod reclaim;
mod session;
mod together;
mod users;
mod watches;

pub(crate) use holding::Catalogue;

use crate::Options;
use crate::fault::{Point, at};
use crate::protocol::{ClientStatus, DeviceStatus, Event, Status, ToClient, encode_answer};
use crate::socket::{Socket, raise_limit_of_descriptors};
use access::may_connect;
use bifolio_cache::{Cache, CacheOptions, CachedFile, Client, Error, ErrorKind, FileId, Keeper, Result, Stats};
use bifolio_device::{Device, DeviceChoice};
use bifolio_keeper::Worker;
use holding::{Holding, Thing};
use kept::Kept;
use pressure::Reclaim;
use session::Session;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use together::Together;
use users::Users;
use watches::{Awaited, EVENT_TIME_MAX, Watches};

/// What the keeper holds from the beginning.
pub(crate) const LISTENER: u32 = 1;
pub(crate) const CATALOGUE: u32 = 2;

/// The variable by which a server finds its options.
pub(crate) const OPTIONS_VARIABLE: &str = "BIFOLIO_DAEMON_OPTIONS";

/// Files that stay cached at most while nobody has them open.
const IDLE_FILES_MAX: usize = 4096;

/// How long an answer waits at most for a client that does not read.
const SEND_SECONDS_MAX: i64 = 10;

/// How long the end of sessions is waited for.
const END_TIME_MAX: Duration = Duration::from_secs(10);

static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// What sessions share.
#[derive(Debug)]
pub(super) struct Server {
    options: Options,
    own_uid: u32,
    cache: Cache,
    devices: Vec<Device>,
    holding: Arc<Holding>,
    files: Mutex<BTreeMap<FileId, Resident>>,
    users: Users,
    together: Together,
    sessions: Mutex<BTreeMap<Client, Connected>>,
    watches: Watches,
    reclaim: Reclaim,
    /// Which server of the keeper's it is, and since when.
    number: u64,
    began: Instant,
}

/// A client that is connected, and what it has at the moment.
#[derive(Debug)]
struct Connected {
    socket: OwnedFd,
    usage: Arc<ClientUsage>,
}

/// What one client has: noted by its session, for whoever asks.
#[derive(Debug, Default)]
struct ClientUsage {
    pid: u32,
    uid: u32,
    files: AtomicU64,
    bytes: AtomicU64,
}

/// A file that is cached.
#[derive(Debug)]
struct Resident {
    file: CachedFile,
    /// How many handles there are of it.
    users: usize,
    /// Devices on which all of it stays.
    kept: BTreeMap<usize, Kept>,
}

/// A server, from its start to its end: what the process does that [`crate::Daemon::run`] starts. What is to be told goes to
/// standard error.
///
/// # Errors
/// Those of the keeper, and of opening devices. What the keeper holds is as it was.
pub fn serve() -> Result<()> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        hook(what);
        std::process::abort();
    }));
    // SAFETY: the handler stores one number. The terminal's interrupt goes to the keeper, who passes it on.
    unsafe {
        libc::signal(libc::SIGTERM, begin_to_end as extern "C" fn(i32) as libc::sighandler_t);
        libc::signal(libc::SIGINT, libc::SIG_IGN);
    }
    log::begin();
    raise_limit_of_descriptors();
    let text = std::env::var(OPTIONS_VARIABLE).ok();
    let options: Options = text
        .and_then(|text| serde_json::from_str(&text).ok())
        .ok_or_else(|| Error::bad_use("a server is started by its keeper, and not by hand"))?;
    let told = |error: &bifolio_keeper::Error| told("the keeper", error);
    let mut worker = Worker::connect().map_err(|error| told(&error))?;
    let mut held = |number| worker.take(number).pop();
    let (listener, catalogue) = (held(LISTENER), held(CATALOGUE));
    let missing = || Error::bad_use("the keeper has not handed over everything");
    let (listener, catalogue) = (Socket::of(listener.ok_or_else(missing)?), catalogue.ok_or_else(missing)?);
    let holding = Arc::new(Holding::find(worker, catalogue).map_err(|error| told(&error))?);
    let server = Arc::new(Server::new(options, holding)?);
    server.go_on();
    at(Point::FoundAll);
    server.holding.ready().map_err(|error| told(&error))?;
    server.watch_memory();
    server.tell_of_versions();
    server.accept(&listener);
    server.end();
    Ok(())
}

extern "C" fn begin_to_end(_: i32) {
    IS_ENDING.store(true, Ordering::Relaxed);
}

/// Something that somebody has to do something about.
pub(super) fn say(what: &str) {
    tracing::warn!("{what}");
}

fn told(subject: &str, error: &dyn std::fmt::Display) -> Error {
    Error::told(ErrorKind::Device, subject, error.to_string(), None)
}

impl Server {
    fn new(options: Options, holding: Arc<Holding>) -> Result<Self> {
        let choice = |name: &String| {
            let choice: DeviceChoice = name.parse().map_err(|error| told(name, &error))?;
            Ok(choice)
        };
        let mut choices = options.devices.iter().map(choice).collect::<Result<Vec<_>>>()?;
        // Programs on whichever GPU find it served.
        if matches!(choices[..], [] | [DeviceChoice::Auto]) {
            let all = bifolio_device::choose_all(&bifolio_device::discover());
            choices = all.into_iter().map(DeviceChoice::Exactly).collect();
        }
        let router = |choice: &DeviceChoice| {
            bifolio_io::process::router(*choice).map_err(|error| told(&choice.to_string(), &error))
        };
        let routers = choices.iter().map(router).collect::<Result<Vec<_>>>()?;
        let devices = routers.iter().map(|router| router.device().clone()).collect();
        let cache_options = CacheOptions {
            page_bytes: options.page_bytes,
            budget_bytes: options.memory_bytes,
            frame_bytes: options.frame_bytes,
            ..CacheOptions::default()
        };
        // Before any region is found, so that leases of who is there go on.
        for thing in holding.things() {
            if let Thing::Connection(client) = thing
                && connection(&holding, client).is_some_and(|socket| !socket.has_hung_up())
            {
                holding.note_alive(client);
                for holder in holders(&holding, client) {
                    holding.note_alive(holder);
                }
            }
        }
        let cache = Cache::kept(&routers, cache_options, Arc::clone(&holding) as Arc<dyn Keeper>)?;
        // SAFETY: asks for a number.
        let own_uid = unsafe { libc::geteuid() };
        let users = Users::new(options.limits);
        let (files, sessions) = (Mutex::default(), Mutex::default());
        let (together, watches) = (Together::new(&holding, routers.len()), Watches::new(Arc::clone(&holding)));
        let (number, began, reclaim) = (holding.new_server(), Instant::now(), Reclaim::new(routers.len()));
        Ok(Self {
            options,
            own_uid,
            cache,
            devices,
            holding,
            files,
            users,
            together,
            sessions,
            watches,
            reclaim,
            number,
            began,
        })
    }

    /// Finds what another server has left: files, and clients who are told that it is served again.
    fn go_on(self: &Arc<Self>) {
        let things = self.holding.things();
        let mut is_all = true;
        for thing in &things {
            let Thing::File(id) = *thing else { continue };
            let Some((Some(descriptor), _)) = self.holding.get(*thing) else { continue };
            match self.cache.open_descriptor(descriptor.as_fd()) {
                Ok(file) => _ = self.files().insert(id, Resident { file, users: 0, kept: BTreeMap::new() }),
                Err(error) => {
                    is_all = false;
                    say(&error.to_string());
                }
            }
        }
        if is_all {
            self.cache.forget_left_frames();
        }
        let mut sessions = vec![];
        for thing in &things {
            let Thing::Connection(client) = *thing else { continue };
            let socket = connection(&self.holding, client).filter(|_| self.holding.is_alive(client));
            let session = socket.and_then(|socket| Session::resume(self, client, socket));
            match session {
                Some(session) => sessions.push(session),
                None => self.forget(client),
            }
        }
        // Mounts are there before anybody acquires what they are to recall.
        for session in sessions.iter().filter(|session| self.watches.was_noted(session.client())) {
            self.begin_to_watch(session);
        }
        for session in sessions {
            self.start(session, true);
        }
        // Of those that came to nothing.
        let is_lost = |thing: &Thing| matches!(thing, Thing::Handle(client, _) if !self.holding.is_alive(*client));
        things.iter().filter(|thing| is_lost(thing)).for_each(|thing| self.holding.let_go(*thing));
        self.keep_again();
        self.drop_idle();
        let (number, files, clients) = (self.number, self.files().len(), self.sessions().len());
        tracing::info!(number, files, clients, "this server goes on where the one before has ended");
    }

    fn accept(self: &Arc<Self>, listener: &Socket) {
        let mut last_used = Instant::now();
        let idle_time = Duration::from_secs(self.options.idle_exit_seconds.into());
        while !IS_ENDING.load(Ordering::Relaxed) {
            if !self.sessions().is_empty() {
                last_used = Instant::now();
            } else if !idle_time.is_zero() && last_used.elapsed() >= idle_time {
                return;
            }
            let mut poll = libc::pollfd { fd: listener.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one structure, which is ours.
            if unsafe { libc::poll(&raw mut poll, 1, 100) } <= 0 {
                continue;
            }
            match listener.accept() {
                Ok(socket) => self.welcome(socket),
                // Without descriptors, perhaps: others end.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(20)),
                Err(_) => {}
            }
        }
    }

    /// Who may not connect is told so.
    fn welcome(self: &Arc<Self>, socket: Socket) {
        socket.limit_sends(SEND_SECONDS_MAX);
        let refuse = |why: &str| {
            let error = Error::told(ErrorKind::Permission, "the daemon", why, None);
            let _ = socket.send_now(&encode_answer(1, &ToClient::failed(&error)));
        };
        let Ok(peer) = socket.peer() else { return };
        if !may_connect(&peer, self.own_uid, &self.options) {
            return refuse("it serves its own user, and those of its group: start one of your own");
        }
        if let Err(why) = self.users.connect(peer.uid) {
            return refuse(&why);
        }
        at(Point::Accepted);
        let client = self.holding.new_client();
        self.holding.note_alive(client);
        let held = socket.duplicate().and_then(|fd| self.holding.hold(Thing::Connection(client), [0; 3], Some(fd)));
        if let Err(error) = held {
            refuse(&format!("there is no room for another connection: {error}"));
            self.users.disconnect(peer.uid);
            return self.forget(client);
        }
        tracing::debug!(client, pid = peer.pid, uid = peer.uid, "connected");
        self.start(Session::new(self, client, peer, socket), false);
    }

    fn start(self: &Arc<Self>, session: Session, is_resumed: bool) {
        let client = session.client();
        if let Ok(socket) = session.duplicate() {
            self.sessions().insert(client, Connected { socket, usage: session.usage() });
        }
        let run = move || {
            if is_resumed {
                session.greet_again();
            }
            session.run();
        };
        // The closure is gone with the error, and the session with it, who ends everything.
        if let Err(error) = thread::Builder::new().name(format!("client {client}")).spawn(run) {
            say(&format!("no thread for a client: {error}"));
        }
    }

    /// What it holds, and has done.
    fn status(&self) -> Status {
        let (known, read) = (self.cache.stats(), self.cache.read_bytes());
        let mut all = self.cache.counts();
        let device = |(number, (device, read_bytes)): (usize, (&Device, [u64; _]))| {
            let stats = known.iter().find(|stats| stats.device == device.id());
            stats.map_or_else(DeviceStatus::default, |stats| {
                let Stats { used_bytes, budget_bytes, pages, behind, pending, mut counts, .. } = *stats;
                let brought = self.together.brought(number);
                counts.hits = counts.hits.saturating_sub(brought);
                all.hits = all.hits.saturating_sub(brought);
                let (left_bytes, target_bytes) = (self.cache.left_bytes(number), self.options.free_bytes);
                let (free_bytes, reclaimed_bytes) = self.reclaim.bytes(number);
                let known =
                    DeviceStatus { used_bytes, budget_bytes, pages, behind, pending, counts, ..Default::default() };
                DeviceStatus { left_bytes, free_bytes, target_bytes, reclaimed_bytes, read_bytes, ..known }
            })
        };
        let devices = self.devices.iter().zip(read).enumerate().map(device).collect();
        let recalled = self.recalled_bytes();
        let client = |(number, connected): (&Client, &Connected)| {
            let recalled_bytes = recalled.get(number).copied().unwrap_or(0);
            let ClientUsage { pid, uid, files, bytes } = &*connected.usage;
            let (files, used_bytes) = (files.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed));
            ClientStatus { pid: *pid, uid: *uid, files, used_bytes, recalled_bytes }
        };
        let clients = self.sessions().iter().map(client).collect();
        let uptime_ms = self.began.elapsed().as_millis() as u64;
        Status { servers: self.number, uptime_ms, counts: all, devices, clients }
    }

    /// A client is gone, and has nothing any more.
    fn forget(&self, client: Client) {
        for thing in self.holding.things() {
            if matches!(thing, Thing::Handle(of, _) if of == client) {
                self.holding.let_go(thing);
            }
        }
        self.holding.let_go(Thing::Connection(client));
        self.holding.note_gone(client);
        tracing::debug!(client, "disconnected");
        self.sessions().remove(&client);
    }

    /// Has everything written that files lack, and says what cannot be.
    fn end(self: Arc<Self>) {
        for connected in std::mem::take(&mut *self.sessions()).into_values() {
            Socket::of(connected.socket).shut_down();
        }
        tracing::info!("the daemon ends: what files lack is written");
        let begin = Instant::now();
        while Arc::strong_count(&self) > 1 && begin.elapsed() < END_TIME_MAX {
            thread::sleep(Duration::from_millis(2));
        }
        if let Err(error) = self.cache.sync() {
            say(&error.to_string());
        }
        for (id, mut resident) in std::mem::take(&mut *self.files()) {
            resident.kept.clear();
            if let Err(error) = resident.file.close() {
                say(&error.to_string());
            }
            self.holding.let_go(Thing::File(id));
        }
    }
}

/// Files.
impl Server {
    /// The cached file of a descriptor that was opened to be read, with one user more, who is of some process; and what
    /// mounts are told of it.
    fn open(&self, id: FileId, descriptor: &OwnedFd, process: i32) -> Result<(CachedFile, Awaited)> {
        let mut files = self.files();
        if let Some(resident) = files.get_mut(&id) {
            resident.users += 1;
            return Ok((resident.file.clone(), Awaited::default()));
        }
        let file = {
            let failed = |error: &io::Error| told("the keeper", error);
            let kept = descriptor.try_clone().map_err(|error| failed(&error))?;
            self.holding.hold(Thing::File(id), [0; 3], Some(kept)).map_err(|error| failed(&error))?;
            // Of what cannot be opened a region may be held, for who comes next.
            self.cache.open_descriptor(descriptor.as_fd())?
        };
        files.insert(id, Resident { file: file.clone(), users: 1, kept: BTreeMap::new() });
        Ok((file, self.watches.tell(&Event::Wanted(id), Some(process))))
    }

    /// One that is cached already, with one user more.
    fn find(&self, id: FileId) -> Option<CachedFile> {
        let mut files = self.files();
        let resident = files.get_mut(&id)?;
        resident.users += 1;
        Some(resident.file.clone())
    }

    /// One user less. The file stays cached.
    fn leave(&self, id: FileId) {
        if let Some(resident) = self.files().get_mut(&id) {
            resident.users -= 1;
        }
        self.drop_idle();
    }

    /// Closes files that nobody has open: deleted ones, and others if there are too many. What cannot be written of one
    /// stays with the keeper, for whoever opens it.
    fn drop_idle(&self) {
        let dropped: Vec<(FileId, Resident)> = {
            let mut files = self.files();
            let idle: Vec<FileId> = files.iter().filter(|(_, file)| file.users == 0).map(|(id, _)| *id).collect();
            let mut surplus = idle.len().saturating_sub(IDLE_FILES_MAX);
            let is_deleted = |id: &FileId| {
                let (descriptor, _) = self.holding.get(Thing::File(*id))?;
                let metadata = std::fs::File::from(descriptor?).metadata().ok()?;
                Some(std::os::unix::fs::MetadataExt::nlink(&metadata) == 0)
            };
            let mut is_gone = |id: &FileId| {
                let is_surplus = surplus > 0 && files[id].kept.is_empty();
                surplus -= usize::from(is_surplus);
                is_surplus || is_deleted(id).unwrap_or(false)
            };
            let gone: Vec<FileId> = idle.into_iter().filter(|id| is_gone(id)).collect();
            gone.into_iter().filter_map(|id| Some((id, files.remove(&id)?))).collect()
        };
        for (id, Resident { file, kept, .. }) in dropped {
            drop(kept);
            let closed = file.close();
            let files = self.files();
            match closed {
                Err(error) => say(&error.to_string()),
                // Somebody may have opened it meanwhile.
                Ok(()) if !files.contains_key(&id) => {
                    self.holding.let_go(Thing::File(id));
                    // The file has everything by now, and is as good as the cache. Nobody waits until mounts know it.
                    drop(self.watches.tell(&Event::Unwanted(id), None));
                }
                Ok(()) => {}
            }
        }
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<FileId, Resident>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<Client, Connected>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Mounts.
impl Server {
    /// A session is a mount's from now on.
    fn begin_to_watch(&self, session: &Session) {
        let Ok(socket) = session.duplicate() else { return };
        let files = self.files();
        self.watches.begin(session.client(), session.process(), socket, files.keys().copied());
    }

    /// Waits until mounts have done what they were told. Whether programs have the file open past one of them.
    fn await_mounts(&self, awaited: &Awaited) -> bool {
        let outcome = self.watches.wait(awaited);
        if outcome.late > 0 {
            let seconds = EVENT_TIME_MAX.as_secs();
            say(&format!("{} mounts have not answered for {seconds} s: they are disconnected", outcome.late));
        }
        outcome.is_past
    }

    /// Mounts have the kernel give back what programs have stored into mappings of a range, and forget what they were given.
    /// Whether programs have the file open past one of them.
    fn recall(&self, id: FileId, range: Range<u64>) -> bool {
        self.await_mounts(&self.watches.tell(&Event::Recall(id, range), None))
    }
}

/// As whom a client has its files open.
fn holders(holding: &Holding, client: Client) -> Vec<Client> {
    let things = holding.things().into_iter().filter(|thing| matches!(thing, Thing::Handle(of, _) if *of == client));
    things.filter_map(|thing| Some(session::of_mark(holding.get(thing)?.1[2]).0)).collect()
}

fn connection(holding: &Holding, client: Client) -> Option<Socket> {
    Some(Socket::of(holding.get(Thing::Connection(client))?.0?))
}
