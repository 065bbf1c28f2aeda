//! Who holds the descriptors of regions and frames, so that they outlive the process that works with them.

use super::lease::Client;
use super::replicas::{FRAME_NUMBER_MAX, FrameNumber};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A file, as regions know it: device and inode.
pub type FileId = (u64, u64);

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
}

/// Numbers for a device's frames, and who keeps them.
#[derive(Debug)]
pub(crate) struct Keeping {
    /// With the number of the device.
    keeper: Option<(Arc<dyn Keeper>, usize)>,
    last: AtomicU32,
    /// Those of a process that has ended which nobody has asked for.
    left: Mutex<BTreeSet<FrameNumber>>,
    /// Those that other processes have been given, and which; nobody in particular, where one that has ended may have done it.
    lent: Mutex<BTreeMap<FrameNumber, BTreeSet<Client>>>,
}

/// Of whom it is not known.
const SOMEBODY: Client = 0;

impl Keeping {
    /// Frames end with the process.
    pub(crate) fn by_nobody() -> Self {
        Self { keeper: None, last: AtomicU32::new(0), left: Mutex::default(), lent: Mutex::default() }
    }

    /// Numbers go on behind those that are kept.
    pub(crate) fn by(keeper: Arc<dyn Keeper>, device: usize) -> Self {
        let left: BTreeSet<FrameNumber> = keeper.frames(device).into_iter().collect();
        let last = AtomicU32::new(keeper.last_frame(device));
        Self { keeper: Some((keeper, device)), last, left: Mutex::new(left), lent: Mutex::default() }
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
        self.lent().entry(number).or_default().insert(SOMEBODY);
        keeper.frame(*device, number)
    }

    /// The same, for another process.
    pub(crate) fn lend(&self, number: FrameNumber, client: Client) -> Option<(u64, OwnedFd)> {
        let (keeper, device) = self.keeper.as_ref()?;
        self.lent().entry(number).or_default().insert(client);
        keeper.frame(*device, number)
    }

    /// Whether another process may have it.
    pub(crate) fn is_lent(&self, number: FrameNumber) -> bool {
        self.keeper.is_some() && self.lent().contains_key(&number)
    }

    /// Whether this client may have it.
    pub(crate) fn is_lent_to(&self, number: FrameNumber, client: Client) -> bool {
        let lent = self.lent();
        lent.get(&number).is_some_and(|clients| clients.contains(&client) || clients.contains(&SOMEBODY))
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
        for number in left {
            self.forget(number);
        }
    }

    fn lent(&self) -> MutexGuard<'_, BTreeMap<FrameNumber, BTreeSet<Client>>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self) -> MutexGuard<'_, BTreeSet<FrameNumber>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
