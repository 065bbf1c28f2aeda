//! Device memory without a framework.

use crate::buffer::{self, Lent};
use crate::count::Count;
use crate::error::{bad, of_device, of_request};
use crate::explain::{choice_of, device_of};
use crate::life::{Keeper, Shared, begin, detached};
use bifolio_device::{Allocation, BackendKind, DevicePtr, DeviceSlice};
use bifolio_io::{Router, process};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyIndexError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PySlice};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Bytes of a device, freed when nobody uses them any more: this object, its slices, arrays made of it, and
/// requests under way. On a CUDA device it has the CUDA array interface, on "host:N" the buffer protocol, on
/// both DLPack.
#[pyclass(frozen, module = "bifolio")]
#[derive(Debug)]
pub(crate) struct Memory {
    router: Arc<Router>,
    allocation: Shared<Allocation>,
    start: u64,
    bytes: u64,
}

/// Allocates memory of a device; without one, of the first GPU, else of the host. Its content is anything.
#[pyfunction]
#[pyo3(signature = (nbytes, device = None), text_signature = "(nbytes, device=None)")]
pub(crate) fn empty(py: Python<'_>, nbytes: Count, device: Option<&str>) -> PyResult<Memory> {
    begin()?;
    let choice = choice_of(py, device)?;
    let router = detached(py, || process::router(choice)).map_err(|error| of_request(&error))?;
    let memory = detached(py, || router.device().alloc(nbytes.0)).map_err(|error| of_device(&error))?;
    Ok(Memory { router, allocation: Shared::new(memory), start: 0, bytes: nbytes.0 })
}

/// Host memory behind an address that only the device can use, as a GPU's is: for testing, without a GPU, what
/// is done with such addresses.
#[pyclass(frozen, subclass, module = "bifolio._native")]
#[derive(Debug)]
pub(crate) struct FencedMemory(bifolio_device::FencedMemory);

#[pymethods]
impl FencedMemory {
    #[new]
    fn new(nbytes: u64) -> PyResult<Self> {
        begin()?;
        bifolio_device::FencedMemory::alloc(nbytes.max(1)).map(Self).map_err(|error| of_device(&error))
    }

    /// The address behind the fence.
    #[getter]
    fn ptr(&self) -> u64 {
        self.0.address()
    }

    /// A copy of the bytes.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_vec())
    }

    /// Refuses, by the exception with which `CuPy`'s arrays do: they have the protocol, and nothing to show.
    ///
    /// # Safety
    /// Called by the interpreter.
    unsafe fn __getbuffer__(_slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, _flags: c_int) -> PyResult<()> {
        // SAFETY: the interpreter passes a structure to fill, whose object is NULL where nothing is lent.
        unsafe { (*view).obj = std::ptr::null_mut() };
        Err(PyTypeError::new_err("fenced memory is not host memory: use to_bytes()"))
    }
}

impl Memory {
    /// What it lends to a request.
    pub(crate) fn lend(&self) -> Lent {
        let producer = (self.kind() == BackendKind::Cuda).then_some(buffer::DEFAULT_STREAM);
        let keeper = Keeper::Memory(self.allocation.clone());
        Lent { router: Arc::clone(&self.router), address: self.address(), bytes: self.bytes, keeper, producer }
    }

    fn address(&self) -> DevicePtr {
        self.allocation.ptr().offset_by(self.start)
    }

    fn kind(&self) -> BackendKind {
        self.allocation.device().id().backend
    }

    fn slice(&self) -> DeviceSlice<'_> {
        // SAFETY: the part lies inside the allocation, which is kept.
        unsafe { DeviceSlice::from_raw_ordered(self.address(), self.bytes) }
    }

    /// Something on a stream of our own, once earlier work on the memory is done.
    fn with_stream(
        &self,
        py: Python<'_>,
        work: impl Send + FnOnce(&bifolio_device::Stream) -> bifolio_device::Result<()>,
    ) -> PyResult<()> {
        let done = detached(py, || {
            Lent::settle(&self.router, (self.kind() == BackendKind::Cuda).then_some(buffer::DEFAULT_STREAM))?;
            work(&self.allocation.device().create_stream()?)
        });
        done.map_err(|error| of_device(&error))
    }
}

#[pymethods]
impl Memory {
    /// Length in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.bytes
    }

    /// The device's name, such as "cuda:0".
    #[getter]
    fn device(&self) -> String {
        device_of(&self.router)
    }

    /// The first address, as the device knows it.
    #[getter]
    fn ptr(&self) -> u64 {
        self.address().0
    }

    fn __len__(&self) -> usize {
        self.bytes as usize
    }

    fn __repr__(&self) -> String {
        format!("<bifolio.Memory: {} bytes of {} at {}>", self.bytes, device_of(&self.router), self.address())
    }

    /// A part, which shares the memory: `memory[start:end]`.
    fn __getitem__(&self, index: &Bound<'_, PyAny>) -> PyResult<Self> {
        let Ok(slice) = index.cast::<PySlice>() else {
            return Err(PyTypeError::new_err("memory indices must be slices, such as memory[0:4096]"));
        };
        let range = slice.indices(self.bytes.cast_signed() as isize)?;
        if range.step != 1 {
            return Err(PyIndexError::new_err("slices of memory must have step 1"));
        }
        let (start, bytes) = (self.start + range.start as u64, range.slicelength as u64);
        Ok(Self { router: Arc::clone(&self.router), allocation: self.allocation.clone(), start, bytes })
    }

    /// A copy of the bytes in host memory.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        begin()?;
        PyBytes::new_with(py, self.bytes as usize, |bytes| {
            if bytes.is_empty() { Ok(()) } else { self.with_stream(py, |stream| stream.download(bytes, self.slice())) }
        })
    }

    /// Copies bytes of the host into the memory, from its start, and waits.
    fn copy_from(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        begin()?;
        let lent = Lent::by(data, buffer::Role::Source)?;
        if !lent.router.device().capabilities().host_addressable.is_yes() {
            return Err(bad("copy_from() takes host memory, such as bytes, a bytearray or a NumPy array"));
        }
        if lent.bytes > self.bytes {
            return Err(bad(format!("{} bytes do not fit into {} bytes of memory", lent.bytes, self.bytes)));
        }
        let place = self.slice().part(0, lent.bytes).map_err(|error| of_device(&error))?;
        let source = lent.address.0;
        let is_apart =
            source.saturating_add(lent.bytes) <= place.ptr().0 || place.ptr().0.saturating_add(lent.bytes) <= source;
        // Addresses of other devices may be the same numbers, and other memory.
        if self.allocation.device().capabilities().host_addressable.is_yes() && lent.bytes > 0 && !is_apart {
            return Err(bad(format!(
                "the source overlaps the destination of {} bytes: pass a copy, such as to_bytes()",
                lent.bytes
            )));
        }
        self.with_stream(py, |stream| {
            // SAFETY: the exporter is kept until the stream has been waited for.
            let copied = unsafe { stream.copy_to_device(place, source as *const u8) };
            copied.and(stream.synchronize())
        })
    }

    /// The CUDA array interface: an array of bytes.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.kind() != BackendKind::Cuda {
            let device = self.device();
            return Err(PyAttributeError::new_err(format!("memory of {device} has no CUDA array interface")));
        }
        let interface = PyDict::new(py);
        interface.set_item("shape", (self.bytes,))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (if self.bytes == 0 { 0 } else { self.address().0 }, false))?;
        interface.set_item("strides", py.None())?;
        interface.set_item("version", 3)?;
        // Calls of ours return when the bytes are in place: there is nothing to wait for.
        interface.set_item("stream", py.None())?;
        Ok(interface)
    }

    /// The device as DLPack numbers it.
    fn __dlpack_device__(&self) -> (i32, i32) {
        buffer::dlpack_device(self.allocation.device().id())
    }

    /// A DLPack capsule: an array of bytes.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // Whatever the consumer's stream: calls of ours return when the bytes are in place.
        let _ = stream;
        let device = self.allocation.device().id();
        let memory = buffer::ExportedMemory { device, address: self.address().0, bytes: self.bytes, writable: true };
        let wanted = buffer::Wanted { max_version, device: dl_device, copy };
        buffer::export(py, memory, wanted, || Ok(Arc::clone(self.allocation.share()) as buffer::Kept))
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = slf.get();
        // SAFETY: the interpreter passes a structure to fill, whose object is NULL where nothing is lent.
        unsafe { (*view).obj = std::ptr::null_mut() };
        if !memory.allocation.device().capabilities().host_addressable.is_yes() {
            let device = memory.device();
            let sentence = format!("memory of {device} is not host memory: use to_bytes() or the CUDA array interface");
            return Err(PyBufferError::new_err(sentence));
        }
        // An empty allocation has no address, but a view has to have one.
        let start = if memory.bytes == 0 { slf.as_ptr() as u64 } else { memory.address().0 };
        let (start, bytes) = (start as *mut c_void, memory.bytes.cast_signed() as isize);
        // SAFETY: the memory is kept by the object, to which the view holds a reference.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, bytes, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
