//! Tier 2: every module compiles with NVRTC to machine code for each architecture that is looked
//! after, without a warning. It needs the compiler's library and no GPU.
//!
//! The library is `$BIFOLIO_NVRTC_LIBRARY`, else the one that `scripts/setup.sh test` puts into
//! `build/nvrtc`.

use crate::probe;
use bifolio_device::ModuleSource;
use bifolio_kernels::KERNELS;
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

const ARCHITECTURES: [&str; 5] = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"];

type Program = *mut c_void;

/// The kernels of the cache's example of demand mode, which no machine without a GPU would compile.
const COLLAGE: ModuleSource = ModuleSource {
    name: "collage",
    source: include_str!("../../../cache/examples/collage/collage.cu"),
    headers: &[bifolio_kernels::demand::HEADER],
    kernels: &[],
};

#[test]
fn every_module_compiles_for_every_architecture_without_a_warning() {
    let Some(path) = find() else {
        return bifolio_testing::require("there is no NVRTC library (scripts/setup.sh test puts one into build/nvrtc)");
    };
    let nvrtc = Nvrtc::open(&path);
    for module in KERNELS.iter().map(|kernel| kernel.source()).chain([&probe::PROBE, &COLLAGE]) {
        for architecture in ARCHITECTURES {
            let (cubin_bytes, log) = nvrtc
                .compile(module, architecture)
                .unwrap_or_else(|log| panic!("{} does not compile for {architecture}:\n{log}", module.name));
            assert!(cubin_bytes > 0, "{} for {architecture} has no machine code", module.name);
            assert!(log.trim().is_empty(), "{} for {architecture} compiles with warnings:\n{log}", module.name);
        }
    }
}

#[test]
fn a_source_that_is_no_kernel_is_refused_with_a_log() {
    let Some(path) = find() else {
        return bifolio_testing::require("there is no NVRTC library (scripts/setup.sh test puts one into build/nvrtc)");
    };
    let broken = ModuleSource { name: "broken", source: "KERNEL no such type", headers: &[], kernels: &[] };
    let log = Nvrtc::open(&path).compile(&broken, "sm_90").unwrap_err();
    assert!(log.contains("error"), "{log}");
}

fn find() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("BIFOLIO_NVRTC_LIBRARY").filter(|value| !value.is_empty()) {
        return Some(PathBuf::from(named));
    }
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build/nvrtc/nvidia");
    let toolkits = std::fs::read_dir(unpacked).ok()?.flatten();
    let folders = toolkits.map(|toolkit| toolkit.path().join("lib"));
    let mut files: Vec<_> = folders.filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten().collect();
    files.retain(|file| file.file_name().to_string_lossy().starts_with("libnvrtc.so"));
    files.first().map(std::fs::DirEntry::path)
}

fn load(path: &Path) -> Library {
    // SAFETY: NVIDIA's compiler libraries have no initialisers that depend on this program.
    let library = unsafe { Library::new(path) };
    library.unwrap_or_else(|error| panic!("{} does not load: {error}", path.display()))
}

/// The few functions of the compiler that the test needs.
struct Nvrtc {
    library: Library,
    /// The compiler opens this second library by name and looks only where the loader looks; one
    /// that is loaded already is found wherever it lies.
    _builtins: Vec<Library>,
}

impl Nvrtc {
    fn open(path: &Path) -> Self {
        let beside = path.parent().into_iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        let builtins = beside.filter(|file| file.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so"));
        let builtins = builtins.map(|file| load(&file.path())).collect();
        Self { library: load(path), _builtins: builtins }
    }

    /// The size of the machine code and the log, or the log of a failure.
    fn compile(&self, module: &ModuleSource, architecture: &str) -> Result<(usize, String), String> {
        let program = self.create(module);
        let option = CString::new(format!("--gpu-architecture={architecture}")).expect("an option without NUL");
        let options = [option.as_ptr()];
        // SAFETY: the function has the signature of nvrtc.h, and the option array lives across the call.
        let code = unsafe {
            let compile =
                self.get::<unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int>("nvrtcCompileProgram");
            compile(program, 1, options.as_ptr())
        };
        let log = self.log(program);
        let size = if code == 0 { self.size("nvrtcGetCUBINSize", program) } else { 0 };
        let mut program = program;
        // SAFETY: the program was created above and is not used again.
        unsafe { self.get::<unsafe extern "C" fn(*mut Program) -> c_int>("nvrtcDestroyProgram")(&raw mut program) };
        if code == 0 { Ok((size, log)) } else { Err(log) }
    }

    fn create(&self, module: &ModuleSource) -> Program {
        let text = |text: &str| CString::new(text).expect("a source without NUL");
        let (source, name) = (text(module.source), text(module.name));
        let headers: Vec<_> = module.headers.iter().map(|(name, content)| (text(name), text(content))).collect();
        let names: Vec<_> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
        let contents: Vec<_> = headers.iter().map(|(_, content)| content.as_ptr()).collect();
        let mut program = ptr::null_mut();
        // SAFETY: the signature is that of nvrtc.h; all strings live across the call, which copies them.
        let code = unsafe {
            let create = self.get::<unsafe extern "C" fn(
                *mut Program,
                *const c_char,
                *const c_char,
                c_int,
                *const *const c_char,
                *const *const c_char,
            ) -> c_int>("nvrtcCreateProgram");
            create(
                &raw mut program,
                source.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                contents.as_ptr(),
                names.as_ptr(),
            )
        };
        assert_eq!(code, 0, "nvrtcCreateProgram failed");
        program
    }

    fn log(&self, program: Program) -> String {
        let mut bytes = vec![0_u8; self.size("nvrtcGetProgramLogSize", program).max(1)];
        // SAFETY: the signature is that of nvrtc.h, and the buffer has the size that was asked for.
        unsafe {
            let get = self.get::<unsafe extern "C" fn(Program, *mut c_char) -> c_int>("nvrtcGetProgramLog");
            get(program, bytes.as_mut_ptr().cast());
        }
        CStr::from_bytes_until_nul(&bytes).map(|log| log.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn size(&self, function: &str, program: Program) -> usize {
        let mut size = 0;
        // SAFETY: the functions that are asked for have this signature in nvrtc.h.
        unsafe { self.get::<unsafe extern "C" fn(Program, *mut usize) -> c_int>(function)(program, &raw mut size) };
        size
    }

    /// # Safety
    /// `F` is the signature of the function in nvrtc.h.
    unsafe fn get<F>(&self, name: &str) -> libloading::Symbol<'_, F> {
        // SAFETY: the caller's promise.
        unsafe { self.library.get(name.as_bytes()) }.unwrap_or_else(|error| panic!("NVRTC has no {name}: {error}"))
    }
}
