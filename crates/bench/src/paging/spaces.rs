//! What is compared: the paging cache, a swap file on the same disk, and compressed memory (zram).

use super::Options;
use crate::error::{Error, ErrorKind, Result};
use crate::harness::scratch::Scratch;
use bifolio_paging::Mode;
use bifolio_paging::swap::{Instance, OffOptions, OnOptions, Place, off, on, status, system};
use serde::Serialize;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A kind of swap space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Space {
    /// The paging cache.
    Paging,
    /// A file on the disk where the cache has its backing.
    Disk,
    /// Compressed memory.
    Zram,
    /// No device at all: a copy within memory.
    Memory,
}

impl Space {
    /// What it is called in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Paging => "paging cache",
            Self::Disk => "disk",
            Self::Zram => "zram",
            Self::Memory => "memory",
        }
    }
}

/// One that is there, and goes with this.
#[derive(Debug)]
pub(super) struct Up {
    /// A disk or a file.
    pub(super) path: PathBuf,
    kind: Kind,
    is_swap: bool,
    _scratch: Scratch,
}

#[derive(Debug)]
enum Kind {
    Paging(Place, Box<Instance>),
    Plain,
    /// The number of the device.
    Zram(String),
}

/// The highest, so that nothing else of the machine is used.
const PRIORITY: u16 = system::PRIORITY_MAX;

impl Up {
    /// Makes a space of `size` bytes, which the system uses for swap if `is_swap`.
    ///
    /// # Errors
    /// `Unavailable` for what this machine does not have, and the system's.
    pub(super) fn new(space: Space, size: u64, is_swap: bool, options: &Options<'_>) -> Result<Self> {
        let mut scratch = Scratch::default();
        let (path, kind) = match space {
            Space::Paging => {
                let place = Place::at(options.folder.join(format!(".bifolio-run-{}", std::process::id())));
                let instance =
                    on(&place, &paging_options(size, is_swap, options), &mut |folder| (options.keeper)(folder))?;
                let disk = instance.record.disk.clone().unwrap_or_default();
                (disk, Kind::Paging(place, Box::new(instance)))
            }
            Space::Disk => {
                let path = Scratch::name(&options.folder, "swap");
                scratch.add(&path);
                allocated(&path, size)?;
                (path, Kind::Plain)
            }
            Space::Zram => {
                let number = zram(size)?;
                (PathBuf::from(format!("/dev/zram{number}")), Kind::Zram(number))
            }
            Space::Memory => return Err(Error::bad_use("memory is no device")),
        };
        let mut up = Self { path, kind, is_swap: false, _scratch: scratch };
        // The paging cache is switched on already.
        if is_swap && space != Space::Paging {
            system::mkswap(&up.path)?;
            system::swapon(&up.path, PRIORITY, false)?;
            up.is_swap = true;
        }
        Ok(up)
    }

    /// Requests so far by their length in pages, reads and writes; none for what does not count them.
    pub(super) fn lengths(&self) -> Option<[Vec<u64>; 2]> {
        let Kind::Paging(_, instance) = &self.kind else { return None };
        let directory = instance.directory().ok()?;
        let stats = directory.stats();
        let counts = |are_writes| {
            let words = stats.lengths(are_writes).iter();
            words.map(|word| word.load(std::sync::atomic::Ordering::Relaxed)).collect()
        };
        Some([counts(false), counts(true)])
    }

    /// The longest request so far, in microseconds, and the share of pages that came from the device.
    pub(super) fn told(&self) -> Option<(f64, f64)> {
        let Kind::Paging(_, instance) = &self.kind else { return None };
        let status = status(instance).ok()?;
        Some((status.longest_us, status.hit_rate().unwrap_or(0.0)))
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if self.is_swap {
            let _ = system::swapoff(&self.path);
        }
        match &self.kind {
            Kind::Paging(place, instance) => {
                let backing = Some(instance.record.backing.clone());
                let _ = off(place, &OffOptions { backing, is_forced: true, ..OffOptions::default() }, &|_| {});
                let _ = std::fs::remove_dir_all(place.path());
            }
            Kind::Zram(number) => {
                let _ = std::fs::write("/sys/class/zram-control/hot_remove", number);
            }
            Kind::Plain => {}
        }
    }
}

fn paging_options(size: u64, is_swap: bool, options: &Options<'_>) -> OnOptions {
    OnOptions {
        backing: Scratch::name(&options.folder, "backing"),
        size,
        mode: if options.writes_back { Mode::WriteBack } else { Mode::WriteThrough },
        flush_interval: Duration::from_secs(1),
        device: options.device.clone(),
        memory_bytes: options.device_memory,
        memory_bytes_max: options.device_memory,
        left_bytes: 0,
        threads: options.threads,
        priority: PRIORITY,
        discards: false,
        attachment: None,
        is_forced: true,
        is_disk_only: !is_swap,
        overwrites: false,
    }
}

fn allocated(path: &Path, size: u64) -> Result<()> {
    let failed = |error| Error::system(path.display(), "making a swap file", error);
    let file = File::options().create(true).truncate(true).write(true).read(true).open(path).map_err(failed)?;
    // SAFETY: takes no memory; the descriptor is open.
    if unsafe {
        libc::fchmod(file.as_raw_fd(), 0o600) != 0 || libc::fallocate(file.as_raw_fd(), 0, 0, size as i64) != 0
    } {
        return Err(failed(std::io::Error::last_os_error()));
    }
    file.sync_all().map_err(failed)
}

/// A new zram device of this size: its number.
fn zram(size: u64) -> Result<String> {
    const ADD: &str = "/sys/class/zram-control/hot_add";
    let number = std::fs::read_to_string(ADD).map_err(|error| {
        let detail =
            format!("{ADD}: this machine gives no zram device ({error}); load the module zram, or leave it out");
        Error::unavailable(detail)
    })?;
    let number = number.trim().to_owned();
    let path = format!("/sys/block/zram{number}/disksize");
    std::fs::write(&path, size.to_string()).map_err(|error| {
        let _ = std::fs::write("/sys/class/zram-control/hot_remove", &number);
        Error::system(&path, "sizing a zram device", error)
    })?;
    Ok(number)
}

/// Whether an error only says that something is not here.
pub(super) fn is_missing(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable
}
