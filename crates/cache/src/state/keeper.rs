//! Who holds the descriptors of regions and frames, so that they outlive the process that works with them.

use super::lease::{Client, LeaseNumber};
use super::replicas::{FRAME_NUMBER_MAX, FrameNumber};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A file, as regions know it: device and inode.
pub type FileId = (u64, u64);

/// Who sees a frame in the place of the one that its file has there by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reader {
    /// The client.
    pub client: Client,
    /// Its number for what it has acquired.
    pub lease: LeaseNumber,
    /// From which byte of the file on the frame lies.
    pub at: u64,
}

/// Holds descriptors, in another process as a rule. It never looks into what they are of.
///
/// What is kept is kept when the call returns: the next thing that happens may be the end of the process.
pub trait Keeper: fmt::Debug + Send + Sync {
    /// Keeps a file's region.
    fn keep_region(&self, file: FileId, region: OwnedFd) -> io::Result<()>;

    /// The region of a file that was kept and not dropped.
    fn region(&self, file: FileId) -> Option<OwnedFd>;

    /// Nobody has the file open any more, and all that was released of it is in it.
    fn drop_region(&self, file: FileId);

    /// Keeps a frame of `bytes` bytes of a device of the cache, under its number.
    fn keep_frame(&self, device: usize, number: u32, bytes: u64, frame: OwnedFd) -> io::Result<()>;

    /// One that was kept and not dropped.
    fn frame(&self, device: usize, number: u32) -> Option<(u64, OwnedFd)>;

    /// The frame is used no more.
    fn drop_frame(&self, device: usize, number: u32);

    /// The numbers of a device's frames that are kept.
    fn frames(&self, device: usize) -> Vec<u32>;

    /// The largest number that a frame of a device has had, kept or not: who has mapped one that is gone must not take
    /// another for it.
    fn last_frame(&self, device: usize) -> u32 {
        self.frames(device).into_iter().max().unwrap_or(0)
    }

    /// Whether a client that has leases is still there. Those of others end when a region is found again.
    fn is_alive(&self, client: Client) -> bool;

    /// A frame is left to somebody who has acquired the version of the file that is in it.
    fn leave_frame(&self, device: usize, number: u32, reader: Reader) -> io::Result<()> {
        let _ = (device, number, reader);
        Ok(())
    }

    /// He does not need it any more.
    fn end_left(&self, device: usize, number: u32, reader: Reader) {
        let _ = (device, number, reader);
    }

    /// A device's frames that are left to somebody, and to whom.
    fn left_frames(&self, device: usize) -> Vec<(u32, Reader)> {
        let _ = device;
        vec![]
    }
}

/// Numbers for a device's frames, and who keeps them.
#[derive(Debug)]
pub(crate) struct Keeping {
    /// With the number of the device.
    keeper: Option<(Arc<dyn Keeper>, usize)>,
    last: AtomicU32,
    /// Those of a process that has ended which nobody has asked for.
    left: Mutex<BTreeSet<FrameNumber>>,
    /// Those of them that readers see, whom nobody has asked for.
    readers: Mutex<BTreeSet<(FrameNumber, Reader)>>,
    /// Those that another process has been given, or may have been by the one that has ended.
    lent: Mutex<BTreeSet<FrameNumber>>,
}

impl Keeping {
    /// Frames end with the process.
    pub(crate) fn by_nobody() -> Self {
        let (left, readers) = (Mutex::default(), Mutex::default());
        Self { keeper: None, last: AtomicU32::new(0), left, readers, lent: Mutex::default() }
    }

    /// Numbers go on behind those that are kept.
    pub(crate) fn by(keeper: Arc<dyn Keeper>, device: usize) -> Self {
        let left: BTreeSet<FrameNumber> = keeper.frames(device).into_iter().collect();
        let last = AtomicU32::new(keeper.last_frame(device));
        let readers = Mutex::new(keeper.left_frames(device).into_iter().collect());
        Self { keeper: Some((keeper, device)), last, left: Mutex::new(left), readers, lent: Mutex::default() }
    }

    pub(crate) fn is_by_somebody(&self) -> bool {
        self.keeper.is_some()
    }

    /// A number for a new frame, whose descriptor is asked for if somebody keeps it.
    ///
    /// # Errors
    /// It cannot be exported, or kept: then nothing may be put into it that has to outlive the process.
    pub(crate) fn keep(
        &self,
        bytes: u64,
        export: impl FnOnce() -> bifolio_device::Result<OwnedFd>,
    ) -> bifolio_device::Result<FrameNumber> {
        // A process makes no two thousand million frames.
        let number = (self.last.fetch_add(1, Ordering::Relaxed) % FRAME_NUMBER_MAX) + 1;
        if let Some((keeper, device)) = &self.keeper {
            keeper.keep_frame(*device, number, bytes, export()?).map_err(|error| {
                let detail = format!("the keeper of frames does not take one of {bytes} bytes: {error}");
                bifolio_device::Error::new(bifolio_device::ErrorKind::System, detail)
            })?;
        }
        Ok(number)
    }

    /// A frame that was kept.
    pub(crate) fn find(&self, number: FrameNumber) -> Option<(u64, OwnedFd)> {
        let (keeper, device) = self.keeper.as_ref()?;
        self.left().remove(&number);
        self.lent().insert(number);
        keeper.frame(*device, number)
    }

    /// The same, for another process.
    pub(crate) fn lend(&self, number: FrameNumber) -> Option<(u64, OwnedFd)> {
        let (keeper, device) = self.keeper.as_ref()?;
        self.lent().insert(number);
        keeper.frame(*device, number)
    }

    /// Whether another process may have it.
    pub(crate) fn is_lent(&self, number: FrameNumber) -> bool {
        self.keeper.is_some() && self.lent().contains(&number)
    }

    /// Leaves a frame to who sees it.
    pub(crate) fn leave(&self, number: FrameNumber, reader: Reader) -> io::Result<()> {
        self.keeper.as_ref().map_or(Ok(()), |(keeper, device)| keeper.leave_frame(*device, number, reader))
    }

    /// He sees it no longer.
    pub(crate) fn end_left(&self, number: FrameNumber, reader: Reader) {
        if let Some((keeper, device)) = &self.keeper {
            keeper.end_left(*device, number, reader);
        }
    }

    /// Which frame another process has left to somebody, of those who have acquired something: none is told of twice.
    pub(crate) fn take_readers(&self, is_there: impl Fn(&Reader) -> bool) -> Vec<(FrameNumber, Reader)> {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let found: Vec<_> = readers.iter().filter(|(_, reader)| is_there(reader)).copied().collect();
        for found in &found {
            readers.remove(found);
        }
        found
    }

    /// A frame is no more.
    pub(crate) fn forget(&self, number: FrameNumber) {
        if let Some((keeper, device)) = &self.keeper {
            self.left().remove(&number);
            self.lent().remove(&number);
            keeper.drop_frame(*device, number);
        }
    }

    /// Nobody will ask for those that nobody has asked for.
    pub(crate) fn forget_left(&self) {
        let left = std::mem::take(&mut *self.left());
        for (number, reader) in self.take_readers(|_| true) {
            self.end_left(number, reader);
        }
        for number in left {
            self.forget(number);
        }
    }

    fn lent(&self) -> MutexGuard<'_, BTreeSet<FrameNumber>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self) -> MutexGuard<'_, BTreeSet<FrameNumber>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
