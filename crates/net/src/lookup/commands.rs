//! What configurations and handlers ask of a table, in Click's words.

use super::route::{Names, Route, address_text, parse_address};
use super::table::{Edit, Refusal, Table};
use crate::error::Log;
use crate::lang::config::first_word;

/// What is done with a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Adds it, unless its prefix has one.
    Add,
    /// Adds it, in place of its prefix's.
    Set,
    /// Removes it.
    Remove,
}

/// A change that was made, and what was there before.
#[derive(Debug)]
enum Done {
    Added(Route),
    Replaced(Route),
    Removed(Route),
}

/// A table as handlers see it. Errors are lines for the one who called the handler.
#[expect(missing_debug_implementations, reason = "it borrows what has no such form")]
pub struct Commands<'a, N> {
    /// The table.
    pub table: &'a dyn Table,
    /// How many outputs there are.
    pub outputs: usize,
    /// What names mean.
    pub names: &'a N,
}

impl<N: Names> Commands<'_, N> {
    /// Adds the routes of a configuration. A prefix keeps its first route; a warning counts the others.
    pub fn configure<S: AsRef<str>>(&self, args: &[S], log: &mut Log) {
        let mut edit = self.table.edit();
        let mut conflicts = 0;
        for (i, arg) in args.iter().enumerate() {
            let number = i + 1;
            let Some(route) = Route::parse(arg.as_ref(), false, self.names) else {
                log.error_here(format_args!("argument {number} should be 'ADDR/MASK [GATEWAY] OUTPUT'"));
                continue;
            };
            if !self.has_output(route.output) {
                log.error_here(format_args!("argument {number} bad OUTPUT"));
                continue;
            }
            match edit.insert(route, false) {
                Ok(_) => {}
                Err(Refusal::Exists(_)) => conflicts += 1,
                Err(refusal) => log.error_here(refusal_text(refusal, &route)),
            }
        }
        if conflicts > 0 {
            let routes = if conflicts == 1 { "route" } else { "routes" };
            log.warning_here(format_args!("{conflicts} {routes} replaced by later versions"));
        }
    }

    /// Does what one of the handlers `add`, `set` and `remove` does.
    pub fn run(&self, verb: Verb, text: &str) -> Result<(), String> {
        self.change(&mut *self.table.edit(), verb, text).map(drop)
    }

    /// Does what the handler `ctrl` does: a verb and a route in each line, all of them or none. Packets see them together.
    pub fn ctrl(&self, text: &str) -> Result<(), String> {
        let mut edit = self.table.edit();
        let mut done = Vec::new();
        for line in without_comments(text).lines() {
            match self.ctrl_line(&mut *edit, line) {
                Ok(change) => done.extend(change),
                Err(error) => {
                    roll_back(&mut *edit, done);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn ctrl_line(&self, edit: &mut dyn Edit, line: &str) -> Result<Option<Done>, String> {
        let (word, route) = first_word(line);
        let verb = match word {
            "" => return Ok(None),
            "add" => Verb::Add,
            "set" => Verb::Set,
            "remove" => Verb::Remove,
            _ => return Err(format!("bad command '{}'", word.escape_debug())),
        };
        self.change(edit, verb, route).map(Some)
    }

    fn change(&self, edit: &mut dyn Edit, verb: Verb, text: &str) -> Result<Done, String> {
        let removal = verb == Verb::Remove;
        let rest = if removal { " OUTPUT]" } else { "] OUTPUT" };
        let route = Route::parse(text, removal, self.names);
        let route = route.ok_or_else(|| format!("expected 'ADDR/MASK [GATEWAY{rest}'"))?;
        if !(self.has_output(route.output) || removal && route.output == -1) {
            return Err("bad OUTPUT".into());
        }
        let done = match verb {
            Verb::Remove => edit.remove(&route).map(Done::Removed),
            _ => edit.insert(route, verb == Verb::Set).map(|old| old.map_or(Done::Added(route), Done::Replaced)),
        };
        done.map_err(|refusal| refusal_text(refusal, &route))
    }

    fn has_output(&self, output: i32) -> bool {
        usize::try_from(output).is_ok_and(|output| output < self.outputs)
    }

    /// What the handler `lookup` answers for the address in `text`: the output (-1 for none), and the gateway if there is one.
    pub fn lookup(&self, text: &str) -> Result<String, String> {
        let (word, rest) = first_word(text);
        let address = parse_address(word, self.names).filter(|_| rest.is_empty());
        let hop = self.table.lookup(address.ok_or("expected IP address")?);
        Ok(match hop.gateway {
            0 => hop.output.to_string(),
            gateway => format!("{} {}", hop.output, address_text(gateway)),
        })
    }

    /// What the handler `table` answers: a line for each route.
    pub fn table(&self) -> String {
        let routes = self.table.edit().routes();
        let mut text = String::with_capacity(routes.len() * 32);
        for route in &routes {
            route.write_line(&mut text);
        }
        text
    }

    /// Does what the handler `flush` does: removes all routes.
    pub fn flush(&self) {
        self.table.edit().clear();
    }
}

/// The text without comments, but with the ends of lines before, in and after them.
fn without_comments(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.as_bytes().windows(2).position(|pair| matches!(pair, b"/*" | b"//")) {
        let (before, comment) = rest.split_at(at);
        let block = comment.starts_with("/*");
        let end = if block { comment[2..].find("*/").map(|at| at + 4) } else { comment.find('\n') };
        let (gone, after) = comment.split_at(end.unwrap_or(comment.len()));
        clean.push_str(before);
        clean.push(' ');
        clean.extend(gone.chars().filter(|&c| c == '\n'));
        rest = after;
    }
    clean + rest
}

/// The latest change first. What could be done can be undone, as nobody else changes the table meanwhile.
fn roll_back(edit: &mut dyn Edit, done: Vec<Done>) {
    for change in done.into_iter().rev() {
        let _ = match change {
            Done::Added(route) => edit.remove(&route).map(drop),
            Done::Replaced(old) => edit.insert(old, true).map(drop),
            Done::Removed(old) => edit.insert(old, false).map(drop),
        };
    }
}

fn refusal_text(refusal: Refusal, route: &Route) -> String {
    match refusal {
        Refusal::Exists(old) => format!("conflict with existing route '{old}'"),
        Refusal::Missing => format!("route '{route}' not found"),
        Refusal::Full => format!("no memory to store route '{route}'"),
        Refusal::NotAPrefix => format!("mask of route '{route}' is not a prefix"),
    }
}
