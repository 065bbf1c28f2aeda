//! Storage to device without host memory, where the driver reports a real direct path.
//!
//! The router asks a [`P2pDriver`] and never assumes: cuFile's compatibility mode looks like
//! success but goes through host memory, so it is no direct path.

use crate::job::Job;
use crate::plan::EngineKind;
use crate::{ErrorKind, OpenFile};
use bifolio_device::{Device, DeviceSlice, DirectFile, DirectStorage};
use std::fmt::Debug;
use std::io;
use std::sync::Arc;

/// One call to the driver.
const READ_BYTES: u64 = 16 << 20;

/// A driver for transfers between storage and device memory.
pub trait P2pDriver: Send + Sync + Debug {
    /// Whether this file has a real direct path to the device: the alignment of offsets and
    /// lengths in bytes, or the reason why not.
    fn path_to(&self, file: &OpenFile) -> Result<u64, String>;

    /// Reads `place.len()` bytes at `offset` into device memory; may be short, 0 at the end of
    /// the file. Returns when the bytes are in place.
    fn read(&self, file: &OpenFile, offset: u64, place: DeviceSlice) -> io::Result<u64>;
}

/// The direct path of a device's own driver.
#[derive(Debug)]
pub(crate) struct DevicePath {
    storage: DirectStorage,
}

impl DevicePath {
    /// The driver of `device`, where it reports a direct path.
    pub(crate) fn of(device: &Device) -> Option<Self> {
        let offered = device.capabilities().direct_storage.is_yes();
        if offered { device.direct_storage().ok().map(|storage| Self { storage }) } else { None }
    }

    fn attach(&self, file: &OpenFile) -> Result<DirectFile, String> {
        let direct = file.direct()?.file.try_clone().map_err(|error| error.to_string())?;
        self.storage.attach(direct.into()).map_err(|error| error.to_string())
    }

    fn attached<'a>(&self, file: &'a OpenFile) -> Result<&'a DirectFile, String> {
        file.direct_path.get_or_init(|| self.attach(file)).as_ref().map_err(Clone::clone)
    }
}

impl P2pDriver for DevicePath {
    fn path_to(&self, file: &OpenFile) -> Result<u64, String> {
        self.attached(file).map(DirectFile::alignment)
    }

    fn read(&self, file: &OpenFile, offset: u64, place: DeviceSlice) -> io::Result<u64> {
        let attached = self.attached(file).map_err(io::Error::other)?;
        // SAFETY: the request owns its destination until it returns, and so until this call does.
        unsafe { attached.read(offset, place) }
    }
}

/// Moves the job's p2p segments on the calling thread.
pub(crate) fn run(job: &Arc<Job>, driver: &dyn P2pDriver) {
    for (number, segment) in job.segments_of(EngineKind::P2p) {
        job.begin_segment(number);
        let end = segment.offset + segment.length;
        let mut at = segment.offset;
        while at < end && !job.is_stopped() {
            match job
                .place(at, (end - at).min(READ_BYTES))
                .and_then(|place| driver.read(&job.file, at, place).map_err(|error| job.read_error(error, at)))
            {
                Ok(0) => {
                    job.fail(job.error(ErrorKind::Truncated, "the file was truncated while it was being read").at(at))
                }
                Ok(read) => {
                    job.end_piece(number, read);
                    at += read;
                }
                Err(error) => job.fail(error),
            }
        }
    }
    job.end_engine(EngineKind::P2p);
}
