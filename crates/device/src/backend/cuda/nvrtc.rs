//! NVRTC, the run-time compiler: where it is, what it compiles for, and compiling.
//!
//! It comes with the toolkit or as a Python package, not with the driver, so a machine that runs
//! PyTorch has one off the loader's path. Binaries are made for the device's own `sm_XY`: unlike
//! PTX they load into any driver of the same major version, also one older than the compiler.
//!
//! NVRTC opens a second library, its builtins, by name. Off the loader's path that fails (the
//! wheels have no RUNPATH), so the one beside it is loaded first and found by its soname then.

use super::sys::version_text;
use crate::folders::{self, Architecture};
use crate::library::{self, Search, api_table};
use crate::{Error, ErrorKind, LibraryReport, ModuleSource, Result};
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

type Status = c_int;
/// A program handle; see the driver's handles for why it is a number.
type Program = usize;

const OUT_OF_MEMORY: Status = 1;
const INVALID_OPTION: Status = 5;

api_table! {
    /// The functions of `libnvrtc`, all in version 11.2.
    NvrtcTable {
        fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> Status;
        fn nvrtcGetNumSupportedArchs(count: *mut c_int) -> Status;
        fn nvrtcGetSupportedArchs(architectures: *mut c_int) -> Status;
        fn nvrtcGetErrorString(status: Status) -> *const c_char;
        fn nvrtcCreateProgram(
            program: *mut Program,
            source: *const c_char,
            name: *const c_char,
            headers: c_int,
            texts: *const *const c_char,
            names: *const *const c_char,
        ) -> Status;
        fn nvrtcDestroyProgram(program: *mut Program) -> Status;
        fn nvrtcCompileProgram(program: Program, count: c_int, options: *const *const c_char) -> Status;
        fn nvrtcGetProgramLogSize(program: Program, bytes: *mut usize) -> Status;
        fn nvrtcGetProgramLog(program: Program, log: *mut c_char) -> Status;
        fn nvrtcGetCUBINSize(program: Program, bytes: *mut usize) -> Status;
        fn nvrtcGetCUBIN(program: Program, binary: *mut c_char) -> Status;
        fn nvrtcGetPTXSize(program: Program, bytes: *mut usize) -> Status;
        fn nvrtcGetPTX(program: Program, text: *mut c_char) -> Status;
    }
}

/// The compiler.
#[derive(Debug)]
pub(super) struct Nvrtc {
    table: NvrtcTable,
    version: u32,
    targets: Vec<u32>,
    /// Held so that it stays loaded.
    builtins: Option<libloading::Library>,
}

/// What a module is compiled to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// A binary for exactly this architecture.
    Binary(u32),
    /// PTX for an older architecture, which the driver translates.
    Ptx(u32),
}

impl Target {
    /// As the compiler's option and the cache's key write it.
    pub(super) fn option(self) -> String {
        match self {
            Self::Binary(architecture) => format!("--gpu-architecture=sm_{architecture}"),
            Self::Ptx(architecture) => format!("--gpu-architecture=compute_{architecture}"),
        }
    }
}

/// Options besides the architecture. Line numbers cost nothing at run time and make the reports
/// of compute-sanitizer and the profilers name source lines.
pub(super) const OPTIONS: [&str; 2] = ["-std=c++17", "-lineinfo"];

/// Decides what to compile for a device of architecture `device`, given the architectures that
/// the compiler knows and both versions; the error is a sentence.
pub(super) fn target(device: u32, known: &[u32], compiler: u32, driver: u32) -> Result<Target, String> {
    if known.contains(&device) {
        return Ok(Target::Binary(device));
    }
    let version = version_text(compiler);
    let Some(older) = known.iter().copied().filter(|&architecture| architecture < device).max() else {
        return Err(format!("NVRTC {version} no longer compiles for sm_{device}: install an older NVRTC"));
    };
    if compiler > driver {
        let driver = version_text(driver);
        return Err(format!(
            "NVRTC {version} does not know sm_{device}, and the driver (CUDA {driver}) is too old for its PTX: install an \
             NVRTC no newer than the driver"
        ));
    }
    Ok(Target::Ptx(older))
}

/// The compiler for a driver of CUDA version `driver`, searched on first use.
pub(super) fn compiler(driver: u32) -> Result<&'static (Nvrtc, LibraryReport), &'static LibraryReport> {
    static COMPILER: OnceLock<Result<(Nvrtc, LibraryReport), LibraryReport>> = OnceLock::new();
    COMPILER.get_or_init(|| search(driver / 1000, candidates())).as_ref()
}

fn search(driver_major: u32, candidates: Vec<PathBuf>) -> Result<(Nvrtc, LibraryReport), LibraryReport> {
    let names = sonames(driver_major);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let search = Search {
        name: "NVRTC",
        variable: "BIFOLIO_NVRTC_LIBRARY",
        sonames: &names,
        candidates: best_first(candidates, driver_major),
    };
    let (mut nvrtc, report) = library::find(&search, Nvrtc::load)?;
    nvrtc.builtins = report.path.as_deref().and_then(|path| builtins(Path::new(path), nvrtc.version));
    let version = Some(version_text(nvrtc.version));
    Ok((nvrtc, LibraryReport { version, ..report }))
}

/// The builtins of this version in the compiler's folder, loaded; none where there are none, and
/// the loader's path may have them.
fn builtins(compiler: &Path, version: u32) -> Option<libloading::Library> {
    let files = folders::versions_of(compiler.parent()?, &format!("libnvrtc-builtins.so.{}", version_text(version)));
    // SAFETY: the library is a part of the compiler, which would load it in the same way.
    files.iter().find_map(|file| unsafe { libloading::Library::new(file) }.ok())
}

/// Names for the loader: the driver's major version and then the one before it. A newer major's
/// binaries are not promised to load, so it is found only by its plain name, or in a folder.
fn sonames(driver_major: u32) -> Vec<String> {
    let versions = (12.min(driver_major)..=driver_major).rev().map(|major| format!("libnvrtc.so.{major}"));
    versions.chain(["libnvrtc.so".to_owned()]).collect()
}

/// The libraries in the toolkits' and the Python packages' folders.
fn candidates() -> Vec<PathBuf> {
    let architecture = Architecture::here();
    let toolkits = folders::toolkits().into_iter().flat_map(|root| architecture.toolkit_folders(&root));
    let packages = folders::python_package_folders().into_iter().flat_map(|folder| {
        let nvidia = folder.join("nvidia");
        let mut parts = folders::versions_of(&nvidia, "cu");
        parts.retain(|part| part.is_dir());
        parts.into_iter().map(|part| part.join("lib")).collect::<Vec<_>>()
    });
    toolkits.chain(packages).flat_map(|folder| folders::versions_of(&folder, "libnvrtc.so")).collect()
}

/// Orders files by major version, no newer than the driver's first, then newest first; files of
/// one version stay in the order in which their folders were listed.
fn best_first(mut files: Vec<PathBuf>, driver_major: u32) -> Vec<PathBuf> {
    files.sort_by_key(|file| {
        let major = major_of(file);
        (major.is_none_or(|major| major > driver_major), std::cmp::Reverse(major))
    });
    files.dedup();
    files
}

/// `13` of `libnvrtc.so.13.0.88`.
fn major_of(file: &Path) -> Option<u32> {
    file.file_name()?.to_str()?.split(".so.").nth(1)?.split('.').next()?.parse().ok()
}

impl Nvrtc {
    fn load(library: libloading::Library) -> Result<Self, String> {
        let table = NvrtcTable::load(library)?;
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: the compiler stores two integers, then one.
        let status = unsafe { (table.nvrtcVersion)(&raw mut major, &raw mut minor) }
            // SAFETY: as above.
            | unsafe { (table.nvrtcGetNumSupportedArchs)(&raw mut count) };
        let mut targets = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the compiler stores as many integers as it counted.
        let status = status | unsafe { (table.nvrtcGetSupportedArchs)(targets.as_mut_ptr()) };
        if status != 0 || targets.is_empty() {
            return Err(format!("its version cannot be read (NVRTC error {status})"));
        }
        let targets = targets.into_iter().map(c_int::unsigned_abs).collect();
        Ok(Self { table, version: major.unsigned_abs() * 1000 + minor.unsigned_abs() * 10, targets, builtins: None })
    }

    /// The version, as 1000 * major + 10 * minor.
    pub(super) fn version(&self) -> u32 {
        self.version
    }

    /// Architectures that it compiles for.
    pub(super) fn targets(&self) -> &[u32] {
        &self.targets
    }

    /// Compiles a module with its headers in memory.
    pub(super) fn compile(&self, source: &ModuleSource, target: Target) -> Result<Vec<u8>> {
        let program = Compilation::new(self, source)?;
        let options: Vec<CString> =
            [target.option().as_str()].iter().chain(&OPTIONS).map(|option| text(option)).collect::<Result<_>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is live, and the option strings live through the call.
        let status =
            unsafe { (self.table.nvrtcCompileProgram)(program.program, pointers.len() as c_int, pointers.as_ptr()) };
        if status != 0 {
            let log = program.log();
            let options = options.iter().map(|option| option.to_string_lossy()).collect::<Vec<_>>().join(" ");
            let detail = format!(
                "NVRTC {} failed to compile the module {} with {options}: {}\n{log}",
                version_text(self.version),
                source.name,
                self.describe(status)
            );
            return Err(Error::new(ErrorKind::Kernel, detail));
        }
        program.binary(target)
    }

    fn describe(&self, status: Status) -> String {
        // SAFETY: the compiler returns a static NUL-terminated string for any status.
        let name = unsafe { CStr::from_ptr((self.table.nvrtcGetErrorString)(status)) };
        let hint = match status {
            OUT_OF_MEMORY => " (host memory)",
            INVALID_OPTION => " (unknown option or architecture)",
            _ => "",
        };
        format!("{}{hint}", name.to_string_lossy())
    }
}

/// One program in the compiler; destroyed on drop.
struct Compilation<'a> {
    nvrtc: &'a Nvrtc,
    program: Program,
}

impl<'a> Compilation<'a> {
    fn new(nvrtc: &'a Nvrtc, source: &ModuleSource) -> Result<Self> {
        let body = text(source.source)?;
        let name = text(&format!("{}.cu", source.name))?;
        let names = source.headers.iter().map(|(name, _)| text(name)).collect::<Result<Vec<_>>>()?;
        let headers = source.headers.iter().map(|(_, body)| text(body)).collect::<Result<Vec<_>>>()?;
        let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (header_pointers, name_pointers) = (pointers(&headers), pointers(&names));
        let mut program = 0;
        // SAFETY: all strings live through the call, which copies them; the arrays have as many
        // entries as the count says.
        let status = unsafe {
            (nvrtc.table.nvrtcCreateProgram)(
                &raw mut program,
                body.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                header_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )
        };
        if status == 0 {
            return Ok(Self { nvrtc, program });
        }
        let detail = format!("NVRTC rejected the module {}: {}", source.name, nvrtc.describe(status));
        Err(Error::new(ErrorKind::Kernel, detail))
    }

    fn log(&self) -> String {
        let table = &self.nvrtc.table;
        let bytes = self.read(table.nvrtcGetProgramLogSize, table.nvrtcGetProgramLog).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').trim_end().to_owned()
    }

    fn binary(&self, target: Target) -> Result<Vec<u8>> {
        let table = &self.nvrtc.table;
        let binary = match target {
            Target::Binary(_) => self.read(table.nvrtcGetCUBINSize, table.nvrtcGetCUBIN),
            Target::Ptx(_) => self.read(table.nvrtcGetPTXSize, table.nvrtcGetPTX),
        };
        binary
            .filter(|binary| !binary.is_empty())
            .ok_or_else(|| Error::new(ErrorKind::Kernel, format!("NVRTC produced no code for {}", target.option())))
    }

    fn read(
        &self,
        size: unsafe extern "C" fn(Program, *mut usize) -> Status,
        get: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    ) -> Option<Vec<u8>> {
        let mut len = 0;
        // SAFETY: the program is live, and the compiler stores one size.
        let sized = unsafe { size(self.program, &raw mut len) } == 0;
        let mut bytes = vec![0_u8; len];
        // SAFETY: the buffer has the length that the compiler just asked for.
        let got = sized && unsafe { get(self.program, bytes.as_mut_ptr().cast()) } == 0;
        got.then_some(bytes)
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        // SAFETY: the program is live and not used again.
        unsafe { (self.nvrtc.table.nvrtcDestroyProgram)(&raw mut self.program) };
    }
}

fn text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|error| {
        Error::new(ErrorKind::Kernel, format!("the kernel source is invalid: {error}")).with_cause(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: u32 = 13_000;

    #[test]
    fn a_known_architecture_gets_a_binary_from_a_newer_compiler_too() {
        assert_eq!(target(90, &[75, 80, 90, 100], DRIVER + 10, DRIVER), Ok(Target::Binary(90)));
    }

    #[test]
    fn a_newer_architecture_gets_the_newest_ptx_below_it_if_the_driver_can_read_it() {
        assert_eq!(target(103, &[75, 80, 90, 110], 12_080, DRIVER), Ok(Target::Ptx(90)));
        let reason = target(103, &[75, 90], 13_010, DRIVER).unwrap_err();
        assert!(reason.contains("no newer than the driver"), "{reason}");
    }

    #[test]
    fn an_architecture_that_was_dropped_is_a_sentence() {
        let reason = target(70, &[75, 80], DRIVER, DRIVER).unwrap_err();
        assert!(reason.contains("NVRTC 13.0 no longer compiles for sm_70"), "{reason}");
    }

    #[test]
    fn libraries_of_the_drivers_major_version_or_older_come_first_newest_first() {
        let files = ["a/libnvrtc.so.13", "b/libnvrtc.so.12", "c/libnvrtc.so", "d/libnvrtc.so.11.2", "e/libnvrtc.so.12"];
        let order = |major| -> Vec<String> {
            let files = best_first(files.iter().map(PathBuf::from).collect(), major);
            files.iter().map(|file| file.display().to_string()[..1].to_owned()).collect()
        };
        assert_eq!(order(12), ["b", "e", "d", "a", "c"]);
        assert_eq!(order(13), ["a", "b", "e", "d", "c"]);
        assert_eq!(sonames(13), ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]);
        assert_eq!(sonames(12), ["libnvrtc.so.12", "libnvrtc.so"]);
    }

    const TWICE: ModuleSource = ModuleSource {
        name: "twice",
        source: "#include \"kdef.h\"\nextern \"C\" __global__ void twice(unsigned *data) { data[threadIdx.x] *= FACTOR; }",
        headers: &[("kdef.h", "#define FACTOR 2u\n")],
        kernels: &[],
    };

    /// The one that the set-up of the tests brings, else what the machine has.
    #[track_caller]
    fn installed() -> Option<Nvrtc> {
        let packages = folders::children(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../build/nvrtc/nvidia")));
        let brought = packages.iter().flat_map(|part| folders::versions_of(&part.join("lib"), "libnvrtc.so"));
        match search(13, brought.chain(candidates()).collect()) {
            Ok((nvrtc, _)) => Some(nvrtc),
            Err(report) => {
                bifolio_testing::require(report.problem.unwrap_or_default());
                None
            }
        }
    }

    #[test]
    fn binaries_and_ptx_are_compiled_without_a_gpu() {
        let Some(nvrtc) = installed() else { return };
        for &architecture in nvrtc.targets() {
            let binary = nvrtc.compile(&TWICE, Target::Binary(architecture)).unwrap();
            assert!(binary.starts_with(b"\x7fELF"), "sm_{architecture}");
        }
        let ptx = nvrtc.compile(&TWICE, Target::Ptx(nvrtc.targets()[0])).unwrap();
        assert_eq!(ptx.last(), Some(&0), "the driver reads PTX up to its NUL");
        assert!(String::from_utf8_lossy(&ptx).contains(".visible .entry twice"));
    }

    #[test]
    fn a_compile_error_carries_the_compilers_log() {
        let Some(nvrtc) = installed() else { return };
        let broken = ModuleSource { source: "extern \"C\" __global__ void f() { undeclared = 1; }", ..TWICE };
        let error = nvrtc.compile(&broken, Target::Binary(nvrtc.targets()[0])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Kernel);
        assert!(error.to_string().contains("undeclared"), "{error}");
    }
}
