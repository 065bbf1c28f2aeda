//! `bifolio mount` and `bifolio unmount`.
//!
//! As other file systems of user space, `mount` returns when the folder is mounted, and a process in the background serves
//! it.

use crate::background;
use crate::exit::{Code, Failure, eprintln_quietly};
use crate::output::printable;
use bifolio_block::fuse;
use bifolio_daemon::default_socket;
use bifolio_io::Cancel;
use bifolio_mount::{Daemon, MountOptions, NoReplicas, Replicas};
use clap::Args as ClapArgs;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Choices for `mount`.
#[derive(Debug, ClapArgs)]
#[allow(clippy::struct_excessive_bools, reason = "options are independent of each other")]
pub struct MountArgs {
    /// The folder whose files are seen in the mount point.
    pub source: PathBuf,
    /// An empty folder outside of it.
    pub mountpoint: PathBuf,
    /// Stay in the foreground.
    #[arg(long, short = 'f')]
    pub fg: bool,
    /// Mount for reading only.
    #[arg(long)]
    pub ro: bool,
    /// Let other users in, as the files' permissions say. Root lets them in always.
    #[arg(long = "allow_other")]
    pub allow_other: bool,
    /// Let device files work as such.
    #[arg(long)]
    pub dev: bool,
    /// Let executables run as another user where their mode says so.
    #[arg(long)]
    pub suid: bool,
    /// Mount also where there are files, which are not seen meanwhile.
    #[arg(long)]
    pub nonempty: bool,
    /// Serve all reads and writes, also where the kernel could pass them to the source.
    #[arg(long)]
    pub serve_all: bool,
    /// Where the daemon listens whose files are shared (see `bifolio daemon`). If not named, where one listens by default.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Started by another process, which waits until it is mounted.
    #[arg(long, hide = true)]
    pub background: bool,
}

/// Choices for `unmount`.
#[derive(Debug, ClapArgs)]
pub struct UnmountArgs {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
}

/// Mounts, and serves it here or in the background.
pub fn run(args: &MountArgs, cancel: &Cancel) -> Result<(), Failure> {
    if args.fg || args.background { serve(args, cancel) } else { start_in_background(args) }
}

fn serve(args: &MountArgs, cancel: &Cancel) -> Result<(), Failure> {
    // SAFETY: takes nothing and cannot fail.
    let is_root = unsafe { libc::geteuid() == 0 };
    let options = MountOptions {
        is_read_only: args.ro,
        allows_other: args.allow_other || is_root,
        allows_devices: args.dev,
        allows_suid: args.suid,
        allows_nonempty: args.nonempty,
        serves_all: args.serve_all,
        threads: 0,
    };
    // Whoever started this reads standard error until it is mounted.
    let is_away = Arc::new(AtomicBool::new(false));
    let tell = {
        let is_away = Arc::clone(&is_away);
        move |what: &str| match is_away.load(Ordering::Relaxed) {
            true => background::log(what),
            false => eprintln_quietly(&format!("bifolio: {what}")),
        }
    };
    let replicas = replicas(args, tell)?;
    let mounted = bifolio_mount::mount(&args.source, &args.mountpoint, &options, &replicas)?;
    if args.background {
        background::leave_terminal()?;
        is_away.store(true, Ordering::Relaxed);
    }
    Ok(mounted.serve_until(&|| cancel.is_cancelled(), &mut || {}, &|place| {
        let place = place.display();
        let what = format!("{place}: files are still open; it is unmounted, and served until they are closed");
        if args.background { background::log(&what) } else { eprintln_quietly(&format!("bifolio: {what}")) }
    })?)
}

/// The daemon, wherever it listens, and whether it does.
fn replicas(args: &MountArgs, tell: impl Fn(&str) + Send + Sync + 'static) -> Result<Arc<dyn Replicas>, Failure> {
    let socket = match args.socket.clone().map_or_else(default_socket, Ok) {
        Ok(socket) => std::path::absolute(&socket)
            .map_err(|error| Failure::failed(format!("{}: {error}", printable(&socket.display().to_string()))))?,
        Err(error) => {
            tell(&format!("{error}; files are served plainly"));
            return Ok(Arc::new(NoReplicas));
        }
    };
    Ok(Arc::new(Daemon::at(socket, tell)))
}

fn start_in_background(args: &MountArgs) -> Result<(), Failure> {
    let mut command = background::program()?;
    command.args(["mount", "--background"]);
    let flags = [
        (args.ro, "--ro"),
        (args.allow_other, "--allow_other"),
        (args.dev, "--dev"),
        (args.suid, "--suid"),
        (args.nonempty, "--nonempty"),
        (args.serve_all, "--serve-all"),
    ];
    command.args(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name));
    if let Some(socket) = &args.socket {
        command.arg("--socket").arg(socket);
    }
    command.arg("--").arg(&args.source).arg(&args.mountpoint);
    background::start(command, b"")
}

/// Unmounts a folder that `mount` has mounted.
pub fn unmount(args: &UnmountArgs) -> Result<(), Failure> {
    let place = std::path::absolute(&args.mountpoint)
        .map_err(|error| Failure::failed(format!("{}: {error}", printable(&args.mountpoint.display().to_string()))))?;
    let mounts = std::fs::read("/proc/self/mounts")
        .map_err(|error| Failure::failed(format!("reading /proc/self/mounts failed: {error}")))?;
    // A mount whose server is gone cannot be looked at, so the path is tried as it is, too.
    let real = place.canonicalize().unwrap_or_else(|_| place.clone());
    if ![&place, &real].iter().any(|place| is_ours(&mounts, place)) {
        let place = place.display().to_string();
        let place = printable(&place);
        return Err(Failure::new(Code::Usage, format!("{place} is no mount of bifolio mount; umount unmounts others")));
    }
    match fuse::unmount(&real)? {
        fuse::Unmounted::Whole => {}
        fuse::Unmounted::Detached => eprintln_quietly(&format!(
            "bifolio: {}: files are still open; it is unmounted, and served until they are closed",
            printable(&real.display().to_string())
        )),
    }
    Ok(())
}

/// Whether the last mount on a path is one of ours, by the kernel's list.
fn is_ours(mounts: &[u8], place: &Path) -> bool {
    let mut lines = mounts.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut words = line.split(|byte| *byte == b' ').skip(1);
        Some((unescaped(words.next()?), words.next()?))
    });
    let last = lines.rfind(|(at, _)| at == place);
    last.is_some_and(|(_, kind)| OsStr::from_bytes(kind) == "fuse.bifolio-mount")
}

/// Spaces, tabs, ends of lines and backslashes are three octal digits each in the kernel's list.
fn unescaped(text: &[u8]) -> PathBuf {
    let (mut plain, mut rest) = (vec![], text);
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                plain.push(byte);
                rest = &behind[3..];
            }
            _ => {
                plain.push(*first);
                rest = behind;
            }
        }
    }
    std::ffi::OsString::from_vec(plain).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_known_by_its_path_and_kind() {
        let mounts = b"/a /mnt/two\\040words fuse.bifolio-mount rw 0 0\n/b /mnt/b fuse.bifolio-mount rw 0 0\nc /mnt/b ext4 rw 0 0\n";
        assert!(is_ours(mounts, Path::new("/mnt/two words")));
        assert!(!is_ours(mounts, Path::new("/mnt/b")));
        assert!(!is_ours(mounts, Path::new("/mnt")));
    }
}
