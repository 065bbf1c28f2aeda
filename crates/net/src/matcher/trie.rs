//! The trie of literals of two bytes and more, and where each of its nodes fails to.

use super::patterns::Patterns;
use std::collections::VecDeque;
use std::ops::Range;

/// No node.
pub(super) const NONE: u32 = u32::MAX;
/// The node of nothing.
pub(super) const ROOT: u32 = 0;

/// A prefix of literals.
pub(super) struct Node {
    /// Its first child is the node right behind it, if it has one.
    pub(super) has_child: bool,
    /// The next child of its parent.
    pub(super) sibling: u32,
    /// The longest proper suffix that is a prefix, too.
    pub(super) fail: u32,
    /// The nearest node that is a whole literal: this one, or else one that it fails to.
    pub(super) record: u32,
    /// The class of its last byte.
    pub(super) class: u8,
    pub(super) depth: u32,
    /// Literals that it is, in `order`.
    pub(super) own: Range<u32>,
}

/// Nodes in preorder, children by their classes.
pub(super) struct Trie {
    pub(super) nodes: Vec<Node>,
    /// Numbers of literals by their folded bytes.
    pub(super) order: Vec<u32>,
    /// The class of each byte.
    pub(super) classes: [u8; 256],
    /// How many classes there are.
    pub(super) class_count: usize,
}

/// Whether a literal is in the trie: those of one byte are in a table of their own.
fn is_long(literal: &[u8]) -> bool {
    literal.len() > 1
}

/// Classes of bytes: 0 is all that no literal has; a letter and its capital are the same.
fn classes(patterns: &Patterns) -> ([u8; 256], usize) {
    let mut is_used = [false; 256];
    let long = patterns.iter().filter(|literal| is_long(literal));
    long.flatten().for_each(|byte| is_used[usize::from(byte.to_ascii_lowercase())] = true);
    let (mut classes, mut count) = ([0; 256], 1);
    for byte in (0..=255u8).filter(|byte| is_used[usize::from(*byte)]) {
        // Capitals are in no folded literal, so that there are fewer classes than bytes.
        classes[usize::from(byte)] = count as u8;
        classes[usize::from(byte.to_ascii_uppercase())] = count as u8;
        count += 1;
    }
    (classes, count)
}

impl Trie {
    /// Of these literals, but for those of one byte.
    pub(super) fn new(patterns: &Patterns) -> Self {
        let (classes, class_count) = classes(patterns);
        let fold = |id: &u32| patterns.get(*id).iter().map(u8::to_ascii_lowercase);
        let mut order: Vec<u32> = (0..patterns.len() as u32).filter(|id| is_long(patterns.get(*id))).collect();
        order.sort_by(|a, b| fold(a).cmp(fold(b)).then(a.cmp(b)));
        let mut trie = Self { nodes: Vec::new(), order, classes, class_count };
        trie.add_node(0, 0);
        // The way to the last literal, and the last child of each of its nodes.
        let mut path: Vec<(u32, u32)> = vec![(ROOT, NONE)];
        for at in 0..trie.order.len() {
            trie.insert(patterns.get(trie.order[at]), at as u32, &mut path);
        }
        trie.link();
        trie
    }

    fn add_node(&mut self, class: u8, depth: u32) -> u32 {
        let node = Node { has_child: false, sibling: NONE, fail: ROOT, record: NONE, class, depth, own: 0..0 };
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    /// Literals come in order, so that what is new hangs on the way to the last one.
    fn insert(&mut self, literal: &[u8], at: u32, path: &mut Vec<(u32, u32)>) {
        let class = |byte: &u8| self.classes[usize::from(*byte)];
        let on_path = path[1..].iter().zip(literal);
        let shared = on_path.take_while(|((node, _), byte)| self.nodes[*node as usize].class == class(byte)).count();
        path.truncate(shared + 1);
        for byte in &literal[shared..] {
            let class = self.classes[usize::from(*byte)];
            let node = self.add_node(class, path.len() as u32);
            let (parent, last) = path.last_mut().expect("the root is on every path");
            match *last {
                NONE => self.nodes[*parent as usize].has_child = true,
                last => self.nodes[last as usize].sibling = node,
            }
            *last = node;
            path.push((node, NONE));
        }
        let (node, _) = *path.last().expect("the root is on every path");
        let own = &mut self.nodes[node as usize].own;
        *own = if own.start == own.end { at..at + 1 } else { own.start..at + 1 };
    }

    /// The children of a node.
    pub(super) fn children(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let first = self.nodes[node as usize].has_child.then_some(node + 1);
        std::iter::successors(first, |child| {
            Some(self.nodes[*child as usize].sibling).filter(|sibling| *sibling != NONE)
        })
    }

    /// The child of a node by a class.
    pub(super) fn child(&self, node: u32, class: u8) -> Option<u32> {
        self.children(node).find(|child| self.nodes[*child as usize].class == class)
    }

    /// Where a node fails to by a class, which it has no child for or is not asked for.
    fn next(&self, mut node: u32, class: u8) -> u32 {
        loop {
            if let Some(child) = self.child(node, class) {
                return child;
            }
            if node == ROOT {
                return ROOT;
            }
            node = self.nodes[node as usize].fail;
        }
    }

    /// Finds failures and records, by depth: those that a node fails to are less deep.
    fn link(&mut self) {
        let mut waiting = VecDeque::from([ROOT]);
        while let Some(node) = waiting.pop_front() {
            let (fail, is_own) = (self.nodes[node as usize].fail, !self.nodes[node as usize].own.is_empty());
            self.nodes[node as usize].record = if is_own { node } else { self.nodes[fail as usize].record };
            let children: Vec<u32> = self.children(node).collect();
            for child in children {
                let class = self.nodes[child as usize].class;
                self.nodes[child as usize].fail = if node == ROOT { ROOT } else { self.next(fail, class) };
                waiting.push_back(child);
            }
        }
    }

    /// The record of the longest proper suffix of a node that is a whole literal.
    pub(super) fn next_record(&self, node: u32) -> u32 {
        self.nodes[self.nodes[node as usize].fail as usize].record
    }
}
