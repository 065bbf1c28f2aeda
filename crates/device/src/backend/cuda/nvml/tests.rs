//! The library's answers, by a double that the C compiler makes.

use super::*;
use std::process::Command;

/// A library with one GPU, `GPU-here`. What is not supported is said so.
fn double(
    energy: bool,
    power: bool,
    init: Status,
) -> (tempfile::TempDir, Result<(Nvml, LibraryReport), LibraryReport>) {
    let source = format!(
        "#include <string.h>\n\
         int nvmlInit_v2(void) {{ return {init}; }}\n\
         const char *nvmlErrorString(int status) {{ return status == 3 ? \"Not Supported\" : status == 9 ? \"Driver Not Loaded\" : 0; }}\n\
         int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {{ *device = (void *)7; return strcmp(uuid, \"GPU-here\") ? 6 : 0; }}\n\
         int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) {{ *mj = 5000000000250ull; return {e}; }}\n\
         int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) {{ *mw = 698250; return device == (void *)7 ? {p} : 2; }}\n",
        e = if energy { SUCCESS } else { NOT_SUPPORTED },
        p = if power { SUCCESS } else { NOT_SUPPORTED },
    );
    let dir = tempfile::tempdir().unwrap();
    let (code, file) = (dir.path().join("nvml.c"), dir.path().join("libnvidia-ml.so.1"));
    std::fs::write(&code, source).unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&file).arg(&code).status().unwrap();
    assert!(compiled.success(), "building needs a C compiler anyway");
    let search = Search { sonames: &[], candidates: vec![file], variable: "BIFOLIO_TEST_UNSET", ..search() };
    let found = library::find(&search, Nvml::start);
    (dir, found)
}

fn leaked(energy: bool, power: bool) -> &'static Nvml {
    let (_dir, found) = double(energy, power, SUCCESS);
    &Box::leak(Box::new(found.unwrap())).0
}

#[test]
fn readings_are_in_joules_and_watts() {
    let meter = Meter::of(leaked(true, true), "GPU-here").unwrap();
    assert!((meter.joules().unwrap() - 5_000_000_000.25).abs() < 1e-6);
    assert!((meter.watts().unwrap() - 698.25).abs() < 1e-9);
}

#[test]
fn a_gpu_that_counts_no_energy_still_tells_its_power() {
    let meter = Meter::of(leaked(false, true), "GPU-here").unwrap();
    let error = meter.joules().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("energy failed: Not Supported"), "{error}");
    assert!(meter.watts().is_ok());
    assert!(Meter::of(leaked(true, false), "GPU-here").unwrap().joules().is_ok());
}

#[test]
fn a_gpu_that_tells_nothing_or_is_unknown_is_a_reason() {
    let reason = Meter::of(leaked(false, false), "GPU-here").unwrap_err();
    assert!(reason.contains("neither energy nor power") && reason.contains("Not Supported"), "{reason}");
    let reason = Meter::of(leaked(true, true), "MIG-there").unwrap_err();
    assert!(reason.contains("cannot find MIG-there: NVML error 6"), "{reason}");
}

#[test]
fn a_library_that_does_not_start_is_reported() {
    let (_dir, found) = double(true, true, 9);
    let problem = found.unwrap_err().problem.unwrap();
    assert!(
        problem.contains("libnvidia-ml.so.1 was found, but it failed to initialise: Driver Not Loaded"),
        "{problem}"
    );
}

#[test]
fn a_missing_library_is_an_ordinary_answer() {
    let search = Search {
        sonames: &["libbifolio-no-such.so.1"],
        candidates: vec![],
        variable: "BIFOLIO_TEST_UNSET",
        ..search()
    };
    let problem = library::find(&search, Nvml::start).unwrap_err().problem.unwrap();
    assert!(problem.contains("libbifolio-no-such.so.1 was not found on the loader's path"), "{problem}");
    assert!(capability("GPU-nobody").reason().is_some_and(|reason| reason.len() > 10));
}
