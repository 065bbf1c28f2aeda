//! click-align: adds the Align elements that a configuration needs on machines that read words at multiples of their size
//! only, removes those that it does not need, and says by an AlignmentInfo element how packets are aligned.
//!
//! An alignment is a multiple and an offset, such as 4 and 2. What packets have is followed from sources down, what
//! elements want is followed up, and where the first does not fulfil the second, an Align goes in between.

use std::collections::HashSet;

use super::tool::{Line, Tool};
use crate::lang::{Connection, ElementDecl, FileVariables, Graph, config, unparse_with_lines};
use crate::{Landmark, Log, Registry};

const TOOL: Tool<()> = Tool {
    name: "click-align",
    about: "Reads a router configuration, adds the Align elements that it needs for aligned accesses, and writes the result.",
    help: "",
    options: &[],
};

/// As often is everything looked at again before it is taken for settled; circles settle far sooner.
const MAX_ROUNDS: usize = 10_000;

/// Runs it.
pub(super) fn main(args: &[String], _: &Registry) -> i32 {
    TOOL.run(args, false, run)
}

fn run(line: &Line<()>, log: &mut Log) -> Option<String> {
    let mut graph = line.source.graph(FileVariables::Kept, log)?;
    align(&mut graph);
    Some(unparse_with_lines(&graph))
}

/// How packets' data is aligned: nothing known yet, or an address that is `offset` more than a multiple of `chunk`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alignment {
    /// No packet has come yet, or nothing is wanted of one: whatever it is combined with wins.
    Any,
    /// `chunk` is at least 1; `offset` is less.
    At { chunk: u32, offset: u32 },
    /// No alignment fulfils what is wanted.
    Impossible,
}

use Alignment::{Any, At, Impossible};

const UNKNOWN: Alignment = At { chunk: 1, offset: 0 };

fn at(chunk: u32, offset: u32) -> Alignment {
    let chunk = chunk.max(1);
    At { chunk, offset: offset % chunk }
}

impl Alignment {
    /// Whether what is so aligned is also aligned as `wanted`.
    fn fulfils(self, wanted: Self) -> bool {
        match (self, wanted) {
            (_, Any | At { chunk: 1, .. }) | (Any, _) => true,
            (At { chunk, offset }, At { chunk: wanted, offset: at }) => chunk % wanted == 0 && offset % wanted == at,
            (Impossible, _) | (_, Impossible) => false,
        }
    }

    /// With data that starts `delta` bytes later.
    fn shifted(self, delta: i64) -> Self {
        match self {
            At { chunk, offset } => at(chunk, (i64::from(offset) + delta).rem_euclid(i64::from(chunk)) as u32),
            other => other,
        }
    }

    /// What is known of packets of both kinds.
    fn or(self, other: Self) -> Self {
        let (At { chunk: a, offset: x }, At { chunk: b, offset: y }) = (self, other) else {
            return if self == Any { other } else { self };
        };
        let chunk = gcd(gcd(a, b), x.abs_diff(y));
        at(chunk, x)
    }

    /// What fulfils both.
    fn and(self, other: Self) -> Self {
        if other.fulfils(self) && other != Any {
            other
        } else if self.fulfils(other) {
            self
        } else {
            Impossible
        }
    }
}

fn gcd(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// What an element does to alignments.
#[derive(Debug, Clone, Copy)]
struct Effect {
    /// The alignment of what it makes, whatever comes in.
    makes: Option<Alignment>,
    /// How much later the data starts that comes out.
    shift: i64,
    /// What it wants of what comes in, for itself.
    wants: Option<Alignment>,
}

const PASSES: Effect = Effect { makes: None, shift: 0, wants: None };

fn effect(element: &ElementDecl) -> Effect {
    let args = config::split_args(&element.config);
    let number = |i: usize| args.get(i).and_then(|arg| arg.parse::<u32>().ok());
    let makes = |alignment| Effect { makes: Some(alignment), ..PASSES };
    let wants = |alignment| Effect { wants: Some(alignment), ..PASSES };
    match element.class.as_str() {
        "Align" => makes(number(0).zip(number(1)).map_or(UNKNOWN, |(chunk, offset)| at(chunk, offset))),
        "Strip" => Effect { shift: i64::from(number(0).unwrap_or(0)), ..PASSES },
        "Unstrip" => Effect { shift: -i64::from(number(0).unwrap_or(0)), ..PASSES },
        "EtherEncap" => Effect { shift: -14, ..PASSES },
        "CheckIPHeader" | "CheckIPHeader2" | "MarkIPHeader" => wants(at(4, 0).shifted(-i64::from(ip_offset(&args)))),
        "IPInputCombo" => Effect { shift: 14, wants: Some(at(4, 2)), makes: None },
        "IPEncap" | "UDPIPEncap" | "ICMPPingEncap" => wants(at(4, 0)),
        "ARPResponder" | "ARPQuerier" => wants(at(2, 0)),
        "ToHost" => wants(at(4, 2)),
        "FromHost" | "FromDevice" | "PollDevice" => makes(at(4, 2)),
        "InfiniteSource" | "RatedSource" | "ICMPError" => makes(at(4, 0)),
        "Idle" => makes(Any),
        _ => PASSES,
    }
}

/// Where an element finds the IP header: its `OFFSET`, or the number among its first two arguments.
fn ip_offset(args: &[String]) -> u32 {
    let keyword = args.iter().find_map(|arg| arg.strip_prefix("OFFSET ")).and_then(|text| text.trim().parse().ok());
    keyword.or_else(|| args.iter().take(2).find_map(|arg| arg.parse().ok())).unwrap_or(0)
}

/// Alignments of all inputs and outputs.
struct Aligned {
    inputs: Vec<Vec<Alignment>>,
    outputs: Vec<Vec<Alignment>>,
}

impl Aligned {
    fn new(graph: &Graph) -> Self {
        let ports = graph.ports();
        let inputs = ports.iter().map(|&(inputs, _)| vec![Any; inputs as usize]).collect();
        let outputs = ports.iter().map(|&(_, outputs)| vec![Any; outputs as usize]).collect();
        Self { inputs, outputs }
    }

    /// What packets have, from sources down.
    fn have(graph: &Graph) -> Self {
        let mut this = Self::new(graph);
        for _ in 0..MAX_ROUNDS {
            for (i, element) in graph.elements.iter().enumerate() {
                let effect = effect(element);
                let common = match this.inputs[i][..] {
                    [] => UNKNOWN,
                    ref inputs => inputs.iter().fold(Any, |all, &one| all.or(one)),
                };
                let out = effect.makes.unwrap_or(common.shifted(effect.shift));
                this.outputs[i].fill(out);
            }
            let mut inputs = Self::new(graph).inputs;
            for c in &graph.connections {
                let input = &mut inputs[c.to][c.to_port as usize];
                *input = input.or(this.outputs[c.from][c.from_port as usize]);
            }
            if inputs == this.inputs {
                break;
            }
            this.inputs = inputs;
        }
        this
    }

    /// What elements want, up from those that want it.
    fn want(graph: &Graph) -> Self {
        let mut this = Self::new(graph);
        for _ in 0..MAX_ROUNDS {
            for (i, element) in graph.elements.iter().enumerate() {
                let effect = effect(element);
                let below = this.outputs[i].iter().fold(Any, |all, &one| all.and(one)).shifted(-effect.shift);
                let wanted = effect.wants.unwrap_or(if effect.makes.is_some() { Any } else { below });
                let wanted = if element.class == "Classifier" { classifier(wanted) } else { wanted };
                this.inputs[i].fill(wanted);
            }
            let mut outputs = Self::new(graph).outputs;
            for c in &graph.connections {
                let output = &mut outputs[c.from][c.from_port as usize];
                *output = output.and(this.inputs[c.to][c.to_port as usize]);
            }
            outputs.iter_mut().flatten().filter(|output| **output == Impossible).for_each(|output| *output = Any);
            if outputs == this.outputs {
                break;
            }
            this.outputs = outputs;
        }
        this
    }
}

/// A Classifier compares words: it takes any offset, if it is always the same.
fn classifier(wanted: Alignment) -> Alignment {
    match wanted {
        At { chunk, offset } if chunk < 4 && chunk > 1 => at(4, offset),
        other => other,
    }
}

/// Adds the Aligns that a graph needs, removes those that it does not, and adds an AlignmentInfo.
fn align(graph: &mut Graph) {
    let names: HashSet<_> = graph.elements.iter().map(|element| element.name.clone()).collect();
    let mut number = graph.elements.len();
    let mut new_name = |class: &str| loop {
        number += 1;
        let name = format!("{class}@click_align@{number}");
        if !names.contains(&name) {
            return name;
        }
    };
    add_needed(graph, &mut new_name);
    skip_overridden(graph);
    while skip_fulfilled(graph) {}
    remove_unused(graph);
    add_info(graph, &mut new_name);
}

fn new_element(name: String, class: &str, config: String) -> ElementDecl {
    ElementDecl { name, class: class.into(), config, landmark: Landmark::new("click-align", 0) }
}

fn add_needed(graph: &mut Graph, new_name: &mut impl FnMut(&str) -> String) {
    let (have, want) = (Aligned::have(graph), Aligned::want(graph));
    for element in 0..have.inputs.len() {
        for port in 0..have.inputs[element].len() {
            let At { chunk, offset } = want.inputs[element][port] else { continue };
            if !have.inputs[element][port].fulfils(at(chunk, offset)) {
                let align = graph.elements.len();
                graph.elements.push(new_element(new_name("Align"), "Align", format!("{chunk}, {offset}")));
                insert_before(graph, align, element, port as u32);
            }
        }
    }
    graph.sort_connections();
}

fn insert_before(graph: &mut Graph, new: usize, element: usize, port: u32) {
    for connection in &mut graph.connections {
        if (connection.to, connection.to_port) == (element, port) {
            (connection.to, connection.to_port) = (new, 0);
        }
    }
    let landmark = Landmark::new("click-align", 0);
    graph.connections.push(Connection { from: new, from_port: 0, to: element, to_port: port, landmark });
}

/// Of two Aligns in a row the first one goes, unless it does what the second one does.
fn skip_overridden(graph: &mut Graph) {
    let is_align = |graph: &Graph, element: usize| graph.elements[element].class == "Align";
    let makes = |graph: &Graph, element: usize| effect(&graph.elements[element]).makes.unwrap_or(UNKNOWN);
    for i in 0..graph.connections.len() {
        let Connection { from, to, .. } = graph.connections[i];
        if !is_align(graph, from) || !is_align(graph, to) || makes(graph, from).fulfils(makes(graph, to)) {
            continue;
        }
        let above: Vec<_> = graph.connections.iter().filter(|c| c.to == from).map(|c| (c.from, c.from_port)).collect();
        if graph.connections.iter().filter(|c| c.from == from).count() == 1 {
            graph.connections.iter_mut().filter(|c| c.to == from).for_each(|c| c.to = to);
        } else if let [(source, source_port)] = above[..] {
            let passed = graph.connections.iter_mut().filter(|c| c.from == from && c.to == to);
            passed.for_each(|c| (c.from, c.from_port) = (source, source_port));
        }
    }
    graph.sort_connections();
}

/// Connections that lead to an Align that changes nothing lead on instead. Returns whether there was one.
fn skip_fulfilled(graph: &mut Graph) -> bool {
    let have = Aligned::have(graph);
    let is_useless = |c: &Connection| {
        let made = have.outputs[c.to].first();
        let align = graph.elements[c.to].class == "Align" && c.from != c.to;
        align && made.is_some_and(|&made| have.outputs[c.from][c.from_port as usize].fulfils(made))
    };
    let Some(found) = graph.connections.iter().position(is_useless) else { return false };
    let skipped = graph.connections.remove(found);
    let next: Vec<_> = graph.connections.iter().filter(|c| c.from == skipped.to).cloned().collect();
    let over = next.into_iter().map(|c| Connection { from: skipped.from, from_port: skipped.from_port, ..c });
    graph.connections.extend(over);
    graph.sort_connections();
    true
}

/// Removes Aligns to which or from which nothing leads.
fn remove_unused(graph: &mut Graph) {
    loop {
        let ports = graph.ports();
        let is_used = |i: usize, e: &ElementDecl| e.class != "Align" || (ports[i].0 > 0 && ports[i].1 > 0);
        let kept: Vec<_> = graph.elements.iter().enumerate().map(|(i, element)| is_used(i, element)).collect();
        if kept.iter().all(|kept| *kept) {
            return;
        }
        retain(graph, &kept);
    }
}

/// Removes elements, and their connections.
pub(super) fn retain(graph: &mut Graph, kept: &[bool]) {
    let mut count = 0;
    let indices: Vec<_> = kept
        .iter()
        .map(|&kept| {
            count += usize::from(kept);
            count.saturating_sub(1)
        })
        .collect();
    let mut keep = kept.iter();
    graph.elements.retain(|_| keep.next() == Some(&true));
    graph.connections.retain(|c| kept[c.from] && kept[c.to]);
    graph.connections.iter_mut().for_each(|c| (c.from, c.to) = (indices[c.from], indices[c.to]));
}

/// Says how packets come to elements that compare words, and so may want to know.
fn add_info(graph: &mut Graph, new_name: &mut impl FnMut(&str) -> String) {
    let have = Aligned::have(graph);
    let asks = |class: &str| ["Classifier", "CheckIPHeader", "CheckIPHeader2", "IPInputCombo"].contains(&class);
    let mut infos = Vec::new();
    for (element, inputs) in graph.elements.iter().zip(&have.inputs).filter(|(element, _)| asks(&element.class)) {
        let input = |input: &Alignment| match input {
            At { chunk, offset } => format!("  {chunk} {offset}"),
            Any | Impossible => "  1 0".into(),
        };
        infos.push(element.name.clone() + &inputs.iter().map(input).collect::<String>());
    }
    if !infos.is_empty() {
        graph.elements.push(new_element(new_name("AlignmentInfo"), "AlignmentInfo", infos.join(",\n  ")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::tool::test_run;
    use proptest::prelude::*;

    fn aligned(text: &str) -> String {
        let text = test_run(&TOOL, &["-e", text], run).unwrap();
        let text = text.replace("\n    ", " ");
        text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).flat_map(|line| [line, "\n"]).collect()
    }

    #[test]
    fn an_align_goes_before_what_needs_it() {
        let text = aligned(
            "src :: Whatever -> c :: Classifier(12/0800) -> s :: Strip(14) -> ch :: CheckIPHeader -> d :: Discard",
        );
        assert_eq!(
            text,
            "src :: Whatever;\nc :: Classifier(12/0800);\ns :: Strip(14);\nch :: CheckIPHeader;\nd :: Discard;\n\
            Align@click_align@6 :: Align(4, 2);\nAlignmentInfo@click_align@9 :: AlignmentInfo(c  4 2,\n  ch  4 0);\n\
            src -> Align@click_align@6 -> c -> s -> ch -> d;\n"
        );
    }

    #[test]
    fn no_align_goes_where_packets_are_aligned() {
        let checks = [
            ("Strip(14) -> c :: CheckIPHeader()", 0),
            ("c :: CheckIPHeader(14)", 2),
            ("c :: CheckIPHeader2(OFFSET 14)", 2),
        ];
        for (check, offset) in checks {
            let text = aligned(&format!(
                "FromDevice(eth3) -> cl :: Classifier(12/0800, -) -> {check} -> Null -> Discard; cl[1] -> Discard"
            ));
            assert!(!text.contains("Align@"), "{text}");
            assert!(text.contains(&format!("AlignmentInfo(cl  4 2,\n  c  4 {offset});")), "{text}");
        }
        let text = aligned(
            "fd :: FromDevice(eth3, true) -> fst :: Strip(1) -> a1 :: Align(4, 2) -> st :: Strip(14) -> chip :: CheckIPHeader -> Unstrip(14) -> MarkIPHeader(14) -> a :: Align(4, 2) -> th :: Queue",
        );
        assert!(text.contains("fst -> a1 -> st -> chip -> Unstrip@6 -> MarkIPHeader@7 -> th;"), "{text}");
    }

    #[test]
    fn aligns_that_do_nothing_go() {
        let cases = [
            (
                "x :: X -> Align(8, 0) -> Align(4, 2) -> y :: Y",
                "x :: X;\nAlign@3 :: Align(4, 2);\ny :: Y;\nx -> Align@3 -> y;\n",
            ),
            (
                "x :: X -> Align(4, 2) -> Align(8, 0) -> y :: Y",
                "x :: X;\nAlign@3 :: Align(8, 0);\ny :: Y;\nx -> Align@3 -> y;\n",
            ),
            (
                "x :: X -> a1 :: Align(4, 2) -> a2 :: Align(8, 0) -> y :: Y; a1 -> z :: Z; a2 -> w :: W",
                "x :: X;\na1 :: Align(4, 2);\na2 :: Align(8, 0);\ny :: Y;\nz :: Z;\nw :: W;\nx -> a1 -> z;\nx -> a2 -> y;\na2 -> w;\n",
            ),
            (
                "x :: X -> a1 :: Align(4, 2) -> a2 :: Align(8, 0) -> y :: Y; z :: Z -> a1; w :: W -> a2",
                "x :: X;\na2 :: Align(8, 0);\ny :: Y;\nz :: Z;\nw :: W;\nx -> a2 -> y;\nz -> a2;\nw -> a2;\n",
            ),
            (
                "x :: X -> a1 :: Align(8, 2) -> a2 :: Align(4, 2) -> y :: Y",
                "x :: X;\na1 :: Align(8, 2);\ny :: Y;\nx -> a1 -> y;\n",
            ),
            (
                "x :: X -> a1 :: Align(8, 2) -> a2 :: Align(4, 2) -> y :: Y; z :: Z -> a2; w :: W -> a1",
                "x :: X;\na1 :: Align(8, 2);\na2 :: Align(4, 2);\ny :: Y;\nz :: Z;\nw :: W;\nx -> a1 -> y;\nz -> a2 -> y;\nw -> a1;\n",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(aligned(text), expected, "{text}");
        }
    }

    /// Whether all addresses below 64 that `have` allows are allowed by `want`.
    fn fulfils_slowly(have: Alignment, want: Alignment) -> bool {
        let allows = |alignment: Alignment, address: u32| match alignment {
            Any => true,
            At { chunk, offset } => address % chunk == offset,
            Impossible => false,
        };
        (0..64).all(|address| !allows(have, address) || allows(want, address))
    }

    proptest! {
        #[test]
        fn alignments_are_sets_of_addresses(a in 0..4u32, x in 0..8u32, b in 0..4u32, y in 0..8u32, delta in -20..20i64) {
            let (first, second) = (at(1 << a, x), at(1 << b, y));
            prop_assert_eq!(first.fulfils(second), fulfils_slowly(first, second));
            let both = first.or(second);
            prop_assert!(fulfils_slowly(first, both) && fulfils_slowly(second, both));
            let narrow = first.and(second);
            prop_assert!(narrow == Impossible || (narrow.fulfils(first) && narrow.fulfils(second)));
            prop_assert_eq!(first.shifted(delta).shifted(-delta), first);
        }
    }
}
