//! Requests as the process answers them that has the file's directory.

use super::{Answer, Request, Service};
use crate::cached_file::CachedFile;
use crate::directory::look::look;
use crate::directory::loss::surviving;
use crate::directory::{Directory, Locked, acquire, cpu, mappings, release, room};
use crate::error::{Error, ErrorKind, Result};
use crate::page::Device;
use crate::state::keeper::Reader;
use crate::state::lease::{Client, Grant, LeaseNumber, Use};
use crate::stats::Report;
use bifolio_device::{DevicePtr, FRAME_BYTES};
use std::ops::Range;
use std::time::Instant;

impl Service for CachedFile {
    fn ask(&self, client: Client, request: Request) -> Result<Answer> {
        let grant =
            |number, device, range: &Range<u64>, what| Grant { client, number, device, what, bytes: range.clone() };
        let used = |writable| if writable { Use::Write } else { Use::Read };
        request.device().map_or(Ok(()), |device| self.check_device(device))?;
        Ok(match request {
            Request::Map { lease, device, range } => self.attach(client, lease, device, range)?,
            Request::Unmap { lease, device, acquired, writable } => {
                Answer::Reported(self.detach(client, device, lease, &acquired, writable)?)
            }
            Request::Acquire { lease, device, range, writable } => {
                let (report, edition) = self.bring(&grant(lease, device, &range, used(writable)))?;
                Answer::Acquired { report, edition }
            }
            Request::Release { lease, device, range, writable } => {
                let lease = grant(lease, device, &range, used(writable));
                let report = self.operate(Some(device), |directory| release_lease(directory, &lease));
                if report.as_ref().map_or(true, |report: &Report| report.released > 0) {
                    self.pool.write_back.note(&self.held);
                }
                Answer::Reported(report?)
            }
            Request::Sync { device, acquired } => {
                let synced = self.with(Some(device), |directory| {
                    let ranges = acquired_by(directory, client, device, &acquired);
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
                refuse_unmapped(&self.held.lock(), client, device, &range)?;
                self.pool.ahead.bring(&self.held, device, range, writable);
                Answer::Done
            }
            Request::GiveBack { device, range } => {
                let mut directory = self.held.lock();
                refuse_unmapped(&directory, client, device, &range)?;
                surviving(&mut directory, |directory| room::give_back(directory, device, &range))?;
                Answer::Done
            }
            Request::Pin { lease, device, range } => self.pin_lease(&grant(lease, device, &range, Use::Pinned))?,
            Request::Unpin { lease } => {
                // Nobody is waited for, as with the end of an array of a program's.
                self.held.let_go(client, lease);
                Answer::Done
            }
            Request::Frames { lease, device, range } => {
                let directory = self.held.lock();
                refuse_unmapped(&directory, client, device, &range)?;
                let (frame_bytes, mut frames) = mappings::frames(&directory, device, &range)?;
                for (at, number) in &mut frames {
                    let seen = directory.asides.seen(device, &Reader { client, lease, at: *at });
                    *number = seen.unwrap_or(*number);
                }
                Answer::Frames { frame_bytes, frames }
            }
        })
    }
}

/// Publishes what has changed, and ends the lease: nothing if that has ended before.
fn release_lease(directory: &mut Locked<'_>, lease: &Grant) -> Result<Report> {
    let (client, number, device, range) = (lease.client, lease.number, lease.device, &lease.bytes);
    match directory.versions.lease(client, number) {
        None => return Ok(nothing(directory)),
        Some(noted) => {
            let is_acquired = matches!(noted.what, Use::Read | Use::Write);
            if !is_acquired || (noted.device, &noted.bytes) != (device, range) || !may_write(&noted, lease) {
                return Err(not_so(directory, lease));
            }
        }
    }
    let report = release::release(directory, device, range, lease.what == Use::Write)?;
    directory.end_lease(client, number);
    Ok(report)
}

/// A mapping of this process may have become writable since.
fn may_write(noted: &Grant, asked: &Grant) -> bool {
    noted.what == asked.what || asked.client == 0
}

/// What a client has acquired to be written under numbers.
fn acquired_by(directory: &Directory, client: Client, device: Device, numbers: &[LeaseNumber]) -> Vec<Range<u64>> {
    let lease = |number: &LeaseNumber| directory.versions.lease(client, *number);
    let is_written = |lease: &Grant| lease.device == device && (lease.what == Use::Write || client == 0);
    numbers.iter().filter_map(lease).filter(is_written).map(|lease| lease.bytes).collect()
}

/// Another process is believed in nothing: it may ask for what it has mapped.
fn refuse_unmapped(directory: &Directory, client: Client, device: Device, range: &Range<u64>) -> Result<()> {
    let covers = |lease: Grant| {
        (lease.client, lease.device, lease.what) == (client, device, Use::Mapped)
            && lease.bytes.start <= range.start
            && range.end <= lease.bytes.end
    };
    if client == 0 || range.start < range.end && directory.versions.leases().any(covers) {
        return Ok(());
    }
    let detail = format!("bytes {} to {} are not mapped there by who asks for them", range.start, range.end);
    Err(Error::new(ErrorKind::BadUse, directory.path(), detail))
}

fn not_so(directory: &Directory, lease: &Grant) -> Error {
    let (number, range) = (lease.number, &lease.bytes);
    let detail = format!("number {number} of this client stands for something else than bytes {range:?}");
    Error::new(ErrorKind::BadUse, directory.path(), detail)
}

fn nothing(directory: &Directory) -> Report {
    let counts = directory.versions.counts;
    Report::between(&counts, &counts, Instant::now())
}

impl CachedFile {
    /// Whoever asks may be another process, which is believed in nothing.
    pub(super) fn check_device(&self, device: Device) -> Result<()> {
        let bad = || Error::new(ErrorKind::BadUse, "mapping", no_device(device));
        self.pool.devices.get(device).map(|_| ()).ok_or_else(bad)
    }

    fn attach(&self, client: Client, number: LeaseNumber, device: Device, asked: Range<u64>) -> Result<Answer> {
        let bad = |kind, detail: String| Error::new(kind, "mapping", detail);
        let there = self.pool.devices.get(device);
        let there = there.ok_or_else(|| bad(ErrorKind::BadUse, no_device(device)))?;
        let memory = there.memory(&self.pool.options)?;
        let mut directory = self.held.lock();
        let (range, address) = surviving(&mut directory, |directory| {
            if let Some(noted) = directory.versions.lease(client, number) {
                // Asked again: it may be shorter than what was asked for, and no longer.
                let is_it = (noted.device, noted.what, noted.bytes.start) == (device, Use::Mapped, asked.start);
                let is_it = is_it && noted.bytes.end <= asked.end;
                return if is_it { Ok((noted.bytes, DevicePtr(0))) } else { Err(not_so(directory, &noted)) };
            }
            // It may have another size by now.
            look(directory, &asked)?;
            let size = directory.versions.size();
            let range = asked.start..asked.end.min(size);
            if range.is_empty() {
                let end = if asked.end == u64::MAX { "the end".to_owned() } else { asked.end.to_string() };
                let detail = format!("bytes {} to {end} lie outside the file, of {size} bytes", asked.start);
                return Err(bad(ErrorKind::BadRange, detail));
            }
            let lease = Grant { client, number, device, what: Use::Mapped, bytes: range.clone() };
            directory.versions.begin_lease(&lease).map_err(|error| no_leases(directory.path(), &error))?;
            let attached = mappings::attach(directory, device, &memory, &range);
            if attached.is_err() {
                directory.versions.end_lease(client, number);
            }
            Ok((range, attached?))
        })?;
        drop(directory);
        self.pool.operated();
        Ok(Answer::Mapped { range, address: address.0 })
    }

    fn detach(
        &self,
        client: Client,
        device: Device,
        number: LeaseNumber,
        acquired: &[LeaseNumber],
        writable: bool,
    ) -> Result<Report> {
        self.with(Some(device), |directory| {
            let Some(mapped) = directory.versions.lease(client, number) else { return Ok(nothing(directory)) };
            if (mapped.device, mapped.what) != (device, Use::Mapped) {
                return Err(not_so(directory, &mapped));
            }
            let (started, before) = (Instant::now(), directory.versions.counts);
            let acquired: Vec<Grant> = acquired
                .iter()
                .filter_map(|number| directory.versions.lease(client, *number))
                .filter(|lease| lease.device == device && matches!(lease.what, Use::Read | Use::Write))
                .collect();
            for lease in &acquired {
                let writable = lease.what == Use::Write || writable && client == 0;
                release::discard(directory, device, &lease.bytes, writable);
            }
            mappings::detach(directory, device, mapped.bytes.start);
            // At last: who finds the leases in between takes back what was acquired.
            for lease in acquired.iter().chain([&mapped]) {
                directory.end_lease(client, lease.number);
            }
            Ok(Report::between(&before, &directory.versions.counts, started))
        })
    }

    /// What that has done, and the edition of the frames that are seen by it.
    fn bring(&self, lease: &Grant) -> Result<(Report, u64)> {
        let (device, range, writable) = (lease.device, &lease.bytes, lease.what == Use::Write);
        if lease.client != 0 {
            // Before memory is made for so much.
            refuse_unmapped(&self.held.lock(), lease.client, device, range)?;
        }
        let bytes = range.end.saturating_sub(range.start).saturating_mul(2).saturating_add(FRAME_BYTES);
        let (mut report, edition) = self.with_room(device, bytes, |directory| {
            if let Some(noted) = directory.versions.lease(lease.client, lease.number) {
                return if noted == *lease { Ok((nothing(directory), 0)) } else { Err(not_so(directory, lease)) };
            }
            refuse_unmapped(directory, lease.client, device, range)?;
            let asked = (lease.client, lease.number);
            let report = acquire::acquire(directory, device, range, writable, asked)?;
            if let Err(error) = directory.versions.begin_lease(lease) {
                release::discard(directory, device, range, writable);
                directory.end_lease(lease.client, lease.number);
                return Err(no_leases(directory.path(), &error));
            }
            let is_any_left = directory.asides.is_any_left(lease.client, lease.number);
            let edition = if is_any_left { 0 } else { directory.edition(device) };
            Ok((report, edition))
        })?;
        report.always_compared = !self.held.is_observable;
        Ok((report, edition))
    }

    fn pin_lease(&self, lease: &Grant) -> Result<Answer> {
        let mut directory = self.held.lock();
        if let Some(noted) = directory.versions.lease(lease.client, lease.number) {
            return if noted == *lease { Ok(Answer::Done) } else { Err(not_so(&directory, lease)) };
        }
        refuse_unmapped(&directory, lease.client, lease.device, &lease.bytes)?;
        directory.versions.begin_lease(lease).map_err(|error| no_leases(directory.path(), &error))?;
        let pinned = mappings::pin(&mut directory, lease.device, &lease.bytes);
        if pinned.is_err() {
            directory.versions.end_lease(lease.client, lease.number);
        }
        pinned.map(|()| Answer::Done)
    }
}

fn no_device(device: Device) -> String {
    format!("the cache has no device with the number {device}")
}

fn no_leases(path: &std::path::Path, error: &std::io::Error) -> Error {
    let detail = format!("no memory to keep account of what is acquired ({error}): release some of it");
    Error::new(ErrorKind::OutOfMemory, path, detail)
}
