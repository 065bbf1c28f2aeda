//! Finding out what is there, without a context on any device.

use super::abi::{self, FrameProperties, NO_DEVICE, Ordinal, SUCCESS, Status};
use super::nvml;
use super::nvrtc::{self, Nvrtc};
use super::sys::{self, Cuda};
use crate::{
    BackendKind, BackendReport, Capabilities, Capability, DeviceId, DeviceInfo, Error, ErrorKind, FRAME_BYTES,
    LibraryReport, Result,
};
use std::ffi::{CStr, c_char};

/// The oldest driver that is used: the functions' versions and the cubins of NVRTC 12 need it.
const OLDEST_DRIVER: u32 = 12_000;

const NO_DRIVER: &str = "the CUDA driver could not be loaded";

/// Looks for the driver, the compiler and the devices.
pub(crate) fn report() -> BackendReport {
    let mut report =
        BackendReport { backend: BackendKind::Cuda.name(), libraries: vec![], devices: vec![], problems: vec![] };
    let (cuda, version) = match initialised(&mut report.libraries) {
        Ok(found) => found,
        Err(error) => {
            // The library's own entry says why it is missing; once is enough.
            let is_said = report.libraries.iter().any(|library| library.problem.is_some());
            report.problems.push(if is_said { format!("no devices: {NO_DRIVER}") } else { error.to_string() });
            return report;
        }
    };
    let compiler = nvrtc::compiler(version);
    report.libraries.push(match compiler {
        Ok((_, library)) | Err(library) => library.clone(),
    });
    report.libraries.push(nvml::report());
    match count(cuda) {
        Ok(count) => {
            for index in 0..count {
                match describe(cuda, index, version) {
                    Ok(info) => report.devices.push(info),
                    Err(error) => report.problems.push(error.on(DeviceId::new(BackendKind::Cuda, index)).to_string()),
                }
            }
        }
        Err(error) => report.problems.push(error.to_string()),
    }
    report
}

/// The driver, initialised and new enough, with the CUDA version that it supports.
pub(super) fn initialised(libraries: &mut Vec<LibraryReport>) -> Result<(&'static Cuda, u32)> {
    let (cuda, library) = match sys::driver() {
        Ok((cuda, library)) => (cuda, library),
        Err(library) => {
            libraries.push(library.clone());
            let problem = library.problem.as_deref().unwrap_or("it was not found");
            return Err(Error::new(ErrorKind::Missing, format!("{NO_DRIVER}: {problem}")));
        }
    };
    let version = cuda.version();
    let text = version.as_ref().ok().map(|version| sys::version_text(*version));
    libraries.push(LibraryReport { version: text, ..library.clone() });
    let version = version?;
    new_enough(version)?;
    // SAFETY: initialisation takes no pointers and may be repeated.
    let status = unsafe { (cuda.cuInit)(0) };
    match status {
        SUCCESS => Ok((cuda, version)),
        NO_DEVICE => Err(no_device()),
        _ => Err(cuda.failure(status, format_args!("initialising the CUDA driver"))),
    }
}

fn new_enough(version: u32) -> Result<()> {
    if version >= OLDEST_DRIVER {
        return Ok(());
    }
    let [found, wanted] = [version, OLDEST_DRIVER].map(sys::version_text);
    let detail = format!(
        "the NVIDIA driver is too old: it supports CUDA {found}, but CUDA {wanted} is required (driver 525 or newer)"
    );
    Err(Error::new(ErrorKind::Missing, detail))
}

fn no_device() -> Error {
    let detail = "the CUDA driver is installed, but sees no NVIDIA GPU (check nvidia-smi, CUDA_VISIBLE_DEVICES and, in a \
                  container, the devices passed to it)";
    Error::new(ErrorKind::Missing, detail)
}

fn count(cuda: &Cuda) -> Result<u32> {
    let mut count = 0;
    // SAFETY: the driver stores one integer.
    let status = unsafe { (cuda.cuDeviceGetCount)(&raw mut count) };
    cuda.check(status, format_args!("counting the NVIDIA GPUs"))?;
    if count <= 0 { Err(no_device()) } else { Ok(count.unsigned_abs()) }
}

/// The ordinal of device `index`; an error that says how many there are.
pub(super) fn ordinal(cuda: &Cuda, index: u32) -> Result<Ordinal> {
    let count = count(cuda)?;
    if index >= count {
        let detail = format!("no such device: the CUDA driver sees {count}, numbered from 0");
        return Err(Error::new(ErrorKind::Missing, detail));
    }
    let mut device = 0;
    // SAFETY: the driver stores one integer.
    let status = unsafe { (cuda.cuDeviceGet)(&raw mut device, index as i32) };
    cuda.check(status, format_args!("finding GPU {index}"))?;
    Ok(device)
}

/// What device `index` is and can do.
pub(super) fn describe(cuda: &Cuda, index: u32, version: u32) -> Result<DeviceInfo> {
    let device = ordinal(cuda, index)?;
    if cuda.attribute(device, abi::ATTRIBUTE_COMPUTE_MODE) == abi::COMPUTE_MODE_PROHIBITED {
        let detail = "its compute mode is \"prohibited\": change it with nvidia-smi -c 0";
        return Err(Error::new(ErrorKind::Missing, detail));
    }
    let (name, uuid, memory_bytes) = identify(cuda, device)?;
    let compiler =
        nvrtc::compiler(version).as_ref().map(|(compiler, _)| compiler).map_err(|report| report.problem.as_deref());
    let identity = format!("GPU-{}", uuid_text(&uuid));
    let kernel = std::fs::read_to_string("/proc/driver/nvidia/version").ok().and_then(|text| module_version(&text));
    Ok(DeviceInfo {
        id: DeviceId::new(BackendKind::Cuda, index),
        name,
        driver: driver_text(version, kernel.as_deref()),
        architecture: format!("sm_{}", architecture(cuda, device)),
        memory_bytes,
        // A kernel takes any address; what its loads need is between it and its caller.
        kernel_buffer_alignment: 1,
        is_accelerator: true,
        capabilities: capabilities(cuda, device, &identity, version, compiler),
        identity,
    })
}

/// `90` for `sm_90`.
pub(super) fn architecture(cuda: &Cuda, device: Ordinal) -> u32 {
    let part = |attribute| cuda.attribute(device, attribute).unsigned_abs();
    part(abi::ATTRIBUTE_CAPABILITY_MAJOR) * 10 + part(abi::ATTRIBUTE_CAPABILITY_MINOR)
}

fn identify(cuda: &Cuda, device: Ordinal) -> Result<(String, [u8; 16], u64)> {
    let mut name = [0 as c_char; 256];
    let mut uuid = [0; 16];
    let mut bytes = 0;
    let asked = |status: Status, what: &str| cuda.check(status, format_args!("querying the {what} of GPU {device}"));
    // SAFETY: the driver writes at most 255 characters and a NUL.
    asked(unsafe { (cuda.cuDeviceGetName)(name.as_mut_ptr(), 255, device) }, "name")?;
    // SAFETY: the driver writes sixteen bytes.
    asked(unsafe { (cuda.cuDeviceGetUuid_v2)(&raw mut uuid, device) }, "UUID")?;
    // SAFETY: the driver stores one size.
    asked(unsafe { (cuda.cuDeviceTotalMem_v2)(&raw mut bytes, device) }, "memory size")?;
    // SAFETY: the array is zeroed beyond what the driver wrote, so a NUL is in it.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().trim().to_owned();
    Ok((name, uuid, bytes as u64))
}

fn capabilities(
    cuda: &Cuda,
    device: Ordinal,
    identity: &str,
    version: u32,
    compiler: Result<&Nvrtc, Option<&str>>,
) -> Capabilities {
    let has = |attribute| cuda.attribute(device, attribute) != 0;
    let virtual_memory = virtual_memory(cuda, device);
    let export_fd = match &virtual_memory {
        Capability::Yes(_) => Capability::when(
            has(abi::ATTRIBUTE_HANDLE_TYPE_FD),
            "the driver cannot export this GPU's memory as file descriptors",
        ),
        Capability::No { .. } => Capability::no("exporting frames requires virtual memory management"),
    };
    let kernels = match compiler {
        Ok(compiler) => {
            match nvrtc::target(architecture(cuda, device), compiler.targets(), compiler.version(), version) {
                Ok(_) => Capability::YES,
                Err(reason) => Capability::no(reason),
            }
        }
        Err(problem) => Capability::no(format!(
            "the run-time compiler NVRTC could not be loaded: {} (install it with pip install nvidia-cuda-nvrtc)",
            problem.unwrap_or("it was not found")
        )),
    };
    Capabilities {
        virtual_memory,
        export_fd,
        host_register_read_only: Capability::when(
            has(abi::ATTRIBUTE_READ_ONLY_HOST_REGISTER),
            "this GPU and driver cannot page-lock read-only mappings",
        ),
        host_pointers: Capability::when(
            has(abi::ATTRIBUTE_HOST_POINTERS) && has(abi::ATTRIBUTE_READ_ONLY_HOST_REGISTER),
            "this GPU has registered host memory at other addresses than the CPU",
        ),
        peer_access: peer_access(cuda, device),
        direct_storage: super::cufile::capability(),
        kernels,
        concurrent_streams: Capability::when(
            has(abi::ATTRIBUTE_CONCURRENT_KERNELS),
            "this GPU runs one kernel at a time",
        ),
        host_addressable: Capability::no("the CPU cannot access this GPU's memory by address"),
        native_streams: Capability::YES,
        energy: nvml::capability(identity),
    }
}

fn virtual_memory(cuda: &Cuda, device: Ordinal) -> Capability {
    if cuda.attribute(device, abi::ATTRIBUTE_VIRTUAL_MEMORY) == 0 {
        return Capability::no("this GPU and driver have no virtual memory management");
    }
    let mut granularity = 0;
    let properties = FrameProperties::on(device, false);
    // SAFETY: the properties live through the call, and the driver stores one size.
    let status = unsafe {
        (cuda.cuMemGetAllocationGranularity)(&raw mut granularity, &raw const properties, abi::GRANULARITY_MINIMUM)
    };
    let fits = status == SUCCESS && granularity > 0 && FRAME_BYTES.is_multiple_of(granularity as u64);
    if fits {
        Capability::YES
    } else {
        Capability::no(format!(
            "frames of {FRAME_BYTES} bytes are not a multiple of this GPU's granularity of {granularity} bytes"
        ))
    }
}

fn peer_access(cuda: &Cuda, device: Ordinal) -> Capability {
    let count = count(cuda).unwrap_or(1) as Ordinal;
    let reaches = |peer: Ordinal| {
        let mut can = 0;
        // SAFETY: the driver stores one integer.
        let status = unsafe { (cuda.cuDeviceCanAccessPeer)(&raw mut can, device, peer) };
        status == SUCCESS && can != 0
    };
    let reason = if count < 2 { "there is no other GPU" } else { "this GPU has direct access to no other GPU" };
    Capability::when((0..count).any(|peer| peer != device && reaches(peer)), reason)
}

fn driver_text(version: u32, kernel_module: Option<&str>) -> String {
    let cuda = sys::version_text(version);
    kernel_module.map_or_else(|| format!("CUDA {cuda}"), |module| format!("CUDA {cuda}, kernel module {module}"))
}

/// The kernel module's version in `/proc/driver/nvidia/version`: the first word of digits and
/// dots. Open and proprietary modules word the line around it differently.
fn module_version(text: &str) -> Option<String> {
    let is_version = |word: &&str| word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(*uuid));
    [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &hex[part]).join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_driver_is_refused_with_what_it_has_and_what_is_needed() {
        assert!(new_enough(12_000).is_ok() && new_enough(13_010).is_ok());
        let error = new_enough(11_080).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Missing);
        assert!(error.to_string().contains("CUDA 11.8, but CUDA 12.0 is required"), "{error}");
    }

    #[test]
    fn the_kernel_module_version_is_found_in_both_wordings() {
        let proprietary = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version:  gcc version 12.3.0";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root@host)\n";
        assert_eq!(module_version(proprietary).as_deref(), Some("535.183.01"));
        assert_eq!(module_version(open).as_deref(), Some("580.159.04"));
        assert_eq!(module_version(""), None);
        assert_eq!(driver_text(13_000, Some("580.159.04")), "CUDA 13.0, kernel module 580.159.04");
    }

    #[test]
    fn identities_are_written_as_nvidia_smi_writes_them() {
        let uuid = *b"\x01\x23\x45\x67\x89\xab\xcd\xef\x00\x11\x22\x33\x44\x55\x66\x77";
        assert_eq!(uuid_text(&uuid), "01234567-89ab-cdef-0011-223344556677");
    }

    #[test]
    fn a_report_says_why_there_is_no_device() {
        let report = report();
        assert_eq!(report.libraries[0].name, "CUDA driver");
        assert!(!report.devices.is_empty() || !report.problems.is_empty());
    }
}
