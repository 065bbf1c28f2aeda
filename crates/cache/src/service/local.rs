//! Requests as the process answers them that has the file's directory.

use super::{Answer, Request, Service};
use crate::cached_file::CachedFile;
use crate::directory::look::look;
use crate::directory::loss::surviving;
use crate::directory::{Locked, acquire, cpu, mappings, release, room};
use crate::error::{Error, ErrorKind, Result};
use crate::page::Device;
use crate::state::lease::{Client, Grant, Use};
use crate::stats::Report;
use bifolio_device::FRAME_BYTES;
use std::ops::Range;
use std::time::Instant;

impl Service for CachedFile {
    fn ask(&self, client: Client, request: Request) -> Result<Answer> {
        let grant = |device, bytes: &Range<u64>, what| Grant { client, device, what, bytes: bytes.clone() };
        let used = |writable| if writable { Use::Write } else { Use::Read };
        Ok(match request {
            Request::Map { device, range } => self.attach(client, device, range)?,
            Request::Unmap { device, range, acquired, writable } => {
                let leases = acquired.iter().map(|part| grant(device, part, used(writable)));
                let leases: Vec<_> = leases.chain([mapped(client, device, &range)]).collect();
                Answer::Reported(self.detach(device, &range, (&acquired, writable), &leases))
            }
            Request::Acquire { device, range, writable } => {
                Answer::Reported(self.bring(&grant(device, &range, used(writable)))?)
            }
            Request::Release { device, range, writable } => {
                let lease = grant(device, &range, used(writable));
                let report = self.operate(Some(device), |directory| {
                    let report = release::release(directory, device, &range, writable)?;
                    directory.versions.end_lease(&lease);
                    Ok(report)
                });
                if report.as_ref().map_or(true, |report: &Report| report.released > 0) {
                    self.pool.write_back.note(&self.held);
                }
                Answer::Reported(report?)
            }
            Request::Sync { device, ranges } => {
                let synced = self.with(Some(device), |directory| {
                    let publish = |directory: &mut Locked<'_>| {
                        ranges.iter().try_for_each(|range| release::publish(directory, device, range))
                    };
                    // Also where the device is lost: what others have released is written.
                    let published = surviving(directory, publish);
                    cpu::sync(directory, &self.told).and(published)
                });
                synced.inspect_err(|_| self.pool.write_back.note(&self.held))?;
                Answer::Done
            }
            Request::Bring { device, range, writable } => {
                self.pool.ahead.bring(&self.held, device, range, writable);
                Answer::Done
            }
            Request::GiveBack { device, range } => {
                surviving(&mut self.held.lock(), |directory| room::give_back(directory, device, &range))?;
                Answer::Done
            }
            Request::Pin { device, range } => {
                let mut directory = self.held.lock();
                let lease = grant(device, &range, Use::Pinned);
                directory.versions.begin_lease(&lease).map_err(|error| no_leases(directory.path(), &error))?;
                let pinned = mappings::pin(&mut directory, device, &range);
                if pinned.is_err() {
                    directory.versions.end_lease(&lease);
                }
                pinned.map(|()| Answer::Done)?
            }
            Request::Unpin { device, range } => {
                self.held.let_go(grant(device, &range, Use::Pinned));
                Answer::Done
            }
            Request::Frames { device, range } => {
                let (frame_bytes, frames) = mappings::frames(&self.held.lock(), device, &range)?;
                Answer::Frames { frame_bytes, frames }
            }
        })
    }
}

impl CachedFile {
    fn attach(&self, client: Client, device: Device, asked: Range<u64>) -> Result<Answer> {
        let bad = |kind, detail: String| Error::new(kind, "mapping", detail);
        let there = self.pool.devices.get(device);
        let there = there.ok_or_else(|| bad(ErrorKind::BadUse, no_device(device)))?;
        let memory = there.memory(&self.pool.options)?;
        let mut directory = self.held.lock();
        let (range, address) = surviving(&mut directory, |directory| {
            // It may have another size by now.
            look(directory, &asked)?;
            let size = directory.versions.size();
            let range = asked.start..asked.end.min(size);
            if range.is_empty() {
                let end = if asked.end == u64::MAX { "the end".to_owned() } else { asked.end.to_string() };
                let detail = format!("bytes {} to {end} lie outside the file, of {size} bytes", asked.start);
                return Err(bad(ErrorKind::BadRange, detail));
            }
            let lease = mapped(client, device, &range);
            directory.versions.begin_lease(&lease).map_err(|error| no_leases(directory.path(), &error))?;
            let attached = mappings::attach(directory, device, &memory, &range);
            if attached.is_err() {
                directory.versions.end_lease(&lease);
            }
            Ok((range, attached?.0))
        })?;
        drop(directory);
        self.pool.operated();
        Ok(Answer::Mapped { range, address })
    }

    fn detach(
        &self,
        device: Device,
        range: &Range<u64>,
        (acquired, writable): (&[Range<u64>], bool),
        leases: &[Grant],
    ) -> Report {
        self.with(Some(device), |directory| {
            let (started, before) = (Instant::now(), directory.versions.counts);
            for part in acquired {
                release::discard(directory, device, part, writable);
            }
            mappings::detach(directory, device, range.start);
            // At last: who finds the leases in between takes back what was acquired.
            for lease in leases {
                directory.versions.end_lease(lease);
            }
            Report::between(&before, &directory.versions.counts, started)
        })
    }

    fn bring(&self, lease: &Grant) -> Result<Report> {
        let (device, range, writable) = (lease.device, &lease.bytes, lease.what == Use::Write);
        let mut report = self.with_room(device, 2 * (range.end - range.start) + FRAME_BYTES, |directory| {
            let report = acquire::acquire(directory, device, range, writable)?;
            if let Err(error) = directory.versions.begin_lease(lease) {
                release::discard(directory, device, range, writable);
                return Err(no_leases(directory.path(), &error));
            }
            Ok(report)
        })?;
        report.always_compared = !self.held.is_observable;
        Ok(report)
    }
}

/// By its first byte: it may become longer.
fn mapped(client: Client, device: Device, range: &Range<u64>) -> Grant {
    Grant { client, device, what: Use::Mapped, bytes: range.start..range.start + 1 }
}

fn no_device(device: Device) -> String {
    format!("the cache has no device with the number {device}")
}

fn no_leases(path: &std::path::Path, error: &std::io::Error) -> Error {
    let detail = format!("no memory to keep account of what is acquired ({error}): release some of it");
    Error::new(ErrorKind::OutOfMemory, path, detail)
}
