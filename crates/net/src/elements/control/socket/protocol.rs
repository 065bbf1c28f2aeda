//! Click's ControlSocket protocol, version 1.3, as a function from bytes to commands.

use std::fmt::Write;

/// What a server says first.
pub(super) const GREETING: &str = "Click::ControlSocket/1.3\r\n";
/// The longest line of a command.
pub(super) const LONGEST_LINE: usize = 64 << 10;
/// The most bytes of data that a command may bring.
pub(super) const MOST_DATA: usize = 16 << 20;

/// Commands that name a handler.
const NEED_WORDS: &[&str] = &[
    "READ",
    "GET",
    "WRITE",
    "SET",
    "READDATA",
    "WRITEDATA",
    "SETDATA",
    "READUNTIL",
    "WRITEUNTIL",
    "CHECKREAD",
    "CHECKWRITE",
    "LLRPC",
];

/// What a client wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    Read {
        handler: String,
        data: String,
    },
    Write {
        handler: String,
        data: String,
    },
    Check {
        handler: String,
        is_write: bool,
    },
    /// A procedure of an element, by its number, with the bytes that it takes.
    Llrpc {
        name: String,
        data: Vec<u8>,
    },
    Help,
    /// `is_bare`: nothing stands behind it.
    Quit {
        is_bare: bool,
    },
    /// A line without words.
    Nothing,
}

/// An answer that says that something was wrong: a code and a line.
pub(super) type Refusal = (u16, String);

/// What comes of the bytes that are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Parsed {
    /// More bytes are needed.
    More,
    /// A command, and how many bytes it had.
    Command(Command, usize),
    /// Bytes that are no command.
    Refused(Refusal, usize),
    /// The same, and where the next command begins nobody knows.
    Broken(Refusal),
}

/// A line without its end, and how many bytes it has with it. `CR`, `LF` and `CRLF` end lines.
fn line(bytes: &[u8], is_over: bool) -> Option<(&[u8], usize)> {
    match bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        Some(end) if bytes[end] == b'\r' && bytes.get(end + 1) == Some(&b'\n') => Some((&bytes[..end], end + 2)),
        // Whether a newline follows is not known yet.
        Some(end) if bytes[end] == b'\r' && end + 1 == bytes.len() && !is_over => None,
        Some(end) => Some((&bytes[..end], end + 1)),
        None if is_over && !bytes.is_empty() => Some((bytes, bytes.len())),
        None => None,
    }
}

/// The words of a line, and everything from the third on.
fn words(text: &str) -> (Vec<&str>, &str) {
    let words: Vec<_> = text.split_ascii_whitespace().collect();
    let rest = words.get(2).map_or("", |third| text[third.as_ptr() as usize - text.as_ptr() as usize..].trim_end());
    (words, rest)
}

/// Parses the next command. `is_over`: no more bytes will come.
pub(super) fn parse(bytes: &[u8], is_over: bool) -> Parsed {
    let Some((raw, len)) = line(bytes, is_over) else {
        let broken = bytes.len() > LONGEST_LINE;
        return if broken { Parsed::Broken((500, "Line too long".to_owned())) } else { Parsed::More };
    };
    let text = String::from_utf8_lossy(raw);
    let (words, rest) = words(&text);
    let Some(command) = words.first().map(|word| word.to_ascii_uppercase()) else {
        return Parsed::Command(Command::Nothing, len);
    };
    let make = |is_read: bool, data: String| {
        let handler = words[1].to_owned();
        if is_read { Command::Read { handler, data } } else { Command::Write { handler, data } }
    };
    let count = || Parsed::Refused((500, "Wrong number of arguments".to_owned()), len);
    let is_read = command.starts_with(['R', 'G']);
    match (&command[..], words.len()) {
        ("READ" | "GET" | "WRITE" | "SET", 2..) => Parsed::Command(make(is_read, rest.to_owned()), len),
        ("READDATA" | "WRITEDATA" | "SETDATA", 3) => {
            with_data(bytes, len, words[2], is_over, (words[1], &command), |data| {
                make(is_read, String::from_utf8_lossy(data).into_owned())
            })
        }
        ("READUNTIL" | "WRITEUNTIL", 2..) => until(bytes, len, rest, is_over, |data| make(is_read, data)),
        ("CHECKREAD" | "CHECKWRITE", 2) => {
            Parsed::Command(Command::Check { handler: words[1].to_owned(), is_write: command == "CHECKWRITE" }, len)
        }
        ("LLRPC", 2 | 3) => {
            let size = words.get(2).copied().unwrap_or("0");
            with_data(bytes, len, size, is_over, (words[1], "llrpc"), |data| Command::Llrpc {
                name: words[1].to_owned(),
                data: data.to_vec(),
            })
        }
        ("CLOSE" | "QUIT", n) => Parsed::Command(Command::Quit { is_bare: n == 1 }, len),
        ("HELP", _) => Parsed::Command(Command::Help, len),
        (known, _) if NEED_WORDS.contains(&known) => count(),
        _ => Parsed::Refused((501, format!("Command '{command}' unimplemented")), len),
    }
}

/// A command with as many bytes of data behind its line as `size` says. `named`: the handler, and the command.
fn with_data(
    bytes: &[u8],
    start: usize,
    size: &str,
    is_over: bool,
    (handler, command): (&str, &str),
    make: impl Fn(&[u8]) -> Command,
) -> Parsed {
    match size.parse::<usize>() {
        Ok(n) if n > MOST_DATA => Parsed::Broken((521, format!("Data too large for handler '{handler}'"))),
        Ok(n) => match bytes.get(start..start + n) {
            Some(data) => Parsed::Command(make(data), start + n),
            None if is_over => Parsed::Broken((500, "Not enough data".to_owned())),
            None => Parsed::More,
        },
        Err(_) => Parsed::Refused((500, format!("Syntax error in '{command}'")), start),
    }
}

/// Data up to a line that is `terminator`.
fn until(bytes: &[u8], start: usize, terminator: &str, is_over: bool, make: impl Fn(String) -> Command) -> Parsed {
    let mut at = start;
    while let Some((raw, len)) = line(&bytes[at..], false) {
        if raw.trim_ascii_end() == terminator.as_bytes() {
            let data = String::from_utf8_lossy(&bytes[start..at]).into_owned();
            return Parsed::Command(make(data), at + len);
        }
        at += len;
    }
    match () {
        () if is_over => Parsed::Broken((500, "Not enough data".to_owned())),
        () if bytes.len() - start > MOST_DATA => Parsed::Broken((521, "Data too large".to_owned())),
        () => Parsed::More,
    }
}

/// An answer of one line.
pub(super) fn answer(code: u16, text: &str) -> Vec<u8> {
    answer_with(code, text, &[])
}

/// A line whose control characters are written as numbers in octal.
fn printable(line: &str) -> String {
    line.chars().fold(String::new(), |mut text, c| {
        let _ = if c.is_control() { write!(text, "\\{:03o}", u32::from(c)) } else { write!(text, "{c}") };
        text
    })
}

/// An answer of several lines: all but the last have a hyphen behind the code.
pub(super) fn answer_with(code: u16, text: &str, more: &[&str]) -> Vec<u8> {
    let mut out = String::new();
    for (number, line) in std::iter::once(text).chain(more.iter().copied()).enumerate() {
        let mark = if number == more.len() { ' ' } else { '-' };
        let line = printable(line);
        let _ = write!(out, "{code}{mark}{line}\r\n");
    }
    out.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(handler: &str, data: &str) -> Command {
        Command::Read { handler: handler.to_owned(), data: data.to_owned() }
    }

    #[test]
    fn commands_end_with_their_line_or_their_data() {
        assert_eq!(parse(b"read a.b  c d \r\nREAD", false), Parsed::Command(read("a.b", "c d"), 16));
        assert_eq!(
            parse(b"WRITE x 1\n", false),
            Parsed::Command(Command::Write { handler: "x".into(), data: "1".into() }, 10)
        );
        assert_eq!(parse(b"READDATA a 3\r\nxyzREAD", false), Parsed::Command(read("a", "xyz"), 17));
        assert_eq!(parse(b"READDATA a 3\r\nxy", false), Parsed::More);
        assert!(matches!(parse(b"READDATA a 3\r\nxy", true), Parsed::Broken(_)));
        assert_eq!(parse(b"READUNTIL a END\nx\r\ny\nEND  \nREAD", false), Parsed::Command(read("a", "x\r\ny\n"), 27));
        assert_eq!(parse(b"READUNTIL a\nx\n\nREAD", false), Parsed::Command(read("a", "x\n"), 15));
        assert_eq!(parse(b"  \r\n", false), Parsed::Command(Command::Nothing, 4));
        assert_eq!(parse(b"quit", true), Parsed::Command(Command::Quit { is_bare: true }, 4));
        assert_eq!(parse(b"quit", false), Parsed::More);
        let call = Command::Llrpc { name: "c#80".into(), data: b"xy".to_vec() };
        assert_eq!(parse(b"LLRPC c#80 2\nxyREAD", false), Parsed::Command(call, 15));
        assert!(
            matches!(parse(b"LLRPC c#80 x\n", false), Parsed::Refused((500, text), 13) if text.ends_with("'llrpc'"))
        );
        assert!(matches!(parse(b"LLRPC\n", false), Parsed::Refused((500, _), 6)));
        assert!(matches!(parse(b"READ\n", false), Parsed::Refused((500, _), 5)));
        assert!(matches!(parse(b"JUMP x\n", false), Parsed::Refused((501, _), 7)));
        assert!(matches!(parse(b"WRITEDATA a 99999999999\n", false), Parsed::Broken((521, _))));
        assert!(matches!(parse(&vec![b'a'; LONGEST_LINE + 1], false), Parsed::Broken((500, _))));
    }

    #[test]
    fn all_lines_of_an_answer_but_the_last_have_a_hyphen() {
        assert_eq!(answer_with(520, "no", &["a\r\nb", "c"]), b"520-no\r\n520-a\\015\\012b\r\n520 c\r\n");
    }

    proptest! {
        /// Whatever comes, in whichever pieces, is parsed to the same commands, and never to more bytes than came.
        #[test]
        fn pieces_make_no_difference(
            lines in prop::collection::vec(
                prop_oneof![
                    "(read|WRITE) [a-z.]{1,4}( [ -~]{0,9})?(\r\n|\n)",
                    "READDATA a [0-9]{1,2}\r\n[ -~]{0,20}",
                    "WRITEUNTIL a( E)?\n([a-z]{0,3}\r?\n){0,4}(E)?\n",
                    "[ -~\r\n]{0,12}",
                ], 0..8),
            cut in any::<prop::sample::Index>(),
        ) {
            let bytes = lines.concat().into_bytes();
            let whole = all(&[&bytes]);
            let cut = cut.index(bytes.len() + 1);
            prop_assert_eq!(whole, all(&[&bytes[..cut], &bytes[cut..]]));
        }
    }

    fn all(pieces: &[&[u8]]) -> Vec<String> {
        let (mut buffer, mut found) = (Vec::new(), Vec::new());
        for (number, piece) in pieces.iter().enumerate() {
            buffer.extend_from_slice(piece);
            let is_over = number + 1 == pieces.len();
            loop {
                match parse(&buffer, is_over) {
                    Parsed::More => break,
                    Parsed::Broken(refusal) => {
                        found.push(format!("{refusal:?}"));
                        return found;
                    }
                    Parsed::Command(command, len) => {
                        found.push(format!("{command:?}"));
                        buffer.drain(..len);
                    }
                    Parsed::Refused(refusal, len) => {
                        found.push(format!("{refusal:?}"));
                        buffer.drain(..len);
                    }
                }
            }
        }
        found
    }
}
