//! Tier 4: the kernels on Oclgrind, which interprets them and reports data races, uninitialised
//! reads and accesses outside a buffer. PoCL gives right results for kernels with a missing
//! barrier; this is the tier that finds one.
//!
//! The test runs itself as a child process whose OpenCL library is Oclgrind. Anything that the
//! child writes to its standard error is a finding.

mod support;

use bifolio_device::{BackendKind, Device, DeviceChoice, DeviceId, HostLaunch, ModuleSource};
use bifolio_kernels::aes::KeySize;
use bifolio_kernels::digest::{self, Digest};
use bifolio_kernels::known_answer::Draw;
use bifolio_kernels::{aes_ctr, aes_gcm, aes_xts, byte_mask, merge, page_diff, raid6, scatter};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Bytes of which one group makes its word of the bitmap.
const GROUP: usize = 32 * 4096;

#[test]
fn no_kernel_has_a_race_or_reads_what_nobody_wrote() {
    let Some(output) = run_under_oclgrind("child_runs_every_kernel") else { return };
    let findings = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{findings}", String::from_utf8_lossy(&output.stdout));
    assert!(findings.trim().is_empty(), "Oclgrind reports:\n{findings}");
}

#[test]
fn no_kernel_of_the_storage_services_has_a_race_or_reads_what_nobody_wrote() {
    let Some(output) = run_under_oclgrind("child_runs_every_kernel_of_the_storage_services") else { return };
    let findings = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{findings}", String::from_utf8_lossy(&output.stdout));
    assert!(findings.trim().is_empty(), "Oclgrind reports:\n{findings}");
}

#[test]
fn a_missing_barrier_is_reported() {
    let Some(output) = run_under_oclgrind("child_runs_a_kernel_with_a_missing_barrier") else { return };
    let findings = String::from_utf8_lossy(&output.stderr);
    assert!(findings.contains("data race"), "the planted race was not reported; Oclgrind said:\n{findings}");
    assert!(findings.contains("missing_barrier"), "{findings}");
}

#[test]
#[ignore = "the part of this tier that runs inside Oclgrind"]
fn child_runs_every_kernel() {
    let device = oclgrind_device();
    let stream = device.create_stream().unwrap();
    let mut draw = Draw::afresh();
    let module = device.load_module(&page_diff::MODULE).unwrap();
    for bytes in [1, 4096, GROUP - 1, GROUP + 4096 + 17] {
        page_diff::Case::draw(&mut draw, bytes).run(&stream, &module).unwrap();
    }
    let module = device.load_module(&scatter::MODULE).unwrap();
    for (count, longest) in [(1, 16), (8, 100), (9, 300), (20, 512)] {
        scatter::Case::draw(&mut draw, count, longest).run(&stream, &module).unwrap();
    }
    let merge = device.load_module(&merge::MODULE).unwrap();
    let byte_mask = device.load_module(&byte_mask::MODULE).unwrap();
    for (count, page_bytes) in [(1, 16), (5, 4096), (4, 8200), (3, 12304), (9, 100)] {
        merge::Case::draw(&mut draw, count, page_bytes).run(&stream, &merge).unwrap();
        byte_mask::Case::draw(&mut draw, count, page_bytes).run(&stream, &byte_mask).unwrap();
    }
}

#[test]
#[ignore = "the part of this tier that runs inside Oclgrind"]
fn child_runs_every_kernel_of_the_storage_services() {
    let device = oclgrind_device();
    let stream = device.create_stream().unwrap();
    let mut draw = Draw::afresh();
    let [xts, ctr, gcm, raid6] = [&aes_xts::MODULE, &aes_ctr::MODULE, &aes_gcm::MODULE, &raid6::MODULE]
        .map(|module| device.load_module(module).unwrap());
    // The sizes are small: an instruction takes Oclgrind a microsecond, and a group has 256 threads.
    aes_xts::Case::draw(&mut draw, KeySize::Aes128, 3, 512).run(&stream, &xts).unwrap();
    aes_ctr::Case::draw(&mut draw, KeySize::Aes128, 3, 100).run(&stream, &ctr).unwrap();
    aes_gcm::Case::draw(&mut draw, KeySize::Aes128, 9, 100).run(&stream, &gcm).unwrap();
    for (data, chunk_bytes) in [(2, 16), (5, 4112)] {
        let case = raid6::Case::draw(&mut draw, raid6::Geometry { data, chunk_bytes }, 8);
        case.run(&stream, &raid6).unwrap();
    }
    for digest in [Digest::Crc32c, Digest::Sha256] {
        let module = device.load_module(digest.module()).unwrap();
        digest::Case::draw(&mut draw, 9, 600).run(digest, &stream, &module).unwrap();
    }
}

#[test]
#[ignore = "the part of this tier that runs inside Oclgrind"]
fn child_runs_a_kernel_with_a_missing_barrier() {
    const PLANTED: ModuleSource = ModuleSource {
        name: "missing_barrier",
        source: include_str!("planted/missing_barrier.cl"),
        headers: page_diff::MODULE.headers,
        kernels: &[("missing_barrier", never_on_host)],
    };
    let device = oclgrind_device();
    let (stream, module) = (device.create_stream().unwrap(), device.load_module(&PLANTED).unwrap());
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

/// Runs one ignored test of this file on Oclgrind; none if there is no Oclgrind here.
fn run_under_oclgrind(test: &str) -> Option<Output> {
    let Some(library) = find() else {
        support::unavailable("Oclgrind is not installed (Debian package oclgrind)");
        return None;
    };
    // A cache of its own: binaries of other OpenCL implementations are of no use here.
    let cache = tempfile::tempdir().expect("a temporary folder");
    let mut child = Command::new(std::env::current_exe().expect("the path of this test"));
    child.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    child.env("BIFOLIO_OPENCL_LIBRARY", library).env("BIFOLIO_CACHE_DIR", cache.path());
    child.env("OCLGRIND_DATA_RACES", "1").env("OCLGRIND_UNINITIALIZED", "1").env("OCLGRIND_CHECK_API", "1");
    let output = child.output().expect("this test starts as a child");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("running 1 test"), "the child did not find its test {test}:\n{stdout}");
    Some(output)
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
