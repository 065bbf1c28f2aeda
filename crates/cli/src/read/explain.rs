//! What `bifolio read` answers.

use super::run::{Run, describe_runs};
use crate::output::columns;
use bifolio_device::DeviceId;
use bifolio_io::{ResidencyReport, SegmentReport, size};
use serde::Serialize;
use std::fmt::Write;

/// Plans with more segments are printed with their middle summed up.
const SEGMENTS_MAX: usize = 20;

/// Segments printed at either end of a long plan.
const SEGMENTS_AT_ENDS: usize = 8;

/// The whole answer, as JSON: the best run, and what was checked after the last.
#[derive(Debug, Serialize)]
pub(super) struct Answer<'a> {
    pub(super) file: String,
    pub(super) device: DeviceId,
    pub(super) bytes: u64,
    #[serde(flatten)]
    pub(super) best: Run,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verified: Option<bool>,
    pub(super) residency: Option<ResidencyReport>,
    pub(super) plan: &'a [SegmentReport],
    pub(super) plan_seconds: f64,
    pub(super) predicted_s: f64,
    pub(super) reason: &'a str,
    pub(super) pinned_bytes: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) runs: Vec<Run>,
}

/// The answer as text, with the plan if it was asked for.
pub(super) fn describe(answer: &Answer<'_>, with_plan: bool) -> String {
    let mut text = describe_runs(&answer.file, (answer.bytes, answer.device), answer.best, &answer.runs);
    if let Some(sha256) = &answer.sha256 {
        let _ = writeln!(text, "sha256 {sha256} (of device memory)");
    }
    if answer.verified.is_some() {
        let _ = writeln!(text, "verified: device memory and file are the same");
    }
    if with_plan {
        describe_plan(&mut text, answer);
    }
    text
}

fn describe_plan(text: &mut String, answer: &Answer<'_>) {
    if let Some(residency) = &answer.residency {
        let percent = 100.0 * residency.cached_bytes as f64 / residency.total_bytes.max(1) as f64;
        let (cached, total) = (size::human(residency.cached_bytes), size::human(residency.total_bytes));
        let _ = writeln!(text, "cached     {cached} of {total} ({percent:.0} %), as {} says", residency.source.name());
    }
    let _ = writeln!(text, "plan       {} ({:.1} us to look and plan)", answer.reason, answer.plan_seconds * 1e6);
    let _ = writeln!(text, "predicted  {:.3} ms, took {:.3} ms", answer.predicted_s * 1e3, answer.best.seconds * 1e3);
    let _ = writeln!(text, "pinned     {} of host memory", size::human(answer.pinned_bytes));
    let is_set = answer.plan.iter().any(|segment| segment.member.is_some());
    let mut head = ["engine", "offset", "length", "predicted ms", "actual ms"].map(str::to_owned).to_vec();
    if is_set {
        // Offsets are those in the member.
        head.push("member".to_owned());
    }
    let mut rows = vec![head];
    if answer.plan.len() <= SEGMENTS_MAX {
        rows.extend(answer.plan.iter().map(row));
    } else {
        let (head, tail) = (SEGMENTS_AT_ENDS, answer.plan.len() - SEGMENTS_AT_ENDS);
        rows.extend(answer.plan[..head].iter().map(row));
        rows.extend(summary(&answer.plan[head..tail]));
        rows.extend(answer.plan[tail..].iter().map(row));
    }
    text.push_str(&columns(&rows, &[0]));
}

fn row(segment: &SegmentReport) -> Vec<String> {
    let ms = |seconds: f64| format!("{:.3}", seconds * 1e3);
    let mut row = vec![
        segment.engine.to_string(),
        segment.offset.to_string(),
        segment.length.to_string(),
        ms(segment.predicted_s),
        ms(segment.actual_s),
    ];
    row.extend(segment.member.map(|member| member.to_string()));
    row
}

/// One line for each engine in the middle of a long plan.
fn summary(segments: &[SegmentReport]) -> Vec<Vec<String>> {
    let of = |engine| {
        let of_engine: Vec<_> = segments.iter().filter(|segment| segment.engine == engine).collect();
        let bytes: u64 = of_engine.iter().map(|segment| segment.length).sum();
        let line = || vec![format!("... {} more {engine}", of_engine.len()), String::new(), bytes.to_string()];
        (!of_engine.is_empty()).then(line)
    };
    bifolio_io::EngineKind::ALL.into_iter().filter_map(of).collect()
}
