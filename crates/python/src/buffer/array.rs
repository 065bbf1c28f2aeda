//! Shapes and strides of arrays, and the refusals that all ways to ask share.

use crate::error::bad;
use pyo3::prelude::*;

pub(super) fn null(bytes: u64) -> PyErr {
    bad(format!("the address of {bytes} bytes is 0: the memory was freed or never allocated"))
}

pub(super) fn read_only(object: &Bound<'_, PyAny>) -> PyErr {
    bad(format!("the {} is read-only and cannot be read into", type_name(object)))
}

pub(super) fn not_contiguous(object: &Bound<'_, PyAny>) -> PyErr {
    bad(format!("the {} is not C-contiguous: pass a contiguous copy, or read into one and assign", type_name(object)))
}

pub(super) fn type_name(object: &Bound<'_, PyAny>) -> String {
    let name = object.get_type().fully_qualified_name();
    name.map_or_else(|_| "object".to_owned(), |name| name.to_string())
}

/// Bytes of an array; an error where they overflow.
pub(super) fn bytes_of(shape: &[i64], bits: u64) -> PyResult<u64> {
    let elements = shape.iter().try_fold(1_u64, |product, &side| product.checked_mul(u64::try_from(side).ok()?));
    let bits = elements.and_then(|elements| elements.checked_mul(bits));
    bits.map(|bits| bits.div_ceil(8)).ok_or_else(|| bad(format!("{shape:?} is not the shape of an array")))
}

/// Whether strides, in units of `unit`, are those of an array in C order.
pub(super) fn is_c_order(shape: &[i64], strides: &[i64], unit: i64) -> bool {
    if shape.len() != strides.len() {
        return false;
    }
    if shape.contains(&0) {
        return true;
    }
    let mut expected = unit;
    for (&side, &stride) in shape.iter().zip(strides).rev() {
        // The stride of a side of one element is never used.
        if side != 1 && stride != expected {
            return false;
        }
        expected = expected.saturating_mul(side);
    }
    true
}
