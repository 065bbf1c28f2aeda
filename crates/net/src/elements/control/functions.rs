//! What scripts calculate: the read handlers `add`, `lt`, `sprintf` and their like, as functions of their arguments.

use crate::args::{Arg, ArgCx, NameDb, NoElements};
use crate::lang::config::{first_word, split_words, unquote};
use std::cmp::Ordering;
use std::fmt::Write;

/// A function: from its arguments, as they were written, to its value.
pub(super) type Function = fn(&str) -> Result<String, String>;

/// All of them, by name.
pub(super) static FUNCTIONS: &[(&str, Function)] = &[
    ("add", |text| fold(text, i64::checked_add, |a, b| a + b)),
    ("sub", |text| fold(text, i64::checked_sub, |a, b| a - b)),
    ("mul", |text| fold(text, i64::checked_mul, |a, b| a * b)),
    ("div", |text| divide(text).map(plain)),
    ("idiv", |text| divide(text).map(|value| (value as i64).to_string())),
    ("mod", |text| remainder(text, true)),
    ("rem", |text| remainder(text, false)),
    ("neg", |text| one_number(text, i64::checked_neg, |value| -value)),
    ("abs", |text| one_number(text, i64::checked_abs, f64::abs)),
    ("min", |text| fold(text, |a, b| Some(a.min(b)), f64::min)),
    ("max", |text| fold(text, |a, b| Some(a.max(b)), f64::max)),
    ("and", |text| booleans(text).map(|all| all.iter().all(|value| *value).to_string())),
    ("or", |text| booleans(text).map(|all| all.iter().any(|value| *value).to_string())),
    ("nand", |text| booleans(text).map(|all| (!all.iter().all(|value| *value)).to_string())),
    ("nor", |text| booleans(text).map(|all| (!all.iter().any(|value| *value)).to_string())),
    ("if", choose),
    ("in", |text| {
        let words = split_words(text);
        let (first, others) = words.split_first().ok_or_else(syntax)?;
        Ok(others.iter().any(|word| unquote(word) == unquote(first)).to_string())
    }),
    ("length", |text| Ok(text.len().to_string())),
    ("unquote", |text| Ok(unquote(text))),
    ("htons", |text| whole(text).map(|value: u16| value.to_be().to_string())),
    ("ntohs", |text| whole(text).map(|value: u16| u16::from_be(value).to_string())),
    ("htonl", |text| whole(text).map(|value: u32| value.to_be().to_string())),
    ("ntohl", |text| whole(text).map(|value: u32| u32::from_be(value).to_string())),
    ("lt", |text| compare(text, Ordering::is_lt)),
    ("eq", |text| compare(text, Ordering::is_eq)),
    ("gt", |text| compare(text, Ordering::is_gt)),
    ("ge", |text| compare(text, Ordering::is_ge)),
    ("ne", |text| compare(text, Ordering::is_ne)),
    ("le", |text| compare(text, Ordering::is_le)),
    ("not", |text| parse::<bool>(text).map(|value| (!value).to_string()).ok_or_else(|| "syntax error".to_owned())),
    ("first", |text| Ok(first_word(text).0.to_owned())),
    ("sprintf", format),
];

fn parse<T: Arg>(text: &str) -> Option<T> {
    T::parse(text.trim(), &ArgCx { elements: &NoElements, names: &NameDb::default(), element: "" }).ok()
}

fn syntax() -> String {
    "syntax error".to_owned()
}

fn whole<T: Arg>(text: &str) -> Result<T, String> {
    parse(text).ok_or_else(syntax)
}

fn booleans(text: &str) -> Result<Vec<bool>, String> {
    split_words(text).iter().map(|word| whole(word)).collect()
}

/// One of two words, by a Boolean before them.
fn choose(text: &str) -> Result<String, String> {
    let words = split_words(text);
    let [condition, yes, no] = &words[..] else { return Err(syntax()) };
    Ok(if whole(condition)? { yes } else { no }.clone())
}

fn one_number(text: &str, exact: fn(i64) -> Option<i64>, float_op: fn(f64) -> f64) -> Result<String, String> {
    let words = numbers(text).map_err(|_| "expected one number")?;
    let [word] = &words[..] else { return Err("expected one number".to_owned()) };
    Ok(parse(word).and_then(exact).map_or_else(|| plain(float_op(float(word))), |value| value.to_string()))
}

/// What is left of a division of two numbers, which `mod` wants whole.
fn remainder(text: &str, is_whole: bool) -> Result<String, String> {
    let words = numbers(text).map_err(|_| "expected two numbers")?;
    let [a, b] = &words[..] else { return Err("expected two numbers".to_owned()) };
    match (parse::<i64>(a), parse::<i64>(b)) {
        (Some(_), Some(0)) => Err("division by zero".to_owned()),
        (Some(a), Some(b)) => Ok(a.wrapping_rem(b).to_string()),
        _ if is_whole => Err("expected two numbers".to_owned()),
        _ => Ok(plain(float(a) % float(b))),
    }
}

fn numbers(text: &str) -> Result<Vec<String>, String> {
    let words = split_words(text);
    let fine = words.iter().all(|word| parse::<i64>(word).is_some() || parse::<f64>(word).is_some());
    if fine { Ok(words) } else { Err("expected list of numbers".to_owned()) }
}

fn float(word: &str) -> f64 {
    parse::<i64>(word).map_or_else(|| parse(word).unwrap_or_default(), |value| value as f64)
}

/// In integers as long as all of them are and the result is one.
fn fold(text: &str, exact: fn(i64, i64) -> Option<i64>, float_op: fn(f64, f64) -> f64) -> Result<String, String> {
    let words = numbers(text)?;
    let empty = || if exact(2, 2) == Some(4) && exact(3, 3) == Some(9) { "1" } else { "0" }.to_owned();
    let integers: Option<Vec<i64>> = words.iter().map(|word| parse(word)).collect();
    let whole = integers.and_then(|all| {
        let (first, rest) = all.split_first()?;
        rest.iter().try_fold(*first, |sum, value| exact(sum, *value))
    });
    if let Some(value) = whole {
        return Ok(value.to_string());
    }
    Ok(words.iter().map(|word| float(word)).reduce(float_op).map_or_else(empty, plain))
}

fn divide(text: &str) -> Result<f64, String> {
    let words = numbers(text)?;
    Ok(words.iter().map(|word| float(word)).reduce(|a, b| a / b).unwrap_or(1.0))
}

/// As C prints a number by `%g`: six digits, without zeroes at the end.
fn plain(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let exponent = value.abs().log10().floor() as i32;
    if !(-5..15).contains(&exponent) {
        return format!("{value:e}");
    }
    let text = format!("{value:.*}", (14 - exponent).clamp(0, 20) as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn compare(text: &str, holds: fn(Ordering) -> bool) -> Result<String, String> {
    let words = split_words(text);
    let [a, b] = &words[..] else { return Err("expected two numbers".to_owned()) };
    let order = match (parse::<i64>(a), parse::<i64>(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => match (parse::<f64>(a), parse::<f64>(b)) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            _ => unquote(a).cmp(&unquote(b)),
        },
    };
    Ok(holds(order).to_string())
}

/// The widest that a field is made.
const WIDEST: usize = 4096;

/// A conversion's flags, width and precision.
#[derive(Default)]
struct Field {
    left: bool,
    zeroes: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
}

/// `sprintf`: a format, and the values for it.
fn format(text: &str) -> Result<String, String> {
    let words = split_words(text);
    let mut words = words.iter();
    let pattern = unquote(words.next().ok_or_else(syntax)?);
    let mut out = String::new();
    let mut rest = pattern.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut field = Field::default();
        while let Some(flag) = rest.next_if(|c| "-0+ #".contains(*c)) {
            match flag {
                '-' => field.left = true,
                '0' => field.zeroes = true,
                '+' => field.plus = true,
                ' ' => field.space = true,
                _ => field.alternate = true,
            }
        }
        let mut number = |rest: &mut std::iter::Peekable<std::str::Chars<'_>>| -> Result<usize, String> {
            if rest.next_if_eq(&'*').is_some() {
                return words.next().and_then(|word| parse(word)).ok_or_else(syntax);
            }
            let mut value = 0usize;
            while let Some(digit) = rest.peek().and_then(|c| c.to_digit(10)) {
                rest.next();
                value = (value * 10 + digit as usize).min(WIDEST);
            }
            Ok(value)
        };
        field.width = number(&mut rest)?.min(WIDEST);
        if rest.next_if_eq(&'.').is_some() {
            field.precision = Some(number(&mut rest)?.min(WIDEST));
        }
        while rest.next_if(|c| "hlLq".contains(*c)).is_some() {}
        match rest.next().ok_or_else(syntax)? {
            '%' => out.push('%'),
            's' => {
                let word = unquote(words.next().ok_or_else(syntax)?);
                let shown: String = word.chars().take(field.precision.unwrap_or(usize::MAX)).collect();
                pad(&mut out, &field, "", &shown);
            }
            c @ ('d' | 'i' | 'u' | 'o' | 'x' | 'X') => {
                let value: i64 = words.next().and_then(|word| parse(word)).ok_or_else(syntax)?;
                integer(&mut out, &field, c, value);
            }
            _ => return Err(syntax()),
        }
    }
    if words.next().is_some() { Err(syntax()) } else { Ok(out) }
}

fn integer(out: &mut String, field: &Field, conversion: char, value: i64) {
    let mut digits = match conversion {
        'd' | 'i' => value.unsigned_abs().to_string(),
        'u' => (value as u64).to_string(),
        'o' => format!("{value:o}"),
        'x' => format!("{value:x}"),
        _ => format!("{value:X}"),
    };
    let sign = match conversion {
        'd' | 'i' if value < 0 => "-",
        'd' | 'i' if field.plus => "+",
        'd' | 'i' if field.space => " ",
        'x' if field.alternate && value != 0 => "0x",
        'X' if field.alternate && value != 0 => "0X",
        'o' if field.alternate && value != 0 => "0",
        _ => "",
    };
    if let Some(precision) = field.precision {
        digits = format!("{digits:0>precision$}");
    } else if field.zeroes && !field.left {
        digits = format!("{digits:0>width$}", width = field.width.saturating_sub(sign.len()));
    }
    pad(out, field, sign, &digits);
}

fn pad(out: &mut String, field: &Field, sign: &str, text: &str) {
    let whole = format!("{sign}{text}");
    let width = field.width;
    let _ = if field.left { write!(out, "{whole:<width$}") } else { write!(out, "{whole:>width$}") };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, text: &str) -> Result<String, String> {
        let (_, function) = FUNCTIONS.iter().find(|(other, _)| *other == name).unwrap();
        function(text)
    }

    #[test]
    fn numbers_are_whole_as_long_as_they_can_be() {
        for (name, text, expected) in [
            ("add", "10 5 2", "17"),
            ("sub", "10 5 2", "3"),
            ("mul", "3 4", "12"),
            ("add", "", "0"),
            ("mul", "", "1"),
            ("add", "0.5 1", "1.5"),
            ("div", "7 2", "3.5"),
            ("idiv", "7 2", "3"),
            ("add", "9223372036854775807 1", "9.223372036854776e18"),
            ("add", "0x10 1", "17"),
            ("mul", "0.1 3", "0.3"),
            ("min", "10 6 20", "6"),
            ("max", "-1 6.5 3", "6.5"),
            ("mod", "7 3", "1"),
            ("mod", "-7 3", "-1"),
            ("mod", "-9223372036854775808 -1", "0"),
            ("rem", "7.5 2", "1.5"),
            ("neg", "5", "-5"),
            ("abs", "-1.5", "1.5"),
            ("htonl", "1", if cfg!(target_endian = "little") { "16777216" } else { "1" }),
            ("htons", "0x0102", if cfg!(target_endian = "little") { "513" } else { "258" }),
        ] {
            assert_eq!(call(name, text).as_deref(), Ok(expected), "{name} {text}");
        }
        assert_eq!(call("add", "1 x"), Err("expected list of numbers".to_owned()));
    }

    #[test]
    fn numbers_are_compared_as_numbers_and_others_as_text() {
        for (name, text, expected) in [
            ("eq", "10 0xA", "true"),
            ("le", "9 8", "false"),
            ("eq", "10x 10x", "true"),
            ("lt", "9 10", "true"),
            ("lt", "9a 10a", "false"),
            ("ge", "1.5 1.5", "true"),
            ("ne", "\"a\" a", "false"),
            ("not", "yes", "false"),
            ("first", "a b c", "a"),
        ] {
            assert_eq!(call(name, text).as_deref(), Ok(expected), "{name} {text}");
        }
        for (name, text, expected) in [
            ("and", "true yes 1", "true"),
            ("and", "", "true"),
            ("or", "false 0", "false"),
            ("nand", "true false", "true"),
            ("nor", "false true", "false"),
            ("if", "true a b", "a"),
            ("if", "0 a b", "b"),
            ("in", "foo bar \"foo\"", "true"),
            ("in", "foo bar", "false"),
            ("length", "abcde", "5"),
            ("unquote", "\"a b\"", "a b"),
        ] {
            assert_eq!(call(name, text).as_deref(), Ok(expected), "{name} {text}");
        }
        for (name, text) in
            [("if", "true a"), ("if", "maybe a b"), ("and", "x"), ("mod", "1 0"), ("mod", "1.5 1"), ("htons", "65536")]
        {
            assert!(call(name, text).is_err(), "{name} {text}");
        }
        assert!(call("eq", "1").is_err() && call("eq", "1 2 3").is_err() && call("not", "5").is_err());
    }

    #[test]
    fn formats_are_those_of_c() {
        for (text, expected) in [
            ("\"%05x\" 127", "0007f"),
            ("\"%d%%|%-4d|%+d\" 5 6 7", "5%|6   |+7"),
            ("'%*d' 4 -1", "  -1"),
            ("'%.3s|%5s' abcdef 'g h'", "abc|  g h"),
            ("'%#X %lld' 255 -3", "0XFF -3"),
            ("'%04d' -3", "-003"),
        ] {
            assert_eq!(format(text).as_deref(), Ok(expected), "{text}");
        }
        for text in ["", "'%d'", "'%d' x", "'%d' 1 2", "'%q", "'%y' 1"] {
            assert!(format(text).is_err(), "{text}");
        }
        assert!(format("'%999999999d' 1").unwrap().len() <= WIDEST);
    }
}
