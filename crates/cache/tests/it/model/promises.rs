//! What the protocol promises, asked of a world.

#![allow(clippy::needless_range_loop, reason = "bytes of several contents are compared by number")]

use super::{Bytes, Device, Home, PageState, Small, Step, World};

impl PageState {
    /// A device has begun to acquire: it has to see all that was released and written before.
    pub(super) fn acquired(&mut self, device: Device) {
        self.fresh |= 1 << device;
        self.fresh_of_cpus |= 1 << device;
    }

    /// A device has released another value of the byte that is raced for.
    pub(super) fn race(&mut self, device: Device, value: u8) {
        let is = |devices: u8| devices & 1 << device != 0;
        let is_cpus = self.decided.is_some_and(|value| Small::writer(value).is_none());
        if is(self.fresh) {
            self.decided = Some(value);
        } else if !is_cpus || is(self.fresh_of_cpus) {
            self.decided = None;
        }
        self.fresh &= 1 << device;
    }
}

impl Small {
    /// What an acquire or a CPU's read has seen: all that was released before.
    pub(super) fn check_seen(&self, state: &PageState, seen: Bytes) -> Option<&'static str> {
        for byte in 0..self.writers.len() {
            let due = if self.is_raced_for(byte) { state.decided } else { Some(state.visible[byte]) };
            if due.is_some_and(|due| due != seen[byte]) {
                return Some("somebody has missed what was released");
            }
        }
        None
    }

    pub(super) fn check_acquired(&self, state: &PageState, device: Device) -> Option<&'static str> {
        // Without what it has not released itself.
        self.check_seen(state, state.contents.replicas[device].as_ref()?.twin)
    }

    /// No byte that has one writer goes backwards, anywhere; only a crash takes back what nobody was to see.
    pub(super) fn check_step(&self, last: &World, step: Step, world: &World) -> Option<&'static str> {
        if self.back || matches!(step, Step::Cut { .. }) {
            return None;
        }
        for (before, after) in last.pages.iter().zip(&world.pages) {
            for byte in (0..self.writers.len()).filter(|byte| !self.is_raced_for(*byte)) {
                if after.contents.file[byte] < before.contents.file[byte] {
                    return Some("a value in the file went backwards");
                }
                if after.contents.file[byte] > after.visible[byte] {
                    return Some("the file has what was not released");
                }
                let backwards = |device: Device| {
                    let [before, after] = [before, after].map(|state| state.contents.replicas[device].as_ref());
                    before.zip(after).is_some_and(|(before, after)| after.now[byte] < before.now[byte])
                };
                if (0..self.devices).any(backwards) {
                    return Some("a value on a device went backwards");
                }
            }
        }
        None
    }

    /// Whether the file gets what was released.
    pub(super) fn is_as_released(&self, state: &PageState) -> bool {
        self.check_seen(state, state.contents.settled()).is_none()
    }

    /// Whether devices have what they have stored, where nobody else stores.
    pub(super) fn has_own_stores(&self, state: &PageState) -> bool {
        self.writers.iter().enumerate().all(|(byte, writers)| match writers[..] {
            [Some(device)] => {
                let replica = state.contents.replicas[device].as_ref();
                replica.is_none_or(|replica| replica.now[byte] == state.latest[byte])
            }
            _ => true,
        })
    }

    pub(super) fn forget_unreleased(&self, state: &mut PageState, device: Device) {
        for byte in self.bytes_of(device) {
            state.latest[byte] = state.visible[byte];
        }
    }

    /// A device was lost: what it has released is what survivors had seen of it, and not less. `is_lost` says that some of
    /// it is gone.
    pub(super) fn forget_what_it_alone_had(
        &self,
        state: &mut PageState,
        device: Device,
        is_lost: bool,
    ) -> Option<&'static str> {
        let left = state.contents.settled();
        let mut gone = false;
        for byte in self.bytes_of(device) {
            gone |= state.visible[byte] != left[byte];
            state.visible[byte] = left[byte];
            state.latest[byte] = left[byte];
        }
        if state.decided.is_some_and(|value| Self::writer(value) == Some(device)) {
            gone |= self.check_seen(state, left).is_some();
            state.decided = None;
        }
        (gone && !is_lost).then_some("what was released is gone, and nobody is told")
    }

    /// Whether something is true of a page and a device.
    pub(super) fn any(&self, world: &World, is: impl Fn(&PageState, Device) -> bool) -> bool {
        world.pages.iter().any(|state| (0..self.devices).any(|device| is(state, device)))
    }

    /// Whether an acquire, now, would find out something.
    pub(super) fn finds_something(&self, world: &World) -> bool {
        self.any(world, |state, device| state.contents.clone().detect(device, true, self.in_use))
    }

    /// The bytes that only one device writes.
    fn bytes_of(&self, device: Device) -> Vec<usize> {
        (0..self.writers.len()).filter(|byte| self.writers[*byte][..] == [Some(device)]).collect()
    }
}

/// Whether home is on a device.
pub(super) fn is_home(world: &World, device: Device) -> bool {
    world.pages.iter().any(|state| state.contents.page.home() == Home::Device(device))
}

/// Whether a fold on any device changes nothing of what the file gets.
pub(super) fn is_the_same_by_all_ways(state: &PageState) -> bool {
    let settled = state.contents.settled();
    let is_same = |device, is_in_use| {
        let mut folded = state.contents.clone();
        folded.detect(device, true, is_in_use);
        folded.bring(device);
        folded.settled() == settled
    };
    (0..state.contents.replicas.len()).all(|device| is_same(device, false) && is_same(device, true))
}

/// Whether a device that is told that it needs nothing has everything.
pub(super) fn has_all_who_is_not_behind(state: &PageState) -> bool {
    let has_all = |device, is_in_use| {
        let mut contents = state.contents.clone();
        contents.detect(device, true, is_in_use);
        contents.page.is_behind(device)
            || contents.replicas[device].as_ref().is_some_and(|replica| replica.twin == contents.incoming().content)
    };
    (0..state.contents.replicas.len()).all(|device| has_all(device, false) && has_all(device, true))
}
