//! `bifolio cache ls|warm|drop|pin|unpin`: the cache of the daemon.

use crate::daemon::told;
use crate::exit::{Code, Failure};
use crate::global::Global;
use crate::output;
use crate::progress::Progress;
use bifolio_cache::{Advice, Counts};
use bifolio_daemon::protocol::FileStatus;
use bifolio_daemon::{Client, SharedFile, default_socket};
use bifolio_device::DeviceChoice;
use bifolio_io::size;
use clap::Args as ClapArgs;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Instant;

/// Bytes that are brought at a time: others get their turn, and so does the progress bar.
const STEP_BYTES: u64 = 256 << 20;

/// Choices for `cache ls`.
#[derive(Debug, ClapArgs)]
pub struct LsArgs {
    /// Where the daemon listens. If not named, where `bifolio daemon` does.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Choices for commands about files.
#[derive(Debug, ClapArgs)]
pub struct FilesArgs {
    /// The files. The daemon's devices are those that --device names, or its first one.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Where the daemon listens. If not named, where `bifolio daemon` does.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Listed<'a> {
    path: &'a str,
    size: u64,
    users: u64,
    devices: Vec<OnDevice>,
    /// Who has acquired or pinned something of it.
    holders: Vec<HeldBy>,
}

#[derive(Debug, Serialize)]
struct HeldBy {
    pid: u32,
    device: String,
    acquired_bytes: u64,
}

#[derive(Debug, Serialize)]
struct OnDevice {
    device: String,
    cached_bytes: u64,
    pinned: bool,
}

#[derive(Debug, Serialize)]
struct Done {
    path: PathBuf,
    device: String,
    size: u64,
    /// Of them, what was brought; none where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    brought_bytes: Option<u64>,
    seconds: f64,
}

pub fn connect(socket: Option<&PathBuf>) -> Result<Client, Failure> {
    let socket = socket.cloned().map_or_else(default_socket, Ok).map_err(told)?;
    Client::connect(socket).map_err(told)
}

/// Numbers of the daemon's devices that the user means.
fn devices(global: &Global, client: &Client) -> Result<Vec<usize>, Failure> {
    let known = client.devices();
    let number = |choice: &DeviceChoice| match choice {
        DeviceChoice::Exactly(device) => known.iter().position(|known| known == device).ok_or_else(|| {
            let names: Vec<String> = known.iter().map(ToString::to_string).collect();
            Failure::new(Code::Usage, format!("{device} is no device of the daemon's, which has {}", names.join(", ")))
        }),
        DeviceChoice::Auto => Ok(0),
    };
    global.devices.iter().map(number).collect()
}

/// Carries `cache ls` out.
pub fn list(global: &Global, options: &LsArgs) -> Result<(), Failure> {
    let client = connect(options.socket.as_ref())?;
    let names: Vec<String> = client.devices().iter().map(ToString::to_string).collect();
    let mut files = client.files().map_err(told)?;
    files.sort_by(|one, other| one.path.cmp(&other.path));
    let listed: Vec<Listed<'_>> = files.iter().map(|file| Listed::of(file, &names)).collect();
    global.answer(&listed, || describe(&listed, &names))
}

impl<'a> Listed<'a> {
    fn of(FileStatus { size, users, devices, holders, path, .. }: &'a FileStatus, names: &[String]) -> Self {
        let on = |(device, (cached_bytes, pinned)): (&String, &(u64, bool))| OnDevice {
            device: device.clone(),
            cached_bytes: *cached_bytes,
            pinned: *pinned,
        };
        let held = |(pid, device, acquired_bytes): &(u32, usize, u64)| {
            Some(HeldBy { pid: *pid, device: names.get(*device)?.clone(), acquired_bytes: *acquired_bytes })
        };
        let holders = holders.iter().filter_map(held).collect();
        Self { path, size: *size, users: *users, devices: names.iter().zip(devices).map(on).collect(), holders }
    }
}

fn describe(files: &[Listed<'_>], names: &[String]) -> String {
    if files.is_empty() {
        return "the daemon has no file cached\n".to_owned();
    }
    let head = ["file", "size"].into_iter().chain(names.iter().map(String::as_str)).chain(["open"]);
    let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).collect()];
    rows.extend(files.iter().map(|file| {
        let on = |there: &OnDevice| {
            // The last page is a whole one.
            let bytes = size::human(there.cached_bytes.min(file.size));
            if there.pinned { format!("{bytes} pinned") } else { bytes }
        };
        let begin = [output::printable(file.path).into_owned(), size::human(file.size)].into_iter();
        begin.chain(file.devices.iter().map(on)).chain([file.users.to_string()]).collect()
    }));
    let mut text = output::columns(&rows, &[0]);
    let mut held: Vec<Vec<String>> = vec![["process", "device", "acquired", "file"].map(str::to_owned).to_vec()];
    for (file, HeldBy { pid, device, acquired_bytes }) in
        files.iter().flat_map(|file| file.holders.iter().map(move |holder| (file, holder)))
    {
        let path = output::printable(file.path).into_owned();
        held.push(vec![pid.to_string(), device.clone(), size::human(*acquired_bytes), path]);
    }
    if held.len() > 1 {
        text.push('\n');
        text += &output::columns(&held, &[1, 3]);
    }
    text
}

/// Carries `cache warm` out.
pub fn warm(global: &Global, options: &FilesArgs) -> Result<(), Failure> {
    each(global, options, "brought to", |file, device, total| bring(file, device, total).map(Some))
}

/// Carries `cache drop` out.
pub fn drop_all(global: &Global, options: &FilesArgs) -> Result<(), Failure> {
    each(global, options, "given back on", |file, device, _| {
        if file.size() > 0 {
            file.map_on(device, 0..u64::MAX, false)?.advise(0..file.size(), Advice::DontNeed)?;
        }
        Ok(None)
    })
}

/// Carries `cache pin` and `cache unpin` out.
pub fn keep(global: &Global, options: &FilesArgs, is_kept: bool) -> Result<(), Failure> {
    let doing = if is_kept { "pinned on" } else { "unpinned on" };
    each(global, options, doing, |file, device, total| {
        // What is there is pinned at once, and what is not comes with a progress bar.
        let brought = if is_kept { Some(bring(file, device, total)?) } else { None };
        file.keep(device, is_kept).map(|()| brought)
    })
}

/// Brings a file to a device, and says how many bytes were brought.
fn bring(file: &SharedFile, device: usize, progress: &Progress) -> bifolio_daemon::Result<u64> {
    if file.size() == 0 {
        return Ok(0);
    }
    let mut mapping = file.map_on(device, 0..u64::MAX, false)?;
    let mut counts = Counts::default();
    for start in (0..mapping.len()).step_by(STEP_BYTES as usize) {
        let part = start..mapping.len().min(start + STEP_BYTES);
        let report = mapping.acquire(part.clone())?;
        mapping.release(part.clone())?;
        (counts.hits, counts.fetched) = (counts.hits + report.hits, counts.fetched + report.fetched);
        progress.advance(part.end - part.start);
    }
    let pages = (counts.hits + counts.fetched).max(1);
    Ok((mapping.len() as f64 * counts.fetched as f64 / pages as f64) as u64)
}

fn each(
    global: &Global,
    options: &FilesArgs,
    doing: &str,
    work: impl Fn(&SharedFile, usize, &Progress) -> bifolio_daemon::Result<Option<u64>>,
) -> Result<(), Failure> {
    let client = connect(options.socket.as_ref())?;
    let devices = devices(global, &client)?;
    let mut done = vec![];
    for path in &options.files {
        let file = client.open_path(path).map_err(told)?;
        for device in &devices {
            let name = client.devices()[*device].to_string();
            let progress = Progress::of_bytes(&path.display().to_string(), file.size());
            let begun = Instant::now();
            let brought_bytes = work(&file, *device, &progress).map_err(told)?;
            drop(progress);
            let seconds = begun.elapsed().as_secs_f64();
            done.push(Done { path: path.clone(), device: name, size: file.size(), brought_bytes, seconds });
        }
    }
    let line = |text: String, Done { path, device, size, brought_bytes, seconds }: &Done| {
        let (path, size) = (path.display().to_string(), size::human(*size));
        let brought = match brought_bytes {
            Some(0) => ", all of which was there".to_owned(),
            Some(bytes) => format!(", {} of it read in {seconds:.3} s", size::human(*bytes)),
            None => String::new(),
        };
        let mut text = text;
        let _ = writeln!(text, "{}  {size} {doing} {device}{brought}", output::printable(&path));
        text
    };
    global.answer(&done, || done.iter().fold(String::new(), line))
}
