//! `bifolio mount` and `bifolio unmount`.
//!
//! As other file systems of user space, `mount` returns when the folder is mounted. In the background stay three processes:
//! a keeper, its server, which may be killed and is replaced, and a guard, which takes the mount away if the keeper dies.
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
use bifolio_mount::{Daemon, Event, KeptMount, MountOptions, NoReplicas, Replicas, Served};
use clap::Args as ClapArgs;
use guard::Guard;
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
    /// Unmount the mount point when standard input ends, if the mount that it names is still there.
    #[arg(long, hide = true)]
    pub guard: bool,
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
    if args.guard {
        guard::run(&args.mountpoint)
    } else if args.fg || args.background {
        serve(args, cancel)
    } else {
        start_in_background(args)
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
    let kept = KeptMount::new(&args.source, &args.mountpoint, &options)?;
    let place = std::path::absolute(&args.mountpoint).unwrap_or_else(|_| args.mountpoint.clone());
    let guard = Guard::start(&place.canonicalize().unwrap_or(place));
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
    let (socket, why_plain) = socket(args)?;
    let replicas = || -> Arc<dyn Replicas> {
        match &socket {
            Some(socket) => Arc::new(Daemon::at(socket, tell.clone())),
            None => Arc::new(NoReplicas),
        }
    };
    let mounted = |place: &Path| {
        if let Some(why) = &why_plain {
            tell(why);
        }
        guard.tell(place);
        if args.background {
            // Each process of both for itself; what is open is common to them.
            is_away.store(true, Ordering::Relaxed);
            leave_session();
        }
    };
    let detached = |place: &Path| {
        tell(&format!("{}: files are still open; it is unmounted, and served until they are closed", place.display()));
    };
    let failed = |error: bifolio_block::Error| {
        let failure = Failure::from(error);
        if is_away.load(Ordering::Relaxed) {
            background::log(&failure.message());
        } else {
            failure.report();
        }
        failure.code() as i32
    };
    let served = Served { replicas: &replicas, mounted: &mounted, detached: &detached, failed: &failed };
    let mut is_ready = false;
    let mut left = Ok(());
    let ended = kept.run(&served, &|| cancel.is_cancelled(), &mut |event| match event {
        Event::Ready if args.background && !is_ready => {
            is_ready = true;
            is_away.store(true, Ordering::Relaxed);
            left = background::leave_terminal();
        }
        Event::Died(status) => tell(&format!("the server ended ({status}): another one serves on")),
        Event::NotStarted(error) => tell(&format!("{error}; it is tried again")),
        _ => {}
    })?;
    left?;
    match ended {
        None => Ok(()),
        // It has said why.
        Some(code) => std::process::exit(code),
    }
}

/// What of the terminal a process has for itself.
fn leave_session() {
    // SAFETY: takes nothing; it fails for the leader of a group only, which a child is not.
    unsafe { libc::setsid() };
    // It is there, and going there takes no right.
    let _ = std::env::set_current_dir("/");
}

/// Where a daemon listens, if one does; why files are plain if no place is known.
fn socket(args: &MountArgs) -> Result<(Option<PathBuf>, Option<String>), Failure> {
    match args.socket.clone().map_or_else(default_socket, Ok) {
        Ok(socket) => {
            let failed = |error| Failure::failed(format!("{}: {error}", printable(&socket.display().to_string())));
            Ok((Some(std::path::absolute(&socket).map_err(failed)?), None))
        }
        Err(error) => Ok((None, Some(format!("{error}, or --socket; files are served plainly")))),
    }
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
