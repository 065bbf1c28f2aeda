//! click-xform: replaces patterns of elements in a configuration by others.
//!
//! A file of patterns has compound classes in pairs: `Name`, what is looked for, and `Name_Replacement`, what it becomes.
//! Variables in the configurations of a pattern stand for whole arguments, the same one wherever the same variable is.

use std::collections::{HashMap, HashSet};

use super::align::retain;
use super::options::{Known, Value};
use super::source::Source;
use super::tool::{Line, Tool};
use crate::lang::program::{ClassDef, ClassId};
use crate::lang::{Connection, ElementDecl, FileVariables, Graph, Program, config, flatten, unparse_with_lines};
use crate::{Landmark, Log, Registry};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Patterns,
    Reverse,
}

const TOOL: Tool<Choice> = Tool {
    name: "click-xform",
    about: "Reads a router configuration, replaces patterns of elements in it by others, and writes the result. Files behind the
first one are files of patterns, too.",
    help: "  -p, --patterns FILE           Read patterns from FILE. May be given more than once.
  -r, --reverse                 Look for replacements, and replace them by patterns.\n",
    options: &[
        Known { long: "patterns", short: Some('p'), meaning: Choice::Patterns, value: Value::Needed },
        Known { long: "reverse", short: Some('r'), meaning: Choice::Reverse, value: Value::Negatable },
    ],
};

/// As many steps may the search for a pattern take.
const MAX_STEPS: usize = 20_000_000;
/// As many replacements are made; patterns may lead to each other for ever.
const MAX_REPLACEMENTS: usize = 100_000;

/// Runs it.
pub(super) fn main(args: &[String], _: &Registry) -> i32 {
    TOOL.run(args, true, run)
}

fn run(line: &Line<Choice>, log: &mut Log) -> Option<String> {
    let mut patterns = Vec::new();
    let files: Vec<_> = line.values(&Choice::Patterns).map(String::from).chain(line.words.iter().cloned()).collect();
    for file in &files {
        let mut source = Source::default();
        source.path.clone_from(&line.source.path);
        source.set(file, false).ok()?;
        let program = source.program(log)?;
        patterns.extend(read_patterns(&program, line.has(&Choice::Reverse), log));
    }
    if patterns.is_empty() {
        let text = if files.is_empty() { "no patterns specified" } else { "no patterns read" };
        log.warning(&Landmark::default(), text);
    }
    let mut body = Body { graph: line.source.graph(FileVariables::Kept, log)?, made_by: HashMap::new() };
    body.replace_all(&patterns, log);
    Some(unparse_with_lines(&body.graph))
}

/// A graph with open ends.
#[derive(Debug, Clone, Default)]
struct Template {
    elements: Vec<ElementDecl>,
    connections: Vec<Connection>,
    /// From inputs to elements, from elements to outputs, and from inputs to outputs.
    ins: Vec<(u32, Port)>,
    outs: Vec<(Port, u32)>,
    passes: Vec<(u32, u32)>,
}

/// An element and a port of it.
type Port = (usize, u32);

struct Pattern {
    name: String,
    template: Template,
    replacement: Template,
}

fn read_patterns(program: &Program, reverse: bool, log: &mut Log) -> Vec<Pattern> {
    let mut patterns = Vec::new();
    for (name, replacement) in &program.named {
        let Some(base) = name.strip_suffix("_Replacement") else { continue };
        let Some((_, pattern)) = program.named.iter().rev().find(|(name, _)| name == base) else { continue };
        let mut pair = [*pattern, *replacement].map(|class| template(program, class, log));
        if reverse {
            pair.reverse();
        }
        let [template, replacement] = pair;
        patterns.push(Pattern { name: base.to_string(), template, replacement });
    }
    patterns
}

/// A compound class with everything in it expanded, but its own variables.
fn template(program: &Program, class: ClassId, log: &mut Log) -> Template {
    let Some(compound) = program.compound(class) else { return Template::default() };
    let mut inner = Program { root: compound.clone(), ..program.clone() };
    inner.root.depth = 0;
    for (element, end) in inner.root.elements.iter_mut().zip(["<input>", "<output>"]) {
        element.class = inner.classes.len();
        inner.classes.push(ClassDef::Primitive(end.into()));
    }
    let graph = flatten(&inner, &[], FileVariables::Kept, log);
    let mut found = Template { elements: graph.elements[2..].to_vec(), ..Template::default() };
    for c in graph.connections {
        match (c.from, c.to) {
            (0, 1) => found.passes.push((c.from_port, c.to_port)),
            (0, to) if to > 1 => found.ins.push((c.from_port, (to - 2, c.to_port))),
            (from, 1) if from > 1 => found.outs.push(((from - 2, c.from_port), c.to_port)),
            (from, to) if from > 1 && to > 1 => found.connections.push(Connection { from: from - 2, to: to - 2, ..c }),
            _ => {}
        }
    }
    found
}

/// The configuration that is changed.
struct Body {
    graph: Graph,
    /// The pattern that an element was put in for, by the element's name.
    made_by: HashMap<String, usize>,
}

/// Where a pattern was found.
struct Match {
    /// For each element of the pattern, the body's.
    elements: Vec<usize>,
    /// Values of variables.
    values: HashMap<String, String>,
    /// Connections from outside to inputs of the pattern, and from its outputs to outside.
    ins: Vec<(Port, u32, Landmark)>,
    outs: Vec<(u32, Port, Landmark)>,
}

impl Body {
    fn replace_all(&mut self, patterns: &[Pattern], log: &mut Log) {
        let mut prefixes = HashMap::new();
        for _ in 0..MAX_REPLACEMENTS {
            let found = patterns.iter().enumerate().find_map(|(i, pattern)| Some((i, self.find(pattern, i, log)?)));
            let Some((i, found)) = found else { return };
            self.replace(&patterns[i], i, found, &mut prefixes);
        }
        log.warning(&Landmark::default(), "patterns lead to each other, stopped");
    }

    fn find(&self, pattern: &Pattern, number: usize, log: &mut Log) -> Option<Match> {
        let mut search = Search::new(&pattern.template, &self.graph);
        while let Some(elements) = search.next() {
            if let Some(found) = self.check(pattern, number, elements) {
                return Some(found);
            }
        }
        if search.steps > MAX_STEPS {
            log.error(&Landmark::default(), format_args!("pattern '{}' takes too long to look for", pattern.name));
        }
        None
    }

    /// Whether configurations fit, and all connections to the outside go through the pattern's inputs and outputs.
    fn check(&self, pattern: &Pattern, number: usize, elements: Vec<usize>) -> Option<Match> {
        let template = &pattern.template;
        let mut values = HashMap::new();
        for (of_pattern, &element) in template.elements.iter().zip(&elements) {
            match_config(&of_pattern.config, &self.graph.elements[element].config, &mut values)?;
        }
        // What one pattern made of something is not looked at by it again.
        if elements.iter().all(|&element| self.made_by.get(&self.graph.elements[element].name) == Some(&number)) {
            return None;
        }
        let back: HashMap<_, _> = elements.iter().enumerate().map(|(i, &element)| (element, i)).collect();
        let all: HashSet<_> =
            self.graph.connections.iter().map(|c| ((c.from, c.from_port), (c.to, c.to_port))).collect();
        let (mut ins, mut outs) = (Vec::new(), Vec::new());
        for c in &self.graph.connections {
            let (from, to) = ((c.from, c.from_port), (c.to, c.to_port));
            match (back.get(&c.from), back.get(&c.to)) {
                (Some(&a), Some(&b)) => {
                    let inner = (a, c.from_port, b, c.to_port);
                    let same = |c: &Connection| (c.from, c.from_port, c.to, c.to_port) == inner;
                    template.connections.iter().any(same).then_some(())?;
                }
                (None, Some(&b)) => {
                    // All that the pattern's input leads to has to be reached from there.
                    let fits = |input: u32| {
                        template
                            .ins
                            .iter()
                            .filter(|(port, _)| *port == input)
                            .all(|(_, end)| all.contains(&(from, (elements[end.0], end.1))))
                    };
                    let inputs = template.ins.iter().filter(|(_, end)| *end == (b, c.to_port)).map(|(port, _)| *port);
                    ins.push((from, inputs.filter(|&port| fits(port)).min()?, c.landmark.clone()));
                }
                (Some(&a), None) => {
                    let fits = |output: u32| {
                        template
                            .outs
                            .iter()
                            .filter(|(_, port)| *port == output)
                            .all(|(end, _)| all.contains(&((elements[end.0], end.1), to)))
                    };
                    let outputs =
                        template.outs.iter().filter(|(end, _)| *end == (a, c.from_port)).map(|(_, port)| *port);
                    outs.push((outputs.filter(|&port| fits(port)).min()?, to, c.landmark.clone()));
                }
                (None, None) => {}
            }
        }
        let has_ins = template.ins.iter().all(|(port, _)| ins.iter().any(|(_, used, _)| used == port));
        let has_outs = template.outs.iter().all(|(_, port)| outs.iter().any(|(used, _, _)| used == port));
        (has_ins && has_outs).then_some(Match { elements, values, ins, outs })
    }

    fn replace(&mut self, pattern: &Pattern, number: usize, found: Match, prefixes: &mut HashMap<String, usize>) {
        let prefix = self.free_prefix(&pattern.name, prefixes);
        let first = self.graph.elements.len();
        for element in &pattern.replacement.elements {
            // An element that is called the same in both keeps its name.
            let same = pattern.template.elements.iter().position(|old| old.name == element.name);
            let name = match same {
                Some(old) => self.graph.elements[found.elements[old]].name.clone(),
                None => format!("{prefix}/{}", element.name),
            };
            let config = fill_config(&element.config, &found.values);
            self.made_by.insert(name.clone(), number);
            self.graph.elements.push(ElementDecl { name, config, ..element.clone() });
        }
        let replacement = &pattern.replacement;
        let inner = replacement.connections.iter().cloned();
        self.graph.connections.extend(inner.map(|c| Connection { from: c.from + first, to: c.to + first, ..c }));
        let mut connect = |from: Port, to: Port, landmark: &Landmark| {
            let landmark = landmark.clone();
            self.graph.connections.push(Connection {
                from: from.0,
                from_port: from.1,
                to: to.0,
                to_port: to.1,
                landmark,
            });
        };
        for (from, input, landmark) in &found.ins {
            for (_, end) in replacement.ins.iter().filter(|(port, _)| port == input) {
                connect(*from, (end.0 + first, end.1), landmark);
            }
            for (_, output) in replacement.passes.iter().filter(|(port, _)| port == input) {
                found
                    .outs
                    .iter()
                    .filter(|(port, _, _)| port == output)
                    .for_each(|(_, to, _)| connect(*from, *to, landmark));
            }
        }
        for (output, to, landmark) in &found.outs {
            for (end, _) in replacement.outs.iter().filter(|(_, port)| port == output) {
                connect((end.0 + first, end.1), *to, landmark);
            }
        }
        let removed: HashSet<_> = found.elements.into_iter().collect();
        let kept: Vec<_> = (0..self.graph.elements.len()).map(|i| !removed.contains(&i)).collect();
        retain(&mut self.graph, &kept);
        self.graph.sort_connections();
    }

    /// `Name@N` for a number with which no element's name begins.
    fn free_prefix(&self, name: &str, prefixes: &mut HashMap<String, usize>) -> String {
        let next = prefixes.entry(name.to_string()).or_insert(1);
        loop {
            let prefix = format!("{name}@{next}");
            *next += 1;
            let start = format!("{prefix}/");
            if !self.graph.elements.iter().any(|element| element.name.starts_with(&start)) {
                return prefix;
            }
        }
    }
}

/// Compares the arguments of a pattern with those of an element; variables get values.
fn match_config(pattern: &str, config: &str, values: &mut HashMap<String, String>) -> Option<()> {
    let (pattern, given) = (config::split_args(pattern), config::split_args(config));
    if pattern.len() != given.len() {
        return None;
    }
    for (pattern, given) in pattern.into_iter().zip(given) {
        if pattern != given {
            is_variable(&pattern).then_some(())?;
            let value = values.entry(pattern).or_insert_with(|| given.clone());
            (*value == given).then_some(())?;
        }
    }
    Some(())
}

fn is_variable(arg: &str) -> bool {
    let name = arg.strip_prefix('$').unwrap_or_default();
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn fill_config(text: &str, values: &HashMap<String, String>) -> String {
    let args = config::split_args(text);
    if !args.iter().any(|arg| values.contains_key(arg)) {
        return text.to_string();
    }
    let filled: Vec<_> = args.iter().map(|arg| values.get(arg).unwrap_or(arg)).collect();
    config::join_args(&filled)
}

/// All ways to lay a pattern's elements on those of a graph so that classes and the pattern's connections are there.
struct Search<'a> {
    template: &'a Template,
    /// The pattern's elements in the order in which they are laid, each connected to one before where that can be.
    order: Vec<usize>,
    by_class: HashMap<&'a str, Vec<usize>>,
    connections: HashSet<(Port, Port)>,
    /// The candidate of each element that is tried now, for those that are laid.
    tried: Vec<usize>,
    elements: Vec<usize>,
    started: bool,
    steps: usize,
}

impl<'a> Search<'a> {
    fn new(template: &'a Template, graph: &'a Graph) -> Self {
        let mut by_class: HashMap<&str, Vec<usize>> = HashMap::new();
        for (i, element) in graph.elements.iter().enumerate() {
            by_class.entry(&element.class).or_default().push(i);
        }
        let connections = graph.connections.iter().map(|c| ((c.from, c.from_port), (c.to, c.to_port))).collect();
        let order = connected_order(template);
        let elements = vec![0; template.elements.len()];
        Self { template, order, by_class, connections, tried: Vec::new(), elements, started: false, steps: 0 }
    }

    fn candidates(&self, depth: usize) -> &[usize] {
        let class = &self.template.elements[self.order[depth]].class;
        self.by_class.get(class.as_str()).map_or(&[], Vec::as_slice)
    }

    /// The next way; for each element of the pattern, the graph's.
    fn next(&mut self) -> Option<Vec<usize>> {
        let count = self.order.len();
        if count == 0 {
            return None;
        }
        let mut next = match self.tried.pop() {
            Some(last) => last + 1,
            None if self.started => return None,
            None => 0,
        };
        self.started = true;
        while self.steps <= MAX_STEPS {
            self.steps += 1;
            let depth = self.tried.len();
            match self.candidates(depth).get(next).copied() {
                None => next = self.tried.pop()? + 1,
                Some(element) if self.fits(depth, element) => {
                    self.elements[self.order[depth]] = element;
                    self.tried.push(next);
                    next = 0;
                    if depth + 1 == count {
                        return Some(self.elements.clone());
                    }
                }
                Some(_) => next += 1,
            }
        }
        None
    }

    /// Whether an element of the graph may be that of the pattern at this depth, next to those that are laid.
    fn fits(&self, depth: usize, element: usize) -> bool {
        let laid = &self.order[..depth];
        if laid.iter().any(|&other| self.elements[other] == element) {
            return false;
        }
        let this = self.order[depth];
        let place = |of: usize| if of == this { Some(element) } else { laid.contains(&of).then(|| self.elements[of]) };
        self.template.connections.iter().filter(|c| c.from == this || c.to == this).all(|c| {
            let (Some(from), Some(to)) = (place(c.from), place(c.to)) else { return true };
            self.connections.contains(&((from, c.from_port), (to, c.to_port)))
        })
    }
}

fn connected_order(template: &Template) -> Vec<usize> {
    let mut order: Vec<usize> = Vec::new();
    while order.len() < template.elements.len() {
        let next = (0..template.elements.len()).filter(|i| !order.contains(i));
        let links = |i: &usize| {
            let linked =
                |c: &&Connection| (c.from == *i && order.contains(&c.to)) || (c.to == *i && order.contains(&c.from));
            (template.connections.iter().filter(linked).count(), std::cmp::Reverse(*i))
        };
        let best = next.max_by_key(links);
        order.extend(best);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::tool::test_run;

    /// The configuration after patterns, a line for each declaration and chain, sorted.
    fn changed(patterns: &str, text: &str, options: &[&str]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("patterns");
        std::fs::write(&file, patterns).unwrap();
        let args = [&["-p", file.to_str().unwrap(), "-e", text], options].concat();
        let text = test_run(&TOOL, &args, run).unwrap().replace("\n    ", " ");
        let mut lines: Vec<_> =
            text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(String::from).collect();
        lines.sort();
        lines
    }

    const PAIR: &str = "elementclass P { input -> Paint($c) -> s :: Strip(14) -> output }
        elementclass P_Replacement { input -> combo :: PaintStrip($c) -> output }";

    #[test]
    fn what_fits_is_replaced() {
        let found =
            changed(PAIR, "a :: A -> Paint(1) -> Strip(14) -> b :: B; c :: C -> Paint(2) -> Strip(14) -> b", &[]);
        assert_eq!(
            found,
            [
                "P@1/combo :: PaintStrip(1);",
                "P@2/combo :: PaintStrip(2);",
                "a -> P@1/combo -> b;",
                "a :: A;",
                "b :: B;",
                "c -> P@2/combo -> b;",
                "c :: C;"
            ]
        );
        let found = changed(PAIR, "a :: A -> PaintStrip(3) -> b :: B", &["-r"]);
        assert_eq!(
            found,
            [
                "P@1/Paint@1 :: Paint(3);",
                "P@1/s :: Strip(14);",
                "a -> P@1/Paint@1 -> P@1/s -> b;",
                "a :: A;",
                "b :: B;"
            ]
        );
    }

    #[test]
    fn what_does_not_fit_stays() {
        for text in [
            "a :: A -> p :: Paint(1) -> s :: Strip(13) -> b :: B;",
            // Somebody else gets in, or out.
            "a :: A -> p :: Paint(1) -> s :: Strip(14) -> b :: B; a [1] -> s;",
            "a :: A -> p :: Paint(1) -> s :: Strip(14) -> b :: B; p -> b;",
            // The pattern's ends have to be used.
            "p :: Paint(1) -> s :: Strip(14) -> b :: B;",
        ] {
            assert!(changed(PAIR, text, &[]).iter().any(|line| line.contains("p :: Paint(1)")), "{text}");
        }
    }

    #[test]
    fn variables_are_the_same_everywhere() {
        let patterns = "elementclass T { -> x :: X($a) -> Y($a, $b) -> } elementclass T_Replacement { -> x :: Z($b, \"$a\", 3) -> }";
        let found = changed(patterns, "i :: I -> old :: X(1) -> Y(1, c d) -> I; i[1] -> X(1) -> Y(2, 3) -> I", &[]);
        assert!(found.contains(&"old :: Z(c d, \"$a\", 3);".to_string()), "{found:?}");
        assert!(found.contains(&"X@5 :: X(1);".to_string()), "{found:?}");
    }

    #[test]
    fn ends_may_be_joined_and_patterns_may_grow_what_they_replace() {
        let patterns = "elementclass N { -> Null -> } elementclass N_Replacement { -> }";
        assert_eq!(changed(patterns, "a :: A -> Null -> Null -> b :: B", &[]), ["a -> b;", "a :: A;", "b :: B;"]);
        let patterns = "elementclass N { -> Null -> } elementclass N_Replacement { -> Null -> Null -> }";
        assert_eq!(changed(patterns, "A -> Null -> B", &[]).len(), 5);
    }

    #[test]
    fn branches_are_found() {
        let patterns = "elementclass O { input -> t :: PaintTee($p) -> d :: DecTTL -> output; t[1] -> [1] output; d[1] -> [2] output }
            elementclass O_Replacement { input -> c :: Combo($p) -> output; c[1] -> [1] output; c[2] -> [2] output }";
        let text =
            "r :: R -> PaintTee(1) -> d1 :: DecTTL -> q :: Q; t2 :: PaintTee(2) -> d2 :: DecTTL -> q; r[1] -> t2;
            e :: E -> r; t2[1] -> e; d2[1] -> e; d1[1] -> e";
        let found = changed(patterns, text, &[]);
        assert!(found.contains(&"O@1/c :: Combo(2);".to_string()), "{found:?}");
        assert!(found.iter().any(|line| line.ends_with("r -> PaintTee@2 -> d1 -> q;")), "{found:?}");
    }
}
