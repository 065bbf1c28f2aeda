//! Which bytes differ, for the host: content of some pages, and a bit for each byte in which another image differs.

use super::Copies;
use super::replica::Image;
use crate::error::Result;
use crate::memory::Scratch;
use crate::page::Device;
use bifolio_kernels::{Addressing, byte_mask};
use std::ops::Range;

impl Copies {
    /// Of pages, which begin with one, up to the end of some bytes. The masks are found on the device.
    pub(crate) fn differing_bytes(
        &self,
        device: Device,
        bytes: &Range<u64>,
        images: [Image; 2],
        scratch: &Scratch,
        (content, masks): (&mut [u8], &mut [u8]),
    ) -> Result<()> {
        let replica = self.replica(device)?;
        let mask_bytes = byte_mask::mask_bytes(self.page_bytes);
        let entry = |(number, start): (u64, u64)| {
            let here = start..bytes.end.min(start + self.page_bytes);
            let [current, twin] = images.map(|image| replica.slice(image, &here).ptr().0);
            let mask = scratch.incoming.ptr().0 + number * mask_bytes;
            byte_mask::Entry { current, twin, mask, len: here.end - here.start }
        };
        let starts = (bytes.start..bytes.end).step_by(self.page_bytes as usize);
        let entries: Vec<_> = (0..).zip(starts).map(entry).collect();
        let mut run = || -> bifolio_device::Result<()> {
            let stream = &scratch.stream;
            let table = byte_mask::encode(&entries);
            let place = Scratch::first(&scratch.table, table.len() as u64)?;
            stream.upload(place, &table)?;
            let counts = Scratch::first(&scratch.results, entries.len() as u64 * 4)?;
            let all = Addressing::Absolute;
            let operands = byte_mask::Operands { current: all, twin: all, mask: all };
            // SAFETY: as for `merge`; the masks lie in scratch memory.
            unsafe { replica.memory.kernels.byte_mask(stream, operands, place, counts) }?;
            // SAFETY: both have this length, and the stream is waited for below, whatever happens.
            let copied = unsafe {
                let content = stream.copy_to_host(content.as_mut_ptr(), replica.slice(images[0], bytes));
                let found = scratch.incoming.slice().part(0, masks.len() as u64)?;
                content.and(stream.copy_to_host(masks.as_mut_ptr(), found))
            };
            copied.and(stream.synchronize())
        };
        run().map_err(|error| self.failed(error))
    }

    /// The same, of a copy of each image: what is stored into the first after it was copied is no part of either.
    pub(crate) fn differing_bytes_of_copies(
        &self,
        device: Device,
        bytes: &Range<u64>,
        images: [Image; 2],
        scratch: &Scratch,
        (content, masks): (&mut [u8], &mut [u8]),
    ) -> Result<()> {
        let replica = self.replica(device)?;
        let mut other = vec![0; content.len()];
        let copy = |image, to: &mut [u8]| scratch.stream.download(to, replica.slice(image, bytes));
        let copied = copy(images[0], content).and_then(|()| copy(images[1], &mut other));
        copied.map_err(|error| self.failed(error))?;
        for ((mask, content), other) in masks.iter_mut().zip(content.chunks(8)).zip(other.chunks(8)) {
            let differ = content.iter().zip(other).enumerate().map(|(at, (one, other))| u8::from(one != other) << at);
            *mask = differ.sum();
        }
        Ok(())
    }
}
