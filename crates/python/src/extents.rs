//! Extents of a batch, as Python has them.

use crate::count::Count;
use crate::error::bad;
use crate::life::View;
use bifolio_io::ReadExtent;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_char;

/// Extents as Python has them: an (n, 3) array of 64-bit integers, or a sequence of (offset, length, place).
pub(crate) fn extents_of(object: &Bound<'_, PyAny>) -> PyResult<Vec<ReadExtent>> {
    if let Some(extents) = extents_of_array(object)? {
        return Ok(extents);
    }
    let each = object.try_iter().map_err(|_| no_extents())?;
    let extent = |item: PyResult<Bound<'_, PyAny>>| -> PyResult<ReadExtent> {
        let item = item?;
        let extent: PyResult<(Count, Count, Count)> = item.extract();
        let (offset, length, place) = extent
            .map_err(|error| if error.is_instance_of::<PyTypeError>(item.py()) { no_extents() } else { error })?;
        Ok(ReadExtent { offset: offset.0, length: length.0, place: place.0 })
    };
    each.map(extent).collect()
}

fn no_extents() -> PyErr {
    PyTypeError::new_err(
        "extents must be a sequence of (offset, length, place), or a contiguous array of 64-bit integers with three columns",
    )
}

/// The fast way: thousands of extents without an object for each number. None for what is no such array.
fn extents_of_array(object: &Bound<'_, PyAny>) -> PyResult<Option<Vec<ReadExtent>>> {
    // SAFETY: a question about the object's type.
    if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 {
        return Ok(None);
    }
    // SAFETY: the structure is filled by the call, for which zeroes are a valid start.
    let mut view = Box::new(unsafe { std::mem::zeroed::<ffi::Py_buffer>() });
    let flags = ffi::PyBUF_STRIDES | ffi::PyBUF_FORMAT;
    // SAFETY: the object has the protocol, and the structure may be written.
    if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    let view = View(view);
    let view = &view.0;
    if view.ndim != 2 || view.shape.is_null() {
        return Err(no_extents());
    }
    // SAFETY: two sides; the format, where there is one, ends with a zero byte.
    let (columns, format, contiguous) = unsafe {
        let format = if view.format.is_null() { c"B" } else { std::ffi::CStr::from_ptr(view.format) };
        (*view.shape.add(1), format, ffi::PyBuffer_IsContiguous(&raw const **view, b'C' as c_char) == 1)
    };
    let kind = format.to_str().unwrap_or_default().trim_start_matches(['@', '=', '<']);
    let is_signed = matches!(kind, "l" | "q" | "n");
    let is_integer = view.itemsize == 8 && (is_signed || matches!(kind, "L" | "Q" | "N"));
    if columns != 3 || !is_integer || !contiguous {
        return Err(no_extents());
    }
    let numbers = view.len as usize / 8;
    let number = |index: usize| -> PyResult<u64> {
        // SAFETY: the view has that many numbers of eight bytes, perhaps not aligned.
        let number = unsafe { view.buf.cast::<u64>().add(index).read_unaligned() };
        if is_signed && number.cast_signed() < 0 {
            let row = index / 3;
            return Err(bad(format!("extent {row} has a negative number, {}", number.cast_signed())));
        }
        Ok(number)
    };
    let extent = |at: usize| Ok(ReadExtent { offset: number(at)?, length: number(at + 1)?, place: number(at + 2)? });
    (0..numbers).step_by(3).map(extent).collect::<PyResult<_>>().map(Some)
}
