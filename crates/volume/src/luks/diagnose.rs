//! What is wrong with a header that the library has refused, which it often does without a word. Pure.

use super::header::{LUKS1_BYTES, MAGIC, MAGIC_SECOND, METADATA_BYTES, number};
use super::json;
use sha2::{Digest, Sha256, Sha512};

/// Where fields of the binary header are (LUKS2 On-Disk Format Specification, 2.1).
const SIZE_AT: usize = 8;
const CHECKSUM_KIND: std::ops::Range<usize> = 72..104;
const OFFSET_AT: usize = 256;
const CHECKSUM: std::ops::Range<usize> = 448..512;
/// The binary header; the JSON follows.
const BINARY_BYTES: usize = 4096;
/// LUKS1's keyslots.
const LUKS1_SLOTS_AT: usize = 208;
const LUKS1_SLOT_BYTES: usize = 48;

/// What is wrong with both copies of a LUKS2 header, of which these are the first bytes; None: nothing that is known here.
pub(super) fn luks2(header: &[u8]) -> Option<String> {
    let first = copy(header, 0, MAGIC);
    let size = header.get(SIZE_AT..SIZE_AT + 8).map_or(0, |field| number(field, 0));
    let is_second = |at: &u64| header.get(*at as usize..).is_some_and(|rest| rest.starts_with(MAGIC_SECOND));
    let by_size = Some(size).filter(|size| METADATA_BYTES.contains(size));
    let place = METADATA_BYTES.into_iter().find(is_second).or(by_size);
    let second = match place {
        Some(at) => copy(header, at as usize, MAGIC_SECOND).map(|why| format!("the second copy (at byte {at}): {why}")),
        None => Some("there is no second copy".to_owned()),
    };
    let first = first.map(|why| format!("the first copy (at byte 0): {why}"));
    let faults: Vec<String> = [first, second].into_iter().flatten().collect();
    // One that is sound would have been used.
    (!faults.is_empty()).then(|| faults.join("; "))
}

fn copy(header: &[u8], at: usize, magic: &[u8]) -> Option<String> {
    let Some(copy) = header.get(at..).filter(|copy| copy.len() >= BINARY_BYTES) else {
        return Some("it extends beyond the end of the image".to_owned());
    };
    if !copy.starts_with(magic) {
        return Some("it does not begin with the LUKS magic".to_owned());
    }
    let version = u16::from_be_bytes([copy[6], copy[7]]);
    if version != 2 {
        return Some(format!("its version is {version}, not 2"));
    }
    let size = number(copy, SIZE_AT);
    if !METADATA_BYTES.contains(&size) {
        return Some(format!("its size field is {size}, which no header has"));
    }
    let offset = number(copy, OFFSET_AT);
    if offset != at as u64 {
        return Some(format!("its offset field is {offset}"));
    }
    let Some(copy) = copy.get(..size as usize) else {
        return Some(format!("its {size} bytes extend beyond the end of the image"));
    };
    checksum(copy).or_else(|| content(copy, size))
}

fn checksum(copy: &[u8]) -> Option<String> {
    let mut zeroed = copy.to_vec();
    zeroed[CHECKSUM].fill(0);
    let kind = text(&copy[CHECKSUM_KIND]);
    let computed = match &*kind {
        "sha256" => Sha256::digest(&zeroed).to_vec(),
        "sha512" => Sha512::digest(&zeroed).to_vec(),
        // There are others, and whether they fit the library knows.
        _ if !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') => return None,
        _ => return Some(format!("its checksum algorithm is unknown: \"{kind}\"")),
    };
    (copy[CHECKSUM][..computed.len()] != computed).then(|| "its checksum does not match its content".to_owned())
}

fn content(copy: &[u8], size: u64) -> Option<String> {
    let area = &copy[BINARY_BYTES..];
    let end = area.iter().position(|byte| *byte == 0).unwrap_or(area.len());
    let parsed = serde_json::from_slice(&area[..end]).map_err(|error| format!("its JSON is damaged: {error}"));
    let checked =
        parsed.and_then(|parsed| json::check_layout(&parsed, size).map_err(|why| format!("in its JSON, {why}")));
    checked.err()
}

/// The same for a LUKS1 header.
pub(super) fn luks1(header: &[u8]) -> Option<String> {
    const ACTIVE: u32 = 0x00ac_71f3;
    const FREE: u32 = 0xdead;
    const STRIPES: u32 = 4000;
    let Some(header) = header.get(..LUKS1_BYTES as usize) else {
        return Some("it extends beyond the end of the image".to_owned());
    };
    let word = |at: usize| header[at..at + 4].try_into().map_or(0, u32::from_be_bytes);
    for (name, range) in [("cipher", 8..40), ("cipher's mode", 40..72), ("hash", 72..104)] {
        let name_of = text(&header[range.clone()]);
        if !header[range].contains(&0) || name_of.is_empty() || !name_of.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Some(format!("the name of its {name} is \"{name_of}\""));
        }
    }
    let (key_bytes, iterations) = (word(108), word(164));
    if key_bytes == 0 || key_bytes > 512 {
        return Some(format!("its key size is {key_bytes} bytes"));
    }
    if iterations == 0 {
        return Some("its digest has 0 iterations".to_owned());
    }
    for slot in 0..8 {
        let at = LUKS1_SLOTS_AT + slot * LUKS1_SLOT_BYTES;
        let (state, stripes) = (word(at), word(at + 44));
        if state != ACTIVE && state != FREE {
            return Some(format!("keyslot {slot} is neither in use nor free (its mark is {state:#x})"));
        }
        if stripes != STRIPES {
            return Some(format!("keyslot {slot} has {stripes} stripes, not {STRIPES}"));
        }
    }
    None
}

fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A header of two copies with this JSON.
    fn header(json: &str) -> Vec<u8> {
        let mut header = vec![0; 0x8000];
        for (at, magic) in [(0, MAGIC), (0x4000, MAGIC_SECOND)] {
            let copy = &mut header[at..at + 0x4000];
            copy[..6].copy_from_slice(magic);
            copy[7] = 2;
            copy[8..16].copy_from_slice(&0x4000_u64.to_be_bytes());
            copy[72..78].copy_from_slice(b"sha256");
            copy[256..264].copy_from_slice(&(at as u64).to_be_bytes());
            copy[4096..4096 + json.len()].copy_from_slice(json.as_bytes());
            let digest = Sha256::digest(&*copy);
            copy[448..480].copy_from_slice(&digest);
        }
        header
    }

    const JSON: &str = r#"{"keyslots":{},"tokens":{},"segments":{},"digests":{},
        "config":{"json_size":"12288","keyslots_size":"16744448"}}"#;

    /// Symptom: "Invalid argument" for most damaged headers, which is all that the library says.
    #[test]
    fn the_copy_and_the_field_that_are_wrong_are_named() {
        assert_eq!(luks2(&header(JSON)), None);
        for (at, byte, word) in [
            (0, b'X', "LUKS magic"),
            (7, 3, "version is 3"),
            (10, 9, "size field"),
            (263, 1, "offset field"),
            (30, 1, "checksum does not match"),
            (4100, 0xff, "checksum does not match"),
            (72, 0x1b, "algorithm is unknown"),
        ] {
            for (copy, which) in [(0, "the first copy (at byte 0)"), (0x4000, "the second copy (at byte 16384)")] {
                let mut bytes = header(JSON);
                bytes[copy + at] = byte;
                let said = luks2(&bytes).unwrap();
                assert!(said.starts_with(which) && said.contains(word), "{at}: {said}");
            }
        }
        let said = luks2(&header(&JSON.replace("\"keyslots\"", "keyslots"))).unwrap();
        assert!(said.contains("its JSON is damaged") && said.contains("; the second copy"), "{said}");
        let said = luks2(&header(&JSON.replace("12288", "1"))).unwrap();
        assert!(said.contains("in its JSON, config.json_size is \"1\""), "{said}");
        assert!(luks2(&header(JSON)[..5000]).unwrap().contains("beyond the end of the image"));
        assert!(luks2(&header(JSON)[..0x4000]).unwrap().contains("the second copy"));
    }

    #[test]
    fn a_luks1_header_is_named_by_its_field() {
        let mut good = vec![0; 592];
        good[..8].copy_from_slice(b"LUKS\xba\xbe\0\x01");
        for (at, text) in [(8, "aes"), (40, "xts-plain64"), (72, "sha256")] {
            good[at..at + text.len()].copy_from_slice(text.as_bytes());
        }
        good[108..112].copy_from_slice(&64_u32.to_be_bytes());
        good[164..168].copy_from_slice(&1000_u32.to_be_bytes());
        for slot in 0..8 {
            good[208 + 48 * slot..][..4].copy_from_slice(&0xdead_u32.to_be_bytes());
            good[252 + 48 * slot..][..4].copy_from_slice(&4000_u32.to_be_bytes());
        }
        assert_eq!(luks1(&good), None);
        for (at, bytes, word) in [
            (8, &[0][..], "cipher"),
            (40, b"\x1b", "mode"),
            (72, &[0], "hash"),
            (108, &[9], "key size"),
            (164, &[0; 4], "0 iterations"),
            (208, &[1], "keyslot 0"),
            (252 + 48, &[1], "keyslot 1"),
        ] {
            let mut bad = good.clone();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            let said = luks1(&bad).unwrap();
            assert!(said.contains(word), "{at}: {said}");
        }
        assert!(luks1(&good[..500]).is_some());
    }

    proptest! {
        #[test]
        fn no_header_makes_it_panic(
            len in 0_usize..0x9000, changes in prop::collection::vec((0_usize..0x8000, any::<u8>()), 0..20),
        ) {
            let mut bytes = header(JSON);
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            bytes.truncate(len);
            prop_assert!(luks2(&bytes).is_none_or(|said| !said.is_empty()));
            prop_assert!(luks1(&bytes).is_none_or(|said| !said.is_empty()));
        }
    }
}
