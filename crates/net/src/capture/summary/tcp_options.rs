//! Options of a TCP header as text such as `mss1400;wscale10;ts5:6`, and back.

use super::cursor::Cursor;

/// Which options are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// All; text has no padding.
    All,
    /// All but padding and timestamps.
    NoTimestamp,
    /// About selective acknowledgement.
    Sack,
}

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WSCALE: u8 = 3;
const SACK_OK: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMP: u8 = 8;

impl Which {
    fn has(self, kind: u8) -> bool {
        match self {
            Self::All => true,
            Self::NoTimestamp => kind != TIMESTAMP,
            Self::Sack => matches!(kind, SACK_OK | SACK),
        }
    }
}

/// Appends the text of the options: `.` where there are none, `?` where one is damaged.
pub(super) fn unparse(out: &mut Vec<u8>, options: &[u8], which: Which) {
    let begin = out.len();
    if describe(out, begin, options, which).is_none() {
        out.truncate(begin);
        out.push(b'?');
    } else if out.len() == begin {
        out.push(b'.');
    }
}

fn describe(out: &mut Vec<u8>, begin: usize, mut options: &[u8], which: Which) -> Option<()> {
    while let Some(&kind) = options.first() {
        if kind == END {
            break;
        }
        if kind == NOP {
            options = &options[1..];
            continue;
        }
        let len = usize::from(*options.get(1)?);
        let data = options.get(2..len)?;
        options = &options[len..];
        if kind == SACK && len % 8 != 2 || fixed_len(kind).is_some_and(|fixed| fixed != len) {
            return None;
        }
        if which.has(kind) {
            for text in texts(kind, data) {
                out.extend(if out.len() == begin { "" } else { ";" }.bytes());
                out.extend(text.bytes());
            }
        }
    }
    Some(())
}

fn fixed_len(kind: u8) -> Option<usize> {
    match kind {
        MSS => Some(4),
        WSCALE => Some(3),
        SACK_OK => Some(2),
        TIMESTAMP => Some(10),
        _ => None,
    }
}

/// The texts of an option, whose length is right: one, but for blocks of selective acknowledgement.
fn texts(kind: u8, data: &[u8]) -> Vec<String> {
    let word = |at: usize| u32::from_be_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
    match kind {
        MSS => vec![format!("mss{}", u16::from_be_bytes([data[0], data[1]]))],
        WSCALE => vec![format!("wscale{}", data[0])],
        SACK_OK => vec!["sackok".into()],
        SACK => (0..data.len()).step_by(8).map(|at| format!("sack{}-{}", word(at), word(at + 4))).collect(),
        TIMESTAMP => vec![format!("ts{}:{}", word(0), word(4))],
        _ => vec![super::ip_options::unknown(kind, data)],
    }
}

/// The options that are meant, as they stand in a binary record.
pub(super) fn select(options: &[u8], which: Which) -> Vec<u8> {
    if which == Which::All {
        return options.to_vec();
    }
    let (mut rest, mut selected) = (options, Vec::new());
    while let Some(&kind) = rest.first() {
        if kind == NOP {
            rest = &rest[1..];
            continue;
        }
        // What follows something damaged is not known.
        let len = rest.get(1).map_or(0, |&len| usize::from(len));
        if kind == END || len < 2 || len > rest.len() {
            break;
        }
        if which.has(kind) {
            selected.extend(&rest[..len]);
        }
        rest = &rest[len..];
    }
    selected
}

/// The options of a text, at most 40 bytes; none where it is wrong.
pub(super) fn parse(text: &[u8], which: Which) -> Option<Vec<u8>> {
    if text == b"." {
        return Some(Vec::new());
    }
    let mut options = Vec::new();
    let mut at = Cursor::new(text);
    loop {
        option(&mut at, &mut options, which)?;
        if at.is_empty() {
            return super::ip_options::fitting(options);
        }
        at.separator()?;
    }
}

/// Parses one option.
fn option(at: &mut Cursor<'_>, out: &mut Vec<u8>, which: Which) -> Option<()> {
    if which.has(MSS) && at.eat(b"mss") {
        let value = u16::try_from(at.number()?).ok()?;
        out.extend([MSS, 4]);
        out.extend(value.to_be_bytes());
    } else if which.has(WSCALE) && at.eat(b"wscale") {
        out.extend([WSCALE, 3, u8::try_from(at.number()?).ok()?]);
    } else if at.eat(b"sackok") {
        out.extend([SACK_OK, 2]);
    } else if at.eat(b"sack") {
        blocks(at, out)?;
    } else if which.has(TIMESTAMP) && at.eat(b"ts") {
        let first = at.number()?;
        let echoed = if at.eat(b":") { at.number()? } else { return None };
        if out.is_empty() {
            out.extend([NOP, NOP]);
        }
        out.extend([TIMESTAMP, 10]);
        out.extend([first.to_be_bytes(), echoed.to_be_bytes()].concat());
    } else if which == Which::All && at.eat(b"nop") {
        out.push(NOP);
    } else if which == Which::All && at.eat(b"eol") {
        out.push(END);
    } else if which != Which::Sack {
        return super::ip_options::parse_unknown(at, out);
    } else {
        return None;
    }
    Some(())
}

/// Neighbouring blocks become one option, as they would be in a header.
fn blocks(at: &mut Cursor<'_>, out: &mut Vec<u8>) -> Option<()> {
    let begin = out.len();
    out.extend([SACK, 0]);
    loop {
        let left = at.number()?;
        let right = if at.eat(b"-") || at.eat(b":") { at.number()? } else { return None };
        out.extend([left.to_be_bytes(), right.to_be_bytes()].concat());
        if !(at.eat_before_digit(b",sack") || at.eat_before_digit(b";sack")) {
            break;
        }
    }
    out[begin + 1] = u8::try_from(out.len() - begin).ok()?;
    Some(())
}
