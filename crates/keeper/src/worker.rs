//! A worker's side of its keeper.

use crate::keep::SOCKET_VARIABLE;
use crate::parcel::{Message, Socket};
use crate::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// What a worker was given, and its way to ask for more.
#[derive(Debug)]
pub struct Worker {
    socket: Mutex<Socket>,
    held: Vec<(u32, OwnedFd)>,
    memory: Vec<(u32, OwnedFd)>,
}

impl Worker {
    /// Takes what this process's keeper hands over. To be called once, before other threads are started.
    ///
    /// # Errors
    /// `BadUse` in a process that no keeper started, and the system's.
    pub fn connect() -> Result<Self> {
        let number = std::env::var(SOCKET_VARIABLE).ok().and_then(|text| text.parse::<i32>().ok());
        let Some(number) = number else {
            return Err(Error::new(ErrorKind::BadUse, "this command is started by a keeper, and not by hand"));
        };
        // SAFETY: takes no memory; a number that is no descriptor is refused. Children do not inherit it from here on.
        if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
            return Err(Error::last_os("finding the keeper's socket"));
        }
        // SAFETY: it is open, was made for this process by its keeper, and is taken once.
        let socket = Socket::of(unsafe { OwnedFd::from_raw_fd(number) });
        let (mut held, mut memory) = (Vec::new(), Vec::new());
        loop {
            match socket.receive()? {
                Some((Message::Held(number), Some(fd))) => held.push((number, fd)),
                Some((Message::Memory(number), Some(fd))) => memory.push((number, fd)),
                Some((Message::Begin, _)) => break,
                Some(_) => return Err(Error::new(ErrorKind::Damaged, "the keeper sent something unexpected")),
                None => return Err(Error::new(ErrorKind::Gone, "the keeper has gone")),
            }
        }
        Ok(Self { socket: Mutex::new(socket), held, memory })
    }

    /// The descriptors of a number, in their order.
    pub fn take(&mut self, number: u32) -> Vec<OwnedFd> {
        let (taken, left) = std::mem::take(&mut self.held).into_iter().partition(|(own, _)| *own == number);
        self.held = left;
        let taken: Vec<(u32, OwnedFd)> = taken;
        taken.into_iter().map(|(_, fd)| fd).collect()
    }

    /// The memory that a predecessor had.
    pub fn take_memory(&mut self) -> Vec<(u32, OwnedFd)> {
        std::mem::take(&mut self.memory)
    }

    /// Says that this worker serves.
    ///
    /// # Errors
    /// `Gone`.
    pub fn ready(&self) -> Result<()> {
        self.lock().send(Message::Ready, None)
    }

    /// Has memory held under a number; returns when it is.
    ///
    /// # Errors
    /// `Gone`.
    pub fn keep(&self, number: u32, memory: &OwnedFd) -> Result<()> {
        let socket = self.lock();
        socket.send(Message::Memory(number), Some(memory.as_fd()))?;
        match socket.receive()? {
            Some((Message::Kept(kept), _)) if kept == number => Ok(()),
            Some(_) => Err(Error::new(ErrorKind::Damaged, "the keeper answered something unexpected")),
            None => Err(Error::new(ErrorKind::Gone, "the keeper has gone")),
        }
    }

    /// Has memory held no longer. A keeper that has gone holds nothing.
    pub fn release(&self, number: u32) {
        let _ = self.lock().send(Message::Release(number), None);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Socket> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
