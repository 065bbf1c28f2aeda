//! The machine and the file system, for the head of a report.

use bifolio_device::{Device, DeviceId};
use bifolio_io::OpenFile;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use std::fs::read_to_string;
use std::os::unix::fs::MetadataExt;

/// Where the measurements were taken.
#[derive(Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Processors that we may use.
    pub cpus: usize,
    /// The kernel's version.
    pub kernel: String,
    /// The device's name on the command line.
    #[serde(deserialize_with = "by_name")]
    pub device: DeviceId,
    /// The vendor's name for it.
    pub device_name: String,
    /// Its driver.
    pub driver: String,
}

/// A device by its name on the command line.
fn by_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DeviceId, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

/// This machine with a device.
pub fn describe(device: &Device) -> Machine {
    let info = device.info();
    Machine {
        cpu: cpu(),
        cpus: processors(),
        kernel: read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        device: device.id(),
        device_name: info.name.clone(),
        driver: info.driver.clone(),
    }
}

/// The processor's name.
pub fn cpu() -> String {
    let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Processors that we may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cpu, cpus, kernel, device, device_name, driver } = self;
        write!(f, "{cpu}, {cpus} processors, Linux {kernel}, {device} {device_name}, driver {driver}")
    }
}

/// The type of the file system that holds a file, such as `ext4`.
pub fn file_system(file: &OpenFile) -> String {
    let device = file.buffered().metadata().map_or(0, |metadata| metadata.dev());
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let mounts = read_to_string("/proc/self/mountinfo").unwrap_or_default();
    type_of(&mounts, &number).unwrap_or_else(|| bifolio_io::profile::file_system_of(file))
}

/// Finds the type behind a device number in the format of `/proc/self/mountinfo`.
fn type_of(mounts: &str, number: &str) -> Option<String> {
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(number))?;
    line.split_once(" - ")?.1.split(' ').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_is_found_by_the_device_number() {
        let mounts = "21 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n22 21 0:5 / /proc rw shared:1 - proc proc rw\n";
        assert_eq!(type_of(mounts, "254:0").as_deref(), Some("ext4"));
        assert_eq!(type_of(mounts, "0:5").as_deref(), Some("proc"));
        assert_eq!(type_of(mounts, "1:1"), None);
    }
}
