//! Paging: the slides' metric of a paging device, and a program that has less memory than it needs.
//!
//! ```text
//!   spaces    what is compared: paging cache, disk, zram     rates    throughput of single requests by size
//!   load      the program, in a cgroup                       metric   what rates are worth (pure)
//!   report    tables and page
//! ```
//!
//! The sizes of requests are those that the program's swapping made on the paging cache in this run.

pub mod cgroup;
pub mod load;
mod metric;
mod rates;
mod report;
mod spaces;

pub use report::Results;

use crate::error::{Error, Result};
use crate::harness::machine;
use crate::harness::report::Measured;
use crate::harness::session::Session;
use bifolio_device::Device;
use load::LoadReport;
use metric::{Rate, Share, shares, throughput};
use rates::{Asked, of_disk, of_memory};
use serde::Serialize;
use spaces::{Space, Up, is_missing};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// So often the program may be ended by the kernel.
const KILLED_MAX: u32 = 6;

/// What is measured.
pub struct Options<'a> {
    /// A folder on the disk that is compared with, and that has the backing.
    pub folder: PathBuf,
    /// The device, as users name it.
    pub device: String,
    /// Bytes of device memory.
    pub device_memory: u64,
    /// Writes may wait in device memory.
    pub writes_back: bool,
    /// Serving threads.
    pub threads: usize,
    /// Memory that the program may have.
    pub limit: u64,
    /// Memory that it needs.
    pub working_set: u64,
    /// How long it runs on each space.
    pub time: Duration,
    /// Sizes of single requests.
    pub sizes: Vec<u64>,
    /// Time for each size and direction.
    pub point: Duration,
    /// Seed of places and data.
    pub seed: u64,
    /// The command of a keeper of the swap space in this folder.
    pub keeper: &'a dyn Fn(&Path) -> Command,
    /// The command of the program: it prints its report as JSON.
    pub program: &'a dyn Fn(&Program) -> Command,
}

/// What the program is told.
#[derive(Debug, Clone)]
pub struct Program {
    /// Memory that it needs.
    pub bytes: u64,
    /// How long it runs.
    pub time: Duration,
    /// The cgroup that it enters.
    pub entrance: PathBuf,
    /// Its seed.
    pub seed: u64,
}

/// Rates of a space, and what they are worth.
#[derive(Debug, Clone, Serialize)]
pub struct Rates {
    space: Space,
    reads: Vec<Rate>,
    writes: Vec<Rate>,
    /// The slides' metric, in MB/s; none until the sizes of requests are known.
    metric_mb_per_s: Option<f64>,
}

/// A run of the program.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    space: Space,
    #[serde(flatten)]
    report: LoadReport,
    /// How often the kernel ended the program before, as its cgroup seemed to have no memory left.
    killed: u32,
    /// The longest request of the paging cache, in microseconds.
    longest_request_us: Option<f64>,
    /// The share of pages read that came from the device.
    hit_rate: Option<f64>,
}

/// How often which size was asked for.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Sizes {
    reads: Vec<Share>,
    writes: Vec<Share>,
}

#[derive(Default)]
struct Found {
    sizes: Sizes,
    runs: Vec<Run>,
    rates: Vec<Rates>,
    missing: Vec<String>,
}

/// Measures.
///
/// # Errors
/// `Unavailable` where swap spaces or cgroups cannot be made, `Wrong` for a word that came back changed, and the system's.
pub fn run(device: &Device, options: &Options<'_>, session: &Session) -> Result<Measured<Results>> {
    let mut found = Found::default();
    let ended = measure(options, session, &mut found);
    let has_measured = !found.runs.is_empty();
    let describe = || Results {
        machine: machine::describe(device),
        folder: options.folder.display().to_string(),
        device: options.device.clone(),
        device_memory: options.device_memory,
        mode: if options.writes_back { "write-back" } else { "write-through" },
        limit: options.limit,
        working_set: options.working_set,
        seconds: options.time.as_secs_f64(),
        seed: options.seed,
        sizes: found.sizes,
        runs: found.runs,
        rates: found.rates,
        missing: found.missing,
    };
    Measured::new(ended, has_measured, describe)
}

fn measure(options: &Options<'_>, session: &Session, found: &mut Found) -> Result<()> {
    let spaces = [Space::Paging, Space::Disk, Space::Zram];
    session.begin("a program with too little memory", spaces.len() as u64);
    for space in spaces {
        session.check()?;
        session.say(&format!("a program with too little memory: {}", space.name()));
        match run_program(space, options, found) {
            Err(error) if space != Space::Paging && is_missing(&error) => found.missing.push(error.to_string()),
            done => done?,
        }
        session.advance(1);
    }
    session.begin("single requests", 4 * 2 * options.sizes.len() as u64);
    let span = (options.working_set / 2).max(*options.sizes.iter().max().unwrap_or(&4096));
    let asked = Asked { sizes: &options.sizes, point: options.point, span, seed: options.seed };
    for space in [Space::Paging, Space::Disk, Space::Zram, Space::Memory] {
        session.say(&format!("single requests: {}", space.name()));
        let [reads, writes] = match space {
            Space::Memory => of_memory(&asked, session)?,
            _ => match Up::new(space, options.working_set, false, options) {
                Err(error) if space != Space::Paging && is_missing(&error) => continue,
                up => of_disk(&up?.path, &asked, session)?,
            },
        };
        let worth = throughput((&found.sizes.reads, &reads), (&found.sizes.writes, &writes));
        found.rates.push(Rates { space, reads, writes, metric_mb_per_s: worth });
    }
    Ok(())
}

/// Runs the program once; none if the kernel has ended it, which happens now and then where a small cgroup swaps.
fn try_program(options: &Options<'_>) -> Result<Option<LoadReport>> {
    let group = cgroup::Group::new(options.limit)?;
    let program =
        Program { bytes: options.working_set, time: options.time, entrance: group.entrance(), seed: options.seed };
    let mut command = (options.program)(&program);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let failed = |error| Error::system("the program", "running it", error);
    let output = child.and_then(std::process::Child::wait_with_output).map_err(failed)?;
    if output.status.signal() == Some(libc::SIGKILL) {
        return Ok(None);
    }
    if !output.status.success() {
        return Err(Error::failed("the program", format!("it ended {}", output.status)));
    }
    let report = serde_json::from_slice(&output.stdout);
    report.map(Some).map_err(|error| Error::failed("the program", format!("what it printed is no report: {error}")))
}

fn run_program(space: Space, options: &Options<'_>, found: &mut Found) -> Result<()> {
    // Everything may be swapped, and some of it twice for a while.
    let up = Up::new(space, options.working_set * 3 / 2, true, options)?;
    let mut killed = 0;
    let report = loop {
        if let Some(report) = try_program(options)? {
            break report;
        }
        killed += 1;
        if killed == KILLED_MAX {
            let detail = format!("the kernel has ended it {killed} times: {} bytes did not suffice", options.limit);
            return Err(Error::failed("the program", detail));
        }
    };
    if report.wrong_words > 0 {
        let detail = format!("{} words came back from the {} changed", report.wrong_words, space.name());
        return Err(Error::new(crate::ErrorKind::Wrong, "the program", detail));
    }
    if let Some([reads, writes]) = up.lengths() {
        found.sizes = Sizes { reads: shares(&reads, &options.sizes), writes: shares(&writes, &options.sizes) };
    }
    let told = up.told();
    found.runs.push(Run {
        space,
        report,
        killed,
        longest_request_us: told.map(|told| told.0),
        hit_rate: told.map(|told| told.1),
    });
    Ok(())
}
