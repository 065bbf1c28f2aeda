//! Striped sets: what of them is not the same as for plain files. A read becomes one part for each member, whose engines
//! run at the same time ([`Router::read`]); a batch is cut at chunks; a write is one of each member.

use super::Router;
use super::request::{Part, ReadRequest, WriteRequest};
use crate::engine::job::Together;
use crate::file::OpenFile;
use crate::file::stripe::Layout;
use crate::options::{ReadExtent, ReadOptions};
use crate::report::{BatchReport, ReadReport, ResidencyReport, SegmentReport};
use crate::workers;
use crate::{Error, ErrorKind, Result};
use bifolio_device::DeviceSlice;
use std::time::Instant;

impl Router {
    /// A batch on a striped set: extents are cut at chunks, and members work at the same time.
    pub(super) fn read_batch_striped(
        &self,
        file: &OpenFile,
        layout: Layout,
        extents: &[ReadExtent],
        destination: DeviceSlice<'_>,
        options: &ReadOptions,
    ) -> Result<BatchReport> {
        let size = file.size()?;
        let mut report = BatchReport { bytes: 0, seconds: 0.0, cached_bytes: 0, short: vec![] };
        let mut of_members = vec![vec![]; layout.members()];
        for (number, extent) in extents.iter().enumerate() {
            let length = extent.length.min(size.saturating_sub(extent.offset));
            if length < extent.length {
                report.short.push((number, length));
            }
            let (mut at, end) = (extent.offset, extent.offset.saturating_add(length));
            while at < end {
                let (member, offset) = layout.locate(at);
                let length = layout.run_at(offset).min(end - at);
                of_members[member].push(ReadExtent { offset, length, place: extent.place + (at - extent.offset) });
                at += length;
            }
        }
        let read = |member: usize| {
            let extents = &of_members[member];
            self.read_batch_plain(&file.members()[member], extents, destination, options)
        };
        let busy: Vec<usize> = (0..layout.members()).filter(|member| !of_members[*member].is_empty()).collect();
        for outcome in at_once(&busy, read, file)? {
            report.bytes += outcome.bytes;
            report.cached_bytes += outcome.cached_bytes;
            if !outcome.short.is_empty() {
                let detail = "a member of the set was truncated during the read";
                return Err(Error::new(ErrorKind::Truncated, file.path(), detail));
            }
        }
        Ok(report)
    }

    /// One place after the other, each by all members.
    pub(super) fn read_vectored_striped(
        &self,
        request: &ReadRequest<'_>,
        places: &[DeviceSlice<'_>],
    ) -> Result<ReadReport> {
        let mut report = ReadReport::empty(request.started);
        let mut at = request.offset;
        // Arrivals are told of one range that goes to one place.
        let options = &ReadOptions { on_arrival: None, ..request.options.clone() };
        for place in places {
            let (offset, length, started) = (at, Some(place.len()), Instant::now());
            let of_place = ReadRequest { offset, length, destination: *place, options, started, ..*request };
            let read = self.serve(&of_place)?;
            at += read.bytes;
            report.bytes += read.bytes;
            report.predicted_s += read.predicted_s;
            report.residency = ResidencyReport::joined(report.residency, read.residency);
            report.reason = read.reason;
            report.plan.extend(read.plan);
        }
        report.seconds = request.started.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Writes the parts that members have of a request, at the same time; the first failure stops all of them.
    pub(super) fn write_members(
        &self,
        request: &WriteRequest<'_>,
        parts: &[Part<'_>],
    ) -> Result<(Vec<SegmentReport>, &'static str)> {
        let together = Together::new(parts.len().max(1));
        let numbers: Vec<usize> = (0..parts.len()).collect();
        let write = |number: usize| self.write_part(request, &parts[number], &together);
        let (mut plan, mut reason) = (vec![], "nothing to write");
        for (segments, why) in at_once(&numbers, write, request.file)? {
            plan.extend(segments);
            reason = why;
        }
        Ok((plan, reason))
    }
}

/// Does something for several members at the same time; the first failure.
fn at_once<T: Send>(members: &[usize], work: impl Fn(usize) -> Result<T> + Sync, file: &OpenFile) -> Result<Vec<T>> {
    let panicked =
        || Error::new(ErrorKind::Panicked, file.path(), "a thread panicked, which is a bug; please report it");
    let outcomes = workers::at_once(members.len(), |number| work(members[number]));
    let mut outcomes: Vec<_> = outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| Err(panicked()))).collect();
    // The failure that has stopped the others, and not theirs of being stopped.
    let cause = |outcome: &Result<T>| matches!(outcome, Err(error) if error.kind() != ErrorKind::Cancelled);
    if let Some(at) = outcomes.iter().position(cause) {
        outcomes.swap(0, at);
    }
    outcomes.into_iter().collect()
}
