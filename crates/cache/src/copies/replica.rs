//! One file in the memory of one device.
//!
//! Three images of it, each a range of addresses as long as the file may become, with frames where they are needed:
//! - `current`: what kernels see and change, the mapping itself;
//! - `twin`: the content of the latest release, or of the fetch before the first;
//! - `base`: of pages whose releases home lacks, the content at the latest agreement with home, from which their
//!   changes count. Of other pages the twin is the base.
//!
//! So a release compares `current` with `twin`, one behind the other, and a flush compares `twin` with `base`.

use crate::budget::Owner;
use crate::memory::Memory;
use crate::options::CacheOptions;
use crate::ranges::{intersection, runs};
use bifolio_device::{AddressRange, DevicePtr, DeviceSlice, FRAME_BYTES, Result, Stream};
use std::ops::Range;
use std::sync::Arc;

/// Longest frames: 32 MiB cost as much as 2 MiB to map, and nothing beside reading as much.
const FRAME_BYTES_MAX: u64 = 32 << 20;

/// Addresses for a file at least.
const ROOM_BYTES_MIN: u64 = 64 << 20;

/// Uses that make a frame stay longest; more make no difference.
const USES_MAX: u8 = 3;

#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) memory: Arc<Memory>,
    /// Of what is in its frames.
    owner: Owner,
    page_bytes: u64,
    frame_bytes: u64,
    /// Mappings that name its addresses.
    pub(crate) users: usize,
    current: AddressRange,
    twin: AddressRange,
    base: AddressRange,
    frames: Vec<FrameState>,
    /// Where the search for a frame to evict goes on.
    hand: usize,
}

/// What one frame of the file has.
#[derive(Debug, Clone, Copy, Default)]
struct FrameState {
    current: bool,
    twin: bool,
    base: bool,
    /// Acquires that were not released.
    pins: u32,
    /// Uses since it was last considered for eviction: what is used once, in passing, goes first.
    uses: u8,
}

/// One of the images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Image {
    Current,
    Twin,
    Base,
}

impl Image {
    pub(crate) const ALL: [Self; 3] = [Self::Current, Self::Twin, Self::Base];
}

impl Replica {
    /// A replica of a file of `len` bytes, with addresses for it to grow.
    pub(crate) fn new(memory: &Arc<Memory>, options: &CacheOptions, len: u64) -> Result<Self> {
        let frame_bytes = match options.frame_bytes {
            0 => frame_bytes_for(memory.budget_bytes(), len),
            bytes => bytes,
        };
        let room = room_bytes(len, frame_bytes);
        let [current, twin, base] = [0; 3].map(|_: i32| memory.device.reserve(room));
        Ok(Self {
            memory: Arc::clone(memory),
            owner: Owner::new(),
            page_bytes: options.page_bytes,
            frame_bytes,
            users: 0,
            current: current?,
            twin: twin?,
            base: base?,
            frames: vec![FrameState::default(); (room / frame_bytes) as usize],
            hand: 0,
        })
    }

    /// Bytes of its frames.
    pub(crate) fn frame_bytes(&self) -> u64 {
        self.frame_bytes
    }

    /// Bytes that it has addresses for.
    pub(crate) fn len(&self) -> u64 {
        self.current.len()
    }

    /// Some bytes of one of the images, whose frames are there.
    pub(crate) fn slice(&self, image: Image, range: &Range<u64>) -> DeviceSlice<'_> {
        // SAFETY: callers ask for what they have mapped.
        let all = unsafe { self.range(image).slice() };
        // SAFETY: inside the range.
        unsafe { DeviceSlice::from_raw_ordered(all.ptr().offset_by(range.start), range.end - range.start) }
    }

    /// All addresses of the mapping.
    ///
    /// # Safety
    /// Only parts that have memory are used, and only as long as the replica is there.
    pub(crate) unsafe fn all(&self) -> DeviceSlice<'static> {
        // SAFETY: the caller's promise.
        unsafe { DeviceSlice::from_raw_ordered(self.address(), self.current.len()) }
    }

    /// Where the mapping begins.
    pub(crate) fn address(&self) -> DevicePtr {
        // SAFETY: only the address is used.
        unsafe { self.current.slice() }.ptr()
    }

    fn range(&self, image: Image) -> &AddressRange {
        match image {
            Image::Current => &self.current,
            Image::Twin => &self.twin,
            Image::Base => &self.base,
        }
    }

    fn flag(&mut self, image: Image, frame: usize) -> &mut bool {
        let state = &mut self.frames[frame];
        match image {
            Image::Current => &mut state.current,
            Image::Twin => &mut state.twin,
            Image::Base => &mut state.base,
        }
    }

    pub(crate) fn has(&self, image: Image, frame: usize) -> bool {
        let state = self.frames[frame];
        match image {
            Image::Current => state.current,
            Image::Twin => state.twin,
            Image::Base => state.base,
        }
    }

    /// Frames that hold bytes of a range, of which there are none behind its addresses: files may become longer.
    pub(crate) fn frames_of(&self, range: &Range<u64>) -> Range<usize> {
        let frame = |number: u64| number.min(self.frames.len() as u64) as usize;
        frame(range.start / self.frame_bytes)..frame(range.end.div_ceil(self.frame_bytes))
    }

    /// The bytes of some frames.
    pub(crate) fn bytes_of(&self, frames: &Range<u64>) -> Range<u64> {
        frames.start * self.frame_bytes..frames.end * self.frame_bytes
    }

    /// The bytes of those of some frames that have memory for an image, in runs.
    pub(crate) fn runs_with(&self, image: Image, frames: Range<usize>) -> Vec<Range<u64>> {
        let mapped = frames.filter(|frame| self.has(image, *frame)).map(|frame| frame as u64);
        runs(mapped).iter().map(|run| self.bytes_of(run)).collect()
    }

    /// Some bytes as of the latest release or fetch: from twins where frames have them, and from what kernels see where
    /// nobody writes. Frames beside each other come at once.
    pub(crate) fn settled_images(&self, bytes: &Range<u64>) -> Vec<(Image, Range<u64>)> {
        let of_image = |image: Image| {
            let is_here = move |frame: &usize| self.has(Image::Twin, *frame) == (image == Image::Twin);
            let frames = self.frames_of(bytes).filter(is_here).map(|frame| frame as u64);
            runs(frames).into_iter().map(move |run| (image, intersection(&self.bytes_of(&run), bytes)))
        };
        [Image::Twin, Image::Current].into_iter().flat_map(of_image).collect()
    }

    /// The frame that holds a page.
    pub(crate) fn frame_of(&self, page: u64) -> usize {
        (page * self.page_bytes / self.frame_bytes) as usize
    }

    /// Maps memory where there is none yet; false if the budget is used up.
    pub(crate) fn map(&mut self, image: Image, frame: usize) -> Result<bool> {
        if self.has(image, frame) {
            return Ok(true);
        }
        let place = self.bytes_of(&(frame as u64..frame as u64 + 1));
        let is_mapped = self.memory.map_frame(self.owner, self.range(image), &place)?;
        *self.flag(image, frame) = is_mapped;
        Ok(is_mapped)
    }

    /// Gives memory back that nobody uses.
    pub(crate) fn unmap(&mut self, image: Image, frame: usize) -> Result<()> {
        if self.has(image, frame) {
            // SAFETY: the work of every operation is waited for, and frames in use by kernels are pinned.
            unsafe { self.memory.unmap_frame(self.owner, self.range(image), frame as u64 * self.frame_bytes) }?;
            *self.flag(image, frame) = false;
        }
        Ok(())
    }

    pub(crate) fn pin(&mut self, frames: Range<usize>) {
        for state in &mut self.frames[frames] {
            state.pins += 1;
            state.uses = (state.uses + 1).min(USES_MAX);
        }
    }

    /// False if one of them was not pinned.
    pub(crate) fn unpin(&mut self, frames: Range<usize>) -> bool {
        let all = self.frames[frames.clone()].iter().all(|state| state.pins > 0);
        for state in &mut self.frames[frames] {
            state.pins = state.pins.saturating_sub(1);
        }
        all
    }

    /// Whether something of a frame is acquired.
    pub(crate) fn is_pinned(&self, frame: usize) -> bool {
        self.frames[frame].pins > 0
    }

    /// The next frame to evict: one that is not in use, and was used less than others since the hand last came
    /// by. A frame that was read once, in a scan, has one use; those of the working set come back with more.
    pub(crate) fn victim(&mut self) -> Option<usize> {
        let candidates = self.frames.iter().filter(|state| state.current && state.pins == 0).count();
        let mut seen = 0;
        while candidates > 0 && seen <= candidates * (usize::from(USES_MAX) + 1) {
            let frame = self.hand;
            self.hand = (self.hand + 1) % self.frames.len();
            let state = &mut self.frames[frame];
            if state.current && state.pins == 0 {
                seen += 1;
                if state.uses <= 1 {
                    return Some(frame);
                }
                state.uses -= 1;
            }
        }
        None
    }

    /// A frame with a twin that nobody needs: it is as the mapping is, where nothing is acquired, and can be made
    /// again by a copy on the device.
    pub(crate) fn frame_with_idle_twin(&self) -> Option<usize> {
        self.frames.iter().position(|state| state.twin && !state.base && state.pins == 0)
    }

    /// A frame with memory for bases.
    pub(crate) fn frame_with_base(&self) -> Option<usize> {
        self.frames.iter().position(|state| state.base)
    }

    /// The pages of a frame.
    pub(crate) fn pages_of(&self, frame: usize) -> Range<u64> {
        let first = frame as u64 * self.frame_bytes / self.page_bytes;
        first..first + self.frame_bytes / self.page_bytes
    }

    /// Frames with memory.
    pub(crate) fn mapped_frames(&self) -> Vec<usize> {
        (0..self.frames.len()).filter(|frame| self.frames[*frame].current).collect()
    }

    /// Copies pages from one image to another, runs of them at once.
    pub(crate) fn copy(
        &self,
        stream: &Stream,
        pages: impl IntoIterator<Item = u64>,
        from: Image,
        to: Image,
    ) -> Result<()> {
        for run in runs(pages) {
            let bytes = run.start * self.page_bytes..run.end * self.page_bytes;
            // SAFETY: both images have memory there, which stays until the stream is waited for.
            unsafe { stream.copy_on_device(self.slice(to, &bytes), self.slice(from, &bytes)) }?;
        }
        Ok(())
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        for frame in 0..self.frames.len() {
            for image in Image::ALL {
                // Of a device that takes no memory back there is none to give.
                let _ = self.unmap(image, frame);
            }
        }
    }
}

/// Bytes of a replica's frames: as many as keep eviction fine, as memory costs by the frame.
fn frame_bytes_for(budget_bytes: u64, len: u64) -> u64 {
    let most = (budget_bytes / 64).min(len / 8).clamp(FRAME_BYTES, FRAME_BYTES_MAX);
    1 << most.ilog2()
}

/// Bytes of addresses for a file, in whole frames. Of a length that has no double no device has them.
fn room_bytes(len: u64, frame_bytes: u64) -> u64 {
    len.saturating_mul(2).clamp(ROOM_BYTES_MIN, u64::MAX / 2).next_multiple_of(frame_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: a sum that overflows. Cause: a stranger makes a file as long as files may be.
    #[test]
    fn the_longest_file_asks_for_addresses_without_an_overflow() {
        for frame_bytes in [FRAME_BYTES, FRAME_BYTES_MAX] {
            assert_eq!(room_bytes(i64::MAX as u64, frame_bytes), 1 << 63);
            assert_eq!(room_bytes(5000, frame_bytes), ROOM_BYTES_MIN);
            assert_eq!(room_bytes((60 << 20) + 1, frame_bytes), ((120 << 20) + 2_u64).next_multiple_of(frame_bytes));
        }
    }

    #[test]
    fn frames_are_long_where_there_is_room_for_many() {
        assert_eq!(frame_bytes_for(64 << 20, 1 << 40), FRAME_BYTES);
        assert_eq!(frame_bytes_for(70 << 30, 1 << 30), FRAME_BYTES_MAX);
        assert_eq!(frame_bytes_for(70 << 30, 5_000), FRAME_BYTES);
        assert_eq!(frame_bytes_for(1 << 30, 1 << 30), 16 << 20);
        assert_eq!(frame_bytes_for(70 << 30, 100_000_000), 8 << 20);
    }
}
