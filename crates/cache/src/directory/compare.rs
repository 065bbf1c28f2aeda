//! Finding out what has changed: in the file, where nobody tells, and on a device since its latest release.

use super::Directory;
use super::flush::flush;
use crate::error::Result;
use crate::memory::Scratch;
use crate::page::Device;
use crate::ranges::{chunks, runs};
use std::collections::BTreeSet;
use std::ops::Range;

/// Compares the file with what it had, where something unknown may have happened since the last time, at the rate of the
/// link: pages that a device is about to use as they are, and those whose home is a device, which knows what the file
/// had. Of these the file is home again if it has changed: devices' changes are laid over what it has now.
pub(super) fn compare_with_file(directory: &mut Directory, device: Device, pages: &Range<u64>) -> Result<()> {
    for (asked, doubtful) in directory.versions.doubtful(device, pages) {
        let memory = directory.copies.memory(asked)?;
        let at_a_time = memory.incoming_bytes() / directory.versions.page_bytes();
        for chunk in runs(doubtful).iter().flat_map(|run| chunks(run, at_a_time)) {
            let changed = memory.with_scratch(|scratch| {
                let Directory { versions, copies, .. } = &*directory;
                let is_pending = |page| versions.is_pending(asked, page);
                copies.differ_from_home(asked, &versions.bytes_of(&chunk), is_pending, scratch)
            })?;
            flush(directory, &directory.versions.pending(changed.iter().copied()))?;
            directory.versions.note_changed(changed);
            directory.versions.note_compared(asked, &chunk);
        }
    }
    Ok(())
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
