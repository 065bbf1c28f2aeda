//! The table of C functions that packages with DLPack offer from version 1.2 of the format on
//! (`__dlpack_c_exchange_api__` of a type): what a capsule says, without a capsule and without a call of
//! Python's.
//!
//! ```text
//!   type.__dlpack_c_exchange_api__ -> capsule -> table -> table of an older version -> ...
//! ```
//!
//! A table is the package's, and stays where it is until the process ends. Its functions want the
//! interpreter's lock. What they describe is lent for a moment: nothing keeps it but the object itself.

use super::dlpack::Tensor;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::ffi::{CStr, c_int, c_void};

const NAME: &CStr = c"dlpack_exchange_api";

/// The version whose tables are understood. Later minor versions only add to the end.
const MAJOR: u32 = 1;

#[repr(C)]
struct Header {
    major: u32,
    minor: u32,
    /// A table of an older version.
    previous: *const Header,
}

type Describe = unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int;
type CurrentStream = unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int;

#[repr(C)]
struct Table {
    header: Header,
    // To allocate, to export and to import tensors that are owned.
    others: [*const c_void; 3],
    describe: Option<Describe>,
    current_stream: Option<CurrentStream>,
}

/// What is used of a type's table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exchange {
    describe: Describe,
    current_stream: CurrentStream,
}

impl Exchange {
    /// The functions of a type; none where it has no table, or none that is understood.
    pub(super) fn of(class: &Bound<'_, PyType>) -> Option<Self> {
        let capsule = class.getattr(intern!(class.py(), "__dlpack_c_exchange_api__")).ok()?;
        // SAFETY: a question about an object that may be anything.
        if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), NAME.as_ptr()) } == 0 {
            return None;
        }
        // SAFETY: the capsule has that name, which says what is behind it.
        let mut header = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), NAME.as_ptr()) }.cast::<Header>();
        // SAFETY: every version of the table begins with the header, and tables stay for as long as the process.
        while let Some(known) = unsafe { header.as_ref() } {
            if known.major == MAJOR {
                // SAFETY: the layout of all tables of this version.
                let table = unsafe { &*header.cast::<Table>() };
                return Some(Self { describe: table.describe?, current_stream: table.current_stream? });
            }
            header = known.previous.cast_mut();
        }
        None
    }

    /// The memory of an object of the type; an exception where DLPack has no words for it.
    pub(super) fn describe(self, object: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let mut tensor = Tensor::default();
        // SAFETY: an object of the type that has the function, and a structure that it fills.
        let status = unsafe { (self.describe)(object.as_ptr().cast(), &raw mut tensor) };
        if status == 0 { Ok(tensor) } else { Err(PyErr::fetch(object.py())) }
    }

    /// The stream of a device on which the program works at the moment.
    pub(super) fn current_stream(self, py: Python<'_>, (kind, index): (i32, i32)) -> PyResult<u64> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the function stores one handle.
        let status = unsafe { (self.current_stream)(kind, index, &raw mut stream) };
        if status == 0 { Ok(stream as u64) } else { Err(PyErr::fetch(py)) }
    }
}

// The layouts that every producer was compiled with.
const _: () = assert!(size_of::<Header>() == 16);
const _: () = assert!(size_of::<Table>() == 56);
const _: () = assert!(std::mem::offset_of!(Table, describe) == 40);
