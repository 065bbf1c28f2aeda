//! The memory of one device that a cache may use: frames under a budget, and scratch memory of its own.

use crate::budget::{Budget, Content, Long, Owner};
use crate::error::{Error, ErrorKind};
use crate::frames::{Incoming, NumberedFrame};
use crate::lending::{Lending, Lent, Use};
use crate::options::CacheOptions;
use crate::state::keeper::{Keeper, Keeping};
use crate::state::replicas::FrameNumber;
use crate::stats::Traffic;
use bifolio_device::fork::Birth;
use bifolio_device::{
    Access, AddressRange, Allocation, Device, DeviceId, DeviceSlice, FRAME_BYTES, PinnedBuffer, Result, Stream,
};
use bifolio_io::Router;
use bifolio_kernels::{Kernels, byte_mask::ByteMask, fold::Fold, merge::Merge, page_diff::PageDiff};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

/// Most bytes of incoming content that are merged at a time, and fewest.
const INCOMING_BYTES_MAX: u64 = 256 << 20;
const INCOMING_BYTES_MIN: u64 = 16 << 20;
/// Bytes of tables and results.
pub(crate) const TABLE_BYTES: u64 = 4 << 20;

/// Operations of a device that work with scratch memory at a time, and that write to files.
const SCRATCH_MAX: usize = 4;

/// Bytes of a host for cached files, where nobody says otherwise.
const HOST_BYTES: u64 = 1 << 30;

/// How a device's router is made when it is first needed.
type Opener = Box<dyn Fn() -> crate::error::Result<Arc<Router>> + Send + Sync>;

/// A device of a cache, opened when something is first mapped there.
pub(crate) struct DeviceMemory {
    pub(crate) id: DeviceId,
    open: Opener,
    /// Who keeps its frames, and its number in the cache.
    keeper: Option<(Arc<dyn Keeper>, usize)>,
    memory: Mutex<Option<Arc<Memory>>>,
}

impl std::fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceMemory").field("id", &self.id).field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl DeviceMemory {
    pub(crate) fn open(router: Arc<Router>) -> Self {
        Self::lazy(router.device().id(), Box::new(move || Ok(Arc::clone(&router))))
    }

    pub(crate) fn lazy(id: DeviceId, open: Opener) -> Self {
        Self { id, open, keeper: None, memory: Mutex::default() }
    }

    /// Has its frames outlive the process.
    pub(crate) fn kept_by(self, keeper: &Arc<dyn Keeper>, number: usize) -> Self {
        Self { keeper: Some((Arc::clone(keeper), number)), ..self }
    }

    /// Its memory, if something was mapped there.
    pub(crate) fn opened(&self) -> Option<Arc<Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same, or a refusal while somebody opens it.
    pub(crate) fn opened_now(&self) -> Result<Option<Arc<Memory>>, ()> {
        match self.memory.try_lock() {
            Ok(memory) => Ok(memory.clone()),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner().clone()),
            Err(TryLockError::WouldBlock) => Err(()),
        }
    }

    /// Its memory.
    pub(crate) fn memory(&self, options: &CacheOptions) -> crate::error::Result<Arc<Memory>> {
        let mut opened = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = &*opened {
            return memory.refuse_lost().map(|()| Arc::clone(memory));
        }
        let subject = "the cache";
        let router = (self.open)()?;
        let device = router.device().clone();
        if let Some(reason) = device.capabilities().virtual_memory.reason() {
            let detail = format!("{} cannot hold cached files: {reason}", self.id);
            return Err(Error::new(ErrorKind::Device, subject, detail));
        }
        let budget_bytes = match options.budget_bytes {
            CacheOptions::BY_DEVICE => budget_of(&device).map_err(|error| Error::device(subject, error))?,
            bytes => bytes,
        };
        let keeping = match &self.keeper {
            Some((keeper, number)) => Keeping::by(Arc::clone(keeper), *number),
            None => Keeping::by_nobody(),
        };
        let memory = Memory::new(&device, router, budget_bytes, keeping);
        let memory = Arc::new(memory.map_err(|error| Error::device(subject, error))?);
        *opened = Some(Arc::clone(&memory));
        Ok(memory)
    }
}

fn budget_of(device: &Device) -> Result<u64> {
    let bytes = if device.info().is_accelerator { device.memory()?.free / 2 } else { HOST_BYTES };
    Ok(bytes / FRAME_BYTES * FRAME_BYTES)
}

/// Memory of one device of a cache.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) device: Device,
    pub(crate) router: Arc<Router>,
    pub(crate) kernels: Kernels,
    budget_bytes: u64,
    keeping: Arc<Keeping>,
    frames: Budget<NumberedFrame>,
    /// For filling frames with zeroes; made when that is first needed.
    cleaning: OnceLock<Stream>,
    scratch: Lending<Scratch>,
    /// For what goes to files: it is kept while a disk is waited for.
    outgoing: Lending<PinnedBuffer>,
    /// For what CPUs read.
    host: Lending<HostSide>,
    short: Mutex<()>,
    /// Why the device is lost, once somebody has found out.
    loss: OnceLock<String>,
    /// What was read from files.
    pub(crate) traffic: Arc<Traffic>,
    birth: Birth,
}

/// Memory for the time of one operation, and a stream for its work.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) stream: Stream,
    pub(crate) incoming: Incoming,
    pub(crate) table: Allocation,
    pub(crate) results: Allocation,
}

/// Scratch memory that is an operation's own. Whatever failed, nothing of its work is under way when another gets it.
pub(crate) struct Borrowed<'a>(Lent<'a, Scratch>);

impl std::ops::Deref for Borrowed<'_> {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.0
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let _ = self.0.stream.synchronize();
    }
}

/// What is needed to bring content to the host.
#[derive(Debug)]
pub(crate) struct HostSide {
    /// Of [`STREAMS`] parts.
    pub(crate) pinned: PinnedBuffer,
    pub(crate) streams: Vec<Stream>,
}

/// Copies to the host at a time: one thread empties 10 GB/s of pinned memory, and the link fills 55 (H200 machine).
pub(crate) const STREAMS: usize = 4;

/// How long who waits for a device's work polls: comparing, folding and copying a GiB takes a GPU less.
const POLL_TIME: Duration = Duration::from_millis(1);

/// Bytes that are flushed at a time.
pub(crate) const FLUSH_BYTES: u64 = 16 << 20;

/// Bytes of pinned memory: for those, and a bit for each.
pub(crate) const PINNED_BYTES: usize = (FLUSH_BYTES + FLUSH_BYTES / 8) as usize;

impl Memory {
    fn new(device: &Device, router: Arc<Router>, budget_bytes: u64, keeping: Keeping) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            router,
            kernels: Kernels::load(device, &[&PageDiff, &Merge, &ByteMask, &Fold])?,
            budget_bytes,
            keeping: Arc::new(keeping),
            frames: Budget::new(budget_bytes),
            cleaning: OnceLock::new(),
            scratch: Lending::new(SCRATCH_MAX),
            outgoing: Lending::new(SCRATCH_MAX),
            host: Lending::new(2),
            short: Mutex::default(),
            loss: OnceLock::new(),
            traffic: Arc::default(),
            birth: Birth::here(),
        })
    }

    /// Why the device is known to be lost, with all that was there.
    pub(crate) fn loss(&self) -> Option<&str> {
        self.loss.get().map(String::as_str)
    }

    /// Refuses to map anything if the device is known to be lost.
    pub(crate) fn refuse_lost(&self) -> crate::error::Result<()> {
        self.loss().map_or(Ok(()), |why| {
            let detail = "nothing can be mapped there any more: use another device, or restart the program";
            Err(Error::lost("the cache", self.device.id(), why, detail))
        })
    }

    /// Whether the device is lost, which is asked.
    pub(crate) fn is_lost(&self) -> bool {
        // A child of the process may not ask.
        if self.loss().is_none()
            && !self.birth.was_elsewhere()
            && let Some(error) = self.device.loss()
        {
            let _ = self.loss.set(error.detail().to_owned());
        }
        self.loss().is_some()
    }

    /// Maps a frame as long as `place` there, and tells which: none if the budget is used up. It holds zeroes, or what
    /// its owner has left in it.
    pub(crate) fn map_frame(
        &self,
        owner: Owner,
        range: &AddressRange,
        place: &Range<u64>,
    ) -> Result<Option<FrameNumber>> {
        let len = place.end - place.start;
        let new = || NumberedFrame::new(&self.device, &self.keeping, len);
        let Some((frame, content)) = self.frames.take(owner, len, new)? else { return Ok(None) };
        if let Err(error) = range.map(place.start, &frame.frame, Access::ReadWrite) {
            self.frames.give(frame, None);
            return Err(error);
        }
        // SAFETY: the frame was just mapped there, and nobody uses it yet.
        let cleared = unsafe { range.slice() }.part(place.start, len).and_then(|place| self.clear(content, place));
        // SAFETY: as above; the stream was waited for, or the device has failed.
        if cleared.is_err() && unsafe { range.unmap(place.start) }.is_ok() {
            self.frames.give(frame, None);
            return cleared.map(|()| None);
        }
        let number = frame.into_number();
        cleared.map(|()| Some(number))
    }

    /// Maps a frame that another process has left; false if nobody has kept it, or it has another length.
    pub(crate) fn map_found(&self, number: FrameNumber, range: &AddressRange, place: &Range<u64>) -> Result<bool> {
        let len = place.end - place.start;
        let found = NumberedFrame::find(&self.device, &self.keeping, number)?;
        let Some(found) = found.filter(|found| found.frame.len() == len) else { return Ok(false) };
        range.map(place.start, &found.frame, Access::ReadWrite)?;
        self.frames.adopt(len);
        Ok(true)
    }

    /// Scratch memory that another process has left, if somebody has kept it.
    pub(crate) fn find_incoming(&self, number: FrameNumber) -> Result<Option<Incoming>> {
        Incoming::find(&self.device, &self.keeping, number)
    }

    /// Some bytes of frames are whoever's who finds them.
    pub(crate) fn disown(&self, bytes: u64) {
        self.frames.disown(bytes);
    }

    /// A frame's descriptor, for another process.
    pub(crate) fn lend_frame(&self, number: FrameNumber) -> Option<(u64, OwnedFd)> {
        self.keeping.lend(number)
    }

    /// Who keeps its frames.
    pub(crate) fn keeping(&self) -> &Keeping {
        &self.keeping
    }

    /// A frame with what `from` has, which is one, mapped nowhere yet; none if the budget is used up.
    pub(crate) fn copy_frame(&self, owner: Owner, from: DeviceSlice<'_>) -> Result<Option<NumberedFrame>> {
        let len = from.len();
        let new = || NumberedFrame::new(&self.device, &self.keeping, len);
        let Some((frame, _)) = self.frames.take(owner, len, new)? else { return Ok(None) };
        let copied = self.device.reserve(len).and_then(|place| {
            place.map(0, &frame.frame, Access::ReadWrite)?;
            let stream = self.cleaning()?;
            // SAFETY: both are mapped until the stream has been waited for.
            let copied = unsafe { stream.copy_on_device(place.slice(), from) };
            copied.and(stream.synchronize())
        });
        match copied {
            Ok(()) => Ok(Some(frame)),
            Err(error) => {
                self.give_copy(frame);
                Err(error)
            }
        }
    }

    /// Such a frame is not needed.
    pub(crate) fn give_copy(&self, frame: NumberedFrame) {
        self.frames.give(frame, None);
    }

    /// Maps another frame where one is: the budget counts that one as before, until it is let go.
    ///
    /// # Safety
    /// No work in flight uses it there.
    pub(crate) unsafe fn exchange_frame(range: &AddressRange, at: u64, frame: &NumberedFrame) -> Result<()> {
        // SAFETY: the caller's promise.
        let before = unsafe { range.unmap(at) }?;
        range.map(at, &frame.frame, Access::ReadWrite).inspect_err(|_| {
            // It was there a moment ago.
            let _ = range.map(at, &before, Access::ReadWrite);
        })
    }

    /// Counts a frame that another process has left to somebody; how long it is, if somebody has kept it.
    pub(crate) fn adopt_left(&self, number: FrameNumber) -> Option<u64> {
        let (bytes, _) = self.keeping.find(number)?;
        self.frames.adopt(bytes);
        Some(bytes)
    }

    /// A frame that was left to somebody is nobody's any more.
    pub(crate) fn let_go_left(&self, number: FrameNumber, bytes: u64) {
        self.keeping.forget(number);
        self.frames.disown(bytes);
    }

    /// Copies bytes of a frame that is mapped nowhere, and waits until they are there; false if nobody has kept it.
    pub(crate) fn copy_left(&self, number: FrameNumber, from: u64, to: DeviceSlice<'_>) -> Result<bool> {
        let Some((bytes, descriptor)) = self.keeping.find(number) else { return Ok(false) };
        let frame = self.device.import_frame_of(descriptor, bytes)?;
        let place = self.device.reserve(bytes)?;
        place.map(0, &frame, Access::ReadWrite)?;
        let stream = self.cleaning()?;
        // SAFETY: both are mapped until the stream has been waited for.
        let copied =
            unsafe { place.slice() }.part(from, to.len()).and_then(|from| unsafe { stream.copy_on_device(to, from) });
        copied.and(stream.synchronize()).map(|()| true)
    }

    /// Nor are those that nobody has asked for.
    pub(crate) fn forget_left_frames(&self) {
        self.keeping.forget_left();
    }

    /// A frame that another process has left is not needed any more.
    pub(crate) fn forget_frame(&self, number: FrameNumber) {
        self.keeping.forget(number);
    }

    /// Whether frames outlive the process.
    pub(crate) fn is_kept(&self) -> bool {
        self.keeping.is_by_somebody()
    }

    /// Gives a frame back that is mapped in a range, with what its owner leaves in it.
    ///
    /// # Safety
    /// No work in flight uses it there.
    pub(crate) unsafe fn unmap_frame(
        &self,
        owner: Owner,
        range: &AddressRange,
        offset: u64,
        number: FrameNumber,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let frame = unsafe { range.unmap(offset) }?;
        let (len, is_lent) = (frame.len(), self.keeping.is_lent(number));
        let frame = NumberedFrame::of(frame, number, &self.keeping);
        if is_lent {
            // Another process may write to it at any time.
            drop(frame);
            self.frames.disown(len);
        } else {
            self.frames.give(frame, Some(owner));
        }
        Ok(())
    }

    /// Fills a frame with zeroes, unless nobody else's bytes are in it. At the speed of the device's memory, which is a
    /// fiftieth of the time in which a link fills it.
    fn clear(&self, content: Content, frame: DeviceSlice<'_>) -> Result<()> {
        let is_clean = match content {
            Content::Own => true,
            Content::Foreign => false,
            Content::New => self.device.zeroes_frames(),
        };
        if is_clean {
            return Ok(());
        }
        let stream = self.cleaning()?;
        // SAFETY: the caller has mapped the frame, and keeps it until the stream is waited for, whatever happens.
        let filled = unsafe { stream.fill(frame, 0) };
        filled.and(stream.synchronize())
    }

    fn cleaning(&self) -> Result<&Stream> {
        if let Some(stream) = self.cleaning.get() {
            return Ok(stream);
        }
        let made = self.device.create_stream()?;
        Ok(self.cleaning.get_or_init(|| made))
    }

    /// Bytes of frames that hold something.
    pub(crate) fn used_bytes(&self) -> u64 {
        if self.loss().is_some() { 0 } else { self.frames.used_bytes() }
    }

    /// Bytes of all frames, also of those that nobody uses.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.frames.bytes()
    }

    /// Gives frames back to the device that nobody uses, up to some bytes: how many.
    pub(crate) fn give_spares(&self, bytes: u64) -> u64 {
        self.frames.take_spares(bytes).iter().map(Long::bytes).sum()
    }

    /// The most bytes that there may be of frames now.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.frames.limit_bytes()
    }

    /// Has no more bytes be taken of the device than there are of frames, and `more`.
    pub(crate) fn limit(&self, more: u64) {
        self.frames.limit(self.frames.bytes().saturating_add(more));
    }

    /// Bytes of incoming content that are merged at a time.
    pub(crate) fn incoming_bytes(&self) -> u64 {
        (self.budget_bytes / 4).clamp(INCOMING_BYTES_MIN, INCOMING_BYTES_MAX)
    }

    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Runs `work`, which waits for no disk, with scratch memory, which is made when first needed and kept.
    pub(crate) fn with_scratch<T>(
        &self,
        work: impl FnOnce(&Scratch) -> crate::error::Result<T>,
    ) -> crate::error::Result<T> {
        let scratch = self.borrow_scratch(Use::Quick)?;
        work(&scratch)
    }

    /// Scratch memory, once there is some. Who waits for it, as he needs it while he waits for a disk, holds no lock.
    pub(crate) fn borrow_scratch(&self, is_for: Use) -> crate::error::Result<Borrowed<'_>> {
        let make = || {
            let incoming = Incoming::new(&self.device, &self.keeping, self.incoming_bytes())?;
            Scratch::new(&self.device, incoming)
        };
        let lent = self.scratch.borrow(is_for, make);
        lent.map(Borrowed).map_err(|error| Error::device("the cache", error))
    }

    /// Pinned memory for what goes to a file. Who waits for it holds no lock.
    pub(crate) fn borrow_outgoing(&self) -> crate::error::Result<Lent<'_, PinnedBuffer>> {
        let lent = self.outgoing.borrow(Use::Quick, || self.device.alloc_pinned(PINNED_BYTES));
        lent.map_err(|error| Error::device("the cache", error))
    }

    /// Pinned memory and streams for what goes to a CPU.
    pub(crate) fn borrow_host(&self) -> crate::error::Result<Lent<'_, HostSide>> {
        let make = || {
            let pinned = self.device.alloc_pinned(PINNED_BYTES)?;
            let stream = |_| self.device.create_polling_stream(POLL_TIME);
            let streams = (0..STREAMS).map(stream).collect::<Result<_>>()?;
            Ok(HostSide { pinned, streams })
        };
        self.host.borrow(Use::Quick, make).map_err(|error| Error::device("the cache", error))
    }

    /// Whose turn it is among those who have found all memory in the hands of other operations: one of them tries again
    /// at a time, so that they do not take it from each other for ever.
    pub(crate) fn turn_when_short(&self) -> MutexGuard<'_, ()> {
        self.short.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scratch {
    fn new(device: &Device, incoming: Incoming) -> Result<Self> {
        Ok(Self {
            stream: device.create_polling_stream(POLL_TIME)?,
            incoming,
            table: device.alloc(TABLE_BYTES)?,
            results: device.alloc(TABLE_BYTES)?,
        })
    }

    /// The first bytes of some scratch memory.
    pub(crate) fn first(memory: &Allocation, bytes: u64) -> Result<DeviceSlice<'_>> {
        memory.slice().part(0, bytes)
    }
}
