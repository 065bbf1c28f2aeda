//! A paging cache as a mounted file, in two processes: a keeper that holds everything, and a worker that does everything.
//!
//! ```text
//!   keeper   claims the backing, makes the directory, mounts the file; holds these and the chunks of device memory
//!   worker   opens the device, adopts directory and chunks, has unanswered requests sent again, serves
//! ```
//!
//! A worker that is killed leaves requests unanswered; its successor is given them again and everything that was in
//! device memory. It is started only when the killed process is gone whole, so that nothing of it writes any more.
//!
//! The service ends when the file is unmounted and closed: the worker then writes back, notes that the backing is whole,
//! and ends, and so does the keeper.
//!
//! Where workers serve a disk themselves ([`crate::attach::DiskServer`]), there is no file and no descriptor to hold: the
//! kernel keeps the disk between two workers, and it ends when the disk is taken apart.

use crate::attach::{DiskServer, Seat};
use crate::backing::Backing;
use crate::cache::{
    ChunkKeeper, Housekeeper, Legacy, Mode, OpenDevice, Options, PagingCache, format_backing, new_directory,
    new_directory_at,
};
use crate::directory::{Directory, Head};
use crate::serve::serve;
use bifolio_block::{BlockDevice, Error, ErrorKind, Result};
use bifolio_keeper::fuse::{Channel, FileMount};
use bifolio_keeper::{Ended, Event, Keeper, SharedMemory, Worker, process};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const DIRECTORY: u32 = 1;
const BACKING: u32 = 2;
const CHANNEL: u32 = 3;
/// How often complaints are looked for.
const TICK: Duration = Duration::from_millis(100);
/// How long a device may take to be opened before it is done without. A driver that nobody used takes seconds.
const OPENING_MAX: Duration = Duration::from_secs(30);

/// What a service serves.
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    /// The backing file; it is made, or made anew.
    pub backing: PathBuf,
    /// Bytes of content, a multiple of a page.
    pub size: u64,
    /// When writes have ended.
    pub mode: Mode,
    /// Bytes of device memory to begin with.
    pub memory_bytes: u64,
    /// Bytes of device memory at most.
    pub memory_bytes_max: u64,
    /// Bytes of device memory that are left to others; 0 to look at nobody.
    pub left_bytes: u64,
    /// The file to mount on, which exists; none where workers serve a disk themselves.
    pub mount: Option<PathBuf>,
    /// Where the directory is to have a name, in a file system of memory, so that it outlives the keeper; where it cannot, it
    /// goes with the last process.
    pub directory: Option<PathBuf>,
    /// Serving threads.
    pub threads: usize,
}

/// The keeper's side of a service, mounted and not served yet.
#[derive(Debug)]
pub struct Service {
    keeper: Keeper,
    directory: Directory,
    backing: PathBuf,
    mount: Option<PathBuf>,
    can_resend: bool,
}

impl Service {
    /// Makes the backing and the directory, and mounts the file.
    ///
    /// # Errors
    /// Those of making a backing, and of mounting.
    pub fn new(options: &ServiceOptions) -> Result<Self> {
        let backing = Backing::create(&options.backing, options.size)?;
        format_backing(&backing, options.size)?;
        let (size, most, mode) = (options.size, options.memory_bytes_max, options.mode);
        let named = options.directory.as_ref().and_then(|path| new_directory_at(path, size, most, mode).ok());
        let memory = named.map_or_else(|| new_directory(size, most, mode), Ok)?;
        let directory = Directory::adopt(memory)?;
        let chunks = (options.memory_bytes / directory.chunk_bytes()).min(directory.shape().chunks.into());
        directory.head(Head::TargetChunks).store(chunks, Ordering::Release);
        directory.head(Head::FreeBytes).store(options.left_bytes, Ordering::Release);
        let duplicate = |fd: std::io::Result<OwnedFd>| {
            fd.map_err(|error| Error::system(options.backing.display(), "duplicating a descriptor", error))
        };
        let mut keeper = Keeper::default();
        keeper.hold(DIRECTORY, duplicate(directory.memory().as_fd().try_clone_to_owned())?);
        keeper.hold(BACKING, duplicate(backing.file().try_clone().map(OwnedFd::from))?);
        let mut can_resend = true;
        if let Some(at) = &options.mount {
            let mount = FileMount::new(at, options.threads).map_err(|error| of_keeper(at, error))?;
            can_resend = mount.can_resend();
            mount.into_descriptors().into_iter().for_each(|fd| keeper.hold(CHANNEL, fd));
        }
        Ok(Self { keeper, directory, backing: options.backing.clone(), mount: options.mount.clone(), can_resend })
    }

    /// The directory: counters, and the wanted size.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The descriptor of the directory, by which others of the same user find it in `/proc` while this process runs.
    pub fn directory_fd(&self) -> i32 {
        self.directory.memory().as_fd().as_raw_fd()
    }

    /// Whether requests of a killed worker are sent again. Where they are not, the file ends with a worker that dies: what
    /// that had read would wait for ever, and so fails, as all later requests do. Its successor writes back what the device
    /// has.
    pub fn can_resend(&self) -> bool {
        self.can_resend
    }

    /// As on a kernel that does not send requests again (before Linux 6.9).
    #[must_use]
    pub fn without_resend(self) -> Self {
        Self { can_resend: false, ..self }
    }

    /// Keeps a worker running (`command` starts one, which calls [`work`]) until the file is unmounted and closed. The
    /// process that calls this must not use the file: between two workers nobody would answer it.
    ///
    /// # Errors
    /// `BadState` if no worker comes up, and the system's. The file is unmounted then, and its users get errors.
    pub fn run(
        mut self,
        command: &mut dyn FnMut() -> Command,
        is_stopped: &dyn Fn() -> bool,
        event: &mut dyn FnMut(Event),
    ) -> Result<()> {
        let Self { keeper, mount, can_resend, .. } = &mut self;
        let mut event = |what: Event| {
            if matches!(what, Event::Died(_)) && !*can_resend {
                // It is no error that it is unmounted already.
                let _ = mount.as_deref().map(bifolio_keeper::fuse::abort);
            }
            event(what);
        };
        let ended = keeper.run(command, is_stopped, &mut event);
        // Nobody serves it any more. It is no error that it is unmounted already.
        let _ = self.mount.as_deref().map(bifolio_keeper::fuse::unmount);
        let subject = self.mount.as_deref().unwrap_or(&self.backing);
        match ended.map_err(|error| of_keeper(subject, error))? {
            Ended::Well | Ended::Stopped => Ok(()),
            Ended::GaveUp(status) => {
                let detail = format!("its worker ended {status} before it served, several times; its messages say why");
                Err(Error::new(ErrorKind::BadState, subject.display(), detail))
            }
        }
    }
}

/// A worker's choices.
pub struct WorkOptions {
    /// The backing's path, for sentences.
    pub backing: PathBuf,
    /// Opens the device.
    pub open_device: OpenDevice,
    /// In write-back mode: how long a write waits at most before writing it back begins.
    pub flush_interval: Duration,
    /// The process is locked in memory and marked as a writer of memory, as far as that is permitted.
    pub locks: bool,
    /// The disk that is served in place of a mounted file.
    pub disk: Option<ServedDisk>,
}

/// A disk that workers serve.
#[derive(Debug, Clone)]
pub struct ServedDisk {
    /// How.
    pub server: &'static dyn DiskServer,
    /// Its device node.
    pub path: PathBuf,
    /// What tells it from another owner's.
    pub owner: PathBuf,
    /// Threads that answer.
    pub threads: usize,
}

/// A worker, from its start to its end: what the process that [`Service::run`] starts does. `say` gets what goes wrong and is
/// made good, each as a sentence.
///
/// # Errors
/// Those of the keeper, of adopting, and of writing back at the end.
pub fn work(options: WorkOptions, say: &dyn Fn(&str)) -> Result<()> {
    if options.locks {
        // What the keeper has of these is inherited, and it said what it has not.
        let _ = process::become_flusher();
        let _ = process::refuse_oom_kill();
        let _ = process::run_before_others();
        process::lock_memory().unwrap_or_else(|error| say(&error.to_string()));
    }
    let name = options.backing.clone();
    let about = |error| of_keeper(&name, error);
    let mut worker = Worker::connect().map_err(about)?;
    let missing =
        || Error::new(ErrorKind::BadState, name.display(), "the keeper did not hand over what a worker needs");
    let directory = worker.take(DIRECTORY).pop().ok_or_else(missing)?;
    let backing = worker.take(BACKING).pop().ok_or_else(missing)?;
    let channels: Vec<Channel> = worker.take(CHANNEL).into_iter().map(Channel::new).collect();
    let legacy = Legacy { directory: SharedMemory::map_own(directory).map_err(about)?, chunks: worker.take_memory() };
    let backing = Backing::adopt(File::from(backing), &options.backing)?;
    if let Some(why) = backing.why_cached() {
        say(&format!("{}: {why}", options.backing.display()));
    }
    let worker = Arc::new(worker);
    let own =
        Options { flush_interval: options.flush_interval, ..Options::new(Arc::new(backing), options.open_device, 0) };
    let keeper = Box::new(Chunks { worker: Arc::clone(&worker), name: name.clone() });
    let cache = Arc::new(PagingCache::adopt_closed(own, legacy, Some(keeper))?);
    let housekeeper = Housekeeper::start(Arc::clone(&cache))?;
    cache.await_device(OPENING_MAX);
    // Before anybody reads: what is read from here on is not sent again. Older kernels cannot, and have nothing to send
    // to a first worker.
    if let Some(first) = channels.first() {
        let _ = first.resend();
    }
    let ready = || {
        cache.directory().head(Head::Worker).store(std::process::id().into(), Ordering::Release);
        worker.ready().map_err(about)
    };
    let served = if let Some(disk) = &options.disk {
        // It can go on alone: the kernel has the disk, and this process everything else.
        process::outlive_parent();
        // The directory counts who took it over, this process among them.
        let is_first = cache.directory().head(Head::Generation).load(Ordering::Acquire) <= 1;
        let seat = Seat { disk: &disk.path, owner: &disk.owner, cache: &cache, threads: disk.threads, is_first };
        while_saying(&cache, say, || disk.server.serve(&seat, &ready))
    } else {
        ready()?;
        while_saying(&cache, say, || serve_all(&channels, &cache).map_err(about))
    };
    drop(housekeeper);
    let settled = cache.settle();
    cache.complaints().iter().for_each(|sentence| say(sentence));
    // The system takes back what this process has. Its end does not wait for a device that may hang.
    std::mem::forget(cache);
    served.and(settled)
}

fn serve_all(channels: &[Channel], cache: &PagingCache) -> bifolio_keeper::Result<()> {
    let turn = Mutex::new(());
    std::thread::scope(|scope| {
        let serving: Vec<_> = channels.iter().map(|channel| scope.spawn(|| serve(channel, cache, &turn))).collect();
        // All of them end before any of them is judged.
        let ended: Vec<_> = serving.into_iter().map(|thread| thread.join().unwrap_or(Ok(()))).collect();
        ended.into_iter().collect()
    })
}

/// Serves, and says meanwhile what goes wrong and is made good.
fn while_saying(cache: &PagingCache, say: &dyn Fn(&str), serve: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    std::thread::scope(|scope| {
        let serving = scope.spawn(serve);
        while !serving.is_finished() {
            std::thread::sleep(TICK);
            cache.complaints().iter().for_each(|sentence| say(sentence));
        }
        serving.join().unwrap_or(Ok(()))
    })
}

/// Chunks of device memory in the keeper's hands.
#[derive(Debug)]
struct Chunks {
    worker: Arc<Worker>,
    name: PathBuf,
}

impl ChunkKeeper for Chunks {
    fn keep(&self, chunk: u32, memory: OwnedFd) -> Result<()> {
        self.worker.keep(chunk, &memory).map_err(|error| of_keeper(&self.name, error))
    }

    fn release(&self, chunk: u32) {
        self.worker.release(chunk);
    }
}

fn of_keeper(subject: &Path, error: bifolio_keeper::Error) -> Error {
    use bifolio_keeper::ErrorKind as Kind;
    let kind = match error.kind() {
        Kind::Missing => ErrorKind::Missing,
        Kind::Permission => ErrorKind::Permission,
        Kind::InUse => ErrorKind::InUse,
        Kind::BadUse => ErrorKind::BadUse,
        Kind::Damaged => ErrorKind::Damaged,
        _ => ErrorKind::BadState,
    };
    Error::new(kind, subject.display(), error.to_string()).with_cause(error)
}
