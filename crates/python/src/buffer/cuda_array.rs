//! The CUDA array interface, versions 0 to 3.
//!
//! What is kept is the object, as the interface has no word for the memory itself: an object that offers it keeps
//! its memory for as long as it lives. Tensors, which do not, are asked in another way (`torch`).

use super::array::{bytes_of, is_c_order, not_contiguous, read_only};
use super::lent::{DEFAULT_STREAM, Lent, Role};
use crate::error::bad;
use crate::life::Keeper;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

/// What an object with the interface lends; none for other objects.
pub(super) fn lend<'py>(object: &Bound<'py, PyAny>, role: Role) -> PyResult<Option<Lent>> {
    let py = object.py();
    let Some(interface) = object.getattr_opt(intern!(py, "__cuda_array_interface__"))? else { return Ok(None) };
    let interface = interface.cast_into::<PyDict>().map_err(|_| broken("is not a dict"))?;
    let entry = |name: &Bound<'py, PyString>| entry_of(&interface, name);
    let needed = |name: &Bound<'py, PyString>| entry(name)?.ok_or_else(|| broken(&format!("has no \"{name}\"")));
    let shape: Vec<i64> = needed(intern!(py, "shape"))?
        .extract()
        .map_err(|_| broken("has a \"shape\" that is not a tuple of integers"))?;
    let (address, is_read_only): (u64, bool) = needed(intern!(py, "data"))?
        .extract()
        .map_err(|_| broken("has \"data\" that is not a pair of an address and a read-only flag"))?;
    let element = element_bytes(&needed(intern!(py, "typestr"))?.extract::<String>()?)?;
    if entry(intern!(py, "mask"))?.is_some() {
        return Err(bad("masked arrays are not supported: pass the data and the mask separately"));
    }
    if role == Role::Destination && is_read_only {
        return Err(read_only(object));
    }
    if let Some(strides) = entry(intern!(py, "strides"))? {
        let strides: Vec<i64> =
            strides.extract().map_err(|_| broken("has \"strides\" that are not a tuple of integers"))?;
        if !is_c_order(&shape, &strides, element.cast_signed()) {
            return Err(not_contiguous(object));
        }
    }
    let producer = match entry(intern!(py, "stream"))? {
        Some(stream) => match stream.extract::<u64>() {
            Ok(stream) if stream > 0 => stream,
            _ => return Err(broken("has a \"stream\" that is not a positive integer")),
        },
        None => DEFAULT_STREAM,
    };
    let bytes = bytes_of(&shape, element.checked_mul(8).ok_or_else(|| broken("has elements that are too large"))?)?;
    Lent::of_gpu(py, address, bytes, Keeper::Object(object.clone().unbind()), Some(producer)).map(Some)
}

/// An entry that is there and not None.
fn entry_of<'py>(interface: &Bound<'py, PyDict>, name: &Bound<'py, PyString>) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(interface.get_item(name)?.filter(|value| !value.is_none()))
}

/// Bytes of an element of a type such as "<f4" or "|u1".
fn element_bytes(text: &str) -> PyResult<u64> {
    let number = text.trim_start_matches(['<', '>', '|', '=']).get(1..).unwrap_or_default();
    let bytes = number.split('[').next().unwrap_or_default().parse().ok().filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| broken(&format!("has the \"typestr\" {text:?}, which is not a type")))
}

fn broken(what: &str) -> PyErr {
    bad(format!("the object's __cuda_array_interface__ {what}"))
}
