//! Home's content under what a device has changed and not released.

use super::Copies;
use super::plan::Extent;
use super::replica::Image;
use crate::error::Result;
use crate::frames::Incoming;
use crate::memory::Scratch;
use crate::page::Device;
use bifolio_kernels::{Addressing, merge};
use std::ops::Range;

/// Pages are merged by multiples of this.
const WORD_BYTES: u64 = 16;

/// How many pages had changes of the device's own, and bytes that both sides had changed.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    pub(crate) own: u64,
    pub(crate) races: u64,
}

impl Copies {
    /// What is read of home to merge some pages, given by their bytes, and to which places of scratch memory.
    pub(crate) fn to_merge(&self, pages: &[Range<u64>]) -> Vec<Extent> {
        let mut list: Vec<Extent> = Vec::new();
        for (number, bytes) in (0..).zip(pages) {
            match list.last_mut() {
                Some((run, _)) if run.end == bytes.start => run.end = bytes.end,
                _ => list.push((bytes.clone(), number * self.page_bytes)),
            }
        }
        list
    }

    /// Brings pages up to date that the device may have changed since its latest release: its bytes stay on top. The
    /// bytes of each page, of no more than scratch memory has room for, and where they were read to.
    pub(crate) fn merge(
        &self,
        device: Device,
        pages: &[Range<u64>],
        list: &[Extent],
        incoming: &Incoming,
        scratch: &Scratch,
    ) -> Result<Merged> {
        let place = |number: usize| number as u64 * self.page_bytes;
        let replica = self.replica(device)?;
        let entry = |(number, bytes): (usize, &Range<u64>)| {
            let [current, twin] = [Image::Current, Image::Twin].map(|image| replica.slice(image, bytes).ptr().0);
            let incoming = incoming.ptr().0 + place(number);
            // By whole words, as kernels may be storing there; behind the end of the file all is zeroes.
            merge::Entry { current, twin, incoming, len: (bytes.end - bytes.start).next_multiple_of(WORD_BYTES) }
        };
        let entries: Vec<_> = pages.iter().enumerate().map(entry).collect();
        let run = || -> bifolio_device::Result<Vec<u8>> {
            if let Some((bytes, at)) = list.last() {
                let end = at + (bytes.end - bytes.start);
                let rest = end.next_multiple_of(WORD_BYTES) - end;
                if rest > 0 {
                    let tail = incoming.slice().part(end, rest)?;
                    // SAFETY: scratch memory, and the stream is waited for.
                    unsafe { scratch.stream.fill(tail, 0) }?;
                }
            }
            let table = merge::encode(&entries);
            let place = Scratch::first(&scratch.table, table.len() as u64)?;
            scratch.stream.upload(place, &table)?;
            let flags = Scratch::first(&scratch.results, entries.len() as u64 * 4)?;
            let all = Addressing::Absolute;
            let operands = merge::Operands { current: all, twin: all, incoming: all };
            // SAFETY: the entries are pages of the replica and of scratch memory, which stay until the stream is
            // waited for; what kernels of the program's store there meanwhile stays.
            unsafe { replica.memory.kernels.merge(&scratch.stream, operands, place, flags) }?;
            let mut host = vec![0; entries.len() * 4];
            scratch.stream.download(&mut host, flags)?;
            Ok(host)
        };
        let flags = run().map_err(|error| self.failed(error))?;
        let mut merged = Merged::default();
        for flags in flags.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])) {
            merged.own += u64::from(flags & merge::OWN_CHANGED != 0);
            merged.races += u64::from(flags & merge::RACE != 0);
        }
        Ok(merged)
    }
}
