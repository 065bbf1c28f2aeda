//! Any header of a safetensors file: a sentence, or tensors that tile the data and fit their shapes.

#![no_main]
#![allow(dead_code, unreachable_pub, reason = "the module is included as the crate has it")]

#[path = "../../crates/python/src/header.rs"]
mod header;

use header::{HEADER_BYTES_MAX, LENGTH_BYTES, length, parse};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Input<'a> {
    /// A file from its first byte on.
    File(&'a [u8]),
    /// Text that is meant to be a header.
    Text { header: &'a str, data_bytes: u64 },
    /// A header that is right as far as its form goes.
    Formed { tensors: Vec<Formed<'a>>, metadata: Option<Vec<(&'a str, &'a str)>>, data_bytes: u64 },
}

#[derive(Debug, Arbitrary)]
struct Formed<'a> {
    name: &'a str,
    dtype: u8,
    shape: Vec<u64>,
    /// Where it begins and ends: where it should, or anywhere.
    offsets: Option<(u64, u64)>,
}

/// Names, and bits of an element.
const DTYPES: &[(&str, u64)] =
    &[("BOOL", 8), ("F4", 4), ("F6_E2M3", 6), ("BF16", 16), ("F32", 32), ("C64", 64), ("U64", 64), ("F8_E8M0", 8)];

fuzz_target!(|input: Input<'_>| match input {
    Input::File(bytes) => {
        let Some(first) = bytes.first_chunk() else { return };
        match length(*first, bytes.len() as u64) {
            Ok(length) => {
                assert!(length <= HEADER_BYTES_MAX && length + LENGTH_BYTES <= bytes.len() as u64);
                let (header, data) = bytes[LENGTH_BYTES as usize..].split_at(length as usize);
                check(header, data.len() as u64);
            }
            Err(why) => sentence(&why),
        }
    }
    Input::Text { header, data_bytes } => check(header.as_bytes(), data_bytes),
    Input::Formed { tensors, metadata, data_bytes } => {
        let (mut entries, mut at) = (vec![], 0_u64);
        for Formed { name, dtype, shape, offsets } in &tensors {
            let (dtype, bits) = DTYPES[usize::from(*dtype) % DTYPES.len()];
            let elements = shape.iter().fold(1_u64, |product, side| product.wrapping_mul(*side));
            let (begin, end) = offsets.unwrap_or((at, at.wrapping_add(elements.wrapping_mul(bits) / 8)));
            at = end;
            let info = serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, end] });
            entries.push(format!("{}:{info}", serde_json::json!(name)));
        }
        if let Some(texts) = metadata {
            let text = |(key, text): &(&str, &str)| format!("{}:{}", serde_json::json!(key), serde_json::json!(text));
            entries.push(format!("\"__metadata__\":{{{}}}", texts.iter().map(text).collect::<Vec<_>>().join(",")));
        }
        let header = format!("{{{}}}", entries.join(","));
        check(header.as_bytes(), data_bytes);
        check(header.as_bytes(), at);
    }
});

fn check(bytes: &[u8], data_bytes: u64) {
    let header = match parse(bytes, data_bytes) {
        Ok(header) => header,
        Err(why) => return sentence(&why),
    };
    assert!(bytes.starts_with(b"{"));
    let mut at = 0;
    for tensor in &header.tensors {
        assert!(tensor.begin == at && tensor.end >= at, "{tensor:?}");
        // Nothing overflows, which the build checks.
        let bits = tensor.shape.iter().product::<u64>() * tensor.dtype.bits();
        assert_eq!((tensor.end - tensor.begin) * 8, bits, "{tensor:?}");
        at = tensor.end;
    }
    assert_eq!(at, data_bytes);
    let mut names: Vec<_> = header.tensors.iter().map(|tensor| &tensor.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), header.tensors.len());
}

fn sentence(text: &str) {
    assert!(text.len() > 10 && !text.ends_with('.'), "{text:?}");
}
