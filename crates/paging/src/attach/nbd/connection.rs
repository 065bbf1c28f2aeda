//! One connection: requests in, answers out, by several threads.
//!
//! Whose turn it is reads a request with the bytes of a write; answers are sent whole, one at a time. Buffers are made once,
//! and nothing allocates while requests succeed. Whoever serves a connection leaves it when everything that was read from
//! it is done: only then another one may be made, on which the kernel sends again what was not answered, and no late
//! write comes after a newer one.

use super::wire::{FLAGS, Operation, REQUEST_BYTES, Request, answer, parse};
use crate::cache::PagingCache;
use bifolio_block::BlockDevice;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes that a thread moves at a time. Longer requests are done in parts.
const PART_BYTES: usize = 1 << 20;
/// The longest request that is served, as the kernel's driver has it.
const REQUEST_BYTES_MAX: u32 = 32 << 20;

const _: () = assert!(FLAGS & 1 == 1, "the kernel ignores flags without the first one");

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The kernel will send nothing more.
    Well,
    /// It was cut, and requests may be unanswered.
    Cut,
}

/// Memory for the threads of a connection, and of the next one.
pub(super) struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    pub(super) fn new(threads: usize) -> Self {
        Self((0..threads.max(1)).map(|_| vec![0; PART_BYTES + 4096]).collect())
    }
}

/// A connection while it is served.
struct Connection<'a> {
    cache: &'a PagingCache,
    reader: Mutex<&'a UnixStream>,
    writer: Mutex<&'a UnixStream>,
    socket: &'a UnixStream,
    has_ended_well: AtomicBool,
}

/// Serves a connection to its end, whatever that is; returns when nothing of it is done any more.
pub(super) fn serve(socket: &UnixStream, cache: &PagingCache, buffers: &mut Buffers) -> Ended {
    let connection = Connection {
        cache,
        reader: Mutex::new(socket),
        writer: Mutex::new(socket),
        socket,
        has_ended_well: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        for buffer in &mut buffers.0 {
            let connection = &connection;
            scope.spawn(move || {
                let _cuts = CutsAtEnd(connection.socket);
                let at = buffer.as_ptr().align_offset(4096);
                while connection.next(&mut buffer[at..at + PART_BYTES]).is_ok() {}
            });
        }
    });
    if connection.has_ended_well.into_inner() { Ended::Well } else { Ended::Cut }
}

/// Nobody reads or answers on what has failed once, by a panic as well: the kernel then sends again.
struct CutsAtEnd<'a>(&'a UnixStream);

impl Drop for CutsAtEnd<'_> {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Connection<'_> {
    /// Reads and answers a request.
    fn next(&self, buffer: &mut [u8]) -> io::Result<()> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let mut head = [0; REQUEST_BYTES];
        reader.read_exact(&mut head)?;
        let request = parse(&head).filter(|request| request.len <= REQUEST_BYTES_MAX || !has_bytes(request.operation));
        let request = request.ok_or_else(|| io::Error::from(ErrorKind::InvalidData))?;
        let (offset, len) = (request.offset, request.len as usize);
        let done = match request.operation {
            Operation::Write if len > buffer.len() => {
                // The turn is kept: its bytes are still to come.
                let done = self.write_parts(*reader, offset, len, buffer)?;
                drop(reader);
                done
            }
            Operation::Write => {
                reader.read_exact(&mut buffer[..len])?;
                drop(reader);
                self.cache.write(offset, &buffer[..len])
            }
            Operation::Disconnect => {
                self.has_ended_well.store(true, Ordering::Release);
                return Err(io::Error::from(ErrorKind::ConnectionAborted));
            }
            Operation::Read => {
                drop(reader);
                return self.read(&request, buffer);
            }
            Operation::Flush => {
                drop(reader);
                self.cache.flush()
            }
            Operation::Trim => {
                drop(reader);
                self.cache.discard(offset, len as u64)
            }
            Operation::Other => return self.send(&answer(request.handle, libc::EINVAL), &[]),
        };
        self.send(&answer(request.handle, done.map_or_else(|error| error.errno(), |()| 0)), &[])
    }

    fn write_parts(
        &self,
        mut reader: &UnixStream,
        offset: u64,
        len: usize,
        buffer: &mut [u8],
    ) -> io::Result<bifolio_block::Result<()>> {
        let (mut at, mut done) = (0, Ok(()));
        while at < len {
            let part = &mut buffer[..(len - at).min(PART_BYTES)];
            reader.read_exact(part)?;
            done = done.and_then(|()| self.cache.write(offset + at as u64, part));
            at += part.len();
        }
        Ok(done)
    }

    /// What follows a good answer cannot be taken back, so a failure in a later part cuts the connection: the kernel asks
    /// again.
    fn read(&self, request: &Request, buffer: &mut [u8]) -> io::Result<()> {
        let len = request.len as usize;
        let first = len.min(buffer.len());
        if let Err(error) = self.cache.read(request.offset, &mut buffer[..first]) {
            return self.send(&answer(request.handle, error.errno()), &[]);
        }
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        send_whole(&mut writer, &answer(request.handle, 0), &buffer[..first])?;
        let mut at = first;
        while at < len {
            let part = &mut buffer[..(len - at).min(PART_BYTES)];
            let read = self.cache.read(request.offset + at as u64, part);
            read.map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
            writer.write_all(part)?;
            at += part.len();
        }
        Ok(())
    }

    fn send(&self, head: &[u8], bytes: &[u8]) -> io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        send_whole(&mut writer, head, bytes)
    }
}

/// Both parts in one call where the socket has room, as the kernel wakes up for each.
fn send_whole(writer: &mut &UnixStream, head: &[u8], bytes: &[u8]) -> io::Result<()> {
    let sent = loop {
        match writer.write_vectored(&[io::IoSlice::new(head), io::IoSlice::new(bytes)]) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            sent => break sent?,
        }
    };
    writer.write_all(&head[sent.min(head.len())..])?;
    writer.write_all(&bytes[sent.saturating_sub(head.len())..])
}

fn has_bytes(operation: Operation) -> bool {
    matches!(operation, Operation::Read | Operation::Write)
}
