//! Debatcher: takes batches apart into packets.
//!
//! `Debatcher([BURST])`: wide pull input, push output. It gets its batches from a GPUCompletionQueue.
//!
//! - BURST: how many packets it sends at most each time its task runs, 1 or more (256), and no more than there is room for.
//!
//! Packets leave in their order, with what the elements of the path found: annotations and changed headers.
//!
//! Handlers: `count` (packets that left), `length` (packets of its batch that have not left yet).

use super::batcher::Batcher;
use super::carrier::number;
use crate::args::{Args, Failed};
use crate::element::{Batch, Element, Run, downcast};
use crate::error::Log;
use crate::handler::Handlers;
use crate::router::Cx;
use crate::wide::{PacketBatch, Path};
use std::sync::Arc;

/// The element.
pub(super) struct Debatcher {
    burst: usize,
    count: u64,
    path: Option<(Arc<Path>, usize)>,
    /// The batch that leaves, without its packets.
    batch: Option<PacketBatch>,
    /// What is left of it, the next one last.
    left: Batch,
}

impl Default for Debatcher {
    fn default() -> Self {
        Self { burst: 256, count: 0, path: None, batch: None, left: Batch::new() }
    }
}

impl Debatcher {
    /// It is at the end of a Batcher's path.
    pub(super) fn join(&mut self, cx: &mut Cx<'_>, path: &Arc<Path>, batcher: usize) {
        self.path = Some((Arc::clone(path), batcher));
        cx.schedule();
    }

    /// Gives the batch back to the path.
    fn release(&mut self, cx: &mut Cx<'_>) {
        if let (Some((path, batcher)), Some(batch)) = (&self.path, self.batch.take()) {
            path.release(batch);
            cx.with(*batcher, |batcher: &mut Batcher, cx| batcher.batch_is_free(cx));
        }
    }

    /// Gets the next batch that is back; whether there is one.
    fn next(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(carrier) = cx.pull(0) else { return false };
        let Some((path, _)) = &self.path else { return false };
        let Some(mut batch) = path.take(number(&carrier)) else { return false };
        if let Some(trouble) = path.take_trouble() {
            cx.say(format_args!("{}: {trouble}", cx.declaration()));
        }
        self.left.extend(batch.drain());
        self.left.reverse();
        self.batch = Some(batch);
        true
    }
}

impl Element for Debatcher {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.may("BURST", &mut self.burst).finish()?;
        if self.burst == 0 {
            return Err(args.error_of("BURST", "must be at least 1"));
        }
        Ok(())
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        let has_batch = self.batch.is_some();
        if !cx.may_push(0) || self.left.is_empty() && !self.next(cx) {
            return Run::Idle;
        }
        let many = self.burst.min(cx.room()).min(self.left.len());
        for packet in self.left.drain(self.left.len() - many..).rev() {
            cx.emit(0, packet);
        }
        self.count += many as u64;
        if self.left.is_empty() {
            self.release(cx);
        }
        // A batch may have lost all of its packets.
        if many > 0 || !has_batch { Run::Worked } else { Run::Idle }
    }

    /// What is left of a batch has been computed, and goes on.
    fn take_state(&mut self, cx: &mut Cx<'_>, old: &mut dyn Element, _: &mut Log) {
        if let Some(old) = downcast::<Self>(old) {
            self.left = std::mem::take(&mut old.left);
            cx.schedule();
        }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("count", |debatcher: &mut Self, _| debatcher.count);
        handlers.read("length", |debatcher: &mut Self, _| debatcher.left.len());
    }
}
