//! From the syntax tree to a program: names of classes and elements are looked up, as they stand where they are used.
//!
//! A class that is defined later, or within another compound element, does not count; a class of the same name that is
//! defined in between counts from there on.

use std::collections::{HashMap, HashSet};

use super::ClassInfo;
use super::building::{Building, Resolver};
use super::config;
use super::expand::is_variable_byte;
use super::program::{ClassDef, ClassId, Compound, Program, TUNNEL, UNKNOWN};
use super::syntax::{self, Block, Class, Item, Ports, StatementKind};
use super::{connect, parser};
use crate::error::{Landmark, Log};

/// How deep libraries require libraries.
const MAX_LIBRARY_DEPTH: usize = 20;

/// Looks up the names in a syntax tree. What is wrong goes to the log; the program is as good as it can be.
pub fn resolve(block: &Block, info: &dyn ClassInfo, log: &mut Log) -> Program {
    let mut resolver = Resolver {
        info,
        log,
        classes: vec![ClassDef::Tunnel, ClassDef::Unknown],
        primitives: HashMap::from([("Error".to_string(), UNKNOWN)]),
        scopes: vec![HashMap::new()],
        bodies: vec![Building::default()],
        requirements: Vec::new(),
        provisions: Vec::new(),
        named: Vec::new(),
        libraries: HashSet::new(),
        library_depth: 0,
    };
    resolver.block(block, false);
    let root = resolver.finish();
    let Resolver { classes, requirements, provisions, named, .. } = resolver;
    Program { classes, root, requirements, provisions, named }
}

/// An element of a list, before it is known whether its name is that of an element or of a class.
struct Pending {
    name: String,
    /// The class of that name.
    class: Option<ClassId>,
    /// The class that it is declared with.
    declared: Option<ClassId>,
    /// Whether there is nothing but a name.
    bare: bool,
    config: String,
    landmark: Landmark,
    inputs: Ports,
    outputs: Ports,
}

impl Resolver<'_> {
    /// `nested`: whether it is in a compound element or a group.
    fn block(&mut self, block: &Block, nested: bool) {
        let mut ends_in_output = true;
        for statement in &block.statements {
            let at = &statement.landmark;
            match &statement.kind {
                StatementKind::Chain(chain) => ends_in_output = self.chain(chain, nested, ends_in_output),
                StatementKind::ElementClass(class) => self.element_class(class, at),
                StatementKind::Define(text) => self.define(text, at),
                StatementKind::Require(text) => self.require(text, at),
                StatementKind::Provide(text) => self.provide(text, at),
                StatementKind::Tunnel { from, to } => self.tunnel(from, to, at),
                StatementKind::Error(text) => self.log.error(at, text),
            }
        }
    }

    fn element_class(&mut self, statement: &syntax::ElementClass, at: &Landmark) {
        let class = match &statement.class {
            Class::Name(name, _) => self.force_class(name, at, true),
            Class::Compound(compound) => self.compound(compound, &statement.name),
            Class::Missing => UNKNOWN,
        };
        self.define_class(&statement.name, class);
    }

    fn compound(&mut self, compound: &syntax::Compound, name: &str) -> ClassId {
        let mut bodies = Vec::new();
        for body in &compound.bodies {
            self.scopes.push(HashMap::new());
            bodies.push(self.compound_body(body, name));
            self.scopes.pop();
        }
        let mut overload = if compound.extends { Some(self.extended(compound, name)) } else { None };
        for mut body in bodies.into_iter().rev() {
            body.overload = overload;
            overload = Some(self.add_class(ClassDef::Compound(Box::new(body))));
        }
        overload.unwrap_or(UNKNOWN)
    }

    fn extended(&mut self, compound: &syntax::Compound, name: &str) -> ClassId {
        let known = if name.is_empty() { None } else { self.class(name) };
        known.unwrap_or_else(|| {
            let at = compound.bodies.last().map(|body| body.landmark.clone()).unwrap_or_default();
            self.log.error(&at, format_args!("cannot extend unknown element class '{name}'"));
            UNKNOWN
        })
    }

    fn compound_body(&mut self, body: &syntax::Body, name: &str) -> Compound {
        let depth = self.bodies.len();
        let compound =
            Compound { name: name.to_string(), landmark: body.landmark.clone(), depth, ..Compound::default() };
        self.bodies.push(Building { compound, ..Building::default() });
        self.add_element("input", TUNNEL, String::new(), &body.landmark);
        self.add_element("output", TUNNEL, String::new(), &body.landmark);
        for formal in &body.formals {
            self.formal(formal);
        }
        self.block(&body.block, true);
        let mut compound = self.finish();
        let name = compound.printable_name().to_string();
        compound.inputs = compound.check_pseudo(0, false, &name, &body.landmark, self.log);
        compound.outputs = compound.check_pseudo(1, true, &name, &body.landmark, self.log);
        compound
    }

    fn formal(&mut self, formal: &syntax::Formal) {
        let syntax::Formal { keyword, name, landmark } = formal;
        let body = self.bodies.last_mut().expect("a parameter belongs to a body");
        let formals = &mut body.compound.formals;
        if formals.iter().any(|(known, _)| known == name) {
            self.log.error(landmark, format_args!("parameter '${name}' multiply defined"));
            return;
        }
        if !keyword.is_empty() && formals.iter().any(|(_, known)| known == keyword) {
            self.log.error(landmark, format_args!("repeated keyword parameter '{keyword}' in compound element"));
        }
        let misplaced =
            formals.last().is_some_and(|(_, last)| last == "__REST__" || (keyword.is_empty() && !last.is_empty()));
        if misplaced && !body.order_error {
            let order = "(The correct order is '[positional], [keywords], [__REST__]'.)";
            self.log.error(landmark, format_args!("compound element parameters out of order\n{order}"));
            body.order_error = true;
        }
        formals.push((name.clone(), keyword.clone()));
    }

    fn define(&mut self, text: &str, at: &Landmark) {
        for arg in config::split_args(text) {
            let (variable, value) = config::first_word(&arg);
            if variable.is_empty() {
                continue;
            }
            let name = variable.strip_prefix('$').filter(|name| !name.is_empty() && name.bytes().all(is_variable_byte));
            let Some(name) = name else {
                self.log.error(at, "bad 'define' declaration: not a variable");
                continue;
            };
            let compound = &mut self.body().compound;
            if compound.formals.iter().chain(&compound.defines).any(|(known, _)| known == name) {
                self.log.error(at, format_args!("parameter '${name}' multiply defined"));
            } else {
                compound.defines.push((name.to_string(), value.to_string()));
            }
        }
    }

    fn require(&mut self, text: &str, at: &Landmark) {
        for arg in config::split_args(text) {
            let words = config::split_words(&arg);
            let values: Vec<_> = words.iter().map(|word| config::unquote(word)).collect();
            match values.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                [] => {}
                ["library", value] => self.library(value, at),
                ["compact_config"] => self.add_requirement("compact_config", ""),
                ["package", value] => self.add_requirement("package", value),
                [value] if config::is_word(value) && !["package", "library"].contains(&value) => {
                    self.add_requirement("package", value);
                }
                _ => self.log.error(at, "syntax error at requirement"),
            }
        }
    }

    fn library(&mut self, name: &str, at: &Landmark) {
        if self.bodies.len() > 1 {
            self.log.error(at, "'require library' must be used at file scope");
            return;
        }
        let Some(library) = self.info.library(name, at.file()) else {
            self.log.error(at, format_args!("library '{name}' not found in CLICKPATH/conf"));
            return;
        };
        if !self.libraries.insert(library.file.clone()) {
            return;
        }
        if self.library_depth >= MAX_LIBRARY_DEPTH {
            self.log.error(at, format_args!("library '{name}' is required too deep within libraries"));
            return;
        }
        self.library_depth += 1;
        let block = parser::parse(&library.text, &library.file);
        self.block(&block, false);
        self.library_depth -= 1;
    }

    fn tunnel(&mut self, from: &str, to: &str, at: &Landmark) {
        let ends = [(from, "input"), (to, "output")]
            .map(|(name, end)| (self.add_element(name, TUNNEL, String::new(), at), name, end));
        let compound = &self.bodies.last().expect("the file's own body is never removed").compound;
        for (end, name, kind) in ends {
            let other = &compound.elements[end];
            let paired =
                compound.tunnels.iter().any(|pair| if kind == "input" { pair.0 == end } else { pair.1 == end });
            let what = match (other.class == TUNNEL, paired) {
                (false, _) => "element".to_string(),
                (true, true) => format!("connection tunnel {kind}"),
                (true, false) => continue,
            };
            self.log.error(at, format_args!("redeclaration of {what} '{name}'"));
            self.log.error(&other.landmark, format_args!("'{name}' previously declared here"));
            return;
        }
        let pair = (ends[0].0, ends[1].0);
        self.body().compound.tunnels.push(pair);
    }

    /// Adds what a chain declares and connects; returns whether it ends in `output`.
    fn chain(&mut self, chain: &syntax::Chain, nested: bool, ends_in_output: bool) -> bool {
        let mut last: Vec<connect::Placed> = Vec::new();
        for (i, link) in chain.links.iter().enumerate() {
            let mut pending: Vec<_> =
                link.elements.iter().map(|element| self.pending(element, i == 0, ends_in_output || !nested)).collect();
            let alone = i == 0 && chain.links.len() == 1 && !chain.dangling;
            if alone && link.elements.iter().all(has_no_ports) {
                spread_class(&mut pending);
            }
            let placed: Vec<_> = pending.into_iter().map(|pending| self.place(pending)).collect();
            if i == 0 {
                self.check_useless(&placed, false, &link.end);
            } else {
                let multiple = link.connector == Some(syntax::Connector::Multiple);
                let compound = &mut self.bodies.last_mut().expect("the file's own body is never removed").compound;
                connect::connect_all(compound, &last, &placed, multiple, &link.end, self.log);
            }
            last = placed;
        }
        self.check_useless(&last, true, &chain.end);
        let output = self.body().names.get("output");
        matches!(last[..], [connect::Placed { element, .. }] if Some(element) == output)
    }

    fn check_useless(&mut self, placed: &[connect::Placed], output: bool, at: &Landmark) {
        let has_ports =
            |placed: &connect::Placed| !(if output { &placed.outputs } else { &placed.inputs }).numbers.is_empty();
        if placed.iter().any(has_ports) {
            let text =
                if output { "output ports ignored at end of chain" } else { "input ports ignored at start of chain" };
            self.log.error(at, text);
        }
    }

    /// Looks up what stands in a list, and reads what stands in its braces and parentheses.
    fn pending(&mut self, element: &syntax::Element, first: bool, may_start: bool) -> Pending {
        let at = &element.landmark;
        let (mut inputs, mut outputs) = (element.inputs.clone(), element.outputs.clone());
        let (name, class) = match &element.item {
            Item::Name(name) => (name.clone(), self.class(name)),
            Item::Compound(compound) => (String::new(), Some(self.compound(compound, ""))),
            Item::Group(group) => {
                let (name, ports) = self.group(group, at);
                for (given, count) in [(&mut inputs, ports.0), (&mut outputs, ports.1)] {
                    if given.numbers.is_empty() {
                        given.numbers = (0..count).collect();
                    }
                }
                (name, None)
            }
            Item::Implicit => {
                if first && outputs.numbers.is_empty() && !may_start {
                    self.log.warning(at, "suggest 'input ->' or '[0] ->' to start connection");
                }
                ((if first { "input" } else { "output" }).to_string(), None)
            }
        };
        let declared = match &element.class {
            None => None,
            Some(Class::Name(class, _)) => Some(self.force_class(class, at, true)),
            Some(Class::Compound(compound)) => Some(self.compound(compound, "")),
            Some(Class::Missing) => Some(self.force_class(&name, at, true)),
        };
        // Where any class is taken, a name that is used as a class is one from then on.
        let own =
            matches!(&element.class, Some(Class::Name(class, _)) if *class == name && self.info.takes_any_class());
        let class = if own { declared } else { class };
        if element.config.is_some() && self.body().names.get(&name).is_some() {
            self.log.error(at, "configuration string ignored on element reference");
        }
        let bare = matches!(element.item, Item::Name(_)) && element.class.is_none() && element.config.is_none();
        let config = element.config.clone().unwrap_or_default();
        Pending { name, class, declared, bare, config, landmark: at.clone(), inputs, outputs }
    }

    /// Reads a group in the current body. Returns its name and its numbers of ports.
    fn group(&mut self, group: &Block, at: &Landmark) -> (String, (u32, u32)) {
        let name = self.anonymous_name("");
        let ends = [format!("{name}/input"), format!("{name}/output")];
        let tunnel = self.add_element(&name, TUNNEL, String::new(), at);
        let [input, output] = ends.map(|end| self.add_element(&end, TUNNEL, String::new(), at));
        self.body().compound.tunnels.extend([(tunnel, input), (output, tunnel)]);
        let names = &mut self.body().names;
        let outer = [("input", names.set("input", input)), ("output", names.set("output", output))];
        self.block(group, true);
        for (end, element) in outer {
            match element {
                Some(element) => _ = self.body().names.set(end, element),
                None => self.body().names.remove(end),
            }
        }
        let compound = &self.bodies.last().expect("the file's own body is never removed").compound;
        let inputs = compound.check_pseudo(input, false, "<anonymous group>", at, self.log);
        let outputs = compound.check_pseudo(output, true, "<anonymous group>", at, self.log);
        (name, (inputs, outputs))
    }

    fn place(&mut self, pending: Pending) -> connect::Placed {
        let Pending { name, class, declared, config, landmark, inputs, outputs, .. } = pending;
        let known = self.body().names.get(&name);
        let element = match known {
            Some(known) if class.is_none() => {
                if declared.is_some() {
                    self.redeclared(&name, known, &landmark);
                }
                known
            }
            _ => self.place_new(&name, class, declared, config, &landmark),
        };
        connect::Placed { element, inputs, outputs }
    }

    fn redeclared(&mut self, name: &str, known: usize, at: &Landmark) {
        self.log.error(at, format_args!("redeclaration of element '{name}'"));
        let old = &self.bodies.last().expect("the file's own body is never removed").compound.elements[known];
        if old.class != TUNNEL {
            self.log.error(&old.landmark, format_args!("element '{name}' previously declared here"));
        }
    }

    fn place_new(
        &mut self,
        name: &str,
        class: Option<ClassId>,
        declared: Option<ClassId>,
        config: String,
        at: &Landmark,
    ) -> usize {
        let class = match (class, declared) {
            (None, Some(declared)) => return self.add_element(name, declared, config, at),
            (Some(class), Some(_)) => {
                self.log.error(at, format_args!("class '{name}' used as element name"));
                class
            }
            (Some(class), None) => class,
            (None, None) => {
                if !self.info.takes_any_class() {
                    self.log.error(at, format_args!("undeclared element '{name}'"));
                }
                self.force_class(name, at, false)
            }
        };
        let anonymous = self.anonymous_name(name);
        self.add_element(&anonymous, class, config, at)
    }
}

fn has_no_ports(element: &syntax::Element) -> bool {
    let implicit = matches!(element.item, Item::Implicit);
    !implicit && element.inputs.numbers.is_empty() && element.outputs.numbers.is_empty()
}

/// `a, b :: Class(config)` declares all of the names.
fn spread_class(pending: &mut [Pending]) {
    let Some((last, others)) = pending.split_last_mut() else { return };
    if last.declared.is_some() && others.iter().all(|pending| pending.bare) {
        for pending in others {
            pending.declared = last.declared;
            pending.config.clone_from(&last.config);
        }
    }
}
