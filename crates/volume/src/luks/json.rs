//! LUKS2's description of a volume, checked before anything is made of it: that its numbers are numbers, and in range.
//!
//! The library takes `-1`, `4e9` or `"5"` where a whole number is due, each in its own way; how much work a key costs is
//! one of these numbers. Nothing here is stricter than the format.

use serde_json::Value;
use std::ops::Range;

/// What the library takes for a count; more than that is not representable in its calls.
const COUNT_MAX: u64 = u32::MAX as u64;

/// A place in the description, such as `digests.0.iterations`.
struct At<'a> {
    path: String,
    value: &'a Value,
}

impl<'a> At<'a> {
    fn field(&self, name: &str) -> Result<At<'a>, String> {
        self.optional(name).ok_or_else(|| format!("{}{} is missing", self.prefix(), name))
    }

    fn optional(&self, name: &str) -> Option<At<'a>> {
        let value = self.value.get(name)?;
        Some(At { path: format!("{}{name}", self.prefix()), value })
    }

    fn prefix(&self) -> String {
        if self.path.is_empty() { String::new() } else { format!("{}.", self.path) }
    }

    /// The members of an object, which have numbers for names.
    fn numbered(&self) -> Result<Vec<At<'a>>, String> {
        let object = self.value.as_object().ok_or_else(|| self.wrong("an object"))?;
        let member = |(name, value): (&String, &'a Value)| {
            if decimal(name).is_none() {
                return Err(format!("{} has a member \"{name}\", which is not a number", self.path));
            }
            Ok(At { path: format!("{}.{name}", self.path), value })
        };
        object.iter().map(member).collect()
    }

    fn text(&self) -> Result<&'a str, String> {
        self.value.as_str().ok_or_else(|| self.wrong("text"))
    }

    /// A number, from 1 on.
    fn count(&self) -> Result<u64, String> {
        let number = self.value.as_u64().filter(|number| (1..=COUNT_MAX).contains(number));
        number.ok_or_else(|| self.wrong(&format!("a whole number from 1 to {COUNT_MAX}")))
    }

    /// A number that is stored as text.
    fn bytes(&self) -> Result<u64, String> {
        self.text().ok().and_then(decimal).ok_or_else(|| self.wrong("a whole number in quotes"))
    }

    fn wrong(&self, what: &str) -> String {
        // As much of it as a sentence can carry.
        let mut is: String = self.value.to_string().chars().take(40).collect();
        if is.len() < self.value.to_string().len() {
            is.push_str("...");
        }
        format!("{} is {is}, and should be {what}", self.path)
    }
}

/// Digits only, as the library wants it.
fn decimal(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Checks every number that anything depends on.
///
/// # Errors
/// A sentence about the first field that is wrong, without its full stop.
pub(super) fn check(json: &Value) -> Result<(), String> {
    let all = At { path: String::new(), value: json };
    all.field("keyslots")?.numbered()?.iter().try_for_each(keyslot)?;
    all.field("digests")?.numbered()?.iter().try_for_each(digest)?;
    all.field("segments")?.numbered()?.iter().try_for_each(segment)?;
    let config = all.field("config")?;
    config.field("json_size")?.bytes()?;
    config.field("keyslots_size")?.bytes().map(|_| ())
}

fn keyslot(slot: &At<'_>) -> Result<(), String> {
    let kind = slot.field("type")?.text()?;
    if let Some(area) = slot.optional("area") {
        area.field("offset")?.bytes()?;
        area.field("size")?.bytes()?;
        area.optional("key_size").map_or(Ok(0), |size| size.count())?;
    }
    if let Some(priority) = slot.optional("priority")
        && priority.value.as_u64().is_none_or(|priority| priority > 2)
    {
        return Err(priority.wrong("0, 1 or 2"));
    }
    if kind != "luks2" {
        // Those of a re-encryption have no key of their own, and others are not tried.
        return Ok(());
    }
    slot.field("key_size")?.count()?;
    slot.field("area")?;
    slot.field("af")?.field("stripes")?.count()?;
    let kdf = slot.field("kdf")?;
    match kdf.field("type")?.text()? {
        "pbkdf2" => kdf.field("iterations")?.count().map(|_| ()),
        _ => ["time", "memory", "cpus"].into_iter().try_for_each(|name| kdf.field(name)?.count().map(|_| ())),
    }
}

fn digest(digest: &At<'_>) -> Result<(), String> {
    digest.field("type")?.text()?;
    // Of whatever type: what is not known is not computed.
    match digest.optional("iterations") {
        Some(iterations) => iterations.count().map(|_| ()),
        None if digest.field("type")?.text()? == "pbkdf2" => digest.field("iterations").map(|_| ()),
        None => Ok(()),
    }
}

fn segment(segment: &At<'_>) -> Result<(), String> {
    segment.field("type")?.text()?;
    segment.field("offset")?.bytes()?;
    let size = segment.field("size")?;
    if size.value.as_str() != Some("dynamic") {
        size.bytes()?;
    }
    segment.optional("iv_tweak").map_or(Ok(0), |tweak| tweak.bytes())?;
    segment.optional("sector_size").map_or(Ok(0), |sector| sector.count()).map(|_| ())
}

/// Whether what the description says fits together in a header whose copies have so many bytes: for saying what is wrong
/// with one that the library has refused.
///
/// # Errors
/// A sentence as above.
pub(super) fn check_layout(json: &Value, copy_bytes: u64) -> Result<(), String> {
    check(json)?;
    let all = At { path: String::new(), value: json };
    let (json_size, keyslots_size) =
        (all.field("config")?.field("json_size")?, all.field("config")?.field("keyslots_size")?);
    if json_size.bytes()?.checked_add(4096) != Some(copy_bytes) {
        return Err(json_size.wrong(&format!("\"{}\"", copy_bytes - 4096)));
    }
    let areas = 2 * copy_bytes..(2 * copy_bytes).saturating_add(keyslots_size.bytes()?);
    for slot in all.field("keyslots")?.numbered()? {
        let Some(area) = slot.optional("area") else { continue };
        let (offset, size) = (area.field("offset")?.bytes()?, area.field("size")?.bytes()?);
        if offset < areas.start || offset.checked_add(size).is_none_or(|end| end > areas.end) {
            let Range { start, end } = areas;
            return Err(format!(
                "{} is {size} bytes at {offset}, outside of the keyslots' bytes {start} to {end}",
                area.path
            ));
        }
    }
    for digest in all.field("digests")?.numbered()? {
        for kind in ["keyslots", "segments"] {
            let named = digest.field(kind)?;
            let missing = |name: &Value| name.as_str().is_none_or(|name| json[kind].get(name).is_none());
            if named.value.as_array().is_none_or(|names| names.iter().any(missing)) {
                return Err(named.wrong(&format!("a list of {kind} that there are")));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn good() -> Value {
        json!({
            "keyslots": { "0": {
                "type": "luks2", "key_size": 64,
                "af": { "type": "luks1", "stripes": 4000, "hash": "sha256" },
                "area": { "type": "raw", "offset": "32768", "size": "258048", "encryption": "aes-xts-plain64", "key_size": 64 },
                "kdf": { "type": "argon2id", "time": 4, "memory": 32, "cpus": 1, "salt": "PrjmhNqA" },
            } },
            "tokens": {},
            "segments": { "0": { "type": "crypt", "offset": "16777216", "size": "dynamic", "iv_tweak": "0", "sector_size": 4096 } },
            "digests": { "0": { "type": "pbkdf2", "keyslots": ["0"], "segments": ["0"], "iterations": 1000 } },
            "config": { "json_size": "12288", "keyslots_size": "16744448" },
        })
    }

    /// Symptom: -1, 4294967295.0, 4e9 or a string as the digest's iterations passed the guard on costs, and the library
    /// worked for minutes. Cause: what was no whole number counted as 0.
    #[test]
    fn numbers_that_are_not_whole_or_not_in_range_are_refused_by_name() {
        assert_eq!(check(&good()), Ok(()));
        let counts = [
            "/digests/0/iterations",
            "/keyslots/0/key_size",
            "/keyslots/0/af/stripes",
            "/keyslots/0/area/key_size",
            "/keyslots/0/kdf/time",
            "/keyslots/0/kdf/memory",
            "/keyslots/0/kdf/cpus",
            "/segments/0/sector_size",
        ];
        let no_counts: [Value; 9] = [
            json!(-1),
            json!(0),
            json!(4_294_967_295.0),
            json!(4e9),
            json!("5"),
            json!(4_294_967_296_u64),
            json!(null),
            json!([1]),
            json!(true),
        ];
        let texts = [
            "/keyslots/0/area/offset",
            "/keyslots/0/area/size",
            "/segments/0/offset",
            "/segments/0/size",
            "/segments/0/iv_tweak",
            "/config/json_size",
            "/config/keyslots_size",
        ];
        let no_texts = [
            json!(5),
            json!("-1"),
            json!("5.0"),
            json!("4e9"),
            json!(""),
            json!("99999999999999999999"),
            json!("0x10"),
        ];
        for (places, values) in [(&counts[..], &no_counts[..]), (&texts, &no_texts)] {
            for place in places {
                for value in values {
                    let mut json = good();
                    *json.pointer_mut(place).unwrap() = value.clone();
                    let said = check(&json).expect_err(&format!("{place}: {value}"));
                    assert!(said.starts_with(&place[1..].replace('/', ".")), "{place}: {said}");
                }
            }
        }
        let mut pbkdf2 = good();
        pbkdf2["keyslots"]["0"]["kdf"] = json!({ "type": "pbkdf2", "iterations": 4e9 });
        assert!(check(&pbkdf2).unwrap_err().starts_with("keyslots.0.kdf.iterations is 4000000000.0"));
        for place in ["keyslots", "digests", "segments", "config"] {
            let mut json = good();
            json.as_object_mut().unwrap().remove(place);
            assert_eq!(check(&json), Err(format!("{place} is missing")));
            json[place] = json!({ "x": {} });
            assert!(check(&json).is_err());
        }
    }

    #[test]
    fn what_does_not_fit_together_is_said() {
        assert_eq!(check_layout(&good(), 0x4000), Ok(()));
        for (place, value, word) in [
            ("/config/json_size", json!("4096"), "config.json_size"),
            ("/keyslots/0/area/offset", json!("4096"), "outside"),
            ("/keyslots/0/area/size", json!("18446744073709551615"), "outside"),
            ("/digests/0/keyslots", json!(["7"]), "digests.0.keyslots"),
            ("/digests/0/segments", json!([1]), "digests.0.segments"),
        ] {
            let mut json = good();
            *json.pointer_mut(place).unwrap() = value;
            let said = check_layout(&json, 0x4000).unwrap_err();
            assert!(said.contains(word), "{place}: {said}");
        }
    }
}
