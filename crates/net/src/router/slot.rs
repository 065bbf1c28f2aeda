//! Where elements live: one call at a time enters an element.

use crate::element::Element;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;

/// An element, and who is in it.
pub(super) struct Slot {
    /// The number of the thread that is in it, and 1; 0: nobody.
    inside: AtomicU32,
    element: UnsafeCell<Box<dyn Element>>,
}

// SAFETY: the element is reached only through a `Guard`, of which there is one at a time; elements are `Send`.
unsafe impl Sync for Slot {}

/// Being in an element.
pub(super) struct Guard<'a>(&'a Slot);

impl Slot {
    pub(super) fn new(element: Box<dyn Element>) -> Self {
        Self { inside: AtomicU32::new(FREE), element: UnsafeCell::new(element) }
    }

    /// Enters, as soon as other threads are out; nothing where this thread is in it already.
    #[inline]
    pub(super) fn enter(&self, thread: u32) -> Option<Guard<'_>> {
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

impl Deref for Guard<'_> {
    type Target = dyn Element;
    #[inline]
    fn deref(&self) -> &Self::Target {
        // SAFETY: whoever has the guard is alone in the element.
        unsafe { &**self.0.element.get() }
    }
}

impl DerefMut for Guard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: whoever has the guard is alone in the element.
        unsafe { &mut **self.0.element.get() }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.inside.store(FREE, Ordering::Release);
    }
}
