//! Arrows, and circles of them.

use std::collections::{BTreeMap, BTreeSet};

/// Who uses whom.
pub(crate) type Arrows<T> = BTreeMap<T, BTreeSet<T>>;

/// The sets of nodes that reach each other, those of one node left out (Tarjan's strongly connected components).
pub(crate) fn circles<T: Ord + Clone>(arrows: &Arrows<T>) -> Vec<Vec<T>> {
    let mut search = Search { arrows, order: BTreeMap::new(), open: Vec::new(), circles: Vec::new() };
    for node in arrows.keys() {
        if !search.order.contains_key(node) {
            search.visit(node);
        }
    }
    search.circles
}

struct Search<'a, T> {
    arrows: &'a Arrows<T>,
    /// When each node was met; `usize::MAX` when its component is closed.
    order: BTreeMap<T, usize>,
    open: Vec<T>,
    circles: Vec<Vec<T>>,
}

impl<T: Ord + Clone> Search<'_, T> {
    /// The earliest node that `node` reaches among the open ones.
    fn visit(&mut self, node: &T) -> usize {
        let met = self.order.len();
        self.order.insert(node.clone(), met);
        self.open.push(node.clone());
        let mut earliest = met;
        for next in self.arrows.get(node).into_iter().flatten() {
            let reached = match self.order.get(next) {
                Some(&order) => order,
                None => self.visit(next),
            };
            earliest = earliest.min(reached);
        }
        if earliest == met {
            let begin = self.open.iter().position(|open| open == node).expect("it is open");
            let mut circle = self.open.split_off(begin);
            for node in &circle {
                self.order.insert(node.clone(), usize::MAX);
            }
            if circle.len() > 1 {
                circle.sort();
                self.circles.push(circle);
            }
        }
        earliest
    }
}

#[test]
fn circles_are_found() {
    let arrows = |of: &[(&'static str, &[&'static str])]| -> Arrows<&'static str> {
        of.iter().map(|(from, to)| (*from, to.iter().copied().collect())).collect()
    };
    assert!(circles(&arrows(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])])).is_empty());
    let two =
        arrows(&[("a", &["b"]), ("b", &["a", "c"]), ("c", &["d"]), ("d", &["e"]), ("e", &["c", "a2"]), ("a2", &[])]);
    assert_eq!(circles(&two), [vec!["c", "d", "e"], vec!["a", "b"]]);
}
