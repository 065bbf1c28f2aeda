//! Folding: bringing pages up to date from where their home is, with what others have released, and becoming home.

use super::wait::{read_home, scratch_to_read, with_pages};
use super::{Directory, Locked, no_memory};
use crate::copies::fold::Done;
use crate::copies::plan::Fold;
use crate::error::Result;
use crate::fault::{Point, step};
use crate::memory::Scratch;
use crate::monitor::Hold;
use crate::page::{Device, Home};
use crate::page_set::PageSet;
use crate::ranges::chunks;
use crate::state::record::{Operation, RecordNumber, Transition};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Folds pages, in ascending order, that the file lacks something of. The device's frames have memory for them, for
/// bases too.
pub(super) fn fold(directory: &mut Locked<'_>, device: Device, pages: &[u64]) -> Result<()> {
    let memory = directory.copies.memory(device)?;
    for run in directory.versions.runs_alike(device, pages.iter().copied()) {
        let versions = &directory.versions;
        let mut plan = Fold {
            pages: run.clone(),
            bytes: versions.bytes_of(&run),
            home: versions.home(run.start),
            knows_file: versions.knows_file(device, run.start),
            donors: versions.donors(run.start),
            is_direct: false,
        };
        plan.is_direct = directory.copies.reaches(device, &plan)?;
        let at_a_time = directory.copies.pages_folded_at_a_time(&plan, memory.incoming_bytes());
        for pages in chunks(&run, at_a_time) {
            let bytes = directory.versions.bytes_of(&pages);
            let plan = Fold { bytes, pages: pages.clone(), ..plan.clone() };
            let mut record = None;
            let done = if plan.home == Home::File {
                let scratch = scratch_to_read(directory, &memory)?;
                let place = directory.copies.place_of_home(&plan, &scratch)?;
                read_home(directory, device, &[(plan.bytes.clone(), 0)], place)?;
                fold_pages(directory, device, &plan, &scratch, &mut record)
            } else {
                memory.with_scratch(|scratch| fold_pages(directory, device, &plan, scratch, &mut record))
            };
            let (folded, outcome) = done.inspect_err(|_| directory.versions.finish(record, pages.clone()))?;
            let outcome = outcome.and_then(|()| step(Point::FoldMerged, directory.path()));
            for (page, folded) in pages.clone().zip(folded) {
                directory.versions.note_folded(device, page, folded);
            }
            directory.versions.finish(record, pages);
            outcome?;
            step(Point::FoldNoted, directory.path())?;
        }
    }
    Ok(())
}

/// Those of some pages of which donors have something that home lacks: those that home may fold, by their home, and the
/// others. What is acquired there is left as it is.
pub(super) fn donors_by_home(directory: &Directory, pages: Range<u64>) -> (BTreeMap<Device, Vec<u64>>, PageSet) {
    let (mut folds, mut others) = (BTreeMap::<Device, Vec<u64>>::new(), PageSet::new());
    let Directory { versions, copies, .. } = directory;
    let is_pinned = |device: Device, page| copies.get(device).is_none_or(|own| own.is_pinned(own.frame_of(page)));
    for page in versions.pending(pages) {
        match versions.home(page) {
            Home::Device(_) if versions.donors(page).is_empty() => {}
            Home::Device(device) if !is_pinned(device, page) => folds.entry(device).or_default().push(page),
            _ => others.insert(page),
        }
    }
    (folds, others)
}

/// Has home hold what donors have released of a range, as far as it may be done: all of it is written to the file at once
/// then, where what each device has would be written by itself, in runs that others' bytes interrupt. What cannot be
/// folded is written so.
pub(super) fn fold_at_home(directory: &mut Locked<'_>, range: &Range<u64>) {
    let pages = directory.versions.pages_of(range);
    if donors_by_home(directory, pages.clone()).0.is_empty() {
        return;
    }
    with_pages(directory, range, Hold::Change, |directory| {
        for (device, pages) in donors_by_home(directory, pages).0 {
            let _ = fold(directory, device, &pages);
        }
    });
}

/// Notes what is begun as well.
fn fold_pages(
    directory: &mut Directory,
    device: Device,
    plan: &Fold,
    scratch: &Scratch,
    record: &mut Option<RecordNumber>,
) -> Result<Done> {
    let Directory { versions, copies, .. } = directory;
    let held: BTreeSet<u64> = plan.pages.clone().filter(|page| versions.is_held_by(device, *page)).collect();
    let begin = |donors: &[Device], has_origin| {
        let donors = donors.iter().fold(0, |all, donor| all | 1 << donor);
        let inputs = scratch.incoming.frame;
        let fold = Transition { donors, has_origin, inputs, ..Transition::of(Operation::Fold, device) };
        let begun = versions.begin(&fold, plan.pages.clone());
        *record = begun.map_err(|error| no_memory(copies.path(), &error))?;
        step(Point::FoldRead, copies.path())
    };
    copies.fold(device, plan, |page| held.contains(&page), scratch, begin)
}
