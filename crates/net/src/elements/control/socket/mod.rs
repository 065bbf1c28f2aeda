//! ControlSocket: lets programs call handlers through a socket, by Click's protocol 1.3.
//!
//! `ControlSocket(TYPE, PORT | FILENAME | FD, [READONLY, VERBOSE, LOCALHOST, RETRIES, RETRY_WARNINGS])`: no ports. TYPE is `TCP`,
//! `UNIX`, or `SOCKET`: a connection with which the program was started. A PORT with a `+` behind it is the first of several
//! that are tried. With READONLY nothing is written. A TCP socket accepts connections of this host alone; LOCALHOST false: of
//! others, too (in Click that is the default). A Unix socket is its user's alone. Where the address is in use, it is tried
//! again each second, RETRIES times (0). Handlers: `port`, or `filename` (r).
//!
//! A client that floods costs its own connection: commands are executed one at a time, in turns with packets; no more is read
//! while answers wait; lines, data, waiting answers and connections are bounded. One that is half open waits for itself.
//! In the place of another router, it takes the socket and the connections of one of its name with the same address.
//! PROXY is not there; of LLRPCs those of counters and switches are.

mod commands;
mod llrpc;
mod protocol;
#[cfg(test)]
mod tests;

use crate::args::{ArgCx, Args, Failed, NameKind};
use crate::element::{Element, Interest, downcast};
use crate::error::reason;
use crate::handler::Handlers;
use crate::nic::inherited;
use crate::router::Cx;
use crate::{Log, Timestamp};
use commands::execute;
use protocol::{Command, GREETING, Parsed, answer};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

/// Connections at once.
const MOST_CONNECTIONS: usize = 64;
/// Bytes of answers that wait before no more commands are read.
const MOST_WAITING: usize = 1 << 20;
/// Bytes read at once.
const PIECE: usize = 16 << 10;

/// Timers: the address is tried again; the connection that was there before is taken.
const RETRY: usize = 0;
const ADOPT: usize = 1;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Address {
    #[default]
    None,
    /// The first port that is tried, and whether others are.
    Tcp(u16, bool),
    Unix(String),
    /// A descriptor.
    Socket(i32),
}

/// How many ports are tried behind the first.
const MORE_PORTS: u16 = 10;

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

trait Stream: Read + Write + AsRawFd + Send {}
impl<T: Read + Write + AsRawFd + Send> Stream for T {}

/// A client.
struct Connection {
    stream: Box<dyn Stream>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Nothing more comes, or is read.
    is_over: bool,
}

/// The element.
pub(crate) struct ControlSocket {
    address: Address,
    is_read_only: bool,
    is_verbose: bool,
    is_local: bool,
    retries: u32,
    warns: bool,
    listener: Option<Listener>,
    connections: BTreeMap<RawFd, Connection>,
}

impl Default for ControlSocket {
    fn default() -> Self {
        Self {
            address: Address::None,
            is_read_only: false,
            is_verbose: false,
            is_local: true,
            retries: 0,
            warns: true,
            listener: None,
            connections: BTreeMap::new(),
        }
    }
}

impl Element for ControlSocket {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut kind = String::new();
        args.must("TYPE", &mut kind)
            .key("READONLY", &mut self.is_read_only)
            .key("VERBOSE", &mut self.is_verbose)
            .key("LOCALHOST", &mut self.is_local)
            .key("RETRIES", &mut self.retries)
            .key("RETRY_WARNINGS", &mut self.warns);
        match kind.to_ascii_uppercase().as_str() {
            "TCP" => {
                let mut port = String::new();
                args.must("PORT", &mut port);
                self.address = tcp_address(&port, args.cx()).ok_or_else(|| args.error("PORT requires TCP port"))?;
            }
            "UNIX" => {
                let mut name = String::new();
                args.must("FILENAME", &mut name);
                if name.len() >= 108 {
                    args.error("filename too long");
                }
                self.address = Address::Unix(name);
            }
            "SOCKET" => {
                let mut fd = 0;
                args.must("FD", &mut fd);
                self.address = Address::Socket(fd);
            }
            "" => {}
            other => return Err(args.error(format_args!("unknown socket type '{other}'"))),
        }
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if let Address::Socket(fd) = self.address {
            inherited(fd).map_err(|error| format!("file descriptor {fd}: {error}"))?;
            // Another router may still have this connection.
            cx.timer_after(ADOPT, Timestamp::ZERO);
            return Ok(());
        }
        match self.open(cx) {
            Ok(()) => Ok(()),
            Err(error) if self.retries == 0 => Err(error),
            Err(error) => {
                self.warn(cx, &error);
                cx.timer_after(RETRY, Timestamp::new(1, 0));
                Ok(())
            }
        }
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, timer: usize) {
        if timer == ADOPT {
            return self.adopt(cx);
        }
        self.retries -= 1;
        match self.open(cx) {
            Ok(()) => {}
            Err(error) if self.retries == 0 => {
                cx.say(format_args!("{}: {error}", cx.declaration()));
                cx.stop_driver();
            }
            Err(error) => {
                self.warn(cx, &error);
                cx.timer_after(RETRY, Timestamp::new(1, 0));
            }
        }
    }

    fn selected(&mut self, cx: &mut Cx<'_>, fd: RawFd, ready: Interest) {
        if self.listener.as_ref().is_some_and(|listener| listener.fd() == fd) {
            self.accept(cx);
            return;
        }
        let Some(connection) = self.connections.get_mut(&fd) else { return };
        let lives = (!ready.read || connection.fill()) && {
            connection.execute(cx, self.is_read_only);
            connection.flush()
        };
        if !lives || connection.is_done() {
            cx.select(fd, Interest::default());
            self.connections.remove(&fd);
            if self.is_verbose {
                cx.say(format_args!("{}: closed connection {fd}", cx.declaration()));
            }
            return;
        }
        cx.select(fd, connection.interest());
    }

    fn take_state(&mut self, cx: &mut Cx<'_>, old: &mut dyn Element, _: &mut Log) {
        let Some(old) = downcast::<Self>(old).filter(|old| old.address == self.address) else { return };
        if self.listener.is_some() {
            return;
        }
        self.listener = old.listener.take();
        self.connections = std::mem::take(&mut old.connections);
        if let Some(listener) = &self.listener {
            cx.timer_cancel(RETRY);
            cx.select(listener.fd(), Interest { read: true, write: false });
        }
        if !self.connections.is_empty() {
            cx.timer_cancel(ADOPT);
        }
        for (fd, connection) in &self.connections {
            cx.select(*fd, connection.interest());
        }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        match &self.address {
            Address::Tcp(..) => handlers.read("port", |socket: &mut Self, _| socket.port()),
            Address::Unix(_) => handlers.read("filename", |socket: &mut Self, _| match &socket.address {
                Address::Unix(name) => name.clone(),
                _ => String::new(),
            }),
            Address::None | Address::Socket(_) => {}
        }
    }

    fn cleanup(&mut self, _: &mut Cx<'_>) {
        self.connections.values_mut().for_each(|connection| _ = connection.flush());
        self.connections.clear();
        if let (Some(Listener::Unix(_)), Address::Unix(name)) = (self.listener.take(), &self.address) {
            let _ = std::fs::remove_file(name);
        }
    }
}

/// A connection of whoever started the program, who may have it open elsewhere: it ends with this.
struct Inherited(UnixStream);

impl Read for Inherited {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(bytes)
    }
}

impl Write for Inherited {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl AsRawFd for Inherited {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Listener {
    fn fd(&self) -> RawFd {
        match self {
            Self::Tcp(listener) => listener.as_raw_fd(),
            Self::Unix(listener) => listener.as_raw_fd(),
        }
    }

    /// The next client; nothing where nobody waits.
    fn accept(&self) -> std::io::Result<(Box<dyn Stream>, String)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, from) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok((Box::new(stream), format!(" from {from}")))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok((Box::new(stream), String::new()))
            }
        }
    }
}

/// A port: a number, a name, or a number with a `+` behind it.
fn tcp_address(text: &str, cx: &ArgCx<'_>) -> Option<Address> {
    if let Some(first) = text.strip_suffix('+') {
        return first.parse().ok().filter(|port| *port > 0).map(|port| Address::Tcp(port, true));
    }
    let named = || cx.names.get(NameKind::TcpPort, text, cx.element).and_then(|port| port.try_into().ok());
    let port = text.parse().ok().or_else(|| named().map(u16::from_be_bytes))?;
    Some(Address::Tcp(port, false))
}

impl ControlSocket {
    /// The port that it has, or is to have.
    fn port(&self) -> u16 {
        match (&self.listener, &self.address) {
            (Some(Listener::Tcp(listener)), _) => listener.local_addr().map_or(0, |address| address.port()),
            (_, Address::Tcp(port, _)) => *port,
            _ => 0,
        }
    }

    fn warn(&self, cx: &Cx<'_>, error: &str) {
        if self.warns {
            let tries = if self.retries == 1 { "try" } else { "tries" };
            cx.say(format_args!("{}: {error} ({} {tries} left)", cx.declaration(), self.retries));
        }
    }

    fn open(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        let listener = match &self.address {
            Address::Tcp(first, others) => {
                let host = if self.is_local { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
                let last = if *others && self.retries == 0 { first.saturating_add(MORE_PORTS) } else { *first };
                let mut tried = (*first..=last).map(|port| TcpListener::bind((host, port)));
                let found = tried.by_ref().find(Result::is_ok).unwrap_or_else(|| TcpListener::bind((host, *first)));
                let listener = found.map_err(|error| format!("bind: {}", reason(&error)))?;
                listener.set_nonblocking(true).map_err(|error| reason(&error))?;
                Listener::Tcp(listener)
            }
            Address::Unix(name) => {
                let listener = UnixListener::bind(name).map_err(|error| format!("bind: {name}: {}", reason(&error)))?;
                let own = std::fs::Permissions::from_mode(0o600);
                let done = std::fs::set_permissions(name, own).and_then(|()| listener.set_nonblocking(true));
                done.map_err(|error| format!("{name}: {}", reason(&error)))?;
                Listener::Unix(listener)
            }
            Address::None | Address::Socket(_) => return Err("no address".to_owned()),
        };
        cx.select(listener.fd(), Interest { read: true, write: false });
        self.listener = Some(listener);
        Ok(())
    }

    fn accept(&mut self, cx: &mut Cx<'_>) {
        let Some(listener) = &self.listener else { return };
        let (stream, from) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => return,
            Err(error) => return cx.say(format_args!("{}: accept: {error}", cx.declaration())),
        };
        // Whoever is one too many is closed at once.
        if self.connections.len() >= MOST_CONNECTIONS {
            return;
        }
        self.greet(cx, stream, &from);
    }

    /// Takes the connection with which the program was started.
    fn adopt(&mut self, cx: &mut Cx<'_>) {
        let Address::Socket(number) = self.address else { return };
        let stream = inherited(number).map(UnixStream::from);
        let ready = stream.and_then(|stream| stream.set_nonblocking(true).map(|()| stream));
        match ready {
            Ok(stream) => self.greet(cx, Box::new(Inherited(stream)), ""),
            Err(error) => cx.say(format_args!("{}: file descriptor {number}: {error}", cx.declaration())),
        }
    }

    fn greet(&mut self, cx: &mut Cx<'_>, stream: Box<dyn Stream>, from: &str) {
        let fd = stream.as_raw_fd();
        if self.is_verbose {
            cx.say(format_args!("{}: opened connection {fd}{from}", cx.declaration()));
        }
        let mut connection =
            Connection { stream, input: Vec::new(), output: GREETING.as_bytes().to_vec(), is_over: false };
        if connection.flush() {
            cx.select(fd, connection.interest());
            self.connections.insert(fd, connection);
        }
    }
}

impl Connection {
    fn interest(&self) -> Interest {
        // A command that is complete waits for its turn by asking whether it may write.
        let has_command = !matches!(protocol::parse(&self.input, self.is_over), Parsed::More);
        Interest {
            read: !self.is_over && self.output.len() < MOST_WAITING && !has_command,
            write: !self.output.is_empty() || has_command,
        }
    }

    fn is_done(&self) -> bool {
        self.is_over && self.output.is_empty() && matches!(protocol::parse(&self.input, true), Parsed::More)
    }

    /// Reads what is there; false: the connection is broken.
    fn fill(&mut self) -> bool {
        if self.is_over || self.output.len() >= MOST_WAITING {
            return true;
        }
        let mut piece = [0; PIECE];
        match self.stream.read(&mut piece) {
            Ok(0) => self.is_over = true,
            Ok(n) => self.input.extend_from_slice(&piece[..n]),
            Err(error) => return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
        true
    }

    /// Writes what can be written; false: the connection is broken.
    fn flush(&mut self) -> bool {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return false,
                Ok(n) => _ = self.output.drain(..n),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// Executes one command, if there is a whole one and its answer has room.
    fn execute(&mut self, cx: &mut Cx<'_>, is_read_only: bool) {
        if self.output.len() >= MOST_WAITING {
            return;
        }
        let (answer, used) = match protocol::parse(&self.input, self.is_over) {
            Parsed::More => return,
            Parsed::Refused((code, text), used) => (answer(code, &text), used),
            Parsed::Broken((code, text)) => {
                self.is_over = true;
                (answer(code, &text), self.input.len())
            }
            Parsed::Command(Command::Quit { is_bare }, _) => {
                self.is_over = true;
                let mut said = if is_bare { Vec::new() } else { answer(500, "Bad command syntax") };
                said.extend(answer(200, "Goodbye!"));
                (said, self.input.len())
            }
            Parsed::Command(command, used) => (execute(cx, &command, is_read_only), used),
        };
        self.output.extend(answer);
        self.input.drain(..used);
        if self.input.is_empty() {
            // What a large command needed is not kept.
            self.input = Vec::new();
        }
    }
}
