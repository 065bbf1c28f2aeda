//! LLRPCs: procedures of elements that clients call by number, with data in one piece. Counters have two (their rate and their
//! count), switches two (the output that they use, read and set); other calls are refused in Click's words.

use super::protocol::answer;
use crate::router::Cx;

/// Bits of a command: it takes data, it gives data, its data are in one piece.
const TAKES: u32 = 0x8000_0000;
const GIVES: u32 = 0x4000_0000;
const FLAT: u32 = 0x4000;
/// How many bytes of data there are.
const SIZE_SHIFT: u32 = 16;
const SIZE_MAX: u32 = 0xFFF;

const GET_RATE: u32 = 0xC004_C001;
const GET_COUNT: u32 = 0xC004_C003;
const GET_SWITCH: u32 = 0x4004_C005;
const SET_SWITCH: u32 = 0x8004_4006;

/// The element and the number of `element#number`.
pub(super) fn parse(name: &str) -> Result<(&str, u32), Vec<u8>> {
    let parsed = name.split_once('#').and_then(|(element, number)| Some((element, hexadecimal(number)?)));
    parsed.ok_or_else(|| answer(500, &format!("Syntax error in LLRPC name '{name}'")))
}

/// A number with or without `0x`.
fn hexadecimal(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    u32::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))
}

/// The answer to a call of an element's procedure.
pub(super) fn call(
    cx: &mut Cx<'_>,
    name: &str,
    (element, command): (usize, u32),
    data: &[u8],
    is_read_only: bool,
) -> Vec<u8> {
    let size = command >> SIZE_SHIFT & SIZE_MAX;
    if size == 0 || command & (TAKES | GIVES) == 0 || command & FLAT == 0 {
        return answer(501, &format!("Cannot call LLRPC '{name}' remotely"));
    }
    // Nobody can tell whether one changes something.
    if is_read_only {
        return answer(530, &format!("Permission denied for '{name}'"));
    }
    if command & TAKES != 0 && data.len() != size as usize {
        return answer(522, &format!("LLRPC '{name}' requires {size} bytes input data"));
    }
    let Some(given) = execute(cx, element, command, data) else {
        return answer(522, &format!("LLRPC '{name}' error: Invalid argument"));
    };
    let mut out = answer(200, &format!("LLRPC '{name}' OK"));
    out.extend(format!("DATA {}\r\n", given.len()).into_bytes());
    out.extend(given);
    out
}

/// What a procedure gives; nothing where there is none, or its data are wrong.
fn execute(cx: &mut Cx<'_>, element: usize, command: u32, data: &[u8]) -> Option<Vec<u8>> {
    let class = cx.router().class_of(element).name;
    let number = data.try_into().ok().map(i32::from_ne_bytes);
    let mut read = |handler: &str| {
        let value = cx.read_of(Some(element), handler, "").ok()?;
        // As a number of four bytes, whose upper part is cut off.
        let value = value.trim().parse::<f64>().ok()? as i64 as u32;
        Some(value.to_ne_bytes().to_vec())
    };
    match (class, command) {
        ("Counter", GET_RATE) if number == Some(0) => read("rate"),
        ("Counter", GET_COUNT) if number == Some(0) => read("count"),
        ("Switch" | "PullSwitch", GET_SWITCH) => read("switch"),
        ("Switch" | "PullSwitch", SET_SWITCH) => {
            cx.write_of(Some(element), "switch", &number?.to_string()).ok().map(|()| Vec::new())
        }
        _ => None,
    }
}
