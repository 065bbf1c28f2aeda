//! Where a volume's data lies and how it is encrypted: what the header claims, checked.

use crate::{BlockDevice, Error, ErrorKind, Result};
use bifolio_kernels::aes_xts::{IvUnit, Sectors};
use serde_json::Value;

/// The data of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    /// First byte of it in the inner device.
    pub(super) offset: u64,
    /// Bytes, whole sectors.
    pub(super) len: u64,
    /// The sectors from `offset` on.
    pub(super) sectors: Sectors,
}

/// The same as the header claims it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claimed<'a> {
    pub(super) cipher: &'a str,
    pub(super) key_bytes: i32,
    pub(super) sector_bytes: i32,
    pub(super) offset: u64,
    /// None: to the device's end.
    pub(super) len: Option<u64>,
    /// Number of the first sector, in units of 512 bytes.
    pub(super) first_iv: u64,
    /// Metadata and keyslots.
    pub(super) header_bytes: u64,
}

/// The segment, if it can be as claimed, and is one that this crate can read.
pub(super) fn checked(inner: &dyn BlockDevice, claimed: &Claimed<'_>) -> Result<Segment> {
    let unsupported = |detail: String| Err(Error::new(ErrorKind::Unsupported, inner.name(), detail));
    let damaged = |detail: String| Err(Error::new(ErrorKind::Damaged, inner.name(), detail));
    let Claimed { cipher, key_bytes, offset, first_iv, .. } = *claimed;
    let is_short_iv = cipher == "aes-xts-plain";
    if !is_short_iv && cipher != "aes-xts-plain64" {
        return unsupported(format!("it is encrypted by {cipher}; only aes-xts-plain64 is implemented"));
    }
    if !matches!(key_bytes, 32 | 64) {
        return unsupported(format!(
            "its key has {} bits; aes-xts-plain64 is implemented with 256 and 512",
            i64::from(key_bytes) * 8
        ));
    }
    let Ok(sector_bytes @ (512 | 1024 | 2048 | 4096)) = u32::try_from(claimed.sector_bytes) else {
        return damaged(format!("its header gives a sector size of {} bytes", claimed.sector_bytes));
    };
    if offset == 0 {
        return unsupported("it is a header without its data (a detached header), which is not implemented".into());
    }
    if !offset.is_multiple_of(512) || offset < claimed.header_bytes {
        return damaged(format!(
            "its header places the data at byte {offset}, inside the header's own {} bytes",
            claimed.header_bytes
        ));
    }
    let size = inner.geometry().size;
    if offset >= size {
        return damaged(format!("its data begins at byte {offset}, and the image has only {size}: it was truncated"));
    }
    let len = match claimed.len {
        Some(len) => {
            check_inside(inner, offset, len, "its data")?;
            if len == 0 || !len.is_multiple_of(u64::from(sector_bytes)) {
                return damaged(format!("its header gives {len} bytes of data in sectors of {sector_bytes}"));
            }
            len
        }
        None => (size - offset) / u64::from(sector_bytes) * u64::from(sector_bytes),
    };
    if len == 0 {
        return damaged(format!(
            "its data begins at byte {offset}, and the image has only {size}: it was truncated within the first sector of \
             {sector_bytes} bytes"
        ));
    }
    let last_iv = first_iv.checked_add(len / 512);
    let last_iv_max = if is_short_iv { u64::from(u32::MAX) } else { u64::MAX };
    if last_iv.is_none_or(|last| last > last_iv_max) {
        return unsupported(format!("the numbers of its sectors, {first_iv} and more, do not fit into {cipher}"));
    }
    // LUKS has no `iv_large_sectors`: numbers count 512 bytes whatever a sector's size.
    let sectors = Sectors { bytes: sector_bytes, first_iv, iv_unit: IvUnit::Bytes512 };
    Ok(Segment { offset, len, sectors })
}

/// Refuses a range that reaches beyond the device: the image was truncated.
pub(super) fn check_inside(inner: &dyn BlockDevice, offset: u64, len: u64, what: &str) -> Result<()> {
    let size = inner.geometry().size;
    if offset.checked_add(len).is_some_and(|end| end <= size) {
        return Ok(());
    }
    let detail = format!(
        "{what} is {len} bytes from byte {offset} on, and the image has only {size}: it was truncated, or its header is \
         damaged"
    );
    Err(Error::new(ErrorKind::Damaged, inner.name(), detail))
}

/// The fixed length of a LUKS2 volume's only segment, None if it goes to the device's end.
pub(super) fn only_segment(json: &Value, name: &str) -> Result<Option<u64>> {
    let unsupported = |detail: String| Err(Error::new(ErrorKind::Unsupported, name, detail));
    let damaged = |detail: &str| Error::new(ErrorKind::Damaged, name, detail);
    let requirements = &json["config"]["requirements"]["mandatory"];
    if let Some(names) = requirements.as_array().filter(|names| !names.is_empty()) {
        let names: Vec<&str> = names.iter().filter_map(Value::as_str).take(4).collect();
        let names = names.join(", ");
        let advice = if names.contains("reencrypt") {
            "; its re-encryption is under way: let cryptsetup finish it (`cryptsetup reencrypt --resume-only`)"
        } else {
            ""
        };
        return unsupported(format!("its header requires features that are not implemented ({names}){advice}"));
    }
    let segments = json["segments"].as_object().ok_or_else(|| damaged("its header describes no data"))?;
    let mut all = segments.values();
    let (Some(segment), None) = (all.next(), all.next()) else {
        return unsupported(format!(
            "it has {} segments, as during re-encryption; only one is implemented",
            segments.len()
        ));
    };
    match segment["type"].as_str() {
        Some("crypt") => {}
        other => return unsupported(format!("its data is of the type {}, not crypt", other.unwrap_or("?"))),
    }
    if !segment["integrity"].is_null() {
        let kind = segment["integrity"]["type"].as_str().unwrap_or("?");
        return unsupported(format!("it uses integrity tags ({kind}), which are not implemented"));
    }
    if let Some(flags) = segment["flags"].as_array().filter(|flags| !flags.is_empty()) {
        let flags: Vec<&str> = flags.iter().filter_map(Value::as_str).take(4).collect();
        return unsupported(format!("its data has the flags {}, which are not implemented", flags.join(", ")));
    }
    match segment["size"].as_str() {
        Some("dynamic") => Ok(None),
        Some(number) => {
            let len = number.parse().map_err(|_| damaged("its header does not give the size of the data"))?;
            Ok(Some(len))
        }
        None => Err(damaged("its header does not give the size of the data")),
    }
}

/// The most iterations that a LUKS2 header's digests ask for.
pub(super) fn digest_iterations(json: &Value) -> u64 {
    let digests = json["digests"].as_object().into_iter().flat_map(serde_json::Map::values);
    digests.filter_map(|digest| digest["iterations"].as_u64()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_block::faults::FaultyDevice;
    use serde_json::json;

    const CLAIMED: Claimed<'_> = Claimed {
        cipher: "aes-xts-plain64",
        key_bytes: 64,
        sector_bytes: 4096,
        offset: 4096,
        len: None,
        first_iv: 0,
        header_bytes: 4096,
    };

    fn kind(claimed: Claimed<'_>) -> Result<Segment, ErrorKind> {
        let inner = FaultyDevice::new("image", vec![0; 20 * 512 + 4096]);
        checked(&inner, &claimed).map_err(|error| error.kind())
    }

    #[test]
    fn a_dynamic_segment_is_rounded_down_to_whole_sectors() {
        let segment = kind(CLAIMED).unwrap();
        assert_eq!((segment.offset, segment.len, segment.sectors.bytes), (4096, 8192, 4096));
        assert_eq!(kind(Claimed { sector_bytes: 512, ..CLAIMED }).unwrap().len, 20 * 512);
    }

    #[test]
    fn claims_that_cannot_be_are_damage() {
        for claimed in [
            Claimed { sector_bytes: 0, ..CLAIMED },
            Claimed { sector_bytes: -512, ..CLAIMED },
            Claimed { sector_bytes: 8192, ..CLAIMED },
            Claimed { offset: 4097, ..CLAIMED },
            Claimed { offset: 512, ..CLAIMED },
            Claimed { offset: 20 * 512 + 4096, ..CLAIMED },
            Claimed { offset: !511, ..CLAIMED },
            Claimed { len: Some(0), ..CLAIMED },
            Claimed { len: Some(100), ..CLAIMED },
            Claimed { len: Some(!4095), ..CLAIMED },
            Claimed { len: Some(12288), ..CLAIMED },
            // Symptom: an image that was cut within its first sector was read as 0 bytes, with success.
            Claimed { offset: 20 * 512 + 4096 - 512, ..CLAIMED },
        ] {
            assert_eq!(kind(claimed), Err(ErrorKind::Damaged), "{claimed:?}");
        }
    }

    #[test]
    fn what_is_not_implemented_is_named() {
        for claimed in [
            Claimed { cipher: "aes-cbc-essiv:sha256", ..CLAIMED },
            Claimed { cipher: "serpent-xts-plain64", ..CLAIMED },
            Claimed { key_bytes: 48, ..CLAIMED },
            Claimed { key_bytes: -1, ..CLAIMED },
            Claimed { offset: 0, ..CLAIMED },
            Claimed { first_iv: u64::MAX, ..CLAIMED },
            Claimed { cipher: "aes-xts-plain", first_iv: u64::from(u32::MAX), ..CLAIMED },
        ] {
            assert_eq!(kind(claimed), Err(ErrorKind::Unsupported), "{claimed:?}");
        }
        assert!(kind(Claimed { cipher: "aes-xts-plain", ..CLAIMED }).is_ok());
    }

    #[test]
    fn segments_of_every_other_kind_are_refused() {
        let crypt = json!({ "type": "crypt", "size": "dynamic" });
        let header = |segments: Value| json!({ "segments": segments, "config": {} });
        let kind = |json: &Value| only_segment(json, "image").map_err(|error| error.kind());
        assert_eq!(kind(&header(json!({ "0": crypt }))), Ok(None));
        assert_eq!(kind(&header(json!({ "0": { "type": "crypt", "size": "4096" } }))), Ok(Some(4096)));
        let unsupported = Err(ErrorKind::Unsupported);
        assert_eq!(kind(&header(json!({ "0": crypt, "1": crypt }))), unsupported);
        assert_eq!(kind(&header(json!({}))), unsupported);
        assert_eq!(kind(&header(json!({ "0": { "type": "linear", "size": "dynamic" } }))), unsupported);
        for (field, value) in [("integrity", json!({ "type": "hmac(sha256)" })), ("flags", json!(["in-reencryption"]))]
        {
            let mut other = crypt.clone();
            other[field] = value;
            assert_eq!(kind(&header(json!({ "0": other }))), unsupported, "{field}");
        }
        let mut underway = header(json!({ "0": crypt }));
        underway["config"]["requirements"] = json!({ "mandatory": ["online-reencrypt-v2"] });
        let error = only_segment(&underway, "image").unwrap_err();
        assert!(error.to_string().contains("re-encryption is under way"), "{error}");
        assert_eq!(kind(&header(json!({ "0": { "type": "crypt", "size": "-1" } }))), Err(ErrorKind::Damaged));
        assert_eq!(kind(&json!({})), Err(ErrorKind::Damaged));
    }
}
