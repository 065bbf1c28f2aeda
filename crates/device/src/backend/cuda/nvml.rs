//! Energy through NVIDIA's management library.
//!
//! The library comes with the driver, but a container may lack it: that is an ordinary answer. It
//! is opened once a process and never shut down. Its devices are found by the UUID that CUDA gives,
//! because it numbers them in an order of its own.

use crate::backend::RawEnergyMeter;
use crate::folders::Architecture;
use crate::library::{self, Search, api_table};
use crate::{Capability, Error, ErrorKind, LibraryReport, Result};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong};
use std::sync::OnceLock;

type Status = c_int;
const SUCCESS: Status = 0;
const NOT_SUPPORTED: Status = 3;

/// `nvmlDevice_t`: a pointer that only the library follows.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, Default)]
struct DeviceHandle(usize);

api_table! {
    /// The functions of NVML that are used.
    Nvml {
        fn nvmlInit_v2() -> Status;
        fn nvmlErrorString(status: Status) -> *const c_char;
        fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut DeviceHandle) -> Status;
        fn nvmlDeviceGetTotalEnergyConsumption(device: DeviceHandle, millijoules: *mut c_ulonglong) -> Status;
        fn nvmlDeviceGetPowerUsage(device: DeviceHandle, milliwatts: *mut c_uint) -> Status;
    }
}

/// Whether the energy, or at least the power, of the GPU with this identity can be read.
pub(super) fn capability(identity: &str) -> Capability {
    Meter::open(identity).map_or_else(Capability::no, |_| Capability::YES)
}

/// Where the library was found.
pub(super) fn report() -> LibraryReport {
    match library() {
        Ok((_, report)) | Err(report) => report.clone(),
    }
}

fn library() -> &'static Result<(Nvml, LibraryReport), LibraryReport> {
    static LIBRARY: OnceLock<Result<(Nvml, LibraryReport), LibraryReport>> = OnceLock::new();
    LIBRARY.get_or_init(|| library::find(&search(), Nvml::start))
}

fn search() -> Search<'static> {
    Search {
        name: "NVML",
        variable: "BIFOLIO_NVML_LIBRARY",
        sonames: &["libnvidia-ml.so.1"],
        candidates: Architecture::here()
            .driver_folders()
            .iter()
            .map(|folder| folder.join("libnvidia-ml.so.1"))
            .collect(),
    }
}

impl Nvml {
    /// Loads and initialises.
    fn start(library: libloading::Library) -> Result<Self, String> {
        let nvml = Self::load(library)?;
        // SAFETY: the call takes nothing.
        match unsafe { (nvml.nvmlInit_v2)() } {
            SUCCESS => Ok(nvml),
            status => Err(format!("it failed to initialise: {}", nvml.describe(status))),
        }
    }

    fn describe(&self, status: Status) -> String {
        // SAFETY: the library returns a static string for every status, or null.
        let text = unsafe { (self.nvmlErrorString)(status) };
        if text.is_null() {
            return format!("NVML error {status}");
        }
        // SAFETY: a static NUL-terminated string, as above.
        format!("{} (NVML error {status})", unsafe { CStr::from_ptr(text) }.to_string_lossy())
    }

    fn find(&self, identity: &str) -> Result<DeviceHandle, String> {
        let uuid = CString::new(identity).map_err(|_| "the GPU's UUID contains a NUL byte".to_owned())?;
        let mut device = DeviceHandle::default();
        // SAFETY: the text lives through the call; the library stores one handle.
        match unsafe { (self.nvmlDeviceGetHandleByUUID)(uuid.as_ptr(), &raw mut device) } {
            SUCCESS => Ok(device),
            // Parts of a GPU (MIG) have a UUID of their own in CUDA.
            status => Err(format!("NVML cannot find {identity}: {}", self.describe(status))),
        }
    }
}

/// The counter of one GPU.
#[derive(Debug)]
pub(super) struct Meter<'a> {
    nvml: &'a Nvml,
    device: DeviceHandle,
}

impl Meter<'static> {
    /// An error, as a sentence, where nothing can be read.
    pub(super) fn open(identity: &str) -> Result<Self, String> {
        let missing =
            |report: &LibraryReport| report.problem.clone().unwrap_or_else(|| "NVML was not found".to_owned());
        let (nvml, _) = library().as_ref().map_err(missing)?;
        Self::of(nvml, identity)
    }
}

impl<'a> Meter<'a> {
    fn of(nvml: &'a Nvml, identity: &str) -> Result<Self, String> {
        let meter = Self { nvml, device: nvml.find(identity)? };
        match (meter.millijoules(), meter.milliwatts()) {
            (Err(_), Err(status)) => {
                Err(format!("NVML reports neither energy nor power of this GPU: {}", nvml.describe(status)))
            }
            _ => Ok(meter),
        }
    }

    fn millijoules(&self) -> Result<u64, Status> {
        let mut millijoules = 0;
        // SAFETY: the handle is the library's; it stores one number.
        let status = unsafe { (self.nvml.nvmlDeviceGetTotalEnergyConsumption)(self.device, &raw mut millijoules) };
        if status == SUCCESS { Ok(millijoules) } else { Err(status) }
    }

    fn milliwatts(&self) -> Result<u32, Status> {
        let mut milliwatts = 0;
        // SAFETY: the handle is the library's; it stores one number.
        let status = unsafe { (self.nvml.nvmlDeviceGetPowerUsage)(self.device, &raw mut milliwatts) };
        if status == SUCCESS { Ok(milliwatts) } else { Err(status) }
    }

    fn failure(&self, status: Status, what: &str) -> Error {
        let kind = if status == NOT_SUPPORTED { ErrorKind::Unsupported } else { ErrorKind::Execution };
        Error::new(kind, format!("reading the GPU's {what} failed: {}", self.nvml.describe(status)))
    }
}

impl RawEnergyMeter for Meter<'static> {
    fn joules(&self) -> Result<f64> {
        let millijoules = self.millijoules().map_err(|status| self.failure(status, "energy"))?;
        // Exact up to 2^53 mJ, which at 1 kW is 285 years.
        Ok(millijoules as f64 / 1e3)
    }

    fn watts(&self) -> Result<f64> {
        let milliwatts = self.milliwatts().map_err(|status| self.failure(status, "power"))?;
        Ok(f64::from(milliwatts) / 1e3)
    }
}

#[cfg(test)]
mod tests;
