//! A device for NBD clients: nbdkit with a plugin, from its start to its end.
//!
//! The plugin is a library of its own (`bifolio-nbdkit` for volumes): it calls functions that exist in nbdkit's process
//! only, and opens the device there, so that requests cross no process. Here is what every such export needs: starting
//! nbdkit, handing it a secret, seeing when it serves and what it says, and ending it so that it flushes.
//!
//! A secret goes to nbdkit through a file in memory that only it inherits. nbdkit ends with this process, however that
//! ends. The socket gets the mode that nbdkit gives it, by which only its owner can connect.

use crate::{Error, ErrorKind, Result};
use std::ffi::{CStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How soon an end, and a request to stop, is noticed.
const TICK: Duration = Duration::from_millis(20);
/// How long requests in flight may take to end.
const END_TIME_MAX: Duration = Duration::from_secs(30);

/// What is exported, and where to.
#[derive(Debug)]
pub struct Export {
    /// The plugin's file.
    pub plugin: PathBuf,
    /// The socket that clients connect to.
    pub socket: PathBuf,
    /// Writes are refused.
    pub is_read_only: bool,
    /// The plugin's own parameters, each `name=value`.
    pub parameters: Vec<OsString>,
    /// A parameter whose value is the number of an inherited descriptor, and the file behind it; see [`secret_file`].
    pub secret: Option<(&'static str, File)>,
}

/// What happens while a device is served.
#[derive(Debug)]
pub enum Event<'a> {
    /// Clients can connect.
    Ready,
    /// nbdkit says something, without its own name before it.
    Said(&'a str),
}

/// How an export ended.
#[derive(Debug)]
pub enum Ended {
    /// As it should, with everything flushed.
    Well,
    /// It was stopped before it served anybody.
    BeforeReady,
    /// nbdkit failed.
    Failed {
        /// How it ended.
        status: ExitStatus,
        /// What it said that no event has told.
        said: Vec<String>,
        /// Whether clients could connect before.
        was_ready: bool,
    },
}

/// nbdkit while it runs.
#[derive(Debug)]
pub struct Server {
    child: Child,
    socket: PathBuf,
    /// nbdkit writes its number there when it accepts connections; a file with a name would be left behind by a kill.
    ready: File,
    said: Receiver<String>,
}

/// A file that has no name and that is inherited by nobody else, for [`Export::secret`].
///
/// # Errors
/// The system's.
pub fn secret_file(secret: &[u8]) -> Result<File> {
    let mut file = file_in_memory(c"bifolio-key")?;
    let written = file.write_all(secret).and_then(|()| file.rewind());
    written.map_err(|error| Error::writing("the key", "handing it to nbdkit", error))?;
    Ok(file)
}

/// Removes a socket that nobody listens on.
///
/// # Errors
/// `InUse` for one that somebody serves on, `Exists` for what is no socket, and the system's.
pub fn free(socket: &Path) -> Result<()> {
    let refused = |kind, detail: &str| Err(Error::new(kind, socket.display(), detail));
    match std::fs::symlink_metadata(socket) {
        Err(_) => Ok(()),
        Ok(there) if !there.file_type().is_socket() => {
            refused(ErrorKind::Exists, "it exists and is not a socket; choose another path")
        }
        Ok(_) if UnixStream::connect(socket).is_ok() => {
            refused(ErrorKind::InUse, "another process serves on this socket; choose another path")
        }
        Ok(_) => std::fs::remove_file(socket)
            .map_err(|error| Error::writing(socket.display(), "removing an old socket", error)),
    }
}

impl Server {
    /// Starts nbdkit.
    ///
    /// # Errors
    /// `Missing` where it is not installed, and the system's.
    pub fn start(export: &Export) -> Result<Self> {
        let ready = file_in_memory(c"bifolio-ready")?;
        let mut child = command(export, &ready).spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let detail = "it is not installed (Debian, Ubuntu, Fedora: the package nbdkit); --mount needs none";
                Error::new(ErrorKind::Missing, "nbdkit", detail)
            }
            _ => Error::system("nbdkit", "starting it", error),
        })?;
        let (sender, said) = channel();
        if let Some(stderr) = child.stderr.take() {
            let forward = std::thread::Builder::new().spawn(move || forward(stderr, &sender));
            if let Err(error) = forward {
                let _ = child.kill().and_then(|()| child.wait());
                return Err(Error::system("nbdkit", "starting a thread that listens to it", error));
            }
        }
        Ok(Self { child, socket: export.socket.clone(), ready, said })
    }

    /// Serves until nbdkit ends, `is_stopped` says so, or `event` says not to go on. The socket is gone then.
    ///
    /// # Errors
    /// The system's.
    pub fn serve(mut self, is_stopped: &dyn Fn() -> bool, event: &mut dyn FnMut(Event<'_>) -> bool) -> Result<Ended> {
        let (mut was_ready, mut is_wanted) = (false, true);
        let status = loop {
            if let Some(status) = self.status()? {
                break status;
            }
            if !was_ready && self.ready.metadata().is_ok_and(|file| file.len() > 0) {
                was_ready = true;
                is_wanted = event(Event::Ready);
            }
            let is_over = !is_wanted || is_stopped();
            if is_over && !was_ready {
                // It computes a key, or waits for a lock, and sees no signal until then. Nothing is served yet.
                let _ = self.child.kill().and_then(|()| self.child.wait());
                let _ = std::fs::remove_file(&self.socket);
                return Ok(Ended::BeforeReady);
            }
            if is_over {
                break self.end()?;
            }
            if was_ready {
                for line in self.said.try_iter() {
                    is_wanted &= event(Event::Said(&line));
                }
            }
            std::thread::sleep(TICK);
        };
        let _ = std::fs::remove_file(&self.socket);
        if status.success() {
            return Ok(Ended::Well);
        }
        Ok(Ended::Failed { status, said: self.said.iter().collect(), was_ready })
    }

    fn status(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(|error| Error::system("nbdkit", "waiting for it", error))
    }

    /// Asks it to end, which flushes, and makes it end where it does not.
    fn end(&mut self) -> Result<ExitStatus> {
        // SAFETY: takes no memory; the child has not been waited for, so its number is still its own.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let begun = Instant::now();
        while begun.elapsed() < END_TIME_MAX {
            if let Some(status) = self.status()? {
                return Ok(status);
            }
            std::thread::sleep(TICK);
        }
        let _ = self.child.kill();
        self.child.wait().map_err(|error| Error::system("nbdkit", "waiting for it", error))
    }
}

fn forward(stderr: ChildStderr, sender: &Sender<String>) {
    for line in BufReader::new(stderr).lines().map_while(std::result::Result::ok) {
        if sender.send(sentence(&line).to_owned()).is_err() {
            return;
        }
    }
}

/// What nbdkit says without its own name before it.
fn sentence(line: &str) -> &str {
    let line = line.strip_prefix("nbdkit: ").unwrap_or(line);
    match line.split_once("error: ") {
        // "bifolio[2]: error: ..." on a connection, "error: ..." before there is one.
        Some((before, rest)) if before.is_empty() || before.ends_with("]: ") => rest,
        _ => line,
    }
}

fn command(export: &Export, ready: &File) -> Command {
    let mut command = Command::new("nbdkit");
    let pid_file = format!("/proc/{}/fd/{}", std::process::id(), ready.as_raw_fd());
    command.args(["-f", "--exit-with-parent", "-P", &pid_file, "-U"]).arg(&export.socket);
    if export.is_read_only {
        command.arg("-r");
    }
    command.arg(&export.plugin).args(&export.parameters);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    if let Some((name, file)) = &export.secret {
        let fd = file.as_raw_fd();
        command.arg(format!("{name}={fd}"));
        let inherit = move || {
            // SAFETY: safe after a fork, takes no memory, and the descriptor is open.
            unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
            Ok(())
        };
        // SAFETY: the closure calls nothing that a child may not call after a fork.
        unsafe { command.pre_exec(inherit) };
    }
    command
}

fn file_in_memory(name: &CStr) -> Result<File> {
    // SAFETY: the call copies the name.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Error::system("a file in memory", "making it", io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_before_an_error_is_left_out() {
        assert_eq!(sentence("nbdkit: error: disk.img: it was truncated"), "disk.img: it was truncated");
        assert_eq!(sentence("nbdkit: bifolio[3]: error: disk.img: full"), "disk.img: full");
        assert_eq!(sentence("nbdkit: disk.img: an error: none"), "disk.img: an error: none");
        assert_eq!(sentence("something else"), "something else");
    }

    #[test]
    fn a_path_is_freed_of_an_old_socket_and_of_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        free(&path).unwrap();
        std::fs::write(&path, "a file").unwrap();
        assert_eq!(free(&path).unwrap_err().kind(), ErrorKind::Exists);
        std::fs::remove_file(&path).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(free(&path).unwrap_err().kind(), ErrorKind::InUse);
        drop(listener);
        free(&path).unwrap();
        assert!(!path.exists());
    }
}
