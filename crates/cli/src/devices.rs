//! `bifolio devices`: what was found where, what each device can do, and what is missing and why.

use crate::exit::{Code, Failure};
use crate::global::Global;
use crate::output;
use bifolio_device::{
    BackendReport, Capability, DeviceChoice, DeviceId, DeviceInfo, LibraryReport, choose, discover, open,
};
use bifolio_io::size;
use bifolio_kernels::{KERNELS, KernelPath, KernelStatus, Kernels};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::fmt::Write;

/// Choices for `devices`.
#[derive(Debug, ClapArgs)]
pub struct DevicesArgs {
    /// Also run a known-answer test of every kernel: on all devices, or on the one of --device.
    #[arg(long)]
    pub test: bool,
}

/// One backend's report, with the kernels' tests of its devices where they were asked for.
#[derive(Debug, Serialize)]
struct Listed {
    #[serde(flatten)]
    report: BackendReport,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tests: Vec<Test>,
}

/// How the kernels fared on one device.
#[derive(Debug, Serialize)]
struct Test {
    device: DeviceId,
    kernels: Vec<KernelStatus>,
    /// Why nothing could be tested.
    problem: Option<String>,
    #[serde(skip)]
    failure: Option<Failure>,
}

/// Lists the devices, and fails if the one asked for is not there or a kernel is wrong.
pub fn run(global: &Global, options: &DevicesArgs) -> Result<(), Failure> {
    let reports = discover();
    let auto = choose(&reports);
    let wanted = match global.device_choice()? {
        choice @ DeviceChoice::Exactly(id) => open(choice).map(|_| Some(id)),
        DeviceChoice::Auto => Ok(None),
    };
    let wanted_id = wanted.as_ref().ok().copied().flatten();
    let test = options.test && wanted.is_ok();
    let listed: Vec<Listed> = reports.into_iter().map(|report| list(report, test, wanted_id)).collect();
    global.answer(&listed, || describe(&listed, auto))?;
    wanted?;
    listed.into_iter().flat_map(|listed| listed.tests).find_map(Test::into_failure).map_or(Ok(()), Err)
}

fn list(report: BackendReport, test: bool, only: Option<DeviceId>) -> Listed {
    let ids: Vec<DeviceId> = match only {
        Some(id) if id.backend.name() == report.backend => vec![id],
        Some(_) => vec![],
        None => report.devices.iter().map(|device| device.id).collect(),
    };
    let tests = if test { ids.into_iter().map(test_kernels).collect() } else { vec![] };
    Listed { report, tests }
}

/// Runs the known-answer test of every kernel on one device.
fn test_kernels(id: DeviceId) -> Test {
    let nothing = |problem: String, failure| Test { device: id, kernels: vec![], problem: Some(problem), failure };
    let device = match open(DeviceChoice::Exactly(id)) {
        Ok(device) => device,
        Err(error) => return nothing(error.to_string(), Some(error.into())),
    };
    if let Some(reason) = device.capabilities().kernels.reason() {
        return nothing(format!("not tested: {reason}"), None);
    }
    match Kernels::load(&device, KERNELS) {
        Ok(kernels) => {
            let kernels = kernels.report();
            let failure = wrong(id, &kernels);
            Test { device: id, kernels, problem: None, failure }
        }
        Err(error) => nothing(error.to_string(), Some(error.into())),
    }
}

/// The first kernel that does not run on a device that runs kernels.
fn wrong(device: DeviceId, kernels: &[KernelStatus]) -> Option<Failure> {
    let kernel = kernels.iter().find(|kernel| kernel.path != KernelPath::Device)?;
    let reason = kernel.reason.as_deref().unwrap_or("it does not run on the device");
    let message = format!("{device}: the kernel {} cannot be used: {reason}", kernel.name);
    Some(Failure::new(Code::Wrong, message))
}

impl Test {
    fn into_failure(self) -> Option<Failure> {
        self.failure
    }
}

fn describe(listed: &[Listed], auto: DeviceId) -> String {
    let mut text = format!("auto stands for {auto}\n");
    for Listed { report, tests } in listed {
        let _ = writeln!(text, "\n{}", report.backend);
        let rows: Vec<_> =
            report.libraries.iter().map(|library| vec![format!("  {}", library.name), place_of(library)]).collect();
        text.push_str(&output::columns(&rows, &[0, 1]));
        for problem in report.problems.iter().filter(|problem| !told_by_a_library(report, problem)) {
            let _ = writeln!(text, "  {problem}");
        }
        for device in &report.devices {
            describe_device(&mut text, device);
        }
        for test in tests {
            describe_test(&mut text, test);
        }
    }
    text
}

/// A missing library is often the whole problem of its backend; once is enough.
fn told_by_a_library(report: &BackendReport, problem: &str) -> bool {
    report.libraries.iter().any(|library| library.problem.as_deref() == Some(problem))
}

fn place_of(library: &LibraryReport) -> String {
    let version = library.version.as_ref().map(|version| format!(", version {version}")).unwrap_or_default();
    match (&library.path, &library.problem) {
        (Some(path), Some(problem)) => format!("{path}{version}: {problem}"),
        (Some(path), None) => format!("{path}{version}"),
        (None, problem) => problem.clone().unwrap_or_else(|| "not found".to_owned()),
    }
}

fn describe_device(text: &mut String, device: &DeviceInfo) {
    let _ = writeln!(text, "  {}  {}", device.id, device.name);
    let row = |name: &str, value: String| vec![format!("    {name}"), value];
    let mut rows = vec![row("memory", size::human(device.memory_bytes)), row("driver", device.driver.clone())];
    if !device.architecture.is_empty() {
        rows.push(row("architecture", device.architecture.clone()));
    }
    let can = |capability: &Capability| {
        capability.reason().map_or_else(|| "yes".to_owned(), |reason| format!("no: {reason}"))
    };
    rows.extend(device.capabilities.iter().map(|(name, capability)| row(name, can(capability))));
    text.push_str(&output::columns(&rows, &[0, 1]));
}

fn describe_test(text: &mut String, test: &Test) {
    let _ = writeln!(text, "  {} kernels", test.device);
    if let Some(problem) = &test.problem {
        let _ = writeln!(text, "    {problem}");
    }
    for kernel in &test.kernels {
        let _ = match (kernel.path, &kernel.reason) {
            (KernelPath::Device, _) => writeln!(text, "    {}: right", kernel.name),
            (KernelPath::Host, reason) => {
                writeln!(text, "    {}: wrong: {}", kernel.name, reason.as_deref().unwrap_or("no reason given"))
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(name: &'static str, path: KernelPath) -> KernelStatus {
        let reason = (path == KernelPath::Host).then(|| "byte 3 is 0x00".to_owned());
        KernelStatus { name, path, reason }
    }

    #[test]
    fn one_wrong_kernel_is_a_failure_that_names_kernel_device_and_reason() {
        let kernels = [status("page_diff", KernelPath::Device), status("scatter", KernelPath::Host)];
        assert!(wrong(DeviceId::HOST, &kernels[..1]).is_none());
        let failure = wrong(DeviceId::HOST, &kernels).unwrap();
        assert_eq!(failure.code(), Code::Wrong);
        for word in ["host:0", "scatter", "byte 3"] {
            assert!(failure.message().contains(word), "{}", failure.message());
        }
    }
}
