//! Tier 4: the kernels on Oclgrind, which interprets them and reports data races, uninitialised
//! reads and accesses outside a buffer. PoCL gives right results for kernels with a missing
//! barrier; this is the tier that finds one.
//!
//! The test runs itself as a child process whose OpenCL library is Oclgrind. Anything that the
//! child writes to its standard error is a finding.

use crate::parallel;
use bifolio_device::{BackendKind, Device, DeviceChoice, DeviceId, HostLaunch, ModuleSource};
use bifolio_kernels::known_answer::Draw;
use bifolio_kernels::page_diff::PageDiff;
use bifolio_kernels::{Effort, KERNELS, Kernel, Trial};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Tells a child which kernel it is to run.
const KERNEL: &str = "BIFOLIO_TEST_KERNEL";

#[test]
fn no_kernel_has_a_race_or_reads_what_nobody_wrote() {
    let Some(library) = find_or_say() else { return };
    parallel::for_each(KERNELS, |kernel| {
        let output = run_under_oclgrind(&library, "child_runs_a_kernel", kernel.name());
        let findings = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}\n{findings}", String::from_utf8_lossy(&output.stdout));
        assert!(findings.trim().is_empty(), "Oclgrind reports of {}:\n{findings}", kernel.name());
    });
}

#[test]
fn a_missing_barrier_is_reported() {
    let Some(library) = find_or_say() else { return };
    let output = run_under_oclgrind(&library, "child_runs_a_kernel_with_a_missing_barrier", "");
    let findings = String::from_utf8_lossy(&output.stderr);
    assert!(findings.contains("data race"), "the planted race was not reported; Oclgrind said:\n{findings}");
    assert!(findings.contains("missing_barrier"), "{findings}");
}

#[test]
#[ignore = "the part of this tier that runs inside Oclgrind"]
fn child_runs_a_kernel() {
    let name = std::env::var(KERNEL).expect("the parent names the kernel");
    let kernel = KERNELS.iter().find(|kernel| kernel.name() == name).expect("there is such a kernel");
    let device = oclgrind_device();
    let (stream, module) = (device.create_stream().unwrap(), device.load_module(kernel.source()).unwrap());
    let draw = Draw::from_seed(bifolio_testing::seed());
    kernel.try_out(&mut Trial::new(&stream, Some(&module), Effort::Interpreted, draw)).unwrap();
}

#[test]
#[ignore = "the part of this tier that runs inside Oclgrind"]
fn child_runs_a_kernel_with_a_missing_barrier() {
    let planted = ModuleSource {
        name: "missing_barrier",
        source: include_str!("planted/missing_barrier.cl"),
        headers: PageDiff.source().headers,
        kernels: &[("missing_barrier", never_on_host)],
    };
    let device = oclgrind_device();
    let (stream, module) = (device.create_stream().unwrap(), device.load_module(&planted).unwrap());
    let (a, b) = (device.alloc(4096).unwrap(), device.alloc(4096).unwrap());
    let bitmap = device.alloc(4).unwrap();
    stream.upload(a.slice(), &[1; 4096]).unwrap();
    stream.upload(b.slice(), &[2; 4096]).unwrap();
    let bytes = 4096_u64.to_ne_bytes();
    let args = [
        bifolio_device::KernelArg::Buffer(a.ptr()),
        bifolio_device::KernelArg::Buffer(b.ptr()),
        bifolio_device::KernelArg::Buffer(bitmap.ptr()),
        bifolio_device::KernelArg::Bytes(&bytes),
    ];
    // SAFETY: the planted kernel has the parameters of the page comparison, and its memory lives
    // until the synchronisation.
    unsafe { stream.launch(&module, "missing_barrier", 1, 256, &args) }.unwrap();
    stream.synchronize().unwrap();
}

unsafe fn never_on_host(_: &HostLaunch<'_>) {
    unreachable!("the planted kernel runs under Oclgrind only");
}

fn oclgrind_device() -> Device {
    let device = bifolio_device::open(DeviceChoice::Exactly(DeviceId::new(BackendKind::OpenCl, 0))).unwrap();
    let info = device.info();
    assert!(info.name.contains("Oclgrind"), "this child has to run on Oclgrind, not on {}", info.name);
    device
}

/// Runs one ignored test of this file on Oclgrind.
fn run_under_oclgrind(library: &Path, test: &str, kernel: &str) -> Output {
    // A cache of its own: binaries of other OpenCL implementations are of no use here.
    let cache = tempfile::tempdir().expect("a temporary folder");
    let mut child = Command::new(std::env::current_exe().expect("the path of this test"));
    let test = format!("{}::{test}", module_path!().split_once("::").map_or("", |(_, module)| module));
    child.args(["--exact", &test, "--ignored", "--nocapture", "--test-threads=1"]).env(KERNEL, kernel);
    child.env("BIFOLIO_OPENCL_LIBRARY", library).env("BIFOLIO_CACHE_DIR", cache.path());
    child.env("OCLGRIND_DATA_RACES", "1").env("OCLGRIND_UNINITIALIZED", "1").env("OCLGRIND_CHECK_API", "1");
    let output = child.output().expect("this test starts as a child");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("running 1 test"), "the child did not find its test {test}:\n{stdout}");
    output
}

fn find_or_say() -> Option<PathBuf> {
    let found = find();
    if found.is_none() {
        bifolio_testing::require("Oclgrind is not installed (Debian package oclgrind)");
    }
    found
}

fn find() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("BIFOLIO_OCLGRIND_LIBRARY").filter(|value| !value.is_empty()) {
        return Some(PathBuf::from(named));
    }
    let triplet = format!("/usr/lib/{}-linux-gnu/oclgrind", std::env::consts::ARCH);
    let folders = ["/usr/lib/oclgrind", &triplet, "/usr/local/lib/oclgrind"];
    let files = folders.iter().map(|folder| Path::new(folder).join("liboclgrind-rt.so"));
    files.into_iter().find(|file| file.exists())
}
