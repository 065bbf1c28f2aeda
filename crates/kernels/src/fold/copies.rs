//! One page by way of copies of it, for memory that the oracle cannot have: all that it reads is copied first, so that
//! one memory may be several of its parts.

use super::entry::Entry;
use super::oracle::{Page, oracle};

/// Reads the parts of a page, folds it, and writes those that may have changed; the flags are returned.
pub(super) fn fold_copies<E>(
    entry: &Entry,
    read: impl Fn(u64) -> Result<Vec<u8>, E>,
    mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<u32, E> {
    let optional = |place: Option<u64>| place.map(&read).transpose();
    let (content, origin) = (read(entry.content)?, optional(entry.origin)?);
    let (mut twin, mut base) = (optional(entry.twin)?, entry.base.map(|_| vec![0; entry.len as usize]));
    let mut current = if twin.is_some() { read(entry.current)? } else { vec![0; entry.len as usize] };
    let mut donors = Vec::new();
    for donor in entry.donors.into_iter().flatten() {
        donors.push((read(donor.twin)?, read(donor.base)?));
    }
    let donors: Vec<_> = donors.iter().map(|(twin, base)| (&twin[..], &base[..])).collect();
    let flags = oracle(Page {
        current: &mut current,
        twin: twin.as_deref_mut(),
        base: base.as_deref_mut(),
        content: &content,
        origin: origin.as_deref(),
        donors: &donors,
    });
    write(entry.current, &current)?;
    for (place, bytes) in [(entry.twin, &twin), (entry.base, &base)] {
        if let (Some(place), Some(bytes)) = (place, bytes) {
            write(place, bytes)?;
        }
    }
    Ok(flags)
}
