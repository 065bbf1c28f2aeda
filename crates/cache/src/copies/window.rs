//! A part of a file at addresses of a device: three images of it, laid out alike, and what its frames have.
//!
//! A window begins and ends with frames, and its mappings lie in it as a whole. The images other than what kernels see
//! get addresses when they first get memory: what nobody writes needs none.

use crate::budget::Owner;
use crate::frames::NumberedFrame;
use crate::memory::Memory;
use crate::state::replicas::Content;
use bifolio_device::{AddressRange, DevicePtr, DeviceSlice, Result};
use std::ops::Range;

pub(crate) use crate::state::replicas::Image;

/// Longest files that get addresses for all of them at once. Drivers keep account of addresses as well: CUDA's takes
/// gigabytes of host memory for each terabyte.
const WHOLE_BYTES_MAX: u64 = 128 << 30;

/// Windows of longer files begin and end at multiples of this.
const CELL_BYTES: u64 = WHOLE_BYTES_MAX;

/// Addresses for a file at least.
const ROOM_BYTES_MIN: u64 = 64 << 20;

/// How one frame of the file is used; which memory it has, its content says.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FrameState {
    /// Acquires that were not released.
    pub(super) pins: u32,
    /// Uses since it was last considered for eviction: what is used once, in passing, goes first.
    pub(super) uses: u8,
}

#[derive(Debug)]
pub(super) struct Window {
    /// Bytes of the file.
    bytes: Range<u64>,
    frame_bytes: u64,
    /// Mappings and pins that name its addresses.
    pub(super) users: usize,
    current: AddressRange,
    /// The others, once they have addresses.
    twin: Option<AddressRange>,
    base: Option<AddressRange>,
    pub(super) states: Vec<FrameState>,
}

impl Window {
    /// Addresses for some bytes of a file, in whole frames.
    pub(super) fn new(memory: &Memory, bytes: Range<u64>, frame_bytes: u64) -> Result<Self> {
        let len = bytes.end - bytes.start;
        let current = memory.device.reserve(len)?;
        let states = vec![FrameState::default(); (len / frame_bytes) as usize];
        Ok(Self { bytes, frame_bytes, users: 0, current, twin: None, base: None, states })
    }

    pub(super) fn bytes(&self) -> &Range<u64> {
        &self.bytes
    }

    /// The numbers of its frames in the file.
    pub(super) fn frames(&self) -> Range<usize> {
        let first = (self.bytes.start / self.frame_bytes) as usize;
        first..first + self.states.len()
    }

    pub(super) fn state(&self, frame: usize) -> &FrameState {
        &self.states[frame - self.frames().start]
    }

    pub(super) fn state_mut(&mut self, frame: usize) -> &mut FrameState {
        let first = self.frames().start;
        &mut self.states[frame - first]
    }

    /// Whether somebody uses its addresses, or they have memory.
    pub(super) fn is_in_use(&self, content: &Content) -> bool {
        let has_memory = |frame| Image::ALL.into_iter().any(|image| content.frame(image, frame).is_some());
        self.users > 0 || self.states.iter().any(|state| state.pins > 0) || self.frames().any(has_memory)
    }

    /// Where a byte of the file lies.
    pub(super) fn address(&self, at: u64) -> DevicePtr {
        address(&self.current).offset_by(at - self.bytes.start)
    }

    /// All addresses of what kernels see.
    ///
    /// # Safety
    /// Only parts that have memory are used, and only as long as the window is there.
    pub(super) unsafe fn all(&self) -> DeviceSlice<'static> {
        // SAFETY: the caller's promise.
        unsafe { DeviceSlice::from_raw_ordered(address(&self.current), self.current.len()) }
    }

    /// Some bytes of one of the images, whose frames are there.
    pub(super) fn slice(&self, image: Image, bytes: &Range<u64>) -> DeviceSlice<'_> {
        assert!(self.bytes.start <= bytes.start && bytes.end <= self.bytes.end, "{bytes:?} lie in {:?}", self.bytes);
        let range = self.range(image).expect("an image that has memory has addresses");
        let place = address(range).offset_by(bytes.start - self.bytes.start);
        // SAFETY: callers ask for what they have mapped.
        unsafe { DeviceSlice::from_raw_ordered(place, bytes.end - bytes.start) }
    }

    /// Lets kernels of another device read some bytes of an image; false where they cannot.
    pub(super) fn let_read(&self, image: Image, bytes: &Range<u64>, peer: &bifolio_device::Device) -> Result<bool> {
        let Some(range) = self.range(image) else { return Ok(false) };
        range.let_read(bytes.start - self.bytes.start..bytes.end - self.bytes.start, peer)
    }

    /// Maps memory where there is none yet; false if the budget is used up.
    pub(super) fn map(
        &mut self,
        memory: &Memory,
        owner: Owner,
        content: &mut Content,
        image: Image,
        frame: usize,
    ) -> Result<bool> {
        if content.frame(image, frame).is_some() {
            return Ok(true);
        }
        let place = self.place_of(frame);
        let Some(number) = memory.map_frame(owner, self.reserved(memory, image)?, &place)? else { return Ok(false) };
        // A twin is made of what the mapping has then.
        content.set_frame(image, frame, number, image != Image::Twin);
        Ok(true)
    }

    /// Maps what another process has left; false if nobody has kept it.
    pub(super) fn map_found(&mut self, memory: &Memory, content: &Content, image: Image, frame: usize) -> Result<bool> {
        let Some(number) = content.frame(image, frame) else { return Ok(false) };
        let place = self.place_of(frame);
        memory.map_found(number, self.reserved(memory, image)?, &place)
    }

    /// Leaves its frames to whoever finds them.
    pub(super) fn abandon(self, memory: &Memory, content: &Content) {
        let images = |frame| Image::ALL.into_iter().filter(move |image| content.frame(*image, frame).is_some());
        memory.disown(self.frames().flat_map(images).count() as u64 * self.frame_bytes);
    }

    fn reserved(&mut self, memory: &Memory, image: Image) -> Result<&AddressRange> {
        Ok(match image {
            Image::Current => &self.current,
            Image::Twin => reserved(&mut self.twin, memory, self.current.len())?,
            Image::Base => reserved(&mut self.base, memory, self.current.len())?,
        })
    }

    /// Gives memory back that nobody uses.
    ///
    /// # Safety
    /// No work in flight uses the frame.
    pub(super) unsafe fn unmap(
        &mut self,
        memory: &Memory,
        owner: Owner,
        content: &mut Content,
        image: Image,
        frame: usize,
    ) -> Result<()> {
        let (Some(range), Some(number)) = (self.range(image), content.frame(image, frame)) else { return Ok(()) };
        // Before another file gets it.
        let is_filled = content.is_filled(image, frame);
        content.remove_frame(image, frame);
        // SAFETY: the caller's promise.
        let unmapped = unsafe { memory.unmap_frame(owner, range, self.place_of(frame).start, number) };
        unmapped.inspect_err(|_| content.set_frame(image, frame, number, is_filled))
    }

    /// Has kernels see another frame in the place of one, which is left to whoever sees it.
    ///
    /// # Safety
    /// No work in flight uses the frame.
    pub(super) unsafe fn exchange(
        &mut self,
        memory: &Memory,
        content: &mut Content,
        frame: usize,
        by: NumberedFrame,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let exchanged = unsafe { Memory::exchange_frame(&self.current, self.place_of(frame).start, &by) };
        if let Err(error) = exchanged {
            memory.give_copy(by);
            return Err(error);
        }
        content.set_frame(Image::Current, frame, by.into_number(), true);
        Ok(())
    }

    fn range(&self, image: Image) -> Option<&AddressRange> {
        match image {
            Image::Current => Some(&self.current),
            Image::Twin => self.twin.as_ref(),
            Image::Base => self.base.as_ref(),
        }
    }

    /// Where a frame lies in its ranges.
    fn place_of(&self, frame: usize) -> Range<u64> {
        let start = (frame - self.frames().start) as u64 * self.frame_bytes;
        start..start + self.frame_bytes
    }
}

fn address(range: &AddressRange) -> DevicePtr {
    // SAFETY: only the address is used.
    unsafe { range.slice() }.ptr()
}

fn reserved<'a>(range: &'a mut Option<AddressRange>, memory: &Memory, len: u64) -> Result<&'a AddressRange> {
    Ok(match range {
        Some(range) => range,
        none => none.insert(memory.device.reserve(len)?),
    })
}

/// The bytes of a window for a range of a file of `len` bytes, none of which is in one of those that there are, in
/// whole frames: all of the file and as much for it to grow; of a very long file the part in which the range lies.
pub(super) fn bytes_for<'a>(
    range: &Range<u64>,
    len: u64,
    frame_bytes: u64,
    others: impl Iterator<Item = &'a Range<u64>>,
) -> Range<u64> {
    let wanted = if len <= WHOLE_BYTES_MAX {
        0..(2 * len).max(ROOM_BYTES_MIN).next_multiple_of(frame_bytes)
    } else {
        range.start / CELL_BYTES * CELL_BYTES..range.end.next_multiple_of(CELL_BYTES)
    };
    others.fold(wanted, |wanted, other| {
        if other.end <= range.start {
            wanted.start.max(other.end)..wanted.end
        } else {
            wanted.start..wanted.end.min(other.start)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_device::FRAME_BYTES;

    fn alone(range: Range<u64>, len: u64) -> Range<u64> {
        bytes_for(&range, len, FRAME_BYTES, [].iter())
    }

    #[test]
    fn a_file_has_addresses_for_all_of_it_and_room_to_grow() {
        assert_eq!(alone(0..5000, 5000), 0..ROOM_BYTES_MIN);
        assert_eq!(alone(100..5000, 5000), 0..ROOM_BYTES_MIN);
        assert_eq!(alone(0..5000, (60 << 20) + 1), 0..((120 << 20) + 2_u64).next_multiple_of(FRAME_BYTES));
        assert_eq!(alone(7..8, 20 << 30), 0..40 << 30);
    }

    /// Symptom: the end of the process, as the driver's account of addresses took all memory. Cause: they were reserved
    /// from the file's first byte on, and twice its length, wherever the mapping lay. And an overflow, of a file as long
    /// as files may be.
    #[test]
    fn of_a_very_long_file_what_is_mapped_has_addresses() {
        let longest = i64::MAX as u64;
        for len in [16 << 40, longest] {
            for range in [0..1, len - 10..len, (1 << 40) - 1..(1 << 40) + 1, (3 << 40)..(3 << 40) + CELL_BYTES] {
                let window = alone(range.clone(), len);
                assert!(window.start <= range.start && range.end <= window.end, "{range:?}: {window:?}");
                assert!(window.end - window.start <= range.end - range.start + 2 * CELL_BYTES, "{range:?}: {window:?}");
                for frame_bytes in [FRAME_BYTES, 1 << 30] {
                    assert!(window.start.is_multiple_of(frame_bytes) && window.end.is_multiple_of(frame_bytes));
                }
            }
        }
    }

    #[test]
    fn windows_do_not_overlap() {
        let others = [0..ROOM_BYTES_MIN, 900 << 20..1 << 30];
        assert_eq!(bytes_for(&(100 << 20..200 << 20), 2 << 30, FRAME_BYTES, others.iter()), ROOM_BYTES_MIN..900 << 20);
        assert_eq!(bytes_for(&(1 << 30..2 << 30), 2 << 30, FRAME_BYTES, others.iter()), 1 << 30..4 << 30);
    }
}
