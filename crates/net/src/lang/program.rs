//! A configuration whose names are looked up, but whose compound elements are not expanded.
//!
//! ```text
//!   syntax tree --resolve--> Program --flatten--> Graph
//!                             classes: primitive, unknown, compound
//!                             compound: parameters, elements, connections, tunnels
//! ```
//!
//! Tunnels are elements that no packet passes: a connection to one goes on where the connections from its other end go.
//! `input` and `output` of compound elements and groups are such, and so is each compound element when it is expanded.

use std::collections::HashMap;
use std::ops::Range;

use super::config;
use super::graph::Requirement;
use crate::error::{Landmark, Log};

/// The index of a class in [`Program::classes`].
pub type ClassId = usize;

/// The class of tunnels' ends.
pub const TUNNEL: ClassId = 0;
/// The class of elements whose class is not known.
pub const UNKNOWN: ClassId = 1;

/// A class of elements.
#[derive(Debug, Clone)]
pub enum ClassDef {
    /// A tunnel's end.
    Tunnel,
    /// A class that is not known, which has been reported.
    Unknown,
    /// A class that a program implements.
    Primitive(String),
    /// A class that the configuration defines.
    Compound(Box<Compound>),
}

/// A configuration: its file's elements, and the classes of them.
#[derive(Debug, Clone)]
pub struct Program {
    /// All classes. The first two are [`TUNNEL`] and [`UNKNOWN`].
    pub classes: Vec<ClassDef>,
    /// What stands in the file outside of compound elements.
    pub root: Compound,
    /// What it needs.
    pub requirements: Vec<Requirement>,
    /// What it says that it provides.
    pub provisions: Vec<String>,
    /// Compound classes with names that stand in the file outside of compound elements, in order; one of several bodies
    /// counts as its first one.
    pub named: Vec<(String, ClassId)>,
}

impl Program {
    /// The compound class of a number, if it is one.
    pub fn compound(&self, class: ClassId) -> Option<&Compound> {
        match &self.classes[class] {
            ClassDef::Compound(compound) => Some(compound),
            _ => None,
        }
    }

    /// The name of a class, as declarations have it.
    pub fn class_name(&self, class: ClassId) -> &str {
        match &self.classes[class] {
            ClassDef::Primitive(name) => name,
            ClassDef::Compound(compound) => &compound.name,
            ClassDef::Tunnel => "<tunnel>",
            ClassDef::Unknown => "Error",
        }
    }
}

/// A body of a compound class, or the file.
#[derive(Debug, Clone, Default)]
pub struct Compound {
    /// Its class's name; empty for `{...}` and for the file.
    pub name: String,
    /// Where it starts.
    pub landmark: Landmark,
    /// How many compound classes it stands within, itself included.
    pub depth: usize,
    /// Its parameters, as variable and keyword; a keyword that is empty makes it positional.
    pub formals: Vec<(String, String)>,
    /// The variables that it defines, with their values.
    pub defines: Vec<(String, String)>,
    /// The class to try where this body does not fit.
    pub overload: Option<ClassId>,
    /// Its elements. In a compound class, the first two are `input` and `output`.
    pub elements: Vec<Declared>,
    /// Connections between its elements.
    pub connections: Vec<Joint>,
    /// Pairs of elements: what goes into the first comes out of the second.
    pub tunnels: Vec<(usize, usize)>,
    /// How many inputs it has.
    pub inputs: u32,
    /// How many outputs it has.
    pub outputs: u32,
}

/// An element of a compound class or of the file.
#[derive(Debug, Clone)]
pub struct Declared {
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: ClassId,
    /// Its configuration string, with variables.
    pub config: String,
    /// Where it is declared.
    pub landmark: Landmark,
    /// One more than the highest input that is used.
    pub inputs: u32,
    /// One more than the highest output that is used.
    pub outputs: u32,
}

/// A connection between elements, given by their indices, and ports.
#[derive(Debug, Clone)]
pub struct Joint {
    /// The element and the output that it comes from.
    pub from: (usize, u32),
    /// The element and the input that it goes to.
    pub to: (usize, u32),
    /// Where it is written.
    pub landmark: Landmark,
}

impl Compound {
    /// Its name, for messages.
    pub fn printable_name(&self) -> &str {
        if self.name.is_empty() { "<anonymous>" } else { &self.name }
    }

    /// The values of its parameters for given arguments, in the parameters' order; nothing where they do not fit.
    pub fn assign(&self, args: &[String]) -> Option<Vec<String>> {
        if self.formals.last().is_none_or(|(_, keyword)| keyword.is_empty()) {
            return (args.len() == self.formals.len()).then(|| args.to_vec());
        }
        let positional = self.formals.iter().take_while(|(_, keyword)| keyword.is_empty()).count();
        if args.len() < positional {
            return None;
        }
        let rest_at = self.formals.iter().position(|(_, keyword)| keyword == "__REST__");
        let mut values: Vec<_> = args[..positional].iter().cloned().map(Some).collect();
        values.resize(self.formals.len(), None);
        let mut rest = Vec::new();
        for arg in &args[positional..] {
            match self.keyword_value(arg) {
                Some((at, value)) => values[at] = Some(value.to_string()),
                None => rest.push(arg),
            }
        }
        match rest_at {
            Some(at) => values[at] = Some(config::join_args(&rest)),
            None if !rest.is_empty() => return None,
            None => {}
        }
        values.into_iter().collect()
    }

    /// The parameter whose keyword an argument starts with, and what follows it.
    fn keyword_value<'a>(&self, arg: &'a str) -> Option<(usize, &'a str)> {
        let (keyword, value) = config::first_word(arg);
        let at = self.formals.iter().position(|(_, known)| known == keyword && known != "__REST__")?;
        (!keyword.is_empty() && !value.is_empty()).then_some((at, value))
    }

    /// Its parameters and ports, for messages.
    pub fn signature(&self) -> String {
        let kind = |(_, keyword): &(String, String)| match keyword.as_str() {
            "" => "<arg>".to_string(),
            "__REST__" => "...".to_string(),
            keyword => keyword.to_string(),
        };
        let formals: Vec<_> = self.formals.iter().map(kind).collect();
        let formals = if formals.is_empty() { String::new() } else { format!("({})", formals.join(", ")) };
        format!("{}{formals}[{}]", self.printable_name(), ports_text(self.inputs, self.outputs))
    }

    /// Checks that `which`, an `input` or `output`, is used in its one direction, and that no port of it is left out.
    /// Returns how many ports it has. `name` is what it belongs to.
    pub(super) fn check_pseudo(&self, which: usize, output: bool, name: &str, at: &Landmark, log: &mut Log) -> u32 {
        let [this, other] = if output { ["output", "input"] } else { ["input", "output"] };
        let element = &self.elements[which];
        let (count, wrong) = if output { (element.inputs, element.outputs) } else { (element.outputs, element.inputs) };
        if wrong > 0 {
            log.error(at, format_args!("'{name}' pseudoelement '{this}' may only be used as {other}"));
        }
        let mut used = vec![false; count as usize];
        for joint in &self.connections {
            let (element, port) = if output { joint.to } else { joint.from };
            if element == which {
                used[port as usize] = true;
            }
        }
        let missing = used.iter().enumerate().filter(|(_, used)| !**used).take(10);
        for (port, _) in missing {
            log.error(at, format_args!("'{name}' {this} {port} missing"));
        }
        count
    }

    pub(super) fn connect(&mut self, from: (usize, u32), to: (usize, u32), landmark: &Landmark) {
        let source = &mut self.elements[from.0];
        source.outputs = source.outputs.max(from.1 + 1);
        let sink = &mut self.elements[to.0];
        sink.inputs = sink.inputs.max(to.1 + 1);
        self.connections.push(Joint { from, to, landmark: landmark.clone() });
    }
}

/// Numbers of ports in words.
pub(super) fn ports_text(inputs: u32, outputs: u32) -> String {
    let plural = |count: u32| if count == 1 { "" } else { "s" };
    format!("{inputs} input{}, {outputs} output{}", plural(inputs), plural(outputs))
}

/// Elements with names that can be looked up while more are added.
#[derive(Debug, Default)]
pub(super) struct Names {
    by_name: HashMap<String, usize>,
    /// For each prefix, a range of numbers that all make names that are taken, so that a search need not try them again.
    taken: HashMap<String, Range<usize>>,
}

impl Names {
    pub(super) fn get(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Gives a name to an element, and returns the element that had it.
    pub(super) fn set(&mut self, name: &str, element: usize) -> Option<usize> {
        self.by_name.insert(name.to_string(), element)
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.by_name.remove(name);
    }

    /// The name for an anonymous element that starts out as `;Class@N`: without the semicolon, and with the next number
    /// that makes it a new one.
    pub(super) fn deanonymize(&mut self, name: &str, element: usize) -> String {
        let mut name = name[1..].to_string();
        if self.get(&name).is_some() {
            let at = name.rfind('@').map_or(name.len(), |at| at + 1);
            let digits = name[at..].bytes().take_while(u8::is_ascii_digit).count();
            let number = name[at..at + digits].parse().unwrap_or(0);
            let free = self.free_number(&name[..at], number);
            name = format!("{}{free}", &name[..at]);
        }
        self.set(&name, element);
        name
    }

    /// The first number after `number` that makes a new name of `prefix`.
    fn free_number(&mut self, prefix: &str, number: usize) -> usize {
        let run = self.taken.get(prefix).cloned().unwrap_or(0..0);
        let mut free = if run.contains(&number) { run.end } else { number + 1 };
        while self.by_name.contains_key(&format!("{prefix}{free}")) {
            free += 1;
        }
        let start = if run.contains(&number) { run.start } else { number };
        self.taken.insert(prefix.to_string(), start..free + 1);
        free
    }
}
