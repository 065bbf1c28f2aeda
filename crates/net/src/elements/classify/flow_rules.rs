//! Rules of flow tables as configurations, files and handlers have them.

use crate::args::Args;
use crate::error::reason;
use crate::flowspace::{FlowTable, Rule, parse_rules};
use crate::lang::config::unquote;
use std::fs::File;
use std::io::{self, Read};

/// The longest file, in bytes.
const LONGEST: u64 = 256 << 20;

/// The rules of a configuration: those of a file, if one is named, then those that stand without a keyword.
pub(crate) fn rules_of(args: &mut Args<'_>, path: &str, outputs: usize) -> Vec<Rule> {
    let mut rules = if path.is_empty() { Vec::new() } else { of_file(args, path, outputs) };
    for (number, text) in (1..).zip(args.rest()) {
        match Rule::parse(&unquote(&text), outputs) {
            Ok(rule) => rules.push(rule),
            Err(wrong) => wrong.iter().for_each(|error| _ = args.error(format_args!("rule {number}: {error}"))),
        }
    }
    rules
}

fn read(path: &str) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(io::Error::other("File too large"));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads the rules of a file.
fn of_file(args: &mut Args<'_>, path: &str, outputs: usize) -> Vec<Rule> {
    let text = match read(path) {
        Ok(text) => text,
        Err(error) => {
            args.error_of("RULES", format_args!("{path}: {}", reason(&error)));
            return Vec::new();
        }
    };
    parse_rules(&text, outputs).unwrap_or_else(|wrong| {
        for (line, error) in wrong {
            args.error(format_args!("{path}:{line}: {error}"));
        }
        Vec::new()
    })
}

/// Reads the rules of a handler's text.
pub(crate) fn of_text(text: &str, outputs: usize) -> Result<Vec<Rule>, String> {
    let has_lines = text.trim().lines().nth(1).is_some();
    parse_rules(text, outputs).map_err(|wrong| {
        let line = |(line, error): (u32, String)| if has_lines { format!("{line}: {error}") } else { error };
        wrong.into_iter().map(line).collect::<Vec<_>>().join("\n")
    })
}

/// Removes those rules that there are; tells of the others.
pub(crate) fn remove(table: &mut FlowTable, rules: &[Rule]) -> Result<(), String> {
    let missing: Vec<_> = rules.iter().filter(|rule| !table.remove(rule)).collect();
    let told: Vec<_> = missing.iter().map(|rule| format!("rule '{rule}' not found")).collect();
    if told.is_empty() { Ok(()) } else { Err(told.join("\n")) }
}

/// How large a table is, in lines.
pub(crate) fn info(table: &FlowTable) -> String {
    let (tables, bytes) = table.size();
    format!("rules {}\ntables {tables}\nbytes {bytes}\n", table.count())
}
