//! Batches on their way through the executor, and back.

use super::batch::{BOUNDARY, Buffers, Extent, PacketBatch};
use super::devices::{self, BATCH_BYTES};
use super::fetch::{ENTRY_BYTES, Fetch, Fetcher, WORTH_BYTES};
use super::layout::{Layout, Wants};
use super::pack::network;
use super::sample::sample;
use super::service::{Forced, PathService, Work};
use super::stage::Operation;
use super::texts::TEXT_BYTES;
use super::unpack::unpack;
use crate::Packet;
use crate::streams::Streams;
use bifolio_compute::{Caller, Executor, Handle, Outcome, Request};
use bifolio_device::{Device, DeviceChoice, DeviceId};
use bifolio_kernels::packets::{CAPTURED_MAX, PacketBegin};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a packet that spans have room for, where all of them are as long as Ethernet lets them be.
const SPAN_BYTES: usize = 1536;

/// Bytes of a batch that is computed where it is: the CPU is over with it before any device has begun, and before another
/// thread was woken.
const SMALL_BYTES: usize = 4096;

/// Why nothing is fetched where the CPU may compute as well.
const NOT_ALONE: &str = "the CPU may compute batches, too, for which it packs them (say USE device)";

/// What a path may use.
#[derive(Debug, Clone, Copy)]
pub struct PathOptions {
    /// The device.
    pub device: DeviceChoice,
    /// The most packets of a batch.
    pub size: usize,
    /// The most batches at a time, packed or under way.
    pub batches: usize,
    /// Who computes; nothing: whoever is over first.
    pub forced: Option<Forced>,
    /// Whether only what elements look at travels, and not whole packets.
    pub slices: bool,
    /// Whether the device fetches payloads by itself, if it can and nobody else may compute.
    pub fetch: Fetch,
}

/// Batches between a Batcher and its Debatcher.
#[derive(Debug)]
pub struct Path {
    options: PathOptions,
    layout: Arc<Layout>,
    service: Arc<PathService>,
    handle: Handle<PathService>,
    caller: Caller,
    executor: Arc<Executor>,
    shared: Arc<Shared>,
    /// Where the device fetches payloads.
    fetcher: Option<Arc<Fetcher>>,
    /// Bytes of a payload of the last batch, on average.
    mean_span: AtomicUsize,
    /// Why it does not, where it was to.
    no_fetch: OnceLock<String>,
    /// Flows, where somebody wants them followed.
    streams: Option<Mutex<Streams>>,
}

/// Where a batch is.
#[derive(Debug)]
enum Stored {
    Packed(PacketBatch),
    /// Without its buffers, and since when.
    UnderWay(PacketBatch, Instant),
    Back(PacketBatch),
}

impl Stored {
    fn into_batch(self) -> PacketBatch {
        match self {
            Self::Packed(batch) | Self::UnderWay(batch, _) | Self::Back(batch) => batch,
        }
    }
}

/// What a batch's number says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// There is no such batch.
    Unknown,
    /// It waits for a submission.
    Packed,
    /// The executor has it.
    UnderWay,
    /// It is back.
    Back,
}

/// What those who end requests need as well: it does not keep the executor alive.
#[derive(Debug)]
struct Shared {
    batches: Mutex<Batches>,
    back: Condvar,
    /// Batches that the executor has.
    under_way: AtomicUsize,
    /// Readable when a batch is back.
    event: OwnedFd,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Batches {
    free: Vec<PacketBatch>,
    /// How many there are.
    made: usize,
    stored: HashMap<u64, Stored>,
    next: u64,
    /// Batches that were taken back from the executor, which still has their buffers.
    late: usize,
    /// Clones of their packets, where the device fetches payloads: nobody writes over what it may be reading.
    held: HashMap<u64, Vec<Packet>>,
    /// What went wrong and was not told yet.
    trouble: Option<String>,
    /// Why the device does not compute, as it was told last.
    off: Option<String>,
    /// It was told that the device could not take a batch.
    is_unsuited: bool,
}

#[derive(Debug, Default)]
struct Counts {
    batches: AtomicU64,
    packets: AtomicU64,
    by_device: AtomicU64,
    input_bytes: AtomicU64,
    failures: AtomicU64,
    lost: AtomicU64,
}

/// What a path has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Batches that are back.
    pub batches: u64,
    /// Their packets.
    pub packets: u64,
    /// Packets of batches that the device computed.
    pub by_device: u64,
    /// Bytes of rows and spans that travelled, or would have, but for payloads that the device fetched.
    pub input_bytes: u64,
    /// Batches that the device failed at, could not take or had for too long, and that were computed by the CPU at once.
    pub failures: u64,
    /// Packets that were dropped, as nobody could compute them.
    pub lost: u64,
}

impl Batches {
    /// A batch's packets go on before the executor has let go of it.
    fn hold(&mut self, number: u64, batch: &PacketBatch) {
        if batch.is_fetched {
            self.held.insert(number, batch.packets.clone());
        }
    }
}

/// A name that lives as long as the program: services are known by theirs. There are as many as there are kinds of paths.
fn keep(name: String) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name.as_str()) {
        return known;
    }
    let name: &'static str = Box::leak(name.into_boxed_str());
    names.insert(name);
    name
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Batches> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch's request is over.
    fn end(&self, number: u64, extent: Extent, outcome: Outcome) {
        let Outcome { source, destination, result } = outcome;
        let mut batches = self.lock();
        let stored = batches.stored.remove(&number);
        let Some(Stored::UnderWay(mut batch, _)) = stored else {
            // It took too long, and its packets have gone on.
            batches.late -= 1;
            batches.held.remove(&number);
            batches.stored.extend(stored.map(|stored| (number, stored)));
            return;
        };
        batch.give_back(source, destination);
        match result {
            Ok(answers) => {
                if answers.path == Forced::Device {
                    self.counts.by_device.fetch_add(extent.count as u64, Ordering::Relaxed);
                }
                self.counts.failures.fetch_add(u64::from(answers.is_taken_over), Ordering::Relaxed);
                batch.is_computed = true;
            }
            Err(error) => batches.trouble = Some(format!("the CPU takes over a batch: {error}")),
        }
        // Whoever sees that it is back sees that it is not under way.
        self.under_way.fetch_sub(1, Ordering::Release);
        batches.stored.insert(number, Stored::Back(batch));
        drop(batches);
        self.back.notify_all();
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

impl Path {
    /// A path of these elements.
    ///
    /// # Errors
    /// A sentence for whoever wrote the configuration.
    pub fn new(options: PathOptions, operations: &[Arc<dyn Operation>], names: &str) -> Result<Arc<Self>, String> {
        let mut wants = Vec::new();
        for operation in operations {
            let more = operation.wants(&wants)?;
            if wants.last().is_some_and(|before: &Wants| before.rewrites) {
                return Err("an element that changes packets as a whole is the last one of its path".to_owned());
            }
            wants.push(more);
        }
        let count = wants.len();
        if !options.slices {
            wants.push(Wants { link: true, payload: true, ..Wants::default() });
        }
        let layout = Arc::new(Layout::new(&wants)?);
        wants.truncate(count);
        let executor = devices::executor(options.device)?;
        let stage = |(at, operation): (usize, &Arc<dyn Operation>)| operation.stage(&layout, &wants[..at], &executor);
        let stages = operations.iter().enumerate().map(stage);
        let stages = stages.collect::<Result<Vec<_>, _>>()?;
        let begin = executor.kernels().load(&PacketBegin).map_err(|error| error.to_string())?;
        let refused = begin.is_err() || stages.iter().any(|stage| stage.refusal().is_some());
        // What a device cannot compute is another kind of work than what it can, though the elements have the same names.
        let name = keep(format!("packets: {names}{}", if refused { ", by the CPU alone" } else { "" }));
        let fetcher = match (options.fetch, options.forced) {
            (Fetch::Never, _) => Err(None),
            (_, Some(Forced::Device)) => Fetcher::new(&executor, &layout).map_err(Some),
            _ => Err(Some(NOT_ALONE.to_owned())),
        };
        let (fetcher, reason) = fetcher.map_or_else(|reason| (None, reason), |fetcher| (Some(fetcher), None));
        let no_fetch = reason.map_or_else(OnceLock::new, OnceLock::from);
        let service = Arc::new(PathService::new(name, Arc::clone(&layout), stages, begin, fetcher.clone(), sample));
        let (found, size) = (service.extras(options.size, 0).1, options.size);
        if found > BATCH_BYTES {
            return Err(format!(
                "what is found in {size} packets needs {found} bytes, and {BATCH_BYTES} are the most; make SIZE (or ROOM) smaller"
            ));
        }
        let handle = executor.register(Arc::clone(&service));
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|error| format!("no event can be made: {error}"))?;
        let shared = Shared {
            batches: Mutex::default(),
            back: Condvar::new(),
            under_way: AtomicUsize::new(0),
            event,
            counts: Counts::default(),
        };
        let caller = executor.caller();
        let streams = layout.wants.texts.clone().map(|following| Mutex::new(Streams::new(following)));
        let (shared, mean_span) = (Arc::new(shared), AtomicUsize::new(0));
        Ok(Arc::new(Self {
            options,
            layout,
            service,
            handle,
            caller,
            executor,
            shared,
            fetcher,
            mean_span,
            no_fetch,
            streams,
        }))
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.executor.device()
    }

    /// Where things lie in rows.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The most packets of a batch.
    pub fn size(&self) -> usize {
        self.options.size
    }

    /// The most batches at a time.
    pub fn batches(&self) -> usize {
        self.options.batches
    }

    /// Why the device does not compute, or failed when it was tried last; as a sentence without its full stop.
    pub fn off(&self) -> Option<String> {
        use bifolio_compute::service::Service;
        self.service.refusal().or_else(|| self.handle.device_off())
    }

    /// Batches that the executor has.
    pub fn under_way(&self) -> usize {
        self.shared.under_way.load(Ordering::Acquire)
    }

    /// How many batches can still be begun.
    pub fn free(&self) -> usize {
        let batches = self.shared.lock();
        batches.free.len() + self.options.batches.saturating_sub(batches.made)
    }

    /// Bytes of a packet in a batch, where it is as long as Ethernet lets it be.
    fn packet_bytes(&self) -> usize {
        let text = if self.layout.has_texts() { TEXT_BYTES } else { 0 };
        let text = text + if self.fetcher.is_some() { ENTRY_BYTES } else { 0 };
        self.layout.input_bytes() + text + self.layout.span_bytes_max(SPAN_BYTES)
    }

    /// How many packets a batch has room for, unless some are longer than Ethernet lets them be.
    pub fn packets(&self) -> usize {
        self.options.size.min((BATCH_BYTES - 2 * BOUNDARY) / self.packet_bytes())
    }

    /// Buffers of a batch, pinned for a device.
    fn buffers(&self, device: &Device) -> Result<Buffers, String> {
        let many = (self.options.size * self.packet_bytes() + 2 * BOUNDARY).min(BATCH_BYTES);
        // The longest packet fits into any batch.
        let one = self.layout.span_bytes_max(CAPTURED_MAX as usize) + 4 * BOUNDARY;
        let input = if self.layout.has_spans() { many.max(one) } else { many };
        // Where packets come back, there is less room for them.
        let excess = self.service.extras(self.options.size, input).1.saturating_sub(BATCH_BYTES);
        let input = if self.layout.wants.rewrites { input - excess.min(input / 2) } else { input };
        let output = self.service.extras(self.options.size, input).1;
        Buffers::new(device, input, output).map_err(|error| error.to_string())
    }

    /// Memory of the host that no device knows of.
    fn host_buffers(&self) -> Result<Buffers, String> {
        let host = bifolio_device::open(DeviceChoice::Exactly(DeviceId::HOST)).map_err(|error| error.to_string())?;
        self.buffers(&host)
    }

    /// Gets the memory of all batches, which takes a device long, before packets come. What cannot be had now is asked for
    /// again by [`begin`](Self::begin).
    pub fn prepare(&self) {
        let all: Vec<_> = std::iter::from_fn(|| self.begin()).take(self.options.batches).collect();
        self.shared.lock().free.extend(all);
    }

    /// An empty batch; none where as many as may be are on their way, or no memory can be had.
    pub fn begin(&self) -> Option<PacketBatch> {
        let mut batches = self.shared.lock();
        let is_late = batches.late > 0;
        if let Some(mut batch) = batches.free.pop() {
            drop(batches);
            batch.is_fetched = !is_late && self.is_worth_fetching();
            return Some(batch);
        }
        if batches.made >= self.options.batches {
            return None;
        }
        batches.made += 1;
        drop(batches);
        let in_ordinary_memory = |error: String| {
            let buffers = self.host_buffers()?;
            self.shared.lock().trouble =
                Some(format!("a batch travels from ordinary memory, which is slower: {error}"));
            Ok::<_, String>(buffers)
        };
        match self.buffers(self.device()).or_else(in_ordinary_memory) {
            Ok(buffers) => {
                let mut batch = PacketBatch::new(buffers);
                batch.is_fetched = !is_late && self.is_worth_fetching();
                Some(batch)
            }
            Err(error) => {
                let mut batches = self.shared.lock();
                batches.made -= 1;
                batches.trouble = Some(format!("there is no memory for a batch: {error}"));
                None
            }
        }
    }

    /// Whether a batch has room for a packet.
    #[inline]
    pub fn has_room(&self, batch: &PacketBatch, packet: &Packet) -> bool {
        // Headers that were pulled lie before the data, and travel too.
        let bytes = || network(&self.layout, packet).map_or(0, <[u8]>::len).min(CAPTURED_MAX as usize);
        let len = if self.layout.has_spans() { bytes() } else { 0 };
        batch.len() < self.options.size && batch.has_room(&self.layout, self.layout.span_bytes_max(len))
    }

    /// How many packets more a batch has room for, whatever they are: none where that depends on their length.
    pub fn room_for_any(&self, batch: &PacketBatch) -> usize {
        if self.layout.has_spans() && !self.layout.has_options_alone() {
            return 0;
        }
        batch.rows_left(&self.layout).min(self.options.size - batch.len())
    }

    /// Whether a larger batch gains a device little, as far as that was measured by now.
    pub fn is_past_knee(&self, batch: &PacketBatch) -> bool {
        batch.extent(&self.layout).input_bytes as u64 >= self.handle.knee(BATCH_BYTES as u64)
    }

    /// Why the device does not fetch payloads, where it was to; as a sentence without its full stop.
    pub fn no_fetch(&self) -> Option<&str> {
        self.no_fetch.get().map(String::as_str)
    }

    /// Whether the device is to fetch the payloads of the next batch, as far as those of the last one say. The CPU takes over what a
    /// device fails at as it is packed.
    fn is_worth_fetching(&self) -> bool {
        let is_long = || self.mean_span.load(Ordering::Relaxed) >= WORTH_BYTES;
        self.fetcher.is_some()
            && (self.options.fetch == Fetch::Always || is_long())
            && self.no_fetch.get().is_none()
            && self.handle.device_off().is_none()
    }

    /// Before a batch leaves whose payloads the device is to fetch: it reaches all memory of packets, or has them packed, as it has
    /// where it `is_late`.
    fn reach(&self, batch: &mut PacketBatch, is_late: bool) {
        let Some(fetcher) = self.fetcher.as_ref().filter(|_| batch.is_fetched) else { return };
        // A frame that is longer than Ethernet's has memory of its own.
        let mut is_reached = !is_late && batch.packets.iter().all(Packet::is_lasting);
        if is_reached
            && !fetcher.reaches_all()
            && let Err(trouble) = fetcher.reach_all()
        {
            self.shared.lock().trouble = Some(format!("the CPU packs payloads: {trouble}"));
            // Another try would end as this one, for each batch.
            let _ = self.no_fetch.set(trouble);
            is_reached = false;
        }
        if !is_reached && let Some(buffers) = batch.buffers.take() {
            batch.pack_again(&self.layout, buffers);
        }
    }

    /// Packs a packet, for which there is room.
    #[inline]
    pub fn add(&self, batch: &mut PacketBatch, packet: Packet) {
        if let (Some(streams), Some(network)) = (&self.streams, packet.network_header()) {
            streams.lock().unwrap_or_else(PoisonError::into_inner).follow(network, batch.texts.next());
        }
        batch.add(&self.layout, packet);
    }

    /// Keeps a packed batch; its number.
    pub fn store(&self, batch: PacketBatch) -> u64 {
        let mut batches = self.shared.lock();
        let number = batches.next;
        batches.next += 1;
        batches.stored.insert(number, Stored::Packed(batch));
        number
    }

    /// Has a batch computed.
    pub fn submit(&self, number: u64) {
        let mut batches = self.shared.lock();
        let Some(Stored::Packed(mut batch)) = batches.stored.remove(&number) else { return };
        if batch.is_fetched {
            let is_late = batches.late > 0;
            drop(batches);
            self.reach(&mut batch, is_late);
            batches = self.shared.lock();
        }
        let extent = batch.close(&self.layout);
        self.mean_span.store(extent.span_bytes / extent.count.max(1), Ordering::Relaxed);
        let counts = &self.shared.counts;
        counts.batches.fetch_add(1, Ordering::Relaxed);
        counts.packets.fetch_add(extent.count as u64, Ordering::Relaxed);
        counts.input_bytes.fetch_add(extent.travels as u64, Ordering::Relaxed);
        if self.options.forced != Some(Forced::Device) && extent.input_bytes <= SMALL_BYTES {
            drop(batches);
            self.compute_here(&mut batch, &self.service.work(extent));
            self.shared.lock().stored.insert(number, Stored::Back(batch));
            return;
        }
        let Some((source, destination)) =
            batch.lend(extent.input_bytes, self.service.extras(extent.count, extent.span_bytes).1)
        else {
            batches.stored.insert(number, Stored::Back(batch));
            return;
        };
        let work = self.service.work(extent);
        batch.snapshots = Arc::clone(&work.snapshots);
        self.shared.under_way.fetch_add(1, Ordering::Relaxed);
        batches.stored.insert(number, Stored::UnderWay(batch, Instant::now()));
        // A device that is late gets nothing more until it has answered.
        let forced = if batches.late > 0 { Some(Forced::Cpu) } else { self.options.forced };
        drop(batches);
        let mut request = Request::new(self.handle.step(work), source).into(destination);
        if let Some(path) = forced {
            request = request.on(path);
        }
        let shared = Arc::clone(&self.shared);
        let submitted = self.caller.submit_with(request, move |outcome| shared.end(number, extent, outcome));
        if let Err(refused) = submitted {
            let outcome = Outcome { source: None, destination: None, result: Err(refused.error) };
            self.shared.end(number, extent, outcome);
        }
    }

    /// Where a batch is.
    pub fn state(&self, number: u64) -> State {
        match self.shared.lock().stored.get(&number) {
            None => State::Unknown,
            Some(Stored::Packed(_)) => State::Packed,
            Some(Stored::UnderWay(..)) => State::UnderWay,
            Some(Stored::Back(_)) => State::Back,
        }
    }

    /// Waits until a batch is not under way.
    pub fn wait(&self, number: u64) {
        let mut batches = self.shared.lock();
        while matches!(batches.stored.get(&number), Some(Stored::UnderWay(..))) {
            batches = self.shared.back.wait(batches).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A batch that the executor has had for this long is back, for the CPU to compute it: the packets are here, and what the
    /// device still finds is thrown away. Whether it was so late.
    pub fn overtake(&self, number: u64, patience: Duration) -> bool {
        let mut batches = self.shared.lock();
        match batches.stored.remove(&number) {
            Some(Stored::UnderWay(batch, since)) if since.elapsed() >= patience => {
                batches.hold(number, &batch);
                batches.stored.insert(number, Stored::Back(batch));
            }
            stored => {
                batches.stored.extend(stored.map(|stored| (number, stored)));
                return false;
            }
        }
        batches.late += 1;
        let id = self.device().id();
        batches.trouble = Some(format!("the CPU takes over: {id} has not given a batch back for {patience:?}"));
        self.shared.under_way.fetch_sub(1, Ordering::Release);
        true
    }

    /// The packets of all batches in their order, as they were before: the path ends.
    pub fn end(&self) -> Vec<Packet> {
        let mut batches = self.shared.lock();
        let mut all: Vec<_> = std::mem::take(&mut batches.stored).into_iter().collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        for (number, stored) in &all {
            if let Stored::UnderWay(batch, _) = stored {
                batches.late += 1;
                batches.hold(*number, batch);
            }
        }
        all.into_iter().flat_map(|(_, stored)| stored.into_batch().packets).collect()
    }

    /// A batch that is back; its packets go by [`leave`](Self::leave). Where the executor failed, the CPU computes it now; where
    /// that cannot be, it has no packets any more: what nobody has looked at must not pass for what somebody has.
    pub fn take(&self, number: u64) -> Option<PacketBatch> {
        let mut batches = self.shared.lock();
        match batches.stored.remove(&number) {
            Some(Stored::Back(mut batch)) => {
                drop(batches);
                self.finish(&mut batch);
                batch.open();
                Some(batch)
            }
            stored => {
                batches.stored.extend(stored.map(|stored| (number, stored)));
                None
            }
        }
    }

    fn finish(&self, batch: &mut PacketBatch) {
        if !batch.is_computed {
            let counts = &self.shared.counts;
            counts.failures.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = self.compute(batch) {
                let lost = batch.packets.len();
                batch.packets.clear();
                counts.lost.fetch_add(lost as u64, Ordering::Relaxed);
                self.shared.lock().trouble = Some(format!("{lost} packets are lost: {error}"));
            }
        }
    }

    /// The next packets of a batch that was taken, at most so many, with what was found written into them: while they are in the
    /// processor's caches.
    pub fn leave<'a>(&self, batch: &'a mut PacketBatch, most: usize) -> impl Iterator<Item = Packet> + 'a {
        let many = most.min(batch.leaving.len());
        unpack(&self.service, &self.layout, batch, many);
        batch.leaving.drain(..many)
    }

    /// Computes a batch on this thread, whatever became of its buffers.
    fn compute(&self, batch: &mut PacketBatch) -> Result<(), String> {
        let buffers = batch.buffers.take().map_or_else(|| self.host_buffers(), Ok)?;
        let before = std::mem::take(&mut batch.snapshots);
        batch.pack_again(&self.layout, buffers);
        let extent = batch.close(&self.layout);
        let work = if before.is_empty() { self.service.work(extent) } else { Work { extent, snapshots: before } };
        self.compute_here(batch, &work);
        if batch.is_computed { Ok(()) } else { Err("an element panicked on the CPU; please report it".to_owned()) }
    }

    /// Computes a packed batch on this thread; it is not computed where an element panics.
    fn compute_here(&self, batch: &mut PacketBatch, work: &Work) {
        let extent = work.extent;
        let total = self.service.extras(extent.count, extent.span_bytes).1;
        batch.snapshots = Arc::clone(&work.snapshots);
        let Some(Buffers { input, output }) = &mut batch.buffers else { return };
        let (input, output) = (&input.bytes()[..extent.input_bytes], &mut output.bytes_mut()[..total]);
        let computed = catch_unwind(AssertUnwindSafe(|| self.service.compute(work, input, output)));
        batch.is_computed = computed.is_ok();
    }

    /// Gives a batch back that has been emptied.
    pub fn release(&self, mut batch: PacketBatch) {
        batch.clear();
        let mut batches = self.shared.lock();
        if batch.buffers.is_some() {
            batches.free.push(batch);
        } else {
            batches.made -= 1;
        }
    }

    /// Readable when a batch is back.
    pub fn event(&self) -> RawFd {
        self.shared.event.as_raw_fd()
    }

    /// Nobody needs to be told any more of what is back by now.
    pub fn clear_event(&self) {
        let _ = rustix::io::read(&self.shared.event, &mut [0; 8]);
    }

    /// What went wrong since this was asked last, or that all is well again; a sentence without its full stop.
    pub fn take_trouble(&self) -> Option<String> {
        let off = self.handle.device_off();
        let mut batches = self.shared.lock();
        let mut trouble = batches.trouble.take();
        if let (Some(reason), false) = (self.handle.unsuited(), batches.is_unsuited) {
            batches.is_unsuited = true;
            let told = format!("the CPU computes some batches: {reason}");
            trouble = Some(trouble.map_or(told.clone(), |trouble| format!("{told}; {trouble}")));
        }
        if batches.off == off {
            return trouble;
        }
        batches.off.clone_from(&off);
        let told = off.map_or("the device computes again".to_owned(), |off| format!("the CPU takes over: {off}"));
        Some(trouble.map_or(told.clone(), |trouble| format!("{told}; {trouble}")))
    }

    /// What it has done.
    pub fn statistics(&self) -> Statistics {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { batches, packets, by_device, input_bytes, failures, lost } = &self.shared.counts;
        Statistics {
            batches: get(batches),
            packets: get(packets),
            by_device: get(by_device),
            input_bytes: get(input_bytes),
            failures: get(failures),
            lost: get(lost),
        }
    }
}
