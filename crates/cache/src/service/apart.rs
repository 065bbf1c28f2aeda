//! A window of a mapping's own: frames of what kernels see are imported by their numbers, and mapped where the mapping
//! likes.

use super::{Addresses, Answer, Request, Service};
use crate::error::{Error, ErrorKind, Result};
use crate::state::keeper::Keeper;
use crate::state::replicas::FrameNumber;
use bifolio_device::{Access, AddressRange, Device, DevicePtr};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Apart {
    keeper: Arc<dyn Keeper>,
    number: usize,
    device: Device,
    range: Range<u64>,
    /// Bytes of the file from the first frame on.
    first: u64,
    addresses: AddressRange,
    /// What is shown, by the byte of the file from which on it lies.
    shown: BTreeMap<u64, FrameNumber>,
}

impl Apart {
    /// Addresses for a range of a file on the cache's device with a number.
    pub(crate) fn new(
        device: &Device,
        number: usize,
        range: &Range<u64>,
        keeper: Arc<dyn Keeper>,
        service: &dyn Service,
    ) -> Result<Self> {
        let (frame_bytes, _) = frames(service, number, range)?;
        let first = range.start / frame_bytes * frame_bytes;
        let len = range.end.next_multiple_of(frame_bytes) - first;
        let addresses = device.reserve(len).map_err(|error| Error::device("mapping", error))?;
        let (device, range) = (device.clone(), range.clone());
        Ok(Self { keeper, number, device, range, first, addresses, shown: BTreeMap::new() })
    }

    fn show_frame(&mut self, at: u64, number: FrameNumber) -> bifolio_device::Result<()> {
        let place = at - self.first;
        if self.shown.get(&at) == Some(&number) {
            return Ok(());
        }
        if self.shown.remove(&at).is_some() {
            // SAFETY: kernels on the part have come to their end before it is acquired again.
            unsafe { self.addresses.unmap(place) }?;
        }
        let Some((bytes, descriptor)) = self.keeper.frame(self.number, number) else {
            let detail = format!("nobody keeps frame {number}");
            return Err(bifolio_device::Error::new(bifolio_device::ErrorKind::BadArgument, detail));
        };
        let frame = self.device.import_frame_of(descriptor, bytes)?;
        self.addresses.map(place, &frame, Access::ReadWrite)?;
        self.shown.insert(at, number);
        Ok(())
    }
}

impl Addresses for Apart {
    fn ptr(&self) -> DevicePtr {
        // SAFETY: only the address is used.
        unsafe { self.addresses.slice() }.ptr().offset_by(self.range.start - self.first)
    }

    fn show(&mut self, service: &dyn Service, part: &Range<u64>) -> Result<()> {
        let (_, frames) = frames(service, self.number, part)?;
        let shown = frames.into_iter().try_for_each(|(at, number)| self.show_frame(at, number));
        shown.map_err(|error| Error::device("mapping", error))
    }
}

fn frames(service: &dyn Service, device: usize, range: &Range<u64>) -> Result<(u64, Vec<(u64, FrameNumber)>)> {
    match service.ask(0, Request::Frames { device, range: range.clone() })? {
        Answer::Frames { frame_bytes, frames } => Ok((frame_bytes, frames)),
        _ => Err(Error::new(ErrorKind::BadUse, "mapping", "frames were asked for, and something else was answered")),
    }
}
