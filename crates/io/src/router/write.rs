//! Writing one range of device memory to a file.
//!
//! The body goes past the page cache where that is chosen; what is left at the ends, less than a
//! block each, goes through it: that is the kernel's own read-modify-write of the block, under the
//! lock that other writers take, so their bytes in the same block are never lost. A read-modify-write
//! of ours past the cache would put back what it read a moment before. The body is written before
//! the edges.
//!
//! A range beyond the end of the file is allocated before anything is written, so a full disk is
//! found then. After any failure the file is cut back to the size it had, or to the start of the range
//! where that is later (another write may have filled what is before), and refuses further writes
//! through this handle: the kernel drops dirty pages that it could not write, so a later `fdatasync`
//! may succeed although data are lost.

use super::Router;
use super::request::{Part, WriteRequest, parts};
use crate::engine::Engine;
use crate::engine::flight::{self, Planned};
use crate::engine::job::{Job, Order, Together};
use crate::engine::write_cached::WriteCached;
use crate::engine::write_direct::WriteDirect;
use crate::file::{Mode, OpenFile, PlainFile};
use crate::kind::{EngineChoice, EngineKind};
use crate::options::WriteOptions;
use crate::plan::Segment;
use crate::report::{SegmentReport, WriteReport};
use crate::residency;
use crate::{Error, ErrorKind, Result};
use bifolio_device::DeviceSlice;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Shorter writes go through the page cache: a write past it is a trip to the disk each.
const DIRECT_BYTES_MIN: u64 = 1 << 20;

/// The largest folio of the page cache on x86. A write past the page cache drops the folios that it
/// touches; one that another write has made dirty at its edge, meanwhile, cannot be dropped, and the
/// kernel reports the first as failed. So long writes are ordered with all of the folios they touch.
const FOLIO_BYTES: u64 = 2 << 20;

/// The bytes whose order a write settles. One that may go past the page cache is ordered with all of the
/// folios that it touches.
pub(super) fn ordered_range(file: &OpenFile, offset: u64, length: u64, engine: EngineChoice) -> Range<u64> {
    let end = offset.saturating_add(length);
    let may_be_direct = match engine {
        EngineChoice::Auto => length >= DIRECT_BYTES_MIN,
        EngineChoice::Only(engine) => engine == EngineKind::Direct,
    };
    if !may_be_direct {
        return offset..end;
    }
    // A folio of a member is so many bytes of a set, and may reach into the rows around it.
    let around = file.layout().map_or(FOLIO_BYTES, |layout| {
        (FOLIO_BYTES.saturating_add(layout.chunk_bytes())).saturating_mul(layout.members() as u64)
    });
    offset.saturating_sub(around)..end.saturating_add(around)
}

/// Whether a write that failed is done again through the page cache.
fn is_for_the_page_cache(error: &Error, options: &WriteOptions) -> bool {
    error.kind() == ErrorKind::DirectRefused && options.engine == EngineChoice::Auto
}

/// How a write is divided: all cached, or a body past the page cache between cached edges.
fn divide(range: &Range<u64>, engine: EngineKind, alignment: u64) -> Vec<(EngineKind, Range<u64>)> {
    let body = range.start.next_multiple_of(alignment)..range.end - range.end % alignment;
    let parts = if engine == EngineKind::Cached || body.start >= body.end {
        vec![(EngineKind::Cached, range.clone())]
    } else {
        vec![
            (EngineKind::Cached, range.start..body.start),
            (EngineKind::Direct, body.clone()),
            (EngineKind::Cached, body.end..range.end),
        ]
    };
    parts.into_iter().filter(|(_, part)| part.start < part.end).collect()
}

/// The engine that is chosen for a write of `bytes`, of which `cached` are in the page cache, and
/// why. Durable writes have to reach the disk anyway, and past the cache they do so without a copy.
/// What is cached is likely to be read again, and would be dropped by a write past it.
fn choose(bytes: u64, cached: u64, durable: bool, direct: bool) -> (EngineKind, &'static str) {
    match () {
        () if !direct => (EngineKind::Cached, "the file cannot be written past the page cache"),
        () if bytes < DIRECT_BYTES_MIN => (EngineKind::Cached, "short"),
        () if durable => (EngineKind::Direct, "durable: past the page cache is the shorter way to the disk"),
        () if cached > bytes / 2 => (EngineKind::Cached, "most of it is cached, and stays so"),
        () => (EngineKind::Direct, "long, and not cached: the page cache is left to others"),
    }
}

/// The range that a request writes, which a striped set must have already.
fn range_of(request: &WriteRequest<'_>) -> Result<Range<u64>> {
    let WriteRequest { file, offset, source, .. } = *request;
    let bad = |detail: String| Error::new(ErrorKind::BadRange, file.path(), detail).at(offset);
    let end = offset.checked_add(source.len()).filter(|end| i64::try_from(*end).is_ok());
    let end = end.ok_or_else(|| bad(format!("a length of {} bytes at this offset overflows", source.len())))?;
    if file.layout().is_some() && end > file.size()? {
        return Err(bad(format!("a striped set cannot grow beyond its {} bytes", file.size()?)));
    }
    Ok(offset..end)
}

impl Router {
    /// Writes all of `source` at `offset`, growing the file where it ends before. Returns when the
    /// kernel has the bytes, or, for durable writes, when they are on the disk. Reads through the
    /// same handle that begin afterwards see them; reads of these bytes that are under way end
    /// first.
    ///
    /// # Errors
    /// `ReadOnly` for a file that was not opened for writing, `Latched` after an earlier failure,
    /// `BadRange` for a range that overflows, `Write`, `Device`, `NoEngine`, `Cancelled`. After an
    /// error parts of the range inside the file's old size may have been overwritten, and nothing of it
    /// beyond that size is kept; where the range began beyond the end, zeroes up to it may stay.
    pub fn write(
        &self,
        file: &OpenFile,
        offset: u64,
        source: DeviceSlice<'_>,
        options: &WriteOptions,
    ) -> Result<WriteReport> {
        // Before its turn: readers of these bytes would wait for the program's work as well.
        let settled = self
            .begin(file, &options.cancel)
            .and_then(|()| self.settle(file.path(), &options.after, &options.cancel, source))
            .map_err(|error| error.from_device(self.device.id()))?;
        let turn = file.ticket_of(Mode::Write, ordered_range(file, offset, source.len(), options.engine));
        let (source, turn, started) = (settled, turn.as_ref(), Instant::now());
        self.serve_write(&WriteRequest { file, offset, source, options, turn, started })
            .map_err(|error| error.from_device(self.device.id()))
    }

    /// Serves a request in its turn; once more, through the page cache, where the file system refuses unbuffered writes.
    pub(super) fn serve_write(&self, request: &WriteRequest<'_>) -> Result<WriteReport> {
        let WriteRequest { file, options, turn, .. } = *request;
        self.begin(file, &options.cancel)?;
        let source = self.settle(file.path(), &options.after, &options.cancel, request.source)?;
        let request = &WriteRequest { source, ..*request };
        turn.inspect(|turn| turn.wait());
        file.members().iter().try_for_each(|member| member.check_writable())?;
        let range = range_of(request)?;
        let write = || match &*parts(file, &range)? {
            [] => Ok((vec![], "nothing to write")),
            [part] => self.write_part(request, part, &Together::new(1)),
            parts => self.write_members(request, parts),
        };
        let (plan, reason) = match write() {
            Err(error) if is_for_the_page_cache(&error, options) => {
                // Of a set, one member's refusal has stopped all of them: everything is written again.
                for member in file.members() {
                    member.refuse_direct(error.detail().to_owned());
                }
                write()?
            }
            outcome => outcome?,
        };
        let seconds = request.started.elapsed().as_secs_f64();
        Ok(WriteReport { bytes: source.len(), seconds, durable: options.durable, reason, plan })
    }

    /// Makes everything written to a file so far durable (`fdatasync(2)`).
    ///
    /// # Errors
    /// `ReadOnly`, `Latched`, `Write`; a failure is latched.
    pub fn sync(&self, file: &OpenFile) -> Result<()> {
        let sync = |file: &Arc<PlainFile>| {
            file.check_writable()?;
            self.sync_plain(file).inspect_err(|error| file.latch(error))
        };
        file.members().iter().try_for_each(sync).map_err(|error| error.from_device(self.device.id()))
    }

    fn sync_plain(&self, file: &PlainFile) -> Result<()> {
        let synced = self.storage.sync_data(file.buffered());
        synced.map_err(|error| {
            let detail =
                format!("fdatasync failed: {error}; what was written since the last successful one may be lost");
            Error::new(ErrorKind::Write, file.path(), detail).with_cause(error)
        })
    }

    /// Writes a part whose order is settled.
    pub(super) fn write_part(
        &self,
        request: &WriteRequest<'_>,
        part: &Part<'_>,
        together: &Together,
    ) -> Result<(Vec<SegmentReport>, &'static str)> {
        let Part { file, range, stamp, .. } = part;
        let (engine, reason) = self.engine_for(part, request.options)?;
        let writing = file.writing();
        let outcome = self.allocate(part, request.options).and_then(|()| {
            let plan = self.write_segments(request, part, engine, together)?;
            if request.options.durable {
                self.sync_plain(file)?;
            }
            Ok(plan)
        });
        // What shows what was there before.
        file.release_pages();
        outcome.map(|plan| (plan, reason)).inspect_err(|error| {
            // What lies before the range is another write's, which may have succeeded meanwhile.
            drop(writing);
            file.cut_back(stamp.size.max(range.start), range.end);
            // Who cancels knows that the range is half written; a refused range is written again.
            if error.kind() != ErrorKind::Cancelled && !is_for_the_page_cache(error, request.options) {
                file.latch(error);
            }
        })
    }

    fn engine_for(&self, part: &Part<'_>, options: &WriteOptions) -> Result<(EngineKind, &'static str)> {
        let Part { file, range, stamp, .. } = part;
        match options.engine {
            EngineChoice::Only(kind @ (EngineKind::Cached | EngineKind::Direct)) => {
                self.require(file, kind, range)?;
                Ok((kind, "the engine was chosen by the caller"))
            }
            EngineChoice::Only(other) => {
                let detail = format!("engine {other} cannot write; use auto, cached or direct");
                Err(Error::new(ErrorKind::NoEngine, file.path(), detail))
            }
            EngineChoice::Auto => {
                let bytes = range.end - range.start;
                let direct = bytes >= DIRECT_BYTES_MIN && file.direct().is_ok();
                let there = range.start.min(stamp.size)..range.end.min(stamp.size);
                let asks = direct && !options.durable;
                let cached = if asks { residency::query(file, &*self.storage, there)?.cached_bytes() } else { 0 };
                Ok(choose(bytes, cached, options.durable, direct))
            }
        }
    }

    /// Blocks for what lies beyond the end of the file.
    fn allocate(&self, part: &Part<'_>, options: &WriteOptions) -> Result<()> {
        let Part { file, range, stamp, .. } = part;
        let start = range.start.max(stamp.size);
        if !options.preallocate || start >= range.end || file.is_block_device() {
            return Ok(());
        }
        match self.storage.allocate(file.buffered(), start, range.end - start) {
            // File systems that cannot allocate find out while they write.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)) => {
                Ok(())
            }
            Err(error) => Err(Error::writing(file.path(), error).at(start)),
            Ok(()) => Ok(()),
        }
    }

    /// Divides a part between the engines, and runs them.
    fn write_segments(
        &self,
        request: &WriteRequest<'_>,
        part: &Part<'_>,
        engine: EngineKind,
        together: &Together,
    ) -> Result<Vec<SegmentReport>> {
        let (Part { file, range, stamp, .. }, options) = (part, request.options);
        let alignment = match engine {
            // Another write may have found out since this one was planned that it is refused.
            EngineKind::Direct => {
                let refused = |reason| Error::new(ErrorKind::DirectRefused, file.path(), reason);
                file.direct().map_err(refused)?.alignment
            }
            _ => 1,
        };
        let costs = self.costs();
        let segment = |(engine, part): (EngineKind, Range<u64>)| {
            let length = part.end - part.start;
            Segment { engine, offset: part.start, length, predicted_s: costs.of(engine).seconds(length) }
        };
        let segments = divide(range, engine, alignment).into_iter().map(segment);
        // The body first, and alone: the page cache keeps pages in large folios, and one that an edge
        // has made dirty may reach into the body. The kernel cannot drop it then, and reports the
        // unbuffered write as failed at the next `fdatasync`.
        let (body, edges): (Vec<_>, Vec<_>) = segments.partition(|segment| segment.engine == EngineKind::Direct);
        let start = |kind, job: &Arc<Job>| -> Result<Arc<dyn Engine>> {
            Ok(match kind {
                EngineKind::Direct => Arc::new(WriteDirect::new(job, &self.streams, &self.queues)?),
                _ => Arc::new(WriteCached::new(job, &self.streams)?),
            })
        };
        let mut reports = vec![];
        for segments in [body, edges].into_iter().filter(|segments| !segments.is_empty()) {
            let order = Order {
                stamp: *stamp,
                placement: part.placement.clone(),
                destination: request.source,
                kernels: None,
                cancel: options.cancel.clone(),
                progress: Arc::clone(&options.progress),
                on_arrival: None,
                together: together.clone(),
            };
            let job = Arc::new(Job::new(file, &self.pool, &self.storage, &self.device, order));
            let mut chunks = std::iter::once(Ok(segments));
            let planned: Planned<'_> = (Arc::clone(&job), &mut chunks);
            let _counted = self.crowd.join();
            flight::run(&self.workers, &start, &mut [planned])?;
            reports.extend(job.segments(&costs).0);
        }
        for segment in &mut reports {
            segment.member = part.member;
        }
        reports.sort_by_key(|segment| segment.offset);
        Ok(reports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_write_is_divided_into_aligned_body_and_edges(
            start in 0_u64..100_000, len in 1_u64..1_000_000, shift in 9_u32..17, direct in any::<bool>()
        ) {
            let (alignment, range) = (1 << shift, start..start + len);
            let engine = if direct { EngineKind::Direct } else { EngineKind::Cached };
            let mut at = start;
            for (kind, part) in divide(&range, engine, alignment) {
                prop_assert_eq!(part.start, at);
                prop_assert!(part.start < part.end);
                match kind {
                    EngineKind::Direct => prop_assert!(direct && part.start % alignment == 0 && part.end % alignment == 0),
                    _ => prop_assert!(!direct || part.end - part.start < 2 * alignment),
                }
                at = part.end;
            }
            prop_assert_eq!(at, range.end);
        }
    }

    #[test]
    fn long_durable_and_uncached_writes_go_past_the_page_cache() {
        let mib = 1 << 20;
        assert_eq!(choose(8 * mib, 0, false, true).0, EngineKind::Direct);
        assert_eq!(choose(8 * mib, 8 * mib, false, true).0, EngineKind::Cached);
        assert_eq!(choose(8 * mib, 8 * mib, true, true).0, EngineKind::Direct);
        assert_eq!(choose(4096, 0, true, true).0, EngineKind::Cached);
        assert_eq!(choose(8 * mib, 0, true, false).0, EngineKind::Cached);
    }
}
