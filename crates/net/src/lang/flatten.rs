//! From a program to a flat graph: compound elements are replaced by what is in them, and tunnels by connections.
//!
//! A few lines can describe any number of elements and connections, so all of them are counted, and too many are an error.
//! Nothing here recurses as deep as a configuration says.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::config;
use super::expand::{self, Scope};
use super::graph::{Connection, ElementDecl, Graph};
use super::program::{ClassDef, ClassId, Compound, Declared, Names, Program, TUNNEL, UNKNOWN, ports_text};
use crate::error::{Landmark, Log};

/// As many compound elements may be within each other.
const MAX_DEPTH: usize = 200;
/// As many elements may there be, tunnels' ends included.
const MAX_ELEMENTS: usize = 1 << 20;
/// As many steps may it take to follow all connections through tunnels.
const MAX_STEPS: usize = 1 << 24;

/// What becomes of the variables that a file defines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileVariables {
    /// Their values go into configuration strings.
    Expanded,
    /// They stay in configuration strings, and are in [`Graph::defines`].
    Kept,
}

/// Expands all compound elements. `globals` are variables whose values go before those that the file gives them.
pub fn flatten(program: &Program, globals: &[(String, String)], variables: FileVariables, log: &mut Log) -> Graph {
    let defines = file_variables(&program.root, globals);
    let mut scope = Scope::new();
    for (name, value) in &defines {
        match variables {
            FileVariables::Expanded => scope.define(name, value),
            FileVariables::Kept => scope.define(name, &format!("${name}")),
        }
    }
    let mut flattener = Flattener {
        program,
        log,
        elements: program.root.elements.clone(),
        names: Names::default(),
        joints: program.root.connections.iter().map(|joint| (joint.from, joint.to, joint.landmark.clone())).collect(),
        tunnels: program.root.tunnels.clone(),
        failed: false,
    };
    flattener.expand_all(&Rc::new(scope));
    let mut graph = flattener.finish();
    graph.requirements.clone_from(&program.requirements);
    graph.provisions.clone_from(&program.provisions);
    if variables == FileVariables::Kept {
        graph.defines = defines;
    }
    graph
}

fn file_variables(root: &Compound, globals: &[(String, String)]) -> Vec<(String, String)> {
    let mut defines = root.defines.clone();
    for (name, value) in globals {
        match defines.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => old.clone_from(value),
            None => defines.push((name.clone(), value.clone())),
        }
    }
    defines
}

/// An element, and a port of it.
type Port = (usize, u32);

struct Flattener<'a> {
    program: &'a Program,
    log: &'a mut Log,
    elements: Vec<Declared>,
    names: Names,
    joints: Vec<(Port, Port, Landmark)>,
    tunnels: Vec<(usize, usize)>,
    /// Whether a limit is passed, which is reported once.
    failed: bool,
}

/// An element that is yet to be expanded, with the variables of what it stands in.
struct Task {
    element: usize,
    scope: Rc<Scope>,
    depth: usize,
}

impl Flattener<'_> {
    /// Expands all elements, and what they expand to, depth first.
    fn expand_all(&mut self, scope: &Rc<Scope>) {
        for (i, element) in self.elements.iter().enumerate() {
            self.names.set(&element.name, i);
        }
        let task = |element| Task { element, scope: Rc::clone(scope), depth: 0 };
        let mut tasks: Vec<_> = (0..self.elements.len()).rev().map(task).collect();
        while let Some(task) = tasks.pop()
            && !self.failed
        {
            self.expand(&task, &mut tasks);
        }
    }

    fn fail(&mut self, element: usize, text: &str) {
        if !std::mem::replace(&mut self.failed, true) {
            self.log.error(&self.elements[element].landmark, text);
        }
    }

    fn expand(&mut self, task: &Task, tasks: &mut Vec<Task>) {
        let element = &mut self.elements[task.element];
        if element.class == TUNNEL {
            return;
        }
        element.config = expand::expand(&element.config, &*task.scope);
        if !task.scope.spend(element.config.len() + element.name.len()) {
            return self.fail(task.element, "configuration strings are too long with the values of their variables");
        }
        let class = element.class;
        if self.program.compound(class).is_none() {
            return;
        }
        let mut args = config::split_args(&self.elements[task.element].config);
        let Some(found) = self.overload(task.element, class, &mut args) else {
            self.elements[task.element].class = UNKNOWN;
            return;
        };
        self.elements[task.element].class = found;
        let Some(compound) = self.program.compound(found) else { return };
        if task.depth >= MAX_DEPTH {
            return self.fail(task.element, "compound elements are nested too deep");
        }
        let scope = Rc::new(compound_scope(compound, &task.scope, &args));
        let first = self.tunnel_into(task.element, compound);
        let task = |element| Task { element, scope: Rc::clone(&scope), depth: task.depth + 1 };
        tasks.extend((first..self.elements.len()).rev().map(task));
    }

    /// The class among those of one name that fits an element; `args` become the values of its parameters.
    fn overload(&mut self, element: usize, class: ClassId, args: &mut Vec<String>) -> Option<ClassId> {
        let Declared { inputs, outputs, .. } = self.elements[element];
        let mut candidates = Vec::new();
        let mut closest = None;
        let mut next = Some(class);
        while let Some(class) = next {
            let Some(compound) = self.program.compound(class) else { return Some(class) };
            candidates.push(compound);
            if let Some(values) = compound.assign(args) {
                if (compound.inputs, compound.outputs) == (inputs, outputs) {
                    *args = values;
                    return Some(class);
                }
                closest = Some((class, values));
            }
            next = compound.overload;
        }
        if candidates.len() != 1 || closest.is_none() {
            self.no_overload(element, &candidates, args.len());
        }
        let (class, values) = closest?;
        *args = values;
        Some(class)
    }

    fn no_overload(&mut self, element: usize, candidates: &[&Compound], args: usize) {
        let Declared { landmark, inputs, outputs, .. } = &self.elements[element];
        let args = match args {
            0 => String::new(),
            1 => "1 argument, ".to_string(),
            args => format!("{args} arguments, "),
        };
        let name = candidates.first().map_or("", |compound| compound.printable_name());
        self.log.error(landmark, format_args!("no match for '{name}[{args}{}]'", ports_text(*inputs, *outputs)));
        let first = candidates.first().map_or_else(|| landmark.clone(), |compound| compound.landmark.clone());
        self.log.message(&first, "candidates are:");
        for compound in candidates.iter().take(20) {
            self.log.message(&compound.landmark, format_args!("  {}", compound.signature()));
        }
    }

    /// Makes a tunnel of a compound element, and adds what is in it. Returns the index of the first element in it.
    fn tunnel_into(&mut self, which: usize, compound: &Compound) -> usize {
        let name = self.elements[which].name.clone();
        self.elements[which].class = TUNNEL;
        self.elements[which].config.clear();
        let first = self.elements.len();
        let mut indices = Vec::with_capacity(compound.elements.len());
        for element in &compound.elements {
            indices.push(self.add(which, &name, element));
        }
        self.tunnels.extend([(which, indices[0].0), (indices[1].0, which)]);
        let end = |port: Port| (indices[port.0].0, port.1);
        for joint in &compound.connections {
            if indices[joint.from.0].1 && indices[joint.to.0].1 {
                self.joints.push((end(joint.from), end(joint.to), joint.landmark.clone()));
            }
        }
        self.tunnels.extend(compound.tunnels.iter().map(|&(from, to)| (indices[from].0, indices[to].0)));
        if self.elements.len().max(self.joints.len()) > MAX_ELEMENTS {
            self.fail(which, "compound elements expand to too many elements");
        }
        first
    }

    /// Adds an element of the compound element `which`. Returns its index, and whether it is new.
    fn add(&mut self, which: usize, prefix: &str, element: &Declared) -> (usize, bool) {
        let name = format!("{prefix}/{}", element.name);
        if let Some(known) = self.names.get(&name) {
            self.log.error(&self.elements[which].landmark, format_args!("redeclaration of element '{name}'"));
            self.log.error(&self.elements[known].landmark, format_args!("'{name}' previously declared here"));
            return (known, false);
        }
        let index = self.elements.len();
        self.names.set(&name, index);
        // Ports are counted afresh where the overload of a nested element is looked for, and are the same.
        self.elements.push(Declared { name, ..element.clone() });
        (index, true)
    }

    fn finish(mut self) -> Graph {
        let mut graph = Graph::default();
        let mut indices = vec![None; self.elements.len()];
        for (i, element) in self.elements.iter().enumerate() {
            let class = match &self.program.classes[element.class] {
                ClassDef::Primitive(name) => name.clone(),
                ClassDef::Unknown => "Error".to_string(),
                ClassDef::Tunnel | ClassDef::Compound(_) => continue,
            };
            indices[i] = Some(graph.elements.len());
            let Declared { name, config, landmark, .. } = element.clone();
            graph.elements.push(ElementDecl { name, class, config, landmark });
        }
        if !self.failed {
            graph.connections = self.connections(&indices);
        }
        graph.remove_duplicates();
        graph
    }

    /// Connections between elements that are no tunnels' ends; `indices` are those of the graph.
    fn connections(&mut self, indices: &[Option<usize>]) -> Vec<Connection> {
        let mut routes = Routes::new(&self.joints, &self.tunnels, indices);
        let mut connections = Vec::new();
        for (from, to, landmark) in &self.joints {
            let Some(source) = indices[from.0] else { continue };
            for (to, to_port) in routes.sinks(*to) {
                let Some(to) = indices[to] else { continue };
                connections.push(Connection {
                    from: source,
                    from_port: from.1,
                    to,
                    to_port,
                    landmark: landmark.clone(),
                });
            }
        }
        if routes.steps > MAX_STEPS {
            self.log.error(&Landmark::default(), "compound elements expand to too many connections");
        }
        let (unused, misused) = (routes.unused(), routes.misused());
        for unused in &unused {
            self.report_unused(unused);
        }
        for (end, kind) in misused {
            let element = &self.elements[end];
            self.log.error(&element.landmark, format_args!("'{}' used as {kind}", element.name));
        }
        connections
    }

    fn report_unused(&mut self, unused: &Unused) {
        let &Unused { from, to, port, into } = unused;
        let empty = if into { to } else { from };
        let [from, to] = [from, to].map(|end| &self.elements[end]);
        // Whether connections lead to the port from outside of the compound element.
        let (element, text) = if to.name.strip_suffix("/input") == Some(&from.name) {
            let text = if into { format!("has no input {port}") } else { format!("input {port} unused") };
            (from, format!("'{}' {text}", from.name))
        } else if from.name.strip_suffix("/output") == Some(&to.name) {
            let text = if into { format!("output {port} unused") } else { format!("has no output {port}") };
            (to, format!("'{}' {text}", to.name))
        } else {
            let kind = if into { "output" } else { "input" };
            (&self.elements[empty], format!("tunnel '{} -> {}' {kind} {port} unused", from.name, to.name))
        };
        self.log.error(&element.landmark, text);
    }
}

/// The variables within a compound element: parameters and what it defines.
fn compound_scope(compound: &Compound, outer: &Rc<Scope>, args: &[String]) -> Scope {
    let mut scope = outer.shallower(compound.depth).map_or_else(Scope::new, Scope::within);
    for ((name, _), value) in compound.formals.iter().zip(args) {
        scope.define(name, value);
    }
    for (name, value) in &compound.defines {
        let value = expand::expand(value, &scope);
        scope.define(name, &value);
    }
    scope
}

/// A port of a tunnel that is connected at one end only.
struct Unused {
    /// The tunnel's ends.
    from: usize,
    to: usize,
    port: u32,
    /// Whether the connection that is there goes into the tunnel; else it comes out of it.
    into: bool,
}

/// Where connections lead through tunnels.
struct Routes<'a> {
    joints: &'a [(Port, Port, Landmark)],
    indices: &'a [Option<usize>],
    /// The connections that leave each port of a tunnel's end, and those that reach it.
    leaving: HashMap<Port, Vec<usize>>,
    reaching: HashMap<Port, Vec<usize>>,
    /// The other ends of tunnels.
    outs: HashMap<usize, usize>,
    ins: HashMap<usize, usize>,
    steps: usize,
}

impl<'a> Routes<'a> {
    fn new(joints: &'a [(Port, Port, Landmark)], tunnels: &[(usize, usize)], indices: &'a [Option<usize>]) -> Self {
        let (mut leaving, mut reaching) = (HashMap::<_, Vec<_>>::new(), HashMap::<_, Vec<_>>::new());
        for (i, (from, to, _)) in joints.iter().enumerate() {
            if indices[from.0].is_none() {
                leaving.entry(*from).or_default().push(i);
            }
            if indices[to.0].is_none() {
                reaching.entry(*to).or_default().push(i);
            }
        }
        let outs = tunnels.iter().copied().collect();
        let ins = tunnels.iter().map(|&(from, to)| (to, from)).collect();
        Self { joints, indices, leaving, reaching, outs, ins, steps: 0 }
    }

    /// The inputs that a connection to `to` leads to. Tunnels that lead to themselves lead nowhere.
    fn sinks(&mut self, to: Port) -> Vec<Port> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        let mut ahead = vec![to];
        while let Some(port) = ahead.pop()
            && self.steps <= MAX_STEPS
        {
            self.steps += 1;
            if self.indices[port.0].is_some() {
                found.push(port);
            } else if seen.insert(port)
                && let Some(out) = self.outs.get(&port.0)
            {
                let next = self.leaving.get(&(*out, port.1)).into_iter().flatten();
                ahead.extend(next.map(|&joint| self.joints[joint].1));
            }
        }
        found
    }

    /// Ports of tunnels that are connected at one end only, in the order of the connections.
    fn unused(&self) -> Vec<Unused> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        for (from, to, _) in self.joints {
            if let Some(&out) = self.outs.get(&to.0)
                && !self.leaving.contains_key(&(out, to.1))
                && seen.insert((*to, true))
            {
                found.push(Unused { from: to.0, to: out, port: to.1, into: true });
            }
            if let Some(&into) = self.ins.get(&from.0)
                && !self.reaching.contains_key(&(into, from.1))
                && seen.insert((*from, false))
            {
                found.push(Unused { from: into, to: from.0, port: from.1, into: false });
            }
        }
        found
    }

    /// Ends of tunnels that connections reach or leave in the wrong direction, with what they are used as.
    fn misused(&self) -> Vec<(usize, &'static str)> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        for (from, to, _) in self.joints {
            let is_out_only = self.ins.contains_key(&to.0) && !self.outs.contains_key(&to.0);
            if is_out_only && seen.insert((to.0, true)) {
                found.push((to.0, "input"));
            }
            let is_in_only = self.outs.contains_key(&from.0) && !self.ins.contains_key(&from.0);
            if is_in_only && seen.insert((from.0, false)) {
                found.push((from.0, "output"));
            }
        }
        found
    }
}
