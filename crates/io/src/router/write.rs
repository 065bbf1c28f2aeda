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

use super::{After, EngineChoice, Router, SegmentReport};
use crate::engine::Engine;
use crate::engine::write_cached::WriteCached;
use crate::engine::write_direct::WriteDirect;
use crate::file::{PlainFile, Stamp};
use crate::job::{Job, Order, Placement, Together};
use crate::ranges::Ticket;
use crate::residency;
use crate::{EngineKind, Error, ErrorKind, OpenFile, Result, Segment};
use bifolio_device::Cancel;
use bifolio_device::DeviceSlice;
use serde::Serialize;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// Shorter writes go through the page cache: a write past it is a trip to the disk each.
pub(crate) const DIRECT_BYTES_MIN: u64 = 1 << 20;

/// Choices for one write.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// Who chooses the engine: `cached` and `direct` write.
    pub engine: EngineChoice,
    /// Return only when the data would survive a loss of power (`fdatasync(2)`).
    pub durable: bool,
    /// Allocate what lies beyond the end of the file before anything is written.
    pub preallocate: bool,
    /// Stops the request.
    pub cancel: Cancel,
    /// Counts bytes that were handed to the kernel while the request runs.
    pub progress: Arc<AtomicU64>,
    /// What work of the program's on the source comes first.
    pub after: After,
}

impl Default for WriteOptions {
    fn default() -> Self {
        let (cancel, progress) = (Cancel::default(), Arc::default());
        let after = After::default();
        Self { engine: EngineChoice::Auto, durable: false, preallocate: true, cancel, progress, after }
    }
}

/// What a write did.
#[derive(Debug, Clone, Serialize)]
pub struct WriteReport {
    /// Bytes written: all that were asked for.
    pub bytes: u64,
    /// Seconds from the call to its end.
    pub seconds: f64,
    /// Whether the data were made durable.
    pub durable: bool,
    /// Why these engines, as a phrase.
    pub reason: &'static str,
    /// Every segment.
    pub plan: Vec<SegmentReport>,
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
        let turn = file.ticket_to_write(offset, source.len(), options.engine);
        self.write_in_turn(file, offset, settled, options, turn.as_ref())
    }

    /// The same for a request whose place in the order of reads and writes was taken before.
    pub(super) fn write_in_turn(
        &self,
        file: &OpenFile,
        offset: u64,
        source: DeviceSlice<'_>,
        options: &WriteOptions,
        turn: Option<&Ticket>,
    ) -> Result<WriteReport> {
        let started = Instant::now();
        self.begin(file, &options.cancel)
            .and_then(|()| {
                let source = self.settle(file.path(), &options.after, &options.cancel, source)?;
                turn.inspect(|turn| turn.wait());
                self.write_in_parts(file, offset, source, options, started)
            })
            .map_err(|error| error.from_device(self.device.id()))
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
                format!("making it durable failed: {error}; what was written since the last success may be lost");
            Error::new(ErrorKind::Write, file.path(), detail).with_source(error)
        })
    }

    fn write_in_parts(
        &self,
        file: &OpenFile,
        offset: u64,
        source: DeviceSlice<'_>,
        options: &WriteOptions,
        started: Instant,
    ) -> Result<WriteReport> {
        let bad = |detail: String| Error::new(ErrorKind::BadRange, file.path(), detail).at(offset);
        let end = offset.checked_add(source.len()).filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or_else(|| bad(format!("a length of {} bytes from there overflows", source.len())))?;
        file.members().iter().try_for_each(|member| member.check_writable())?;
        let range = offset..end;
        if file.layout().is_some() && end > file.size()? {
            return Err(bad(format!("a striped set has a fixed size, here {} bytes", file.size()?)));
        }
        let write = || match file.layout() {
            None => {
                let placement = || Placement::Linear { base: offset };
                self.write_range(file.plain(), &range, &placement, source, options, &Together::new(1))
            }
            Some(layout) => self.write_striped(file, *layout, &range, source, options),
        };
        let (plan, reason) = match write() {
            Err(error) if is_for_the_page_cache(&error, options) => {
                // Of a set, one member's refusal has stopped all of them: everything is written again.
                file.members().iter().for_each(|member| member.refuse_direct(error.to_string()));
                write()?
            }
            outcome => outcome?,
        };
        let (bytes, seconds) = (source.len(), started.elapsed().as_secs_f64());
        Ok(WriteReport { bytes, seconds, durable: options.durable, reason, plan })
    }

    /// Writes a range of one plain file whose order is settled.
    pub(super) fn write_range(
        &self,
        file: &Arc<PlainFile>,
        range: &Range<u64>,
        placement: &dyn Fn() -> Placement,
        source: DeviceSlice<'_>,
        options: &WriteOptions,
        together: &Together,
    ) -> Result<(Vec<SegmentReport>, &'static str)> {
        let stamp = file.stamp()?;
        let (engine, reason) = self.engine_for(file, range, stamp.size, options)?;
        if range.is_empty() {
            return Ok((vec![], "nothing to write"));
        }
        let writing = file.writing();
        let outcome = self.allocate(file, range, stamp.size, options).and_then(|()| {
            let plan = self.run_write(file, stamp, range, engine, placement, source, options, together)?;
            if options.durable {
                self.sync_plain(file)?;
            }
            Ok(plan)
        });
        // Pages that were registered or read ahead may show what was there before.
        file.windows.clear();
        file.readahead.clear();
        outcome.map(|plan| (plan, reason)).inspect_err(|error| {
            // What lies before the range is another write's, which may have succeeded meanwhile.
            drop(writing);
            file.cut_back(stamp.size.max(range.start), range.end);
            // Who cancels knows that the range is half written; a refused range is written again.
            if error.kind() != ErrorKind::Cancelled && !is_for_the_page_cache(error, options) {
                file.latch(error);
            }
        })
    }

    fn engine_for(
        &self,
        file: &PlainFile,
        range: &Range<u64>,
        size: u64,
        options: &WriteOptions,
    ) -> Result<(EngineKind, &'static str)> {
        match options.engine {
            EngineChoice::Only(kind @ (EngineKind::Cached | EngineKind::Direct)) => {
                self.require(file, kind, range)?;
                Ok((kind, "the engine was chosen by the caller"))
            }
            EngineChoice::Only(other) => {
                let detail = format!("the engine {other} does not write: use auto, cached or direct");
                Err(Error::new(ErrorKind::NoEngine, file.path(), detail))
            }
            EngineChoice::Auto => {
                let bytes = range.end - range.start;
                let direct = bytes >= DIRECT_BYTES_MIN && file.direct().is_ok();
                let there = range.start.min(size)..range.end.min(size);
                let asks = direct && !options.durable;
                let cached = if asks { residency::query(file, &*self.storage, there)?.cached_bytes() } else { 0 };
                Ok(choose(bytes, cached, options.durable, direct))
            }
        }
    }

    /// Blocks for what lies beyond the end of the file.
    fn allocate(&self, file: &PlainFile, range: &Range<u64>, size: u64, options: &WriteOptions) -> Result<()> {
        let start = range.start.max(size);
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

    #[allow(clippy::too_many_arguments, reason = "one caller; each argument once")]
    fn run_write(
        &self,
        file: &Arc<PlainFile>,
        stamp: Stamp,
        range: &Range<u64>,
        engine: EngineKind,
        placement: &dyn Fn() -> Placement,
        source: DeviceSlice<'_>,
        options: &WriteOptions,
        together: &Together,
    ) -> Result<Vec<SegmentReport>> {
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
            let (cancel, progress) = (options.cancel.clone(), Arc::clone(&options.progress));
            let order = Order {
                stamp,
                placement: placement(),
                destination: source,
                kernels: None,
                cancel,
                progress,
                follow: None,
                together: together.clone(),
            };
            let job = Arc::new(Job::new(file, &self.pool, &self.storage, &self.device, order));
            reports.extend(self.execute_with(&job, &mut std::iter::once(Ok(segments)), &start)?.0);
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
