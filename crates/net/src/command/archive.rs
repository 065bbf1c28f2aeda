//! Archives of `ar`, as configurations may come in: what counts is their member `config`.

const MAGIC: &[u8] = b"!<arch>\n";
const HEADER: usize = 60;

/// The configuration of an archive, or the text itself where it is none. An error is a sentence.
pub(super) fn config(text: &[u8]) -> Result<&[u8], String> {
    let Some(mut rest) = text.strip_prefix(MAGIC) else { return Ok(text) };
    while !rest.is_empty() {
        let member = member(rest).ok_or_else(|| format!("bad archive member at byte {}", text.len() - rest.len()))?;
        if member.name == b"config" {
            return Ok(member.data);
        }
        rest = member.rest;
    }
    Err("archive has no 'config' section".to_owned())
}

struct Member<'a> {
    name: &'a [u8],
    data: &'a [u8],
    rest: &'a [u8],
}

/// The first member; nothing where there is no whole one.
fn member(text: &[u8]) -> Option<Member<'_>> {
    let (header, data) = text.split_at_checked(HEADER)?;
    if &header[58..] != b"`\n" {
        return None;
    }
    let (data, rest) = data.split_at_checked(number(&header[48..58])?)?;
    // Members begin at even places.
    let rest = rest.strip_prefix(b"\n").filter(|_| data.len() % 2 == 1).unwrap_or(rest);
    let name = header[..16].trim_ascii_end();
    // In BSD's form, a long name stands before the data; in GNU's, a slash ends it.
    let (name, data) = match name.strip_prefix(b"#1/") {
        Some(len) => data.split_at_checked(number(len)?)?,
        None => (name.strip_suffix(b"/").unwrap_or(name), data),
    };
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    Some(Member { name: &name[..end], data, rest })
}

fn number(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn archive(members: &[(&str, &str)]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        for (name, data) in members {
            out.extend(format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 644, data.len()).into_bytes());
            out.extend(data.as_bytes());
            if data.len() % 2 == 1 {
                out.push(b'\n');
            }
        }
        out
    }

    #[test]
    fn a_configuration_is_found_among_others() {
        for name in ["config", "config/"] {
            let text = archive(&[("odd", "abc"), ("elementmap.xml/", "<x/>"), (name, "Idle"), ("config", "no")]);
            assert_eq!(config(&text), Ok(&b"Idle"[..]));
        }
        assert_eq!(config(&archive(&[("#1/8", "config\0\0Idle")])), Ok(&b"Idle"[..]));
        assert_eq!(config(b"Idle -> Discard"), Ok(&b"Idle -> Discard"[..]));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let whole = archive(&[("a", "abcd"), ("b", "ab")]);
        assert_eq!(config(&whole), Err("archive has no 'config' section".into()));
        assert_eq!(config(&whole[..whole.len() - 1]), Err("bad archive member at byte 72".into()));
        assert_eq!(config(&archive(&[("#1/9", "config")])), Err("bad archive member at byte 8".into()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..80), at in 0..200usize, cut in 0..200usize) {
            let mut text = archive(&[("a", "abc"), ("config", "Idle")]);
            let at = at.min(text.len());
            text.splice(at..at, bytes);
            text.truncate(text.len().saturating_sub(cut).max(MAGIC.len()));
            let _ = config(&text);
        }
    }
}
