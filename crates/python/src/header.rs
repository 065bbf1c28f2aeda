//! The header of a safetensors file, as strict as the reference implementation, and stricter where that takes
//! the last of several equal keys.
//!
//! ```text
//!   8 bytes: N, little-endian | N bytes of JSON | data
//!   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"key": "text"}}
//! ```
//!
//! Tensors tile the data: without holes, without overlaps, to the last byte. A header that passes can be
//! believed: every offset lies inside the file and fits its shape, and nothing overflows. This file needs
//! nothing of the crate, so that the fuzz target and its own tests include it as it is.

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt;

/// Longer headers are refused, as a claimed length is memory that somebody else makes us allocate.
pub(crate) const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Bytes before the header.
pub(crate) const LENGTH_BYTES: u64 = 8;

/// A header that passed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// What `__metadata__` says, in its order; none where there is no such entry.
    pub(crate) metadata: Option<Vec<(String, String)>>,
    /// In the order of their data.
    pub(crate) tensors: Vec<Tensor>,
}

/// One tensor: what it is, and where in the data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

/// The types of the format, by the names that files use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "the format's names")]
pub(crate) enum Dtype {
    BOOL,
    F4,
    F6_E2M3,
    F6_E3M2,
    U8,
    I8,
    F8_E5M2,
    F8_E4M3,
    F8_E8M0,
    F8_E4M3FNUZ,
    F8_E5M2FNUZ,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    C64,
    F64,
    I64,
    U64,
}

impl Dtype {
    /// Bits of an element.
    pub(crate) fn bits(self) -> u64 {
        match self {
            Self::F4 => 4,
            Self::F6_E2M3 | Self::F6_E3M2 => 6,
            Self::BOOL
            | Self::U8
            | Self::I8
            | Self::F8_E5M2
            | Self::F8_E4M3
            | Self::F8_E8M0
            | Self::F8_E4M3FNUZ
            | Self::F8_E5M2FNUZ => 8,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 16,
            Self::I32 | Self::U32 | Self::F32 => 32,
            Self::C64 | Self::F64 | Self::I64 | Self::U64 => 64,
        }
    }
}

/// How long the header is, from the first eight bytes of a file of `file_bytes`.
pub(crate) fn length(first: [u8; 8], file_bytes: u64) -> Result<u64, String> {
    let length = u64::from_le_bytes(first);
    if length > HEADER_BYTES_MAX {
        return Err(format!(
            "the header length is {length} bytes, more than the limit of {HEADER_BYTES_MAX}: not a safetensors file, or a \
             damaged one"
        ));
    }
    if length.saturating_add(LENGTH_BYTES) > file_bytes {
        return Err(format!(
            "the header length is {length} bytes, and the file has only {file_bytes}: truncated, or not a safetensors file"
        ));
    }
    Ok(length)
}

/// Reads and checks a header that stands before `data_bytes` of data.
pub(crate) fn parse(header: &[u8], data_bytes: u64) -> Result<Header, String> {
    let text = std::str::from_utf8(header)
        .map_err(|error| format!("the header is not UTF-8 at byte {}", LENGTH_BYTES + error.valid_up_to() as u64))?;
    if !text.starts_with('{') {
        return Err("the header does not begin with \"{\"".to_owned());
    }
    let mut entries: Entries = serde_json::from_str(text).map_err(|error| format!("invalid header: {error}"))?;
    entries.tensors.sort_by_key(|(_, info)| info.data_offsets);
    let tensors = check(entries.tensors, data_bytes)?;
    Ok(Header { metadata: entries.metadata, tensors })
}

/// What the JSON says of a tensor. Keys that the format does not know are passed over, as the reference does.
#[derive(Deserialize)]
struct Info {
    dtype: Dtype,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The JSON's entries, of which no two have one key.
struct Entries {
    metadata: Option<Vec<(String, String)>>,
    tensors: Vec<(String, Info)>,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with an entry for each tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let (mut names, mut entries) = (HashSet::new(), Entries { metadata: None, tensors: vec![] });
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format_args!("duplicate key {name:?}")));
                    }
                    if name == "__metadata__" {
                        entries.metadata = map.next_value::<Option<Texts>>()?.map(|texts| texts.0);
                    } else {
                        entries.tensors.push((name, map.next_value()?));
                    }
                }
                Ok(entries)
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

/// Texts by texts, of which no two have one key.
struct Texts(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object whose values are strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
                let (mut keys, mut texts) = (HashSet::new(), vec![]);
                while let Some((key, text)) = map.next_entry::<String, String>()? {
                    if !keys.insert(key.clone()) {
                        return Err(A::Error::custom(format_args!("duplicate key {key:?} in __metadata__")));
                    }
                    texts.push((key, text));
                }
                Ok(Texts(texts))
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

/// Checks that tensors in the order of their offsets tile the data and fit their shapes.
fn check(entries: Vec<(String, Info)>, data_bytes: u64) -> Result<Vec<Tensor>, String> {
    let (mut tensors, mut start) = (Vec::with_capacity(entries.len()), 0);
    for (name, Info { dtype, shape, data_offsets: (begin, end) }) in entries {
        if begin != start || end < begin {
            return Err(format!(
                "tensor {name:?}: data_offsets are {begin} to {end}, and the tensor before it ends at {start}"
            ));
        }
        let elements = shape.iter().try_fold(1_u64, |product, side| product.checked_mul(*side));
        let bits = elements.and_then(|elements| elements.checked_mul(dtype.bits()));
        let bits = bits.ok_or_else(|| format!("tensor {name:?}: the number of bytes of its shape overflows"))?;
        if bits % 8 != 0 {
            return Err(format!("tensor {name:?}: {dtype:?} of shape {shape:?} does not end at a byte boundary"));
        }
        if end - begin != bits / 8 {
            let (has, needs) = (end - begin, bits / 8);
            return Err(format!("tensor {name:?} has {has} bytes, and {dtype:?} of shape {shape:?} needs {needs}"));
        }
        start = end;
        tensors.push(Tensor { name, dtype, shape, begin, end });
    }
    if start == data_bytes {
        return Ok(tensors);
    }
    let problem = if start > data_bytes { "the file is truncated" } else { "some belong to no tensor" };
    Err(format!("the tensors have {start} bytes, and the file has {data_bytes} bytes of data: {problem}"))
}
