//! Where boxes and lines go: boxes in rows, so that connections lead down, and few of them cross.
//!
//! Rows come from longest paths, after one connection of each circle is taken the other way round. A connection that passes
//! rows takes a place in each, so that lines do not run through boxes. Boxes of a row are ordered by the middle of what they
//! are connected to, down and up some times.

use crate::lang::Graph;

/// Lines that pass more places than this together run straight.
const MAX_BENDS: usize = 100_000;
/// How often rows are put in order, down and up.
const SWEEPS: usize = 12;
/// Room between boxes of a row, and between rows.
const GAP: f64 = 24.0;
const ROW_GAP: f64 = 56.0;
/// How wide a line's place in a row is.
const LINE_WIDTH: f64 = 12.0;
/// How high a box is.
pub(super) const BOX_HEIGHT: f64 = 46.0;

/// A place in the drawing, of an element's box or of a line's bend. `x` is its middle, `y` its upper edge.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Place {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
}

/// Where everything goes.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// The elements' boxes.
    pub(super) boxes: Vec<Place>,
    /// For each connection, the middles of the places where its line passes rows, in its direction.
    pub(super) bends: Vec<Vec<(f64, f64)>>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Lays out a graph whose elements' boxes have these widths.
pub(super) fn layout(graph: &Graph, widths: &[f64]) -> Layout {
    let edges = downward(graph);
    let mut rows = Nodes::new(&edges, widths);
    rows.order();
    let places = rows.place();
    let count = widths.len();
    let bends = graph.connections.iter().enumerate().map(|(c, connection)| {
        let mut path: Vec<_> =
            rows.paths[c].iter().map(|&node| (places[node].x, places[node].y + BOX_HEIGHT / 2.0)).collect();
        if edges[c] != (connection.from, connection.to) {
            path.reverse();
        }
        path
    });
    let bends = bends.collect();
    let width = places.iter().map(|place| place.x + place.width / 2.0).fold(0.0, f64::max) + GAP;
    let height = places.iter().map(|place| place.y + BOX_HEIGHT).fold(0.0, f64::max) + GAP;
    Layout { boxes: places[..count].to_vec(), bends, width, height }
}

/// The connections as pairs of elements, those that close a circle the other way round.
fn downward(graph: &Graph) -> Vec<(usize, usize)> {
    let count = graph.elements.len();
    let mut leaving = vec![Vec::new(); count];
    let mut has_input = vec![false; count];
    for (c, connection) in graph.connections.iter().enumerate() {
        leaving[connection.from].push(c);
        has_input[connection.to] |= connection.to != connection.from;
    }
    let mut edges: Vec<_> = graph.connections.iter().map(|c| (c.from, c.to)).collect();
    // 0: not met, 1: on the path from where the walk began, 2: done.
    let mut state = vec![0u8; count];
    let starts = (0..count).filter(|&e| !has_input[e]).chain(0..count);
    for start in starts {
        if state[start] != 0 {
            continue;
        }
        state[start] = 1;
        let mut path = vec![(start, 0)];
        while let Some((element, next)) = path.last_mut() {
            let Some(&c) = leaving[*element].get(*next) else {
                state[*element] = 2;
                path.pop();
                continue;
            };
            *next += 1;
            let to = graph.connections[c].to;
            match state[to] {
                0 => {
                    state[to] = 1;
                    path.push((to, 0));
                }
                1 => edges[c] = (edges[c].1, edges[c].0),
                _ => {}
            }
        }
    }
    edges
}

/// The row of each element: one more than the lowest of those above it.
fn rows_of(edges: &[(usize, usize)], count: usize) -> Vec<usize> {
    let mut below = vec![Vec::new(); count];
    let mut open = vec![0usize; count];
    for &(from, to) in edges.iter().filter(|(from, to)| from != to) {
        below[from].push(to);
        open[to] += 1;
    }
    let mut rows = vec![0; count];
    let mut ready: Vec<_> = (0..count).filter(|&e| open[e] == 0).collect();
    while let Some(element) = ready.pop() {
        for &to in &below[element] {
            rows[to] = rows[to].max(rows[element] + 1);
            open[to] -= 1;
            if open[to] == 0 {
                ready.push(to);
            }
        }
    }
    // A source goes right above what it leads to, not to the top of a long drawing.
    let mut has_above = vec![false; count];
    edges.iter().filter(|(from, to)| from != to).for_each(|&(_, to)| has_above[to] = true);
    for element in 0..count {
        if !has_above[element]
            && let Some(first) = below[element].iter().map(|&to| rows[to]).min()
        {
            rows[element] = first - 1;
        }
    }
    rows
}

/// Rows of nodes: elements, then bends of lines.
struct Nodes {
    widths: Vec<f64>,
    /// The nodes of each row, from left to right.
    rows: Vec<Vec<usize>>,
    /// What each node is connected to in the row above, and in the row below.
    above: Vec<Vec<usize>>,
    below: Vec<Vec<usize>>,
    /// The bends of each connection, downwards.
    paths: Vec<Vec<usize>>,
}

impl Nodes {
    fn new(edges: &[(usize, usize)], widths: &[f64]) -> Self {
        let row_of = rows_of(edges, widths.len());
        let count = row_of.iter().map(|row| row + 1).max().unwrap_or(0);
        let mut this = Self {
            widths: widths.to_vec(),
            rows: vec![Vec::new(); count],
            above: vec![Vec::new(); widths.len()],
            below: vec![Vec::new(); widths.len()],
            paths: vec![Vec::new(); edges.len()],
        };
        for (element, &row) in row_of.iter().enumerate() {
            this.rows[row].push(element);
        }
        let bends: usize = edges.iter().map(|&(from, to)| row_of[to].saturating_sub(row_of[from])).sum();
        for (c, &(from, to)) in edges.iter().enumerate() {
            let mut last = from;
            if bends <= MAX_BENDS {
                for row in row_of[from] + 1..row_of[to] {
                    let bend = this.add_bend(row);
                    this.join(last, bend);
                    this.paths[c].push(bend);
                    last = bend;
                }
            }
            if from != to {
                this.join(last, to);
            }
        }
        this
    }

    fn add_bend(&mut self, row: usize) -> usize {
        self.widths.push(LINE_WIDTH);
        self.above.push(Vec::new());
        self.below.push(Vec::new());
        self.rows[row].push(self.widths.len() - 1);
        self.widths.len() - 1
    }

    fn join(&mut self, upper: usize, lower: usize) {
        self.below[upper].push(lower);
        self.above[lower].push(upper);
    }

    /// Puts the nodes of each row in order, by the middle of what they are connected to in the row before.
    fn order(&mut self) {
        let mut position = vec![0.0; self.widths.len()];
        for row in &self.rows {
            number(row, &mut position);
        }
        for sweep in 0..SWEEPS {
            let down = sweep % 2 == 0;
            for i in 0..self.rows.len() {
                let row = if down { i } else { self.rows.len() - 1 - i };
                let neighbours = if down { &self.above } else { &self.below };
                let middle = |node: usize| middle(&neighbours[node], &position).unwrap_or(position[node]);
                let mut keyed: Vec<_> = self.rows[row].iter().map(|&node| (middle(node), node)).collect();
                keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
                self.rows[row] = keyed.into_iter().map(|(_, node)| node).collect();
                number(&self.rows[row], &mut position);
            }
        }
    }

    /// Gives each node a place: near the middle of its neighbours, in its row's order, and without overlaps.
    fn place(&self) -> Vec<Place> {
        let mut places: Vec<_> = self.widths.iter().map(|&width| Place { width, ..Place::default() }).collect();
        for (i, row) in self.rows.iter().enumerate() {
            let mut left = GAP;
            for &node in row {
                places[node].x = left + places[node].width / 2.0;
                places[node].y = GAP + i as f64 * (BOX_HEIGHT + ROW_GAP);
                left += places[node].width + GAP;
            }
        }
        for sweep in 0..SWEEPS {
            let down = sweep % 2 == 0;
            for i in 0..self.rows.len() {
                let row = &self.rows[if down { i } else { self.rows.len() - 1 - i }];
                let neighbours = if down { &self.above } else { &self.below };
                settle(row, neighbours, &mut places);
            }
        }
        let left = places.iter().map(|place| place.x - place.width / 2.0).fold(f64::INFINITY, f64::min);
        for place in &mut places {
            place.x += GAP - left;
        }
        places
    }
}

fn number(row: &[usize], position: &mut [f64]) {
    for (i, &node) in row.iter().enumerate() {
        position[node] = (i as f64 + 0.5) / row.len() as f64;
    }
}

fn middle(nodes: &[usize], position: &[f64]) -> Option<f64> {
    let sum: f64 = nodes.iter().map(|&node| position[node]).sum();
    (!nodes.is_empty()).then(|| sum / nodes.len() as f64)
}

/// Moves the nodes of a row to the middles of their neighbours. Where they would overlap, those that push each other are
/// moved as one, to the middle of what they want.
fn settle(row: &[usize], neighbours: &[Vec<usize>], places: &mut [Place]) {
    // Blocks of nodes side by side: the first node, the sum of wishes for its left edge, how many there are, the width.
    let mut blocks: Vec<(f64, f64, f64)> = Vec::new();
    for &node in row {
        let near = &neighbours[node];
        let wish = if near.is_empty() {
            places[node].x
        } else {
            near.iter().map(|&other| places[other].x).sum::<f64>() / near.len() as f64
        };
        let mut block = (wish - places[node].width / 2.0, 1.0, places[node].width + GAP);
        while let Some(&(sum, count, width)) = blocks.last()
            && sum / count + width > block.0 / block.1
        {
            block = (sum + block.0 - width * block.1, count + block.1, width + block.2);
            blocks.pop();
        }
        blocks.push(block);
    }
    let mut nodes = row.iter();
    for (sum, count, _) in blocks {
        let mut left = sum / count;
        for &node in nodes.by_ref().take(count as usize) {
            places[node].x = left + places[node].width / 2.0;
            left += places[node].width + GAP;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Landmark;
    use crate::lang::{Connection, ElementDecl};
    use proptest::prelude::*;

    fn graph(count: usize, pairs: &[(usize, usize)]) -> Graph {
        let mut graph = Graph::default();
        for i in 0..count {
            let (name, class) = (format!("e{i}"), "Idle".to_string());
            graph.elements.push(ElementDecl { name, class, config: String::new(), landmark: Landmark::default() });
        }
        for &(from, to) in pairs {
            let landmark = Landmark::default();
            graph.connections.push(Connection {
                from: from % count,
                from_port: 0,
                to: to % count,
                to_port: 0,
                landmark,
            });
        }
        graph
    }

    #[test]
    fn connections_lead_down() {
        let graph = graph(5, &[(3, 0), (0, 1), (1, 2), (0, 2), (4, 2), (2, 0)]);
        let layout = layout(&graph, &[100.0; 5]);
        let y = |i: usize| layout.boxes[i].y;
        assert!(y(3) < y(0) && y(0) < y(1) && y(1) < y(2));
        assert!((y(4) - y(1)).abs() < 0.1);
        assert_eq!(layout.bends.iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, 0, 1, 0, 1]);
    }

    proptest! {
        #[test]
        fn boxes_never_overlap(
            count in 1..12usize,
            pairs in prop::collection::vec((0..12usize, 0..12usize), 0..30),
            widths in prop::collection::vec(20.0..200.0f64, 12),
        ) {
            let graph = graph(count, &pairs);
            let layout = layout(&graph, &widths[..count]);
            for (i, a) in layout.boxes.iter().enumerate() {
                prop_assert!(a.x - a.width / 2.0 >= 0.0 && a.x + a.width / 2.0 <= layout.width);
                prop_assert!(a.y >= 0.0 && a.y + BOX_HEIGHT <= layout.height);
                for b in &layout.boxes[..i] {
                    let apart = (a.x - b.x).abs() >= f64::midpoint(a.width, b.width) + GAP - 0.001;
                    prop_assert!((a.y - b.y).abs() > 1.0 || apart, "{:?} {:?}", a, b);
                }
            }
            // Connections lead down, except for one of each circle.
            let down = downward(&graph);
            let rows = rows_of(&down, count);
            for (from, to) in down {
                prop_assert!(from == to || rows[from] < rows[to]);
            }
        }
    }
}
