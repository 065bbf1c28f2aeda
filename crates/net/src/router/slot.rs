//! Where elements live: one call at a time enters an element.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;

/// An element, and who is in it. In lines of the cache of its own: threads that are in neighbours do not wait for each other.
#[repr(align(128))]
pub(super) struct Slot<T: ?Sized> {
    /// The number of the thread that is in it, and 1; 0: nobody.
    inside: AtomicU32,
    element: UnsafeCell<Box<T>>,
}

// SAFETY: the element is reached only through a `Guard`, of which there is one at a time, and may go to other threads.
unsafe impl<T: ?Sized + Send> Sync for Slot<T> {}

/// Being in an element.
pub(super) struct Guard<'a, T: ?Sized>(&'a Slot<T>);

impl<T: ?Sized> Slot<T> {
    pub(super) fn new(element: Box<T>) -> Self {
        Self { inside: AtomicU32::new(FREE), element: UnsafeCell::new(element) }
    }

    /// Enters, as soon as other threads are out; nothing where this thread is in it already.
    #[inline]
    pub(super) fn enter(&self, thread: u32) -> Option<Guard<'_, T>> {
        let me = thread + 1;
        let mut turns = 0u32;
        while let Err(inside) = self.inside.compare_exchange_weak(FREE, me, Ordering::Acquire, Ordering::Relaxed) {
            if inside == me {
                return None;
            }
            turns += 1;
            if turns.is_multiple_of(64) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        Some(Guard(self))
    }
}

impl<T: ?Sized> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &Self::Target {
        // SAFETY: whoever has the guard is alone in the element.
        unsafe { &*self.0.element.get() }
    }
}

impl<T: ?Sized> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: whoever has the guard is alone in the element.
        unsafe { &mut *self.0.element.get() }
    }
}

impl<T: ?Sized> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.inside.store(FREE, Ordering::Release);
    }
}
