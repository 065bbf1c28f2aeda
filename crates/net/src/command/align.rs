//! click-align: adds the Align elements that a configuration needs on machines that read words at multiples of their size
//! only, removes those that it does not need, and says by an AlignmentInfo element how packets are aligned.
//!
//! An alignment is a multiple and an offset, such as 4 and 2. What packets have is followed from sources down, what
//! elements want is followed up, and where the first does not fulfil the second, an Align goes in between.

use std::collections::HashSet;

use super::alignment::Alignment::{self, Any, At, Impossible};
use super::alignment::{UNKNOWN, at};
use super::options::{Known, Value};
use super::tool::{Line, Tool};
use crate::lang::{Connection, ElementDecl, FileVariables, Graph, config, unparse_with_lines};
use crate::{Landmark, Log, Registry};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Assertions,
    Driver,
    Verbose,
}

const fn own(long: &'static str, short: Option<char>, meaning: Choice, value: Value) -> Known<Choice> {
    Known { long, short, meaning, value }
}

const TOOL: Tool<Choice> = Tool {
    name: "click-align",
    about: "Reads a router configuration, adds the Align elements that it needs for aligned accesses, and writes the result.",
    help: "      --assertions              Add CheckAlign elements that assert, and no Aligns.
  -V, --verbose                 Say where Aligns are added.
  -u, --userlevel, -l, --linuxmodule, -b, --bsdmodule
                                For this driver. All of them align in the same way.\n",
    options: &[
        own("assertions", None, Choice::Assertions, Value::Negatable),
        own("bsdmodule", Some('b'), Choice::Driver, Value::No),
        own("linuxmodule", Some('l'), Choice::Driver, Value::No),
        own("userlevel", Some('u'), Choice::Driver, Value::No),
        own("verbose", Some('V'), Choice::Verbose, Value::No),
    ],
};

/// As often is everything looked at again before it is taken for settled; circles settle far sooner.
const MAX_ROUNDS: usize = 10_000;

/// Runs it.
pub(super) fn main(args: &[String], _: &Registry) -> i32 {
    TOOL.run(args, false, run)
}

fn run(line: &Line<Choice>, log: &mut Log) -> Option<String> {
    if line.values(&Choice::Driver).count() > 1 {
        log.error(&Landmark::default(), "driver specified twice");
        return None;
    }
    let mut graph = line.source.graph(FileVariables::Kept, log)?;
    if line.has(&Choice::Assertions) {
        assert_alignments(&mut graph);
    } else {
        align(&mut graph, line.has(&Choice::Verbose), log);
    }
    Some(unparse_with_lines(&graph))
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

/// Names of elements that are added: they are numbered on.
struct Names(usize);

impl Names {
    fn new(graph: &Graph) -> Self {
        let taken: HashSet<_> = graph.elements.iter().map(|element| element.name.as_str()).collect();
        let mut names = Self(graph.elements.len());
        while taken.contains(format!("Align@click_align@{}", names.0 + 1).as_str()) {
            names.0 += 1;
        }
        names
    }

    /// An element of a name of its own, whose number the next one has, too, unless it is taken.
    fn element(&self, class: &str, config: String) -> ElementDecl {
        let name = format!("{class}@click_align@{}", self.0 + 1);
        ElementDecl { name, class: class.into(), config, landmark: landmark() }
    }
}

/// What is added stands nowhere.
fn landmark() -> Landmark {
    Landmark::new("<click-align>", 0)
}

/// Adds elements that assert what others want.
fn assert_alignments(graph: &mut Graph) {
    let mut names = Names::new(graph);
    let wanted: Vec<_> = graph.elements.iter().map(|element| effect(element).wants).collect();
    for (element, (inputs, _)) in graph.ports().into_iter().enumerate() {
        let Some(At { chunk: chunk @ 2.., offset }) = wanted[element] else { continue };
        for port in 0..inputs {
            let check = names.element("CheckAlign", format!("{chunk}, {offset}, ASSERT true"));
            names.0 += 1;
            insert_before(graph, check, element, port);
        }
    }
}

/// Adds the Aligns that a graph needs, removes those that it does not, and adds an AlignmentInfo.
fn align(graph: &mut Graph, is_verbose: bool, log: &mut Log) {
    let mut names = Names::new(graph);
    add_needed(graph, &mut names, &mut |text| {
        if is_verbose {
            log.message(&Landmark::default(), text);
        }
    });
    skip_overridden(graph);
    while skip_fulfilled(graph) {}
    remove_unused(graph);
    let added = graph.elements.iter().filter(|element| element.landmark == landmark()).count();
    if added > 0 {
        let noun = if added > 1 { "elements" } else { "element" };
        log.warning(&Landmark::default(), format_args!("added {added} Align {noun}"));
    }
    add_info(graph, &names);
}

fn add_needed(graph: &mut Graph, names: &mut Names, tell: &mut impl FnMut(&str)) {
    let (have, want) = (Aligned::have(graph), Aligned::want(graph));
    for element in 0..have.inputs.len() {
        for (port, &had) in have.inputs[element].iter().enumerate() {
            let At { chunk, offset } = want.inputs[element][port] else { continue };
            if !had.fulfils(at(chunk, offset)) {
                let name = &graph.elements[element].name;
                tell(&format!("{name} [{port}]: adding Align({chunk}, {offset}) to fix {had}"));
                let align = names.element("Align", format!("{chunk}, {offset}"));
                names.0 += 1;
                insert_before(graph, align, element, port as u32);
            }
        }
    }
}

fn insert_before(graph: &mut Graph, new: ElementDecl, element: usize, port: u32) {
    let from = graph.elements.len();
    graph.elements.push(new);
    for connection in &mut graph.connections {
        if (connection.to, connection.to_port) == (element, port) {
            (connection.to, connection.to_port) = (from, 0);
        }
    }
    graph.connections.push(Connection { from, from_port: 0, to: element, to_port: port, landmark: landmark() });
}

/// Of two Aligns in a row the first one goes, unless it does what the second one does.
fn skip_overridden(graph: &mut Graph) {
    let is_align = |graph: &Graph, element: usize| graph.elements[element].class == "Align";
    let makes = |graph: &Graph, element: usize| effect(&graph.elements[element]).makes.unwrap_or(UNKNOWN);
    let mut i = 0;
    while let Some(&Connection { from, to, .. }) = graph.connections.get(i) {
        i += 1;
        if !is_align(graph, from) || !is_align(graph, to) || makes(graph, from).fulfils(makes(graph, to)) {
            continue;
        }
        let to_port_of = |graph: &Graph, element: usize| graph.connections.iter().filter(|c| c.to == element).count();
        let above = graph.connections.iter().find(|c| c.to == from).map(|c| (c.from, c.from_port));
        if to_port_of(graph, to) == 1
            && to_port_of(graph, from) == 1
            && let Some(above) = above
        {
            let own = &mut graph.connections[i - 1];
            (own.from, own.from_port) = above;
        } else if graph.connections.iter().filter(|c| c.from == from).count() == 1 {
            graph.connections.iter_mut().filter(|c| c.to == from).for_each(|c| c.to = to);
            i -= 1;
            graph.connections.remove(i);
        }
    }
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
    // What was connected last comes first.
    let leaving = |to: usize| graph.connections.iter().rev().filter(move |c| c.from == to);
    let Connection { from, from_port, to, .. } = graph.connections[found];
    let over: Vec<_> = leaving(to).map(|c| Connection { from, from_port, ..c.clone() }).collect();
    graph.connections.extend(over);
    graph.connections.remove(found);
    graph.remove_duplicates();
    true
}

/// Removes Aligns to which or from which nothing leads, and what is told about alignments.
fn remove_unused(graph: &mut Graph) {
    loop {
        let ports = graph.ports();
        let is_used = |i: usize, e: &ElementDecl| match e.class.as_str() {
            "Align" => ports[i].0 > 0 && ports[i].1 > 0,
            class => class != "AlignmentInfo",
        };
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
fn add_info(graph: &mut Graph, names: &Names) {
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
        graph.elements.push(names.element("AlignmentInfo", infos.join(",\n  ")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::tool::test_run;

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

    /// Connections that are added come last, as Click writes them.
    #[test]
    fn what_led_to_an_align_leads_on_in_clicks_order() {
        let text = "x :: X -> a1 :: Align(8, 2) -> a2 :: Align(4, 2) -> y :: Y; ";
        let cases = [
            ("a1 -> z :: Z; a2 -> w :: W", "x -> a1 -> z;\na1 -> w;\na1 -> y;\n"),
            ("a1 -> z :: Z; w :: W -> a2", "x -> a1 -> z;\nw -> a2 -> y;\na1 -> y;\n"),
            (
                "a1 -> z :: Z; w :: W -> a2; a2 -> v :: V",
                "x -> a1 -> z;\nw -> a2 -> y;\na2 -> v;\na1 -> v;\na1 -> y;\n",
            ),
        ];
        for (rest, expected) in cases {
            let text = aligned(&format!("{text}{rest}"));
            assert!(text.ends_with(&format!(";\n{expected}")), "{text}");
        }
    }

    #[test]
    fn options_are_clicks() {
        let text = "a :: Idle -> [0] c :: CheckIPHeader -> Discard; b :: X -> c; d :: AlignmentInfo(c 2 0)";
        let run = |args: &[&str]| test_run(&TOOL, &[&["-e", text], args].concat(), run);
        for args in [&["--assertions"][..], &["--no-assertions", "-u", "--assertions"]] {
            let written = run(args).unwrap();
            assert!(written.contains("CheckAlign@click_align@6 :: CheckAlign(4, 0, ASSERT true);"), "{written}");
            assert!(
                written.contains("CheckAlign@click_align@6\n    -> c") && !written.contains(":: Align("),
                "{written}"
            );
        }
        let plain = run(&[]).unwrap();
        assert!(plain.contains("AlignmentInfo@click_align@7 :: AlignmentInfo(c  4 0);"), "{plain}");
        assert!(!plain.contains("d :: "), "{plain}");
        for args in [&["-u"][..], &["-l"], &["-b"], &["--assertions", "--no-assertions"], &["-V"]] {
            assert_eq!(run(args).as_ref(), Ok(&plain));
        }
        assert_eq!(run(&["-u", "--linuxmodule"]), Err("driver specified twice\n".to_owned()));
    }

    #[test]
    fn what_is_added_is_told() {
        let source = "X -> c :: CheckIPHeader -> Discard";
        let args: Vec<_> = ["-V", "-e", source].map(String::from).to_vec();
        let line = TOOL.read(&args, false).unwrap().unwrap();
        let mut log = Log::new();
        run(&line, &mut log).unwrap();
        assert_eq!(log.to_string(), "c [0]: adding Align(4, 0) to fix 1/0\nwarning: added 1 Align element\n");
    }
}
