//! The keeper's process: it listens, holds descriptors, starts the server, and starts it again when it dies. It opens no
//! device, so that no driver can take it down.
//!
//! `SIGTERM` and `SIGINT` are passed on to the server, which writes what files lack and ends; the keeper ends after it.

use crate::Options;
use crate::server::{CATALOGUE, Catalogue, LISTENER, OPTIONS_VARIABLE};
use crate::socket::{Socket, raise_limit_of_descriptors};
use bifolio_cache::{Error, ErrorKind, Result};
use bifolio_keeper::{Ended, Keeper};
use std::cell::Cell;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

pub use bifolio_keeper::Event;

/// The first descriptor that a service manager hands over.
const FIRST_HANDED: i32 = 3;

static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// What holds everything, before it runs.
#[derive(Debug)]
pub struct Daemon {
    keeper: Keeper,
    options: Options,
    /// Nobody else listens there. None where a service manager does.
    lock: Option<File>,
}

impl Daemon {
    /// Listens, or takes over the socket that a service manager listens at (`LISTEN_FDS`).
    ///
    /// # Errors
    /// `BadUse` if somebody serves there already or others could put another socket there, `Device` for what the system
    /// refuses.
    pub fn new(options: Options) -> Result<Self> {
        let (listener, lock) = match handed_over() {
            Some(listener) => (listener, None),
            None => listen(&options)?,
        };
        let mut keeper = Keeper::unlocked();
        let failed = |error: io::Error| failed(&options.socket, &error);
        keeper.hold(LISTENER, listener.duplicate().map_err(failed)?);
        let catalogue = Catalogue::create().map_err(|error| told(&options.socket, &error))?;
        keeper.hold(CATALOGUE, catalogue.as_fd().try_clone_to_owned().map_err(failed)?);
        Ok(Self { keeper, options, lock })
    }

    /// Keeps a server running until it ends well, as after `SIGTERM`. `command` starts a process that calls
    /// [`crate::serve`]. The thread that calls this has to stay: the kernel ends the server with it.
    ///
    /// # Errors
    /// `Gone` if no server comes up, and the system's.
    pub fn run(mut self, command: &mut dyn FnMut() -> Command, event: &mut dyn FnMut(Event)) -> Result<()> {
        let socket = self.options.socket.clone();
        raise_limit_of_descriptors();
        pass_signals();
        let text = serde_json::to_string(&self.options).map_err(|error| told(&socket, &error))?;
        let mut start = || {
            let mut command = command();
            command.env(OPTIONS_VARIABLE, &text).env_remove("LISTEN_FDS").env_remove("LISTEN_PID");
            command
        };
        let (server, is_ready, is_told) = (Cell::new(0), Cell::new(false), Cell::new(false));
        // It is never stopped from here: it is told to end, each of them once, and when it serves. Before that it could do
        // nothing but die, and after some that did the keeper would give up, with all that is not written.
        let is_stopped = || {
            if IS_ENDING.load(Ordering::Relaxed) && is_ready.get() && !is_told.replace(true) {
                // SAFETY: it is a child of ours that has not been waited for, or was a moment ago.
                unsafe { libc::kill(server.get(), libc::SIGTERM) };
            }
            false
        };
        let ended = self.keeper.run(&mut start, &is_stopped, &mut |happened| {
            match happened {
                Event::Ready => is_ready.set(true),
                Event::Started(pid) => {
                    server.set(pid as i32);
                    is_told.set(false);
                }
                Event::Died(_) | Event::NotStarted(_) => is_ready.set(false),
            }
            event(happened);
        });
        if self.lock.is_some() {
            let _ = std::fs::remove_file(&socket);
        }
        match ended.map_err(|error| told(&socket, &error))? {
            Ended::Well | Ended::Stopped => Ok(()),
            Ended::GaveUp(status) => {
                let detail = format!("its server ended {status} before it served, several times; its messages say why");
                Err(Error::told(ErrorKind::Gone, &socket.display().to_string(), detail, None))
            }
        }
    }
}

/// What whoever runs a daemon is told in one line of what has happened; nothing of what is as usual.
pub fn line_of(event: &Event, socket: &Path) -> Option<String> {
    match event {
        Event::Ready => Some(format!("bifolio: serving at {}", socket.display())),
        Event::Died(status) => Some(format!("bifolio: the server ended ({status}): another one is started")),
        Event::NotStarted(error) => Some(format!("bifolio: {error}; it is tried again")),
        Event::Started(_) => None,
    }
}

/// Where a user's daemon listens: where `BIFOLIO_SOCKET` says, else at `bifolio/cache.sock` in the user's runtime folder, and
/// in `/run` for root.
///
/// # Errors
/// `BadUse` where there is no such folder.
pub fn default_socket() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("BIFOLIO_SOCKET").filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    // SAFETY: asks for a number.
    let folder = if unsafe { libc::geteuid() } == 0 {
        Some(PathBuf::from("/run"))
    } else {
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute())
    };
    let why = "XDG_RUNTIME_DIR names no folder: say where the daemon listens, by BIFOLIO_SOCKET for one";
    let folder = folder.ok_or_else(|| Error::told(ErrorKind::BadUse, "the daemon", why, None))?;
    Ok(folder.join("bifolio/cache.sock"))
}

/// Whether nobody but the user and root can put another socket in the place of one.
pub(crate) fn check_folder(path: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let metadata = std::fs::metadata(folder).map_err(|error| failed(folder, &error))?;
    // SAFETY: asks for a number.
    let own = unsafe { libc::geteuid() };
    let is_writable = metadata.mode() & 0o022 != 0 && metadata.mode() & libc::S_ISVTX == 0;
    if is_writable || !(metadata.uid() == own || metadata.uid() == 0) {
        let detail = "others can put another socket there: take a folder that only its user or root may write to";
        return Err(Error::told(ErrorKind::Permission, &folder.display().to_string(), detail, None));
    }
    Ok(())
}

fn listen(options: &Options) -> Result<(Socket, Option<File>)> {
    let path = &options.socket;
    let failed = |error: io::Error| failed(path, &error);
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        let is_shared = options.serves_others || options.group.is_some();
        let mode = if is_shared { 0o755 } else { 0o700 };
        DirBuilder::new().recursive(true).mode(mode).create(folder).map_err(failed)?;
    }
    check_folder(path)?;
    let lock_path = path.with_extension("lock");
    let lock = File::options().create(true).truncate(false).write(true).open(lock_path).map_err(failed)?;
    // SAFETY: the descriptor is open.
    if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        let detail = "another daemon serves there: end it first, or take another socket";
        return Err(Error::told(ErrorKind::BadUse, &path.display().to_string(), detail, Some(libc::EADDRINUSE)));
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()) => {
            // Of one that was killed: whoever listens has the lock.
            std::fs::remove_file(path).map_err(failed)?;
        }
        Ok(_) => {
            let detail = "something else than a socket is there";
            return Err(Error::told(ErrorKind::BadUse, &path.display().to_string(), detail, None));
        }
        Err(_) => {}
    }
    let mode = if options.serves_others {
        0o666
    } else if options.group.is_some() {
        0o660
    } else {
        0o600
    };
    let listener = Socket::listen(path, mode).map_err(failed)?;
    if let Some(group) = options.group {
        std::os::unix::fs::chown(path, None, Some(group)).map_err(failed)?;
    }
    Ok((listener, Some(lock)))
}

/// The socket that a service manager listens at for this process.
fn handed_over() -> Option<Socket> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID")? != std::process::id() || number("LISTEN_FDS")? == 0 {
        return None;
    }
    // SAFETY: takes numbers; what is no descriptor is refused. Children do not inherit it from here on.
    if unsafe { libc::fcntl(FIRST_HANDED, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return None;
    }
    // SAFETY: it is open, and was opened for this process to take.
    Some(Socket::of(unsafe { OwnedFd::from_raw_fd(FIRST_HANDED) }))
}

extern "C" fn begin_to_end(_: i32) {
    IS_ENDING.store(true, Ordering::Relaxed);
}

fn pass_signals() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the handler stores one number.
        unsafe { libc::signal(signal, begin_to_end as extern "C" fn(i32) as libc::sighandler_t) };
    }
}

fn failed(path: &Path, error: &io::Error) -> Error {
    Error::told(ErrorKind::Device, &path.display().to_string(), error.to_string(), error.raw_os_error())
}

fn told(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::told(ErrorKind::Device, &path.display().to_string(), error.to_string(), None)
}
