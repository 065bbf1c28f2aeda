//! Writing what devices have released to the file some time later, by a thread of its own: so much is lost at most with
//! a device's memory, and CPU processes that read the file by themselves see it without anybody asking.

use crate::kept::Kept;
use crate::open::OpenedFile;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that are written under the file's lock at a time, so that who works with the file waits no longer.
const WINDOW_BYTES: u64 = 16 << 20;

/// A file, and when it is written.
type Due = (Instant, Weak<OpenedFile>);

/// The thread that does it, started with the first release.
#[derive(Debug)]
pub(crate) struct WriteBack {
    after: Duration,
    files: Mutex<Option<Sender<Due>>>,
    kept: Weak<Kept>,
}

impl WriteBack {
    pub(crate) fn new(after: Duration, kept: &Arc<Kept>) -> Self {
        Self { after, files: Mutex::default(), kept: Arc::downgrade(kept) }
    }

    /// Something of a file was released that the file lacks.
    pub(crate) fn note(&self, file: &Arc<OpenedFile>) {
        let Some(at) = Instant::now().checked_add(self.after) else { return };
        if file.noted.swap(true, Ordering::AcqRel) {
            return;
        }
        let due = (at, Arc::downgrade(file));
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.is_none() {
            let (sender, receiver) = channel();
            let (after, kept) = (self.after, Weak::clone(&self.kept));
            let builder = thread::Builder::new().name("bifolio-write-back".to_owned());
            // Without the thread a sync writes it, or the last close.
            if bifolio_device::without_signals(|| builder.spawn(move || work(&receiver, after, &kept))).is_ok() {
                *files = Some(sender);
            }
        }
        if let Some(sender) = &*files {
            let _ = sender.send(due);
        }
    }
}

/// Ends with the cache, whose sender it is.
fn work(files: &Receiver<Due>, after: Duration, kept: &Weak<Kept>) {
    let mut due: VecDeque<Due> = VecDeque::new();
    loop {
        let wait = due.front().map_or(Duration::MAX, |(at, _)| at.saturating_duration_since(Instant::now()));
        match files.recv_timeout(wait) {
            Ok(file) => due.push_back(file),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let Some((_, file)) = due.pop_front() else { continue };
                let Some(opened) = file.upgrade() else { continue };
                // What is released from now on is noted anew.
                opened.noted.store(false, Ordering::Release);
                if write(&opened) {
                    if let Some(kept) = kept.upgrade() {
                        kept.written(&opened);
                    }
                } else if !opened.noted.swap(true, Ordering::AcqRel) {
                    due.push_back((Instant::now() + after, file));
                }
            }
        }
    }
}

/// False if something could not be written, which stays on the device; whoever syncs is told why.
fn write(file: &Arc<OpenedFile>) -> bool {
    let (mut at, mut is_all) = (0, true);
    while let Some(Range { start, end }) = file.unwritten(at, WINDOW_BYTES) {
        is_all &= file.write_back(&(start..end));
        at = end;
    }
    is_all
}
