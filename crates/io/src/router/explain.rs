//! What a request would do: its plan, without running it.

use super::Router;
use super::request::{clamp, parts};
use crate::Result;
use crate::file::OpenFile;
use crate::kind::EngineChoice;
use crate::options::ReadOptions;
use crate::plan::{Plan, Segment};
use crate::planner::Planner;
use crate::residency::{Residency, Source};

impl Router {
    /// Plans a request without running it. Offsets of segments and runs are those of the file, so that of a striped set
    /// one chunk is one segment.
    pub fn explain(
        &self,
        file: &OpenFile,
        offset: u64,
        length: Option<u64>,
        engine: EngineChoice,
    ) -> Result<(Plan, Residency)> {
        let options = ReadOptions { engine, report_residency: true, ..ReadOptions::default() };
        let range = clamp(file.path(), file.size()?, offset, length, u64::MAX)?;
        let Some(layout) = file.layout() else {
            let file = file.plain();
            return Planner::new(self, file, file.stamp()?, range, &options).whole();
        };
        let (mut segments, mut runs, mut source) = (vec![], vec![], None);
        for part in &*parts(file, &range)? {
            let member = part.member.unwrap_or_default();
            let (plan, residency) = Planner::new(self, part.file, part.stamp, part.range.clone(), &options).whole()?;
            source = source.max(Some(residency.source));
            for segment in plan.segments {
                let whole = segment.offset..segment.offset + segment.length;
                for (offset, length) in layout.chunks_of(member, &whole) {
                    let predicted_s = segment.predicted_s * length as f64 / segment.length as f64;
                    segments.push(Segment { engine: segment.engine, offset, length, predicted_s });
                }
            }
            for run in residency.cached() {
                runs.extend(layout.chunks_of(member, run).map(|(offset, length)| offset..offset + length));
            }
        }
        segments.sort_by_key(|segment| segment.offset);
        runs.sort_by_key(|run| run.start);
        let plan = Plan::merged(segments, "each member by its own plan", &self.costs());
        Ok((plan, Residency::new(source.unwrap_or(Source::Assumed), range, runs)))
    }
}
