//! What a service is: three steps on a device, the same by the CPU, and how its work is cut and shared out.
//!
//! ```text
//!              prepare            launch             complete
//!   tables ──> on the device ──> kernels on it ──> which messages passed, on the host
//! ```
//!
//! A service reads `input` bytes and writes `output` bytes, in place or apart, and finds `results`: digests,
//! tags, flags, verdicts. The executor moves all three; a service only says how long they are, what may be cut
//! where, and what to compute. Work of one service object is merged into one batch, whoever asked for it: a
//! cipher is one object a key and direction.

mod copy;
mod ctr;
mod digest;
mod gcm;
mod list;
mod raid6;
mod step;
mod xts;

pub use copy::Copy;
pub use ctr::{AesCtr, Counter};
pub use digest::{Blocks, Digests};
pub use gcm::{AesGcm, Message, Messages};
pub use list::List;
pub use raid6::{Generate, Recover, Scrub, Stripes, Verdicts};
pub(crate) use step::Placed;
pub use step::Step;
pub use xts::{AesXts, FirstIv};

use crate::{Error, Result};
use bifolio_device::{Device, DeviceSlice, Stream};
use std::ops::Range;

/// How long the memory of some work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// What is written.
    pub output: Output,
    /// Bytes of what is found, and always ends in host memory.
    pub results: u64,
}

/// Where a service writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// As many bytes as it reads, over them or elsewhere.
    Same,
    /// So many bytes, and never over the input.
    Apart(u64),
    /// Nowhere: the input is only read.
    Nothing,
}

impl Output {
    /// Bytes that are written for `input` bytes.
    pub fn bytes(self, input: u64) -> u64 {
        match self {
            Self::Same => input,
            Self::Apart(bytes) => bytes,
            Self::Nothing => 0,
        }
    }
}

/// Host memory for the CPU's path.
#[derive(Debug)]
pub enum Data<'a> {
    /// Read, and written over.
    InPlace(&'a mut [u8]),
    /// Read, and written.
    Apart(&'a [u8], &'a mut [u8]),
    /// Read only.
    Read(&'a [u8]),
}

impl Data<'_> {
    /// The bytes that are read.
    pub fn input(&self) -> &[u8] {
        match self {
            Self::InPlace(data) => data,
            Self::Apart(input, _) | Self::Read(input) => input,
        }
    }

    /// Bytes that are written.
    pub fn output_len(&self) -> usize {
        match self {
            Self::InPlace(data) => data.len(),
            Self::Apart(_, output) => output.len(),
            Self::Read(_) => 0,
        }
    }

    /// Changes the bytes in place, after a copy where input and output are apart. The copy goes in steps of
    /// `step` bytes, which stay in the CPU's nearest cache; `change` gets the place of each.
    pub(crate) fn each(self, step: usize, mut change: impl FnMut(usize, &mut [u8]) -> Result<()>) -> Result<()> {
        match self {
            Self::InPlace(data) => change(0, data),
            Self::Apart(input, output) => {
                for (i, (from, to)) in input.chunks(step).zip(output.chunks_mut(step)).enumerate() {
                    to.copy_from_slice(from);
                    change(i * step, to)?;
                }
                Ok(())
            }
            Self::Read(_) => Err(Error::bad("this service writes and has no destination")),
        }
    }
}

/// One request's share of a batch on the device.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a, P> {
    /// What the service was asked for.
    pub params: &'a P,
    /// Read. It begins at a 16-byte boundary.
    pub input: DeviceSlice<'a>,
    /// Written; the same range as `input`, or apart; empty if nothing is.
    pub output: DeviceSlice<'a>,
    /// Where its results begin in those of the batch, which lie one after the other.
    pub results_at: u64,
}

/// The memory that all entries of a batch lie in.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Every input.
    pub inputs: DeviceSlice<'a>,
    /// Every output; the same as `inputs` where they lie in one allocation.
    pub outputs: DeviceSlice<'a>,
}

/// What [`Service::prepare`] wants on the device before the launch.
#[derive(Debug, Default)]
pub struct Prepared {
    /// Tables that the kernels read.
    pub table: Vec<u8>,
    /// Bytes of scratch.
    pub scratch_bytes: u64,
}

/// A stream with the memory of a launch. Table, scratch and results lie in one allocation, each at a boundary
/// of 256 bytes.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// Where the work is enqueued.
    pub stream: &'a Stream,
    /// The batch's memory.
    pub batch: Batch<'a>,
    /// The allocation of the three below.
    pub side: DeviceSlice<'a>,
    /// What `prepare` returned, on the device.
    pub table: DeviceSlice<'a>,
    /// Scratch of so many bytes as `prepare` wanted.
    pub scratch: DeviceSlice<'a>,
    /// Results of all entries.
    pub results: DeviceSlice<'a>,
}

/// What a service makes of its results.
#[derive(Debug, Default)]
pub struct Completed {
    /// Why the request failed, if it did.
    pub error: Option<Error>,
    /// Ranges of the output that hold nothing that anybody may see: they are cleared.
    pub unverified: Vec<Range<u64>>,
}

/// Storage work, for one key, direction and geometry.
pub trait Service: std::fmt::Debug + Send + Sync + 'static {
    /// What one request asks for.
    type Params: Clone + std::fmt::Debug + Send + Sync + 'static;

    /// The kind of work, such as `aes-256-xts-decrypt`: what is measured and counted together.
    fn name(&self) -> &'static str;

    /// Lengths for so much input, or why that is no work for this service.
    ///
    /// # Errors
    /// `BadArgument`, with a sentence.
    fn shape(&self, params: &Self::Params, input: u64) -> Result<Shape>;

    /// How many of the input's first bytes travel from the host: the rest is room on the device, which the kernels fill.
    /// Where memory is not pinned, all of them may.
    fn travels(&self, _params: &Self::Params, input: u64) -> u64 {
        input
    }

    /// The last place in the input, at or before `at_most`, where the work can be cut in two; 0 where there is
    /// none.
    fn cut(&self, params: &Self::Params, at_most: u64) -> u64;

    /// The work before and behind a place that `cut` returned.
    fn split(&self, params: &Self::Params, at: u64) -> (Self::Params, Self::Params);

    /// Why the device path cannot be taken, as a sentence without its full stop.
    fn refusal(&self) -> Option<String>;

    /// Work of about so many bytes to measure with.
    fn sample(&self, about_bytes: u64) -> (Self::Params, Vec<u8>);

    /// Computes on the calling thread. Results have the length that `shape` gave.
    ///
    /// # Errors
    /// That of a wrong message, whose output is cleared.
    fn on_cpu(&self, params: &Self::Params, data: Data<'_>, results: &mut [u8]) -> Result<()>;

    /// Decides what the kernels need.
    ///
    /// # Errors
    /// `Unsuited` for work that the device cannot do although nothing is wrong: the CPU does it.
    fn prepare(&self, device: &Device, entries: &[Entry<'_, Self::Params>], batch: Batch<'_>) -> Result<Prepared>;

    /// Enqueues the kernels, and waits for nothing.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Safety
    /// The table holds what `prepare` returned for the same entries; all memory is of the stream's device and
    /// nobody else's until the work is over; outputs are their inputs or overlap nothing.
    unsafe fn launch(&self, entries: &[Entry<'_, Self::Params>], launch: &Launch<'_>) -> Result<()>;

    /// Judges the results of one request after the device's work.
    fn complete(&self, _params: &Self::Params, _results: &mut [u8]) -> Completed {
        Completed::default()
    }
}

/// Where a part lies in the whole that places are counted from.
fn offset_in(whole: DeviceSlice<'_>, part: DeviceSlice<'_>) -> u64 {
    part.ptr().0 - whole.ptr().0
}

/// What a copy through the CPU's nearest cache takes at once: a whole number of everybody's units.
const STEP_BYTES: usize = 32 << 10;
