//! The language: from text to a flat graph of elements.
//!
//! ```text
//!   text --parser--> syntax tree --resolve--> program --flatten--> graph
//!   config: what configuration strings are made of      expand: variables in them
//! ```
//!
//! All that is wrong with a text is reported, in Click's words. Texts may be hostile: nothing recurses deeper than
//! [`syntax::MAX_DEPTH`], and what a text can ask for is bounded.

mod building;
pub mod config;
mod connect;
pub mod expand;
mod flatten;
mod graph;
mod lexer;
mod parser;
pub mod program;
mod resolve;
pub mod syntax;
#[cfg(test)]
mod tests;
mod tokens;

pub use flatten::{FileVariables, flatten};
pub(crate) use graph::unparse_requirement;
pub use graph::{Connection, ElementDecl, Graph, Requirement, unparse, unparse_with_lines};
pub use parser::parse as parse_syntax;
pub use program::Program;
pub use resolve::resolve;

use crate::error::Log;

/// Variables that are given from outside, such as `NAME=VALUE` on a command line, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Globals {
    values: Vec<(String, String)>,
}

impl Globals {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives a variable a value, a configuration string. Returns false, and does nothing, where it has one.
    pub fn define(&mut self, name: &str, value: &str) -> bool {
        let new = !self.values.iter().any(|(known, _)| known == name);
        if new {
            self.values.push((name.to_string(), value.to_string()));
        }
        new
    }

    /// Names and values.
    pub fn values(&self) -> &[(String, String)] {
        &self.values
    }
}

/// What the language asks of its surroundings.
pub trait ClassInfo {
    /// Whether there is a primitive class of this name.
    fn has_class(&self, name: &str) -> bool;

    /// Whether a name that stands for no class is taken for one: tools that only look at graphs know no classes.
    fn takes_any_class(&self) -> bool {
        false
    }

    /// The text that `require(library NAME)` in `file` means.
    fn library(&self, _name: &str, _file: &str) -> Option<Library> {
        None
    }
}

/// A file that another one requires.
#[derive(Debug, Clone)]
pub struct Library {
    /// Its name, for messages; one that was there before is not read again.
    pub file: String,
    /// What is in it.
    pub text: String,
}

/// Takes any name for that of a class.
#[derive(Debug, Clone, Copy, Default)]
pub struct AnyClass;

impl ClassInfo for AnyClass {
    fn has_class(&self, _name: &str) -> bool {
        false
    }

    fn takes_any_class(&self) -> bool {
        true
    }
}

/// Parses a text up to its flat graph. `file` is its name in messages; `config` is that of a text without a file.
///
/// What is wrong goes to the log. There is no graph where that holds an error of this text.
pub fn parse(text: &str, file: &str, globals: &Globals, classes: &dyn ClassInfo, log: &mut Log) -> Option<Graph> {
    let before = log.errors();
    let program = resolve(&parse_syntax(text, file), classes, log);
    let mut graph = flatten(&program, globals.values(), FileVariables::Expanded, log);
    graph.sort_connections();
    (log.errors() == before).then_some(graph)
}
