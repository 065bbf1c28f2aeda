//! Statistics: what calls and requests did, counted where they end, for programs that ask for it.
//!
//! Level 1 counts calls, bytes and times, level 2 sizes too, level 3 also by GPU. At level 0, and while it is stopped,
//! a request pays for a few loads of a number. A level above 0 begins counting, as in the original, where
//! `cuFileStatsStart` begins it anew. Times are those of requests that succeeded, one that waits for its turn on a
//! stream from its turn on. Rates are by the time for which something was counted.
//!
//! Of the ways that the original has to move bytes, those here are POSIX I/O, and nvidia-fs where the router took
//! its engine `p2p`; numbers of the others stay 0.

mod counts;

pub(crate) use counts::{Call, Flow, Way};

use crate::abi::CUfileError_t;
use crate::abi::CUfileOpError::{CU_FILE_DRIVER_NOT_INITIALIZED, CU_FILE_INTERNAL_ERROR};
use crate::range::{Direction, MemoryRange};
use crate::session;
use crate::status::{Failure, Outcome, status, store};
use crate::{caller, gpus};
use bifolio_device::pointer::Located;
use counts::{Counts, bucket, image};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const LEVEL_MAX: c_int = 3;

/// What is counted now; 0 also while it is stopped.
static COUNTED: AtomicU8 = AtomicU8::new(0);

/// What the program asked for.
static CONTROL: Mutex<Control> =
    Mutex::new(Control { level: 0, is_stopped: false, since: None, before: Duration::ZERO });

static COUNTS: Counts = Counts::new();

fn control() -> MutexGuard<'static, Control> {
    CONTROL.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Control {
    level: c_int,
    is_stopped: bool,
    /// Since when something is counted.
    since: Option<Instant>,
    /// For how long something was counted before.
    before: Duration,
}

impl Control {
    fn apply(&mut self) {
        let counted = if self.is_stopped { 0 } else { self.level };
        match (counted > 0, self.since) {
            (true, None) => self.since = Some(Instant::now()),
            (false, Some(since)) => {
                self.before += since.elapsed();
                self.since = None;
            }
            _ => {}
        }
        COUNTED.store(counted as u8, Relaxed);
    }

    fn counting_time(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn restart(&mut self) {
        COUNTS.clear();
        self.before = Duration::ZERO;
        self.since = self.since.map(|_| Instant::now());
    }
}

/// When something began that is counted at its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watch(Option<Instant>);

impl Watch {
    pub(crate) fn begin() -> Self {
        Self::at_level(1)
    }

    /// For what is counted by GPU.
    pub(crate) fn by_gpu() -> Self {
        Self::at_level(3)
    }

    fn at_level(level: u8) -> Self {
        Self((COUNTED.load(Relaxed) >= level).then(Instant::now))
    }

    /// The time since then; none where nothing is counted, or not any more.
    fn time(self) -> Option<(Duration, u8)> {
        let began = self.0?;
        let level = COUNTED.load(Relaxed);
        (level > 0).then(|| (began.elapsed(), level))
    }

    /// A request of so many bytes is over.
    pub(crate) fn end(self, flow: Flow, size: usize, outcome: &Outcome<u64>) {
        let Some((time, level)) = self.time() else { return };
        COUNTS.flow(flow).add(outcome.as_ref().ok().copied(), time);
        let sizes = match flow {
            Flow::Read => &COUNTS.sizes[0],
            Flow::Write => &COUNTS.sizes[1],
            _ => return,
        };
        if level >= 2 && outcome.is_ok() {
            sizes[bucket(size)].fetch_add(1, Relaxed);
        }
    }

    /// A call is over.
    pub(crate) fn end_call(self, call: Call, is_ok: bool) {
        if let Some((time, _)) = self.time() {
            COUNTS.call(call).add(is_ok, time);
        }
    }

    /// A batch has all of its results: bytes that it read, and that it wrote.
    pub(crate) fn end_batch(self, bytes: [u64; 2]) {
        let Some((time, _)) = self.time() else { return };
        COUNTS.batches.add(true, time);
        for (latest, bytes) in COUNTS.latest_batch.iter().zip(bytes) {
            latest.store(bytes, Relaxed);
        }
    }

    /// A request has moved bytes of a device in some way, or failed. Memory of the CPU is not counted.
    pub(crate) fn end_on_gpu(self, direction: Direction, offset: u64, memory: &MemoryRange, moved: Option<(u64, Way)>) {
        self.shared_by(1).end_on_gpu(direction, offset, memory, moved);
    }

    /// For as many requests that were carried out together, each of which has its share of the time.
    pub(crate) fn shared_by(self, requests: usize) -> Share {
        let time = self.time().filter(|(_, level)| *level >= 3).map(|(time, _)| time);
        Share(time.map(|time| time / requests.clamp(1, u32::MAX as usize) as u32))
    }
}

/// The time of one request; none where nothing is counted by GPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share(Option<Duration>);

impl Share {
    pub(crate) fn end_on_gpu(self, direction: Direction, offset: u64, memory: &MemoryRange, moved: Option<(u64, Way)>) {
        let (Some(time), MemoryRange::Device(located, memory)) = (self.0, memory) else { return };
        let Some(gpu) = COUNTS.gpu(located) else { return };
        gpu.of(direction).add(time, offset | memory.ptr().0 | memory.len(), moved);
    }
}

/// Makes a call and counts it.
pub(crate) fn counted<T>(call: Call, make: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let watch = Watch::begin();
    let outcome = make();
    watch.end_call(call, outcome.is_ok());
    outcome
}

/// Makes a request of so many bytes and counts it.
pub(crate) fn counted_request(flow: Flow, size: usize, make: impl FnOnce() -> Outcome<u64>) -> Outcome<u64> {
    let watch = Watch::begin();
    let outcome = make();
    watch.end(flow, size, &outcome);
    outcome
}

/// Requests of a batch were accepted.
pub(crate) fn enqueued(requests: usize) {
    if COUNTED.load(Relaxed) > 0 {
        COUNTS.enqueued.fetch_add(requests as u64, Relaxed);
    }
}

/// Memory of a device was registered, or not.
pub(crate) fn registered(watch: Watch, located: Option<&Located>, bytes: u64, is_ok: bool) {
    if let (Some((time, 3)), Some(gpu)) = (watch.time(), located.and_then(|located| COUNTS.gpu(located))) {
        gpu.registered.add(is_ok, time);
        gpu.registered_bytes.fetch_add(if is_ok { bytes } else { 0 }, Relaxed);
    }
}

/// Registered memory was given up.
pub(crate) fn deregistered(located: Option<&Located>) {
    if COUNTED.load(Relaxed) >= 3
        && let Some(gpu) = located.and_then(|located| COUNTS.gpu(located))
    {
        gpu.deregistered.fetch_add(1, Relaxed);
    }
}

/// The session is over, and with it its numbers.
pub(crate) fn forget() {
    control().restart();
}

fn refuse_if_closed() -> Outcome<()> {
    if session::is_open() {
        return Ok(());
    }
    let text = "the driver session, whose statistics these are, is not open (cuFileDriverOpen)";
    Err(Failure::new(CU_FILE_DRIVER_NOT_INITIALIZED, text))
}

/// Chooses what is counted: nothing, calls, sizes too, and also by GPU.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileSetStatsLevel(level: c_int) -> CUfileError_t {
    status("cuFileSetStatsLevel", || {
        if !(0..=LEVEL_MAX).contains(&level) {
            return Err(Failure::argument(format!("{level} is not a level of statistics: use 0 to {LEVEL_MAX}")));
        }
        let mut control = control();
        (control.level, control.is_stopped) = (level, false);
        control.apply();
        Ok(())
    })
}

/// What was chosen.
///
/// # Safety
/// `level` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetStatsLevel(level: *mut c_int) -> CUfileError_t {
    // SAFETY: the caller's promise.
    status("cuFileGetStatsLevel", || unsafe { store(level, control().level) })
}

/// Begins to count from zero.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileStatsStart() -> CUfileError_t {
    status("cuFileStatsStart", || {
        refuse_if_closed()?;
        let mut control = control();
        if control.level == 0 {
            let text = "the level of statistics is 0, at which nothing is counted: call cuFileSetStatsLevel first";
            return Err(Failure::new(CU_FILE_INTERNAL_ERROR, text));
        }
        control.is_stopped = false;
        control.apply();
        control.restart();
        Ok(())
    })
}

/// Stops counting; the numbers stay.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileStatsStop() -> CUfileError_t {
    status("cuFileStatsStop", || {
        refuse_if_closed()?;
        let mut control = control();
        control.is_stopped = true;
        control.apply();
        Ok(())
    })
}

/// Sets all numbers to zero.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileStatsReset() -> CUfileError_t {
    status("cuFileStatsReset", || {
        refuse_if_closed()?;
        control().restart();
        Ok(())
    })
}

unsafe fn fetch(level: c_int, stats: *mut u8) -> Outcome<()> {
    if stats.is_null() {
        return Err(Failure::argument("the pointer for the statistics is NULL"));
    }
    refuse_if_closed()?;
    let (chosen, time) = {
        let control = control();
        (control.level, control.counting_time())
    };
    if chosen < level {
        let text = format!(
            "the level of statistics is {chosen}, at which those of level {level} are not counted: call \
             cuFileSetStatsLevel first"
        );
        return Err(Failure::argument(text));
    }
    let gpus = if level >= 3 { gpus::uuids() } else { &[] };
    let image = image(&COUNTS, level, caller::layout(), gpus, time);
    // SAFETY: the caller's struct is as long as the version that it was built for has it.
    unsafe { stats.copy_from_nonoverlapping(image.as_ptr(), image.len()) };
    Ok(())
}

/// Calls, bytes and times.
///
/// # Safety
/// `stats` is NULL, or a `CUfileStatsLevel1_t` of the caller's version that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetStatsL1(stats: *mut u8) -> CUfileError_t {
    // SAFETY: the caller's promise.
    status("cuFileGetStatsL1", || unsafe { fetch(1, stats) })
}

/// And sizes.
///
/// # Safety
/// `stats` is NULL, or a `CUfileStatsLevel2_t` of the caller's version that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetStatsL2(stats: *mut u8) -> CUfileError_t {
    // SAFETY: the caller's promise.
    status("cuFileGetStatsL2", || unsafe { fetch(2, stats) })
}

/// And GPUs.
///
/// # Safety
/// `stats` is NULL, or a `CUfileStatsLevel3_t` of the caller's version that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetStatsL3(stats: *mut u8) -> CUfileError_t {
    // SAFETY: the caller's promise.
    status("cuFileGetStatsL3", || unsafe { fetch(3, stats) })
}
