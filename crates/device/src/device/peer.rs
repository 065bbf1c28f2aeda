//! Copies between devices of one backend.

use super::{Device, DeviceSlice, Stream};
use crate::Result;

impl Stream {
    /// Enqueues a copy from a range of another device of the same backend into a range of this
    /// stream's device; the ranges have equal length. Ordered by this stream alone: work on the
    /// peer that writes `src` is waited for with [`Stream::wait`], and work on the peer that
    /// reuses `src` waits for an event that is recorded here.
    ///
    /// Where two GPUs reach each other ([`crate::Capabilities::peer_access`]) the bytes go
    /// directly; the first copy of a pair asks the driver for that access, which from then on
    /// maps new allocations of each into the other. (Frames are mapped for their own device only;
    /// which way the driver copies those is its own choice.) Where they do not, CUDA's driver copies
    /// through host memory. OpenCL refuses with [`crate::ErrorKind::Unsupported`]: the caller
    /// copies through host memory itself.
    ///
    /// # Safety
    /// `src` is memory of `peer`; both ranges stay valid until the work completes.
    pub unsafe fn copy_from_peer(&self, dst: DeviceSlice<'_>, peer: &Device, src: DeviceSlice<'_>) -> Result<()> {
        assert_eq!(dst.len, src.len, "source and destination have one length");
        if dst.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.name(unsafe { self.raw.copy_from_peer(dst.ptr, &*peer.backend, src.ptr, dst.len) })
    }
}
