//! How elements are connected: checked, resolved to push and pull, and ordered. All of it is a pure function of the graph
//! and the classes.

use super::codes::{self, Codes, Processing};
use super::rank;
use super::region::Region;
use crate::lang::Graph;
use crate::{Landmark, Log};
use std::ops::Range;

/// Where a push output leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) element: u32,
    pub(crate) port: u32,
    /// The input's number among all.
    pub(crate) input: u32,
    /// The element's place in the order of the wave.
    pub(crate) rank: u32,
}

const NONE: u32 = u32::MAX;

/// The connections of a router. Inputs and outputs of all elements are numbered through.
#[derive(Debug, Default)]
pub(crate) struct Wiring {
    pub(crate) inputs: Vec<Range<usize>>,
    pub(crate) outputs: Vec<Range<usize>>,
    input_is_pull: Vec<bool>,
    output_is_push: Vec<bool>,
    /// For each push output.
    targets: Vec<Target>,
    /// For each pull input: the element and its output.
    sources: Vec<(u32, u32)>,
    /// All connections: output and input, numbered through.
    edges: Vec<(usize, usize)>,
    flows: Vec<&'static str>,
    pub(crate) by_rank: Vec<u32>,
    regions: Vec<Region>,
    /// For each rank, its region.
    region_at: Vec<u32>,
}

fn starts(counts: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut at = 0;
    counts
        .map(|n| {
            at += n;
            at - n..at
        })
        .collect()
}

impl Wiring {
    /// Checks everything, and reports all that is wrong.
    pub(crate) fn new(graph: &Graph, classes: &[Codes], log: &mut Log) -> Option<Self> {
        let before = log.errors();
        let mut wiring = Self::with_ports(graph, classes, log);
        if log.errors() > before {
            return None;
        }
        wiring.check_width(graph, classes, log);
        wiring.resolve(graph, classes, log);
        if log.errors() > before {
            return None;
        }
        wiring.check_use(graph, log);
        if log.errors() > before {
            return None;
        }
        wiring.connect();
        Some(wiring)
    }

    fn with_ports(graph: &Graph, classes: &[Codes], log: &mut Log) -> Self {
        let mut used = vec![(0, 0); classes.len()];
        for c in &graph.connections {
            used[c.from].1 = used[c.from].1.max(c.from_port as usize + 1);
            used[c.to].0 = used[c.to].0.max(c.to_port as usize + 1);
        }
        let counts: Vec<_> = classes
            .iter()
            .zip(&used)
            .map(|(class, (inputs, outputs))| codes::ports(class.ports, *inputs, *outputs))
            .collect();
        let inputs = starts(counts.iter().map(|(inputs, _)| *inputs));
        let outputs = starts(counts.iter().map(|(_, outputs)| *outputs));
        let mut edges = Vec::new();
        for c in &graph.connections {
            let (from, to) = (&graph.elements[c.from], &graph.elements[c.to]);
            let (from_port, to_port) = (c.from_port as usize, c.to_port as usize);
            let (has_from, has_to) = (from_port < outputs[c.from].len(), to_port < inputs[c.to].len());
            if !has_from {
                log.error(
                    &from.landmark,
                    format_args!("'{} :: {}' has no output {}", from.name, from.class, c.from_port),
                );
            }
            if !has_to {
                log.error(&to.landmark, format_args!("'{} :: {}' has no input {}", to.name, to.class, c.to_port));
            }
            if has_from && has_to {
                edges.push((outputs[c.from].start + from_port, inputs[c.to].start + to_port));
            }
        }
        let flows = classes.iter().map(|class| class.flow).collect();
        Self { inputs, outputs, edges, flows, ..Self::default() }
    }

    fn owner(ranges: &[Range<usize>], port: usize) -> (usize, usize) {
        let element = ranges.partition_point(|range| range.end <= port);
        (element, port - ranges[element].start)
    }

    /// Whole batches go from wide outputs to wide inputs alone.
    fn check_width(&self, graph: &Graph, classes: &[Codes], log: &mut Log) {
        let name = |element: usize| format!("'{} :: {}'", graph.elements[element].name, graph.elements[element].class);
        for (output, input) in &self.edges {
            let ((from, output), (to, input)) =
                (Self::owner(&self.outputs, *output), Self::owner(&self.inputs, *input));
            let at = &graph.elements[from].landmark;
            let (from_name, to_name) = (name(from), name(to));
            match (codes::is_wide(classes[from].wide, true, output), codes::is_wide(classes[to].wide, false, input)) {
                (true, false) => log.error(
                    at,
                    format_args!(
                        "{from_name} wide output {output} connected to {to_name} input {input}, which takes single packets; put a Debatcher between them"
                    ),
                ),
                (false, true) => log.error(
                    at,
                    format_args!(
                        "{from_name} output {output} connected to {to_name} wide input {input}, which takes batches; put a Batcher between them"
                    ),
                ),
                _ => {}
            }
        }
    }

    /// Spreads push and pull over agnostic ports until nothing changes.
    fn resolve(&mut self, graph: &Graph, classes: &[Codes], log: &mut Log) {
        let side = |is_output: bool, ranges: &[Range<usize>]| -> Vec<Processing> {
            let each = classes.iter().zip(ranges);
            each.flat_map(|(class, range)| codes::processing(class.processing, is_output, range.len())).collect()
        };
        let (mut inputs, mut outputs) = (side(false, &self.inputs), side(true, &self.outputs));
        // Agnostic ports between which packets flow are of one kind.
        let mut pairs: Vec<(usize, usize, bool)> = self.edges.iter().map(|(from, to)| (*from, *to, false)).collect();
        for (element, range) in self.inputs.iter().enumerate() {
            for input in range.clone().filter(|input| inputs[*input] == Processing::Agnostic) {
                let out = self.outputs[element].clone();
                let flows = codes::flows(self.flows[element], input - range.start, range.len(), out.len());
                let inner = out.zip(flows).filter(|(output, flows)| *flows && outputs[*output] == Processing::Agnostic);
                pairs.extend(inner.map(|(output, _)| (output, input, true)));
            }
        }
        let mut changed = true;
        while std::mem::take(&mut changed) {
            pairs.retain(|(output, input, within)| {
                let (from, to) = (outputs[*output], inputs[*input]);
                match (from, to) {
                    (Processing::Agnostic, Processing::Agnostic) => return true,
                    (Processing::Agnostic, _) => outputs[*output] = to,
                    (_, Processing::Agnostic) => inputs[*input] = from,
                    _ if from == to => return true,
                    _ => {
                        self.conflict(graph, (*output, *input), *within, from, log);
                        return false;
                    }
                }
                changed = true;
                true
            });
        }
        self.input_is_pull = inputs.iter().map(|kind| *kind == Processing::Pull).collect();
        // Agnostic ports that are connected to nothing but each other push.
        self.output_is_push = outputs.iter().map(|kind| *kind != Processing::Pull).collect();
    }

    fn conflict(&self, graph: &Graph, pair: (usize, usize), within: bool, from: Processing, log: &mut Log) {
        let ((from_element, output), (to_element, input)) =
            (Self::owner(&self.outputs, pair.0), Self::owner(&self.inputs, pair.1));
        let (here, there) = if from == Processing::Push { ("push", "pull") } else { ("pull", "push") };
        let (from, to) = (&graph.elements[from_element], &graph.elements[to_element]);
        let (from, to) = (format!("{} :: {}", from.name, from.class), format!("{} :: {}", to.name, to.class));
        let landmark = &graph.elements[from_element].landmark;
        if within {
            log.error(
                landmark,
                format_args!("agnostic '{from}' in mixed context: {there} input {input}, {here} output {output}"),
            );
        } else {
            log.error(
                landmark,
                format_args!("'{from}' {here} output {output} connected to '{to}' {there} input {input}"),
            );
        }
    }

    /// Push outputs and pull inputs have one connection, and no port has none.
    fn check_use(&self, graph: &Graph, log: &mut Log) {
        let (mut outputs, mut inputs) = (vec![false; self.output_is_push.len()], vec![false; self.input_is_pull.len()]);
        let name = |element: usize| format!("{} :: {}", graph.elements[element].name, graph.elements[element].class);
        for (output, input) in &self.edges {
            if outputs[*output] && self.output_is_push[*output] {
                let (element, port) = Self::owner(&self.outputs, *output);
                let at = &graph.elements[element].landmark;
                log.error(at, format_args!("illegal reuse of '{}' push output {port}", name(element)));
            } else if inputs[*input] && self.input_is_pull[*input] {
                let (element, port) = Self::owner(&self.inputs, *input);
                let at = &graph.elements[element].landmark;
                log.error(at, format_args!("illegal reuse of '{}' pull input {port}", name(element)));
            }
            (outputs[*output], inputs[*input]) = (true, true);
        }
        let mut unused = |used: &[bool], ranges: &[Range<usize>], kind: &str| {
            for port in (0..used.len()).filter(|port| !used[*port]) {
                let (element, number) = Self::owner(ranges, port);
                let at: &Landmark = &graph.elements[element].landmark;
                log.error(at, format_args!("'{}' {kind} {number} unused", name(element)));
            }
        };
        unused(&inputs, &self.inputs, "input");
        unused(&outputs, &self.outputs, "output");
    }

    fn connect(&mut self) {
        let nowhere = Target { element: NONE, port: NONE, input: NONE, rank: NONE };
        self.targets = vec![nowhere; self.output_is_push.len()];
        self.sources = vec![(NONE, NONE); self.input_is_pull.len()];
        for (output, input) in &self.edges {
            let ((from, output_port), (to, port)) =
                (Self::owner(&self.outputs, *output), Self::owner(&self.inputs, *input));
            if self.output_is_push[*output] {
                self.targets[*output] =
                    Target { element: to as u32, port: port as u32, input: *input as u32, rank: NONE };
            } else {
                self.sources[*input] = (from as u32, output_port as u32);
            }
        }
        self.rank(&[]);
    }

    /// Whom each element pushes to.
    fn next(&self) -> Vec<Vec<usize>> {
        let targets = |outputs: &Range<usize>| {
            let targets = self.targets[outputs.clone()].iter().filter(|target| target.element != NONE);
            targets.map(|target| target.element as usize).collect()
        };
        self.outputs.iter().map(targets).collect()
    }

    /// Ranks the elements. Those of each group share their state: with all that is between them, they make a region.
    pub(crate) fn rank(&mut self, groups: &[Vec<usize>]) {
        let next = self.next();
        let mut joined = next.clone();
        for group in groups {
            // As if they were a circle, so that their ranks are in a row.
            group.iter().zip(group.iter().cycle().skip(1)).for_each(|(one, other)| joined[*one].push(*other));
        }
        let (ranks, circles) = rank::ranks(&joined);
        self.by_rank = vec![0; ranks.len()];
        ranks.iter().enumerate().for_each(|(element, rank)| self.by_rank[*rank] = element as u32);
        for target in self.targets.iter_mut().filter(|target| target.element != NONE) {
            target.rank = ranks[target.element as usize] as u32;
        }
        self.region_at = vec![NONE; ranks.len()];
        for group in groups {
            let region = circles[group[0]].clone();
            if self.region_at[region.start] == NONE {
                self.region_at[region.clone()].fill(self.regions.len() as u32);
                self.regions.push(Region::new(region, &self.by_rank, &ranks, &next));
            }
        }
    }

    /// The region that an element is in, by its rank.
    #[inline]
    pub(super) fn region(&self, rank: usize) -> Option<&Region> {
        self.regions.get(self.region_at[rank] as usize)
    }

    /// Where a push output leads.
    #[inline]
    pub(crate) fn target(&self, element: usize, port: usize) -> Target {
        let outputs = &self.outputs[element];
        assert!(port < outputs.len(), "packets leave by outputs that there are");
        self.targets[outputs.start + port]
    }

    /// Where a pull input gets its packets.
    #[inline]
    pub(crate) fn source(&self, element: usize, port: usize) -> Option<(usize, usize)> {
        let (from, output) = *self.sources.get(self.inputs[element].start + port)?;
        (from != NONE && port < self.inputs[element].len()).then_some((from as usize, output as usize))
    }

    pub(crate) fn input_is_pull(&self, element: usize, port: usize) -> bool {
        self.input_is_pull[self.inputs[element].start + port]
    }

    pub(crate) fn output_is_push(&self, element: usize, port: usize) -> bool {
        self.output_is_push[self.outputs[element].start + port]
    }

    /// All connections: element and output, element and input.
    pub(crate) fn connections(&self) -> impl Iterator<Item = ((usize, usize), (usize, usize))> + '_ {
        self.edges
            .iter()
            .map(|(output, input)| (Self::owner(&self.outputs, *output), Self::owner(&self.inputs, *input)))
    }

    /// To which outputs packets may go that come to an input.
    pub(crate) fn flows(&self, element: usize, input: usize) -> Vec<bool> {
        codes::flows(self.flows[element], input, self.inputs[element].len(), self.outputs[element].len())
    }
}
