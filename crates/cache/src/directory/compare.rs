//! Finding out what has changed: at home, where nobody tells, and on a device since its latest release.

use super::Directory;
use crate::error::Result;
use crate::memory::Scratch;
use crate::page::Device;
use crate::ranges::{chunks, runs};
use std::collections::BTreeSet;
use std::ops::Range;

/// Compares what the device has with home, where something unknown may have happened since the last time, at the rate
/// of the link.
pub(super) fn compare_with_home(
    directory: &mut Directory,
    device: Device,
    pages: &Range<u64>,
    scratch: &Scratch,
) -> Result<()> {
    let Directory { versions, copies, .. } = directory;
    for run in runs(versions.doubtful(device, pages)) {
        for chunk in chunks(&run, scratch.incoming.len() / versions.page_bytes()) {
            let is_pending = |page| versions.is_pending(device, page);
            let changed = copies.differ_from_home(device, &versions.bytes_of(&chunk), is_pending, scratch)?;
            versions.note_compared(device, &chunk, &changed);
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
