//! Elements that only show who pulls which way to go: they are passed without being entered, so that a way may lead from an
//! element back to itself.

use std::sync::atomic::{AtomicU8, Ordering};

const OFF: u8 = 1;
const ON: u8 = 2;

/// Which input stands for which output.
#[derive(Default)]
pub(super) struct Detour(AtomicU8);

impl Detour {
    /// Output 0 is input 1 or, where it is not `on`, input 0; output 1 is input 0.
    pub(super) fn set(&self, on: bool) {
        self.0.store(if on { ON } else { OFF }, Ordering::Release);
    }

    /// The input that stands for an output; nothing: the element has to be asked.
    #[inline]
    pub(super) fn input(&self, output: usize) -> Option<usize> {
        match self.0.load(Ordering::Acquire) {
            0 => None,
            state => Some(usize::from(state == ON && output == 0)),
        }
    }
}
