//! What an acquire or a release has done.

use bifolio_cache::Counts;
use pyo3::prelude::*;

/// What an acquire or a release has done to pages, and how long it took.
#[pyclass(frozen, get_all, module = "bifolio")]
#[derive(Debug, Clone)]
pub(crate) struct Report {
    /// Pages that were up to date when they were acquired.
    hits: u64,
    /// Pages that were fetched, from the file or another device.
    fetched: u64,
    /// Of those, pages that came from another device.
    from_peers: u64,
    /// Of those, pages that had changes of the device's own.
    merged: u64,
    /// Of those, pages with bytes that both sides had changed.
    races: u64,
    /// Pages that were released.
    released: u64,
    /// Pages that were written to the file.
    flushed: u64,
    /// Pages that were compared with the file, as something unknown may have changed it.
    compared: u64,
    /// Pages whose memory was needed.
    evicted: u64,
    /// Pages that were copied on the device, as readers keep the version that they have acquired.
    copied: u64,
    /// Of an acquire: whether each one of this file compares, as its file system does not tell of every change.
    always_compared: bool,
    /// How long it took.
    seconds: f64,
}

/// Counts with their names.
pub(super) fn named(counts: &Counts) -> impl Iterator<Item = (&'static str, u64)> {
    [
        ("hits", counts.hits),
        ("fetched", counts.fetched),
        ("from_peers", counts.from_peers),
        ("merged", counts.merged),
        ("races", counts.races),
        ("released", counts.released),
        ("flushed", counts.flushed),
        ("compared", counts.compared),
        ("evicted", counts.evicted),
        ("copied", counts.copied),
        ("lost", counts.lost),
    ]
    .into_iter()
}

impl Report {
    pub(super) fn of(report: &bifolio_cache::Report) -> Self {
        let Counts { hits, fetched, from_peers, merged, races, released, flushed, compared, evicted, copied, .. } =
            report.counts;
        let (always_compared, seconds) = (report.always_compared, report.seconds);
        Self {
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
            always_compared,
            seconds,
        }
    }
}

#[pymethods]
impl Report {
    fn __repr__(&self) -> String {
        let Self { hits, fetched, from_peers, merged, races, released, flushed, compared, evicted, copied, .. } = self;
        let seconds = self.seconds;
        format!(
            "<bifolio.Report: hits={hits}, fetched={fetched}, from_peers={from_peers}, merged={merged}, races={races}, \
             released={released}, flushed={flushed}, compared={compared}, evicted={evicted}, copied={copied}, seconds={seconds:.6}>"
        )
    }
}
