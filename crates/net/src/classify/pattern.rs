//! Patterns of `Classifier`: `12/0806 20/0001`, `12/0800%FF00`, `!12/0800`, `12/08??`, `-`.

use super::expr::{Area, Expr, Id, Test};
use crate::Log;

/// The largest offset of a value's last byte: no packet is longer.
const OFFSET_MAX: usize = 0xffff;

/// A pattern as an expression; errors are reported.
pub(super) fn parse(text: &str, slot: usize, log: &mut Log) -> Expr {
    let mut expr = Expr::default();
    let mut parts = Vec::new();
    let mut rest = if text == "-" { "" } else { text };
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            break;
        }
        let negated = rest.starts_with('!');
        if negated {
            rest = rest[1..].trim_start();
        }
        match clause(rest, slot, log, &mut expr) {
            Some((part, after)) => {
                rest = after;
                parts.push(expr.negate_if(negated, part));
            }
            None => break,
        }
    }
    expr.all(parts);
    expr
}

/// The part of `text` before the first character that does not fit.
fn run(text: &str, fits: impl Fn(u8) -> bool) -> &str {
    &text[..text.bytes().take_while(|&byte| fits(byte)).count()]
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_hexdigit() || byte == b'?'
}

/// One clause, and the text behind it.
fn clause<'a>(text: &'a str, slot: usize, log: &mut Log, expr: &mut Expr) -> Option<(Id, &'a str)> {
    let mut error = |text: &str| log.error_here(format_args!("pattern {slot}: {text}"));
    let digits = run(text, |byte| byte.is_ascii_digit());
    if digits.is_empty() {
        error("expected a digit");
        return None;
    }
    let Some(rest) = text[digits.len()..].strip_prefix('/') else {
        error("expected '/'");
        return None;
    };
    let mut value = run(rest, is_digit);
    let mut rest = &rest[value.len()..];
    let mut mask = None;
    if let Some(after) = rest.strip_prefix('%') {
        let digits = run(after, is_digit);
        rest = &after[digits.len()..];
        mask = Some(digits);
    }
    if value.len() < 2 {
        error("value has less than 2 hex digits");
        (value, mask) = ("", mask.map(|_| ""));
    }
    if value.len() % 2 != 0 {
        error("value has odd number of hex digits");
        value = &value[1..];
    }
    if let Some(mask) = mask
        && mask.len() != value.len()
    {
        error(if mask.len() > value.len() { "mask has too many hex digits" } else { "mask has too few hex digits" });
        value = "";
    }
    let offset = digits.parse().unwrap_or(usize::MAX);
    if offset.saturating_add(value.len() / 2) > OFFSET_MAX {
        error(&format!("offset out of range, bound {OFFSET_MAX}"));
        value = "";
    }
    Some((tests(offset, value.as_bytes(), mask.map(str::as_bytes), expr), rest))
}

/// The tests of a value, one for each aligned word.
fn tests(offset: usize, value: &[u8], mask: Option<&[u8]>, expr: &mut Expr) -> Id {
    let mut parts = Vec::new();
    let mut at = 0;
    while at * 2 < value.len() {
        let start = at;
        let (mut word, mut bits, mut need) = (0_u32, 0_u32, 0);
        while at * 2 < value.len() && (at == start || !(offset + at).is_multiple_of(4)) {
            let (byte, mut care) = byte(&value[2 * at..]);
            if let Some(mask) = mask {
                let (given, known) = self::byte(&mask[2 * at..]);
                care &= given & known;
            }
            (word, bits) = (word << 8 | byte, bits << 8 | care);
            at += 1;
            if care != 0 {
                need = offset + at;
            }
        }
        if bits != 0 {
            let test = Test::equal(Area::Network, (offset + start) as u32, (at - start) as u32, bits, word);
            // Bytes at the end that nobody asks for may be missing.
            let spare = (test.need as usize - need) as u32;
            let (mask, value) = (test.mask >> (8 * spare), test.value >> (8 * spare));
            parts.push(expr.test(Test { len: test.len - spare, need: need as u32, mask, value, ..test }));
        }
    }
    expr.all(parts)
}

/// Two digits: the byte, and the bits that count.
fn byte(digits: &[u8]) -> (u32, u32) {
    digits[..2].iter().fold((0, 0), |(value, care), &digit| match char::from(digit).to_digit(16) {
        Some(number) => (value << 4 | number, care << 4 | 0xf),
        None => (value << 4, care << 4),
    })
}
