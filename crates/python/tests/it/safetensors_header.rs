//! Headers of safetensors files: what is refused, what passes, and that nothing panics. Agreement with the
//! reference implementation is tested in `test_safetensors.py`.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "the module is included as the crate has it")]

#[path = "../../src/header.rs"]
mod header;

use header::{HEADER_BYTES_MAX, length, parse};
use proptest::prelude::*;

fn refused(text: &str, data_bytes: u64, word: &str) {
    let why = parse(text.as_bytes(), data_bytes).unwrap_err();
    assert!(why.contains(word), "{text}: {why}");
}

#[test]
fn tensors_come_in_the_order_of_their_data_with_metadata() {
    let text = r#"{"b":{"dtype":"F32","shape":[2],"data_offsets":[6,14]},"__metadata__":{"format":"pt"},
        "a":{"dtype":"BF16","shape":[1,3],"data_offsets":[0,6]},"none":{"dtype":"U8","shape":[0],"data_offsets":[6,6]}}  "#;
    let header = parse(text.as_bytes(), 14).unwrap();
    assert_eq!(header.metadata, Some(vec![("format".to_owned(), "pt".to_owned())]));
    let names: Vec<_> = header.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.begin, tensor.end)).collect();
    assert_eq!(names, [("a", 0, 6), ("none", 6, 6), ("b", 6, 14)]);
}

#[test]
fn lengths_are_bounded_before_anything_is_allocated() {
    assert!(length((HEADER_BYTES_MAX + 1).to_le_bytes(), u64::MAX).unwrap_err().contains("limit"));
    assert!(length(u64::MAX.to_le_bytes(), u64::MAX).is_err());
    assert!(length(93_u64.to_le_bytes(), 100).unwrap_err().contains("truncated"));
    assert_eq!(length(92_u64.to_le_bytes(), 100), Ok(92));
}

#[test]
fn what_is_wrong_is_refused_with_the_reason() {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    refused(" {}", 0, "begin with");
    refused("[]", 0, "begin with");
    refused("{", 0, "invalid header");
    refused("{} x", 0, "invalid header");
    refused(&one("F33", "[1]", "[0,4]"), 4, "F33");
    refused(&one("F32", "[-1]", "[0,4]"), 4, "invalid header");
    refused(&one("F32", "[1.0]", "[0,4]"), 4, "invalid header");
    refused(&one("F32", "[1]", "[0,4,8]"), 4, "invalid header");
    refused(&one("F32", "[1]", "[4,0]"), 4, "before it ends at 0");
    refused(&one("F32", "[1]", "[1,5]"), 5, "before it ends at 0");
    refused(&one("F32", "[2]", "[0,4]"), 4, "needs 8");
    refused(&one("F32", "[1]", "[0,4]"), 8, "belong to no tensor");
    refused(&one("F32", "[1]", "[0,4]"), 3, "truncated");
    refused(&one("F4", "[3]", "[0,1]"), 1, "byte boundary");
    refused(&one("F32", "[9223372036854775808,2]", "[0,0]"), 0, "overflows");
    refused(&one("F64", "[2305843009213693952]", "[0,0]"), 0, "overflows");
    refused(r#"{"__metadata__":{"a":1}}"#, 0, "invalid header");
    refused(r#"{"__metadata__":{"a":"1","a":"2"}}"#, 0, "duplicate key");
    refused(
        r#"{"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#,
        0,
        "duplicate key",
    );
    refused(r#"{"t":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#, 0, "duplicate");
    refused(
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#,
        6,
        "\"b\": data_offsets are 2 to 6, and the tensor before it ends at 4",
    );
    assert!(parse(b"{\"\xff\":1}", 0).unwrap_err().contains("not UTF-8 at byte 10"));
    assert!(parse("{\"a\":".repeat(1000).as_bytes(), 0).unwrap_err().contains("invalid header"));
}

#[test]
fn a_null_for_metadata_is_none() {
    assert_eq!(parse(br#"{"__metadata__":null}"#, 0).unwrap().metadata, None);
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_tile_the_data(bytes in proptest::collection::vec(any::<u8>(), 0..200), data in 0_u64..64) {
        check(&bytes, data)?;
    }

    #[test]
    fn nearly_right_headers_are_refused_or_tile_the_data(
        tensors in proptest::collection::vec((0_usize..5, 0_u64..4, 0_u64..4, 0_u64..3), 0..5), slack in 0_u64..2
    ) {
        let (mut at, mut text) = (0, String::from("{"));
        for (number, (dtype, rows, columns, shift)) in tensors.iter().enumerate() {
            let (name, bytes) = [("U8", 1), ("F16", 2), ("F32", 4), ("F64", 8), ("F4", 0)][*dtype];
            let end = at + rows * columns * bytes + u64::from(*shift == 2);
            let comma = if number > 0 { "," } else { "" };
            let shape = format!("[{rows},{columns}]");
            let offsets = format!("[{at},{end}]");
            text.extend([comma, "\"", &number.to_string(), r#"":{"dtype":""#, name, r#"","shape":"#, &shape]);
            text.extend([r#","data_offsets":"#, &offsets, "}"]);
            at = end;
        }
        text += "}";
        check(text.as_bytes(), at + slack)?;
    }
}

fn check(bytes: &[u8], data: u64) -> Result<(), TestCaseError> {
    match parse(bytes, data) {
        Err(why) => prop_assert!(why.len() > 10 && !why.ends_with('.'), "{why}"),
        Ok(header) => {
            let mut at = 0;
            for tensor in header.tensors {
                prop_assert_eq!(tensor.begin, at);
                prop_assert_eq!(
                    (tensor.end - tensor.begin) * 8,
                    tensor.shape.iter().product::<u64>() * tensor.dtype.bits()
                );
                at = tensor.end;
            }
            prop_assert_eq!(at, data);
        }
    }
    Ok(())
}
