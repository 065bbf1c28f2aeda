//! What the directory decides and its copies carry out.

use crate::page::{Device, Home};
use crate::state::record::RecordNumber;
use std::ops::Range;

/// Runs of pages that are shorter than this are read together.
const BATCHED_BYTES_MAX: u64 = 256 << 10;

/// Bytes of the file, and where they go.
pub(crate) type Extent = (Range<u64>, u64);

/// Whether runs are too short to be read one by one.
pub(crate) fn is_scattered(runs: usize, bytes: u64) -> bool {
    runs > 1 && bytes / (runs as u64) < BATCHED_BYTES_MAX
}

/// What a fetch does with pages and frames, each in ascending order.
#[derive(Debug, Default)]
pub(crate) struct FetchPlan {
    /// Pages that are read to their places, and of those the ones of which the device had something.
    pub(crate) direct: Vec<u64>,
    pub(crate) held: Vec<u64>,
    /// Pages with changes of the device's own, or that may have them: they are merged.
    pub(crate) own: Vec<u64>,
    /// Frames whose twins are new.
    pub(crate) fresh: Vec<u64>,
    /// Frames whose memory is, with what somebody else has left there.
    pub(crate) new: Vec<u64>,
    /// What says so to others, if anybody keeps that: pages are in it before they are read.
    pub(crate) record: Option<RecordNumber>,
}

impl FetchPlan {
    /// Whether a frame's twin is new.
    pub(crate) fn is_fresh(&self, frame: usize) -> bool {
        self.fresh.binary_search(&(frame as u64)).is_ok()
    }
}

/// Pages beside each other that have the same home and the same donors.
#[derive(Debug, Clone)]
pub(crate) struct Fold {
    pub(crate) pages: Range<u64>,
    /// Up to the end of the file.
    pub(crate) bytes: Range<u64>,
    pub(crate) home: Home,
    /// Whether the device's bases are what the file has.
    pub(crate) knows_file: bool,
    /// In the order in which they count.
    pub(crate) donors: Vec<Device>,
    /// Whether what other devices have is read where it lies.
    pub(crate) is_direct: bool,
}

/// What has become of a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Folded {
    /// It had changes of the device's own, which stay on top.
    pub(crate) own: bool,
    /// Something of a donor's was left out.
    pub(crate) lost: bool,
    /// The file lacks some of it.
    pub(crate) is_ahead: bool,
}
