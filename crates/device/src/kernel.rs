//! Kernels as they travel to a backend: their sources, and their arguments.

use crate::DevicePtr;

/// An argument of a kernel.
#[derive(Debug, Clone, Copy)]
pub enum KernelArg<'a> {
    /// A device address, a multiple of [`crate::DeviceInfo::kernel_buffer_alignment`].
    Buffer(DevicePtr),
    /// A `repr(C)` parameter struct, by value.
    Bytes(&'a [u8]),
}

/// A kernel's implementation on the `host` device: its Rust oracle.
///
/// # Safety
/// The caller passes arguments that match the kernel's parameters; buffers are plain host
/// addresses of sufficient size.
pub type HostKernel = unsafe fn(&HostLaunch<'_>);

/// What a [`HostKernel`] is called with.
#[derive(Debug, Clone, Copy)]
pub struct HostLaunch<'a> {
    /// Number of groups.
    pub groups: u32,
    /// Threads a group.
    pub group_size: u32,
    /// Arguments in the order of the kernel's parameters.
    pub args: &'a [KernelArg<'a>],
}

/// One module: a portable source with its headers, and the oracle of every kernel in it.
#[derive(Debug, Clone, Copy)]
pub struct ModuleSource {
    /// Name for messages, such as `page_diff`.
    pub name: &'static str,
    /// The portable source: CUDA C++ and OpenCL C 1.2 at once.
    pub source: &'static str,
    /// Headers by the name under which they are included, dependencies before dependents (OpenCL
    /// implementations without headers get them concatenated in this order).
    pub headers: &'static [(&'static str, &'static str)],
    /// Kernels in the module, each with its oracle.
    pub kernels: &'static [(&'static str, HostKernel)],
}
