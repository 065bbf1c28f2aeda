//! `bifolio bench spread`: one warm file into several devices, beside loading it one device after
//! the other and into one device alone.

use crate::args::{Args, RouterArgs};
use crate::exit::{Code, Failure};
use crate::progress::Progress;
use crate::read::{self, Checker, poison, spread_devices};
use crate::resources::{cpu_s_per_gb, cpu_seconds, gb_per_s};
use crate::{output, signals};
use bifolio_device::Allocation;
use bifolio_io::cache_state::load;
use bifolio_io::{Cancel, OpenFile, ReadOptions, Router, Spread, part_of, read_spread};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Places of each device's memory that are compared with the file after the first run.
const CHECKED_PLACES: u64 = 64;
const CHECKED_BYTES: u64 = 1 << 20;

/// Choices for `bench spread`.
#[derive(Debug, ClapArgs)]
pub struct SpreadArgs {
    /// The file; it is read into the page cache first.
    pub file: PathBuf,
    /// Runs of each way; they take turns.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repetitions: u32,
    /// The routers, one for each device.
    #[command(flatten)]
    pub router: RouterArgs,
}

/// The ways, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Way {
    OneDevice,
    OneAfterTheOther,
    Shard,
    Replicate,
}

impl Way {
    const ALL: [Self; 4] = [Self::OneDevice, Self::OneAfterTheOther, Self::Shard, Self::Replicate];

    fn name(self) -> &'static str {
        match self {
            Self::OneDevice => "one device alone",
            Self::OneAfterTheOther => "all, one after the other",
            Self::Shard => "shard",
            Self::Replicate => "replicate",
        }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    way: Way,
    /// Bytes on devices afterwards, all together.
    bytes: u64,
    seconds: Vec<f64>,
    gb_per_s_best: f64,
    gb_per_s_median: f64,
    cpu_s_per_gb: f64,
    verified: bool,
}

#[derive(Debug, Serialize)]
struct Results {
    machine: super::machine::Machine,
    devices: Vec<String>,
    file: String,
    bytes: u64,
    repetitions: u32,
    rows: Vec<Row>,
    /// The time of one after the other by that of replicate, best runs.
    replicate_gain: f64,
}

/// Measures and prints.
pub fn run(args: &Args, options: &SpreadArgs, cancel: &Cancel) -> Result<(), Failure> {
    let devices = spread_devices(args)?;
    if devices.len() < 2 {
        return Err(Failure::new(Code::Usage, "name two devices or more, such as --device cuda:0,cuda:1"));
    }
    let file = read::open_file(&options.file, &devices[0])?;
    let bytes = file.size()?;
    let routers = devices.iter().map(|device| read::router(device, &file, &options.router, cancel));
    let routers: Vec<Router> = routers.collect::<Result<_, _>>()?;
    let memories = devices.iter().map(|device| device.alloc(bytes)).collect::<Result<Vec<_>, _>>()?;
    let progress = Progress::of_steps("warming up", u64::from(options.repetitions) * 4);
    load(&file, 0..bytes)?;
    let row = |way| Row {
        way,
        bytes: match way {
            Way::OneDevice | Way::Shard => bytes,
            Way::OneAfterTheOther | Way::Replicate => bytes * devices.len() as u64,
        },
        seconds: vec![],
        gb_per_s_best: 0.0,
        gb_per_s_median: 0.0,
        cpu_s_per_gb: f64::INFINITY,
        verified: false,
    };
    let mut rows = Way::ALL.map(row);
    for repetition in 0..options.repetitions {
        for turn in 0..rows.len() {
            let row = &mut rows[(turn + repetition as usize) % Way::ALL.len()];
            signals::check(cancel)?;
            progress.say(&format!("{}, run {}", row.way.name(), repetition + 1));
            if repetition == 0 {
                for (router, memory) in routers.iter().zip(&memories) {
                    poison(router.device(), memory.slice())?;
                }
            }
            let (before, started) = (cpu_seconds(), Instant::now());
            read_once(row.way, &routers, &file, &memories, cancel)?;
            let seconds = started.elapsed().as_secs_f64();
            row.seconds.push(seconds);
            row.cpu_s_per_gb = row.cpu_s_per_gb.min(cpu_s_per_gb(row.bytes, cpu_seconds() - before));
            if repetition == 0 {
                verify(row.way, &routers, &file, &memories)?;
                row.verified = true;
            }
            progress.advance(1);
        }
    }
    for row in &mut rows {
        let mut sorted = row.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        row.gb_per_s_best = gb_per_s(row.bytes, sorted[0]);
        row.gb_per_s_median = gb_per_s(row.bytes, sorted[sorted.len() / 2]);
    }
    drop(progress);
    let gain = rows[3].gb_per_s_best / rows[1].gb_per_s_best;
    let results = Results {
        machine: super::machine::describe(&devices[0]),
        devices: devices.iter().map(|device| device.id().to_string()).collect(),
        file: options.file.display().to_string(),
        bytes,
        repetitions: options.repetitions,
        rows: rows.into(),
        replicate_gain: gain,
    };
    if args.json { output::json(&results) } else { output::text(&describe(&results)) }
}

fn read_once(
    way: Way,
    routers: &[Router],
    file: &OpenFile,
    memories: &[Allocation],
    cancel: &Cancel,
) -> Result<(), Failure> {
    let options = ReadOptions { cancel: cancel.clone(), ..ReadOptions::default() };
    let spread = |spread| {
        let routers: Vec<&Router> = routers.iter().collect();
        let slices: Vec<_> = memories.iter().map(Allocation::slice).collect();
        read_spread(&routers, file, 0, None, &slices, spread, &options).map(drop)
    };
    match way {
        Way::OneDevice => routers[0].read(file, 0, None, memories[0].slice(), &options).map(drop)?,
        Way::OneAfterTheOther => {
            for (router, memory) in routers.iter().zip(memories) {
                router.read(file, 0, None, memory.slice(), &options)?;
            }
        }
        Way::Shard => spread(Spread::Shard)?,
        Way::Replicate => spread(Spread::Replicate)?,
    }
    Ok(())
}

/// Compares many places of every device's memory with the file.
fn verify(way: Way, routers: &[Router], file: &OpenFile, memories: &[Allocation]) -> Result<(), Failure> {
    for (number, (router, memory)) in routers.iter().zip(memories).enumerate() {
        let lands = match way {
            Way::OneDevice if number > 0 => continue,
            Way::Shard => part_of(&(0..memory.len()), number, routers.len()),
            _ => 0..memory.len(),
        };
        let mut checker = Checker::new(router, file)?;
        let length = lands.end - lands.start;
        let stride = (length / CHECKED_PLACES).max(CHECKED_BYTES);
        for at in (0..length).step_by(stride as usize) {
            let part = memory.slice().part(at, CHECKED_BYTES.min(length - at))?;
            checker.compare_all(part, lands.start + at)?;
        }
    }
    Ok(())
}

fn describe(results: &Results) -> String {
    let mut rows = vec![["way", "best GB/s in all", "median GB/s", "CPU s/GB", "best ms"].map(str::to_owned).to_vec()];
    rows.extend(results.rows.iter().map(|row| {
        let best = row.seconds.iter().copied().fold(f64::INFINITY, f64::min);
        vec![
            row.way.name().to_owned(),
            format!("{:.2}", row.gb_per_s_best),
            format!("{:.2}", row.gb_per_s_median),
            format!("{:.3}", row.cpu_s_per_gb),
            format!("{:.2}", best * 1e3),
        ]
    }));
    format!(
        "{}\n{}: {} bytes, warm, into {}; {} runs of each way in turns\n{}replicate is {:.2}x as quick as one after the other\n",
        results.machine,
        results.file,
        results.bytes,
        results.devices.join(" and "),
        results.repetitions,
        output::columns(&rows, &[0]),
        results.replicate_gain
    )
}
