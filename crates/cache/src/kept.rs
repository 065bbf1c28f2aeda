//! Files that nobody has open any more, and that lack what devices have released, as it could not be written. It stays with
//! the cache: the thread that writes back goes on trying, and who opens the file again finds it. What is left when the cache
//! ends, or the process, is lost, which is said on standard error: there is nobody else to tell.

use crate::open::{Key, OpenedFile};
use bifolio_device::fork::Birth;
use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

/// Those of all caches, for the end of the process.
static ALL: Mutex<Vec<Weak<Kept>>> = Mutex::new(vec![]);

static AT_END: Once = Once::new();

#[derive(Debug)]
pub(crate) struct Kept {
    files: Mutex<HashMap<Key, Arc<OpenedFile>>>,
    birth: Birth,
}

impl Kept {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { files: Mutex::default(), birth: Birth::here() })
    }

    /// Keeps a file whose last holder is gone; not in a child of the process, whose parent has it still.
    pub(crate) fn keep(self: &Arc<Self>, key: Key, file: &Arc<OpenedFile>) -> bool {
        if self.birth.was_elsewhere() {
            return false;
        }
        let is_first = {
            let mut files = self.files();
            files.insert(key, Arc::clone(file));
            files.len() == 1
        };
        if is_first {
            let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|kept| kept.strong_count() > 0 && !Weak::ptr_eq(kept, &Arc::downgrade(self)));
            all.push(Arc::downgrade(self));
        }
        // After the driver's own, as the device has been opened by now; so before it, when the process ends.
        // SAFETY: registers a function that takes nothing.
        AT_END.call_once(|| _ = unsafe { libc::atexit(end_all) });
        true
    }

    /// Gives a file to who opens it again.
    pub(crate) fn take(&self, key: &Key) -> Option<Arc<OpenedFile>> {
        self.files().remove(key)
    }

    /// A file has been written back: it goes if it has all that was released, and stays if there is something to tell to
    /// who opens it. Somebody may have opened it, and uses it. Nothing is locked here while its memory is given back, which
    /// waits for who works on it.
    pub(crate) fn written(&self, file: &Arc<OpenedFile>) {
        if !self.files().values().any(|known| Arc::ptr_eq(known, file)) {
            return;
        }
        file.give_back();
        // Whoever has opened it meanwhile has taken it; and may have closed it, and left something again.
        self.files().retain(|_, known| !Arc::ptr_eq(known, file) || !file.is_done());
    }

    /// Tries for the last time, and says what is lost.
    pub(crate) fn end(&self) {
        // A child's copy is not its own, and a thread of the parent's may have held a lock.
        if self.birth.was_elsewhere() {
            return;
        }
        let files = std::mem::take(&mut *self.files());
        for unwritten in files.into_values().filter_map(|file| file.end().err()) {
            // Whoever has closed standard error does not want to know.
            let _ = writeln!(std::io::stderr(), "bifolio: {}", unwritten.lament());
        }
    }

    fn files(&self) -> MutexGuard<'_, HashMap<Key, Arc<OpenedFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

extern "C" fn end_all() {
    let _ = std::panic::catch_unwind(|| {
        // Nobody waits for a thread that is interrupted by this very end.
        let all = ALL.try_lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default();
        all.iter().filter_map(Weak::upgrade).for_each(|kept| kept.end());
    });
}
