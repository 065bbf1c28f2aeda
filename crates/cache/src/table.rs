//! What is open, once for everybody who opens it, and not anew before its end has come to its end.
//!
//! What ends may have work to do (pages that go to the file). Who opens the same thing meanwhile waits, as it
//! would not see that work. The lock is not held for an end, and an end may happen wherever the last holder is.

use super::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Deref;

/// Things by key.
#[derive(Debug)]
pub(crate) struct Table<K: Eq + Hash, T> {
    /// Those that cannot be upgraded are coming to their end.
    open: Mutex<HashMap<K, Weak<Opened<K, T>>>>,
    ended: Condvar,
}

/// A thing that is open. Fields are dropped in this order.
#[derive(Debug)]
pub(crate) struct Opened<K: Eq + Hash, T> {
    value: T,
    _entry: Entry<K, T>,
}

/// Keeps others from opening the thing anew.
#[derive(Debug)]
struct Entry<K: Eq + Hash, T> {
    key: K,
    table: Arc<Table<K, T>>,
}

impl<K: Clone + Eq + Hash, T> Table<K, T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { open: Mutex::new(HashMap::new()), ended: Condvar::new() })
    }

    /// What is open by this key, or what `make` makes.
    pub(crate) fn open<E>(
        self: &Arc<Self>,
        key: &K,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<Opened<K, T>>, E> {
        let mut open = self.lock();
        while let Some(known) = open.get(key) {
            if let Some(opened) = known.upgrade() {
                return Ok(opened);
            }
            open = self.ended.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
        let value = make()?;
        let opened = Arc::new(Opened { value, _entry: Entry { key: key.clone(), table: Arc::clone(self) } });
        open.insert(key.clone(), Arc::downgrade(&opened));
        Ok(opened)
    }
}

impl<K: Eq + Hash, T> Table<K, T> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Weak<Opened<K, T>>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash, T> Deref for Opened<K, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<K: Eq + Hash, T> Drop for Entry<K, T> {
    fn drop(&mut self) {
        self.table.lock().remove(&self.key);
        self.table.ended.notify_all();
    }
}
