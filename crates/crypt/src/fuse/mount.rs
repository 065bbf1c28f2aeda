//! Mounting a directory: what is its own beside `bifolio-block`'s mount helper.

use super::options::MountOptions;
use super::serve::Server;
use super::tree::Tree;
use crate::dir::CipherDir;
use crate::error::{Error, ErrorKind, Result};
use crate::sys;
use bifolio_block::ErrorKind as BlockKind;
use bifolio_block::fuse::{self, Mounted};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// The type of the file system is `fuse.` and this.
const SUBTYPE: &str = "bifolio-crypt";
/// KiB that the kernel reads ahead, where the process may set it: as much as a request can have.
const READ_AHEAD_KIB: u32 = 1024;

/// Mounts a directory, and serves it from threads of its own. The process's file mode mask becomes 0, as the kernel
/// has applied that of whoever asks.
///
/// # Errors
/// [`ErrorKind::Mount`] with what FUSE said, [`ErrorKind::BadUse`] for a mount point that cannot be one.
pub fn mount(dir: &CipherDir, mountpoint: &Path, options: &MountOptions) -> Result<Mounted> {
    if let (Ok(cipher), Ok(place)) = (dir.path().canonicalize(), mountpoint.canonicalize())
        && cipher == place
    {
        let detail = "this is the encrypted directory itself; mount it elsewhere";
        return Err(Error::new(ErrorKind::BadUse, mountpoint.display(), detail));
    }
    let descriptors = sys::raise_file_limit();
    // SAFETY: only changes the process's mask.
    unsafe { libc::umask(0) };
    let serve = || {
        let tree = Tree::new(dir, descriptors)?;
        Ok(Server::new(tree, Arc::clone(&options.warn), options.is_read_only))
    };
    let mounted = fuse::mount(mountpoint, &of_block(dir, options, descriptors), serve).map_err(of_mount)?;
    raise_read_ahead(mounted.at());
    Ok(mounted)
}

fn of_block(dir: &CipherDir, options: &MountOptions, descriptors: u64) -> fuse::MountOptions {
    let source = options.source.clone().unwrap_or_else(|| {
        // Whoever looks at it has another current directory.
        let path = std::path::absolute(dir.path()).unwrap_or_else(|_| dir.path().to_owned());
        path.display().to_string()
    });
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // One that waits for the disk leaves a processor idle; each has a descriptor.
    let most = (descriptors / 8).clamp(3, 16) as usize;
    fuse::MountOptions {
        subtype: SUBTYPE,
        source,
        is_read_only: options.is_read_only,
        allows_other: options.allows_other,
        allows_devices: options.allows_devices,
        allows_suid: options.allows_suid,
        allows_exec: options.allows_exec,
        allows_nonempty: options.allows_nonempty,
        threads: (processors + 1).clamp(3, most),
    }
}

fn of_mount(error: bifolio_block::Error) -> Error {
    match error.kind() {
        BlockKind::Exists => Error::from(error).of_kind(ErrorKind::BadUse).with_advice("--nonempty permits it"),
        BlockKind::BadUse | BlockKind::NotFound => error.into(),
        _ => Error::from(error).of_kind(ErrorKind::Mount),
    }
}

/// The kernel's default is 128 KiB, which would be the size of requests.
fn raise_read_ahead(mountpoint: &Path) {
    let Ok(state) = std::fs::metadata(mountpoint) else { return };
    let (major, minor) = (libc::major(state.dev()), libc::minor(state.dev()));
    // Only the administrator may, and others go without.
    let _ = std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD_KIB.to_string());
}
