//! What is built while names are looked up: classes, bodies of compound elements, and elements in them.

use std::collections::{HashMap, HashSet};

use super::ClassInfo;
use super::config;
use super::graph::Requirement;
use super::program::{ClassDef, ClassId, Compound, Declared, Names, UNKNOWN};
use crate::error::{Landmark, Log};

/// A compound element, or the file, whose statements are read.
#[derive(Default)]
pub(super) struct Building {
    pub(super) compound: Compound,
    pub(super) names: Names,
    pub(super) order_error: bool,
}

/// What a configuration means, as far as it was read.
pub(super) struct Resolver<'a> {
    pub(super) info: &'a dyn ClassInfo,
    pub(super) log: &'a mut Log,
    pub(super) classes: Vec<ClassDef>,
    /// Primitive classes that were met.
    pub(super) primitives: HashMap<String, ClassId>,
    /// The classes that are defined in the file and in each compound element around the current one.
    pub(super) scopes: Vec<HashMap<String, ClassId>>,
    /// The file and the compound elements around the current one, which is last.
    pub(super) bodies: Vec<Building>,
    pub(super) requirements: Vec<Requirement>,
    pub(super) provisions: Vec<String>,
    pub(super) named: Vec<(String, ClassId)>,
    pub(super) libraries: HashSet<String>,
    pub(super) library_depth: usize,
}

impl Resolver<'_> {
    pub(super) fn body(&mut self) -> &mut Building {
        self.bodies.last_mut().expect("the file's own body is never removed")
    }

    pub(super) fn class(&mut self, name: &str) -> Option<ClassId> {
        let defined = self.scopes.iter().rev().find_map(|scope| scope.get(name)).copied();
        if let Some(class) = defined.or_else(|| self.primitives.get(name).copied()) {
            return Some(class);
        }
        self.info.has_class(name).then(|| self.add_primitive(name))
    }

    pub(super) fn add_primitive(&mut self, name: &str) -> ClassId {
        let class = self.add_class(ClassDef::Primitive(name.to_string()));
        self.primitives.insert(name.to_string(), class);
        class
    }

    pub(super) fn add_class(&mut self, class: ClassDef) -> ClassId {
        self.classes.push(class);
        self.classes.len() - 1
    }

    /// The class of a name, or a substitute where there is none, which is reported unless that has been done.
    pub(super) fn force_class(&mut self, name: &str, at: &Landmark, report: bool) -> ClassId {
        if let Some(class) = self.class(name) {
            return class;
        }
        if self.info.takes_any_class() {
            return self.add_primitive(name);
        }
        if report {
            self.log.error(at, format_args!("unknown element class '{name}'"));
        }
        self.define_class(name, UNKNOWN);
        UNKNOWN
    }

    pub(super) fn define_class(&mut self, name: &str, class: ClassId) {
        if name.is_empty() {
            return;
        }
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_string(), class);
        }
        if self.scopes.len() == 1 && matches!(self.classes[class], ClassDef::Compound(_)) {
            self.named.push((name.to_string(), class));
        }
    }

    /// Ends the current body, and gives its anonymous elements names.
    pub(super) fn finish(&mut self) -> Compound {
        let Building { mut compound, mut names, .. } = self.bodies.pop().unwrap_or_default();
        for (i, element) in compound.elements.iter_mut().enumerate() {
            if element.name.starts_with(';') {
                element.name = names.deanonymize(&element.name, i);
            }
        }
        compound
    }

    pub(super) fn add_requirement(&mut self, kind: &str, value: &str) {
        let requirement = Requirement { kind: kind.to_string(), value: value.to_string() };
        if !self.requirements.contains(&requirement) {
            self.requirements.push(requirement);
        }
    }

    pub(super) fn provide(&mut self, text: &str, at: &Landmark) {
        for arg in config::split_args(text) {
            let value = config::unquote(&arg);
            if config::is_word(&value) {
                self.provisions.push(value);
            } else {
                self.log.error(at, "syntax error at provision");
            }
        }
    }

    /// The element of a name, which is added if there is none.
    pub(super) fn add_element(&mut self, name: &str, class: ClassId, config: String, at: &Landmark) -> usize {
        if let Some(found) = self.body().names.get(name) {
            return found;
        }
        if name.split('/').any(|part| part.bytes().all(|byte| byte.is_ascii_digit())) {
            self.log.error(at, format_args!("element name '{name}' has all-digit component"));
        }
        let body = self.body();
        let index = body.compound.elements.len();
        body.names.set(name, index);
        let (name, landmark) = (name.to_string(), at.clone());
        body.compound.elements.push(Declared { name, class, config, landmark, inputs: 0, outputs: 0 });
        index
    }

    pub(super) fn anonymous_name(&mut self, class: &str) -> String {
        let compound = &self.body().compound;
        let pseudoelements = if compound.depth > 0 { 2 } else { 0 };
        format!(";{class}@{}", compound.elements.len() - pseudoelements + 1)
    }
}
