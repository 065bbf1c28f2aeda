//! Parts by the CPU: on host memory directly, on device memory by way of a copy.

use super::job::Part;
use crate::memory::{Address, View};
use crate::service::{Data, Output};
use crate::{ErrorKind, Result};
use bifolio_device::{Device, DevicePtr, DeviceSlice, PinnedBuffer, Stream};
use std::slice;
use zeroize::Zeroizing;

/// What the steps of a part found.
pub(crate) type Found = Vec<Vec<u8>>;

/// One thread's way to compute parts without kernels. Its slots may hold plaintext, and are cleared in the end.
#[derive(Debug)]
pub(crate) struct Cpu {
    device: Device,
    slot_bytes: u64,
    /// Made when a part has device memory for the first time.
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

/// Host memory with one end of a part: the request's own, a slot, or memory for this part alone.
enum Place {
    Lent(Address, usize),
    Own(Zeroizing<Vec<u8>>),
}

impl Place {
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
    /// A way with slots for parts of so many bytes.
    pub(crate) fn new(device: &Device, slot_bytes: u64) -> Self {
        Self { device: device.clone(), slot_bytes, transfer: None }
    }

    /// Computes a part. A wrong message is an error, and its place is cleared wherever it is.
    pub(crate) fn run(&mut self, part: &Part) -> Result<Found> {
        let (job, input, output) = (&part.job, &part.input, &part.output);
        let (input_len, output_len) = (part.bytes() as usize, (output.end - output.start) as usize);
        let mut source = match job.source {
            View::Host { at, .. } => Place::Lent(Address(at.0.wrapping_add(input.start as usize)), input_len),
            View::Device { at } => {
                let mut place = self.transfer()?.place(0, input_len);
                // SAFETY: the place has this many bytes, which nobody else uses.
                let bytes = unsafe { slice::from_raw_parts_mut(place.address(), input_len) };
                self.transfer()?.stream.download(bytes, device_range(at + input.start, part.bytes()))?;
                place
            }
        };
        let mut target = match job.target().filter(|_| !job.is_in_place()) {
            None => None,
            Some(View::Host { at, .. }) => {
                Some(Place::Lent(Address(at.0.wrapping_add(output.start as usize)), output_len))
            }
            Some(View::Device { .. }) => Some(self.transfer()?.place(1, output_len)),
        };
        let computed = compute(part, &mut source, target.as_mut());
        let has_output = computed.as_ref().map_or_else(|error| error.kind() == ErrorKind::BadTag, |_| true);
        if let Some(View::Device { at }) = job.target()
            && has_output
        {
            let place = target.as_mut().unwrap_or(&mut source);
            // SAFETY: as above, and the computation is over.
            let bytes = unsafe { slice::from_raw_parts(place.address(), output_len) };
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
    fn place(&mut self, slot: usize, len: usize) -> Place {
        match self.slots.as_mut().map(|slots| &mut slots[slot]).filter(|slot| len <= slot.bytes().len()) {
            Some(slot) => Place::Lent(Address(slot.as_mut_ptr()), len),
            None => Place::Own(Zeroizing::new(vec![0; len])),
        }
    }
}

fn compute(part: &Part, source: &mut Place, target: Option<&mut Place>) -> Result<Found> {
    let mut results: Found = part.results.iter().map(|range| vec![0; (range.end - range.start) as usize]).collect();
    let (from, from_len) = (source.address(), source.len());
    let (to, to_len) = target.map_or((from, from_len), |target| (target.address(), target.len()));
    // The data moves to where it is written by the first step that writes.
    let mut has_moved = from == to;
    for (step, found) in part.steps.iter().zip(&mut results) {
        let output = step.shape(from_len as u64)?.output;
        // SAFETY: the job keeps both ranges, no other part has a share in them, and they are the same or apart:
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
    // SAFETY: jobs hold their memory until their last part is over, and parts use such ranges no longer.
    unsafe { DeviceSlice::from_raw_ordered(DevicePtr(at), len) }
}
