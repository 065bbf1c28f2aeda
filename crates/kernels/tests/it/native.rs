//! Tier 1: the per-thread functions as native C++ under AddressSanitizer and UBSan, on buffers of
//! exact size. It finds reads and writes outside an extent, misaligned wide accesses and wrong
//! shifts, none of which a device has to report.

use crate::parallel;
use bifolio_kernels::KERNELS;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const FLAGS: [&str; 8] = [
    "-std=c++17",
    "-O1",
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-Wall",
    "-Wextra",
    "-Werror",
];

/// Every file in `tests/native` is a program. The argument is a seed; what it prints on its standard error is a finding.
#[test]
fn per_thread_functions_are_right_and_stay_inside_their_buffers() {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    if let Err(error) = Command::new(&compiler).arg("--version").output() {
        return bifolio_testing::require(format!("the C++ compiler {compiler} does not start: {error}"));
    }
    let seed = bifolio_testing::seed().to_string();
    parallel::for_each(&harnesses(), |source| build_and_run(&compiler, source, &seed));
}

#[test]
fn the_header_of_every_kernel_has_a_native_harness() {
    let texts: Vec<_> = harnesses().iter().map(|path| std::fs::read_to_string(path).expect("a source")).collect();
    for kernel in KERNELS {
        let (header, _) = kernel.source().headers.last().expect("a kernel has a header");
        let include = format!("#include \"{header}\"");
        assert!(texts.iter().any(|text| text.contains(&include)), "no file in tests/native has {include}");
    }
}

fn harnesses() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/native");
    let files = std::fs::read_dir(folder).expect("the folder of the native programs").flatten().map(|file| file.path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "cpp")).collect()
}

fn build_and_run(compiler: &str, source: &Path, seed: &str) {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = folder.path().join("program");
    let mut build = Command::new(compiler);
    build.args(FLAGS).arg("-I").arg(crate_folder.join("src/cl")).arg("-I").arg(crate_folder.join("include"));
    build.arg(source).arg("-o").arg(&program);
    let name = source.display();
    expect_success(&format!("the compiler of {name}"), &build.output().expect("the compiler starts"));
    let run = Command::new(&program).arg(seed).output().expect("the test program starts");
    expect_success(&format!("{name} with seed {seed}"), &run);
}

fn expect_success(what: &str, output: &Output) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{what} ended with {}:\n{stderr}", output.status);
}
