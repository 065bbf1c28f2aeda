//! A window of a mapping's own: frames of what kernels see are imported by their numbers, and mapped where the mapping
//! likes.

use super::{Addresses, Answer, Request, Service};
use crate::error::{Error, ErrorKind, Result};
use crate::state::lease::LeaseNumber;
use crate::state::replicas::FrameNumber;
use bifolio_device::{Access, AddressRange, Device, DevicePtr, FRAME_BYTES};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who lends frames to a window.
pub trait Lender: Debug + Send + Sync {
    /// The descriptor of a frame, and how many bytes it has, in which the bytes of the file lie from `at` on, which are
    /// acquired; none if it is not that frame by now.
    ///
    /// # Errors
    /// It is not lent.
    fn lend(&self, device: usize, at: u64, number: FrameNumber) -> Result<Option<(u64, OwnedFd)>>;
}

impl Shown {
    /// Whether frames are shown as the device has them in this edition.
    fn is_known(&self, mut places: impl Iterator<Item = u64>, edition: u64) -> bool {
        edition != 0 && edition == self.edition && places.all(|at| self.known.contains(&at))
    }

    fn know(&mut self, places: impl Iterator<Item = u64>, edition: u64) {
        if edition != self.edition {
            (self.edition, self.known) = (edition, BTreeSet::new());
        }
        self.known.extend(places.filter(|at| self.frames.contains_key(at)));
    }
}

/// Parts that are old by now and still used, which are known one by one.
const OLD_MAX: usize = 64;

/// How often frames are asked for that are others when their descriptors are.
const TRIES_MAX: usize = 100;

#[derive(Debug)]
pub(crate) struct Apart {
    lender: Arc<dyn Lender>,
    number: usize,
    device: Device,
    range: Range<u64>,
    /// Bytes of the file from the first frame on.
    first: u64,
    frame_bytes: u64,
    addresses: AddressRange,
    shown: Mutex<Shown>,
}

/// What is shown.
#[derive(Debug, Default)]
struct Shown {
    /// By the byte of the file from which on it lies.
    frames: BTreeMap<u64, FrameNumber>,
    /// Of the frames of the device, and which of those are shown that it has.
    edition: u64,
    known: BTreeSet<u64>,
    /// Parts of the file that are acquired or pinned: nothing of them goes.
    uses: BTreeMap<LeaseNumber, Range<u64>>,
    /// Those of which the file has other content by now: they go with their last use.
    old: Vec<Range<u64>>,
}

impl Apart {
    /// Addresses for a range of a file on the cache's device with a number.
    pub(crate) fn new(
        device: &Device,
        number: usize,
        range: &Range<u64>,
        lender: Arc<dyn Lender>,
        service: &dyn Service,
    ) -> Result<Self> {
        let (frame_bytes, _) = frames(service, 0, number, range)?;
        if frame_bytes == 0 || !frame_bytes.is_multiple_of(FRAME_BYTES) || range.end > i64::MAX as u64 {
            let detail = format!("frames of {frame_bytes} bytes for a file of {} at least", range.end);
            return Err(Error::new(ErrorKind::BadUse, "mapping", detail));
        }
        let first = range.start / frame_bytes * frame_bytes;
        let len = range.end.next_multiple_of(frame_bytes) - first;
        let addresses = device.reserve(len).map_err(|error| Error::device("mapping", error))?;
        let (device, range) = (device.clone(), range.clone());
        Ok(Self { lender, number, device, range, first, frame_bytes, addresses, shown: Mutex::default() })
    }

    /// Whether it is shown: it may be another one by now.
    fn show_frame(&self, at: u64, number: FrameNumber) -> Result<bool> {
        if self.shown().frames.get(&at) == Some(&number) {
            return Ok(true);
        }
        let Some((bytes, descriptor)) = self.lender.lend(self.number, at, number)? else { return Ok(false) };
        let frame = self.device.import_frame_of(descriptor, bytes).map_err(failed)?;
        // One part is shown after the other: nobody else has shown it meanwhile.
        let (mut shown, place) = (self.shown(), at - self.first);
        shown.known.remove(&at);
        if shown.frames.remove(&at).is_some() {
            // SAFETY: kernels on the part have come to their end before it is acquired again.
            unsafe { self.addresses.unmap(place) }.map_err(failed)?;
        }
        self.addresses.map(place, &frame, Access::ReadWrite).map_err(failed)?;
        shown.frames.insert(at, number);
        Ok(true)
    }

    /// Unmaps frames of a part that nobody uses.
    fn hide_unused(&self, shown: &mut Shown, part: &Range<u64>) -> Result<()> {
        let is_in = |at: u64, part: &Range<u64>| at < part.end && part.start < at + self.frame_bytes;
        let is_used = |at: u64| shown.uses.values().any(|used| is_in(at, used));
        let hidden: Vec<u64> = shown.frames.keys().copied().filter(|at| is_in(*at, part) && !is_used(*at)).collect();
        for at in hidden {
            // SAFETY: nothing of it is acquired or pinned, and so nothing of it is used by a kernel.
            unsafe { self.addresses.unmap(at - self.first) }.map_err(failed)?;
            shown.frames.remove(&at);
            shown.known.remove(&at);
        }
        Ok(())
    }

    /// From which bytes of the file on the frames of a part lie.
    fn places(&self, part: &Range<u64>) -> impl Iterator<Item = u64> {
        let frame_bytes = self.frame_bytes;
        (part.start / frame_bytes..part.end.div_ceil(frame_bytes)).map(move |frame| frame * frame_bytes)
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(error: bifolio_device::Error) -> Error {
    Error::device("mapping", error)
}

impl Addresses for Apart {
    fn ptr(&self) -> DevicePtr {
        // SAFETY: only the address is used.
        unsafe { self.addresses.slice() }.ptr().offset_by(self.range.start - self.first)
    }

    fn show(&self, service: &dyn Service, lease: LeaseNumber, part: &Range<u64>, edition: u64) -> Result<()> {
        // Nobody takes away what is being shown.
        self.use_too(lease, part);
        if self.shown().is_known(self.places(part), edition) {
            return Ok(());
        }
        let shown = self.show_all(service, lease, part);
        if shown.is_ok() {
            self.shown().know(self.places(part), edition);
        }
        if shown.is_err() {
            self.end_use(lease);
        }
        shown
    }

    fn use_too(&self, lease: LeaseNumber, part: &Range<u64>) {
        self.shown().uses.insert(lease, part.clone());
    }

    fn end_use(&self, lease: LeaseNumber) {
        let mut shown = self.shown();
        let Some(part) = shown.uses.remove(&lease) else { return };
        let meets = |old: &Range<u64>| old.start < part.end && part.start < old.end;
        let (ended, old) = std::mem::take(&mut shown.old).into_iter().partition(meets);
        shown.old = old;
        for part in ended {
            // What cannot be given back now is shown until something else is, or to the end.
            let _ = self.hide_unused(&mut shown, &part);
            if shown.uses.values().any(|used| used.start < part.end && part.start < used.end) {
                shown.old.push(part);
            }
        }
    }

    fn hide(&self, part: &Range<u64>) -> Result<()> {
        self.hide_unused(&mut self.shown(), part)
    }

    fn note_old(&self, part: &Range<u64>) {
        let mut shown = self.shown();
        let _ = self.hide_unused(&mut shown, part);
        // Also of what is about to be shown.
        if shown.old.len() == OLD_MAX {
            shown.old = vec![0..u64::MAX];
        } else if !shown.old.contains(part) {
            shown.old.push(part.clone());
        }
    }

    fn shown_bytes(&self) -> u64 {
        self.shown().frames.len() as u64 * self.frame_bytes
    }
}

impl Apart {
    fn show_all(&self, service: &dyn Service, lease: LeaseNumber, part: &Range<u64>) -> Result<()> {
        let all = self.first..self.first + self.addresses.len();
        let bad = |detail: String| Error::new(ErrorKind::BadUse, "mapping", detail);
        // A frame of what is acquired stays. Others that are written at this moment are shared, and may be exchanged.
        for _ in 0..TRIES_MAX {
            let (_, frames) = frames(service, lease, self.number, part)?;
            if let Some((at, _)) = frames.iter().find(|(at, _)| !all.contains(at)) {
                return Err(bad(format!("nothing is mapped at byte {at}")));
            }
            let mut is_all = true;
            for (at, number) in frames {
                is_all &= self.show_frame(at, number)?;
            }
            if is_all {
                return Ok(());
            }
        }
        Err(bad(format!("frames of bytes {} to {} are others whenever they are asked for", part.start, part.end)))
    }
}

fn frames(
    service: &dyn Service,
    lease: LeaseNumber,
    device: usize,
    range: &Range<u64>,
) -> Result<(u64, Vec<(u64, FrameNumber)>)> {
    match service.ask(0, Request::Frames { lease, device, range: range.clone() })? {
        Answer::Frames { frame_bytes, frames } => Ok((frame_bytes, frames)),
        _ => Err(Error::new(ErrorKind::BadUse, "mapping", "frames were asked for, and something else was answered")),
    }
}
