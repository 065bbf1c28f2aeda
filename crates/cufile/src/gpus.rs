//! GPUs: which there are, and how much of their memory the bus sees, which is the size of their largest BAR. The
//! driver's kernel module says where on the bus a GPU is, and the system how large its BARs are.

use crate::abi::CUfileError_t;
use crate::abi::CUfileOpError::{CU_FILE_CUDA_DRIVER_ERROR, CU_FILE_PLATFORM_NOT_SUPPORTED};
use crate::status::{Failure, Outcome, status, store};
use bifolio_device::{BackendKind, DeviceId, discover};
use std::ffi::c_int;
use std::path::Path;
use std::sync::LazyLock;

/// A folder for each GPU, whose name is its place on the bus.
const GPUS: &str = "/proc/driver/nvidia/gpus";
const ON_THE_BUS: &str = "/sys/bus/pci/devices";

/// BARs of a device; what follows them in the list are its ROM and those of virtual functions.
const BARS: usize = 6;
/// The flag of memory, where others are ports.
const IS_MEMORY: u64 = 0x200;

/// Every GPU and its identity, in the driver's order.
static ALL: LazyLock<Vec<(DeviceId, String)>> = LazyLock::new(|| {
    let devices = discover().into_iter().flat_map(|report| report.devices);
    let gpus = devices.filter(|device| device.id.backend == BackendKind::Cuda);
    gpus.map(|device| (device.id, device.identity)).collect()
});

/// The UUIDs of all GPUs, in the driver's order.
pub(crate) fn uuids() -> &'static [[u8; 16]] {
    static UUIDS: LazyLock<Vec<[u8; 16]>> =
        LazyLock::new(|| ALL.iter().map(|(_, identity)| uuid_of(identity)).collect());
    &UUIDS
}

/// The bytes of a UUID such as `GPU-00112233-...`; zeros for what is none.
fn uuid_of(identity: &str) -> [u8; 16] {
    let digits: String = identity.trim_start_matches("GPU-").chars().filter(|digit| *digit != '-').collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

/// Whether what the driver says of a GPU is about the one with this identity.
fn is_about(information: &str, identity: &str) -> bool {
    let values = information.lines().filter_map(|line| line.split_once(':'));
    values.into_iter().any(|(name, value)| name.trim() == "GPU UUID" && value.trim().eq_ignore_ascii_case(identity))
}

/// The largest BAR in a list of ranges, in bytes: a line each, with first and last address and flags.
fn largest_bar(ranges: &str) -> Option<u64> {
    let size = |line: &str| {
        let mut numbers =
            line.split_ascii_whitespace().map(|number| u64::from_str_radix(number.trim_start_matches("0x"), 16).ok());
        let (first, last, flags) = (numbers.next()??, numbers.next()??, numbers.next()??);
        (flags & IS_MEMORY != 0 && last > first).then(|| last - first + 1)
    };
    ranges.lines().take(BARS).filter_map(size).max()
}

/// The largest BAR of a GPU in bytes, by two folders of the system.
fn bar_of(identity: &str, gpus: &Path, on_the_bus: &Path) -> Result<u64, String> {
    let unreadable = |at: &Path, error: &std::io::Error| format!("{}: {error}", at.display());
    let folders = std::fs::read_dir(gpus).map_err(|error| unreadable(gpus, &error))?;
    for folder in folders.flatten() {
        let information = folder.path().join("information");
        let Ok(text) = std::fs::read_to_string(&information) else { continue };
        if !is_about(&text, identity) {
            continue;
        }
        let ranges = on_the_bus.join(folder.file_name()).join("resource");
        let text = std::fs::read_to_string(&ranges).map_err(|error| unreadable(&ranges, &error))?;
        return largest_bar(&text).ok_or_else(|| format!("{}: it lists no BAR", ranges.display()));
    }
    Err(format!("{} has no entry for {identity}", gpus.display()))
}

/// The BAR of the GPU that the driver gives a number.
fn bar_of_number(number: c_int) -> Outcome<u64> {
    if ALL.is_empty() {
        let text = "the CUDA driver reports no GPU (`bifolio devices` says why)";
        return Err(Failure::new(CU_FILE_CUDA_DRIVER_ERROR, text));
    }
    let gpu = ALL.iter().find(|(id, _)| c_int::try_from(id.index) == Ok(number));
    let Some((id, identity)) = gpu else {
        return Err(Failure::argument(format!("there is no GPU {number}: the driver reports {}", ALL.len())));
    };
    bar_of(identity, Path::new(GPUS), Path::new(ON_THE_BUS)).map_err(|why| {
        let text = format!("cannot read the BAR size of {id}: {why}");
        Failure::new(CU_FILE_PLATFORM_NOT_SUPPORTED, text)
    })
}

/// How much of a GPU's memory the bus sees, in KiB. No session has to be open.
///
/// # Safety
/// `bar_size` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetBARSizeInKB(gpu_index: c_int, bar_size: *mut usize) -> CUfileError_t {
    status("cuFileGetBARSizeInKB", || {
        if bar_size.is_null() || gpu_index < 0 {
            return Err(Failure::argument("the pointer for the result is NULL, or the GPU index is negative"));
        }
        let bytes = bar_of_number(gpu_index)?;
        // SAFETY: the caller's promise.
        unsafe { store(bar_size, (bytes >> 10) as usize) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: &str = "0x000004a042000000 0x000004a042ffffff 0x000000000014220c\n\
                        0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                        0x0000048000000000 0x000004bfffffffff 0x000000000014220c\n\
                        0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                        0x000004c040000000 0x000004c041ffffff 0x000000000014220c\n\
                        0x000000000000e000 0x00000000ffffffff 0x0000000000040101\n\
                        0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                        0x0000050000000000 0x00000fffffffffff 0x0000000000140204\n";

    #[test]
    fn the_bytes_of_a_uuid_are_those_that_are_written() {
        let bytes = uuid_of("GPU-01234567-89ab-cdef-0011-223344556677");
        assert_eq!(bytes[..5], [0x01, 0x23, 0x45, 0x67, 0x89]);
        assert_eq!((bytes[15], uuid_of("something else")), (0x77, [0; 16]));
    }

    #[test]
    fn the_largest_bar_is_memory_of_the_device_itself() {
        assert_eq!(largest_bar(H200), Some(256 << 30));
        assert_eq!(largest_bar(""), None);
        assert_eq!(largest_bar("0x10 0x1f\nnonsense 0x2 0x200\n0x20 0x10 0x200\n0x0 0x0 0x0\n"), None);
    }

    #[test]
    fn a_gpu_is_found_by_its_identity_and_what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (gpus, bus) = (folder.path().join("gpus"), folder.path().join("bus"));
        assert!(bar_of("GPU-1", &gpus, &bus).unwrap_err().contains("gpus: "));
        for (place, identity) in [("0000:01:00.0", "GPU-1"), ("0000:02:00.0", "GPU-2")] {
            std::fs::create_dir_all(gpus.join(place)).unwrap();
            let information = format!("Model: \t\t NVIDIA H200\nIRQ:   \t\t 24\nGPU UUID: \t {identity}\n");
            std::fs::write(gpus.join(place).join("information"), information).unwrap();
        }
        std::fs::create_dir_all(bus.join("0000:02:00.0")).unwrap();
        std::fs::write(bus.join("0000:02:00.0/resource"), H200).unwrap();
        assert_eq!(bar_of("gpu-2", &gpus, &bus), Ok(256 << 30));
        assert!(bar_of("GPU-1", &gpus, &bus).unwrap_err().contains("0000:01:00.0/resource: "));
        assert!(bar_of("GPU-3", &gpus, &bus).unwrap_err().ends_with("has no entry for GPU-3"));
    }
}
