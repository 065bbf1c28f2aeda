//! What launches of all kernels share: the boundary of wide loads, the largest grid, and refusals.

use bifolio_device::{DeviceSlice, Error, ErrorKind, Result};

/// Address boundary of the 16-byte loads and stores in the kernels.
pub(crate) const WORD_BYTES: u64 = 16;

/// A number of groups that every device takes. The limit is the smallest among the devices', CUDA's.
pub(crate) fn grid(groups: u64) -> Result<u32> {
    i32::try_from(groups)
        .map(i32::cast_unsigned)
        .map_err(|_| bad(format!("one launch has at most {} groups, not {groups}", i32::MAX)))
}

/// Whether a range begins at such a boundary; one without bytes may begin anywhere.
pub(crate) fn is_aligned(range: DeviceSlice<'_>, boundary: u64) -> bool {
    range.is_empty() || range.ptr().0.is_multiple_of(boundary)
}

/// The refusal of arguments; `detail` is a sentence without its full stop.
pub(crate) fn bad(detail: String) -> Error {
    Error::new(ErrorKind::BadArgument, detail)
}
