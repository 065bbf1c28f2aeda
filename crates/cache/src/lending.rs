//! A few things of a kind that operations use for a time: made when first needed, and kept.
//!
//! Those who wait for a disk with one in their hands get all but one of them, and so whoever is quick with it waits for
//! nobody who waits for a disk.

use super::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::ops::Deref;

/// How long who borrows something keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// For work of a device.
    Quick,
    /// While a disk is waited for.
    Slow,
}

#[derive(Debug)]
pub(crate) struct Lending<T> {
    most: usize,
    things: Mutex<Things<T>>,
    returned: Condvar,
}

#[derive(Debug)]
struct Things<T> {
    spare: Vec<T>,
    /// Spare or lent.
    made: usize,
    being_made: usize,
    /// Lent to who waits for a disk.
    slow: usize,
    /// Who waits for one: waking nobody is a system call, too.
    waiting: usize,
}

/// Something that is lent, and comes back by itself.
#[derive(Debug)]
pub(crate) struct Lent<'a, T> {
    lending: &'a Lending<T>,
    thing: Option<T>,
    is_for: Use,
}

impl<T> Lending<T> {
    /// `most` things, two at least.
    pub(crate) fn new(most: usize) -> Self {
        let things = Things { spare: vec![], made: 0, being_made: 0, slow: 0, waiting: 0 };
        Self { most, things: Mutex::new(things), returned: Condvar::new() }
    }

    /// One of them, once there is one. Where `make` cannot make another, one of those that are lent is waited for.
    ///
    /// # Errors
    /// Of `make`, if there is none that could be waited for.
    pub(crate) fn borrow<E>(&self, is_for: Use, make: impl Fn() -> Result<T, E>) -> Result<Lent<'_, T>, E> {
        let mut things = self.lock();
        let mut may_make = true;
        loop {
            if things.may_lend(is_for)
                && let Some(thing) = things.spare.pop()
            {
                things.slow += usize::from(is_for == Use::Slow);
                return Ok(Lent { lending: self, thing: Some(thing), is_for });
            }
            if may_make && things.made + things.being_made < self.most {
                things.being_made += 1;
                drop(things);
                // That takes the device's time.
                let made = make();
                things = self.lock();
                things.being_made -= 1;
                match made {
                    Ok(thing) => {
                        things.made += 1;
                        things.spare.push(thing);
                    }
                    Err(error) if !things.may_come(is_for) => {
                        self.returned.notify_all();
                        return Err(error);
                    }
                    Err(_) => may_make = false,
                }
                self.returned.notify_all();
            } else {
                things.waiting += 1;
                things = self.returned.wait(things).unwrap_or_else(PoisonError::into_inner);
                things.waiting -= 1;
                // Of those that were to come some were perhaps not made.
                may_make |= !things.may_come(is_for);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Things<T>> {
        self.things.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Things<T> {
    /// Whether one may be lent, if there is one: of two that nobody waits for a disk with, one stays.
    fn may_lend(&self, is_for: Use) -> bool {
        self.made - self.slow > usize::from(is_for == Use::Slow)
    }

    /// Whether one will come that may be lent, if no other can be made.
    fn may_come(&self, is_for: Use) -> bool {
        self.made + self.being_made > usize::from(is_for == Use::Slow)
    }
}

impl<T> Deref for Lent<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.thing.as_ref().expect("it comes back when this ends")
    }
}

impl<T> std::ops::DerefMut for Lent<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.thing.as_mut().expect("it comes back when this ends")
    }
}

impl<T> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        let mut things = self.lending.lock();
        things.slow -= usize::from(self.is_for == Use::Slow);
        things.spare.extend(self.thing.take());
        if things.waiting > 0 {
            self.lending.returned.notify_all();
        }
    }
}
