//! Options of an IP header as text such as `rr{10.0.0.1}+2;ts{5,6}`, and back.

use std::fmt::Write as _;

use super::cursor::Cursor;

const END: u8 = 0;
const NOP: u8 = 1;
const RECORD: u8 = 7;
const TIMESTAMP: u8 = 68;
const LOOSE: u8 = 131;
const STRICT: u8 = 137;
/// The most bytes that options have.
const LEN_MAX: usize = 40;

/// Appends the text of the options: `.` where there are none, `?` where one is damaged.
pub(super) fn unparse(out: &mut Vec<u8>, options: &[u8]) {
    match describe(options) {
        Some(text) if text.is_empty() => out.push(b'.'),
        Some(text) => out.extend(text.bytes()),
        None => out.push(b'?'),
    }
}

fn describe(mut options: &[u8]) -> Option<String> {
    let mut texts = Vec::new();
    while let Some(&kind) = options.first() {
        if kind == END {
            break;
        }
        if kind == NOP {
            options = &options[1..];
            continue;
        }
        let len = usize::from(*options.get(1)?);
        let (option, data) = (options.get(..len)?, options.get(2..len)?);
        options = &options[len..];
        texts.push(match kind {
            RECORD | LOOSE | STRICT => route(option)?,
            TIMESTAMP => timestamps(option)?,
            _ => unknown(kind, data),
        });
    }
    Some(texts.join(";"))
}

fn address(bytes: &[u8]) -> String {
    format!("{}.{}.{}.{}", bytes[0], bytes[1], bytes[2], bytes[3])
}

/// A route: the pointer of a recorded one is where its addresses end, that of others is a caret.
fn route(option: &[u8]) -> Option<String> {
    let (kind, pointer) = (option[0], usize::from(*option.get(2)?));
    if pointer < 4 {
        return None;
    }
    let next = pointer - 1;
    let mut text = String::from(if kind == RECORD {
        "rr{"
    } else if kind == LOOSE {
        "lsrr{"
    } else {
        "ssrr{"
    });
    let (mut at, mut separator) = (3, "");
    while at + 4 <= option.len() && !(at == next && kind == RECORD) {
        text += if at == next { "^" } else { separator };
        text += &address(&option[at..]);
        (at, separator) = (at + 4, ",");
    }
    text += if at == next && at == option.len() && kind != RECORD { "^}" } else { "}" };
    if at == next && at + 4 <= option.len() {
        let _ = write!(text, "+{}", (option.len() - at) / 4);
    }
    Some(text)
}

fn timestamps(option: &[u8]) -> Option<String> {
    let (pointer, flags) = (usize::from(*option.get(2)?), *option.get(3)?);
    if pointer < 5 {
        return None;
    }
    let (next, flag) = (pointer - 1, flags & 15);
    let mut text = match flag {
        0 => "ts{".to_owned(),
        1 => "ts.ip{".to_owned(),
        3 => "ts.preip{".to_owned(),
        flag => format!("ts.{flag}{{"),
    };
    let with_address = flag == 1 || flag == 3;
    let size = if with_address { 8 } else { 4 };
    let (mut at, mut separator) = (4, "");
    while at + size <= option.len() && !(at == next && flag != 3) {
        text += if at == next { "^" } else { separator };
        // Behind the pointer there is no time yet.
        let timed = flag != 3 || at < next;
        if with_address {
            text += &address(&option[at..]);
            text += if timed { "=" } else { "" };
        }
        if timed {
            let value = &option[at + size - 4..];
            let value = u32::from_be_bytes([value[0], value[1], value[2], value[3]]);
            text += if value >> 31 == 1 { "!" } else { "" };
            text += &(value & 0x7FFF_FFFF).to_string();
        }
        (at, separator) = (at + size, ",");
    }
    text += if at == next && at == option.len() { "^}" } else { "}" };
    if at == next && at + size <= option.len() {
        let _ = write!(text, "+{}", (option.len() - at) / size);
    }
    if flags >> 4 != 0 {
        let _ = write!(text, "++{}", flags >> 4);
    }
    Some(text)
}

/// The text of an option without one of its own: `98`, or `99=0:5:10`.
pub(super) fn unknown(kind: u8, data: &[u8]) -> String {
    let data: Vec<String> = data.iter().map(u8::to_string).collect();
    let separator = if data.is_empty() { "" } else { "=" };
    format!("{kind}{separator}{}", data.join(":"))
}

/// The options of a text; none where it is wrong.
pub(super) fn parse(text: &[u8]) -> Option<Vec<u8>> {
    if text == b"." {
        return Some(Vec::new());
    }
    let mut options = Vec::new();
    let mut at = Cursor::new(text);
    loop {
        option(&mut at, &mut options)?;
        if at.is_empty() {
            return fitting(options);
        }
        at.separator()?;
    }
}

/// The options, where they fit into a header, if need be without padding at their beginning.
pub(super) fn fitting(mut options: Vec<u8>) -> Option<Vec<u8>> {
    let excess = options.len().saturating_sub(LEN_MAX);
    if options.iter().take(excess).any(|&byte| byte != NOP) {
        return None;
    }
    options.drain(..excess);
    Some(options)
}

/// Parses one option.
fn option(at: &mut Cursor<'_>, out: &mut Vec<u8>) -> Option<()> {
    if at.eat(b"rr{") {
        parse_route(at, out, RECORD)
    } else if at.eat(b"lsrr{") {
        parse_route(at, out, LOOSE)
    } else if at.eat(b"ssrr{") {
        parse_route(at, out, STRICT)
    } else if at.eat(b"ts{") {
        parse_timestamps(at, out, None)
    } else if at.eat(b"ts.ip{") {
        parse_timestamps(at, out, Some(1))
    } else if at.eat(b"ts.preip{") {
        parse_timestamps(at, out, Some(3))
    } else if at.eat(b"ts.") {
        let flag = u8::try_from(at.number()?).ok().filter(|flag| *flag < 16);
        if at.eat(b"{") { parse_timestamps(at, out, Some(flag?)) } else { None }
    } else if at.eat(b"nop") {
        out.push(NOP);
        Some(())
    } else if at.eat(b"eol") {
        out.push(END);
        Some(())
    } else {
        parse_unknown(at, out)
    }
}

/// Parses an option that is a number, perhaps with numbers behind it.
pub(super) fn parse_unknown(at: &mut Cursor<'_>, out: &mut Vec<u8>) -> Option<()> {
    let byte = |at: &mut Cursor<'_>| u8::try_from(at.number()?).ok();
    let begin = out.len();
    out.extend([byte(at)?, 2]);
    // The two options that have no length are written by their names.
    if out[begin] <= NOP {
        return None;
    }
    if at.eat_before_digit(b"=") {
        out.push(byte(at)?);
        while at.eat_before_digit(b":") {
            out.push(byte(at)?);
        }
    }
    finish(out, begin)
}

fn parse_address(at: &mut Cursor<'_>, out: &mut Vec<u8>) -> Option<()> {
    for part in 0..4 {
        if part > 0 && !at.eat(b".") {
            return None;
        }
        out.push(u8::try_from(at.number()?).ok()?);
    }
    Some(())
}

fn parse_route(at: &mut Cursor<'_>, out: &mut Vec<u8>, kind: u8) -> Option<()> {
    let begin = out.len();
    out.extend([kind, 0, 0]);
    let mut pointer = None;
    loop {
        if pointer.is_none() && at.eat(b"^") {
            pointer = Some(out.len());
        }
        if !at.digit_next() {
            break;
        }
        parse_address(at, out)?;
        at.eat(b",");
    }
    close(at, out, begin, pointer, 4)?;
    finish(out, begin)
}

/// Parses what is behind the entries: the brace, and how much room is left. Sets the pointer.
fn close(at: &mut Cursor<'_>, out: &mut Vec<u8>, begin: usize, pointer: Option<usize>, size: usize) -> Option<()> {
    if !at.eat(b"}") {
        return None;
    }
    let pointer = pointer.unwrap_or(out.len()) - begin + 1;
    out[begin + 2] = u8::try_from(pointer).ok()?;
    if at.eat_before_digit(b"+") {
        let room = usize::try_from(at.number()?).ok().filter(|room| *room <= LEN_MAX)?;
        out.resize(out.len() + room * size, 0);
    }
    Some(())
}

fn finish(out: &mut [u8], begin: usize) -> Option<()> {
    out[begin + 1] = u8::try_from(out.len() - begin).ok()?;
    Some(())
}

/// Parses times; without a flag the first entry tells whether they have addresses, a caret before it that these are given.
fn parse_timestamps(at: &mut Cursor<'_>, out: &mut Vec<u8>, flag: Option<u8>) -> Option<()> {
    let begin = out.len();
    out.extend([TIMESTAMP, 0, 0, 0]);
    let given = flag.is_some();
    let mut flag = flag.unwrap_or(u8::from(at.address_next()));
    let mut pointer = None;
    loop {
        if pointer.is_none() && at.eat(b"^") {
            pointer = Some(out.len());
            if !given && out.len() > begin + 4 && flag == 1 && at.digit_next() {
                flag = 3;
            }
        }
        if !at.digit_next() && !at.starts_with(b"!") {
            break;
        }
        entry(at, out, flag, pointer.is_some())?;
        at.eat(b",");
    }
    close(at, out, begin, pointer, if flag == 1 || flag == 3 { 8 } else { 4 })?;
    let overflow = if at.eat_before_digit(b"++") { at.number()? } else { 0 };
    out[begin + 3] = u8::try_from(overflow).ok().filter(|overflow| *overflow < 16)? << 4 | flag;
    finish(out, begin)
}

fn entry(at: &mut Cursor<'_>, out: &mut Vec<u8>, flag: u8, behind_pointer: bool) -> Option<()> {
    if flag == 1 || flag == 3 {
        parse_address(at, out)?;
        if behind_pointer && (at.eat(b"=?") || !at.starts_with(b"=")) {
            out.extend([0; 4]);
            return Some(());
        }
        if !at.eat(b"=") {
            return None;
        }
    }
    let top = if at.eat(b"!") { 1 << 31 } else { 0 };
    out.extend((at.number()? | top).to_be_bytes());
    Some(())
}
