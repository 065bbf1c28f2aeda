//! Where a device has a file: windows, and by frame and image the number of the frame that has the content.
//!
//! These are names of content, and no addresses: who has the frames may map them wherever he likes.

use super::layout::{FRAME_ROW, FRAMES_MAX, Part, WINDOW_ROW, WINDOWS_MAX};
use super::region::Region;
use super::table::Table;
use crate::page::Device;
use std::io;
use std::ops::Range;

/// One of the contents that a device has of a frame of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Image {
    Current,
    Twin,
    Base,
}

impl Image {
    pub(crate) const ALL: [Self; 3] = [Self::Current, Self::Twin, Self::Base];
}

/// The number of a frame of a device, from 1 on.
pub(crate) type FrameNumber = u32;

/// Of a frame that is mapped, and has not got its content yet: not worth keeping.
const UNFILLED: u32 = 1 << 31;

/// Largest number of a frame.
pub(crate) const FRAME_NUMBER_MAX: FrameNumber = UNFILLED - 1;

/// The row of the windows that has the length of frames.
const LENGTH: u64 = 0;

const _: () = assert!(size_of::<[u64; 2]>() == WINDOW_ROW && size_of::<[u32; 4]>() == FRAME_ROW);

#[derive(Debug)]
pub(crate) struct Content {
    /// From and to which byte of the file; (0, 0) for none.
    windows: Table<[u64; 2]>,
    frames: Table<[u32; 4]>,
    /// Another one whenever frames of what kernels see are others.
    edition: u64,
}

impl Content {
    /// What a region has of a device.
    pub(crate) fn of(region: &Region, device: Device) -> io::Result<Self> {
        let (windows, frames) = (region.table(Part::Windows(device)), region.table(Part::Frames(device)));
        let mut content = Self { windows, frames, edition: first_edition() };
        content.windows.reserve(&(0..16))?;
        Ok(content)
    }

    /// Of what is there again: windows have memory for their frames.
    ///
    /// # Errors
    /// What cannot be so, or that there is no memory.
    pub(crate) fn recover(&mut self) -> Result<(), String> {
        let failed = |error: io::Error| format!("no memory for the account of frames: {error}");
        self.windows.reserve(&(0..WINDOWS_MAX)).map_err(failed)?;
        let (frame_bytes, windows) = (self.frame_bytes(), self.windows());
        if frame_bytes == 0 && windows.is_empty() {
            return Ok(());
        }
        if !frame_bytes.is_power_of_two() || !(bifolio_device::FRAME_BYTES..=1 << 30).contains(&frame_bytes) {
            return Err(format!("no device has frames of {frame_bytes} bytes"));
        }
        for (at, window) in windows.iter().enumerate() {
            let is_whole = window.start < window.end
                && window.start.is_multiple_of(frame_bytes)
                && window.end.is_multiple_of(frame_bytes)
                && window.end / frame_bytes <= FRAMES_MAX;
            if !is_whole || windows[..at].iter().any(|other| other.start < window.end && window.start < other.end) {
                return Err(format!("no addresses are those of bytes {} to {}", window.start, window.end));
            }
            self.frames.reserve(&(window.start / frame_bytes..window.end / frame_bytes)).map_err(failed)?;
        }
        Ok(())
    }

    /// Bytes of its frames; 0 before that is settled.
    pub(crate) fn frame_bytes(&self) -> u64 {
        self.windows.get(LENGTH).map_or(0, |row| row[0])
    }

    pub(crate) fn set_frame_bytes(&mut self, bytes: u64) {
        self.windows.set(LENGTH, [bytes, 0]);
    }

    /// The bytes of the file that have addresses, in any order.
    pub(crate) fn windows(&self) -> Vec<Range<u64>> {
        let rows = self.windows.rows_in(&(LENGTH + 1..WINDOWS_MAX)).filter_map(|row| self.windows.get(row));
        rows.filter(|row| row[1] > 0).map(|row| row[0]..row[1]).collect()
    }

    pub(crate) fn add_window(&mut self, bytes: &Range<u64>) -> io::Result<()> {
        let frame_bytes = self.frame_bytes();
        self.frames.reserve(&(bytes.start / frame_bytes..bytes.end / frame_bytes))?;
        let row = if let Some(row) = self.row_of(&(0..0)) {
            row
        } else {
            let row = self.windows.rows_in(&(0..WINDOWS_MAX)).count() as u64;
            self.windows.reserve(&(0..row + 16))?;
            row
        };
        self.windows.set(row, [bytes.start, bytes.end]);
        Ok(())
    }

    pub(crate) fn remove_window(&mut self, bytes: &Range<u64>) {
        self.renew_edition();
        if let Some(row) = self.row_of(bytes) {
            self.windows.set(row, [0, 0]);
        }
    }

    fn row_of(&self, bytes: &Range<u64>) -> Option<u64> {
        let is = |row: &u64| self.windows.get(*row) == Some(&[bytes.start, bytes.end]);
        self.windows.rows_in(&(LENGTH + 1..WINDOWS_MAX)).find(is)
    }

    /// The frame that has an image of a frame of the file.
    pub(crate) fn frame(&self, image: Image, frame: usize) -> Option<FrameNumber> {
        let number = self.frames.get(frame as u64)?[image as usize] & !UNFILLED;
        (number != 0).then_some(number)
    }

    /// Whether its content is there as a whole.
    pub(crate) fn is_filled(&self, image: Image, frame: usize) -> bool {
        self.frames.get(frame as u64).is_some_and(|row| row[image as usize] != 0 && row[image as usize] & UNFILLED == 0)
    }

    /// A frame was mapped, whose content comes later, if it has to.
    pub(crate) fn set_frame(&mut self, image: Image, frame: usize, number: FrameNumber, is_filled: bool) {
        debug_assert!(number != 0 && number <= FRAME_NUMBER_MAX);
        self.write(image, frame, if is_filled { number } else { number | UNFILLED });
    }

    /// Its content has come.
    pub(crate) fn fill(&mut self, image: Image, frame: usize) {
        if let Some(number) = self.frame(image, frame) {
            self.write(image, frame, number);
        }
    }

    /// Nothing is mapped there any more.
    pub(crate) fn remove_frame(&mut self, image: Image, frame: usize) {
        self.write(image, frame, 0);
    }

    /// It is another one whenever frames of what kernels see are others, in this process and in those before and after it;
    /// never 0.
    pub(crate) fn edition(&self) -> u64 {
        self.edition
    }

    /// Somebody sees other frames than those that are here.
    pub(crate) fn renew_edition(&mut self) {
        self.edition += 1;
    }

    fn write(&mut self, image: Image, frame: usize, number: u32) {
        if image == Image::Current {
            self.renew_edition();
        }
        if let Some(mut row) = self.frames.get(frame as u64).copied() {
            row[image as usize] = number;
            self.frames.set(frame as u64, row);
        }
    }
}

/// Later processes begin with larger ones, as none changes frames once in a nanosecond.
fn first_edition() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |since| since.as_nanos() as u64).max(1)
}
