//! Folding: bringing pages up to date from where their home is, with what others have released, and becoming home.

use super::Directory;
use crate::copies::plan::Fold;
use crate::error::Result;
use crate::fault::{Point, step};
use crate::page::Device;
use crate::ranges::chunks;

/// Folds pages, in ascending order, that the file lacks something of. The device's frames have memory for them, for
/// bases too.
pub(super) fn fold(directory: &mut Directory, device: Device, pages: &[u64]) -> Result<()> {
    let memory = directory.copies.memory(device)?;
    for run in directory.versions.runs_alike(device, pages.iter().copied()) {
        let donors = directory.versions.donors(run.start).len();
        let at_a_time = directory.copies.pages_folded_at_a_time(memory.incoming_bytes(), donors);
        for pages in chunks(&run, at_a_time) {
            let Directory { versions, copies, .. } = &mut *directory;
            let plan = Fold {
                pages: pages.clone(),
                bytes: versions.bytes_of(&pages),
                home: versions.home(pages.start),
                knows_file: versions.knows_file(device, pages.start),
                donors: versions.donors(pages.start),
            };
            let is_held = |page| versions.is_held_by(device, page);
            let (folded, outcome) = memory.with_scratch(|scratch| copies.fold(device, &plan, is_held, scratch))?;
            let outcome = outcome.and_then(|()| step(Point::FoldMerged, directory.path()));
            for (page, folded) in pages.zip(folded) {
                directory.versions.note_folded(device, page, folded);
            }
            outcome?;
            step(Point::FoldNoted, directory.path())?;
        }
    }
    Ok(())
}
