//! Tasks by the CPU: on host memory directly, on device memory by way of a copy.

use super::job::Task;
use crate::memory::{Address, View};
use crate::service::{Data, Output};
use crate::{ErrorKind, Result};
use bifolio_device::{Device, DevicePtr, DeviceSlice, PinnedBuffer, Stream};
use std::slice;
use zeroize::Zeroizing;

/// What the steps of a task found.
pub(crate) type Found = Vec<Vec<u8>>;

/// One thread's way to compute tasks without kernels. Its slots may hold plaintext, and are cleared in the end.
#[derive(Debug)]
pub(crate) struct Cpu {
    device: Device,
    slot_bytes: u64,
    /// Made when a task has device memory for the first time.
    transfer: Option<Transfer>,
}

/// What brings device memory to the host and back.
#[derive(Debug)]
struct Transfer {
    stream: Stream,
    /// For what is read and what is written; none where no pinned memory can be had, which is slower only.
    slots: Option<[PinnedBuffer; 2]>,
}

impl Drop for Transfer {
    fn drop(&mut self) {
        for slot in self.slots.iter_mut().flatten() {
            slot.bytes_mut().fill(0);
        }
    }
}

/// Host memory with one end of a task: the request's own, a slot, or memory for this task alone.
enum HostEnd {
    Lent(Address, usize),
    Own(Zeroizing<Vec<u8>>),
}

impl HostEnd {
    fn address(&mut self) -> *mut u8 {
        match self {
            Self::Lent(at, _) => at.0,
            Self::Own(bytes) => bytes.as_mut_ptr(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Lent(_, len) => *len,
            Self::Own(bytes) => bytes.len(),
        }
    }
}

impl Cpu {
    /// A way with slots for tasks of so many bytes.
    pub(crate) fn new(device: &Device, slot_bytes: u64) -> Self {
        Self { device: device.clone(), slot_bytes, transfer: None }
    }

    /// Computes a task. A wrong message is an error, and its output is cleared wherever it is.
    pub(crate) fn run(&mut self, task: &Task) -> Result<Found> {
        let (job, input, output) = (&task.job, &task.input, &task.output);
        let (input_len, output_len) = (task.bytes() as usize, (output.end - output.start) as usize);
        let mut source = match job.source {
            View::Host { at, .. } => HostEnd::Lent(Address(at.0.wrapping_add(input.start as usize)), input_len),
            View::Device { at } => {
                let mut end = self.transfer()?.end(0, input_len);
                // SAFETY: the end has this many bytes, which nobody else uses.
                let bytes = unsafe { slice::from_raw_parts_mut(end.address(), input_len) };
                self.transfer()?.stream.download(bytes, device_range(at + input.start, task.bytes()))?;
                end
            }
        };
        let mut target = match job.target().filter(|_| !job.is_in_place()) {
            None => None,
            Some(View::Host { at, .. }) => {
                Some(HostEnd::Lent(Address(at.0.wrapping_add(output.start as usize)), output_len))
            }
            Some(View::Device { .. }) => Some(self.transfer()?.end(1, output_len)),
        };
        let computed = compute(task, &mut source, target.as_mut());
        let has_output = computed.as_ref().map_or_else(|error| error.kind() == ErrorKind::BadTag, |_| true);
        if let Some(View::Device { at }) = job.target()
            && has_output
        {
            let end = target.as_mut().unwrap_or(&mut source);
            // SAFETY: as above, and the computation is over.
            let bytes = unsafe { slice::from_raw_parts(end.address(), output_len) };
            self.transfer()?.stream.upload(device_range(at + output.start, output_len as u64), bytes)?;
        }
        computed
    }

    fn transfer(&mut self) -> Result<&mut Transfer> {
        if self.transfer.is_none() {
            let slot = || self.device.alloc_pinned(self.slot_bytes as usize);
            let slots = slot().and_then(|one| Ok([one, slot()?])).ok();
            self.transfer = Some(Transfer { stream: self.device.create_stream()?, slots });
        }
        Ok(self.transfer.as_mut().expect("just made"))
    }
}

impl Transfer {
    fn end(&mut self, slot: usize, len: usize) -> HostEnd {
        match self.slots.as_mut().map(|slots| &mut slots[slot]).filter(|slot| len <= slot.bytes().len()) {
            Some(slot) => HostEnd::Lent(Address(slot.as_mut_ptr()), len),
            None => HostEnd::Own(Zeroizing::new(vec![0; len])),
        }
    }
}

fn compute(task: &Task, source: &mut HostEnd, target: Option<&mut HostEnd>) -> Result<Found> {
    let mut results: Found = task.results.iter().map(|range| vec![0; (range.end - range.start) as usize]).collect();
    let (from, from_len) = (source.address(), source.len());
    let (to, to_len) = target.map_or((from, from_len), |target| (target.address(), target.len()));
    // The data moves to where it is written by the first step that writes.
    let mut has_moved = from == to;
    for (step, found) in task.steps.iter().zip(&mut results) {
        let output = step.shape(from_len as u64)?.output;
        // SAFETY: the job keeps both ranges, no other task has a share in them, and they are the same or apart:
        // submission refuses what is neither.
        let data = unsafe {
            match output {
                Output::Nothing if has_moved => Data::Read(slice::from_raw_parts(to, to_len)),
                Output::Nothing => Data::Read(slice::from_raw_parts(from, from_len)),
                Output::Same if has_moved => Data::InPlace(slice::from_raw_parts_mut(to, to_len)),
                Output::Same | Output::Apart(_) => {
                    has_moved = true;
                    Data::Apart(slice::from_raw_parts(from, from_len), slice::from_raw_parts_mut(to, to_len))
                }
            }
        };
        step.on_cpu(data, found)?;
    }
    Ok(results)
}

/// A range that a job keeps.
pub(crate) fn device_range(at: u64, len: u64) -> DeviceSlice<'static> {
    // SAFETY: jobs hold their memory until their last task is over, and tasks use such ranges no longer.
    unsafe { DeviceSlice::from_raw_ordered(DevicePtr(at), len) }
}
