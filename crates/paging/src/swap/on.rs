//! Switching swap on, and the processes that serve it.

use super::off::take_down;
use super::record::{Held, Instance, Place, Process, Record};
use super::system;
use crate::attach::{self, Attachment, DiskServer};
use crate::cache::{Mode, OpenDevice};
use crate::header::Header;
use crate::pages::PAGE_BYTES;
use crate::service::{ServedDisk, Service, ServiceOptions, WorkOptions};
use bifolio_block::signatures::{self, Found};
use bifolio_block::{Error, ErrorKind, FileDevice, Result};
use bifolio_keeper::{Event, process};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Less than that is not worth a disk.
const SIZE_MIN: u64 = 1 << 20;
/// What the keeper says when its first worker serves, with the number of the directory's descriptor.
const READY: &str = "ready ";
/// The variable by which a worker gets the record from its keeper.
const RECORD_VARIABLE: &str = "BIFOLIO_SWAP_RECORD";

/// What is to be switched on.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "options are independent of each other")]
pub struct OnOptions {
    /// The backing: a file, which is made if there is none, or a block device.
    pub backing: PathBuf,
    /// Bytes of content; rounded down to pages.
    pub size: u64,
    /// When writes have ended.
    pub mode: Mode,
    /// In write-back mode, how long at most before a write is on its way.
    pub flush_interval: Duration,
    /// The device, as users name it.
    pub device: String,
    /// Bytes of device memory to begin with.
    pub memory_bytes: u64,
    /// Bytes of device memory at most.
    pub memory_bytes_max: u64,
    /// Bytes of device memory that are left to others.
    pub left_bytes: u64,
    /// Serving threads.
    pub threads: usize,
    /// The swap priority.
    pub priority: u16,
    /// The system tells of clusters that it does not need any more, which frees device memory and takes time.
    pub discards: bool,
    /// How the disk is attached; the best way that works, if not named.
    pub attachment: Option<String>,
    /// Permissions that are lacking, and file systems that are unfit, are no reason to refuse.
    pub is_forced: bool,
    /// It ends with the disk, which the system does not use as swap.
    pub is_disk_only: bool,
    /// What is in the backing may be lost.
    pub overwrites: bool,
}

/// Switches swap on; `keeper` makes the command of the process that keeps it, which is to call [`serve`] with the folder.
///
/// # Errors
/// `Permission` for others than root, `Exists` where a file of somebody else's would be lost, `InUse`, `NoSpace`, `Missing`
/// with what the machine lacks, and the system's. Nothing is left behind.
pub fn on(place: &Place, options: &OnOptions, keeper: &mut dyn FnMut(&Path) -> Command) -> Result<Instance> {
    let attach::Choice { way: attachment, reason } = attach::choose(options.attachment.as_deref())?;
    let backing = std::path::absolute(&options.backing)
        .map_err(|error| Error::system(options.backing.display(), "finding its whole path", error))?;
    check_rights(&backing, options.is_forced)?;
    let made_backing = check_backing(&backing, options)?;
    let held = place.hold()?;
    if place.instances()?.iter().any(|one| one.record.backing == backing) {
        let detail = "it is the backing of a swap space that is on already; see `swap status`";
        return Err(Error::new(ErrorKind::InUse, backing.display(), detail));
    }
    let record = Record {
        backing,
        made_backing,
        size: options.size / PAGE_BYTES * PAGE_BYTES,
        writes_back: options.mode == Mode::WriteBack,
        flush_interval_ms: options.flush_interval.as_millis() as u64,
        device: options.device.clone(),
        memory_bytes: options.memory_bytes,
        memory_bytes_max: options.memory_bytes_max,
        left_bytes: options.left_bytes,
        threads: options.threads.max(1),
        priority: options.priority,
        discards: options.discards,
        attachment: attachment.name().to_owned(),
        attachment_reason: reason,
        keeper: None,
        directory_fd: None,
        disk: attachment.server().map(DiskServer::free_disk).transpose()?,
    };
    let mut instance = place.create(&held, record)?;
    match bring_up(&mut instance, attachment, options.is_disk_only, keeper) {
        Ok(()) => Ok(instance),
        Err(error) => {
            undo(&mut instance, &held);
            Err(error)
        }
    }
}

fn bring_up(
    instance: &mut Instance,
    attachment: &dyn Attachment,
    is_disk_only: bool,
    keeper: &mut dyn FnMut(&Path) -> Command,
) -> Result<()> {
    start(instance, keeper)?;
    let disk = attachment.attach(&instance.made_of(), is_disk_only)?;
    instance.record.disk = Some(disk.path.clone());
    instance.save()?;
    if is_disk_only {
        return Ok(());
    }
    system::mkswap(&disk.path)?;
    system::swapon(&disk.path, instance.record.priority, instance.record.discards)
}

fn undo(instance: &mut Instance, held: &Held) {
    // What it says adds nothing to why it is undone.
    let _ = take_down(instance, held, true, &|_| {});
}

/// Starts the keeper, and returns when it serves.
fn start(instance: &mut Instance, keeper: &mut dyn FnMut(&Path) -> Command) -> Result<()> {
    let name = instance.record.backing.display().to_string();
    let mut command = keeper(&instance.folder);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| Error::system(&name, "starting its keeper", error))?;
    instance.record.keeper = Process::of(child.id());
    instance.save()?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        let _ = BufReader::new(output).read_line(&mut line);
    }
    let fd = line.strip_prefix(READY).and_then(|number| number.trim().parse().ok());
    let Some(fd) = fd else {
        let _ = child.wait();
        let said = std::fs::read_to_string(instance.messages()).unwrap_or_default();
        let why = said.lines().last().map_or("it has not said why", |last| last);
        return Err(Error::new(ErrorKind::BadState, &name, format!("its keeper ended before it served: {why}")));
    };
    instance.record.directory_fd = Some(fd);
    instance.save()
}

fn check_rights(backing: &Path, is_forced: bool) -> Result<()> {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Err(Error::new(ErrorKind::Permission, backing.display(), "only root may switch swap on; use sudo"));
    }
    if is_forced {
        return Ok(());
    }
    let lacking = [process::can_become_flusher().err(), process::can_lock_memory().err()];
    lacking.into_iter().flatten().next().map_or(Ok(()), |error| {
        let detail = format!(
            "{error}; without it the process that serves swap could wait for memory that only it can free (in a container, \
             allow CAP_SYS_RESOURCE and CAP_IPC_LOCK; --force takes the risk)"
        );
        Err(Error::new(ErrorKind::Permission, backing.display(), detail))
    })
}

/// Whether the backing is new; refuses what would be lost, what cannot hold swap, and what has no room.
fn check_backing(path: &Path, options: &OnOptions) -> Result<bool> {
    let about = |kind, detail: String| Err(Error::new(kind, path.display(), detail));
    if options.size < SIZE_MIN {
        return about(ErrorKind::BadUse, format!("{} bytes are too few for swap; 1M is the least", options.size));
    }
    let found = std::fs::metadata(path);
    let is_new = found.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    let folder = path.parent().unwrap_or(Path::new("/"));
    if is_new && !folder.is_dir() {
        return about(ErrorKind::NotFound, "the folder that it is to be in does not exist".to_owned());
    }
    if let (Some(why), false) = (system::why_unfit(if is_new { folder } else { path }), options.is_forced) {
        let detail = format!("{why}, where writing memory out needs memory; choose a disk, or use --force");
        return about(ErrorKind::BadState, detail);
    }
    let has_now = found.as_ref().map_or(0, std::fs::Metadata::len);
    let free = system::free_space(folder).unwrap_or(u64::MAX);
    if found.as_ref().map_or(true, std::fs::Metadata::is_file) && options.size.saturating_sub(has_now) > free {
        let detail = format!("{} bytes are wanted, and {free} are free there; choose fewer with --size", options.size);
        return about(ErrorKind::NoSpace, detail);
    }
    if is_new {
        return Ok(true);
    }
    // For writing: a block device that the system uses (a mount, an array, swap) is refused by that, whatever may be lost.
    let device = FileDevice::open(path, true)?;
    if options.overwrites || Header::read(&device).is_ok() {
        return Ok(false);
    }
    let found: Vec<String> = signatures::look(&device)?.iter().map(Found::describe).collect();
    if found.is_empty() {
        return Ok(false);
    }
    let detail =
        format!("it holds {}, which would be lost; name another file, or use --overwrite", found.join(" and "));
    about(ErrorKind::Exists, detail)
}

/// The keeper's process, from its start until the swap space is off; `worker` makes the command of the process that
/// serves, which is to call [`crate::service::work`] with [`work_options`]. Errors are also among the messages.
///
/// # Errors
/// Those of the service.
pub fn serve(folder: &Path, worker: &mut dyn FnMut(&Path) -> Command, say: &dyn Fn(&str)) -> Result<()> {
    let instance = Instance::load(folder.to_owned())?;
    let record = &instance.record;
    for done in
        [process::become_flusher(), process::lock_memory(), process::refuse_oom_kill(), process::run_before_others()]
    {
        done.unwrap_or_else(|error| say(&error.to_string()));
    }
    let has_server = attach::choose::named(&record.attachment)?.server().is_some();
    let service = Service::new(&ServiceOptions {
        backing: record.backing.clone(),
        size: record.size,
        mode: record.mode(),
        memory_bytes: record.memory_bytes,
        memory_bytes_max: record.memory_bytes_max,
        left_bytes: record.left_bytes,
        mount: (!has_server).then(|| instance.served()),
        // With a mounted file, all that is on it goes with the keeper, and the backing alone has everything else.
        directory: (has_server && record.writes_back).then(|| instance.named_directory()),
        threads: record.threads,
    })?;
    if !service.can_resend() {
        say(
            "this kernel does not send requests again (Linux 6.9 does), so if the worker dies, what is on it cannot be read \
             any more",
        );
    }
    let fd = service.directory_fd();
    let mut has_told = false;
    let mut event = |event| match event {
        Event::Ready if !std::mem::replace(&mut has_told, true) => {
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{READY}{fd}").and_then(|()| out.flush());
            drop(out);
            // Nobody listens from here on, and whoever reads to the end is not to wait for that of the swap space.
            let _ = close_stdout();
        }
        Event::Died(status) => say(&format!("the worker ended {status}; another one takes over")),
        Event::NotStarted(error) => say(&format!("{error}; it is tried again")),
        Event::Ready | Event::Started(_) => {}
    };
    let text = serde_json::to_string(record).unwrap_or_default();
    let mut command = || {
        let mut command = worker(folder);
        command.env(RECORD_VARIABLE, &text);
        command
    };
    service.run(&mut command, &|| false, &mut event)
}

fn close_stdout() -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    // SAFETY: both are descriptors of this process; what was open under the number is closed.
    if unsafe { libc::dup2(null.as_raw_fd(), 1) } < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// What the worker of a folder is to do: what its keeper hands over, and else the folder's record. The folder is in memory
/// that the system may have written out to the very swap that this worker is to serve, and the keeper's is locked.
///
/// # Errors
/// Those of reading the record.
pub fn work_options(folder: &Path, open_device: impl FnOnce(&str) -> OpenDevice) -> Result<WorkOptions> {
    let handed = std::env::var(RECORD_VARIABLE).ok().and_then(|text| serde_json::from_str(&text).ok());
    let instance = match handed {
        Some(record) => Instance { folder: folder.to_owned(), record },
        None => Instance::load(folder.to_owned())?,
    };
    let server = attach::choose::named(&instance.record.attachment)?.server();
    let disk = server.zip(instance.record.disk.clone()).map(|(server, path)| ServedDisk {
        server,
        path,
        owner: instance.served(),
        threads: instance.record.threads,
    });
    let record = instance.record;
    Ok(WorkOptions {
        backing: record.backing,
        open_device: open_device(&record.device),
        flush_interval: Duration::from_millis(record.flush_interval_ms),
        locks: true,
        disk,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::{Served, choose};
    use std::os::unix::fs::{FileExt, OpenOptionsExt};

    fn options(overwrites: bool) -> OnOptions {
        OnOptions {
            backing: PathBuf::new(),
            size: SIZE_MIN,
            mode: Mode::WriteThrough,
            flush_interval: Duration::from_secs(1),
            device: "host".to_owned(),
            memory_bytes: SIZE_MIN,
            memory_bytes_max: SIZE_MIN,
            left_bytes: 0,
            threads: 1,
            priority: 0,
            discards: false,
            attachment: None,
            // Scratch folders may be in memory.
            is_forced: true,
            is_disk_only: false,
            overwrites,
        }
    }

    /// A file of 8 MiB with these bytes at an offset.
    fn file(folder: &Path, offset: u64, bytes: &[u8]) -> PathBuf {
        let path = folder.join("backing");
        let file = File::create(&path).unwrap();
        file.set_len(8 << 20).unwrap();
        file.write_all_at(bytes, offset).unwrap();
        path
    }

    /// A partition with Btrfs became the backing: its first 64 KiB are zeroes, and only these were looked at.
    #[test]
    fn what_begins_with_zeroes_and_holds_something_is_refused_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(folder.path(), 0x1_0040, b"_BHRfS_M");
        let error = check_backing(&path, &options(false)).unwrap_err();
        assert!(error.kind() == ErrorKind::Exists && error.to_string().contains("btrfs"), "{error}");
        let tail = file(folder.path(), (8 << 20) - 100, b"x");
        assert_eq!(check_backing(&tail, &options(false)).unwrap_err().kind(), ErrorKind::Exists);
        assert!(!check_backing(&path, &options(true)).unwrap(), "whoever says so may lose it");
        assert!(!check_backing(&file(folder.path(), 0, &[]), &options(false)).unwrap(), "it is empty");
        assert!(check_backing(&folder.path().join("new"), &options(false)).unwrap());
    }

    /// A mounted partition became the backing: it was opened as a file is, and not as the system opens what it mounts.
    #[test]
    fn a_block_device_that_the_system_uses_is_refused_also_where_it_may_be_lost() {
        let way = choose::named("loop").unwrap();
        if let Some(why) = way.why_not() {
            return bifolio_testing::skip(why);
        }
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = file(folder.path(), 0, &[]);
        let disk = match way.attach(&Served { file: path, disk: None }, false) {
            Ok(disk) => disk,
            Err(error) => return bifolio_testing::skip(format!("loop devices cannot be made here: {error}")),
        };
        assert!(!check_backing(&disk.path, &options(false)).unwrap());
        // As a mount has it.
        let used = File::options().read(true).write(true).custom_flags(libc::O_EXCL).open(&disk.path).unwrap();
        for overwrites in [false, true] {
            let error = check_backing(&disk.path, &options(overwrites)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
        }
        let error = crate::Backing::create(&disk.path, SIZE_MIN).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
        drop(used);
        let backing = crate::Backing::create(&disk.path, SIZE_MIN).unwrap();
        assert_eq!(FileDevice::open(&disk.path, true).unwrap_err().kind(), ErrorKind::InUse, "its keeper has it alone");
        drop(backing);
    }
}
