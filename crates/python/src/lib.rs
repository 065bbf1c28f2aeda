//! `bifolio._native`: the part of the Python package that is written in Rust. What programs import is
//! `python/bifolio`, which names what is here and adds what needs no speed.
//!
//! ```text
//!   file      File: reads and writes, on the caller's thread     future    requests that run by themselves
//!   buffer    what a Python object lends: address, length, device, and what keeps it there
//!   map       files mapped into a device's memory, through the page cache
//!   daemon    the page cache of all processes
//!   memory    device memory without a framework                  stream    a caller's stream
//!   region    memory larger than what of it is in memory
//!   devices   what there is, calibration                         header    safetensors, as strict as its model
//!   explain   plans and reports as dictionaries                  extents   extents of a batch, as Python has them
//!   life      forks, who keeps memory, requests under way        error     exceptions
//!   shutdown  the end of the interpreter
//! ```
//!
//! Calls look at their arguments with the interpreter's lock held, and let go of it for everything that
//! waits. Memory that a request uses is kept by the request itself (`life::Owner`), so futures may be dropped
//! at any time. Panics become exceptions at every entry (`PyO3` does that).

// Functions of a Python module take what Python hands them.
#![allow(clippy::needless_pass_by_value, reason = "PyO3 extracts arguments as values")]
#![allow(clippy::doc_markdown, reason = "what is described for Python is read there, as plain text")]

mod buffer;
mod count;
mod daemon;
mod devices;
mod error;
mod explain;
mod extents;
mod file;
mod future;
mod header;
mod life;
mod map;
mod memory;
mod region;
mod safetensors;
mod shutdown;
mod stream;
mod volume;

use pyo3::prelude::*;

#[pymodule]
#[pyo3(name = "_native")]
mod native {
    use super::{Bound, PyModule, PyModuleMethods, PyResult};
    #[pymodule_export]
    use super::{
        daemon::{daemon_devices, daemon_socket, run_daemon, run_server},
        devices::{backends, calibrate, default_device, devices},
        error::{CancelledError, Error, SafetensorError},
        explain::explain,
        file::{File, open},
        future::Future,
        map::{Acquired, Mapping, Recall, Report, cache_stats, map},
        memory::{FencedMemory, Memory, empty},
        region::{Region, paged},
        safetensors::read_header,
        volume::{Volume, open_volume},
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        super::error::declare(module.py())?;
        super::shutdown::watch(module)
    }
}
