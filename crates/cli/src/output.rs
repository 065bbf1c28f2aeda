//! Printing: once, at the end, without a panic where the reader has gone.
//!
//! What comes from a file or from a name is [`printable`]: [`columns`] and [`json`] see to that. [`text`] does so line by
//! line, so that nothing reaches a terminal; that a name ends no line is up to whoever puts it into one.

use crate::exit::Failure;
pub use bifolio_bench::harness::table::columns;
use bifolio_block::is_unprintable;
pub use bifolio_block::printable;
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// Prints text and a line end, if it has none.
pub fn text(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let lines = text.strip_suffix('\n').unwrap_or(text).split('\n');
    let mut written = Ok(());
    for line in lines {
        written = written.and_then(|()| writeln!(out, "{}", printable(line)));
    }
    let written = written.and_then(|()| out.flush());
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
    let json = json.map_err(|error| Failure::failed(format!("writing the result as JSON failed: {error}")))?;
    text(&visible(json))
}

/// JSON with every character that is not [`printable`] in JSON's own escapes: the same value, and nothing that a terminal
/// would act on. The library escapes the controls below 32 only.
fn visible(json: String) -> String {
    use std::fmt::Write;
    // Outside of strings there are ends of lines, and nothing else that has to be escaped.
    let is_hidden = |character: char| character != '\n' && is_unprintable(character);
    if !json.contains(is_hidden) {
        return json;
    }
    let mut shown = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if is_hidden(character) {
            let mut units = [0; 2];
            character.encode_utf16(&mut units).iter().for_each(|unit| _ = write!(shown, "\\u{unit:04x}"));
        } else {
            shown.push(character);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_the_same_value_without_what_a_terminal_acts_on() {
        let value = "\u{1b}[31m \u{9b}2J \u{202e}\u{e0041} \u{7f} \"quoted\" plain\nsecond";
        let json = visible(serde_json::to_string_pretty(&[value]).unwrap());
        assert!(!json.contains(|character: char| character != '\n' && is_unprintable(character)), "{json:?}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap(), [value]);
    }
}
