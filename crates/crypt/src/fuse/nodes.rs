//! The inodes that the kernel knows: which file each stands for, and where it can be found again.
//!
//! A node is found by its parent and its name on disk, and what is found must be the file that it stood for (device
//! and inode number). So no descriptor is kept for each of them, renaming a directory changes one node, and what
//! somebody puts in a file's place below is not taken for it. Nodes hold their parents, by which they are found.
//!
//! A node's id is the inode number below where that is possible, so that it is the same after another mount. The
//! number can be used again for a new file while the kernel has not yet forgotten the old one; then the generation
//! tells them apart, and lookups are counted on, since the kernel will forget both by the same id.

use super::folders::FolderId;
use super::outcome::{Outcome, lock};
use crate::file::CryptFile;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The root's id, by the kernel's convention.
pub(super) const ROOT: u64 = 1;
/// Ids from here on are for files on other devices.
const FOREIGN: u64 = 1 << 63;

/// A file on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl Key {
    pub(super) fn of(state: &libc::stat) -> Self {
        Self { device: state.st_dev, inode: state.st_ino }
    }
}

/// Where a file is found.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) parent: Arc<Node>,
    pub(super) entry: Vec<u8>,
}

impl Link {
    fn is(&self, parent: &Node, entry: &[u8]) -> bool {
        self.parent.id == parent.id && self.parent.generation == parent.generation && self.entry == entry
    }
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: u64,
    pub(super) key: Key,
    pub(super) generation: u64,
    pub(super) is_dir: bool,
    /// Whether holes of the file were read: the kernel may have their pages for as long as it knows the node.
    pub(super) has_read_holes: Arc<AtomicBool>,
    state: Mutex<State>,
}

/// Parents are let go one after the other: a tree can be deeper than a thread's stack has room for.
impl Drop for Node {
    fn drop(&mut self) {
        let mut links = self.take_places();
        while let Some(link) = links.pop() {
            // The last one to hold it, so that it is dropped here, without any place.
            if let Some(mut parent) = Arc::into_inner(link.parent) {
                links.append(&mut parent.take_places());
            }
        }
    }
}

#[derive(Debug, Default)]
struct State {
    /// The names by which the kernel looked it up; a file has several if it has hard links.
    links: Vec<Link>,
    file: Weak<CryptFile>,
    /// Its last name was removed.
    is_gone: bool,
}

impl Node {
    pub(super) fn is_root(&self) -> bool {
        self.id == ROOT
    }

    /// What tells it from others among directories that are open.
    pub(super) fn id_of_folder(&self) -> FolderId {
        (self.id, self.generation)
    }

    fn take_places(&mut self) -> Vec<Link> {
        std::mem::take(&mut self.state.get_mut().unwrap_or_else(PoisonError::into_inner).links)
    }

    pub(super) fn links(&self) -> Vec<Link> {
        lock(&self.state).links.clone()
    }

    /// The file, if it is open.
    pub(super) fn opened(&self) -> Option<Arc<CryptFile>> {
        lock(&self.state).file.upgrade()
    }

    /// The file, open; all who have it open share one, and `open` gets the one that there is.
    pub(super) fn open(
        &self,
        open: impl FnOnce(Option<Arc<CryptFile>>, Vec<Link>) -> Outcome<Arc<CryptFile>>,
    ) -> Outcome<Arc<CryptFile>> {
        let mut state = lock(&self.state);
        let file = open(state.file.upgrade(), state.links.clone())?;
        state.file = Arc::downgrade(&file);
        Ok(file)
    }
}

/// All nodes that the kernel knows.
#[derive(Debug)]
pub(super) struct Nodes {
    root: Arc<Node>,
    table: Mutex<Table>,
    generations: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<u64, Known>,
    by_key: HashMap<Key, u64>,
    foreign: u64,
}

#[derive(Debug)]
struct Known {
    node: Arc<Node>,
    lookups: u64,
}

impl Nodes {
    pub(super) fn new(root: Key) -> Self {
        let root = Arc::new(Node {
            id: ROOT,
            key: root,
            generation: 0,
            is_dir: true,
            has_read_holes: Arc::default(),
            state: Mutex::default(),
        });
        Self { root, table: Mutex::default(), generations: AtomicU64::new(1) }
    }

    pub(super) fn get(&self, id: u64) -> Option<Arc<Node>> {
        if id == ROOT {
            return Some(Arc::clone(&self.root));
        }
        lock(&self.table).by_id.get(&id).map(|known| Arc::clone(&known.node))
    }

    /// The id that a file has or would have.
    pub(super) fn id_of(&self, key: Key) -> u64 {
        if key == self.root.key {
            return ROOT;
        }
        if let Some(id) = lock(&self.table).by_key.get(&key) {
            return *id;
        }
        key.inode
    }

    /// The node for a file that was found, which the kernel is told of once more. `is_new` says that the file was
    /// made just now.
    pub(super) fn enter(&self, key: Key, link: Link, is_dir: bool, is_new: bool) -> Arc<Node> {
        if key == self.root.key {
            return Arc::clone(&self.root);
        }
        let mut table = lock(&self.table);
        let id = table.by_key.get(&key).copied();
        let (id, lookups) = match id {
            Some(id) => {
                let known = table.by_id.get_mut(&id).expect("what has an id is in the table");
                let mut state = lock(&known.node.state);
                let was_replaced = state.is_gone && state.file.strong_count() == 0;
                if !is_new && !was_replaced {
                    if !state.links.iter().any(|other| other.is(&link.parent, &link.entry)) {
                        state.links.push(link);
                    }
                    drop(state);
                    known.lookups += 1;
                    return Arc::clone(&known.node);
                }
                (id, known.lookups)
            }
            None => (table.new_id(key, self.root.key), 0),
        };
        let generation = self.generations.fetch_add(1, Ordering::Relaxed);
        let state = State { links: vec![link], ..State::default() };
        let has_read_holes = Arc::default();
        let node = Arc::new(Node { id, key, generation, is_dir, has_read_holes, state: Mutex::new(state) });
        let known = Known { node: Arc::clone(&node), lookups: lookups + 1 };
        let old = table.by_id.insert(id, known);
        table.by_key.insert(key, id);
        // Dropping it drops parents, which takes no lock of this table.
        drop(table);
        drop(old);
        node
    }

    /// The kernel forgets a node as often as it was told of it.
    pub(super) fn forget(&self, id: u64, lookups: u64) {
        let mut table = lock(&self.table);
        let Some(known) = table.by_id.get_mut(&id) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups == 0 {
            let known = table.by_id.remove(&id);
            if let Some(known) = &known {
                table.by_key.remove(&known.node.key);
            }
            drop(table);
            drop(known);
        }
    }

    /// A name was removed; `is_last` says that the file has no other.
    pub(super) fn remove(&self, key: Key, parent: &Node, entry: &[u8], is_last: bool) {
        if let Some(node) = self.by_key(key) {
            let mut state = lock(&node.state);
            let removed: Vec<_> = state.links.extract_if(.., |link| link.is(parent, entry)).collect();
            state.is_gone |= is_last;
            drop(state);
            drop(removed);
        }
    }

    /// A file has another name now.
    pub(super) fn rename(&self, key: Key, from: (&Node, &[u8]), to: Link) {
        if let Some(node) = self.by_key(key) {
            let mut state = lock(&node.state);
            let removed: Vec<_> = state.links.extract_if(.., |link| link.is(from.0, from.1)).collect();
            state.links.push(to);
            drop(state);
            drop(removed);
        }
    }

    fn by_key(&self, key: Key) -> Option<Arc<Node>> {
        let table = lock(&self.table);
        table.by_key.get(&key).and_then(|id| table.by_id.get(id)).map(|known| Arc::clone(&known.node))
    }
}

impl Table {
    fn new_id(&mut self, key: Key, root: Key) -> u64 {
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

    fn key(inode: u64) -> Key {
        Key { device: 7, inode }
    }

    fn nodes() -> (Nodes, Arc<Node>) {
        let nodes = Nodes::new(key(50));
        let root = nodes.get(ROOT).unwrap();
        (nodes, root)
    }

    fn at(parent: &Arc<Node>, entry: &str) -> Link {
        Link { parent: Arc::clone(parent), entry: entry.into() }
    }

    #[test]
    fn a_file_is_one_node_under_all_its_names_until_it_is_forgotten() {
        let (nodes, root) = nodes();
        let first = nodes.enter(key(60), at(&root, "a"), false, true);
        let second = nodes.enter(key(60), at(&root, "b"), false, false);
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!((first.id, first.links().len()), (60, 2));
        nodes.rename(key(60), (&root, b"a"), at(&root, "c"));
        nodes.remove(key(60), &root, b"b", false);
        assert_eq!(first.links().iter().map(|link| link.entry.clone()).collect::<Vec<_>>(), [b"c"]);
        nodes.forget(60, 1);
        assert!(nodes.get(60).is_some());
        nodes.forget(60, 1);
        assert!(nodes.get(60).is_none());
    }

    #[test]
    fn a_number_that_is_used_again_is_another_generation_and_lookups_count_on() {
        let (nodes, root) = nodes();
        let old = nodes.enter(key(60), at(&root, "a"), false, true);
        nodes.remove(key(60), &root, b"a", true);
        let new = nodes.enter(key(60), at(&root, "b"), false, false);
        assert_eq!(old.id, new.id);
        assert_ne!(old.generation, new.generation);
        // The kernel forgets the old one.
        nodes.forget(60, 1);
        assert!(Arc::ptr_eq(&nodes.get(60).unwrap(), &new));
        nodes.forget(60, 1);
        assert!(nodes.get(60).is_none());
    }

    /// A chain of parents was dropped by recursion, which ended the process in a deep tree.
    #[test]
    fn a_deep_tree_is_dropped_on_a_small_stack() {
        let (nodes, mut parent) = nodes();
        for depth in 0..200_000 {
            let node = nodes.enter(key(100 + depth), at(&parent, "d"), true, true);
            parent = node;
        }
        for depth in 0..200_000 {
            nodes.forget(100 + depth, 1);
        }
        let dropping = std::thread::Builder::new().stack_size(64 << 10).spawn(move || drop(parent));
        dropping.unwrap().join().unwrap();
    }

    #[test]
    fn ids_are_unique_also_of_files_on_other_devices() {
        let (nodes, root) = nodes();
        let here = nodes.enter(key(60), at(&root, "a"), false, true);
        let there = nodes.enter(Key { device: 8, inode: 60 }, at(&root, "b"), false, true);
        let one = nodes.enter(key(1), at(&root, "c"), false, true);
        assert!(here.id != there.id && there.id != one.id && one.id != ROOT);
        assert!(nodes.enter(key(50), at(&root, "d"), false, false).is_root());
    }
}
