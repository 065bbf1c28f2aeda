//! `bifolio daemon`: one cache for all processes, in the foreground. This process is the keeper, and starts itself again as
//! the server.

use crate::exit::{self, Code, Failure, eprintln_quietly};
use crate::global::Global;
use crate::metrics::Metrics;
use crate::units::{self, Manager};
use bifolio_daemon::{Daemon, ErrorKind, Limits, Options, default_socket, line_of, serve};
use bifolio_io::size;
use bifolio_net::watch::server::{Listener, Server as MetricsServer};
use clap::{Args as ClapArgs, Subcommand};
use std::path::PathBuf;
use std::process::Command;

/// Choices for a daemon.
#[derive(Debug, ClapArgs)]
#[allow(clippy::doc_markdown, reason = "these comments are shown as help")]
#[command(after_help = exit::CODES, args_conflicts_with_subcommands = true)]
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
    /// Bytes of each device's memory that shall be free for other programs. Where there are fewer, what nobody uses is given back, and then
    /// programs are asked to release what they have.
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    free: Option<u64>,
    /// Disconnect programs that have not released what they were asked for after so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, requires = "free")]
    recall: u32,
    /// Serve metrics to Prometheus at this port of the host, at ADDRESS:PORT, or at a Unix socket.
    #[arg(long, value_name = "PLACE")]
    metrics: Option<String>,
    /// Serve what the keeper hands over.
    #[arg(long, hide = true)]
    server: bool,
    /// What to do, if not to serve.
    #[command(subcommand)]
    command: Option<DaemonCommand>,
}

/// What to do with units.
#[derive(Debug, Subcommand)]
pub enum DaemonCommand {
    /// Write and enable systemd units: the daemon starts when the first program connects. Units are the user's, and the
    /// system's for root.
    #[command(after_help = exit::CODES)]
    Install(InstallArgs),
    /// End the daemon, and remove the units.
    #[command(after_help = exit::CODES)]
    Uninstall(UnitsArgs),
}

/// Choices for `daemon install`.
#[derive(Debug, ClapArgs)]
pub struct InstallArgs {
    #[command(flatten)]
    units: UnitsArgs,
    /// What the daemon is given, after `--`.
    #[arg(last = true, value_name = "OPTIONS")]
    options: Vec<String>,
}

/// Where units are.
#[derive(Debug, ClapArgs)]
pub struct UnitsArgs {
    /// Where units are kept. If not named, where systemd reads those of the user, or the system's for root.
    #[arg(long, value_name = "FOLDER")]
    units: Option<PathBuf>,
}

const SERVICE: &str = "bifolio-daemon.service";
const SOCKET: &str = "bifolio-daemon.socket";

fn install(args: &InstallArgs) -> Result<(), Failure> {
    let manager = Manager::own();
    let units = args.units.units.clone().map_or_else(|| manager.folder(), Ok)?;
    let service = service_unit(manager, &units::program()?, &units::options(&args.options)?);
    let files = [(SOCKET, SOCKET_UNIT.to_owned()), (SERVICE, service)];
    let user = if manager == Manager::User { "--user " } else { "" };
    let how =
        format!("enabled; `systemctl {user}start {SOCKET}` listens now, and starts the daemon with the first program");
    manager.install(&units, &files, &[SOCKET], &how)
}

fn uninstall(args: &UnitsArgs) -> Result<(), Failure> {
    let manager = Manager::own();
    let units = args.units.clone().map_or_else(|| manager.folder(), Ok)?;
    manager.uninstall(&units, &[SOCKET, SERVICE])
}

const SOCKET_UNIT: &str = "\
# Written by `bifolio daemon install`; `bifolio daemon uninstall` removes it.
[Unit]
Description=One cache of files in device memory for all processes

[Socket]
ListenSequentialPacket=%t/bifolio/cache.sock
SocketMode=0600
DirectoryMode=0700
RemoveOnStop=yes

[Install]
WantedBy=sockets.target
";

/// What needs privileges of its own to be put up is the system's alone.
fn service_unit(manager: Manager, program: &str, options: &str) -> String {
    let system = if manager == Manager::System {
        "\
# It reads and writes files that programs of any user may hand it, and nothing else of a superuser's.
CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_SYS_PTRACE
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
"
    } else {
        ""
    };
    format!(
        "\
# Written by `bifolio daemon install`; `bifolio daemon uninstall` removes it.
[Unit]
Description=One cache of files in device memory for all processes
Requires={SOCKET}

[Service]
ExecStart={program} daemon --socket %t/bifolio/cache.sock {options}
# The keeper has the server write what files lack, which takes as long as it takes.
KillMode=mixed
TimeoutStopSec=infinity
Restart=on-failure
LimitNOFILE=1048576
LockPersonality=yes
NoNewPrivileges=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
UMask=0077
{system}"
    )
}

/// Runs until it is told to end by SIGTERM or SIGINT: what files lack is written then.
pub fn run(global: &Global, args: &DaemonArgs) -> Result<(), Failure> {
    match &args.command {
        Some(DaemonCommand::Install(args)) => return install(args),
        Some(DaemonCommand::Uninstall(args)) => return uninstall(args),
        None if args.server => return serve().map_err(told),
        None => {}
    }
    let socket = args.socket.clone().map_or_else(default_socket, Ok).map_err(told)?;
    let bytes_of_user = args.user_memory.unwrap_or(u64::MAX);
    let options = Options {
        devices: global.devices.iter().map(ToString::to_string).collect(),
        memory_bytes: args.memory.unwrap_or(0),
        group: args.group,
        serves_others: args.others,
        idle_exit_seconds: args.idle_exit.unwrap_or(0),
        free_bytes: args.free.unwrap_or(0),
        recall_ms: u64::from(args.recall) * 1000,
        limits: Limits { bytes_of_user, ..Limits::default() },
        ..Options::at(socket.clone())
    };
    let mut event = |event| {
        if let Some(line) = line_of(&event, &socket) {
            eprintln_quietly(&line);
        }
    };
    let _served = match &args.metrics {
        Some(place) => {
            let refused = |error: String| Failure::new(Code::Usage, format!("--metrics: {error}"));
            let listener = Listener::bind(place).map_err(refused)?;
            eprintln_quietly(&format!("bifolio: metrics at {}", listener.place()));
            let started = MetricsServer::start(listener, Metrics::of(socket.clone()));
            Some(started.map_err(|error| Failure::failed(format!("--metrics: {error}")))?)
        }
        None => None,
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
