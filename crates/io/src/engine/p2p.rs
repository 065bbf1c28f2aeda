//! Storage to device without host memory, where the driver reports a real direct path.
//!
//! The router asks a [`P2pDriver`] and never assumes: cuFile's compatibility mode looks like
//! success but goes through host memory, so it is no direct path.

use super::Engine;
use super::feed::{Feed, Pace};
use super::job::Job;
use crate::ErrorKind;
use crate::file::{Attachment, Keeper, Kept, PlainFile};
use crate::kind::EngineKind;
use bifolio_device::{Device, DeviceId, DeviceSlice, DirectFile, DirectStorage};
use std::fmt::Debug;
use std::io;
use std::sync::{Arc, OnceLock};

/// One call to the driver.
const READ_BYTES: u64 = 16 << 20;

/// A driver for transfers between storage and device memory.
pub trait P2pDriver: Send + Sync + Debug {
    /// Whether this file has a real direct path to the device: the alignment of offsets and
    /// lengths in bytes, or the reason why not.
    fn path_to(&self, file: &PlainFile) -> Result<u64, String>;

    /// Reads `place.len()` bytes at `offset` into device memory; may be short, 0 at the end of
    /// the file. Returns when the bytes are in place.
    fn read(&self, file: &PlainFile, offset: u64, place: DeviceSlice<'_>) -> io::Result<u64>;
}

/// The direct path of a device's own driver.
#[derive(Debug)]
pub(crate) struct DevicePath {
    device: DeviceId,
    storage: DirectStorage,
}

/// A file as the driver of one device's direct path knows it, or why it does not; attached when first asked for.
#[derive(Debug, Default)]
struct DirectPath(OnceLock<Result<(DeviceId, DirectFile), String>>);

impl Attachment for DirectPath {}

impl Kept for DirectPath {
    const KEEPER: Keeper = Keeper::P2p;
}

impl DevicePath {
    /// The driver of `device`, where it reports a direct path.
    pub(crate) fn of(device: &Device) -> Option<Self> {
        let offered = device.capabilities().direct_storage.is_yes();
        if offered { device.direct_storage().ok().map(|storage| Self { device: device.id(), storage }) } else { None }
    }

    fn attach(&self, file: &PlainFile) -> Result<DirectFile, String> {
        let direct = file.direct()?.file.try_clone().map_err(|error| error.to_string())?;
        self.storage.attach(direct.into()).map_err(|error| error.to_string())
    }

    fn attached<'a>(&self, file: &'a PlainFile) -> Result<&'a DirectFile, String> {
        let attached = file.kept::<DirectPath>().0.get_or_init(|| Ok((self.device, self.attach(file)?)));
        match attached {
            Ok((device, file)) if *device == self.device => Ok(file),
            Ok((device, _)) => Err(format!("the file is open on the direct path of {device}")),
            Err(reason) => Err(reason.clone()),
        }
    }
}

impl P2pDriver for DevicePath {
    fn path_to(&self, file: &PlainFile) -> Result<u64, String> {
        self.attached(file).map(DirectFile::alignment)
    }

    fn read(&self, file: &PlainFile, offset: u64, place: DeviceSlice<'_>) -> io::Result<u64> {
        let attached = self.attached(file).map_err(io::Error::other)?;
        // SAFETY: the request owns its destination until it returns, and so until this call does.
        unsafe { attached.read(offset, place) }
    }
}

/// The engine on one job.
#[derive(Debug)]
pub(crate) struct P2p {
    job: Arc<Job>,
    feed: Feed,
    driver: Arc<dyn P2pDriver>,
}

impl P2p {
    pub(crate) fn new(job: &Arc<Job>, driver: Option<&Arc<dyn P2pDriver>>) -> crate::Result<Self> {
        let missing = || job.error(ErrorKind::NoEngine, "no driver reports a direct path");
        let driver = Arc::clone(driver.ok_or_else(missing)?);
        let feed = Feed::new(job.slot_limits(), 1, Pace::Whole);
        Ok(Self { job: Arc::clone(job), feed, driver })
    }

    fn read(&self, number: usize, offset: u64, len: u64) -> crate::Result<u64> {
        let place = self.job.place(number, offset, len)?;
        let read = self.driver.read(&self.job.file, offset, place);
        let read = read.map_err(|error| self.job.read_error(error, offset))?;
        if read == 0 {
            let error = self.job.error(ErrorKind::Truncated, "the file was truncated during the read");
            return Err(error.at(offset));
        }
        self.job.end_piece(number, read);
        Ok(read)
    }
}

impl Engine for P2p {
    fn feed(&self) -> &Feed {
        &self.feed
    }

    fn threads(&self, _bytes: u64) -> usize {
        1
    }

    fn work(&self) {
        while let Some((number, segment)) = self.feed.wait_segment() {
            self.job.begin_segment(number);
            let (mut at, end) = (segment.offset, segment.offset + segment.length);
            while at < end && !self.job.is_stopped() {
                match self.read(number, at, (end - at).min(READ_BYTES)) {
                    Ok(read) => at += read,
                    Err(error) => self.job.fail(error),
                }
            }
        }
    }

    fn finish(&self) {
        self.job.end_engine(EngineKind::P2p);
    }
}
