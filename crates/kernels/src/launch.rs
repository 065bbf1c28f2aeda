//! What launches of all kernels share: the boundary of wide loads, the largest grid, bytes on their way back, and refusals.

use bifolio_device::{DeviceSlice, Error, ErrorKind, Result, Stream};

/// Address boundary of the 16-byte loads and stores in the kernels.
pub(crate) const WORD_BYTES: u64 = 16;

/// A number of groups that every device takes. The limit is the smallest among the devices', CUDA's.
pub(crate) fn grid(groups: u64) -> Result<u32> {
    i32::try_from(groups)
        .map(i32::cast_unsigned)
        .map_err(|_| bad(format!("a launch has at most {} groups, got {groups}", i32::MAX)))
}

/// Whether a range begins at such a boundary; one without bytes may begin anywhere.
pub(crate) fn is_aligned(range: DeviceSlice<'_>, boundary: u64) -> bool {
    range.is_empty() || range.ptr().0.is_multiple_of(boundary)
}

/// All bytes of a range, once the stream's work is done.
pub(crate) fn download(stream: &Stream, range: DeviceSlice<'_>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; range.len() as usize];
    stream.download(&mut bytes, range).map(|()| bytes)
}

/// The refusal of arguments; `detail` is a sentence without its full stop.
pub(crate) fn bad(detail: String) -> Error {
    Error::new(ErrorKind::BadArgument, detail)
}
