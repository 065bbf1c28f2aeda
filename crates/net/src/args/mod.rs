//! Arguments of elements and handlers: positional ones and keywords, by their types, as Click reads them.
//!
//! ```text
//! fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
//!     args.must("RATE", &mut self.rate)          // required; by position or by keyword
//!         .may("LIMIT", &mut self.limit)         // optional; by position or by keyword
//!         .key("ACTIVE", &mut self.is_active)    // optional, by keyword only
//!         .finish()                              // what is left over is an error
//! }
//! ```
//!
//! A type is an [`Arg`]: it reads itself from a text. Everything that is wrong is reported, each by its keyword. A value is
//! stored as soon as it was read; after an error the element is not used.

mod kinds;
mod names;
#[cfg(test)]
mod tests;

pub use kinds::{Amount, AnnoArg, Bandwidth, ElementRef, HandlerCall, Interval, Port, Prefix, Protocol, Raw, Word};
pub(crate) use names::TICKETS;
pub use names::{NameDb, NameKind};

use crate::Log;
use crate::lang::config::{join_args, split_args, split_words};
use std::fmt::Display;

/// Something is wrong, and has been reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed;

/// What arguments may refer to.
pub struct ArgCx<'a> {
    /// Names of elements.
    pub elements: &'a dyn Elements,
    /// Names of addresses, ports and protocols.
    pub names: &'a NameDb,
    /// Whose arguments they are: the element's name, with its compounds before it.
    pub element: &'a str,
}

/// Which elements there are.
pub trait Elements {
    /// The number of an element, by its whole name.
    fn number(&self, name: &str) -> Option<usize>;
    /// The name of its class.
    fn class(&self, number: usize) -> &str;
    /// How many inputs and outputs an element has.
    fn ports(&self, number: usize) -> (usize, usize);
    /// The whole names of the elements that a compound element became.
    fn within(&self, compound: &str) -> Vec<String> {
        let _ = compound;
        Vec::new()
    }
}

/// No elements.
pub struct NoElements;

impl Elements for NoElements {
    fn number(&self, _: &str) -> Option<usize> {
        None
    }
    fn class(&self, _: usize) -> &'static str {
        ""
    }
    fn ports(&self, _: usize) -> (usize, usize) {
        (0, 0)
    }
}

impl ArgCx<'_> {
    /// The number of an element by its name as seen from the element whose arguments they are: first in its own compound,
    /// then in those around it.
    pub fn find(&self, name: &str) -> Option<usize> {
        let mut scope = self.element.rsplit_once('/').map_or("", |(scope, _)| scope);
        loop {
            let whole = if scope.is_empty() { name.to_owned() } else { format!("{scope}/{name}") };
            if let Some(number) = self.elements.number(&whole) {
                return Some(number);
            }
            if scope.is_empty() {
                return None;
            }
            scope = scope.rsplit_once('/').map_or("", |(outer, _)| outer);
        }
    }
}

/// A type that can be an argument.
pub trait Arg: Sized {
    /// Reads one. An error is a line without the keyword; Click's is `type mismatch` where there is nothing better to say.
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String>;

    /// Stores one that was read.
    fn store(text: &str, cx: &ArgCx<'_>, into: &mut Self) -> Result<(), String> {
        *into = Self::parse(text, cx)?;
        Ok(())
    }
}

struct Given {
    text: String,
    /// Length of a word at its beginning that may be a keyword; 0: there is none.
    keyword: usize,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// Taken by its position.
    Taken,
    /// Taken by its keyword.
    Named,
}

/// Arguments that are being read.
pub struct Args<'a> {
    given: Vec<Given>,
    cx: ArgCx<'a>,
    log: &'a mut Log,
    failed: bool,
    definitions: Vec<(NameKind, String, Vec<u8>)>,
}

impl<'a> Args<'a> {
    /// The arguments of a configuration string.
    pub fn new(config: &str, cx: ArgCx<'a>, log: &'a mut Log) -> Self {
        Self::of(split_args(config), cx, log)
    }

    /// Words, such as those given to a handler.
    pub fn words(text: &str, cx: ArgCx<'a>, log: &'a mut Log) -> Self {
        Self::of(split_words(text), cx, log)
    }

    fn of(args: Vec<String>, cx: ArgCx<'a>, log: &'a mut Log) -> Self {
        let given =
            args.into_iter().map(|text| Given { keyword: keyword_len(&text), text, state: State::Open }).collect();
        Self { given, cx, log, failed: false, definitions: Vec::new() }
    }

    /// What arguments may refer to.
    pub fn cx(&self) -> &ArgCx<'a> {
        &self.cx
    }

    /// Defines a name for elements that are configured later: one of the compound whose element this is.
    pub fn define(&mut self, kind: NameKind, name: &str, value: &[u8]) {
        let scope = self.cx.element.rsplit_once('/').map_or("", |(scope, _)| scope);
        let whole = if scope.is_empty() { name.to_owned() } else { format!("{scope}/{name}") };
        self.definitions.push((kind, whole, value.to_vec()));
    }

    /// The same by a whole name, whichever compound it is in.
    pub fn define_whole(&mut self, kind: NameKind, name: &str, value: &[u8]) {
        self.definitions.push((kind, name.to_owned(), value.to_vec()));
    }

    /// How many inputs and outputs the element has whose arguments these are.
    pub fn ports(&self) -> (usize, usize) {
        let number = self.cx.elements.number(self.cx.element);
        number.map_or((0, 0), |number| self.cx.elements.ports(number))
    }

    pub(crate) fn take_definitions(&mut self) -> Vec<(NameKind, String, Vec<u8>)> {
        std::mem::take(&mut self.definitions)
    }

    /// How many arguments have not been read.
    pub fn left(&self) -> usize {
        self.given.iter().filter(|given| given.state == State::Open).count()
    }

    /// Reports an error that is about no argument in particular.
    pub fn error(&mut self, text: impl Display) -> Failed {
        self.failed = true;
        self.log.error_here(text);
        Failed
    }

    /// Reports an error of one argument.
    pub fn error_of(&mut self, keyword: &str, text: impl Display) -> Failed {
        self.error(format_args!("{keyword}: {text}"))
    }

    /// Says something that is neither an error nor a warning.
    pub fn message(&mut self, text: impl Display) {
        self.log.message(&crate::Landmark::default(), text);
    }

    /// A warning.
    pub fn warning(&mut self, text: impl Display) {
        self.log.warning_here(text);
    }

    fn find(&mut self, keyword: &str, positional: bool, mandatory: bool) -> Option<String> {
        let position = self.given.iter().position(|given| given.state != State::Taken);
        let mut got = None;
        for (at, given) in self.given.iter_mut().enumerate() {
            if given.state == State::Open && given.keyword == keyword.len() && given.text.starts_with(keyword) {
                given.state = State::Named;
                got = Some((at, given.keyword));
            }
        }
        // What has no keyword stands for the next position; what seems to have one does, too, if it is needed here.
        if let Some(at) = position.filter(|at| positional && self.given[*at].state == State::Open) {
            let given = &mut self.given[at];
            if given.keyword == 0 || (got.is_none() && mandatory) {
                given.state = State::Taken;
                if got.is_none_or(|(other, _)| other < at) {
                    got = Some((at, 0));
                }
            }
        }
        let Some((at, skip)) = got else {
            if mandatory {
                self.error_of(keyword, "required argument missing");
            }
            return None;
        };
        Some(self.given[at].text[skip..].trim_start().to_owned())
    }

    fn get<T: Arg>(&mut self, keyword: &str, positional: bool, mandatory: bool, into: &mut T) -> bool {
        let Some(text) = self.find(keyword, positional, mandatory) else { return false };
        match T::store(&text, &self.cx, into) {
            Ok(()) => true,
            Err(error) => {
                self.error_of(keyword, error);
                false
            }
        }
    }

    /// A required argument, by position or keyword.
    pub fn must<T: Arg>(&mut self, keyword: &str, into: &mut T) -> &mut Self {
        self.get(keyword, true, true, into);
        self
    }

    /// An optional argument, by position or keyword.
    pub fn may<T: Arg>(&mut self, keyword: &str, into: &mut T) -> &mut Self {
        self.get(keyword, true, false, into);
        self
    }

    /// An optional argument, by keyword only.
    pub fn key<T: Arg>(&mut self, keyword: &str, into: &mut T) -> &mut Self {
        self.get(keyword, false, false, into);
        self
    }

    /// A required argument, by keyword only.
    pub fn must_key<T: Arg>(&mut self, keyword: &str, into: &mut T) -> &mut Self {
        self.get(keyword, false, true, into);
        self
    }

    /// The same as [`key`](Self::key), and whether it was given.
    pub fn has_key<T: Arg>(&mut self, keyword: &str, into: &mut T) -> bool {
        self.get(keyword, false, false, into)
    }

    /// The same as [`may`](Self::may), and whether it was given.
    pub fn has<T: Arg>(&mut self, keyword: &str, into: &mut T) -> bool {
        self.get(keyword, true, false, into)
    }

    /// All arguments by position that have not been read, as they stand; what looks like a keyword included.
    pub fn rest(&mut self) -> Vec<String> {
        let open = self.given.iter_mut().filter(|given| given.state == State::Open);
        open.map(|given| {
            given.state = State::Taken;
            std::mem::take(&mut given.text)
        })
        .collect()
    }

    /// Everything has been read: what is left over is an error, and so is whatever went wrong before.
    pub fn finish(&mut self) -> Result<(), Failed> {
        let mut too_many = false;
        for at in 0..self.given.len() {
            let given = &self.given[at];
            match (given.state, given.keyword) {
                (State::Open, 0) => too_many = true,
                (State::Open, len) => {
                    let keyword = given.text[..len].to_owned();
                    self.error_of(&keyword, "unknown argument");
                }
                _ => {}
            }
        }
        if too_many {
            self.error("too many arguments");
        }
        self.result()
    }

    /// Whether something went wrong so far.
    pub fn result(&self) -> Result<(), Failed> {
        if self.failed { Err(Failed) } else { Ok(()) }
    }
}

/// Where an argument stands in a configuration: by its keyword, or else by its position.
fn place(args: &[String], position: usize, keyword: &str) -> Option<usize> {
    let by_keyword = |arg: &String| keyword_len(arg) == keyword.len() && arg.starts_with(keyword);
    let by_position = || args.get(position).filter(|_| args[..=position].iter().all(|arg| keyword_len(arg) == 0));
    args.iter().rposition(by_keyword).or_else(|| by_position().map(|_| position))
}

/// An argument of a configuration as it is written there, by its keyword or its position.
pub fn argument(config: &str, position: usize, keyword: &str) -> Option<String> {
    let args = split_args(config);
    let arg = &args[place(&args, position, keyword)?];
    Some(if keyword_len(arg) == 0 { arg.clone() } else { arg[keyword.len()..].trim_start().to_owned() })
}

/// A configuration in which one argument has another value.
pub fn with_argument(config: &str, position: usize, keyword: &str, value: &str) -> String {
    let mut args = split_args(config);
    match place(&args, position, keyword) {
        Some(at) if keyword_len(&args[at]) == 0 => value.clone_into(&mut args[at]),
        Some(at) => args[at] = format!("{keyword} {value}"),
        None => args.push(format!("{keyword} {value}")),
    }
    join_args(&args)
}

/// Length of a word that is followed by more.
fn keyword_len(text: &str) -> usize {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "_:.?!".contains(c))).unwrap_or(text.len());
    let rest = text[end..].trim_start();
    if end == 0 || rest.len() == text.len() - end || rest.is_empty() { 0 } else { end }
}
