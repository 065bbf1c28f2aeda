//! One `content` option: its bytes, and modifiers behind commas or in options of their own.

use super::rule::Content;

/// Offsets and lengths that are understood lie between this and its negative.
const BOUND: i32 = 65_535;

/// Modifiers that stand in options of their own in Snort 2 and Suricata.
pub(super) const MODIFIERS: &[&str] =
    &["depth", "distance", "fast_pattern", "nocase", "offset", "startswith", "within"];

/// Applies a modifier to a content; says whether it is known and, where it has one, its number is understood.
pub(super) fn modify(content: &mut Content, name: &str, value: Option<&str>) -> bool {
    let field = match name {
        "nocase" => {
            content.is_nocase = true;
            return true;
        }
        // What stands behind it says which part is searched for; here, it is always all of it.
        "fast_pattern" => {
            content.is_fast_pattern = true;
            return true;
        }
        "fast_pattern_offset" | "fast_pattern_length" => return true,
        "startswith" => {
            (content.offset, content.depth) = (Some(0), i32::try_from(content.bytes.len()).ok());
            return true;
        }
        "offset" => &mut content.offset,
        "depth" => &mut content.depth,
        "distance" => &mut content.distance,
        "within" => &mut content.within,
        _ => return false,
    };
    let number = value.and_then(|value| value.trim().parse::<i32>().ok());
    *field = number.filter(|number| (-BOUND..=BOUND).contains(number));
    field.is_some()
}

/// Where the text between quotes ends that begins here: the position of the second quote.
pub(super) fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut is_escaped = false;
    text.iter().position(|byte| match byte {
        _ if is_escaped => {
            is_escaped = false;
            false
        }
        b'\\' => {
            is_escaped = true;
            false
        }
        byte => *byte == b'"',
    })
}

/// A content's value as bytes between quotes, whether it is negated, and what follows.
fn split(value: &[u8]) -> Result<(&[u8], bool, &[u8]), String> {
    let rest = value.strip_prefix(b"!");
    let is_negated = rest.is_some();
    let text = rest.unwrap_or(value).trim_ascii_start().strip_prefix(b"\"").ok_or("content has no quotes")?;
    let end = closing_quote(text).ok_or("content has no closing quote")?;
    Ok((&text[..end], is_negated, text[end + 1..].trim_ascii_start()))
}

/// Whether there are modifiers behind commas.
pub(super) fn has_commas(value: &[u8]) -> bool {
    split(value).is_ok_and(|(_, _, rest)| rest.starts_with(b","))
}

/// A digit in hexadecimal.
fn digit(byte: u8) -> Result<u8, String> {
    let value =
        char::from(byte).to_digit(16).ok_or("content has something between bars that is no hexadecimal digit")?;
    Ok(value as u8)
}

/// The bytes that a text between quotes means.
pub(super) fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let (mut bytes, mut at) = (Vec::new(), 0);
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b'|' => at += hex(&text[at..], &mut bytes)?,
            b'\\' => {
                bytes.push(*text.get(at).ok_or("content ends with a backslash")?);
                at += 1;
            }
            byte => bytes.push(byte),
        }
    }
    if bytes.is_empty() { Err("content has no bytes".to_owned()) } else { Ok(bytes) }
}

/// Reads digits up to the closing bar; says how many bytes of text these are, the bar included.
fn hex(text: &[u8], into: &mut Vec<u8>) -> Result<usize, String> {
    let end = text.iter().position(|byte| *byte == b'|').ok_or("content has no closing bar")?;
    let digits: Vec<u8> = text[..end].iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    for pair in digits.chunks(2) {
        let [high, low] = *pair else { return Err("content has an odd number of digits between bars".to_owned()) };
        into.push(digit(high)? << 4 | digit(low)?);
    }
    Ok(end + 1)
}

/// Reads a content with its modifiers, and says which of them are not understood.
pub(super) fn content(value: &[u8]) -> Result<(Content, Vec<String>), String> {
    let (text, is_negated, rest) = split(value)?;
    let mut content = Content { bytes: unescape(text)?, is_negated, ..Content::default() };
    let mut strange = Vec::new();
    if !rest.is_empty() && !rest.starts_with(b",") {
        return Err("content has something behind its quotes".to_owned());
    }
    for modifier in String::from_utf8_lossy(rest).split(',').skip(1) {
        let (name, value) = match modifier.trim().split_once(char::is_whitespace) {
            Some((name, value)) => (name, Some(value)),
            None => (modifier.trim(), None),
        };
        if !modify(&mut content, name, value) {
            strange.push(modifier.trim().to_owned());
        }
    }
    Ok((content, strange))
}
