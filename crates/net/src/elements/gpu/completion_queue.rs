//! GPUCompletionQueue: keeps batches in their order until a device has computed them.
//!
//! `GPUCompletionQueue([CAPACITY, keyword PATIENCE])`: wide push input, wide pull output.
//!
//! - CAPACITY: how many batches may be on their way, from the first packet in a Batcher to the last one out of a Debatcher,
//!   2 or more (8). While there are as many, the Batcher has no room.
//! - PATIENCE: how long a device may have a batch (1 s); 0: for ever. After that the CPU computes it, which is told, and all that
//!   come until the device has answered.
//!
//! Batches leave in the order in which the Batcher made them, also where a later one is computed first.
//!
//! Handlers: `length` (batches in it), `capacity`.

use super::batcher::Batcher;
use super::carrier::number;
use crate::args::{Args, Failed, Interval};
use crate::element::{Element, Interest};
use crate::handler::Handlers;
use crate::router::Cx;
use crate::wide::{Path, State};
use crate::{Packet, Timestamp};
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::Arc;

/// The element.
pub(super) struct GpuCompletionQueue {
    capacity: usize,
    patience: Timestamp,
    /// By their numbers.
    carriers: BTreeMap<u64, Packet>,
    /// The number of the batch that leaves next: who pushes into a Batcher beside another thread may be overtaken here.
    next: u64,
    path: Option<(Arc<Path>, usize)>,
}

impl Default for GpuCompletionQueue {
    fn default() -> Self {
        Self { capacity: 8, patience: Timestamp::from_secs_f64(1.0), carriers: BTreeMap::new(), next: 0, path: None }
    }
}

impl GpuCompletionQueue {
    /// How many batches may be on their way.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// It is in the path of a Batcher.
    pub(super) fn join(&mut self, cx: &mut Cx<'_>, path: &Arc<Path>, batcher: usize) {
        cx.select(path.event(), Interest { read: true, write: false });
        self.path = Some((Arc::clone(path), batcher));
    }

    /// Whether the batch that leaves next is back.
    fn is_ready(&self) -> bool {
        let Some((path, _)) = &self.path else { return false };
        self.carriers.contains_key(&self.next) && path.state(self.next) == State::Back
    }

    /// Looks after the batch that leaves next, as long as there is one.
    fn watch(&self, cx: &mut Cx<'_>) {
        if self.patience > Timestamp::default() && !self.carriers.is_empty() {
            cx.timer_after(0, self.patience);
        }
    }

    /// Says what went wrong in the path.
    fn say(cx: &Cx<'_>, path: &Path) {
        if let Some(trouble) = path.take_trouble() {
            cx.say(format_args!("{}: {trouble}", cx.declaration()));
        }
    }
}

impl Element for GpuCompletionQueue {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut patience = Interval(self.patience);
        args.may("CAPACITY", &mut self.capacity).key("PATIENCE", &mut patience).finish()?;
        self.patience = patience.0;
        if !(2..=1024).contains(&self.capacity) {
            return Err(args.error_of("CAPACITY", "must be between 2 and 1024"));
        }
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, carrier: Packet) {
        if self.carriers.is_empty() {
            self.carriers.insert(number(&carrier), carrier);
            self.watch(cx);
        } else {
            self.carriers.insert(number(&carrier), carrier);
        }
        if self.is_ready() {
            cx.note(true);
        }
    }

    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        if self.is_ready() {
            let carrier = self.carriers.remove(&self.next);
            self.next += 1;
            return carrier;
        }
        cx.note(false);
        // It may have come back between the look and the note.
        if self.is_ready() {
            cx.note(true);
        }
        None
    }

    fn selected(&mut self, cx: &mut Cx<'_>, _: RawFd, _: Interest) {
        let Some((path, batcher)) = self.path.clone() else { return };
        path.clear_event();
        Self::say(cx, &path);
        if self.is_ready() {
            cx.note(true);
        }
        cx.with(batcher, |batcher: &mut Batcher, cx| batcher.batch_is_back(cx));
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        let Some((path, _)) = &self.path else { return };
        let patience = self.patience.to_duration();
        if self.carriers.keys().take_while(|number| path.overtake(**number, patience)).count() > 0 {
            Self::say(cx, path);
        }
        if self.is_ready() {
            cx.note(true);
        }
        self.watch(cx);
    }

    fn stored(&self) -> Option<usize> {
        Some(self.carriers.len())
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("length", |queue: &mut Self, _| queue.carriers.len());
        handlers.read("capacity", |queue: &mut Self, _| queue.capacity);
    }
}
