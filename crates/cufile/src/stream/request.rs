//! A request on a stream, while it is under way: its chunks, and its result.

use super::chunk::{CHUNK_BYTES, TABLE_BYTES, write_table};
use super::late::{Late, Resolved};
use super::ring::SlotMemory;
use super::traffic::{Closed, Counted};
use crate::abi::CUfileOpError::CU_FILE_INTERNAL_ERROR;
use crate::range::{Direction, MemoryRange};
use crate::session::Active;
use crate::stats::{Flow, Watch, Way};
use crate::status::{Failure, Outcome, note};
use crate::transfer;
use bifolio_io::{Router, Workers};
use bifolio_kernels::scatter::Extent;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

/// Ends what may wait for a device, such as the registrations of a file.
static ENDINGS: LazyLock<Workers> = LazyLock::new(|| Workers::start(1));

/// How much of a chunk was wanted, and what came of it.
type Done = (usize, Outcome<u64>);

/// A request under way. When the last share of it is given up it is over: the result is stored, and the
/// stream goes on.
#[derive(Debug)]
pub(super) struct Running {
    /// There until the end.
    late: Option<Late>,
    router: Option<Arc<Router>>,
    resolved: OnceLock<Outcome<Resolved>>,
    /// Since the stream is there.
    watch: OnceLock<Watch>,
    /// Chunks that are done, by their starts.
    done: Mutex<BTreeMap<usize, Done>>,
    /// Of the device, or before anything was done.
    failure: Mutex<Option<Failure>>,
    gate: Mutex<Option<Closed>>,
    active: Option<Active>,
    counted: Option<Counted>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    pub(super) fn new(late: Late, router: &Arc<Router>, counted: Counted) -> Arc<Self> {
        Arc::new(Self {
            late: Some(late),
            router: Some(Arc::clone(router)),
            resolved: OnceLock::new(),
            watch: OnceLock::new(),
            done: Mutex::default(),
            failure: Mutex::default(),
            gate: Mutex::default(),
            active: Some(Active::begin()),
            counted: Some(counted),
        })
    }

    pub(super) fn late(&self) -> &Late {
        self.late.as_ref().expect("a request has its parameters until its end")
    }

    /// The gate that is opened at the end.
    pub(super) fn ends_at(&self, gate: Closed) {
        *lock(&self.gate) = Some(gate);
    }

    /// The stream is there.
    pub(super) fn resolve(&self) {
        let _ = self.watch.set(Watch::begin());
        let _ = self.resolved.set(self.late().resolve());
    }

    /// The known parameters; none where they are wrong.
    fn known(&self) -> Option<&Resolved> {
        self.resolved.get().and_then(|resolved| resolved.as_ref().ok())
    }

    /// The request as a whole has failed.
    pub(super) fn fail(&self, failure: Failure) {
        lock(&self.failure).get_or_insert(failure);
    }

    fn note(&self, start: usize, wanted: usize, outcome: Outcome<u64>) {
        lock(&self.done).insert(start, (wanted, outcome));
    }

    /// Bytes of the chunk at `start` that the request has; none where there are none.
    fn part(&self, start: usize) -> Option<(&Resolved, usize)> {
        let resolved = self.known()?;
        let wanted = resolved.bytes.saturating_sub(start).min(CHUNK_BYTES);
        (wanted > 0).then_some((resolved, wanted))
    }

    /// Reads a chunk into its slot, and says in the table where it goes.
    pub(super) fn fill(&self, start: usize, (table, data): (&mut [u8], &mut [u8])) {
        let (Some((resolved, wanted)), Some(router)) = (self.part(start), &self.router) else { return };
        let read = router.read_to_host(&self.late().opened.file, &mut data[..wanted], resolved.offset + start as u64);
        if let Ok(read) = read {
            let at = resolved.at + start as u64;
            write_table(table, read, |piece| Extent { src: piece, dst: at + piece, len: 0 });
        }
        self.note(start, wanted, read.map(|read| read as u64).map_err(Failure::from));
    }

    /// Says in the table where the bytes of a chunk come from.
    pub(super) fn gather(&self, start: usize, table: &mut [u8]) {
        let Some((resolved, wanted)) = self.part(start) else { return };
        let at = resolved.at + start as u64;
        write_table(table, wanted, |piece| Extent { src: at + piece, dst: piece, len: 0 });
    }

    /// Writes a chunk out of its slot.
    pub(super) fn write(&self, start: usize, slot: &SlotMemory) {
        let Some((resolved, wanted)) = self.part(start) else { return };
        let (data, offset) = (slot.address().wrapping_add(TABLE_BYTES), resolved.offset + start as u64);
        let opened = &self.late().opened;
        // Waiting here could be waiting for a device.
        let _writing = opened.file.try_writing();
        self.note(start, wanted, transfer::by_calls(opened, Direction::Write, offset, data, wanted));
    }

    /// Moves all of it at once, from or to memory of the CPU.
    pub(super) fn on_host(&self) {
        let (late, Some(Resolved { offset, memory: MemoryRange::Host(memory, len), .. })) = (self.late(), self.known())
        else {
            return;
        };
        let _writing = (late.direction == Direction::Write).then(|| late.opened.file.try_writing());
        self.note(0, *len, transfer::by_calls(&late.opened, late.direction, *offset, *memory, *len));
    }

    fn outcome(&self) -> Outcome<u64> {
        let failure = lock(&self.failure).take();
        match (failure, self.resolved.get()) {
            (_, Some(Err(failure))) => Err(failure.clone()),
            (Some(failure), _) => Err(failure),
            (None, Some(Ok(resolved))) => sum(self.late().direction, resolved.bytes, &lock(&self.done)),
            (None, None) => Err(forgotten()),
        }
        .inspect_err(|failure| note("a request on a stream", failure))
    }

    fn count(&self, outcome: &Outcome<u64>) {
        let watch = self.watch.get().copied().unwrap_or_else(Watch::begin);
        let (direction, known) = (self.late().direction, self.known());
        if let Some(Resolved { offset, memory, .. }) = known {
            let moved = outcome.as_ref().ok().map(|bytes| (*bytes, Way::Posix));
            watch.end_on_gpu(direction, *offset, memory, moved);
        }
        watch.end(Flow::of(direction), known.map_or(0, |known| known.bytes), outcome);
    }
}

fn forgotten() -> Failure {
    Failure::new(CU_FILE_INTERNAL_ERROR, "a bug in Bifolio, please report it: a part of a request was not carried out")
}

/// The result of a request of so many bytes from those of its chunks: what there was from its start on without
/// a gap. A failure of a read fails all of it, and one of a write only if nothing was written before it, as with
/// requests that wait.
fn sum(direction: Direction, bytes: usize, done: &BTreeMap<usize, Done>) -> Outcome<u64> {
    let mut sum = 0;
    for (start, (wanted, outcome)) in done {
        if *start as u64 != sum {
            return Err(forgotten());
        }
        match outcome {
            Err(failure) if direction == Direction::Read || sum == 0 => return Err(failure.clone()),
            Err(_) => return Ok(sum),
            Ok(moved) => sum += moved,
        }
        if sum < (start + wanted) as u64 {
            return Ok(sum);
        }
    }
    if sum < bytes as u64 { Err(forgotten()) } else { Ok(sum) }
}

impl Drop for Running {
    fn drop(&mut self) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            let outcome = self.outcome();
            self.count(&outcome);
            outcome.map_or_else(|failure| failure.in_memory(), |moved| moved as isize)
        }));
        let result = result.unwrap_or(-(CU_FILE_INTERNAL_ERROR as isize));
        let Some(Late { file, opened, pointers, .. }) = self.late.take() else { return };
        // SAFETY: the program keeps what it points to until the stream is past the gate that is opened below.
        unsafe { pointers.done.write_volatile(result) };
        // The program may close the session as soon as the stream goes on.
        drop(self.active.take());
        drop(lock(&self.gate).take());
        // The last share of a file ends registrations with the device, which may wait for gates of others. Two
        // threads that give up a share cannot both find that it is not the last.
        let last = (Arc::into_inner(file), Arc::into_inner(opened));
        if last.0.is_some() || last.1.is_some() {
            ENDINGS.run_alone(move || drop(last));
        }
        // The queue keeps a share of the router until it has no request.
        drop(self.router.take());
        drop(self.counted.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(direction: Direction, bytes: usize, outcomes: &[(usize, Result<u64, i32>)]) -> Result<u64, isize> {
        let mut start = 0;
        let mut done = BTreeMap::new();
        for (wanted, outcome) in outcomes {
            let outcome = outcome.map_err(|errno| Failure::system(errno, "on purpose"));
            done.insert(start, (*wanted, outcome));
            start += wanted;
        }
        sum(direction, bytes, &done).map_err(|failure| failure.in_memory())
    }

    #[test]
    fn the_result_is_what_there_is_without_a_gap() {
        use Direction::{Read, Write};
        for direction in [Read, Write] {
            assert_eq!(of(direction, 0, &[]), Ok(0));
            assert_eq!(of(direction, 25, &[(10, Ok(10)), (10, Ok(10)), (5, Ok(5))]), Ok(25));
            // The file has grown, or there was room again, between two chunks.
            assert_eq!(of(direction, 20, &[(10, Ok(3)), (10, Ok(10))]), Ok(3));
            assert_eq!(of(direction, 20, &[(10, Ok(0)), (10, Err(5))]), Ok(0));
            assert_eq!(of(direction, 20, &[(10, Err(27)), (10, Ok(10))]), Err(-27));
            assert_eq!(of(direction, 20, &[(10, Ok(10))]), Err(-5030), "a chunk was not carried out");
        }
        assert_eq!(of(Write, 20, &[(10, Ok(10)), (10, Err(28))]), Ok(10));
        assert_eq!(of(Read, 20, &[(10, Ok(10)), (10, Err(5))]), Err(-5));
    }
}
