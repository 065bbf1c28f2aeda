//! `bifolio swap on`.

use super::auto::{Found, Sizes, sizes};
use super::processes;
use crate::exit::{Code, Failure, eprintln_quietly};
use crate::global::Global;
use bifolio_device::Device;
use bifolio_io::size;
use bifolio_paging::Mode;
use bifolio_paging::header::HEADER_BYTES;
use bifolio_paging::swap::{Instance, OnOptions, Place, on, system};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the backing is, if nobody says so.
pub const BACKING: &str = "/var/lib/bifolio/swap.img";

/// Choices for `swap on`.
#[derive(Debug, ClapArgs)]
#[allow(clippy::struct_excessive_bools, reason = "options are independent of each other")]
pub struct OnArgs {
    /// The file (made if there is none) or block device that has everything.
    #[arg(long, value_name = "FILE", required_unless_present = "auto")]
    pub backing: Option<PathBuf>,
    /// Choose what is not named: the backing /var/lib/bifolio/swap.img, and sizes by memory, disk and device.
    #[arg(long)]
    pub auto: bool,
    /// Bytes of swap, such as 8G; as much as there is memory, at most a quarter of the room on the disk, if not named.
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub size: Option<u64>,
    /// Bytes of device memory in front of it; half of what is free, if not named.
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub device_memory: Option<u64>,
    /// Bytes of device memory that `swap resize` can go up to; four times --device-memory, if not named.
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub device_memory_max: Option<u64>,
    /// Bytes of device memory that are left to others: when less is free, the cache gives back what is missing. A tenth of
    /// the device, if not named.
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub leave_free: Option<u64>,
    /// When a page is written: when the backing has it, or when device memory has it (which see above).
    #[arg(long, value_name = "MODE", default_value = "write-through")]
    pub mode: ModeArg,
    /// With write-back: seconds that a page waits at most before it is on its way to the backing.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub flush_interval: f64,
    /// The swap priority: spaces of higher ones are used first. Disks have negative ones, zram usually 100.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(0..=0x7fff))]
    pub priority: u16,
    /// Have the system tell of pages that it does not need any more: frees device memory, and slows swapping down.
    #[arg(long)]
    pub discard: bool,
    /// Serving threads.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,
    /// How the disk is attached: ublk, loop (a loop device on a file that FUSE serves), nbd, or auto, which takes the first of
    /// these that works here.
    #[arg(long, value_name = "WAY", default_value = "auto")]
    pub attach: String,
    /// Do without permissions that keep swap from waiting for itself, and use file systems on which it could.
    #[arg(long)]
    pub force: bool,
    /// Make the disk only, for a file system or a measurement; the system does not swap to it.
    #[arg(long)]
    pub disk_only: bool,
    /// Use a backing that has content of another kind, which is lost.
    #[arg(long)]
    pub overwrite: bool,
}

/// When a page is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ModeArg {
    /// When the backing has it.
    WriteThrough,
    /// When device memory has it.
    WriteBack,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0.01 to 3600 is wanted".to_owned()),
    }
}

#[derive(Debug, Serialize)]
struct Answer<'a> {
    backing: &'a Path,
    disk: Option<&'a Path>,
    size: u64,
    device: &'a str,
    device_memory: u64,
    mode: String,
    priority: u16,
    attachment: &'a str,
    attachment_reason: &'a str,
}

/// Switches it on, and says what it is.
pub fn run(global: &Global, args: &OnArgs, place: &Place) -> Result<(), Failure> {
    let device = global.device()?;
    let backing = args.backing.clone().unwrap_or_else(|| BACKING.into());
    // Where the CPU uses the device's memory by its addresses, that is memory of the machine.
    if device.capabilities().host_addressable.is_yes() {
        advise_on_host(args, global)?;
    }
    if args.backing.is_none()
        && let Some(folder) = backing.parent()
    {
        let made = std::fs::create_dir_all(folder);
        made.map_err(|error| Failure::failed(format!("making {} failed: {error}", folder.display())))?;
    }
    let sizes = choose(&device, &backing, args)?;
    let most = args.device_memory_max.unwrap_or(sizes.device_memory * 4).min(device.memory()?.total);
    let options = OnOptions {
        backing,
        size: sizes.size,
        mode: if args.mode == ModeArg::WriteBack { Mode::WriteBack } else { Mode::WriteThrough },
        flush_interval: Duration::from_secs_f64(args.flush_interval),
        device: device.id().to_string(),
        memory_bytes: sizes.device_memory,
        memory_bytes_max: most.max(sizes.device_memory),
        left_bytes: sizes.left_to_others,
        threads: args.threads.into(),
        priority: args.priority,
        discards: args.discard,
        attachment: Some(args.attach.clone()),
        is_forced: args.force,
        is_disk_only: args.disk_only,
        overwrites: args.overwrite,
    };
    // The context goes, as the worker has one of its own.
    drop(device);
    if options.mode == Mode::WriteBack {
        eprintln_quietly(&format!(
            "bifolio: write-back: what was written within {} s and not written back yet is lost if the device fails",
            args.flush_interval
        ));
    }
    if system::swaps().iter().any(|swap| swap.path.to_string_lossy().contains("zram")) {
        eprintln_quietly(
            "bifolio: this system has zram, whose faults take a few microseconds; it is used first where its priority is higher",
        );
    }
    let instance = on(place, &options, &mut processes::keeper)?;
    say(global, &instance)
}

fn say(global: &Global, instance: &Instance) -> Result<(), Failure> {
    let record = &instance.record;
    let answer = Answer {
        backing: &record.backing,
        disk: record.disk.as_deref(),
        size: record.size,
        device: &record.device,
        device_memory: record.memory_bytes,
        mode: record.mode().to_string(),
        priority: record.priority,
        attachment: &record.attachment,
        attachment_reason: &record.attachment_reason,
    };
    global.answer(&answer, || {
        format!(
            "{} of swap on {} with {} of {} in front of it: {} ({}: {}), {}, priority {}",
            size::human(record.size),
            record.backing.display(),
            size::human(record.memory_bytes),
            record.device,
            record.disk.as_deref().unwrap_or(Path::new("no disk")).display(),
            record.attachment,
            record.attachment_reason,
            record.mode(),
            record.priority
        )
    })
}

/// Memory of the machine in front of a file makes swap slower than none, but for tests it is what there is.
fn advise_on_host(args: &OnArgs, global: &Global) -> Result<(), Failure> {
    let is_chosen = global.device_choice()?.to_string().starts_with("host");
    if args.auto && !is_chosen {
        let sentence = "no GPU is here whose memory could hold swapped pages; zram is the better choice (or name --device host, \
                        for a test)";
        return Err(Failure::new(Code::Unavailable, sentence));
    }
    eprintln_quietly("bifolio: the device host is memory of this machine: good for tests, and else zram is better");
    Ok(())
}

fn choose(device: &Device, backing: &Path, args: &OnArgs) -> Result<Sizes, Failure> {
    let memory = device.memory()?;
    let found = std::fs::metadata(backing).ok();
    let is_disk = found.as_ref().is_some_and(|found| found.file_type().is_block_device());
    let room = if is_disk {
        disk_bytes(backing)?.saturating_sub(HEADER_BYTES)
    } else {
        let folder = backing.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let now = found.map_or(0, |found| found.len());
        let free = system::free_space(folder).ok_or_else(|| {
            Failure::failed(format!("{}: the folder that it is to be in does not exist", backing.display()))
        })?;
        free.saturating_add(now)
    };
    let found = Found {
        memory: system::memory().0,
        room,
        has_room_alone: is_disk,
        device_total: memory.total,
        device_free: memory.free,
    };
    sizes(found, args.size, args.device_memory, args.leave_free).ok_or_else(|| {
        let sentence = format!("{} has {} of room, which is too little for swap", backing.display(), size::human(room));
        Failure::failed(sentence)
    })
}

fn disk_bytes(path: &Path) -> Result<u64, Failure> {
    use std::io::{Seek, SeekFrom};
    let end = std::fs::File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
    end.map_err(|error| Failure::failed(format!("{}: asking for its size failed: {error}", path.display())))
}
