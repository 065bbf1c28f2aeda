//! Options on a command line, as Click's programs take them.
//!
//! Short options may stand together (`-qw`), with a value attached or behind (`-ofile`, `-o file`); long ones may be cut
//! short where that is clear (`--expr=...`), and some may be negated (`--no-warnings`). What follows `--` is no option.

/// An option that a program knows. Several names of one may have several of these.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<T> {
    /// The name behind `--`.
    pub(super) long: &'static str,
    /// The letter behind `-`.
    pub(super) short: Option<char>,
    /// What it is for the program.
    pub(super) meaning: T,
    /// Whether it has a value.
    pub(super) value: Value,
}

/// Whether an option has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    No,
    /// No value, and a negation: `--no-name`.
    Negatable,
    Needed,
    /// A whole number.
    Integer,
    /// `--name=value`, or `--name` alone.
    Allowed,
    /// The same with a whole number.
    AllowedInteger,
    /// The same with any number.
    AllowedReal,
}

impl Value {
    fn is_needed(self) -> bool {
        matches!(self, Self::Needed | Self::Integer)
    }

    /// A value as it has to be for the option that is called so.
    fn check(self, name: &str, value: String) -> Result<String, String> {
        let kind = match self {
            Self::Integer | Self::AllowedInteger if integer(&value).is_none() => "an integer",
            Self::AllowedReal if !value.parse().is_ok_and(f64::is_finite) => "a real number",
            _ => return Ok(value),
        };
        Err(format!("'{name}' expects {kind}, not '{value}'"))
    }
}

/// A whole number as in C: after `0x` hexadecimal, after `0` octal.
pub(super) fn integer(text: &str) -> Option<i64> {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let (digits, base) = match digits.strip_prefix('0') {
        Some(rest) => match rest.strip_prefix(['x', 'X']) {
            Some(rest) => (rest, 16),
            None => (digits, 8),
        },
        None => (digits, 10),
    };
    i64::from_str_radix(&format!("{sign}{digits}"), base)
        .ok()
        .filter(|_| digits.starts_with(|c: char| c.is_alphanumeric()))
}

/// What was given, in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Given<T> {
    /// An option with its value, which may be empty.
    Option(T, String),
    /// A negated one.
    Negated(T),
    /// A word that is no option.
    Word(String),
}

/// Reads a command line. An error is a sentence about the first thing that is wrong.
pub(super) fn parse<T: Copy + PartialEq>(args: &[String], known: &[Known<T>]) -> Result<Vec<Given<T>>, String> {
    let mut given = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--" {
            given.extend(args.by_ref().map(|word| Given::Word(word.clone())));
        } else if let Some(name) = arg.strip_prefix("--") {
            given.push(long(name, known, &mut args)?);
        } else if arg.len() > 1 && arg.starts_with('-') {
            short(&arg[1..], known, &mut args, &mut given)?;
        } else {
            given.push(Given::Word(arg.clone()));
        }
    }
    Ok(given)
}

fn long<'a, T: Copy + PartialEq>(
    text: &str,
    known: &[Known<T>],
    args: &mut impl Iterator<Item = &'a String>,
) -> Result<Given<T>, String> {
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    let negated = name.strip_prefix("no-").and_then(|name| find(name, known)).filter(|o| o.value == Value::Negatable);
    if let (Some(option), None) = (negated, value) {
        return Ok(Given::Negated(option.meaning));
    }
    let Some(option) = find(name, known) else {
        let possible: Vec<_> = known.iter().map(|option| option.long).filter(|long| long.starts_with(name)).collect();
        return Err(if possible.is_empty() {
            format!("unrecognized option '--{text}'")
        } else {
            format!("option '--{text}' is ambiguous\n{}", possibilities(&possible))
        });
    };
    let name = format!("--{}", option.long);
    let value = match (option.value, value) {
        (Value::No | Value::Negatable, Some(_)) => return Err(format!("'{name}' can't take an argument")),
        (needed, None) if needed.is_needed() => {
            args.next().cloned().ok_or_else(|| format!("'{name}' requires an argument"))?
        }
        (_, None) => return Ok(Given::Option(option.meaning, String::new())),
        (_, Some(value)) => value.to_owned(),
    };
    Ok(Given::Option(option.meaning, option.value.check(&name, value)?))
}

/// How many options that could be meant are listed at most.
const LISTED: usize = 4;

/// A line about what could be meant.
fn possibilities(names: &[&str]) -> String {
    let mut line = "(Possibilities are".to_owned();
    for (at, name) in names.iter().take(LISTED).enumerate() {
        line += match (at, at + 1 == names.len()) {
            (0, _) => "",
            (1, true) => " and",
            (_, true) => ", and",
            (_, false) => ",",
        };
        line.extend([" '--", name, "'"]);
    }
    line + if names.len() > LISTED { ", and others.)" } else { ".)" }
}

/// The option whose name is this, or begins so where all that do mean the same.
fn find<'a, T: Copy + PartialEq>(name: &str, known: &'a [Known<T>]) -> Option<&'a Known<T>> {
    if let Some(exact) = known.iter().find(|option| option.long == name) {
        return Some(exact);
    }
    let mut fitting = known.iter().filter(|option| !name.is_empty() && option.long.starts_with(name));
    let first = fitting.next()?;
    fitting.all(|other| other.meaning == first.meaning).then_some(first)
}

fn short<'a, T: Copy>(
    letters: &str,
    known: &[Known<T>],
    args: &mut impl Iterator<Item = &'a String>,
    given: &mut Vec<Given<T>>,
) -> Result<(), String> {
    for (at, letter) in letters.char_indices() {
        let Some(option) = known.iter().find(|option| option.short == Some(letter)) else {
            return Err(format!("unrecognized option '-{letter}'"));
        };
        if !option.value.is_needed() {
            given.push(Given::Option(option.meaning, String::new()));
            continue;
        }
        let attached = &letters[at + letter.len_utf8()..];
        let attached = attached.strip_prefix('=').unwrap_or(attached);
        let value = if attached.is_empty() { args.next().cloned() } else { Some(attached.to_string()) };
        let value = value.ok_or_else(|| format!("'-{letter}' requires an argument"))?;
        given.push(Given::Option(option.meaning, option.value.check(&format!("-{letter}"), value)?));
        return Ok(());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Known<char>] = &[
        Known { long: "expression", short: Some('e'), meaning: 'e', value: Value::Needed },
        Known { long: "decls", short: Some('d'), meaning: 'd', value: Value::No },
        Known { long: "declarations", short: Some('d'), meaning: 'd', value: Value::No },
        Known { long: "quit", short: Some('q'), meaning: 'q', value: Value::No },
        Known { long: "warnings", short: None, meaning: 'w', value: Value::Negatable },
        Known { long: "simtime", short: None, meaning: 's', value: Value::Allowed },
        Known { long: "jobs", short: Some('j'), meaning: 'j', value: Value::Integer },
        Known { long: "level", short: None, meaning: 'l', value: Value::AllowedInteger },
        Known { long: "time", short: None, meaning: 't', value: Value::AllowedReal },
        Known { long: "size", short: None, meaning: 'z', value: Value::No },
    ];

    fn read(args: &[&str]) -> Result<Vec<Given<char>>, String> {
        parse(&args.iter().map(ToString::to_string).collect::<Vec<_>>(), KNOWN)
    }

    fn option(meaning: char, value: &str) -> Given<char> {
        Given::Option(meaning, value.into())
    }

    #[test]
    fn options_stand_in_every_form() {
        let given = read(&["-qe", "x", "-ey", "-e=z", "--expr=a=b", "--expression", "c", "--dec", "-", "--", "-q"]);
        let expected = vec![
            option('q', ""),
            option('e', "x"),
            option('e', "y"),
            option('e', "z"),
            option('e', "a=b"),
            option('e', "c"),
            option('d', ""),
            Given::Word("-".into()),
            Given::Word("-q".into()),
        ];
        assert_eq!(given, Ok(expected));
        let expected = vec![Given::Negated('w'), option('w', ""), option('s', ""), option('s', "1.5")];
        assert_eq!(read(&["--no-warnings", "--warn", "--simtime", "--simtime=1.5"]), Ok(expected));
    }

    #[test]
    fn numbers_are_as_in_c() {
        let cases =
            [("7", Some(7)), ("-12", Some(-12)), ("0x1F", Some(31)), ("010", Some(8)), ("0", Some(0)), ("09", None)];
        for (text, number) in cases {
            assert_eq!(integer(text), number, "{text}");
        }
        for text in ["", "-", "x", "0x", "+1", "0x+1", "1 ", " 1"] {
            assert_eq!(integer(text), None, "{text}");
        }
        let expected = vec![option('j', "0x10"), option('l', ""), option('l', "-3"), option('t', "1e3")];
        assert_eq!(read(&["-j0x10", "--level", "--level=-3", "--time=1e3"]), Ok(expected));
    }

    #[test]
    fn what_could_be_meant_is_listed() {
        let lines = [
            (&["a", "b", "c"][..], "(Possibilities are '--a', '--b', and '--c'.)"),
            (&["a", "b", "c", "d", "e"], "(Possibilities are '--a', '--b', '--c', '--d', and others.)"),
        ];
        for (names, line) in lines {
            assert_eq!(possibilities(names), line);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (args, error) in [
            (&["-x"][..], "unrecognized option '-x'"),
            (&["--nope"], "unrecognized option '--nope'"),
            (&["--si"], "option '--si' is ambiguous\n(Possibilities are '--simtime' and '--size'.)"),
            (&["--quit=1"], "'--quit' can't take an argument"),
            (&["-e"], "'-e' requires an argument"),
            (&["--expression"], "'--expression' requires an argument"),
            (&["--no-quit"], "unrecognized option '--no-quit'"),
            (&["--nope=1"], "unrecognized option '--nope=1'"),
            (&["-jx"], "'-j' expects an integer, not 'x'"),
            (&["--jo", "1.5"], "'--jobs' expects an integer, not '1.5'"),
            (&["--jobs="], "'--jobs' expects an integer, not ''"),
            (&["--level=--1"], "'--level' expects an integer, not '--1'"),
            (&["--time=soon"], "'--time' expects a real number, not 'soon'"),
        ] {
            assert_eq!(read(args), Err(error.to_string()));
        }
    }
}
