//! Printing: once, at the end, without a panic where the reader has gone.

use crate::exit::Failure;
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// Prints text and a line end, if it has none.
pub fn text(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let end = if text.ends_with('\n') { "" } else { "\n" };
    let written = write!(out, "{text}{end}").and_then(|()| out.flush());
    match written {
        // `bifolio ... | head` has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::failed(format!("writing the output failed: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Prints a value as JSON.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(value);
    text(&json.map_err(|error| Failure::failed(format!("the result cannot be written as JSON: {error}")))?)
}

/// Lays rows out in columns. Columns named in `left` are left-aligned, numbers are right-aligned.
pub fn columns(rows: &[Vec<String>], left: &[usize]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let pad = |(column, cell): (usize, &String)| {
            let fill = " ".repeat(widths[column] - cell.chars().count());
            if left.contains(&column) { format!("{cell}{fill}") } else { format!("{fill}{cell}") }
        };
        let line = row.iter().enumerate().map(pad).collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_left_aligned_and_numbers_right_aligned() {
        let rows = [["a", "1"], ["bcd", "23"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(columns(&rows, &[0]), "a     1\nbcd  23\n");
    }
}
