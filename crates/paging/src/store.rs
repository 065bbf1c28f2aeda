//! Device memory in chunks, cut into slots of a block each, and the way of bytes into and out of them.
//!
//! A chunk is a frame where the device has address ranges and exports frames, so that a keeper can hold it and a successor
//! of this process find it again; elsewhere it is an allocation, which goes with the process.
//!
//! Bytes are copied by the CPU where it uses the device's memory at the device's addresses. Elsewhere they go through
//! lanes: a stream and page-locked memory each, made once. A copy has ended when the call returns; what a request wants of
//! several slots is waited for once, as a wait takes as long as the copy of a block. After a failure lanes
//! are of no use ([`Store::renew`] makes new ones), as a stream keeps its error.
//!
//! Nothing here knows which slot holds what. Who reads or writes a slot has pinned it, so that its chunk stays.

use crate::pages::BLOCK_BYTES;
use crate::table::Pinned;
use bifolio_device::{
    Access, AddressRange, Allocation, Device, DevicePtr, DeviceSlice, Error, ErrorKind, PinnedBuffer, Result, Stream,
};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Copies at the same time. Each lane has a stream and page-locked memory for a request.
const LANES: usize = 8;
/// A copy of a block takes less, and waking up from sleep as much.
const POLL_TIME: Duration = Duration::from_micros(50);

/// Bytes that a lane brings at a time: those of the longest request.
pub(crate) const TOGETHER_BYTES: usize = 1 << 20;

/// Bytes of a slot.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Piece {
    /// The slot, pinned by whoever copies.
    pub slot: Pinned,
    /// Where in it.
    pub at: u64,
    /// How many.
    pub len: usize,
}

/// Device memory in chunks.
#[derive(Debug)]
pub(crate) struct Store {
    device: Device,
    chunk_bytes: u64,
    /// Where each chunk begins; 0 for one that is not there.
    bases: Box<[AtomicU64]>,
    chunks: Mutex<Vec<Chunk>>,
    range: Option<AddressRange>,
    /// None where the CPU uses the memory itself.
    lanes: Option<Lanes>,
}

#[derive(Debug)]
enum Chunk {
    Absent,
    /// A frame, which the range holds.
    Mapped,
    /// Held until the chunk is removed.
    Allocated(#[allow(dead_code, reason = "its memory is freed when it is dropped")] Allocation),
}

#[derive(Debug)]
struct Lanes {
    lanes: Vec<Mutex<Lane>>,
    turn: AtomicUsize,
}

#[derive(Debug)]
struct Lane {
    stream: Stream,
    memory: PinnedBuffer,
}

impl Store {
    /// A store of at most `chunks` chunks of `chunk_bytes` each, with none of them there.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn new(device: &Device, chunk_bytes: u64, chunks: u32) -> Result<Self> {
        let can = device.capabilities();
        let has_frames = can.virtual_memory.is_yes() && can.export_fd.is_yes();
        let range = if has_frames { Some(device.reserve(chunk_bytes * u64::from(chunks))?) } else { None };
        let lanes = if can.host_addressable.is_yes() { None } else { Some(Lanes::new(device)?) };
        Ok(Self {
            device: device.clone(),
            chunk_bytes,
            bases: (0..chunks).map(|_| AtomicU64::new(0)).collect(),
            chunks: Mutex::new((0..chunks).map(|_| Chunk::Absent).collect()),
            range,
            lanes,
        })
    }

    /// Takes memory for a chunk that is not there, and returns a descriptor of it where it can outlive this process.
    ///
    /// # Errors
    /// The device's, such as `OutOfMemory`.
    pub(crate) fn add(&self, chunk: u32) -> Result<Option<OwnedFd>> {
        // It may be mapped still, if it could not be unmapped.
        self.remove(chunk)?;
        let Some(range) = &self.range else {
            let allocation = self.device.alloc(self.chunk_bytes)?;
            let base = allocation.ptr().0;
            self.lock()[chunk as usize] = Chunk::Allocated(allocation);
            self.bases[chunk as usize].store(base, Ordering::Release);
            return Ok(None);
        };
        let frame = self.device.create_frame_of(self.chunk_bytes)?;
        let fd = frame.export()?;
        self.map(range, chunk, &frame)?;
        Ok(Some(fd))
    }

    /// Takes over a chunk that another process exported.
    ///
    /// # Errors
    /// The device's; `Unsupported` where chunks cannot travel.
    pub(crate) fn adopt(&self, chunk: u32, fd: OwnedFd) -> Result<()> {
        let Some(range) = &self.range else {
            return Err(Error::new(ErrorKind::Unsupported, "this device's memory does not outlive its process"));
        };
        let frame = self.device.import_frame_of(fd, self.chunk_bytes)?;
        self.map(range, chunk, &frame)
    }

    /// Gives a chunk's memory back. Nobody uses its slots.
    ///
    /// # Errors
    /// The device's; nobody can use the memory any more, and [`Store::add`] tries again to give it back.
    pub(crate) fn remove(&self, chunk: u32) -> Result<()> {
        self.bases[chunk as usize].store(0, Ordering::Release);
        let own = &mut self.lock()[chunk as usize];
        if let (Chunk::Mapped, Some(range)) = (&*own, &self.range) {
            // SAFETY: copies end before their calls return, and the caller vouches that there are none.
            drop(unsafe { range.unmap(u64::from(chunk) * self.chunk_bytes) }?);
        }
        *own = Chunk::Absent;
        Ok(())
    }

    /// Copies bytes into a slot that the caller has pinned.
    ///
    /// # Errors
    /// The device's; the slot's bytes in this range are of no use then.
    pub(crate) fn write(&self, slot: u32, at: u64, data: &[u8]) -> Result<()> {
        let place = self.place(slot, at, data.len())?;
        let Some(lanes) = &self.lanes else {
            // SAFETY: the CPU uses the device's memory by its addresses, and the chunk stays while the slot is pinned.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), place.ptr().0 as *mut u8, data.len()) };
            return Ok(());
        };
        let mut lane = lanes.take();
        lane.memory.bytes_mut()[..data.len()].copy_from_slice(data);
        // SAFETY: the lane is ours until the copy has ended.
        unsafe { lane.stream.copy_to_device_and_wait(place, lane.memory.as_ptr()) }
    }

    /// Copies pieces of slots that the caller has pinned, one after the other into the buffer, which has their length and at
    /// most [`TOGETHER_BYTES`]. It waits for the device once.
    ///
    /// # Errors
    /// The device's; the buffer's bytes are of no use then.
    pub(crate) fn read(&self, pieces: &[Piece], buffer: &mut [u8]) -> Result<()> {
        let Some(lanes) = &self.lanes else {
            let mut rest = buffer;
            return pieces.iter().try_for_each(|piece| {
                let (own, after) = std::mem::take(&mut rest).split_at_mut(piece.len);
                rest = after;
                self.show(piece.slot.at, piece.at, piece.len, |bytes| own.copy_from_slice(bytes))
            });
        };
        let mut lane = lanes.take();
        let Lane { stream, memory } = &mut *lane;
        let memory = &mut memory.bytes_mut()[..buffer.len()];
        let mut rest = &mut *memory;
        for (number, piece) in pieces.iter().enumerate() {
            let (own, after) = std::mem::take(&mut rest).split_at_mut(piece.len);
            rest = after;
            let copied = self.place(piece.slot.at, piece.at, piece.len).and_then(|place| {
                if number + 1 == pieces.len() {
                    // Waits for all of them.
                    return stream.download(own, place);
                }
                // SAFETY: the lane is ours until the copy has ended, which is waited for below whatever fails.
                unsafe { stream.copy_to_host(own.as_mut_ptr(), place) }
            });
            if copied.is_err() {
                let _ = stream.synchronize();
                return copied;
            }
        }
        buffer.copy_from_slice(memory);
        Ok(())
    }

    /// Shows bytes of a slot that the caller has pinned: those of the device's memory where the CPU uses it, else what a lane
    /// has brought. Who copies them copies once.
    ///
    /// # Errors
    /// The device's; nobody has looked then.
    pub(crate) fn show<T>(&self, slot: u32, at: u64, len: usize, look: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let place = self.place(slot, at, len)?;
        let Some(lanes) = &self.lanes else {
            // SAFETY: as in `write`; who has pinned the slot decides who writes to it.
            return Ok(look(unsafe { std::slice::from_raw_parts(place.ptr().0 as *const u8, len) }));
        };
        let mut lane = lanes.take();
        let lane = &mut *lane;
        lane.stream.download(&mut lane.memory.bytes_mut()[..len], place)?;
        Ok(look(&lane.memory.bytes()[..len]))
    }

    /// Makes lanes anew after a failure, and sees whether the device works.
    ///
    /// # Errors
    /// The device's, while it does not.
    pub(crate) fn renew(&self) -> Result<()> {
        if let Some(loss) = self.device.loss() {
            return Err(loss);
        }
        let Some(lanes) = &self.lanes else { return Ok(()) };
        lanes.lanes.iter().try_for_each(|lane| {
            let fresh = self.device.create_polling_stream(POLL_TIME)?;
            lane.lock().unwrap_or_else(PoisonError::into_inner).stream = fresh;
            Ok(())
        })
    }

    /// Whether the CPU copies by itself: the memory is the machine's, and outlives a sleep of the system.
    pub(crate) fn is_host_memory(&self) -> bool {
        self.lanes.is_none()
    }

    /// Bytes of the device that nobody has.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn free_bytes(&self) -> Result<u64> {
        self.device.memory().map(|memory| memory.free)
    }

    fn map(&self, range: &AddressRange, chunk: u32, frame: &bifolio_device::Frame) -> Result<()> {
        let offset = u64::from(chunk) * self.chunk_bytes;
        range.map(offset, frame, Access::ReadWrite)?;
        // SAFETY: only its address is taken.
        let base = unsafe { range.slice() }.ptr().offset_by(offset);
        self.lock()[chunk as usize] = Chunk::Mapped;
        self.bases[chunk as usize].store(base.0, Ordering::Release);
        Ok(())
    }

    fn place(&self, slot: u32, at: u64, len: usize) -> Result<DeviceSlice<'_>> {
        let offset = u64::from(slot) * BLOCK_BYTES;
        assert!(at + len as u64 <= BLOCK_BYTES, "a copy stays in its slot");
        let base = self.bases[(offset / self.chunk_bytes) as usize].load(Ordering::Acquire);
        if base == 0 {
            let detail = format!("slot {slot} has no device memory");
            return Err(Error::new(ErrorKind::BadArgument, detail).on(self.device.id()));
        }
        let ptr = DevicePtr(base).offset_by(offset % self.chunk_bytes + at);
        // SAFETY: the chunk is there from its base on, the range is within it, and the slot is pinned.
        Ok(unsafe { DeviceSlice::from_raw_ordered(ptr, len as u64) })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Chunk>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lanes {
    fn new(device: &Device) -> Result<Self> {
        let lane = || {
            let stream = device.create_polling_stream(POLL_TIME)?;
            Ok(Mutex::new(Lane { stream, memory: device.alloc_pinned(TOGETHER_BYTES)? }))
        };
        let lanes = (0..LANES).map(|_| lane()).collect::<Result<_>>()?;
        Ok(Self { lanes, turn: AtomicUsize::new(0) })
    }

    /// A lane that nobody uses, or else the next one when it is free.
    fn take(&self) -> MutexGuard<'_, Lane> {
        let free = self.lanes.iter().find_map(|lane| lane.try_lock().ok());
        free.unwrap_or_else(|| {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.lanes.len();
            self.lanes[turn].lock().unwrap_or_else(PoisonError::into_inner)
        })
    }
}
