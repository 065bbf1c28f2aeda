//! Storage to device without host memory, where the driver reports a real direct path.
//!
//! The router asks a [`P2pDriver`] and never assumes: cuFile's compatibility mode looks like
//! success but goes through host memory, so it is no direct path.

use crate::job::Job;
use crate::plan::EngineKind;
use crate::{ErrorKind, OpenFile};
use bifolio_device::DeviceSlice;
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
