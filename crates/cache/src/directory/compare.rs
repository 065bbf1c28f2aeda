//! Finding out what has changed: in the file, where nobody tells, and on a device since its latest release.

use super::flush::flush;
use super::wait::{read_home, scratch_to_read};
use super::{Directory, Locked};
use crate::error::Result;
use crate::memory::{Memory, Scratch};
use crate::page::Device;
use crate::ranges::{chunks, runs};
use std::collections::BTreeSet;
use std::ops::Range;

/// Compares the file with what it had, where something unknown may have happened since the last time, at the rate of the
/// link: pages that a device is about to use as they are, and those whose home is a device, which knows what the file
/// had. Of these the file is home again if it has changed: devices' changes are laid over what it has now.
pub(super) fn compare_with_file(directory: &mut Locked<'_>, device: Device, pages: &Range<u64>) -> Result<()> {
    for (asked, doubtful) in directory.versions.doubtful(device, pages) {
        let memory = directory.copies.memory(asked)?;
        let at_a_time = memory.incoming_bytes() / directory.versions.page_bytes();
        for chunk in runs(doubtful).iter().flat_map(|run| chunks(run, at_a_time)) {
            let changed = differing(directory, asked, &chunk, &memory)?;
            let pending = directory.versions.pending(changed.iter().copied());
            flush(directory, &pending)?;
            directory.versions.note_changed(changed);
            directory.versions.note_compared(asked, &chunk);
        }
    }
    Ok(())
}

/// Those of some pages in which the file differs from what a device knows of it.
fn differing(directory: &mut Locked<'_>, device: Device, pages: &Range<u64>, memory: &Memory) -> Result<BTreeSet<u64>> {
    let scratch = scratch_to_read(directory, memory)?;
    let bytes = directory.versions.bytes_of(pages);
    let incoming = Scratch::first(&scratch.incoming, bytes.end - bytes.start);
    let incoming = incoming.map_err(|error| directory.copies.failed(error))?;
    read_home(directory, device, &[(bytes.clone(), 0)], incoming)?;
    let Directory { versions, copies, .. } = &**directory;
    let is_pending = |page| versions.is_pending(device, page);
    copies.differ_from_home(device, &bytes, is_pending, incoming, &scratch)
}

/// Pages of a range that the device has changed since its latest release.
pub(super) fn changed_since_release(
    directory: &Directory,
    device: Device,
    range: &Range<u64>,
    scratch: &Scratch,
) -> Result<BTreeSet<u64>> {
    let Directory { versions, copies, .. } = directory;
    let mut changed = copies.changed_since_release(device, range, versions.size(), scratch)?;
    // What is in the place of a page that was never fetched is nobody's.
    changed.retain(|page| versions.is_held_by(device, *page));
    Ok(changed)
}
