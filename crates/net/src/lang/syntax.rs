//! The syntax tree of a configuration: what is written, before names are looked up and compound elements expanded.
//!
//! ```text
//!   Block       statements of a file, of a compound element, or of a group
//!    Statement   a chain of connections, an `elementclass`, a `define`, ...
//!     Chain       lists of elements, with connectors between them
//!      Element     ports, name or class or `{...}` or `(...)`, declared class, configuration, ports
//! ```
//!
//! Statements that cannot be understood are in the tree as errors, at the place where they were met, so that whoever walks it
//! reports all that is wrong in the order of the text. Blocks nest at most [`MAX_DEPTH`] deep.

use std::ops::Range;

use crate::error::Landmark;

/// How deep compound elements and groups nest in a text.
pub const MAX_DEPTH: usize = 100;

/// Statements, in order.
#[derive(Debug, Clone, Default)]
pub struct Block {
    /// The statements.
    pub statements: Vec<Statement>,
}

/// A statement, and where it is.
#[derive(Debug, Clone)]
pub struct Statement {
    /// The line of its first token.
    pub landmark: Landmark,
    /// Its bytes in the text.
    pub span: Range<usize>,
    /// What it says.
    pub kind: StatementKind,
}

/// What a statement says.
#[derive(Debug, Clone)]
pub enum StatementKind {
    /// Declarations and connections.
    Chain(Chain),
    /// `elementclass Name ...`.
    ElementClass(ElementClass),
    /// `define(...)`, with what stands in the parentheses.
    Define(String),
    /// `require(...)`, with what stands in the parentheses.
    Require(String),
    /// `provide(...)`, with what stands in the parentheses.
    Provide(String),
    /// `connectiontunnel from -> to`.
    Tunnel {
        /// Where connections go in.
        from: String,
        /// Where they come out.
        to: String,
    },
    /// What could not be understood, as a message.
    Error(String),
}

/// `elementclass Name {...}` or `elementclass Name Other`.
#[derive(Debug, Clone)]
pub struct ElementClass {
    /// The new name; empty where it is missing.
    pub name: String,
    /// What it stands for.
    pub class: Class,
}

/// Element lists with connectors between them, such as `a -> b, c => d`.
#[derive(Debug, Clone)]
pub struct Chain {
    /// The lists, at least one, each with the connector before it; the first has none.
    pub links: Vec<Link>,
    /// Whether a connector follows the last list, with nothing behind it.
    pub dangling: bool,
    /// The line at which it ends.
    pub end: Landmark,
}

/// A list of elements in a chain.
#[derive(Debug, Clone)]
pub struct Link {
    /// What stands before it; nothing for the first one.
    pub connector: Option<Connector>,
    /// The elements between the commas.
    pub elements: Vec<Element>,
    /// The line at which the list ends.
    pub end: Landmark,
}

/// What connects two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connector {
    /// `->`.
    Single,
    /// `=>`, which connects many ports to many.
    Multiple,
}

/// An element in a chain: `[in ports] item :: class (configuration) [out ports]`.
#[derive(Debug, Clone)]
pub struct Element {
    /// The ports before it.
    pub inputs: Ports,
    /// What it is.
    pub item: Item,
    /// The class that it is declared with.
    pub class: Option<Class>,
    /// What stands in the parentheses.
    pub config: Option<String>,
    /// The ports behind it.
    pub outputs: Ports,
    /// The line of its name, or the line at which its `{...}` or `(...)` ends.
    pub landmark: Landmark,
    /// The bytes of the item, its class and its configuration.
    pub span: Range<usize>,
}

/// Ports in brackets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ports {
    /// The numbers; empty where there are no brackets.
    pub numbers: Vec<u32>,
    /// Whether more ports follow the last one, as many as are needed: `[]` and `[2,]`.
    pub open: bool,
}

/// What stands for an element in a chain.
#[derive(Debug, Clone)]
pub enum Item {
    /// The name of an element or of a class.
    Name(String),
    /// `{...}`.
    Compound(Compound),
    /// `(...)`.
    Group(Block),
    /// Nothing, for `input` at the start of a chain, and `output` at its end.
    Implicit,
}

/// What stands for a class.
#[derive(Debug, Clone)]
pub enum Class {
    /// A name, and where it is.
    Name(String, Range<usize>),
    /// `{...}`.
    Compound(Compound),
    /// Nothing that could be understood.
    Missing,
}

/// A compound element class: bodies, of which the first one is taken that fits.
#[derive(Debug, Clone)]
pub struct Compound {
    /// The bodies, between which `||` stands; at least one.
    pub bodies: Vec<Body>,
    /// Whether `...` stands at the end: the class of the same name that was there before is tried last.
    pub extends: bool,
    /// The bytes from `{` to `}`.
    pub span: Range<usize>,
}

/// A body of a compound element class.
#[derive(Debug, Clone, Default)]
pub struct Body {
    /// Its parameters.
    pub formals: Vec<Formal>,
    /// What is in it.
    pub block: Block,
    /// The line of its first token.
    pub landmark: Landmark,
}

/// A parameter of a compound element class, such as `$a`, `LIMIT $n` or `__REST__ $rest`.
#[derive(Debug, Clone)]
pub struct Formal {
    /// The keyword; empty for a positional parameter, `__REST__` for all other arguments.
    pub keyword: String,
    /// The variable's name, without `$`.
    pub name: String,
    /// Its line.
    pub landmark: Landmark,
}
