//! Tensors of PyTorch: asked by the table of C functions that their type has (from version 2.10 on), which
//! takes a quarter of the time of their own methods, and by those methods where DLPack has no words for a
//! tensor: types of its own, parts that are not dense, subclasses that answer for themselves.
//!
//! A tensor may be given other memory at any time (`tensor.data = other`, `tensor.set_()`), also while a thread
//! has let go of the interpreter's lock. What is kept is therefore not the tensor but the storage that has the
//! bytes, by itself or in a tensor of our own. Only `storage.resize_()` takes bytes from under a storage, as
//! `free` does: the program must not call it before the request is over.

use super::array::{not_contiguous, null};
use super::dlpack::{CPU, CUDA, CUDA_HOST, Tensor};
use super::exchange::Exchange;
use super::lent::{Lent, Role};
use super::routers::router_at;
use crate::error::bad;
use crate::life::Keeper;
use bifolio_device::{BackendKind, DeviceId, DevicePtr};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// What is used of the module, once a program has imported it.
#[derive(Debug)]
struct Torch {
    tensor: Py<PyType>,
    /// The one subclass that is as plain as the type itself.
    parameter: Py<PyType>,
    exchange: Option<Exchange>,
    /// The number of the current stream of a device.
    current_stream: Option<Py<PyAny>>,
    /// Built for AMD's GPUs, which it calls "cuda" as well.
    is_hip: bool,
}

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

impl Torch {
    /// None before a program has imported it: nothing here is a tensor then.
    fn imported(py: Python<'_>) -> PyResult<Option<&Self>> {
        if let Some(torch) = TORCH.get(py) {
            return Ok(Some(torch));
        }
        // SAFETY: a look into the table of modules: a new reference, or NULL, with an exception only where
        // the look failed.
        let module = unsafe { ffi::PyImport_GetModule(intern!(py, "torch").as_ptr()) };
        // SAFETY: as above.
        let Some(module) = (unsafe { Bound::from_owned_ptr_or_opt(py, module) }) else {
            return PyErr::take(py).map_or(Ok(None), Err);
        };
        // While it is being imported, it has not everything yet: nothing is kept of it then.
        let Some(parameter) = module.getattr("nn").ok().and_then(|nn| class_of(&nn, "Parameter")) else {
            return Ok(None);
        };
        let Some(tensor) = class_of(&module, "Tensor") else { return Ok(None) };
        let current_stream = module.getattr("_C").and_then(|c| c.getattr("_cuda_getCurrentRawStream")).ok();
        let is_hip =
            module.getattr("version").and_then(|version| version.getattr("hip")).is_ok_and(|hip| !hip.is_none());
        // On AMD's GPUs nothing is lent, and the sentence that says so is told below.
        let exchange = if is_hip { None } else { Exchange::of(&tensor) };
        let torch = Self {
            tensor: tensor.unbind(),
            parameter: parameter.unbind(),
            exchange,
            current_stream: current_stream.map(Bound::unbind),
            is_hip,
        };
        Ok(Some(TORCH.get_or_init(py, || torch)))
    }

    /// The table of C functions, for objects of the very types that have it: a subclass may hold other tensors
    /// and answer for them.
    fn exchange_of(&self, object: &Bound<'_, PyAny>) -> Option<Exchange> {
        let class = object.get_type_ptr().cast();
        let is_plain = class == self.tensor.as_ptr() || class == self.parameter.as_ptr();
        self.exchange.filter(|_| is_plain)
    }

    /// The stream on which a program works at the moment.
    fn stream(&self, py: Python<'_>, index: u32) -> PyResult<u64> {
        if let Some(current) = &self.current_stream {
            return current.bind(py).call1((index,))?.extract();
        }
        py.import("torch.cuda")?.call_method1("current_stream", (index,))?.getattr("cuda_stream")?.extract()
    }
}

fn class_of<'py>(module: &Bound<'py, PyAny>, name: &str) -> Option<Bound<'py, PyType>> {
    module.getattr(name).ok()?.cast_into().ok()
}

/// What a tensor lends; none for other objects.
pub(super) fn lend(object: &Bound<'_, PyAny>, role: Role) -> PyResult<Option<Lent>> {
    let py = object.py();
    let Some(torch) = Torch::imported(py)? else { return Ok(None) };
    if let Some(exchange) = torch.exchange_of(object)
        && let Some((tensor, storage)) = describe(object, exchange)?
        && let Some(lent) = lend_described(object, role, exchange, (&tensor, storage))?
    {
        return Ok(Some(lent));
    }
    if !object.is_instance(torch.tensor.bind(py))? {
        return Ok(None);
    }
    // A tensor that nobody else can give other memory: whatever it answers is true of what it keeps.
    let object = &object.call_method0(intern!(py, "detach"))?;
    let is_cuda: bool = object.getattr(intern!(py, "is_cuda"))?.extract()?;
    if !is_cuda && !object.getattr(intern!(py, "is_cpu"))?.extract::<bool>()? || is_cuda && torch.is_hip {
        let device = object.getattr("device")?;
        return Err(bad(format!("the tensor is on {device}: bifolio supports NVIDIA GPUs and host memory")));
    }
    if object.getattr(intern!(py, "is_sparse"))?.extract()? {
        return Err(bad("sparse tensors are not supported: pass the component tensors, or a dense tensor"));
    }
    if !object.call_method0(intern!(py, "is_contiguous"))?.extract::<bool>()? {
        return Err(not_contiguous(object));
    }
    refuse_lazy(object, role)?;
    let bytes: u64 = object.getattr(intern!(py, "nbytes"))?.extract()?;
    let address: u64 = object.call_method0(intern!(py, "data_ptr"))?.extract()?;
    let keeper = Keeper::Object(object.clone().unbind());
    if !is_cuda || bytes == 0 {
        return Lent::of_host(py, address, bytes, keeper).map(Some);
    }
    let index: u32 = object.call_method0(intern!(py, "get_device"))?.extract()?;
    of_gpu(py, (address, bytes), keeper, index, || torch.stream(py, index)).map(Some)
}

/// What the table of C functions says of a tensor, and the storage that has its bytes; none where that has no
/// words for it. Making an object of the storage may let another thread go on, which may give the tensor other
/// memory: it is described again afterwards.
fn describe<'py>(object: &Bound<'py, PyAny>, exchange: Exchange) -> PyResult<Option<(Tensor, Bound<'py, PyAny>)>> {
    let Ok(before) = exchange.describe(object) else { return Ok(None) };
    if before.data().is_null() {
        // Without memory there is nothing to keep.
        return Ok(Some((before, object.clone())));
    }
    let storage = object.call_method0(intern!(object.py(), "untyped_storage"))?;
    let after = exchange.describe(object).ok().filter(|after| after.data() == before.data());
    Ok(after.map(|tensor| (tensor, storage)))
}

/// What a tensor lends that its table of C functions describes; none on devices that nothing is lent of.
fn lend_described(
    object: &Bound<'_, PyAny>,
    role: Role,
    exchange: Exchange,
    (tensor, storage): (&Tensor, Bound<'_, PyAny>),
) -> PyResult<Option<Lent>> {
    let kind = tensor.device_type;
    if !matches!(kind, CPU | CUDA | CUDA_HOST) {
        return Ok(None);
    }
    // SAFETY: just filled, and the object that keeps the numbers is the caller's.
    let (address, bytes) = unsafe { tensor.bytes(object) }?;
    refuse_lazy(object, role)?;
    let keeper = Keeper::Object(storage.unbind());
    if kind != CUDA || bytes == 0 {
        return Lent::of_host(object.py(), address, bytes, keeper).map(Some);
    }
    let stream = || exchange.current_stream(object.py(), (CUDA, tensor.device_id));
    of_gpu(object.py(), (address, bytes), keeper, tensor.device_id.cast_unsigned(), stream).map(Some)
}

/// Memory of a GPU. `PyTorch` numbers devices as the driver does, and works in their primary contexts: the
/// driver needs not be asked.
fn of_gpu(
    py: Python<'_>,
    (address, bytes): (u64, u64),
    keeper: Keeper,
    index: u32,
    stream: impl FnOnce() -> PyResult<u64>,
) -> PyResult<Lent> {
    if address == 0 {
        return Err(null(bytes));
    }
    let router = router_at(py, DeviceId::new(BackendKind::Cuda, index))?;
    Ok(Lent { router, address: DevicePtr(address), bytes, keeper, producer: Some(stream()?) })
}

/// Refuses to write the bytes of a tensor whose values are others.
fn refuse_lazy(tensor: &Bound<'_, PyAny>, role: Role) -> PyResult<()> {
    let py = tensor.py();
    let is = |what| tensor.call_method0(what)?.extract::<bool>();
    if role == Role::Destination || !is(intern!(py, "is_conj"))? && !is(intern!(py, "is_neg"))? {
        return Ok(());
    }
    Err(bad(
        "the tensor is a lazy view (conjugated or negated), whose bytes are not its values: call resolve_conj() or \
         resolve_neg() first",
    ))
}
