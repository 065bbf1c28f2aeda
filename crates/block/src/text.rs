//! Text that comes from files, on its way to people.
//!
//! A label, a name or a message may hold what a terminal obeys (escape sequences), what ends a line and so forges the
//! next one, and what reorders or hides the characters around it. [`printable`] shows such characters by their
//! numbers. Everything that prints or that makes sentences uses it; [`crate::Error`] does so by itself.

use std::borrow::Cow;
use std::fmt::Write;

/// The text with everything in it visible: characters that a terminal would act on, or that change how others are shown,
/// are written as `\n`, `\t`, `\r` or `\u{1b}`.
///
/// A backslash stays as it is, so that paths can be copied out of a sentence.
///
/// ```
/// assert_eq!(bifolio_block::printable("disk\u{1b}[2J"), "disk\\u{1b}[2J");
/// assert_eq!(bifolio_block::printable("naïve 磁盘"), "naïve 磁盘");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            other if is_unprintable(other) => {
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(other));
            }
            other => shown.push(other),
        }
    }
    Cow::Owned(shown)
}

/// Whether a character is shown by its number: controls (C0, DEL and C1, whose U+009B begins an escape sequence as well),
/// ends of lines and paragraphs, and what Unicode calls format characters. The two joiners (U+200C, U+200D) stay, as
/// words and emoji need them.
pub fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            // Soft hyphen, Arabic number signs, and marks of direction.
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
            | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}'
            // Line and paragraph separators, embeddings and overrides of direction.
            | '\u{2028}'..='\u{202e}'
            // Invisible operators, isolates of direction, and deprecated ones.
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            // Tags, which are invisible.
            | '\u{e0001}' | '\u{e0020}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_acts_on_is_shown_by_its_number() {
        for (raw, shown) in [
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("a\r\nb\tc\0", "a\\r\\nb\\tc\\u{0}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("\u{7f}", "\\u{7f}"),
            ("gpj\u{202e}exe", "gpj\\u{202e}exe"),
            ("\u{2066}x\u{2069}\u{61c}\u{200f}", "\\u{2066}x\\u{2069}\\u{61c}\\u{200f}"),
            ("a\u{200b}b\u{feff}\u{2028}\u{e0041}", "a\\u{200b}b\\u{feff}\\u{2028}\\u{e0041}"),
        ] {
            assert_eq!(printable(raw), shown);
        }
    }

    #[test]
    fn words_paths_and_emoji_stay_as_they_are() {
        for text in ["", "plain", "C:\\new\\path", "Größe", "می\u{200c}خواهم", "👩\u{200d}💻", "磁盘"] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }
}
