//! Serves metrics and drawings, by HTTP.
//!
//! One thread serves all clients, and none of them waits for another: nobody is read from or written to who is not ready.
//! Who takes too long is closed, and so is the oldest one where there are too many. Requests are short, and what is not asked
//! for is not read.

use super::http::{self, MOST_BYTES, Request, View};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections at once.
const MOST_CONNECTIONS: usize = 64;
/// Connections that are accepted before others have their turn.
const MOST_ACCEPTED: usize = 16;
/// How long a client may take to ask, and how long to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a client that has its answer may take to close.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long nobody is accepted after the system has refused to.
const REST: Duration = Duration::from_millis(100);
/// How often pages are told that time passes, at least.
const STEP: Duration = Duration::from_secs(1);

/// A view's type and content.
pub type Content = (&'static str, Arc<[u8]>);

/// What clients get to see.
pub trait Pages: Send {
    /// Time has passed: a second at most.
    fn step(&mut self) {}

    /// A view; none where there is no such one.
    fn get(&mut self, view: View) -> Option<Content>;
}

/// Where clients come.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    place: String,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Listens at `PORT` of this host alone, at `ADDRESS:PORT`, or at a Unix socket, whose name has a slash and which is its
    /// user's alone. With port 0, the system chooses one. An error is a line.
    pub fn bind(place: &str) -> Result<Self, String> {
        let of = |error: io::Error| format!("{place}: {error}");
        if place.contains('/') {
            let socket = bind_unix(Path::new(place)).map_err(of)?;
            return Ok(Self { socket: Socket::Unix(socket, place.into()), place: place.to_owned() });
        }
        let port = place.strip_prefix(':').unwrap_or(place).parse::<u16>();
        let listener = match port {
            Ok(port) => TcpListener::bind((Ipv4Addr::LOCALHOST, port)),
            Err(_) => place.to_socket_addrs().and_then(|found| TcpListener::bind(&found.collect::<Vec<_>>()[..])),
        };
        let listener = listener.map_err(of)?;
        listener.set_nonblocking(true).map_err(of)?;
        let place = format!("http://{}/", listener.local_addr().map_err(of)?);
        Ok(Self { socket: Socket::Tcp(listener), place })
    }

    /// The address for a browser, or the socket's name.
    pub fn place(&self) -> &str {
        &self.place
    }

    fn accept(&self) -> io::Result<Stream> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Tcp(stream))
            }
            Socket::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Unix(stream))
            }
        }
    }
}

/// A Unix socket in the place of one that nobody listens at any more.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let is_left = |error: &io::Error| {
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
        error.kind() == ErrorKind::AddrInUse
            && is_socket
            && UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    };
    let listener = match UnixListener::bind(path) {
        Err(error) if is_left(&error) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(listener) => listener.as_fd(),
            Socket::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Socket::Unix(_, path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn end(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// A thread that serves until this is dropped.
pub struct Server {
    wake: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves pages to whoever comes to `listener`.
    pub fn start(listener: Listener, pages: impl Pages + 'static) -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        let mut clients =
            Clients { listener, woken, views: Box::new(pages), connections: Vec::new(), rests_until: Instant::now() };
        let run = move || while clients.turn() {};
        let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(run)?;
        Ok(Self { wake: Some(wake), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The thread sees that the other end is closed.
        self.wake = None;
        self.thread.take().map(JoinHandle::join);
    }
}

struct Clients {
    listener: Listener,
    woken: UnixStream,
    views: Box<dyn Pages>,
    connections: Vec<Connection>,
    rests_until: Instant,
}

impl Clients {
    /// Serves whoever is ready, or waits for a second. False: it is to end.
    fn turn(&mut self) -> bool {
        self.views.step();
        let now = Instant::now();
        self.connections.retain(|connection| connection.deadline > now);
        let rests = self.rests_until > now;
        let mut fds = vec![PollFd::new(&self.woken, PollFlags::IN)];
        fds.push(PollFd::new(&self.listener, if rests { PollFlags::empty() } else { PollFlags::IN }));
        fds.extend(self.connections.iter().map(|connection| PollFd::new(&connection.stream, connection.interest())));
        let deadlines = self.connections.iter().map(|connection| connection.deadline - now);
        let patience =
            deadlines.chain(rests.then(|| self.rests_until - now)).min().map_or(STEP, |least| least.min(STEP));
        let patience = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
        if poll(&mut fds, Some(&patience)).is_err() {
            return true;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return false;
        }
        let mut is_ready = ready[2..].iter().copied();
        let views = &mut *self.views;
        self.connections.retain_mut(|connection| !is_ready.next().unwrap_or(false) || connection.go_on(views));
        if ready[1] {
            self.accept();
        }
        true
    }

    fn accept(&mut self) {
        for _ in 0..MOST_ACCEPTED {
            match self.listener.accept() {
                Ok(stream) => {
                    if self.connections.len() >= MOST_CONNECTIONS {
                        self.connections.remove(0);
                    }
                    self.connections.push(Connection::new(stream));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                // There may be no descriptors left.
                Err(_) => {
                    self.rests_until = Instant::now() + REST;
                    return;
                }
            }
        }
    }
}

/// A client.
struct Connection {
    stream: Stream,
    deadline: Instant,
    state: State,
}

enum State {
    /// It has asked for so much.
    Asking(Vec<u8>),
    /// It gets an answer: its head, its content, and how much of both it has.
    Answered(Vec<u8>, Arc<[u8]>, usize),
    /// It has its answer. Were it closed now, what it said after its request would take the answer away again.
    Leaving,
}

impl Connection {
    fn new(stream: Stream) -> Self {
        Self { stream, deadline: Instant::now() + PATIENCE, state: State::Asking(Vec::new()) }
    }

    fn interest(&self) -> PollFlags {
        if matches!(self.state, State::Answered(..)) { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Does what can be done now. False: the connection is over.
    fn go_on(&mut self, views: &mut dyn Pages) -> bool {
        match self.step(views) {
            Ok(lives) => lives,
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    fn step(&mut self, views: &mut dyn Pages) -> io::Result<bool> {
        match &mut self.state {
            State::Asking(input) => {
                let mut piece = [0; 1024];
                let len = piece.len().min(MOST_BYTES - input.len());
                let n = self.stream.read(&mut piece[..len])?;
                input.extend_from_slice(&piece[..n]);
                let request = http::parse(input);
                if request == Request::More {
                    return Ok(n > 0);
                }
                self.state = answer(request, views);
                self.deadline = Instant::now() + PATIENCE;
                self.step(views)
            }
            State::Answered(head, content, at) => {
                let rest = if *at < head.len() { &head[*at..] } else { &content[*at - head.len()..] };
                let n = self.stream.write(rest)?;
                *at += n;
                if *at < head.len() + content.len() {
                    return Ok(n > 0);
                }
                self.stream.end()?;
                (self.state, self.deadline) = (State::Leaving, Instant::now() + FAREWELL);
                Ok(true)
            }
            State::Leaving => Ok(self.stream.read(&mut [0; 4096])? > 0),
        }
    }
}

fn answer(request: Request, views: &mut dyn Pages) -> State {
    let refused = |code: u16| {
        let text = format!("{code} {}\n", http::reason(code));
        (code, ("text/plain; charset=utf-8", text.into_bytes().into()), false)
    };
    let (code, (kind, content), is_head): (u16, Content, bool) = match request {
        Request::For { view, is_head } => match views.get(view) {
            Some(content) => (200, content, is_head),
            None => refused(404),
        },
        Request::Refused(code) => refused(code),
        Request::More => return State::Asking(Vec::new()),
    };
    let head = http::head(code, kind, content.len());
    State::Answered(head, if is_head { Arc::default() } else { content }, 0)
}
