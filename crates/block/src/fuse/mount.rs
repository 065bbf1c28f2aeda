//! Mounting through FUSE, and unmounting: for every file system of this project.
//!
//! ```text
//!   mount   checks the folder, starts a session and a thread that serves it
//!   Mounted::serve_until
//!           waits for an end from outside (umount, fusermount3 -u) or for a request to stop, then
//!           unmounts     whole where nobody has files of it open
//!           or detaches  out of sight at once, and served until the last file is closed
//! ```
//!
//! An unmount from outside may meet a serving thread that is about to take a request, such as the release of the last
//! file: the kernel then answers `ECONNABORTED` or `ENODEV`, which is an end like any other.

use crate::{Error, ErrorKind, Result};
use fuser::{Config, Filesystem, MountOption, Notifier, Session, SessionACL};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

/// How soon an end, and a request to stop, is noticed.
const TICK: Duration = Duration::from_millis(20);

/// How a file system is mounted.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "options are independent of each other")]
pub struct MountOptions {
    /// The type that `mount` shows is `fuse.` and this.
    pub subtype: &'static str,
    /// What `mount` shows as the source.
    pub source: String,
    /// Nothing can be changed.
    pub is_read_only: bool,
    /// Other users have access, as modes say; `user_allow_other` in `/etc/fuse.conf` has to permit it.
    pub allows_other: bool,
    /// Device files work as such.
    pub allows_devices: bool,
    /// Bits for another user and group in executables count.
    pub allows_suid: bool,
    /// Executables can be executed.
    pub allows_exec: bool,
    /// There may be files in the folder, which are not seen meanwhile.
    pub allows_nonempty: bool,
    /// Threads that serve; each has a descriptor.
    pub threads: usize,
}

/// A mounted file system, served by threads of this process until it is unmounted. Dropping this does not unmount it.
#[derive(Debug)]
pub struct Mounted {
    at: PathBuf,
    session: JoinHandle<io::Result<()>>,
}

/// How unmounting went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// It is unmounted, and everything is written.
    Whole,
    /// It is no longer seen, and is served for those who have files of it open until they close them.
    Detached,
}

/// Mounts what `serve` makes on a folder. It is called once more where the kernel is too old for the first attempt.
///
/// # Errors
/// `Missing` without FUSE, `NotFound`, `BadUse` for what is no folder, `Exists` for one that is not empty, and what FUSE
/// said.
pub fn mount<F: Filesystem + Send + 'static>(
    at: &Path,
    options: &MountOptions,
    serve: impl Fn() -> io::Result<F>,
) -> Result<Mounted> {
    mount_as(at, options, serve, |_| {})
}

/// The same with a notifier, which tells the kernel to forget what it was given; never to be used by a thread that serves a
/// request. It is handed over before the first request is served. It keeps the connection open: a request that nobody has
/// answered when the last thread that serves ends waits until the notifier is gone. So the file system that is served is to
/// hold it, which goes with these threads.
///
/// # Errors
/// As of [`mount`].
pub fn mount_notified<F: Filesystem + Send + 'static>(
    at: &Path,
    options: &MountOptions,
    serve: impl Fn() -> io::Result<F>,
    hand_over: impl FnOnce(Notifier),
) -> Result<Mounted> {
    mount_as(at, options, serve, |session| hand_over(session.notifier()))
}

fn mount_as<F: Filesystem + Send + 'static>(
    at: &Path,
    options: &MountOptions,
    serve: impl Fn() -> io::Result<F>,
    prepare: impl FnOnce(&Session<F>),
) -> Result<Mounted> {
    let at = checked_folder(at, options.allows_nonempty)?;
    let failed = |error: io::Error| Error::system(at.display(), format!("mounting {} here", options.source), error);
    let start = |subtype| Session::new(serve()?, &at, &config(options, subtype));
    let session = start(subtype_for_all(options)).or_else(|error| {
        // Linux before 5.4 refuses what it does not know.
        if is_root() { start(subtype_for_helper(options)) } else { Err(error) }
    });
    let session = session.map_err(one_line).map_err(|error| {
        if !is_root() && error.kind() == io::ErrorKind::NotFound {
            let detail = "mounting as this user takes fusermount3, which is missing: install fuse3, or mount as root";
            return Error::new(ErrorKind::Missing, at.display(), detail).with_cause(error);
        }
        failed(error)
    })?;
    prepare(&session);
    let session = std::thread::Builder::new().name("bifolio-fuse".to_owned()).spawn(move || session.run());
    Ok(Mounted { session: session.map_err(failed)?, at })
}

impl Mounted {
    /// Where it is mounted.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Whether it was unmounted, by whomever, and nobody has files of it open any more.
    pub fn is_over(&self) -> bool {
        self.session.is_finished()
    }

    /// Unmounts it; if files of it are in use, it is taken out of sight and served until they are closed.
    ///
    /// # Errors
    /// `BadState` if it could not even be taken out of sight.
    pub fn unmount(&self) -> Result<Unmounted> {
        if self.is_over() {
            return Ok(Unmounted::Whole);
        }
        unmount(&self.at)
    }

    /// Waits until it is over.
    ///
    /// # Errors
    /// Those of serving it.
    pub fn wait(self) -> Result<()> {
        match self.session.join() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::ENODEV)) => Ok(()),
            Ok(Err(error)) => Err(Error::system(self.at.display(), "serving the mount", error)),
            Err(_) => {
                Err(Error::new(ErrorKind::BadState, self.at.display(), "a thread that served the mount panicked"))
            }
        }
    }

    /// Serves until it is over, or `is_stopped` says so and it is unmounted. `tick` is called some fifty times a second,
    /// and `detached` if files were still open when it was unmounted.
    ///
    /// # Errors
    /// Those of [`Mounted::unmount`] and [`Mounted::wait`].
    pub fn serve_until(
        self,
        is_stopped: &dyn Fn() -> bool,
        tick: &mut dyn FnMut(),
        detached: &dyn Fn(&Path),
    ) -> Result<()> {
        while !self.is_over() && !is_stopped() {
            std::thread::sleep(TICK);
            tick();
        }
        if self.unmount()? == Unmounted::Detached {
            detached(&self.at);
        }
        while !self.is_over() {
            std::thread::sleep(TICK);
            tick();
        }
        self.wait()
    }
}

/// Unmounts what is mounted somewhere, by whatever process; if files of it are in use, it is taken out of sight and served
/// until they are closed.
///
/// # Errors
/// `BadState` if it could not even be taken out of sight.
pub fn unmount(at: &Path) -> Result<Unmounted> {
    match unmount_as(at, false) {
        Ok(()) => Ok(Unmounted::Whole),
        // Somebody was quicker.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => Ok(Unmounted::Whole),
        Err(_) => unmount_as(at, true).map(|()| Unmounted::Detached).map_err(|error| {
            let detail = format!("unmounting it failed: {error}; try fusermount3 -u -z");
            Error::new(ErrorKind::BadState, at.display(), detail).with_cause(error)
        }),
    }
}

/// The folder by its real path, as it is unmounted by it later.
fn checked_folder(at: &Path, allows_nonempty: bool) -> Result<PathBuf> {
    let refused = |kind, detail: &str| Err(Error::new(kind, at.display(), detail));
    let path = at.canonicalize().map_err(|error| Error::system(at.display(), "finding the mount point", error))?;
    if !path.is_dir() {
        return refused(ErrorKind::BadUse, "the mount point is not a directory");
    }
    let entries = path.read_dir().map_err(|error| Error::system(at.display(), "listing the mount point", error));
    if !allows_nonempty && entries?.next().is_some() {
        return refused(
            ErrorKind::Exists,
            "the mount point is not empty, and its files would not be seen; mount on an empty folder",
        );
    }
    if !Path::new("/dev/fuse").exists() {
        return refused(ErrorKind::Missing, "this kernel has no FUSE (/dev/fuse is missing); load the module fuse");
    }
    Ok(path)
}

/// As the kernel and FUSE's helper take it. Of the library's own option it tells the helper only, so that a mount by root
/// would be of the type `fuse`.
fn subtype_for_all(options: &MountOptions) -> MountOption {
    MountOption::CUSTOM(format!("subtype={}", options.subtype))
}

fn subtype_for_helper(options: &MountOptions) -> MountOption {
    MountOption::Subtype(options.subtype.to_owned())
}

fn config(options: &MountOptions, subtype: MountOption) -> Config {
    let choose = |allowed, yes, no| if allowed { yes } else { no };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(source(&options.source, !is_root())),
        subtype,
        // The kernel checks permissions, by modes and owners.
        MountOption::DefaultPermissions,
        choose(options.is_read_only, MountOption::RO, MountOption::RW),
        choose(options.allows_devices, MountOption::Dev, MountOption::NoDev),
        choose(options.allows_suid, MountOption::Suid, MountOption::NoSuid),
        choose(options.allows_exec, MountOption::Exec, MountOption::NoExec),
    ];
    config.acl = if options.allows_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads);
    config.clone_fd = true;
    config
}

/// The helper takes its options from one list, in which commas are escaped.
fn source(source: &str, is_by_helper: bool) -> String {
    if is_by_helper { source.replace('\\', "\\\\").replace(',', "\\,") } else { source.to_owned() }
}

fn is_root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// FUSE's helper ends its sentence as a line.
fn one_line(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(_) => error,
        None => io::Error::new(error.kind(), error.to_string().trim_end().to_owned()),
    }
}

fn unmount_as(path: &Path, is_lazy: bool) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if is_lazy { libc::MNT_DETACH } else { 0 };
    // SAFETY: the path ends with a zero byte.
    if unsafe { libc::umount2(name.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EPERM) {
        return Err(error);
    }
    // Without the right to unmount, FUSE's helper has it, which older systems know by another name.
    by_helper("fusermount3", path, is_lazy).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => by_helper("fusermount", path, is_lazy),
        _ => Err(error),
    })
}

fn by_helper(program: &str, path: &Path, is_lazy: bool) -> io::Result<()> {
    let output = Command::new(program).arg(if is_lazy { "-uz" } else { "-u" }).arg("--").arg(path).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_of_a_source_are_escaped_for_the_helper_only() {
        assert_eq!(source("a,b\\c", true), "a\\,b\\\\c");
        assert_eq!(source("a,b\\c", false), "a,b\\c");
    }
}
