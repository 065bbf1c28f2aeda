//! Transforms that follow the bytes of one request: decryption, mostly.
//!
//! ```text
//!   the engines' streams   copy copy copy copy copy copy ...
//!                                      | event of each copy
//!   a stream of its own                unit 0 ... unit 1 ...
//! ```
//!
//! The destination is divided into units. When the last bytes of one are on their way, its transform is enqueued behind
//! all copies that were told so far, in a stream of its own: in the engines' streams it would keep the link waiting. Few
//! and long launches cost the thread that talks to the driver next to nothing. What is not done at the end, since its
//! bytes came by ways that have no events, is the caller's.

use super::device::Load;
use super::loader::Loader;
use crate::Result;
use bifolio_compute::keyed::Workspace;
use bifolio_device::{DeviceSlice, Event, Result as DeviceResult};
use bifolio_io::OnArrival;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a unit, or about that: long beside a launch, and short beside the requests for which this pays, since the
/// last one's transform is waited for.
pub(super) const UNIT_BYTES: u64 = 16 << 20;
/// Shorter requests are read first, and worked on then.
pub(super) const FOLLOWED_BYTES_MIN: u64 = 2 * UNIT_BYTES;

/// What is done with the bytes of a destination: they are decrypted, or verified.
pub(super) trait Transform: Send + Sync + Debug {
    /// Scratch of the workspace that a unit of so many bytes takes at most.
    fn scratch_bytes(&self, unit: u64) -> u64;

    /// Enqueues it for a unit, which is there when the workspace's stream comes to it.
    ///
    /// # Errors
    /// The device's. They end the request.
    fn enqueue(&self, workspace: &mut Workspace, unit: Range<u64>) -> DeviceResult<()>;
}

/// Loads a range of a device by one request of the router, with a transform behind its bytes, and waits for both. Which
/// ranges of the destination were not transformed; none if the device has no such way, and then nothing was done.
///
/// # Errors
/// Those of [`Load::load`], and `Device` if the transform failed. Nothing is in flight then.
///
/// # Safety
/// The transform uses only memory that stays as long as this runs, and that nobody else uses.
pub(super) unsafe fn load_followed(
    device: &dyn Load,
    loader: &Loader,
    offset: u64,
    destination: DeviceSlice<'_>,
    (transform, unit_bytes): (Arc<dyn Transform>, u64),
) -> Result<Option<Vec<Range<u64>>>> {
    let units = destination.len().div_ceil(unit_bytes) as usize;
    let mut workspace = loader.take_workspace()?;
    // Now, and not while bytes are in flight.
    workspace
        .reserve(transform.scratch_bytes(unit_bytes.min(destination.len())))
        .map_err(|error| loader.failed(error))?;
    let arrivals = Mutex::new(Arrivals { workspace: Some(workspace), told: vec![0; units] });
    let (start, len) = (destination.ptr().0, destination.len());
    let transfer = Transfer { behind: Arc::new(Behind { transform, start, len, unit_bytes, arrivals }), loader };
    let follow: Arc<dyn OnArrival> = Arc::clone(&transfer.behind) as _;
    if !device.load_followed(loader, offset, destination, &follow)? {
        return Ok(None);
    }
    transfer.finish().map(Some)
}

/// One request. Dropping it waits for what was enqueued.
struct Transfer<'a> {
    behind: Arc<Behind>,
    loader: &'a Loader,
}

/// What the router knows of it.
#[derive(Debug)]
struct Behind {
    transform: Arc<dyn Transform>,
    /// Where the destination begins, and its bytes.
    start: u64,
    len: u64,
    unit_bytes: u64,
    arrivals: Mutex<Arrivals>,
}

#[derive(Debug)]
struct Arrivals {
    /// Until the request is over.
    workspace: Option<Workspace>,
    /// Bytes of each unit that were told.
    told: Vec<u64>,
}

impl Transfer<'_> {
    /// Waits, once the request is over; what is left.
    fn finish(self) -> Result<Vec<Range<u64>>> {
        let told = self.behind.lock().told.clone();
        self.end()?;
        let mut left: Vec<Range<u64>> = vec![];
        for (number, told) in told.iter().enumerate() {
            let unit = self.behind.unit(number as u64);
            match left.last_mut() {
                _ if unit.end - unit.start == *told => {}
                Some(last) if last.end == unit.start => last.end = unit.end,
                _ => left.push(unit),
            }
        }
        Ok(left)
    }

    /// Takes the workspace away, so that nobody enqueues any more, and waits for what is in it.
    fn end(&self) -> Result<()> {
        let Some(workspace) = self.behind.lock().workspace.take() else { return Ok(()) };
        // Blocks on an event, which does not spin, where a stream's own synchronisation may.
        let done = workspace.stream().record().and_then(|event| event.wait());
        done.or_else(|first| workspace.stream().synchronize().and(Err(first)))
            .map_err(|error| self.loader.failed(error))?;
        self.loader.give_back(workspace);
        Ok(())
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        // The request has failed already.
        let _ = self.end();
    }
}

impl Behind {
    /// A unit's bytes in the destination.
    fn unit(&self, number: u64) -> Range<u64> {
        number * self.unit_bytes..((number + 1) * self.unit_bytes).min(self.len)
    }

    fn lock(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OnArrival for Behind {
    fn begin(&self) {
        let mut arrivals = self.lock();
        if let Some(workspace) = &arrivals.workspace {
            // Its failure stays on the stream, and is reported at the end.
            let _ = workspace.stream().synchronize();
        }
        // What was done by an earlier run is overwritten by this one.
        arrivals.told.fill(0);
    }

    fn copied(&self, place: DeviceSlice<'_>, event: &Event) -> DeviceResult<()> {
        let mut arrivals = self.lock();
        let Arrivals { workspace: Some(workspace), told } = &mut *arrivals else { return Ok(()) };
        workspace.stream().wait(event)?;
        let mut at = place.ptr().0 - self.start;
        let end = at + place.len();
        while at < end {
            let number = at / self.unit_bytes;
            let unit = self.unit(number);
            let told = &mut told[number as usize];
            *told += unit.end.min(end) - at;
            debug_assert!(*told <= unit.end - unit.start, "a byte was told twice");
            at = unit.end;
            if *told == unit.end - unit.start {
                self.transform.enqueue(workspace, unit)?;
            }
        }
        Ok(())
    }
}
