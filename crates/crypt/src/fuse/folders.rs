//! Directories of the mounted tree that are kept open: those that were used last, within what the process may open.

use super::outcome::lock;
use crate::folder::Folder;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Directories that are kept open at most, however many descriptors there are.
const OPEN_MAX: u64 = 1000;
/// As few as a request needs at a time: two directories of a rename, and what it opens in them.
const OPEN_MIN: u64 = 4;
/// One descriptor in so many is for directories. The others are for files that programs have open, for the threads
/// that serve, and for what requests open for a moment.
const SHARE: u64 = 8;

/// A node's id and generation.
pub(super) type FolderId = (u64, u64);

#[derive(Debug)]
pub(super) struct Folders {
    kept: Mutex<Kept>,
    most: usize,
}

#[derive(Debug, Default)]
struct Kept {
    by_id: HashMap<FolderId, (Arc<Folder>, u64)>,
    uses: u64,
}

impl Folders {
    /// For a process that may have so many descriptors.
    pub(super) fn new(descriptors: u64) -> Self {
        Self { kept: Mutex::default(), most: open_most(descriptors) }
    }

    pub(super) fn get(&self, id: FolderId) -> Option<Arc<Folder>> {
        let mut kept = lock(&self.kept);
        kept.uses += 1;
        let now = kept.uses;
        let (folder, used) = kept.by_id.get_mut(&id)?;
        *used = now;
        Some(Arc::clone(folder))
    }

    /// Keeps a directory, in the place of those that were not used for longest.
    pub(super) fn keep(&self, id: FolderId, folder: Arc<Folder>) {
        let mut kept = lock(&self.kept);
        let closed = if kept.by_id.len() >= self.most { kept.take_oldest(self.most) } else { vec![] };
        kept.uses += 1;
        let now = kept.uses;
        let replaced = kept.by_id.insert(id, (folder, now));
        // Closing takes its time, and the table is free meanwhile.
        drop(kept);
        drop((closed, replaced));
    }

    /// Closes all, as far as no request uses them, and says whether there were any.
    pub(super) fn close(&self) -> bool {
        let closed = std::mem::take(&mut lock(&self.kept).by_id);
        !closed.is_empty()
    }
}

impl Kept {
    /// A quarter of them, so that not each new one looks at all.
    fn take_oldest(&mut self, most: usize) -> Vec<(Arc<Folder>, u64)> {
        let mut uses: Vec<u64> = self.by_id.values().map(|(_, used)| *used).collect();
        let count = (most / 4).max(1).min(uses.len());
        let (_, last, _) = uses.select_nth_unstable(count - 1);
        let last = *last;
        self.by_id.extract_if(|_, (_, used)| *used <= last).map(|(_, kept)| kept).collect()
    }
}

fn open_most(descriptors: u64) -> usize {
    (descriptors / SHARE).clamp(OPEN_MIN, OPEN_MAX) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::OwnedFd;

    #[test]
    fn directories_have_an_eighth_of_the_descriptors() {
        for (descriptors, most) in [(0, 4), (16, 4), (64, 8), (1024, 128), (8000, 1000), (1 << 20, 1000)] {
            assert_eq!(open_most(descriptors), most);
        }
    }

    #[test]
    fn those_that_were_used_last_stay_open() {
        let folders = Folders::new(64);
        let folder = || Arc::new(Folder::new(OwnedFd::from(File::open("/").unwrap()), false));
        for id in 0..8 {
            folders.keep((id, 0), folder());
        }
        for id in [0, 2] {
            assert!(folders.get((id, 0)).is_some());
        }
        folders.keep((8, 0), folder());
        let open: Vec<u64> = (0..9).filter(|id| folders.get((*id, 0)).is_some()).collect();
        assert_eq!(open, [0, 2, 4, 5, 6, 7, 8]);
        for id in 10..100 {
            folders.keep((id, 0), folder());
            assert!(lock(&folders.kept).by_id.len() <= 8);
        }
        assert!(folders.close() && !folders.close());
    }
}
