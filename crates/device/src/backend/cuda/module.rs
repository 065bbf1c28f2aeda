//! Modules: compiled once for the device's architecture, kept on disk, loaded, looked up by name.

use super::abi::{self, FunctionHandle, ModuleHandle, SUCCESS};
use super::context::Context;
use super::nvrtc::{self, Nvrtc, Target};
use super::probe;
use crate::backend::RawModule;
use crate::kernel_cache::KernelCache;
use crate::{Error, ErrorKind, ModuleSource, Result};
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// A loaded module with its kernels.
#[derive(Debug)]
pub(super) struct CudaModule {
    loaded: Loaded,
    name: &'static str,
    functions: HashMap<&'static str, FunctionHandle>,
}

impl CudaModule {
    /// Compiles, or finds in `cache`, and loads `source`; `version` is the driver's.
    pub(super) fn load(
        context: &Arc<Context>,
        version: u32,
        cache: &KernelCache,
        source: &ModuleSource,
    ) -> Result<Self> {
        let (compiler, target) = compiler_for(context, version)?;
        let (option, compiler_version) = (target.option(), compiler.version().to_string());
        let driver = version.to_string();
        let [standard, lines] = nvrtc::OPTIONS;
        let key = ["cuda", &option, standard, lines, &compiler_version, &driver];
        let compile = || compiler.compile(source, target);
        let (binary, was_cached) = cache.get(source, &key, compile)?;
        let loaded = match Loaded::new(context, source.name, binary) {
            // A driver can refuse what an earlier one took although both give one CUDA version.
            Err(_) if was_cached => {
                cache.forget(source, &key);
                Loaded::new(context, source.name, cache.get(source, &key, compile)?.0)
            }
            loaded => loaded,
        }?;
        let functions = source.kernels.iter().map(|&(name, _)| Ok((name, loaded.function(source.name, name)?)));
        let functions = functions.collect::<Result<_>>()?;
        Ok(Self { loaded, name: source.name, functions })
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn function(&self, kernel: &str) -> Option<FunctionHandle> {
        self.functions.get(kernel).copied()
    }

    pub(super) fn is_in(&self, context: &Context) -> bool {
        self.loaded.context.is(context)
    }
}

impl RawModule for CudaModule {
    fn has_kernel(&self, name: &str) -> bool {
        self.functions.contains_key(name)
    }
}

fn compiler_for(context: &Context, version: u32) -> Result<(&'static Nvrtc, Target)> {
    let unsupported =
        |reason: String| Error::new(ErrorKind::Unsupported, format!("kernels cannot be compiled: {reason}"));
    let (compiler, _) = nvrtc::compiler(version)
        .map_err(|report| unsupported(report.problem.clone().unwrap_or_else(|| "NVRTC was not found".to_owned())))?;
    let architecture = probe::architecture(context.cuda, context.device);
    let target = nvrtc::target(architecture, compiler.targets(), compiler.version(), version).map_err(unsupported)?;
    Ok((compiler, target))
}

/// A module in the driver; unloaded on drop.
#[derive(Debug)]
struct Loaded {
    context: Arc<Context>,
    handle: ModuleHandle,
}

impl Loaded {
    fn new(context: &Arc<Context>, name: &str, mut binary: Vec<u8>) -> Result<Self> {
        let _entered = context.enter_relaxed()?;
        // PTX is text up to a NUL; a binary knows its own length, so one more byte does no harm.
        binary.push(0);
        let mut log = vec![0_u8; 8 << 10];
        let mut names = [abi::JIT_ERROR_LOG, abi::JIT_ERROR_LOG_BYTES];
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(log.len())];
        let mut handle = ModuleHandle::default();
        // SAFETY: the image and the options live through the call; the driver writes at most the
        // given number of bytes of log and stores one handle.
        let status = unsafe {
            (context.cuda.cuModuleLoadDataEx)(
                &raw mut handle,
                binary.as_ptr().cast(),
                names.len() as u32,
                names.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if status == SUCCESS {
            return Ok(Self { context: context.clone(), handle });
        }
        let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
        let log = String::from_utf8_lossy(&log[..end]).trim().to_owned();
        let why = context.cuda.describe(status);
        let kind = if status == abi::OUT_OF_MEMORY { ErrorKind::OutOfMemory } else { ErrorKind::Kernel };
        let detail = format!("the driver failed to load the module {name}: {why} {log}");
        Err(Error::new(kind, detail.trim_end()))
    }

    fn function(&self, module: &str, kernel: &str) -> Result<FunctionHandle> {
        let missing = || Error::new(ErrorKind::Kernel, format!("the module {module} has no kernel {kernel}"));
        let name = CString::new(kernel).map_err(|_| missing())?;
        let _entered = self.context.enter_relaxed()?;
        let mut function = FunctionHandle::default();
        // SAFETY: the module is live, the name lives through the call, the driver stores a handle.
        let status = unsafe { (self.context.cuda.cuModuleGetFunction)(&raw mut function, self.handle, name.as_ptr()) };
        if status == SUCCESS { Ok(function) } else { Err(missing()) }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // The driver does not say that it defers the unloading of code that runs, so it waits.
        // SAFETY: no arguments.
        unsafe { (self.context.cuda.cuCtxSynchronize)() };
        // SAFETY: the handle has no other owner, and no kernel of it runs. A failure means that
        // the context is gone.
        unsafe { (self.context.cuda.cuModuleUnload)(self.handle) };
    }
}
