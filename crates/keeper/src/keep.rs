//! The keeper: holds descriptors and memory, starts a worker, hands it duplicates of all, and starts another one when it
//! dies.
//!
//! ```text
//!   keeper ──held descriptors, memory──> worker ──ready──> serves
//!      ^                                   |
//!      └──────── new memory, memory given back ────────────┘
//! ```
//!
//! It does nothing else, so that nothing of it can fail: it opens no device and computes nothing. When it ends, however,
//! the kernel ends its worker.

use crate::locked::LockedPages;
use crate::parcel::{Message, Socket};
use crate::restart::Restarts;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// The variable by which a worker finds its socket.
pub(crate) const SOCKET_VARIABLE: &str = "BIFOLIO_KEEPER_SOCKET";
/// How soon an end is noticed.
const TICK_MS: i32 = 10;
/// How long a worker may leave a message unread.
const SEND_SECONDS_MAX: i64 = 30;

/// What happens meanwhile.
#[derive(Debug)]
pub enum Event {
    /// A worker was started: its process.
    Started(u32),
    /// The worker serves.
    Ready,
    /// The worker died, and another one will be started.
    Died(ExitStatus),
    /// No process could be started, or told what it is to hold; it is tried again.
    NotStarted(Error),
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The worker ended as it should.
    Well,
    /// The last of several workers that died before they served.
    GaveUp(ExitStatus),
    /// It was stopped, and the worker killed.
    Stopped,
}

/// What outlives workers.
#[derive(Debug, Default)]
pub struct Keeper {
    held: Vec<(u32, OwnedFd)>,
    memory: BTreeMap<u32, Memory>,
    /// Whether shared memory that workers give stays where the system likes.
    leaves_unlocked: bool,
    restarts: Restarts,
}

/// Memory that is held.
#[derive(Debug)]
struct Memory {
    fd: OwnedFd,
    /// Before the first worker dies, its pages must not be anywhere else.
    _locked: Option<LockedPages>,
}

/// A worker from the keeper's side.
struct Running {
    child: Child,
    socket: Socket,
    begun: Instant,
    is_ready: bool,
}

impl Keeper {
    /// One that locks no memory: nothing is served that the system needs to write memory out.
    pub fn unlocked() -> Self {
        Self { leaves_unlocked: true, ..Self::default() }
    }

    /// Holds a descriptor, which workers find by this number. Several may have one number, and keep their order.
    pub fn hold(&mut self, number: u32, fd: OwnedFd) {
        self.held.push((number, fd));
    }

    /// Keeps a worker running until one ends well, none comes up, or `is_stopped`. The thread that calls this has to stay:
    /// the kernel ends the worker with it.
    ///
    /// # Errors
    /// The system's, where no process can be started, again and again.
    pub fn run(
        &mut self,
        command: &mut dyn FnMut() -> Command,
        is_stopped: &dyn Fn() -> bool,
        event: &mut dyn FnMut(Event),
    ) -> Result<Ended> {
        loop {
            let mut running = match Self::start(command()) {
                Ok(running) => running,
                // There may be memory for one in a moment.
                Err(error) => match self.restarts.died(false, false, Duration::ZERO) {
                    Some(delay) if !is_stopped() => {
                        event(Event::NotStarted(error));
                        std::thread::sleep(delay);
                        continue;
                    }
                    _ => return Err(error),
                },
            };
            event(Event::Started(running.child.id()));
            if self.tell(&running.socket).is_err() {
                // It has died, or waits for what could not be sent, and would wait for ever.
                let _ = running.child.kill();
            }
            let status = loop {
                if is_stopped() {
                    let _ = running.child.kill().and_then(|()| running.child.wait());
                    return Ok(Ended::Stopped);
                }
                let has_news = running.socket.has_news(TICK_MS);
                let has_gone = has_news && !self.hear(&mut running, event);
                let exited = running.child.try_wait();
                if let Some(status) = exited.map_err(|error| Error::system("waiting for the worker", error))? {
                    break status;
                }
                if has_gone {
                    // It is ending; its socket has no more to say.
                    std::thread::sleep(Duration::from_millis(1));
                }
            };
            // What it said last, such as memory that it gave us.
            while running.socket.has_news(0) && self.hear(&mut running, event) {}
            if status.success() {
                return Ok(Ended::Well);
            }
            let was_killed = status.signal() == Some(libc::SIGKILL);
            match self.restarts.died(running.is_ready, was_killed, running.begun.elapsed()) {
                None => return Ok(Ended::GaveUp(status)),
                Some(delay) => {
                    event(Event::Died(status));
                    std::thread::sleep(delay);
                }
            }
        }
    }

    fn start(mut command: Command) -> Result<Running> {
        let (socket, theirs) = Socket::pair()?;
        socket.limit_sends(SEND_SECONDS_MAX);
        let (fd, keeper) = (theirs.as_fd().as_raw_fd(), std::process::id());
        command.env(SOCKET_VARIABLE, fd.to_string());
        let prepare = move || {
            // SAFETY: safe after a fork, takes no memory; the descriptor is open.
            unsafe {
                libc::fcntl(fd, libc::F_SETFD, 0);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // The keeper may have gone before that.
                if libc::getppid() as u32 != keeper {
                    libc::_exit(1);
                }
            }
            Ok(())
        };
        // SAFETY: the closure calls nothing that a child may not call after a fork.
        unsafe { command.pre_exec(prepare) };
        let child = command.spawn().map_err(|error| Error::system("starting a worker", error))?;
        Ok(Running { child, socket, begun: Instant::now(), is_ready: false })
    }

    fn tell(&self, socket: &Socket) -> Result<()> {
        for (number, fd) in &self.held {
            socket.send(Message::Held(*number), Some(fd.as_fd()))?;
        }
        for (number, memory) in &self.memory {
            socket.send(Message::Memory(*number), Some(memory.fd.as_fd()))?;
        }
        socket.send(Message::Begin, None)
    }

    /// One message of the worker's; false when there will be none any more.
    fn hear(&mut self, running: &mut Running, event: &mut dyn FnMut(Event)) -> bool {
        match running.socket.receive() {
            Ok(Some((Message::Memory(number), Some(fd)))) => {
                let locked = if self.leaves_unlocked { None } else { LockedPages::of(&fd) };
                self.memory.insert(number, Memory { fd, _locked: locked });
                running.socket.send(Message::Kept(number), None).is_ok()
            }
            Ok(Some((Message::Release(number), _))) => {
                self.memory.remove(&number);
                true
            }
            Ok(Some((Message::Ready, _))) => {
                running.is_ready = true;
                event(Event::Ready);
                true
            }
            // A worker says nothing else; one that does is left to end by itself.
            Ok(Some(_)) => true,
            Ok(None) | Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(commands: &[&str]) -> (Result<Ended>, usize) {
        let (mut next, mut failures) = (0, 0);
        let mut command = || {
            next += 1;
            Command::new(commands[(next - 1).min(commands.len() - 1)])
        };
        let mut event = |what| failures += usize::from(matches!(what, Event::NotStarted(_)));
        let ended = Keeper::default().run(&mut command, &|| false, &mut event);
        (ended, failures)
    }

    /// No memory for a process was the end of what the keeper held, though there was some a moment later.
    #[test]
    fn a_worker_that_cannot_be_started_is_tried_again() {
        let missing = "/no/such/program";
        let (ended, failures) = run(&[missing, missing, missing, "true"]);
        assert_eq!((ended.unwrap(), failures), (Ended::Well, 3));
        let (ended, failures) = run(&[missing]);
        assert!(ended.is_err() && failures == 7, "{failures}");
    }
}
