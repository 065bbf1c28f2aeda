//! Between slots and the device: the commands for what lies in a slot, enqueued, and waited for.

use super::batch::Piece;
use super::copies::{Copy, copies_of};
use super::job::{Job, TABLE_ALIGNMENT};
use super::streams::LentStream;
use bifolio_device::{Event, Result, Slot};
use bifolio_kernels::Kernels;
use bifolio_kernels::scatter::{EXTENT_BYTES, Extent};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Enqueues the copies of pieces that have been read into a slot, and an event behind them.
///
/// # Safety
/// The slot's bytes stay unwritten until the event is done: the slot is retired with it.
pub(super) unsafe fn enqueue_copies(
    job: &Job,
    stream: &LentStream,
    slot: &mut Slot,
    pieces: &[Piece],
) -> crate::Result<Event> {
    let copies = copies_of(job, pieces)?;
    let name = |error| job.device_error(error).at(pieces.first().map_or(0, |piece| piece.offset));
    match &job.kernels {
        // SAFETY: the copies lie inside the slot by the batch's construction; the caller keeps it.
        Some(kernels) if is_scatter(job, &copies) => unsafe { scatter(job, kernels, stream, slot, &copies) },
        // SAFETY: as above.
        _ => copies.iter().try_for_each(|copy| unsafe { copy.to_device(stream, slot.buffer().as_ptr()) }),
    }
    .and_then(|()| stream.record())
    .and_then(|event| tell_copied(job, &copies, &event).map(|()| event))
    .map_err(name)
}

/// Tells whoever wants to know of copies, behind which the event is.
pub(super) fn tell_copied(job: &Job, copies: &[Copy<'_>], event: &Event) -> Result<()> {
    let Some(on_arrival) = &job.on_arrival else { return Ok(()) };
    // Rows span what others bring.
    let mut whole = copies.iter().filter(|copy| copy.rows.count == 1);
    // The copies are in flight: a panic must not take slots and streams away from them.
    let tell = || whole.try_for_each(|copy| on_arrival.copied(copy.place, event));
    catch_unwind(AssertUnwindSafe(tell)).unwrap_or_else(|_| {
        let detail = "the arrival callback panicked, which is a bug; please report it";
        Err(bifolio_device::Error::new(bifolio_device::ErrorKind::Execution, detail))
    })
}

/// Copies what pieces of a file are to become from device memory into a slot, or a part of one, that
/// begins at `start`, and waits for it.
///
/// # Safety
/// The part is as long as the batch of the pieces, and nobody else uses it.
pub(super) unsafe fn fetch(job: &Job, stream: &LentStream, start: *mut u8, pieces: &[Piece]) -> crate::Result<()> {
    let copies = copies_of(job, pieces)?;
    // SAFETY: the bytes lie inside the slot by the batch's construction; the caller vouches that it is
    // ours, and the wait below ends before it is used again.
    let copied = copies.iter().try_for_each(|copy| unsafe { copy.to_host(stream, start) });
    let landed = copied.and_then(|()| stream.record()).and_then(|event| event.wait());
    landed.map_err(|error| {
        let _ = stream.synchronize();
        job.device_error(error).at(pieces.first().map_or(0, |piece| piece.offset))
    })
}

/// Above this many places, one copy to the device and a kernel that shares it out are quicker than
/// a copy for each: a call to the driver takes 2 to 3 us, and so does its copy.
const COPIES_MAX: usize = 8;

/// Whether a scatter is the better way, and its table fits behind the bytes of the slot.
fn is_scatter(job: &Job, copies: &[Copy<'_>]) -> bool {
    copies.len() > COPIES_MAX
        && copies.iter().all(|copy| copy.rows.count == 1)
        && table_at(copies) + copies.len() as u64 * EXTENT_BYTES <= job.pool.slot_bytes() as u64
}

/// Where the table begins: at a boundary behind the last byte.
fn table_at(copies: &[Copy<'_>]) -> u64 {
    let used = copies.iter().map(|copy| copy.from + copy.bytes()).max().unwrap_or(0);
    used.next_multiple_of(TABLE_ALIGNMENT)
}

/// One copy of the slot, table included, and one launch.
///
/// # Safety
/// The copies lie inside the slot, which stays unwritten until the stream has done the work.
unsafe fn scatter(
    job: &Job,
    kernels: &Kernels,
    stream: &LentStream,
    slot: &mut Slot,
    copies: &[Copy<'_>],
) -> Result<()> {
    let table_at = table_at(copies);
    let base = job.destination.ptr().0;
    let extents: Vec<Extent> = copies
        .iter()
        .map(|copy| Extent { src: copy.from, dst: copy.place.ptr().0 - base, len: copy.place.len() })
        .collect();
    let room = (job.pool.slot_bytes() as u64 - table_at) / EXTENT_BYTES;
    let table = bifolio_kernels::scatter::encode(&bifolio_kernels::scatter::shared_out(extents, room));
    let end = table_at + table.len() as u64;
    slot.buffer().bytes_mut()[table_at as usize..end as usize].copy_from_slice(&table);
    let staging = stream.staging(job.pool.slot_bytes() as u64)?;
    // SAFETY: the caller keeps the slot, the stream its staging memory.
    unsafe { stream.copy_to_device(staging.part(0, end)?, slot.buffer().as_ptr()) }?;
    let (data, table) = (staging.part(0, table_at)?, staging.part(table_at, end - table_at)?);
    // SAFETY: the destination is borrowed for the job's life; every extent lies inside both, and a
    // batch whose extents overlap in the destination was refused.
    unsafe { kernels.scatter(stream, data, table, job.destination) }
}

/// Waits for everything on an engine's stream; the last thing that an engine does. Blocks on an
/// event, which does not spin, where a stream's own synchronisation may.
pub(super) fn drain(job: &Job, stream: &LentStream) {
    let landed = stream.record().and_then(|event| event.wait());
    match landed.or_else(|first| stream.synchronize().and(Err(first))) {
        Ok(()) if !job.is_stopped() => stream.declare_clean(),
        Ok(()) => {}
        Err(error) => job.fail(job.device_error(error)),
    }
}
