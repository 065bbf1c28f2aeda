//! What users hold: a plain file, or a striped set of them, and the order of reads and writes through it.

use super::change::Observation;
use super::plain::{Access, PlainFile};
use super::ranges::{Mode, Ranges, Ticket};
use super::stripe::{self, Layout};
use crate::Result;
use crate::options::Advice;
use std::fs::File;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, MutexGuard, RwLockReadGuard};

/// An open file: a regular file, a block device, or a striped set of them ([`stripe`]), whose
/// name begins with `stripe:`. Clones share it.
#[derive(Debug, Clone)]
pub struct OpenFile {
    name: Arc<Path>,
    members: Arc<[Arc<PlainFile>]>,
    /// How members make up the file, and its size; none for a file that is its own only member.
    striping: Option<(Layout, u64)>,
    /// The order of reads and writes; none where nobody writes through this handle.
    order: Option<Arc<Ranges>>,
}

impl OpenFile {
    /// Opens a file for reading.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path.as_ref(), Access::Read)
    }

    /// Opens a file for reading and writing; creates a regular file if that is asked for.
    pub fn open_for_writing(path: impl AsRef<Path>, create: bool) -> Result<Self> {
        Self::open_with(path.as_ref(), if create { Access::Create } else { Access::Write })
    }

    /// The file behind a descriptor of somebody else's, opened anew: the descriptor's position, flags and
    /// end are its own, and the new one's number is not that of a standard stream. For writing too if the descriptor is; whatever the path names by now.
    ///
    /// # Errors
    /// `Permission` where the file may not be opened anew, for reading too if it is to be written (the edges
    /// of unbuffered writes are read first), beside those of opening.
    pub fn of_descriptor(descriptor: BorrowedFd<'_>) -> Result<Self> {
        let file = PlainFile::of_descriptor(descriptor)?;
        let order = file.is_writable().then(Arc::default);
        Ok(Self { name: file.path().into(), members: [Arc::new(file)].into(), striping: None, order })
    }

    fn open_with(path: &Path, access: Access) -> Result<Self> {
        let order = (access != Access::Read).then(Arc::default);
        let name: Arc<Path> = path.into();
        match path.to_str().and_then(stripe::parse_name) {
            None => {
                let members = [Arc::new(PlainFile::open_with(path, access)?)].into();
                Ok(Self { name, members, striping: None, order })
            }
            Some(parsed) => {
                // Members are not created by opening: their sizes would be wrong.
                let access = if access == Access::Create { Access::Write } else { access };
                let set = stripe::open(path, parsed, access)?;
                Ok(Self { name, members: set.files.into(), striping: Some((set.layout, set.size)), order })
            }
        }
    }

    /// The plain files that hold its bytes.
    pub fn members(&self) -> &[Arc<PlainFile>] {
        &self.members
    }

    /// How its members make it up; none for a file that is its own only member.
    pub fn layout(&self) -> Option<&Layout> {
        self.striping.as_ref().map(|(layout, _)| layout)
    }

    /// The only member of a file that is not striped, else the first.
    pub(crate) fn plain(&self) -> &Arc<PlainFile> {
        &self.members[0]
    }

    /// The member that holds a byte, where it is there, and how many bytes follow it.
    pub(crate) fn locate(&self, offset: u64) -> (&Arc<PlainFile>, u64, u64) {
        match self.layout() {
            None => (self.plain(), offset, u64::MAX - offset),
            Some(layout) => {
                let (member, place) = layout.locate(offset);
                (&self.members[member], place, layout.run_at(place))
            }
        }
    }

    /// The members that hold bytes of a range, each with its part.
    pub(crate) fn parts(&self, range: &Range<u64>) -> Vec<(usize, Range<u64>)> {
        match self.layout() {
            None => vec![(0, range.clone())],
            Some(layout) => {
                let parts = (0..layout.members()).map(|member| (member, layout.part_of(range, member)));
                parts.filter(|(_, part)| !part.is_empty()).collect()
            }
        }
    }

    /// A place in the order of reads and writes of these bytes, to the end without a length; none
    /// where nobody writes through this handle.
    pub(crate) fn ticket(&self, mode: Mode, offset: u64, length: Option<u64>) -> Option<Ticket> {
        let range = offset..length.map_or(u64::MAX, |length| offset.saturating_add(length));
        self.ticket_of(mode, range)
    }

    /// The same of a range.
    pub(crate) fn ticket_of(&self, mode: Mode, range: Range<u64>) -> Option<Ticket> {
        self.order.as_ref().map(|order| order.ticket(range, mode))
    }

    /// Held while a ticket is taken and its request queued, so that requests are queued in the order of
    /// their tickets: a thread never waits for a request that is queued behind it.
    pub(crate) fn line_up(&self) -> Option<MutexGuard<'_, ()>> {
        self.order.as_ref().map(|order| order.line_up())
    }

    /// Its size, or none if its descriptor is not its own any more: a program that closes numbers that it has not
    /// opened may have put another file there. Such a file must be forgotten and not closed. Not for sets.
    pub fn size_if_intact(&self) -> Option<u64> {
        self.plain().size_if_intact()
    }

    /// What it looks like now, to be asked later whether it has changed; of a set, its first member.
    pub fn observe(&self) -> Result<Observation> {
        self.plain().observe()
    }

    /// Whether looking at it can tell that nobody has changed it: where the times and leases of its file system do not
    /// tell of every change, [`Self::is_unchanged_since`] never does. Not for sets.
    pub fn is_observable(&self) -> bool {
        self.layout().is_none() && self.plain().is_observable()
    }

    /// Whether it is certain that nobody has changed it since; never for sets.
    pub fn is_unchanged_since(&self, then: &Observation) -> Result<bool> {
        Ok(self.layout().is_none() && self.plain().is_unchanged_since(then)?)
    }

    /// Its size now, and whether it is certain that nobody has changed it since, by one question for both; none if the
    /// descriptor names another file by now. Never certain for sets, of which it is the first member's size.
    pub fn size_and_whether_unchanged_since(&self, then: &Observation) -> Option<(u64, bool)> {
        let (size, is_unchanged) = self.plain().size_and_whether_unchanged_since(then)?;
        Some((size, is_unchanged && self.layout().is_none()))
    }

    /// Says how it will be read, as `posix_fadvise(2)` does, to the kernel too.
    pub fn advise(&self, advice: Advice) {
        for member in self.members() {
            member.advise(advice);
        }
    }

    /// The name under which it was opened.
    pub fn path(&self) -> &Path {
        &self.name
    }

    /// The descriptor for reads of its first member through the page cache.
    pub fn buffered(&self) -> &File {
        self.plain().buffered()
    }

    /// Held by whoever writes through [`Self::buffered`] beside the routers: a failed write of theirs cuts off
    /// what it has added to the file, and must not cut off what somebody writes beyond it at that moment. Waits
    /// for such a cut, which may wait for writes of routers, and so for a device.
    pub fn writing(&self) -> RwLockReadGuard<'_, ()> {
        self.plain().writing()
    }

    /// The same for those who may not wait; none while there is such a cut.
    pub fn try_writing(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.plain().try_writing()
    }

    /// Size in bytes: at this moment, or, of a striped set, what it was opened with.
    pub fn size(&self) -> Result<u64> {
        match self.striping {
            None => self.plain().size(),
            Some((_, size)) => Ok(size),
        }
    }

    /// Whether it lives in the page cache only (tmpfs, ramfs).
    pub fn is_in_memory(&self) -> bool {
        self.members().iter().all(|member| member.is_in_memory())
    }
}
