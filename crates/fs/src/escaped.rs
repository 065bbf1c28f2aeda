//! Text that comes from files, shown to people: what a terminal would obey, or would hide, is written out.

use std::fmt::{self, Display, Write};

/// A text with its control characters and its invisible ones as `\u{..}`: a name or a sentence that holds it stays one
/// line, in the order in which it is read, and changes nothing of a terminal. Everything else stays as it is.
pub fn escaped(text: &str) -> impl Display + '_ {
    Escaped(text)
}

struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            if is_hidden(character) {
                write!(f, "{}", character.escape_unicode())?;
            } else {
                f.write_char(character)?;
            }
        }
        Ok(())
    }
}

/// Controls (C0, DEL, C1), ends of lines, and what changes the order of others or cannot be seen. The two joiners
/// (U+200C, U+200D) stay, since words and emoji are written with them.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0001}' | '\u{e0020}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_or_hide_is_written_out() {
        for (text, shown) in [
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("one\nbifolio: forged", "one\\u{a}bifolio: forged"),
            ("\u{9b}31m \u{7f}", "\\u{9b}31m \\u{7f}"),
            ("gpj\u{202e}exe", "gpj\\u{202e}exe"),
            ("a\u{2066}b\u{2069}\u{feff}\u{e0041}", "a\\u{2066}b\\u{2069}\\u{feff}\\u{e0041}"),
        ] {
            assert_eq!(escaped(text).to_string(), shown);
        }
        for text in ["", "Größe 磁盘", "a\\n b", "می\u{200c}خواهم 👩\u{200d}💻"] {
            assert_eq!(escaped(text).to_string(), text);
        }
    }
}
