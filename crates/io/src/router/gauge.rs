//! What paths cost on a device whose copies are the processor's.
//!
//! There the processor's rate bounds every engine, and differs between machines by a factor of ten. If nobody calibrated
//! it is measured, once, by what the engines do: threads copy out of the page cache into slots, and out of these into the
//! start of the destination, which the request overwrites.

use super::Router;
use crate::cost::ProcessorRates;
use crate::workers::at_once;
use bifolio_device::{DeviceSlice, Slot};
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::time::Instant;

/// Shorter requests are not worth the ten milliseconds or so that gauging takes.
const GAUGED_BYTES_MIN: u64 = 256 << 20;

/// What is copied: more than the processor's nearer caches hold.
const GAUGE_BYTES: u64 = 16 << 20;

/// More threads copy no faster than this many, as the memory's rate is shared.
const THREADS_MAX: usize = 8;

impl Router {
    /// Before a request of `bytes` to `destination` is planned, by the first that has the memory for itself meanwhile.
    pub(super) fn gauge(&self, destination: DeviceSlice<'_>, bytes: u64) {
        let is_short = bytes < GAUGED_BYTES_MIN || destination.len() < GAUGE_BYTES;
        if is_short || self.gauged.get().is_some() {
            return;
        }
        let watch = self.crowd.watch();
        if !self.crowd.was_alone(watch) {
            return;
        }
        // Of two that gauge at a time, neither was alone.
        let _counted = self.crowd.join();
        if let Ok(Some(rates)) = self.measure(destination)
            && self.crowd.was_alone(watch)
            && self.gauged.set(()).is_ok()
        {
            let mut costs = self.lock_costs();
            *costs = costs.bounded_by_processor(rates);
        }
    }

    /// None where there are no slots at present.
    fn measure(&self, destination: DeviceSlice<'_>) -> io::Result<Option<ProcessorRates>> {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let slots: Vec<Mutex<Slot>> = (0..cpus.min(self.threads).min(THREADS_MAX))
            .map_while(|_| self.pool.try_acquire().ok().flatten().map(Mutex::new))
            .collect();
        if slots.is_empty() {
            return Ok(None);
        }
        let file = memory_file(&slots[0], GAUGE_BYTES)?;
        // Not timed: memory that nobody has touched yet gets its pages now.
        self.copy(&slots, Some(&file), destination)?;
        let begin = Instant::now();
        self.copy(&slots, Some(&file), destination)?;
        let through_slots = begin.elapsed();
        let begin = Instant::now();
        self.copy(&slots[..1], None, destination)?;
        let copied = begin.elapsed();
        let rate = |time: std::time::Duration| GAUGE_BYTES as f64 / time.as_secs_f64().max(1e-6);
        Ok(Some(ProcessorRates { copied: rate(copied), through_slots: rate(through_slots) }))
    }

    /// Copies to the start of `destination`, by a thread a slot, what a file has or, without one, a slot.
    fn copy(&self, slots: &[Mutex<Slot>], file: Option<&File>, destination: DeviceSlice<'_>) -> io::Result<()> {
        let part = GAUGE_BYTES.div_ceil(slots.len() as u64);
        let copy_part = |number: usize| -> io::Result<()> {
            let mut slot = slots[number].lock().map_err(|_| io::ErrorKind::Other)?;
            let stream = self.streams.take().map_err(io::Error::other)?;
            let (mut at, end) = (number as u64 * part, ((number as u64 + 1) * part).min(GAUGE_BYTES));
            while at < end {
                let place =
                    destination.part(at, (end - at).min(self.pool.slot_bytes() as u64)).map_err(io::Error::other)?;
                let bytes = &mut slot.buffer().bytes_mut()[..place.len() as usize];
                if let Some(file) = file {
                    file.read_exact_at(bytes, at)?;
                }
                // SAFETY: the slot has so many bytes, and is this thread's until the copy, which is waited for, is done.
                unsafe { stream.copy_to_device_and_wait(place, bytes.as_ptr()) }.map_err(io::Error::other)?;
                at += place.len();
            }
            stream.declare_clean();
            Ok(())
        };
        at_once(slots.len(), copy_part)
            .into_iter()
            .try_for_each(|done| done.unwrap_or(Err(io::ErrorKind::Other.into())))
    }
}

/// A file that is in the page cache and nowhere else, of pages that are there.
fn memory_file(slot: &Mutex<Slot>, bytes: u64) -> io::Result<File> {
    // SAFETY: the name is a C string, and the descriptor that the call returns is ours alone.
    let fd = unsafe {
        let raw = libc::memfd_create(c"bifolio-gauge".as_ptr(), libc::MFD_CLOEXEC);
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(raw)
    };
    let file = File::from(fd);
    let mut slot = slot.lock().map_err(|_| io::ErrorKind::Other)?;
    slot.buffer().bytes_mut().fill(1);
    let content = slot.buffer().bytes();
    let mut at = 0;
    while at < bytes {
        let part = &content[..content.len().min((bytes - at) as usize)];
        file.write_all_at(part, at)?;
        at += part.len() as u64;
    }
    Ok(file)
}
