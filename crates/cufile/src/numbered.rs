//! What programs hold handles of: each is a number that is looked up and never followed, so a wild one is refused.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::without_provenance_mut;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Values by their handles.
#[derive(Debug)]
pub(crate) struct Numbered<T>(RwLock<Entries<T>>);

#[derive(Debug)]
struct Entries<T> {
    by_number: BTreeMap<usize, Arc<T>>,
    /// Numbers are not used again, so that one that is given up stays wrong.
    latest: usize,
}

impl<T> Numbered<T> {
    pub(crate) const fn new() -> Self {
        Self(RwLock::new(Entries { by_number: BTreeMap::new(), latest: 0 }))
    }

    fn reading(&self) -> RwLockReadGuard<'_, Entries<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> RwLockWriteGuard<'_, Entries<T>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, handle: *mut c_void) -> Option<Arc<T>> {
        self.reading().by_number.get(&handle.addr()).cloned()
    }

    /// Keeps a value: its handle.
    pub(crate) fn insert(&self, value: T) -> *mut c_void {
        self.writing().keep(value)
    }

    /// Keeps a value unless it conflicts with one that is there; its handle, or the value itself.
    pub(crate) fn insert_unless(&self, value: T, conflicts: impl Fn(&T, &T) -> bool) -> Result<*mut c_void, T> {
        let mut entries = self.writing();
        if entries.by_number.values().any(|other| conflicts(other, &value)) {
            return Err(value);
        }
        Ok(entries.keep(value))
    }

    /// Gives a value up; whoever has a share of it goes on.
    pub(crate) fn remove(&self, handle: *mut c_void) -> Option<Arc<T>> {
        self.writing().by_number.remove(&handle.addr())
    }

    /// Gives all of them up.
    pub(crate) fn clear(&self) {
        self.writing().by_number.clear();
    }
}

impl<T> Entries<T> {
    fn keep(&mut self, value: T) -> *mut c_void {
        self.latest += 1;
        self.by_number.insert(self.latest, Arc::new(value));
        without_provenance_mut(self.latest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_good_for_its_value_until_it_is_given_up_and_never_again() {
        let table = Numbered::new();
        let conflicts = |a: &u32, b: &u32| a == b;
        let (first, second) = (table.insert(7), table.insert_unless(8, conflicts).unwrap());
        assert_eq!(table.insert_unless(7, conflicts), Err(7));
        assert_eq!((table.get(first).as_deref(), table.get(second).as_deref()), (Some(&7), Some(&8)));
        assert_eq!(table.remove(first).as_deref(), Some(&7));
        let third = table.insert_unless(7, conflicts).unwrap();
        assert!(table.get(first).is_none() && table.remove(first).is_none() && third != first);
        table.clear();
        assert!(table.get(second).is_none() && table.get(std::ptr::null_mut()).is_none());
    }
}
