//! One connection: a request at a time, which is asked again when another server serves.
//!
//! The keeper holds the other end as well. When a server dies, nothing is heard until its successor says so; what was not
//! answered is sent again then, with its number, and is done once. When the keeper dies, both ends of it go.
//!
//! What the server says unasked is heard by whoever waits for an answer, and by a thread of the connection's when nobody does.

use super::news::News;
use super::once::Once;
use crate::protocol::{ToClient, ToServer, decode_answer, encode_request};
use crate::socket::{MESSAGE_BYTES_MAX, Received, Socket};
use bifolio_cache::{Error, ErrorKind, Result};
use bifolio_device::fork::Birth;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How often it is listened beside somebody who asks: he hears what is said, and answers to him wake who listens.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Connection {
    path: PathBuf,
    socket: Socket,
    state: Mutex<State>,
    pub(super) news: News,
    birth: Birth,
}

#[derive(Debug)]
struct State {
    number: u64,
    buffer: Vec<u8>,
}

impl Connection {
    /// To who listens at a path: the same user, root, or one who is trusted.
    pub(super) fn to(path: &Path, trusted: Option<u32>) -> Result<Self> {
        let about = |kind, detail: String, code| Error::told(kind, &path.display().to_string(), detail, code);
        let socket = Socket::connect(path).map_err(|error| {
            let kind = match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ErrorKind::Gone,
                io::ErrorKind::PermissionDenied => ErrorKind::Permission,
                _ => ErrorKind::Device,
            };
            about(kind, format!("no daemon answers there ({error}): start one first"), error.raw_os_error())
        })?;
        let peer = socket.peer().map_err(|error| about(ErrorKind::Device, error.to_string(), error.raw_os_error()))?;
        // SAFETY: asks for a number.
        let own = unsafe { libc::geteuid() };
        if peer.uid != own && peer.uid != 0 && Some(peer.uid) != trusted {
            let detail = format!("user {} serves there, whom this program was not told to trust", peer.uid);
            return Err(about(ErrorKind::Permission, detail, None));
        }
        let state = Mutex::new(State { number: 0, buffer: vec![0; MESSAGE_BYTES_MAX] });
        Ok(Self { path: path.to_owned(), socket, state, news: News::default(), birth: Birth::here() })
    }

    /// Hears what is said unasked until the connection ends.
    pub(super) fn listen(self: &Arc<Self>) {
        let connection = Arc::clone(self);
        let listen = move || while connection.hear_next() {};
        // Without a thread it is heard with the next answer.
        let _ = thread::Builder::new().name("bifolio daemon".into()).spawn(listen);
    }

    /// Waits for something that nobody has asked for; false at the end.
    fn hear_next(&self) -> bool {
        if !self.socket.wait(-1) {
            return true;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever has just asked may have had it.
        if !self.socket.wait(0) {
            drop(state);
            thread::sleep(PAUSE);
            return true;
        }
        let Ok(Received::Message(len, _)) = self.socket.receive(&mut state.buffer) else { return false };
        if let Some((_, message)) = decode_answer(&state.buffer[..len]) {
            self.news.hear(&message);
        }
        true
    }

    /// Asks, and waits for the answer.
    pub(super) fn ask(&self, message: &ToServer, with: Option<BorrowedFd<'_>>) -> Result<(ToClient, Option<OwnedFd>)> {
        self.ask_once(message, with, None)
    }

    /// The same, and tells whoever notes it how far it is.
    pub(super) fn ask_once(
        &self,
        message: &ToServer,
        with: Option<BorrowedFd<'_>>,
        once: Option<&dyn Once>,
    ) -> Result<(ToClient, Option<OwnedFd>)> {
        let answer = self.asked(message, with, once);
        if answer.is_err() {
            once.inspect(|once| once.ended(false));
        }
        answer
    }

    fn asked(
        &self,
        message: &ToServer,
        with: Option<BorrowedFd<'_>>,
        once: Option<&dyn Once>,
    ) -> Result<(ToClient, Option<OwnedFd>)> {
        if self.birth.was_elsewhere() {
            let detail = "this process was forked from the one that connected: connect anew";
            return Err(self.error(ErrorKind::Forked, detail.to_owned()));
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { number, buffer } = &mut *state;
        *number += 1;
        let bytes = encode_request(*number, message);
        once.inspect(|once| once.sends(*number));
        let send = || match self.socket.send(&bytes, with) {
            // What it has said before it went, such as why nobody is welcome, is still to be heard.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => Ok(()),
            sent => sent.map_err(|error| self.gone(&error)),
        };
        send()?;
        loop {
            once.inspect(|once| self.note(*number, buffer, *once));
            let (len, descriptor) = match self.socket.receive(buffer).map_err(|error| self.gone(&error))? {
                Received::Message(len, descriptor) => (len, descriptor),
                Received::End => return Err(self.gone(&io::Error::from_raw_os_error(libc::ECONNRESET))),
                Received::TooLong => return Err(unexpected()),
            };
            let (answered, answer) = decode_answer(&buffer[..len]).ok_or_else(unexpected)?;
            match answer {
                ToClient::Again => send()?,
                answer if self.news.hear(&answer) => {}
                // To what was asked twice.
                _ if answered != *number => {}
                ToClient::Failed { kind, os_code, subject, detail } => {
                    return Err(Error::told(kind, &subject, detail, os_code));
                }
                answer => return Ok((answer, descriptor)),
            }
        }
    }

    /// Waits for what is said next, and says if that is that something was done.
    fn note(&self, number: u64, buffer: &mut [u8], once: &dyn Once) {
        let Ok(len) = self.socket.peek(buffer) else { return };
        if let Some((answered, answer)) = decode_answer(&buffer[..len])
            && answered == number
            && !matches!(answer, ToClient::Failed { .. })
        {
            once.ended(true);
        }
    }

    /// Its socket.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Says something to which there is no answer.
    pub(super) fn say(&self, message: &ToServer) {
        if !self.birth.was_elsewhere() {
            let _ = self.socket.send_now(&encode_request(u64::MAX, message));
        }
    }

    /// Ends it, also for who waits for an answer.
    pub(super) fn shut_down(&self) {
        if !self.birth.was_elsewhere() {
            self.socket.shut_down();
        }
    }

    fn gone(&self, error: &io::Error) -> Error {
        let detail = match self.news.gone() {
            Some(why) => why.to_owned(),
            None => format!("the daemon has gone ({error}): what is mapped stays; connect again when it runs"),
        };
        self.error(ErrorKind::Gone, detail)
    }

    fn error(&self, kind: ErrorKind, detail: String) -> Error {
        Error::told(kind, &self.path.display().to_string(), detail, None)
    }
}

pub(super) fn unexpected() -> Error {
    Error::told(
        ErrorKind::Gone,
        "the daemon",
        "it answered something that makes no sense: its version may differ",
        None,
    )
}
