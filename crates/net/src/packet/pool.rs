//! What a thread keeps of packets that are gone: whole ones, with their buffers, and bare memory.

use std::mem::MaybeUninit;

/// How many of each kind a thread keeps.
const KEPT: usize = 4096;

/// Packets to be used again.
pub(super) struct Pool<T> {
    whole: Vec<Box<T>>,
    /// Boxed: what is kept is the memory, at its address.
    bare: Vec<Box<MaybeUninit<T>>>,
}

impl<T> Pool<T> {
    pub(super) const fn new() -> Self {
        Self { whole: Vec::new(), bare: Vec::new() }
    }

    /// One that is whole.
    #[inline]
    pub(super) fn whole(&mut self) -> Option<Box<T>> {
        self.whole.pop()
    }

    /// Memory for one. Where there is none, a whole one gives its memory; what it had is dropped.
    #[inline]
    pub(super) fn bare(&mut self) -> Option<Box<MaybeUninit<T>>> {
        self.bare.pop().or_else(|| self.whole.pop().map(emptied))
    }

    #[inline]
    pub(super) fn keep_whole(&mut self, whole: Box<T>) {
        if self.whole.len() < KEPT {
            self.whole.push(whole);
        }
    }

    /// Drops what it has, and keeps the memory.
    pub(super) fn keep_bare(&mut self, whole: Box<T>) {
        if self.bare.len() < KEPT {
            self.bare.push(emptied(whole));
        }
    }
}

#[expect(clippy::unnecessary_box_returns, reason = "the memory is what counts")]
fn emptied<T>(whole: Box<T>) -> Box<MaybeUninit<T>> {
    let raw = Box::into_raw(whole);
    // SAFETY: what was in the box is dropped in place, once; the memory is that of a `MaybeUninit` then.
    unsafe {
        std::ptr::drop_in_place(raw);
        Box::from_raw(raw.cast())
    }
}
