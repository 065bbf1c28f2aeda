//! Content of a device for a CPU, in any memory of the host.

use super::Copies;
use crate::error::Result;
use crate::memory::{HostSide, PINNED_BYTES, STREAMS};
use crate::page::Device;
use bifolio_device::{DeviceSlice, Event, Stream};
use std::thread;
use std::time::{Duration, Instant};

/// How long a copy is waited for awake.
const AWAKE: Duration = Duration::from_micros(100);

/// Less than this is not worth several threads.
const STREAM_BYTES_MIN: usize = 4 << 20;

impl Copies {
    /// Reads bytes from `at` on as of a device's latest release or fetch.
    pub(crate) fn download(&self, device: Device, at: u64, buffer: &mut [u8]) -> Result<()> {
        let replica = self.replica(device)?;
        for (image, here) in replica.settled_images(&(at..at + buffer.len() as u64)) {
            let place = (here.start - at) as usize..(here.end - at) as usize;
            let from = replica.slice(image, &here);
            let mut host = replica.memory.borrow_host()?;
            download(&mut host, from, &mut buffer[place]).map_err(|error| self.failed(error))?;
        }
        Ok(())
    }
}

/// Copies from a device to any memory of the host, by several threads where there is much to copy.
fn download(host: &mut HostSide, from: DeviceSlice<'_>, to: &mut [u8]) -> bifolio_device::Result<()> {
    let streams = (to.len() / STREAM_BYTES_MIN).clamp(1, STREAMS);
    let (strip, slot) = (to.len().div_ceil(streams), PINNED_BYTES / streams);
    let slots = host.pinned.bytes_mut().chunks_mut(slot).zip(&host.streams);
    thread::scope(|scope| {
        let mut running = Vec::with_capacity(streams);
        for (number, (to, (slot, stream))) in to.chunks_mut(strip).zip(slots).enumerate() {
            let from = from.part((number * strip) as u64, to.len() as u64)?;
            let mut copy = move || download_strip(stream, from, to, slot);
            // The last is this thread's.
            if number + 1 == streams {
                copy()?;
            } else {
                running.push(scope.spawn(copy));
            }
        }
        let join = |thread: thread::ScopedJoinHandle<'_, bifolio_device::Result<()>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().try_for_each(join)
    })
}

/// One thread's share: one half of its pinned memory is filled while the other is emptied.
fn download_strip(
    stream: &Stream,
    from: DeviceSlice<'_>,
    to: &mut [u8],
    slot: &mut [u8],
) -> bifolio_device::Result<()> {
    let half = slot.len() / 2;
    let (one, two) = slot.split_at_mut(half);
    let (mut filling, mut emptying) = (one, &mut two[..half]);
    let mut copy = || -> bifolio_device::Result<()> {
        let mut filled: Option<(usize, Event)> = None;
        for start in (0..to.len()).step_by(half).map(Some).chain([None]) {
            let next = start.map(|start| -> bifolio_device::Result<(usize, Event)> {
                let part = from.part(start as u64, half.min(to.len() - start) as u64)?;
                // SAFETY: the half has room, and is read only when the event has been waited for.
                unsafe { stream.copy_to_host(filling.as_mut_ptr(), part) }?;
                Ok((start, stream.record()?))
            });
            if let Some((start, event)) = filled.take() {
                arrived(&event)?;
                let end = to.len().min(start + half);
                to[start..end].copy_from_slice(&emptying[..end - start]);
            }
            filled = next.transpose()?;
            std::mem::swap(&mut filling, &mut emptying);
        }
        Ok(())
    };
    let outcome = copy();
    // Whatever failed, nothing writes to the slot when it is used again.
    outcome.and(stream.synchronize())
}

/// Waits for a copy: awake for a moment, as being woken takes longer than a short copy.
fn arrived(event: &Event) -> bifolio_device::Result<()> {
    let started = Instant::now();
    while started.elapsed() < AWAKE {
        if event.query()? {
            return Ok(());
        }
        std::hint::spin_loop();
    }
    event.wait()
}
