//! The order in which a wave visits elements: whoever packets come from is first, and elements in a circle are together, so
//! that packets go round before anything behind the circle sees them.

use std::ops::Range;

/// The rank of each node of a graph, given whom each one leads to: ranks are all different, an edge between two circles
/// (strongly connected components) goes up, and the nodes of one circle have ranks in a row. And those ranks, for each node.
///
/// Where edges leave a choice, whatever comes of a node's first edge is before what comes of its second, and earlier nodes are
/// before later ones: so that single packets go through a tree as deep as they can, as in Click.
pub(super) fn ranks(next: &[Vec<usize>]) -> (Vec<usize>, Vec<Range<usize>>) {
    let mut search = Search {
        next,
        number: vec![usize::MAX; next.len()],
        low: vec![0; next.len()],
        on_stack: vec![false; next.len()],
        stack: Vec::new(),
        count: 0,
        finished: Vec::new(),
        circles: vec![0..0; next.len()],
    };
    let mut is_led_to = vec![false; next.len()];
    next.iter().flatten().for_each(|node| is_led_to[*node] = true);
    // Those to whom nobody leads, then circles to which nobody leads.
    let (inner, first): (Vec<usize>, Vec<usize>) = (0..next.len()).rev().partition(|node| is_led_to[*node]);
    for node in first.into_iter().chain(inner) {
        if search.number[node] == usize::MAX {
            search.visit(node);
        }
    }
    // Tarjan's algorithm finishes a component before those that lead to it.
    let mut ranks = vec![0; next.len()];
    search.finished.iter().rev().enumerate().for_each(|(rank, node)| ranks[*node] = rank);
    let last = next.len();
    (ranks, search.circles.into_iter().map(|finished| last - finished.end..last - finished.start).collect())
}

struct Search<'a> {
    next: &'a [Vec<usize>],
    number: Vec<usize>,
    low: Vec<usize>,
    on_stack: Vec<bool>,
    stack: Vec<usize>,
    count: usize,
    finished: Vec<usize>,
    /// For each node, where those of its circle are among the finished ones.
    circles: Vec<Range<usize>>,
}

impl Search<'_> {
    fn enter(&mut self, node: usize) {
        (self.number[node], self.low[node]) = (self.count, self.count);
        self.count += 1;
        self.stack.push(node);
        self.on_stack[node] = true;
    }

    /// Without recursion: a configuration may be a chain of any length.
    fn visit(&mut self, root: usize) {
        self.enter(root);
        // Last edges first: what is finished last has the lowest rank.
        let mut path = vec![(root, self.next[root].len())];
        while let Some((node, edge)) = path.last_mut() {
            let node = *node;
            if *edge > 0 {
                *edge -= 1;
                let next = self.next[node][*edge];
                if self.number[next] == usize::MAX {
                    self.enter(next);
                    path.push((next, self.next[next].len()));
                } else if self.on_stack[next] {
                    self.low[node] = self.low[node].min(self.number[next]);
                }
                continue;
            }
            path.pop();
            if let Some((before, _)) = path.last() {
                self.low[*before] = self.low[*before].min(self.low[node]);
            }
            if self.low[node] == self.number[node] {
                self.finish(node);
            }
        }
    }

    fn finish(&mut self, root: usize) {
        let first = self.finished.len();
        loop {
            let node = self.stack.pop().expect("a component ends with its root");
            self.on_stack[node] = false;
            self.finished.push(node);
            if node == root {
                break;
            }
        }
        let circle = first..self.finished.len();
        self.finished[circle.clone()].iter().for_each(|node| self.circles[*node] = circle.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::ranks;
    use proptest::prelude::*;

    /// Whether there is a way, by trying all.
    fn reaches(next: &[Vec<usize>], from: usize, to: usize) -> bool {
        let mut seen = vec![false; next.len()];
        let mut open = vec![from];
        while let Some(node) = open.pop() {
            for node in &next[node] {
                if !std::mem::replace(&mut seen[*node], true) {
                    open.push(*node);
                }
            }
        }
        seen[to]
    }

    #[test]
    fn what_comes_of_the_first_edge_is_before_what_comes_of_the_second() {
        // 0 -> (1 -> 2, 3 -> 4), 5, and 6 behind both branches.
        let next = vec![vec![3, 1], vec![2], vec![6], vec![4], vec![6], vec![], vec![]];
        assert_eq!(ranks(&next).0, [0, 3, 4, 1, 2, 6, 5]);
    }

    proptest! {
        #[test]
        fn edges_go_up_and_circles_are_in_a_row(edges in prop::collection::vec((0..12usize, 0..12usize), 0..40)) {
            let mut next = vec![Vec::new(); 12];
            for (from, to) in &edges {
                next[*from].push(*to);
            }
            let (ranks, circles) = ranks(&next);
            let mut sorted = ranks.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..12).collect::<Vec<_>>());
            let circle = |a, b| reaches(&next, a, b) && reaches(&next, b, a);
            for (from, to) in edges {
                prop_assert!(ranks[from] < ranks[to] || from == to || circle(from, to));
            }
            for a in 0..12 {
                let of_a = (0..12).filter(|b| *b == a || circle(a, *b)).map(|b| ranks[b]);
                prop_assert_eq!(circles[a].clone().collect::<Vec<_>>(), { let mut all: Vec<_> = of_a.collect(); all.sort_unstable(); all });
                for b in (0..12).filter(|b| circle(a, *b)) {
                    let between = |c: &usize| ranks[a] < ranks[*c] && ranks[*c] < ranks[b];
                    prop_assert!((0..12).filter(between).all(|c| circle(a, c)));
                }
            }
        }
    }
}
