//! The page cache of all processes: connections to its daemon, and the daemon itself, as `python -m bifolio.daemon` runs it.

use crate::count::Count;
use crate::error::{bad, of_cache};
use crate::life::{begin, detached};
use bifolio_daemon::{Client, Daemon, ErrorKind, Options, Result, default_socket, line_of, serve};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// One connection to each daemon.
static CLIENTS: Mutex<BTreeMap<PathBuf, Client>> = Mutex::new(BTreeMap::new());

/// Asks the daemon that listens at the usual place; one that was ended and started anew since it was last asked, too.
pub(crate) fn ask<T>(request: impl Fn(&Client) -> Result<T>) -> Result<T> {
    let socket = default_socket()?;
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(client) = clients.get(&socket).cloned() {
        match request(&client) {
            Err(error) if error.kind() == ErrorKind::Gone => _ = clients.remove(&socket),
            done => return done,
        }
    }
    let client = Client::connect(&socket)?;
    clients.insert(socket, client.clone());
    drop(clients);
    request(&client)
}

/// Where the daemon listens that programs find by themselves.
#[pyfunction]
pub(crate) fn daemon_socket() -> PyResult<OsString> {
    default_socket().map(PathBuf::into_os_string).map_err(|error| of_cache(&error))
}

/// Connects to it; the connection stays as long as the process. The names of its devices.
#[pyfunction]
pub(crate) fn daemon_devices(py: Python<'_>) -> PyResult<Vec<String>> {
    begin()?;
    let ask = || ask(|client| client.greet().map(|()| client.devices().iter().map(ToString::to_string).collect()));
    detached(py, ask).map_err(|error| of_cache(&error))
}

/// Runs the keeper of a daemon until it is told to end by SIGTERM or SIGINT. Servers are started by `program`, which is to call
/// `run_server`. It keeps `free_bytes` of each device free for others, and gives programs `recall_seconds` for that.
#[pyfunction]
#[pyo3(signature = (program, socket, devices, memory_bytes, idle_exit_seconds, free_bytes, recall_seconds),
       text_signature = "(program, socket, devices, memory_bytes, idle_exit_seconds, free_bytes, recall_seconds)")]
#[allow(clippy::too_many_arguments, reason = "they are those of a command line")]
pub(crate) fn run_daemon(
    py: Python<'_>,
    program: Vec<OsString>,
    socket: Option<PathBuf>,
    devices: Vec<String>,
    memory_bytes: Count,
    idle_exit_seconds: u32,
    free_bytes: Count,
    recall_seconds: u32,
) -> PyResult<()> {
    begin()?;
    let [first, arguments @ ..] = &program[..] else { return Err(bad("program is empty: name what runs the server")) };
    let mut command = || {
        let mut command = Command::new(first);
        command.args(arguments);
        command
    };
    let run = || {
        let socket = socket.map_or_else(default_socket, Ok)?;
        let options = Options {
            devices,
            memory_bytes: memory_bytes.0,
            idle_exit_seconds,
            free_bytes: free_bytes.0,
            recall_ms: u64::from(recall_seconds) * 1000,
            ..Options::at(socket.clone())
        };
        let mut event = |event| {
            if let Some(line) = line_of(&event, &socket) {
                eprintln!("{line}");
            }
        };
        Daemon::new(options)?.run(&mut command, &mut event)
    };
    detached(py, run).map_err(|error| of_cache(&error))
}

/// Serves what a keeper hands over, in a process that it has started.
#[pyfunction]
pub(crate) fn run_server(py: Python<'_>) -> PyResult<()> {
    begin()?;
    detached(py, serve).map_err(|error| of_cache(&error))
}
