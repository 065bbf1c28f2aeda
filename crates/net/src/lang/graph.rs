//! The flat graph: elements of primitive classes, and connections between their ports.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use super::config;
use crate::error::Landmark;

/// An element of a primitive class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElementDecl {
    /// Its name, with a slash between the name of a compound element and that of a part of it.
    pub name: String,
    /// Its class.
    pub class: String,
    /// Its configuration string, with the values of variables in it.
    pub config: String,
    /// Where it is declared.
    pub landmark: Landmark,
}

/// A connection between two ports. Elements are given by their index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// The element that it comes from.
    pub from: usize,
    /// Its output.
    pub from_port: u32,
    /// The element that it goes to.
    pub to: usize,
    /// Its input.
    pub to_port: u32,
    /// Where it is written.
    pub landmark: Landmark,
}

/// What a configuration says that it needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Requirement {
    /// `package` or `compact_config`.
    pub kind: String,
    /// The package's name; empty for others.
    pub value: String,
}

/// A configuration without compound elements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Graph {
    /// The elements, those of the file before those of compound elements.
    pub elements: Vec<ElementDecl>,
    /// The connections, no two of them equal. In a graph to be run they are ordered by output, then by input; tools leave
    /// them as they stand in the configuration.
    pub connections: Vec<Connection>,
    /// What it needs.
    pub requirements: Vec<Requirement>,
    /// What it says that it provides.
    pub provisions: Vec<String>,
    /// Variables of the file that are still in configuration strings, with their values.
    pub defines: Vec<(String, String)>,
}

impl Graph {
    /// The index of the element called `name`.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.elements.iter().position(|element| element.name == name)
    }

    /// How many inputs and outputs are used of each element: one more than the highest port with a connection.
    pub fn ports(&self) -> Vec<(u32, u32)> {
        let mut ports = vec![(0, 0); self.elements.len()];
        for connection in &self.connections {
            let outputs = &mut ports[connection.from].1;
            *outputs = (*outputs).max(connection.from_port + 1);
            let inputs = &mut ports[connection.to].0;
            *inputs = (*inputs).max(connection.to_port + 1);
        }
        ports
    }

    /// Removes connections that are there twice; the first one stays.
    pub fn remove_duplicates(&mut self) {
        let mut seen = HashSet::new();
        self.connections.retain(|c| seen.insert((c.from, c.from_port, c.to, c.to_port)));
    }

    /// Puts connections in order and removes those that are there twice.
    pub fn sort_connections(&mut self) {
        let key = |c: &Connection| (c.from, c.from_port, c.to, c.to_port);
        self.connections.sort_by_key(key);
        self.connections.dedup_by_key(|c| key(c));
    }
}

/// A graph in the language, as the `flatconfig` handler gives it: requirements, declarations, connections.
pub fn unparse(graph: &Graph) -> String {
    write_graph(graph, false)
}

/// A graph in the language, with line directives that say where each element was declared, as tools write it.
pub fn unparse_with_lines(graph: &Graph) -> String {
    write_graph(graph, true)
}

fn write_graph(graph: &Graph, lines: bool) -> String {
    let mut out = String::new();
    let requirements: Vec<_> = graph.requirements.iter().map(unparse_requirement).collect();
    write_list(&mut out, "require", &requirements);
    write_list(&mut out, "provide", &graph.provisions);
    let defines: Vec<_> = graph.defines.iter().map(|(name, value)| format!("${name} {value}")).collect();
    write_list(&mut out, "define", &defines);
    for element in &graph.elements {
        if lines {
            write_line(&mut out, &element.landmark);
        }
        declare(&mut out, element);
    }
    if !graph.elements.is_empty() {
        out.push('\n');
    }
    if lines && !graph.connections.is_empty() {
        let line = out.bytes().filter(|&byte| byte == b'\n').count() + 2;
        let _ = writeln!(out, "# {line} \"\"");
    }
    write_connections(&mut out, graph);
    out
}

/// A requirement as it stands in `require(...)`.
pub(crate) fn unparse_requirement(requirement: &Requirement) -> String {
    if requirement.value.is_empty() {
        return requirement.kind.clone();
    }
    format!("{} {}", requirement.kind, config::quote(&requirement.value))
}

fn write_list(out: &mut String, statement: &str, items: &[String]) {
    if !items.is_empty() {
        let _ = writeln!(out, "{statement}({});\n", config::join_args(items));
    }
}

fn write_line(out: &mut String, landmark: &Landmark) {
    let file = config::quote(landmark.file());
    let _ = writeln!(out, "# {} {file}", landmark.line());
}

fn declare(out: &mut String, element: &ElementDecl) {
    let _ = write!(out, "{} :: {}", element.name, element.class);
    if !element.config.is_empty() {
        let _ = write!(out, "({})", element.config);
    }
    out.push_str(";\n");
}

/// Connections, strung together to chains where one ends at the input 0 that matches the output at which another starts.
fn write_connections(out: &mut String, graph: &Graph) {
    let next = followers(graph);
    let mut starts = vec![true; graph.connections.len()];
    for &follower in next.iter().flatten() {
        starts[follower] = false;
    }
    let mut used = vec![false; graph.connections.len()];
    let firsts = (0..starts.len()).filter(|&c| starts[c]);
    // What has no start is in a cycle, which is cut wherever it is met first.
    for first in firsts.chain(0..starts.len()) {
        if !used[first] {
            write_chain(out, graph, first, &next, &mut used);
        }
    }
}

/// For each connection, the one that continues it.
fn followers(graph: &Graph) -> Vec<Option<usize>> {
    let mut leaving: HashMap<(usize, u32), usize> = HashMap::new();
    for (c, connection) in graph.connections.iter().enumerate() {
        let best = leaving.entry((connection.from, connection.from_port)).or_insert(c);
        if graph.connections[*best].to_port != 0 {
            *best = c;
        }
    }
    let follower = |c: usize| {
        let connection = &graph.connections[c];
        let found = leaving.get(&(connection.to, 0)).copied();
        found.filter(|&next| connection.to_port == 0 && next != c)
    };
    (0..graph.connections.len()).map(follower).collect()
}

fn write_chain(out: &mut String, graph: &Graph, first: usize, next: &[Option<usize>], used: &mut [bool]) {
    let from = &graph.connections[first];
    out.push_str(&graph.elements[from.from].name);
    if from.from_port > 0 {
        let _ = write!(out, " [{}]", from.from_port);
    }
    let mut at = Some(first);
    while let Some(c) = at
        && !used[c]
    {
        out.push_str(if c == first { " -> " } else { "\n    -> " });
        let connection = &graph.connections[c];
        if connection.to_port > 0 {
            let _ = write!(out, "[{}] ", connection.to_port);
        }
        out.push_str(&graph.elements[connection.to].name);
        used[c] = true;
        at = next[c];
    }
    out.push_str(";\n");
}
