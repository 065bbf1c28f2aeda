//! All stages of a path, as one service of the executor: a request is a batch.

use super::batch::{BOUNDARY, Extent};
use super::fetch::{ENTRY_BYTES, Fetcher};
use super::layout::Layout;
use super::rows::Rows;
use super::stage::{Launching, Snapshot, Stage};
use bifolio_compute::service::{Batch, Data, Entry, Launch, Output, Prepared, Service, Shape};
use bifolio_compute::{Error, ErrorKind, Loaded, Result};
use bifolio_device::Device;
use bifolio_kernels::packets::{self, Begin, Memory};
use std::sync::Arc;

/// Who computes, where nobody is to choose.
pub type Forced = bifolio_compute::Path;

/// What a batch's request asks for.
#[derive(Debug, Clone)]
pub(super) struct Work {
    pub(super) extent: Extent,
    /// Of each stage.
    pub(super) snapshots: Arc<[Snapshot]>,
}

/// The stages of a path.
#[derive(Debug)]
pub(super) struct PathService {
    name: &'static str,
    layout: Arc<Layout>,
    stages: Vec<Arc<dyn Stage>>,
    begin: Result<Loaded, String>,
    fetcher: Option<Arc<Fetcher>>,
    /// A batch to measure with: rows of so many packets, and their spans.
    sample: fn(&Layout, usize) -> (Extent, Vec<u8>),
}

impl PathService {
    pub(super) fn new(
        name: &'static str,
        layout: Arc<Layout>,
        stages: Vec<Arc<dyn Stage>>,
        begin: Result<Loaded, String>,
        fetcher: Option<Arc<Fetcher>>,
        sample: fn(&Layout, usize) -> (Extent, Vec<u8>),
    ) -> Self {
        Self { name, layout, stages, begin, fetcher, sample }
    }

    pub(super) fn stages(&self) -> &[Arc<dyn Stage>] {
        &self.stages
    }

    /// Work on a batch, with tables as they are now.
    pub(super) fn work(&self, extent: Extent) -> Work {
        Work { extent, snapshots: self.snapshots(extent.count) }
    }

    fn snapshots(&self, count: usize) -> Arc<[Snapshot]> {
        self.stages.iter().map(|stage| stage.snapshot(count)).collect()
    }

    /// Where each stage's own part of the output lies, and how long all is.
    pub(super) fn extras(&self, count: usize, span_bytes: usize) -> (Vec<(usize, usize)>, usize) {
        let mut at = (count * self.layout.output_bytes()).next_multiple_of(BOUNDARY);
        let place = |stage: &Arc<dyn Stage>| {
            let bytes = stage.extra_bytes(count, span_bytes) as usize;
            let place = (at, bytes);
            at = (at + bytes).next_multiple_of(BOUNDARY);
            place
        };
        (self.stages.iter().map(place).collect(), at)
    }

    /// Computes a batch on the calling thread.
    pub(super) fn compute(&self, work: &Work, input: &[u8], output: &mut [u8]) {
        let extent = work.extent;
        let (places, _) = self.extras(extent.count, extent.span_bytes);
        let rows_end = extent.count * self.layout.output_bytes();
        let (rows, mut rest) = output.split_at_mut(rows_end);
        let spans = &input[extent.spans_at..][..extent.span_bytes];
        let texts = &input[extent.texts_at..extent.input_bytes];
        let mut rows = Rows::new(&self.layout, extent.count, &input[extent.rows_at..], spans, texts, rows);
        rows.begin();
        let mut rest_at = rows_end;
        for ((stage, snapshot), (at, bytes)) in self.stages.iter().zip(&*work.snapshots).zip(places) {
            let (extra, after) = rest.split_at_mut(at - rest_at).1.split_at_mut(bytes);
            stage.on_cpu(&mut rows, snapshot, extra);
            (rest, rest_at) = (after, at + bytes);
        }
    }

    fn missing() -> Error {
        Error::new(ErrorKind::Unsuited, "a kernel of the path is not there")
    }
}

impl Service for PathService {
    type Params = Work;

    fn name(&self) -> &'static str {
        self.name
    }

    fn shape(&self, work: &Work, input: u64) -> Result<Shape> {
        if input != work.extent.input_bytes as u64 {
            let (is, wants) = (input, work.extent.input_bytes);
            return Err(Error::new(
                ErrorKind::BadArgument,
                format!("the batch has {is} bytes, and its rows say {wants}"),
            ));
        }
        Ok(Shape { output: Output::Apart(self.extras(work.extent.count, work.extent.span_bytes).1 as u64), results: 0 })
    }

    fn travels(&self, work: &Work, _: u64) -> u64 {
        work.extent.travels as u64
    }

    fn cut(&self, _: &Work, _: u64) -> u64 {
        0
    }

    fn split(&self, work: &Work, _: u64) -> (Work, Work) {
        (work.clone(), work.clone())
    }

    fn refusal(&self) -> Option<String> {
        let begin = self.begin.as_ref().err().cloned();
        begin.or_else(|| self.stages.iter().find_map(|stage| stage.refusal()))
    }

    fn sample(&self, about_bytes: u64) -> (Work, Vec<u8>) {
        let (extent, bytes) = (self.sample)(&self.layout, about_bytes as usize);
        (Work { extent, snapshots: self.snapshots(0) }, bytes)
    }

    fn on_cpu(&self, work: &Work, data: Data<'_>, _: &mut [u8]) -> Result<()> {
        let Data::Apart(input, output) = data else {
            return Err(Error::new(ErrorKind::BadArgument, "a path writes elsewhere than it reads"));
        };
        if work.extent.table_at.is_some() {
            // Whoever has the packets packs and computes them.
            return Err(Error::new(
                ErrorKind::Unsuited,
                "a batch whose payloads the device was to fetch is packed again",
            ));
        }
        self.compute(work, input, output);
        Ok(())
    }

    fn prepare(&self, _: &Device, _: &[Entry<'_, Work>], _: Batch<'_>) -> Result<Prepared> {
        Ok(Prepared::default())
    }

    unsafe fn launch(&self, entries: &[Entry<'_, Work>], launch: &Launch<'_>) -> Result<()> {
        let begin = self.begin.as_ref().map_err(|_| Self::missing())?;
        let (stream, input, output) = (launch.stream, launch.batch.inputs, launch.batch.outputs);
        for entry in entries {
            let extent = entry.params.extent;
            let (input_at, output_at) = (entry.input.ptr().0 - input.ptr().0, entry.output.ptr().0 - output.ptr().0);
            let mut rows = self.layout.rows(extent.count as u32, extent.span_bytes as u64);
            (rows.span_at, rows.input_at) = (input_at + extent.spans_at as u64, input_at + extent.rows_at as u64);
            rows.output_at = output_at;
            if let (Some(fetcher), Some(at)) = (&self.fetcher, extent.table_at) {
                let table = entry.input.part(at as u64, (extent.count * ENTRY_BYTES) as u64)?;
                let spans = entry.input.part(extent.spans_at as u64, extent.span_bytes as u64)?;
                // SAFETY: the path has made the table of packets that it keeps, which lie in slabs that the device reaches.
                unsafe { fetcher.launch(stream, table, spans) }?;
            }
            // SAFETY: the caller's promise: input and output are this batch's, as long as the work lasts.
            unsafe { packets::launch(stream, begin.module(), &Begin { rows }, Memory { input, output }, &[]) }?;
            let texts = self.layout.texts(rows, input_at + extent.texts_at as u64);
            let snapshots = &*entry.params.snapshots;
            let places = self.extras(extent.count, extent.span_bytes).0;
            for ((stage, snapshot), (at, bytes)) in self.stages.iter().zip(snapshots).zip(places) {
                let (extra_at, extra_bytes) = (output_at + at as u64, bytes as u64);
                let launching = Launching { stream, rows, texts, input, output, snapshot, extra_at, extra_bytes };
                // SAFETY: as above.
                unsafe { stage.launch(&launching) }?;
            }
        }
        Ok(())
    }
}
