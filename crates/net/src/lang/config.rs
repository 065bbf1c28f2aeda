//! Configuration strings: arguments, words, quotes and comments.
//!
//! ```text
//!   a /* why */ b, "c, d", \<48 65>     split at top-level commas, comments gone:   [a b] ["c, d"] [\<48 65>]
//!   "c, d" e                            split at spaces outside of quotes:          ["c, d"] [e]
//!   "c\n" 'd' \<48 65>                  one level of quotes gone:                   c⏎ d He
//! ```
//!
//! Quotes, comments and `\<...>` protect commas and spaces; parentheses do not. An unclosed quote or comment reaches to the
//! end of the text. Nothing here fails: what a text means is for the caller to judge.

/// Splits a configuration string at its commas outside of quotes and comments.
///
/// An argument loses its comments and the spaces around it. An empty argument counts, except as the last one.
pub fn split_args(config: &str) -> Vec<String> {
    let mut args = Vec::new();
    let mut at = 0;
    while at < config.len() {
        let (arg, end) = clean(config, at, true);
        if !arg.is_empty() || end < config.len() {
            args.push(arg);
        }
        at = end + 1;
    }
    args
}

/// Splits an argument at its spaces and comments outside of quotes; the words keep their quotes.
pub fn split_words(arg: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = arg;
    loop {
        let (word, after) = first_word(rest);
        if word.is_empty() {
            return words;
        }
        words.push(word.to_string());
        rest = after;
    }
}

/// The first word of an argument, with its quotes, and what follows it, from its first character that is no space.
///
/// The word is empty where the argument has nothing but spaces and comments.
pub fn first_word(arg: &str) -> (&str, &str) {
    let text = arg.as_bytes();
    let start = skip_blank(text, 0);
    let end = word_end(text, start);
    (&arg[start..end], &arg[skip_blank(text, end)..])
}

/// The arguments as one configuration string, separated by commas. Does not quote them.
pub fn join_args<S: AsRef<str>>(args: &[S]) -> String {
    join(args, ", ")
}

/// The words as one argument, separated by spaces. Does not quote them.
pub fn join_words<S: AsRef<str>>(words: &[S]) -> String {
    join(words, " ")
}

fn join<S: AsRef<str>>(parts: &[S], separator: &str) -> String {
    let mut text = String::new();
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            text.push_str(separator);
        }
        text.push_str(part.as_ref());
    }
    text
}

/// Removes comments, and the spaces at both ends. A comment between two pieces of text becomes one space.
pub fn uncomment(text: &str) -> String {
    clean(text, 0, false).0
}

/// Removes comments and one level of quotes, as [`unquote_bytes`] does; bytes that are not UTF-8 become U+FFFD.
pub fn unquote(text: &str) -> String {
    match String::from_utf8(unquote_bytes(text)) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}

/// Removes comments and one level of quotes.
///
/// `'...'` stands for its contents. In `"..."`, `\a \b \f \n \r \t \v`, `\` with up to three octal digits, and `\x` with
/// hexadecimal digits stand for bytes, `\` at the end of a line for nothing, and `\` before anything else for that.
/// `\<48 65>` stands for the bytes of the hexadecimal digits, within `"..."` and outside of quotes.
pub fn unquote_bytes(text: &str) -> Vec<u8> {
    let text = uncomment(text);
    let text = text.as_bytes();
    let mut out = Vec::with_capacity(text.len());
    let mut quote = None;
    let mut at = 0;
    while at < text.len() {
        let byte = text[at];
        let escapes = quote == Some(b'"') || (quote.is_none() && text.get(at + 1) == Some(&b'<'));
        match byte {
            b'\\' if escapes && at + 1 < text.len() => at = unescape(text, at, &mut out),
            b'"' | b'\'' if quote.is_none() || quote == Some(byte) => {
                quote = if quote.is_none() { Some(byte) } else { None };
                at += 1;
            }
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

/// Quotes a text, always with `"`, on one line, so that [`unquote`] gives it back.
pub fn quote(text: &str) -> String {
    quote_bytes(text.as_bytes())
}

/// Quotes bytes, so that [`unquote_bytes`] gives them back. The result is printable ASCII.
pub fn quote_bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    out.push('"');
    for &byte in bytes {
        match byte {
            b'\\' | b'"' | b'$' => out.extend(['\\', char::from(byte)]),
            b'\t' => out.push_str("\\t"),
            b'\r' => out.push_str("\\r"),
            b'\n' => out.push_str("\\n"),
            32..127 => out.push(char::from(byte)),
            _ => out.extend(['\\', octal(byte >> 6), octal(byte >> 3), octal(byte)]),
        }
    }
    out.push('"');
    out
}

fn octal(value: u8) -> char {
    char::from(b'0' + (value & 7))
}

/// Whether a text is a word: printable ASCII, at least one character, without quotes, backslashes, commas and spaces.
pub fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\' | b','))
}

/// Whether a text can name an element or a class: letters, digits, `_` and `@`, in parts separated by single slashes.
pub fn is_identifier(text: &str) -> bool {
    text.split('/').all(|part| !part.is_empty() && part.bytes().all(is_name_byte))
}

/// Whether a text can be a keyword: letters, digits and `_.:?!`, at least one of them.
pub fn is_keyword(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b':' | b'?' | b'!');
    !text.is_empty() && text.bytes().all(allowed)
}

/// What identifiers are made of, slashes aside.
pub(crate) fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'@')
}

/// C's `isspace`, which, unlike Rust's, knows the vertical tab.
pub(crate) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// The text from `at`, to a comma or the end, without comments and spaces at its ends; and where it ended.
fn clean(config: &str, at: usize, to_comma: bool) -> (String, usize) {
    let text = config.as_bytes();
    let mut out = String::new();
    let mut at = skip_blank(text, at);
    let (mut left, mut right) = (at, at);
    let mut after_comment = false;
    while at < text.len() && !(to_comma && text[at] == b',') {
        if is_space(text[at]) {
            at += 1;
        } else if is_comment(text, at) {
            at = comment_end(text, at);
            after_comment = true;
        } else {
            if std::mem::take(&mut after_comment) {
                out.push_str(&config[left..right]);
                out.push(' ');
                left = at;
            }
            at = piece_end(text, at);
            right = at;
        }
    }
    out.push_str(&config[left..right]);
    (out, at)
}

/// The end of what starts at `at`: a quoted text, a `\<...>`, or one character.
fn piece_end(text: &[u8], at: usize) -> usize {
    match text[at] {
        b'"' | b'\'' => quoted_end(text, at),
        b'\\' if text.get(at + 1) == Some(&b'<') => escape_end(text, at),
        _ => at + 1,
    }
}

fn word_end(text: &[u8], mut at: usize) -> usize {
    while at < text.len() && !is_space(text[at]) && !is_comment(text, at) {
        at = piece_end(text, at);
    }
    at
}

/// The first place from `at` that holds neither space nor comment.
pub(crate) fn skip_blank(text: &[u8], mut at: usize) -> usize {
    while at < text.len() {
        if is_space(text[at]) {
            at += 1;
        } else if is_comment(text, at) {
            at = comment_end(text, at);
        } else {
            break;
        }
    }
    at
}

/// Whether a comment starts at `at`.
pub(crate) fn is_comment(text: &[u8], at: usize) -> bool {
    text[at] == b'/' && matches!(text.get(at + 1), Some(b'/' | b'*'))
}

/// The end of the comment at `at`: behind its line's end, its `*/`, or the text.
fn comment_end(text: &[u8], at: usize) -> usize {
    let body = &text[at + 2..];
    let len = if text[at + 1] == b'/' {
        body.iter().position(|byte| matches!(byte, b'\n' | b'\r')).map(|line| line + newline_len(&body[line..]))
    } else {
        body.windows(2).position(|pair| pair == b"*/").map(|end| end + 2)
    };
    len.map_or(text.len(), |len| at + 2 + len)
}

/// How long the line's end is with which `text` starts: 1, or 2 for a carriage return and a newline.
fn newline_len(text: &[u8]) -> usize {
    if text.starts_with(b"\r\n") { 2 } else { 1 }
}

/// The end of the quoted text whose first quote is at `at`.
fn quoted_end(text: &[u8], at: usize) -> usize {
    let quote = text[at];
    let mut at = at + 1;
    while at < text.len() {
        match text[at] {
            b'\\' if quote == b'"' => at = escape_end(text, at),
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// The end of the escape at `at`, which in `\<...>` is behind the `>`.
fn escape_end(text: &[u8], at: usize) -> usize {
    match text.get(at + 1) {
        None => at + 1,
        Some(b'<') => hex_end(text, at + 2),
        Some(b'\r') => at + 1 + newline_len(&text[at + 1..]),
        Some(_) => at + 2,
    }
}

fn hex_end(text: &[u8], mut at: usize) -> usize {
    while at < text.len() {
        if text[at] == b'>' {
            return at + 1;
        }
        at = if is_comment(text, at) { comment_end(text, at) } else { at + 1 };
    }
    at
}

/// Appends what the escape at `at` stands for; returns its end. Something follows the backslash.
fn unescape(text: &[u8], at: usize, out: &mut Vec<u8>) -> usize {
    let simple = match text[at + 1] {
        b'\r' => return at + 1 + newline_len(&text[at + 1..]),
        b'\n' => return at + 2,
        b'0'..=b'7' => return unescape_digits(text, at + 1, 3, 8, out),
        b'x' => return unescape_digits(text, at + 2, usize::MAX, 16, out),
        b'<' => return unescape_hex(text, at + 2, out),
        b'a' => 7,
        b'b' => 8,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 11,
        other => other,
    };
    out.push(simple);
    at + 2
}

/// Appends the byte, modulo 256, that at most `most` digits of `radix` stand for.
fn unescape_digits(text: &[u8], start: usize, most: usize, radix: u8, out: &mut Vec<u8>) -> usize {
    let digits = text[start..].iter().take(most).map_while(|&byte| digit(byte, radix));
    let (len, value) = digits.fold((0, 0u8), |(len, value), digit| (len + 1, value.wrapping_mul(radix) | digit));
    out.push(value);
    start + len
}

/// Appends the bytes of the pairs of digits up to `>`. What is no digit is ignored, as is a single digit at the end.
fn unescape_hex(text: &[u8], start: usize, out: &mut Vec<u8>) -> usize {
    let end = hex_end(text, start);
    let mut high = None;
    let mut at = start;
    while at < end {
        if is_comment(text, at) {
            at = comment_end(text, at);
            continue;
        }
        if let Some(digit) = digit(text[at], 16) {
            match high.take() {
                None => high = Some(digit),
                Some(high) => out.push(high << 4 | digit),
            }
        }
        at += 1;
    }
    end
}

fn digit(byte: u8, radix: u8) -> Option<u8> {
    char::from(byte).to_digit(u32::from(radix)).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn arguments_are_split_at_commas_outside_of_quotes_and_comments() {
        assert_eq!(split_args("a, b, c"), ["a", "b", "c"]);
        assert_eq!(split_args("  a /*?*/ b,  c, "), ["a b", "c"]);
        assert_eq!(split_args("\"x, y\" // ?"), ["\"x, y\""]);
        assert_eq!(split_args("a,,b"), ["a", "", "b"]);
        assert_eq!(split_args("a, // one, two\n b"), ["a", "b"]);
        assert_eq!(split_args("\\<2c , 2c>, 'a,\\', b"), ["\\<2c , 2c>", "'a,\\'", "b"]);
        assert_eq!(split_args("f(a, b)"), ["f(a", "b)"]);
        assert_eq!(split_args(""), [""; 0]);
        assert_eq!(split_args("  /* nothing */ "), [""; 0]);
        assert_eq!(split_args(","), [""]);
        assert_eq!(split_args("a // x\r\nb"), ["a b"]);
        assert_eq!(split_args("\"a, b"), ["\"a, b"]);
    }

    #[test]
    fn words_are_split_at_spaces_outside_of_quotes() {
        assert_eq!(split_words("a  b, c"), ["a", "b,", "c"]);
        assert_eq!(split_words("  'a /*?*/ b'c"), ["'a /*?*/ b'c"]);
        assert_eq!(split_words("a/*x*/b \\<01 02>c"), ["a", "b", "\\<01 02>c"]);
        assert_eq!(split_words(" \x0b "), [""; 0]);
        assert_eq!(first_word(" a  b c "), ("a", "b c "));
    }

    #[test]
    fn unquoting_removes_comments_and_one_level_of_quotes() {
        assert_eq!(unquote("\"\\n\" abc /* 123 */ '/* def */'"), "\n abc /* def */");
        assert_eq!(unquote("\"a\\\"b\\\\c\\$d\\,e\\qf\""), "a\"b\\c$d,eqf");
        assert_eq!(unquote("'a\\n\"'\"'\""), "a\\n\"'");
        assert_eq!(unquote("a\\nb"), "a\\nb");
        assert_eq!(unquote("\\<48656c6C 6f 2 /* And finally */ 1>"), "Hello!");
        assert_eq!(unquote("\"\\101\\60\\x00041\\1012\""), "A0AA2");
        assert_eq!(unquote("\"a\\\nb\\\r\nc\""), "abc");
        assert_eq!(unquote("\"\\a\\b\\f\\n\\r\\t\\v\""), "\x07\x08\x0c\n\r\t\x0b");
        assert_eq!(unquote_bytes("\\<ff 00 1>x"), [0xff, 0, b'x']);
        assert_eq!(unquote("\"\\"), "\\");
        assert_eq!(unquote("\"\\x4142\""), "B");
    }

    #[test]
    fn uncommenting_keeps_spaces_that_no_comment_touches() {
        assert_eq!(uncomment("  a   b  "), "a   b");
        assert_eq!(uncomment("  a /* Comment */       b  "), "a b");
        assert_eq!(uncomment("  \" /*???  */ \"  "), "\" /*???  */ \"");
        assert_eq!(uncomment("a /* never closed"), "a");
    }

    #[test]
    fn quoting_escapes_what_quotes_would_change() {
        assert_eq!(quote(""), "\"\"");
        assert_eq!(quote("a \"b\" \\ $c\t\r\n"), "\"a \\\"b\\\" \\\\ \\$c\\t\\r\\n\"");
        assert_eq!(quote_bytes(&[0, 1, 127, 255]), "\"\\000\\001\\177\\377\"");
    }

    #[test]
    fn kinds_of_words() {
        assert!(
            is_word("a-b(c)!") && !is_word("") && !is_word("a b") && !is_word("a,b") && !is_word("é") && !is_word("'")
        );
        assert!(is_identifier("a/b@1_") && !is_identifier("/a") && !is_identifier("a//b") && !is_identifier("a/"));
        assert!(!is_identifier("") && is_keyword("FOO.bar:2?!") && !is_keyword("a-b") && !is_keyword(""));
    }

    proptest! {
        #[test]
        fn what_is_quoted_is_unquoted_again(bytes: Vec<u8>, text: String) {
            prop_assert_eq!(unquote_bytes(&quote_bytes(&bytes)), bytes);
            prop_assert_eq!(unquote(&quote(&text)), text);
        }

        #[test]
        fn quoted_arguments_survive_joining(args in prop::collection::vec(any::<String>(), 0..5)) {
            let quoted: Vec<_> = args.iter().map(|arg| quote(arg)).collect();
            prop_assert_eq!(&split_args(&join_args(&quoted)), &quoted);
            prop_assert_eq!(&split_words(&join_words(&quoted)), &quoted);
        }

        #[test]
        fn any_text_is_taken(text in r#"[ab ,/*"'\\<>$\n\r1é]{0,40}"#) {
            let args = split_args(&text);
            prop_assert!(args.len() <= text.matches(',').count() + 1);
            let words = split_words(&text);
            prop_assert_eq!(&split_words(&join_words(&words)), &words);
            prop_assert_eq!(uncomment(&uncomment(&text)), uncomment(&text));
            unquote(&text);
        }
    }
}
