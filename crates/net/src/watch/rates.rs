//! What passed between two samples: at each element, and on each connection.

use super::sample::{Reading, Sample};
use crate::draw::Rate;
use std::sync::Arc;

/// What an element did in a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ElementRate {
    /// Packets that came to its inputs.
    pub packets_in: f64,
    /// Packets that left it by connections, as far as those are known.
    pub packets_out: f64,
    /// Bits that it counted, where it counts bytes.
    pub bits: Option<f64>,
    /// Packets that it dropped, where it counts them.
    pub drops: Option<f64>,
}

/// What passed in a second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rates {
    /// By the elements' numbers.
    pub elements: Vec<ElementRate>,
    /// By connections, in the order of [`Router::connections`](crate::router::Router::connections).
    pub connections: Vec<Rate>,
}

impl Rates {
    /// What passed between two samples of a router; nothing where they are of two routers.
    pub fn between(before: &Sample, after: &Sample) -> Option<Self> {
        if !Arc::ptr_eq(&before.router, &after.router) {
            return None;
        }
        let seconds = after.at.saturating_duration_since(before.at).as_secs_f64().max(1e-3);
        let inputs = |(after, before): (&Reading, &Reading)| -> Vec<f64> {
            let each = after.inputs.iter().zip(&before.inputs);
            each.map(|(after, before)| after.saturating_sub(*before) as f64 / seconds).collect()
        };
        let inputs: Vec<_> = after.elements.iter().zip(&before.elements).map(inputs).collect();
        let edges = after.router.connections();
        let connections = flows(&edges, &inputs);
        let rate = |after: Option<u64>, before: Option<u64>| Some(after?.saturating_sub(before?) as f64 / seconds);
        let mut elements: Vec<_> = (inputs.iter().zip(after.elements.iter().zip(&before.elements)))
            .map(|(inputs, (after, before))| ElementRate {
                packets_in: inputs.iter().sum(),
                packets_out: 0.0,
                bits: rate(after.bytes, before.bytes).map(|bytes| 8.0 * bytes),
                drops: rate(after.drops, before.drops),
            })
            .collect();
        for (((from, _), _), flow) in edges.iter().zip(&connections) {
            elements[*from].packets_out += flow.per_second;
        }
        Some(Self { elements, connections })
    }
}

/// An element and its port.
type Port = (usize, usize);

/// What passes on connections, of what comes to inputs.
///
/// Packets are counted where they arrive. Where several connections lead to one input, each is taken to have what came to its
/// element and did not leave by another way; together they have what was counted. Where that does not fit, because elements
/// on the way make or drop packets, it is an estimate.
fn flows(edges: &[(Port, Port)], inputs: &[Vec<f64>]) -> Vec<Rate> {
    let mut sharing = std::collections::HashMap::<Port, Vec<usize>>::new();
    for (edge, (_, to)) in edges.iter().enumerate() {
        sharing.entry(*to).or_default().push(edge);
    }
    let mut flows = vec![Rate::default(); edges.len()];
    // For each element: what came and has not left by a connection that is known, and how many are not.
    let mut rest: Vec<(f64, usize)> = inputs.iter().map(|ports| (ports.iter().sum(), 0)).collect();
    for (edge, (from, to)) in edges.iter().enumerate() {
        if sharing[to].len() == 1 {
            flows[edge].per_second = inputs[to.0][to.1];
            rest[from.0].0 -= inputs[to.0][to.1];
        } else {
            rest[from.0].1 += 1;
        }
    }
    for ((element, port), sharing) in sharing.into_iter().filter(|(_, sharing)| sharing.len() > 1) {
        let guess = |edge: usize| {
            let from = edges[edge].0.0;
            let is_source = inputs[from].is_empty();
            (!is_source).then(|| rest[from].0.max(0.0) / rest[from].1 as f64)
        };
        let guesses: Vec<_> = sharing.iter().map(|edge| guess(*edge)).collect();
        for (edge, flow) in sharing.into_iter().zip(share(inputs[element][port], &guesses)) {
            flows[edge] = flow;
        }
    }
    flows
}

/// Shares what came among those who say how much of it is theirs, or do not know it.
fn share(whole: f64, guesses: &[Option<f64>]) -> Vec<Rate> {
    let known: f64 = guesses.iter().flatten().sum();
    let unknown = guesses.iter().filter(|guess| guess.is_none()).count();
    let left = (whole - known).max(0.0);
    let (scale, each) = match (unknown, known) {
        (0, 0.0) => (0.0, whole / guesses.len() as f64),
        (0, _) => (whole / known, 0.0),
        _ if known > whole => (whole / known, 0.0),
        _ => (1.0, left / unknown as f64),
    };
    let fits = unknown <= 1 && (scale - 1.0).abs() < 0.01;
    let is_estimate = whole > 0.0 && !fits;
    let part = |guess: &Option<f64>| match guess {
        Some(guess) if known > 0.0 => guess * scale,
        Some(_) if unknown > 0 => 0.0,
        _ => each,
    };
    guesses.iter().map(|guess| Rate { per_second: part(guess), is_estimate }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rates(flows: &[Rate]) -> Vec<(f64, bool)> {
        flows.iter().map(|flow| (flow.per_second, flow.is_estimate)).collect()
    }

    #[test]
    fn a_connection_alone_has_what_came_to_its_input() {
        let edges = [((0, 0), (1, 0)), ((1, 0), (2, 0)), ((1, 1), (2, 1))];
        let flows = flows(&edges, &[vec![], vec![10.0], vec![7.0, 2.0]]);
        assert_eq!(rates(&flows), [(10.0, false), (7.0, false), (2.0, false)]);
    }

    #[test]
    fn connections_to_one_input_share_what_came() {
        // 0 and 1 are sources of 2 and 3; 2, 3 and the source 4 lead to 5; 3 has another way out, to 6.
        let edges = [
            ((0, 0), (2, 0)),
            ((1, 0), (3, 0)),
            ((2, 0), (5, 0)),
            ((3, 0), (5, 0)),
            ((4, 0), (5, 0)),
            ((3, 1), (6, 0)),
        ];
        let of = |whole: f64| flows(&edges, &[vec![], vec![], vec![10.0], vec![20.0], vec![], vec![whole], vec![5.0]]);
        assert_eq!(rates(&of(28.0))[2..], [(10.0, false), (15.0, false), (3.0, false), (5.0, false)]);
        assert_eq!(rates(&of(12.5))[2..], [(5.0, true), (7.5, true), (0.0, true), (5.0, false)]);
        assert_eq!(rates(&of(0.0))[2..], [(0.0, false), (0.0, false), (0.0, false), (5.0, false)]);
    }

    proptest! {
        #[test]
        fn shares_are_the_whole(whole in 0.0..1e7f64, guesses in prop::collection::vec(prop::option::of(0.0..1e6f64), 2..9)) {
            let shares = share(whole, &guesses);
            let sum: f64 = shares.iter().map(|share| share.per_second).sum();
            prop_assert!((sum - whole).abs() < 1e-3, "{} of {}", sum, whole);
            prop_assert!(shares.iter().all(|share| share.per_second >= 0.0));
        }
    }
}
