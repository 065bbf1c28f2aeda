//! Modules: one source text a module, compiled by the driver and kept on disk as its binary.
//!
//! Drivers differ in whether and how they find headers in memory, so the headers are put before
//! the source in the order given (dependencies first), and the lines that include them are left
//! out. `#line` keeps names and numbers of the original files in the compiler's log.

use super::abi::{self, KernelHandle, ProgramHandle, SUCCESS};
use super::context::Context;
use super::probe;
use super::status::{check, describe};
use crate::backend::RawModule;
use crate::kernel_cache::KernelCache;
use crate::{Error, ErrorKind, ModuleSource, Result};
use std::collections::HashMap;
use std::ffi::CString;
use std::fmt::Write;
use std::ptr::null;
use std::sync::{Arc, Mutex};

/// Options of every compilation. Warnings do not fail it: they differ between the vendors'
/// compilers, and a user can do nothing about one.
const OPTIONS: &str = "-cl-std=CL1.2";

/// A compiled module with its kernels.
#[derive(Debug)]
pub(super) struct OpenClModule {
    // Kernels are released before the program, in the order of the fields.
    kernels: HashMap<&'static str, Kernel>,
    program: Program,
    name: &'static str,
}

/// A kernel object, whose arguments are state: locked from setting them to enqueueing.
#[derive(Debug)]
struct Kernel {
    context: Arc<Context>,
    handle: Mutex<KernelHandle>,
}

impl OpenClModule {
    /// Compiles, or finds in `cache`, and builds `source`.
    pub(super) fn load(context: &Arc<Context>, cache: &KernelCache, source: &ModuleSource) -> Result<Self> {
        let program = program(context, cache, source)?;
        let kernels = source.kernels.iter().map(|&(name, _)| Ok((name, program.kernel(source.name, name)?)));
        let kernels = kernels.collect::<Result<_>>()?;
        Ok(Self { kernels, program, name: source.name })
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn kernel(&self, name: &str) -> Option<&Mutex<KernelHandle>> {
        self.kernels.get(name).map(|kernel| &kernel.handle)
    }

    pub(super) fn is_in(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.program.context, context)
    }
}

impl RawModule for OpenClModule {
    fn has_kernel(&self, name: &str) -> bool {
        self.kernels.contains_key(name)
    }
}

/// Why the cache gets no binary.
enum NoBinary {
    /// The source does not compile.
    Compile(Error),
    /// It compiles, but the driver does not give its binary away.
    Kept(Program),
}

fn program(context: &Arc<Context>, cache: &KernelCache, source: &ModuleSource) -> Result<Program> {
    let key = ["opencl", OPTIONS, &context.description];
    let mut compiled = None;
    let compile = || {
        let program = Program::from_source(context, source).map_err(NoBinary::Compile)?;
        match program.binary() {
            Some(binary) => {
                compiled = Some(program);
                Ok(binary)
            }
            None => Err(NoBinary::Kept(program)),
        }
    };
    let binary = match cache.get(source, &key, compile) {
        Ok((binary, _)) => binary,
        Err(NoBinary::Kept(program)) => return Ok(program),
        Err(NoBinary::Compile(error)) => return Err(error),
    };
    match compiled {
        Some(program) => Ok(program),
        None => Program::from_binary(context, source.name, &binary).or_else(|_| {
            // The driver was changed under the same version: compile anew, this time for good.
            cache.forget(source, &key);
            Program::from_source(context, source)
        }),
    }
}

/// The module as one text.
fn expand(source: &ModuleSource) -> String {
    let mut text = String::new();
    for (name, body) in source.headers.iter().copied().chain([(source.name, source.source)]) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "#line 1 \"{name}\"");
        for line in body.lines() {
            if !is_left_out(line, source.headers) {
                text.push_str(line);
            }
            text.push('\n');
        }
    }
    text
}

/// Whether a line includes one of `headers`, or is the guard that warns outside a header.
fn is_left_out(line: &str, headers: &[(&str, &str)]) -> bool {
    let Some(directive) = line.trim_start().strip_prefix('#').map(str::trim) else { return false };
    let included = directive.strip_prefix("include").and_then(|rest| rest.trim_start().strip_prefix('"'));
    let included = included.and_then(|rest| rest.split('"').next());
    included.is_some_and(|name| headers.iter().any(|(header, _)| *header == name))
        || directive.split_whitespace().eq(["pragma", "once"])
}

/// A built program; released on drop.
#[derive(Debug)]
struct Program {
    context: Arc<Context>,
    handle: ProgramHandle,
}

impl Program {
    fn from_source(context: &Arc<Context>, source: &ModuleSource) -> Result<Self> {
        let text = expand(source);
        let (pointer, len) = (text.as_ptr().cast(), text.len());
        let mut status = 0;
        // SAFETY: the text has `len` bytes, which the driver copies; it stores one status.
        let handle = unsafe {
            (context.cl.clCreateProgramWithSource)(
                context.handle,
                1,
                &raw const pointer,
                &raw const len,
                &raw mut status,
            )
        };
        check(status, format_args!("passing the module {} to the OpenCL compiler", source.name))?;
        Self { context: context.clone(), handle }.built(source.name)
    }

    fn from_binary(context: &Arc<Context>, name: &str, binary: &[u8]) -> Result<Self> {
        let (pointer, len) = (binary.as_ptr(), binary.len());
        let (mut each, mut status) = (0, 0);
        // SAFETY: the binary has `len` bytes, which the driver copies; it stores two statuses.
        let handle = unsafe {
            (context.cl.clCreateProgramWithBinary)(
                context.handle,
                1,
                &raw const context.device,
                &raw const len,
                &raw const pointer,
                &raw mut each,
                &raw mut status,
            )
        };
        check(status, format_args!("loading the module {name}"))?;
        let program = Self { context: context.clone(), handle };
        check(each, format_args!("loading the module {name}"))?;
        program.built(name)
    }

    fn built(self, name: &str) -> Result<Self> {
        let options = CString::new(OPTIONS).unwrap_or_default();
        let (context, device) = (&self.context, &self.context.device);
        // SAFETY: program, device and options live through the call; without a callback it waits.
        let status = unsafe {
            (context.cl.clBuildProgram)(self.handle, 1, device, options.as_ptr(), null(), std::ptr::null_mut())
        };
        if status == SUCCESS {
            return Ok(self);
        }
        let why = describe(status);
        let detail =
            format!("the OpenCL driver failed to compile the module {name} with {OPTIONS}: {why}\n{}", self.log());
        Err(Error::new(ErrorKind::Kernel, detail.trim_end()))
    }

    fn log(&self) -> String {
        let Context { cl, device, .. } = &*self.context;
        let what = abi::PROGRAM_BUILD_LOG;
        // SAFETY: the driver writes at most `len` bytes to `value`.
        let query =
            |len, value, size| unsafe { (cl.clGetProgramBuildInfo)(self.handle, *device, what, len, value, size) };
        probe::text(&probe::read(query))
    }

    /// The program's binary, where the driver gives it away.
    fn binary(&self) -> Option<Vec<u8>> {
        let mut len = 0_usize;
        let size = size_of::<usize>();
        let place = (&raw mut len).cast();
        let cl = self.context.cl;
        // SAFETY: the program has one device, so the driver stores one size.
        let status =
            unsafe { (cl.clGetProgramInfo)(self.handle, abi::PROGRAM_BINARY_SIZES, size, place, std::ptr::null_mut()) };
        if status != SUCCESS || len == 0 {
            return None;
        }
        let mut binary = vec![0_u8; len];
        let mut pointer = binary.as_mut_ptr();
        let place = (&raw mut pointer).cast();
        // SAFETY: the driver writes `len` bytes, as it has just said, to the one pointer given.
        let status =
            unsafe { (cl.clGetProgramInfo)(self.handle, abi::PROGRAM_BINARIES, size, place, std::ptr::null_mut()) };
        (status == SUCCESS).then_some(binary)
    }

    fn kernel(&self, module: &str, name: &str) -> Result<Kernel> {
        let missing = || Error::new(ErrorKind::Kernel, format!("the module {module} has no kernel {name}"));
        let text = CString::new(name).map_err(|_| missing())?;
        let mut status = 0;
        // SAFETY: program and name live through the call; the driver stores one status.
        let handle = unsafe { (self.context.cl.clCreateKernel)(self.handle, text.as_ptr(), &raw mut status) };
        if status != SUCCESS {
            return Err(missing());
        }
        Ok(Kernel { context: self.context.clone(), handle: Mutex::new(handle) })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the handle has no other owner; kernels of it keep what they need.
        unsafe { (self.context.cl.clReleaseProgram)(self.handle) };
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let handle = *self.handle.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: the handle has no other owner; the driver defers while work of it runs.
        unsafe { (self.context.cl.clReleaseKernel)(handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_once_in_order_and_lines_keep_their_numbers() {
        let source = ModuleSource {
            name: "m",
            source: "#include \"b.h\"\n  #  include \"a.h\"\n#include <other.h>\nkernel\n",
            headers: &[("a.h", "#pragma once\nA"), ("b.h", "#include \"a.h\"\nB \"a.h\"")],
            kernels: &[],
        };
        let expected =
            "#line 1 \"a.h\"\n\nA\n#line 1 \"b.h\"\n\nB \"a.h\"\n#line 1 \"m\"\n\n\n#include <other.h>\nkernel\n";
        assert_eq!(expand(&source), expected);
    }
}
