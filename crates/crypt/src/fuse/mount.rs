//! Mounting and unmounting.

use super::serve::Server;
use super::tree::Tree;
use crate::dir::CipherDir;
use crate::error::{Error, ErrorKind, Result};
use crate::sys;
use fuser::{Config, MountOption, Session, SessionACL};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Takes sentences about damage: names that are left out of listings, blocks that are not given out.
pub type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// KiB that the kernel reads ahead, where the process may set it: as much as a request can have.
const READ_AHEAD_KIB: u32 = 1024;

/// How a directory is mounted.
#[derive(Clone)]
#[allow(clippy::struct_excessive_bools, reason = "options are independent of each other")]
pub struct MountOptions {
    /// Nothing can be changed.
    pub is_read_only: bool,
    /// Other users have access, as files' permissions say; `user_allow_other` in `/etc/fuse.conf` has to permit it.
    pub allows_other: bool,
    /// Device files work as such.
    pub allows_devices: bool,
    /// Bits for another user and group in executables count.
    pub allows_suid: bool,
    /// Executables can be executed.
    pub allows_exec: bool,
    /// There may be files in the mount point, which are not seen meanwhile.
    pub allows_nonempty: bool,
    /// What `mount` shows as the source; the encrypted directory's path otherwise.
    pub source: Option<String>,
    /// Where sentences about damage go.
    pub warn: Warn,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            is_read_only: false,
            allows_other: false,
            allows_devices: false,
            allows_suid: false,
            allows_exec: true,
            allows_nonempty: false,
            source: None,
            warn: Arc::new(|sentence| eprintln!("bifolio: {sentence}")),
        }
    }
}

impl std::fmt::Debug for MountOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MountOptions").field("is_read_only", &self.is_read_only).finish_non_exhaustive()
    }
}

/// A mounted directory, served by threads of this process until it is unmounted. Dropping this does not unmount it.
#[derive(Debug)]
pub struct Mounted {
    sessions: JoinHandle<io::Result<()>>,
    mountpoint: PathBuf,
}

/// How unmounting went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// It is unmounted, and everything is written.
    Whole,
    /// It is no longer seen, and is served for those who have files of it open until they close them.
    Detached,
}

/// Mounts a directory, and serves it from threads of its own. The process's file mode mask becomes 0, as the kernel
/// has applied that of whoever asks.
///
/// # Errors
/// [`ErrorKind::Mount`] with what FUSE said, [`ErrorKind::BadUse`] for a mount point that cannot be one.
pub fn mount(dir: &CipherDir, mountpoint: &Path, options: &MountOptions) -> Result<Mounted> {
    let failed = |error: io::Error| {
        // FUSE's helper ends its sentence as a line.
        let why = error.to_string();
        let detail = format!("mounting {} here failed: {}", dir.path().display(), why.trim_end());
        Error::new(ErrorKind::Mount, mountpoint.display(), detail)
    };
    let path = mountpoint.canonicalize().map_err(|error| Error::system(mountpoint.display(), "finding it", error))?;
    check_mountpoint(dir, &path, options)?;
    let descriptors = sys::raise_file_limit();
    // SAFETY: only changes the process's mask.
    unsafe { libc::umask(0) };
    let start = |subtype| {
        let tree = Tree::new(dir, descriptors)?;
        let server = Server::new(tree, Arc::clone(&options.warn), options.is_read_only);
        Session::new(server, &path, &config(dir, options, descriptors, subtype))
    };
    let session = start(subtype_for_all()).or_else(|error| {
        // Linux before 5.4 refuses what it does not know.
        if is_root() { start(subtype_for_helper()) } else { Err(error) }
    });
    let session = session.map_err(failed)?;
    let sessions = std::thread::Builder::new().name("bifolio-fuse".to_owned()).spawn(move || session.run());
    let sessions = sessions.map_err(failed)?;
    raise_read_ahead(&path);
    Ok(Mounted { sessions, mountpoint: path })
}

impl Mounted {
    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Whether it was unmounted, by whomever.
    pub fn is_ended(&self) -> bool {
        self.sessions.is_finished()
    }

    /// Unmounts it; if files of it are in use, it is taken out of sight and served until they are closed.
    ///
    /// # Errors
    /// [`ErrorKind::Mount`] if it could not even be taken out of sight.
    pub fn unmount(&self) -> Result<Unmounted> {
        if self.is_ended() {
            return Ok(Unmounted::Whole);
        }
        match unmount(&self.mountpoint, false) {
            Ok(()) => Ok(Unmounted::Whole),
            // Somebody was quicker.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => Ok(Unmounted::Whole),
            Err(_) => unmount(&self.mountpoint, true).map(|()| Unmounted::Detached).map_err(|error| {
                let detail = format!("unmounting failed: {error}");
                Error::new(ErrorKind::Mount, self.mountpoint.display(), detail)
            }),
        }
    }

    /// Waits until it is unmounted.
    ///
    /// # Errors
    /// [`ErrorKind::Mount`] if serving it ended otherwise.
    pub fn wait(self) -> Result<()> {
        let failed = |detail: String| Error::new(ErrorKind::Mount, self.mountpoint.display(), detail);
        match self.sessions.join() {
            Ok(Ok(())) => Ok(()),
            // It was unmounted while a thread was about to take a request, such as the release of the last file.
            Ok(Err(error)) if matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::ENODEV)) => Ok(()),
            Ok(Err(error)) => Err(failed(format!("serving it failed: {error}"))),
            Err(_) => Err(failed("serving it ended by a mistake in the program".to_owned())),
        }
    }
}

fn check_mountpoint(dir: &CipherDir, path: &Path, options: &MountOptions) -> Result<()> {
    let bad = |detail: &str| Err(Error::new(ErrorKind::BadUse, path.display(), detail));
    if !path.is_dir() {
        return bad("the mount point is no directory");
    }
    if dir.path().canonicalize().is_ok_and(|cipher| cipher == *path) {
        return bad("this is the encrypted directory itself; mount it elsewhere");
    }
    let is_empty = std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    if !is_empty && !options.allows_nonempty {
        return bad("the mount point is not empty; its files would not be seen (--nonempty permits it)");
    }
    Ok(())
}

/// The type of the file system is `fuse.` and this.
const SUBTYPE: &str = "bifolio-crypt";

/// As the kernel and FUSE's helper take it. Of the library's own option it tells the helper only, so that a mount by root
/// would be of the type `fuse`.
fn subtype_for_all() -> MountOption {
    MountOption::CUSTOM(format!("subtype={SUBTYPE}"))
}

fn subtype_for_helper() -> MountOption {
    MountOption::Subtype(SUBTYPE.to_owned())
}

pub(super) fn is_root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// What `mount` shows as the source. The helper takes its options from one list, in which commas are escaped.
fn source(dir: &CipherDir, options: &MountOptions, is_by_helper: bool) -> String {
    let source = options.source.clone().unwrap_or_else(|| {
        // Whoever looks at it has another current directory.
        let path = std::path::absolute(dir.path()).unwrap_or_else(|_| dir.path().to_owned());
        path.display().to_string()
    });
    if is_by_helper { source.replace('\\', "\\\\").replace(',', "\\,") } else { source }
}

fn config(dir: &CipherDir, options: &MountOptions, descriptors: u64, subtype: MountOption) -> Config {
    let source = source(dir, options, !is_root());
    let choose = |allowed, yes, no| if allowed { yes } else { no };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(source),
        subtype,
        // The kernel checks permissions, by the modes and owners that files have below.
        MountOption::DefaultPermissions,
        choose(options.is_read_only, MountOption::RO, MountOption::RW),
        choose(options.allows_devices, MountOption::Dev, MountOption::NoDev),
        choose(options.allows_suid, MountOption::Suid, MountOption::NoSuid),
        choose(options.allows_exec, MountOption::Exec, MountOption::NoExec),
    ];
    config.acl = if options.allows_other { SessionACL::All } else { SessionACL::Owner };
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // One that waits for the disk leaves a processor idle; each has a descriptor.
    let most = (descriptors / 8).clamp(3, 16) as usize;
    config.n_threads = Some((processors + 1).clamp(3, most));
    config.clone_fd = true;
    config
}

fn unmount(path: &Path, is_lazy: bool) -> io::Result<()> {
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
    // Without the right to unmount, FUSE's helper has it.
    let mut helper = Command::new("fusermount3");
    helper.arg(if is_lazy { "-uz" } else { "-u" }).arg("--").arg(path);
    let output = helper.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// The kernel's default is 128 KiB, which would be the size of requests.
fn raise_read_ahead(mountpoint: &Path) {
    let Ok(state) = std::fs::metadata(mountpoint) else { return };
    let (major, minor) = (libc::major(state.dev()), libc::minor(state.dev()));
    // Only the administrator may, and others go without.
    let _ = std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD_KIB.to_string());
}
