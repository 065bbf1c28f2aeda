//! One file in the memory of one device.
//!
//! Three images of it, each in ranges of addresses, with frames where they are needed:
//! - `current`: what kernels see and change, the mapping itself;
//! - `twin`: the content of the latest release, or of the fetch before the first;
//! - `base`: of pages of which the device is home, what the file has; of those of which it is a donor, the content from
//!   which its changes count. Of other pages the twin is the base.
//!
//! So a release compares `current` with `twin`, one behind the other, and a flush compares `twin` with `base`.
//!
//! Addresses come in windows (`window`), one for the whole file as a rule, and for each of the parts that are mapped
//! where it is very long. They do not overlap: a page has one place on a device, and mappings of it share that. Frames
//! and pages have the numbers that they have in the file. What lies in several windows lies apart: bytes from where to
//! where are asked for are those of one mapping, and of others in pieces ([`Replica::pieces`]).

use super::window::{FrameState, Window, bytes_for};
use crate::budget::Owner;
use crate::frames::NumberedFrame;
use crate::memory::Memory;
use crate::options::CacheOptions;
use crate::ranges::{intersection, runs};
use crate::state::replicas::{Content, FrameNumber};
use bifolio_device::{DevicePtr, DeviceSlice, FRAME_BYTES, Result, Stream};
use std::ops::Range;
use std::sync::Arc;

pub(crate) use super::window::Image;

/// Longest frames. Another process that attaches pays for each, whatever its length: on an H100 448 ms for 8 GiB in frames of 2 MiB,
/// 39 ms of 32 MiB, 9 ms of 256 MiB, and several times that where ten do at once.
const FRAME_BYTES_MAX: u64 = 512 << 20;

/// Uses that make a frame stay longest; more make no difference.
const USES_MAX: u8 = 3;

#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) memory: Arc<Memory>,
    /// Of what is in its frames.
    owner: Owner,
    page_bytes: u64,
    frame_bytes: u64,
    /// Which windows there are, and which frame has which content.
    content: Content,
    /// Where that has addresses, in the order of the file.
    windows: Vec<Window>,
    /// The frame from which the search for one to evict goes on.
    hand: usize,
}

/// Its addresses.
impl Replica {
    /// A replica of a file of `len` bytes, of which nothing has addresses yet.
    pub(crate) fn new(memory: &Arc<Memory>, options: &CacheOptions, mut content: Content, len: u64) -> Self {
        let frame_bytes = match options.frame_bytes {
            0 => frame_bytes_for(memory.budget_bytes(), len),
            bytes => bytes,
        };
        content.set_frame_bytes(frame_bytes);
        let (memory, page_bytes) = (Arc::clone(memory), options.page_bytes);
        Self { memory, owner: Owner::new(), page_bytes, frame_bytes, content, windows: vec![], hand: 0 }
    }

    /// What another process has left of a file, and the frames of it that nobody has kept. Those that had no content yet
    /// are given back.
    pub(crate) fn find(memory: &Arc<Memory>, page_bytes: u64, content: Content) -> Result<(Self, Vec<usize>)> {
        let frame_bytes = content.frame_bytes();
        let mut bytes = content.windows();
        bytes.sort_unstable_by_key(|bytes| bytes.start);
        let mut found = Self {
            memory: Arc::clone(memory),
            owner: Owner::new(),
            page_bytes,
            frame_bytes,
            content,
            windows: vec![],
            hand: 0,
        };
        let windows = bytes.into_iter().map(|bytes| Window::new(memory, bytes, frame_bytes));
        match windows.collect() {
            Ok(windows) => found.windows = windows,
            Err(error) => {
                found.abandon();
                return Err(error);
            }
        }
        match found.find_frames() {
            Ok(missing) => Ok((found, missing)),
            Err(error) => {
                found.abandon();
                Err(error)
            }
        }
    }

    fn find_frames(&mut self) -> Result<Vec<usize>> {
        let mut missing = vec![];
        for window in &mut self.windows {
            for frame in window.frames() {
                let mut is_lost = false;
                for image in Image::ALL {
                    let Some(number) = self.content.frame(image, frame) else { continue };
                    if !self.content.is_filled(image, frame) {
                        self.content.remove_frame(image, frame);
                        self.memory.forget_frame(number);
                    } else if !window.map_found(&self.memory, &self.content, image, frame)? {
                        self.content.remove_frame(image, frame);
                        is_lost = true;
                    }
                }
                missing.extend(is_lost.then_some(frame));
            }
        }
        Ok(missing)
    }

    /// Gives its addresses up, and leaves its frames to whoever finds them.
    pub(crate) fn abandon(mut self) {
        for window in std::mem::take(&mut self.windows) {
            window.abandon(&self.memory, &self.content);
        }
    }

    /// Where what has addresses ends.
    pub(crate) fn end(&self) -> u64 {
        self.windows.last().map_or(0, |window| window.bytes().end)
    }

    /// Whether a range lies in one window as a whole.
    pub(crate) fn has_addresses(&self, range: &Range<u64>) -> bool {
        let holds = |bytes: &Range<u64>| bytes.start <= range.start && range.end <= bytes.end;
        self.windows.iter().any(|window| holds(window.bytes()))
    }

    /// The bytes of windows in which a part of a range lies, and whether they are in use.
    pub(crate) fn windows_in(&self, range: &Range<u64>) -> Vec<(Range<u64>, bool)> {
        let range = self.bytes_of(&(range.start / self.frame_bytes..range.end.div_ceil(self.frame_bytes)));
        let is_in = |window: &&Window| !intersection(window.bytes(), &range).is_empty();
        self.windows.iter().filter(is_in).map(|window| (window.bytes().clone(), window.users > 0)).collect()
    }

    /// The bytes of a window for a range of the file, of `len` bytes, none of which has addresses.
    pub(crate) fn window_for(&self, range: &Range<u64>, len: u64) -> Range<u64> {
        bytes_for(range, len, self.frame_bytes, self.windows.iter().map(Window::bytes))
    }

    /// Gives some bytes addresses. Those that nobody uses, and that have no memory, go.
    pub(crate) fn add_window(&mut self, bytes: Range<u64>) -> Result<()> {
        let window = Window::new(&self.memory, bytes, self.frame_bytes)?;
        let (content, mut gone) = (&mut self.content, vec![]);
        self.windows.retain(|window| {
            let stays = window.is_in_use(content);
            gone.extend((!stays).then(|| window.bytes().clone()));
            stays
        });
        for bytes in &gone {
            content.remove_window(bytes);
        }
        content.add_window(window.bytes()).map_err(|error| {
            let detail = format!("no memory to keep account of frames: {error}");
            bifolio_device::Error::new(bifolio_device::ErrorKind::OutOfMemory, detail)
        })?;
        let at = self.windows.partition_point(|other| other.bytes().start < window.bytes().start);
        self.windows.insert(at, window);
        Ok(())
    }

    /// Takes the addresses of some bytes away, with what memory is there.
    pub(crate) fn remove_window(&mut self, bytes: &Range<u64>) {
        if let Some(at) = self.windows.iter().position(|window| window.bytes() == bytes) {
            let window = self.windows.remove(at);
            drain(window, &self.memory, self.owner, &mut self.content);
        }
    }

    /// Has one more user of the addresses of a byte, and says which that is.
    pub(crate) fn hold(&mut self, at: u64) -> DevicePtr {
        let window = self.window_mut((at / self.frame_bytes) as usize);
        window.users += 1;
        window.address(at)
    }

    /// Has one less. A client that has outlived the process which served it may say so of what that has ended already.
    pub(crate) fn let_go(&mut self, at: u64) {
        let window = self.window_mut((at / self.frame_bytes) as usize);
        window.users = window.users.saturating_sub(1);
    }

    /// Whether something of it is mapped.
    pub(crate) fn is_in_use(&self) -> bool {
        self.windows.iter().any(|window| window.users > 0)
    }

    /// All addresses of the window in which a byte of the mapping lies.
    ///
    /// # Safety
    /// Only parts that have memory are used, and only as long as the replica is there.
    pub(crate) unsafe fn all(&self, at: u64) -> DeviceSlice<'static> {
        // SAFETY: the caller's promise.
        unsafe { self.window((at / self.frame_bytes) as usize).all() }
    }

    /// Where a byte of the mapping lies among those.
    pub(crate) fn place(&self, at: u64) -> u64 {
        at - self.window((at / self.frame_bytes) as usize).bytes().start
    }

    /// Some bytes of one of the images, whose frames are there.
    pub(crate) fn slice(&self, image: Image, range: &Range<u64>) -> DeviceSlice<'_> {
        self.window((range.start / self.frame_bytes) as usize).slice(image, range)
    }

    /// Lets kernels of another device read some bytes of an image, in one window; false where they cannot.
    pub(crate) fn let_read(&self, image: Image, bytes: &Range<u64>, peer: &bifolio_device::Device) -> Result<bool> {
        self.window((bytes.start / self.frame_bytes) as usize).let_read(image, bytes, peer)
    }

    /// Those of some bytes that have addresses, window by window.
    pub(crate) fn pieces(&self, bytes: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let pieces = self.windows.iter().map(|window| intersection(window.bytes(), bytes));
        pieces.filter(|piece| !piece.is_empty())
    }

    /// The same for pages.
    pub(crate) fn pieces_of_pages(&self, pages: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let bytes = pages.start * self.page_bytes..pages.end * self.page_bytes;
        let pages = |bytes: Range<u64>| bytes.start / self.page_bytes..bytes.end / self.page_bytes;
        self.pieces(&bytes).map(pages).collect::<Vec<_>>().into_iter()
    }

    /// The window with a frame that has addresses.
    fn window(&self, frame: usize) -> &Window {
        &self.windows[self.window_at(frame)]
    }

    fn window_mut(&mut self, frame: usize) -> &mut Window {
        let at = self.window_at(frame);
        &mut self.windows[at]
    }

    fn window_at(&self, frame: usize) -> usize {
        self.windows.partition_point(|window| window.frames().end <= frame)
    }
}

/// Its frames.
impl Replica {
    /// Bytes of its frames.
    pub(crate) fn frame_bytes(&self) -> u64 {
        self.frame_bytes
    }

    pub(crate) fn has(&self, image: Image, frame: usize) -> bool {
        self.content.frame(image, frame).is_some()
    }

    /// The frame that has an image of a frame of the file.
    pub(crate) fn frame(&self, image: Image, frame: usize) -> Option<FrameNumber> {
        self.content.frame(image, frame)
    }

    /// The content of an image of a frame that was mapped anew has come.
    pub(crate) fn fill(&mut self, image: Image, frame: usize) {
        self.content.fill(image, frame);
    }

    /// Frames that hold bytes of a range.
    pub(crate) fn frames_of(&self, range: &Range<u64>) -> Range<usize> {
        (range.start / self.frame_bytes) as usize..range.end.div_ceil(self.frame_bytes) as usize
    }

    /// The bytes of some frames.
    pub(crate) fn bytes_of(&self, frames: &Range<u64>) -> Range<u64> {
        frames.start * self.frame_bytes..frames.end * self.frame_bytes
    }

    /// The frame that holds a page.
    pub(crate) fn frame_of(&self, page: u64) -> usize {
        (page * self.page_bytes / self.frame_bytes) as usize
    }

    /// The pages of a frame.
    pub(crate) fn pages_of(&self, frame: usize) -> Range<u64> {
        let first = frame as u64 * self.frame_bytes / self.page_bytes;
        first..first + self.frame_bytes / self.page_bytes
    }

    /// The bytes of those of some frames that have memory for an image, in runs.
    pub(crate) fn runs_with(&self, image: Image, frames: Range<usize>) -> Vec<Range<u64>> {
        let bytes = frames.start as u64..frames.end as u64;
        self.runs_where(&self.bytes_of(&bytes), |frame| self.has(image, frame))
    }

    /// Some bytes as of the latest release or fetch: from twins where frames have them, and from what kernels see where
    /// nobody writes, or will not before a twin that has memory already gets its content. Frames beside each other come at
    /// once.
    pub(crate) fn settled_images(&self, bytes: &Range<u64>) -> Vec<(Image, Range<u64>)> {
        let has_twin = |frame| self.content.is_filled(Image::Twin, frame);
        let of_image = |image: Image| {
            let runs = self.runs_where(bytes, |frame| has_twin(frame) == (image == Image::Twin));
            runs.into_iter().map(move |run| (image, intersection(&run, bytes)))
        };
        [Image::Twin, Image::Current].into_iter().flat_map(of_image).collect()
    }

    /// The bytes of frames that hold some bytes, where they are as asked for, in runs that end with a window.
    fn runs_where(&self, bytes: &Range<u64>, is: impl Fn(usize) -> bool) -> Vec<Range<u64>> {
        let mut all = Vec::new();
        for window in &self.windows {
            let here = intersection(window.bytes(), bytes);
            if !here.is_empty() {
                let frames = self.frames_of(&here).filter(|frame| is(*frame));
                all.extend(runs(frames.map(|frame| frame as u64)).iter().map(|run| self.bytes_of(run)));
            }
        }
        all
    }

    /// Maps memory where there is none yet; false if the budget is used up.
    pub(crate) fn map(&mut self, image: Image, frame: usize) -> Result<bool> {
        let at = self.window_at(frame);
        self.windows[at].map(&self.memory, self.owner, &mut self.content, image, frame)
    }

    /// Gives memory back that nobody uses.
    pub(crate) fn unmap(&mut self, image: Image, frame: usize) -> Result<()> {
        if !self.has(image, frame) {
            return Ok(());
        }
        let at = self.window_at(frame);
        // SAFETY: the work of every operation is waited for, and frames in use by kernels are pinned.
        unsafe { self.windows[at].unmap(&self.memory, self.owner, &mut self.content, image, frame) }
    }

    /// Another number whenever frames of what kernels see are others.
    pub(crate) fn edition(&self) -> u64 {
        self.content.edition()
    }

    /// Whether an image of a frame has its content.
    pub(crate) fn is_filled(&self, image: Image, frame: usize) -> bool {
        self.content.is_filled(image, frame)
    }

    /// A copy of an image of a frame, which is mapped nowhere; none if the budget is used up.
    pub(crate) fn copy_frame(&self, image: Image, frame: usize) -> Result<Option<NumberedFrame>> {
        self.memory.copy_frame(self.owner, self.slice(image, &self.bytes_of_frame(frame)))
    }

    /// Has kernels see that in the place of the frame, which is left to whoever sees it.
    pub(crate) fn exchange(&mut self, frame: usize, by: NumberedFrame) -> Result<()> {
        let at = self.window_at(frame);
        // SAFETY: as for what is unmapped.
        unsafe { self.windows[at].exchange(&self.memory, &mut self.content, frame, by) }
    }

    pub(crate) fn pin(&mut self, frames: Range<usize>) {
        for frame in frames {
            let state = self.window_mut(frame).state_mut(frame);
            state.pins += 1;
            state.uses = (state.uses + 1).min(USES_MAX);
        }
    }

    /// False if one of them was not pinned.
    pub(crate) fn unpin(&mut self, frames: Range<usize>) -> bool {
        let mut all = true;
        for frame in frames {
            let state = self.window_mut(frame).state_mut(frame);
            all &= state.pins > 0;
            state.pins = state.pins.saturating_sub(1);
        }
        all
    }

    /// Whether something of a frame is acquired.
    pub(crate) fn is_pinned(&self, frame: usize) -> bool {
        self.window(frame).state(frame).pins > 0
    }

    /// Whether a range has memory, and twins with content if it is to be written.
    pub(crate) fn is_ready(&self, range: &Range<u64>, writable: bool) -> bool {
        let is_ready =
            |frame: usize| self.has(Image::Current, frame) && (!writable || self.content.is_filled(Image::Twin, frame));
        self.has_addresses(range) && self.frames_of(range).all(is_ready)
    }

    /// The next frame to evict of those whose bytes are free: one that is not in use, and was used less than others since
    /// the hand last came by. A frame that was read once, in a scan, has one use; those of the working set come back with
    /// more.
    pub(crate) fn victim(&mut self, is_free: impl Fn(&Range<u64>) -> bool) -> Option<usize> {
        let idle = |(frame, state): &(usize, &FrameState)| {
            self.has(Image::Current, *frame) && state.pins == 0 && is_free(&self.bytes_of_frame(*frame))
        };
        let candidates: Vec<usize> = self.states().filter(idle).map(|(frame, _)| frame).collect();
        let first = candidates.partition_point(|frame| *frame < self.hand);
        let rounds = usize::from(USES_MAX) + 1;
        for frame in candidates.iter().cycle().skip(first).take(candidates.len() * rounds) {
            let state = self.window_mut(*frame).state_mut(*frame);
            if state.uses <= 1 {
                self.hand = frame + 1;
                return Some(*frame);
            }
            state.uses -= 1;
        }
        None
    }

    /// A frame with a twin that nobody needs: it is as the mapping is, where nothing is acquired, and can be made
    /// again by a copy on the device.
    pub(crate) fn frame_with_idle_twin(&self, is_free: impl Fn(&Range<u64>) -> bool) -> Option<usize> {
        let has = |image, frame: &usize| self.has(image, *frame);
        let is_idle = |(frame, state): &(usize, &FrameState)| {
            has(Image::Twin, frame) && !has(Image::Base, frame) && state.pins == 0
        };
        let is_free = |(frame, _): &(usize, &FrameState)| is_free(&self.bytes_of_frame(*frame));
        self.states().find(|state| is_idle(state) && is_free(state)).map(|(frame, _)| frame)
    }

    /// A frame with memory for bases.
    pub(crate) fn frame_with_base(&self, is_free: impl Fn(&Range<u64>) -> bool) -> Option<usize> {
        let has_base = |frame: &usize| self.has(Image::Base, *frame) && is_free(&self.bytes_of_frame(*frame));
        self.states().map(|(frame, _)| frame).find(has_base)
    }

    /// Whether a frame has memory whose bytes are so.
    pub(crate) fn has_memory_where(&self, is: impl Fn(&Range<u64>) -> bool) -> bool {
        self.states().any(|(frame, _)| self.has(Image::Current, frame) && is(&self.bytes_of_frame(frame)))
    }

    fn bytes_of_frame(&self, frame: usize) -> Range<u64> {
        self.bytes_of(&(frame as u64..frame as u64 + 1))
    }

    /// Frames with memory, of those that hold some bytes.
    pub(crate) fn mapped_frames(&self, bytes: &Range<u64>) -> Vec<usize> {
        let runs = self.runs_where(bytes, |frame| self.has(Image::Current, frame));
        runs.iter().flat_map(|run| self.frames_of(run)).collect()
    }

    /// All frames that have addresses.
    fn states(&self) -> impl Iterator<Item = (usize, &FrameState)> {
        self.windows.iter().flat_map(|window| window.frames().zip(&window.states))
    }

    /// Copies pages from one image to another, runs of them at once.
    pub(crate) fn copy(
        &self,
        stream: &Stream,
        pages: impl IntoIterator<Item = u64>,
        from: Image,
        to: Image,
    ) -> Result<()> {
        for run in runs(pages).iter().flat_map(|run| self.pieces_of_pages(run)) {
            let bytes = run.start * self.page_bytes..run.end * self.page_bytes;
            // SAFETY: both images have memory there, which stays until the stream is waited for.
            unsafe { stream.copy_on_device(self.slice(to, &bytes), self.slice(from, &bytes)) }?;
        }
        Ok(())
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if !self.memory.device.is_alive() {
            // Nothing of what a program has reset may be given back.
            std::mem::forget((std::mem::take(&mut self.windows), Arc::clone(&self.memory)));
            return;
        }
        for window in std::mem::take(&mut self.windows) {
            drain(window, &self.memory, self.owner, &mut self.content);
        }
    }
}

/// Gives the memory of a window back, before it goes.
fn drain(mut window: Window, memory: &Memory, owner: Owner, content: &mut Content) {
    for frame in window.frames() {
        for image in Image::ALL {
            // SAFETY: as for what is unmapped by itself. Of a device that takes no memory back there is none to give.
            let _ = unsafe { window.unmap(memory, owner, content, image, frame) };
        }
    }
    content.remove_window(window.bytes());
}

/// Bytes of a replica's frames: as many as keep eviction fine, as memory costs by the frame.
fn frame_bytes_for(budget_bytes: u64, len: u64) -> u64 {
    let most = (budget_bytes / 64).min(len / 16).clamp(FRAME_BYTES, FRAME_BYTES_MAX);
    1 << most.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_long_where_there_is_room_for_many() {
        assert_eq!(frame_bytes_for(64 << 20, 1 << 40), FRAME_BYTES);
        assert_eq!(frame_bytes_for(70 << 30, 8 << 30), FRAME_BYTES_MAX);
        assert_eq!(frame_bytes_for(70 << 30, 1 << 40), FRAME_BYTES_MAX);
        assert_eq!(frame_bytes_for(70 << 30, 5_000), FRAME_BYTES);
        assert_eq!(frame_bytes_for(1 << 30, 1 << 30), 16 << 20);
        assert_eq!(frame_bytes_for(70 << 30, 100_000_000), 4 << 20);
    }
}
