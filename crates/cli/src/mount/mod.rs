//! `bifolio mount` and `bifolio unmount`.
//!
//! As other file systems of user space, `mount` returns when the folder is mounted, and a process in the background serves
//! it, and a third one takes the mount away if that one dies.
//!
//! ```text
//!   guard    who unmounts what nobody serves any more        table    the kernel's list of mounts
//! ```

mod guard;
mod table;

use crate::background;
use crate::exit::{Code, Failure, eprintln_quietly};
use crate::output::printable;
use bifolio_block::fuse;
use bifolio_daemon::default_socket;
use bifolio_io::Cancel;
use bifolio_mount::{Daemon, MountOptions, NoReplicas, Replicas};
use clap::Args as ClapArgs;
use std::path::PathBuf;
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
    /// Unmount the mount point when standard input ends, if this mount is still there.
    #[arg(long, hide = true, value_name = "DEVICE")]
    pub guard: Option<String>,
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
    match &args.guard {
        Some(device) => guard::run(&args.mountpoint, device),
        None if args.fg || args.background => serve(args, cancel),
        None => start_in_background(args),
    }
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
        move |what: &str| {
            if is_away.load(Ordering::Relaxed) {
                background::log(what);
            } else {
                eprintln_quietly(&format!("bifolio: {what}"));
            }
        }
    };
    let (replicas, why_plain) = replicas(args, tell.clone())?;
    let mounted = bifolio_mount::mount(&args.source, &args.mountpoint, &options, &replicas)?;
    if let Some(why) = why_plain {
        tell(&why);
    }
    // It is left alone, and ends after this process.
    let _guard = guard::start(mounted.at());
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

/// The daemon, wherever it listens, and whether it does; why there is none if no place is known.
fn replicas(
    args: &MountArgs,
    tell: impl Fn(&str) + Send + Sync + 'static,
) -> Result<(Arc<dyn Replicas>, Option<String>), Failure> {
    let socket = match args.socket.clone().map_or_else(default_socket, Ok) {
        Ok(socket) => std::path::absolute(&socket)
            .map_err(|error| Failure::failed(format!("{}: {error}", printable(&socket.display().to_string()))))?,
        Err(error) => {
            return Ok((Arc::new(NoReplicas), Some(format!("{error}, or --socket; files are served plainly"))));
        }
    };
    Ok((Arc::new(Daemon::at(socket, tell)), None))
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
    // A mount whose server is gone cannot be looked at, so the path is tried as it is, too.
    let real = place.canonicalize().unwrap_or_else(|_| place.clone());
    if table::ours(&place)?.is_none() && table::ours(&real)?.is_none() {
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
