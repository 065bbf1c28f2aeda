//! Tensors of PyTorch, asked by their own methods.

use super::{Lent, Role, not_contiguous};
use crate::error::{bad, of_request};
use crate::life::Keeper;
use bifolio_device::{BackendKind, DeviceChoice, DeviceId, DevicePtr};
use bifolio_io::process;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// What is used of the module, once a program has imported it.
#[derive(Debug)]
struct Torch {
    tensor: Py<PyType>,
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
        let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
        let Ok(module) = modules.get_item(intern!(py, "torch")) else { return Ok(None) };
        // While it is being imported, it may have nothing yet.
        let Some(tensor) = module.getattr_opt("Tensor")? else { return Ok(None) };
        let Ok(tensor) = tensor.cast_into::<PyType>() else { return Ok(None) };
        let current_stream = module.getattr("_C").and_then(|c| c.getattr("_cuda_getCurrentRawStream")).ok();
        let is_hip =
            module.getattr("version").and_then(|version| version.getattr("hip")).is_ok_and(|hip| !hip.is_none());
        let torch = Self { tensor: tensor.unbind(), current_stream: current_stream.map(Bound::unbind), is_hip };
        Ok(Some(TORCH.get_or_init(py, || torch)))
    }

    /// The stream on which a program works at the moment.
    fn stream(&self, py: Python<'_>, index: u32) -> PyResult<u64> {
        if let Some(current) = &self.current_stream {
            return current.bind(py).call1((index,))?.extract();
        }
        py.import("torch.cuda")?.call_method1("current_stream", (index,))?.getattr("cuda_stream")?.extract()
    }
}

/// What a tensor lends; none for other objects.
pub(super) fn lend(object: &Bound<'_, PyAny>, role: Role) -> PyResult<Option<Lent>> {
    let py = object.py();
    let Some(torch) = Torch::imported(py)? else { return Ok(None) };
    if !object.is_instance(torch.tensor.bind(py))? {
        return Ok(None);
    }
    let is_cuda: bool = object.getattr(intern!(py, "is_cuda"))?.extract()?;
    if !is_cuda && !object.getattr(intern!(py, "is_cpu"))?.extract::<bool>()? || is_cuda && torch.is_hip {
        let device = object.getattr("device")?;
        return Err(bad(format!("the tensor lies on {device}: bifolio moves files into NVIDIA GPUs and host memory")));
    }
    if object.getattr(intern!(py, "is_sparse"))?.extract()? {
        return Err(bad("the tensor is sparse: pass its parts, or a dense one"));
    }
    if !object.call_method0(intern!(py, "is_contiguous"))?.extract::<bool>()? {
        return Err(not_contiguous(object));
    }
    if role == Role::Source && is_lazy(object)? {
        return Err(bad("the tensor is a lazy view (conjugated or negated), whose bytes are not its values: call \
             resolve_conj() or resolve_neg() first"));
    }
    let bytes: u64 = object.getattr(intern!(py, "nbytes"))?.extract()?;
    let address: u64 = object.call_method0(intern!(py, "data_ptr"))?.extract()?;
    let keeper = Keeper::Object(object.clone().unbind());
    if !is_cuda || bytes == 0 {
        return Lent::of_host(address, bytes, keeper).map(Some);
    }
    if address == 0 {
        return Err(super::null(bytes));
    }
    // PyTorch numbers devices as the driver does, and works in their primary contexts: nobody needs to be asked.
    let index: u32 = object.call_method0(intern!(py, "get_device"))?.extract()?;
    let id = DeviceId::new(BackendKind::Cuda, index);
    let router = process::router(DeviceChoice::Exactly(id)).map_err(|error| of_request(&error))?;
    let producer = Some(torch.stream(py, index)?);
    Ok(Some(Lent { router, address: DevicePtr(address), bytes, keeper, producer }))
}

fn is_lazy(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = tensor.py();
    Ok(tensor.call_method0(intern!(py, "is_conj"))?.extract::<bool>()?
        || tensor.call_method0(intern!(py, "is_neg"))?.extract::<bool>()?)
}
