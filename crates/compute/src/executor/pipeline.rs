//! One stream with its slots: what computes a batch on the device, from its copies in to its copies out.
//!
//! ```text
//!   host ──> up (pinned) ──> data ──kernels──> data ──> down (pinned) ──> host
//!                tables ──> side (tables, scratch, results) ──> down
//! ```
//!
//! A pipeline works on one batch at a time; several pipelines, each with a thread, overlap their copies and kernels.
//! Pinned memory of a request is copied from and to directly. Everything on the device, and both slots, may
//! hold plaintext: they are cleared before they are freed.
//!
//! On failure the pipeline waits for what it has enqueued, so that nobody writes the request's memory any more,
//! and says whether a source was written over; if not, the CPU takes over. Nothing reaches host memory of a
//! request before the whole batch has succeeded and its messages were judged, but for copies into pinned
//! memory that is no source: they are made again.

use super::cpu::{Found, device_range};
use super::job::Task;
use super::layout::{BOUNDARY, Layout, Need, Placement, lay_out};
use crate::keyed::SecretMemory;
use crate::memory::View;
use crate::service::{Batch, Launch, Output, Placed, Prepared};
use crate::{Error, ErrorKind, Result};
use bifolio_device::{Device, DeviceSlice, PinnedBuffer, Stream};
use std::ops::Range;

/// A stream's memory, allocated when its first batch comes.
#[derive(Debug)]
pub(crate) struct Pipeline {
    device: Device,
    slot_bytes: u64,
    memory: Option<PipelineMemory>,
}

#[derive(Debug)]
struct PipelineMemory {
    stream: Stream,
    /// A slot, then tables.
    up: PinnedBuffer,
    /// A slot, then results.
    down: PinnedBuffer,
    data: SecretMemory,
    side: SecretMemory,
}

/// A batch that the device did not compute.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// The sources may hold a part of the result, so that nobody can compute it again.
    pub(crate) is_overwritten: bool,
}

/// How the side memory is shared out.
#[derive(Debug, Clone, Copy)]
struct Side {
    table: u64,
    scratch: u64,
    results: u64,
}

impl Side {
    fn of_slot(slot_bytes: u64) -> Self {
        let part = (slot_bytes / 2).max(64 << 10).next_multiple_of(BOUNDARY);
        Self { table: part, scratch: part, results: part }
    }

    fn total(self) -> u64 {
        self.table + self.scratch + self.results
    }
}

/// Where the tables, scratch and results of one step lie in the side memory.
struct StepMemory {
    prepared: Prepared,
    table_at: u64,
    scratch_at: u64,
    results: Range<u64>,
}

impl Pipeline {
    pub(crate) fn new(device: &Device, slot_bytes: u64) -> Self {
        Self { device: device.clone(), slot_bytes, memory: None }
    }

    /// Gets its memory, if it can be had now.
    pub(crate) fn prepare(&mut self) {
        let _ = self.prepare_memory();
    }

    /// Computes a batch of tasks that join: for each what it found, or why its message is wrong.
    pub(crate) fn run(&mut self, tasks: &[Task]) -> Result<Vec<Result<Found>>, Failure> {
        let mut is_overwritten = false;
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let memory = self.prepare_memory()?;
            memory.run(tasks, &mut is_overwritten)
        }));
        let error = match outcome {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(error)) => error,
            Err(_) => Error::new(ErrorKind::Panicked, "the service panicked; please report it"),
        };
        // What was enqueued still uses the memory. A stream that fails here has ended.
        if self.memory.as_ref().is_some_and(|memory| memory.stream.synchronize().is_err()) {
            self.memory = None;
        }
        Err(Failure { error, is_overwritten })
    }

    fn prepare_memory(&mut self) -> Result<&mut PipelineMemory> {
        if self.memory.is_none() {
            let (slot, side) = (self.slot_bytes, Side::of_slot(self.slot_bytes));
            self.memory = Some(PipelineMemory {
                stream: self.device.create_stream()?,
                up: self.device.alloc_pinned((slot + side.table) as usize)?,
                down: self.device.alloc_pinned((slot + side.results) as usize)?,
                data: SecretMemory::new(&self.device, 2 * slot)?,
                side: SecretMemory::new(&self.device, side.total())?,
            });
        }
        let memory = self.memory.as_mut().expect("just made");
        Ok(memory)
    }
}

impl Drop for PipelineMemory {
    fn drop(&mut self) {
        let _ = self.stream.synchronize();
        self.up.bytes_mut().fill(0);
        self.down.bytes_mut().fill(0);
    }
}

impl PipelineMemory {
    fn slot_bytes(&self) -> u64 {
        self.data.slice().len() / 2
    }

    fn run(&mut self, tasks: &[Task], is_overwritten: &mut bool) -> Result<Vec<Result<Found>>> {
        let needs: Vec<Need> = tasks.iter().map(Need::of).collect();
        let slot = self.slot_bytes();
        let reaches_two = self.stream.device().capabilities().virtual_memory.is_yes();
        let Some((layouts, inputs_end)) = lay_out(&needs, slot, reaches_two) else {
            return Err(Error::new(ErrorKind::Unsuited, format!("the batch does not fit into slots of {slot} bytes")));
        };
        let placed = self.placed(tasks, &layouts)?;
        let steps = self.prepare(&placed, &layouts)?;
        self.copy_in(tasks, &layouts, inputs_end)?;
        self.copy_tables(&steps)?;
        let writes_source = tasks.iter().any(|task| task.job.is_in_place() && task.job.source.is_device());
        *is_overwritten |= writes_source && layouts.iter().any(|layout| matches!(layout.output, Placement::Direct(_)));
        self.launch(&placed, &layouts, &steps)?;
        drop(placed);
        *is_overwritten |= writes_source;
        self.copy_out(tasks, &layouts)?;
        let results_end = steps.last().map_or(0, |steps| steps.results.end);
        self.copy_results(results_end)?;
        self.wait()?;
        let judged = self.judge(tasks, &layouts, &steps)?;
        self.deliver(tasks, &layouts);
        Ok(judged)
    }

    fn range(&self, at: Placement, len: u64) -> Result<DeviceSlice<'static>> {
        match at {
            Placement::Direct(address) => Ok(device_range(address, len)),
            Placement::Staged(offset) => {
                let part = self.data.slice().part(offset, len)?;
                Ok(device_range(part.ptr().0, part.len()))
            }
        }
    }

    /// The steps of all tasks: for each step, where every task has its share.
    fn placed<'a>(&self, tasks: &'a [Task], layouts: &[Layout]) -> Result<Vec<Vec<Placed<'a>>>> {
        let mut by_step = vec![];
        let mut has_moved = vec![false; tasks.len()];
        for i in 0..tasks[0].steps.len() {
            let (mut placed, mut results_at) = (vec![], 0);
            for ((task, layout), has_moved) in tasks.iter().zip(layouts).zip(&mut has_moved) {
                let (input_len, output_len) = (task.bytes(), task.output.end - task.output.start);
                let start = self.range(layout.input, input_len)?;
                let end = self.range(layout.output, output_len)?;
                let step = &task.steps[i];
                let input = if *has_moved { end } else { start };
                let output = match step.shape(input_len)?.output {
                    Output::Nothing => device_range(input.ptr().0, 0),
                    Output::Same | Output::Apart(_) => {
                        *has_moved = true;
                        end
                    }
                };
                placed.push(Placed { step, input, output, results_at });
                results_at += task.results[i].end - task.results[i].start;
            }
            by_step.push(placed);
        }
        Ok(by_step)
    }

    /// What the jobs of a step lie in: the pipeline's data, or the one task's own memory.
    fn batch<'a>(&'a self, placed: &[Placed<'a>], layouts: &[Layout]) -> Batch<'a> {
        let data = self.data.slice();
        let inside = |range: DeviceSlice<'_>| (data.ptr().0..data.ptr().0 + data.len()).contains(&range.ptr().0);
        debug_assert!(layouts.len() == 1 || placed.iter().all(|placed| inside(placed.input)));
        let whole = |range: DeviceSlice<'a>| if inside(range) { data } else { range };
        Batch { inputs: whole(placed[0].input), outputs: whole(placed[0].output) }
    }

    fn prepare(&self, placed: &[Vec<Placed<'_>>], layouts: &[Layout]) -> Result<Vec<StepMemory>> {
        let room = Side::of_slot(self.slot_bytes());
        let (mut table, mut scratch, mut results) = (0, 0, 0);
        let mut steps = vec![];
        for placed in placed {
            let prepared = placed[0].step.prepare(self.stream.device(), placed, self.batch(placed, layouts))?;
            let (table_at, scratch_at, results_at) = (table, scratch, results);
            table = (table + prepared.table.len() as u64).next_multiple_of(BOUNDARY);
            scratch = (scratch + prepared.scratch_bytes).next_multiple_of(BOUNDARY);
            let mut found = 0;
            for placed in placed {
                found += placed.step.shape(placed.input.len())?.results;
            }
            results = (results + found).next_multiple_of(BOUNDARY);
            if table > room.table || scratch > room.scratch || results > room.results {
                let detail = "the batch needs more room for tables, scratch or results than a pipeline has";
                return Err(Error::new(ErrorKind::Unsuited, detail));
            }
            steps.push(StepMemory { prepared, table_at, scratch_at, results: results_at..results_at + found });
        }
        Ok(steps)
    }

    fn copy_in(&mut self, tasks: &[Task], layouts: &[Layout], inputs_end: u64) -> Result<()> {
        let mut staged = None;
        for (task, layout) in tasks.iter().zip(layouts) {
            let Placement::Staged(offset) = layout.input else { continue };
            let to = self.range(layout.input, task.bytes())?;
            match task.job.source {
                View::Device { at } => {
                    let from = device_range(at + task.input.start, task.bytes());
                    // SAFETY: the job keeps its memory, and the pipeline its own, until the work is over.
                    unsafe { self.stream.copy_on_device(to, from) }?;
                }
                View::Host { at, pinned: true } => {
                    let to = to.part(0, task.steps[0].travels(task.bytes()))?;
                    // SAFETY: as above.
                    unsafe { self.stream.copy_to_device(to, at.0.wrapping_add(task.input.start as usize)) }?;
                }
                View::Host { at, pinned: false } => {
                    let slot = &mut self.up.bytes_mut()[offset as usize..][..task.bytes() as usize];
                    // SAFETY: the task lies inside the job's memory, which nobody writes now.
                    let bytes =
                        unsafe { std::slice::from_raw_parts(at.0.wrapping_add(task.input.start as usize), slot.len()) };
                    slot.copy_from_slice(bytes);
                    staged.get_or_insert(offset);
                }
            }
        }
        if let Some(start) = staged
            && tasks.iter().all(|task| matches!(task.job.source, View::Host { pinned: false, .. }))
        {
            let to = self.range(Placement::Staged(start), inputs_end - start)?;
            // SAFETY: the slot is written again only after the work is over.
            return Ok(unsafe { self.stream.copy_to_device(to, self.up.as_ptr().wrapping_add(start as usize)) }?);
        }
        // Some of the tasks lie in pinned memory: the others are copied one by one.
        for (task, layout) in tasks.iter().zip(layouts) {
            if let (Placement::Staged(offset), View::Host { pinned: false, .. }) = (layout.input, task.job.source) {
                let to = self.range(layout.input, task.bytes())?;
                // SAFETY: as above.
                unsafe { self.stream.copy_to_device(to, self.up.as_ptr().wrapping_add(offset as usize)) }?;
            }
        }
        Ok(())
    }

    fn copy_tables(&mut self, steps: &[StepMemory]) -> Result<()> {
        let slot = self.slot_bytes();
        let mut end = 0;
        for step in steps.iter().filter(|step| !step.prepared.table.is_empty()) {
            let table = &step.prepared.table;
            self.up.bytes_mut()[(slot + step.table_at) as usize..][..table.len()].copy_from_slice(table);
            end = step.table_at + table.len() as u64;
        }
        let to = self.side.slice().part(0, end)?;
        // SAFETY: the slot is written again only after the work is over.
        unsafe { self.stream.copy_to_device(to, self.up.as_ptr().wrapping_add(slot as usize)) }?;
        Ok(())
    }

    fn launch(&self, placed: &[Vec<Placed<'_>>], layouts: &[Layout], steps: &[StepMemory]) -> Result<()> {
        let (side, room) = (self.side.slice(), Side::of_slot(self.slot_bytes()));
        for (placed, step) in placed.iter().zip(steps) {
            let results = step.results.end - step.results.start;
            let launch = Launch {
                stream: &self.stream,
                batch: self.batch(placed, layouts),
                side,
                table: side.part(step.table_at, step.prepared.table.len() as u64)?,
                scratch: side.part(room.table + step.scratch_at, step.prepared.scratch_bytes)?,
                results: side.part(room.table + room.scratch + step.results.start, results)?,
            };
            // SAFETY: table, scratch and results are this pipeline's; the jobs keep their memory until the work is over,
            // and submission refuses sources and destinations that overlap.
            unsafe { placed[0].step.launch(placed, &launch) }?;
        }
        Ok(())
    }

    /// Outputs that the kernels left in the pipeline go to device memory, to pinned memory that is no source, or to
    /// the pipeline's slot.
    fn copy_out(&mut self, tasks: &[Task], layouts: &[Layout]) -> Result<()> {
        for (task, layout) in tasks.iter().zip(layouts) {
            let len = task.output.end - task.output.start;
            let Some(target) = task.job.target() else { continue };
            let from = self.range(layout.output, len)?;
            match (target, layout.output) {
                (View::Device { .. }, Placement::Direct(_)) => {}
                (View::Device { at }, Placement::Staged(_)) => {
                    // SAFETY: the job keeps its memory until the work is over.
                    unsafe { self.stream.copy_on_device(device_range(at + task.output.start, len), from) }?;
                }
                (View::Host { at, pinned: true }, _) if !task.job.is_in_place() => {
                    // SAFETY: as above; nobody reads or writes the destination before.
                    unsafe { self.stream.copy_to_host(at.0.wrapping_add(task.output.start as usize), from) }?;
                }
                (View::Host { .. }, _) => {
                    let place = self.down.as_mut_ptr().wrapping_add(slot_offset(*layout, self.slot_bytes()) as usize);
                    // SAFETY: the slot has room for a slot's bytes, and is read after the work is over.
                    unsafe { self.stream.copy_to_host(place, from) }?;
                }
            }
        }
        Ok(())
    }

    fn copy_results(&mut self, end: u64) -> Result<()> {
        let (slot, room) = (self.slot_bytes(), Side::of_slot(self.slot_bytes()));
        let from = self.side.slice().part(room.table + room.scratch, end)?;
        let place = self.down.as_mut_ptr().wrapping_add(slot as usize);
        // SAFETY: behind the slot there is room for all results, and they are read after the work is over.
        unsafe { self.stream.copy_to_host(place, from) }?;
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        Ok(self.stream.record()?.wait()?)
    }

    /// What each task found; steps of wrong messages are cleared, wherever they are now.
    fn judge(&mut self, tasks: &[Task], layouts: &[Layout], steps: &[StepMemory]) -> Result<Vec<Result<Found>>> {
        let slot = self.slot_bytes();
        let mut at: Vec<u64> = steps.iter().map(|step| slot + step.results.start).collect();
        let mut judged = vec![];
        let mut has_filled = false;
        for (task, layout) in tasks.iter().zip(layouts) {
            let (mut found, mut error): (Found, Option<Error>) = (vec![], None);
            for ((step, range), at) in task.steps.iter().zip(&task.results).zip(&mut at) {
                let len = range.end - range.start;
                let mut results = self.down.bytes()[*at as usize..][..len as usize].to_vec();
                *at += len;
                let completed = step.complete(&mut results);
                for unverified in completed.unverified {
                    has_filled |= self.clear(task, *layout, unverified)?;
                }
                error = error.or(completed.error);
                found.push(results);
            }
            judged.push(error.map_or(Ok(found), Err));
        }
        if has_filled {
            self.stream.synchronize()?;
        }
        Ok(judged)
    }

    /// Whether work was enqueued for it.
    fn clear(&mut self, task: &Task, layout: Layout, range: Range<u64>) -> Result<bool> {
        let len = range.end - range.start;
        let at = task.output.start + range.start;
        match task.job.target() {
            Some(View::Device { at: start }) => {
                // SAFETY: the job keeps its memory until the work is over.
                unsafe { self.stream.fill(device_range(start + at, len), 0) }?;
                return Ok(true);
            }
            Some(View::Host { at: start, pinned: true }) if !task.job.is_in_place() => {
                // SAFETY: the copies into the request's memory are over, and no other task has this range.
                unsafe { start.0.wrapping_add(at as usize).write_bytes(0, len as usize) };
            }
            Some(View::Host { .. }) => {
                let place = slot_offset(layout, self.slot_bytes()) + range.start;
                self.down.bytes_mut()[place as usize..][..len as usize].fill(0);
            }
            None => {}
        }
        Ok(false)
    }

    /// Copies from the slot into ordinary memory of the requests.
    fn deliver(&self, tasks: &[Task], layouts: &[Layout]) {
        for (task, layout) in tasks.iter().zip(layouts) {
            let Some(View::Host { at, pinned }) = task.job.target() else { continue };
            if pinned && !task.job.is_in_place() {
                continue;
            }
            let len = (task.output.end - task.output.start) as usize;
            let bytes = &self.down.bytes()[slot_offset(*layout, self.slot_bytes()) as usize..][..len];
            // SAFETY: the range is inside the job's memory, and no other task has a share in it.
            unsafe {
                let to = at.0.wrapping_add(task.output.start as usize);
                to.copy_from_nonoverlapping(bytes.as_ptr(), len);
            }
        }
    }
}

/// Where an output lies in the slot on its way down: as in its half of the data.
fn slot_offset(layout: Layout, slot_bytes: u64) -> u64 {
    match layout.output {
        Placement::Staged(offset) => offset % slot_bytes,
        Placement::Direct(_) => 0,
    }
}
