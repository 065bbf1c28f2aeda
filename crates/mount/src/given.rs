//! A shared file, and what the kernel was given of it.
//!
//! Programs that read and write a shared file reach this process each time. Of what they map, the kernel keeps pages: a
//! replica like a device's, whose *base* is what the kernel was last given. The kernel returns whole dirty pages, of which
//! a program may have changed one byte, while a device has released its neighbour. So bytes that differ from the base are
//! written, and no others, wherever the page has gone meanwhile.
//!
//! ```text
//!   read for a mapping      the page is the base
//!   page comes back         what differs from the base is written; the page is the base
//!   write by a program      where the kernel keeps it (an opening from before the file was shared), the base has it, too;
//!                           a direct one it has forgotten the pages for, and what it was given since is the base
//!   recall                  the kernel has forgotten all that it was given before: those bases go
//! ```
//!
//! The kernel locks a page while it reads it or returns it, so there is one of these at a time for each.
//!
//! Bases are in memory that outlives a server that is killed ([`Bases`]): its successor finds those of a file by its node.

use crate::fault::{Point, at};
use crate::replicas::SharedFile;
use crate::state::{Base, Bases, Turn};
use crate::sync::lock;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// The kernel's unit.
pub(crate) const PAGE: u64 = 4096;

/// A file whose content devices share.
pub(crate) struct Shared {
    file: Box<dyn SharedFile>,
    node: u64,
    bases: Arc<Bases>,
    given: Mutex<Given>,
    /// Held by who writes at the end, wherever that is.
    pub(crate) appending: Mutex<()>,
    /// Whether the kernel may have pages that it was given before the file was shared.
    pub(crate) had_unknown: AtomicBool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Shared").field("pages_given", &lock(&self.given).pages.len()).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Given {
    pages: BTreeMap<u64, GivenPage>,
    /// Recalls that have begun.
    recalls: u64,
}

#[derive(Clone, Copy)]
struct GivenPage {
    base: Base,
    /// How many recalls had begun when the kernel was given it.
    recalls: u64,
}

impl Shared {
    /// A file of a node, and what predecessors have given the kernel of it.
    pub(crate) fn new(file: Box<dyn SharedFile>, node: u64, bases: Arc<Bases>, had_unknown: bool) -> Self {
        let had_unknown = AtomicBool::new(had_unknown);
        Self { file, node, bases, given: Mutex::default(), appending: Mutex::default(), had_unknown }
    }

    /// Takes over what a predecessor has given the kernel of it.
    pub(crate) fn adopt(&self, pages: impl IntoIterator<Item = (u64, Base)>) {
        let mut given = lock(&self.given);
        for (page, base) in pages {
            given.pages.insert(page, GivenPage { base, recalls: 0 });
        }
    }

    /// For a program's own read.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        read_whole(&*self.file, offset, buffer)
    }

    /// For pages that the kernel keeps.
    pub(crate) fn give(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.read(offset, buffer)?;
        let mut given = lock(&self.given);
        let recalls = given.recalls;
        for (page, part) in pages(offset, buffer.len()) {
            let bytes = &buffer[part.start.min(read)..part.end.min(read)];
            let known = given.pages.get(&page).map(|known| known.base);
            known.inspect(|base| self.bases.set(*base, bytes));
            let base = known.map_or_else(|| self.bases.add(self.node, page, bytes), Ok)?;
            given.pages.insert(page, GivenPage { base, recalls });
        }
        at(Point::Given);
        Ok(read)
    }

    /// For a program's own write; `is_kept` says that the pages which the kernel has are changed as well.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8], is_kept: bool, turn: &Turn<'_>) -> io::Result<()> {
        if !turn.was_done(|| false)? {
            turn.done(self.file.write_once(offset, bytes, turn))?;
        }
        if is_kept {
            self.keep(offset, bytes);
        }
        Ok(())
    }

    /// Pages come back that programs have stored into. They are the base when they are written, and a server may be killed
    /// between the two: its successor writes nothing again.
    pub(crate) fn take_back(&self, offset: u64, bytes: &[u8], turn: &Turn<'_>) -> io::Result<()> {
        if !turn.was_done(|| false)? {
            let write = |change: Range<usize>| self.file.write_once(offset + change.start as u64, &bytes[change], turn);
            turn.done(self.changes(offset, bytes).into_iter().try_for_each(write))?;
        }
        self.keep(offset, bytes);
        Ok(())
    }

    /// What differs from what the kernel was given.
    fn changes(&self, offset: u64, bytes: &[u8]) -> Vec<Range<usize>> {
        let mut changes = vec![];
        let mut room = [0; PAGE as usize];
        let given = lock(&self.given);
        for (page, part) in pages(offset, bytes.len()) {
            let inside = (offset + part.start as u64 - page * PAGE) as usize;
            match given.pages.get(&page) {
                Some(known) => {
                    let len = self.bases.read(known.base, inside, &mut room);
                    changed(&bytes[part.clone()], &room[..len], part.start, &mut changes);
                }
                None => add(&mut changes, part),
            }
        }
        changes
    }

    /// The kernel is about to be told to forget a range; what is returned goes to [`Shared::recalled`].
    pub(crate) fn recall(&self) -> u64 {
        let mut given = lock(&self.given);
        given.recalls += 1;
        given.recalls
    }

    /// The kernel has forgotten what it had of a range when the recall began.
    pub(crate) fn recalled(&self, recall: u64, range: &Range<u64>) {
        let mut given = lock(&self.given);
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        let gone: Vec<u64> =
            given.pages.range(pages).filter(|(_, known)| known.recalls < recall).map(|(page, _)| *page).collect();
        self.bases.remove(gone.into_iter().filter_map(|page| given.pages.remove(&page)).map(|known| known.base));
    }

    /// The kernel's pages are changed as well.
    fn keep(&self, offset: u64, bytes: &[u8]) {
        let given = lock(&self.given);
        for (page, part) in pages(offset, bytes.len()) {
            if let Some(known) = given.pages.get(&page) {
                self.bases.put(known.base, (offset + part.start as u64 - page * PAGE) as usize, &bytes[part]);
            }
        }
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    /// The file was changed by itself. Where it has a new size, the kernel has cut its pages already.
    pub(crate) fn changed(&self, size: Option<u64>) -> io::Result<()> {
        if let Some(size) = size {
            let mut given = lock(&self.given);
            self.bases.remove(given.pages.split_off(&size.div_ceil(PAGE)).values().map(|known| known.base));
            if let Some(known) = given.pages.get(&(size / PAGE)) {
                self.bases.cut(known.base, (size % PAGE) as usize);
            }
        }
        self.file.changed()
    }
}

/// Nobody has the file open any more, so the kernel has none of its pages.
impl Drop for Shared {
    fn drop(&mut self) {
        self.bases.remove(lock(&self.given).pages.values().map(|known| known.base));
    }
}

/// The parts of some bytes of a file that lie in one page each.
fn pages(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let end = offset + len as u64;
    (offset / PAGE..end.div_ceil(PAGE)).map(move |page| {
        let part = (page * PAGE).max(offset)..((page + 1) * PAGE).min(end);
        (page, (part.start - offset) as usize..(part.end - offset) as usize)
    })
}

/// Adds the runs of bytes that differ from what they were; `base` is continued by zeroes.
fn changed(now: &[u8], base: &[u8], at: usize, changes: &mut Vec<Range<usize>>) {
    if base.get(..now.len()) == Some(now) {
        return;
    }
    for (index, byte) in now.iter().enumerate() {
        if *byte != base.get(index).copied().unwrap_or(0) {
            add(changes, at + index..at + index + 1);
        }
    }
}

/// Adds a range behind all others, to the last one where they touch.
fn add(changes: &mut Vec<Range<usize>>, range: Range<usize>) {
    match changes.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => changes.push(range),
    }
}

fn read_whole(file: &dyn SharedFile, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read(offset + read as u64, &mut buffer[read..])? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{RESENT, Turns};
    use std::sync::atomic::{AtomicU64, Ordering};

    const LEN: usize = 5 * PAGE as usize + 100;

    /// One more request.
    fn turn(turns: &Turns) -> Turn<'_> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        turns.take(NUMBER.fetch_add(1, Ordering::Relaxed))
    }

    /// A file in memory.
    #[derive(Clone, Default)]
    struct Plain(Arc<Mutex<Vec<u8>>>);

    impl SharedFile for Plain {
        fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
            let bytes = lock(&self.0);
            let from = (offset as usize).min(bytes.len());
            let len = buffer.len().min(bytes.len() - from);
            buffer[..len].copy_from_slice(&bytes[from..from + len]);
            Ok(len)
        }

        fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
            let mut file = lock(&self.0);
            let end = offset as usize + bytes.len();
            if file.len() < end {
                file.resize(end, 0);
            }
            file[offset as usize..end].copy_from_slice(bytes);
            Ok(())
        }

        fn sync(&self) -> io::Result<()> {
            Ok(())
        }

        fn changed(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A kernel that keeps some pages, programs that store into them and write, and a device that writes other bytes: each
    /// byte has one writer, and in the end the file has what he last wrote, whichever servers are killed meanwhile.
    #[test]
    fn no_byte_is_lost_between_pages_that_come_back_and_writers_of_their_neighbours() {
        let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
        let file = Plain::default();
        file.write(0, &bifolio_testing::noise(LEN, 1)).unwrap();
        let (bases, turns) = (Arc::new(Bases::create().unwrap()), Turns::create().unwrap());
        let mut shared = Shared::new(Box::new(file.clone()), 1, Arc::clone(&bases), false);
        let mut expected = lock(&file.0).clone();
        let mut kernel: BTreeMap<u64, (Vec<u8>, bool)> = BTreeMap::new();
        for step in 0..20_000 {
            if random.usize(..100) == 0 {
                let next = Shared::new(Box::new(file.clone()), 1, Arc::clone(&bases), false);
                next.adopt(bases.all().into_iter().map(|(_, page, base)| (page, base)));
                std::mem::forget(std::mem::replace(&mut shared, next));
            }
            let at = random.usize(..LEN);
            let page = at as u64 / PAGE;
            let bounds = (page * PAGE) as usize..((page + 1) * PAGE).min(LEN as u64) as usize;
            match random.u8(..5) {
                0 => {
                    kernel.entry(page).or_insert_with(|| {
                        let mut bytes = vec![0; bounds.len()];
                        assert_eq!(shared.give(bounds.start as u64, &mut bytes).unwrap(), bytes.len());
                        (bytes, false)
                    });
                }
                1 if at.is_multiple_of(3) => {
                    if let Some((bytes, is_dirty)) = kernel.get_mut(&page) {
                        bytes[at - bounds.start] = step as u8;
                        *is_dirty = true;
                        expected[at] = step as u8;
                    }
                }
                2 if at % 3 == 1 => {
                    // By a device.
                    file.write(at as u64, &[step as u8]).unwrap();
                    expected[at] = step as u8;
                }
                3 if at % 3 == 2 => {
                    let is_kept = random.bool();
                    if !is_kept {
                        // The kernel returns its page and forgets it, and may want it again before the write is done.
                        if let Some((bytes, true)) = kernel.remove(&page) {
                            shared.take_back(bounds.start as u64, &bytes, &turn(&turns)).unwrap();
                        }
                        if random.bool() {
                            let mut bytes = vec![0; bounds.len()];
                            shared.give(bounds.start as u64, &mut bytes).unwrap();
                            kernel.insert(page, (bytes, false));
                        }
                    }
                    shared.write(at as u64, &[step as u8], is_kept, &turn(&turns)).unwrap();
                    expected[at] = step as u8;
                    if let Some((bytes, _)) = kernel.get_mut(&page).filter(|_| is_kept) {
                        bytes[at - bounds.start] = step as u8;
                    }
                }
                4 => {
                    let recall = random.bool().then(|| shared.recall());
                    if let Some((bytes, is_dirty)) = kernel.get_mut(&page)
                        && std::mem::take(is_dirty)
                    {
                        shared.take_back(bounds.start as u64, bytes, &turn(&turns)).unwrap();
                    }
                    if let Some(recall) = recall {
                        kernel.remove(&page);
                        shared.recalled(recall, &(page * PAGE..(page + 1) * PAGE));
                        assert!(!lock(&shared.given).pages.contains_key(&page));
                    }
                }
                _ => {}
            }
        }
        for (page, (bytes, is_dirty)) in kernel {
            if is_dirty {
                shared.take_back(page * PAGE, &bytes, &turn(&turns)).unwrap();
            }
        }
        assert!(*lock(&file.0) == expected);
    }

    /// Symptom: a device's byte was lost that it had released on top of what a page brought back. Cause: the server was killed
    /// before the page was the base, and its successor wrote what differed from the old one once more.
    #[test]
    fn what_was_written_before_a_server_was_killed_is_not_written_over_what_came_after_it() {
        let file = Plain(Arc::new(Mutex::new(vec![1; PAGE as usize])));
        let (bases, turns) = (Arc::new(Bases::create().unwrap()), Turns::create().unwrap());
        let mut page = vec![0; PAGE as usize];
        for (round, comes_back) in [(0, true), (1, false)] {
            let own = |bases: &Arc<Bases>| {
                let shared = Shared::new(Box::new(file.clone()), 1, Arc::clone(bases), false);
                shared.adopt(bases.all().into_iter().map(|(_, page, base)| (page, base)));
                shared
            };
            let shared = own(&bases);
            shared.give(0, &mut page).unwrap();
            let base = lock(&shared.given).pages[&0].base;
            let write = |shared: &Shared, turn: &Turn<'_>, page: &[u8]| {
                let written =
                    if comes_back { shared.take_back(0, page, turn) } else { shared.write(0, &page[..10], true, turn) };
                written.unwrap();
            };
            page[5] = 20 + round;
            let number = 100 + u64::from(round);
            let turn = turns.take(number);
            write(&shared, &turn, &page);
            // As it was when the base was not what came back yet.
            bases.put(base, 5, &[1]);
            std::mem::forget((shared, turn));
            turns.adopt();
            file.write(5, &[30 + round]).unwrap();
            let next = own(&bases);
            write(&next, &turns.take(number | RESENT), &page);
            assert_eq!(lock(&file.0)[5], 30 + round);
            // The page is the base: nothing of it is written when it comes back as it is.
            next.take_back(0, &page, &turns.take(number + 10)).unwrap();
            assert_eq!(lock(&file.0)[5], 30 + round);
        }
    }
}
