//! `bifolio daemon`: one cache for all processes, in the foreground. This process is the keeper, and starts itself again as
//! the server.

use crate::exit::{self, Code, Failure, eprintln_quietly};
use crate::global::Global;
use bifolio_daemon::{Daemon, ErrorKind, Limits, Options, default_socket, line_of, serve};
use bifolio_io::size;
use clap::Args as ClapArgs;
use std::path::PathBuf;
use std::process::Command;

/// Choices for a daemon.
#[derive(Debug, ClapArgs)]
#[allow(clippy::doc_markdown, reason = "these comments are shown as help")]
#[command(after_help = exit::CODES)]
pub struct DaemonArgs {
    /// Where it listens. If not named, $BIFOLIO_SOCKET, else bifolio/cache.sock in $XDG_RUNTIME_DIR, or in /run for root. A socket that a service
    /// manager hands over (LISTEN_FDS) is taken in any case.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Bytes of each device's memory for cached files. If not named, half of what is free on a GPU, and 1 GiB of a host.
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    memory: Option<u64>,
    /// The number of a group whose members may connect, and are lent memory as this user is.
    #[arg(long, value_name = "GID")]
    group: Option<u32>,
    /// Let other users connect. They get copies of what they may read.
    #[arg(long)]
    others: bool,
    /// Bytes that each user may have acquired or pinned at a time.
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    user_memory: Option<u64>,
    /// End when nobody has been connected for so many seconds, with everything written. What is pinned does not hinder that.
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<u32>,
    /// Serve what the keeper hands over.
    #[arg(long, hide = true)]
    server: bool,
}

/// Runs until it is told to end by SIGTERM or SIGINT: what files lack is written then.
pub fn run(global: &Global, args: &DaemonArgs) -> Result<(), Failure> {
    if args.server {
        return serve().map_err(told);
    }
    let socket = args.socket.clone().map_or_else(default_socket, Ok).map_err(told)?;
    let bytes_of_user = args.user_memory.unwrap_or(u64::MAX);
    let options = Options {
        devices: global.devices.iter().map(ToString::to_string).collect(),
        memory_bytes: args.memory.unwrap_or(0),
        group: args.group,
        serves_others: args.others,
        idle_exit_seconds: args.idle_exit.unwrap_or(0),
        limits: Limits { bytes_of_user, ..Limits::default() },
        ..Options::at(socket.clone())
    };
    let mut event = |event| {
        if let Some(line) = line_of(&event, &socket) {
            eprintln_quietly(&line);
        }
    };
    Daemon::new(options).and_then(|daemon| daemon.run(&mut again, &mut event)).map_err(told)
}

/// This program, or the one that an update has put in its place: the next server is that one.
fn again() -> Command {
    let own = PathBuf::from("/proc/self/exe");
    let link = std::fs::read_link(&own).ok();
    let name = link.as_ref().and_then(|path| path.to_str()).map(|path| path.trim_end_matches(" (deleted)"));
    let program = name.map(PathBuf::from).filter(|path| path.is_file()).unwrap_or(own);
    let mut command = Command::new(program);
    command.args(["daemon", "--server"]);
    command
}

pub fn told(error: bifolio_daemon::Error) -> Failure {
    let code = match error.kind() {
        ErrorKind::BadUse | ErrorKind::BadRange => Code::Usage,
        ErrorKind::Gone => Code::Unavailable,
        _ => Code::Failed,
    };
    Failure::new(code, error)
}
