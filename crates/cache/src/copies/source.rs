//! Reading home into the memory of a device. That waits for a disk: what is needed for it is taken along, and no lock is
//! held.

use super::Copies;
use super::plan::{Extent, is_scattered};
use crate::error::{Error, ErrorKind, Result};
use crate::page::Device;
use crate::stats::Traffic;
use bifolio_device::DeviceSlice;
use bifolio_io::{EngineKind, OpenFile, ReadExtent, ReadOptions, Router};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Where pages are read from.
pub(crate) struct Source {
    router: Arc<Router>,
    file: Arc<OpenFile>,
    traffic: Arc<Traffic>,
}

impl Copies {
    /// Home, as a device reads it.
    pub(crate) fn source(&self, device: Device) -> Result<Source> {
        let memory = &self.replica(device)?.memory;
        let (router, traffic) = (Arc::clone(&memory.router), Arc::clone(&memory.traffic));
        Ok(Source { router, file: Arc::clone(&self.home.file), traffic })
    }
}

impl Source {
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Reads bytes of the file to places in a device's memory: long runs each by a request, many short ones by
    /// one for all.
    pub(crate) fn read(&self, list: &[Extent], to: DeviceSlice<'_>) -> Result<()> {
        let total: u64 = list.iter().map(|(bytes, _)| bytes.end - bytes.start).sum();
        if !is_scattered(list.len(), total) {
            return list.iter().try_for_each(|(bytes, place)| self.read_run(bytes, *place, to));
        }
        let extent = |(bytes, place): &Extent| ReadExtent {
            offset: bytes.start,
            length: bytes.end - bytes.start,
            place: *place,
        };
        let extents: Vec<_> = list.iter().map(extent).collect();
        let report = self.router.read_batch(&self.file, &extents, to, &ReadOptions::default());
        let report = report.map_err(Error::reading)?;
        let from_storage = report.bytes.saturating_sub(report.cached_bytes);
        self.traffic.add(EngineKind::Cached, report.bytes - from_storage);
        self.traffic.add(EngineKind::Direct, from_storage);
        match report.bytes {
            read if read == total => Ok(()),
            read => Err(self.shorter(read, total, list[0].0.start)),
        }
    }

    fn read_run(&self, bytes: &Range<u64>, place: u64, to: DeviceSlice<'_>) -> Result<()> {
        let length = bytes.end - bytes.start;
        let to = to.part(place, length).map_err(|error| Error::device(self.file.path(), error))?;
        let report = self.router.read(&self.file, bytes.start, Some(length), to, &ReadOptions::default());
        let report = report.map_err(Error::reading)?;
        report.plan.iter().for_each(|segment| self.traffic.add(segment.engine, segment.length));
        match report.bytes {
            read if read == length => Ok(()),
            read => Err(self.shorter(read, length, bytes.start)),
        }
    }

    fn shorter(&self, read: u64, wanted: u64, at: u64) -> Error {
        let detail = format!(
            "the file has become shorter: a read of {wanted} bytes at {at} returned {read}; acquire them again"
        );
        Error::new(ErrorKind::Read, self.file.path(), detail)
    }
}
