//! Mounting: what is checked, and how a server and the kernel meet.

use crate::nodes::Nodes;
use crate::replicas::{Ledger, Recall, Replicas};
use crate::serve::Serve;
use crate::server::Server;
use crate::state::State;
use crate::sys;
use bifolio_block::fuse::{self, Mounted};
use bifolio_block::{Error, ErrorKind, Result};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The type of the file system is `fuse.` and this.
const SUBTYPE: &str = "bifolio-mount";
/// KiB that the kernel reads ahead, where the process may set it: as much as a request can have.
const READ_AHEAD_KIB: u32 = 1024;
/// Of the descriptors that a process may have, this part keeps files that the kernel knows; the others are for those that
/// are open.
const KEPT_OF_DESCRIPTORS: u64 = 2;
/// The number of overlayfs as a kind of file system.
const OVERLAYFS: i64 = 0x794c_7630;

/// How a folder is mounted.
#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools, reason = "options are independent of each other")]
pub struct MountOptions {
    /// Nothing can be changed.
    pub is_read_only: bool,
    /// Other users have access, as files' permissions say.
    pub allows_other: bool,
    /// Device files work as such.
    pub allows_devices: bool,
    /// Bits for another user and group in executables count.
    pub allows_suid: bool,
    /// There may be files in the mount point, which are not seen meanwhile.
    pub allows_nonempty: bool,
    /// Files are served by this process even where the kernel could pass them to the source.
    pub serves_all: bool,
    /// Threads that serve; 0 for as many as this machine wants.
    pub threads: usize,
}

/// Mounts a folder on another one, and serves it from threads of its own. The process's file mode mask becomes 0. When the
/// process is killed, so is the mount; one that outlives its server is a [`crate::KeptMount`].
///
/// # Errors
/// `NotFound`, `BadUse` for what is no folder, or a mount point inside the source, and those of
/// [`bifolio_block::fuse::mount`].
pub fn mount(
    source: &Path,
    mountpoint: &Path,
    options: &MountOptions,
    replicas: &Arc<dyn Replicas>,
) -> Result<Mounted> {
    Ground::new(source, mountpoint)?.mount(mountpoint, options, replicas)
}

/// What a server stands on, whichever it is.
#[derive(Debug)]
pub(crate) struct Ground {
    source: PathBuf,
    root: OwnedFd,
    stack_depth: u32,
    pub(crate) state: Arc<State>,
}

impl Ground {
    pub(crate) fn new(source: &Path, mountpoint: &Path) -> Result<Self> {
        let source = checked_source(source, mountpoint)?;
        let failed = |error| Error::system(source.display(), "opening the source", error);
        let root = open_root(&source).map_err(failed)?;
        let stack_depth =
            if sys::kind_of_file_system(root.as_fd()).is_ok_and(|kind| kind == OVERLAYFS) { 2 } else { 1 };
        let state = State::create().map_err(|error| of_keeper(mountpoint, error))?;
        Ok(Self { source, root, stack_depth, state: Arc::new(state) })
    }

    /// A server, with what the state has of predecessors.
    pub(crate) fn server(&self, options: &MountOptions, replicas: &Arc<dyn Replicas>) -> io::Result<Serve> {
        let descriptors = sys::raise_file_limit();
        // SAFETY: only changes the process's mask.
        unsafe { libc::umask(0) };
        let root = self.root.try_clone()?;
        let nodes = Nodes::new(root, (descriptors / KEPT_OF_DESCRIPTORS) as usize, Arc::clone(&self.state))?;
        let server = Arc::new(Server::new(nodes, Arc::clone(&self.state), Arc::clone(replicas)));
        Ok(Serve { server, stack_depth: self.stack_depth, passes: !options.serves_all })
    }

    pub(crate) fn mount(
        &self,
        mountpoint: &Path,
        options: &MountOptions,
        replicas: &Arc<dyn Replicas>,
    ) -> Result<Mounted> {
        replicas.succeed(Ledger::new(&self.state));
        let server: Mutex<Option<Arc<Server>>> = Mutex::default();
        let serve = || {
            let serve = self.server(options, replicas)?;
            *server.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&serve.server));
            Ok(serve)
        };
        let made = || server.lock().unwrap_or_else(PoisonError::into_inner).clone().expect("a session has a server");
        // It goes with the server, so that nobody waits for an answer when nobody serves any more.
        let hand_over = |notifier| drop(made().notifier.set(notifier));
        let mounted = fuse::mount_notified(mountpoint, &of_block(&self.source, options), serve, hand_over)?;
        replicas.mounted(recall_of(&made()));
        raise_read_ahead(mounted.at());
        Ok(mounted)
    }
}

pub(crate) fn recall_of(server: &Arc<Server>) -> Weak<dyn Recall> {
    let recall: Arc<dyn Recall> = Arc::clone(server) as Arc<dyn Recall>;
    Arc::downgrade(&recall)
}

pub(crate) fn of_keeper(place: &Path, error: bifolio_keeper::Error) -> Error {
    Error::new(ErrorKind::BadState, place.display(), error.to_string()).with_cause(error)
}

/// The source by its real path. A mount point inside of it would be served by those who wait for it.
fn checked_source(source: &Path, mountpoint: &Path) -> Result<PathBuf> {
    let real = source.canonicalize().map_err(|error| Error::system(source.display(), "finding the source", error))?;
    if !real.is_dir() {
        return Err(Error::new(ErrorKind::BadUse, source.display(), "the source is not a directory"));
    }
    if mountpoint.canonicalize().is_ok_and(|place| place.starts_with(&real)) {
        let detail = "the mount point lies in the source, which would contain itself; mount it elsewhere";
        return Err(Error::new(ErrorKind::BadUse, mountpoint.display(), detail));
    }
    Ok(real)
}

fn open_root(source: &Path) -> io::Result<OwnedFd> {
    let open = File::open(source)?;
    sys::reopen(open.as_fd(), libc::O_PATH | libc::O_DIRECTORY)
}

fn of_block(source: &Path, options: &MountOptions) -> fuse::MountOptions {
    fuse::MountOptions {
        subtype: SUBTYPE,
        source: source.display().to_string(),
        is_read_only: options.is_read_only,
        allows_other: options.allows_other,
        allows_devices: options.allows_devices,
        allows_suid: options.allows_suid,
        allows_exec: true,
        allows_nonempty: options.allows_nonempty,
        threads: threads(options),
    }
}

pub(crate) fn threads(options: &MountOptions) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // One that waits for the disk leaves a processor idle.
    if options.threads > 0 { options.threads } else { (processors + 2).clamp(4, 32) }
}

/// The kernel's default is 128 KiB, which would be the size of requests. A server asks its own mount for nothing: killed before
/// it has answered itself, it would not end, and no other one would begin.
fn raise_read_ahead(mountpoint: &Path) {
    let Ok((major, minor)) = sys::device_of(mountpoint) else { return };
    // Only the administrator may, and others go without.
    let _ = std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD_KIB.to_string());
}
