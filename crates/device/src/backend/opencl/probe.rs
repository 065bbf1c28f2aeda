//! Finding out what is there: platforms in the loader's order, and their devices in theirs.

use super::abi::{self, DeviceHandle, PlatformId, SUCCESS, Status};
use super::status::check;
use super::sys::{self, OpenCl};
use crate::{BackendKind, BackendReport, Capabilities, Capability, DeviceId, DeviceInfo, Error, ErrorKind, Result};
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

const NO_LOADER: &str = "the OpenCL loader could not be loaded";

/// A device before it is opened.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) platform: PlatformId,
    pub(super) device: DeviceHandle,
    /// How many devices of the same platform and name come before it.
    namesakes: usize,
}

/// Looks for the loader, the drivers that it brings, and their devices.
pub(crate) fn report() -> BackendReport {
    let mut report =
        BackendReport { backend: BackendKind::OpenCl.name(), libraries: vec![], devices: vec![], problems: vec![] };
    report.libraries.push(match sys::loader() {
        Ok((_, library)) | Err(library) => library.clone(),
    });
    let found = loader().and_then(|cl| Ok((cl, devices(cl)?)));
    let (cl, found) = match found {
        Ok(found) => found,
        Err(error) => {
            // The library's own entry says why it is missing; once is enough.
            let is_said = report.libraries[0].problem.is_some();
            report.problems.push(if is_said { format!("no devices: {NO_LOADER}") } else { error.to_string() });
            return report;
        }
    };
    for (index, device) in found.iter().enumerate() {
        match describe(cl, device, index as u32) {
            Ok(info) => report.devices.push(info),
            Err(error) => report.problems.push(error.on(DeviceId::new(BackendKind::OpenCl, index as u32)).to_string()),
        }
    }
    report
}

/// The loader.
pub(super) fn loader() -> Result<&'static OpenCl> {
    sys::loader().map(|(cl, _)| cl).map_err(|library| {
        let problem = library.problem.as_deref().unwrap_or("it was not found");
        Error::new(ErrorKind::Missing, format!("{NO_LOADER}: {problem}"))
    })
}

/// All devices; an error if there are none.
///
/// One thread at a time: PoCL 3.1 prepares its devices at the first listing without a lock, and
/// a second thread that lists or asks meanwhile reads half a device and crashes.
pub(super) fn devices(cl: &OpenCl) -> Result<Vec<Found>> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut found: Vec<Found> = vec![];
    let mut names: Vec<(PlatformId, String)> = vec![];
    for platform in platforms(cl)? {
        for device in platform_devices(cl, platform)? {
            let name = device_text(cl, device, abi::DEVICE_NAME);
            let namesakes = names.iter().filter(|(owner, known)| *owner == platform && *known == name).count();
            names.push((platform, name));
            found.push(Found { platform, device, namesakes });
        }
    }
    if found.is_empty() {
        return Err(Error::new(ErrorKind::Missing, "the OpenCL drivers of this machine offer no device"));
    }
    Ok(found)
}

fn platforms(cl: &OpenCl) -> Result<Vec<PlatformId>> {
    let mut count = 0;
    // SAFETY: with no array the loader stores the count only.
    let status = unsafe { (cl.clGetPlatformIDs)(0, std::ptr::null_mut(), &raw mut count) };
    if status == abi::PLATFORM_NOT_FOUND || (status == SUCCESS && count == 0) {
        let detail = "the OpenCL loader is installed, but found no working driver (in /etc/OpenCL/vendors)";
        return Err(Error::new(ErrorKind::Missing, detail));
    }
    check(status, format_args!("listing the OpenCL platforms"))?;
    let mut platforms = vec![PlatformId::default(); count as usize];
    // SAFETY: the array has as many entries as the count says.
    let status = unsafe { (cl.clGetPlatformIDs)(count, platforms.as_mut_ptr(), std::ptr::null_mut()) };
    check(status, format_args!("listing the OpenCL platforms"))?;
    Ok(platforms)
}

fn platform_devices(cl: &OpenCl, platform: PlatformId) -> Result<Vec<DeviceHandle>> {
    let mut count = 0;
    let kind = abi::DEVICE_TYPE_ALL;
    // SAFETY: with no array the driver stores the count only.
    let status = unsafe { (cl.clGetDeviceIDs)(platform, kind, 0, std::ptr::null_mut(), &raw mut count) };
    if status == abi::DEVICE_NOT_FOUND || (status == SUCCESS && count == 0) {
        return Ok(vec![]);
    }
    check(status, format_args!("listing the devices of an OpenCL platform"))?;
    let mut devices = vec![DeviceHandle::default(); count as usize];
    // SAFETY: the array has as many entries as the count says.
    let status = unsafe { (cl.clGetDeviceIDs)(platform, kind, count, devices.as_mut_ptr(), std::ptr::null_mut()) };
    check(status, format_args!("listing the devices of an OpenCL platform"))?;
    Ok(devices)
}

/// What a device is and can do; an error if it cannot be used at all.
pub(super) fn describe(cl: &OpenCl, found: &Found, index: u32) -> Result<DeviceInfo> {
    let Found { platform, device, namesakes } = *found;
    let version = device_text(cl, device, abi::DEVICE_VERSION);
    let unusable = |why: String| Error::new(ErrorKind::Missing, why);
    if !is_new_enough(&version) {
        return Err(unusable(format!("it supports {version}, but OpenCL 1.2 is required")));
    }
    if device_number(cl, device, abi::DEVICE_AVAILABLE) == 0 {
        return Err(unusable("its driver reports it as unavailable".to_owned()));
    }
    // Parameter structs and pages are exchanged as the host lays them out.
    if device_number(cl, device, abi::DEVICE_ENDIAN_LITTLE) == 0 {
        return Err(unusable("big-endian devices are not supported".to_owned()));
    }
    let name = device_text(cl, device, abi::DEVICE_NAME);
    let platform_name = platform_text(cl, platform, abi::PLATFORM_NAME);
    let platform_version = platform_text(cl, platform, abi::PLATFORM_VERSION);
    let driver = device_text(cl, device, abi::DRIVER_VERSION);
    let accelerators = abi::DEVICE_TYPE_GPU | abi::DEVICE_TYPE_ACCELERATOR;
    Ok(DeviceInfo {
        id: DeviceId::new(BackendKind::OpenCl, index),
        identity: uuid(cl, device).unwrap_or_else(|| format!("{platform_name}/{name}/{namesakes}")),
        name,
        driver: format!("{platform_name}, {platform_version}, driver {driver}"),
        architecture: String::new(),
        memory_bytes: device_number(cl, device, abi::DEVICE_GLOBAL_MEM_SIZE),
        // Given in bits; it is what a sub-buffer's offset must be a multiple of.
        kernel_buffer_alignment: (device_number(cl, device, abi::DEVICE_MEM_BASE_ADDR_ALIGN) / 8).max(1),
        is_accelerator: device_number(cl, device, abi::DEVICE_TYPE) & accelerators != 0,
        capabilities: capabilities(device_number(cl, device, abi::DEVICE_COMPILER_AVAILABLE) != 0),
    })
}

fn capabilities(has_compiler: bool) -> Capabilities {
    Capabilities {
        virtual_memory: Capability::no("OpenCL 1.2 cannot map memory into address ranges"),
        export_fd: Capability::no("OpenCL 1.2 cannot share memory between processes"),
        host_register_read_only: Capability::no("OpenCL 1.2 cannot page-lock memory that it did not allocate"),
        host_pointers: Capability::no("OpenCL 1.2 kernels read buffers alone"),
        peer_access: Capability::no("OpenCL 1.2 cannot address another device's memory"),
        direct_storage: Capability::no("OpenCL 1.2 has no file I/O"),
        kernels: Capability::when(has_compiler, "this OpenCL driver has no compiler"),
        concurrent_streams: Capability::YES,
        host_addressable: Capability::no("OpenCL 1.2 has buffers, not addresses"),
        native_streams: Capability::no("an OpenCL queue can only use memory of its own context"),
        energy: Capability::no("OpenCL has no energy counter"),
    }
}

/// Whether a version such as `OpenCL 3.0 CUDA` is 1.2 or newer.
fn is_new_enough(version: &str) -> bool {
    let number = version.strip_prefix("OpenCL ").and_then(|rest| rest.split(' ').next());
    let parts = number.and_then(|number| number.split_once('.'));
    parts.and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))) >= Some((1, 2))
}

fn uuid(cl: &OpenCl, device: DeviceHandle) -> Option<String> {
    let extensions = device_text(cl, device, abi::DEVICE_EXTENSIONS);
    extensions.split(' ').find(|&extension| extension == "cl_khr_device_uuid")?;
    // SAFETY: the driver writes at most `len` bytes to `value`.
    let bytes = read(|len, value, size| unsafe { (cl.clGetDeviceInfo)(device, abi::DEVICE_UUID, len, value, size) });
    let uuid = u128::from_be_bytes(bytes.try_into().ok()?);
    // A driver that has no identity to give writes zeros, the same for each device.
    (uuid != 0).then(|| format!("UUID-{uuid:032x}"))
}

/// A platform's property that is text.
pub(super) fn platform_text(cl: &OpenCl, platform: PlatformId, what: u32) -> String {
    // SAFETY: the driver writes at most `len` bytes to `value`.
    text(&read(|len, value, size| unsafe { (cl.clGetPlatformInfo)(platform, what, len, value, size) }))
}

/// A device's property that is text.
pub(super) fn device_text(cl: &OpenCl, device: DeviceHandle, what: u32) -> String {
    // SAFETY: the driver writes at most `len` bytes to `value`.
    text(&read(|len, value, size| unsafe { (cl.clGetDeviceInfo)(device, what, len, value, size) }))
}

/// A device's property that is a number of up to eight bytes; 0 where the driver has none.
pub(super) fn device_number(cl: &OpenCl, device: DeviceHandle, what: u32) -> u64 {
    // SAFETY: the driver writes at most `len` bytes to `value`.
    number(&read(|len, value, size| unsafe { (cl.clGetDeviceInfo)(device, what, len, value, size) }))
}

/// Reads a property by the protocol that all of OpenCL's queries share: first its size, then its
/// value. Empty if the driver refuses.
pub(super) fn read(query: impl Fn(usize, *mut c_void, *mut usize) -> Status) -> Vec<u8> {
    let mut size = 0;
    if query(0, std::ptr::null_mut(), &raw mut size) != SUCCESS {
        return vec![];
    }
    let mut bytes = vec![0; size];
    let status = query(size, bytes.as_mut_ptr().cast(), std::ptr::null_mut());
    if status == SUCCESS { bytes } else { vec![] }
}

/// Text up to its NUL, without the blanks that vendors put around it.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}

fn number(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    let len = bytes.len().min(8);
    wide[..len].copy_from_slice(&bytes[..len]);
    u64::from_le_bytes(wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_from_1_2_on_are_new_enough() {
        for version in ["OpenCL 1.2 pocl HSTR", "OpenCL 2.0 AMD-APP", "OpenCL 3.0 CUDA", "OpenCL 10.0"] {
            assert!(is_new_enough(version), "{version}");
        }
        for version in ["OpenCL 1.1 Mesa", "OpenCL 1.0", "", "OpenCL", "OpenCL x.y", "1.2"] {
            assert!(!is_new_enough(version), "{version}");
        }
    }

    #[test]
    fn properties_are_read_whatever_their_width() {
        assert_eq!(number(&1_u32.to_le_bytes()), 1);
        assert_eq!(number(&(1_u64 << 40).to_le_bytes()), 1 << 40);
        assert_eq!(number(&[]), 0);
        assert_eq!(text(b"  Vendor \0rest"), "Vendor");
        assert_eq!(read(|_, _, _| -30), Vec::<u8>::new());
    }

    #[test]
    fn a_report_says_why_there_is_no_device() {
        let report = report();
        assert_eq!(report.libraries[0].name, "OpenCL loader");
        assert!(!report.devices.is_empty() || !report.problems.is_empty());
    }
}
