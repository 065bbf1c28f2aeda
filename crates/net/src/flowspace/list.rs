//! Files of rules: one a line, in our syntax or, behind an `@`, as ClassBench writes it. `#` begins a comment.

use super::classbench;
use super::rule::Rule;

/// Reads the rules of a text for an element with so many outputs. Everything that is wrong is told, with its line.
pub fn parse_rules(text: &str, outputs: usize) -> Result<Vec<Rule>, Vec<(u32, String)>> {
    let (mut rules, mut wrong) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        let parsed = match line.strip_prefix('@') {
            Some(line) => classbench::parse(line, outputs),
            None if line.is_empty() => continue,
            None => Rule::parse(line, outputs),
        };
        match parsed {
            Ok(rule) => rules.push(rule),
            Err(errors) => wrong.extend(errors.into_iter().map(|error| (number, error))),
        }
    }
    if wrong.is_empty() { Ok(rules) } else { Err(wrong) }
}
