//! Asynchronous reads and writes by threads, for kernels and containers that refuse `io_uring`.

use super::{Direction, IoQueue, QueuedIo};
use bifolio_device::without_signals;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Enough transfers at a time to keep an SSD busy, few enough to start quickly.
const THREADS_MAX: u32 = 16;

#[derive(Debug)]
pub(super) struct ThreadQueue {
    requests: Option<Sender<QueuedIo>>,
    completions: Receiver<(u64, io::Result<usize>)>,
    in_flight: usize,
    threads: Vec<JoinHandle<()>>,
}

impl ThreadQueue {
    pub(super) fn new(depth: u32) -> io::Result<Self> {
        let (requests, queued) = channel::<QueuedIo>();
        let (report, completions) = channel();
        let queued = Arc::new(Mutex::new(queued));
        let start = |_| {
            let (queued, report) = (Arc::clone(&queued), report.clone());
            std::thread::Builder::new().name("bifolio-queue".to_owned()).spawn(move || {
                let next = || queued.lock().unwrap_or_else(PoisonError::into_inner).recv();
                while let Ok(QueuedIo { direction, fd, memory, len, offset, token, .. }) = next() {
                    // SAFETY: `submit`'s caller keeps descriptor and memory valid until the report.
                    let moved = unsafe {
                        match direction {
                            Direction::Read => libc::pread(fd, memory.cast(), len, offset as i64),
                            Direction::Write => libc::pwrite(fd, memory.cast(), len, offset as i64),
                        }
                    };
                    let outcome = usize::try_from(moved).map_err(|_| io::Error::last_os_error());
                    if report.send((token, outcome)).is_err() {
                        break;
                    }
                }
            })
        };
        let threads = without_signals(|| (0..depth.clamp(1, THREADS_MAX)).map(start).collect::<io::Result<_>>())?;
        Ok(Self { requests: Some(requests), completions, in_flight: 0, threads })
    }
}

impl IoQueue for ThreadQueue {
    unsafe fn register_slot(&mut self, _index: usize, _start: *mut u8, _len: usize) {}

    unsafe fn submit(&mut self, transfer: QueuedIo) -> io::Result<()> {
        let sent = self.requests.as_ref().is_some_and(|requests| requests.send(transfer).is_ok());
        if !sent {
            return Err(io::Error::other("the queue's threads are gone"));
        }
        self.in_flight += 1;
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<(u64, io::Result<usize>)>) -> io::Result<()> {
        if self.in_flight == 0 {
            return Ok(());
        }
        let first = self.completions.recv().map_err(|_| io::Error::other("the queue's threads are gone"))?;
        let before = done.len();
        done.push(first);
        done.extend(self.completions.try_iter());
        self.in_flight -= done.len() - before;
        Ok(())
    }
}

impl Drop for ThreadQueue {
    fn drop(&mut self) {
        self.requests = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
