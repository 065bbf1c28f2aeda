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
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::{Element, Run, downcast};
use crate::error::Log;
use crate::handler::Handlers;
use crate::router::Cx;
use crate::wide::{PacketBatch, Path};
use std::collections::VecDeque;
use std::sync::Arc;

/// The element.
pub(super) struct Debatcher {
    burst: usize,
    count: u64,
    path: Option<(Arc<Path>, usize)>,
    /// The batch whose packets leave.
    batch: Option<PacketBatch>,
    /// What was left of a batch of the router before this one.
    inherited: VecDeque<Packet>,
}

impl Default for Debatcher {
    fn default() -> Self {
        Self { burst: 256, count: 0, path: None, batch: None, inherited: VecDeque::new() }
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

    /// Packets that have not left yet.
    fn left(&self) -> usize {
        self.inherited.len() + self.batch.as_ref().map_or(0, PacketBatch::left)
    }

    /// Gets the next batch that is back; whether there is one.
    fn next(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(carrier) = cx.pull(0) else { return false };
        let Some((path, _)) = &self.path else { return false };
        let Some(batch) = path.take(number(&carrier)) else { return false };
        if let Some(trouble) = path.take_trouble() {
            cx.say(format_args!("{}: {trouble}", cx.declaration()));
        }
        self.batch = Some(batch);
        true
    }

    /// Sends the next packets, at most so many; how many there were.
    fn send(&mut self, cx: &mut Cx<'_>, most: usize) -> usize {
        let before = self.left();
        if !self.inherited.is_empty() {
            let many = most.min(self.inherited.len());
            self.inherited.drain(..many).for_each(|packet| cx.emit(0, packet));
        } else if let (Some((path, _)), Some(batch)) = (&self.path, &mut self.batch) {
            path.leave(batch, most).for_each(|packet| cx.emit(0, packet));
        }
        before - self.left()
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
        let (has_batch, most) = (self.batch.is_some(), self.burst.min(cx.room()));
        if most == 0 {
            return Run::Worked;
        }
        if !cx.may_push(0) || self.left() == 0 && !self.next(cx) {
            return Run::Idle;
        }
        let many = self.send(cx, most);
        self.count += many as u64;
        if self.left() == 0 {
            self.release(cx);
        }
        // A batch may have lost all of its packets.
        if many > 0 || !has_batch { Run::Worked } else { Run::Idle }
    }

    /// What is left of a batch has been computed, and goes on.
    fn take_state(&mut self, cx: &mut Cx<'_>, old: &mut dyn Element, _: &mut Log) {
        if let Some(old) = downcast::<Self>(old) {
            self.inherited = std::mem::take(&mut old.inherited);
            if let (Some((path, _)), Some(batch)) = (&old.path, &mut old.batch) {
                self.inherited.extend(path.leave(batch, usize::MAX));
            }
            cx.schedule();
        }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("count", |debatcher: &mut Self, _| debatcher.count);
        handlers.read("length", |debatcher: &mut Self, _| debatcher.left());
    }
}
