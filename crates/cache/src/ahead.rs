//! Bringing pages before they are acquired, by a thread of its own: what programs ask for, and what follows a sequence
//! of acquires (`advice.rs`).

use crate::advice::WINDOW_BYTES_MAX;
use crate::directory::{Locked, acquire};
use crate::open::OpenedFile;
use crate::page::Device;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

#[derive(Debug)]
struct Wish {
    file: Weak<OpenedFile>,
    device: Device,
    range: Range<u64>,
    writable: bool,
}

/// The thread that does it, started with the first wish.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    wishes: Mutex<Option<Sender<Wish>>>,
}

impl Ahead {
    /// A file that has ended meanwhile has nothing mapped, and nothing is brought.
    pub(crate) fn bring(&self, file: &Arc<OpenedFile>, device: Device, range: Range<u64>, writable: bool) {
        let mut wishes = self.wishes.lock().unwrap_or_else(PoisonError::into_inner);
        let wish = Wish { file: Arc::downgrade(file), device, range, writable };
        if let Some(sender) = &*wishes {
            let _ = sender.send(wish);
            return;
        }
        let (sender, receiver) = channel();
        let builder = thread::Builder::new().name("bifolio-ahead".to_owned());
        // Without the thread nothing is brought ahead, and nothing is missing.
        if bifolio_device::without_signals(|| builder.spawn(move || work(&receiver))).is_ok() {
            let _ = sender.send(wish);
            *wishes = Some(sender);
        }
    }
}

/// Ends with the cache, whose sender it is.
fn work(wishes: &Receiver<Wish>) {
    for wish in wishes {
        let mut at = wish.range.start;
        while at < wish.range.end {
            let Some(file) = wish.file.upgrade() else { break };
            let end = wish.range.end.min(at + WINDOW_BYTES_MAX);
            // By windows, so that who acquires meanwhile waits for one at most. What fails here fails again, and
            // is reported, when it is acquired.
            let bring =
                |directory: &mut Locked<'_>| acquire::bring_ahead(directory, wish.device, &(at..end), wish.writable);
            if !file.with(Some(wish.device), bring) {
                break;
            }
            at = end;
        }
    }
}
