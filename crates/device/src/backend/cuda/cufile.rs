//! Storage transfers straight into GPU memory through NVIDIA's cuFile library.
//!
//! cuFile falls back to copying through host memory ("compatibility mode") and calls that success.
//! This file takes it only for a real direct path: the `nvidia-fs` kernel module is loaded, the
//! fall-back is switched off before the driver opens, and the driver says so. A file whose file
//! system or disk has no direct path is then refused when it is registered.

use super::context::Context;
use crate::backend::{RawDirectFile, RawDirectStorage};
use crate::folders::{self, Architecture};
use crate::library::{self, Search, api_table};
use crate::{Capability, DevicePtr, Error, ErrorKind, Result};
use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Present while the kernel module is loaded.
const MODULE: &str = "/proc/driver/nvidia-fs/version";

/// `CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE`.
const PARAMETER_ALLOW_COMPATIBILITY: c_int = 1;

/// The bit of `dcontrolflags` that says that compatibility mode is allowed
/// (`CU_FILE_ALLOW_COMPAT_MODE`).
const CONTROL_ALLOW_COMPATIBILITY: c_uint = 1 << 1;

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
const HANDLE_TYPE_FD: c_int = 1;

/// What `GPUDirect` Storage wants offsets and lengths to be multiples of.
const ALIGNMENT: u64 = 4096;

/// `CUfileError_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Status {
    file: c_int,
    driver: c_int,
}

/// `CUfileDrvProps_t`.
#[repr(C)]
#[derive(Debug, Default)]
struct Properties {
    module_major: c_uint,
    module_minor: c_uint,
    poll_threshold: usize,
    direct_size_max: usize,
    status_flags: c_uint,
    control_flags: c_uint,
    features: c_uint,
    cache_sizes: [c_uint; 3],
    batch: [c_uint; 2],
}

/// `CUfileDescr_t`; the handle is a union of a descriptor and a pointer.
#[repr(C)]
#[derive(Debug)]
struct Description {
    kind: c_int,
    handle: u64,
    operations: *const c_void,
}

api_table! {
    /// The functions of cuFile that are used.
    CuFile {
        fn cuFileSetParameterBool(parameter: c_int, value: bool) -> Status;
        fn cuFileDriverOpen() -> Status;
        fn cuFileDriverGetProperties(properties: *mut Properties) -> Status;
        fn cuFileHandleRegister(handle: *mut *mut c_void, description: *mut Description) -> Status;
        fn cuFileHandleDeregister(handle: *mut c_void) -> ();
        fn cuFileRead(handle: *mut c_void, base: *mut c_void, size: usize, offset: i64, base_offset: i64) -> isize;
    }
}

/// Whether this machine can have a direct path at all; which files do is seen when they are
/// attached.
pub(super) fn capability() -> Capability {
    Capability::when(
        Path::new(MODULE).exists(),
        "the kernel module nvidia-fs is not loaded, so cuFile would copy through host memory",
    )
}

/// The opened cuFile driver, once a process.
fn driver() -> std::result::Result<&'static CuFile, String> {
    static DRIVER: OnceLock<std::result::Result<CuFile, String>> = OnceLock::new();
    DRIVER.get_or_init(open_driver).as_ref().map_err(Clone::clone)
}

fn search() -> Search<'static> {
    let architecture = Architecture::here();
    let toolkits = folders::toolkits().into_iter().flat_map(|root| architecture.toolkit_folders(&root));
    let packages = folders::python_package_folders().into_iter();
    let packages = packages.flat_map(|folder| folders::children(&folder.join("nvidia"))).map(|part| part.join("lib"));
    Search {
        name: "cuFile",
        variable: "BIFOLIO_CUFILE_LIBRARY",
        sonames: &["libcufile.so.0", "libcufile.so"],
        candidates: toolkits.chain(packages).map(|folder| folder.join("libcufile.so.0")).collect(),
    }
}

/// The table of NVIDIA's library. Bifolio has one of the same name, which programs may have been given in its
/// place: it would come back here for its direct path. It has a function that NVIDIA's does not have.
fn of_vendor(library: libloading::Library) -> std::result::Result<CuFile, String> {
    // SAFETY: the symbol is looked up and not called.
    if unsafe { library.get::<*const c_void>(b"bifolio_cufile_last_error\0") }.is_ok() {
        return Err("it is Bifolio's own, which has no direct path (set BIFOLIO_CUFILE_LIBRARY to NVIDIA's)".to_owned());
    }
    CuFile::load(library)
}

fn open_driver() -> std::result::Result<CuFile, String> {
    let found = library::find_apart(&search(), of_vendor);
    let (cufile, _) = found.map_err(|report| report.problem.unwrap_or_default())?;
    let mut properties = Properties::default();
    // SAFETY: plain calls in the order that the library asks for; it fills one struct.
    let steps = unsafe {
        [
            (cufile.cuFileSetParameterBool)(PARAMETER_ALLOW_COMPATIBILITY, false),
            (cufile.cuFileDriverOpen)(),
            (cufile.cuFileDriverGetProperties)(&raw mut properties),
        ]
    };
    if let Some(failed) = steps.iter().find(|status| status.file != 0) {
        return Err(format!(
            "opening the cuFile driver failed (cuFile error {}, CUDA error {})",
            failed.file, failed.driver
        ));
    }
    check(&properties).map(|()| cufile)
}

/// Whether the driver reports a real direct path.
fn check(properties: &Properties) -> std::result::Result<(), String> {
    if properties.module_major == 0 {
        return Err("the cuFile driver does not see the kernel module nvidia-fs".to_owned());
    }
    if properties.control_flags & CONTROL_ALLOW_COMPATIBILITY != 0 {
        return Err("the cuFile driver stays in compatibility mode, which copies through host memory".to_owned());
    }
    Ok(())
}

/// cuFile for one device.
#[derive(Debug)]
pub(super) struct Storage {
    context: Arc<Context>,
    cufile: &'static CuFile,
}

impl Storage {
    pub(super) fn open(context: &Arc<Context>) -> Result<Self> {
        let no_path = |reason: &str| {
            Error::new(ErrorKind::Unsupported, format!("storage has no direct path to this device: {reason}"))
        };
        if let Some(reason) = capability().reason() {
            return Err(no_path(reason));
        }
        let _entered = context.enter()?;
        let cufile = driver().map_err(|reason| no_path(&reason))?;
        Ok(Self { context: Arc::clone(context), cufile })
    }
}

impl RawDirectStorage for Storage {
    fn attach(&self, file: OwnedFd) -> Result<Box<dyn RawDirectFile>> {
        let _entered = self.context.enter()?;
        let handle = file.as_raw_fd() as u64;
        let mut description = Description { kind: HANDLE_TYPE_FD, handle, operations: std::ptr::null() };
        let mut handle = std::ptr::null_mut();
        // SAFETY: both arguments live through the call; the descriptor lives as long as the handle.
        let status = unsafe { (self.cufile.cuFileHandleRegister)(&raw mut handle, &raw mut description) };
        if status.file != 0 {
            let detail = format!("this file has no direct path to the device (cuFile error {})", status.file);
            return Err(Error::new(ErrorKind::Unsupported, detail));
        }
        Ok(Box::new(RegisteredFile {
            context: Arc::clone(&self.context),
            cufile: self.cufile,
            handle,
            _descriptor: file,
        }))
    }
}

#[derive(Debug)]
struct RegisteredFile {
    context: Arc<Context>,
    cufile: &'static CuFile,
    handle: *mut c_void,
    _descriptor: OwnedFd,
}

// SAFETY: cuFile's handles may be used from any thread.
unsafe impl Send for RegisteredFile {}
// SAFETY: as above.
unsafe impl Sync for RegisteredFile {}

impl RawDirectFile for RegisteredFile {
    fn alignment(&self) -> u64 {
        ALIGNMENT
    }

    unsafe fn read(&self, offset: u64, dst: DevicePtr, len: u64) -> io::Result<u64> {
        let _entered = self.context.enter().map_err(io::Error::other)?;
        // SAFETY: the handle is registered, and the caller vouches for the memory.
        let read =
            unsafe { (self.cufile.cuFileRead)(self.handle, dst.0 as *mut c_void, len as usize, offset as i64, 0) };
        match read {
            // -1 leaves the reason in errno; below that it is a negated cuFile error.
            -1 => Err(io::Error::last_os_error()),
            ..-1 => Err(io::Error::other(format!("cuFile error {}", -read))),
            _ => Ok(read as u64),
        }
    }
}

impl Drop for RegisteredFile {
    fn drop(&mut self) {
        // SAFETY: registered once; no read is in progress, because reads borrow the file.
        unsafe { (self.cufile.cuFileHandleDeregister)(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_driver_without_its_fall_back_counts_as_a_direct_path() {
        let real = Properties { module_major: 2, ..Properties::default() };
        assert!(check(&real).is_ok());
        let compatible = Properties { control_flags: CONTROL_ALLOW_COMPATIBILITY, ..real };
        assert!(check(&compatible).unwrap_err().contains("host memory"));
        assert!(check(&Properties::default()).unwrap_err().contains("nvidia-fs"));
    }

    const FUNCTIONS: &str = "\
        typedef struct { int file, driver; } status;\n\
        long cuFileUseCount(void) { return NUMBER; }\n\
        status cuFileDriverOpen(void) { return (status){.file = (int)cuFileUseCount()}; }\n\
        status cuFileSetParameterBool(int p, _Bool v) { (void)p; (void)v; return (status){0}; }\n\
        status cuFileDriverGetProperties(void *p) { (void)p; return (status){0}; }\n\
        status cuFileHandleRegister(void **h, void *d) { (void)h; (void)d; return (status){0}; }\n\
        void cuFileHandleDeregister(void *h) { (void)h; }\n\
        long cuFileRead(void *h, void *b, unsigned long s, long o, long p)\n\
        { (void)h; (void)b; (void)s; (void)o; (void)p; return 0; }\n";

    fn double(folder: &Path, name: &str, number: u32, more: &str) -> std::path::PathBuf {
        let (code, file) = (folder.join(format!("{number}.c")), folder.join(name));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&code, format!("{FUNCTIONS}{more}")).unwrap();
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-shared", "-fPIC", &format!("-DNUMBER={number}"), "-Wl,-soname,libcufile.so.0", "-o"]);
        assert!(compiler.arg(&file).arg(&code).status().unwrap().success(), "building needs a C compiler anyway");
        file
    }

    /// Symptom: a program on Bifolio's library asks the p2p engine, which finds that same library. Cause: both
    /// have one name, and the loader gives what is loaded; the symbols of NVIDIA's would be found there, too.
    #[test]
    fn bifolio_s_own_library_is_passed_over_and_its_symbols_are_not_taken_for_nvidia_s() {
        let folder = tempfile::tempdir().unwrap();
        let ours = double(folder.path(), "ours/libcufile.so.0", 1, "void bifolio_cufile_last_error(void) {}");
        let theirs = double(folder.path(), "theirs/libcufile.so.0", 2, "");
        // As a program does that was linked with it.
        let flags = libloading::os::unix::RTLD_NOW | libloading::os::unix::RTLD_GLOBAL;
        // SAFETY: a library without initialisers.
        let linked = unsafe { libloading::os::unix::Library::open(Some(&ours), flags) }.unwrap();
        let only = |candidates| Search {
            sonames: &["libcufile.so.0"],
            variable: "BIFOLIO_TEST_UNSET",
            candidates,
            ..search()
        };
        let refused = library::find_apart(&only(vec![]), of_vendor).unwrap_err().problem.unwrap();
        assert!(refused.contains("Bifolio's own"), "{refused}");
        let (cufile, _) = library::find_apart(&only(vec![theirs]), of_vendor).unwrap();
        // SAFETY: a function of the double.
        assert_eq!(unsafe { (cufile.cuFileDriverOpen)() }.file, 2);
        drop(linked);
    }

    #[test]
    fn structures_are_as_large_as_the_library_s() {
        assert_eq!(size_of::<Description>(), 24);
        assert_eq!(size_of::<Properties>(), 56);
    }
}
