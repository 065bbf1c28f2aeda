//! The inodes that the kernel knows: which file of the source each stands for.
//!
//! A node keeps its file by a descriptor (`O_PATH`), so that it is the same file whatever becomes of its names, and its
//! inode number is not used again meanwhile. Descriptors are bounded: where there are many, those that were not used
//! lately are exchanged for handles, by which the file is found again. Only root may do that, and not every file system
//! has handles; without them each node keeps its descriptor. A file without a name keeps its own, as nothing else holds
//! it.
//!
//! A node's id is the inode number of the source where that is possible. Files of other file systems below the source get
//! ids of their own.
//!
//! What the table says is in rows that outlive a server that is killed ([`Rows`]), with the numbers of its descriptors: its
//! successor finds the same nodes. A request that told the kernel of a file and was not answered comes again, and is not
//! counted twice; where a kill leaves that open, it is, and the file is known for longer than it needs to be.
//!
//! Lock order: the table, then a node's descriptor. Neither is held while a file is used.

use crate::opens::Opens;
use crate::replicas::FileKey;
use crate::state::{NODE_WORDS, RESENT, Rows, State, Word};
use crate::sync::lock;
use crate::sys;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The root's id, by the kernel's convention.
pub(crate) const ROOT: u64 = 1;
/// Ids from here on are for files on other file systems.
const FOREIGN: u64 = 1 << 62;
/// Nodes that are looked at for one whose descriptor is not in use.
const TRIES_MAX: usize = 16;

/// Words of a node's row. The id is never 0; descriptors are one more, so that none is 0.
mod at {
    pub(super) const ID: usize = 0;
    pub(super) const GENERATION: usize = 1;
    pub(super) const DEVICE: usize = 2;
    pub(super) const INODE: usize = 3;
    pub(super) const LOOKUPS: usize = 4;
    /// The request that was counted last.
    pub(super) const REQUEST: usize = 5;
    /// What the kernel knows the source's file by, plus one.
    pub(super) const BACKING: usize = 6;
    pub(crate) const DESCRIPTOR: usize = 7;
    /// Where there is no descriptor: kind and length of the handle, and its bytes.
    pub(super) const KIND: usize = 8;
    pub(super) const LEN: usize = 9;
    pub(super) const BYTES: usize = 10;
}

const _: () = assert!(at::BYTES * 8 + sys::HANDLE_BYTES_MAX <= NODE_WORDS * 8);

pub(crate) use at::DESCRIPTOR as NODE_DESCRIPTOR;

/// The root has no row, as it is never forgotten; nor have files that are only about to be known.
const NO_ROW: u32 = u32::MAX;

/// A file that the kernel knows.
#[derive(Debug)]
pub(crate) struct Node {
    row: u32,
    rows: Arc<Rows>,
    pub(crate) id: u64,
    pub(crate) key: FileKey,
    pub(crate) generation: u64,
    /// Who has it open, and how.
    pub(crate) opens: Mutex<Opens>,
    place: Mutex<Place>,
    was_used: AtomicBool,
}

#[derive(Debug)]
enum Place {
    Kept(Arc<OwnedFd>),
    Handle(sys::FileHandle),
}

/// All nodes that the kernel knows.
#[derive(Debug)]
pub(crate) struct Nodes {
    root: Arc<Node>,
    /// The source, open, for finding files by their handles; and the number of its mount.
    mount: Option<(OwnedFd, i32)>,
    kept_max: usize,
    table: Mutex<Table>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<u64, Known>,
    by_key: HashMap<FileKey, u64>,
    foreign: u64,
    /// Nodes that keep a descriptor, those that were used lately behind; and some that are gone.
    kept: VecDeque<u64>,
    kept_count: usize,
}

#[derive(Debug)]
struct Known {
    node: Arc<Node>,
    lookups: u64,
}

impl Nodes {
    /// The root, and what the state has of predecessors; up to `kept_max` descriptors are kept where files have handles.
    pub(crate) fn new(root: OwnedFd, kept_max: usize, state: Arc<State>) -> io::Result<Self> {
        let found = sys::stat(root.as_fd())?;
        let mount = if sys::is_root() { handles_of(&root) } else { None };
        let rows = Arc::clone(&state.nodes);
        let place = Mutex::new(Place::Kept(Arc::new(root)));
        let root = Arc::new(Node::new(ROOT, FileKey::of(&found), 0, place, (NO_ROW, rows)));
        let table = Mutex::new(Table::adopt(&state.nodes));
        Ok(Self { root, mount, kept_max, table, state })
    }

    pub(crate) fn get(&self, id: u64) -> io::Result<Arc<Node>> {
        if id == ROOT {
            return Ok(Arc::clone(&self.root));
        }
        let table = lock(&self.table);
        let known = table.by_id.get(&id).ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))?;
        Ok(Arc::clone(&known.node))
    }

    /// All but the root.
    pub(crate) fn all(&self) -> Vec<Arc<Node>> {
        lock(&self.table).by_id.values().map(|known| Arc::clone(&known.node)).collect()
    }

    /// The node of a file, if the kernel knows it.
    pub(crate) fn by_key(&self, key: FileKey) -> Option<Arc<Node>> {
        let table = lock(&self.table);
        let id = table.by_key.get(&key)?;
        table.by_id.get(id).map(|known| Arc::clone(&known.node))
    }

    /// The id that a file has or would have.
    pub(crate) fn id_of(&self, key: FileKey) -> u64 {
        if key == self.root.key {
            return ROOT;
        }
        lock(&self.table).by_key.get(&key).copied().unwrap_or(key.inode)
    }

    /// The node of a file that was found, which the kernel is told of once more: by the answer to a request, if it is told
    /// of no other in that answer, else by 0.
    pub(crate) fn enter(&self, file: OwnedFd, state: &libc::stat, unique: u64) -> io::Result<Arc<Node>> {
        let key = FileKey::of(state);
        if key == self.root.key {
            return Ok(Arc::clone(&self.root));
        }
        let (request, is_resent) = (unique & !RESENT, unique & RESENT != 0);
        let mut table = lock(&self.table);
        let old = table.by_key.get(&key).copied();
        if let Some(known) = old.and_then(|id| table.by_id.get_mut(&id))
            && known.node.is_same(&file)
        {
            // One that a predecessor has counted is not counted again. It is noted behind the count: one too many is harmless.
            if !(is_resent && known.node.word(at::REQUEST) == request) {
                known.count(known.lookups + 1);
                known.node.set(at::REQUEST, request);
            }
            return Ok(Arc::clone(&known.node));
        }
        // Either it is new, or the number was used again for another file while the kernel knows the old one, which is told
        // apart by its generation; the kernel will forget both by the same id.
        let lookups = old.and_then(|id| table.by_id.get(&id)).map_or(0, |known| known.lookups);
        let id = old.unwrap_or_else(|| table.new_id(key, self.root.key));
        let generation = self.state.next(Word::Generation);
        let rows = &self.state.nodes;
        let row = rows.take()?;
        let descriptor = file.as_raw_fd() as u64 + 1;
        rows.fill(row, &[id, generation, key.device, key.inode, lookups + 1, request, 0, descriptor]);
        let place = Mutex::new(Place::Kept(Arc::new(file)));
        let node = Arc::new(Node::new(id, key, generation, place, (row, Arc::clone(rows))));
        let replaced = table.by_id.insert(id, Known { node: Arc::clone(&node), lookups: lookups + 1 });
        table.by_key.insert(key, id);
        if let Some(replaced) = &replaced {
            replaced.node.remove();
        }
        table.note_kept(id);
        self.give_up_some(&mut table);
        drop(table);
        drop(replaced);
        Ok(node)
    }

    /// The kernel is not told of a node after all, by the answer to a request.
    pub(crate) fn untell(&self, node: &Node, unique: u64) {
        let table = lock(&self.table);
        // First, so that a successor that gets the request again counts it again: one too many is harmless.
        if node.word(at::REQUEST) == unique & !RESENT {
            node.set(at::REQUEST, 0);
        }
        Self::forget_in(table, node.id, 1);
    }

    /// The kernel forgets a node as often as it was told of it.
    pub(crate) fn forget(&self, id: u64, lookups: u64) {
        Self::forget_in(lock(&self.table), id, lookups);
    }

    fn forget_in(mut table: MutexGuard<'_, Table>, id: u64, lookups: u64) {
        let Some(known) = table.by_id.get_mut(&id) else { return };
        let left = known.lookups.saturating_sub(lookups);
        if left > 0 {
            known.count(left);
            return;
        }
        let known = table.by_id.remove(&id);
        if let Some(known) = &known {
            known.node.remove();
            table.by_key.remove(&known.node.key);
            if matches!(*lock(&known.node.place), Place::Kept(_)) {
                table.kept_count -= 1;
            }
        }
        drop(table);
        drop(known);
    }

    /// What keeps a node's file.
    pub(crate) fn file(&self, node: &Node) -> io::Result<Arc<OwnedFd>> {
        node.was_used.store(true, Ordering::Relaxed);
        let handle = match &*lock(&node.place) {
            Place::Kept(file) => return Ok(Arc::clone(file)),
            Place::Handle(handle) => handle.clone(),
        };
        let (mount, _) = self.mount.as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))?;
        let file = Arc::new(sys::keep_by_handle(mount.as_fd(), &handle)?);
        let mut table = lock(&self.table);
        let mut place = lock(&node.place);
        if matches!(*place, Place::Handle(_)) {
            *place = Place::Kept(Arc::clone(&file));
            node.set(at::DESCRIPTOR, file.as_raw_fd() as u64 + 1);
            // One that was forgotten meanwhile is not counted, nor found here.
            if table.by_id.get(&node.id).is_some_and(|known| std::ptr::eq(&raw const *known.node, node)) {
                table.note_kept(node.id);
                drop(place);
                self.give_up_some(&mut table);
            }
        }
        Ok(file)
    }

    /// A file is about to lose a name, maybe its last: it is kept from now on.
    pub(crate) fn keep(&self, key: FileKey) {
        if let Some(node) = self.by_key(key) {
            let _ = self.file(&node);
        }
    }

    /// Whether any node may have given its descriptor up.
    pub(crate) fn is_over_bound(&self) -> bool {
        self.mount.is_some() && lock(&self.table).by_id.len() > self.kept_max
    }

    /// Exchanges descriptors for handles while there are too many.
    fn give_up_some(&self, table: &mut Table) {
        let Some((_, mount)) = &self.mount else { return };
        for _ in 0..TRIES_MAX {
            if table.kept_count <= self.kept_max {
                return;
            }
            let Some(id) = table.kept.pop_front() else { return };
            let Some(known) = table.by_id.get(&id) else { continue };
            let node = Arc::clone(&known.node);
            if node.was_used.swap(false, Ordering::Relaxed) || !node.give_up(*mount) {
                table.kept.push_back(id);
            } else {
                table.kept_count -= 1;
            }
        }
    }
}

/// Whether files of a mount are found by handles: tried on its root.
fn handles_of(root: &OwnedFd) -> Option<(OwnedFd, i32)> {
    let (handle, number) = sys::handle(root.as_fd()).ok()?;
    let open = sys::reopen(root.as_fd(), libc::O_RDONLY | libc::O_DIRECTORY).ok()?;
    sys::keep_by_handle(open.as_fd(), &handle).ok()?;
    Some((open, number))
}

impl Node {
    fn new(id: u64, key: FileKey, generation: u64, place: Mutex<Place>, (row, rows): (u32, Arc<Rows>)) -> Self {
        Self { row, rows, id, key, generation, opens: Mutex::default(), place, was_used: AtomicBool::new(true) }
    }

    /// One that a predecessor knew.
    fn found(rows: &Arc<Rows>, row: u32) -> Self {
        let word = |at| rows.get(row, at);
        let place = match word(at::DESCRIPTOR) {
            0 => {
                let (kind, len) = (word(at::KIND) as i32, (word(at::LEN) as usize).min(sys::HANDLE_BYTES_MAX));
                let bytes = (at::BYTES..at::BYTES + len.div_ceil(8)).flat_map(|at| word(at).to_ne_bytes());
                Place::Handle(sys::FileHandle { kind, bytes: bytes.take(len).collect() })
            }
            // SAFETY: it is open, as rows name what is, and nobody else of this process has it.
            more => Place::Kept(Arc::new(unsafe { OwnedFd::from_raw_fd((more - 1) as i32) })),
        };
        let key = FileKey { device: word(at::DEVICE), inode: word(at::INODE) };
        Self::new(word(at::ID), key, word(at::GENERATION), Mutex::new(place), (row, Arc::clone(rows)))
    }

    fn word(&self, at: usize) -> u64 {
        if self.row == NO_ROW { 0 } else { self.rows.get(self.row, at) }
    }

    fn set(&self, at: usize, value: u64) {
        // A node that is gone may still be used by somebody, and its row be another's.
        if self.row != NO_ROW && self.word(at::GENERATION) == self.generation {
            self.rows.set(self.row, at, value);
        }
    }

    /// It is known no longer. Its descriptor is closed after that.
    fn remove(&self) {
        if self.row != NO_ROW {
            self.rows.give_back(self.row);
        }
    }

    /// What the kernel knows the source's file by, or knew it by for a predecessor.
    pub(crate) fn backing(&self) -> Option<u32> {
        self.word(at::BACKING).checked_sub(1).map(|number| number as u32)
    }

    pub(crate) fn set_backing(&self, number: Option<u32>) {
        self.set(at::BACKING, number.map_or(0, |number| u64::from(number) + 1));
    }

    /// Whether a file with the same number is the same file.
    fn is_same(&self, other: &OwnedFd) -> bool {
        match &*lock(&self.place) {
            // Its number is not used again while it is kept.
            Place::Kept(_) => true,
            Place::Handle(handle) => sys::handle(other.as_fd()).is_ok_and(|(other, _)| other == *handle),
        }
    }

    /// Exchanges the descriptor for a handle, unless the file has no name, or is in use.
    fn give_up(&self, mount: i32) -> bool {
        let is_open = self.opens.try_lock().map_or(true, |opens| opens.is_open());
        let mut place = lock(&self.place);
        let Place::Kept(file) = &*place else { return false };
        if is_open || Arc::strong_count(file) > 1 || sys::stat(file.as_fd()).map_or(true, |state| state.st_nlink == 0) {
            return false;
        }
        match sys::handle(file.as_fd()) {
            Ok((handle, number)) if number == mount => {
                self.set(at::KIND, handle.kind as u64);
                self.set(at::LEN, handle.bytes.len() as u64);
                for (word, part) in handle.bytes.chunks(8).enumerate() {
                    let mut bytes = [0; 8];
                    bytes[..part.len()].copy_from_slice(part);
                    self.set(at::BYTES + word, u64::from_ne_bytes(bytes));
                }
                self.set(at::DESCRIPTOR, 0);
                *place = Place::Handle(handle);
            }
            _ => return false,
        }
        true
    }
}

impl Known {
    fn count(&mut self, lookups: u64) {
        self.lookups = lookups;
        self.node.set(at::LOOKUPS, lookups);
    }
}

impl Table {
    /// What predecessors knew.
    fn adopt(rows: &Arc<Rows>) -> Self {
        let mut table = Self::default();
        // A file that took another one's number has a row of its own, before the other's is removed.
        let mut found: Vec<u32> = rows.all().collect();
        found.sort_unstable_by_key(|row| rows.get(*row, at::GENERATION));
        for row in found {
            let node = Arc::new(Node::found(rows, row));
            let (id, is_kept) = (node.id, matches!(*lock(&node.place), Place::Kept(_)));
            table.foreign = table.foreign.max(id.saturating_sub(FOREIGN - 1));
            table.by_key.insert(node.key, id);
            let lookups = node.word(at::LOOKUPS);
            if let Some(replaced) = table.by_id.insert(id, Known { node, lookups }) {
                replaced.node.remove();
                table.kept_count -= usize::from(matches!(*lock(&replaced.node.place), Place::Kept(_)));
            }
            if is_kept {
                table.note_kept(id);
            }
        }
        table
    }

    fn note_kept(&mut self, id: u64) {
        self.kept.push_back(id);
        self.kept_count += 1;
        // Of those that are gone some are still listed.
        if self.kept.len() > 2 * self.kept_count + 1024 {
            let by_id = &self.by_id;
            self.kept.retain(|id| by_id.contains_key(id));
        }
    }

    fn new_id(&mut self, key: FileKey, root: FileKey) -> u64 {
        let is_taken = |id: u64| id <= ROOT || id >= FOREIGN || self.by_id.contains_key(&id);
        if key.device == root.device && !is_taken(key.inode) {
            return key.inode;
        }
        loop {
            let id = FOREIGN + self.foreign;
            self.foreign += 1;
            if !self.by_id.contains_key(&id) {
                return id;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    fn keep(path: &Path) -> OwnedFd {
        sys::reopen(fs::File::open(path).unwrap().as_fd(), libc::O_PATH).unwrap()
    }

    fn enter(nodes: &Nodes, path: &Path) -> Arc<Node> {
        let file = keep(path);
        let state = sys::stat(file.as_fd()).unwrap();
        nodes.enter(file, &state, 0).unwrap()
    }

    fn nodes(folder: &Path, kept_max: usize) -> Nodes {
        Nodes::new(keep(folder), kept_max, Arc::new(State::create().unwrap())).unwrap()
    }

    #[test]
    fn a_file_is_one_node_under_all_its_names_until_it_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        fs::write(&one, "").unwrap();
        fs::hard_link(&one, &two).unwrap();
        let nodes = nodes(folder.path(), 100);
        let (first, second) = (enter(&nodes, &one), enter(&nodes, &two));
        assert!(Arc::ptr_eq(&first, &second));
        nodes.forget(first.id, 1);
        assert!(nodes.get(first.id).is_ok());
        nodes.forget(first.id, 1);
        assert_eq!(nodes.get(first.id).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    }

    #[test]
    fn files_are_found_again_when_there_are_more_than_descriptors() {
        if !sys::is_root() {
            bifolio_testing::skip("files are found by handles as root only");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let nodes = nodes(folder.path(), 10);
        if nodes.mount.is_none() {
            bifolio_testing::skip("files have no handles on this file system");
            return;
        }
        let path = |number: usize| folder.path().join(number.to_string());
        let entered: Vec<_> = (0..200)
            .map(|number| {
                fs::write(path(number), number.to_string()).unwrap();
                enter(&nodes, &path(number))
            })
            .collect();
        assert!(lock(&nodes.table).kept_count <= 11, "{}", lock(&nodes.table).kept_count);
        // Names do not matter.
        (0..200).for_each(|number| fs::rename(path(number), path(number + 1000)).unwrap());
        for (number, node) in entered.iter().enumerate() {
            let file = nodes.file(node).unwrap();
            let inode = fs::metadata(path(number + 1000)).unwrap().ino();
            assert_eq!(sys::stat(file.as_fd()).unwrap().st_ino, inode);
            assert!(Arc::ptr_eq(&enter(&nodes, &path(number + 1000)), node));
        }
    }

    /// Symptom: the kernel knew a file that its server did not. Cause: a request to make a file had counted the file, failed and
    /// taken that back; sent again to another server, it found that it was counted.
    #[test]
    fn a_request_that_failed_is_counted_when_it_comes_again() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let state = Arc::new(State::create().unwrap());
        let own = || Nodes::new(keep(folder.path()), 100, Arc::clone(&state)).unwrap();
        let enter = |nodes: &Nodes, unique| {
            let file = keep(&folder.path().join("file"));
            let state = sys::stat(file.as_fd()).unwrap();
            nodes.enter(file, &state, unique).unwrap()
        };
        let nodes = own();
        enter(&nodes, 5);
        nodes.untell(&enter(&nodes, 6), 6);
        // The server is killed.
        std::mem::forget(nodes);
        state.adopt();
        let nodes = own();
        let node = enter(&nodes, 6 | RESENT);
        nodes.forget(node.id, 1);
        assert!(nodes.get(node.id).is_ok(), "the kernel was told of it twice");
        nodes.forget(node.id, 1);
        assert!(nodes.get(node.id).is_err());
    }
}
