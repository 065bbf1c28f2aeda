//! Parts by the CPU: on host memory directly, on device memory by way of a copy.

use super::job::Part;
use crate::memory::{Address, View};
use crate::service::{Data, Output};
use crate::{ErrorKind, Result};
use bifolio_device::{Device, DevicePtr, DeviceSlice, Stream};
use std::slice;
use zeroize::Zeroizing;

/// What the steps of a part found.
pub(crate) type Found = Vec<Vec<u8>>;

/// One thread's way to compute parts without kernels.
#[derive(Debug)]
pub(crate) struct Cpu {
    device: Device,
    /// Made when a part has device memory for the first time.
    stream: Option<Stream>,
}

/// A host range, or what was copied of a device range.
enum Range {
    Host(Address, usize),
    Copy(Zeroizing<Vec<u8>>),
}

impl Range {
    fn address(&mut self) -> *mut u8 {
        match self {
            Self::Host(at, _) => at.0,
            Self::Copy(bytes) => bytes.as_mut_ptr(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Host(_, len) => *len,
            Self::Copy(bytes) => bytes.len(),
        }
    }
}

impl Cpu {
    pub(crate) fn new(device: &Device) -> Self {
        Self { device: device.clone(), stream: None }
    }

    /// Computes a part. A wrong message is an error, and its place is cleared wherever it is.
    pub(crate) fn run(&mut self, part: &Part) -> Result<Found> {
        let (job, input, output) = (&part.job, &part.input, &part.output);
        let mut source = match job.source {
            View::Host { at, .. } => {
                Range::Host(Address(at.0.wrapping_add(input.start as usize)), part.bytes() as usize)
            }
            View::Device { at } => {
                let mut bytes = Zeroizing::new(vec![0; part.bytes() as usize]);
                self.stream()?.download(&mut bytes, device_range(at + input.start, part.bytes()))?;
                Range::Copy(bytes)
            }
        };
        let output_len = (output.end - output.start) as usize;
        let mut target = match job.target().filter(|_| !job.is_in_place()) {
            None => None,
            Some(View::Host { at, .. }) => {
                Some(Range::Host(Address(at.0.wrapping_add(output.start as usize)), output_len))
            }
            Some(View::Device { .. }) => Some(Range::Copy(Zeroizing::new(vec![0; output_len]))),
        };
        let computed = self.compute(part, &mut source, target.as_mut());
        let has_output = computed.as_ref().map_or_else(|error| error.kind() == ErrorKind::BadTag, |_| true);
        if let Some(View::Device { at }) = job.target()
            && has_output
            && let Range::Copy(bytes) = target.as_ref().unwrap_or(&source)
        {
            self.stream()?.upload(device_range(at + output.start, output_len as u64), bytes)?;
        }
        computed
    }

    fn compute(&self, part: &Part, source: &mut Range, target: Option<&mut Range>) -> Result<Found> {
        let _ = &self.device;
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

    fn stream(&mut self) -> Result<&Stream> {
        if self.stream.is_none() {
            self.stream = Some(self.device.create_stream()?);
        }
        Ok(self.stream.as_ref().expect("just made"))
    }
}

/// A range that a job keeps.
pub(crate) fn device_range(at: u64, len: u64) -> DeviceSlice<'static> {
    // SAFETY: jobs hold their memory until their last part is over, and parts use such ranges no longer.
    unsafe { DeviceSlice::from_raw(DevicePtr(at), len) }
}
