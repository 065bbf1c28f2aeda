//! Between a mapping and the state of its file: the place where another process may begin, as with `bifolio-daemon`.
//!
//! ```text
//!   Mapping ── Service    what happens to the content: requests and answers of numbers alone
//!      |          local     in this process: the file's directory
//!      |          wire      as bytes, for tests: nothing but numbers crosses
//!      |
//!      '──── Addresses    where the content is seen: a window of a device
//!                 served    the window of who serves, in this process
//!                 apart     one of the mapping's own, which shows frames by their numbers
//! ```
//!
//! Content is in frames, which have numbers; a service says which frames a part of a file is in, of what kernels see and
//! nothing else: twins and bases are nobody's but its own. Who has a window of his own shows these frames there, and
//! looks again after each acquire: a frame may have gone, and come back as another.

pub(crate) mod apart;
mod lend;
mod local;
#[cfg(feature = "fault-injection")]
pub(crate) mod wire;

pub use apart::Lender;

use crate::error::Result;
use crate::page::Device;
use crate::state::lease::{Client, LeaseNumber};
use crate::state::replicas::FrameNumber;
use crate::stats::Report;
use bifolio_device::DevicePtr;
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::ops::Range;

/// What a mapping asks for. Ranges are bytes of the file. What begins something numbers it, and what ends it names that
/// number: asked again, either does nothing more.
#[allow(missing_docs, reason = "fields are what the text of each request calls them")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Maps a range, up to the end of the file.
    Map { lease: LeaseNumber, device: Device, range: Range<u64> },
    /// Ends a mapping: what it has acquired and not released is taken back.
    Unmap { lease: LeaseNumber, device: Device, acquired: Vec<LeaseNumber>, writable: bool },
    /// Brings a range up to date.
    Acquire { lease: LeaseNumber, device: Device, range: Range<u64>, writable: bool },
    /// Publishes what has changed in a range that was acquired.
    Release { lease: LeaseNumber, device: Device, range: Range<u64>, writable: bool },
    /// Publishes what has changed in ranges that stay acquired, and makes everything that was released durable.
    Sync { device: Device, acquired: Vec<LeaseNumber> },
    /// Brings a range in the background.
    Bring { device: Device, range: Range<u64>, writable: bool },
    /// Gives memory back that is not in use.
    GiveBack { device: Device, range: Range<u64> },
    /// Keeps the memory of a range where it is.
    Pin { lease: LeaseNumber, device: Device, range: Range<u64> },
    /// Does not any more.
    Unpin { lease: LeaseNumber },
    /// Which frames a range is in, as it was acquired under a number.
    Frames { lease: LeaseNumber, device: Device, range: Range<u64> },
}

impl Request {
    /// The device that it is about.
    fn device(&self) -> Option<Device> {
        match self {
            Self::Map { device, .. }
            | Self::Unmap { device, .. }
            | Self::Acquire { device, .. }
            | Self::Release { device, .. }
            | Self::Sync { device, .. }
            | Self::Bring { device, .. }
            | Self::GiveBack { device, .. }
            | Self::Pin { device, .. }
            | Self::Frames { device, .. } => Some(*device),
            Self::Unpin { .. } => None,
        }
    }
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Done,
    /// It is done, and this has happened to pages.
    Reported(Report),
    /// It is acquired, and this has happened to pages.
    Acquired {
        /// That.
        report: Report,
        /// As long as this number comes back, the frames of the device are the same that they were; 0 if that is not known.
        edition: u64,
    },
    /// What is mapped, and where its first byte is in the process that serves it.
    Mapped {
        /// The bytes of the file.
        range: Range<u64>,
        /// Of its first byte; 0 where nobody can use it.
        address: u64,
    },
    /// From which byte of the file on which frame lies.
    Frames {
        /// How long frames are.
        frame_bytes: u64,
        /// In the order of bytes.
        frames: Vec<(u64, FrameNumber)>,
    },
}

/// Who has the state of a file.
pub trait Service: Debug + Send + Sync {
    /// Does what is asked for.
    ///
    /// # Errors
    /// Those of what was asked for: nothing was begun then.
    fn ask(&self, client: Client, request: Request) -> Result<Answer>;
}

/// Where a mapping is seen.
pub trait Addresses: Debug + Send + Sync {
    /// The address of its first byte.
    fn ptr(&self) -> DevicePtr;

    /// A part of the file was acquired under a number: from now on it is seen there. The edition is that of its frames.
    ///
    /// # Errors
    /// `Device`, and those of the service.
    fn show(&self, service: &dyn Service, lease: LeaseNumber, part: &Range<u64>, edition: u64) -> Result<()>;

    /// What was shown under a number is not used under it any more.
    fn end_use(&self, _: LeaseNumber) {}

    /// A part that was acquired is used under another number as well.
    fn use_too(&self, _: LeaseNumber, _: &Range<u64>) {}

    /// Memory of a part goes that is only there as it was shown, and neither acquired nor pinned.
    ///
    /// # Errors
    /// `Device`.
    fn hide(&self, _: &Range<u64>) -> Result<()> {
        Ok(())
    }

    /// Bytes of memory that is shown.
    fn shown_bytes(&self) -> u64 {
        0
    }

    /// The same as `hide` of a part that is old by now, at once or when it is not used any more.
    fn note_old(&self, _: &Range<u64>) {}
}

/// Those of who serves, in whose process the mapping is.
#[derive(Debug)]
pub(crate) struct Served(pub(crate) DevicePtr);

impl Addresses for Served {
    fn ptr(&self) -> DevicePtr {
        self.0
    }

    fn show(&self, _: &dyn Service, _: LeaseNumber, _: &Range<u64>, _: u64) -> Result<()> {
        Ok(())
    }
}
