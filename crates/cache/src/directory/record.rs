//! Noting what is being done, for whoever finds it ([`crate::state::record`]): nothing where nobody keeps the region.

use super::versions::Versions;
use super::{Directory, no_memory};
use crate::error::Result;
use crate::state::record::{RecordNumber, Transition};
use std::io;

/// Notes what will be done to some pages, before anything of it is.
pub(super) fn begin(
    directory: &mut Directory,
    transition: &Transition,
    pages: impl IntoIterator<Item = u64>,
) -> Result<Option<RecordNumber>> {
    directory.versions.begin(transition, pages).map_err(|error| no_memory(directory.path(), &error))
}

impl Versions {
    /// The same of a directory of which a part is elsewhere.
    pub(super) fn begin(
        &mut self,
        transition: &Transition,
        pages: impl IntoIterator<Item = u64>,
    ) -> io::Result<Option<RecordNumber>> {
        if self.region.is_shared() { self.records.begin(transition, pages).map(Some) } else { Ok(None) }
    }

    /// Notes that it will be done to some more.
    pub(super) fn mark(&mut self, record: Option<RecordNumber>, pages: impl IntoIterator<Item = u64>) {
        if let Some(record) = record {
            self.records.mark(record, pages);
        }
    }

    /// Notes up to which byte it is done.
    pub(super) fn advance(&mut self, record: Option<RecordNumber>, to: u64) {
        if let Some(record) = record {
            self.records.advance(record, to);
        }
    }

    /// Notes that it is done, or never will be.
    pub(super) fn finish(&mut self, record: Option<RecordNumber>, pages: impl IntoIterator<Item = u64>) {
        if let Some(record) = record {
            self.records.end(record, pages);
        }
    }
}
