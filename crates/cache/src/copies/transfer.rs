//! Bytes that stay in the memories of devices: from image to image, from peer to device, and zeroes where a file was cut.

use super::Copies;
use super::replica::Image;
use crate::error::Result;
use crate::memory::Scratch;
use crate::page::Device;
use std::ops::Range;

impl Copies {
    /// Copies pages from one image of a replica to another.
    pub(crate) fn copy(
        &self,
        device: Device,
        pages: impl IntoIterator<Item = u64>,
        [from, to]: [Image; 2],
        scratch: &Scratch,
    ) -> Result<()> {
        let copied = self.replica(device)?.copy(&scratch.stream, pages, from, to);
        copied.and_then(|()| scratch.stream.synchronize()).map_err(|error| self.failed(error))
    }

    /// Copies some bytes from one image of a replica to another, which both have memory there.
    pub(crate) fn copy_bytes(
        &self,
        device: Device,
        bytes: impl IntoIterator<Item = Range<u64>>,
        images: [Image; 2],
        scratch: &Scratch,
    ) -> Result<()> {
        let replica = self.replica(device)?;
        let copy = |bytes: Range<u64>| {
            let [from, to] = images.map(|image| replica.slice(image, &bytes));
            // SAFETY: both have memory there, which stays until the stream is waited for.
            unsafe { scratch.stream.copy_on_device(to, from) }
        };
        let copied = bytes.into_iter().try_for_each(copy);
        copied.and_then(|()| scratch.stream.synchronize()).map_err(|error| self.failed(error))
    }

    /// Copies some bytes as of another device's latest release or fetch.
    pub(crate) fn copy_from_peer(
        &self,
        device: Device,
        peer: Device,
        bytes: &Range<u64>,
        scratch: &Scratch,
    ) -> Result<()> {
        let (mine, theirs) = (self.replica(device)?, self.replica(peer)?);
        let copy = || -> bifolio_device::Result<()> {
            // They may have them in several windows; here they are a mapping's.
            for (image, here) in theirs.settled_images(bytes) {
                let (to, from) = (mine.slice(Image::Current, &here), theirs.slice(image, &here));
                // SAFETY: both have memory there, and the file's lock keeps it until the stream is waited for.
                unsafe { scratch.stream.copy_from_peer(to, &theirs.memory.device, from) }?;
            }
            scratch.stream.synchronize()
        };
        copy().map_err(|error| self.failed(error))
    }

    /// What was cut off reads as zeroes, as in a mapping of the file, and is nobody's change.
    pub(crate) fn blank(&self, range: &Range<u64>) -> Result<()> {
        for replica in self.replicas.iter().flatten() {
            replica.memory.with_scratch(|scratch| {
                for image in Image::ALL {
                    for frames in replica.runs_with(image, replica.frames_of(range)) {
                        let cut = frames.start.max(range.start)..frames.end;
                        // SAFETY: the frames have memory, and the stream is waited for.
                        let filled = unsafe { scratch.stream.fill(replica.slice(image, &cut), 0) };
                        filled.map_err(|error| self.failed(error))?;
                    }
                }
                scratch.stream.synchronize().map_err(|error| self.failed(error))
            })?;
        }
        Ok(())
    }
}
