//! What has become of the file since the cache looked last: unknown changes, and another length.

use super::Directory;
use crate::error::{Error, Result};

/// Looks whether something unknown has happened to the file.
pub(crate) fn look(directory: &mut Directory) -> Result<()> {
    if !directory.copies.home.look().map_err(Error::reading)? {
        directory.versions.doubt();
    }
    // Also where nothing has changed since: following it may have failed after the look that found it.
    let size = directory.copies.size()?;
    resize(directory, size)
}

/// Follows a truncation, before something is written behind the new end.
pub(super) fn follow_cut(directory: &mut Directory) -> Result<()> {
    let size = directory.copies.size()?;
    if size < directory.versions.size() { resize(directory, size) } else { Ok(()) }
}

/// Follows the file's growth and truncation.
pub(super) fn resize(directory: &mut Directory, size: u64) -> Result<()> {
    let before = directory.versions.size();
    if size < before {
        directory.copies.blank(&(size..before))?;
    }
    if size != before {
        directory.versions.resize(size, directory.copies.reserved());
    }
    Ok(())
}
