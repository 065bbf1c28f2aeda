//! Batcher: collects packets into batches for a device.
//!
//! `Batcher([SIZE, TIMEOUT, keywords ADAPTIVE, SLICING])`: push input, wide push output. What follows is a path: HostToDeviceMemcpy,
//! elements that are computed (`GPU...`), DeviceToHostMemcpy, GPUCompletionQueue, Debatcher, in this order.
//!
//! - SIZE: the most packets of a batch, 1 to 262,144 (8,192).
//! - TIMEOUT: how long the first packet of a batch waits at most (1 ms); 0: until the batch is full.
//! - ADAPTIVE: whether a batch leaves before it is full (true): where no other one is under way, and no packets come at the
//!   moment or its first one has waited for 50 us; and where a larger one would gain the device little, as far as that has been
//!   measured. So batches become larger with the load.
//! - SLICING: whether only what elements of the path look at is copied from packets (true), or all of them.
//!
//! A packet that comes while as many batches are on their way as may be waits outside, as SIZE others may; further ones are
//! dropped and counted, and the first such drop is told. Sources that ask for room stop before. A router that takes this one's
//! place (hot-swap) has the packets that are on their way computed again, in their order.
//!
//! Handlers: `count` (packets that were taken), `drops`, `length` (packets that wait for a batch, or for theirs to leave), `size`,
//! `row_bytes` (of each packet that travel, but for options and payload), `result_bytes` (that come back), `reset_counts`.

use super::carrier::carrier;
use super::completion_queue::GpuCompletionQueue;
use super::debatcher::Debatcher;
use super::element::GpuElement;
use super::memcpy::{DeviceToHost, HostToDevice};
use crate::args::{Args, Failed, Interval};
use crate::element::{Batch, Element, Run, downcast};
use crate::error::Log;
use crate::handler::Handlers;
use crate::router::Cx;
use crate::wide::{Operation, PacketBatch, Path, PathOptions};
use crate::{Packet, Timestamp};
use std::collections::VecDeque;
use std::sync::Arc;

/// The most packets of a batch.
const LARGEST: usize = 1 << 18;

/// How long packets that keep coming may hold up a batch that a device has time for.
const LINGER: Timestamp = Timestamp::from_nanos(50_000);

/// The timer at which a batch leaves that is not full.
const LEAVE: usize = 0;
/// The timer at which memory for a batch is asked for again.
const AGAIN: usize = 1;

/// The element.
pub(super) struct Batcher {
    size: usize,
    timeout: Timestamp,
    is_adaptive: bool,
    slices: bool,
    path: Option<Arc<Path>>,
    batch: Option<PacketBatch>,
    /// Packets that no batch has room for yet.
    waiting: VecDeque<Packet>,
    count: u64,
    /// When its first packet came.
    began: Timestamp,
    /// How many had come at the last look whether the batch shall leave.
    looked_at: u64,
    drops: u64,
}

impl Default for Batcher {
    fn default() -> Self {
        let timeout = Timestamp::from_secs_f64(1e-3);
        Self {
            size: 8192,
            timeout,
            is_adaptive: true,
            slices: true,
            path: None,
            batch: None,
            waiting: VecDeque::new(),
            count: 0,
            began: Timestamp::default(),
            looked_at: 0,
            drops: 0,
        }
    }
}

/// The elements of a path, by their numbers.
struct Members {
    start: usize,
    computed: Vec<usize>,
    end: usize,
    queue: usize,
    debatcher: usize,
}

/// The element behind output 0 of another one.
fn after(cx: &Cx<'_>, element: usize) -> Option<usize> {
    let connections = cx.router().connections();
    connections.iter().find(|((from, output), _)| (*from, *output) == (element, 0)).map(|(_, (to, _))| *to)
}

/// Who is in the path of this Batcher, or a sentence about who is missing.
fn members(cx: &Cx<'_>) -> Result<Members, String> {
    let router = cx.router();
    let mut at = cx.id();
    let mut next = |expected: Option<&str>| -> Result<usize, String> {
        let behind = router.declaration(at);
        let wanted = expected.unwrap_or("an element that a device computes, or DeviceToHostMemcpy,");
        at = after(cx, at).ok_or_else(|| format!("{wanted} expected behind '{behind}'"))?;
        let class = router.class_of(at);
        let is_wanted = match expected {
            Some(name) => class.name == name,
            None => class.is_computed() || class.name == "DeviceToHostMemcpy",
        };
        if is_wanted {
            Ok(at)
        } else {
            Err(format!("{wanted} expected behind '{behind}', and '{}' is there", router.declaration(at)))
        }
    };
    let start = next(Some("HostToDeviceMemcpy"))?;
    let mut computed = Vec::new();
    let end = loop {
        let element = next(None)?;
        if !router.class_of(element).is_computed() {
            break element;
        }
        computed.push(element);
    };
    Ok(Members { start, computed, end, queue: next(Some("GPUCompletionQueue"))?, debatcher: next(Some("Debatcher"))? })
}

impl Batcher {
    /// Makes the path, and tells everybody who is in it.
    fn connect(&self, cx: &mut Cx<'_>) -> Result<Arc<Path>, String> {
        let members = members(cx)?;
        let is_fed_by_others =
            |element: usize| cx.router().connections().iter().filter(|(_, (to, _))| *to == element).count() > 1;
        if let Some(element) = members
            .computed
            .iter()
            .chain([&members.start, &members.end, &members.queue])
            .find(|e| is_fed_by_others(**e))
        {
            return Err(format!(
                "'{}' is in two paths; each Batcher has one of its own",
                cx.router().declaration(*element)
            ));
        }
        let gone = || "an element of the path is not what its class says".to_owned();
        let mut operations: Vec<Arc<dyn Operation>> = Vec::new();
        for element in &members.computed {
            operations.push(cx.with(*element, |element: &mut GpuElement, _| element.join()).ok_or_else(gone)?);
        }
        let names: Vec<_> = members.computed.iter().map(|element| cx.router().class_of(*element).name).collect();
        let place = cx.with(members.start, |start: &mut HostToDevice, _| start.place());
        let (device, forced, fetch) = place.ok_or_else(gone)?;
        let batches = cx.with(members.queue, |queue: &mut GpuCompletionQueue, _| queue.capacity()).ok_or_else(gone)?;
        let options = PathOptions { device, size: self.size, batches, forced, slices: self.slices, fetch };
        let path = Path::new(options, &operations, &names.join(", "))?;
        let batcher = cx.id();
        cx.with(members.start, |start: &mut HostToDevice, _| start.join(&path));
        cx.with(members.end, |end: &mut DeviceToHost, _| end.join(&path));
        cx.with(members.queue, |queue: &mut GpuCompletionQueue, cx| queue.join(cx, &path, batcher));
        cx.with(members.debatcher, |debatcher: &mut Debatcher, cx| debatcher.join(cx, &path, batcher));
        Ok(path)
    }

    /// The batch leaves, if it has packets.
    fn flush(&mut self, cx: &mut Cx<'_>) {
        let (Some(path), Some(batch)) = (&self.path, self.batch.take_if(|batch| !batch.is_empty())) else { return };
        cx.timer_cancel(LEAVE);
        cx.emit(0, carrier(path.store(batch)));
        self.tell(cx);
    }

    /// Tells those who push whether there is room.
    fn tell(&self, cx: &mut Cx<'_>) {
        let has_room = self.room() != Some(0);
        cx.note_room(has_room);
        // A batch may have become free between the look and the note.
        if !has_room && self.room() != Some(0) {
            cx.note_room(true);
        }
    }

    /// A batch has been computed.
    pub(super) fn batch_is_back(&mut self, cx: &mut Cx<'_>) {
        self.look_soon(cx);
    }

    /// A batch has been emptied.
    pub(super) fn batch_is_free(&mut self, cx: &mut Cx<'_>) {
        if self.waiting.is_empty() {
            cx.note_room(true);
            self.look_soon(cx);
        } else {
            cx.schedule();
        }
    }

    /// Packs those that wait, as far as there is room.
    fn let_in(&mut self, cx: &mut Cx<'_>) {
        while let Some(packet) = self.waiting.pop_front() {
            if let Err(packet) = self.pack(cx, packet) {
                self.waiting.push_front(packet);
                self.try_again_later(cx);
                break;
            }
        }
        self.settle(cx);
    }

    /// After the packets that are on their way now, looks whether the batch shall leave.
    fn look_soon(&self, cx: &mut Cx<'_>) {
        if self.is_adaptive && self.batch.is_some() {
            cx.schedule();
        }
    }

    #[cold]
    fn drop_one(&mut self, cx: &Cx<'_>) {
        if self.drops == 0 {
            cx.say(format_args!("{}: overflow", cx.declaration()));
        }
        self.drops += 1;
    }

    /// Where there is no memory for a batch, none comes back that could tell.
    fn try_again_later(&self, cx: &mut Cx<'_>) {
        let Some(path) = self.path.as_ref().filter(|path| path.free() > 0) else { return };
        if let Some(trouble) = path.take_trouble() {
            cx.say(format_args!("{}: {trouble}", cx.declaration()));
        }
        cx.timer_after(AGAIN, Timestamp::from_secs_f64(0.1));
    }

    /// Packs as many packets as the batch has room for, as far as that is known without a look at them.
    fn take_some(&mut self, packets: &mut impl ExactSizeIterator<Item = Packet>) {
        let (Some(path), Some(batch)) = (&self.path, self.batch.as_mut().filter(|_| self.waiting.is_empty())) else {
            return;
        };
        let many = path.room_for_any(batch).min(packets.len());
        packets.take(many).for_each(|packet| path.add(batch, packet));
        self.count += many as u64;
    }

    /// Packs a packet, into the next batch where this one is full.
    #[inline]
    fn take(&mut self, cx: &mut Cx<'_>, packet: Packet) {
        if !self.waiting.is_empty() {
            return self.wait(cx, packet);
        }
        if let Some(path) = &self.path
            && let Some(batch) = &mut self.batch
            && path.has_room(batch, &packet)
        {
            path.add(batch, packet);
            self.count += 1;
        } else if let Err(packet) = self.pack(cx, packet) {
            self.wait(cx, packet);
        }
    }

    /// The packet waits outside, if not too many do.
    #[cold]
    fn wait(&mut self, cx: &mut Cx<'_>, packet: Packet) {
        self.try_again_later(cx);
        if self.waiting.len() < self.size {
            self.waiting.push_back(packet);
        } else {
            self.drop_one(cx);
        }
    }

    /// Packs a packet, into the next batch where this one is full; gives it back where there is none.
    #[cold]
    fn pack(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Result<(), Packet> {
        let Some(path) = self.path.clone() else { return Err(packet) };
        if self.batch.as_ref().is_some_and(|batch| !path.has_room(batch, &packet)) {
            self.flush(cx);
        }
        if self.batch.is_none() {
            self.batch = path.begin();
        }
        let Some(batch) = self.batch.as_mut().filter(|batch| path.has_room(batch, &packet)) else { return Err(packet) };
        path.add(batch, packet);
        self.count += 1;
        if self.batch.as_ref().is_some_and(|batch| batch.len() == 1) {
            self.began = cx.now();
            if self.timeout > Timestamp::default() {
                cx.timer_after(LEAVE, self.timeout);
            }
        }
        Ok(())
    }

    /// After packets have come.
    fn settle(&mut self, cx: &mut Cx<'_>) {
        if self.batch.as_ref().is_some_and(|batch| batch.len() >= self.size) {
            self.flush(cx);
        }
        self.look_soon(cx);
        self.tell(cx);
    }
}

impl Element for Batcher {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut timeout = Interval(self.timeout);
        args.may("SIZE", &mut self.size).may("TIMEOUT", &mut timeout).key("ADAPTIVE", &mut self.is_adaptive);
        args.key("SLICING", &mut self.slices).finish()?;
        self.timeout = timeout.0;
        if !(1..=LARGEST).contains(&self.size) {
            return Err(args.error_of("SIZE", format_args!("must be between 1 and {LARGEST}")));
        }
        Ok(())
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        let path = self.connect(cx)?;
        path.prepare();
        self.path = Some(path);
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        self.take(cx, packet);
        self.settle(cx);
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        let mut packets = batch.drain(..);
        self.take_some(&mut packets);
        for packet in packets {
            cx.begin(&packet);
            self.take(cx, packet);
        }
        self.settle(cx);
    }

    /// The batch leaves where the device has nothing to do or would be no slower with it, and no packets have come since the last
    /// look or its first one has waited long enough: others have had their turns in between. Half of all batches are kept for more packets than this one has.
    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        if !self.waiting.is_empty() {
            self.let_in(cx);
        }
        if !self.is_adaptive {
            return Run::Stop;
        }
        if self.count != self.looked_at && cx.now() - self.began < LINGER {
            self.looked_at = self.count;
            return Run::Worked;
        }
        if let (Some(path), Some(batch)) = (&self.path, &self.batch)
            && path.free() * 2 >= path.batches()
            && (path.under_way() == 0 || path.is_past_knee(batch))
        {
            self.flush(cx);
        }
        Run::Stop
    }

    /// Looks in a row would tell nothing.
    fn run_tasks(&mut self, cx: &mut Cx<'_>, _: usize) -> Run {
        self.run_task(cx)
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, timer: usize) {
        if timer == AGAIN {
            self.let_in(cx);
        } else {
            self.flush(cx);
        }
    }

    fn room(&self) -> Option<usize> {
        let path = self.path.as_ref()?;
        if !self.waiting.is_empty() {
            return Some(0);
        }
        let left = self.batch.as_ref().map_or(0, |batch| path.packets().saturating_sub(batch.len()));
        Some(path.free() * path.packets() + left)
    }

    fn stored(&self) -> Option<usize> {
        Some(self.batch.as_ref().map_or(0, PacketBatch::len) + self.waiting.len())
    }

    /// What a path has found of packets that have not left it is thrown away, and they go the whole way.
    fn take_state(&mut self, cx: &mut Cx<'_>, old: &mut dyn Element, _: &mut Log) {
        let Some(old) = downcast::<Self>(old) else { return };
        self.waiting.extend(old.path.as_ref().map(|path| path.end()).unwrap_or_default());
        self.waiting.extend(old.batch.as_mut().map(|batch| batch.drain().collect::<Vec<_>>()).unwrap_or_default());
        self.waiting.append(&mut old.waiting);
        cx.schedule();
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("count", |batcher: &mut Self, _| batcher.count);
        handlers.read("drops", |batcher: &mut Self, _| batcher.drops);
        handlers.read("length", |batcher: &mut Self, _| batcher.stored().unwrap_or(0));
        handlers.read("size", |batcher: &mut Self, _| batcher.size);
        let bytes = |batcher: &Self, of: fn(&crate::wide::Layout) -> usize| {
            batcher.path.as_ref().map_or(0, |path| of(path.layout()))
        };
        handlers.read("row_bytes", move |batcher: &mut Self, _| bytes(batcher, crate::wide::Layout::input_bytes));
        handlers.read("result_bytes", move |batcher: &mut Self, _| bytes(batcher, crate::wide::Layout::output_bytes));
        handlers.button("reset_counts", |batcher: &mut Self, _| {
            (batcher.count, batcher.looked_at, batcher.drops) = (0, 0, 0);
        });
    }
}
