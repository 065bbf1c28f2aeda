//! A bounded pool of pinned slots: the only staging memory of a reader, whatever the file's size.
//!
//! ```text
//!   acquire ──> Slot (being filled) ──retire(event)──> in flight ──event done──> free
//!                      └──────────────drop──────────────────────────────────────> free
//! ```
//!
//! Slots are allocated when first needed (pinning costs 0.4 s/GiB on the H200 machine, too much
//! for a short read), up to the bound. A slot whose copy is in flight stays with the pool and is
//! handed out again once its event is done, oldest first. Callers hold at most the slots that
//! they are filling and never wait for one more while they could finish one, so waiting ends.

use crate::{Device, Error, ErrorKind, Event, PinnedBuffer, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A bounded pool of equal pinned slots.
#[derive(Debug)]
pub struct PinnedPool {
    device: Device,
    slot_bytes: usize,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug)]
struct State {
    free: Vec<Pinned>,
    in_flight: VecDeque<(Pinned, Event)>,
    allocated: usize,
    slots_max: usize,
    /// Who waits for a slot: waking nobody is a system call, too.
    waiting: usize,
}

/// A slot's memory with its number, which stays the same for the life of the pool.
#[derive(Debug)]
struct Pinned {
    index: usize,
    buffer: PinnedBuffer,
}

/// How much the pool holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolStats {
    /// Pinned bytes allocated so far.
    pub allocated_bytes: u64,
    /// The bound.
    pub limit_bytes: u64,
    /// Slots that nobody fills or copies from.
    pub idle_slots: usize,
    /// Slots allocated so far.
    pub allocated_slots: usize,
}

impl PinnedPool {
    /// A pool of at most `slots_max` slots of `slot_bytes` each, with none allocated yet.
    pub fn new(device: &Device, slot_bytes: usize, slots_max: usize) -> Arc<Self> {
        assert!(slot_bytes > 0 && slots_max > 0, "a pool has slots with bytes");
        let state = State { free: vec![], in_flight: VecDeque::new(), allocated: 0, slots_max, waiting: 0 };
        Arc::new(Self { device: device.clone(), slot_bytes, state: Mutex::new(state), returned: Condvar::new() })
    }

    /// Bytes of each slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// The most slots that the pool may come to hold.
    pub fn slots_max(&self) -> usize {
        self.lock().slots_max
    }

    /// How much the pool holds now.
    pub fn stats(&self) -> PoolStats {
        let state = self.lock();
        let done = state.in_flight.iter().filter(|(_, event)| event.query().unwrap_or(true)).count();
        PoolStats {
            allocated_bytes: (state.allocated * self.slot_bytes) as u64,
            limit_bytes: (state.slots_max * self.slot_bytes) as u64,
            idle_slots: state.free.len() + done,
            allocated_slots: state.allocated,
        }
    }

    /// A slot, waiting for the oldest copy in flight if there is none.
    pub fn acquire(self: &Arc<Self>) -> Result<Slot> {
        loop {
            if let Some(slot) = self.try_acquire()? {
                return Ok(slot);
            }
            let mut state = self.lock();
            if let Some((pinned, event)) = state.in_flight.pop_front() {
                drop(state);
                // A failed copy no longer uses the slot; whoever issued it sees the failure on
                // its own stream.
                let _ = event.wait();
                return Ok(self.slot(pinned));
            }
            if state.free.is_empty() && state.allocated >= state.slots_max {
                state.waiting += 1;
                state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.waiting -= 1;
            }
        }
    }

    /// A slot if one is to be had without waiting.
    pub fn try_acquire(self: &Arc<Self>) -> Result<Option<Slot>> {
        let mut state = self.lock();
        if let Some(pinned) = state.take_idle() {
            return Ok(Some(self.slot(pinned)));
        }
        if state.allocated >= state.slots_max {
            return Ok(None);
        }
        let index = state.allocated;
        state.allocated += 1;
        drop(state);
        match self.device.alloc_pinned(self.slot_bytes) {
            Ok(buffer) => Ok(Some(self.slot(Pinned { index, buffer }))),
            Err(error) => self.settle_for_fewer(error),
        }
    }

    /// With at least one slot everything still works, only slower; with none nothing does.
    fn settle_for_fewer(self: &Arc<Self>, error: Error) -> Result<Option<Slot>> {
        let mut state = self.lock();
        state.allocated -= 1;
        // Others may be waiting for the slot that this would have been.
        self.returned.notify_all();
        if state.allocated == 0 {
            let kind = ErrorKind::OutOfPinnedMemory;
            let detail = format!("no pinned host memory for a slot of {} bytes: {}", self.slot_bytes, error.detail());
            return Err(Error::new(kind, detail).on(self.device.id()).with_cause(error));
        }
        state.slots_max = state.allocated;
        Ok(None)
    }

    fn slot(self: &Arc<Self>, pinned: Pinned) -> Slot {
        Slot { pool: Arc::clone(self), pinned: Some(pinned) }
    }

    fn give_back(&self, pinned: Pinned) {
        let mut state = self.lock();
        state.free.push(pinned);
        self.wake_one(&state);
    }

    fn wake_one(&self, state: &State) {
        if state.waiting > 0 {
            self.returned.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take_idle(&mut self) -> Option<Pinned> {
        if let Some(pinned) = self.free.pop() {
            return Some(pinned);
        }
        let (_, event) = self.in_flight.front()?;
        // A failed copy is over as well.
        if !event.query().unwrap_or(true) {
            return None;
        }
        self.in_flight.pop_front().map(|(pinned, _)| pinned)
    }
}

impl Drop for PinnedPool {
    fn drop(&mut self) {
        for (_, event) in &self.state.get_mut().unwrap_or_else(PoisonError::into_inner).in_flight {
            let _ = event.wait();
        }
    }
}

/// A pinned slot in its user's hands. Dropping it returns it at once: only for slots from which
/// no copy is in flight.
#[derive(Debug)]
pub struct Slot {
    pool: Arc<PinnedPool>,
    pinned: Option<Pinned>,
}

impl Slot {
    /// The slot's number in its pool, from 0, the same each time it is handed out.
    pub fn index(&self) -> usize {
        self.pinned.as_ref().map_or(0, |pinned| pinned.index)
    }

    /// The slot's memory.
    pub fn buffer(&mut self) -> &mut PinnedBuffer {
        &mut self.pinned.as_mut().expect("a slot has memory until it is retired or dropped").buffer
    }

    /// Hands the slot back to be used again once `event` is done.
    pub fn retire(mut self, event: Event) {
        if let Some(pinned) = self.pinned.take() {
            let mut state = self.pool.lock();
            state.in_flight.push_back((pinned, event));
            self.pool.wake_one(&state);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(pinned) = self.pinned.take() {
            self.pool.give_back(pinned);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostOptions;

    fn pool(slots: usize) -> Arc<PinnedPool> {
        PinnedPool::new(&Device::host(&HostOptions::default()), 4096, slots)
    }

    #[test]
    fn slots_are_allocated_only_when_needed_and_never_beyond_the_bound() {
        let pool = pool(2);
        for _ in 0..10 {
            drop(pool.acquire().unwrap());
        }
        assert_eq!(pool.stats().allocated_slots, 1);
        let (a, b) = (pool.acquire().unwrap(), pool.acquire().unwrap());
        assert_ne!(a.index(), b.index());
        assert!(pool.try_acquire().unwrap().is_none());
        assert_eq!(pool.stats().allocated_bytes, pool.stats().limit_bytes);
    }

    /// Symptom: a request hung for good when pinned memory ran out while two threads asked for
    /// their first slots. Cause: the first to be refused waited for the other's slot, and nobody
    /// told it when that one was refused too.
    #[test]
    fn a_refused_slot_wakes_those_who_wait_for_it() {
        // More than any machine can map.
        let pool = PinnedPool::new(&Device::host(&HostOptions::default()), 1 << 62, 2);
        // Somebody else is allocating the first slot.
        pool.lock().allocated = 1;
        let (report, outcome) = std::sync::mpsc::channel();
        let waiter = Arc::clone(&pool);
        std::thread::spawn(move || report.send(waiter.acquire().map(drop)));
        while pool.slots_max() == 2 {
            std::thread::yield_now();
        }
        bifolio_testing::until("the waiter waits", || pool.lock().waiting == 1);
        assert!(pool.settle_for_fewer(Error::new(ErrorKind::OutOfPinnedMemory, "refused")).is_err());
        let outcome = outcome.recv_timeout(std::time::Duration::from_secs(10)).expect("the waiter hangs");
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::OutOfPinnedMemory);
    }

    #[test]
    fn threads_that_share_one_slot_take_turns() {
        let pool = pool(1);
        let stream = pool.device.create_stream().unwrap();
        let memory = pool.device.alloc(4096).unwrap();
        std::thread::scope(|scope| {
            for value in 0..8_u8 {
                let (pool, stream, memory) = (&pool, &stream, &memory);
                scope.spawn(move || {
                    for _ in 0..50 {
                        let mut slot = pool.acquire().unwrap();
                        slot.buffer().bytes_mut().fill(value);
                        // SAFETY: the slot is retired with an event after the copy, so nobody
                        // writes it before the copy is done.
                        unsafe { stream.copy_to_device(memory.slice(), slot.buffer().as_ptr()) }.unwrap();
                        slot.retire(stream.record().unwrap());
                    }
                });
            }
        });
        let mut seen = vec![0xee; 4096];
        stream.download(&mut seen, memory.slice()).unwrap();
        assert!(seen.iter().all(|byte| *byte == seen[0]), "two users of the slot were mixed");
        assert_eq!(pool.stats().idle_slots, 1);
    }
}
