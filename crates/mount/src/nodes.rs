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
//! Lock order: the table, then a node's descriptor. Neither is held while a file is used.

use crate::opens::Opens;
use crate::replicas::FileKey;
use crate::sync::lock;
use crate::sys;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The root's id, by the kernel's convention.
pub(crate) const ROOT: u64 = 1;
/// Ids from here on are for files on other file systems.
const FOREIGN: u64 = 1 << 62;
/// Nodes that are looked at for one whose descriptor is not in use.
const TRIES_MAX: usize = 16;

/// A file that the kernel knows.
#[derive(Debug)]
pub(crate) struct Node {
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
    generations: AtomicU64,
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
    /// The root alone; up to `kept_max` descriptors are kept where files have handles.
    pub(crate) fn new(root: OwnedFd, kept_max: usize) -> io::Result<Self> {
        let state = sys::stat(root.as_fd())?;
        let mount = if sys::is_root() { handles_of(&root) } else { None };
        let root = Arc::new(Node::new(ROOT, FileKey::of(&state), 0, root));
        let (table, generations) = (Mutex::default(), AtomicU64::new(1));
        Ok(Self { root, mount, kept_max, table, generations })
    }

    pub(crate) fn get(&self, id: u64) -> io::Result<Arc<Node>> {
        if id == ROOT {
            return Ok(Arc::clone(&self.root));
        }
        let table = lock(&self.table);
        let known = table.by_id.get(&id).ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))?;
        Ok(Arc::clone(&known.node))
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

    /// The node of a file that was found, which the kernel is told of once more.
    pub(crate) fn enter(&self, file: OwnedFd, state: &libc::stat) -> Arc<Node> {
        let key = FileKey::of(state);
        if key == self.root.key {
            return Arc::clone(&self.root);
        }
        let mut table = lock(&self.table);
        let old = table.by_key.get(&key).copied();
        if let Some(known) = old.and_then(|id| table.by_id.get_mut(&id))
            && known.node.is_same(&file)
        {
            known.lookups += 1;
            return Arc::clone(&known.node);
        }
        // Either it is new, or the number was used again for another file while the kernel knows the old one, which is told
        // apart by its generation; the kernel will forget both by the same id.
        let lookups = old.and_then(|id| table.by_id.get(&id)).map_or(0, |known| known.lookups);
        let id = old.unwrap_or_else(|| table.new_id(key, self.root.key));
        let generation = self.generations.fetch_add(1, Ordering::Relaxed);
        let node = Arc::new(Node::new(id, key, generation, file));
        let replaced = table.by_id.insert(id, Known { node: Arc::clone(&node), lookups: lookups + 1 });
        table.by_key.insert(key, id);
        table.note_kept(id);
        self.give_up_some(&mut table);
        drop(table);
        drop(replaced);
        node
    }

    /// The kernel forgets a node as often as it was told of it.
    pub(crate) fn forget(&self, id: u64, lookups: u64) {
        let mut table = lock(&self.table);
        let Some(known) = table.by_id.get_mut(&id) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups > 0 {
            return;
        }
        let known = table.by_id.remove(&id);
        if let Some(known) = &known {
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
    fn new(id: u64, key: FileKey, generation: u64, file: OwnedFd) -> Self {
        let place = Mutex::new(Place::Kept(Arc::new(file)));
        Self { id, key, generation, opens: Mutex::default(), place, was_used: AtomicBool::new(true) }
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
            Ok((handle, number)) if number == mount => *place = Place::Handle(handle),
            _ => return false,
        }
        true
    }
}

impl Table {
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
        nodes.enter(file, &state)
    }

    #[test]
    fn a_file_is_one_node_under_all_its_names_until_it_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        fs::write(&one, "").unwrap();
        fs::hard_link(&one, &two).unwrap();
        let nodes = Nodes::new(keep(folder.path()), 100).unwrap();
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
        let nodes = Nodes::new(keep(folder.path()), 10).unwrap();
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
}
