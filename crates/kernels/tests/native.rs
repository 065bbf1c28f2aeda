//! Tier 1: the per-thread functions as native C++ under AddressSanitizer and UBSan, on buffers of
//! exact size. It finds reads and writes outside an extent, misaligned wide accesses and wrong
//! shifts, none of which a device has to report.

mod support;

use bifolio_kernels::known_answer::Draw;
use std::path::Path;
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

#[test]
fn page_diff_per_thread_functions_are_right_and_stay_inside_their_buffers() {
    build_and_run("page_diff");
}

#[test]
fn scatter_per_thread_functions_are_right_and_stay_inside_their_buffers() {
    build_and_run("scatter");
}

#[test]
fn merge_per_thread_functions_are_right_and_stay_inside_their_buffers() {
    build_and_run("merge");
}

#[test]
fn byte_mask_per_thread_functions_are_right_and_stay_inside_their_buffers() {
    build_and_run("byte_mask");
}

#[test]
fn aes_per_thread_functions_are_right_and_stay_inside_their_buffers() {
    build_and_run("aes");
}

#[test]
fn raid6_per_thread_functions_are_right_and_stay_inside_their_buffers() {
    build_and_run("raid6");
}

#[test]
fn digest_per_thread_functions_are_right_and_stay_inside_their_buffers() {
    build_and_run("digest");
}

#[test]
fn the_header_of_demand_mode_is_right_for_native_threads_and_stays_inside_its_table() {
    build_and_run("demand");
}

fn build_and_run(name: &str) {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    if let Err(error) = Command::new(&compiler).arg("--version").output() {
        return support::unavailable(&format!("the C++ compiler {compiler} does not start: {error}"));
    }
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = folder.path().join(name);
    let mut build = Command::new(&compiler);
    build.args(FLAGS).arg("-I").arg(crate_folder.join("src/cl")).arg("-I").arg(crate_folder.join("include"));
    build.arg(crate_folder.join(format!("tests/native/{name}.cpp"))).arg("-o").arg(&program);
    expect_success("the compiler", &build.output().expect("the compiler starts"));
    let seed = Draw::afresh().seed().to_string();
    let run = Command::new(&program).arg(&seed).output().expect("the test program starts");
    expect_success(&format!("the test program with seed {seed}"), &run);
}

fn expect_success(what: &str, output: &Output) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{what} ended with {}:\n{stderr}", output.status);
}
