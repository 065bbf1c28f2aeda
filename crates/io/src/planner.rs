//! Planning of one request, in chunks: the engines run while later chunks are looked at.
//!
//! Looking at the residency costs about 14 ns for each cached page that the kernel keeps by
//! itself: 28 ms for a warm file of 8 GiB, a sixth of the time that reading it takes. So the first
//! chunk is short, the next are longer, and all but the first are planned beside the copying.

use crate::Result;
use crate::file::{PlainFile, Stamp};
use crate::kind::{EngineChoice, EngineKind};
use crate::options::ReadOptions;
use crate::plan::{Offer, Plan, Segment, plan, plan_with};
use crate::report::ResidencyReport;
use crate::residency::{self, Residency, Source};
use crate::router::Router;
use std::ops::Range;
use std::time::Instant;

/// The first chunk: 512 pages, under 10 us.
const CHUNK_BYTES_MIN: u64 = 2 << 20;

/// Of a file whose latest request was cached, so much is read without asking first: its copying
/// hides the look at the rest. Where it turns out not to be cached, the next request asks.
const UNASKED_BYTES: u64 = 256 << 10;

/// Chunks grow to this: half a millisecond at worst, a fifth of the time that moving it takes.
const CHUNK_BYTES_MAX: u64 = 128 << 20;

/// The planner of one request: an iterator over the segments of its chunks, in file order.
pub(crate) struct Planner<'a> {
    router: &'a Router,
    file: &'a PlainFile,
    stamp: Stamp,
    range: Range<u64>,
    options: &'a ReadOptions,
    /// All of the range is registered: nothing needs to be asked.
    registered: bool,
    at: u64,
    chunk: u64,
    /// Bytes at the start that are not asked about before they are read, but with the next chunk.
    unasked: u64,
    seen: Option<ResidencyReport>,
    /// Cached runs, where the caller wants to know them.
    runs: Option<Vec<Range<u64>>>,
    reason: Option<&'static str>,
    seconds_first: Option<f64>,
    seconds: f64,
}

impl<'a> Planner<'a> {
    pub(crate) fn new(
        router: &'a Router,
        file: &'a PlainFile,
        stamp: Stamp,
        range: Range<u64>,
        options: &'a ReadOptions,
    ) -> Self {
        let auto = options.engine == EngineChoice::Auto;
        Self {
            router,
            file,
            stamp,
            at: range.start,
            options,
            registered: auto && router.is_registered(file, &stamp, &range),
            range,
            chunk: CHUNK_BYTES_MIN,
            unasked: 0,
            seen: None,
            runs: None,
            reason: None,
            seconds_first: None,
            seconds: 0.0,
        }
    }

    /// Begins without asking, as the file's latest request was cached.
    pub(crate) fn trust_the_cache(&mut self) {
        if !self.registered && self.range.end - self.range.start > UNASKED_BYTES {
            self.unasked = UNASKED_BYTES;
        }
    }

    /// What was cached, of the chunks planned so far; none where nobody looked.
    pub(crate) fn residency(&self) -> Option<ResidencyReport> {
        self.seen
    }

    /// Why the plan is as it is.
    pub(crate) fn reason(&self) -> &'static str {
        self.reason.unwrap_or("nothing to read")
    }

    /// Seconds of planning before an engine could start.
    pub(crate) fn seconds_before_start(&self) -> f64 {
        self.seconds_first.unwrap_or(0.0)
    }

    /// Seconds of planning in all.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds
    }

    /// The whole plan at once, with what it is based on.
    pub(crate) fn whole(mut self) -> Result<(Plan, Residency)> {
        self.runs = Some(vec![]);
        let mut segments: Vec<Segment> = Vec::new();
        for chunk in self.by_ref() {
            segments.extend(chunk?);
        }
        let runs = self.runs.take().unwrap_or_default();
        let source = self.seen.map_or(Source::Assumed, |seen| seen.source);
        let plan = Plan::merged(segments, self.reason(), &self.router.costs());
        Ok((plan, Residency::new(source, self.range.clone(), runs)))
    }

    fn plan_chunk(&mut self, range: Range<u64>) -> Result<Plan> {
        match self.options.engine {
            EngineChoice::Only(engine) => {
                self.router.require(self.file, engine, &self.range)?;
                if self.options.report_residency {
                    let residency = self.look(range.clone())?;
                    self.note(&residency);
                }
                Ok(plan_with(engine, range, &self.router.costs()))
            }
            EngineChoice::Auto if self.registered => {
                let residency = Residency::all(Source::Registered, range.clone());
                self.note(&residency);
                let mapped = [range];
                Ok(plan(&residency, &self.router.costs(), &Offer { mapped: &mapped, ..Offer::default() }))
            }
            EngineChoice::Auto if range.start == self.range.start && self.unasked > 0 => {
                Ok(plan_with(EngineKind::Cached, range, &self.router.costs()))
            }
            EngineChoice::Auto => {
                let asked = range.start - std::mem::take(&mut self.unasked)..range.end;
                let residency = self.look(asked)?;
                self.note(&residency);
                let planned = Residency::new(residency.source, range, residency.cached().iter().cloned());
                Ok(self.router.plan_for(self.file, &self.stamp, &planned))
            }
        }
    }

    fn look(&self, range: Range<u64>) -> Result<Residency> {
        residency::query(self.file, self.router.storage(), range)
    }

    fn note(&mut self, residency: &Residency) {
        let chunk = ResidencyReport::of(residency);
        self.seen = Some(match self.seen {
            None => chunk,
            Some(before) => ResidencyReport {
                // The most indirect source is the one to know about.
                source: before.source.max(chunk.source),
                cached_bytes: before.cached_bytes + chunk.cached_bytes,
                total_bytes: before.total_bytes + chunk.total_bytes,
            },
        });
        if let Some(runs) = &mut self.runs {
            runs.extend_from_slice(residency.cached());
        }
    }

    /// The next chunk: all of it where nothing has to be asked, else up to a multiple of its size.
    fn next_range(&mut self) -> Range<u64> {
        let whole = self.registered || self.options.engine != EngineChoice::Auto;
        let unasked = self.at == self.range.start && self.unasked > 0;
        let end = match (whole, unasked) {
            (true, _) => self.range.end,
            (_, true) => self.at + self.unasked,
            _ => (self.at / self.chunk + 1) * self.chunk,
        };
        let range = self.at..end.min(self.range.end);
        self.at = range.end;
        if unasked {
            return range;
        }
        self.chunk = (self.chunk * 2).min(CHUNK_BYTES_MAX);
        range
    }
}

impl Iterator for Planner<'_> {
    type Item = Result<Vec<Segment>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.range.end {
            return None;
        }
        let started = Instant::now();
        let range = self.next_range();
        let planned = self.plan_chunk(range);
        let seconds = started.elapsed().as_secs_f64();
        self.seconds += seconds;
        self.seconds_first.get_or_insert(seconds);
        Some(planned.map(|plan| {
            self.reason = Some(match self.reason {
                // Nobody has looked yet.
                None if self.unasked > 0 => return plan.segments,
                Some(before) if before != plan.reason => {
                    "partly cached; page cache and storage are read at the same time"
                }
                _ => plan.reason,
            });
            plan.segments
        }))
    }

    /// Zero at most once everything is planned; the flight looks at this.
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.range.end - self.at;
        (usize::from(left > 0), Some(left.div_ceil(CHUNK_BYTES_MIN) as usize))
    }
}
