//! What there is, and what was done.

use super::limits::{CLIENTS_MAX, COUNTS, DEVICES_MAX, HOLDERS_MAX, PATH_BYTES_MAX};
use super::messages::{ClientStatus, DeviceStatus, FileStatus, Status};
use super::words::{Reader, Writer};
use bifolio_cache::{Counts, Report};

pub(super) fn write_file(to: Writer, file: &FileStatus) -> Writer {
    let FileStatus { id: (device, inode), size, users, devices, holders, path } = file;
    let end = (0..=path.len().min(PATH_BYTES_MAX)).rev().find(|at| path.is_char_boundary(*at)).unwrap_or(0);
    let head = to.words([*device, *inode, *size, *users, devices.len() as u64]);
    let told = &holders[..holders.len().min(HOLDERS_MAX)];
    let to = head.words(devices.iter().flat_map(|(bytes, is_kept)| [*bytes, u64::from(*is_kept)]));
    let to = to.word(told.len() as u64);
    to.words(told.iter().flat_map(|(process, device, bytes)| [u64::from(*process), *device as u64, *bytes]))
        .text(&path[..end])
}

pub(super) fn read_file(from: &mut Reader<'_>) -> Option<FileStatus> {
    let (id, size, users) = ((from.word()?, from.word()?), from.word()?, from.word()?);
    let count = from.count(DEVICES_MAX)?;
    let devices = (0..count).map(|_| Some((from.word()?, from.truth()?))).collect::<Option<_>>()?;
    let count = from.count(HOLDERS_MAX)?;
    let holder = |_| Some((from.small()? as u32, from.count(DEVICES_MAX)?, from.word()?));
    let holders = (0..count).map(holder).collect::<Option<_>>()?;
    Some(FileStatus { id, size, users, devices, holders, path: from.text()? })
}

pub(super) fn write_status(to: Writer, status: &Status) -> Writer {
    let Status { servers, uptime_ms, counts: all, devices, clients } = status;
    let head = to.words([*servers, *uptime_ms]).words(counts(all)).word(devices.len() as u64);
    let device = |to: Writer, device: &DeviceStatus| {
        let DeviceStatus { used_bytes, budget_bytes, pages, behind, pending, counts: done, read_bytes, .. } = device;
        let DeviceStatus { left_bytes, free_bytes, target_bytes, reclaimed_bytes, .. } = device;
        let to = to.words([*used_bytes, *budget_bytes, *pages, *behind, *pending]).words(counts(done));
        to.words([*left_bytes, *free_bytes, *target_bytes, *reclaimed_bytes]).words(*read_bytes)
    };
    let told = &clients[..clients.len().min(CLIENTS_MAX)];
    let to = devices.iter().fold(head, device).word(told.len() as u64);
    let client = |client: &ClientStatus| {
        let ClientStatus { pid, uid, files, used_bytes, recalled_bytes } = *client;
        [pid.into(), uid.into(), files, used_bytes, recalled_bytes]
    };
    to.words(told.iter().flat_map(client))
}

pub(super) fn read_status(from: &mut Reader<'_>) -> Option<Status> {
    let (servers, uptime_ms, counts) = (from.word()?, from.word()?, read_counts(from)?);
    let devices = from.count(DEVICES_MAX)?;
    let devices = (0..devices).map(|_| read_device(from)).collect::<Option<_>>()?;
    let clients = from.count(CLIENTS_MAX)?;
    let client = |_| {
        let (pid, uid) = (from.small()? as u32, from.small()? as u32);
        let (files, used_bytes) = (from.word()?, from.word()?);
        Some(ClientStatus { pid, uid, files, used_bytes, recalled_bytes: from.word()? })
    };
    Some(Status { servers, uptime_ms, counts, devices, clients: (0..clients).map(client).collect::<Option<_>>()? })
}

pub(super) fn read_device(from: &mut Reader<'_>) -> Option<DeviceStatus> {
    let mut status = DeviceStatus {
        used_bytes: from.word()?,
        budget_bytes: from.word()?,
        pages: from.word()?,
        behind: from.word()?,
        pending: from.word()?,
        counts: read_counts(from)?,
        left_bytes: from.word()?,
        free_bytes: from.word()?,
        target_bytes: from.word()?,
        reclaimed_bytes: from.word()?,
        ..DeviceStatus::default()
    };
    for bytes in &mut status.read_bytes {
        *bytes = from.word()?;
    }
    Some(status)
}

pub(super) fn counts(counts: &Counts) -> [u64; COUNTS] {
    let Counts { hits, fetched, from_peers, merged, races, released, .. } = *counts;
    let Counts { flushed, compared, evicted, copied, served, discarded, lost, .. } = *counts;
    [hits, fetched, from_peers, merged, races, released, flushed, compared, evicted, copied, served, discarded, lost]
}

pub(super) fn read_counts(from: &mut Reader<'_>) -> Option<Counts> {
    let mut words = [0; COUNTS];
    for word in &mut words {
        *word = from.word()?;
    }
    let [hits, fetched, from_peers, merged, races, released, ..] = words;
    let [.., flushed, compared, evicted, copied, served, discarded, lost] = words;
    Some(Counts {
        hits,
        fetched,
        from_peers,
        merged,
        races,
        released,
        flushed,
        compared,
        evicted,
        copied,
        served,
        discarded,
        lost,
    })
}

pub(super) fn read_report(from: &mut Reader<'_>) -> Option<Report> {
    let counts = read_counts(from)?;
    let seconds = f64::from_bits(from.word()?);
    let seconds = if seconds.is_finite() { seconds } else { 0.0 };
    Some(Report { counts, seconds, always_compared: from.truth()? })
}
